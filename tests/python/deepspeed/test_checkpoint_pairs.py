# SPDX-License-Identifier: Apache-2.0
"""Every arrangement of ranks loads what every other one has saved: weights, optimizer, schedule and loss scale, so
that the next losses are those of the run that saved it.

Numbers of ranks, schedules, replicas, with and without ostinato at the time of saving; each in three data types,
with and without ZeRO-1.
"""

from contextlib import ExitStack
from dataclasses import dataclass, replace

import pytest
from support.models import LAYERS
from support.plans import Layout, make_plan
from support.tiers import everyday
from support.training import MICRO_BATCHES, Options, make_engine
from support.worlds import World
from test_deepspeed_features import fp16_on_a_processor

STEPS, MORE = 2, 5  # before the checkpoint and after it
ZERO_1 = {"zero_optimization": {"stage": 1}}
TYPES = {
    "fp32": {},
    "bf16": {"bf16": {"enabled": True}},
    "fp16": {"fp16": {"enabled": True, "initial_scale_power": 8, "hysteresis": 1, "loss_scale_window": 2}},
}
SAME = {"gradient_clipping": 0.0, "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.05}}}


@dataclass(frozen=True)
class Ranks:
    """`layout`: of the plan; None for DeepSpeed alone."""

    stages: int
    replicas: int = 1
    layout: Layout | None = None

    @property
    def world(self) -> int:
        return self.stages * self.replicas


# By number of ranks: of one stage a rank, of two.
CUTS = {2: ((4,), (1, 4, 6)), 3: ((3, 6), (1, 2, 4, 6, 7)), 4: ((2, 4, 6), (1, 2, 3, 4, 5, 6, 7))}


def arrangements() -> dict[str, Ranks]:
    made = {f"DeepSpeed {n}": Ranks(n) for n in CUTS} | {"DeepSpeed 2 x 2": Ranks(2, 2)}
    for n, (one, two) in CUTS.items():
        there = tuple(range(n))
        made[f"1F1B {n}"] = Ranks(n, 1, Layout("line", one, there))
        made[f"looped {n}"] = Ranks(n, 1, Layout("looped", two, there * 2))
        made[f"wave {n}"] = Ranks(n, 1, Layout("wave", two, there + there[::-1]))
        made[f"split {n}"] = Ranks(n, 1, Layout("split", two, there * 2, split=True))
    return made | {"wave 2 x 2": Ranks(2, 2, Layout("wave", CUTS[2][1], (0, 1, 1, 0)))}


ALL = arrangements()


def batches_of(engine):
    """The replicas share the micro-batches of a step."""
    if not (engine.is_first_stage() or engine.is_last_stage()):
        return None
    replicas, mine = engine.grid.data_parallel_size, engine.grid.data_parallel_id
    return (batch for i, batch in enumerate(engine.batches(7)) if i % replicas == mine)


def _half(job, *args):
    with ExitStack() as stack:
        if "fp16" in args[0].config:
            stack.enter_context(fp16_on_a_processor())
        return job(*args)


def save(options: Options, folder: str) -> list[float]:
    return _half(_save, options, folder)


def _save(options: Options, folder: str) -> list[float]:
    """The losses after the checkpoint."""
    engine = make_engine(options)
    data = batches_of(engine)
    for _ in range(STEPS):
        engine.train_batch(data)
    engine.save_checkpoint(folder)
    return [engine.train_batch(data).item() for _ in range(MORE)]


def load(options: Options, folders: list[str]) -> list[list[float] | str]:
    return _half(_load, options, folders)


def _load(options: Options, folders: list[str]) -> list[list[float] | str]:
    """Of one engine, which loads one after the other: the same losses, or what it said."""
    engine, found = make_engine(options), []
    for folder in folders:
        data = batches_of(engine)
        if data is not None:
            for _ in range(STEPS * engine.gradient_accumulation_steps()):
                next(data)
        try:
            engine.load_checkpoint(folder)
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
            continue
        assert engine.global_steps == STEPS
        found.append([engine.train_batch(data).item() for _ in range(MORE)])
    return found


@pytest.fixture(scope="module")
def worlds_of_all(world2, world4):
    with World(3) as world3:
        yield {2: world2, 3: world3, 4: world4}


EVERYDAY = ("DeepSpeed 4", "1F1B 3", "wave 2", "wave 2 x 2")
CASES = everyday(
    [
        ("fp32", {}, True, EVERYDAY),
        *((kind, zero, False, tuple(ALL)) for kind in TYPES for zero in ({}, ZERO_1)),
        ("fp32", ZERO_1, True, tuple(ALL)),
    ],
    ("fp32", {}, True, EVERYDAY),
)


@pytest.mark.parametrize("kind, zero, tied, names", CASES)
def test_every_arrangement_reads_every_other(worlds_of_all, tmp_path, kind, zero, tied, names):
    config = TYPES[kind] | zero | SAME
    of_ranks, folders, expected, wrong = {}, {}, {}, []
    for name in names:
        ranks = ALL[name]
        of_step = MICRO_BATCHES // ranks.replicas
        how = config | {"gradient_accumulation_steps": of_step}
        # Layers are seeded for the buffers that no file has.
        options = Options(stages=ranks.stages, config=how, tied=tied, seed_layers=True)
        if ranks.layout is not None:
            plan = make_plan(tmp_path / "plans" / name, ranks.layout, LAYERS, of_step)
            options = replace(options, section={"plan": str(plan)})
        of_ranks[name], folders[name] = options, str(tmp_path / name)
        expected[name] = worlds_of_all[ranks.world].run(save, options, folders[name])[0]
    for reader in names:
        ranks = ALL[reader]
        if ranks.layout is None:
            continue  # see test_checkpoint_converted.py
        found = worlds_of_all[ranks.world].run(load, of_ranks[reader], list(folders.values()))[0]
        for writer, losses in zip(folders, found, strict=True):
            equal = losses == expected[writer]
            if not equal and ranks.replicas != ALL[writer].replicas and isinstance(losses, list):
                equal = losses == pytest.approx(expected[writer], rel=1e-5 if kind == "fp32" else 2e-2)
            if not equal:
                wrong.append((writer, reader, losses, expected[writer]))
    assert not wrong, "\n".join(map(str, wrong))
