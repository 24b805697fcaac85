# SPDX-License-Identifier: Apache-2.0
"""Measures what a block costs on top of its layers: the engine's code, and sending its outputs. Also what a step
costs on top of its blocks: sending the loss to all ranks, and DeepSpeed's code around the optimizer.

    python -m ostinato.deepspeed.block_time RANK RANKS FOLDER BYTES TOUCHED     # one rank; leaves FOLDER/RANK.json

Every rank trains a chain of layers that hardly compute, under a plan that gives it several stages, with
messages of BYTES. A block's cost is the time from its start until its outputs are sent, less the time of its
layer alone. Layers read TOUCHED bytes, so that caches are as cold as real layers leave them: the engine's code
then takes half as long again. `ostinato profile` starts this (ostinato/profile/machine/block_time.py), for a
profile's `rank`.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

STAGES, MICRO_BATCHES = 4, 8  # of each rank; of a step
WARM_UP, STEPS = 3, 5


class Scaled(nn.Module):
    """Does almost nothing in a forward and a backward, except reading memory."""

    memory = torch.empty(0, device="cpu")  # which all of them read
    spent: dict[str, list[int]] = {"F": [], "B": []}  # ns of reading it, in forwards and in backwards

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, device="cpu"))

    def forward(self, values):
        _read_memory("F")
        made = values * self.scale
        made.register_hook(lambda _gradient: _read_memory("B"))
        return made


def _read_memory(kind: str) -> None:
    begin = time.perf_counter_ns()
    Scaled.memory.sum()
    Scaled.spent[kind].append(time.perf_counter_ns() - begin)


def plan_in(folder: Path, ranks: int) -> dict:
    """The section of a plan with many transfers and no waiting; rank 0 writes it, once."""
    from ostinato import core

    made = core.placement("looped", devices=ranks, chunks=STAGES, layers=ranks * STAGES)
    placement, plan = folder / "placement.toml", folder / "plan.json"
    if torch.distributed.get_rank() == 0:
        made.save(placement)
        core.search(made, micro_batches=MICRO_BATCHES, method="interleaved-1f1b").save(plan)
    torch.distributed.barrier()
    return {"plan": str(plan), "placement": str(placement)}


def alone(values: torch.Tensor) -> dict[str, int]:
    """Nanoseconds of a layer's forward and backward alone, without reading memory."""
    layer = Scaled()
    times: dict[str, list[int]] = {"F": [], "B": []}
    for _ in range(MICRO_BATCHES * STEPS):
        given = values.clone().requires_grad_()
        begin = time.perf_counter_ns()
        made = layer(given)
        times["F"].append(time.perf_counter_ns() - begin - Scaled.spent["F"][-1])
        gradient = torch.ones_like(made)
        begin = time.perf_counter_ns()
        torch.autograd.backward(made, gradient)
        times["B"].append(time.perf_counter_ns() - begin - Scaled.spent["B"][-1])
    return {kind: int(statistics.median(of_kind)) for kind, of_kind in times.items()}


def costs(
    instructions: list, records: list[tuple[int, int, int]], spent: dict[str, list[int]]
) -> Iterator[tuple[Any, int]]:
    """(block, nanoseconds) of each block that sends: until the instruction after its transfer starts. `spent`:
    what all blocks took to read memory.
    """
    took = {kind: iter(times) for kind, times in spent.items()}
    beside = [
        next(took[instructions[block].action]) if instructions[block].action in took else 0
        for block, _, _ in records
    ]
    for (block, start, _), (sending, _, _), (_, after, _), memory in zip(
        records, records[1:], records[2:], beside, strict=False
    ):
        if (
            instructions[block].action in took
            and instructions[sending].action == f"SEND_{instructions[block].action}"
        ):
            yield instructions[block], after - start - memory


def measured(folder: Path, ranks: int, size: int) -> dict[str, int]:
    """Nanoseconds of a forward ("F") and of a backward block ("B"), of the engine's code around reading a batch
    ("read"; 0 where the rank reads none), and of a "step": medians over the steps. All ranks must call it.
    """
    import deepspeed
    import ostinato.deepspeed
    from deepspeed.pipe import LayerSpec, PipelineModule

    section = plan_in(folder, ranks)
    ostinato.deepspeed.enable(section["plan"], placement=section["placement"])
    values = torch.ones(1, max(1, size // 4), device="cpu")
    model = PipelineModule(
        [LayerSpec(Scaled) for _ in range(ranks * STAGES)],
        num_stages=ranks,
        loss_fn=lambda made, _: made.mean(),
        partition_method="uniform",
        activation_checkpoint_interval=0,
    )
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": MICRO_BATCHES,
        "steps_per_print": 10**9,
        "optimizer": {"type": "SGD", "params": {"lr": 0.0}},
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config)
    run = engine._ostinato
    instructions = list(run.program.instructions(engine.stage_id))
    readers = {stage.index for stage in run.stages if stage.reads}
    found: dict[str, list[int]] = {"F": [], "B": [], "read": []}
    beside = []
    for step in range(WARM_UP + STEPS):
        torch.distributed.barrier()
        for times in Scaled.spent.values():
            times.clear()
        begin = time.perf_counter_ns()
        engine.train_batch(iter([(values, values)] * MICRO_BATCHES))
        whole = time.perf_counter_ns() - begin
        if step >= WARM_UP:
            records = run.executor.records()
            beside.append(whole - (max(end for _, _, end in records) - min(start for _, start, _ in records)))
            for block, cost in costs(instructions, records, Scaled.spent):
                found["read" if block.action == "F" and block.stage in readers else block.action].append(cost)
    own = alone(values)
    usual = {kind: int(statistics.median(times)) for kind, times in found.items() if times}
    blocks = {kind: max(0, usual[kind] - own[kind]) for kind in ("F", "B")}
    return blocks | {
        "read": max(0, usual.get("read", 0) - usual["F"]),
        "step": int(statistics.median(beside)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures what a block costs, on one rank.")
    parser.add_argument("rank", type=int)
    parser.add_argument("ranks", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("bytes", type=int)
    parser.add_argument("touched", type=int)
    args = parser.parse_args()
    Scaled.memory = torch.ones(args.touched // 4, device="cpu")
    os.environ |= {"RANK": str(args.rank), "LOCAL_RANK": str(args.rank), "WORLD_SIZE": str(args.ranks)}
    import deepspeed
    import ostinato.deepspeed  # noqa: F401  # obeys the section, whether torch has loaded ostinato or not
    from deepspeed.ops import __compatible_ops__ as operators

    operators["deepspeed_shm_comm"] = False  # else it is compiled, for a minute
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", f"file://{args.folder / 'store'}", rank=args.rank, world_size=args.ranks
    )
    deepspeed.init_distributed("gloo")
    result = measured(args.folder, args.ranks, args.bytes)
    (args.folder / f"{args.rank}.json").write_text(json.dumps(result))
    torch.distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # threads of DeepSpeed's groups may abort a normal exit


if __name__ == "__main__":
    main()
