# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_rendezvous.py run, and the same on one process. All goes over gloo, whose send is
over when it was received: the memory of the host is not used.
"""

import dataclasses
from dataclasses import dataclass

import torch
import torch.distributed as dist
from ostinato import nn as parts
from ostinato.groups import make_group
from torch import nn

FED = 3  # numbers a row that go into a stage without inputs
TIMEOUT_S = 120.0  # of the executor; generous, for busy machines


@dataclass(frozen=True)
class Part:
    """A stage: the pipeline ranks that run it, those it takes from, how wide its output is."""

    ranks: tuple[int, ...]
    inputs: tuple[int, ...]
    width: int


@dataclass(frozen=True)
class Case:
    seed: int
    what: str
    files: tuple[str, str]
    stages: tuple[Part, ...]
    members: tuple[int, ...]  # ranks of the world, by pipeline rank
    micro_batches: int
    rows: int
    dynamic_shapes: bool = False
    trains: bool = True

    def ends(self, stage: int) -> bool:
        return all(stage not in part.inputs for part in self.stages)


class Stage(nn.Module):
    """A linear map of each input, and the tanh of their sum. With it goes the number of the micro-batch,
    which the receiver looks at."""

    def __init__(self, case: Case, index: int):
        super().__init__()
        torch.manual_seed(1000 * case.seed + index)
        part = case.stages[index]
        widths = [case.stages[i].width for i in part.inputs] or [FED]
        self.maps = nn.ModuleList(nn.Linear(width, part.width, dtype=torch.double) for width in widths)

    def share(self, shard: parts.Shard) -> None:
        self.maps = nn.ModuleList(parts.sharded(one, shard) for one in self.maps)

    def forward(self, *inputs):
        return torch.tanh(sum(one(x) for one, x in zip(self.maps, inputs, strict=True)))


def fed(case: Case, stage: int, micro_batch: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * stage + micro_batch)
    return torch.randn(case.rows, FED, generator=generator, dtype=torch.double)


def alone(case: Case) -> dict[int, dict]:
    """By stage: {"results": by micro-batch, "gradients": by name}, on one process."""
    stages = [Stage(case, s) for s in range(len(case.stages))]
    results: dict[int, list] = {s: [] for s in range(len(stages))}
    for m in range(case.micro_batches):
        made: list[torch.Tensor] = []
        for s, part in enumerate(case.stages):
            made.append(stages[s](*([made[i] for i in part.inputs] or [fed(case, s, m)])))
        ends = {s: _result(case, made[s]) for s in range(len(stages)) if case.ends(s)}
        if case.trains:
            (sum(ends.values()) / case.micro_batches).backward()
        for s, result in ends.items():
            results[s].append(result.detach().numpy())
    return {s: {"results": results[s], "gradients": _gradients(stages[s])} for s in range(len(stages))}


def run(cases: list[Case]) -> list[dict[int, dict] | None]:
    """On every rank of the world: what alone() gives, of the stages of this rank, by case; None where it is
    no member. Raises with the case that failed."""
    done: list[dict[int, dict] | None] = []
    for case in cases:
        try:
            done.append(_run(case))
        except Exception as error:
            raise RuntimeError(f"seed {case.seed}, {case.what}") from error
    return done


def _run(case: Case) -> dict[int, dict] | None:
    from ostinato import _plugin

    shards = {
        part.ranks: shard_of([case.members[r] for r in part.ranks])
        for part in case.stages
        if len(part.ranks) > 1
    }
    if dist.get_rank() not in case.members:
        return None
    program, rank = _plugin.lower(*case.files), case.members.index(dist.get_rank())
    group = dist.distributed_c10d._get_default_group()
    executor = _plugin.Executor(
        program,
        rank,
        group,
        list(case.members),
        TIMEOUT_S,
        shared_memory=False,
        dynamic_shapes=case.dynamic_shapes,
    )
    stages, results = {}, {}
    for lowered, stage in enumerate(program.stages):
        if rank not in stage.ranks:
            continue
        s = int(stage.name.removeprefix("s"))
        assert tuple(stage.ranks) == case.stages[s].ranks
        stages[s], results[s] = Stage(case, s), {}
        if len(stage.ranks) > 1:
            stages[s].share(shards[case.stages[s].ranks])
        inputs = [int(program.stages[i].name.removeprefix("s")) for i in stage.inputs]
        assert sorted(inputs) == sorted(case.stages[s].inputs)
        executor.set_stage(lowered, _forward(case, s, stages[s], inputs, results[s]))
    executor.run()
    return {
        s: {"results": [results[s][m] for m in sorted(results[s])], "gradients": _gradients(stages[s])}
        for s in stages
    }


def _forward(case: Case, s: int, stage: Stage, inputs: list[int], results: dict):
    """`inputs`: the stages whose outputs come, in this order."""

    def forward(micro_batch, given):
        if given is None:
            taken = [fed(case, s, micro_batch)]
        else:
            assert [tag.item() for tag in given[1::2]] == [micro_batch] * len(inputs), (
                f"stage {s} was given another micro-batch"
            )
            taken = [given[2 * inputs.index(i)] for i in case.stages[s].inputs]
        with torch.set_grad_enabled(case.trains):
            made = stage(*taken)
        if not case.ends(s):
            return made, torch.tensor(micro_batch)
        result = _result(case, made)
        results[micro_batch] = result.detach().numpy()
        return result / case.micro_batches if case.trains else ()

    return forward


def _result(case: Case, made: torch.Tensor) -> torch.Tensor:
    return made.pow(2).sum() if case.trains else made


def _gradients(stage: Stage) -> dict:
    return {name: p.grad.numpy() for name, p in stage.named_parameters() if p.grad is not None}


_groups: dict[tuple[int, ...], parts.Shard | None] = {}


def shard_of(members: list[int]) -> parts.Shard | None:
    """This rank's place among them, over gloo alone; all ranks of the world must call it."""
    key = tuple(members)
    if key not in _groups:
        group = make_group(members)
        _groups[key] = dataclasses.replace(parts.Shard.among(group), near=None) if group is not None else None
    return _groups[key]


def run_orders(files: list[tuple[str, str]], timeout_s: float) -> str:
    """Pipeline rank r holds the r-th plan of a chain. What it is told."""
    from executor_jobs import Rank
    from ostinato import _plugin

    rank = dist.get_rank()
    if rank >= len(files):
        return ""
    group = dist.distributed_c10d._get_default_group()
    try:
        Rank(_plugin.lower(*files[rank]), rank, group, timeout_s, shared_memory=False).train(1)
    except (
        _plugin.ExecutionError
    ) as error:  # StepTimeout, or what the other one's StepTimeout left of the connection
        return str(error)
    return "it ran"
