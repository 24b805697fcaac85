# SPDX-License-Identifier: Apache-2.0
"""The options of `ostinato profile`, which are told and refused without torch."""

from __future__ import annotations

import argparse
import math
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

LOSSES = ("sum", "mean", "mse", "cross-entropy")  # that can be made up: model.made_up


def at_least(low: int, text: str) -> int:
    if not re.fullmatch("[0-9]{1,10}", text) or not low <= int(text) < 2**31:
        raise argparse.ArgumentTypeError(f'needs a whole number from {low} to {2**31 - 1}, got "{text}"')
    return int(text)


positive, natural = partial(at_least, 1), partial(at_least, 0)


def amount(least: float, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not least <= number <= 1e9:
        raise argparse.ArgumentTypeError(f'needs a number from {least:g} to 1e9, got "{text}"')
    return number


NANOSECONDS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}


def time_of(text: str) -> int:
    """Nanoseconds, of a time with a unit; without one it is in microseconds, as in a placement."""
    parts = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?(ns|us|ms|s)?", text)
    if parts is None:
        raise argparse.ArgumentTypeError(f'needs a time, as 20us or 0.02ms, got "{text}"')
    return round(float(parts[1]) * NANOSECONDS[parts[2] or "us"])


def lengths_of(text: str) -> list[int]:
    return [positive(one) for one in text.split(",")]


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="ostinato profile",
        usage="%(prog)s [options] TRAIN.py | -m MODULE [-- ARGUMENT ...]",
        description="Measures every layer and operator of the model that a DeepSpeed script trains: layer by layer where it "
        "is a PipelineModule, else operator by operator, with its branches. The script runs unchanged on DeepSpeed's engine, as rank 0, up to "
        "its first training step. Started by torchrun, deepspeed or Slurm, once a rank, it measures the transfers between those "
        "ranks, and each kind of device by itself. A torch.export archive (.pt2) is profiled on its example inputs, a TorchScript "
        "program (.pt) on made-up ones, by its submodules and the operators beside them. Exit status 6: the profile is not complete.",
        epilog="example: ostinato profile train.py --output profile.json -- --deepspeed_config ds_config.json",
    )
    p.add_argument(
        "script",
        type=Path,
        metavar="TRAIN.py",
        help="the training script (its arguments follow --), or a saved program",
    )
    p.add_argument(
        "--local_rank", "--local-rank", type=int, help=argparse.SUPPRESS
    )  # deepspeed's launcher gives it to every script
    p.add_argument("-m", "--module", action="store_true", help="TRAIN.py names a module, as in python -m")
    world_size = (
        "ranks of the world that the script is to see (the launcher's, else as many as the script wants)"
    )
    p.add_argument("--world-size", type=positive, metavar="RANKS", help=world_size)
    p.add_argument(
        "-o", "--output", type=Path, default=Path("profile.json"), help="where the profile goes (%(default)s)"
    )
    p.add_argument("--repeats", type=positive, default=20, help="measurements of each layer (%(default)s)")
    p.add_argument(
        "--warm-up", type=natural, default=3, help="rounds before them that do not count (%(default)s)"
    )
    lengths = "measure the layers with sequences of these lengths, too (512,1024,2048): micro-batches differ in length"
    p.add_argument("--sizes", type=lengths_of, default=(), metavar="LENGTHS", help=lengths)
    ranks = "processes whose transfers are measured, pair by pair; two stand for all (%(default)s)"
    p.add_argument("--ranks", type=positive, default=2, help=ranks)
    beside = (
        "processes that compute the same layers beside, as the other ranks of this host do while the model trains, on CPUs (as many as the "
        "script's world has beside rank 0, and have cores of their own)"
    )
    p.add_argument("--beside", type=natural, metavar="PROCESSES", help=beside)
    kind = "kind of the device that is measured, as a placement's devices name it ($OSTINATO_DEVICE_KIND, else the GPU's name, or cpu)"
    p.add_argument("--kind", default=os.environ.get("OSTINATO_DEVICE_KIND"), help=kind)
    latency = "of a transfer between any two devices, instead of measuring them: 20us (without a unit: microseconds)"
    p.add_argument("--latency", type=time_of, metavar="TIME", help=latency)
    p.add_argument(
        "--bandwidth",
        type=partial(amount, 1e-9),
        metavar="GB/s",
        help="of the same, in 10^9 bytes per second (without it: bytes are free)",
    )
    p.add_argument(
        "--no-transfers",
        action="store_true",
        help="measure neither transfers nor what a block costs beside its layers",
    )
    again = "measure the model once more as STAGES stages, and print it beside what the profile predicts"
    p.add_argument("--check", type=positive, metavar="STAGES", help=again)
    p.add_argument(
        "--html", type=Path, metavar="PAGE", help="a flame chart of a micro-batch, its memory, its layers"
    )
    p.add_argument(
        "--perfetto", type=Path, metavar="TRACE", help="the same for ui.perfetto.dev or chrome://tracing"
    )
    drawn = (
        "ranks that the page and the trace show, each with a stage of about equal time (as --check, else 1)"
    )
    p.add_argument("--draw-ranks", type=positive, metavar="RANKS", help=drawn)
    add_program_options(p.add_argument_group("of a TorchScript program"))
    p.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    p.add_argument(
        "-q", "--quiet", action="store_true", help="print nothing but what is wrong, and JSON where asked for"
    )
    return p


def add_program_options(group: Any) -> None:
    shape = "shape of an input, in order: 8x128:int64:50257 (sizes, type, bound)"
    group.add_argument("--input", action="append", metavar="SHAPE[:TYPE[:BELOW]]", help=shape)
    group.add_argument(
        "--depth",
        type=natural,
        metavar="LEVELS",
        help="levels of submodules to look into (to where one calls several)",
    )
    loss = "what training does with the output, as a last step with made-up labels (the output's own gradient is given)"
    group.add_argument("--loss", choices=LOSSES, help=loss)
    numbers = "fp32 numbers that the optimizer keeps for each parameter: 2 for Adam, 0 for SGD (2)"
    group.add_argument("--optimizer-numbers", type=natural, metavar="NUMBERS", help=numbers)
    group.add_argument(
        "--eval", action="store_true", help="run the program as in evaluation, not as in training"
    )


def arguments_of(ours: list[str]) -> argparse.Namespace:
    """Says what to do with arguments that are the script's."""
    p = parser()
    args, unknown = p.parse_known_args(ours)
    if unknown:
        own = " ".join(ours[: ours.index(unknown[0])])
        p.error(f"these are not of ostinato profile: {' '.join(unknown)}; the script's own follow --: "
                f"ostinato profile {own} -- {' '.join(unknown)}")  # fmt: skip
    return args


def split_arguments(argv: list[str]) -> tuple[list[str], list[str]]:
    """Ours, and the script's after `--`."""
    if "--" not in argv:
        return argv, []
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]
