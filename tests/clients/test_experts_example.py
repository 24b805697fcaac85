# SPDX-License-Identifier: Apache-2.0
"""The example of experts under "auto": four experts over two replicas of each of two stages; real all-to-alls,
measured, planned on a lane, and run."""

import json
import re
from pathlib import Path

from support.started import launched

EXAMPLE = Path(__file__).parents[2] / "examples" / "moe" / "train.py"
WITHOUT_COMPILING = f"""
import runpy, sys
from deepspeed.ops import __compatible_ops__

__compatible_ops__["deepspeed_shm_comm"] = False
sys.path.insert(0, {str(EXAMPLE.parent)!r})
runpy.run_path({str(EXAMPLE)!r}, run_name="__main__")
"""


def test_losses_are_those_of_1f1b(tmp_path):
    section = {"auto": True, "check": 2, "fallback": False, "output": "found", "search": {"time_limit": 2}}
    config = json.loads((EXAMPLE.parent / "ds_config.json").read_text()) | {"ostinato": section}
    (tmp_path / "ds_config.json").write_text(json.dumps(config))
    (tmp_path / "train.py").write_text(WITHOUT_COMPILING)
    words = ["--deepspeed_config", "ds_config.json", "--steps", "3", "--depth", "2", "--width", "32"]
    run = launched(tmp_path / "train.py", words, tmp_path, ranks=4)
    assert run.status == [0] * 4, run.said
    assert 'lane = "network"' in (tmp_path / "found" / "placement.toml").read_text()
    equal = r"measured: steps 1 and 2: losses, gradients and weights of 6 layers equal DeepSpeed's 1F1B (bit for bit|up to rounding)"
    assert re.search(equal, run.said), run.said
