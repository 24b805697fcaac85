"""The search beside general solvers, in one run: CP-SAT (OR-Tools) on whole schedules, Z3 on repetends.

    python tests/bench/search_rivals.py --ostinato build/release/bindings/ostinato --random 20 --limit 20

Prints one line a case: makespan and seconds of each, and the ratio of the times. Asserts nothing. Needs ortools and z3-solver
(PyPI). The CP-SAT model is the problem of FORMATS: one interval a step, exclusive devices, dependencies with transfers,
memory as a reservoir, micro-batches of a block in index order. The Z3 model is Tessel's repetend (arXiv 2311.15269, section 4):
a start within the period and a stage (index) per block.
"""

import argparse
import json
import random
import statistics
import subprocess
import tempfile
import time
import tomllib
from pathlib import Path


def random_placement(seed: int) -> tuple[str, int]:
    """A chain over 3 to 8 devices and back with uneven times, links, static memory and workspace."""
    rng = random.Random(seed)
    devices = rng.randint(3, 8)
    lines = ['format = "ostinato-placement/1"', f'name = "random-{seed}"', 'time_unit = "ns"', 'memory_unit = "B"',
             "[link]", f"latency = {rng.randint(0, 3)}"]
    for d in range(devices):
        static = rng.randint(0, 20)
        room = 10 * rng.randint(2, devices + 1) + 3
        lines += ["[[devices]]", f'name = "d{d}"', f"memory = {static + room}", f"static = {static}"]
    previous = None
    for kind in ("F", "B"):
        for d in range(devices) if kind == "F" else reversed(range(devices)):
            span = (5, 15) if kind == "F" else (10, 30)
            after = f'["{previous}"]' if previous else "[]"
            lines += ["[[blocks]]", f'name = "s{d}.{kind}"', f'stage = "s{d}"',
                      f'kind = "{"forward" if kind == "F" else "backward"}"', f"devices = [{d}]",
                      f"time = {rng.randint(*span)}", f"memory = {10 if kind == 'F' else -10}",
                      f"workspace = {rng.randint(0, 3)}", f"after = {after}"]
            previous = f"s{d}.{kind}"
    return "\n".join(lines) + "\n", rng.randint(8, 16)


def inputs(block: dict) -> list[tuple[str, int]]:
    return [(a, 0) if isinstance(a, str) else (a["block"], a.get("bytes", 0)) for a in block.get("after", [])]


def transfer(placement: dict, a: dict, b: dict) -> int:
    """Latency only: the placements drawn here carry no bytes."""
    return 0 if set(b["devices"]) <= set(a["devices"]) else placement.get("link", {}).get("latency", 0)


def solve_cpsat(placement: dict, n: int, limit: float) -> tuple[int, int, float]:
    """Makespan, bound, seconds."""
    from ortools.sat.python import cp_model

    blocks = {b["name"]: b for b in placement["blocks"]}
    horizon = n * sum(b["time"] for b in blocks.values()) + 100 * len(blocks) * n
    model = cp_model.CpModel()
    start = {(b, i): model.new_int_var(0, horizon, f"{b}.{i}") for b in blocks for i in range(n)}
    makespan = model.new_int_var(0, horizon, "makespan")
    on_device: list[list] = [[] for _ in placement["devices"]]
    for (name, i), s in start.items():
        block = blocks[name]
        interval = model.new_fixed_size_interval_var(s, block["time"], f"{name}.{i}")
        for d in block["devices"]:
            on_device[d].append((name, interval))
        for a, _ in inputs(block):
            model.add(start[a, i] + blocks[a]["time"] + transfer(placement, blocks[a], block) <= s)
        if i:
            model.add(start[name, i - 1] + block["time"] <= s)
        model.add(s + block["time"] <= makespan)
    for d, device in enumerate(placement["devices"]):
        model.add_no_overlap([interval for _, interval in on_device[d]])
        if "memory" not in device:
            continue
        # Memory taken at a start and given back at an end, with each step's workspace: levels are kept below the capacity by
        # one interval a micro-batch from its forward's start to its backward's end, and one a step for its workspace.
        room = device["memory"] - device.get("static", 0)
        takes = [b for b in blocks.values() if d in b["devices"] and b.get("memory", 0) > 0]
        gives = [b for b in blocks.values() if d in b["devices"] and b.get("memory", 0) < 0]
        held, demand = [], []
        for take, give in zip(takes, gives, strict=True):
            for i in range(n):
                size = model.new_int_var(0, horizon, "")
                end = start[give["name"], i] + give["time"]
                held.append(model.new_interval_var(start[take["name"], i], size, end, ""))
                demand.append(take["memory"])
        for name, interval in on_device[d]:
            held.append(interval)
            demand.append(blocks[name].get("workspace", 0))
        model.add_cumulative(held, demand, room)
    model.minimize(makespan)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit
    solver.parameters.num_workers = 1
    began = time.perf_counter()
    status = solver.solve(model)
    seconds = time.perf_counter() - began
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return int(solver.objective_value) if found else -1, int(solver.best_objective_bound), seconds


def solve_z3(placement: dict, period: int, limit: float) -> tuple[str, float]:
    """Whether a repetend of one micro-batch with this period exists, and the seconds to say so."""
    import z3

    blocks = {b["name"]: b for b in placement["blocks"]}
    solver = z3.Solver()
    solver.set("timeout", int(limit * 1000))
    slot = {b: z3.Int(f"slot.{b}") for b in blocks}
    stage = {b: z3.Int(f"stage.{b}") for b in blocks}
    for name, block in blocks.items():
        solver.add(slot[name] >= 0, slot[name] < period, stage[name] >= 0, stage[name] <= len(blocks))
        for a, _ in inputs(block):
            ready = stage[a] * period + slot[a] + blocks[a]["time"] + transfer(placement, blocks[a], block)
            solver.add(stage[name] * period + slot[name] >= ready)
    names = list(blocks)
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            if set(blocks[a]["devices"]) & set(blocks[b]["devices"]):
                apart = slot[b] - slot[a]
                solver.add(z3.Or(z3.And(apart >= blocks[a]["time"], apart + blocks[b]["time"] <= period),
                                 z3.And(-apart >= blocks[b]["time"], -apart + blocks[a]["time"] <= period)))
    began = time.perf_counter()
    outcome = str(solver.check())
    return outcome, time.perf_counter() - began


def solve_ours(binary: Path, placement: Path, n: int) -> tuple[dict, float]:
    plan = placement.with_suffix(".json")
    began = time.perf_counter()
    subprocess.run([binary, "search", placement, "--micro-batches", str(n), "--time-limit", "0", "--output", plan],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return json.loads(plan.read_text()), time.perf_counter() - began


def whole_schedules(binary: Path, count: int, limit: float, folder: Path) -> None:
    ratios, worse = [], 0
    for seed in range(count):
        text, n = random_placement(seed)
        path = folder / f"random-{seed}.toml"
        path.write_text(text)
        plan, seconds = solve_ours(binary, path, n)
        rival, bound, rival_seconds = solve_cpsat(tomllib.loads(text), n, limit)
        ratios.append(rival_seconds / seconds)
        worse += rival != -1 and plan["makespan"] > rival
        proved = "proved" if rival == bound else f"bound {bound}"
        print(f"random {seed:3} n={n:2}  ostinato {plan['makespan']:5} (bound {plan['lower_bound']['makespan']:5}) "
              f"{seconds:7.3f} s  CP-SAT {rival:5} ({proved}) {rival_seconds:7.3f} s  ratio {ratios[-1]:7.1f}", flush=True)
    print(f"median ratio {statistics.median(ratios):.1f}; ostinato behind CP-SAT in {worse} of {count}")


def repetends(binary: Path, limit: float, folder: Path) -> None:
    for name in ("v", "x", "m", "nn", "k"):
        path = folder / f"{name}.toml"
        command = [binary, "placement", name, "--devices", "4", "--forward", "1", "--backward", "3",
                   "--shard-forward", "1", "--shard-backward", "1", "--output", path]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        placement = tomllib.loads(path.read_text())
        period = max(sum(b["time"] for b in placement["blocks"] if d in b["devices"])
                     for d in range(len(placement["devices"])))
        plan, seconds = solve_ours(binary, path, 16)
        outcome, rival_seconds = solve_z3(placement, period, limit)
        print(f"{name:3} period {period}: ostinato, whole plan of 16: makespan {plan['makespan']} "
              f"(bound {plan['lower_bound']['makespan']}) {seconds:.3f} s; Z3, repetend only: {outcome} {rival_seconds:.3f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ostinato", type=Path, required=True, help="the command-line program")
    parser.add_argument("--random", type=int, default=20, help="random placements against CP-SAT")
    parser.add_argument("--limit", type=float, default=20, help="seconds for each rival")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        whole_schedules(options.ostinato, options.random, options.limit, Path(folder))
        repetends(options.ostinato, options.limit, Path(folder))


if __name__ == "__main__":
    main()
