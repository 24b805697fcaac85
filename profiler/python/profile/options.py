# SPDX-License-Identifier: Apache-2.0
"""The options of `ostinato profile`, parsed without torch."""

from __future__ import annotations

import argparse
import math
import os
import re
import shlex
from functools import partial
from pathlib import Path
from typing import Any

from ostinato.errors import Parser

LOSSES = ("sum", "mean", "mse", "cross-entropy")  # see model.made_up


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
    """Nanoseconds, from a time with a unit; without one in microseconds, as in a placement."""
    parts = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?(ns|us|ms|s)?", text)
    if parts is None:
        raise argparse.ArgumentTypeError(f'needs a time such as 20us or 0.02ms, got "{text}"')
    time = round(float(parts[1]) * NANOSECONDS[parts[2] or "us"])
    if time >= 2**63:
        raise argparse.ArgumentTypeError(f'"{text}" is more than 292 years')
    return time


def lengths_of(text: str) -> list[int]:
    return [positive(one) for one in text.split(",")]


def parser() -> Parser:
    p = Parser(
        prog="ostinato profile",
        allow_abbrev=False,  # `--out` is the script's
        usage="%(prog)s [options] TRAIN.py | -m MODULE [-- ARGUMENT ...]",
        description="Measures every layer and operator of the model that a DeepSpeed script trains: layer by layer for a "
        "PipelineModule, else operator by operator, with branches. The script runs unchanged on DeepSpeed's engine, as rank 0, up to "
        "its first training step. Under torchrun, deepspeed or Slurm, one process per rank, it also measures the transfers between the "
        "ranks, and each kind of device. It profiles a torch.export archive (.pt2) on its example inputs, and a TorchScript program "
        "(.pt) on made-up inputs, by submodules and the operators between them. Exit status 6: the profile is not complete.",
        epilog="example: ostinato profile train.py --output profile.json -- --deepspeed_config ds_config.json",
    )
    p.add_argument(
        "script",
        type=Path,
        metavar="TRAIN.py",
        help="the training script (its arguments follow --), or a saved program",
    )
    # The launcher of DeepSpeed gives it to every script.
    p.add_argument("--local_rank", "--local-rank", type=int, help=argparse.SUPPRESS)
    p.add_argument(
        "-m", "--module", action="store_true", help="TRAIN.py is the name of a module, as in python -m"
    )
    world_size = "world size that the script sees (default: the launcher's, else what the script asks for)"
    p.add_argument("--world-size", type=positive, metavar="RANKS", help=world_size)
    p.add_argument(
        "-o", "--output", type=Path, default=Path("profile.json"), help="file for the profile (%(default)s)"
    )
    p.add_argument("--repeats", type=positive, default=20, help="measurements of each layer (%(default)s)")
    p.add_argument(
        "--warm-up", type=natural, default=3, help="rounds before these that do not count (%(default)s)"
    )
    lengths = "also measure the layers with sequences of these lengths (512,1024,2048), for micro-batches that differ in length"
    p.add_argument("--sizes", type=lengths_of, default=(), metavar="LENGTHS", help=lengths)
    ranks = "number of processes between which to measure transfers, pair by pair; two represent all (%(default)s)"
    p.add_argument("--ranks", type=partial(at_least, 2), default=2, help=ranks)
    beside = (
        "on CPUs: processes that compute the same layers at the same time, as other ranks of the host do in training (default: as many as "
        "the script's world has besides rank 0, if there are cores for them)"
    )
    p.add_argument("--beside", type=natural, metavar="PROCESSES", help=beside)
    kind = "kind of this device, as a placement names it (default: $OSTINATO_DEVICE_KIND, else the GPU's name, or cpu)"
    p.add_argument("--kind", default=os.environ.get("OSTINATO_DEVICE_KIND"), help=kind)
    latency = "latency of any transfer, instead of measuring transfers: 20us (without a unit: microseconds)"
    p.add_argument("--latency", type=time_of, metavar="TIME", help=latency)
    p.add_argument(
        "--bandwidth",
        type=partial(amount, 1e-9),
        metavar="GB/s",
        help="bandwidth of any transfer, instead of measuring transfers, in 10^9 bytes per second (default: unlimited)",
    )
    p.add_argument(
        "--no-transfers",
        action="store_true",
        help="do not measure transfers, nor what a block costs on top of its layers",
    )
    again = "also measure the model as STAGES stages, and print this beside what the profile predicts"
    p.add_argument("--check", type=positive, metavar="STAGES", help=again)
    p.add_argument(
        "--html",
        type=Path,
        metavar="PAGE",
        help="write a page with a flame chart of a micro-batch, its memory and its layers",
    )
    p.add_argument(
        "--perfetto", type=Path, metavar="TRACE", help="the same for ui.perfetto.dev or chrome://tracing"
    )
    add_program_options(p.add_argument_group("for a TorchScript program"))
    p.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    p.add_argument("-q", "--quiet", action="store_true", help="print only errors (and JSON with --json)")
    return p


def add_program_options(group: Any) -> None:
    shape = "shape of an input, in order: 8x128:int64:50257 (sizes, type, bound)"
    group.add_argument("--input", action="append", metavar="SHAPE[:TYPE[:BELOW]]", help=shape)
    group.add_argument(
        "--depth",
        type=natural,
        metavar="LEVELS",
        help="levels of submodules to look into (default: until one calls several)",
    )
    loss = "loss of the output, as a last step with made-up labels (default: no loss, with a gradient given for the output)"
    group.add_argument("--loss", choices=LOSSES, help=loss)
    numbers = "values that the optimizer keeps per parameter, in fp32 or wider: 2 for Adam, 0 for SGD (2); also of a .pt2 archive"
    group.add_argument("--optimizer-numbers", type=natural, metavar="NUMBERS", help=numbers)
    group.add_argument(
        "--eval", action="store_true", help="run the program in evaluation mode, not in training mode"
    )


def arguments_of(ours: list[str]) -> argparse.Namespace:
    """Parses our arguments. Arguments of the script are an error that says where to put them."""
    p = parser()
    args, unknown = p.parse_known_args(ours)
    if unknown:
        own, left = list[str](), list(unknown)
        for word in ours:
            if word in left[:1]:
                left.pop(0)
            else:
                own.append(word)
        p.error(f"unknown arguments: {shlex.join(unknown)}; put the script's own after --: "
                f"ostinato profile {shlex.join([*own, '--', *unknown])}")  # fmt: skip
    return args


def split_arguments(argv: list[str]) -> tuple[list[str], list[str]]:
    """Our arguments, and the script's after `--`."""
    if "--" not in argv:
        return argv, []
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]
