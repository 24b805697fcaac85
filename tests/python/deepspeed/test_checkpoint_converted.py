# SPDX-License-Identifier: Apache-2.0
"""`ostinato checkpoint`: a placement's checkpoint for DeepSpeed alone, what lies in one, and what DeepSpeed
alone says of one that is not converted."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.models import LAYERS
from support.plans import Layout, make_plan, placement_text
from support.training import MICRO_BATCHES, Options, make_engine
from test_deepspeed_checkpoint import (
    BF16, FOUR, FP16, FRONT, LOOPED, STOCK, WARMUP, WAVE, ZERO_1, changed, half, load, load_half, load_states, resaved, save, save_half, save_states, under,
)  # fmt: skip

from ostinato import checkpoint


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    return {
        x.name: str(make_plan(folder / x.name, x, LAYERS, MICRO_BATCHES))
        for x in (STOCK, WAVE, LOOPED, FOUR, FRONT)
    }


def run(capsys, *words):
    status = checkpoint.main([str(word) for word in words])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


CASES = {  # options, the placement that saves
    "fp32": (Options(), "wave"),
    "fp32-tied": (Options(tied=True), "looped"),
    "fp32-two-groups": (Options(config=WARMUP, own_optimizer=True), "looped"),
    "fp32-idle-rank": (Options(model="changed", change="front_frozen"), "front"),
    "fp32-idle-rank-frozen-left-out": (
        Options(model="changed", change="front_frozen", frozen_too=False),
        "front",
    ),
    "fp32-zero1": (Options(config=ZERO_1), "wave"),
    "fp32-zero1-tied": (Options(config=ZERO_1, tied=True), "wave"),
    "fp16": (Options(config=FP16), "wave"),
    "fp16-flat": (Options(config=FP16, own_optimizer=True), "looped"),
    "fp16-zero1": (Options(config=FP16 | ZERO_1), "wave"),
    "bf16-zero1": (Options(config=BF16 | ZERO_1 | WARMUP, own_optimizer=True), "wave"),
}


@pytest.mark.parametrize("case", CASES)
def test_deepspeed_alone_goes_on(world2, plans, saved, tmp_path, capsys, monkeypatch, case):
    """With the losses of the run that saved the checkpoint. Tensors that are put together lie in files, as
    large ones do."""
    from ostinato.deepspeed.save import convert

    monkeypatch.setattr(convert, "SMALL", 16)
    options, before = CASES[case]
    ways = (save_half, load_half) if "fp16" in case else (save, load)
    folder, expected = saved(world2, under(options, plans[before]), ways[0])
    status, out, err = run(capsys, "convert", folder, tmp_path / "alone")
    assert status == 0, err
    assert out.endswith(
        "global_step3 for DeepSpeed alone, 1 replica: stage 0 has layers 0 to 3; stage 1 has layers 4 to 7\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["alone"]
    assert not list((tmp_path / "alone" / "global_step3").glob("*.tmp"))
    for rank, result in enumerate(world2.run(ways[1], options, str(tmp_path / "alone"))):
        assert result.get("losses") == expected[rank], result
        assert (result["note"], result["steps"]) == ("kept", 3)


def load_alone(options: Options, folder: str) -> list[str]:
    """What DeepSpeed's own load_checkpoint() says, as where ostinato is not installed: with optimizer state,
    and without."""
    said = []
    for wanted in (True, False):
        engine = make_engine(options)
        try:
            type(engine).load_checkpoint.__wrapped__(engine, folder, load_optimizer_states=wanted)
            said.append("")
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def load_alone_half(options: Options, folder: str) -> list[str]:
    return half(load_alone, options, folder)


SEALED = "this optimizer state belongs to an ostinato placement"
# Whose layers have equal shapes: DeepSpeed alone would go on with the state of other layers.
EQUAL = Options(model="strangers")


@pytest.mark.parametrize(
    "case",
    [
        "fp32",
        "fp32-zero1",
        "fp16",
        "fp16-flat",
        "fp16-zero1",
        "bf16-zero1",
        "equal",
        "equal-zero1",
        "elastic",
    ],
)
def test_deepspeed_alone_does_not_take_the_state_of_a_placement(world2, plans, saved, case):
    """It says whose it is; weights load."""
    equal = {
        "equal": EQUAL,
        "equal-zero1": replace(EQUAL, config=ZERO_1),
        "elastic": replace(EQUAL, config={"zero_optimization": {"stage": 1, "elastic_checkpoint": True}}),
    }
    options, before = (equal[case], "wave") if case in equal else CASES[case]
    ways = (save_half, load_alone_half) if "fp16" in case else (save, load_alone)
    folder, _ = saved(world2, under(options, plans[before]), ways[0])
    for with_state, without in world2.run(ways[1], options, folder):
        assert SEALED in with_state and "convert it (ostinato checkpoint convert)" in with_state, with_state
        assert without == ""


def test_for_another_number_of_stages_and_of_replicas(world4, plans, saved, tmp_path, capsys):
    """Two replicas of two stages save; DeepSpeed alone reads it on four stages, and on two replicas that are
    cut otherwise."""
    options = Options(config=ZERO_1 | BF16)
    folder, (expected, *_) = saved(world4, under(options, plans["wave"]), save_states)
    (tmp_path / "placement.toml").write_text(placement_text(Layout("uneven", (5,), (0, 1)), LAYERS))
    ways = [(replace(options, stages=4), ("--stages", 4, "--replicas", 1)), (options, ("--stages", 2))]
    for number, (reader, words) in enumerate(ways):
        status, _, err = run(capsys, "convert", folder, tmp_path / str(number), *words)
        assert status == 0, err
        got = world4.run(load_states, reader, str(tmp_path / str(number)))[0]
        assert got.keys() == expected.keys() and all(torch.equal(got[name], expected[name]) for name in got)
    status, out, _ = run(
        capsys, "convert", folder, tmp_path / "uneven", "--placement", tmp_path / "placement.toml", "--json"
    )
    assert (status, json.loads(out)["bounds"], json.loads(out)["replicas"]) == (0, [0, 5, 8], 2)


def own_bounds(options: Options) -> list[int]:
    return make_engine(options).module.partitions()


@pytest.mark.parametrize("method", ["parameters", "type:block|linear"])
def test_deepspeeds_own_partition_is_known_without_the_model(world2, world4, saved, tmp_path, capsys, method):
    """As the script's PipelineModule has it: here of what learns, or of layers by their type."""
    options = Options(partition=method, tied=method == "parameters")
    plan = str(make_plan(tmp_path / "plan", Layout("turned", (4,), (1, 0)), LAYERS, MICRO_BATCHES))
    folder, _ = saved(world2, under(options, plan), save)
    expected = [int(bound) for bound in world4.run(own_bounds, replace(options, stages=4))[0]]
    status, out, err = run(capsys, "convert", folder, tmp_path / "four", "--stages", 4, "--json")
    assert status == 0, err
    assert json.loads(out)["bounds"] == expected
    with_file = json.loads((Path(folder) / "global_step3" / "ostinato.json").read_text())["model"]["files"]
    assert with_file == [
        int(path.name[6:8]) for path in sorted((Path(folder) / "global_step3").glob("layer_*"))
    ]


def recorded(change):
    def apply(files: Path) -> None:
        record = json.loads((files / "ostinato.json").read_text())
        change(record)
        (files / "ostinato.json").write_text(json.dumps(record))

    return apply


REFUSED = {  # what spoils a checkpoint, and how it is converted
    "mp_rank_01_model_states.pt is missing": (lambda files: (files / "mp_rank_01_model_states.pt").unlink(), ("--stages", 2)),
    "mp_rank_00_model_states.pt cannot be read (": (lambda files: os.truncate(files / "mp_rank_00_model_states.pt", 3000), ("--stages", 2)),
    "layer_05-model_states.pt is missing": (lambda files: (files / "layer_05-model_states.pt").unlink(), ("--stages", 2)),
    "layer_02-model_states.pt cannot be read (": (lambda files: os.truncate(files / "layer_02-model_states.pt", 900), ("--stages", 2)),
    "mp_rank_02_model_states.pt is not part of this checkpoint, which has 2 ranks": (
        lambda files: shutil.copy(files / "mp_rank_01_model_states.pt", files / "mp_rank_02_model_states.pt"), ("--stages", 2)),
    "mp_rank_01_model_states.pt has global_steps 2, but mp_rank_00_model_states.pt has 3": (
        resaved(lambda held: held.update(global_steps=2)), ("--stages", 2)),
    "is not from DeepSpeed's pipeline engine (KeyError: 'mp_world_size')": (
        resaved(lambda held: held.pop("mp_world_size"), "mp_rank_00_model_states.pt"), ("--stages", 2)),
    "the parameters in group 0 of pipeline rank 1 are not in the order of the model": (
        recorded(lambda record: record["parameters"][1][0].reverse()), ("--stages", 2)),
    "pipeline rank 1 has 1 parameter group, but another rank has 2": (recorded(lambda record: record["parameters"][1].pop()), ("--stages", 2)),
    'is in group 0 of pipeline rank 0, but in group 1 of pipeline rank 1': (
        recorded(lambda record: record["parameters"][1][1].insert(0, record["parameters"][0][0][0])), ("--stages", 2)),
    "the optimizer has parameters that are in no layer of their rank, as where model_parameters are those of a whole model": (
        recorded(lambda record: record["parameters"][1][0].append(["", [3]])), ("--stages", 2)),
    "several ranks hold parts of layers 3": (recorded(lambda record: record.update(sharded=[3])), ("--stages", 2)),
    "layers are cut over tensor-parallel ranks": (
        resaved(lambda held: held["checkpoint_parallel_dimensions"].update(tp_degree=2), "mp_rank_00_model_states.pt"), ("--stages", 2)),
    "without ZeRO, DeepSpeed's files do not say which parameter is which": (recorded(lambda record: record.pop("parameters")), ("--stages", 2)),
    "the model has its own way to cut itself: give the layers": (recorded(lambda record: record["model"].update(weights=None)), ("--stages", 3)),
    "the checkpoint does not say how DeepSpeed would cut the model, as one saved under a plan does: give the layers": (
        recorded(lambda record: record.pop("model")), ("--stages", 2)),
    "ostinato.json cannot be read: it is incomplete, or not written by ostinato (model.bounds: Input should be a valid array)": (
        recorded(lambda record: record["model"].update(bounds=3)), ("--stages", 2)),
    "ostinato.json cannot be read: it is incomplete, or not written by ostinato (Value error, parameters of 1 ranks, but layers of 2)": (
        recorded(lambda record: record["parameters"].pop()), ("--stages", 2)),
    "or not written by ostinato (parameters.1.0.0.1.0: Input should be less than 9223372036854775808)": (
        recorded(lambda record: record["parameters"][1][0][0][1].insert(0, 2**63)), ("--stages", 2)),
    "or not written by ostinato (layers.0.0: Input should be greater than or equal to 0)": (
        recorded(lambda record: record["layers"][0].insert(0, -1)), ("--stages", 2)),
    "layer_3_expert_0_mp_rank_00_model_states.pt: this command cannot read the separate files of layers with experts": (
        lambda files: (files / "layer_3_expert_0_mp_rank_00_model_states.pt").touch(), ("--stages", 2)),
    "would have no parameters in group 1 of the optimizer": (lambda files: None, ("--stages", 8)),
    "--stages 9: the model has 8 layers": (lambda files: None, ("--stages", 9)),
    "DeepSpeed alone needs one stage per device": (lambda files: None, ("--placement", "wave")),
}  # fmt: skip


def test_what_cannot_be_converted_leaves_nothing(world2, plans, saved, tmp_path, capsys):
    options = Options(config=WARMUP, own_optimizer=True)
    folder, _ = saved(world2, under(options, plans["looped"]), save)
    for number, (words, (change, how)) in enumerate(REFUSED.items()):
        spoilt = changed(folder, tmp_path / "from" / str(number), change)
        how = [Path(plans[word]).with_name("placement.toml") if word in plans else word for word in how]
        status, out, err = run(capsys, "convert", spoilt, tmp_path / "to" / "new", *how)
        assert status == 3 and words in err and err.startswith("ostinato checkpoint: "), err
        assert str(spoilt) in err or words.startswith("DeepSpeed alone needs"), err
        assert not (tmp_path / "to").exists() or not list((tmp_path / "to").iterdir()), words
    (tmp_path / "there").mkdir()
    assert "already exists" in run(capsys, "convert", folder, tmp_path / "there")[2]
    assert "/proc/new: nothing can be written to /proc: " in run(capsys, "convert", folder, "/proc/new")[2]
    assert "among its tags" in run(capsys, "convert", folder, Path(folder) / "converted")[2]


GAPS = resaved(
    lambda held: held["optimizer_state_dict"]["param_alignment_paddings"][0].__setitem__(0, 2),
    "zero_pp_rank_0_mp_rank_00_optim_states.pt",
)
OLDER = resaved(
    lambda held: held["optimizer_state_dict"]["base_optimizer_state"]["state"][0].update(
        step=torch.tensor(2.0)
    ),
    "zero_pp_rank_0_mp_rank_01_optim_states.pt",
)
REFUSED_OF_ZERO = {
    '"parameter_alignment" left gaps between parameters': (GAPS, ("--stages", 2)),
    "group 0 of a stage has 304 elements, too few for 4000 replicas": (lambda files: None, ("--stages", 2, "--replicas", 4000)),
    "optimizer state from different steps: zero_pp_rank_0_mp_rank_00_optim_states.pt from step 3.0, zero_pp_rank_0_mp_rank_01_optim_states.pt from step 2.0": (
        OLDER, ("--stages", 2)),
    "zero_pp_rank_0_mp_rank_01_optim_states.pt is missing": (
        lambda files: (files / "zero_pp_rank_0_mp_rank_01_optim_states.pt").unlink(), ("--stages", 2)),
    "zero_pp_rank_0_mp_rank_00_optim_states.pt is not from DeepSpeed: it holds a list": (
        lambda files: torch.save([], files / "zero_pp_rank_0_mp_rank_00_optim_states.pt"), ()),
}  # fmt: skip


def test_what_cannot_be_converted_of_zero(world2, plans, saved, tmp_path, capsys):
    folder, _ = saved(world2, under(Options(config=ZERO_1), plans["wave"]), save)
    for number, (words, (change, how)) in enumerate(REFUSED_OF_ZERO.items()):
        spoilt = changed(folder, tmp_path / "from" / str(number), change)
        status, _, err = run(capsys, "convert", spoilt, tmp_path / "to", *how)
        assert status == 3 and words in err, err


def test_of_deepspeed_alone_zero_says_which_parameter_lies_where(
    world2, world4, plans, saved, tmp_path, capsys
):
    """So its state is cut for another number of replicas; which layers are tied it does not say."""
    options, placement = Options(config=ZERO_1), Path(plans["stock"]).with_name("placement.toml")
    folder, (expected, *_) = saved(world4, options, save_states)
    status, _, err = run(
        capsys, "convert", folder, tmp_path / "one", "--placement", placement, "--replicas", 1
    )
    assert status == 0, err
    got = world2.run(load_states, options, str(tmp_path / "one"))[0]
    assert got.keys() == expected.keys() and all(torch.equal(got[name], expected[name]) for name in got)
    folder, _ = saved(world2, replace(options, tied=True), save)
    said = run(capsys, "convert", folder, tmp_path / "tied", "--placement", placement)[2]
    assert 'it does not say to which layers "tied_modules.embed.weight" belongs' in said


def test_a_full_disk(world2, plans, saved, tmp_path, capsys, monkeypatch):
    def full(state, path):
        Path(path).write_bytes(b"PK")
        raise RuntimeError(
            "[enforce fail at inline_container.cc:858] . PytorchStreamWriter failed writing file data/3: file write failed\nbacktrace"
        )

    folder, _ = saved(world2, under(Options(config=ZERO_1), plans["wave"]), save)
    monkeypatch.setattr(torch, "save", full)
    status, _, err = run(capsys, "convert", folder, tmp_path / "to", "--stages", 2)
    assert (
        status == 3
        and "zero_pp_rank_0_mp_rank_00_optim_states.pt cannot be written: [enforce fail" in err
        and "backtrace" not in err
    )
    assert list(tmp_path.iterdir()) == []


def test_states_that_deepspeed_alone_has_not(world2, plans, saved, tmp_path, capsys):
    folder, _ = saved(world2, under(Options(config=BF16, tied=True), plans["wave"]), save)
    assert (
        "DeepSpeed alone cannot load bf16 without ZeRO"
        in run(capsys, "convert", folder, tmp_path / "to", "--stages", 2)[2]
    )
    folder, _ = saved(world2, Options(), save)
    (tmp_path / "placement.toml").write_text(placement_text(Layout("uneven", (5,), (0, 1)), LAYERS))
    said = run(capsys, "convert", folder, tmp_path / "to", "--placement", tmp_path / "placement.toml")[2]
    assert (
        "DeepSpeed's files do not say which parameter is which: load it under a plan and save it again"
        in said
    )


def test_show_says_what_lies_in_it(world2, plans, saved, tmp_path, capsys):
    folder, _ = saved(world2, under(Options(config=ZERO_1, tied=True), plans["wave"]), save)
    status, out, err = run(capsys, "show", folder)
    assert status == 0, err
    assert f"{folder}/global_step3: step 3, 24 samples, DeepSpeed 0." in out
    assert "Tags: global_step3 (latest)" in out
    assert "Training: fp32, ZeRO-1, optimizer Adam (exp_avg, exp_avg_sq, step)" in out
    assert (
        "Ranks: 2 stages, 1 replica, 1 slice; layers placed by ostinato: convert it for DeepSpeed alone"
        in out
    )
    assert out.endswith("Whole: every file is there and can be read\n")
    told = json.loads(run(capsys, "show", Path(folder) / "global_step3", "--json")[1])
    assert told["placement"]["layers"] == [[0, 6, 7], [1, 2, 3, 4, 5]] and told["tags"] == ["global_step3"]
    assert [(layer["index"], layer["parameters"], layer["ranks"]) for layer in told["layers"]] == [
        (0, 208, [0]), (1, 88, [1]), (2, 72, [1]), (3, 40, [1]), (5, 88, [1]), (6, 88, [0]),
    ]  # fmt: skip
    assert told["bytes"]["layers"] == sum(path.stat().st_size for path in Path(folder).glob("*/layer_*"))
    folder = changed(
        folder,
        tmp_path / "torn",
        lambda files: os.truncate(files / "zero_pp_rank_0_mp_rank_01_optim_states.pt", 2000),
    )
    status, out, _ = run(capsys, "show", folder)
    assert status == 6 and "NOT whole: zero_pp_rank_0_mp_rank_01_optim_states.pt cannot be read (" in out


def test_show_of_deepspeed_alone(world2, saved, tmp_path, capsys):
    folder, _ = saved(world2, Options(), save)
    status, out, _ = run(capsys, "show", folder)
    assert status == 0 and "ZeRO-0, optimizer Adam" in out and "saved by DeepSpeed alone" in out
    assert "No weights in" not in out
    frozen = ("layer_00-model_states.pt", "layer_02-model_states.pt")
    folder = changed(
        folder, tmp_path / "excluded", lambda files: [torch.save({}, files / name) for name in frozen]
    )
    status, out, _ = run(capsys, "show", folder)
    assert status == 0 and "No weights in layers 0, 2: they have none, or exclude_frozen_parameters" in out


def test_what_is_no_checkpoint(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    for tag in ("a", "b"):
        (tmp_path / "two" / tag).mkdir(parents=True)
        (tmp_path / "two" / tag / "mp_rank_00_model_states.pt").write_bytes(b"PK, torn")

    def said(folder: str, *words) -> str:
        status, out, err = run(capsys, "show", tmp_path / folder, *words)
        assert (status, out) == (3, "")
        return err

    assert "gone: no such folder" in said("gone")
    (tmp_path / "file").touch()
    assert "file: this is a file; give the folder that save_checkpoint()" in said("file")
    assert "empty holds no checkpoint of DeepSpeed's pipeline engine: no mp_rank_*" in said("empty")
    assert "two has no file 'latest': choose a tag with --tag; there is a, b" in said("two")
    assert "two: tag 'c', which does not exist; there is a, b" in said("two", "--tag", "c")
    assert "two: tag '', which does not exist; there is a, b" in said("two", "--tag", "")
    (tmp_path / "two" / "latest").write_text("gone\n")
    assert "latest names tag 'gone', which does not exist; there is a, b" in said("two")
    (tmp_path / "two" / "latest").write_bytes(b"\xff\0a")
    assert "which does not exist; there is a, b" in said("two")
    assert "b: mp_rank_00_model_states.pt cannot be read (" in said("two", "--tag", "b")


def test_sigterm_leaves_nothing_half_written(world2, plans, saved, tmp_path, monkeypatch):
    folder, _ = saved(world2, under(Options(), plans["wave"]), save)
    monkeypatch.setattr(torch, "save", lambda *_: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(KeyboardInterrupt):
        checkpoint.main(["convert", folder, str(tmp_path / "to")])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words", [("convert", "a"), ("show", "a", "b"), ("show", "a", "--replicas", "2")], ids=" ".join
)
def test_misuse(words, capsys):
    status, out, err = run(capsys, *words)
    assert (status, out) == (2, "") and "Try: ostinato checkpoint --help" in err


def test_nothing_in_the_files_needs_ostinato(world2, plans, saved):
    """They are unpickled where it is not installed."""
    folder, _ = saved(world2, under(Options(config=ZERO_1, tied=True), plans["wave"]), save)
    code = "import sys, glob, torch; sys.modules['ostinato'] = None; [torch.load(name, weights_only=False) for name in glob.glob(sys.argv[1] + '/*/*.pt')]"
    environment = os.environ | {"DS_ACCELERATOR": "cpu", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    subprocess.run([sys.executable, "-c", code, folder], check=True, env=environment, timeout=300)
