# SPDX-License-Identifier: Apache-2.0
"""docs/rooms.toml holds: who includes or imports whom, and that no files do so in a circle."""

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = tomllib.loads((ROOT / "docs" / "rooms.toml").read_text())
CPP, PYTHON = ROOMS["cpp"], ROOMS["python"]
TOP = ("search", "profiler", "plugin", "bindings")  # from low to high
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)

Arrows = list[tuple[str, str]]  # (file, what it includes or imports)


def reach(rooms: dict[str, list[str]], room: str, seen: frozenset[str] = frozenset()) -> set[str]:
    """The room and all that it knows. Raises ValueError where a room knows itself."""
    if room in seen:
        raise ValueError(f"{room} knows itself")
    return {room}.union(*(reach(rooms, other, seen | {room}) for other in rooms.get(room, ())))


@cache
def includes() -> Arrows:
    files = [file for top in TOP for kind in ("*.h", "*.cpp") for file in (ROOT / top).rglob(kind)]
    return [
        (str(file.relative_to(ROOT)), made) for file in files for made in INCLUDE.findall(file.read_text())
    ]


@cache
def modules() -> dict[str, Path]:
    """Our own by full name: ostinato.a.b is a/b.py, or a/b/__init__.py, in the folder python of one of the
    root folders."""
    found = {}
    for top in TOP:
        folder = ROOT / top / "python"
        for file in sorted(folder.rglob("*.py")):
            parts = file.relative_to(folder).with_suffix("").parts
            name = ".".join(["ostinato", *(parts[:-1] if parts[-1] == "__init__" else parts)])
            assert name not in found, f"{name}: {file} and {found[name]}"
            found[name] = file
    return found


def package_of(name: str) -> str:
    return name if modules()[name].stem == "__init__" else name.rpartition(".")[0]


def imported(text: str, package: str) -> Iterator[str]:
    """Of our own modules, wherever in a file they stand, by full names. `package`: that the file is in."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *filter(None, [node.module])])
            names = [whole if is_module(whole := f"{base}.{alias.name}") else base for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] == "ostinato")


def is_built(name: str) -> bool:
    """From C++, by its name: ostinato._search and the like."""
    return re.fullmatch(r"ostinato\._[a-z]+", name) is not None


def is_module(name: str) -> bool:
    return name in modules() or is_built(name)


@cache
def imports() -> Arrows:
    return [
        (name, other)
        for name, file in modules().items()
        for other in imported(file.read_text(), package_of(name))
    ]


def room_of_module(name: str) -> str:
    """The innermost that it is in."""
    return name if is_built(name) else max((r for r in PYTHON if f"{name}.".startswith(f"{r}.")), key=len)


def circle(arrows: Arrows) -> list[str]:
    """Files that depend on each other in a circle; empty where there is none. O(files + arrows)."""
    after: dict[str, list[str]] = {}
    for a, b in arrows:
        after.setdefault(a, []).append(b)
    done: set[str] = set()

    def visit(file: str, way: list[str]) -> list[str]:
        if file in way:
            return way[way.index(file) :]
        if file in done:
            return []
        found = next((c for other in after.get(file, ()) if (c := visit(other, [*way, file]))), [])
        done.add(file)
        return found

    return next((c for file in list(after) if (c := visit(file, []))), [])


def knowing_themselves(rooms: dict[str, list[str]]) -> list[str]:
    found = []
    for room in rooms:
        try:
            reach(rooms, room)
        except ValueError as error:
            found.append(str(error))
    return found


def test_no_room_knows_itself():
    assert knowing_themselves(CPP) + knowing_themselves(PYTHON) == []
    assert knowing_themselves({"a": ["b"], "b": ["a"], "c": []}) == ["a knows itself", "b knows itself"]


def test_includes_are_those_of_the_rooms():
    wrong = []
    for file, made in includes():
        room, other = str(Path(file).parent), str(Path(made).parent)
        if made.split("/")[0] in TOP and (room not in CPP or other not in reach(CPP, room)):
            wrong.append(f"{file} includes {made}")
    assert not wrong, "not in docs/rooms.toml:\n" + "\n".join(wrong)


def test_imports_are_those_of_the_rooms():
    wrong = [
        f"{a} imports {b}" for a, b in imports() if room_of_module(b) not in reach(PYTHON, room_of_module(a))
    ]
    assert not wrong, "not in docs/rooms.toml:\n" + "\n".join(wrong)
    assert len(imports()) > 100  # and they were read


def test_no_headers_include_each_other():
    assert not (found := circle([(a, b) for a, b in includes() if a.endswith(".h")])), found


def test_no_python_files_import_each_other():
    """Wherever in a file the import stands: one that waits until it is called hides a circle, and does not
    break it."""
    assert not (found := circle(imports())), found


def top_of_module(name: str) -> str:
    return (
        name.removeprefix("ostinato._") if is_built(name) else str(modules()[name].relative_to(ROOT).parts[0])
    )


def test_root_folders_know_lower_ones_only():
    arrows = [(a, b, a.split("/")[0], b.split("/")[0]) for a, b in includes() if b.split("/")[0] in TOP]
    arrows += [(a, b, top_of_module(a), top_of_module(b)) for a, b in imports()]
    assert [f"{a} knows {b}" for a, b, low, high in arrows if TOP.index(low) < TOP.index(high)] == []
    assert len(arrows) > 1000


def test_every_python_file_is_in_the_package():
    assert {file for top in TOP for file in (ROOT / top).rglob("*.py")} == set(modules().values())


def test_rooms_within_rooms():
    assert room_of_module("ostinato.profile.model.chain") == "ostinato.profile.model"
    assert (
        room_of_module("ostinato.profile.command") == room_of_module("ostinato.profile") == "ostinato.profile"
    )
    assert room_of_module("ostinato.profile.errors") == "ostinato.profile.errors"
    assert room_of_module("ostinato._search") == "ostinato._search"
    assert "ostinato.profile.model.chain" in dict(imports()) and "ostinato.cli" in dict(imports())


def test_imports_are_read_by_full_names():
    text = "from . import chain\nfrom ..errors import ProfileError\ndef late():\n    from ostinato import _profiler, core\nimport os, ostinato.files"
    found = sorted(imported(text, "ostinato.profile.model"))
    assert found == [
        "ostinato._profiler",
        "ostinato.core",
        "ostinato.files",
        "ostinato.profile.errors",
        "ostinato.profile.model.chain",
    ]


def test_a_circle_is_found():
    assert circle([("a", "b"), ("b", "c"), ("c", "b")]) == ["b", "c"]
    assert not circle([("a", "b"), ("a", "c"), ("b", "c")])
