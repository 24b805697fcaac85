# SPDX-License-Identifier: Apache-2.0
"""Checkpoints pass between runs with ostinato and runs without it."""

import errno
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from ostinato.deepspeed.errors import OstinatoError
from ostinato.deepspeed.save import checkpoint
from ostinato.deepspeed.save.partition import facts_of
from ostinato.deepspeed.save.seal import sealing, unsealed
from ostinato.deepspeed.section import verdict
from ostinato.groups import everyones
from ostinato.deepspeed.save.optimizer_files import Slot
from ostinato.deepspeed.save.parts import Piece
from support import training
from support.models import LAYERS
from support.plans import Layout, make_plan
from support.tiers import everyday
from support.training import MICRO_BATCHES, Options, data_of, make_engine, trained_and_saved, weights
from test_deepspeed_features import fp16_on_a_processor

STOCK = Layout("stock", (4,), (0, 1))
WAVE = Layout("wave", (1, 4, 6), (0, 1, 1, 0))
LOOPED = Layout("looped", (2, 4, 6), (0, 1, 0, 1))
FRONT = Layout("front", (3,), (1, 0))
FOUR = Layout("four", (2, 4, 6), (0, 1, 2, 3))
ZERO_1 = {"zero_optimization": {"stage": 1}}


def save(options: Options, folder: str) -> list[float]:
    """Trains 3 steps, saves, trains 3 more; the losses of the latter."""
    engine, data = trained_and_saved(options, folder, 3, client_state={"note": "kept"})
    return [engine.train_batch(data).item() for _ in range(3)]


def load(options: Options, folder: str, optimizer: bool = True) -> dict:
    """Loads, then trains the same 3 steps: `losses`; or `error`."""
    engine = make_engine(options)
    data = data_of(engine, after=3)
    try:
        _, client = engine.load_checkpoint(folder, load_optimizer_states=optimizer)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    loaded = weights(engine)
    return {
        "note": client["note"],
        "steps": engine.global_steps,
        "weights": loaded,
        "losses": [engine.train_batch(data).item() for _ in range(3)],
    }


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    return {
        x.name: str(make_plan(folder / x.name, x, LAYERS, MICRO_BATCHES))
        for x in (STOCK, WAVE, LOOPED, FRONT, FOUR)
    }


def under(options: Options, plan: str) -> Options:
    return replace(options, section={"plan": plan})


@pytest.mark.parametrize("config", everyday([{}, ZERO_1], ZERO_1), ids=["zero0", "zero1"])
@pytest.mark.parametrize("first", ["ostinato", "deepspeed"])
def test_same_partition(world2, plans, saved, config, first):
    """Saved on one side, loaded on the other, optimizer and all: training goes on as if nothing had happened."""
    alone = Options(config=config)
    ours = under(alone, plans["stock"])
    writer, reader = (ours, alone) if first == "ostinato" else (alone, ours)
    folder, expected = saved(world2, writer, save)
    for rank, result in enumerate(world2.run(load, reader, folder)):
        assert result["losses"] == expected[rank]
        assert (result["note"], result["steps"]) == ("kept", 3)


@pytest.mark.parametrize("config", everyday([{}, ZERO_1], ZERO_1), ids=["zero0", "zero1"])
def test_after_a_plan_that_a_run_has_given_up(world2, plans, saved, tmp_path, config):
    """A run that keeps DeepSpeed's own schedule goes on from what an earlier one has saved under the plan."""
    options = under(Options(config=config, tied=True), plans["wave"])
    folder, expected = saved(world2, options, save)
    out = shutil.copytree(Path(plans["wave"]).parent, tmp_path / "out")
    verdict.leave(out / "plan.json", verdict.digest_of(out / "plan.json"), verdict.OWN, "it was slower")
    section = {"auto": True, "fallback": True, "output": str(out)}
    for rank, result in enumerate(world2.run(load, replace(options, section=section), folder)):
        assert result["losses"] == pytest.approx(expected[rank], rel=1e-5) and result["steps"] == 3


@pytest.mark.parametrize("config", everyday([{}, ZERO_1], ZERO_1), ids=["zero0", "zero1"])
def test_same_placement(world2, plans, saved, config):
    options = under(Options(config=config, tied=True), plans["wave"])
    folder, expected = saved(world2, options, save)
    for rank, result in enumerate(world2.run(load, options, folder)):
        assert result["losses"] == expected[rank]


def save_on_a_full_disk(options: Options, folder: str) -> str:
    """What save_checkpoint() says, after which training goes on."""
    engine = make_engine(options)
    data = data_of(engine)
    engine.train_batch(data)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with mock.patch.object(checkpoint, "write", side_effect=full), pytest.raises(OstinatoError) as raised:
        engine.save_checkpoint(folder)
    engine.train_batch(data)
    return str(raised.value)


def test_a_full_disk_is_told_with_what_was_to_be_written(world2, plans, tmp_path):
    said = world2.run(save_on_a_full_disk, under(Options(), plans["wave"]), str(tmp_path))
    assert said == [f"saving a checkpoint to {tmp_path}: [Errno 28] No space left on device"] * 2


def test_layer_files_are_those_of_deepspeed(world2, plans, saved):
    folders = [saved(world2, options, save)[0] for options in (under(Options(), plans["wave"]), Options())]
    ours, theirs = (sorted((Path(folder) / "global_step3").glob("layer_*")) for folder in folders)
    assert [path.name for path in ours] == [path.name for path in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        saved, expected = (torch.load(path, weights_only=False) for path in (mine, other))
        assert saved.keys() == expected.keys()
        assert all(torch.equal(saved[name], expected[name]) for name in saved)


def test_weights_load_under_another_placement(world2, plans, saved):
    folder, _ = saved(world2, Options(), save)
    alone, ours = (
        world2.run(load, options, folder, False) for options in (Options(), under(Options(), plans["wave"]))
    )
    for result, expected in zip(ours, alone, strict=True):
        assert result["weights"] == expected["weights"]
        assert result["losses"] == expected["losses"]


def half(job, options: Options, *args):
    """job() where DeepSpeed takes fp16, and AdamW, which own_optimizer brings, for its fused optimizer, for
    which it flattens groups."""
    from deepspeed.runtime import engine

    with (
        fp16_on_a_processor(),
        mock.patch.object(engine, "FusedAdam", torch.optim.AdamW),
        mock.patch.object(engine, "APEX_INSTALLED", False),
    ):
        return job(options, *args)


def save_half(options: Options, folder: str) -> list[float]:
    return half(save, options, folder)


def load_half(options: Options, folder: str) -> dict:
    return half(load, options, folder)


FP16 = {"fp16": {"enabled": True, "initial_scale_power": 8, "hysteresis": 1, "loss_scale_window": 2}}
BF16 = {"bf16": {"enabled": True}}
WARMUP = {"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.05, "warmup_num_steps": 5}}}
MOVED = {  # options, the placement before, the one after
    "fp32": (Options(), None, "wave"),
    "fp32-two-groups": (Options(config=WARMUP, own_optimizer=True), "looped", "wave"),
    "fp32-idle-rank": (Options(model="changed", change="front_frozen"), "wave", "front"),
    "fp32-zero1": (Options(config=ZERO_1), "wave", "stock"),
    "fp16": (Options(config=FP16), None, "looped"),
    "fp16-flat": (Options(config=FP16, own_optimizer=True), "wave", "looped"),
    "bf16": (Options(config=BF16, tied=True), "wave", "stock"),
    "bf16-zero1": (Options(config=BF16 | ZERO_1 | WARMUP, own_optimizer=True), None, "wave"),
}


@pytest.mark.parametrize("case", everyday(MOVED, "fp32-idle-rank", "fp16-flat", "bf16-zero1"))
def test_training_goes_on_under_another_placement(world2, plans, saved, case):
    """With the losses of the placement that wrote the checkpoint. DeepSpeed's own files name no parameters
    without ZeRO."""
    options, before, after = MOVED[case]
    ways = (save_half, load_half) if "fp16" in case else (save, load)
    folder, expected = saved(world2, under(options, plans[before]) if before else options, ways[0])
    for rank, result in enumerate(world2.run(ways[1], under(options, plans[after]), folder)):
        assert result.get("losses") == expected[rank], result
        assert (result["note"], result["steps"]) == ("kept", 3)


def test_bf16_without_zero_under_the_same_placement(world2, plans, saved):
    """DeepSpeed 0.19.8 alone fails with KeyError: 0."""
    options = under(Options(config=BF16, tied=True), plans["wave"])
    folder, expected = saved(world2, options, save)
    assert world2.run(load, options, folder)[0].get("losses") == expected[0]


def test_a_first_start_reads_what_a_plan_has_saved(world2, plans, saved):
    """DeepSpeed's own engine runs it."""
    options = MOVED["fp32-two-groups"][0]
    folder, expected = saved(world2, under(options, plans["looped"]), save)
    first = replace(options, section={"plan": plans["looped"], "check": 4})
    assert world2.run(load, first, folder)[0].get("losses") == expected[0]


def whole_states(engine) -> dict[str, torch.Tensor]:
    """By parameter: the weights in fp32 and Adam's state, one after the other. DeepSpeed's
    get_full_hp_param() finds the first group's only."""
    optimizer, mine = engine.optimizer, []
    groups = getattr(optimizer, "bit16_groups", None) or optimizer.bf16_groups
    for group, stepped in zip(groups, optimizer.optimizer.param_groups, strict=True):
        flat = stepped["params"][0]
        state = torch.stack(
            [flat.detach(), *(optimizer.optimizer.state[flat][key] for key in ("exp_avg", "exp_avg_sq"))]
        )
        for p in (p for p in group if p._hp_mapping is not None):
            here, begin = p._hp_mapping.hp_fragment_address, p._hp_mapping.lp_fragment_address.start
            mine.append(
                (engine.param_names[p], begin, state[:, here.start : here.start + here.numel].clone())
            )
    found = {(name, begin): piece for held in everyones(mine) for name, begin, piece in held}
    return {
        name: torch.cat([found[key] for key in sorted(found) if key[0] == name], dim=1) for name, _ in found
    }


def save_states(options: Options, folder: str) -> dict:
    return whole_states(trained_and_saved(options, folder, 1)[0])


def load_states(options: Options, folder: str) -> dict:
    engine = make_engine(options)
    engine.load_checkpoint(folder)
    return whole_states(engine)


@pytest.mark.parametrize("config", everyday([ZERO_1, ZERO_1 | BF16], ZERO_1 | BF16), ids=["fp32", "bf16"])
def test_other_numbers_of_stages_and_replicas(world2, world4, plans, saved, config):
    """Two replicas of two stages write; read by four stages, and by one replica of the same two."""
    options = Options(config=config, own_optimizer=config is ZERO_1)
    folder, (expected, *_) = saved(world4, under(options, plans["wave"]), save_states)
    readers = [(world2, options, "wave")] + [(world4, replace(options, stages=4), "four")] * (
        not options.own_optimizer
    )
    for world, reader, plan in readers:
        got = world.run(load_states, under(reader, plans[plan]), folder)[0]
        assert got.keys() == expected.keys()
        assert all(torch.equal(got[name], expected[name]) for name in got)


class Blockwise(torch.optim.Optimizer):
    """Steps by the mean size of 64 gradients in a row, as optimizers do that keep their state in 8 bits."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure=None):
        for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            blocks = p.grad.reshape(-1).split(64)
            sizes = torch.stack([block.abs().mean() for block in blocks])
            self.state[p]["sizes"] = sizes = sizes + self.state[p].get("sizes", 0)
            for block, step, size in zip(p.view(-1).split(64), blocks, sizes, strict=True):
                block.sub_(step / size, alpha=0.01)


def with_optimizer(job, options: Options, kind: type, folder: str):
    with mock.patch.object(training, "_two_groups", lambda model: kind(model.parameters())):
        return job(options, folder)


@pytest.mark.parametrize("kind", everyday([torch.optim.Adafactor, Blockwise], Blockwise))
def test_state_that_is_not_elementwise(world2, plans, tmp_path, kind):
    """It goes with its parameter, also from a checkpoint of DeepSpeed alone."""
    options = Options(own_optimizer=True)
    expected = world2.run(with_optimizer, save, options, kind, str(tmp_path))
    for plan in ("stock", "wave"):
        got = world2.run(with_optimizer, load, under(options, plans[plan]), kind, str(tmp_path))
        assert [result.get("losses", result) for result in got] == expected


def test_state_that_is_not_elementwise_of_what_zero_lays_out(world2, world4, plans, tmp_path):
    """It belongs to all parameters of a rank: it went to ranks that have some of them."""
    options = Options(own_optimizer=True, config=ZERO_1)
    expected = world2.run(with_optimizer, save, options, Blockwise, str(tmp_path))
    got = world2.run(with_optimizer, load, under(options, plans["stock"]), Blockwise, str(tmp_path))
    assert [result.get("losses", result) for result in got] == expected
    four = under(replace(options, stages=4), plans["four"])
    for result in world4.run(with_optimizer, load, four, Blockwise, str(tmp_path)):
        assert "is not elementwise, and cannot be cut" in result["error"]


def test_state_of_a_group_with_layers_of_two_groups_as_large():
    first, second = Piece("a", 0, 4, 0), Piece("b", 0, 4, 4)
    slot = Slot(torch.Size([8]), [first, second])
    slot.take(first, first, slot.shape, {"sizes": torch.ones(2)}, {})
    with pytest.raises(OstinatoError, match='sizes of "b" is not elementwise, and cannot be cut'):
        slot.take(second, second, slot.shape, {"sizes": torch.zeros(2)}, {})


def attempts(options: Options, folders: list[str]) -> list[str]:
    """What load_checkpoint() said of each folder, before it changed a weight."""
    engine, errors = make_engine(options), []
    for folder in folders:
        before = weights(engine)
        try:
            engine.load_checkpoint(folder)
            errors.append("")
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
            assert weights(engine) == before
            # Rank 0 alone prints what all ranks raise.
            assert not isinstance(error, OstinatoError) or not hasattr(error, "__notes__")
    return errors


def changed(folder: str, into: Path, change) -> str:
    """A copy of the checkpoint; change(its files) spoils it, and no digest says so."""
    shutil.copytree(folder, into)
    files = into / (into / "latest").read_text()
    without_digests(files)
    change(files)
    return str(into)


def without_digests(files: Path) -> None:
    """As an older version has written it."""
    if (files / "ostinato.json").exists():
        record = json.loads((files / "ostinato.json").read_text())
        record.pop("files", None)
        (files / "ostinato.json").write_text(json.dumps(record))


def record_without_parameters(files: Path) -> None:
    """As an older version has written it."""
    record = json.loads((files / "ostinato.json").read_text())
    del record["parameters"]
    (files / "ostinato.json").write_text(json.dumps(record))


def groups_in_reverse(files: Path) -> None:
    """On rank 1 alone; each parameter keeps its own."""
    resaved(lambda held: held["optimizer"]["param_groups"].reverse())(files)
    record = json.loads((files / "ostinato.json").read_text())
    record["parameters"][1].reverse()
    (files / "ostinato.json").write_text(json.dumps(record))


def resaved(change, name: str = "mp_rank_01_model_states.pt"):
    def apply(files: Path) -> None:
        path = files / name
        held = torch.load(path, weights_only=False)
        held.update({key: unsealed(held.get(key)) for key in ("optimizer", "optimizer_state_dict")})
        change(held)
        torch.save(held, path)

    return apply


REFUSED = {
    "mp_rank_01_model_states.pt is missing": lambda files: (files / "mp_rank_01_model_states.pt").unlink(),
    "mp_rank_01_model_states.pt cannot be read (": lambda files: os.truncate(
        files / "mp_rank_01_model_states.pt", 3000
    ),
    "the files do not say which state belongs to which parameter": record_without_parameters,
    "mp_rank_01_model_states.pt is from a different kind of optimizer than AdamW": resaved(
        lambda held: held.update(optimizer=None)
    ),
    "group 1 of pipeline rank 1 has ": resaved(
        lambda held: held["optimizer"]["param_groups"][1]["params"].pop()
    ),
    "the parameters in group 0 were in several groups": resaved(
        lambda held: held["optimizer"]["param_groups"][0].update(weight_decay=0.3)
    ),
    "the learning rate schedule was for different parameter groups": groups_in_reverse,
    'saved none of the 64 elements of "': lambda files: (files / "ostinato.json").write_text(
        (files / "ostinato.json").read_text().replace("mix.weight", "mixed.weight")
    ),
    "mp_rank_01_model_states.pt is from step 2, but mp_rank_00_model_states.pt from step 3: files of two checkpoints": resaved(
        lambda held: held.update(global_steps=2)
    ),
    '.mix.weight" had shape [4, 16], but has [8, 8] now': lambda files: (files / "ostinato.json").write_text(
        (files / "ostinato.json").read_text().replace('mix.weight", [8, 8]', 'mix.weight", [4, 16]')
    ),
}


def test_what_cannot_be_read_is_refused(world2, plans, saved, tmp_path):
    options = MOVED["fp32-two-groups"][0]
    folder, _ = saved(world2, under(options, plans["looped"]), save)
    spoilt = [
        changed(folder, tmp_path / str(number), change) for number, change in enumerate(REFUSED.values())
    ]
    for errors in world2.run(attempts, under(options, plans["wave"]), [*spoilt, folder]):
        assert errors.pop() == ""
        for words, error in zip(REFUSED, errors, strict=True):
            assert (
                error.startswith("OstinatoError: ") and "optimizer state from a different placement" in error
            ), error
            assert words in error and "load_optimizer_states=False" in error, error


LAYER_FILES = {
    "layer_05-model_states.pt is missing": lambda files: (files / "layer_05-model_states.pt").unlink(),
    "layer_02-model_states.pt cannot be read: it is incomplete": lambda files: os.truncate(
        files / "layer_02-model_states.pt", 900
    ),
    "layer_00-model_states.pt cannot be read: it is incomplete": lambda files: os.truncate(
        files / "layer_00-model_states.pt", 0
    ),
    "ostinato.json cannot be read: it is incomplete": lambda files: os.truncate(files / "ostinato.json", 40),
}


def test_files_of_layers_that_cannot_be_read_are_refused(world2, plans, saved, tmp_path):
    """On every rank, before anything is changed."""
    options = under(Options(), plans["wave"])
    folder, _ = saved(world2, options, save)
    spoilt = [
        changed(folder, tmp_path / str(number), change) for number, change in enumerate(LAYER_FILES.values())
    ]
    for errors in world2.run(attempts, options, spoilt):
        for words, error in zip(LAYER_FILES, errors, strict=True):
            assert error.startswith("OstinatoError: ") and words in error, error


def in_order_of_rounds(held: dict) -> None:
    """As "round_robin_gradients" has parameters: the files of replicas say nothing of it."""
    held["param_shapes"] = [type(group)(reversed(group.items())) for group in held["param_shapes"]]


def elastic(held: dict) -> None:
    held["optimizer_state_dict"]["base_optimizer_state"] = []


def of_three_ranks(files: Path) -> None:
    (files / "ostinato.json").unlink()
    shutil.copy(files / "mp_rank_01_model_states.pt", files / "mp_rank_02_model_states.pt")


REPLICA = "zero_pp_rank_1_mp_rank_00_optim_states.pt"
REFUSED_OF_ZERO = {
    f"{REPLICA} is missing": lambda files: (files / REPLICA).unlink(),
    f'{REPLICA}: with "elastic_checkpoint", it does not say where': resaved(elastic, REPLICA),
    'with "round_robin_gradients", DeepSpeed does not record the true places': resaved(
        in_order_of_rounds, "mp_rank_00_model_states.pt"
    ),
    "ostinato.json is missing, which says to which layers the state in ": of_three_ranks,
}


def test_what_cannot_be_read_of_zero_is_refused(world2, world4, plans, saved, tmp_path):
    options = Options(config=ZERO_1, own_optimizer=True)
    folder, _ = saved(world4, under(options, plans["wave"]), save_states)
    spoilt = [
        changed(folder, tmp_path / str(number), change)
        for number, change in enumerate(REFUSED_OF_ZERO.values())
    ]
    for errors in world2.run(attempts, under(options, plans["looped"]), spoilt):
        for words, error in zip(REFUSED_OF_ZERO, errors, strict=True):
            assert (
                words in error and "load_lr_scheduler_states=False); to keep it, run ds_to_universal" in error
            ), error


def refused_here(options: Options, folder: str) -> list[str]:
    """What load_checkpoint() said under "round_robin_gradients", then of an engine that passes for one with
    experts, a loss that learns, and an optimizer of parameters that the rank's layers do not have."""

    def refused(engine) -> str:
        with pytest.raises(OstinatoError) as error:
            engine.load_checkpoint(folder)
        return str(error.value)

    said = [
        refused(
            make_engine(
                replace(options, config={"zero_optimization": {"stage": 1, "round_robin_gradients": True}})
            )
        )
    ]
    engine = make_engine(options)
    with mock.patch.object(engine, "has_moe_layers", True):
        said.append(refused(engine))
    with mock.patch.dict(engine.param_names, {next(engine.module.parameters()): "loss_fn.weight"}):
        said.append(refused(engine))
    with mock.patch.dict(engine.param_names):
        del engine.param_names[next(engine.module.parameters())]
        said.append(refused(engine))
    return said


def test_engines_that_cannot_read_it(world4, plans, saved):
    options = Options(config=ZERO_1, own_optimizer=True)
    folder, _ = saved(world4, under(options, plans["wave"]), save_states)
    for rounds, experts, loss, strangers in world4.run(refused_here, under(options, plans["looped"]), folder):
        assert 'with "round_robin_gradients", DeepSpeed does not record the true places' in rounds
        assert "a model with experts" in experts
        assert 'no layer of the checkpoint has "loss_fn.weight"' in loss
        assert "are in no layer of their rank" in strangers and "those of the PipelineModule" in strangers


def refused_where_the_model_cuts_itself(options: Options, folder: str) -> str:
    engine = make_engine(options)
    with mock.patch.dict(facts_of(engine.module), weights=None), pytest.raises(OstinatoError) as error:
        engine.load_checkpoint(folder)
    return str(error.value)


def test_stages_of_deepspeed_alone_that_are_not_known(world2, world4, plans, saved):
    """Of any number where DeepSpeed's partition is known: test_checkpoint_pairs.py."""
    folder, _ = saved(world4, Options(stages=4), save)
    for error in world2.run(refused_where_the_model_cuts_itself, under(Options(), plans["wave"]), folder):
        assert "4 pipeline ranks wrote it without saying which layers they had, but this run has 2" in error


@pytest.mark.parametrize("config", [{}, ZERO_1], ids=["zero0", "zero1"])
def test_optimizer_state_of_a_placement_under_deepspeed_alone(world2, plans, saved, config):
    """It fits where layers have equal shapes, and would be that of others."""
    alone = Options(model="strangers", config=config)
    folder, _ = saved(world2, under(alone, plans["wave"]), save)
    for result in world2.run(load, alone, folder):
        assert (
            result["error"].startswith("OstinatoError: ")
            and "this optimizer state belongs to an ostinato placement" in result["error"]
        )
    ours, theirs = (
        world2.run(load, options, folder, False) for options in (under(alone, plans["wave"]), alone)
    )
    assert [rank["losses"] for rank in ours] == [rank["losses"] for rank in theirs]


def test_a_stand_in_for_an_optimizer_has_nothing_to_seal():
    """As trainers give a rank that has nothing to train: without groups."""
    stand_in = SimpleNamespace(state_dict=dict)
    with sealing(stand_in):
        assert stand_in.state_dict() == {}


def test_nothing_to_load(world2, plans, tmp_path):
    """DeepSpeed's own answer to a folder without checkpoints stays."""
    results = world2.run(nothing, under(Options(), plans["wave"]), str(tmp_path / "empty"))
    assert results == [(None, None)] * 2


def nothing(options: Options, folder: str):
    training.dist.barrier()
    return make_engine(options).load_checkpoint(folder)
