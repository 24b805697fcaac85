# SPDX-License-Identifier: Apache-2.0
"""Trainings under a plan are measured against DeepSpeed's own: what is equal is called equal, and what is not
is named."""

import gc
import math
import sys
import types
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from ostinato.deepspeed.equal import compared, recorder as taking, records as taken
from ostinato.deepspeed.equal.recorder import Recorder
from ostinato.deepspeed.equal.comparison import compare
from ostinato.deepspeed.equal.records import BEFORE, BLOCK, Difference, Records, fingerprint_of
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
    assert not {"train_batch", "_INSTRUCTION_MAP"} & engine.__dict__.keys()
    return recorder.all().to_text()


def told(world, stock, layout: Layout, options: Options, folder):
    layers = {"vocabulary": vocabulary_model.LAYERS}.get(options.model, LAYERS)
    plan = make_plan(folder, layout, layers, MICRO_BATCHES)
    expected = stock(world, options, recorded)
    got = world.run(recorded, replace(options, section={"plan": str(plan)}))
    assert len(set(expected)) == len(set(got)) == 1  # all ranks have all
    return compare(Records.from_text(expected[0]), Records.from_text(got[0]))


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


def offloaded(options: Options) -> str:
    gc.freeze()  # offloading collects garbage again and again
    try:
        return recorded(options)
    finally:
        gc.unfreeze()


def one_without_shares(options: Options) -> str:
    """recorded(), where rank 1 finds its shares of the gradients in another place."""
    with (
        mock.patch.object(taking, "_has_share", side_effect=LookupError)
        if dist.get_rank() == 1
        else nullcontext()
    ):
        return recorded(options)


@pytest.mark.parametrize("job", [offloaded, one_without_shares])
def test_gradients_that_cannot_be_had_are_said_to_be_unseen(job, world2, stock):
    options = replace(ADAM, stages=1, steps=1, config=ZERO_1)  # two replicas
    without = world2.run(job, replace(options, config=OFFLOAD) if job is offloaded else options)
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
    left: list[tuple[str, bool]] = []
    with pytest.raises(
        OstinatoError, match=r"step 1 differs .* \(possible causes: AdamW\.step\(\), which draws"
    ):
        compared._tell(theirs, ours, True, [], [], lambda *told: left.append(told))
    assert "differs" in left[0][0] and not left[0][1]
    assert not Records.from_text(stock(world2, options, recorded)[0]).drew


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


# ---- records that are made up


def records(eps: float = torch.finfo(torch.float32).eps, **gradients) -> Records:
    """Of one step: gradients by name, "l3" of layer 3; a tensor or None."""
    step = {kind: {} for kind in taken.KINDS} | {"loss": {"": fingerprint_of(torch.tensor(1.0))}}
    step["gradients"] = {name: None if g is None else fingerprint_of(g) for name, g in gradients.items()}
    return Records([step], {name: int(name[1:]) for name in gradients}, [], "", eps)


NOISE = torch.randn(1000, generator=torch.Generator().manual_seed(3))


def test_differences_are_told_in_model_order():
    a, b = records(l10=NOISE, l2=NOISE), records(l10=2 * NOISE, l2=NOISE * (1 + 1e-6))
    assert [d.name for d in compare(a, b).differences] == ["l2", "l10"]
    assert "beyond rounding: gradient of layer 10 (l10) by " in compare(a, b).sentence()


@pytest.mark.parametrize(
    ("dtype", "close", "far"),
    [(torch.float32, 3e-5, 3e-4), (torch.float16, 3e-3, 3e-2), (torch.bfloat16, 1e-2, 1e-1)],
)
def test_the_bound_follows_the_coarsest_dtype(dtype, close, far):
    eps = torch.finfo(dtype).eps
    assert compare(records(eps, l0=NOISE), records(eps, l0=NOISE * (1 + close))).within_rounding
    assert not compare(records(eps, l0=NOISE), records(eps, l0=NOISE * (1 + far))).within_rounding


def test_a_gradient_of_rounding_alone_may_differ():
    a = records(l0=NOISE, l1=1e-10 * NOISE)
    assert compare(a, records(l0=NOISE, l1=-1e-10 * NOISE)).within_rounding
    assert not compare(a, records(l0=NOISE, l1=1e-4 * NOISE)).within_rounding
    assert not compare(a, records(l0=NOISE, l1=None)).within_rounding


def test_adam_makes_a_step_of_rounding():
    a, b = records(l0=NOISE, l1=1e-10 * NOISE), records(l0=NOISE, l1=-1e-10 * NOISE)
    for made, sign in ((a, 1), (b, -1)):
        made.steps[0]["weights"] = {
            "l1": fingerprint_of(sign * 0.01 * torch.ones(1000)),
            "l0": fingerprint_of(NOISE),
        }
    assert compare(a, b).within_rounding
    b.steps[0]["weights"]["l0"] = fingerprint_of(2 * NOISE)
    assert [d.name for d in compare(a, b).differences if not d.rounding] == ["l0"]


@pytest.mark.parametrize(
    ("faint", "moved", "rounds"), [(100, 1.0, True), (0, 1.0, False), (100, 100.0, False)]
)
def test_adam_makes_steps_of_the_faint_part_of_a_gradient(faint, moved, rounds):
    """A bias of query, key and value in one: the key's share of its gradient is rounding. `moved`: by how
    much more the weights differ than Adam's step."""
    made, eps = [], torch.finfo(torch.float32).eps
    for sign in (1, -1):
        gradient, step = NOISE.clone(), 0.01 * torch.ones(1000)
        gradient[:faint] = sign * 1e-8
        gradient[-1] += 1e-6 * sign
        step[:100] *= sign * moved
        record = records(l0=gradient)
        record.steps[0]["gradients"] = {"l0": fingerprint_of(gradient, eps=eps)}
        record.steps[0] |= {
            BEFORE: {"l0": fingerprint_of(torch.zeros(1000))},
            "weights": {"l0": fingerprint_of(step)},
        }
        made.append(record)
    assert compare(*made).within_rounding is rounds


def test_a_gradient_that_was_rounding_alone_is_judged_again():
    a, b = records(l0=NOISE, l1=1e-10 * NOISE), records(l0=NOISE, l1=-1e-10 * NOISE)
    a.steps.extend(records(l0=NOISE, l1=NOISE).steps)
    b.steps.extend(records(l0=NOISE, l1=2 * NOISE).steps)
    assert (
        compare(a, b)
        .sentence()
        .startswith("step 2 differs from DeepSpeed's 1F1B beyond rounding: gradient of layer 1 (l1) by ")
    )


def test_weights_that_differed_before_step_1_are_named_first():
    a, b = records(l0=NOISE, l1=NOISE), records(l0=2 * NOISE, l1=NOISE)
    for record, factor in ((a, 1), (b, 2)):
        record.steps[0][BEFORE] = {"l1": fingerprint_of(factor * NOISE)}
    assert (
        "beyond rounding: weight before step 1 of layer 1 (l1) by 1, and 1 more layer"
        in compare(a, b).sentence()
    )


def test_tied_layers_that_run_on_one_module_are_compared_with_the_first():
    """Of what is not tied in it, DeepSpeed's partition has another tensor on each rank."""
    tied, of_second = "tied_modules.embed.positions", "tied_modules.embed.positions@0"
    a, b = records(l0=NOISE), records(l0=NOISE)
    for record, names in ((a, (tied, of_second)), (b, (tied,))):
        record.steps[0]["gradients"] |= {name: fingerprint_of(NOISE * len(name)) for name in names}
        record.layers.update(dict.fromkeys(names, 0))
    assert compare(a, b).equal
    assert not compare(b, a).within_rounding


def test_integers_and_shapes_do_not_round():
    a, b, whole = records(l0=NOISE), records(l0=NOISE), torch.arange(100_000)
    a.steps[0]["buffers"], b.steps[0]["buffers"] = (
        {"l0": fingerprint_of(whole)},
        {"l0": fingerprint_of(whole + (whole == 5))},
    )
    assert not compare(a, b).within_rounding
    sentence = compare(records(l0=NOISE), records(l0=NOISE.view(10, 100))).sentence()
    assert sentence.endswith("gradient of layer 0 (l0), float32 [10, 100] instead of float32 [1000]")


def test_what_overflowed_in_both_agrees():
    inf, nan = torch.tensor([math.inf, 1.0]), torch.tensor([1.0, math.nan])
    assert compare(records(l0=inf), records(l0=nan)).within_rounding
    assert not compare(records(l0=inf), records(l0=torch.ones(2))).within_rounding
    assert compare(records(l0=nan), Records.from_text(records(l0=nan).to_text())).equal


def test_the_norm_of_all_gradients_may_round():
    a, b = records(l0=NOISE), records(l0=NOISE)
    a.steps[0]["norm"], b.steps[0]["norm"] = (
        {"": fingerprint_of(torch.tensor(1.0))},
        {"": fingerprint_of(torch.tensor(1 + 1e-6))},
    )
    assert compare(a, b).equal
    assert (
        compare(a, b).sentence()
        == "step 1: loss and gradients of 1 layer equal DeepSpeed's 1F1B bit for bit; gradient norm by 9.5e-07 (rounding)"
    )
    b.steps[0]["norm"] = {"": fingerprint_of(torch.tensor(1.1))}
    assert not compare(a, b).equal and "beyond rounding: gradient norm by 0.1" in compare(a, b).sentence()


def test_layers_without_tensors_and_tied_ones_are_told_apart():
    """Layers 0 and 3 are tied, so that their tensor has the first one's number; 2, and of the second model 1 and 2, have no tensor."""
    a, b = records(l0=NOISE, l1=NOISE), records(l0=NOISE)
    keys = ["embedding", None, None, "embedding"]
    assert (
        compare(a, a, keys)
        .sentence()
        .endswith("of 3 layers equal DeepSpeed's 1F1B bit for bit (layer 2 has no parameter or buffer)")
    )
    assert (
        compare(b, b, keys)
        .sentence()
        .endswith("of 2 layers equal DeepSpeed's 1F1B bit for bit (layers 1, 2 have no parameter or buffer)")
    )
    assert compare(a, a, [None, None]).sentence().endswith("of 2 layers equal DeepSpeed's 1F1B bit for bit")


def unsteady(by: float, layer: int = 0) -> list[Difference]:
    return [Difference(1, "gradients", f"l{layer}", layer, by, rounding=False)]


def test_what_does_not_repeat_itself_is_not_called_equal_bit_for_bit():
    a = records(l0=NOISE, l1=NOISE)._replace(itself=unsteady(2e-4))
    itself = "as far as it repeats itself; DeepSpeed's 1F1B does not repeat itself here: gradient of layer 0 (l0) by 0.0002"
    assert (
        compare(a, a).sentence() == f"step 1: loss and gradients of 2 layers equal DeepSpeed's 1F1B {itself}"
    )
    assert compare(Records.from_text(a.to_text()), a).sentence() == compare(a, a).sentence()


def test_the_bound_is_wider_where_1f1b_does_not_repeat_itself():
    """In that layer, and by what it differs."""
    a = records(l0=NOISE, l1=NOISE)
    for_itself = a._replace(itself=unsteady(2e-4))
    close, far, elsewhere = (
        records(l0=NOISE * (1 + by), l1=NOISE * (1 + other))
        for by, other in ((3e-4, 0), (9e-4, 0), (0, 3e-4))
    )
    assert not compare(a, close).within_rounding and compare(for_itself, close).within_rounding
    for other in (far, elsewhere):
        said = compare(for_itself, other)
        assert (
            not said.within_rounding
            and "beyond rounding: gradient of layer" in said.sentence()
            and "does not repeat itself here" in said.sentence()
        )
    a.steps.extend(records(l0=NOISE, l1=NOISE).steps)
    later = close._replace(steps=[*close.steps, *elsewhere.steps])
    assert compare(for_itself, later).within_rounding, (
        "weights are others by then, and so are the gradients of all layers"
    )


def test_no_order_of_additions_explains_more():
    a, b = records(l0=NOISE), records(l0=NOISE * (1 + 2e-4))
    for by in (1e-3, math.inf):  # a layer that counts
        assert not compare(a._replace(itself=unsteady(by)), b).within_rounding


# ---- fingerprints


def perturbation(kind: str, like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    d = torch.randn(like.shape, generator=generator, dtype=torch.float64)
    if kind == "element":
        return torch.zeros_like(d).index_put_((torch.tensor(7), torch.tensor(3)), d[7, 3])
    if kind == "column":
        return torch.zeros_like(d).index_copy_(1, torch.tensor([5]), d[:, 5:6])
    if kind == "rank 1":
        return torch.outer(d[:, 0], d[0])
    return torch.ones_like(d) if kind == "even" else d


KINDS = ["random", "element", "column", "rank 1", "even"]
SKETCHED = [(kind, shape) for shape in ((64, 64), (500, 1024)) for kind in KINDS]


@pytest.mark.parametrize(
    ("kind", "shape"), everyday(SKETCHED, *SKETCHED[: len(KINDS)], ("rank 1", (500, 1024)))
)
def test_a_sketch_estimates_the_distance(kind, shape):
    generator = torch.Generator().manual_seed(11)
    for relative in (1e-9, 1e-6, 1e-3, 1.0) * 5:
        a = torch.randn(shape, generator=generator, dtype=torch.float64)
        d = perturbation(kind, a, generator)
        b = a + d * (relative * a.norm() / d.norm())
        first, second = fingerprint_of(a), fingerprint_of(b)
        true = float((a - b).norm() / a.norm())
        assert true / 2 < math.dist(first.sketch, second.sketch) / first.norm < 2 * true


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64]),
    st.sampled_from([(), (0,), (5,), (3, 4), (257, 256), (BLOCK,), (5, BLOCK // 2 + 1)]),
    st.integers(1, 4),
    st.sampled_from(["transposed", "strided", "offset"]),
)
def test_fingerprints_of_equal_bytes_are_equal(dtype, shape, piece, laid_out):
    value = (torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 9).to(dtype)
    if laid_out == "transposed" and value.dim() == 2:
        other = value.t().contiguous().t()
    elif laid_out == "strided" and value.dim():
        other = torch.stack([value, value], dim=-1)[..., 0]
    else:
        other = torch.cat([value.new_zeros(1), value.reshape(-1)])[1:].view(shape)
    assert fingerprint_of(other, piece) == fingerprint_of(value)
    if value.numel():
        other = value.clone()
        other.view(-1)[-1] = other.view(-1)[-1] == 0
        assert fingerprint_of(other).digest != fingerprint_of(value).digest


def test_a_fingerprint_has_the_tensors_norm_and_leaves_generators_alone():
    before = torch.get_rng_state()
    taken._signs.cache_clear()
    assert fingerprint_of(NOISE).norm == pytest.approx(float(NOISE.double().norm()))
    assert torch.equal(torch.get_rng_state(), before)
    assert fingerprint_of(torch.eye(3).to_sparse()) == fingerprint_of(torch.eye(3))
