# SPDX-License-Identifier: Apache-2.0
"""Placements with every feature, drawn by hypothesis: search, verify, simulate and the curve never fail in a
way that is not documented."""

import json
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ostinato import cli

DONE, INFEASIBLE = 0, 4
SETTINGS = settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@st.composite
def links(draw):
    """[link], and an override for one pair."""
    text = f"[link]\nlatency = {draw(st.integers(0, 3))}\nbandwidth = {draw(st.sampled_from(['0', '0.5', '2']))}\n"
    if draw(st.booleans()):
        text += f"[[links]]\nfrom = 0\nto = 1\nlatency = {draw(st.integers(0, 9))}\n"
    return text


@st.composite
def stages(draw):
    """Chunks of a model on 2 or 3 devices: (devices, forward, backward, weight or 0, kept, workspace)."""
    device = st.integers(0, 1)
    places = st.one_of(st.just([0, 1]), device.map(lambda d: [d]))
    stage = st.tuples(
        places, st.integers(0, 5), st.integers(1, 9), st.integers(0, 3), st.integers(1, 4), st.integers(0, 2)
    )
    return draw(st.lists(stage, min_size=1, max_size=4))


def block(name, stage, kind, devices, time, memory, workspace, after):
    inputs = ", ".join(f'{{ block = "{a}", bytes = 1000 }}' for a in after)
    return (
        f'[[blocks]]\nname = "{name}"\nstage = "{stage}"\nkind = "{kind}"\ndevices = {devices}\ntime = {time}\n'
        f"memory = {memory}\nworkspace = {workspace}\nafter = [{inputs}]\n"
    )


@st.composite
def placements(draw):
    """A chain of stages with a skip edge now and then; halves of backwards."""
    chunks = draw(stages())
    text = 'format = "ostinato-placement/1"\nname = "drawn"\ntime_unit = "us"\nmemory_unit = "B"\n' + draw(
        links()
    )
    for d in range(2):
        text += f'[[devices]]\nname = "gpu{d}"\nstatic = {draw(st.integers(0, 3))}\n'
        if draw(st.booleans()):
            text += f"memory = {draw(st.integers(3, 24))}\n"
    forwards = ""
    backwards = []
    for s, (devices, forward, backward, weight, kept, workspace) in enumerate(chunks):
        before = [f"{s - 1}.F"] if s > 0 else []
        if s > 1 and draw(st.booleans()):
            before.append(f"{s - 2}.F")
        taken = 0 if forward == 0 else kept  # memory that moves in no time proves nothing: docs/bounds.md
        forwards += block(f"{s}.F", s, "forward", devices, forward, taken, 0, before)
        after = [f"{s}.F"] + ([f"{s + 1}.B"] if s + 1 < len(chunks) else [])
        split = weight > 0
        kind = "backward_input" if split else "backward"
        text_of = block(f"{s}.B", s, kind, devices, backward, 0 if split else -taken, workspace, after)
        if split:
            text_of += block(f"{s}.W", s, "backward_weight", devices, weight, -taken, 0, [f"{s}.B"])
        backwards.insert(0, text_of)
    return text + forwards + "".join(backwards)


def ostinato(*args):
    return cli.main([str(arg) for arg in args])


def search(folder, *more):
    return ostinato("search", folder / "p.toml", "--time-limit", 20, "--threads", 2, *more)


def check(plan, placement):
    assert ostinato("verify", plan, placement) == DONE
    assert ostinato("simulate", plan, placement, "--jitter", "0.2", "--runs", 5, "--explain") == DONE
    assert ostinato("show", plan, placement) == DONE


@SETTINGS
@given(placements(), st.integers(1, 5), st.sampled_from(["makespan", "span", "latency"]))
def test_what_is_found_holds(text, micro_batches, objective):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "p.toml").write_text(text)
        plan = folder / "plan.json"
        status = search(folder, "--micro-batches", micro_batches, "--objective", objective, "--output", plan)
        assert status in (DONE, INFEASIBLE), text
        assert plan.exists() == (status != INFEASIBLE)
        if status != INFEASIBLE:
            check(plan, folder / "p.toml")


@SETTINGS
@given(placements(), st.integers(1, 4))
def test_the_curve_holds(text, micro_batches):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "p.toml").write_text(text)
        args = ["--micro-batches", micro_batches, "--pareto", "memory", "--points", 4]
        status = search(folder, *args, "--output", folder / "curve")
        assert status in (DONE, INFEASIBLE), text
        makespans = []
        for plan in sorted((folder / "curve").iterdir(), key=lambda p: -int(p.stem.split("-")[1])):
            check(plan, folder / "p.toml")
            makespans.append(json.loads(plan.read_text())["makespan"])
        assert makespans == sorted(set(makespans))
