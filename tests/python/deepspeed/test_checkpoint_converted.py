# SPDX-License-Identifier: Apache-2.0
"""`ostinato checkpoint`: a placement's checkpoint for DeepSpeed alone, what lies in one, and what DeepSpeed alone says of one that is not converted."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.models import LAYERS
from support.plans import Layout, make_plan, placement_text
from support.training import MICRO_BATCHES, Options, data_of, make_engine
from test_deepspeed_checkpoint import (
    BF16, FOUR, FP16, LOOPED, STOCK, WARMUP, WAVE, ZERO_1, changed, half, load, load_half, load_states, save, save_half, save_states, under,
)  # fmt: skip

from ostinato import checkpoint


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    return {x.name: str(make_plan(folder / x.name, x, LAYERS, MICRO_BATCHES)) for x in (STOCK, WAVE, LOOPED, FOUR)}


def run(capsys, *words):
    status = checkpoint.main([str(word) for word in words])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


CASES = {  # options, the placement that saves
    "fp32": (Options(), "wave"),
    "fp32-tied": (Options(tied=True), "looped"),
    "fp32-two-groups": (Options(config=WARMUP, own_optimizer=True), "looped"),
    "fp32-zero1": (Options(config=ZERO_1), "wave"),
    "fp32-zero1-tied": (Options(config=ZERO_1, tied=True), "wave"),
    "fp16": (Options(config=FP16), "wave"),
    "fp16-flat": (Options(config=FP16, own_optimizer=True), "looped"),
    "fp16-zero1": (Options(config=FP16 | ZERO_1), "wave"),
    "bf16-zero1": (Options(config=BF16 | ZERO_1 | WARMUP, own_optimizer=True), "wave"),
}


@pytest.mark.parametrize("case", CASES)
def test_deepspeed_alone_goes_on(world2, plans, saved, tmp_path, capsys, monkeypatch, case):
    """With the losses of the run that saved the checkpoint. Tensors that are put together lie in files, as large ones do."""
    from ostinato.deepspeed.save import convert

    monkeypatch.setattr(convert, "SMALL", 16)
    options, before = CASES[case]
    ways = (save_half, load_half) if "fp16" in case else (save, load)
    folder, expected = saved(world2, under(options, plans[before]), ways[0])
    status, out, err = run(capsys, "convert", folder, tmp_path / "alone", "--stages", 2)
    assert status == 0, err
    assert out.endswith("global_step3 for DeepSpeed alone, 1 replica: stage 0 has layers 0 to 3; stage 1 has layers 4 to 7\n")
    assert [path.name for path in tmp_path.iterdir()] == ["alone"]
    assert not list((tmp_path / "alone" / "global_step3").glob("*.tmp"))
    for rank, result in enumerate(world2.run(ways[1], options, str(tmp_path / "alone"))):
        assert result.get("losses") == expected[rank], result
        assert (result["note"], result["steps"]) == ("kept", 3)


def load_alone(options: Options, folder: str) -> list[str]:
    """What DeepSpeed's own load_checkpoint() says, as where ostinato is not installed: with optimizer state, and without."""
    said = []
    for wanted in (True, False):
        engine = make_engine(options)
        try:
            type(engine).load_checkpoint.__wrapped__(engine, folder, load_optimizer_states=wanted)
            said.append("")
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def load_alone_half(options: Options, folder: str) -> list[str]:
    return half(load_alone, options, folder)


SEALED = "this optimizer state belongs to a placement of ostinato's"
EQUAL = Options(model="strangers")  # whose layers have equal shapes: DeepSpeed alone would go on with the state of other layers


@pytest.mark.parametrize("case", ["fp32", "fp32-zero1", "fp16", "fp16-flat", "fp16-zero1", "bf16-zero1", "equal", "equal-zero1", "elastic"])
def test_deepspeed_alone_does_not_take_the_state_of_a_placement(world2, plans, saved, case):
    """It says whose it is; weights load."""
    equal = {"equal": EQUAL, "equal-zero1": replace(EQUAL, config=ZERO_1), "elastic": replace(EQUAL, config={"zero_optimization": {"stage": 1, "elastic_checkpoint": True}})}
    options, before = (equal[case], "wave") if case in equal else CASES[case]
    ways = (save_half, load_alone_half) if "fp16" in case else (save, load_alone)
    folder, _ = saved(world2, under(options, plans[before]), ways[0])
    for with_state, without in world2.run(ways[1], options, folder):
        assert SEALED in with_state and "convert it (ostinato checkpoint convert)" in with_state, with_state
        assert without == ""
