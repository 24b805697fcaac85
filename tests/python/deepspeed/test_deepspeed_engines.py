# SPDX-License-Identifier: Apache-2.0
"""Many engines in one process: what is ostinato's ends with each."""

import gc
import os
import threading
import time
import weakref
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
import deepspeed
import ostinato.deepspeed
from ostinato.ranks.connection import connected
from support import models, training
from support.models import LAYERS
from support.plans import Layout, make_plan
from support.training import MICRO_BATCHES, Options, data_of, in_both_starts, make_engine, weights
from support.worlds import World
from torch.distributed.distributed_c10d import _get_default_store

ENGINES = int(os.environ.get("OSTINATO_SOAK_ENGINES", 3))


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    return make_plan(
        tmp_path_factory.mktemp("plan"), Layout("wave", (2, 4, 6), (0, 1, 1, 0)), LAYERS, MICRO_BATCHES
    )


def left_by_engines(options: Options) -> tuple[float, float]:
    """Threads and descriptors that an engine leaves behind."""
    counts = []
    connected(_get_default_store())  # which one watch of the process makes, some day
    for _ in range(ENGINES + 1):
        engine = make_engine(options)
        engine.train_batch(data_of(engine))
        engine.destroy()
        del engine
        gc.collect()
        for thread in threading.enumerate():  # ends within a period
            if thread.name.startswith("ostinato-"):
                thread.join(60)
        gc.collect()
        counts.append((len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))))
    first, last = counts[0], counts[-1]
    return (last[0] - first[0]) / ENGINES, (last[1] - first[1]) / ENGINES


def test_an_engine_leaves_no_more_than_one_of_deepspeed(world2, plan):
    world2.restart()  # engines of other tests, which are still there, have threads that do not end
    stock = world2.run(left_by_engines, Options())
    world2.restart()
    ours = world2.run(left_by_engines, Options(section={"plan": str(plan)}))
    assert ours == stock


def left_of_deleted(options: Options) -> list[str]:
    """What stays of an engine that a script has trained and deleted, but not destroyed."""
    before = {thread.name for thread in threading.enumerate()}
    engine = make_engine(options)
    data = data_of(engine)
    engine.train_batch(data)
    engine.eval_batch(data)
    held = {"engine": weakref.ref(engine), "weights": weakref.ref(next(engine.module.parameters()))}
    del engine, data
    gc.collect()
    threads = [thread for thread in threading.enumerate() if thread.name not in before]
    for thread in threads:  # ends within a period
        thread.join(10)
    gc.collect()
    return [name for name, it in held.items() if it()] + [t.name for t in threads if t.is_alive()]


def test_an_engine_that_is_deleted_ends(world2, plan):
    world2.restart()  # engines of other tests have threads of the same names
    assert world2.run(left_of_deleted, Options(section={"plan": str(plan)})) == [[], []]


def destroyed_after_the_groups(options: Options) -> str:
    """What an engine says that a script destroys, or drops, once torch.distributed has ended."""
    engine = make_engine(options)
    dist.destroy_process_group()
    try:
        engine.destroy()
        engine.destroy()
    except Exception as error:
        return repr(error)
    return ""


def test_an_engine_may_be_destroyed_last(plan):
    with World(2) as world:
        assert world.run(destroyed_after_the_groups, Options(section={"plan": str(plan)})) == ["", ""]


def one_after_the_other(first: Options, second: Options) -> tuple:
    """What a second engine over the PipelineModule of a first one trains, or why there is none."""
    import deepspeed

    before = make_engine(first)
    before.train_batch(data_of(before))
    module = before.module
    before.destroy()
    try:
        engine, *_ = deepspeed.initialize(
            model=module, config=second.configuration(), model_parameters=list(module.parameters())
        )
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}", {}
    engine.batches = before.batches
    return engine.train_batch(data_of(engine)).item(), weights(engine)


def test_a_second_engine_over_a_placed_model_is_refused(world2, plan):
    alone, ours = Options(), Options(section={"plan": str(plan), "require": False})
    for second, words in [
        (ours, "already has an engine"),
        (alone, "this engine's configuration names no plan"),
    ]:
        for said, _ in world2.run(one_after_the_other, ours, second):
            assert str(said).startswith("OstinatoError") and words in said


def test_deepspeed_alone_goes_on_with_a_model_placed_in_order(world2, tmp_path):
    alone = Options()
    ours = replace(
        alone, section={"plan": str(make_plan(tmp_path, Layout("two", (2,), (0, 1)), LAYERS, MICRO_BATCHES))}
    )
    assert world2.run(one_after_the_other, ours, alone) == world2.run(one_after_the_other, alone, alone)


def in_turns(sections: tuple[dict | None, dict | None]) -> list:
    """What two engines train that take turns, as those of a GAN, each made where its plan is enabled."""
    engines = []
    for section in sections:
        with ostinato.deepspeed.enable(**section) if section else nullcontext():
            engines.append(make_engine(Options()))
    data = [data_of(engine, seed) for seed, engine in enumerate(engines)]
    losses = [
        engine.train_batch(each).item() for _ in range(2) for engine, each in zip(engines, data, strict=True)
    ]
    return [losses, *map(weights, engines)]


def test_two_models_may_have_a_plan_each(world2, plan, tmp_path):
    other = make_plan(tmp_path, Layout("loop", (1, 3, 6), (0, 1, 0, 1)), LAYERS, MICRO_BATCHES)
    ours = world2.run(in_turns, ({"plan": str(plan)}, {"plan": str(other)}))
    assert ours == world2.run(in_turns, (None, None))
    assert ours == world2.run(in_turns, (None, {"plan": str(plan)}))


def teaching(section: dict | None) -> list:
    """What a model trains that has the section in its configuration, beside one that has none and only evaluates."""
    kinds, made = (Options(), Options(section=section)), []
    for model, options in [(training._make_model(options), options) for options in kinds]:
        parameters = list(model.parameters())
        made.append(
            deepspeed.initialize(model=model, config=options.configuration(), model_parameters=parameters)[0]
        )
        made[-1].batches = models.micro_batches
    teacher, engine = made
    losses = [engine.train_batch(data_of(engine)).item(), teacher.eval_batch(data_of(teacher)).item()]
    return [losses, *map(weights, made)]


def test_a_model_without_a_plan_keeps_its_layers_in_the_second_start(world2, plan):
    """One that is like it and was made before: a teacher, or what DPO refers to."""
    ours = world2.run(in_both_starts, teaching, {"plan": str(plan)})
    assert ours == world2.run(in_both_starts, teaching, None)


def caught(options: Options, evaluates: bool) -> list[str]:
    """What a script is told that goes on where a layer of rank 1 has failed."""
    engine = make_engine(options)
    data, calls = data_of(engine), []

    def fail(*_):
        calls.append(engine.module.training)
        if calls.count(not evaluates) == 2:
            raise ArithmeticError("once")

    if engine.global_rank == 1:
        engine.module.forward_funcs[0].register_forward_hook(fail)
    said = []
    for run in (
        engine.eval_batch if evaluates else engine.train_batch,
        engine.train_batch,
        engine.eval_batch,
    ):
        try:
            said.append(repr(run(data)))
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


@pytest.mark.parametrize("evaluates", [False, True])
def test_a_script_that_goes_on_after_an_error_is_told(world2, plan, evaluates):
    """Ranks are out of step: what one sends then belongs to another micro-batch than the other waits for."""
    waited, failed = world2.run(caught, Options(section={"plan": str(plan), "timeout_s": 2}), evaluates)
    assert failed[0] == "ArithmeticError: once" and "RECV" in waited[0]
    for rank in (waited, failed):
        for call, said in zip(("train_batch()", "eval_batch()"), rank[1:], strict=True):
            assert said.startswith(
                f"OstinatoError: {call}: {'an evaluation' if evaluates else 'step 1'} failed on this rank ("
            ), said
            assert said.endswith("end the run, and resume it from its last checkpoint")
    world2.restart()  # its transfers are out of step


def fails_in_a_layer(engine) -> None:
    engine.module.forward_funcs[0].register_forward_hook(lambda *_: {}["no such token"])


def has_lost_a_layer(engine) -> None:
    engine.module.forward_funcs.pop()


def has_another_parameter(engine) -> None:
    engine.module.late = torch.nn.Parameter(torch.zeros(1))
    engine.module.late.grad = torch.zeros(1)


def beside_a_failure(options: Options, harm, heard: bool) -> tuple[str, float]:
    """What each rank is told where rank 1 has failed in its second step, and goes on; and after how many seconds.
    `heard`: rank 0 begins that step once it has heard of it."""
    engine = make_engine(options)
    data = data_of(engine)
    engine.train_batch(data)
    if engine.global_rank == 1:
        harm(engine)
    while heard and engine.global_rank == 0 and not engine._ostinato.lost:
        time.sleep(0.01)
    begin = time.monotonic()
    try:
        engine.train_batch(data)
    except Exception as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - begin
    return "", 0.0


@pytest.mark.parametrize(
    ("harm", "heard", "why"),
    [
        (fails_in_a_layer, False, "KeyError: 'no such token'"),
        (has_lost_a_layer, False, "OstinatoError: model.forward_funcs holds 3 layers"),
        (has_lost_a_layer, True, "OstinatoError: model.forward_funcs holds 3 layers"),
        (has_another_parameter, False, 'OstinatoError: "late" was added'),
    ],
)
def test_who_waits_for_a_rank_that_has_failed_is_told_why(world2, plan, harm, heard, why):
    """And does not wait for the whole of its time-out, where the rank that has failed goes on."""
    section = {"plan": str(plan), "timeout_s": 200}
    options = Options(section=section, optimizer="SGD", config={"gradient_clipping": 0.1})
    (waits, seconds), (fails, _) = world2.run(beside_a_failure, options, harm, heard)
    assert fails.startswith(why) and why in waits and seconds < 100, (fails, waits, seconds)
    world2.restart()  # its transfers are out of step
