# SPDX-License-Identifier: Apache-2.0
"""Fifty steps under plans for each kind of placement: losses, gradients of every step and weights.

Where gradients are added in the order of 1F1B, every bit is that of DeepSpeed's own 1F1B on 2 ranks, whatever
the placement and however many ranks it has. Elsewhere (sums over ranks, branches, two directions, backwards
out of order) a run equals itself bit for bit, and plain torch on one process within BOUND.
"""

import hashlib
import json
from dataclasses import dataclass, replace

import pytest
import torch
import torch.distributed as dist
from support.branch_model import Block
from support.models import BATCH, LENGTH, VOCABULARY, WIDTH, loss
from support.plans import Layout, make_plan
from support.shapes import Stage, placement_text, two_directions
from support.tiers import everyday
from support.training import known
from torch import nn

# AGAIN: steps of a second run, which must repeat the first one's beginning.
MICRO_BATCHES, STEPS, AGAIN, RATE = 4, 50, 10, 0.2
BOUND = 1e-4  # of fp32 weights and gradients, to the largest of their tensor or to 1, after all steps
LAYERS = 8
ALL_2, ALL_4 = (0, 1), (0, 1, 2, 3)
ZERO_1, BF16_ON = {"zero_optimization": {"stage": 1}}, {"bf16": {"enabled": True}}
FP32, FP32_ZERO_1, BF16, BF16_ZERO_1 = "fp32", "fp32, ZeRO-1", "bf16", "bf16, ZeRO-1"
NUMERICS = {FP32: {}, FP32_ZERO_1: ZERO_1, BF16: BF16_ON, BF16_ZERO_1: BF16_ON | ZERO_1}


class Meet(nn.Module):
    """What two or three layers made becomes one."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, a, b, c=None):
        return torch.tanh(self.mix(a)) + b + (0 if c is None else 0.5 * c)


class Twice(nn.Module):
    """Uses its weights twice: of a split backward each half adds to their gradients in an order of its own."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.mix(torch.tanh(self.mix(x)))


def chain(middle=Block) -> dict:
    """name: (class, arguments, what it reads)."""
    made = {"0": (nn.Embedding, (VOCABULARY, WIDTH), ("tokens",))}
    made |= {str(i): (middle if i == 3 else Block, (), (str(i - 1),)) for i in range(1, LAYERS - 1)}
    return made | {"7": (nn.Linear, (WIDTH, VOCABULARY), ("6",))}


BRANCHES = {
    "text": (nn.Embedding, (VOCABULARY, WIDTH), ("tokens",)),
    "text1": (Block, (), ("text",)),
    "image": (nn.Embedding, (VOCABULARY, WIDTH), ("others",)),
    "image1": (Block, (), ("image",)),
    "both": (Meet, (), ("text1", "image1", "text")),
    "after": (Block, (), ("both",)),
    "last": (Block, (), ("after",)),
    "head": (nn.Linear, (WIDTH, VOCABULARY), ("last",)),
}
TRANSLATION = {
    "source": (nn.Embedding, (VOCABULARY, WIDTH), ("tokens",)),
    "e1": (Block, (), ("source",)),
    "e2": (Block, (), ("e1",)),
    "target": (nn.Embedding, (VOCABULARY, WIDTH), ("others",)),
    "d1": (Meet, (), ("target", "e2")),
    "d2": (Meet, (), ("d1", "e2")),
    "d3": (Meet, (), ("d2", "e2")),
    "head": (nn.Linear, (WIDTH, VOCABULARY), ("d3",)),
}
MODELS = {"chain": chain(), "twice": chain(Twice), "branches": BRANCHES, "translation": TRANSLATION}


@dataclass(frozen=True)
class Run:
    """`plan`: "" for DeepSpeed alone."""

    ranks: int = 2
    model: str = "chain"
    numerics: str = FP32
    plan: str = ""
    steps: int = STEPS


def layers(model: str) -> list:
    """Of a PipelineModule."""
    from deepspeed.pipe import LayerSpec
    from ostinato.deepspeed import graph

    described = MODELS[model]
    if model in ("chain", "twice"):
        return [LayerSpec(kind, *arguments) for kind, arguments, _ in described.values()]
    return graph(
        {name: (LayerSpec(kind, *arguments), *reads) for name, (kind, arguments, reads) in described.items()},
        ("tokens", "others"),
    )


def batches(model: str):
    """Endless (inputs, targets)."""
    generator = torch.Generator().manual_seed(7)
    while True:
        a, b = torch.randint(VOCABULARY, (2, BATCH, LENGTH), generator=generator)
        yield (a if model in ("chain", "twice") else (a, b)), (a + 1) % VOCABULARY


def train(run: Run) -> dict:
    """Losses; of each gradient a digest over the first AGAIN steps and one over all; gradients of the last
    step, first and last weights. Weights do not depend on where layers are (seed_layers)."""
    import deepspeed
    from deepspeed.pipe import PipelineModule

    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_accumulation_steps": MICRO_BATCHES,
        "steps_per_print": 10**9,
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,
        "optimizer": {"type": "SGD", "params": {"lr": RATE}},
        **NUMERICS[run.numerics],
    } | ({"ostinato": {"plan": run.plan}} if run.plan else {})
    with known(config.get("ostinato")):
        module = PipelineModule(
            layers(run.model),
            num_stages=run.ranks,
            loss_fn=loss,
            partition_method="uniform",
            seed_layers=True,
        )
    engine, *_ = deepspeed.initialize(model=module, model_parameters=list(module.parameters()), config=config)
    first, digests, beginning, gradients = together(engine, parameters(engine)), {}, {}, {}
    step = engine._take_model_step

    def take_model_step(*arguments):
        gradients.update(gradients_of(engine))
        for name, value in gradients.items():
            digests.setdefault(name, hashlib.sha256()).update(
                value.contiguous().view(-1).view(torch.uint8).numpy()
            )
        if engine.global_steps == AGAIN - 1:
            beginning.update(hexadecimal(engine, digests))
        return step(*arguments)

    engine._take_model_step = take_model_step
    data = batches(run.model)
    losses = [engine.train_batch(data).item() for _ in range(run.steps)]
    return {
        "losses": losses,
        "beginning": beginning,
        "digests": hexadecimal(engine, digests),
        "gradients": together(engine, gradients),
        "first": first,
        "last": together(engine, parameters(engine)),
    }


def parameters(engine) -> dict[str, torch.Tensor]:
    return {name: p.detach() for name, p in engine.module.named_parameters()}


def gradients_of(engine) -> dict[str, torch.Tensor]:
    """As the optimizer is about to use them."""
    from deepspeed.utils import safe_get_full_grad

    return {name: safe_get_full_grad(p).detach().clone() for name, p in engine.module.named_parameters()}


def hexadecimal(engine, digests: dict) -> dict[str, str]:
    """Of parts only what a run of the same plan has as well."""
    where = f" on rank {engine.stage_id}"
    return {name + where * (name in parts_of(engine)): digest.hexdigest() for name, digest in digests.items()}


def parts_of(engine) -> set:
    return getattr(engine.module, "sharded_parameters", set)()


def together(engine, own: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """All ranks' tensors by name; parts are put together, and ranks that hold the same one must agree on
    every bit."""
    everyone, found = [None] * dist.get_world_size(), {}
    dist.all_gather_object(
        everyone, {name: (name in parts_of(engine), value.clone()) for name, value in own.items()}
    )
    for held in everyone:
        for name, (part, value) in held.items():
            found.setdefault(name, []).append((part, value))
    whole = {}
    for name, values in found.items():
        assert values[0][0] or all(torch.equal(value, values[0][1]) for _, value in values), (
            f"two ranks hold different {name}"
        )
        whole[name] = torch.cat([value for _, value in values]) if values[0][0] else values[0][1]
    return whole


def alone(model: str, first: dict[str, torch.Tensor]) -> dict:
    """The same training on one process, in plain torch."""
    torch.set_num_threads(1)
    described, prefix = MODELS[model], "" if model in ("chain", "twice") else "layer."
    modules = {name: kind(*arguments) for name, (kind, arguments, _) in described.items()}
    tensors = {
        f"{i}.{prefix}{name}": p for i, m in enumerate(modules.values()) for name, p in m.named_parameters()
    }
    assert tensors.keys() == first.keys()
    with torch.no_grad():
        for name, p in tensors.items():
            p.copy_(first[name])
    optimizer, data, losses = torch.optim.SGD(list(tensors.values()), lr=RATE), batches(model), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        losses.append(0.0)
        for _ in range(MICRO_BATCHES):
            inputs, targets = next(data)
            values = dict(
                zip(("tokens", "others"), inputs if isinstance(inputs, tuple) else (inputs,), strict=False)
            )
            for name, (_, _, reads) in described.items():
                values[name] = modules[name](*(values[r] for r in reads))
            value = loss(values[name], targets) / MICRO_BATCHES
            value.backward()
            losses[-1] += value.item()
        optimizer.step()
    return {
        "losses": losses,
        "gradients": {name: p.grad for name, p in tensors.items()},
        "last": {name: p.detach() for name, p in tensors.items()},
    }


# ---- placements

UNEVEN_2, UNEVEN_4 = Layout("uneven", (5,), (0, 1)), Layout("uneven", (1, 2, 5), (0, 1, 2, 3))
LOOPED_2 = Layout("looped", (2, 4, 6), (0, 1, 0, 1))
LOOPED_4 = Layout("looped", tuple(range(1, 8)), (0, 1, 2, 3, 0, 1, 2, 3))
WAVE_2 = Layout("wave", (1, 4, 6), (0, 1, 1, 0))
WAVE_4 = Layout("wave", tuple(range(1, 8)), (0, 1, 2, 3, 3, 2, 1, 0))
EMBEDDING_2 = Layout("embedding", (1, 4), (ALL_2, 0, 1))
M_2 = Layout("m", (1, 4, 7), (ALL_2, 0, 1, ALL_2))
NN_4 = [
    Stage("source", 0, 1, ALL_4),
    Stage("e1", 1, 2, (0,), ("source",)),
    Stage("e2", 2, 3, (1,), ("e1",)),
    Stage("target", 3, 4, ALL_4),
    Stage("d1", 4, 6, (2,), ("e2", "target")),
    Stage("d3", 6, 8, (3,), ("e2", "d1")),
]
K_2 = [
    Stage("text", 0, 2, (0,)),
    Stage("image", 2, 4, (1,)),
    Stage("both", 4, 6, (0,), ("text", "image")),
    Stage("end", 6, 8, (1,), ("both",)),
]


def split(layout: Layout, method: str = "auto") -> Layout:
    return replace(layout, split=True, method=method)


BIT_FOR_BIT = {
    "1f1b": (replace(UNEVEN_2, method="1f1b"), BF16),
    "1f1b-on-4": (replace(UNEVEN_4, method="1f1b"), FP32),
    "gpipe": (replace(UNEVEN_2, method="gpipe"), FP32_ZERO_1),
    "zb-h1": (split(UNEVEN_2, "zb-h1"), BF16_ZERO_1),
    "interleaved": (replace(LOOPED_2, method="interleaved-1f1b"), FP32),
    "interleaved-on-4": (replace(LOOPED_4, method="interleaved-1f1b"), BF16_ZERO_1),
    "looped": (LOOPED_2, FP32_ZERO_1),
    "looped-split": (split(LOOPED_2), BF16),
    "wave": (WAVE_2, BF16),
    "wave-split": (split(WAVE_2), FP32_ZERO_1),
    "dualpipe-v": (replace(WAVE_2, method="dualpipe-v"), BF16_ZERO_1),
    "zb-v-on-4": (split(WAVE_4, "zb-v"), FP32),
    "sharded-embedding": (EMBEDDING_2, FP32_ZERO_1),
}


@pytest.fixture(scope="module")
def deepspeed_alone(world2):
    results = {}

    def of(numerics):
        if numerics not in results:
            results[numerics] = world2.run(train, Run(numerics=numerics))
        return results[numerics]

    return of


@pytest.mark.parametrize("case", everyday(BIT_FOR_BIT, "dualpipe-v", "zb-v-on-4"))
def test_every_bit_is_that_of_1f1b(case, request, deepspeed_alone, tmp_path):
    layout, numerics = BIT_FOR_BIT[case]
    ranks = 1 + max(device for stage in range(len(layout.ranks)) for device in layout.devices(stage))
    plan = chain_plan(tmp_path, layout)
    results = request.getfixturevalue(f"world{ranks}").run(train, Run(ranks, numerics=numerics, plan=plan))
    expected = deepspeed_alone(numerics)[0]
    for ours in results:
        assert ours["losses"] == expected["losses"] and ours["losses"][-1] < 0.9 * ours["losses"][0]
        for what in ("first", "last", "gradients"):
            same(ours[what], expected[what])
    check_digests(results, deepspeed_alone(numerics))


def check_digests(results: list[dict], expected: list[dict]) -> None:
    """Of the gradients of every step, whichever rank holds them."""
    wanted = {name: digest for result in expected for name, digest in result["digests"].items()}
    for result in results:
        whole = {name: digest for name, digest in result["digests"].items() if " on rank " not in name}
        assert whole and not [name for name, digest in whole.items() if digest != wanted[name]]


def same(ours: dict, theirs: dict) -> None:
    assert ours.keys() == theirs.keys()
    assert not [name for name, value in theirs.items() if not torch.equal(ours[name], value)]


# ---- where the order of additions is another


def chain_plan(folder, layout: Layout) -> str:
    return str(make_plan(folder, layout, LAYERS, MICRO_BATCHES))


def plan_of(folder, stages: list[Stage], is_split: bool = False, copies: int = 1) -> str:
    text = placement_text("stages", stages, is_split)
    return str(make_plan(folder, Layout("stages", (), ()), LAYERS, MICRO_BATCHES // copies, "auto", text))


def backwards_last_first(folder) -> str:
    """GPipe, whose backwards go through the micro-batches the other way round."""
    path = folder / "plan.json"
    chain_plan(folder, replace(UNEVEN_2, method="gpipe"))
    plan = json.loads(path.read_text())
    for step in plan["schedule"]:
        if step["block"].endswith(".B"):
            step["micro_batch"] = MICRO_BATCHES - 1 - step["micro_batch"]
    path.write_text(json.dumps(plan))
    return str(path)


NEARLY = {
    "m": (M_2, "chain", FP32_ZERO_1),
    "nn-on-4": (NN_4, "translation", FP32),
    "k": (K_2, "branches", FP32_ZERO_1),
    "k-split-bf16": (K_2, "branches", BF16),
    "x-split": (two_directions((5,), LAYERS), "chain", FP32),
    "x-bf16-zero1": (two_directions((5,), LAYERS), "chain", BF16_ZERO_1),
    "split-twice": (split(LOOPED_2), "twice", FP32_ZERO_1),
    "backwards-last-first": (None, "chain", FP32),
}


@pytest.mark.parametrize("case", everyday(NEARLY, "nn-on-4", "backwards-last-first"))
def test_a_run_equals_itself_and_one_process_within_a_bound(case, request, tmp_path):
    shape, model, numerics = NEARLY[case]
    if shape is None:
        plan, ranks = backwards_last_first(tmp_path), 2
    elif isinstance(shape, Layout):
        plan, ranks = chain_plan(tmp_path, shape), 2
    else:
        plan = plan_of(tmp_path, shape, "split" in case, 2 if case.startswith("x") else 1)
        ranks = 1 + max(device for stage in shape for device in stage.devices)
    world, run = request.getfixturevalue(f"world{ranks}"), Run(ranks, model, numerics, plan)
    ours, again = world.run(train, run), world.run(train, replace(run, steps=AGAIN))
    for first, second in zip(ours, again, strict=True):
        assert second["losses"] == first["losses"][:AGAIN] == ours[0]["losses"][:AGAIN]
        assert second["beginning"] == first["beginning"] and len(second["beginning"]) > 2
    if not numerics.startswith("bf16"):
        near(ours[0], alone(model, ours[0]["first"]))


def near(ours: dict, expected: dict) -> None:
    assert ours["losses"] == pytest.approx(expected["losses"], rel=BOUND)
    assert ours["losses"][-1] < 0.9 * ours["losses"][0]
    for what in ("gradients", "last"):
        for name, value in expected[what].items():
            off = (ours[what][name] - value).abs().max().item() / max(1.0, value.abs().max().item())
            assert off <= BOUND, f"{what}: {name} differs by {off}"
