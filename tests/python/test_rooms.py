# SPDX-License-Identifier: Apache-2.0
"""docs/rooms.toml holds: who includes or imports whom, and that no files do so in a circle."""

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = tomllib.loads((ROOT / "docs" / "rooms.toml").read_text())
CPP, FOLDERS, KNOWS = ROOMS["cpp"], ROOMS["python"]["folders"], ROOMS["python"]["knows"]
TOP = ("search", "profiler", "plugin", "bindings")
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
    return [(str(file.relative_to(ROOT)), made) for file in files for made in INCLUDE.findall(file.read_text())]


@cache
def imports() -> Arrows:
    """Of our own modules, wherever in a file they stand, by full names."""
    found = []
    for package, folder in FOLDERS.items():
        place = ROOT / folder
        for file in [place] if place.suffix else sorted(place.glob("*.py")):
            name = package if file.stem == "__init__" or place.suffix else f"{package}.{file.stem}"
            if package == "ostinato" and name in FOLDERS:
                continue
            found += [(name, other) for other in imported(ast.parse(file.read_text()), package)]
    return found


def imported(tree: ast.AST, package: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = (package if node.level else "") + ("." if node.level and node.module else "") + (node.module or "")
            names = [f"{base}.{alias.name}" if base in FOLDERS else base for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] == "ostinato")


def room_of_module(name: str) -> str:
    return next((room for room in FOLDERS if name == room or (name.startswith(f"{room}.") and room != "ostinato")), built_or_own(name))


def built_or_own(name: str) -> str:
    return ".".join(name.split(".")[:2]) if name.startswith("ostinato._") and not name.startswith("ostinato.__") else "ostinato"


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


@pytest.mark.parametrize(("rooms", "room"), [(rooms, room) for rooms in (CPP, KNOWS) for room in rooms])
def test_no_room_knows_itself(rooms, room):
    reach(rooms, room)


def test_includes_are_those_of_the_rooms():
    wrong = []
    for file, made in includes():
        room, other = str(Path(file).parent), str(Path(made).parent)
        if made.split("/")[0] in TOP and (room not in CPP or other not in reach(CPP, room)):
            wrong.append(f"{file} includes {made}")
    assert not wrong, "not in docs/rooms.toml:\n" + "\n".join(wrong)


def test_imports_are_those_of_the_rooms():
    wrong = [f"{a} imports {b}" for a, b in imports() if room_of_module(b) not in reach(KNOWS, room_of_module(a))]
    assert not wrong, "not in docs/rooms.toml:\n" + "\n".join(wrong)
    assert len(imports()) > 100  # and they were read


def test_no_headers_include_each_other():
    assert not (found := circle([(a, b) for a, b in includes() if a.endswith(".h")])), found


def test_a_circle_is_found():
    assert circle([("a", "b"), ("b", "c"), ("c", "b")]) == ["b", "c"]
    assert not circle([("a", "b"), ("a", "c"), ("b", "c")])
