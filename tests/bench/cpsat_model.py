# SPDX-License-Identifier: Apache-2.0
"""The problem of docs/formats.md for CP-SAT (OR-Tools): whole schedules, proved where the time allows, and
what repeats.

    rival = solve(tomllib.loads(text), micro_batches=12, limit=10, threads=1)
    rival.makespan, rival.proved, rival.cpu_seconds
    rival = judge_period(tomllib.loads(text), unroll=2, period=310, limit=10, threads=1)

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
    makespan: int  # or the objective that was asked for, or the period; -1: none found
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


class Repeating(Model):
    """A schedule of `unroll` micro-batches that starts again after every `period`: feasible or not. What
    devices run and hold is written down for the repetitions that meet in one of them.
    """

    def __init__(self, placement: dict, unroll: int, period: int) -> None:
        self.placement, self.n, self.period = with_machines(placement), unroll, period
        self.blocks = {b["name"]: b for b in self.placement["blocks"]}
        self.model = cp_model.CpModel()
        longest = sum(b["time"] + sum(self.delays(b)) for b in self.blocks.values())
        laps = 2 * len(self.blocks) + -(-longest // period)
        self.start, self.phase = {}, {}
        for b in self.blocks:
            for i in range(unroll):
                lap = self.model.new_int_var(0, laps, f"{b}.{i}.lap")
                self.phase[b, i] = self.model.new_int_var(0, period - 1, f"{b}.{i}.phase")
                self.start[b, i] = self.phase[b, i] + period * lap
        for name in self.blocks:
            self.add_precedences(name)
            self.model.add(self.end(name, unroll - 1) <= self.start[name, 0] + period)
        for d in range(len(self.placement["devices"])):
            self.add_device(d)

    def repeated(self, step: tuple[str, int], size: cp_model.LinearExprT, turns: range) -> list:
        intervals = []
        for turn in turns:
            begin = self.phase[step] + turn * self.period
            end = self.model.new_int_var(0, 10 * self.period * (turns.stop + 1), "")
            intervals.append(self.model.new_interval_var(begin, size, end, ""))
        return intervals

    def add_device(self, d: int) -> None:
        here = [b for b in self.blocks.values() if d in b["devices"]]
        steps = [(b["name"], i) for b in here for i in range(self.n)]
        self.model.add_no_overlap(
            [run for s in steps for run in self.repeated(s, self.blocks[s[0]]["time"], range(2))]
        )
        device = self.placement["devices"][d]
        if "memory" not in device:
            return
        room = device["memory"] - device.get("static", 0)
        pairs = self.pairs(here)
        fit = {take["name"]: (room - take.get("workspace", 0)) // take["memory"] for take, _ in pairs}
        most = max(fit.values(), default=0) + 1
        held, demand = [], []
        for b, i in steps:
            if workspace := self.blocks[b].get("workspace", 0):
                held += self.repeated((b, i), self.blocks[b]["time"], range(most - 1, most + 1))
                demand += 2 * [workspace]
        for take, give in pairs:
            for i in range(self.n):
                size = self.model.new_int_var(0, fit[take["name"]] * self.period, "")
                self.model.add(self.start[take["name"], i] + size == self.end(give["name"], i))
                turns = range(most - fit[take["name"]], most + 1)
                held += self.repeated((take["name"], i), size, turns)
                demand += len(turns) * [take["memory"]]
        self.model.add_cumulative(held, demand, room)


def judge_period(placement: dict, unroll: int, period: int, limit: float, threads: int) -> Solved:
    """Of a period that somebody found: it is proved if nothing repeats in a shorter one, and then taken for
    found unless CP-SAT refutes it. The limit is for each of the two questions.
    """
    found, seconds = check(Repeating(placement, unroll, period).model, limit, threads)
    shorter, more = check(Repeating(placement, unroll, period - 1).model, limit, threads)
    if shorter is True:
        return Solved(period - 1, 0, seconds + more)
    known = found or (found is None and shorter is False)
    return Solved(period if known else -1, period if shorter is False else 0, seconds + more)


def check(model: cp_model.CpModel, limit: float, threads: int) -> tuple[bool | None, float]:
    """Whether it is feasible, None: not known; CPU seconds."""
    solver, seconds, status = run(model, limit, threads)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return True, seconds
    return False if status == cp_model.INFEASIBLE else None, seconds


def solve(
    placement: dict, micro_batches: int, limit: float, threads: int, objective: str = "makespan"
) -> Solved:
    solver, seconds, status = run(Model(placement, micro_batches, objective).model, limit, threads)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Solved(-1, 0, seconds)
    return Solved(round(solver.objective_value), round(solver.best_objective_bound), seconds)


def run(model: cp_model.CpModel, limit: float, threads: int) -> tuple[cp_model.CpSolver, float, int]:
    """`limit` in seconds of CP-SAT's deterministic clock, which a busy machine does not slow down. Presolve
    is not on that clock: 60 times as many real seconds end it too.
    """
    solver = cp_model.CpSolver()
    solver.parameters.max_deterministic_time = limit
    solver.parameters.max_time_in_seconds = 60 * limit
    solver.parameters.num_workers = threads
    began = time.process_time()
    status = solver.solve(model)
    return solver, time.process_time() - began, status
