# SPDX-License-Identifier: Apache-2.0
"""docs/private-symbols.toml: all that is used of torch's and DeepSpeed's private names is listed, and what is
listed is there."""

import ast
import importlib
import inspect
import re
import tomllib
from collections.abc import Iterator
from functools import cache, reduce
from pathlib import Path

ROOT = Path(__file__).parents[2]
LISTED = {
    (owner, name)
    for section in tomllib.loads((ROOT / "docs/private-symbols.toml").read_text()).values()
    for owner, names in section.items()
    for name in names
}
NAMES = {name for _, name in LISTED}
DOCUMENTED = {"_exit", "_fields", "_replace"}  # os._exit(), and namedtuple's
BUILT = {"_plugin", "_profiler", "_search"}  # of ours, in C++
SUPER = "super()."
UPSTREAM = (
    "plugin/python/deepspeed/upstream.py"  # declares what DeepSpeed has: neither a use nor a definition
)


def private(name: str) -> bool:
    return name.isidentifier() and re.match(r"_[^_]", name) is not None


@cache
def trees() -> list[tuple[str, ast.Module]]:
    files = [
        path
        for folder in ("plugin", "profiler", "bindings")
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]
    return [
        (str(path.relative_to(ROOT)), ast.parse(path.read_text()))
        for path in files
        if path != ROOT / UPSTREAM
    ]


@cache
def all_nodes() -> list[tuple[str, ast.AST]]:
    return [(path, node) for path, tree in trees() for node in ast.walk(tree)]


def nodes(*kinds: type) -> Iterator[tuple[str, ast.AST]]:
    return ((path, node) for path, node in all_nodes() if isinstance(node, kinds))


def defined() -> Iterator[str]:
    """What our sources make themselves. An attribute counts where nobody else has it: _local_start is set by
    us, too."""
    for _, node in nodes(ast.FunctionDef, ast.ClassDef):
        yield node.name
    for _, node in nodes(ast.arg):
        yield node.arg
    for _, node in nodes(ast.Name):
        if isinstance(node.ctx, ast.Store):
            yield node.id
    for _, node in nodes(ast.Attribute):
        if isinstance(node.ctx, ast.Store) and node.attr not in NAMES:
            yield node.attr


@cache
def used() -> list[tuple[str, str]]:
    """(private name, place): attributes, and texts for getattr() and hasattr(). With SUPER in front where a
    method is our parent's."""
    return list(uses())


def uses() -> Iterator[tuple[str, str]]:
    for path, node in nodes(ast.Attribute):
        if private(node.attr):
            parents = ast.unparse(node.value) == "super()"
            yield f"{SUPER if parents else ''}{node.attr}", f"{path}:{node.lineno}"
    for path, tree in trees():
        inside = {
            id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values
        }
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and id(node) not in inside
                and private(node.value)
            ):
                yield node.value, f"{path}:{node.lineno}"


def imported() -> Iterator[tuple[tuple[str, str], str]]:
    """((module, name), place) of what is imported by a private name or from a private module."""
    for path, node in nodes(ast.ImportFrom):
        if node.module and not node.level and not node.module.startswith("ostinato"):
            for alias in node.names:
                if any(map(private, [*node.module.split("."), alias.name])):
                    yield (node.module, alias.name), f"{path}:{node.lineno}"
    for path, node in nodes(ast.Import):
        for alias in node.names:
            if any(map(private, alias.name.split("."))):
                yield (alias.name, ""), f"{path}:{node.lineno}"


def places(name: str) -> list[str]:
    return [place for word, place in used() if word.removeprefix(SUPER) == name] + [
        place for (_, word), place in imported() if word == name
    ]


def owner_of(owner: str) -> object:
    """ "torch._ops:OpOverload", or a module alone."""
    module, _, path = owner.partition(":")
    return reduce(getattr, path.split(".") if path else [], importlib.import_module(module))


@cache
def source(part: object) -> str:
    """inspect parses the whole file for each class."""
    return inspect.getsource(part)


def has(owner: object, name: str) -> bool:
    """An attribute, or one that the sources of a class (or of its parents) or of a module give to what they
    make."""
    if hasattr(owner, name):
        return True
    for part in inspect.getmro(owner) if inspect.isclass(owner) else [owner]:
        try:
            if re.search(rf"\.{name}\b|['\"]{name}['\"]", source(part)):
                return True
        except (OSError, TypeError):
            continue  # of C++, or without sources
    return False


def loss(owner: str, name: str) -> str:
    """What is wrong with an entry, and where the name is used; "" where it is there."""
    try:
        found = owner_of(owner)
    except (ImportError, AttributeError) as error:
        return f"{owner} has vanished ({error}); {name} is used at {', '.join(places(name))}"
    return "" if has(found, name) else f"{owner} has lost {name}, which is used at {', '.join(places(name))}"


def test_all_are_still_there():
    assert len(LISTED) > 50
    assert not (lost := [said for entry in sorted(LISTED) if (said := loss(*entry))]), "\n".join(lost)


def test_what_is_used_is_listed():
    ours = set(defined()) | BUILT | DOCUMENTED
    missing = {
        name: place
        for name, place in used()
        if name not in ours and name.removeprefix(SUPER) not in NAMES and not name.startswith("_ostinato")
    }
    missing |= {".".join(found): place for found, place in imported() if found not in LISTED}
    assert missing == {}, "add them to docs/private-symbols.toml, with the class or module that has them"


def test_what_is_replaced_is_listed():
    """Methods of our engine and module that have the name of one of DeepSpeed's private methods take its
    place."""
    from deepspeed.runtime.pipe.engine import PipelineEngine
    from deepspeed.runtime.pipe.module import PipelineModule

    theirs = {name for kind in (PipelineEngine, PipelineModule) for name in dir(kind) if private(name)}
    mixed_in = (
        "engine/engine",
        "engine/stage_passes",
        "engine/batch_size",
        "engine/plan_checkpoints",
        "stages/module",
    )
    ours = {
        node.name
        for path, node in nodes(ast.FunctionDef)
        if path in {f"plugin/python/deepspeed/{name}.py" for name in mixed_in}
    }
    assert (
        "_exec_schedule" in ours
        and "_follow" in ours
        and "_save_zero_checkpoint" in ours
        and "_views" not in theirs
    )
    assert ours & theirs - NAMES == set()


def declared() -> dict[str, set[str]]:
    """What upstream.py says of DeepSpeed's classes, by the class that its docstring begins with:
    module.Class."""
    found = {}
    for node in ast.walk(ast.parse((ROOT / UPSTREAM).read_text())):
        if isinstance(node, ast.ClassDef):
            names = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
            names |= {
                part.target.id
                for part in node.body
                if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
            }
            found[ast.get_docstring(node).split(",")[0]] = {
                name for name in names if not name.startswith("_ostinato")
            }
    return found


def test_what_is_declared_of_deepspeed_is_there():
    """plugin/python/deepspeed/upstream.py, which mypy believes, against DeepSpeed itself and against the
    list."""
    vanished = [
        f"{where}.{name}"
        for where, names in declared().items()
        for name in names
        if not has(owner_of(":".join(where.rsplit(".", 1))), name)
    ]
    assert vanished == [], f"{UPSTREAM} says that DeepSpeed has them"
    assert {name for names in declared().values() for name in names if private(name)} <= NAMES
    assert len(declared()) >= 5 and all(declared().values())


def test_what_is_listed_is_used():
    words = {name.removeprefix(SUPER) for name, _ in used()} | {
        node.name for _, node in nodes(ast.FunctionDef)
    }
    assert {
        f"{owner} {name}"
        for owner, name in LISTED
        if name not in words and (owner, name) not in dict(imported())
    } == set()


def test_a_name_that_vanished_is_told():
    from deepspeed.runtime.pipe.module import PipelineModule

    assert has(PipelineModule, "_local_start") and not has(PipelineModule, "_local_beginning")
    assert has(owner_of("torch:Tensor"), "_version") and not has(owner_of("torch"), "_assert_sync")
    assert any(
        place.startswith("plugin/python/deepspeed/save/universal.py:") for place in places("_hp_mapping")
    )
    assert "has vanished" in loss("torch.nowhere", "_x") and "torch has lost _assert_sync" in loss(
        "torch", "_assert_sync"
    )
