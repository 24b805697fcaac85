# SPDX-License-Identifier: Apache-2.0
"""The next step's micro-batches are read, and its plan is searched, while a step runs: equal bits, whatever the loader and the script do."""

import io
import itertools
from contextlib import redirect_stdout
from dataclasses import replace

import pytest
import torch
from ostinato.deepspeed.data.next_step import NextStep, Unread
from support import random_model
from support.models import LAYERS
from support.plans import Layout, make_plan
from support.training import MICRO_BATCHES, Options, make_engine, weights

HALVES = Layout("halves", (4,), (0, 1))
UNEQUAL = Options(dynamic_shape=True, steps=5)
LENGTHS = [5, 1, 4, 1, 2, 5, 3]


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    return make_plan(tmp_path_factory.mktemp("plan"), HALVES, LAYERS, MICRO_BATCHES)


def section(plan, ahead: bool) -> dict:
    return {"placement": str(plan.with_name("placement.toml")), "sizes": "tokens"} | ({"read_ahead": True} if ahead else {})


class Loader:
    """An endless iterator that counts what was read of it, and fails at one item."""

    def __init__(self, engine, fails_at: int = -1, draws: bool = False, lengths=LENGTHS):
        lengths = itertools.cycle(lengths)
        self._items = ((x[:, :n], y[:, :n]) for (x, y), n in zip(engine.batches(11), lengths, strict=False))
        self.count, self._fails_at, self._draws = 0, fails_at, draws

    def __iter__(self):
        return self

    def __next__(self):
        self.count += 1
        if self.count - 1 == self._fails_at:
            raise OSError("the disk is gone")
        if self._draws:
            torch.rand(1)
        return next(self._items)


def trained(options: Options, script) -> dict:
    """What `script(engine)` returns, with weights, what was said, and how many plans were there."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        engine = make_engine(options)
        result = script(engine)
    said = [line for line in printed.getvalue().splitlines() if "read_ahead" in line]
    ahead = engine._ostinato.next_step
    return {"result": result, "weights": weights(engine), "said": said, "hits": None if ahead is None else ahead.hits}


def plain(options: Options) -> dict:
    """Evaluations of other data, and of the training's own iterator, stand between the steps."""

    def script(engine):
        loader, counts, numbers = Loader(engine), [], []
        for step in range(options.steps):
            numbers.append(engine.train_batch(loader).item())
            counts.append(loader.count)
            if step == 1:
                numbers.append(engine.eval_batch(Loader(engine)).item())
            if step == 3:
                numbers.append(engine.eval_batch(loader).item())
        return numbers, counts

    return trained(options, script)


def both(world, plan, function, options: Options = UNEQUAL) -> tuple[list[dict], list[dict]]:
    without, ahead = (world.run(function, replace(options, section=section(plan, asked))) for asked in (False, True))
    return without, ahead


def test_every_bit_is_that_without_it(world2, plan):
    without, ahead = both(world2, plan, plain)
    for one, other in zip(without, ahead, strict=True):
        assert one["weights"] == other["weights"]
        assert one["result"][0] == other["result"][0]
    assert ahead[0]["hits"] == 3, "of five steps the first has no plan yet, and the last other items: the evaluation took some"
    assert ahead[1]["hits"] is None and not any(rank["said"] for rank in ahead)
    assert ahead[0]["result"][1][:3] == [8, 12, 16] and without[0]["result"][1][:3] == [4, 8, 12]
    assert ahead[1]["result"][1] == without[1]["result"][1], "the last rank reads nothing before its turn"


def failing(options: Options) -> dict:
    def script(engine):
        loader, numbers = Loader(engine, fails_at=10), []
        for _ in range(3):
            try:
                numbers.append(engine.train_batch(loader).item())
            except Exception as error:
                numbers.append(f"{type(error).__name__}: {error}")
        return numbers

    return trained(options, script)


def test_an_error_of_the_loader_comes_at_its_step(world2, plan):
    without, ahead = both(world2, plan, failing)
    assert [one["result"] for one in without] == [one["result"] for one in ahead]
    assert "reading micro-batch 2: OSError: the disk is gone" in ahead[0]["result"][2]
    assert [one["weights"] for one in without] == [one["weights"] for one in ahead]


def ending(options: Options) -> dict:
    return trained(options, lambda engine: [engine.train_batch(data).item() for data in [itertools.islice(Loader(engine), 12)] for _ in range(3)])


def test_data_that_end_with_the_last_step_are_enough(world2, plan):
    without, ahead = both(world2, plan, ending)
    assert [one["result"] for one in without] == [one["result"] for one in ahead]
    assert ahead[0]["hits"] == 2


def two_iterators(options: Options) -> dict:
    def script(engine):
        a, b = Loader(engine), itertools.islice(Loader(engine), 3, None)
        return [engine.train_batch(data).item() for data in (a, b, a, a, b)]

    return trained(options, script)


def test_iterators_that_take_turns_lose_nothing(world2, plan):
    without, ahead = both(world2, plan, two_iterators)
    assert [(one["result"], one["weights"]) for one in without] == [(one["result"], one["weights"]) for one in ahead]
    assert len(ahead[0]["said"]) == 1 and "another iterator" in ahead[0]["said"][0]


def a_list_each_step(options: Options) -> dict:
    def script(engine):
        loader = Loader(engine)
        return [engine.train_batch(iter([next(loader) for _ in range(MICRO_BATCHES)])).item() for _ in range(4)]

    return trained(options, script)


def test_an_iterator_for_each_step_is_none_to_read_ahead(world2, plan):
    without, ahead = both(world2, plan, a_list_each_step)
    assert [(one["result"], one["weights"]) for one in without] == [(one["result"], one["weights"]) for one in ahead]
    assert ahead[0]["hits"] == 0 and "another iterator" in ahead[0]["said"][0]


def changed_by_a_function(options: Options) -> dict:
    def script(engine):
        engine.set_batch_fn(lambda item: (item[0][:, :2], item[1][:, :2]))
        loader = Loader(engine)
        return [engine.train_batch(loader).item() for _ in range(3)]

    return trained(options, script)


def test_a_function_of_the_engine_that_changes_items_is_called_in_its_step(world2, plan):
    without, ahead = both(world2, plan, changed_by_a_function)
    assert [one["result"] for one in without] == [one["result"] for one in ahead]
    assert ahead[0]["hits"] == 0 and "batch_fn" in ahead[0]["said"][0]


def drawing(options: Options) -> dict:
    def script(engine):
        loader = Loader(engine, draws=True)
        return [engine.train_batch(loader).item() for _ in range(3)]

    return trained(options, script)


def test_a_loader_that_draws_is_announced(world2, plan):
    _, ahead = both(world2, plan, drawing)
    assert len(ahead[0]["said"]) == 1 and "draws random numbers from torch" in ahead[0]["said"][0]


def dropping(options: Options) -> dict:
    def script(engine):
        loader = Loader(engine, draws=True, lengths=[None])
        return [engine.train_batch(loader).item() for _ in range(3)]

    return trained(options, script)


def test_where_layers_draw_nothing_is_read_ahead(world2, plan):
    options = replace(UNEQUAL, model="random", changed=((2, random_model.Module),))
    without, ahead = both(world2, plan, dropping, options)
    assert [(one["result"], one["weights"]) for one in without] == [(one["result"], one["weights"]) for one in ahead]
    assert ahead[0]["hits"] is None and "has no effect" in ahead[0]["said"][0]


def saving(options: Options, folder: str) -> dict:
    def script(engine):
        loader = Loader(engine)
        engine.train_batch(loader)
        for tag in ("a", "b"):
            engine.save_checkpoint(folder, tag)
        return engine.train_batch(loader).item()

    return trained(options, script)


def test_a_checkpoint_says_what_has_been_read(world2, plan, tmp_path):
    ahead = world2.run(saving, replace(UNEQUAL, section=section(plan, True)), str(tmp_path))
    assert len(ahead[0]["said"]) == 1 and "save_checkpoint(): what comes next, 4 micro-batches, has been read already" in ahead[0]["said"][0]
    assert ahead[0]["hits"] == 1


# ---- alone


def test_items_come_in_their_order_and_an_error_after_them():
    def items():
        yield from range(5)
        raise OSError("gone")

    unread = Unread(items())
    unread.fill(3)
    assert next(unread) == 0 and unread.items == [1, 2]
    unread.fill(9)
    unread.put_back([8, 9])
    assert list(itertools.islice(unread, 6)) == [8, 9, 1, 2, 3, 4]
    with pytest.raises(OSError, match="gone"):
        next(unread)
    with pytest.raises(StopIteration):
        next(unread)


def test_only_what_was_searched_for_these_sizes_is_taken():
    searched, said = [], []

    def search(sizes):
        searched.append(sizes)
        return 0, f"a plan for {sizes}"

    ahead, data = NextStep(search, float, said.append), iter([1, 2, 3, 4, "word", 6])
    ahead.prepare(data, None, 2)
    assert ahead.found((1.0, 3.0)) is None and ahead.found((1.0, 2.0)) is None, "it is asked once a step"
    ahead.prepare(data, None, 2)
    assert ahead.found((1.0, 2.0)) == (0, "a plan for (1.0, 2.0)") and ahead.hits == 1
    assert [next(ahead.before(data)) for _ in range(4)] == [1, 2, 3, 4]
    ahead.prepare(data, None, 2)
    assert ahead.found((5.0, 6.0)) is None and ahead.held == 2, "the step says what is no size"
    assert len(searched) == 2 and not said


def test_a_search_that_fails_fails_in_the_step():
    def search(sizes):
        raise ZeroDivisionError

    ahead = NextStep(search, float, print)
    ahead.prepare(iter([1, 2]), None, 2)
    with pytest.raises(ZeroDivisionError):
        ahead.found((1.0, 2.0))
