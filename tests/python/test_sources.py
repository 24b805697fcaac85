# SPDX-License-Identifier: Apache-2.0
"""The sources themselves: C++ is formatted and its examples are whole, and what is included comes from
packages that script/setup installs."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import ostinato
import pytest

ROOT = Path(__file__).parents[2]
# The build tree that ostinato is imported from; script/test's, where it is installed.
BUILD = next(
    (b for b in (Path(ostinato.__file__).parents[2], ROOT / "build/release") if (b / "build.ninja").exists()),
    None,
)


def sources(*endings: str) -> list[Path]:
    """Our own, as git knows them."""
    words = [
        "git",
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
        *(f"*{ending}" for ending in endings),
    ]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("no git, or no checkout: the sources cannot be listed")
    return [
        path
        for word in listed.stdout.split()
        if not word.startswith("third_party/") and (path := ROOT / word).is_file()
    ]


def test_every_file_in_cpp_is_formatted():
    if not shutil.which("clang-format"):
        pytest.skip("no clang-format")
    files = sources(".h", ".cpp")
    halves = [files[::2], files[1::2]]  # one a core
    running = [
        subprocess.Popen(["clang-format", "--dry-run", "-Werror", *half], stderr=subprocess.PIPE, text=True)
        for half in halves
    ]
    assert "".join(process.communicate()[1] for process in running) == ""


def test_every_file_names_its_license():
    files = sources(
        ".h",
        ".cpp",
        ".py",
        ".pyi",
        ".cmake",
        "CMakeLists.txt",
        "script/setup",
        "script/test",
        "script/demo",
        "script/zoo",
        "script/wheels",
        "script/site",
    )
    without = [
        path.relative_to(ROOT)
        for path in files
        if "SPDX-License-Identifier: Apache-2.0\n" not in path.read_text()[:100]
    ]
    assert without == [] and len(files) > 500


def test_python_has_no_findings():
    words = [sys.executable, "-m", "ruff", "check", "--output-format", "concise", "."]
    found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr


def test_every_file_in_python_is_formatted():
    words = [sys.executable, "-m", "ruff", "format", "--check", "."]
    found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr


def test_the_types_hold(tmp_path):
    """mypy: strict on what a user's own type checker reads, and the bodies of all else; DeepSpeed's types are
    those of upstream.py."""
    package = tmp_path / "ostinato"
    package.mkdir()
    for path in ROOT.glob("*/python/*"):
        if path.name != "__pycache__" and not path.is_relative_to(ROOT / "tests"):
            (package / path.name).symlink_to(path)
    options = ["--config-file", str(ROOT / "pyproject.toml"), "--follow-imports=silent", "-p", "ostinato"]
    words = [sys.executable, "-m", "mypy", *options]
    environment = {**os.environ, "MYPYPATH": str(tmp_path), "MYPY_CACHE_DIR": str(tmp_path / "cache")}
    found = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    assert re.search(r"no issues found in (\d+) source files", found.stdout)[1] > "130"


MAKERS = {
    "arange", "as_tensor", "asarray", "empty", "eye", "full", "linspace", "ones", "rand", "randint", "randn", "randperm", "tensor", "zeros",
}  # fmt: skip


def test_every_tensor_that_is_made_names_its_device():
    """A script may call torch.set_default_device("cuda")."""
    found = []
    for path in sources(".py"):
        where = path.relative_to(ROOT)
        if where.parts[1:2] != ("python",) or where.parts[0] == "tests":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr=maker)) if maker in MAKERS:
                    if not {"device", None} & {keyword.arg for keyword in node.keywords}:
                        found.append(f"{where}:{node.lineno}")
    assert found == []


def test_what_mypy_is_to_overlook_has_a_reason():
    """Its kind in brackets, and then a comment."""
    bare = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sources(".py")
        for number, line in enumerate(path.read_text().split("\n"), 1)
        if "# type: " + "ignore" in line and not re.search(r"# type: " + r"ignore\[[a-z-]+\]  # \w", line)
    ]
    assert bare == []


def test_what_is_slow_names_the_tests_that_hold_its_promise():
    """Beside the marker (HACKING.md, "Tests"); they are there."""
    tests = [path for path in sources(".py") if path.name.startswith("test_")]
    files, wrong, seen = {path.name for path in tests}, [], 0
    for path in tests:
        text = path.read_text()
        for reason in re.findall(r"^@pytest\.mark\." + r"slow\b(.*)$", text, re.MULTILINE):
            named, seen = re.findall(r"\btest_\w+(?:\.py)?", reason), seen + 1
            if not named or not all(name in files or f"def {name}(" in text for name in named):
                wrong.append(f"{path.relative_to(ROOT)}: {reason}")
    assert wrong == [] and seen > 10


def test_examples_in_comments_keep_to_the_columns():
    """Lines that begin with three spaces are examples, which clang-format neither breaks nor joins
    (.clang-format)."""
    width = int(re.search(r"ColumnLimit: (\d+)", (ROOT / ".clang-format").read_text())[1])
    long = [
        f"{path.relative_to(ROOT)}:{number}: {len(line)} columns"
        for path in sources(".h", ".cpp")
        for number, line in enumerate(path.read_text().split("\n"), 1)
        if re.match(r"\s*///? {3}", line) and len(line) > width
    ]
    assert long == []


def packages_of_setup() -> list[str]:
    text = (ROOT / "script/setup").read_text()
    return re.search(r"^packages=\((.*?)\)", text, re.DOTALL | re.MULTILINE)[1].split()


def with_dependencies(packages: list[str]) -> set[str]:
    """As dpkg knows them of what is installed; of alternatives all."""
    shown = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package}\t${Provides}\t${Pre-Depends},${Depends}\n"],
        capture_output=True,
        text=True,
    )
    needs, providers = {}, {}
    for package, provides, depends in (line.split("\t") for line in shown.stdout.splitlines()):
        needs[package] = set(re.findall(r"(?:^|[,|])\s*([a-z0-9][a-z0-9+.-]*)", depends))
        for name in re.findall(r"(?:^|,)\s*([a-z0-9][a-z0-9+.-]*)", provides):
            providers.setdefault(name, set()).add(package)
    found, left = set(), list(packages)
    while left:
        package = left.pop()
        if package not in found:
            found.add(package)
            left += [*needs.get(package, ()), *providers.get(package, ())]
    return found


def system_headers() -> list[str]:
    deps = subprocess.run(["ninja", "-C", str(BUILD), "-t", "deps"], capture_output=True, text=True)
    return sorted(set(re.findall(r"^ +(/usr/(?!local/).*)$", deps.stdout, re.MULTILINE)))


def test_every_system_header_comes_with_what_setup_installs():
    """What somebody installed by hand would hide that script/setup forgets it."""
    if BUILD is None or not shutil.which("ninja"):
        pytest.skip("no build tree with ninja")
    if not shutil.which("dpkg-query"):
        pytest.skip("no dpkg: nobody knows which package a header is of")
    headers = [str(Path(header).resolve()) for header in system_headers()]
    assert headers, "the build tree has compiled nothing"
    known = with_dependencies(packages_of_setup())
    owned = subprocess.run(["dpkg-query", "-S", *headers], capture_output=True, text=True).stdout
    owners = {
        path: package.split(":")[0]
        for package, path in re.findall(r"^([^,\n]+?)(?:, .*)?: (/.*)$", owned, re.MULTILINE)
    }
    foreign = {
        header: owners.get(header, "no package") for header in headers if owners.get(header) not in known
    }
    assert foreign == {}, "headers of packages that script/setup does not install"
