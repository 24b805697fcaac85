# SPDX-License-Identifier: Apache-2.0
"""What people's models have in them: equal bits, or a difference that was announced, or a refusal by name."""

import io
import tempfile
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from ostinato.deepspeed.engine.crossings import crossing
from ostinato.deepspeed.errors import OstinatoError, Unsupported
from ostinato.deepspeed.section.plans import Stage
from ostinato.deepspeed.section.refusals import REPLACED, refuse_passes
from support.plans import Layout, make_plan
from support.profiles import write_profile
from support import strangers
from support.strangers import LAYERS, WIDTH, Loud, Pair
from support.training import (
    MICRO_BATCHES,
    MODELS,
    Options,
    data_of,
    make_engine,
    make_model,
    refusal,
    weights,
)

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
    return {
        name: str(make_plan(folder / name, layout, LAYERS, MICRO_BATCHES)) for name, layout in LAYOUTS.items()
    }


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
    with pytest.raises(
        OstinatoError, match=f"layer 1 returns {what}, but .* keep layers 1 and 2 in one stage"
    ):
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
    lost = "attribute"
    split = world2.run(trained, replace(BASE, section={"plan": plans["wave"], "timeout_s": 2}), [lost])[0][
        lost
    ]
    assert split["error"].startswith('OstinatoError: layer 1 returns tensors with the attribute "gate"')


def nothing(engine):
    pass


def layers_wrapped(engine):
    for index, layer in enumerate(engine.module.forward_funcs):
        engine.module.forward_funcs[index] = lambda hidden, layer=layer: layer(hidden) / 2


def layers_listed_anew(engine):
    engine.module.forward_funcs = [
        lambda hidden, layer=layer: layer(hidden) / 2 for layer in engine.module.forward_funcs
    ]


def weights_by_number(engine):
    """As scripts number layers that load them from files."""
    model = engine.module
    for place, layer in enumerate(model.forward_funcs):
        for parameter in layer.parameters():
            parameter.data.mul_(1 + (place + model._local_start) / 10)


def weights_by_parts(engine):
    model = engine.module
    for place, layer in enumerate(model.forward_funcs):
        for parameter in layer.parameters():
            parameter.data.mul_(1 + (model.parts[model.stage_id] + place) / 10)


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


@pytest.mark.parametrize("change", [layers_wrapped, layers_listed_anew, weights_by_number, weights_by_parts])
def test_what_a_script_does_to_the_model_after_initialize(world2, stock, plans, change):
    theirs = world2.run(after_initialize, BASE, change)
    ours = world2.run(after_initialize, replace(BASE, section={"plan": plans["looped"]}), change)
    assert same(ours[0], theirs[0]) and not same(ours[0], stock(world2, BASE, _trained)[0])


def bounds_of_ranks(options: Options) -> list[int]:
    return [int(bound) for bound in make_engine(options).module.parts]


def test_parts_are_where_the_plan_puts_the_layers(world2, plans):
    def found(name):
        return world2.run(bounds_of_ranks, replace(BASE, section={"plan": plans[name]}))

    assert found("uneven") == [[0, 3, 8], [0, 3, 8]] and found("stock") == [[0, 4, 8], [0, 4, 8]]
    assert found("looped") == [[0, 6, 8], [0, 2, 8]]  # from a rank's first layer to behind its last one


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (layers_dropped, "holds 3 layers, but this rank has 4"),
        (backward_replaced, "engine._exec_backward_pass() is not DeepSpeed's own"),
    ],
)
def test_what_a_plan_cannot_follow_is_refused(world2, plans, change, words):
    for rank in world2.run(after_initialize, replace(BASE, section={"plan": plans["looped"]}), change):
        assert words in rank["error"] and not rank["losses"]


def made_otherwise(options: Options) -> tuple[str, float]:
    """qlora-pipe once: the constructor is a copy of PipelineModule's, which is not called, and deletes the list of
    layers."""
    import deepspeed

    model = make_model(options)
    del model._layer_specs, model._ostinato_made
    config = options.configuration()
    try:
        engine, *_ = deepspeed.initialize(
            model=model, config=config, model_parameters=list(model.parameters())
        )
    except RuntimeError as error:
        return str(error), 0.0
    return "", engine.train_batch(MODELS[options.model].micro_batches(7)).item()


def test_a_model_that_its_class_makes_otherwise(world2, plans):
    """It ran into an AttributeError, or into a second start that asked for a third one."""
    for section in ({"plan": plans["looped"]}, {"auto": True}):
        for error, _ in world2.run(made_otherwise, replace(BASE, section=section)):
            assert "PipelineModule.__init__() did not make this PipelineModule" in error
    alone = world2.run(made_otherwise, BASE)
    assert world2.run(made_otherwise, replace(BASE, section={"auto": True, "require": False})) == alone


def scheduled(engine, kind: type, trains: bool, data):
    """The loss of a schedule that a script runs itself."""
    engine.set_dataiterator(data)
    engine._compute_loss, engine.total_loss = True, None
    engine.module.train(trains)
    engine._reserve_pipe_buffers(engine.micro_batches)
    with torch.set_grad_enabled(trains):
        engine._exec_schedule(kind(engine.micro_batches, engine.num_stages, engine.stage_id))
    loss, engine.total_loss = engine._aggregate_total_loss(), None
    return loss


def own_schedules(engine) -> None:
    """qlora-pipe: train_batch() runs a schedule of the script's, and evaluates by one that derives from neither of
    DeepSpeed's."""
    from deepspeed.runtime.pipe.schedule import InferenceSchedule, PipeSchedule, TrainSchedule

    class Training(TrainSchedule):
        pass

    class Evaluation(PipeSchedule):
        def steps(self):
            return InferenceSchedule(self.micro_batches, self.stages, self.stage_id).steps()

    engine.train_batch = lambda data: (
        scheduled(engine, Training, True, data) + scheduled(engine, Evaluation, False, data)
    )


def one_schedule_for_both(engine) -> None:
    """Its class does not say what it is for."""
    from deepspeed.runtime.pipe.schedule import InferenceSchedule, PipeSchedule, TrainSchedule

    class Either(PipeSchedule):
        def steps(self):
            kind = TrainSchedule if engine.module.training else InferenceSchedule
            return kind(self.micro_batches, self.stages, self.stage_id).steps()

    engine.train_batch = lambda data: (
        scheduled(engine, Either, True, data) + scheduled(engine, Either, False, data)
    )


def own_instructions(engine) -> None:
    """qlora-pipe's preference training: forwards of another model between those of this one."""
    from deepspeed.runtime.pipe.schedule import BufferOpInstruction, ForwardPass, TrainSchedule

    class Reference(BufferOpInstruction):
        pass

    class Preferring(TrainSchedule):
        def steps(self):
            for commands in super().steps():
                yield [
                    one
                    for command in commands
                    for one in [Reference(0)] * isinstance(command, ForwardPass) + [command]
                ]

    engine.train_batch = lambda data: engine._exec_schedule(
        Preferring(engine.micro_batches, engine.num_stages, engine.stage_id)
    )


def test_schedules_of_a_script(world2, plans):
    ours = replace(BASE, section={"plan": plans["looped"]})
    for schedules in (own_schedules, one_schedule_for_both):
        theirs, own = (world2.run(after_initialize, options, schedules) for options in (BASE, ours))
        assert theirs[0]["losses"] and same(own[0], theirs[0])
    for section in (ours.section, {"auto": True}):
        for rank in world2.run(after_initialize, replace(ours, section=section), own_instructions):
            assert "Preferring has the instruction Reference between DeepSpeed's own" in rank["error"]


def losses_listed(engine):
    engine.module.loss_fn = lambda hidden, targets: [torch.nn.functional.mse_loss(hidden, targets)]


def test_a_loss_that_is_no_tensor(world2, plans):
    options = replace(BASE, section={"plan": plans["looped"], "timeout_s": 2})
    assert world2.run(after_initialize, options, losses_listed)[1]["error"].startswith(
        "OstinatoError: the loss is a list: return one tensor"
    )


def write_profile_text() -> str:
    with tempfile.TemporaryDirectory() as folder:
        return write_profile(Path(folder) / "profile.json", [100] * 4 + [300] * (LAYERS - 4)).read_text()


@pytest.mark.parametrize("change", ["_exec_backward_pass", "_INSTRUCTION_MAP"])
def test_classes_whose_passes_a_plan_would_leave_out(change):
    from deepspeed.runtime.pipe import schedule
    from deepspeed.runtime.pipe.engine import PipelineEngine

    def own(self, *_):
        return self

    engine = SimpleNamespace(
        _INSTRUCTION_MAP=PipelineEngine._INSTRUCTION_MAP,
        **{name: getattr(PipelineEngine, name) for name in REPLACED},
    )
    refuse_passes(engine)
    vars(engine)[change] = (
        own if change in REPLACED else PipelineEngine._INSTRUCTION_MAP | {schedule.BackwardPass: own}
    )
    with pytest.raises(Unsupported, match="is not DeepSpeed's own"):
        refuse_passes(engine)


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
    dist.all_gather_object(
        everyone, engine.module.loss_fn.weight.tolist() if engine.is_last_stage() else None
    )
    return losses, [weight for weight in everyone if weight is not None]


def test_a_loss_that_learns(world2, plans):
    options = replace(BASE, model="with loss", config={"gradient_clipping": 0.5})
    theirs = world2.run(learned, options)
    for plan in ("wave", "split"):
        assert world2.run(learned, replace(options, section={"plan": plans[plan]})) == theirs, plan


def refused(options: Options) -> str:
    """From this module, which adds the models."""
    return refusal(options)


def test_a_loss_that_is_another_one_on_each_rank(world2, plans):
    options = replace(BASE, model="with loss of one rank", section={"plan": plans["wave"]})
    for said in world2.run(refused, options):
        assert said.startswith("OstinatoError") and "MSELoss on rank 0, Weighted on rank 1" in said
