# SPDX-License-Identifier: Apache-2.0
"""How well a profile predicts stages of a 12-layer transformer: times from layer rows and from operator rows,
kept bytes and workspace, each stage beside what it measures as a whole, with the targets.

    PYTHONPATH=build/release/python python tests/bench/profiler_accuracy.py [--stages 4] [--width 256] [--repeats 10]

One thread. A stage and its layers are measured in turns, and what the machine has changed since the profile
is taken out (ostinato/profile/measure/check.py). Exit status 6: a target was missed, on a machine that may
just have been busy.
"""

from __future__ import annotations

import argparse
import sys

import torch
from torch import nn

from ostinato.profile import Job, profile_layers
from ostinato.profile.measure.check import StageCheck, check_profile

LAYERS, TOKENS = 12, 128
TARGETS = {"layers": 5, "operators": 10, "kept": 5, "workspace": 10}  # percent


def transformer(args: argparse.Namespace) -> Job:
    torch.manual_seed(0)
    blocks = [
        nn.TransformerEncoderLayer(args.width, 4, 4 * args.width, 0.0, batch_first=True)
        for _ in range(LAYERS)
    ]
    inputs = torch.randn(args.batch, TOKENS, args.width)
    return Job(
        layers=blocks,
        inputs=inputs,
        loss_fn=lambda out, _: out.square().mean(),
        repeats=args.repeats,
        warm_up=3,
    )


def percent(predicted: float, measured: int) -> float:
    return 100 * (predicted / max(1, measured) - 1)


def errors(check: StageCheck) -> dict[str, list[float]]:
    rows, whole = check.from_layers, check.measured
    return {
        "layers": [
            percent(rows.forward * check.drift, whole.forward),
            percent(rows.backward * check.drift, whole.backward),
        ],
        "operators": [
            percent(check.operators_forward * check.drift, whole.forward),
            percent(check.operators_backward * check.drift, whole.backward),
        ],
        "kept": [percent(rows.kept, whole.kept)],
        "workspace": [percent(rows.workspace, whole.workspace)],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=10)
    args = parser.parse_args()
    torch.set_num_threads(1)
    profile = profile_layers(transformer(args))
    print(
        f"complete: {profile.completeness.complete}, {profile.completeness.seen} of {profile.completeness.expected} operators"
    )
    worst = dict.fromkeys(TARGETS, 0.0)
    for check in check_profile(transformer(args), profile, args.stages):
        found = errors(check)
        shown = ", ".join(f"{what} {' '.join(f'{e:+.1f}' for e in each)} %" for what, each in found.items())
        print(f"layers {check.first} to {check.last - 1}: {shown}; drift {100 * (check.drift - 1):+.0f} %")
        worst = {what: max(worst[what], *map(abs, found[what])) for what in TARGETS}
    for what, most in TARGETS.items():
        print(
            f"{what}: off by at most {worst[what]:.1f} %, target {most} %: {'met' if worst[what] <= most else 'MISSED'}"
        )
    return 0 if all(worst[what] <= most for what, most in TARGETS.items()) else 6


if __name__ == "__main__":
    sys.exit(main())
