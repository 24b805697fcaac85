# SPDX-License-Identifier: Apache-2.0
"""The problem of docs/formats.md for CP-SAT (OR-Tools): whole schedules, proved where the time allows.

    rival = solve(tomllib.loads(text), micro_batches=12, limit=10, threads=1)
    rival.makespan, rival.proved, rival.cpu_seconds

One interval a step, exclusive devices, dependencies with transfers, memory as a cumulative over the intervals
from each take to its give-back, with each step's workspace on top. What identical micro-batches allow is
said, because CP-SAT does not see it by itself: every block runs its micro-batches in index order, and where K
stages of one micro-batch fit a device, take i + K waits for give-back i.
"""

import time
from dataclasses import dataclass

from ortools.sat.python import cp_model


@dataclass
class Solved:
    makespan: int  # or the objective that was asked for; -1: none found
    bound: int
    cpu_seconds: float  # of the solver, all threads; without building the model

    @property
    def proved(self) -> bool:
        return self.makespan == self.bound


def with_machines(placement: dict) -> dict:
    """Lanes of devices become machines behind them, with their device's links (`home`)."""
    devices = [device | {"home": d} for d, device in enumerate(placement["devices"])]
    of_lane = {}
    for d, device in enumerate(placement["devices"]):
        for lane in device.get("lanes", []):
            of_lane[d, lane] = len(devices)
            devices.append({"home": d})
    blocks = [
        block | {"devices": [of_lane.get((d, block.get("lane")), d) for d in block["devices"]]}
        for block in placement["blocks"]
    ]
    return placement | {"devices": devices, "blocks": blocks}


def transfer(placement: dict, source: dict, target: dict, size: int) -> int:
    """Nanoseconds; bandwidth in GB/s is bytes per nanosecond."""
    home = [device["home"] for device in placement["devices"]]
    links = {(link["from"], link["to"]): link for link in placement.get("links", [])}

    def over(a: int, b: int) -> int:
        link = links.get((a, b), placement.get("link", {}))
        bandwidth = link.get("bandwidth", 0)
        return link.get("latency", 0) + (-(-size // bandwidth) if bandwidth else 0)

    sources = [home[a] for a in source["devices"]]
    served = [min(over(a, home[d]) for a in sources) for d in target["devices"] if home[d] not in sources]
    return max(served, default=0)


class Model:
    def __init__(self, placement: dict, micro_batches: int, objective: str = "makespan") -> None:
        placement = with_machines(placement)
        self.placement, self.n = placement, micro_batches
        self.blocks = {b["name"]: b for b in placement["blocks"]}
        self.model = cp_model.CpModel()
        horizon = self.n * sum(b["time"] + sum(self.delays(b)) for b in self.blocks.values())
        self.horizon = horizon
        self.value = self.model.new_int_var(0, horizon, objective)
        self.start = {
            (b, i): self.model.new_int_var(0, horizon, f"{b}.{i}") for b in self.blocks for i in range(self.n)
        }
        self.interval = {
            (b, i): self.model.new_fixed_size_interval_var(s, self.blocks[b]["time"], f"{b}.{i}.run")
            for (b, i), s in self.start.items()
        }
        for name in self.blocks:
            self.add_precedences(name)
        for d in range(len(placement["devices"])):
            self.add_device(d)
        for group in self.groups(objective):
            self.add_group(group, objective)
        self.model.minimize(self.value)

    def groups(self, objective: str) -> list[list[tuple[str, int]]]:
        """The steps from the first start to the last end of which the objective is, at most."""
        if objective == "span":
            return [
                [s for s in self.start if d in self.blocks[s[0]]["devices"]]
                for d in range(len(self.placement["devices"]))
            ]
        if objective == "latency":
            return [[s for s in self.start if s[1] == i] for i in range(self.n)]
        return [list(self.start)]

    def add_group(self, steps: list[tuple[str, int]], objective: str) -> None:
        begin = 0 if objective == "makespan" else self.model.new_int_var(0, self.horizon, "")
        for step in steps:
            self.model.add(begin <= self.start[step])
            self.model.add(self.end(*step) <= begin + self.value)

    def delays(self, block: dict) -> list[int]:
        return [
            transfer(self.placement, self.blocks[a["block"]], block, a.get("bytes", 0))
            for a in block["after"]
        ]

    def end(self, name: str, i: int) -> cp_model.LinearExpr:
        return self.start[name, i] + self.blocks[name]["time"]

    def add_precedences(self, name: str) -> None:
        block = self.blocks[name]
        for i in range(self.n):
            for a, delay in zip(block["after"], self.delays(block), strict=True):
                self.model.add(self.end(a["block"], i) + delay <= self.start[name, i])
            if i:
                self.model.add(self.end(name, i - 1) <= self.start[name, i])

    def add_device(self, d: int) -> None:
        here = [b for b in self.blocks.values() if d in b["devices"]]
        steps = [(b, i) for b in here for i in range(self.n)]
        self.model.add_no_overlap([self.interval[b["name"], i] for b, i in steps])
        device = self.placement["devices"][d]
        if "memory" not in device:
            return
        room = device["memory"] - device.get("static", 0)
        pairs = self.pairs(here)
        held = [self.interval[b["name"], i] for b, i in steps if b.get("workspace", 0)]
        demand = [b["workspace"] for b, _ in steps if b.get("workspace", 0)]
        for take, give in pairs:
            for i in range(self.n):
                size = self.model.new_int_var(0, self.horizon, "")
                held.append(
                    self.model.new_interval_var(
                        self.start[take["name"], i], size, self.end(give["name"], i), ""
                    )
                )
                demand.append(take["memory"])
        self.model.add_cumulative(held, demand, room)
        for take, give in pairs:
            fit = (room - take.get("workspace", 0)) // take["memory"]
            for i in range(self.n - fit):
                self.model.add(self.end(give["name"], i) <= self.start[take["name"], i + fit])

    def pairs(self, here: list[dict]) -> list[tuple[dict, dict]]:
        """What takes memory, with what of the same stage gives it back."""
        takes = [b for b in here if b.get("memory", 0) > 0]
        gives = {b["stage"]: b for b in here if b.get("memory", 0) < 0}
        assert all(gives[b["stage"]]["memory"] == -b["memory"] for b in takes) and len(gives) == len(takes)
        return [(b, gives[b["stage"]]) for b in takes]


def solve(
    placement: dict, micro_batches: int, limit: float, threads: int, objective: str = "makespan"
) -> Solved:
    """`limit` in seconds of CP-SAT's deterministic clock, which a busy machine does not slow down. Presolve
    is not on that clock: 60 times as many real seconds end it too.
    """
    model = Model(placement, micro_batches, objective).model
    solver = cp_model.CpSolver()
    solver.parameters.max_deterministic_time = limit
    solver.parameters.max_time_in_seconds = 60 * limit
    solver.parameters.num_workers = threads
    began = time.process_time()
    status = solver.solve(model)
    seconds = time.process_time() - began
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Solved(-1, 0, seconds)
    return Solved(round(solver.objective_value), round(solver.best_objective_bound), seconds)
