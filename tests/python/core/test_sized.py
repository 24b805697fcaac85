# SPDX-License-Identifier: Apache-2.0
"""What micro-batches of several sizes cost in the search of a step's plan."""

import json

import pytest
from ostinato.sizes import sized
from support.plans import Layout, placement_text
from support.profiles import write_profile

from ostinato import InputError, Placement, Profile, search_sizes, verify

# Microseconds a layer.
PLACEMENT = Placement.from_text(placement_text(Layout("halves", (1,), (0, 1)), 2, forward=100, backward=200))
RECOMPUTED = Placement.from_text(
    PLACEMENT.text.replace('name = "s1"\nlayers = [1, 2]', 'name = "s1"\nlayers = [1, 2]\nrecompute = true')
)


@pytest.fixture
def profile(tmp_path):
    """Of two layers, by (size, forward, backward) in microseconds of each; `again`: what a forward takes that
    is run once more."""

    def made(*times, again: int | None = None, layers: int = 2) -> Profile:
        forward = next(forward for size, forward, _ in times if size == 100)
        told = json.loads(write_profile(tmp_path / "profile.json", [forward] * layers).read_text())
        told["tokens"] = 100
        told["sizes"] = [
            {"size": size, "forward": [1000 * f] * layers, "backward": [1000 * b] * layers}
            for size, f, b in times
        ]
        for layer in told["layers"] if again else ():
            layer["recompute"] = 1000 * again
        return Profile.from_text(json.dumps(told))

    return made


def times_of(batch, placement=PLACEMENT) -> dict[str, int]:
    return dict(zip(placement.blocks, batch.times, strict=True))


def test_without_a_profile_they_grow_in_proportion():
    assert [times_of(one)["s0.F"] for one in sized(PLACEMENT, [100, 300], 200)] == [50_000, 150_000]
    (fraction,) = sized(PLACEMENT, [0.5], 1)
    assert times_of(fraction)["s1.B"] == 100_000


def test_times_follow_what_was_measured(profile):
    half, between, beyond, least = sized(
        PLACEMENT, [50, 150, 400, 0.5], 100, profile((50, 10, 30), (100, 20, 40), (200, 80, 120))
    )
    # 10/20 of 100 us, 30/40 of 200 us.
    assert times_of(half)["s0.F"] == 50_000 and times_of(half)["s1.B"] == 150_000
    assert times_of(between)["s0.F"] == 250_000 and times_of(between)["s1.B"] == 400_000
    assert times_of(beyond)["s0.F"] == 1_000_000  # on the line through the last two: 200 of 20
    assert times_of(least)["s0.F"] == 500  # 0.1 of 20


def test_a_stage_that_recomputes_runs_its_forward_in_its_backward(profile):
    times = (50, 10, 30), (100, 20, 40)
    (whole,), (part,) = (sized(RECOMPUTED, [50], 100, profile(*times, again=again)) for again in (None, 10))
    assert times_of(whole)["s0.B"] == times_of(part)["s0.B"] == 150_000
    assert times_of(whole)["s1.B"] == pytest.approx(200_000 * 40 / 60, abs=1)
    assert times_of(part)["s1.B"] == pytest.approx(200_000 * 35 / 50, abs=1)


def with_overheads(profile: Profile) -> Profile:
    rank = {"held": 0, "step": 0, "buffers": 0, "forward": 20_000, "backward": 40_000}
    return Profile.from_text(json.dumps(profile.to_dict() | {"rank": rank}))


def test_what_a_block_takes_beside_its_layers_stays(profile):
    measured = with_overheads(profile((50, 10, 30), (100, 20, 40)))
    (half,) = sized(PLACEMENT, [50], 100, measured)
    assert times_of(half)["s0.F"] == 20_000 + 80_000 // 2
    assert times_of(half)["s0.B"] == 40_000 + 160_000 * 30 // 40
    (eighth,) = sized(PLACEMENT, [0.125], 1, with_overheads(profile((100, 20, 40))))
    assert times_of(eighth)["s0.F"] == 20_000 + 80_000 // 8
    on_lane = PLACEMENT.text.replace("[[devices]]", '[[devices]]\nlanes = ["network"]')
    on_lane = on_lane.replace('name = "s0.F"', 'name = "s0.F"\nlane = "network"').replace(
        "memory", "# memory"
    )
    lane = Placement.from_text(on_lane)
    (half,) = sized(lane, [50], 100, measured)
    assert times_of(half, lane)["s0.F"] == 50_000 and times_of(half, lane)["s1.F"] == 60_000


def test_layers_that_the_profile_lacks_are_named(profile):
    with pytest.raises(
        InputError, match='stage "s1" of the placement has layer 1, but the profile has only 1 layer'
    ):
        sized(PLACEMENT, [50], 100, profile((50, 10, 30), (100, 20, 40), layers=1))


def test_a_plan_of_such_costs_is_proved_and_never_worse_than_1f1b(profile):
    batches = sized(
        PLACEMENT, [200, 40, 90, 170, 60, 50], 100, profile((50, 10, 30), (100, 20, 40), (200, 80, 120))
    )
    free, kept = (search_sizes(PLACEMENT, batches, keep_order=keep) for keep in (False, True))
    assert bool(verify(free)) and bool(verify(kept))
    assert free.makespan <= kept.makespan
    backwards = [step.micro_batch for step in kept.schedule if step.block == "s0.B"]
    assert backwards == sorted(backwards)
