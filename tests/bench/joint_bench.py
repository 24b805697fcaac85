# SPDX-License-Identifier: Apache-2.0
"""`plan` on layer times that others published, beside what they reached and beside the bound over all
placements.

    PYTHONPATH=build/release/python python tests/bench/joint_bench.py

OctoPipe. Times, in units of 0.1 ms as their simulator rounds them, and makespans of OctoPipe:
guojihu-hana/PipelineSimulator c791c38, `stage_time` of data/profiled_data.py; their searcher was run by hand.
Four devices, 16 micro-batches, free transfers, no limit of memory, and halves of a backward that take as
long. `ours` is `plan` with its default options, in one thread; every plan and its bound is proved again by
`verify`.

hyper-parallel. A mixed-integer program that divides layers over stages and recomputes some of them, in 1F1B's
order: its inputs and optima are those of unit_tests/pipeline_alg_test.py of
hyper_parallel/auto_parallel/fast-tuner, mindspore-ai/hyper-parallel fdd0a80. 62 layers, the first three of
them dense; a forward of the others is one unit of time. The numbers of micro-batches and chunks stand in no
file of the repository: those below give the optima to all published digits when its program is written down
anew. It counts nothing for the memory in which a forward runs again; ours counts that, and the input of a
stage where it counts those of all layers.

Exit status 1 where a plan is longer than theirs.
"""

import sys
import time
from dataclasses import dataclass
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


MIB, FORWARD = 1 << 20, 1_000_000  # ns of the unit


@dataclass(frozen=True)
class Divided:
    """MiB and multiples of a forward; pairs: a dense layer, another one."""

    devices: int
    micro_batches: int
    memory: int  # of a device, above what each holds
    first: int  # more on the first device, and on the last
    last: int
    backward: float
    dense: float
    head: float
    recompute: float
    kept: tuple[int, int]
    inputs: tuple[int, int]
    parameters: tuple[int, int]
    optimum: float  # in 1F1B's order, with one chunk a device; the last with two


DIVIDED = {
    "16 devices, 64": Divided(16, 64, 52914, 1001, 6293, 1.839, 0.397, 1.5, 1.0, (479, 765), (30, 30), (866, 10691), 1132.66),
    "16 devices, 960": Divided(16, 960, 54134, 2579, 4729, 1.627, 0.71, 1.493, 0.246, (614, 738), (78, 190), (130, 7230), 10943.91),
    "4 devices, 120": Divided(4, 120, 52919, 4327, 5609, 1.627, 0.71, 1.5, 0.71, (493, 673), (30, 142), (869, 2111), 5868.49),
}  # fmt: skip


def divided_layers(model: Divided) -> list[_profiler.LayerCost]:
    rows: list[_profiler.LayerCost] = []

    def add(name: str, forward: float, again: float, memory: tuple[int, int, int]) -> None:
        row = _profiler.LayerCost()
        row.index, row.name, row.same_as = len(rows), f"{len(rows)}:{name}", -1
        row.forward = _profiler.spread_of([round(forward * FORWARD)])
        row.backward = _profiler.spread_of([round(forward * model.backward * FORWARD)])
        row.recompute = round(again * FORWARD)
        row.kept, row.input_bytes, row.parameters = (MIB * size for size in memory)
        rows.append(row)

    dense, other = zip(model.kept, model.inputs, model.parameters, strict=True)
    add("Embedding", 0, 0, (0, 0, model.first))
    for _ in range(3):
        add("Dense", model.dense, model.dense, dense)
    for _ in range(59):
        add("Experts", 1, model.recompute, other)
    add("Head", model.head, model.head, (0, 0, model.last))
    return rows


def profile_of(name: str, rows: list[_profiler.LayerCost]) -> ostinato.Profile:
    profile = _profiler.Profile()
    profile.model, profile.model_sha256, profile.timer, profile.micro_batch_size = name, "0" * 64, "cpu", 1
    profile.set_device(name="published", kind="gpu", driver="", torch="", cuda="", clocks="")
    profile.completeness.complete = True
    profile.layers = rows
    with TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        profile.write(str(path))
        return ostinato.Profile.from_file(path)


def layers_of(times: Times) -> list[_profiler.LayerCost]:
    rows = []
    for index, (forward, backward) in enumerate(times):
        row = _profiler.LayerCost()
        row.index, row.name, row.same_as = index, f"{index}:Layer", -1
        row.forward = _profiler.spread_of([forward * UNIT])
        row.backward = _profiler.spread_of([backward * UNIT])
        half = backward * UNIT // 2
        row.backward_input = _profiler.spread_of([half])
        row.backward_weight = _profiler.spread_of([backward * UNIT - half])
        rows.append(row)
    return rows


def compare(name: str, rows: list[_profiler.LayerCost], theirs: float, unit: int, **options) -> bool:
    """Prints a row; whether ours is no longer than `theirs`. Times are in units of so many nanoseconds."""
    profile, began = profile_of(name, rows), time.process_time()
    plan = ostinato.plan(profile, threads=1, **options)
    seconds = time.process_time() - began
    check = ostinato.verify(plan, profile=profile)
    assert check, check.failures
    bound = plan.report["any_placement"]["lower_bound"]
    usual = plan.report["baselines"]["1f1b"]
    chosen = next(c["name"] for c in plan.report["candidates"] if c.get("makespan") == plan.makespan)
    print(f"{name:16} {usual['makespan'] / unit:8.0f}{' ' if usual['fits'] else '*'} {theirs:9.0f} {plan.makespan / unit:8.0f} "
          f"{theirs * unit / plan.makespan:6.3f} {bound / unit:8.0f} {100 * (plan.makespan - bound) / bound:5.2f} % {seconds:6.2f}  "
          f"{chosen}")  # fmt: skip
    return plan.makespan <= theirs * unit


def main() -> int:
    print(
        f"{'model':16} {'1F1B':>8}  {'theirs':>9} {'ours':>8} {'ratio':>6} {'bound':>8} {'gap':>7} {'CPU s':>6}  placement"
    )
    reached = [
        compare(name, layers_of(times), theirs, UNIT, devices=DEVICES, micro_batches=MICRO_BATCHES)
        for name, (times, theirs) in MODELS.items()
    ]
    for name, model in DIVIDED.items():
        memory = f"{model.memory}MiB"
        on = {"devices": model.devices, "micro_batches": model.micro_batches, "device_memory": memory}
        reached.append(compare(name, divided_layers(model), model.optimum, FORWARD, **on))
    print("* does not fit the memory")
    return 0 if all(reached) else 1


if __name__ == "__main__":
    sys.exit(main())
