# SPDX-License-Identifier: Apache-2.0
"""The search beside CP-SAT (OR-Tools) on random uneven placements: whole schedules, one thread each, CPU
time.

    python tests/bench/search_rivals.py --ostinato build/bindings/ostinato --cases 320 --results rivals.jsonl --limit 2
    python tests/bench/search_rivals.py --ostinato build/bindings/ostinato --cases 320 --results rivals.jsonl --limit 20

`--objective` compares spans, latencies or periods (of what repeats; n is then its micro-batches).

Prints one line a case and a summary. Asserts nothing. What CP-SAT gave goes to `--results` case by case and
is read from there later, so a run that was interrupted goes on where it stood, and one with a longer limit
only tries again what was not proved. Needs ortools (PyPI). Cases: random_placements.py; model:
cpsat_model.py.
"""

import argparse
import json
import resource
import statistics
import subprocess
import tempfile
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import cpsat_model
from random_placements import random_placement, with_lanes


@dataclass
class Case:
    """Makespans (or spans, ...) and bounds in ns; CPU seconds, ours with the start of the process and the writing of the
    plan."""

    name: str
    micro_batches: int
    ours: int
    our_bound: int
    our_seconds: float
    rival: int  # -1: none found within the limit
    rival_bound: int
    rival_seconds: float

    @property
    def proved(self) -> bool:
        return self.rival == self.rival_bound

    @property
    def behind(self) -> bool:
        return self.rival != -1 and self.ours > self.rival

    @property
    def ratio(self) -> float:
        return self.rival_seconds / self.our_seconds


class Results:
    """What CP-SAT gave of one objective, one JSON object a line; the last of a seed counts."""

    def __init__(self, path: Path, objective: str) -> None:
        self.path, self.objective = path, objective
        lines = path.read_text().splitlines() if path.exists() else []
        rows = [json.loads(line) for line in lines]
        self.rows = {row["seed"]: row for row in rows if row.get("objective", "makespan") == objective}

    def solve(self, seed: int, text: str, found: "Found", limit: float) -> dict:
        row = self.rows.get(seed)
        if row and row.get("ours", found.value) == found.value:
            if row["makespan"] == row["bound"] or row["limit"] >= limit:
                return row
        placement = tomllib.loads(text)
        if self.objective == "period":
            solved = cpsat_model.judge_period(placement, found.micro_batches, found.value, limit, threads=1)
        else:
            solved = cpsat_model.solve(placement, found.micro_batches, limit, 1, self.objective)
        row = {
            "seed": seed,
            "objective": self.objective,
            "limit": limit,
            "makespan": solved.makespan,
            "bound": solved.bound,
            "seconds": round(solved.cpu_seconds, 4),
        }
        if self.objective == "period":  # CP-SAT was asked about this one
            row["ours"] = found.value
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self.rows[seed] = row
        return row


def search(
    binary: Path, text: str, micro_batches: int, folder: Path, *options: str
) -> tuple[dict, float, dict]:
    """The plan ({} where the options want none), the CPU seconds of the process, and what it printed."""
    placement, plan = folder / "placement.toml", folder / "plan.json"
    placement.write_text(text)
    plan.unlink(missing_ok=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = subprocess.run(
        [
            binary,
            *f"search {placement} --micro-batches {micro_batches} --threads 1 --time-limit 0".split(),
            *f"--output {plan} --json".split(),
            *options,
        ],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(plan.read_text()) if plan.exists() else {}, seconds, json.loads(said)


@dataclass
class Found:
    micro_batches: int  # of the period those that repeat together
    value: int
    bound: int
    seconds: float


def find(binary: Path, text: str, micro_batches: int, folder: Path, objective: str) -> Found:
    if objective == "period":
        _, seconds, said = search(binary, text, micro_batches, folder, "--steady-state")
        bound = said["period"] if said["period_proved"] else said["lower_bound"]
        return Found(said["unroll"], said["period"], bound, seconds)
    _, seconds, said = search(binary, text, micro_batches, folder, "--objective", objective)
    value = said["makespan" if objective == "makespan" else "objective_value"]
    return Found(micro_batches, value, said["lower_bound"][objective], seconds)


def show(case: Case) -> str:
    rival = "proved" if case.proved else f"bound {case.rival_bound}"
    ours = "proved" if case.ours == case.our_bound else f"bound {case.our_bound}"
    mark = "  BEHIND" if case.behind else ""
    return (
        f"{case.name:14} n={case.micro_batches:2}  ostinato {case.ours:5} ({ours}) {case.our_seconds:7.3f} s  "
        f"CP-SAT {case.rival:5} ({rival}) {case.rival_seconds:7.3f} s  ratio {case.ratio:7.1f}{mark}"
    )


def summary(cases: list[Case]) -> str:
    proved = [c for c in cases if c.proved]
    rest = [c for c in cases if not c.proved]
    lines = [
        f"{len(cases)} cases; CP-SAT proves {len(proved)}, ostinato {sum(c.ours == c.our_bound for c in cases)}, "
        f"ostinato alone {sum(c.ours == c.our_bound for c in rest)}",
        f"of what CP-SAT proves, ostinato finds {sum(c.ours == c.rival for c in proved)} "
        f"and proves {sum(c.ours == c.our_bound for c in proved)}",
        f"of the others: ahead {sum(c.rival == -1 or c.ours < c.rival for c in rest)}, equal "
        f"{sum(c.ours == c.rival for c in rest)}, behind {sum(c.behind for c in rest)}",
    ]
    behind = sorted((c.ours / c.rival - 1, c.name) for c in cases if c.behind)
    lines += [f"behind: {name} by {100 * gap:.2f} %" for gap, name in reversed(behind)]
    for title, some in (("proved by CP-SAT", proved), ("all, its limit where it proves nothing", cases)):
        ratios = [c.ratio for c in some]
        if len(ratios) < 2:
            continue
        tenth, median = statistics.quantiles(ratios, n=10)[0], statistics.median(ratios)
        lines.append(
            f"CPU time of CP-SAT over ostinato, {title}: median {median:.1f}, lowest tenth {tenth:.1f}, least "
            f"{min(ratios):.2f}; slower in {sum(r < 1 for r in ratios)}"
        )
    forms = Counter(c.name.rsplit("-", 1)[0] for c in cases)
    for form, count in sorted(forms.items()):
        some = [c for c in cases if c.name.startswith(form + "-")]
        lines.append(
            f"{form:10} {count:3} cases; proved by CP-SAT {sum(c.proved for c in some):3}, by ostinato "
            f"{sum(c.ours == c.our_bound for c in some):3}; behind {sum(c.behind for c in some)}; "
            f"median ratio {statistics.median(c.ratio for c in some):.1f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ostinato", type=Path, required=True, help="the command-line program")
    parser.add_argument("--first", type=int, default=0, help="seed of the first case")
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--lanes", action="store_true", help="cases with exchanges on lanes")
    parser.add_argument("--objective", choices=("makespan", "span", "latency", "period"), default="makespan")
    parser.add_argument("--limit", type=float, default=5, help="of CP-SAT, in its deterministic seconds")
    parser.add_argument("--results", type=Path, required=True, help="what CP-SAT gave; is made and added to")
    options = parser.parse_args()
    results, cases = Results(options.results, options.objective), []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.first, options.first + options.cases):
            text, n = (with_lanes if options.lanes else random_placement)(seed)
            found = find(options.ostinato, text, n, Path(folder), options.objective)
            rival = results.solve(seed, text, found, options.limit)
            cases.append(
                Case(
                    tomllib.loads(text)["name"],
                    found.micro_batches,
                    found.value,
                    found.bound,
                    found.seconds,
                    rival["makespan"],
                    rival["bound"],
                    rival["seconds"],
                )
            )
            print(show(cases[-1]), flush=True)
    print(summary(cases))


if __name__ == "__main__":
    main()
