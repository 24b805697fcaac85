# SPDX-License-Identifier: Apache-2.0
"""What ranks run in tests of ostinato.torch, and the same on one process; serving_jobs.py has infer() and serve()."""

import functools
import gc
import os
import signal
import time
import weakref
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d

from .linked import a_group_for_each_direction, bound_to_a_gpu
from .models import BATCH, LENGTH, VOCABULARY, WIDTH, Block, loss

MICRO_BATCHES = 4


@dataclass(frozen=True)
class Case:
    plan: str
    steps: int = 3
    branches: bool = False  # the two-branch model instead of the chain
    device: str = "cpu"


def chain() -> list[nn.Module]:
    """The same weights wherever it is built."""
    torch.manual_seed(5)
    return [
        nn.Embedding(VOCABULARY, WIDTH),
        *(Block() for _ in range(5)),
        nn.LayerNorm(WIDTH),
        nn.Linear(WIDTH, VOCABULARY),
    ]


class Join(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(2 * WIDTH, VOCABULARY)

    def forward(self, left, right):
        return self.mix(torch.cat([left, right], dim=-1))


def branches() -> dict[str, nn.Module]:
    torch.manual_seed(6)
    left = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), Block())
    right = nn.Sequential(nn.Linear(WIDTH, WIDTH), Block())
    return {"left": left, "right": right, "join": Join()}


def batch(step: int):
    generator = torch.Generator().manual_seed(50 + step)
    tokens = torch.randint(VOCABULARY, (MICRO_BATCHES * BATCH, LENGTH + 1), generator=generator)
    picture = torch.randn(MICRO_BATCHES * BATCH, LENGTH, WIDTH, generator=generator)
    return tokens[:, :-1], picture, tokens[:, 1:]


def alone(case: Case, trains: bool = True) -> dict:
    """Losses and gradients of every step, or outputs, on one process."""
    torch.set_num_threads(1)
    parts = branches() if case.branches else {"chain": nn.Sequential(*chain())}
    losses, gradients, outputs = [], [], []
    for step in range(case.steps):
        tokens, picture, targets = (t.chunk(MICRO_BATCHES) for t in batch(step))
        made = [
            parts["join"](parts["left"](x), parts["right"](p)) if case.branches else parts["chain"](x)
            for x, p in zip(tokens, picture, strict=True)
        ]
        outputs.append([out.detach() for out in made])
        each = [loss(out, y) for out, y in zip(made, targets, strict=True)]
        for value in each if trains else []:
            (value / MICRO_BATCHES).backward()
        losses.append(sum(value.item() for value in each) / MICRO_BATCHES)
        gradients.append({})
        for name, part in parts.items():
            for parameter_name, p in part.named_parameters() if trains else []:
                gradients[-1][f"{name}.{parameter_name}"] = p.grad.clone()
                p.grad = None
    return {"losses": losses, "gradients": gradients, "outputs": outputs}


def build(case: Case):
    from ostinato.torch import layers

    parts = branches()
    return (lambda stage: parts[stage.name]) if case.branches else layers(chain())


def train(case: Case) -> dict:
    from ostinato.torch import Pipeline

    pipe = Pipeline(case.plan, build(case), loss_fn=loss, device=case.device)
    losses, gradients = [], []
    for step in range(case.steps):
        tokens, picture, targets = (tensor.to(case.device) for tensor in batch(step))
        value = pipe.step({"left": tokens, "right": picture} if case.branches else tokens, targets)
        losses.append(None if value is None else value.item())
        gradients.append(gradients_of(pipe, case))
    return {"losses": losses, "gradients": gradients, "ran": pipe.records()}


@contextmanager
def named_as_in_2_14():
    """Groups of some ranks are named by how many groups a rank has made, and not by how many it is in."""
    world = distributed_c10d._world

    def name(ranks, use_hashed_name):
        count, world.group_count = world.group_count, world.group_count + 1
        return f"{ranks} {count}" if use_hashed_name else str(count)

    with mock.patch.object(distributed_c10d, "_process_group_name", name):
        yield


def train_in_half_a_world(case: Case, naming=nullcontext) -> dict:
    """On a pipeline of two of four ranks, of which one was in a group more than the other before; in a world
    that is bound to GPUs."""
    count = distributed_c10d._world.group_count
    with naming():
        result = _train_in_half_a_world(case)
    # Else the group that only some ranks made gives the world's next one two names, where torch counts such groups.
    distributed_c10d._world.group_count = count + 2
    return result


def _train_in_half_a_world(case: Case) -> dict:
    from ostinato.torch import Pipeline

    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    if dist.get_rank() % 2:
        dist.new_group([dist.get_rank()], use_local_synchronization=True)
    half, counted = halves[dist.get_rank() // 2], distributed_c10d._world.group_count
    with a_group_for_each_direction() as made, bound_to_a_gpu():
        pipe = Pipeline(case.plan, build(case), loss_fn=loss, group=half)
    tokens, _, targets = batch(0)
    value = pipe.step(tokens, targets)
    assert (
        distributed_c10d._world.group_count == counted
    )  # the next group of the world has one name everywhere
    return {
        "losses": [None if value is None else value.item()],
        "gradients": [gradients_of(pipe, case)],
        "made": [group for group in made if len(group.members) > 1],
        "links": {
            peer: [dist.get_process_group_ranks(group) for group in ways]
            for peer, ways in pipe._links.items()
        },
    }


def train_in_parallel(case: Case, how: str, late: str = "") -> tuple[str, dict[str, torch.Tensor]]:
    """A pipeline of one rank on each of two, with the batch of its own step; torch's wrapper `how` adds up their
    gradients. What it raises, else the gradients. `late`: wraps "stages", or a "layer", once the pipeline is made."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.nn.parallel import DistributedDataParallel

    from ostinato.torch import Pipeline

    rank, mesh = dist.get_rank(), init_device_mesh("cpu", (2,))
    wrap = {
        "DistributedDataParallel": DistributedDataParallel,
        "FullyShardedDataParallel": functools.partial(
            FullyShardedDataParallel, device_id=torch.device("cpu")
        ),
        "fully_shard": functools.partial(fully_shard, mesh=mesh),
    }[how]
    group, made = [dist.new_group([r]) for r in range(2)][rank], build(case)
    try:
        pipe = Pipeline(
            case.plan, made if late else lambda stage: wrap(made(stage)), loss_fn=loss, group=group
        )
        tokens, _, targets = batch(rank)
        for index in pipe.stages if late == "stages" else ():
            pipe.stages[index] = wrap(pipe.stages[index])
        if late == "layer":
            pipe.stages["0"][0] = wrap(pipe.stages["0"][0])
        pipe.step(tokens, targets)
    except Exception as error:
        return f"{type(error).__name__}: {error}", {}
    return "", {name: gradient.full_tensor() for name, gradient in gradients_of(pipe, case).items()}


def reductions_of_a_step(case: Case) -> tuple[int, int, float]:
    """How often a step of a pipeline of one rank, with each layer and each stage under fully_shard() on two ranks,
    reduces gradients, of how many layers with weights, and how much their sum differs after two steps."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group

    from ostinato.torch import Pipeline

    rank, mesh = dist.get_rank(), init_device_mesh("cpu", (2,))
    group = [dist.new_group([r]) for r in range(2)][rank]
    pipe = Pipeline(case.plan, build(case), loss_fn=loss, group=group)
    layers = [layer for stage in pipe.stages.values() for layer in stage]
    for module in (*layers, *pipe.stages.values()):
        fully_shard(module, mesh=mesh)
    for _ in range(2):
        reduce = mock.Mock(wraps=_fsdp_param_group.foreach_reduce)
        with mock.patch.object(_fsdp_param_group, "foreach_reduce", reduce):
            pipe.step(batch(rank)[0], batch(rank)[2])
        pipe.infer(batch(rank)[0])
    first, second = alone(replace(case, steps=2))["gradients"]
    found = {name: gradient.full_tensor() for name, gradient in gradients_of(pipe, case).items()}
    assert found.keys() == first.keys() and not pipe._executor.unsplit_stages
    worst = max((found[name] - first[name] - second[name]).abs().max().item() for name in found)
    return reduce.call_count, sum(any(True for _ in layer.parameters()) for layer in layers), worst


def without_gradients_on_torch(case: Case) -> list[str]:
    """Weights that train on torch's runtime and get no gradient, with layers under fully_shard() on two ranks, each
    with the whole pipeline."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from ostinato.torch import schedule

    rank, mesh, made = dist.get_rank(), init_device_mesh("cpu", (2,)), build(case)
    group = [dist.new_group([r]) for r in range(2)][rank]

    def sharded(stage):
        module = made(stage)
        for layer in module:
            fully_shard(layer, mesh=mesh)
        return fully_shard(module, mesh=mesh)

    runtime = schedule(case.plan, sharded, loss, group=group)
    tokens, _, targets = batch(rank)
    runtime.step(tokens, target=targets, losses=[])
    named = (pair for stage in runtime._stages for pair in stage.submod.named_parameters())
    return [name for name, parameter in named if parameter.grad is None]


def gradients_of(pipe, case: Case) -> dict[str, torch.Tensor]:
    """By the names of alone(); parts of sharded layers with the dimension and the place they are cut at."""
    from ostinato.nn.layers import split_of

    found = {}
    for stage in pipe._own:
        for name, p in pipe.stages[str(stage.index)].named_parameters():
            layer, _, rest = name.partition(".")
            at = 0 if case.branches else int(layer.partition("_")[0])
            key = f"{stage.name}.{name}" if case.branches else f"chain.{stage.layers[at]}.{rest}"
            part = stage.shard and split_of(pipe.stages[str(stage.index)][at]).get(rest)
            found[key] = (
                p.grad.clone()
                if part is None
                else (p.grad.clone(), part, stage.shard.index, stage.shard.count)
            )
            p.grad = None
    return found


def saved_and_loaded(plans: list[str], folder: str) -> list[str]:
    """What torch.distributed.checkpoint saves of the training of one plan, and loads wrong: for the same plan by the
    names of the pipeline, for another one by those of the layers."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

    from ostinato.torch import Pipeline, layers

    options = StateDictOptions(flatten_optimizer_state_dict=True)

    def trained(plan: str, steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        made = chain()
        pipe = Pipeline(plan, layers(made), loss_fn=loss, timeout_s=60)
        optimizer = torch.optim.AdamW(pipe.parameters(), lr=0.1)
        for step in range(steps):
            tokens, _, targets = batch(step)
            pipe.step(tokens, targets)
            optimizer.step()
        here = [layer for stage in pipe.stages for layer in pipe.program.stages[int(stage)].layers]
        named = nn.ModuleDict({str(layer): made[layer] for layer in here})
        return (pipe if plans[0] == plans[1] else named), optimizer

    def state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict:
        weights, of_optimizer = get_state_dict(model, optimizer, options=options)
        return {"model": weights, "optimizer": of_optimizer}

    dcp.save(state(*trained(plans[0], 2)), checkpoint_id=folder)
    model, optimizer = trained(plans[1], 0)
    loaded = state(model, optimizer)
    dcp.load(loaded, checkpoint_id=folder)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=loaded["model"],
        optim_state_dict=loaded["optimizer"],
        options=options,
    )
    mine, wanted = state(model, optimizer), state(*trained(plans[1], 2))
    flat = [(name, value, mine[part][name]) for part in wanted for name, value in wanted[part].items()]
    return [name for name, a, b in flat if torch.is_tensor(a) and not torch.equal(a, b)]


def make_and_drop(case: Case) -> tuple[bool, int]:
    """Whether a pipeline that has run is freed, and how many threads of watches are left of it."""
    from ostinato.torch import Pipeline

    pipe = Pipeline(case.plan, build(case), loss_fn=loss, device=case.device)
    tokens, _, targets = batch(0)
    pipe.step(tokens, targets)
    dropped, thread = weakref.ref(pipe), pipe._watch._thread
    del pipe
    gc.collect()
    thread.join(60)
    return dropped() is None, thread.is_alive()


def own_schedule(case: Case, kind: str):
    """torch's own schedule of this name, for the stages that the plan's placement has."""
    from ostinato.torch.checks import lowered, place_in
    from ostinato.torch.stages import own_stages
    from torch.distributed.pipelining import PipelineStage, schedules

    program, made = lowered(case.plan, None), getattr(schedules, kind)
    mine, count = own_stages(program, *place_in(None, program)), len(program.stages)
    stages = [PipelineStage(build(case)(stage), stage.index, count, torch.device("cpu")) for stage in mine]
    one_each = issubclass(made, schedules.PipelineScheduleSingle)
    return made(stages[0] if one_each else stages, program.micro_batches, loss_fn=loss), stages


def train_on_torch(case: Case, kind: str = "") -> dict:
    """The same plan on torch's own schedule runtime; or torch's own schedule of this name."""
    from ostinato.torch import schedule

    if kind:
        made, stages = own_schedule(case, kind)
    else:
        made = schedule(case.plan, build(case), loss)
        stages = made._stages
    first = any(stage.is_first for stage in stages)
    last = any(stage.is_last for stage in stages)
    losses, gradients = [], []
    for step in range(case.steps):
        tokens, _, targets = batch(step)
        of_step: list = []
        made.step(*([tokens] if first else []), **({"target": targets, "losses": of_step} if last else {}))
        losses.append(sum(value.item() for value in of_step) / MICRO_BATCHES if last else None)
        gradients.append({})
        for stage in stages:
            for name, p in stage.submod.named_parameters():
                gradients[-1][f"{stage.stage_index}/{name}"] = p.grad.clone()
                p.grad = None
    dist.barrier()
    return {"losses": losses, "gradients": gradients}


class Scored(nn.Module):
    """Ends in the product with its weight, a number, which is the loss."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1.0, 1.0, WIDTH))

    def forward(self, hidden):
        return hidden.mean((0, 1)) @ self.weight


def as_it_is(outputs, _, *, told: bool):
    assert told
    return outputs


def train_scored_on_torch(case: Case) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Gradients of the last layer, which computes the loss, where it is; and those on one process."""
    from ostinato.torch import layers, schedule

    made = schedule(case.plan, layers([*chain()[:-1], Scored()]), as_it_is)
    first, last = (any(getattr(stage, which) for stage in made._stages) for which in ("is_first", "is_last"))
    tokens, _, targets = batch(0)
    given = {"target": targets, "losses": [], "loss_kwargs": {"told": True}} if last else {}
    made.step(*([tokens] if first else []), return_outputs=False, **given)
    dist.barrier()
    alone = nn.Sequential(*chain()[:-1], Scored())
    torch.stack([alone(part) for part in tokens.chunk(MICRO_BATCHES)]).mean().backward()
    parts = [part for stage in made._stages for part in stage.submod.modules() if isinstance(part, Scored)]
    return [(part.weight.grad, alone[-1].weight.grad) for part in parts]


def refusal(case: Case, how: str, given: dict | None = None) -> str:
    """What `how` raises, as "Kind: message"; "" where it raises nothing."""
    from ostinato import torch as host

    try:
        if how == "schedule":
            host.schedule(case.plan, build(case), loss)
        else:
            pipe = host.Pipeline(case.plan, build(case), loss_fn=loss)
            getattr(pipe, how)(**given or {})
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


class Dropping(nn.Embedding):
    """Draws masks in a sharded stage; `seeded`: the same on each of its ranks."""

    seeded = False

    def sharded(self, shard):
        from ostinato.nn import sharded

        whole = nn.Embedding(VOCABULARY, WIDTH)
        whole.load_state_dict(self.state_dict())
        made = Masked(sharded(whole, shard), self.seeded)
        made.split = {"weight": 0}
        return made


class Masked(nn.Module):
    def __init__(self, inner: nn.Module, seeded: bool):
        super().__init__()
        self.weight, self._inner, self._seeded, self._calls = inner.weight, [inner], seeded, 0

    def forward(self, tokens):
        self._calls += 1
        if self._seeded:
            torch.manual_seed(self._calls)
        return nn.functional.dropout(self._inner[0](tokens))


def refusal_of_draws(case: Case, seeded: bool) -> str:
    from ostinato.torch import Pipeline, layers

    first = Dropping(VOCABULARY, WIDTH)
    first.seeded = seeded
    try:
        pipe = Pipeline(case.plan, layers([first, *chain()[1:]]), loss_fn=loss)
        torch.manual_seed(dist.get_rank())
        tokens, _, targets = batch(0)
        pipe.step(tokens, targets)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


class Moved(Block):
    def forward(self, hidden, by, times, fine):
        return super().forward(hidden + by * times + fine)


def refusal_of_data(case: Case, what: str) -> str:
    """Of inputs, targets and keyword arguments that each rank makes, `what` differently on each."""
    from ostinato.torch import Pipeline, layers

    torch.manual_seed(0)
    pipe = Pipeline(case.plan, layers([chain()[0], Moved(), *chain()[2:]]), loss_fn=loss)

    def drawn(name: str) -> torch.Tensor:
        with torch.random.fork_rng():
            if name == what:
                torch.manual_seed(dist.get_rank())
            return torch.randint(VOCABULARY, (MICRO_BATCHES * BATCH, LENGTH))

    named = {
        "by": drawn("keywords")[..., None],
        "times": 2 + (what == "a number") * dist.get_rank(),
        "fine": drawn("a fraction")[..., None] / 1e6,
    }
    if what == "shape":
        named["fine"] = named["fine"].expand(-1, -1, WIDTH if dist.get_rank() else 1)
    if what == "order" and dist.get_rank():
        named = dict(reversed(named.items()))
    try:
        pipe.step(drawn("inputs"), drawn("targets"), **named)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def refusal_of_chain(case: Case, chain: list, how: str, **given) -> str:
    from ostinato import torch as host

    try:
        getattr(host, how)(case.plan, host.layers(chain), loss, **given)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def stuck(case: Case) -> tuple[str, list[str]]:
    """Rank 0 computes until its watch has spoken; rank 1 waits for it, in vain. What each said, and raised."""
    from ostinato.ranks import watch
    from ostinato.torch import Pipeline

    said: list[str] = []
    original, watch.say = watch.say, said.append
    pipe = Pipeline(case.plan, build(case), loss_fn=loss, timeout_s=2)
    if pipe.rank == 0:
        pipe.stages["0"].register_forward_pre_hook(lambda *_: wait_until(lambda: said))
    raised = ""
    try:
        tokens, _, targets = batch(0)
        pipe.step(tokens, targets)
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
    finally:
        watch.say = original
    return raised, said


def beside_a_failure(
    case: Case, shared_memory: bool, kind: type[BaseException] = ValueError
) -> tuple[str, float]:
    """Rank 0's stage fails, which it catches; rank 1 waits for it. What each is told, and after how many
    seconds; where the pipeline then refuses to go on."""
    from ostinato.torch import Pipeline, PipelineError, pipeline

    made = pipeline._plugin.Executor
    with mock.patch.object(
        pipeline._plugin, "Executor", functools.partial(made, shared_memory=shared_memory)
    ):
        pipe = Pipeline(case.plan, build(case), loss_fn=loss, timeout_s=200)
    tokens, _, targets = batch(0)
    pipe.step(tokens, targets)
    dist.barrier()
    if pipe.rank == 0:
        pipe.stages["0"].register_forward_pre_hook(functools.partial(fail, kind))
    begin = time.monotonic()
    try:
        pipe.step(tokens, targets)
    except BaseException as error:
        waited = time.monotonic() - begin
        try:
            pipe.reset_shapes()
        except PipelineError:
            return f"{type(error).__name__}: {error}", waited
    return "", time.monotonic() - begin


def fail(kind: type[BaseException], *_) -> None:
    raise kind("no such token")


def wait_until(condition) -> None:
    end = time.monotonic() + 120
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    raise RuntimeError("stuck on purpose")


def check_gradients(results, expected, same) -> None:
    """Every rank's gradients; together they are all of the model's."""
    for step, of_model in enumerate(expected["gradients"]):
        seen = set()
        for result in results:
            for name, gradient in result["gradients"][step].items():
                wanted = of_model[name]
                if isinstance(gradient, tuple):
                    gradient, dimension, index, count = gradient
                    wanted = wanted.tensor_split(count, dimension)[index]
                assert same(gradient, wanted), f"step {step}: {name}"
                seen.add(name)
        assert seen == set(of_model)


def refusal_of_each(plans: list[str | None], timeout_s: float) -> str:
    """What this rank is told when each makes a pipeline of its entry; of None it makes none."""
    from ostinato.torch import Pipeline, PipelineError

    plan = plans[dist.get_rank()]
    try:
        if plan is not None:
            Pipeline(plan, build(Case(plan)), timeout_s=timeout_s)
    except PipelineError as error:
        return str(error)
    return ""


def make_beside_a_stopped_rank(case: Case, stopped: int, folder: str) -> None:
    """It stops once all have agreed on the plan. Returns on no rank."""
    from ostinato.ranks import presence
    from ostinato.torch import Pipeline, pipeline

    presence.LEAST_S = 2.0
    rank = dist.get_rank()
    if rank == stopped:
        pipeline.make_group = lambda *_, **__: os.kill(os.getpid(), signal.SIGSTOP)
    os.dup2(os.open(f"{folder}/{rank}.err", os.O_WRONLY | os.O_CREAT), 2)
    Pipeline(case.plan, build(case), timeout_s=3.0)


def refused_and_caught(case: Case, on: tuple[int, ...], timeout_s: float) -> tuple[list[str], float | None]:
    """A step that these ranks are given wrong batches for, caught by the script, and one more: what they raise, and the
    loss of the last."""
    from ostinato.torch import Pipeline

    pipe, raised, value = Pipeline(case.plan, build(case), loss_fn=loss, timeout_s=timeout_s), [], None
    tokens, _, targets = batch(0)
    for wrong in (True, False):
        cut = slice(1, None) if wrong and dist.get_rank() in on else slice(None)
        try:
            value = pipe.step(tokens[cut], targets[cut])
        except Exception as error:
            raised.append(f"{type(error).__name__}: {error}")
    return raised, None if value is None else value.item()
