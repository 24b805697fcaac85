# SPDX-License-Identifier: Apache-2.0
"""Records of two trainings are compared: what rounds, what differs, and how a tensor's fingerprint tells."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ostinato.deepspeed.equal import recorder
from ostinato.deepspeed.equal import records as taken
from ostinato.deepspeed.equal import compared_steps
from ostinato.deepspeed.equal.compared_steps import Shown, tell
from ostinato.deepspeed.equal.comparison import compare
from ostinato.deepspeed.equal.records import BEFORE, BLOCK, Difference, Records, fingerprint_of
from ostinato.deepspeed.errors import OstinatoError
from support.tiers import everyday

NOISE = torch.randn(1000, generator=torch.Generator().manual_seed(3))


def records(eps: float = torch.finfo(torch.float32).eps, **gradients) -> Records:
    """Of one step: gradients by name, "l3" of layer 3; a tensor or None."""
    step = {kind: {} for kind in taken.KINDS} | {"loss": {"": fingerprint_of(torch.tensor(1.0))}}
    step["gradients"] = {name: None if g is None else fingerprint_of(g) for name, g in gradients.items()}
    return Records([step], {name: int(name[1:]) for name in gradients}, [], "", eps)


def several(began: int, *numbers: float) -> Records:
    """Of several steps, each with a gradient of this size."""
    made = [records(l0=number * NOISE) for number in numbers]
    return made[0]._replace(steps=[step for record in made for step in record.steps], began=began)


@pytest.mark.parametrize(
    ("second", "told"),
    [
        (several(10, 1, 2, 3), "steps 1 to 3: losses and gradients of 1 layer equal DeepSpeed's 1F1B bit for bit"),
        (several(11, 2, 3), "steps 2 and 3: losses and gradients of 1 layer equal DeepSpeed's 1F1B bit for bit"),
        (several(12, 3), "step 3: loss and gradients of 1 layer equal DeepSpeed's 1F1B bit for bit"),
        (several(12, 4), "step 3 differs from DeepSpeed's 1F1B beyond rounding: gradient of layer 0 (l0) by 0.34"),
        (several(13, 4), "no step was compared with DeepSpeed's 1F1B: the first start began 3 steps before this one"),
        (several(9, 1), "no step was compared with DeepSpeed's 1F1B: the first start began 1 step after this one"),
    ],
)  # fmt: skip
def test_a_later_start_is_compared_from_its_first_step(second, told):
    assert compare(several(10, 1, 2, 3), second).sentence() == told


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


def test_losses_that_differ_by_rank_are_compared_on_each():
    """A subclass of the engine may return its loss on the last rank alone."""
    first, second = records(l0=NOISE), records(l0=NOISE)
    for made, last in ((first, 2.5), (second, 7.0)):
        made.steps[0]["loss"] = {
            "": fingerprint_of(torch.tensor([0.0])),
            "@0": fingerprint_of(torch.tensor([last])),
        }
    assert compare(first, first).equal
    assert [(d.kind, d.rounding) for d in compare(first, second).differences] == [("loss", False)]


def test_adam_makes_a_step_of_rounding():
    a, b = records(l0=NOISE, l1=1e-10 * NOISE), records(l0=NOISE, l1=-1e-10 * NOISE)
    for made, sign in ((a, 1), (b, -1)):
        made.steps[0] |= {
            BEFORE: {"l0": fingerprint_of(NOISE), "l1": fingerprint_of(torch.zeros(1000))},
            "weights": {"l0": fingerprint_of(NOISE), "l1": fingerprint_of(sign * 0.01 * torch.ones(1000))},
        }
    assert compare(a, b).within_rounding
    b.steps[0]["weights"] |= {"l0": fingerprint_of(2 * NOISE), "l1": fingerprint_of(torch.ones(1000))}
    assert [d.name for d in compare(a, b).differences if not d.rounding] == ["l0", "l1"]


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


def test_steps_that_overflowed_are_named():
    """As the first ones in fp16 with a dynamic scale: DeepSpeed skips them, and weights stay equal whatever a plan
    computes."""
    nothing = 'equal DeepSpeed\'s 1F1B bit for bit (gradients of {} are not finite, which shows little: let "check" go further)'
    inf = math.inf
    assert compare(several(0, inf), several(0, inf)).sentence().endswith(nothing.format("step 1"))
    assert (
        compare(several(0, inf, inf, 1), several(0, inf, inf, 1))
        .sentence()
        .endswith(nothing.format("steps 1, 2"))
    )


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
        .endswith(
            "of 3 layers equal DeepSpeed's 1F1B bit for bit (layer 2 has no parameter or buffer of its own)"
        )
    )
    assert (
        compare(b, b, keys)
        .sentence()
        .endswith(
            "of 2 layers equal DeepSpeed's 1F1B bit for bit (layers 1, 2 have no parameter or buffer of their own)"
        )
    )
    assert compare(a, a, [None, None]).sentence().endswith("of 2 layers equal DeepSpeed's 1F1B bit for bit")


def test_buffers_that_a_recomputed_forward_writes_to_are_left_out(monkeypatch):
    """Of the layers that step 1 has named, and no other difference."""
    a, b = records(l0=NOISE, l1=NOISE), records(l0=NOISE, l1=NOISE)
    for of, mean in ((a, 1.0), (b, 2.0)):
        of.steps[0]["buffers"] = {"l1": fingerprint_of(torch.tensor(mean))}
    assert not compare(a, b).within_rounding and not compare(a, b, written_again=[0]).within_rounding
    told = compare(a, b, written_again=[1])
    assert told.equal and told.written_again == [1]
    assert told.sentence().endswith("(except buffers of layer 1, to which a recomputed forward writes)")
    assert compare(a, a, written_again=[1]).written_again == []
    b.steps[0]["gradients"]["l1"] = fingerprint_of(2 * NOISE)
    told = compare(a, b, written_again=[1])
    assert "gradient of layer 1" in told.sentence()
    monkeypatch.setattr(compared_steps, "say", lambda line: None)
    with pytest.raises(OstinatoError, match=r"\(probably: layer 1 reads the buffers to which it writes"):
        tell(told, Shown(), require=True, drew="")


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


@settings(max_examples=60)
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


@pytest.mark.parametrize(
    "returned",
    [(1.5, {"aux": 2}), [torch.tensor(1.5), torch.tensor([2.0])], {"loss": 1.5, "at": (None, 2.0)}],
)
def test_what_a_subclass_of_the_engine_returns_is_compared_by_its_numbers(returned):
    made = recorder._fingerprint_of_numbers(returned)
    assert made == fingerprint_of(torch.tensor([1.5, 2.0], dtype=torch.float64))
    assert recorder._fingerprint_of_numbers(None) == fingerprint_of(torch.zeros(1, dtype=torch.float64))
