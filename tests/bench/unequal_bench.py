# SPDX-License-Identifier: Apache-2.0
"""Unequal micro-batches: a production trace, and DynaPipe's generator, beside the schedules that others use.

    python tests/bench/unequal_bench.py [TRACE.json]

TRACE: steps of 2 stages with times of every micro-batch in microseconds, made from
ByteDance-Seed/StragglerAnalysis (8efcd7f, data/timeline-SE.json.gz): {"steps": {step: [{"forward":
[stage][micro-batch], "backward": ...} by pipeline]}}. Without it only the generator runs. It is that of
awslabs/optimizing-multitask-training-through-dynamic-pipelines (705cf38,
scripts/simulation/schedule_under_dynamic_mb.py): 16 layers, a forward of 4 ms times the multiplier, a
backward of twice that, transfers of 16 ms times the multiplier, no limit of memory. CITED has what their own
code prints for it.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import numpy

import ostinato
from ostinato.data import BalancedBatches

# Stages, standard deviation: 1F1B and their cyclic schedule, ms.
CITED = {
    (4, 0.1): (1403, 1018),
    (4, 0.8): (1973, 1433),
    (8, 0.1): (1272, 921),
    (8, 0.8): (1927, 1372),
    (16, 0.8): (2184, 1688),
}
MICRO_BATCHES = 16
MS = 1_000_000


def chain(
    stages: int, room: int | None, forward: int = 1, transfer: int = 0, times: dict[str, int] | None = None
) -> ostinato.Placement:
    """One stage a device; the first holds `room` micro-batches, each later one fewer, but one at least. Times
    in ns; `times`: of each block, if a backward does not take twice the forward."""
    lines = [
        'format = "ostinato-placement/1"',
        'name = "chain"',
        'time_unit = "ns"',
        'memory_unit = "B"',
        "[link]",
        "bandwidth = 1",
    ]
    lines += ["[[devices]]\n" + (f"memory = {max(1, room - s)}" if room else "") for s in range(stages)]
    last = ""
    for name, s in [("F", s) for s in range(stages)] + [("B", s) for s in reversed(range(stages))]:
        kind, memory = ("forward", 1) if name == "F" else ("backward", -1)
        after = [f'{{ block = "{last}", bytes = {transfer} }}'] if last else []
        after += [f'"F{s}"'] if name == "B" and last != f"F{s}" else []
        lines += [
            f'[[blocks]]\nname = "{name}{s}"\nstage = "s{s}"\nkind = "{kind}"\ndevices = [{s}]\nmemory = {memory}'
        ]
        usual = forward if name == "F" else 2 * forward
        lines += [f"time = {times[f'{name}{s}'] if times else usual}"]
        lines += [f"after = [{', '.join(after)}]"]
        last = f"{name}{s}"
    return ostinato.Placement.from_text("\n".join(lines))


def batch(forward: list[int], backward: list[int]) -> dict:
    return {
        "times": {
            f"{name}{s}": time
            for name, times in (("F", forward), ("B", backward))
            for s, time in enumerate(times)
        }
    }


def searched(placement: ostinato.Placement, sizes: list, took: list[float]) -> ostinato.Plan:
    began = time.process_time()
    plan = ostinato.search_sizes(placement, sizes)
    took.append(time.process_time() - began)
    check = ostinato.verify(plan)
    assert check, check.failures
    return plan


def usual(placement: ostinato.Placement, sizes: list) -> int:
    """1F1B in the order given."""
    return ostinato.search_sizes(placement, sizes, effort=1).facts["named"]["1f1b"]["makespan"]


def pipelines(step: list[dict]) -> list[list[dict]]:
    columns = [(zip(*one["forward"], strict=True), zip(*one["backward"], strict=True)) for one in step]
    return [
        [batch([1000 * t for t in f], [1000 * t for t in b]) for f, b in zip(*pair, strict=True)]
        for pair in columns
    ]


def work(one: dict) -> int:
    return sum(one["times"].values())


def of_trace(steps: dict[str, list[dict]]) -> None:
    sorts = {
        "given": lambda mine: mine,
        "rising": lambda mine: sorted(mine, key=work),
        "falling": lambda mine: sorted(mine, key=work)[::-1],
    }
    rows: dict[str, list[float]] = {}

    def row(name: str, values: list[int]) -> None:
        rows.setdefault(name, []).append(max(values) / MS)

    gaps: dict[int, list[float]] = {3: [], 2: []}
    took: list[float] = []
    for step in steps.values():
        mine = pipelines(step)
        for name, order in sorts.items():
            row(f"1F1B, {name} order", [usual(chain(2, 2), order(one)) for one in mine])
        for room in (3, 2):
            plans = [searched(chain(2, room), one, took) for one in mine]
            row(f"ours, room for {room}", [plan.makespan for plan in plans])
            row(f"bound, room for {room}", [plan.lower_bound for plan in plans])
            gaps[room] += [plan.makespan / plan.lower_bound - 1 for plan in plans]
        balanced(mine, row, took)
    print(f"trace: {len(steps)} steps, mean of the slowest pipeline, ms")
    for name, values in rows.items():
        print(f"  {name:<32} {statistics.mean(values):9.1f}")
    for room, values in gaps.items():
        print(
            f"  gap with room for {room}: mean {100 * statistics.mean(values):.3f} %, largest {100 * max(values):.2f} %"
        )
    print(
        f"  CPU time of a search: mean {1000 * statistics.mean(took):.1f} ms, p95 {1000 * sorted(took)[len(took) * 95 // 100]:.1f} ms"
    )


def one_plan(steps: dict[str, list[dict]]) -> None:
    """For all steps: nothing is known of a step's micro-batches but their mean."""
    of_steps = [pipelines(step) for step in steps.values()]
    every = [one["times"] for mine in of_steps for pipeline in mine for one in pipeline]
    mean = {block: round(statistics.mean(times[block] for times in every)) for block in every[0]}
    print("trace: one plan for all steps, ms: makespan, mean and 95 % of pipelines, mean of the slowest")
    for room in (2, 3):
        for robust in (0, 0.2, 0.4, 0.8):
            placement = chain(2, room, times=mean)
            plan = ostinato.search(placement, micro_batches=len(of_steps[0][0]), robust=robust)
            assert ostinato.verify(plan)
            took = [[ostinato.simulate(plan, sizes=one, runs=1).at(100) for one in mine] for mine in of_steps]
            all_of_them = sorted(time / MS for mine in took for time in mine)
            print(
                f"  room {room}, robust {robust:<3}: {plan.makespan / MS:8.1f} {statistics.mean(all_of_them):8.1f} "
                f"{all_of_them[len(all_of_them) * 95 // 100]:8.1f} {statistics.mean(max(mine) for mine in took) / MS:8.1f}"
            )


def balanced(mine: list[list[dict]], row, took: list[float]) -> None:
    """The micro-batches of all pipelines dealt out, as many each."""
    every = [one for pipeline in mine for one in pipeline]
    times = {
        k: [(one["times"][f"F{s}"], one["times"][f"B{s}"]) for s in range(2)] for k, one in enumerate(every)
    }
    dealer = BalancedBatches(
        range(len(every)), micro_batches=len(mine[0]), replicas=len(mine), times=lambda ids: times[ids[0]]
    )
    deal = dealer.deal(range(len(every)))
    dealt = [[every[k] for batch in replica for k in batch] for replica in deal.batches]
    plans = [searched(chain(2, 3), one, took) for one in dealt]
    row("dealt over replicas, room for 3", [plan.makespan for plan in plans])
    row("bound of any dealing", [int(deal.bound)])
    row(
        "work of the busier stage alone",
        [max(sum(times[k][s][0] + times[k][s][1] for k in times) for s in range(2)) // len(mine)],
    )


def multipliers(deviation: float) -> numpy.ndarray:
    drawn = numpy.clip(numpy.random.default_rng(seed=48).normal(1, deviation, size=MICRO_BATCHES), 0.1, 10)
    return drawn / (drawn.sum() / MICRO_BATCHES)


def of_generator() -> None:
    print("DynaPipe's generator, ms: no limit of memory")
    print("  stages  std   cited 1F1B  cyclic | 1F1B here   ours   bound    gap | effort x100")
    for stages, deviation in [(4, 0.1), (4, 0.8), (8, 0.1), (8, 0.8), (16, 0.1), (16, 0.8)]:
        of = chain(stages, None, forward=4 * MS * 16 // stages, transfer=16 * MS)
        sizes = [round(MS * multiplier) for multiplier in multipliers(deviation)]
        plan, longer = (ostinato.search_sizes(of, sizes, size=MS, effort=effort) for effort in (100, 10_000))
        assert ostinato.verify(plan) and ostinato.verify(longer)
        here = plan.facts["named"]["1f1b"]["makespan"]
        cited = CITED.get((stages, deviation), ("-", "-"))
        gap = 100 * (plan.makespan / plan.lower_bound - 1)
        print(
            f"  {stages:6} {deviation:4} {cited[0]:>12} {cited[1]:>7} | {here / MS:9.1f} {plan.makespan / MS:6.1f} {plan.lower_bound / MS:7.1f} "
            f"{gap:5.2f}% | {longer.makespan / MS:6.1f}"
        )


if __name__ == "__main__":
    of_generator()
    if len(sys.argv) > 1:
        trace = json.loads(Path(sys.argv[1]).read_text())["steps"]
        one_plan(trace)
        of_trace(trace)
