# SPDX-License-Identifier: Apache-2.0
"""All tests that need a GPU, in one command, with what docs/gpu-runs.md keeps of a run printed as Markdown,
ready to paste.

    ninja -C build/release gpu          # or: python3 tests/gpu/run.py build/release

Runs `cupti_tests` (the collector over the driver); where the build has torch, `plugin_tests` (the executor's
streams); and where it has the Python package, tests/python/profiler/test_profile_gpu.py (operators of torch,
from the model to the profile) and test_training_gpu.py (executor, Pipeline and DeepSpeed over NCCL, on as
many GPUs as there are), and the questions of extra.py. Needs nothing beyond Python. A machine without a GPU
skips all of it and says why. Exit status 1: a test failed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import datetime, UTC
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SAID = "gpu-run: "
PYTHON_TESTS = sorted(map(str, (ROOT / "tests" / "python").rglob("test_*_gpu.py")))


def first_line(*command: str) -> str:
    """What a command prints; empty where it cannot run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().partition("\n")[0] if done.returncode == 0 else ""


def machine(python: str) -> str:
    gpus = first_line(
        "nvidia-smi", "--query-gpu=count,name,driver_version,clocks.max.sm", "--format=csv,noheader"
    )
    torch = first_line(
        python,
        "-c",
        "import torch; print(f'torch {torch.__version__}, {torch.cuda.device_count()} GPUs seen')",
    )
    return ", ".join(
        filter(None, [f"GPUs, name, driver, clock: {gpus}" if gpus else "no nvidia-smi", torch or "no torch"])
    )


def run(command: list[str], environment: dict[str, str]) -> tuple[int, str]:
    """Shows the output as it comes, and returns it."""
    lines = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env=environment
    ) as started:
        for line in started.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    return started.returncode, "".join(lines)


def outcome_of_gtest(output: str) -> str:
    counts = {name: len(re.findall(rf"^\[ *{mark} *\] \S+\.\S+ \(", output, re.MULTILINE))
              for name, mark in (("passed", "OK"), ("failed", "FAILED"), ("skipped", "SKIPPED"))}  # fmt: skip
    reasons = sorted(set(re.findall(r": Skipped\n(.+)", output)))
    return ", ".join(f"{count} {name}" for name, count in counts.items()) + "".join(
        f" ({reason})" for reason in reasons
    )


def outcome_of_pytest(output: str) -> str:
    reasons = sorted(set(re.findall(r"^SKIPPED \[\d+\] \S+ (.+)", output, re.MULTILINE)))
    summary = output.strip().rpartition("\n")[2].strip("= ")
    return summary + "".join(f" ({reason})" for reason in reasons)


def outcome_of_questions(output: str) -> str:
    skipped = re.search(r"^skipped: .*", output, re.MULTILINE)
    return skipped[0] if skipped else f"{len(re.findall(r' FAILED: ', output))} failed"


OUTCOMES = {"pytest": outcome_of_pytest, "questions": outcome_of_questions}


def suites(build: Path, python: str) -> list[tuple[str, list[str], dict[str, str]]]:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(build / "python"), os.environ.get("PYTHONPATH", "")]))
    }
    found = [
        (
            "cupti_tests",
            [str(build / "tests/profiler/cupti/cupti_tests"), "--gtest_filter=CuptiGpu.*"],
            environment,
        )
    ]
    if (plugin := build / "tests/plugin_tests").exists():
        found.append(("plugin_tests", [str(plugin), "--gtest_filter=GpuExecutor.*"], environment))
    if next((build / "python" / "ostinato").glob("_profiler*"), None):
        found.append(
            (
                "pytest",
                [python, "-m", "pytest", "-q", "-s", "-rs", "-p", "no:cacheprovider", *PYTHON_TESTS],
                environment,
            )
        )
        out = os.environ.get("OUT") or str(build / "gpu")
        found.append(("questions", [python, str(ROOT / "tests" / "gpu" / "extra.py"), out], environment))
    return found


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    build, python = Path(sys.argv[1]).resolve(), sys.argv[2] if len(sys.argv) > 2 else sys.executable
    worst, said, tests = 0, [], []
    for name, command, environment in suites(build, python):
        status, output = run(command, environment)
        worst = max(worst, 1 if status else 0)
        said += [line.partition(SAID)[2] for line in output.splitlines() if SAID in line]
        outcome = OUTCOMES.get(name, outcome_of_gtest)(output)
        tests.append(f"{name}: {outcome}")
    rows = {
        "when, and which commit": f"{datetime.now(UTC):%Y-%m-%d}, {first_line('git', 'describe', '--always', '--dirty') or 'unknown'}",
        "the machine": machine(python),
        "the command": f"`ninja -C {os.path.relpath(build, ROOT)} gpu`",
        "the tests": "; ".join(tests),
    }
    print("\n--- for docs/gpu-runs.md ---\n\n| | |\n| --- | --- |")
    for what, text in rows.items():
        print(f"| {what} | {text.replace('|', '/')} |")
    print("\n" + "\n".join(f"- {line}" for line in said) if said else "\nNothing was measured.")
    return worst


if __name__ == "__main__":
    sys.exit(main())
