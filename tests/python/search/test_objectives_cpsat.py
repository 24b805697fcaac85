# SPDX-License-Identifier: Apache-2.0
"""Every objective beside CP-SAT on small placements, of one direction and of two, with little memory: where
CP-SAT proves the optimum, no plan is behind it, and no bound is above it.
"""

import random
import sys
import tomllib
from pathlib import Path

import pytest

import ostinato

pytest.importorskip("ortools", reason="ortools is not installed: pip install ostinato[test]")

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import cpsat_model

CASES = 20  # of each objective


def placement(draw: random.Random, directions: int) -> tuple[str, int]:
    """A chain through all devices and back for each direction; memory for little more than one micro-batch."""
    devices = draw.randint(2, 4)
    ways = [list(range(devices)), list(reversed(range(devices)))][:directions]
    chains = [[(f"{kind}{w}_{s}", kind, f"s{w}_{s}", d) for kind, order in (("F", 1), ("B", -1)) for s, d in list(enumerate(way))[::order]]
              for w, way in enumerate(ways)]  # fmt: skip
    memory = {stage: draw.randint(1, 3) for chain in chains for _, _, stage, _ in chain}
    lines = ['format = "ostinato-placement/1"', 'name = "small"', 'time_unit = "ns"', 'memory_unit = "B"']
    lines += ["[link]", f"latency = {draw.randint(0, 2)}"]
    for d in range(devices):
        whole = sum(
            memory[stage] for chain in chains for _, kind, stage, at in chain if kind == "F" and at == d
        )
        lines += ["[[devices]]", f"memory = {whole + 1 + draw.randint(0, 2)}"]
    for chain in chains:
        for k, (name, kind, stage, device) in enumerate(chain):
            lines += [
                "[[blocks]]",
                f'name = "{name}"',
                f'stage = "{stage}"',
                f"devices = [{device}]",
                f"time = {draw.randint(1, 9)}",
            ]
            lines += [
                f'kind = "{"forward" if kind == "F" else "backward"}"',
                f"memory = {memory[stage] * (1 if kind == 'F' else -1)}",
            ]
            lines += [
                f"workspace = {draw.randint(0, 1)}",
                "after = [" + (f'{{ block = "{chain[k - 1][0]}" }}]' if k else "]"),
            ]
    blocks = sum(map(len, chains))
    return "\n".join(lines), draw.randint(1, max(1, min(4, 40 // blocks)))


# Spans, of which CP-SAT takes longest to prove any: strange_test.cpp compares them with exhaustion every day.
@pytest.mark.parametrize("objective", ["makespan", pytest.param("span", marks=pytest.mark.slow), "latency"])
def test_no_plan_is_behind_what_cpsat_proves(objective):
    draw = random.Random(7)
    proved = 0
    for case in range(CASES):
        text, micro_batches = placement(draw, 1 + case % 2)
        plan = ostinato.search(
            ostinato.Placement.from_text(text), micro_batches=micro_batches, objective=objective, time_limit=0
        )
        assert ostinato.verify(plan), (case, ostinato.verify(plan).failures)
        known = cpsat_model.solve(tomllib.loads(text), micro_batches, limit=2, threads=1, objective=objective)
        if not known.proved:
            continue
        proved += 1
        assert value_of(plan, objective) == known.makespan, (case, text, micro_batches)
        assert plan.to_dict()["lower_bound"][objective] <= known.makespan, case
    assert proved >= CASES - 2


def value_of(plan: ostinato.Plan, objective: str) -> int:
    if objective != "latency":
        return plan.to_dict()[objective]
    batches = [[step for step in plan.schedule if step.micro_batch == i] for i in range(plan.micro_batches)]
    return max(max(s.end for s in steps) - min(s.start for s in steps) for steps in batches)
