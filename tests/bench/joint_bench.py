# SPDX-License-Identifier: Apache-2.0
"""`plan` on layer times that others published, beside what they reached and beside the bound over all placements.

    PYTHONPATH=build/release/python python tests/bench/joint_bench.py

Times, in units of 0.1 ms as their simulator rounds them, and makespans of OctoPipe: guojihu-hana/PipelineSimulator c791c38,
`stage_time` of data/profiled_data.py; their searcher was run by hand. Four devices, 16 micro-batches, free transfers, no limit of
memory, and halves of a backward that take as long. `ours` is `plan` with its default options, in one thread; every plan and its bound
is proved again by `verify`. Exit status 1 where a plan is longer than OctoPipe's.
"""

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import ostinato
from ostinato import _profiler

UNIT = 100_000  # ns
DEVICES, MICRO_BATCHES = 4, 16
Times = list[tuple[int, int]]  # of each layer: forward, backward
MODELS: dict[str, tuple[Times, int]] = {  # and the makespan of OctoPipe
    "gpt-13B": ([(70, 137)] + 38 * [(60, 112)] + [(133, 178)], 30255),
    "gpt-oss-20B": ([(288, 447)] + 11 * [(211, 334), (276, 391)] + [(308, 398)], 62828),
}


def profile_of(name: str, times: Times) -> ostinato.Profile:
    profile = _profiler.Profile()
    profile.model, profile.model_sha256, profile.timer, profile.micro_batch_size = name, "0" * 64, "cpu", 1
    profile.set_device(name="published", kind="gpu", driver="", torch="", cuda="", clocks="")
    profile.completeness.complete = True
    rows = []
    for index, (forward, backward) in enumerate(times):
        row = _profiler.LayerCost()
        row.index, row.name, row.same_as = index, f"{index}:Layer", -1
        row.forward, row.backward = _profiler.spread_of([forward * UNIT]), _profiler.spread_of([backward * UNIT])
        half = backward * UNIT // 2
        row.backward_input, row.backward_weight = _profiler.spread_of([half]), _profiler.spread_of([backward * UNIT - half])
        rows.append(row)
    profile.layers = rows
    with TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        profile.write(str(path))
        return ostinato.Profile.from_file(path)


def main() -> int:
    print(f"{'model':12} {'1F1B':>8} {'OctoPipe':>9} {'ours':>8} {'ratio':>6} {'bound':>8} {'gap':>7} {'CPU s':>6}  placement")
    behind = 0
    for name, (times, theirs) in MODELS.items():
        profile, began = profile_of(name, times), time.process_time()
        plan = ostinato.plan(profile, devices=DEVICES, micro_batches=MICRO_BATCHES, threads=1)
        seconds = time.process_time() - began
        check = ostinato.verify(plan, profile=profile)
        assert check, check.failures
        bound = plan.report["any_placement"]["lower_bound"]
        usual = plan.report["baselines"]["1f1b"]["makespan"]
        chosen = next(c["name"] for c in plan.report["candidates"] if c.get("makespan") == plan.makespan)
        print(f"{name:12} {usual / UNIT:8.0f} {theirs:9} {plan.makespan / UNIT:8.0f} {theirs * UNIT / plan.makespan:6.3f} "
              f"{bound / UNIT:8.0f} {100 * (plan.makespan - bound) / bound:5.2f} % {seconds:6.2f}  {chosen}")  # fmt: skip
        behind += plan.makespan > theirs * UNIT
    return min(behind, 1)


if __name__ == "__main__":
    sys.exit(main())
