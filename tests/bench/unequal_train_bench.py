# SPDX-License-Identifier: Apache-2.0
"""Sequences of unequal length, on two ranks with a core each: DeepSpeed's own 1F1B with dynamic_shape, and a
plan for every step, in turns in the same processes, on the same stages and the same data.

    PYTHONPATH=build/release/python python tests/bench/unequal_train_bench.py [--micro-batches 8] [--steps 50]

A byte-level GPT reads the functions and classes of Python's standard library, one a micro-batch. `ostinato
profile --sizes` measures it at several lengths, and DeepSpeed has the stages that are best for the mean of
them. The ratio that the bounds allow is printed beside the measured one. The machine must have two cores that
do nothing else; `chrt -r 1` keeps others off where it is permitted.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import random
import re
import statistics
import sys
import sysconfig
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python")]

RANKS, DEPTH, WIDTH, HEADS = 2, 6, 128, 4
SHORTEST, LONGEST = 32, 1024  # bytes of a function
LENGTHS = (64, 128, 256, 512, 1024)  # that are measured


def functions(seed: int) -> list[bytes]:
    """Functions and classes at the left margin of the standard library's modules, shuffled; long ones are
    cut."""
    found = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        pieces = re.split(rb"(?m)^(?=def |class )", path.read_bytes())
        found += [piece[: LONGEST + 1] for piece in pieces[1:] if len(piece) > SHORTEST]
    random.Random(seed).shuffle(found)
    return found


def micro_batches(seed: int):
    """Endless (inputs, labels) of one function each."""
    for piece in itertools.cycle(functions(seed)):
        whole = torch.frombuffer(bytearray(piece), dtype=torch.uint8).long()[None]
        yield whole[:, :-1].contiguous(), whole[:, 1:].contiguous()


def longest_first(seed: int):
    """For the profile: the first is as long as any."""
    text = torch.randint(0, 256, (1, LONGEST + 1), generator=torch.Generator().manual_seed(seed))
    yield text[:, :-1].contiguous(), text[:, 1:].contiguous()
    yield from micro_batches(seed)


def example():
    """The GPT of examples/gpt; other examples have a `model`, too."""
    spec = importlib.util.spec_from_file_location(
        "gpt_model", HERE.parents[1] / "examples" / "gpt" / "model.py"
    )
    module = sys.modules.setdefault("gpt_model", importlib.util.module_from_spec(spec))
    spec.loader.exec_module(module)
    return module


def configuration(count: int) -> dict:
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": count,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
        "steps_per_print": 10**9,
    }


def make_engine(parts: list[int] | None, count: int, section: dict | None):
    import deepspeed
    import ostinato.deepspeed
    from deepspeed.pipe import PipelineModule

    gpt = example()

    class Cut(PipelineModule):
        def _partition_layers(self, method):
            if parts is None:
                return super()._partition_layers(method)
            self.parts = list(parts)
            self._set_bounds(parts[self.stage_id], parts[self.stage_id + 1])

    torch.manual_seed(dist.get_rank())
    layers = gpt.layers(DEPTH, WIDTH, HEADS, LONGEST)
    with ostinato.deepspeed.enable(**section) if section else nullcontext():
        module = Cut(
            layers, num_stages=RANKS, loss_fn=gpt.loss, activation_checkpoint_interval=0, dynamic_shape=True
        )
        return deepspeed.initialize(
            model=module, model_parameters=list(module.parameters()), config=configuration(count)
        )[0]


def profiled_script(count: int) -> None:
    """What `ostinato profile` runs."""
    import deepspeed

    deepspeed.init_distributed()
    make_engine(None, count, None).train_batch(longest_first(0))


def trainings(parts: list[int], count: int, steps: int, sections: list[dict | None]) -> list[dict]:
    """Of each section: losses, and seconds of each step but the first. They take turns, the first of a step
    another each time."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[dist.get_rank() % len(cores)]})
    torch.set_num_threads(1)
    engines = [make_engine(parts, count, section) for section in sections]
    data = [micro_batches(1) for _ in sections]
    results = [{"losses": [], "seconds": [], "planned": []} for _ in sections]
    for step in range(steps + 1):
        for turn in range(len(sections)):
            number = (turn + step) % len(sections)
            engine, result = engines[number], results[number]
            dist.barrier()
            begin = time.perf_counter()
            result["losses"].append(engine.train_batch(data[number]).item())
            if step:
                result["seconds"].append(time.perf_counter() - begin)
            if step and sections[number]:
                result["planned"].append(engine._ostinato.step_plans.last.row())
    os.sched_setaffinity(0, cores)
    return results


def show(name: str, mine: dict, usual: dict) -> None:
    pairs = [u / m for u, m in zip(usual["seconds"], mine["seconds"], strict=True)]
    mean = statistics.fmean(mine["seconds"]) * 1e3
    low, middle, high = statistics.quantiles(pairs, n=4)
    print(
        f"{name:>34}: {mean:7.1f} ms a step; 1F1B takes {statistics.fmean(usual['seconds']) / statistics.fmean(mine['seconds']):.3f} times as "
        f"long (step by step {low:.3f} / {middle:.3f} / {high:.3f}, quartiles)"
    )
    if mine["planned"]:
        of = {
            key: statistics.fmean(row[key] for row in mine["planned"]) / 1e6
            for key in mine["planned"][0]
            if key != "plan_sha256"
        }
        planning = statistics.quantiles((row["planning"] / 1e6 for row in mine["planned"]), n=4)
        print(
            f"{'':>36}planned {of['makespan']:.1f} ms, bound {of['lower_bound']:.1f}, 1F1B {of['one_f_one_b']:.1f} (ratio planned "
            f"{of['one_f_one_b'] / of['makespan']:.3f}, by the bound at most {of['one_f_one_b'] / of['lower_bound']:.3f}); planning "
            f"{of['planning']:.1f} ms, {of['planning'] / mean:.2%} of a step (quartiles {planning[0]:.1f} / {planning[1]:.1f} / {planning[2]:.1f})"
        )
    worst = max(abs(a - b) / abs(b) for a, b in zip(mine["losses"], usual["losses"], strict=True))
    print(
        f"{'':>36}losses: {'equal bit for bit' if worst == 0 else f'within {worst:.1e}'} over {len(mine['losses'])} steps"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--script", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.script:
        return profiled_script(args.micro_batches)
    from emulated_runs import ostinato
    from support.worlds import World

    with tempfile.TemporaryDirectory() as scratch, World(RANKS) as world:
        profile = Path(scratch) / "profile.json"
        lengths = ",".join(map(str, LENGTHS))
        options = ("--repeats", 5, "--warm-up", 1, "--output", profile, "--sizes", lengths)
        ostinato(
            "profile",
            Path(__file__).resolve(),
            *options,
            "--",
            "--script",
            "--micro-batches",
            args.micro_batches,
        )
        for row in (measured := json.loads(profile.read_text()))["sizes"]:
            print(
                f"{row['size']:5d} bytes: {(sum(row['forward']) + sum(row['backward'])) / 1e6:7.2f} ms forward and backward"
            )
        placement = Path(scratch) / "placement.toml"
        cut = (
            f"partition {profile} --devices {RANKS} --micro-batches {args.micro_batches} --output {placement}"
        )
        ostinato(*cut.split())
        parts = parts_of(placement)
        print(
            f"stages begin at layers {parts[:-1]} of {len(measured['layers'])}; {args.micro_batches} micro-batches a step"
        )
        ours = {"placement": str(placement), "profile": str(profile), "sizes": "tokens"}
        sections = [None, ours, ours | {"keep_order": True}]
        usual, free, kept = world.run(trainings, parts, args.micro_batches, args.steps, sections)[0]
    show("DeepSpeed's 1F1B", usual, usual)
    show("a plan for every step", free, usual)
    show("the same with keep_order", kept, usual)


def parts_of(placement: Path) -> list[int]:
    import tomllib

    stages = tomllib.loads(placement.read_text())["stages"]
    return [stages[0]["layers"][0], *(stage["layers"][1] for stage in stages)]


if __name__ == "__main__":
    main()
