# SPDX-License-Identifier: Apache-2.0
""" "adapt" where the new plan has the stages of the current one: no layer moves, and all ranks go on with it
between two steps, with the losses of 1F1B."""

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import ostinato
import pytest
import torch.distributed as dist
from ostinato.deepspeed.engine.adapt import WITH_TRAINING, Adapt, Better, Moved
from ostinato.deepspeed.errors import OstinatoError
from ostinato.groups import everyones
from ostinato.measured import Measured
from support.models import LAYERS
from support.plans import Layout, make_plan
from support.profiles import write_profile
from support.training import MICRO_BATCHES, Options, data_of, make_engine, weights

BASE = Options(stages=2, steps=16)


def alone(options: Options) -> tuple:
    engine = make_engine(options)
    data = data_of(engine)
    losses = [engine.train_batch(data).item() for _ in range(options.steps)]
    return losses, weights(engine)


def followed(options: Options, method: str, now: float = 1e6) -> tuple:
    """After six steps a search has ended: with the method's order on the same stages. `now`: ns that the plan that runs
    predicts with the measured times; the new one predicts less than 100 us."""
    engine, printed = make_engine(options), io.StringIO()
    run, data, losses = engine._ostinato, data_of(engine), []
    run.adapt._plan = lambda found: None  # no other search
    with redirect_stdout(printed):
        for step in range(options.steps):
            if step == 6 and dist.get_rank() == 0:
                _leave(run.paths.output, method)
                run.adapt._planning, run.adapt._now = SimpleNamespace(poll=lambda: 0), now
            losses.append(engine.train_batch(data).item())
    held = [layer for layer in range(LAYERS) if layer in engine.module.layers_here()]
    return losses, weights(engine), printed.getvalue(), run.program.plan_sha256, held


def _leave(output: Path, method: str) -> None:
    folder, placement = output / "adapted", ostinato.Placement.from_file(output / "placement.toml")
    folder.mkdir(exist_ok=True)
    placement.save(folder / "placement.toml")
    ostinato.search(placement, micro_batches=MICRO_BATCHES, method=method).save(folder / "plan.json")
    (folder / "profile.json").write_bytes((output / "profile.json").read_bytes())
    (folder / "devices.toml").write_text(MEASURED_DEVICES)


MEASURED_DEVICES = '[[kinds]]\nname = "a"\nspeed = 1.0\n[[nodes]]\nkind = "a"\ndevices = 2\n'


def left(output: Path) -> Path:
    """By an earlier run: 1F1B on its own partition."""
    output.mkdir()
    write_profile(output / "profile.json", [100] * LAYERS)
    placement = ostinato.placement("v", devices=2, layers=LAYERS)
    placement.save(output / "placement.toml")
    ostinato.search(placement, micro_batches=MICRO_BATCHES, method="1f1b").save(output / "plan.json")
    return output


@pytest.mark.parametrize("method", ["gpipe", "1f1b"])
def test_all_ranks_go_on_with_another_order(world2, stock, tmp_path, method):
    """If it is one: a plan that is the current one changes nothing."""
    output = left(tmp_path / "out")
    before = (output / "plan.json").read_bytes()
    section = {"auto": True, "output": str(output), "adapt": {"every": 2, "gain": 0.001}}
    expected = stock(world2, BASE, alone)
    found = world2.run(followed, replace(BASE, section=section), method)
    assert [rank[:2] for rank in found] == expected
    said, plan = found[0][2], (output / "plan.json").read_bytes()
    assert [rank[4] for rank in found] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    if method == "1f1b":
        assert "no other plan is better: the current plan stays" in said and plan == before
        return
    assert "times as fast" in said and "no layer moves, so all ranks go on with it\n" in said
    assert "from step" in said and "measured since the new order: " in said
    assert plan == (output / "adapted/plan.json").read_bytes() != before, "for later starts"
    assert (output / "adapted/base-devices.toml").read_text() == MEASURED_DEVICES, "for the next search"
    assert json.loads(plan)["search"]["method"] == "gpipe"


def test_a_gain_is_over_the_plan_that_runs_with_the_same_times(world2, tmp_path):
    """A step takes many times as long as any plan predicts here: that is no gain of the new one."""
    output = left(tmp_path / "out")
    before = (output / "plan.json").read_bytes()
    section = {"auto": True, "output": str(output), "adapt": {"every": 2, "gain": 0.001}}
    said = world2.run(followed, replace(BASE, section=section), "gpipe", 15_000.0)[0][2]
    assert "a new plan would be only 1.000 times as fast (" in said and "from step" not in said
    assert (output / "plan.json").read_bytes() == before


def followed_without_space(options: Options) -> tuple:
    """Rank 1 has none for temporary files."""
    if dist.get_rank() == 0:
        return followed(options, "gpipe")
    with mock.patch.object(Adapt, "_lowered", side_effect=OSError(28, "No space left on device")):
        return followed(options, "gpipe")


def test_a_rank_without_space_for_temporary_files_stays_with_all_ranks(world2, stock, tmp_path):
    section = {"auto": True, "output": str(left(tmp_path / "out")), "adapt": {"every": 2, "gain": 0.001}}
    found = world2.run(followed_without_space, replace(BASE, section=section))
    assert [rank[:2] for rank in found] == stock(world2, BASE, alone)
    why = "rank 1 cannot write the new one to a temporary folder: [Errno 28] No space left on device"
    assert (
        f"all ranks stay with the current plan, because {why}" in found[0][2]
        and "from step" not in found[0][2]
    )


def followed_beside_another(options: Options, what: str) -> tuple:
    """Meanwhile another run with the same "output" leaves its plan there, or nothing can be written."""
    output = Path(options.section["output"])

    def changed(adapt, files) -> None:
        if dist.get_rank() == 0 and what == "another run":
            (output / "plan.json").write_text("theirs")
        elif dist.get_rank() == 0:
            (output / "placement.toml").unlink()
            (output / "placement.toml").mkdir()
        kept(adapt, files)

    kept = Adapt._keep
    with mock.patch.object(Adapt, "_keep", changed):
        return followed(options, "gpipe")


@pytest.mark.parametrize("what", ["another run", "a full disk"])
def test_a_plan_is_left_with_its_placement_and_over_no_other_plan(world2, tmp_path, what):
    output = left(tmp_path / "out")
    before = (output / "placement.toml").read_bytes()
    section = {"auto": True, "output": str(output), "adapt": {"every": 2, "gain": 0.001}}
    said = world2.run(followed_beside_another, replace(BASE, section=section), what)[0][2]
    assert "no layer moves, so all ranks go on with it\n" in said
    if what == "a full disk":
        assert not (output / "plan.json").exists(), "it would be for another placement"
        return
    assert f"{output} no longer has the plan of this run: the new plan is not left there" in said
    assert (output / "plan.json").read_text() == "theirs"
    assert (output / "placement.toml").read_bytes() == before and not (output / "adapted/base.json").exists()


def test_a_search_in_the_background_ends_with_the_training(tmp_path):
    (tmp_path / "ostinato").mkdir()
    (tmp_path / "ostinato/__main__.py").write_text(
        "import sys, time\nprint(sys.argv[1:], flush=True)\ntime.sleep(0 if 'short' in sys.argv else 600)"
    )
    for what, status in (("short", 0), ("long", 1)):
        search = subprocess.Popen(
            [sys.executable, "-S", "-c", WITH_TRAINING, "plan", what],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(tmp_path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert search.stdout.readline() == f"['plan', '{what}']\n".encode()
        if what == "long":
            assert search.poll() is None
            search.stdin.close()  # as the system does when the training ends
        assert search.wait(60) == status


def searched(options: Options) -> tuple[list[str], list[str], int]:
    """What a search in the background must keep to, what it is told, and how it ended."""
    engine = make_engine(options)
    adapt, data = engine._ostinato.adapt, data_of(engine)
    for _ in range(5):
        engine.train_batch(data)
    rows = [row for of_rank in everyones(adapt._times.rows()) for row in of_rank]
    if dist.get_rank() == 0:
        adapt._plan(Measured.of_rows(rows))
        assert adapt._now > 0
        status = adapt._planning.wait()
        written = json.loads((adapt._output / "adapted/allowed.json").read_text())
        return [row["rule"] for row in written["restrictions"]], adapt._planning.args, status
    return [], [], 0


def test_a_search_in_the_background_keeps_to_what_the_run_allows(world2, tmp_path):
    """Also where the run began with a plan and a profile that an earlier one had left."""
    section = {"auto": True, "output": str(left(tmp_path / "out")), "adapt": {"every": 2}}
    rules, told, status = world2.run(searched, replace(BASE, section=section))[0]
    assert rules == ["whole_backwards", "no_shards", "fixed_ends"] and status == 0
    assert told[told.index("--time-limit") + 1] == "0", "a busy machine leaves it little time"


def moves(options: Options, plan: Path, folder: Path, experts: bool) -> tuple[list[tuple], str, bytes]:
    """(steps trained, step of the checkpoint) of each time that all ranks would start again, what rank 0 prints, and
    the plan of a next start. A better plan is there after step 2; the script saves after step 3, and trains on.
    `experts`: as DeepSpeed knows of them."""
    engine, found, printed = make_engine(options), [], io.StringIO()
    adapt, data, saved = engine._ostinato.adapt, data_of(engine), engine._ostinato.adapt.saved
    adapt._move = lambda files, moved: found.append((engine.global_steps, moved.step)) or "this is a test"

    def checked(step, check):
        engine.has_moe_layers = experts
        saved(step, check)
        engine.has_moe_layers = False

    adapt.saved = checked
    with redirect_stdout(printed):
        for step in range(1, 6):
            engine.train_batch(data)
            if step == 2:
                texts = {name: (plan.parent / name).read_text() for name in ("plan.json", "placement.toml")}
                adapt._next = Better(texts)
            if step == 3:
                engine.save_checkpoint(str(folder))
                assert not found, "the script has not yet done what follows its checkpoint"
    return found, printed.getvalue(), (engine._ostinato.paths.output / "plan.json").read_bytes()


@pytest.mark.parametrize("experts", [False, True])
def test_all_ranks_start_again_before_the_step_that_follows_a_checkpoint(world2, tmp_path, experts):
    """So that what a script writes beside it is there when it resumes; and not at all where the checkpoint could not
    be loaded then."""
    output, plan = (
        left(tmp_path / "out"),
        make_plan(tmp_path, Layout("x", (3,), (0, 1)), LAYERS, MICRO_BATCHES),
    )
    before = (output / "plan.json").read_bytes()
    section = {"auto": True, "output": str(output), "adapt": {"every": 50, "move": True}}
    found = world2.run(moves, replace(BASE, section=section), plan, tmp_path / "saved", experts)
    assert [rank[0] for rank in found] == [[] if experts else [(3, 3)]] * 2
    why = "all ranks stay where they are, because they could not go on from a checkpoint: "
    assert (f"{why}{tmp_path}/saved/global_step3: a model with experts from" in found[0][1]) == experts, (
        found[0][1]
    )
    assert found[0][2] == (before if experts else plan.read_bytes())


def begun(options: Options, step: int) -> str:
    """What is said where the script begins after so many steps, and all ranks have started again after step 5."""
    adapt, printed = make_engine(options)._ostinato.adapt, io.StringIO()
    adapt._moved = Moved(step=5, took=1.0)
    with redirect_stdout(printed):
        try:
            adapt.begins(step)
        except OstinatoError as error:
            return f"refused: {error}"
    return printed.getvalue()


@pytest.mark.parametrize(
    "step, said",
    [
        (5, ""),
        (3, "the script has loaded that of step 3: it goes on from there"),
        (0, "refused: all ranks restarted after the checkpoint of step 5, but the script begins with step 1"),
    ],
)
def test_a_script_goes_on_from_any_checkpoint(world2, tmp_path, step, said):
    """It may have saved the last one elsewhere, such as in a folder for the best."""
    section = {"auto": True, "output": str(left(tmp_path / "out")), "adapt": {"every": 2, "move": True}}
    found = world2.run(begun, replace(BASE, section=section), step)[0]
    assert said in found if said else found == "", found


def followed_on_a_full_disk(options: Options) -> tuple:
    output = Path(options.section["output"])
    if dist.get_rank() == 0:
        (output / "adapted").mkdir()
        for name in ("base.json", "base-devices.toml"):  # as good as no space: nothing can be written there
            (output / "adapted" / name).mkdir()
    return followed(options, "gpipe")


def test_an_output_that_cannot_be_written_does_not_stop_the_run(world2, stock, tmp_path):
    section = {"auto": True, "output": str(left(tmp_path / "out")), "adapt": {"every": 2, "gain": 0.001}}
    found = world2.run(followed_on_a_full_disk, replace(BASE, section=section))
    assert [rank[:2] for rank in found] == stock(world2, BASE, alone)
    assert "no layer moves, so all ranks go on with it\n" in found[0][2]
