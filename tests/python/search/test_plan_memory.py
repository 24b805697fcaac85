# SPDX-License-Identifier: Apache-2.0
"""`plan` says where a plan needs more memory than what it is compared with."""

import re
from pathlib import Path

import ostinato

PROFILE = Path(__file__).parents[3] / "examples" / "notebooks" / "gpt.profile.json"


def told(memory: str) -> str:
    devices = ostinato.Devices(4, memory)
    plan = ostinato.plan(
        ostinato.Profile.from_file(PROFILE),
        devices=devices,
        micro_batches=16,
        time_limit=2,
        exact_losses=True,
    )
    return plan.report["memory"]


def test_more_memory_than_1f1b_is_said():
    said = re.fullmatch(
        r"This plan needs up to ([0-9.]+) MiB on a device, ([0-9.]+) times as much as 1F1B on the best stages \(([0-9.]+) MiB\).",
        told("unlimited"),
    )
    assert said is not None
    ours, times, theirs = map(float, said.groups())
    assert times > 1.1 and abs(ours / theirs - times) < 0.01


def test_as_much_is_not_worth_a_word():
    assert told("32MiB") == ""
