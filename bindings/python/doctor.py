# SPDX-License-Identifier: Apache-2.0
"""`ostinato doctor`: which of the things that ostinato can use this machine has, and what to do about the rest."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import shutil
import sys
from dataclasses import asdict, dataclass

from ostinato.autoload import switched_off
from ostinato.errors import Parser, Status, fail


@dataclass
class Finding:
    """`state`: "ok", "missing" (needed, by every run or by --require) or "absent" (optional)."""

    what: str
    state: str
    detail: str


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_torch() -> list[Finding]:
    if importlib.util.find_spec("torch") is None:
        detail = "profiler and plugin need it: pip install torch, and then ostinato again (pip install .)"
        rest = [Finding(what, "absent", "needs torch") for what in ("transfers", "cuda")]
        return [Finding("torch", "missing", detail), *rest]
    import torch

    try:
        from ostinato import _plugin  # noqa: F401  it refuses any torch but the one that it was built for

        built = Finding("torch", "ok", f"{torch.__version__}, for which the plugin was built")
    except ImportError as error:
        built = Finding("torch", "missing", f"{torch.__version__}: {error}")
    backends = [name for name in ("gloo", "nccl") if getattr(torch.distributed, f"is_{name}_available")()]
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return [
        built,
        Finding("transfers", "ok" if backends else "missing", ", ".join(backends) or "no c10d backend"),
        Finding("cuda", "ok" if gpus else "absent", ", ".join(gpus) or "no GPU: everything runs on the CPU"),
    ]


def check_cupti() -> Finding:
    try:
        from ostinato import _profiler
    except ImportError:  # check_torch() says so
        return Finding("cupti", "absent", "needs the profiler")
    status = _profiler.cupti_status()
    return Finding("cupti", "ok" if status["usable"] else "absent", status["detail"])


def check_deepspeed() -> Finding:
    found = version("deepspeed")
    if found is None:
        return Finding("deepspeed", "absent", "pip install 'ostinato[deepspeed]' for the DeepSpeed engine")
    numbers = tuple(int(part) for part in found.split("+")[0].split(".")[:3] if part.isdigit())
    return Finding(
        "deepspeed", "ok" if numbers >= (0, 19, 4) else "missing", f"{found} (0.19.4 or newer is needed)"
    )


def check_activation() -> Finding:
    if switched_off():
        detail = "TORCH_DEVICE_BACKEND_AUTOLOAD=0 turns the ostinato section off: unset it, or use python -m ostinato.run"
        return Finding("activation", "missing", detail)
    if not any(entry.name == "ostinato" for entry in importlib.metadata.entry_points(group="torch.backends")):
        detail = "ostinato is not installed (pip install .): start scripts with python -m ostinato.run"
        return Finding("activation", "missing", detail)
    return Finding("activation", "ok", "the ostinato section of ds_config.json is enough")


def check_compiler() -> Finding:
    path = shutil.which("g++") or shutil.which("c++")
    return Finding(
        "compiler",
        "ok" if path else "absent",
        path or "none found; DeepSpeed compiles its operators with one",
    )


def findings() -> list[Finding]:
    """The same things in every installation: --require knows them by these rows."""
    python = Finding("python", "ok", sys.version.split()[0])
    return [python, *check_torch(), check_cupti(), check_deepspeed(), check_activation(), check_compiler()]


def parser() -> Parser:
    p = Parser(
        prog="ostinato doctor",
        description="Lists what ostinato can use, and whether this machine has it. Exit status 7: something needed is missing.",
        epilog="example: ostinato doctor --require cuda --require cupti",
    )
    p.add_argument(
        "--require", action="append", default=[], metavar="WHAT", help="treat WHAT as needed (repeatable)"
    )
    p.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    return p


def main(argv: list[str]) -> int:
    args = parser().parse_args(argv)
    rows = findings()
    known = [row.what for row in rows]
    for what in args.require:
        if what not in known:
            return fail("doctor", argv, Status.USAGE, f"--require {what}: not one of {', '.join(known)}")
    for row in rows:
        if row.what in args.require and row.state == "absent":
            row.state = "missing"
    status = Status.MISSING if any(row.state == "missing" for row in rows) else Status.DONE
    if args.json:
        print(json.dumps({"status": status, "findings": [asdict(row) for row in rows]}))
    else:
        for row in rows:
            print(f"{row.state:8} {row.what:13} {row.detail}")
    return status
