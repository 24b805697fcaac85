# SPDX-License-Identifier: Apache-2.0
"""The clock in DeepSpeed's engine and `ostinato profile` say the same of the same layers: one stopwatch, by one clock."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from ostinato.deepspeed.start.layer_clock import LayerClock, cost_of
from ostinato.profile import Job, profile_layers
from ostinato.profile.machine.device import Cpu, host_timed
from ostinato.profile.measure.samples import Sample, counted_memory, measure, rounds
from ostinato.profile.settings import read_settings

WARM_UP, PASSES = 1, 3
CONFIG = {"optimizer": {"type": "Adam", "params": {"lr": 1e-3}}}


class MovedClock(Cpu):
    """Its memory is the CPU's; its time passes where Takes says so, and nowhere else."""

    def __init__(self):
        self.time = 0

    def now(self):
        return self.time


class Takes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, clock, there, back):
        ctx.clock, ctx.back = clock, back
        clock.time += there
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.clock.time += ctx.back
        return gradient.clone(), None, None, None


class Block(nn.Module):
    """`scratch`: floats that its forward allocates for a while."""

    def __init__(self, clock, there, back, scratch=0):
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.clock, self.there, self.back, self.scratch = clock, there, back, scratch

    def forward(self, x):
        torch.zeros(self.scratch)
        return Takes.apply(self.linear(x), self.clock, self.there, self.back)


class Scratch(torch.autograd.Function):
    """The backward allocates four megabytes for a while."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        torch.zeros(1 << 20)
        return gradient.clone()


def stage_of(layers, loss_fn=None):
    """What the clock asks of a PipelineModule."""
    return SimpleNamespace(forward_funcs=layers, loss_fn=loss_fn, _local_start=0, _layer_specs=layers, tied_modules={})


def run_stage(model, clock, inputs, labels, call=lambda function, x: function(x)):
    """Micro-batches as the engine runs them."""
    with clock:
        for repeat in rounds(WARM_UP, PASSES):
            clock.counts = repeat >= 0
            value = inputs
            for function in model.forward_funcs:
                value = call(function, value)
            loss = model.loss_fn(value, labels)
            del value
            clock.backward(loss.backward)


@pytest.fixture(scope="module")
def clock():
    return MovedClock()


@pytest.fixture(scope="module")
def pair(clock):
    """Rows of the same layers: from the engine's clock, and from the profiler."""
    torch.manual_seed(1)
    layers = [Block(clock, 1000, 2500, scratch=1 << 18), Block(clock, 300, 700), Block(clock, 20, 50)]

    def loss_fn(outputs, labels):
        return Takes.apply((outputs - labels).pow(2).mean(), clock, 7, 11)

    inputs, labels = torch.rand(32, 64), torch.rand(32, 64)
    job = Job(layers=layers, inputs=inputs, labels=labels, loss_fn=loss_fn, config=CONFIG, device=clock, warm_up=WARM_UP, repeats=PASSES)
    profile = profile_layers(job)
    model = stage_of(layers, loss_fn)
    timed = LayerClock(model, clock)
    run_stage(model, timed, inputs, labels)
    return [cost_of(measured) for measured in timed.measured(read_settings(CONFIG, None))], profile.layers


def test_times_are_the_same_to_the_nanosecond(pair):
    for engine, alone in zip(*pair, strict=True):
        for phase in ("forward", "backward"):
            ours, theirs = getattr(engine, phase), getattr(alone, phase)
            assert (ours.median, ours.low, ours.high, ours.repeats) == (theirs.median, theirs.low, theirs.high, theirs.repeats)
            assert ours.repeats == PASSES
    assert [row.forward.median for row in pair[0]] == [1000, 300, 27]
    assert [row.backward.median for row in pair[0]] == [2500, 700, 61]


def test_memory_of_forwards_is_the_same_to_the_byte(pair):
    for engine, alone in list(zip(*pair, strict=True))[:2]:  # both of which hand on what the next layer's backward needs
        assert (engine.kept, engine.forward_workspace) == (alone.kept, alone.forward_workspace)
    assert pair[0][0].forward_workspace > 2 * pair[0][1].forward_workspace
    last, alone = pair[0][2], pair[1][2]
    assert last.kept + last.forward_workspace == alone.kept + alone.forward_workspace


@pytest.mark.parametrize("field", ["name", "digest", "parameters", "gradients", "optimizer_state", "step_together", "step_alone",
                                   "input_bytes", "output_bytes"])  # fmt: skip
def test_what_is_known_without_a_clock_is_the_same(pair, field):
    assert [getattr(row, field) for row in pair[0]] == [getattr(row, field) for row in pair[1]]


def test_what_warms_up_does_not_count(clock):
    model = stage_of([Block(clock, 5, 9)], lambda outputs, labels: (outputs - labels).sum())
    timed = LayerClock(model, clock)
    with timed:
        value = model.forward_funcs[0](torch.rand(4, 64))
        timed.backward(model.loss_fn(value, torch.rand(4, 64)).backward)
    assert timed.layers[0].samples.forward == timed.layers[0].samples.backward == []


def test_a_recomputed_forward_belongs_to_the_backward(clock):
    """Its time, and its memory: what the backward took before it is not forgotten."""
    model = stage_of([Block(clock, 100, 200)], lambda outputs, labels: Scratch.apply((outputs - labels).pow(2)).sum())
    timed = LayerClock(model, clock)
    with set_checkpoint_early_stop(False):  # else it ends before the clock moves
        run_stage(model, timed, torch.rand(32, 64), torch.rand(32, 64), lambda function, x: checkpoint(function, x, use_reentrant=False))
    (row,) = [cost_of(measured) for measured in timed.measured(read_settings(CONFIG, None))]
    assert (row.forward.median, row.backward.median, row.backward.repeats) == (100, 300, PASSES)
    assert row.backward_workspace >= 4 << 20


def test_a_model_is_as_it_was_afterwards(clock):
    layers, loss_fn = [Block(clock, 1, 1)], nn.MSELoss()
    model = stage_of(list(layers), loss_fn)
    with LayerClock(model, clock):
        assert model.forward_funcs != layers and model.loss_fn is not loss_fn
    assert model.forward_funcs == layers and model.loss_fn is loss_fn


def test_samples_one_after_the_other():
    assert Sample(3, 10, 40, start=5).then(Sample(4, 20, 25, start=9)) == Sample(7, 30, 40, start=5)
    assert Sample(3, 10, 40).then(Sample(4, -10, 50)) == Sample(7, 0, 60)


def test_the_cpu_waits_for_nothing_and_counts_its_memory():
    device = host_timed(torch.device("cpu"))
    with counted_memory(device):
        before = device.live_bytes()
        held = torch.zeros(1000)
        assert device.live_bytes() - before >= held.nbytes
    assert device.now() <= device.now()


def test_an_accelerators_clock_is_read_when_its_work_is_done(monkeypatch):
    """Of whatever kind: its module of torch tells."""
    place, done = torch.device("xpu", 1), []
    allocated = iter([100, 140])
    module = SimpleNamespace(
        synchronize=lambda on: done.append(("waited for", on)),
        reset_peak_memory_stats=lambda on: done.append(("reset", on)),
        memory_allocated=lambda on: next(allocated),
        max_memory_allocated=lambda on: 175,
    )
    monkeypatch.setattr(torch, "get_device_module", lambda on: {place: module}[on])
    result, sample = measure(host_timed(place), "work", lambda: done.append("work") or 5)
    waited = ("waited for", place)
    assert done == [waited, ("reset", place), waited, "work", waited]
    assert (result, sample.kept, sample.peak) == (5, 40, 75)
