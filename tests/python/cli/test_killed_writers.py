# SPDX-License-Identifier: Apache-2.0
"""Every writer is killed at system calls and at bytes: each of its files is the old one, the new one or
absent, and the next run leaves nothing beside them.

OSTINATO_SOAK_POINTS=500 python -m pytest -s tests/python/cli/test_killed_writers.py
"""

import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace

import ostinato
import pytest
from ostinato import _search
from ostinato.files import Diagnostic, replaced, write_text
from support.killed import killed_at_byte, killed_at_call, system_calls
from support.profiles import write_profile

POINTS = int(os.environ.get("OSTINATO_SOAK_POINTS", 10))
SEED = int(os.environ.get("OSTINATO_SOAK_SEED", 1))
TRACE = '{{"rank": 0, "events": [{}]}}'


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """What the writers read."""
    folder = tmp_path_factory.mktemp("made")
    placement = ostinato.placement("v", devices=4)
    plan = ostinato.search(placement, micro_batches=16, time_limit=1, threads=1)
    placement.save(folder / "placement.toml"), plan.save(folder / "plan.json")
    return SimpleNamespace(folder=folder, placement=placement, plan=plan)


def command(*words) -> None:
    assert _search.main([str(word) for word in words]) == 0


def by_name(path: Path, text: str) -> None:
    """As a library writes that wants a name."""
    with replaced(path) as beside, open(beside, "w") as file:
        file.write(text)


def beside_a_checkpoint(path: Path, version: int) -> None:
    from ostinato.deepspeed.save import checkpoint  # DeepSpeed takes long to import, and then to fork

    stages = [
        SimpleNamespace(
            layers=(rank, rank + version),
            ranks=(rank,),
            rank=rank,
            sharded=False,
            copy=0,
            on=lambda r, rank=rank: r == rank,
        )
        for rank in range(60)
    ]
    checkpoint.write(str(path.parent.parent), path.parent.name, stages, [None] * 60, [], {})


WRITERS: dict[str, Callable] = {  # (what was made, the file, 0 or 1: the old or the new content)
    "placement": lambda m, path, n: command("placement", "v", "--devices", 4 + n, "--output", path),
    "plan": lambda m, path, n: command(
        "search", m.folder / "placement.toml", "--method", "1f1b", "--micro-batches", 24 + n, "--output", path
    ),
    "html": lambda m, path, n: command("show", m.files[n], m.folder / "placement.toml", "--html", path),
    "svg": lambda m, path, n: command("show", m.files[n], m.folder / "placement.toml", "--svg", path),
    "perfetto": lambda m, path, n: command(
        "show", m.files[n], m.folder / "placement.toml", "--perfetto", path
    ),
    "options": lambda m, path, n: command("config", "--output", path),
    "profile": lambda m, path, n: write_profile(path, [100 + n] * 9),
    "saved plan": lambda m, path, n: m.plans[n].save(path),
    "trace, memory": lambda m, path, n: Diagnostic(path).write(TRACE.format(",".join([f'"{n}"'] * 3000))),
    "weights": lambda m, path, n: by_name(path, f"{n}" * 5000),
    "checkpoint": lambda m, path, n: beside_a_checkpoint(path, n),
}
NAMES = {"checkpoint": "ostinato.json"}


@pytest.fixture(scope="module")
def inputs(made):
    other = ostinato.search(made.placement, micro_batches=12, time_limit=1, threads=1)
    other.save(made.folder / "other.json")
    made.plans, made.files = [made.plan, other], [made.folder / "plan.json", made.folder / "other.json"]
    return made


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_is_old_or_new_or_absent(inputs, tmp_path, name):
    random, folder = Random(f"{SEED} {name}"), tmp_path / "tag"
    folder.mkdir()
    path = folder / NAMES.get(name, "file")

    def write(version: int) -> Callable[[], object]:
        return lambda: WRITERS[name](inputs, path, version)

    versions = []
    for version in range(2):
        write(version)()
        versions.append(path.read_bytes())
    stops, killed = system_calls(write(1)), 0
    for point in range(POINTS):
        before = random.choice((None, versions[0]))
        path.unlink(missing_ok=True)
        if before is not None:
            write_text(path, before.decode())
        if point % 2:
            killed_at_call(
                write(1),
                random.randrange(stops) if POINTS < stops else point // 2 * stops // (POINTS // 2 + 1),
            )
        else:
            killed_at_byte(write(1), random.randrange(len(versions[1])))
        killed += 1
        left = path.read_bytes() if path.exists() else None
        assert left in (before, versions[1]), f"point {point}: {left and left[:100]!r}"
        write(0)()
        assert contents(folder) == {path.name: versions[0]}, f"point {point}"
    print(f"{name}: {killed} points, {stops} stops at system calls, {len(versions[1])} bytes")
    assert killed == POINTS and stops > 2
