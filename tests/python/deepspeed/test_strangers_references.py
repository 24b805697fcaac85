# SPDX-License-Identifier: Apache-2.0
"""What scripts keep and look at: layers from before initialize(), the model that a loss sees, tensors that lie in the same memory."""

from dataclasses import replace

import pytest
import torch
from ostinato.deepspeed.errors import OstinatoError
from ostinato.deepspeed.left import LeftParameter, given_to, let_go
from support import training
from support.looking_strangers import CHANGES, LOSSES, MODEL, Looking
from support.plans import make_plan
from support.strangers import LAYERS
from support.training import MICRO_BATCHES, MODELS, Options, data_of, make_engine
from test_strangers import BASE, LAYOUTS, _trained, same, write_profile_text
from test_strangers_training import listed, trained

MODELS |= {name: Looking(name) for name in {**CHANGES, **LOSSES}}


@pytest.fixture(scope="module")
def sections(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    return {name: {"plan": str(make_plan(folder / name, LAYOUTS[name], LAYERS, MICRO_BATCHES)), "timeout_s": 5} for name in ("wave", "uneven", "stock")}


@pytest.fixture(scope="module")
def wave(sections):
    return sections["wave"]


# ---- what a script kept of layers before initialize()


def kept(options: Options, keep, use) -> dict:
    """_trained(); before initialize() the script keeps keep(model), and uses it before every step after the first."""
    held, made, steps = [], training.make_model, []

    def making(given):
        model = made(given)
        held[:] = [keep(model)]
        return model

    def engine_of(given):
        engine = make_engine(given)
        step = engine.train_batch

        def after_use(*args):
            if steps:
                use(held[0])
            steps.append(1)
            return step(*args)

        engine.train_batch = after_use
        return engine

    import test_strangers

    training.make_model, test_strangers.make_engine = making, engine_of
    try:
        return _trained(options)
    finally:
        training.make_model, test_strangers.make_engine = made, make_engine


def parameters(model):
    return list(model.parameters())


def layers(model):
    return list(model.forward_funcs)


def clamps(parameters):
    for parameter in parameters:
        parameter.data.clamp_(-0.1, 0.1)


def averages(parameters):
    return [parameter.detach() * 0.9 for parameter in parameters]


def freezes(layers):
    layers[2].requires_grad_(False)


def hooks(layers):
    for layer in layers:
        layer.register_forward_hook(lambda _module, _inputs, made: made * 0.9)


def sets(layers):
    for layer in layers:
        layer.scale = 2.0


def counts(parameters):
    assert sum(p.numel() for p in parameters if p.requires_grad) == 4 * 42 and {p.shape[0] for p in parameters} == {6}
    assert len(set(parameters)) == 8


def looks(layers):
    assert len([m for layer in layers for m in layer.modules()]) == 8 and all(isinstance(layer, torch.nn.Module) for layer in layers)


@pytest.mark.parametrize(("keep", "use"), [(parameters, clamps), (parameters, averages), (layers, freezes), (layers, hooks), (layers, sets)])
def test_what_uses_a_layer_that_has_left_is_refused(world2, wave, keep, use):
    for rank in world2.run(kept, replace(BASE, section=wave), keep, use):
        assert len(rank["losses"]) < 3
        assert rank["error"].startswith("OstinatoError") and "has moved to rank" in rank["error"]


@pytest.mark.parametrize(("keep", "use"), [(parameters, counts), (layers, looks)])
def test_what_counts_them_is_not(world2, wave, keep, use):
    theirs, ours = world2.run(kept, BASE, keep, use), world2.run(kept, replace(BASE, section=wave), keep, use)
    assert same(ours[0], theirs[0]) and not theirs[0]["error"]


def measured_then_used(options: Options, profile: str) -> str:
    def job(given):
        engine = make_engine(given)
        held = dict(engine.module.named_parameters())
        engine.train_batch(data_of(engine))
        left = [name for name, p in held.items() if isinstance(p, LeftParameter)]
        assert sorted({*held} - {*left}) == sorted(name for name, p in engine.module.named_parameters() if p is held.get(name))
        try:
            for name in left:
                held[name].data.zero_()
        except OstinatoError as error:
            return str(error)
        return ""

    return training.train_with_costs(options, profile, job)


def test_auto_lets_go_of_them_in_its_first_step(world2):
    options = replace(BASE, section={"auto": True, "search": {"time_limit": 1}})
    said = world2.run(measured_then_used, options, write_profile_text())
    assert any("has moved to rank" in words for words in said)


class Holding(torch.nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part, self.own = part, torch.nn.Linear(2, 2)


def test_what_the_script_has_made_by_itself_stays():
    from deepspeed.pipe import LayerSpec

    part = torch.nn.Linear(2, 2)
    spec = LayerSpec(Holding, part=part)
    layer = spec.build()
    own = layer.own
    let_go(layer, "layer 3", 1, given_to(spec))
    part(torch.ones(1, 2)).sum().backward()
    assert part.weight.grad is not None
    with pytest.raises(OstinatoError, match="layer 3 has moved to rank 1"):
        layer.train()
    with pytest.raises(OstinatoError, match='"own" of layer 3 has moved'):
        own(torch.ones(1, 2))
    assert "has moved" in repr(own) and "has moved" in repr(next(own.parameters()))


# ---- what layers and losses look at beside what they are given


def keeps(engine):
    MODEL.append(engine)
    return data_of(engine)


def looks_around(options: Options, feed=keeps) -> dict:
    return trained(options, listed, feed)


OTHERS = {
    ("overlapping", "wave"): "(layer 2 what layer 1 hands on, layer 6 what layer 5 hands on)",
    ("keeping", "wave"): "(layer 2 what layer 1 hands on)",
    ("keeping at DeepSpeed's border", "uneven"): "(layer 4 what layer 3 hands on)",
    ("balanced", "wave"): "the loss looks through the model",
    ("looking", "wave"): "layer 1 looks through the model",
    ("ranked", "wave"): "the loss asks for the rank",
}


@pytest.mark.parametrize(("change", "plan"), OTHERS)
def test_what_is_another_one_there_is_said(world2, sections, change, plan):
    options = replace(BASE, model=change)
    theirs, ours = world2.run(looks_around, options)[0], world2.run(looks_around, replace(options, section=sections[plan]))[0]
    assert not same(ours, theirs) and not ours["error"]
    assert OTHERS[change, plan] in ours["said"][-1] and "bit for bit" not in ours["said"][-1]


ALIKE = [
    ("keeping", "uneven"),
    ("keeping at DeepSpeed's border", "wave"),
    ("reading", "wave"),
    ("in place", "wave"),
    ("balanced", "stock"),
    ("looking", "stock"),
    ("counting", "wave"),
]


@pytest.mark.parametrize(("change", "plan"), ALIKE)
def test_what_is_the_same_is_not(world2, sections, change, plan):
    options = replace(BASE, model=change)
    theirs, ours = world2.run(looks_around, options)[0], world2.run(looks_around, replace(options, section=sections[plan]))[0]
    assert same(ours, theirs) and "bit for bit" in ours["said"][-1] and not ours["error"]


# ---- what is no difference, or none that stops a run


def evaluates_first(engine):
    engine.eval_batch(engine.batches(9))
    return data_of(engine)


def gives_new_biases(engine):
    for name, module in engine.module.named_modules():
        if name.endswith("lin"):
            module.bias = torch.nn.Parameter(torch.full_like(module.bias, 0.3))
    return data_of(engine)


@pytest.mark.parametrize(("model", "feed"), [("drawing", data_of), ("reading", evaluates_first), ("reading", gives_new_biases)])
def test_a_loss_that_draws_an_early_evaluation_and_new_parameters_are_those_of_1f1b(world2, wave, model, feed):
    options = replace(BASE, model=model, config={"gradient_clipping": 0.1})
    theirs, ours = world2.run(looks_around, options, feed)[0], world2.run(looks_around, replace(options, section=wave), feed)[0]
    assert same(ours, theirs) and "bit for bit" in ours["said"][-1] and not ours["error"]


def adds_a_parameter(engine):
    for layer in engine.module.forward_funcs:
        layer.late = torch.nn.Parameter(torch.ones(()))
        layer.register_forward_hook(lambda module, _inputs, made: made * module.late)
    return data_of(engine)


def test_a_parameter_that_is_added_is_refused_where_gradients_are_clipped(world2, wave):
    options = replace(BASE, section=wave, config={"gradient_clipping": 0.1})
    for rank in world2.run(looks_around, options, adds_a_parameter):
        assert '.late" has been added to the model since' in rank["error"] and rank["error"].startswith("OstinatoError")
