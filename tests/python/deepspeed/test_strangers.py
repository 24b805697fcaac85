# SPDX-License-Identifier: Apache-2.0
"""What people's models have in them: equal bits, or a difference that was announced, or a refusal by name."""

import io
import tempfile
from contextlib import redirect_stdout
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ostinato.deepspeed.crossings import crossing
from ostinato.deepspeed.errors import OstinatoError
from ostinato.deepspeed.plans import Stage
from support.plans import Layout, make_plan, placement_text
from support.profiles import write_profile
from support import strangers
from support.strangers import LAYERS, WIDTH, Loud, Pair
from support.training import MICRO_BATCHES, MODELS, Options, data_of, make_engine, refusal, train_with_costs, weights

LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout("looped", (2, 4, 6), (0, 1, 0, 1)),
        Layout("wave", (2, 4, 6), (0, 1, 1, 0)),
        Layout("split", (2, 4, 6), (0, 1, 0, 1), split=True),
        Layout("uneven", (3,), (0, 1)),
        Layout("stock", (4,), (0, 1), method="1f1b"),
    )
}
BASE = Options(model="strangers", optimizer="SGD", steps=3)


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    return {name: str(make_plan(folder / name, layout, LAYERS, MICRO_BATCHES)) for name, layout in LAYOUTS.items()}


def trained(options: Options, names: list[str]) -> dict[str, dict]:
    """By name of a change: losses, weights, what this rank said, and the error that ended it."""
    return {name: _trained(replace(options, change=name)) for name in names}


def _trained(options: Options) -> dict:
    printed, losses, error = io.StringIO(), [], ""
    with redirect_stdout(printed):
        try:
            engine = make_engine(options)
            data = data_of(engine)
            losses = [engine.train_batch(data).item() for _ in range(options.steps)]
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
    said = [line for line in printed.getvalue().splitlines() if line.startswith("ostinato:")]
    return {"losses": losses, "weights": {} if error else weights(engine), "said": said, "error": error}


def same(ours: dict, theirs: dict) -> bool:
    return all(ours[key] == theirs[key] for key in ("losses", "weights", "error"))


@pytest.mark.parametrize(
    ("outputs", "what"),
    [
        ([torch.ones(2)], "a list"),
        ({"hidden": torch.ones(2)}, "a dict"),
        ((torch.ones(2), 3), "a tuple with a int in it"),
        ((torch.ones(2), (torch.ones(2),)), "a tuple with a tuple in it"),
        (Pair(torch.ones(2), torch.ones(2)), "a Pair"),
        (torch.ones(2).as_subclass(Loud), "tensors of class Loud"),
    ],
)
def test_what_cannot_cross_is_named(outputs, what):
    with pytest.raises(OstinatoError, match=f"layer 1 hands on {what}, and .* keep layers 1 and 2 in one stage"):
        crossing(stage(), outputs, [0, 4, 8])


def test_deepspeed_strips_tensors_at_its_own_borders_too():
    pair = Pair(torch.ones(2, requires_grad=True).as_subclass(Loud), None)
    sent = crossing(stage(), pair, [0, 2, 8])
    assert type(sent) is tuple and sent[0] is pair.hidden and sent[1] is None


def test_a_buffer_that_is_handed_on_may_be_written_to():
    mask, hidden = torch.zeros(3, 2).t(), torch.ones(2, requires_grad=True)
    sent = crossing(stage(), (hidden, mask), [0, 4, 8])
    mask.fill_(1)
    assert sent[0] is hidden and not sent[1].any() and sent[1].stride() == mask.stride()


def stage() -> Stage:
    return Stage(0, ranks=(0,), layers=(0, 1), outputs=(1,))


def test_what_a_border_takes_from_tensors(world2, plans):
    """Lost at a border of the plan's own: refused in step 1. Lost at one of DeepSpeed's own: said."""
    lost, kept = "attribute", "attribute at DeepSpeed's border"
    theirs = world2.run(trained, BASE, [kept])
    split = world2.run(trained, replace(BASE, section={"plan": plans["wave"], "timeout_s": 2}), [lost])[0][lost]
    assert split["error"].startswith('OstinatoError: layer 1 hands on tensors with the attribute "gate"')
    ours = world2.run(trained, replace(BASE, section={"plan": plans["wave"]}), [kept])[0][kept]
    assert same(ours, theirs[0][kept]) and ours["said"][-1].endswith("step 1 has shown: equal to 1F1B bit for bit")
    ours = world2.run(trained, replace(BASE, section={"plan": plans["uneven"]}), [kept])[0][kept]
    assert not same(ours, theirs[0][kept])
    assert 'step 1 has shown: layer 3 hands on tensors with the attribute "gate"' in ours["said"][-1]


def nothing(engine):
    pass


def compiled(engine):
    engine.compile(backend="eager", compile_kwargs={"fullgraph": True})


def compiled_by_the_layer(engine):
    for layer in engine.module.forward_funcs:
        if isinstance(layer, torch.nn.Module):
            layer.compile(backend="eager", fullgraph=True)


def replaced(engine):
    for index, layer in enumerate(engine.module.forward_funcs):
        if type(layer) is strangers.Turning:
            engine.module.forward_funcs[index] = deepcopy(layer)


@pytest.mark.parametrize("change", [nothing, compiled, compiled_by_the_layer, replaced])
@pytest.mark.parametrize("of", ["", " of a function"])
def test_what_crosses_deepspeeds_borders_is_seen_after_compile(world2, plans, change, of):
    """Also where the layer was compiled, or replaced, after the engine was made."""
    options = replace(BASE, change=f"strides{of} at DeepSpeed's border", section={"plan": plans["uneven"]})
    rank0 = world2.run(after_initialize, options, change)[0]
    said = rank0["said"][-1]
    assert not rank0["error"] and "layer 3" in said and "not contiguous" in said and "bit for bit" not in said


def halved(_module, _inputs, made):
    return made / 2


def hook_on_the_model(engine):
    engine.module.register_forward_hook(halved)


def layers_wrapped(engine):
    for index, layer in enumerate(engine.module.forward_funcs):
        engine.module.forward_funcs[index] = lambda hidden, layer=layer: layer(hidden) / 2


def layers_listed_anew(engine):
    engine.module.forward_funcs = [lambda hidden, layer=layer: layer(hidden) / 2 for layer in engine.module.forward_funcs]


def layers_dropped(engine):
    engine.module.forward_funcs.pop()


def backward_replaced(engine):
    engine._exec_backward_pass = lambda buffer_id: None


def after_initialize(options: Options, change) -> dict:
    """_trained() where the script does something to the engine first."""
    made = make_engine
    try:
        globals()["make_engine"] = lambda given: (engine := made(given), change(engine))[0]
        return _trained(options)
    finally:
        globals()["make_engine"] = made


@pytest.mark.parametrize("change", [hook_on_the_model, layers_wrapped, layers_listed_anew])
def test_what_a_script_does_to_the_model_after_initialize(world2, stock, plans, change):
    theirs = world2.run(after_initialize, BASE, change)
    ours = world2.run(after_initialize, replace(BASE, section={"plan": plans["looped"]}), change)
    if change is hook_on_the_model:
        assert not same(ours[0], theirs[0]) and "halved() (test_strangers.py:" in ours[0]["said"][-1] and "bit for bit" not in ours[0]["said"][-1]
    else:
        assert same(ours[0], theirs[0]) and not same(ours[0], stock(world2, BASE, _trained)[0])
        assert "bit for bit" in ours[0]["said"][-1]


@pytest.mark.parametrize(("change", "words"), [(layers_dropped, "holds 3 layers, and this rank has 4"), (backward_replaced, "replaced engine._exec_backward_pass")])
def test_what_a_plan_cannot_follow_is_refused(world2, plans, change, words):
    for rank in world2.run(after_initialize, replace(BASE, section={"plan": plans["looped"]}), change):
        assert rank["error"].startswith("OstinatoError") and words in rank["error"] and not rank["losses"]


def losses_listed(engine):
    engine.module.loss_fn = lambda hidden, targets: [torch.nn.functional.mse_loss(hidden, targets)]


def test_a_loss_that_is_no_tensor(world2, plans):
    options = replace(BASE, section={"plan": plans["looped"], "timeout_s": 2})
    assert world2.run(after_initialize, options, losses_listed)[1]["error"].startswith("OstinatoError: the loss is a list: a backward begins")


def test_classes_that_a_plan_would_leave_out():
    from deepspeed.pipe import PipelineModule
    from deepspeed.runtime.pipe import schedule
    from deepspeed.runtime.pipe.engine import PipelineEngine
    from ostinato.deepspeed.errors import Unsupported
    from ostinato.deepspeed.late_changes import check_classes

    def own(self, *_):
        return self

    model, changed = PipelineModule.__new__(PipelineModule), {schedule.BackwardPass: own}
    check_classes(model, PipelineEngine)
    for kind, engine, words in (
        (type("Scaled", (PipelineModule,), {"forward": own}), PipelineEngine, r"Scaled has a forward\(\) of its own"),
        (PipelineModule, type("Noisy", (PipelineEngine,), {"_exec_backward_pass": own}), r"Noisy._exec_backward_pass\(\) is not DeepSpeed's own"),
        (PipelineModule, type("Mapped", (PipelineEngine,), {"_INSTRUCTION_MAP": PipelineEngine._INSTRUCTION_MAP | changed}), "Mapped._INSTRUCTION_MAP"),
    ):
        with pytest.raises(Unsupported, match=words):
            check_classes(kind.__new__(kind), engine)


ALIKE = ["renormed", "hooks", "halved", "statistics", "globals", "objects"]
OF_A_STAGE = "context of a stage"
SAID = {
    "teacher": 'forwards change "teacher.weight" of layer {} where autograd does not see it',
    "context": 'the global "CONTEXT", which layers 0, 3, 4, 7 share, changes while they run',
    "generator": "a Generator that its LayerSpec is given, which layers 1, 2, 5, 6 share, changes",
    **dict.fromkeys(
        ["scale", "tensor's scale", "weight's scale"], 'forwards change the attribute "scale" of layer {}, and backwards run Python'
    ),
}


@pytest.mark.parametrize("plan", ["looped", "wave", "split"])
def test_what_forwards_leave_for_backwards(world2, plans, plan, inherited):
    """As autograd sees it, and what one stage alone keeps: equal bits. Behind its back, and what others share: said."""
    theirs = inherited
    alike = [*ALIKE, OF_A_STAGE] if plan == "wave" else ALIKE
    ours = world2.run(trained, replace(BASE, section={"plan": plans[plan]}), [*alike, *SAID])
    for name in alike:
        assert same(ours[0][name], theirs[0][name]) and "bit for bit" in ours[0][name]["said"][-1], name
    for name, words in SAID.items():
        said = " ".join(line for rank in ours for line in rank[name]["said"])
        assert all(words.format(layer) in said for layer in (1, 5)) and "shown: equal" not in said, said
        assert not same(ours[0][name], theirs[0][name]), f"{name}: the test shows nothing"


@pytest.fixture(scope="module")
def inherited(world2):
    """Of DeepSpeed alone."""
    return world2.run(trained, BASE, [*ALIKE, OF_A_STAGE, *SAID])


def test_what_a_recomputed_stage_keeps_counts_once(world2, inherited, tmp_path):
    names, layout = ["globals", "objects", "renormed"], LAYOUTS["wave"]
    text = placement_text(layout, LAYERS).replace("layers = [", "recompute = true\nlayers = [")
    plan = str(make_plan(tmp_path, layout, LAYERS, MICRO_BATCHES, text=text))
    ours = world2.run(trained, replace(BASE, section={"plan": plan}), names)
    assert not [name for name in names if not same(ours[0][name], inherited[0][name])]


def test_a_plan_in_the_order_of_1f1b_says_nothing(world2, plans, inherited):
    ours = world2.run(trained, replace(BASE, section={"plan": plans["stock"]}), list(SAID))
    for name in SAID:
        assert same(ours[0][name], inherited[0][name]) and len(ours[0][name]["said"]) == 1, ours[0][name]["said"]


def test_parameters_that_forwards_change_are_as_they_were_when_the_first_step_begins(world2, plans):
    """After what is run to learn what layers draw, and after what "auto" measures. What the script counts, too."""
    profile = write_profile_text()
    for change, section in (
        ("teacher and dropout", {"plan": plans["wave"]}),
        ("teacher and dropout", {"auto": True, "search": {"time_limit": 1}}),
        ("objects", {"auto": True, "search": {"time_limit": 1}}),
    ):
        options = replace(BASE, change=change, section=section, steps=1)
        ours = world2.run(train_with_costs, options, profile, _trained)
        theirs = world2.run(_trained, replace(options, section=None))
        assert ours[0]["losses"] == theirs[0]["losses"], (change, section)


def write_profile_text() -> str:
    with tempfile.TemporaryDirectory() as folder:
        return write_profile(Path(folder) / "profile.json", [100] * 4 + [300] * (LAYERS - 4)).read_text()


def noisy_gradients(engine):
    """From the second step on."""
    for parameter in engine.module.parameters():
        parameter.register_hook(lambda gradient: gradient + 0.1 * torch.randn_like(gradient) if engine.global_steps else gradient)


def noisy_steps(engine):
    def draw(optimizer, *_):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.data.add_(0.01 * torch.randn_like(parameter))

    engine.optimizer.register_step_post_hook(draw)


@pytest.mark.parametrize(("change", "words"), [(noisy_gradients, "backwards draw random numbers"), (noisy_steps, "the optimizer, or a hook of its, draws")])
def test_what_draws_outside_of_forwards_is_said(world2, plans, change, words):
    options = replace(BASE, change="dropout")
    theirs, ours = world2.run(after_initialize, options, change), world2.run(after_initialize, replace(options, section={"plan": plans["wave"]}), change)
    assert not same(ours[0], theirs[0]) and words in ours[0]["said"][-1] and "bit for bit" not in ours[0]["said"][-1]
    assert ours[0]["losses"][0] == theirs[0]["losses"][0]


class Together(torch.optim.SGD):
    """One step size for all that it is given."""

    def step(self, closure=None):
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in parameters]).norm()
        for parameter in parameters:
            parameter.grad /= norm
        return super().step(closure)


class Anchored(torch.optim.SGD):
    """Pulls its parameters back to where they began."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, lr=lr)
        self.anchors = {p: p.detach().clone() for group in self.param_groups for p in group["params"]}


def optimized(options: Options, kind=Together) -> dict:
    from support import training

    made, training._two_groups = training._two_groups, lambda model: kind(model.parameters(), lr=0.1)
    try:
        return _trained(replace(options, own_optimizer=True))
    finally:
        training._two_groups = made


def test_an_optimizer_that_sees_the_parameters_of_a_rank_together(world2, plans):
    theirs, ours = world2.run(optimized, BASE)[0], world2.run(optimized, replace(BASE, section={"plan": plans["wave"]}))[0]
    assert not same(ours, theirs) and all("as far as Together updates each parameter by itself" in line for line in ours["said"])
    ours = world2.run(optimized, replace(BASE, section={"plan": plans["stock"]}))[0]
    assert same(ours, theirs) and "Together" not in ours["said"][0]


def test_an_optimizer_that_keeps_the_parameters_it_was_given(world2, plans):
    for rank in world2.run(optimized, replace(BASE, section={"plan": plans["wave"]}), Anchored):
        assert rank["error"].startswith('OstinatoError: the Anchored keeps parameters beside its groups ("anchors")')


class Weighted(torch.nn.Module):
    """A loss that learns, and that each rank begins with other numbers for."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(WIDTH))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, hidden, targets):
        self.calls += 1
        return ((hidden - targets) * self.weight).square().mean() * (1 + 0.01 * self.calls)


class WithLoss:
    layers_of, micro_batches = staticmethod(strangers.layers_of), staticmethod(strangers.micro_batches)

    @property
    def loss(self):
        return Weighted()


class WithLossOfOneRank(WithLoss):
    @property
    def loss(self):
        return Weighted() if dist.get_rank() else torch.nn.MSELoss()


MODELS |= {"with loss": WithLoss(), "with loss of one rank": WithLossOfOneRank()}


def learned(options: Options) -> tuple:
    """Losses, those of evaluations in inference mode between steps, and what the loss has learned."""
    engine = make_engine(options)
    data, held_out, losses = data_of(engine), data_of(engine, seed=99), []
    for _ in range(options.steps):
        losses.append(engine.train_batch(data).item())
        with torch.inference_mode():
            losses.append(engine.eval_batch(held_out).item())
    everyone: list = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, engine.module.loss_fn.weight.tolist() if engine.is_last_stage() else None)
    return losses, [weight for weight in everyone if weight is not None]


def test_a_loss_that_learns(world2, plans):
    options = replace(BASE, model="with loss", config={"gradient_clipping": 0.5})
    theirs = world2.run(learned, options)
    for plan in ("wave", "split"):
        assert world2.run(learned, replace(options, section={"plan": plans[plan]})) == theirs, plan


def test_a_loss_that_is_another_one_on_each_rank(world2, plans):
    options = replace(BASE, model="with loss of one rank", section={"plan": plans["wave"]})
    for said in world2.run(refusal, options):
        assert said.startswith("OstinatoError") and "MSELoss on rank 0, Weighted on rank 1" in said
