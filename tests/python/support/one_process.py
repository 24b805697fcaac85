# SPDX-License-Identifier: Apache-2.0
"""What ranks run in test_torch_as_one_process.py: models that a chain of layers is not all of, beside the
same in plain torch."""

import copy
from contextlib import nullcontext
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

SIZE, WIDTH, BATCH, MICRO_BATCHES, LAYERS = 12, 8, 8, 4, 8


class Handed(nn.Module):
    """Takes and hands on a pair, as by torch's own chain (`whole`: one argument) or one by one."""

    def __init__(self, last: bool):
        super().__init__()
        self.mix, self.last = nn.Linear(WIDTH, WIDTH), last

    def forward(self, x, scale):
        x = torch.tanh(self.mix(x) * scale)
        return x if self.last else (x, scale * 0.9)


class HandedWhole(Handed):
    def forward(self, pair):
        return super().forward(*pair)


class Hooked(nn.Linear):
    """A hook halves the gradient of its output, once."""

    def forward(self, x):
        made, called = super().forward(x), []

        def halve(gradient):
            called.append(gradient)
            assert len(called) == 1
            return gradient / 2

        made.register_hook(halve)
        return made


class Viewed(nn.Linear):
    """Returns a view, as nn.Linear itself does for inputs of three dimensions."""

    def forward(self, x):
        return super().forward(x).view_as(x)


class Listing(nn.Linear):
    def forward(self, x):
        return [super().forward(x)]


class Listed(nn.Linear):
    def forward(self, features, scale=1.0):
        return super().forward(features[0]) * scale


class Cached(nn.Linear):
    """A weight that all micro-batches compute with was computed before them: the graph can be run once."""

    def __init__(self):
        super().__init__(WIDTH, WIDTH)
        self.cached = torch.tanh(self.weight).T

    def forward(self, x):
        return x @ self.cached


class Start(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.mix(x), torch.ones(1)


class Counted(nn.Module):
    """Counts its forwards and what it gets, as mixtures of experts count tokens, and has statistics."""

    def __init__(self):
        super().__init__()
        self.mix, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)
        self.register_buffer("seen", torch.zeros(2))
        self.register_buffer("last", None)

    def forward(self, x):
        self.seen += torch.stack([torch.ones(()), x.detach().sum()])
        self.last = x.detach().clone()
        return torch.tanh(self.norm(self.mix(x)))


def counted() -> list[nn.Module]:
    return [Counted() for _ in range(LAYERS)]


class HandsOnWeight(nn.Linear):
    """Beside its input's product, its weight, which needs no input."""

    def forward(self, x):
        return x * 2, self.weight


class TakesWeight(nn.Linear):
    def forward(self, x, weight):
        return super().forward(x) @ weight


class Scored(nn.Module):
    """A loss with a weight of its own, and the embedding's as the head's."""

    def __init__(self, embedding: nn.Embedding):
        super().__init__()
        self.weight, self.scale = embedding.weight, nn.Parameter(torch.ones(WIDTH))

    def forward(self, outputs, targets):
        return F.cross_entropy((outputs * self.scale) @ self.weight.T, targets)


class Fused(torch.autograd.Function):
    """Computes gradients in its forward, and scales them in place in its backward, as fused losses do that save
    memory."""

    backwards = 0

    @staticmethod
    def forward(ctx, x, weight, targets):
        with torch.enable_grad():
            given = [tensor.detach().requires_grad_() for tensor in (x, weight)]
            loss = F.cross_entropy(given[0] @ given[1].T, targets)
            ctx.save_for_backward(*torch.autograd.grad(loss, given))
        return loss.detach()

    @staticmethod
    def backward(ctx, gradient):
        Fused.backwards += 1
        return *(made.data.mul_(gradient) for made in ctx.saved_tensors), None


class FusedScored(Scored):
    def forward(self, outputs, targets):
        return Fused.apply(outputs * self.scale, self.weight, targets)


def linears() -> list[nn.Module]:
    return [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]


def tied() -> list[nn.Module]:
    embedding, head = nn.Embedding(SIZE, WIDTH), nn.Linear(WIDTH, SIZE, bias=False)
    head.weight = embedding.weight
    return [embedding, *linears()[2:], head]


def tied_sparse() -> list[nn.Module]:
    layers = tied()
    layers[0].sparse = True
    return layers


def tied_unregistered() -> list[nn.Module]:
    layers = tied()
    weight = layers[-1]._parameters.pop("weight")
    vars(layers[-1])["weight"] = weight
    return layers


def tied_memory() -> list[nn.Module]:
    """By two parameters."""
    layers = tied()
    layers[-1].weight = nn.Parameter(layers[0].weight.data)
    return layers


def tied_memory_frozen() -> list[nn.Module]:
    """Beside the embedding and the head, a parameter of a different shape begins in their memory."""
    layers = tied()
    layers[0].requires_grad_(False)
    layers[-2].weight = nn.Parameter(layers[0].weight.data[:WIDTH], requires_grad=False)
    return layers


def frozen() -> list[nn.Module]:
    return [layer.requires_grad_(False) for layer in linears()]


def frozen_start() -> list[nn.Module]:
    return [layer.requires_grad_(index > 3) for index, layer in enumerate(linears())]


def handed_weight() -> list[nn.Module]:
    return [*linears()[:3], HandsOnWeight(WIDTH, WIDTH), TakesWeight(WIDTH, WIDTH), *linears()[5:]]


def cached() -> list[nn.Module]:
    return [Cached(), *linears()[1:]]


def lists() -> list[nn.Module]:
    return [*linears()[:3], Listing(WIDTH, WIDTH), Listed(WIDTH, WIDTH), *linears()[5:]]


def twice() -> list[nn.Module]:
    layers = linears()
    layers[1] = layers[5] = layers[6]
    return layers


def tied_frozen() -> list[nn.Module]:
    layers = tied()
    layers[0].requires_grad_(False)
    return layers


def pairs() -> list[nn.Module]:
    kinds = [Handed, HandedWhole] * LAYERS
    return [Start(), *(kinds[i](last=i == LAYERS - 1) for i in range(1, LAYERS))]


def in_place() -> list[nn.Module]:
    layers = linears()
    layers[4] = nn.ReLU(inplace=True)
    return layers


def views() -> list[nn.Module]:
    return [Viewed(WIDTH, WIDTH) for _ in range(LAYERS)]


def hooked() -> list[nn.Module]:
    return [Hooked(WIDTH, WIDTH) for _ in range(LAYERS)]


CHAINS = {
    f.__name__: f
    for f in (
        linears,
        views,
        hooked,
        counted,
        cached,
        frozen,
        frozen_start,
        handed_weight,
        tied,
        twice,
        tied_frozen,
        tied_memory,
        tied_memory_frozen,
        tied_sparse,
        tied_unregistered,
        pairs,
        in_place,
        lists,
    )
}


def plain(layers, value):
    """As one process runs them."""
    for layer in layers:
        value = layer(*value) if type(value) is tuple and not isinstance(layer, HandedWhole) else layer(value)
    return value


def made(kind: str) -> list[nn.Module]:
    torch.manual_seed(7)
    return CHAINS[kind]()


def batch(kind: str, step: int):
    generator = torch.Generator().manual_seed(step)
    if kind.startswith("tied"):
        return (torch.randint(SIZE, (BATCH,), generator=generator) for _ in range(2))
    return (torch.randn(BATCH, WIDTH, generator=generator) for _ in range(2))


class Report(NamedTuple):
    losses: list[tuple[float, float]]  # of the pipeline, where this rank has it, and of one process
    worst: (
        float  # difference of any gradient of the last step, and of any weight, relative to the largest one
    )
    without: int  # gradients that only one of the two has


def train(plan: str, kind: str, outside: str = "", steps: int = 5, each: int = 1) -> Report:
    """Beside one process that does the same. `outside`: what a trained module outside makes: "inputs",
    "listed" ones, "targets". `each`: calls of step() for one of the optimizer."""
    from ostinato.torch import Pipeline, layers

    torch.set_num_threads(1)
    mine, theirs, encoder = made(kind), made(kind), nn.Linear(WIDTH, WIDTH)
    encoders = encoder, copy.deepcopy(encoder)
    loss_fn = F.cross_entropy if kind.startswith("tied") else F.mse_loss
    pipe = Pipeline(plan, layers(mine), loss_fn=loss_fn, timeout_s=60)
    pairs = held(pipe, mine, theirs, encoders if takes(pipe, outside) else ())
    every = [p for layer in (*theirs, encoders[1]) for p in layer.parameters()]
    ours = torch.optim.SGD(list(dict.fromkeys(a for a, _ in pairs)), lr=0.2, momentum=0.5)
    other = torch.optim.SGD(list(dict.fromkeys(every)), lr=0.2, momentum=0.5)
    losses = []
    for step in range(steps * each):
        given, alone = (outside_of(one, outside, *batch(kind, step)) for one in encoders)
        loss = pipe.step(*given)
        one = loss_fn(plain(theirs, torch.cat(alone[0]) if outside == "listed" else alone[0]), alone[1])
        one.backward()
        losses += [] if loss is None else [(loss.item(), one.item())]
        if step % each == each - 1:
            gradients = [(a.grad, b.grad) for a, b in pairs]
            for optimizer in (ours, other):
                optimizer.step()
                optimizer.zero_grad()
    both = [(a, b) for a, b in gradients if a is not None and b is not None]
    worst = max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs + both)
    return Report(losses, worst, sum((a is None) != (b is None) for a, b in gradients))


def loaded_by_assignment(plan: str) -> float:
    """The largest difference of a gradient from those of one process, after weights were replaced by loading."""
    from ostinato.torch import Pipeline, layers

    torch.set_num_threads(1)
    theirs = made("tied")
    pipe = Pipeline(plan, layers(made("tied")), loss_fn=F.cross_entropy, timeout_s=60)
    pipe.load_state_dict({name: held.clone() for name, held in pipe.state_dict().items()}, assign=True)
    x, y = batch("tied", 0)
    pipe.step(x, y)
    F.cross_entropy(plain(theirs, x), y).backward()
    here = zip(pipe._own, pipe.stages.values(), strict=True)
    mine = [pair for stage, made in here for pair in zip(made, stage.layers, strict=True)]
    pairs = [pair for a, i in mine for pair in zip(a.parameters(), theirs[i].parameters(), strict=True)]
    return max((a.grad - b.grad).abs().max().item() for a, b in pairs)


def accumulate_on_torch(plan: str, kind: str) -> float:
    """The largest difference of a gradient of two steps of torch's runtime from those of one process."""
    from ostinato.torch import layers, schedule

    torch.set_num_threads(1)
    mine, theirs = made(kind), made(kind)
    loss_fn = F.cross_entropy if kind.startswith("tied") else F.mse_loss
    runtime = schedule(plan, layers(mine), loss_fn)
    first, last = (any(getattr(stage, at) for stage in runtime._stages) for at in ("is_first", "is_last"))
    for step in range(2):
        x, y = batch(kind, step)
        runtime.step(*([x] if first else []), **({"target": y} if last else {}))
        loss_fn(plain(theirs, x), y).backward()
    weights = zip(nn.ModuleList(mine).parameters(), nn.ModuleList(theirs).parameters(), strict=True)
    here = {id(weight) for stage in runtime._stages for weight in stage.submod.parameters()}
    pairs = [(a, b) for a, b in weights if id(a) in here and b.grad is not None]
    return max(
        [torch.inf if a.grad is None else (a.grad - b.grad).abs().max().item() for a, b in pairs] or [0.0]
    )


def train_a_loss(plan: str, kind: type[Scored] = Scored) -> tuple[float, list[str], int]:
    """The largest difference of a gradient from those of one process, the loss's parameters on this rank, and how
    often a fused loss ran backwards."""
    from ostinato.torch import Pipeline, layers

    torch.set_num_threads(1)
    mine, theirs = made("tied")[:-1], made("tied")[:-1]
    mine, theirs = [*mine, nn.Tanh()], [*theirs, nn.Tanh()]
    losses = kind(mine[0]), kind(theirs[0])
    pipe = Pipeline(plan, layers(mine), loss_fn=losses[0], timeout_s=60)
    x, y = batch("tied", 0)
    Fused.backwards = 0
    pipe.step(x, y)
    backwards = Fused.backwards
    losses[1](plain(theirs, x), y).backward()
    scored = [name for name, _ in pipe.named_parameters() if name.startswith("loss_fn")]
    pairs = held(pipe, mine, theirs, losses if scored else ())
    return max((a.grad - b.grad).abs().max().item() for a, b in pairs), scored, backwards


def difference_with_a_closure(plan: str) -> float:
    """The largest difference of a gradient from those of one process, on the only rank, where loss_fn closes over a
    weight of a stage, a frozen one and a tensor of its own."""
    from ostinato.torch import Pipeline, layers

    torch.set_num_threads(1)
    mine, theirs = ([*made("tied")[:-1], nn.Tanh()] for _ in range(2))
    aside = nn.Parameter(torch.ones(WIDTH), requires_grad=False)

    def loss_of(chain: list[nn.Module]):
        def loss(outputs, targets):
            total = torch.zeros((), requires_grad=True)
            return total + F.cross_entropy((outputs * aside) @ chain[0].weight.T, targets)

        return loss

    x, y = batch("tied", 0)
    Pipeline(plan, layers(mine), loss_fn=loss_of(mine)).step(x, y)
    loss_of(theirs)(plain(theirs, x), y).backward()
    pairs = zip(nn.ModuleList(mine).parameters(), nn.ModuleList(theirs).parameters(), strict=True)
    return max((a.grad - b.grad).abs().max().item() for a, b in pairs)


def train_tied_shards(plan: str, stages: str) -> float | str:
    """Two pipelines side by side, with these stages under fully_shard(): the largest difference of a gradient from
    those of one process, or what the first step raises."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from ostinato.torch import Pipeline, layers

    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "stage"))
    mine, theirs = made("tied"), made("tied")
    group = mesh["stage"].get_group()
    pipe = Pipeline(plan, layers(mine), loss_fn=F.cross_entropy, group=group, timeout_s=60)
    for index, stage in pipe.stages.items():
        if index in stages:
            fully_shard(stage, mesh=mesh["replica"])
    if stages == "0":
        return what_raises(lambda: pipe.step(*batch("tied", 0)))
    for _ in range(2):
        pipe.step(*batch("tied", mesh["replica"].get_local_rank()))
        for replica in range(2):
            x, y = batch("tied", replica)
            (F.cross_entropy(plain(theirs, x), y) / 2).backward()
    pairs = held(pipe, mine, theirs, ())
    return max((a.grad.full_tensor() - b.grad).abs().max().item() for a, b in pairs)


def what_raises(call: Callable) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def forwards_with_a_loss(plan: str) -> bool:
    """Whether a plan of forwards runs for a loss with a weight of another rank."""
    from ostinato.torch import Pipeline, layers

    chain = made("tied")
    pipe = Pipeline(plan, layers(chain), loss_fn=Scored(chain[0]), timeout_s=60)
    tokens, _ = batch("tied", 0)
    pipe.infer(tokens)
    return pipe.loss_fn is None


def unlike_buffers(plan: str) -> list[str]:
    """Of layers here, after two steps of torch's runtime and of one process."""
    from ostinato.torch import layers, schedule

    torch.set_num_threads(1)
    mine, theirs = made("counted"), made("counted")
    runtime = schedule(plan, layers(mine), F.mse_loss)
    first, last = (any(getattr(stage, at) for stage in runtime._stages) for at in ("is_first", "is_last"))
    for step in range(2):
        x, y = batch("counted", step)
        runtime.step(*([x] if first else []), **({"target": y} if last else {}))
        for part in x.chunk(MICRO_BATCHES):
            plain(theirs, part)
    here = {id(part) for stage in runtime._stages for part in stage.submod.modules()}
    return [
        f"{index}.{name}"
        for index, (a, b) in enumerate(zip(mine, theirs, strict=True))
        if id(a) in here
        for (name, held), (_, one) in zip(a.named_buffers(), b.named_buffers(), strict=True)
        if not torch.equal(held, one)
    ]


def forwards_of_checkpointed(plan: str) -> set[int]:
    """How often checkpoint_wrapper() runs a layer of Pipeline in a step."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    from ostinato.torch import Pipeline, layers

    torch.set_num_threads(1)
    chain = [checkpoint_wrapper(layer) for layer in made("counted")]
    pipe = Pipeline(plan, layers(chain), loss_fn=F.mse_loss, timeout_s=60)
    pipe.step(*batch("counted", 0))
    return {int(part.seen[0]) for part in pipe.modules() if isinstance(part, Counted)}


def under_autocast(plan: str) -> dict[str, set[bool]]:
    """Whether torch.autocast() around step() is on, in forwards, in backwards and after it."""
    from ostinato.torch import Pipeline, layers

    torch.set_num_threads(1)
    found: dict[str, set[bool]] = {"forwards": set(), "backwards": set(), "after": set()}

    def note(where: str) -> None:
        found[where].add(torch.is_autocast_enabled("cpu"))

    def watch(module, given, made):
        note("forwards")
        made.register_hook(lambda gradient: note("backwards"))

    chain = made("linears")
    for layer in chain:
        layer.register_forward_hook(watch)
    pipe = Pipeline(plan, layers(chain), loss_fn=F.mse_loss, timeout_s=60)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        pipe.step(*batch("linears", 0))
        note("after")
    return found


def refusals(plan: str, kind: str, how: str = "") -> str:
    """What this rank is told, as "Kind: message"."""
    from ostinato.torch import Pipeline, layers, schedule

    torch.set_num_threads(1)
    chain, loss_fn, (x, y) = made(kind), F.mse_loss, batch(kind, 0)
    if how == "seen by one" and dist.get_rank() == 1:
        chain[0] = nn.Embedding(SIZE, WIDTH)
    if how == "closure":
        loss_fn = lambda outputs, targets: F.cross_entropy(outputs @ chain[0].weight.T, targets)  # noqa: E731
        chain[-1] = nn.Tanh()
    if how == "two losses":
        loss_fn = lambda outputs, targets: (F.mse_loss(outputs, targets), 1)  # noqa: E731
    try:
        if how == "torch":
            schedule(plan, layers(chain), loss_fn)
        if how == "unfrozen between":
            for layer in chain[:4]:
                layer.requires_grad_(False)
        pipe = Pipeline(plan, layers(chain), loss_fn=loss_fn, timeout_s=2)
        with torch.no_grad() if how == "no_grad" else nullcontext():
            pipe.step(x, None if how == "no targets" else y)
        if how == "unfrozen between":
            for layer in chain[:4]:
                layer.requires_grad_(True)
            pipe.step(x, y)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def takes(pipe, outside: str) -> bool:
    """Whether this rank has the stage that takes what is made outside."""
    stages = [pipe.program.stages[stage.index] for stage in pipe._own]
    return bool(outside) and any(
        not (stage.outputs if outside == "targets" else stage.inputs) for stage in stages
    )


def held(pipe, mine, theirs, encoders) -> list[tuple[nn.Parameter, nn.Parameter]]:
    """Parameters of this rank, with those of one process."""
    layers = [(mine[layer], theirs[layer]) for stage in pipe._own for layer in stage.layers]
    both = [*layers, *([encoders] if encoders else [])]
    return [pair for a, b in both for pair in zip(a.parameters(), b.parameters(), strict=True)]


def outside_of(encoder: nn.Module, outside: str, x, y):
    if outside == "inputs":
        return encoder(x), y
    if outside == "listed":
        return list(encoder(x).chunk(MICRO_BATCHES)), y
    return (x, encoder(y)) if outside == "targets" else (x, y)
