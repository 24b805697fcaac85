# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks against DeepSpeed do with their models: commands, trainings in turns, tables."""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from emulated_models import MODELS, configuration

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "python"))  # support.worlds, for all who import this

COUNTED = 2  # steps whose bytes are counted
INFEASIBLE = 4  # nothing fits the memory, and that is proved


@dataclass(frozen=True)
class Entry:
    """One way to train. `parts`: DeepSpeed's stages, and where it initialises weights; `plan` runs instead
    where there is one. `dual_pipe_v`: DeepSpeed's DualPipeVModule, with twice as many parts. `recompute`:
    DeepSpeed checkpoints each stage."""

    name: str
    parts: tuple[int, ...]
    plan: str = ""
    dual_pipe_v: bool = False
    recompute: bool = False


def ostinato(*arguments) -> str | None:
    """Runs a command as a user would type it; what it printed, or None where nothing fits the memory."""
    words = [sys.executable, "-m", "ostinato", *map(str, arguments)]
    variables = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
        "DEEPSPEED_LOG_LEVEL": "error",
    }
    done = subprocess.run(words, env=variables, capture_output=True, text=True)
    if done.returncode == INFEASIBLE:
        return None
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)} ended with status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def profile(model: str, unit: float, path: Path, *options) -> dict:
    """Measures the model, `unit` seconds for a cost of 1, and transfers. `options`: more of them; layers that
    sleep need few repeats."""
    options = options or ("--repeats", 3, "--warm-up", 1)
    ostinato(
        "profile",
        HERE / "emulated_models.py",
        *options,
        "--output",
        path,
        "--",
        "--model",
        model,
        "--unit",
        unit * 1e3,
    )
    return json.loads(path.read_text())


# ---- DeepSpeed's order, simulated without transfers


def one_f_one_b(forward: Sequence[int], backward: Sequence[int], micro_batches: int) -> int:
    """Makespan of 1F1B on a chain of stages, one a rank."""
    ranks, ends = len(forward), {}
    free, at, orders = [0] * ranks, [0] * ranks, []
    for r in range(ranks):
        ahead = min(ranks - r, micro_batches)
        order = [("F", m) for m in range(ahead)]
        for m in range(micro_batches):
            order += [("B", m)] + [("F", m + ahead)] * (m + ahead < micro_batches)
        orders.append(order)
    while any(at[r] < len(orders[r]) for r in range(ranks)):
        for r in range(ranks):
            while at[r] < len(orders[r]):
                kind, m = orders[r][at[r]]
                source = (kind, r - 1 if kind == "F" else r + 1, m)
                if 0 <= source[1] < ranks and source not in ends:
                    break
                free[r] = max(free[r], ends.get(source, 0)) + (forward if kind == "F" else backward)[r]
                ends[kind, r, m] = free[r]
                at[r] += 1
    return max(free)


def best_chain(profiled: dict, ranks: int, micro_batches: int) -> tuple[tuple[int, ...], float]:
    """Of all partitions into one chunk a rank that on which 1F1B is quickest: its cuts, and the seconds of a
    step, with what blocks cost beside their layers, and the optimizer of rank 0, which ends last.
    """
    rank = profiled.get("rank", {})
    average = rank.get("average", 10**6) / 10**6
    times = [
        [average * layer[kind]["median"] for layer in profiled["layers"]] for kind in ("forward", "backward")
    ]
    steps = [layer.get("step_time", 0) for layer in profiled["layers"]]
    for end in (0, -1):
        times[0][end] += rank.get("read", 0)
    of_block = [rank.get(kind, 0) for kind in ("forward", "backward")]
    best = None
    for middle in itertools.combinations(range(1, len(times[0])), ranks - 1):
        cuts = (0, *middle, len(times[0]))
        stages = [
            [sum(of_kind[a:b]) + block for a, b in itertools.pairwise(cuts)]
            for of_kind, block in zip(times, of_block, strict=True)
        ]
        if best is None or micro_batches * max(map(sum, zip(*stages, strict=True))) < best[1]:
            makespan = one_f_one_b(*stages, micro_batches)
            best = min(best or (cuts, makespan), (cuts, makespan), key=lambda found: found[1])
    cuts, makespan = best
    return cuts, (makespan + sum(steps[: cuts[1]]) + rank.get("step_time", 0)) / 1e9


# ---- on every rank


def make_engine(model_name: str, unit: float, micro_batches: int, entry: Entry):
    import deepspeed
    import ostinato.deepspeed
    from deepspeed.pipe import DualPipeVModule, PipelineModule

    class Cut(PipelineModule):
        """Stages begin where `entry` says."""

        def _partition_layers(self, method):
            self.parts = list(entry.parts)
            self._set_bounds(self.parts[self.stage_id], self.parts[self.stage_id + 1])

    class DualCut(DualPipeVModule, Cut):
        pass

    model = MODELS[model_name]
    torch.manual_seed(dist.get_rank())
    checkpointing = {"activation_checkpoint_interval": len(model.costs)} if entry.recompute else {}
    kind = DualCut if entry.dual_pipe_v else Cut
    config = configuration(micro_batches)
    if entry.recompute:
        config["pipeline"] = {"use_reentrant": False}
    with ostinato.deepspeed.enable(entry.plan) if entry.plan else nullcontext():
        module = kind(
            model.layers(unit), num_stages=dist.get_world_size(), loss_fn=model.loss, **checkpointing
        )
        engine, *_ = deepspeed.initialize(
            model=module, model_parameters=list(module.parameters()), config=config
        )
    return engine, model.batches()


def trainings(
    model: str,
    unit: float,
    micro_batches: int,
    steps: int,
    entries: Sequence[Entry],
    between: Callable[[], None] = lambda: None,
) -> list[dict]:
    """Of each entry: losses, seconds of each step but the first, and the peak of bytes that a step adds to
    those before the first: what lives within it, and buffers that stay from step to step. They take turns, so
    that what else the machine does hits all of them.

    Counting bytes takes time, so it is done in steps of its own, after the first: COUNTED of them, which are
    not timed. `between`: runs before each timed step, on all ranks at a time."""
    from ostinato import _profiler

    _profiler.install_allocator()
    engines = [make_engine(model, unit, micro_batches, entry) for entry in entries]
    results = [{"losses": [], "seconds": [], "peak": 0} for _ in entries]
    stays = [0] * len(entries)  # bytes that an entry's steps left behind
    for step in range(1 + COUNTED + steps):
        if step == 1 + COUNTED:
            _profiler.remove_allocator()
        counts = step < 1 + COUNTED
        for number, ((engine, data), result) in enumerate(zip(engines, results, strict=True)):
            before = _profiler.live_bytes() if counts else 0
            if counts:
                _profiler.reset_peak()
            dist.barrier()
            if not counts:
                between()
                dist.barrier()
            begin = time.perf_counter()
            result["losses"].append(engine.train_batch(data).item())
            if not counts:
                result["seconds"].append(time.perf_counter() - begin)
                continue
            if step:
                result["peak"] = max(result["peak"], _profiler.peak_bytes() - before + stays[number])
            stays[number] += _profiler.live_bytes() - before
    return results


# ---- tables


@dataclass(frozen=True)
class Row:
    """A line of a table, in seconds and bytes a rank."""

    name: str
    planned: float
    seconds: float
    losses: list[float]
    peaks: list[int]


def slowest(of_ranks: Sequence[Sequence[float]]) -> float:
    """A step takes as long as on its slowest rank; of the steps the median."""
    return statistics.median(map(max, zip(*of_ranks, strict=True)))


def rows_of(entries: Sequence[Entry], planned: Sequence[float], by_rank: list[list[dict]]) -> list[Row]:
    rows = []
    for index, entry in enumerate(entries):
        mine = [results[index] for results in by_rank]
        seconds = slowest([result["seconds"] for result in mine])
        rows.append(
            Row(entry.name, planned[index], seconds, mine[0]["losses"], [result["peak"] for result in mine])
        )
    return rows


def show(rows: Sequence[Row], rival: Row) -> None:
    """`rival`: the row that all are compared with."""
    print(
        f"{'':76}{'planned':>11}{'measured':>11}{'to plan':>9}{'rival/it':>9}{'peak, KiB a rank':>26}{'to rival':>9}"
    )
    for row in rows:
        peaks = " ".join(f"{peak / 1024:.0f}" for peak in row.peaks)
        print(
            f"{row.name:76}{row.planned * 1e3:8.1f} ms{row.seconds * 1e3:8.1f} ms{row.seconds / row.planned:9.3f}"
            f"{rival.seconds / row.seconds:9.2f}{peaks:>26}{max(row.peaks) / max(rival.peaks):9.2f}"
        )
    spread = max(abs(a - b) for row in rows for a, b in zip(row.losses, rival.losses, strict=True))
    print(f"losses differ by at most {spread:.1e}", flush=True)
