# SPDX-License-Identifier: Apache-2.0
"""Trainings under a plan are measured against DeepSpeed's own: what is equal is called equal, and what is not
is named."""

import sys
import types
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from ostinato.deepspeed.equal import compared_steps, recorder as taking
from ostinato.deepspeed.equal.recorder import Recorder
from ostinato.deepspeed.equal.comparison import compare
from ostinato.deepspeed.equal.records import Records
from ostinato.deepspeed.errors import OstinatoError
from ostinato.deepspeed.start import first_pass
from support import training, vocabulary_model
from support.models import BATCH, LAYERS
from support.plans import Layout, make_plan
from support.tiers import everyday
from support.training import MICRO_BATCHES, Options, data_of, make_engine
from torch import nn

WIDTH = 8
ADAM = Options(steps=2)
ZERO_1, BF16 = {"zero_optimization": {"stage": 1}}, {"bf16": {"enabled": True}}
OFFLOAD = {
    "zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}},
    "zero_force_ds_cpu_optimizer": False,
}
LOOPED = Layout("looped", (2, 4, 6), (0, 1, 0, 1))
WAVE = Layout("wave", (1, 4, 6), (0, 1, 1, 0))
SPLIT = Layout("split", (2, 4, 6), (0, 1, 0, 1), split=True)
SHARDED = Layout("sharded", (1, 3, 6), ((0, 1), 0, 1, (0, 1)))

shared = types.SimpleNamespace(calls=0)  # stands for an attribute of an imported module


class Scaled(torch.autograd.Function):
    """Its input; the gradient grows with every backward of this rank."""

    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        shared.calls += 1
        return gradient * (1 + shared.calls)


class Layer(nn.Module):
    """Shares state with other layers where it is told to; "unused" is a parameter that has no gradient;
    "marked" is one that says it is a part of a tensor.
    """

    def __init__(self, fault: str = ""):
        super().__init__()
        self.fault, self.mix = fault, nn.Linear(WIDTH, WIDTH)
        if fault == "unused":
            self.unused = nn.Parameter(torch.zeros(3))
        self.mix.weight.model_parallel = fault == "marked"

    def forward(self, x):
        x = x.to(self.mix.weight.dtype)
        weight = Scaled.apply(self.mix.weight) if self.fault == "backward" else self.mix.weight
        made = x + torch.tanh(nn.functional.linear(x, weight, self.mix.bias))
        if self.fault == "forward":
            shared.calls += 1
            made = made * (1 + 0.01 * shared.calls)
        return made


def layers_of(options: Options) -> list:
    from deepspeed.pipe import LayerSpec

    faults = dict(options.changed)
    return [LayerSpec(Layer, faults.get(index, "")) for index in range(LAYERS)]


def loss(made, targets):
    return (made - targets).square().mean()


def micro_batches(seed: int):
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randn(BATCH, WIDTH, generator=generator), torch.randn(BATCH, WIDTH, generator=generator)


def recorded(options: Options) -> str:
    """A training's records as text."""
    training.MODELS["checked"] = sys.modules[__name__]
    shared.calls = 0
    engine = make_engine(options)
    recorder, data = Recorder(engine, options.steps), data_of(engine)
    for _ in range(options.steps + 1):  # the last is not seen
        engine.train_batch(data)
    assert not {"train_batch", "_next_batch", "_INSTRUCTION_MAP"} & engine.__dict__.keys()
    return recorder.all().to_text()


def told(world, stock, layout: Layout, options: Options, folder):
    layers = {"vocabulary": vocabulary_model.LAYERS}.get(options.model, LAYERS)
    plan = make_plan(folder, layout, layers, MICRO_BATCHES)
    expected = stock(world, options, recorded)
    got = world.run(recorded, replace(options, section={"plan": str(plan)}))
    assert len(set(expected)) == len(set(got)) == 1  # all ranks have all
    comparison = compare(Records.from_text(expected[0]), Records.from_text(got[0]))
    assert not comparison.other_data
    return comparison


def test_deepspeed_repeats_itself(world2, stock):
    first, second = stock(world2, ADAM, recorded)[0], world2.run(recorded, ADAM)[0]
    assert first == second  # the text, too
    comparison = compare(Records.from_text(first), Records.from_text(second))
    assert comparison.equal


EQUAL = {
    "fp32": (LOOPED, ADAM),
    "split": (SPLIT, ADAM),
    "tied": (LOOPED, replace(ADAM, tied=True)),
    "tied-on-one-rank": (WAVE, replace(ADAM, tied=True, config=BF16 | ZERO_1)),
    "bf16": (LOOPED, replace(ADAM, config=BF16)),
    "zero1": (WAVE, replace(ADAM, config=ZERO_1)),
    "bf16-zero1": (WAVE, replace(ADAM, config=BF16 | ZERO_1)),
    "own-optimizer": (LOOPED, replace(ADAM, own_optimizer=True)),
    "unused": (LOOPED, replace(ADAM, model="checked", changed=((3, "unused"),))),
    "marked": (LOOPED, replace(ADAM, model="checked", changed=((3, "marked"),))),
}


@pytest.mark.parametrize(
    "case", everyday(EQUAL, "split", "tied", "tied-on-one-rank", "own-optimizer", "unused", "marked")
)
def test_a_plan_is_measured_equal(case, world2, stock, tmp_path):
    comparison = told(world2, stock, *EQUAL[case], tmp_path)
    assert comparison.equal and not comparison.left_out, comparison.sentence()
    seen = {
        "unused": "gradients and weights of 8",
        "marked": "gradients and weights of 8",
        "tied": "gradients, weights and buffers of 6",
        "tied-on-one-rank": "gradients, weights and buffers of 6",
    }.get(case, "gradients, weights and buffers of 7")
    assert comparison.sentence().startswith(
        f"steps 1 and 2: losses, {seen} layers equal DeepSpeed's 1F1B bit for bit"
    )


@pytest.mark.parametrize(
    "config",
    everyday([{}, BF16, ZERO_1, BF16 | ZERO_1], BF16 | ZERO_1),
    ids=["fp32", "bf16", "zero1", "bf16-zero1"],
)
def test_with_replicas(config, world4, stock, tmp_path):
    comparison = told(world4, stock, WAVE, replace(ADAM, config=config), tmp_path)
    assert comparison.equal and not comparison.unseen, comparison.sentence()


def test_each_replica_has_its_statistics(world4, stock, tmp_path):
    options = replace(ADAM, model="changed")
    assert told(world4, stock, LOOPED, options, tmp_path).equal
    seen = Records.from_text(stock(world4, options, recorded)[0]).steps[0]
    assert {"0.norm.running_mean", "0.norm.running_mean@1"} <= seen["buffers"].keys()
    assert not [name for kind in ("gradients", "weights") for name in seen[kind] if "@" in name]


def test_parts_are_left_out(world2, stock, tmp_path):
    comparison = told(world2, stock, SHARDED, replace(ADAM, model="vocabulary"), tmp_path)
    assert comparison.within_rounding and comparison.left_out, comparison.sentence()
    assert comparison.sentence().endswith(" split over ranks)")


def test_state_that_backwards_share_is_named_by_its_layer(world2, stock, tmp_path):
    options = replace(ADAM, model="checked", changed=((1, "backward"), (5, "backward")))
    comparison = told(world2, stock, LOOPED, options, tmp_path)
    assert not comparison.within_rounding
    beyond = {
        d.name for d in comparison.differences if d.step == 1 and d.kind == "gradients" and not d.rounding
    }
    assert beyond == {"1.mix.weight", "5.mix.weight"}
    start = "step 1 differs from DeepSpeed's 1F1B beyond rounding: gradient of layer 1 (1.mix.weight) by 0."
    assert comparison.sentence().startswith(start) and comparison.sentence().endswith(", and 1 more layer")


def test_state_that_forwards_share_is_seen(world2, stock, tmp_path):
    options = replace(ADAM, model="checked", changed=((1, "forward"), (5, "forward")))
    sentence = told(world2, stock, LOOPED, options, tmp_path).sentence()
    assert sentence.startswith("step 1 differs from DeepSpeed's 1F1B beyond rounding: loss by ")
    assert "gradient of layer 0 (0.mix." in sentence and sentence.endswith(", and 7 more layers")


def clipped(options: Options) -> str:
    """recorded(), where the script clips by the norm of its rank, as a fork of diffusion-pipe does."""
    from deepspeed.runtime.engine import DeepSpeedEngine

    def own(engine):
        torch.nn.utils.clip_grad_norm_(engine.module.parameters(), 0.01)

    with mock.patch.object(DeepSpeedEngine, "clip_fp32_gradients", own):
        return recorded(options)


def test_gradients_are_those_with_which_the_optimizer_steps(world2, stock, tmp_path):
    """Adam's first step has the same weights whatever the gradients are multiplied with."""
    options = replace(ADAM, steps=1, config={"gradient_clipping": 0.01})
    ours = replace(options, section={"plan": str(make_plan(tmp_path, LOOPED, LAYERS, MICRO_BATCHES))})
    comparison = compare(*(Records.from_text(world2.run(clipped, run)[0]) for run in (options, ours)))
    assert "gradients" in {d.kind for d in comparison.differences if not d.rounding}
    assert told(world2, stock, LOOPED, options, tmp_path).equal


class Around(torch.optim.Optimizer):
    """diffusion-pipe's, around one optimizer for each parameter; Optimizer.__init__() is not called."""

    def __init__(self, optimizer):
        self.inner, self.param_groups = optimizer, optimizer.param_groups
        self.state, self.defaults = optimizer.state, optimizer.defaults

    def step(self, closure=None):
        return self.inner.step(closure)


def test_an_optimizer_that_torch_has_not_initialised(world2):
    texts = world2.run(recorded_around, replace(ADAM, own_optimizer=True, steps=1))
    assert Records.from_text(texts[0]).steps[0]["gradients"]


def recorded_around(options: Options) -> str:
    made = training._two_groups
    with mock.patch.object(training, "_two_groups", lambda model: Around(made(model))):
        return recorded(options)


def test_no_gradient_is_not_a_gradient_of_zeros(world2, stock):
    options = replace(ADAM, model="checked", changed=((3, "unused"),))
    texts = [stock(world2, replace(options, config=config), recorded)[0] for config in (BF16, {})]
    without, zeros = map(Records.from_text, texts)
    assert (
        without.steps[0]["gradients"]["3.unused"] is None
        and zeros.steps[0]["gradients"]["3.unused"].norm == 0
    )
    names = {d.name: str(d) for d in compare(without, zeros).differences if d.kind == "gradients"}
    assert names["3.unused"] == "gradient of layer 3 (3.unused), which DeepSpeed's 1F1B does not have"


def one_without_shares(options: Options) -> str:
    """recorded(), where rank 1 finds its shares of the gradients in another place."""
    with (
        mock.patch.object(taking, "_has_share", side_effect=LookupError)
        if dist.get_rank() == 1
        else nullcontext()
    ):
        return recorded(options)


@pytest.mark.parametrize("job", [recorded, one_without_shares])
def test_gradients_that_cannot_be_had_are_said_to_be_unseen(job, world2, stock):
    options = replace(ADAM, stages=1, steps=1, config=ZERO_1)  # two replicas
    without = world2.run(job, replace(options, config=OFFLOAD) if job is recorded else options)
    assert len(set(without)) == 1  # and no rank waits for another
    comparison = compare(
        Records.from_text(stock(world2, options, recorded)[0]), Records.from_text(without[0])
    )
    assert comparison.sentence() == (
        "step 1: loss, weights and buffers of 7 layers equal DeepSpeed's 1F1B bit for bit (gradients not compared: DeepSpeedZeroOptimizer does not show them)"
    )


def rounded_at_random(options: Options) -> str:
    """recorded(), with an optimizer that rounds up or down by chance."""
    step = torch.optim.AdamW.step

    def rounding(self, *args, **kwargs):
        step(self, *args, **kwargs)
        with torch.no_grad():
            for parameter in (p for group in self.param_groups for p in group["params"]):
                parameter.add_(0.01 * torch.rand_like(parameter))

    with mock.patch.object(torch.optim.AdamW, "step", rounding):
        return recorded(options)


def test_an_optimizer_that_draws_random_numbers_is_named(world2, stock, tmp_path):
    options = replace(ADAM, own_optimizer=True)
    plan = str(make_plan(tmp_path, LOOPED, LAYERS, MICRO_BATCHES))
    theirs, ours = (
        Records.from_text(text)
        for text in (
            stock(world2, options, rounded_at_random)[0],
            world2.run(rounded_at_random, replace(options, section={"plan": plan}))[0],
        )
    )
    with pytest.raises(
        OstinatoError, match=r"step 1 differs .* \(possible causes: AdamW\.step\(\), which draws"
    ):
        compared_steps.tell(compare(theirs, ours), compared_steps.Shown(), require=True, drew=theirs.drew)
    assert not Records.from_text(stock(world2, options, recorded)[0]).drew


def of_other_data(options: Options) -> str:
    """recorded(), as of a script that draws its data without a seed."""
    engine = make_engine(options)
    recorder = Recorder(engine, 1)
    engine.train_batch(data_of(engine, seed=99))
    return recorder.all().to_text()


def test_other_data_are_named(world2, stock):
    told = compare(*(Records.from_text(stock(world2, ADAM, job)[0]) for job in (recorded, of_other_data)))
    with pytest.raises(OstinatoError, match=r"\(the inputs of rank 0 in step 1 are not those of the first"):
        compared_steps.tell(told, compared_steps.Shown(), require=True, drew="")


def repeated(options: Options) -> str:
    """Records of one step, which is then run twice more."""
    training.MODELS["checked"] = sys.modules[__name__]
    shared.calls = 0
    engine = make_engine(options)
    recorder, data = Recorder(engine, 1), data_of(engine)
    items = list(islice(data, MICRO_BATCHES))
    engine.train_batch(iter(items))
    recorder.repeat(lambda: first_pass._run_step(engine, items))
    return recorder.all().to_text()


REPEATED = {
    "dropout": replace(ADAM, model="random"),
    "seeds": replace(ADAM, model="random", seed_layers=True),
    "statistics": replace(ADAM, model="changed"),
    "recomputed": replace(ADAM, checkpoint_interval=1, config={"pipeline": {"use_reentrant": False}}),
}


@pytest.mark.parametrize("case", everyday(REPEATED, "seeds", "statistics", "recomputed"))
def test_1f1b_repeats_itself_in_one_process(case, world2):
    """With its random numbers and buffers."""
    assert not Records.from_text(world2.run(repeated, REPEATED[case])[0]).itself


@pytest.mark.parametrize(
    "config",
    everyday([{}, BF16, ZERO_1, BF16 | ZERO_1], BF16 | ZERO_1),
    ids=["fp32", "bf16", "zero1", "bf16-zero1"],
)
def test_where_it_does_not_the_layer_is_named(config, world2):
    records = world2.run(repeated, replace(ADAM, model="checked", changed=((3, "backward"),), config=config))
    assert {(d.kind, d.name, d.rounding) for d in Records.from_text(records[0]).itself} == {
        ("gradients", "3.mix.weight", False)
    }
    assert records[0] == records[1]


def wrapped(options: Options) -> int:
    """Calls that a script's own wrapper of train_batch() saw, which it put on the recorder's."""
    engine, calls = make_engine(options), []
    recorder, data = Recorder(engine, 1), data_of(engine)
    inner = engine.train_batch
    engine.train_batch = lambda *given: calls.append(None) or inner(*given)
    for _ in range(3):
        engine.train_batch(data)
    assert "_INSTRUCTION_MAP" not in engine.__dict__ and len(recorder.all().steps) == 1
    return len(calls)


def test_what_a_script_puts_on_the_engine_stays(world2):
    assert world2.run(wrapped, ADAM) == [3, 3]
