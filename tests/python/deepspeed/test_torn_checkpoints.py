# SPDX-License-Identifier: Apache-2.0
"""Files of several saves in one checkpoint are never loaded with optimizer state, whatever the placement: they fit
each other in everything but what is in them. Where weights alone are read they are named, as someone may have
changed them."""

import io
import json
import shutil
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.models import LAYERS
from support.plans import Layout, make_plan
from support.training import MICRO_BATCHES, Options, data_of, make_engine, weights

from ostinato import checkpoint

LAYOUTS = (Layout("wave", (2, 4, 6), (0, 1, 1, 0)), Layout("looped", (2, 4, 6), (0, 1, 0, 1)))
ZERO_1 = {"zero_optimization": {"stage": 1}}
RANK_FILE = "mp_rank_01_model_states.pt"


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    made = [make_plan(folder / layout.name, layout, LAYERS, MICRO_BATCHES) for layout in LAYOUTS]
    return [{"plan": str(plan)} for plan in made]


def save(options: Options, folder: str) -> None:
    """After one step, and after two; before the second, files of a save by more ranks lie there."""
    engine = make_engine(options)
    data = data_of(engine)
    engine.train_batch(data)
    engine.save_checkpoint(folder, "one")
    engine.train_batch(data)
    (Path(folder) / "two").mkdir(exist_ok=True)
    for name in ("mp_rank_02_model_states.pt", "zero_pp_rank_0_mp_rank_02_optim_states.pt"):
        (Path(folder) / "two" / name).touch()
    engine.save_checkpoint(folder, "two")


def attempts(options: Options, folders: list[str], optimizer: bool) -> list[str]:
    """What load_checkpoint() said of each: the error, before it changed a weight, or else the last line it printed."""
    engine, said = make_engine(options), []
    for folder in folders:
        before = weights(engine)
        with redirect_stdout(io.StringIO()) as printed:
            try:
                engine.load_checkpoint(folder, "two", load_optimizer_states=optimizer)
                error = ""
            except Exception as raised:
                error = f"{type(raised).__name__}: {raised}"
        if error:
            assert weights(engine) == before
        lines = [line for line in printed.getvalue().splitlines() if line.startswith("ostinato: ")]
        said.append(error or "".join(lines[-1:]))
    return said


def of_the_first(name: str):
    return lambda files: shutil.copy(files.parent / "one" / name, files / name)


def cut_off(files: Path) -> None:
    file = files / "layer_02-model_states.pt"
    file.write_bytes(file.read_bytes()[:500])


def not_finished(files: Path) -> None:
    record = json.loads((files / "ostinato.json").read_text())
    (files / "ostinato.json").write_text(json.dumps(record | {"files": None}))


TORN = {
    "layer_03-model_states.pt belongs to another save than ostinato.json. Load an earlier": of_the_first(
        "layer_03-model_states.pt"
    ),
    f"{RANK_FILE} belongs to another save than ostinato.json": of_the_first(RANK_FILE),
    "layer_05-model_states.pt is missing": lambda files: (files / "layer_05-model_states.pt").unlink(),
    "layer_02-model_states.pt is not a torch.save() archive, or is truncated": cut_off,
    "two is not complete: the run ended while it was saved": not_finished,
    "layer_00-model_states.pt belongs to another save than ostinato.json, and ": of_the_first(
        "ostinato.json"
    ),
}
GONE = [spoil for words, spoil in TORN.items() if " belongs to another save than " not in words]


@pytest.mark.parametrize("config", [{}, ZERO_1], ids=["zero0", "zero1"])
def test_files_of_several_saves_are_refused(world2, plans, saved, tmp_path, capsys, config):
    """By name, before anything is loaded: under the same plan, under another, in a first start, and by DeepSpeed
    alone where ostinato is installed."""
    options = Options(config=config)
    same, other = (replace(options, section=plan) for plan in plans)
    whole, _ = saved(world2, same, save)
    found = sorted(path.name for path in (Path(whole) / "two").iterdir())
    assert not any("rank_02" in name for name in found) and RANK_FILE in found
    torn = []
    for number, spoil in enumerate(TORN.values()):
        torn.append(shutil.copytree(whole, tmp_path / str(number)))
        spoil(torn[-1] / "two")
    first = replace(same, section=plans[0] | {"check": 4})
    for reader, optimizer in ((same, True), (same, False), (other, True), (first, True), (options, False)):
        for rank, said in enumerate(world2.run(attempts, reader, [*map(str, torn), whole], optimizer)):
            assert said.pop() == ""
            for (words, spoil), what in zip(TORN.items(), said, strict=True):
                if optimizer or spoil in GONE:
                    assert what.startswith("OstinatoError: ") and words in what, what
                    assert "the weights in this one may be of several saves" in what
                    assert ("If you have changed it yourself, load only" in what) == (spoil not in GONE)
                else:
                    assert ("if you have not changed it yourself" in what) == (rank == 0), what
                    assert rank or words.split(".pt")[0] in what
    for folder in torn:
        assert checkpoint.main(["show", str(folder), "--tag", "two"]) == 6
    assert checkpoint.main(["show", whole, "--tag", "two"]) == 0
    assert "NOT whole: the run ended while it was saved" in capsys.readouterr().out


def test_without_ostinato_json_its_absence_is_named(world2, plans, saved, tmp_path, capsys):
    same, other = (replace(Options(), section=plan) for plan in plans)
    folder = shutil.copytree(saved(world2, same, save)[0], tmp_path / "copy")
    (folder / "two" / "ostinato.json").unlink()
    for reader in (same, other):
        for (error,) in world2.run(attempts, reader, [str(folder)], True):
            assert "ostinato.json is missing" in error, error
    assert checkpoint.main(["show", str(folder), "--tag", "two"]) == 6
    assert "NOT whole: ostinato.json is missing" in capsys.readouterr().out


def only_weights(options: Options, folder: str) -> tuple[str, bool]:
    """What load_checkpoint() says where it is to load all, and whether weights load without optimizer state."""
    engine = make_engine(options)
    try:
        engine.load_checkpoint(folder, "two")
        error = ""
    except Exception as said:
        error = str(said)
    loaded, _ = engine.load_checkpoint(folder, "two", load_optimizer_states=False)
    again, _ = engine.load_checkpoint(folder, "two", load_module_only=True)
    return error, loaded is not None and again is not None


def test_weights_load_where_the_files_of_the_optimizer_were_removed(world2, plans, saved, tmp_path):
    """They are the largest of a checkpoint, and many keep only the newest ones; DeepSpeed does not read them either."""
    options = Options(config=ZERO_1)
    same, other = (replace(options, section=plan) for plan in plans)
    folder = shutil.copytree(saved(world2, same, save)[0], tmp_path / "pruned")
    for path in (folder / "two").glob("*_optim_states.pt"):
        path.unlink()
    for reader in (same, other, replace(same, section=plans[0] | {"check": 4}), options):
        for error, loaded in world2.run(only_weights, reader, str(folder)):
            assert loaded
            assert "_optim_states.pt is missing, and 1 more. To load only the weights: load" in error


def save_again(options: Options, folder: str, original: bool) -> None:
    """Under the tag "two", after three steps. `original`: by DeepSpeed's own code, as where ostinato is not installed."""
    engine = make_engine(options)
    data = data_of(engine)
    for _ in range(3):
        engine.train_batch(data)
    save_checkpoint = type(engine).save_checkpoint
    (save_checkpoint.__wrapped__ if original else save_checkpoint)(engine, folder, "two")


def steps_loaded(options: Options, folder: str) -> list[int]:
    """Steps that "two" has counted, loaded with optimizer state, without, and as weights alone."""
    counted = []
    for how in ({}, {"load_optimizer_states": False}, {"load_module_only": True}):
        engine = make_engine(options)
        assert engine.load_checkpoint(folder, "two", **how)[0] is not None
        counted.append(engine.global_steps)
    return counted


@pytest.mark.parametrize("config", [{}, ZERO_1], ids=["zero0", "zero1"])
def test_deepspeed_alone_saves_a_tag_of_a_plan_again(world2, plans, saved, tmp_path, config):
    """As after the section was removed, and in a first start: the whole checkpoint is its own then."""
    alone = Options(config=config)
    same, other = (replace(alone, section=plan) for plan in plans)
    whole, _ = saved(world2, same, save)
    for number, writer in enumerate((alone, replace(same, section=plans[0] | {"check": 4}))):
        folder = shutil.copytree(whole, tmp_path / str(number))
        for rank in (2, 3):
            (folder / "two" / f"mp_rank_0{rank}_model_states.pt").touch()  # of a plan on four ranks
        world2.run(save_again, writer, str(folder), False)
        assert not (folder / "two" / "ostinato.json").exists() and (folder / "one" / "ostinato.json").exists()
        assert not [*(folder / "two").glob("mp_rank_0[23]*")]
        for reader in (alone, other):
            assert world2.run(steps_loaded, reader, str(folder)) == [[3, 3, 0]] * 2
        assert checkpoint.main(["show", str(folder), "--tag", "two"]) == 0


def test_deepspeed_without_ostinato_saves_a_tag_of_a_plan_again(world2, plans, saved, tmp_path):
    """Then ostinato.json stays beside files that it does not describe."""
    alone = Options(config=ZERO_1)
    same, other = (replace(alone, section=plan) for plan in plans)
    folder = shutil.copytree(saved(world2, same, save)[0], tmp_path / "copy")
    world2.run(save_again, alone, str(folder), True)
    for reader in (alone, other):
        for (error,) in world2.run(attempts, reader, [str(folder)], True):
            assert "DeepSpeed without ostinato has saved it again: delete ostinato.json in it" in error, error
    (folder / "two" / "ostinato.json").unlink()
    assert world2.run(steps_loaded, other, str(folder)) == [[3, 3, 0]] * 2


def halved(options: Options, folder: str, how: dict) -> bool:
    """Whether a layer's weights load as they were changed in its file."""
    engine = make_engine(options)
    file = Path(folder) / "two" / "layer_03-model_states.pt"
    engine.load_checkpoint(folder, "two", **how)
    held = {name: parameter for name, parameter in engine.module.named_parameters() if name.startswith("3.")}
    return all(
        torch.equal(held[f"3.{name}"], of_file)
        for name, of_file in torch.load(file).items()
        if f"3.{name}" in held
    )


def test_weights_changed_in_their_file_load_alone(world2, plans, saved, tmp_path):
    same, other = (replace(Options(config=ZERO_1), section=plan) for plan in plans)
    folder = shutil.copytree(saved(world2, same, save)[0], tmp_path / "copy")
    file = folder / "two" / "layer_03-model_states.pt"
    torch.save({name: tensor * 0.5 for name, tensor in torch.load(file).items()}, file)
    for reader in (same, other, Options(config=ZERO_1)):
        for how in ({"load_optimizer_states": False}, {"load_module_only": True}):
            assert world2.run(halved, reader, str(folder), how) == [True, True]
