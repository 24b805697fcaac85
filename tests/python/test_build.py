# SPDX-License-Identifier: Apache-2.0
"""What the build asks of a machine (cmake/Requirements.cmake), and what is said where it was without torch;
what a project gets that adds this one. Nothing is compiled but one file: most of these configurations lack a
compiler."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import ostinato
import pytest
import torch

ROOT = Path(__file__).parents[2]
cmake = pytest.importorskip("cmake", reason="cmake is no package of this Python")
CMAKE = Path(cmake.CMAKE_BIN_DIR) / "cmake"  # not the script of that name, which is Python


@pytest.fixture(scope="module")
def bare(tmp_path_factory) -> Path:
    """A Python without any package."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, symlinks=True)
    return folder / "bin" / "python"


def lacks(folder: Path, *options: str, **variables: str) -> str:
    words = [str(CMAKE), "-G", "Ninja", "-S", str(ROOT), "-B", str(folder), *options]
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "CXX")}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # ninja
    done = subprocess.run(
        words,
        env=clean | {"CXX": "/no/compiler", "PATH": path} | variables,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode != 0, done.stdout
    assert "the build lacks:" in done.stderr and "a C++20 compiler" in done.stderr, done.stderr
    return done.stderr


def test_all_that_is_missing_is_said_at_once(bare, tmp_path):
    said = lacks(tmp_path, f"-DPython_EXECUTABLE={bare}", "-DOSTINATO_TORCH=ON")
    assert "torch: pip install torch" in said


def test_without_torch_only_pybind11_is_asked_for(bare, tmp_path):
    said = lacks(tmp_path, f"-DPython_EXECUTABLE={bare}")
    assert "pybind11" in said and "pip install torch" not in said


def test_torch_that_an_isolated_build_hides_is_found(tmp_path):
    """pip hides what is installed with a sitecustomize of its own, which PYTHONPATH leads to."""
    hiding = tmp_path / "hiding"
    hiding.mkdir()
    (hiding / "sitecustomize.py").write_text(
        "import sys\nsys.path[:] = [word for word in sys.path if 'site-packages' not in word]\n"
    )
    hidden = subprocess.run(
        [sys.executable, "-c", "import torch"],
        env=os.environ | {"PYTHONPATH": str(hiding)},
        capture_output=True,
    )
    assert hidden.returncode != 0
    said = lacks(
        tmp_path / "build",
        f"-DPython_EXECUTABLE={sys.executable}",
        "-DOSTINATO_TORCH=ON",
        PYTHONPATH=str(hiding),
    )
    assert "torch: pip install" not in said and "torch 2.9" not in said


def test_an_old_torch_is_named(bare, tmp_path):
    old = tmp_path / "torch"
    (old / "include" / "torch").mkdir(parents=True)
    (old / "version.py").write_text("__version__ = '2.8.0+cpu'\n")
    assert f"torch 2.9 or newer: {old} is 2.8.0+cpu" in " ".join(
        lacks(tmp_path / "build", f"-DOSTINATO_TORCH_DIR={old}").split()
    )
    (old / "version.py").write_text(f"__version__ = '{torch.__version__}'\n")
    assert "torch 2.9" not in lacks(
        tmp_path / "build", f"-DPython_EXECUTABLE={bare}", f"-DOSTINATO_TORCH_DIR={old}"
    )


CONSUMER = """
cmake_minimum_required(VERSION 3.25)
project(consumer CXX)
set(OSTINATO_PYTHON OFF)
set(OSTINATO_TORCH OFF)
add_subdirectory("{root}" ostinato)
add_executable(consumer main.cpp)
target_link_libraries(consumer PRIVATE ostinato::search)
"""


@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
def test_a_project_that_adds_this_one_compiles(tmp_path):
    """With what the search asks of a compiler, and without its tests; that it links, the command line shows."""
    (tmp_path / "CMakeLists.txt").write_text(CONSUMER.format(root=ROOT))
    (tmp_path / "main.cpp").write_text(
        '#include "search/search.h"\nint main() { return ostinato::SearchOptions{}.micro_batches; }\n'
    )
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # ninja
    for words in (
        ["-G", "Ninja", "-S", ".", "-B", "build"],
        ["--build", "build", "--target", "CMakeFiles/consumer.dir/main.cpp.o"],
    ):
        done = subprocess.run(
            [str(CMAKE), *words],
            cwd=tmp_path,
            env=os.environ | {"PATH": path},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert "OSTINATO_TESTS:BOOL=OFF" in (tmp_path / "build" / "CMakeCache.txt").read_text()


@pytest.mark.parametrize("name", ["_plugin", "_profiler"])
def test_what_was_not_built_is_said(name, monkeypatch):
    monkeypatch.delattr(ostinato, name, raising=False)
    monkeypatch.setitem(sys.modules, f"ostinato.{name}", None)
    with pytest.raises(
        ImportError,
        match="are not installed: torch .* is installed, but was not when ostinato was built: build it again",
    ):
        getattr(ostinato, name)
