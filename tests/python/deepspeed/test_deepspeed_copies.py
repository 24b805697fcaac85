# SPDX-License-Identifier: Apache-2.0
"""Plans that run the model in two directions (X), each with weights of its own, behind DeepSpeed's engine."""

from dataclasses import replace

import pytest
import torch
from support import models, training
from support.models import LAYERS
from support.plans import Layout, make_plan
from support.shapes import Stage, mirrored, placement_text, two_directions
from support.tiers import everyday
from support.training import (
    MICRO_BATCHES,
    Options,
    close,
    data_of,
    floats,
    make_engine,
    train,
    trained_and_saved,
    weights,
)

ZERO_1 = {"zero_optimization": {"stage": 1}}
BF16 = {"bf16": {"enabled": True}}
SGD_2 = Options(stages=2, optimizer="SGD", steps=10)
SGD_4 = replace(SGD_2, stages=4)
X_2, X_4 = two_directions((5,), LAYERS), two_directions((2, 4, 6), LAYERS)
# Branches that meet, both ways; and an embedding and a head on both ranks for both ways.
X_OF_K_2 = mirrored(
    [Stage("text", 0, 3, (0,)), Stage("image", 3, 5, (1,)), Stage("both", 5, 8, (0,), ("text", "image"))]
)
X_OF_M_2 = mirrored(
    [
        Stage("embedding", 0, 1, (0, 1)),
        Stage("front", 1, 4, (0,), ("embedding",)),
        Stage("back", 4, 6, (1,), ("front",)),
        Stage("head", 6, 8, (0, 1), ("back",)),
    ]
)

# The embedding and the head on two ranks for one direction, and on the two others for the other.
X_OF_M_4 = mirrored(
    [
        Stage("embedding", 0, 1, (0, 1)),
        Stage("front", 1, 3, (0,), ("embedding",)),
        Stage("own", 3, 4, (0, 1), ("front",)),
        Stage("back", 4, 6, (1,), ("own",)),
        Stage("head", 6, 8, (2, 3), ("back",)),
    ]
)
# The same layers on every rank, but the directions pair the ranks otherwise.
PAIRS = {
    "aembedding": (0, 2),
    "bembedding": (1, 3),
    "aown": (0, 2),
    "bown": (1, 3),
    "ahead": (1, 3),
    "bhead": (0, 2),
}
X_OTHERWISE_4 = [replace(s, devices=PAIRS.get(s.name, s.devices)) for s in X_OF_M_4]

CASES = {
    "sgd": (X_2, "auto", False, SGD_2),
    "chimera-clipped": (X_2, "chimera", False, replace(SGD_2, config={"gradient_clipping": 0.1})),
    "zero1": (X_2, "auto", False, replace(SGD_2, config=ZERO_1)),
    "zero1-clipped": (X_2, "auto", False, replace(SGD_2, config=ZERO_1 | {"gradient_clipping": 0.1})),
    "split-tied": (X_2, "auto", True, replace(SGD_2, tied=True)),
    "own-optimizer": (X_2, "auto", False, Options(stages=2, own_optimizer=True, steps=5)),
    "branches-split-zero1": (X_OF_K_2, "auto", True, replace(SGD_2, model="branches", config=ZERO_1)),
    "sharded": (X_OF_M_2, "auto", False, replace(SGD_2, model="vocabulary")),
    "sharded-split-zero1-clipped": (
        X_OF_M_2,
        "auto",
        True,
        replace(SGD_2, model="vocabulary", config=ZERO_1 | {"gradient_clipping": 0.1}),
    ),
}
CASES_4 = {
    "dualpipe": (X_4, "auto", True, SGD_4),
    "chimera": (X_4, "chimera", False, SGD_4),
    "split-tied": (X_4, "auto", True, replace(SGD_4, tied=True)),
    "data-parallel-zero1": (X_2, "auto", False, replace(SGD_2, config=ZERO_1)),
    "sharded-apart-clipped": (
        X_OF_M_4,
        "auto",
        False,
        replace(SGD_4, model="vocabulary", config={"gradient_clipping": 0.1}),
    ),
    "sharded-apart-split-zero1-clipped": (
        X_OF_M_4,
        "auto",
        True,
        replace(SGD_4, model="vocabulary", config=ZERO_1 | {"gradient_clipping": 0.1}),
    ),
}


def plan_of(folder, stages, method="auto", split=False) -> str:
    text = placement_text("x", stages, split)
    return str(make_plan(folder, Layout("x", (), ()), LAYERS, MICRO_BATCHES // 2, method, text))


@pytest.mark.parametrize(
    "case",
    everyday(CASES, "chimera-clipped", "split-tied", "branches-split-zero1", "sharded-split-zero1-clipped"),
)
def test_two_ranks(case, world2, stock, tmp_path):
    compare(world2, stock, *CASES[case], tmp_path)


@pytest.mark.parametrize("case", everyday(CASES_4, "dualpipe"))
def test_four_ranks(case, world4, stock, tmp_path):
    compare(world4, stock, *CASES_4[case], tmp_path)


def compare(world, stock, stages, method, split, options, folder):
    """Equal from run to run; as DeepSpeed alone but for the order of sums. training.weights() compares the
    copies bit for bit."""
    ours = replace(options, section={"plan": plan_of(folder, stages, method, split)})
    expected = stock(world, options)[0]
    got, again = world.run(train, ours), world.run(train, ours)[0]
    assert got[0]["kind"] == "PlanEngine"
    assert got[0]["losses"] == got[-1]["losses"] == again["losses"]
    assert got[0]["last"] == again["last"] and got[0]["first"] == expected["first"]
    assert got[0]["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert got[0]["losses"][-1] < got[0]["losses"][0] or "gradient_clipping" in options.config
    assert got[0]["evaluation"] == pytest.approx(expected["evaluation"], rel=1e-5)
    close(got[0]["last"], expected["last"])


def alone(first: dict[str, bytes], steps: int, lr: float) -> dict[str, torch.Tensor]:
    """The same training by one process, from these weights: plain torch."""
    layers = [
        layer.build() if hasattr(layer, "build") else layer
        for layer in models.layers(tied=False, in_place=False)
    ]
    tensors = {}
    for index, layer in enumerate(layers):
        if isinstance(layer, torch.nn.Module):
            tensors |= {f"{index}.{n}": t for n, t in [*layer.named_parameters(), *layer.named_buffers()]}
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(floats(first[f"{name}@0"]).view(tensor.shape))
    optimizer = torch.optim.SGD([t for t in tensors.values() if t.requires_grad], lr=lr)
    data = models.micro_batches(7)
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(MICRO_BATCHES):
            x, targets = next(data)
            for layer in layers:
                x = layer(x)
            (models.loss(x, targets) / MICRO_BATCHES).backward()
        optimizer.step()
    return tensors


def test_one_process_computes_the_same(world2, tmp_path):
    got = world2.run(train, replace(SGD_2, section={"plan": plan_of(tmp_path, X_2)}))[0]
    expected = {
        f"{name}@0": training.bytes_of(tensor)
        for name, tensor in alone(got["first"], SGD_2.steps, lr=0.05).items()
    }
    close(got["last"], expected)


def test_bf16(world2, stock, tmp_path):
    """Sums of bf16 gradients are fp32; a run equals itself, and DeepSpeed's within what bf16 weights allow."""
    options = replace(SGD_2, config=BF16, steps=20)
    ours = replace(options, section={"plan": plan_of(tmp_path, X_2)})
    expected, got, again = stock(world2, options)[0], *(world2.run(train, ours)[0] for _ in range(2))
    assert got["losses"] == again["losses"] and got["last"] == again["last"]
    assert got["losses"] == pytest.approx(expected["losses"], rel=2e-2)


def saved(options: Options, folder: str) -> tuple[list, dict]:
    """Losses after a checkpoint, and the weights in it."""
    engine, data = trained_and_saved(options, folder, 3, tag="three")
    held = weights(engine)
    return [engine.train_batch(data).item() for _ in range(3)], held


def loaded(options: Options, folder: str, **what) -> tuple[list, dict] | str:
    engine = make_engine(options)
    data = data_of(engine)
    for _ in range(3):
        engine.train_batch(data)
    try:
        engine.load_checkpoint(folder, tag="three", **what)
    except Exception as error:
        return str(error)
    held = weights(engine)
    return [engine.train_batch(data).item() for _ in range(3)], held


def module_only(options: Options, folder: str):
    return loaded(options, folder, load_optimizer_states=False)


def test_checkpoints(world2, tmp_path):
    """Written once, read by both copies, and by the ranks of another placement, which round otherwise."""
    ours = Options(stages=2, tied=True, section={"plan": plan_of(tmp_path / "x", X_2)}, config=ZERO_1)
    folder = str(tmp_path / "saved")
    before = world2.run(saved, ours, folder)
    assert world2.run(loaded, ours, folder) == before
    looped = make_plan(tmp_path / "looped", Layout("looped", (2, 4, 6), (0, 1, 0, 1)), LAYERS, MICRO_BATCHES)
    other = replace(ours, section={"plan": str(looped)})
    (losses, held), _ = world2.run(loaded, other, folder)
    assert held == before[0][1] and losses == pytest.approx(before[0][0], rel=1e-5)
    (_, held), _ = world2.run(module_only, replace(other, config={}), folder)
    assert held == before[0][1]


def test_parts_on_other_ranks_go_on_from_a_checkpoint(world4, tmp_path):
    """Also where the ranks of a direction are paired differently, so that they hold different parts of the same
    layers."""
    ours, other = (
        replace(
            SGD_4,
            model="vocabulary",
            optimizer="Adam",
            config=ZERO_1,
            section={"plan": plan_of(tmp_path / name, stages)},
        )
        for name, stages in (("apart", X_OF_M_4), ("other", X_OTHERWISE_4))
    )
    folder = str(tmp_path / "saved")
    before = world4.run(saved, ours, folder)
    assert world4.run(loaded, ours, folder) == before
    for (losses, _), (expected, _) in zip(world4.run(loaded, other, folder), before, strict=True):
        assert losses == pytest.approx(expected, rel=2e-5)
    assert world4.run(module_only, replace(other, config={}), folder)[0][1] == before[0][1]


def test_parts_that_would_overlap_are_refused(world4, tmp_path):
    uneven = [replace(s, devices=(0, 1, 2)) if s.name == "bembedding" else s for s in X_OF_M_4]
    options = replace(SGD_4, model="vocabulary", section={"plan": plan_of(tmp_path, uneven)})
    for message in world4.run(training.refusal, options):
        assert "on devices [0, 1] and [0, 1, 2]: give both the same devices, or as many" in message, message


def test_statistics_of_two_directions_are_refused(world2, tmp_path):
    """Each would have its own, of half the batches; a counter is named only."""
    for message in world2.run(
        training.first_step_refused, Options(model="changed", section={"plan": plan_of(tmp_path, X_2)})
    ):
        assert (
            'forwards change "norm.num_batches_tracked" of layer 0' in message and "two directions" in message
        ), message


def test_an_odd_number_of_batches_is_refused(world2, tmp_path):
    odd = Options(
        stages=2, section={"plan": plan_of(tmp_path, X_2)}, config={"gradient_accumulation_steps": 3}
    )
    for message in world2.run(training.refusal, odd):
        assert (
            "2 micro-batches, each for 2 directions, a step, but gradient_accumulation_steps is 3" in message
        )
