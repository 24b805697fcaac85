# SPDX-License-Identifier: Apache-2.0
"""Models and plans that a seed draws, small enough to be run by real ranks: case = drawn(17, folder).

Placements are those of tests/bench/random_placements.py and of FORMS here, with times, links, memory and
halves of backwards. The order is searched, a named schedule's, of micro-batches that differ, or any that
dependencies allow.
"""

import json
import random
import sys
from pathlib import Path

import ostinato
from plan_files import plan_json

from .rendezvous import Case, Part

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import random_placements
from random_placements import Block, Stages

RANKS = 4  # of the world
NAMED = ["1f1b", "gpipe", "interleaved-1f1b", "zb-h1", "zb-v", "chimera", "dualpipe-v"]


def looped(rng: random.Random, devices: int) -> Stages:
    """Two or three stages a device, round and round."""
    stages = Stages(rng)
    for i in range(devices * rng.randint(2, 3)):
        stages.add([i % devices], [i - 1] if i else [])
    return stages


def two_ways(rng: random.Random, devices: int) -> Stages:
    """A chain down and another up."""
    stages = Stages(rng)
    for path in (range(devices), reversed(range(devices))):
        for i, d in enumerate(path):
            stages.add([d], [len(stages.forwards) - 1] if i else [])
    return stages


def any_graph(rng: random.Random, devices: int) -> Stages:
    """Up to seven stages anywhere, some on several ranks, some with halves, each of which takes what any
    before it make."""
    stages, shards = Stages(rng), rng.random() < 0.4
    for s in range(rng.randint(1, 7)):
        stages.split = rng.random() < 0.4
        several = shards and devices > 1 and rng.random() < 0.3
        stages.add(
            sorted(rng.sample(range(devices), rng.randint(2, devices) if several else 1)),
            [a for a in range(s) if rng.random() < 0.4],
        )
    return stages


FORMS = (*dict.fromkeys(random_placements.FORMS), looped, two_ways, any_graph, any_graph)


def drawn(seed: int, folder: Path) -> Case:
    """Writes placement.toml and plan.json into the folder."""
    rng = random.Random(seed)
    devices, form, micro_batches = rng.randint(2, RANKS), rng.choice(FORMS), rng.randint(1, 6)
    stages = form(rng, devices)
    forwards, name = stages.forwards, f"{form.__name__}-{seed}"
    blocks = stages.blocks() if rng.random() < 0.9 else forwards
    made, order = _planned(rng, name, blocks, devices, micro_batches)
    placement, plan = (
        (made.placement.text, made.text) if made else _any_order(rng, name, blocks, devices, micro_batches)
    )
    folder.mkdir(parents=True)
    (folder / "placement.toml").write_text(placement)
    (folder / "plan.json").write_text(plan)
    index = {block.name: s for s, block in enumerate(forwards)}
    return Case(
        seed,
        f"{name}: {order if made else 'any order'}, {devices} ranks, {micro_batches} micro-batches",
        (str(folder / "plan.json"), str(folder / "placement.toml")),
        tuple(
            Part(tuple(b.devices), tuple(index[a] for a, _ in b.after if a in index), rng.randint(4, 9))
            for b in forwards
        ),
        tuple(rng.sample(range(RANKS), devices)),
        micro_batches,
        rows=rng.choice([1, 2, 3, 2000]),
        dynamic_shapes=rng.random() < 0.3,
        trains=blocks is not forwards,
    )


def _planned(
    rng: random.Random, name: str, blocks: list[Block], devices: int, micro_batches: int
) -> tuple[ostinato.Plan | None, str]:
    """By the search or a named schedule; None where any order is to be drawn, or where there is none in this
    memory or of this name."""
    text = random_placements.placement_text(rng, name, blocks, devices)
    way = rng.choice(["any", "searched", "named", "sizes"])
    if way == "any":
        return None, way
    placement = ostinato.Placement.from_text(text)
    for method in rng.sample(NAMED, len(NAMED)) if way == "named" else ["auto"]:
        try:
            if way == "sizes":
                sizes = [rng.randint(1, 40) for _ in range(micro_batches)]
                return ostinato.search_sizes(placement, sizes, size=20, effort=10, time_limit=0), way
            return ostinato.search(placement, micro_batches=micro_batches, method=method, threads=1), method
        except ostinato.Error:
            continue
    return None, way


def _any_order(
    rng: random.Random, name: str, blocks: list[Block], devices: int, micro_batches: int
) -> tuple[str, str]:
    """Placement and plan: each step at once or a little later, in an order that dependencies allow; half of
    them with micro-batches in turn."""
    latency, in_turn = rng.choice([0, rng.randint(1, 8)]), rng.random() < 0.5
    for block in blocks:
        block.time, block.memory, block.workspace = rng.randint(0, 5), 0, 0
    text = "\n".join([
        'format = "ostinato-placement/1"', f'name = "{name}"', 'time_unit = "ns"', 'memory_unit = "B"', "[link]", f"latency = {latency}",
        *(f'[[devices]]\nname = "d{d}"' for d in range(devices)), *(line for block in blocks for line in block.toml()),
    ]) + "\n"  # fmt: skip
    by_name = {block.name: block for block in blocks}
    end: dict[tuple[str, int], int] = {}
    start: dict[tuple[str, int], int] = {}
    free = [0] * devices
    left = [(block.name, m) for block in blocks for m in range(micro_batches)]

    def open_now(step: tuple[str, int]) -> bool:
        block, m = step
        turn = not in_turn or m == 0 or (block, m - 1) in end
        return turn and all((after, m) in end for after, _ in by_name[block].after)

    while left:
        step = rng.choice([step for step in left if open_now(step)])
        block, m = by_name[step[0]], step[1]
        arrived = [
            end[a, m] + latency * any(f != t for f in by_name[a].devices for t in block.devices)
            for a, _ in block.after
        ]
        start[step] = max(
            [rng.choice([0] * 9 + [rng.randint(0, 20)]), *arrived, *(free[d] for d in block.devices)]
        )
        end[step] = start[step] + block.time
        for d in block.devices:
            free[d] = end[step]
        left.remove(step)
    at = {block.name: (block.time, block.devices) for block in blocks}
    return text, json.dumps(plan_json(name, text.encode(), at, start, micro_batches, devices))
