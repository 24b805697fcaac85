# SPDX-License-Identifier: Apache-2.0
"""Random uneven placements for benchmarks: the same seed gives the same text on every machine.

    text, micro_batches = random_placement(17)

Every placement has 3 to 8 devices with their own static memory and room, links with a latency and on half of
them a bandwidth, uneven times, and a workspace on every block; 8 to 16 micro-batches. The seed draws one of
the forms of FORMS.
"""

import json
import random
from dataclasses import dataclass, field


@dataclass
class Block:
    name: str
    stage: str
    kind: str
    devices: list[int]
    time: int
    memory: int = 0
    workspace: int = 0
    after: list[tuple[str, int]] = field(default_factory=list)
    lane: str = ""

    def toml(self) -> list[str]:
        after = ", ".join(f'{{ block = "{name}", bytes = {size} }}' for name, size in self.after)
        return [
            "[[blocks]]",
            f'name = "{self.name}"',
            f'stage = "{self.stage}"',
            f'kind = "{self.kind}"',
            f"devices = {self.devices}",
            f"time = {self.time}",
            f"memory = {self.memory}",
            f"workspace = {self.workspace}",
            f"after = [{after}]",
            *([f'lane = "{self.lane}"'] if self.lane else []),
        ]


class Stages:
    """Stages with a forward and a backward whose edges are those of the forwards turned round."""

    def __init__(self, rng: random.Random, split: bool = False) -> None:
        self.rng, self.split = rng, split
        self.forwards: list[Block] = []
        self.backwards: list[Block] = []
        self.weights: list[Block] = []

    def add(self, devices: list[int], after: list[int], shrink: int = 1) -> int:
        """A stage on these devices whose forward follows the forwards of the stages `after`; its index."""
        rng, stage = self.rng, f"s{len(self.forwards)}"
        memory = rng.choice([10, 10, 10, rng.randint(6, 14)]) if len(devices) == 1 else 0
        edges = [(self.forwards[a].name, rng.randint(0, 6)) for a in after]
        self.forwards.append(
            Block(
                f"{stage}.F",
                stage,
                "forward",
                devices,
                rng.randint(5, 15) // shrink,
                memory,
                rng.randint(0, 3),
                edges,
            )
        )
        time = rng.randint(10, 30) // shrink
        kind = "backward_input" if self.split else "backward"
        backward = Block(f"{stage}.B", stage, kind, devices, time, -memory, rng.randint(0, 3))
        if self.split:
            backward.time, backward.memory = time // 2 + 1, 0
            self.weights.append(
                Block(
                    f"{stage}.W",
                    stage,
                    "backward_weight",
                    devices,
                    time // 2,
                    -memory,
                    0,
                    [(backward.name, 0)],
                )
            )
        self.backwards.append(backward)
        for a, (_, size) in zip(after, edges, strict=True):
            self.backwards[a].after.append((backward.name, size))
        return len(self.forwards) - 1

    def exchange(self, device: int, after: int) -> int:
        """A stage on the device's lane, which holds no memory."""
        added = self.add([device], [after], shrink=2)
        for block in (self.forwards[added], self.backwards[added], *self.weights[added:]):
            block.memory, block.workspace, block.lane = 0, 0, "network"
        return added

    def blocks(self) -> list[Block]:
        """The last forward leads to the first backward; backwards without an input follow their own forward."""
        for forward, backward in zip(self.forwards, self.backwards, strict=True):
            if not backward.after:
                backward.after.append((forward.name, 0))
        return self.forwards + self.backwards + self.weights


def chain(rng: random.Random, devices: int) -> Stages:
    """One stage a device (1F1B's placement)."""
    stages = Stages(rng)
    for d in range(devices):
        stages.add([d], [d - 1] if d else [])
    return stages


def skip_edges(rng: random.Random, devices: int) -> Stages:
    """A chain in which stages also feed later ones."""
    stages = Stages(rng)
    for d in range(devices):
        stages.add([d], [d - 1] * (d > 0) + [a for a in range(d - 1) if rng.random() < 0.3])
    return stages


def branches(rng: random.Random, devices: int) -> Stages:
    """Two chains that meet at the last device."""
    stages = Stages(rng)
    half = devices // 2
    for d in range(devices - 1):
        stages.add([d], [] if d in (0, half) else [d - 1])
    stages.add([devices - 1], sorted({half - 1, devices - 2}))
    return stages


def sharded(rng: random.Random, devices: int) -> Stages:
    """A chain that begins, and often also ends, with a stage on all devices."""
    stages = Stages(rng)
    last = stages.add(list(range(devices)), [], shrink=4)
    for d in range(devices):
        last = stages.add([d], [last])
    if rng.random() < 0.5:
        stages.add(list(range(devices)), [last], shrink=4)
    return stages


def wave(rng: random.Random, devices: int) -> Stages:
    """Two stages a device, down and up again."""
    stages = Stages(rng)
    for i, d in enumerate([*range(devices), *reversed(range(devices))]):
        stages.add([d], [i - 1] if i else [], shrink=2)
    return stages


def split(rng: random.Random, devices: int) -> Stages:
    """A chain with backwards split into input and weight gradients."""
    stages = Stages(rng, split=True)
    for d in range(devices):
        stages.add([d], [d - 1] if d else [])
    return stages


def exchanging(rng: random.Random, devices: int) -> Stages:
    """A chain whose devices compute, exchange on a lane, and compute again."""
    stages = Stages(rng)
    last: list[int] = []
    for d in range(devices):
        last = [stages.add([d], [stages.exchange(d, stages.add([d], last, shrink=2))], shrink=2)]
    return stages


FORMS = (chain, chain, skip_edges, branches, sharded, wave, split)


def random_placement(seed: int) -> tuple[str, int]:
    """The placement as TOML, and the number of micro-batches."""
    rng = random.Random(seed)
    devices = rng.randint(3, 8)
    form = rng.choice(FORMS)
    return placement_text(rng, f"{form.__name__}-{seed}", form(rng, devices).blocks(), devices), rng.randint(
        8, 16
    )


def with_lanes(seed: int) -> tuple[str, int]:
    """The same with 2 or 3 devices that exchange on lanes, and 4 to 8 micro-batches."""
    rng = random.Random(seed)
    devices = rng.randint(2, 3)
    blocks = exchanging(rng, devices).blocks()
    return placement_text(rng, f"exchanging-{seed}", blocks, devices), rng.randint(4, 8)


def placement_text(rng: random.Random, name: str, blocks: list[Block], devices: int) -> str:
    """Draws links and memory."""
    lines = [
        'format = "ostinato-placement/1"',
        f'name = "{name}"',
        'time_unit = "ns"',
        'memory_unit = "B"',
        "[link]",
        f"latency = {rng.randint(0, 3)}",
        f"bandwidth = {rng.choice([0, 2])}",
    ]
    for a in rng.sample(range(devices), rng.randint(0, 2)):
        b = rng.choice([d for d in range(devices) if d != a])
        lines += ["[[links]]", f"from = {a}", f"to = {b}", f"latency = {rng.randint(2, 8)}", "bandwidth = 1"]
    for d in range(devices):
        static = rng.randint(0, 20)
        held = [b.memory for b in blocks if d in b.devices and b.memory > 0]
        room = max(sum(held) + 6, rng.randint(2, devices + 1) * sum(held) // len(held) + 3) if held else 6
        lines += ["[[devices]]", f'name = "d{d}"', f"memory = {static + room}", f"static = {static}"]
        lanes = {b.lane for b in blocks if d in b.devices and b.lane}
        lines += [f"lanes = {json.dumps(sorted(lanes))}"] if lanes else []
    for block in blocks:
        lines += block.toml()
    return "\n".join(lines) + "\n"
