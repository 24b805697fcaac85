# SPDX-License-Identifier: Apache-2.0
"""The notebooks in examples/notebooks: every cell runs, prints what is stored with it, and draws the plans
that it ends with."""

import ast
import contextlib
import io
import json
import os
import shutil
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def run(source: str, names: dict) -> object:
    """The value of a cell whose last line is an expression."""
    *before, last = ast.parse(source).body
    if not isinstance(last, ast.Expr):
        before, last = [*before, last], None
    exec(compile(ast.Module(before, []), "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None


def stored(cell: dict) -> str:
    return "".join(line for output in cell["outputs"] for line in output["text"])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_print_what_is_stored(path, tmp_path):
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    names: dict = {}
    for cell in cells:
        out = io.StringIO()
        with contextlib.chdir(tmp_path), contextlib.redirect_stdout(out):
            value = run("".join(cell["source"]), names)
        assert out.getvalue() == stored(cell)
        assert value is None or "<iframe" in value._repr_html_()
    assert sum(bool(stored(cell)) for cell in cells) >= 3


def test_all_are_there():
    assert {path.stem for path in NOTEBOOKS} == {
        "compare_schedules",
        "from_a_profile_to_a_plan",
        "search_a_placement",
    }
    assert os.path.getsize(FOLDER / "gpt.profile.json") > 0
