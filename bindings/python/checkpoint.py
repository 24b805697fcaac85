# SPDX-License-Identifier: Apache-2.0
"""`ostinato checkpoint`: shows what is in a checkpoint, or converts it for DeepSpeed alone."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostinato.errors import (
    Error, Parser, Status, counted, fail, fail_usage, interrupted_by_sigterm, printable, size,
)  # fmt: skip
from ostinato.files import why_not_writable
from ostinato.profile.options import positive

if TYPE_CHECKING:
    from ostinato.deepspeed.save.contents import Contents

MOST_PROBLEMS = 20  # to show
LEFT_OUT = "they have none, or exclude_frozen_parameters has left the frozen ones out"


def parser() -> Parser:
    p = Parser(
        prog="ostinato checkpoint",
        description="show: shows what is in a checkpoint of DeepSpeed's pipeline engine, saved with or without ostinato, and whether it is whole "
        "(exit status 6 if not). convert: writes the checkpoint to a new folder, with its optimizer state laid out for DeepSpeed alone. "
        "Both unpickle DeepSpeed's files, as load_checkpoint() does: use them only on checkpoints that you trust.",
        epilog="example: ostinato checkpoint convert checkpoints converted",
    )
    p.add_argument("what", choices=("show", "convert"))
    p.add_argument(
        "folder",
        type=Path,
        metavar="FROM",
        help="the folder given to save_checkpoint(), or the folder of one tag in it",
    )
    p.add_argument("to", type=Path, nargs="?", metavar="TO", help="convert: a folder that does not exist yet")
    p.add_argument("--tag", help="which checkpoint of FROM (default: the one in the file latest)")
    where = p.add_mutually_exclusive_group()
    where.add_argument(
        "--stages",
        type=positive,
        metavar="N",
        help="convert: for DeepSpeed's own partition into N stages (default: as saved)",
    )
    where.add_argument(
        "--placement",
        type=Path,
        metavar="FILE",
        help="convert: for the layers of its stages, one stage per device, in order",
    )
    p.add_argument(
        "--replicas",
        type=positive,
        metavar="N",
        help="convert: for N data-parallel replicas (default: as saved)",
    )
    p.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    return p


def summary(contents: Contents, root: Path) -> dict[str, Any]:
    from ostinato.deepspeed.save import checkpoint, contents as files

    folder, head, record = contents.folder, contents.head, contents.record
    above = root if root != folder else folder.parent
    of_ranks = sum(
        path.stat().st_size
        for path in folder.iterdir()
        if path.is_file() and not files.LAYER.fullmatch(path.name)
    )
    return {
        "status": Status.CHECK_FAILED if contents.problems else Status.DONE,
        "folder": str(folder),
        "tag": folder.name,
        "tags": files.tags_in(above),
        "latest": checkpoint.latest_in(above),
        "step": head["global_steps"],
        "samples": head.get("global_samples"),
        "deepspeed": head.get("ds_version"),
        "precision": contents.precision,
        "zero_stage": contents.zero,
        "optimizer": contents.optimizer,
        "stages": contents.stages,
        "replicas": contents.replicas,
        "slices": contents.slices,
        "placement": None if record is None else checkpoint.held_in(record),
        "own_partition": contents.own_partition,
        "parameters": sum(layer.parameters for layer in contents.layers),
        "bytes": {"layers": sum(layer.bytes for layer in contents.layers), "ranks": of_ranks},
        "layers": [vars(layer) for layer in contents.layers],
        "problems": contents.problems,
    }


def show(told: dict[str, Any]) -> None:
    from rich.markup import escape

    from ostinato.report import Paper, table

    console = Paper(highlight=False)
    rows = [
        [
            str(layer["index"]),
            f"{layer['parameters']:,}",
            size(layer["bytes"]),
            ", ".join(map(str, layer["ranks"])) or "–",
        ]
        for layer in told["layers"]
    ]
    total = ["all", f"{told['parameters']:,}", size(told["bytes"]["layers"]), ""]
    console.print(
        table("Layers with a file", ["layer", "parameters", "size", "held by stage"], [*rows, total])
    )
    lay = {
        True: "layers placed as in DeepSpeed's own partition",
        False: "layers placed by ostinato: convert it for DeepSpeed alone",
        None: "saved by DeepSpeed alone" if told["placement"] is None else "saved under ostinato",
    }[told["own_partition"]]
    marked = [f"{tag} (latest)" if tag == told["latest"] else tag for tag in told["tags"]]
    lines = [
        f"{told['folder']}: step {told['step']}, {counted(told['samples'], 'sample')}, DeepSpeed {told['deepspeed']}",
        f"Tags: {', '.join(marked)}",
        f"Training: {told['precision']}, ZeRO-{told['zero_stage']}, optimizer {told['optimizer']}",
        f"Ranks: {counted(told['stages'], 'stage')}, {counted(told['replicas'], 'replica')}, {counted(told['slices'], 'slice')}; {lay}",
        f"Files of ranks, including optimizer state: {size(told['bytes']['ranks'])}",
    ]
    problems = told["problems"]
    empty = [
        str(layer["index"])
        for layer in told["layers"]
        if not layer["parameters"] and not any(f"layer_{layer['index']:02d}-" in said for said in problems)
    ]
    lines += [f"No weights in layers {', '.join(empty)}: {LEFT_OUT}"] if empty else []
    lines += [f"NOT whole: {problem}" for problem in problems[:MOST_PROBLEMS]]
    lines += [f"... and {len(problems) - MOST_PROBLEMS} more"] if len(problems) > MOST_PROBLEMS else []
    lines += [] if problems else ["Whole: every file is there and can be read"]
    for line in lines:
        console.print(escape(printable(line)), soft_wrap=True)


def converted(args: argparse.Namespace, contents: Contents) -> dict[str, Any]:
    from ostinato.deepspeed.save import convert

    if args.to.resolve().is_relative_to(args.folder.resolve()):
        raise Error(f"{args.to} is in {args.folder}, among its tags: choose a folder beside it")
    if not args.to.exists() and (why := why_not_writable(args.to)):
        raise Error(f"{args.to}: {why}")
    stages = args.stages or contents.stages
    bounds = convert.bounds_of(args.placement) if args.placement else convert.bounds_for(contents, stages)
    replicas = args.replicas or contents.replicas
    convert.convert(contents, args.to, bounds, replicas)
    return {
        "status": Status.DONE,
        "folder": str(args.to),
        "tag": contents.folder.name,
        "bounds": bounds,
        "replicas": replicas,
    }


def misused(args: argparse.Namespace) -> str:
    converts = args.what == "convert"
    if converts and args.to is None:
        return "convert needs a folder TO, which does not exist yet"
    if not converts and (args.to or args.placement or args.stages or args.replicas):
        return "show takes one folder; TO, --stages, --placement and --replicas are for convert"
    return ""


def main(argv: list[str]) -> int:
    args = parser().parse_args(argv)
    if wrong := misused(args):
        return fail_usage("checkpoint", argv, wrong)
    with contextlib.redirect_stdout(sys.stderr):  # DeepSpeed logs to it from now on
        from ostinato.deepspeed.save.contents import chosen, read

    try:
        contents = read(chosen(args.folder, args.tag))
        with interrupted_by_sigterm():  # else what is half-written would stay
            told = summary(contents, args.folder) if args.what == "show" else converted(args, contents)
    except (Error, OSError) as error:
        return fail("checkpoint", argv, Status.BAD_INPUT, str(error))
    if args.json:
        print(json.dumps(told))
    elif args.what == "show":
        show(told)
    else:
        a = told["bounds"]
        layers = "; ".join(
            f"stage {stage} has layers {a[stage]} to {a[stage + 1] - 1}" for stage in range(len(a) - 1)
        )
        print(
            printable(
                f"{told['folder']}: {told['tag']} for DeepSpeed alone, {counted(told['replicas'], 'replica')}: {layers}"
            )
        )
    return told["status"]
