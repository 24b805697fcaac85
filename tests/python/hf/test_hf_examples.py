# SPDX-License-Identifier: Apache-2.0
"""docs/huggingface.md as somebody types it: both examples, and what they leave."""

import re
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from test_docs import blocks
from test_tutorial import ROOT, missing, run

PAGE = [
    (kind, text)
    for kind, text in blocks((ROOT / "docs" / "huggingface.md").read_text())
    if kind in ("sh", "text")
]
COMMANDS = [place for place, (kind, _) in enumerate(PAGE) if kind == "sh"]


def check_shown(place: int, folder: Path) -> str:
    """Runs the command at this place of the page; what it prints holds what the page shows behind it, and the
    loss falls."""
    printed = run([PAGE[place][1]], folder)[0]
    assert missing(PAGE[place + 1][1], printed) == "", printed
    losses = [float(loss) for loss in re.findall(r"^step \d+  loss (\S+)$", printed, re.M)]
    assert len(losses) == 5 and losses[-1] < losses[0] - 0.2
    return printed


@pytest.mark.slow  # test_hf_training.py and test_hf_checkpoints.py have each step of it
def test_a_model_is_trained_and_read_back(tmp_path):
    printed = check_shown(COMMANDS[0], tmp_path)
    assert "equal DeepSpeed's 1F1B" in printed
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "hf")
    tokens = torch.tensor([list(b"def main():\n    return 0\n")])
    # A guess: log(256) = 5.5.
    assert type(model).__name__ == "Qwen3ForCausalLM" and model(tokens, labels=tokens).loss < 5.2


@pytest.mark.slow  # test_hf_frozen.py and test_hf_peft.py have each step of it
def test_adapters_are_trained_on_a_frozen_model(tmp_path):
    check_shown(COMMANDS[1], tmp_path)
    learned = load_file(tmp_path / "out" / "lora" / "learned.safetensors")
    assert len(learned) == 32 and all(".down." in name or ".up." in name for name in learned)
    assert all(value.any() for name, value in learned.items() if ".up." in name)


@pytest.mark.parametrize("place", COMMANDS)
def test_every_command_is_followed_by_what_it_prints(place):
    assert PAGE[place + 1][0] == "text"
