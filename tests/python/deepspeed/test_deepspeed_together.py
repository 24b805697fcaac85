# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's features, several in one run, on every kind of placement: the table in docs/deepspeed.md."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.models import LAYERS
from support.plans import Layout, make_plan
from support.shapes import Stage, placement_text, two_directions
from support.tiers import everyday
from support.training import MICRO_BATCHES, MODELS, Options, make_engine, make_model, weights
from test_deepspeed_branches import K_2
from test_deepspeed_features import LOOPED, SPLIT, WAVE, fp16_on_a_processor

STAGES_OF_M = [
    Stage("embedding", 0, 1, (0, 1)),
    Stage("front", 1, 3, (0,), ("embedding",)),
    Stage("back", 3, 6, (1,), ("front",)),
    Stage("head", 6, 8, (0, 1), ("back",)),
]
PLACEMENTS = {
    "looped": ("mixed", LOOPED, ""),
    "wave": ("mixed", WAVE, ""),
    "split": ("mixed", SPLIT, ""),
    "x": ("mixed", Layout("x", (), ()), placement_text("x", two_directions((5,), LAYERS))),
    "m": ("vocabulary", Layout("m", (), ()), placement_text("m", STAGES_OF_M)),
    "k": ("branches", Layout("k", (), ()), placement_text("k", K_2)),
}
RECOMPUTED = {
    "x": placement_text("x", two_directions((5,), LAYERS), recompute=True),
    "m": placement_text("m", STAGES_OF_M, recompute=True),
    "k": placement_text("k", K_2, recompute=True),
}
EXACT = ("looped", "wave", "split")  # the others: equal up to rounding


def bound(placement: str, otherwise: float) -> float:
    return 0.0 if placement in EXACT else otherwise


@pytest.fixture(scope="module")
def sections(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("plans"), {}
    wanted = {name: (layout, text) for name, (_, layout, text) in PLACEMENTS.items()}
    wanted |= {f"{name}-recomputed": (PLACEMENTS[name][1], text) for name, text in RECOMPUTED.items()}
    for name, (layout, text) in wanted.items():
        micro_batches = MICRO_BATCHES // (2 if name.startswith("x") else 1)
        made[name] = {"plan": str(make_plan(folder / name, layout, LAYERS, micro_batches, text=text))}
    return made


def observed(options: Options, folder: str) -> dict:
    """Sequences grow, the rate changes, and what happens is timed and written down."""
    name = f"{options.model}-{'plan' if options.section else 'alone'}-{Path((options.section or {}).get('plan', '')).parent.name}"
    monitor = {"csv_monitor": {"enabled": True, "output_path": folder, "job_name": name}}
    engine = make_engine(replace(options, config={**options.config, **monitor}))
    losses, rates = [], []
    for length in (2, 3, 5):
        engine.reset_activation_shape()
        data = ((cut(x, length), y[:, :length]) for x, y in engine.batches(7))
        losses += [engine.train_batch(data).item(), engine.eval_batch(data).item()]
        rates.append(engine.get_lr())
    timers = [
        t for t in ("fwd_microstep", "bwd_microstep", "step_microstep") if t in engine.timers.get_timers()
    ]
    rows = (
        {f.stem: list(csv.reader(f.open())) for f in (Path(folder) / name).glob("*.csv")}
        if dist.get_rank() == 0
        else {}
    )
    return {"losses": losses, "rates": rates, "timers": timers, "monitored": rows}


def cut(inputs, length: int):
    return tuple(x[:, :length] for x in inputs) if isinstance(inputs, tuple) else inputs[:, :length]


SCHEDULER = {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4, "warmup_max_lr": 0.02}}}


@pytest.mark.parametrize("placement", everyday(PLACEMENTS, "x"))
def test_curriculum_scheduler_monitor_and_timers(world2, sections, stock, tmp_path, placement):
    model, _, _ = PLACEMENTS[placement]
    options = Options(model=model, config=SCHEDULER)
    expected = stock(world2, options, observed, str(tmp_path))[0]
    # Which DeepSpeed's pipelines alone stumble over (0.19.8).
    timed = SCHEDULER | {"wall_clock_breakdown": True}
    got = world2.run(observed, replace(options, config=timed, section=sections[placement]), str(tmp_path))[0]
    assert got["losses"] == pytest.approx(expected["losses"], rel=bound(placement, 1e-4), abs=0.0)
    assert (got["rates"], got["timers"]) == (
        expected["rates"],
        ["fwd_microstep", "bwd_microstep", "step_microstep"],
    )
    assert got["monitored"].keys() == expected["monitored"].keys() and got["monitored"]
    for name, rows in expected["monitored"].items():
        mine, theirs = ([float(row[-1]) for row in written[1:]] for written in (got["monitored"][name], rows))
        assert mine == pytest.approx(theirs, rel=bound(placement, 1e-4), abs=0.0), name


def few_steps(options: Options) -> dict:
    with fp16_on_a_processor():
        engine = make_engine(options)
        data = engine.batches(7)
        losses = [engine.train_batch(data).item() for _ in range(4)]
    return {
        "losses": losses,
        "weights": weights(engine),
        "scale": getattr(engine.optimizer, "cur_scale", None),
    }


HALF = {
    "bf16-zero1-clipped-checkpointed": {
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 1},
        "gradient_clipping": 0.5,
        "pipeline": {"use_reentrant": False, "activation_checkpoint_interval": 1},
    },
    "fp16-zero1-dynamic-shapes": {
        "fp16": {"enabled": True, "initial_scale_power": 20, "hysteresis": 1, "loss_scale_window": 2},
        "zero_optimization": {"stage": 1},
    },
}


@pytest.mark.parametrize("placement", everyday(PLACEMENTS, "split"))
@pytest.mark.parametrize("features", HALF)
def test_half_precision(world2, sections, stock, placement, features):
    """Where layers have moved, bf16 is clipped by a norm that is summed over other ranks: equal up to
    rounding there."""
    model, _, _ = PLACEMENTS[placement]
    options = Options(
        model=model,
        config=HALF[features],
        seed_layers=True,
        dynamic_shape="dynamic" in features,
        checkpoint_interval=int("bf16" in features),
    )
    expected = stock(world2, options, few_steps)[0]
    got = world2.run(few_steps, replace(options, section=sections[placement]))[0]
    rounded = 0.03 if "clipped" in features else bound(placement, 0.01)
    assert got["losses"] == pytest.approx(expected["losses"], rel=rounded, abs=0.0)
    assert got["scale"] == expected["scale"]
    if rounded == 0.0:
        assert got["weights"] == expected["weights"]


class Samples(torch.utils.data.Dataset):
    """The samples of the first batches of a model's data, one by one."""

    def __init__(self, batches):
        self.pairs = [pair for _, batch in zip(range(40), batches, strict=False) for pair in apart(batch)]

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        return self.pairs[index]


def apart(batch) -> list:
    inputs, labels = batch
    rows = zip(*inputs, strict=True) if isinstance(inputs, tuple) else inputs
    return list(zip(rows, labels, strict=True))


def loaded_and_resumed(options: Options, folder: str) -> dict:
    """From DeepSpeed's data loader: 2 steps, a checkpoint, 2 steps; then the latter once more by an engine
    that loads it."""
    import deepspeed

    def engine_of():
        kind = MODELS[options.model]
        given = {"config": options.configuration(), "training_data": Samples(kind.micro_batches(3))}
        return deepspeed.initialize(model=make_model(options), **given)[0]

    first = engine_of()
    losses = [first.train_batch().item() for _ in range(2)]
    first.save_checkpoint(folder, tag="two")
    after = [first.train_batch().item() for _ in range(2)]
    second = engine_of()
    for _ in range(2 * MICRO_BATCHES if second.data_iterator is not None else 0):
        next(second.data_iterator)
    second.load_checkpoint(folder, tag="two")
    return {
        "losses": losses + after,
        "again": [second.train_batch().item() for _ in range(2)],
        "weights": weights(second),
    }


ADAM_ZERO_1 = {"zero_optimization": {"stage": 1}} | SCHEDULER


@pytest.mark.parametrize("placement", everyday(PLACEMENTS, "m"))
def test_data_loader_and_resuming(world2, sections, stock, tmp_path, placement):
    options = Options(model=PLACEMENTS[placement][0], config=ADAM_ZERO_1)
    expected = stock(world2, options, loaded_and_resumed, str(tmp_path / "alone"))[0]
    got = world2.run(
        loaded_and_resumed, replace(options, section=sections[placement]), str(tmp_path / "planned")
    )[0]
    assert got["losses"] == pytest.approx(expected["losses"], rel=bound(placement, 1e-4), abs=0.0)
    assert got["again"] == got["losses"][2:]


@pytest.mark.parametrize("placement", everyday(RECOMPUTED, "k"))
def test_plans_that_recompute(world2, sections, placement):
    """No bit changes."""
    options = Options(model=PLACEMENTS[placement][0], optimizer="SGD", seed_layers=True)
    kept, recomputed = (
        world2.run(few_steps, replace(options, section=sections[name]))
        for name in (placement, f"{placement}-recomputed")
    )
    assert kept == recomputed
