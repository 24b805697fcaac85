# SPDX-License-Identifier: Apache-2.0
"""Every key of DeepSpeed's configuration is decided in docs/deepspeed-keys.toml, and what that says is tried
here."""

import gc
from dataclasses import replace
from pathlib import Path

import deepspeed
import pytest
from deepspeed.runtime.config import DeepSpeedConfig, DeepSpeedConfigError
from ostinato.deepspeed.errors import Unsupported
from ostinato.deepspeed.section.refused_keys import REFUSED, check_keys, untried_keys
from packaging.version import Version
from support import deepspeed_keys, training
from support.models import LAYERS
from support.plans import make_plan
from support.tiers import everyday
from support.training import MICRO_BATCHES, Options, data_of, make_engine, weights
from test_deepspeed_features import LOOPED, SPLIT, WAVE, Samples, fp16_on_a_processor

DECIDED = deepspeed_keys.read_data()
PACKAGE = Path(deepspeed.__file__).parent


def test_every_key_is_decided():
    keys = deepspeed_keys.keys_of_deepspeed()
    sections = {key for key in keys if any(other.startswith(f"{key}.") for other in keys)}
    missing = [key for key in sorted(keys - sections) if not deepspeed_keys.decided(DECIDED, key)]
    assert len(keys - sections) > 250
    assert missing == [], "DeepSpeed has keys on which docs/deepspeed-keys.toml is silent"


def test_a_key_that_is_new_is_missed():
    assert deepspeed_keys.decided(DECIDED, "zero_optimization.brand_new") == []
    assert deepspeed_keys.decided(DECIDED, "brand_new") == []


def test_what_is_decided_exists():
    """No key of the file is misspelt; those that this DeepSpeed has removed excepted, which older ones have."""
    known = deepspeed_keys.keys_of_deepspeed()
    named = {key for verdict in deepspeed_keys.VERDICTS for key in DECIDED[verdict]}
    assert sorted(named - known) == []


def test_the_page_is_written_from_the_data():
    page = deepspeed_keys.DATA.with_suffix(".md").read_text()
    assert page == deepspeed_keys.page(DECIDED), (
        "in tests/python: python -m support.deepspeed_keys > ../../docs/deepspeed-keys.md"
    )


@pytest.mark.parametrize("verdict", ["no_effect", "refused_by_deepspeed"])
def test_the_places_exist_and_speak_of_the_key(verdict):
    for key, text in DECIDED[verdict].items():
        source = (PACKAGE / text.split("`")[1]).read_text().lower()
        name = key.split(".")[-1].removeprefix("stage3_")
        assert any(word in source for word in (name, name.removesuffix("ism"))), f"{text} does not have {key}"


def test_the_tests_exist_and_speak_of_the_key():
    for key, test in DECIDED["elsewhere"].items():
        assert key.split(".")[-1] in (deepspeed_keys.ROOT / test).read_text(), f"{test} does not have {key}"


# ---- refused


def nested(key: str, value) -> dict:
    for name in reversed(key.split(".")):
        value = {name: value}
    return value


BY_OSTINATO = DECIDED["refused"] | DECIDED["removed"]


def test_the_refused_are_those_of_the_code():
    assert sorted(BY_OSTINATO) == sorted(refused.key for refused in REFUSED)


@pytest.mark.parametrize("key", BY_OSTINATO)
def test_refused_by_name(key):
    with pytest.raises(Unsupported) as error:
        check_keys(nested(key, BY_OSTINATO[key]))
    assert all(f'"{name}"' in str(error.value) for name in key.split("."))
    assert "does not work with a plan: " in str(error.value)


@pytest.mark.parametrize(
    "key", [key for key, value in BY_OSTINATO.items() if isinstance(value, dict) and "enabled" in value]
)
def test_what_is_switched_off_is_not_refused(key):
    check_keys(nested(key, {**BY_OSTINATO[key], "enabled": False}))
    check_keys(nested(key, {}))


@pytest.mark.skipif(Version(deepspeed.__version__).release < (0, 19, 8), reason="not removed yet")
@pytest.mark.parametrize("key", DECIDED["removed"])
def test_deepspeed_refuses_what_it_has_removed(key):
    for value in (DECIDED["removed"][key], {"enabled": False}, False, None):
        with pytest.raises(DeepSpeedConfigError, match="removed"):
            DeepSpeedConfig({"train_micro_batch_size_per_gpu": 1, key: value})


def test_a_configuration_that_deepspeed_has_read_is_not_refused():
    """It adds sections of its own to the dictionary."""
    read = {
        "train_micro_batch_size_per_gpu": 1,
        "data_efficiency": {"data_sampling": {}},
        "zero_optimization": {"stage": 1},
    }
    deepspeed.runtime.config.DeepSpeedConfig(read)
    check_keys(read)


@pytest.mark.parametrize("zero", [{}, {"stage": 0}, {"stage": 1}])
def test_autocast_to_fp16_without_zero(zero):
    configuration = {"torch_autocast": {"enabled": True, "dtype": "float16"}, "zero_optimization": zero}
    if not zero.get("stage"):
        with pytest.raises(Unsupported, match='"torch_autocast" with fp16 needs "zero_optimization"'):
            check_keys(configuration)
    else:
        check_keys(configuration)


MONITORS = {"comet", "tensorboard", "wandb"}  # they change no number


@pytest.mark.parametrize("key", sorted(DECIDED["untried"].keys() - MONITORS))
def test_what_was_not_tried_is_said(key):
    kind = key.removeprefix("optimizer.type.")
    configuration = nested(key, True) if kind == key else {"optimizer": {"type": kind.title()}}
    assert "not tried with a plan" in untried_keys(configuration)


def test_nothing_is_said_of_what_was_tried():
    tried = [training["config"] for training in DECIDED["trained"].values()]
    tried += [{"bf16": {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}}]
    assert [untried_keys(configuration) for configuration in tried] == [""] * len(tried)


def refused_engine(options: Options) -> str:
    try:
        make_engine(options)
    except Unsupported as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def sections(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    return {
        x.name: {"plan": str(make_plan(folder / x.name, x, LAYERS, MICRO_BATCHES))}
        for x in (WAVE, LOOPED, SPLIT)
    }


def test_an_engine_is_refused_on_every_rank(world2, sections):
    options = Options(section=sections["wave"], config={"autotuning": {"enabled": True}})
    first, second = world2.run(refused_engine, options)
    assert first == second and first.startswith('"autotuning": {"enabled": true} does not work with a plan')


# ---- works


class Uneven(Samples):
    """One more than fills its batches."""

    def __len__(self):
        return super().__len__() - 1


def trained(options: Options, given: dict) -> dict:
    try:
        with fp16_on_a_processor():
            return _trained(options, given)
    finally:
        gc.enable()  # "disable_python_gc"
        if given.get("configures"):
            off = dict.fromkeys(
                ("partition_activations", "contiguous_checkpointing", "checkpoint_in_cpu"), False
            )
            deepspeed.checkpointing.configure(None, **off)


def _trained(options: Options, given: dict) -> dict:
    if given.get("configures"):
        deepspeed.checkpointing.configure(None, deepspeed_config=options.configuration())
    if given.get("data"):
        model, config = training.make_model(options), options.configuration()
        engine = deepspeed.initialize(model=model, config=config, training_data=Uneven())[0]
        data = None
    else:
        engine = make_engine(options)
        data = data_of(engine)
    losses = [engine.train_batch(data).item() for _ in range(6)]
    return {
        "losses": losses,
        "weights": weights(engine),
        "rates": engine.get_lr(),
        "scale": getattr(engine.optimizer, "cur_scale", None),
    }


# test_deepspeed_training.py, _features.py.
HELD_ELSEWHERE = ("ZeRO-1", "fp16, dynamic scale", "activation checkpointing", "data set with a rest")


@pytest.mark.parametrize(
    "name", everyday(DECIDED["trained"], *(name for name in DECIDED["trained"] if name not in HELD_ELSEWHERE))
)
def test_same_as_deepspeed(worlds, stock, sections, name):
    given = DECIDED["trained"][name]
    config = given["config"]
    world = worlds[2 * given.get("replicas", 1)]
    options = Options(optimizer=None if "optimizer" in config else "Adam", checkpointable=("Block",))
    beside = config if given["beside"] is None else given["beside"]
    expected = stock(world, replace(options, config=beside), trained, given)
    got = world.run(trained, replace(options, config=config, section=sections["split"]), given)
    assert got == expected


def test_the_older_key_of_offloading_is_the_newer():
    """ "cpu_offload": so what is trained with "offload_optimizer" holds for it."""
    zero = {"stage": 1, "cpu_offload": True}
    read = deepspeed.runtime.config.DeepSpeedConfig(
        {"train_micro_batch_size_per_gpu": 1, "zero_optimization": zero}
    )
    assert read.zero_config.offload_optimizer.device == "cpu"


# ---- checkpoints


CHECKPOINT = {
    "tag_validation": "FAIL",
    "checkpoint_serialization": False,
    "parallel_write": {"pipeline_stage": True},
}


def engine_with_equal_buffers(options: Options):
    """Each replica draws its own, which DeepSpeed leaves as they are, and loads those of whoever wrote the
    layer."""
    engine = make_engine(options)
    for buffer in engine.module.buffers():
        buffer.fill_(0.5)
    return engine


def saved_and_resumed(options: Options, folder: str) -> dict:
    first = engine_with_equal_buffers(options)
    data = data_of(first)
    losses = [first.train_batch(data).item() for _ in range(2)]
    first.save_checkpoint(folder, tag="two")
    losses += [first.train_batch(data).item() for _ in range(2)]
    second = engine_with_equal_buffers(options)
    data = data_of(second, after=2)
    second.load_checkpoint(folder, tag="two")
    return {
        "losses": losses,
        "again": [second.train_batch(data).item() for _ in range(2)],
        "weights": weights(second),
    }


def test_keys_of_checkpoints(world4, stock, sections, tmp_path):
    """The two replicas of a pipeline write its layers between them."""
    options = Options(config={"checkpoint": CHECKPOINT, "zero_optimization": {"stage": 1}})
    expected = stock(world4, options, saved_and_resumed, str(tmp_path / "alone"))
    got = world4.run(
        saved_and_resumed, replace(options, section=sections["looped"]), str(tmp_path / "planned")
    )
    assert [result["again"] for result in got] == [result["losses"][2:] for result in got]
    assert got == expected
