# SPDX-License-Identifier: Apache-2.0
"""docs/tutorial.md as somebody types it: every command in order, and what it prints.

A block that opens with ```sh runs, one with ```sh skip does not. A block ```text is part of what the block
before it printed: numbers and layouts may be others, "..." stands for anything, and lines may be broken. A
block ```text shown is not compared.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import ostinato
import pytest
from test_docs import blocks

ROOT = Path(__file__).resolve().parents[2]
MARK = "@@ block"


def words(text: str) -> str:
    """What is alike in every run: digests, numbers and layouts are one sign, white space is one blank."""
    text = re.sub(r"\b[0-9a-f]{12}\b|\d+(\.\d+)?|\b(wave|looped)\b", "#", text)
    return re.sub(r"\s+", " ", text).strip()


def missing(shown: str, printed: str) -> str:
    """The first part of `shown`, between two "...", that does not stand in `printed` behind the one before
    it; "" where all do."""
    rest = words(printed)
    for part in filter(None, map(words, shown.split("..."))):
        if part not in rest:
            return part
        rest = rest.partition(part)[2]
    return ""


def run(scripts: list[str], folder: Path) -> list[str]:
    """What each script prints; they run in one shell, in a folder that looks like the repository's root."""
    for name in ("examples", "configs"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "bin").mkdir()
    command = folder / "bin" / "ostinato"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m ostinato "$@"\n')
    command.chmod(0o755)
    package = Path(ostinato.__file__).absolute().parents[1]
    path = os.pathsep.join([str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {
        **os.environ,
        "PATH": path,
        "PYTHONPATH": f"{package}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }
    whole = "set -euo pipefail\n" + "".join(f"echo {MARK}\n{script}\n" for script in scripts)
    ran = subprocess.run(
        ["bash", "-c", whole],
        cwd=folder,
        env=environment,
        text=True,
        timeout=900,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert ran.returncode == 0, ran.stdout
    return ran.stdout.split(MARK)[1:]


def test_what_is_shown_must_stand_there():
    printed = "plan 7d36f5afcd6c: wave, 2 chunks\nin 9.5 s\nend"
    assert missing("plan 000000000000: looped, 3 chunks in\n1 s", printed) == ""
    assert missing("plan ... end", printed) == ""
    assert missing("end ... plan", printed) == "plan"
    assert missing("4 ranks", printed) == "# ranks"


@pytest.mark.slow  # test_demo.py and test_show_page.py have what it types; script/test --docs runs it as well
def test_the_tutorial_runs_as_it_is_shown(tmp_path):
    listed = [
        (kind, text)
        for kind, text in blocks((ROOT / "docs" / "tutorial.md").read_text())
        if kind in ("sh", "text")
    ]
    printed = iter(run([text for kind, text in listed if kind == "sh"], tmp_path))
    last, compared = "", 0
    for kind, text in listed:
        if kind == "sh":
            last = next(printed)
        else:
            assert missing(text, last) == "", last
            compared += 1
    assert compared >= 5
    for name in ("plan.html", "plan.svg", "trace.json", "ostinato-out/profile.json"):
        assert (tmp_path / name).stat().st_size > 0, name


def test_a_placement_by_hand_is_searched_as_it_is_shown(tmp_path):
    text = (ROOT / "docs" / "howto.md").read_text()
    part = text[text.index("## Placements by hand") :]
    printed = run([next(script for kind, script in blocks(part) if kind == "sh")], tmp_path)
    assert "written to" in printed[0] and (tmp_path / "hand.json").stat().st_size > 0


def test_the_python_of_the_readme_runs(capfd):
    script = next(text for kind, text in blocks((ROOT / "README.md").read_text()) if kind == "python")
    exec(compile(script, "README.md", "exec"), {})
    assert re.fullmatch(r"\d+ \d+ (True|False)\n", capfd.readouterr().out)
