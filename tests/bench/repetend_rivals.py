# SPDX-License-Identifier: Apache-2.0
"""The search beside Z3 (with Tessel's formulation, written by us as the baseline) on Tessel's five shapes.

    python tests/bench/repetend_rivals.py --ostinato build/bindings/ostinato --devices 4 --limit 60

A repetend holds every block once, of some micro-batch: an index and a start within the period per block,
blocks on one device apart, inputs earlier or of an earlier micro-batch (arXiv 2311.15269, section 4). Tessel
draws the indices one assignment after another, from few micro-batches in flight to many, and asks Z3 for the
starts of each; "all at once" leaves the indices to Z3 as well. Prints the period and CPU milliseconds of both
until the work of the busiest device is met, and those of the whole search (start of the process, plan of 16
micro-batches and its file). Asserts nothing. Needs z3-solver (PyPI).
"""

import argparse
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import z3
from search_rivals import search

SHAPES = ("v", "x", "m", "nn", "k")


def least_period(placement: dict) -> int:
    return max(
        sum(b["time"] for b in placement["blocks"] if d in b["devices"])
        for d in range(len(placement["devices"]))
    )


def inputs(block: dict) -> list[str]:
    return [a if isinstance(a, str) else a["block"] for a in block.get("after", [])]


def model(placement: dict, period: int) -> tuple[z3.Solver, dict[str, z3.ArithRef]]:
    """Satisfiable if and only if a repetend of one micro-batch with this period exists; and the index of each
    block."""
    blocks = {b["name"]: b for b in placement["blocks"]}
    solver = z3.Solver()
    start = {b: z3.Int(f"start.{b}") for b in blocks}
    index = {b: z3.Int(f"index.{b}") for b in blocks}
    for name, block in blocks.items():
        solver.add(start[name] >= 0, start[name] < period, index[name] >= 0, index[name] < len(blocks))
        for a in inputs(block):
            solver.add(index[a] * period + start[a] + blocks[a]["time"] <= index[name] * period + start[name])
    for a, b in combinations(blocks, 2):
        if set(blocks[a]["devices"]) & set(blocks[b]["devices"]):
            apart, first, second = start[b] - start[a], blocks[a]["time"], blocks[b]["time"]
            solver.add(
                z3.Or(
                    z3.And(apart >= first, apart + second <= period),
                    z3.And(-apart >= second, -apart + first <= period),
                )
            )
    return solver, index


def assignments(placement: dict, most: int) -> Iterator[dict[str, int]]:
    """Every way to give the blocks, inputs first, indices 0 .. most, `most` among them, none below its
    inputs' ones."""
    blocks = placement["blocks"]

    def extend(given: dict[str, int]) -> Iterator[dict[str, int]]:
        if len(given) == len(blocks):
            if max(given.values()) == most:
                yield dict(given)
            return
        block = next(b for b in blocks if b["name"] not in given and all(a in given for a in inputs(b)))
        for index in range(max((given[a] for a in inputs(block)), default=0), most + 1):
            yield from extend(given | {block["name"]: index})

    return extend({})


def one_by_one(placement: dict, limit: float) -> tuple[str, float]:
    """The least period, or the least that was found within the limit; CPU seconds."""
    began, target = time.process_time(), least_period(placement)
    best = sum(b["time"] for b in placement["blocks"])
    solver, index = model(placement, best)
    for most in range(len(placement["blocks"])):
        for indices in assignments(placement, most):
            while solver.check([index[b] == i for b, i in indices.items()]) == z3.sat:
                if best == target:
                    return str(best), time.process_time() - began
                best -= 1
                solver, index = model(placement, best)
            if time.process_time() - began > limit:
                return f"<= {best + 1}", time.process_time() - began
    return str(best + 1), time.process_time() - began


def all_at_once(placement: dict, limit: float) -> tuple[str, float]:
    """The least period, or from where on it is unknown; CPU seconds."""
    began, period = time.process_time(), least_period(placement)
    while time.process_time() - began < limit:
        solver, _ = model(placement, period)
        solver.set("timeout", int(1000 * (limit - time.process_time() + began)))
        outcome = solver.check()
        if outcome == z3.sat:
            return str(period), time.process_time() - began
        if outcome == z3.unknown:
            break
        period += 1
    return f">= {period}", time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ostinato", type=Path, required=True, help="the command-line program")
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--limit", type=float, default=60, help="seconds for Z3 on each shape")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in SHAPES:
            path = Path(folder) / f"{name}.toml"
            times = "--forward 1 --backward 3 --shard-forward 1 --shard-backward 1"
            draw = f"placement {name} --devices {options.devices} {times} --output {path}".split()
            subprocess.run([options.ostinato, *draw], check=True, stdout=subprocess.DEVNULL)
            text = path.read_text()
            plan, seconds, _ = search(options.ostinato, text, 16, Path(folder))
            placement = tomllib.loads(text)
            period, first = one_by_one(placement, options.limit)
            joint, second = all_at_once(placement, options.limit)
            print(
                f"{name:3} ostinato, whole plan: makespan {plan['makespan']} ns, {1000 * seconds:.1f} ms; Z3, repetend only: "
                f"one by one period {period}, {1000 * first:.0f} ms; all at once {joint}, {1000 * second:.0f} ms",
                flush=True,
            )


if __name__ == "__main__":
    main()
