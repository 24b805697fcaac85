# SPDX-License-Identifier: Apache-2.0
"""Models and placements that hypothesis draws: equal, or as rank 0 announced, or refused by name."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from .drawn import Recipe, recipes
from .placements import planned
from .trainings import train
from .verdict import judge

EXAMPLES, MANY = 12, 2000


@st.composite
def placements(draw, count: int) -> dict:
    """Arguments of planned(): 2 to 5 stages of `count` layers on 2 ranks, in any order, with split backwards
    or recomputation."""
    inner = draw(st.sets(st.integers(1, count - 1), min_size=1, max_size=min(4, count - 1)))
    ranks = draw(
        st.lists(st.integers(0, 1), min_size=len(inner) + 1, max_size=len(inner) + 1).filter(
            lambda r: len(set(r)) == 2
        )
    )
    split, recompute = draw(st.sampled_from([(False, False), (True, False), (False, True)]))
    return {
        "bounds": (0, *sorted(inner), count),
        "ranks": tuple(ranks),
        "split": split,
        "recompute": recompute,
    }


def possible(drawn) -> bool:
    """No checkpointing takes layers that ask autograd for a gradient, neither a plan's, nor DeepSpeed's, nor
    a layer's own: hazards.autograd.Inner has them."""
    recipe, placement = drawn
    checkpointed = recipe.checkpointed or placement["recompute"]
    return not any(
        "inner" in layer.parts and (checkpointed or "checkpoint" in layer.parts) for layer in recipe.layers
    )


def trained(recipe: Recipe, section: dict | None):
    return train(recipe.model(), section, steps=2)


@pytest.fixture(scope="module")
def world(worlds):
    return worlds[2]


@pytest.mark.slow  # test_zoo.py has each hazard that is drawn
def test_drawn_models(world, request):
    everything = request.config.getoption("--all")
    examples = request.config.getoption("--examples") or (MANY if everything else EXAMPLES)
    seen: dict[str, int] = {}

    # What fails is printed, and is small.
    phases = [Phase.generate, Phase.shrink] if everything else [Phase.generate]

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=not everything,
        database=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        recipes()
        .flatmap(lambda recipe: st.tuples(st.just(recipe), placements(len(recipe.layers) + 1)))
        .filter(possible)
    )
    def holds(drawn):
        recipe, placement = drawn
        try:
            stock = world.run(trained, recipe, None)
        except AssertionError as error:  # DeepSpeed alone does not train it
            print("not trained by DeepSpeed:", *str(error).strip().splitlines()[-1:], recipe, flush=True)
            seen["not trained by DeepSpeed"] = seen.get("not trained by DeepSpeed", 0) + 1
            return
        with tempfile.TemporaryDirectory() as folder:
            ours = world.run(trained, recipe, planned(folder=Path(folder), **placement))
        if any(outcome.failed for outcome in ours):
            world.restart()
        counts = any("python" in layer.parts for layer in recipe.layers)  # its forwards, in the layer
        verdict = judge(stock, ours, keeps_contract=not counts)
        seen[verdict.kind] = seen.get(verdict.kind, 0) + 1
        print(verdict, "" if verdict else drawn, flush=True)
        assert verdict, verdict.why

    try:
        holds()
    finally:
        print(seen)
    assert (
        seen.get("not trained by DeepSpeed", 0) <= examples // 10 and seen.get("equal", 0) >= examples // 4
    ), seen
