# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.pipelining's own schedules beside the search, at the memory that each of them holds.

    python tests/bench/torch_rivals.py --ostinato build/release/bindings/ostinato --devices 4 8 --times 1,1,1 10,12,8

For every schedule class, number of devices p and of micro-batches m = 2p, 3p, 4p: its order of passes is read
from the class, run with the given times of forward, input half and weight half, written as a plan that
`ostinato verify` judges, and then searched for on devices that have exactly the memory that it held, each its
own. Prints makespan and peak memory of both (chunks of activations) and the time of the search. Exit status 1
if a search is longer than its rival. Needs torch (no devices, no processes).
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from types import SimpleNamespace

Step = tuple[str, int]  # block of the placement and micro-batch
SHAPES = {
    "GPipe": "v",
    "1F1B": "v",
    "LoopedBFS": "looped",
    "Interleaved1F1B": "looped",
    "InterleavedZeroBubble": "looped",
    "ZBVZeroBubble": "wave",
    "DualPipeV": "wave",
}


def actions_of(name: str, devices: int, micro_batches: int) -> list[list]:
    """The passes of every rank, as the class of that name orders them."""
    from torch.distributed.pipelining import schedules

    kind = schedules.get_schedule_class(name)
    shape = SHAPES[name]
    chunks = 1 if shape == "v" else 2
    own = [0] if chunks == 1 else [0, 2 * devices - 1] if shape == "wave" else [0, devices]
    stages = [
        SimpleNamespace(
            submod=None,
            num_stages=devices * chunks,
            group_size=devices,
            group_rank=0,
            stage_index=s,
            is_first=s == 0,
            is_last=s == devices * chunks - 1,
            has_backward=True,
        )
        for s in own
    ]
    if chunks == 1:
        schedule = kind(stages[0], micro_batches, loss_fn=lambda *_: None)
        order = schedule._get_pipeline_order()
    else:
        order = kind(stages, micro_batches, loss_fn=lambda *_: None).pipeline_order
    return [[a for a in order[r] if a is not None] for r in range(devices)]


def orders_of(actions: list[list]) -> list[list[Step]]:
    """The same as steps of our placement: a whole backward is both of its halves, a pair is one after the
    other."""

    def steps(action) -> list[Step]:
        if action.sub_actions:
            return [s for a in action.sub_actions for s in steps(a)]
        # "": no pass.
        kinds = {"F": "F", "I": "I", "W": "W", "B": "IW"}.get(action.computation_type.value, "")
        return [(f"s{action.stage_index}.{k}", action.microbatch_index) for k in kinds]

    return [[s for a in rank for s in steps(a)] for rank in actions]


def simulate(placement: dict, orders: list[list[Step]]) -> dict[Step, int] | None:
    """The earliest start of every step; None where the orders cannot run."""
    blocks = {b["name"]: b for b in placement["blocks"]}
    start: dict[Step, int] = {}
    free, at = [0] * len(orders), [0] * len(orders)
    end = lambda step: start[step] + blocks[step[0]]["time"]
    moved = True
    while moved:
        moved = False
        for r, order in enumerate(orders):
            while at[r] < len(order):
                name, i = order[at[r]]
                inputs = [(a if isinstance(a, str) else a["block"], i) for a in blocks[name].get("after", [])]
                if any(step not in start for step in inputs):
                    break
                start[name, i] = max([free[r], *map(end, inputs)])
                free[r] = end((name, i))
                at[r] += 1
                moved = True
    return start if all(a == len(o) for a, o in zip(at, orders, strict=True)) else None


def peaks(orders: list[list[Step]]) -> list[int]:
    """Chunks that each device holds at most."""
    result = []
    for order in orders:
        held = peak = 0
        for name, _ in order:
            held += {"F": 1, "I": 0, "W": -1}[name[-1]]
            peak = max(peak, held)
        result.append(peak)
    return result


class Ostinato:
    def __init__(self, binary: Path, folder: Path):
        self.binary, self.placement, self.plan = binary, folder / "p.toml", folder / "p.json"

    def place(self, shape: str, devices: int, times: list[int], memory: list[int] | None) -> dict:
        f, i, w = map(str, times)
        capacity = ",".join(map(str, memory)) if memory else "unlimited"
        subprocess.run(
            [
                self.binary,
                "placement",
                shape,
                "--devices",
                str(devices),
                "--forward",
                f,
                "--backward",
                i,
                "--weight",
                w,
                "--memory",
                "1",
                "--capacity",
                capacity,
                "--time-unit",
                "ns",
                "--memory-unit",
                "B",
                "--output",
                self.placement,
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return tomllib.loads(self.placement.read_text())

    def verify(self, placement: dict, start: dict[Step, int], memory: list[int], micro_batches: int) -> int:
        """Makespan of the rival's plan, once the checker has accepted it."""
        blocks = {b["name"]: b for b in placement["blocks"]}
        ends = {s: t + blocks[s[0]]["time"] for s, t in start.items()}
        on: dict[int, list[Step]] = {}
        for step in start:
            on.setdefault(blocks[step[0]]["devices"][0], []).append(step)
        listed = sorted(start, key=lambda s: (start[s], blocks[s[0]]["devices"][0], s[0], s[1]))
        plan = {
            "format": "ostinato-plan/1",
            "placement": {
                "name": placement["name"],
                "sha256": hashlib.sha256(self.placement.read_bytes()).hexdigest(),
            },
            "micro_batches": micro_batches,
            "objective": "makespan",
            "makespan": max(ends.values()),
            "span": max(max(ends[s] for s in steps) - min(start[s] for s in steps) for steps in on.values()),
            "steady_state": {"period": 0, "unroll": 1, "first": 0, "count": 0},
            "lower_bound": {"makespan": 0, "period": 0},
            "optimal": {"makespan": False, "period": False},
            "peak_memory": memory,
            "search": {"method": "torch", "seed": 0, "cut_by_limit": False},
            "schedule": [{"block": s[0], "micro_batch": s[1], "start": start[s]} for s in listed],
        }
        self.plan.write_text(json.dumps(plan))
        done = subprocess.run(
            [self.binary, "verify", self.plan, self.placement], capture_output=True, text=True
        )
        if done.returncode != 0:
            raise RuntimeError(f"the checker refuses the rival's plan: {done.stdout}{done.stderr}")
        return plan["makespan"]

    def search(self, micro_batches: int, limit: float) -> dict:
        done = subprocess.run(
            [
                self.binary,
                "search",
                self.placement,
                "--micro-batches",
                str(micro_batches),
                "--time-limit",
                str(limit),
                "--output",
                self.plan,
                "--json",
            ],
            capture_output=True,
            text=True,
        )
        return json.loads(done.stdout)


def compare(
    ours: Ostinato, name: str, devices: int, micro_batches: int, times: list[int], limit: float
) -> bool:
    """Prints one line. False where the search is longer."""
    title = f"{name:21} p={devices:2} m={micro_batches:2} F,I,W={','.join(map(str, times)):8}"
    try:
        orders = orders_of(actions_of(name, devices, micro_batches))
    except ValueError as refusal:
        print(f"{title}  not for this size: {refusal}")
        return True
    memory = peaks(orders)
    placement = ours.place(SHAPES[name], devices, times, memory)
    start = simulate(placement, orders)
    if start is None or len(start) != micro_batches * len(placement["blocks"]):
        print(f"{title}  its order cannot run")
        return True
    theirs = ours.verify(placement, start, memory, micro_batches)
    plan = ours.search(micro_batches, limit)
    mark = "optimal" if plan["optimal"]["makespan"] else f"bound {plan['lower_bound']['makespan']}"
    print(
        f"{title}  torch {theirs:5} holding {max(memory):3}   ostinato {plan['makespan']:5} ({mark}) holding "
        f"{max(plan['peak_memory']):3}  {100 * (plan['makespan'] / theirs - 1):+6.1f} %  {plan['seconds']:6.2f} s  {plan['method']}",
        flush=True,
    )
    return plan["makespan"] <= theirs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ostinato", type=Path, required=True, help="the command-line program")
    parser.add_argument("--devices", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument(
        "--times", nargs="+", default=["1,1,1", "10,12,8"], help="forward, input half and weight half"
    )
    parser.add_argument("--schedules", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--limit", type=float, default=20, help="seconds for each search")
    options = parser.parse_args()
    behind = 0
    with tempfile.TemporaryDirectory() as folder:
        ours = Ostinato(options.ostinato, Path(folder))
        for times in options.times:
            for name in options.schedules:
                for devices in options.devices:
                    for factor in (2, 3, 4):
                        behind += not compare(
                            ours,
                            name,
                            devices,
                            factor * devices,
                            list(map(int, times.split(","))),
                            options.limit,
                        )
    print(f"behind a rival in {behind} cases")
    sys.exit(1 if behind else 0)


if __name__ == "__main__":
    main()
