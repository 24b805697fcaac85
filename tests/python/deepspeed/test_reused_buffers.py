# SPDX-License-Identifier: Apache-2.0
"""Loaders that are easily misread train what they train under DeepSpeed: those that write each item where the one
before lay, however far a plan reads on, and those of which only next() may be called."""

from dataclasses import replace

import numpy
import pytest
import torch
from ostinato.deepspeed.data.items import own
from support.models import LAYERS
from support.plans import Layout, make_plan
from support.training import MICRO_BATCHES, Options, make_engine, weights

STEPS = Options(dynamic_shape=True, steps=3)


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    return make_plan(
        tmp_path_factory.mktemp("plan"), Layout("wave", (1, 4, 6), (0, 1, 1, 0)), LAYERS, MICRO_BATCHES
    )


def rewritten(items):
    """One item, whose memory NumPy writes: no version of a tensor counts that."""
    first = next(items)
    buffers = tuple(tensor.clone() for tensor in first)
    item = first
    while True:
        for buffer, tensor in zip(buffers, item, strict=True):
            numpy.copyto(buffer.numpy(), tensor.numpy())
        yield buffers
        item = next(items)


def trained(options: Options) -> tuple:
    engine = make_engine(options)
    data = rewritten(engine.batches(3))
    losses = [engine.train_batch(data).item() for _ in range(options.steps)]
    return losses, engine.eval_batch(rewritten(engine.batches(5))).item(), weights(engine)


@pytest.mark.parametrize("section", ["plan", "sizes"])
def test_items_stay_what_they_were(world2, stock, plan, section):
    planned = {"placement": str(plan.with_name("placement.toml")), "sizes": "tokens", "keep_order": True}
    sections = {"plan": {"plan": str(plan)}, "sizes": planned}
    expected = stock(world2, STEPS, trained)
    got = world2.run(trained, replace(STEPS, section=sections[section]))
    assert [losses for losses, _, _ in got] == [losses for losses, _, _ in expected]
    assert [evaluated for _, evaluated, _ in got] == [evaluated for _, evaluated, _ in expected]


class NextAlone:
    """No iterator to Python, and all that DeepSpeed needs."""

    def __init__(self, items):
        self._items = items

    def __next__(self):
        return next(self._items)


class Restarts(NextAlone):
    """Its own iterator, which starts over wherever iter() is called: a run that resumes has read on by then."""

    def __init__(self, items):
        kept = [next(items) for _ in range(8 * MICRO_BATCHES)]
        super().__init__(iter(kept[MICRO_BATCHES:]))
        self._kept = kept

    def __iter__(self):
        self._items = iter(self._kept)
        return self


def trained_by_next(options: Options, kind: type) -> tuple:
    engine = make_engine(options)
    data = kind(engine.batches(3))
    losses = [engine.train_batch(data).item() for _ in range(options.steps)]
    return losses, engine.eval_batch(kind(engine.batches(5))).item()


@pytest.mark.parametrize("kind", [NextAlone, Restarts])
@pytest.mark.parametrize("section", ["plan", "sizes"])
def test_a_loader_is_read_by_next_alone(world2, plan, section, kind):
    planned = {"placement": str(plan.with_name("placement.toml")), "sizes": "tokens", "keep_order": True}
    sections = {"plan": {"plan": str(plan)}, "sizes": planned}
    expected = world2.run(trained_by_next, STEPS, kind)
    assert world2.run(trained_by_next, replace(STEPS, section=sections[section]), kind) == expected


class Holder:
    def __init__(self, tensor):
        self.tensor = tensor


def test_a_copy_shares_no_memory_and_lies_alike():
    base = torch.arange(24.0).view(4, 6)
    for tensor in (
        base,
        base.t(),
        base[:, 1:3],
        base[:1].expand(3, 6),
        base[2, 2],
        base[:0],
        base.to_sparse(),
        torch.arange(4000)[::1000],
    ):
        held = (tensor, [tensor], {"a": tensor}, Holder(tensor), 5, "word")
        kept, was = own(held), tensor.clone()
        tensor._values().zero_() if tensor.is_sparse else base.zero_()
        for copied in (kept[0], kept[1][0], kept[2]["a"], kept[3].tensor):
            assert torch.equal(copied.to_dense(), was.to_dense())
        assert tensor.is_sparse or tensor.numel() < 5 or kept[0].stride() == tensor.stride()
        base.copy_(torch.arange(24.0).view(4, 6))
    array = numpy.ones(2)
    assert own([array])[0] is not array


def test_what_cannot_be_copied_is_named():
    with pytest.raises(
        TypeError, match="cannot copy a generator, which must be kept while the loader reads on"
    ):
        own((torch.ones(1), (n for n in range(2))))
