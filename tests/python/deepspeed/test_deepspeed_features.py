# SPDX-License-Identifier: Apache-2.0
"""What else DeepSpeed's pipeline engine does goes on working under a plan."""

import io
import itertools
import json
import re
import resource
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace

import pytest
import torch
from support import models, training
from support.models import LAYERS
from support.plans import Layout, make_plan
from support.tiers import everyday
from support.training import MICRO_BATCHES, Options, data_of, make_engine, weights

from ostinato.trace import read_traces

WAVE = Layout("wave", (1, 4, 6), (0, 1, 1, 0))
LOOPED = Layout("looped", (2, 4, 6), (0, 1, 0, 1))
SPLIT = Layout("split", (2, 4, 6), (0, 1, 0, 1), split=True)


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    return {x.name: str(make_plan(folder / x.name, x, LAYERS, MICRO_BATCHES)) for x in (WAVE, LOOPED, SPLIT)}


@pytest.fixture
def both(world2, stock):
    """both(function, options, plan): (DeepSpeed's results, ours) by rank."""

    def run(function, options, plan):
        return stock(world2, options, function), world2.run(
            function, replace(options, section={"plan": plan})
        )

    return run


def few_steps(options: Options) -> dict:
    engine = make_engine(options)
    data = data_of(engine)
    losses = [engine.train_batch(data).item() for _ in range(5)]
    return {"losses": losses, "weights": weights(engine), "rates": engine.get_lr()}


SCHEDULER = {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4, "warmup_max_lr": 0.02}}}


@pytest.mark.parametrize("layout", everyday(["wave", "looped"], "wave"))
@pytest.mark.parametrize(
    "options",
    [
        Options(config=SCHEDULER),
        Options(built=True),
        Options(checkpoint_interval=1, checkpointable=("Block",), seed_layers=True),
        Options(
            config={
                "bf16": {"enabled": True, "immediate_grad_update": True},
                "zero_optimization": {"stage": 1},
            }
        ),
        Options(
            config={
                "bf16": {
                    "enabled": True,
                    "bf16_master_weights_and_grads": True,
                    "bf16_optimizer_states": True,
                },
                "zero_optimization": {"stage": 1},
            }
        ),
    ],
    ids=["scheduler", "built-layers", "reentrant-checkpointing", "immediate-bf16", "bf16-masters"],
)
def test_same_as_deepspeed(both, plans, options, layout):
    expected, got = both(few_steps, options, plans[layout])
    assert got == expected


@contextmanager
def fp16_on_a_processor():
    """DeepSpeed refuses fp16 on a CPU; its logic runs there all the same."""
    from deepspeed.accelerator import get_accelerator

    kind = type(get_accelerator())
    before = kind.supported_dtypes, kind.is_fp16_supported
    kind.supported_dtypes = lambda self: [torch.float32, torch.float16, torch.bfloat16]
    kind.is_fp16_supported = lambda self: True
    try:
        yield
    finally:
        kind.supported_dtypes, kind.is_fp16_supported = before


def fp16_steps(options: Options) -> dict:
    with fp16_on_a_processor():
        engine = make_engine(options)
        data = data_of(engine)
        losses = [engine.train_batch(data).item() for _ in range(6)]
    return {
        "losses": losses,
        "weights": weights(engine),
        "scale": engine.optimizer.cur_scale,
        "skipped": engine.skipped_steps,
    }


@pytest.mark.parametrize("layout", everyday(["wave", "split"], "split"))
def test_dynamic_loss_scale(both, plans, layout):
    """It starts so high that the first steps overflow, are skipped on all ranks, and the scale comes down."""
    config = {
        "fp16": {"enabled": True, "initial_scale_power": 22, "hysteresis": 1, "loss_scale_window": 2},
        "zero_optimization": {"stage": 1},
    }
    expected, got = both(fp16_steps, Options(config=config), plans[layout])
    assert got == expected
    assert got[0]["skipped"] > 0 and got[0]["scale"] < 2**22


def steps_of_many_lengths(options: Options) -> dict:
    """Micro-batches of 5, 3, 4, 2, 5, ... tokens."""
    engine = make_engine(options)
    lengths = itertools.cycle([5, 3, 4, 2, 5, 5])
    data = ((x[:, :n], y[:, :n]) for (x, y), n in zip(engine.batches(7), lengths, strict=False))
    losses = [engine.train_batch(data).item() for _ in range(6)]
    return {"losses": losses, "weights": weights(engine)}


@pytest.mark.parametrize("layout", everyday(["looped", "wave", "split"], "split"))
def test_shapes_that_change(both, plans, layout):
    expected, got = both(steps_of_many_lengths, Options(dynamic_shape=True), plans[layout])
    assert got == expected


class Partly(torch.nn.Module):
    """hidden -> (hidden, None, a mask, and a float without a gradient)."""

    def __init__(self):
        super().__init__()
        self.mix = torch.nn.Linear(models.WIDTH, models.WIDTH)

    def forward(self, hidden):
        return self.mix(hidden), None, hidden[..., 0] > 0, torch.ones(())


class Together(torch.nn.Module):
    def forward(self, parts):
        hidden, nothing, mask, factor = parts
        assert nothing is None and mask.dtype == torch.bool
        return hidden * mask.unsqueeze(-1) * (1 + factor)


def steps_of_odd_outputs(options: Options) -> dict:
    import deepspeed
    from deepspeed.pipe import LayerSpec, PipelineModule

    torch.manual_seed(1000 + torch.distributed.get_rank())
    first, block = LayerSpec(models.Embed), LayerSpec(models.Block)
    last = LayerSpec(torch.nn.Linear, models.WIDTH, models.VOCABULARY)
    layers = [first, LayerSpec(Partly), LayerSpec(Together), block, block, block, block, last]
    with training.known(options.section):
        model = PipelineModule(layers, num_stages=2, loss_fn=models.loss, partition_method="uniform")
    engine = deepspeed.initialize(
        model=model, model_parameters=list(model.parameters()), config=options.configuration()
    )[0]
    data = models.micro_batches(7)
    losses = [engine.train_batch(data).item() for _ in range(5)]
    return {
        "losses": losses,
        "weights": weights(engine),
        "evaluation": engine.eval_batch(models.micro_batches(99)).item(),
    }


def test_none_masks_and_what_has_no_gradient_cross_a_border(both, plans, tmp_path):
    """DeepSpeed alone cannot send None; its own cut has that border inside a stage."""
    cut = make_plan(tmp_path, Layout("cut", (2, 4), (1, 0, 1)), LAYERS, MICRO_BATCHES)
    expected, got = both(steps_of_odd_outputs, Options(), str(cut))
    assert got == expected


class Samples(torch.utils.data.Dataset):
    """Distinct (tokens, targets)."""

    def __init__(self):
        generator = torch.Generator().manual_seed(3)
        self.tokens = torch.randint(models.VOCABULARY, (40, models.LENGTH + 1), generator=generator)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return self.tokens[index, :-1], self.tokens[index, 1:]


def steps_of_a_dataset(options: Options) -> list[float]:
    """training_data= instead of an iterator; it is longer than what one epoch needs."""
    import deepspeed

    model = training.make_model(options)
    engine, *_ = deepspeed.initialize(model=model, config=options.configuration(), training_data=Samples())
    losses = [engine.train_batch().item() for _ in range(7)]
    loader = engine.training_dataloader
    if loader is not None:
        # Or a garbage collection waits 5 s for each of its workers.
        getattr(loader, "loader", loader).data = None
    return losses


def test_training_data(both, plans):
    """In a wave rank 0 reads inputs and targets, and rank 1 nothing."""
    expected, got = both(steps_of_a_dataset, Options(), plans["wave"])
    assert got == expected


def steps_of_growing_length(options: Options) -> list[float]:
    """Curriculum learning: sequences get longer, and the script says so."""
    engine = make_engine(options)
    losses = []
    for length in (2, 3, 5):
        engine.reset_activation_shape()
        data = ((tokens[:, :length], targets[:, :length]) for tokens, targets in engine.batches(7))
        losses += [engine.train_batch(data).item() for _ in range(2)]
    return losses


def test_curriculum(both, plans):
    expected, got = both(steps_of_growing_length, Options(), plans["wave"])
    assert got == expected


def evaluations(options: Options) -> list:
    engine = make_engine(options)
    data, held_out = data_of(engine), data_of(engine, seed=5)
    values = [engine.eval_batch(held_out).item()]
    engine.train_batch(data)
    values.append(engine.eval_batch(held_out, num_micro_batches=7).item())
    loss, logits = engine.eval_batch(held_out, return_logits=True)
    values += [loss.item(), logits is not None and training.bytes_of(logits)]
    values.append(engine.eval_batch(held_out, bcast_loss=False, reduce_output=None) is not None)
    values.append(engine.train_batch(data).item())
    return values


def test_evaluation(both, plans):
    """The loss is known everywhere; logits and outputs stay on the rank of the last stage, which is rank 0 in
    a wave."""
    expected, got = both(evaluations, Options(), plans["wave"])
    numbers = [[v for v in row if isinstance(v, float)] for row in (*expected, *got)]
    assert numbers[0] == numbers[1] == numbers[2] == numbers[3]
    assert got[0][3] == expected[1][3] and got[1][3] is False
    assert got[0][4] and not got[1][4]


def traced(options: Options) -> str:
    """What this rank printed while it made its engine."""
    out = io.StringIO()
    with redirect_stdout(out):
        engine = make_engine(options)
    data = data_of(engine)
    for _ in range(8):
        engine.train_batch(data)
    engine.destroy()
    return out.getvalue()


def test_trace_and_announcement(world2, plans, tmp_path):
    section = {"plan": plans["wave"], "trace": str(tmp_path / "trace")}
    first, second = world2.run(traced, Options(section=section))
    line, losses, layers, where = [line for line in first.splitlines() if line.startswith("ostinato")]
    assert where.startswith(
        "ostinato: rank 0 reads inputs, and rank 0 computes the loss (under 1F1B: ranks 0 and 1)"
    )
    assert re.search(
        r'plan [0-9a-f]{12} on placement "wave", 4 micro-batches: expected to take [\d.]+ ms a step', line
    )
    assert losses == "ostinato: expected: the same losses as 1F1B, bit for bit"
    assert re.fullmatch(
        r"ostinato: layers of each rank: [\d, -]+ \| [\d, -]+ \(DeepSpeed prints its own partition: [\d|, -]+\)",
        layers,
    )
    assert "ostinato" not in second
    traces = read_traces(tmp_path / "trace")
    assert [(t.rank, t.device, t.step, len(t.step_seconds)) for t in traces] == [(0, 0, 8, 8), (1, 1, 8, 8)]
    computed = [i for t in traces for i in t.instructions if i.is_compute]
    assert len(computed) == 2 * 4 * MICRO_BATCHES
    assert all(0 <= i.start <= i.end for i in computed)


def losses_while_nothing_can_be_written(options: Options) -> list[float]:
    """As on a disk that is full from the first step on."""
    engine = make_engine(options)
    data, losses = data_of(engine), []
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        losses.extend(engine.train_batch(data).item() for _ in range(4))
        engine.destroy()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    return losses


def test_a_full_disk_loses_the_trace_not_the_training(world2, plans, tmp_path):
    folders = {"trace": str(tmp_path / "trace"), "memory": str(tmp_path / "memory")}
    full = world2.run(
        losses_while_nothing_can_be_written, Options(section={"plan": plans["wave"], **folders})
    )
    assert full == world2.run(losses_while_nothing_can_be_written, Options(section={"plan": plans["wave"]}))
    assert not list(tmp_path.glob("*/*"))


def test_memory_of_a_step_by_owner(world2, plans, tmp_path):
    world2.run(traced, Options(section={"plan": plans["wave"], "memory": str(tmp_path / "memory")}))
    for rank in range(2):
        recorded = json.loads((tmp_path / "memory" / f"rank-{rank}.json").read_text())
        counters = [event["args"] for event in recorded["traceEvents"] if event["ph"] == "C"]
        figures = recorded["otherData"]
        assert figures["peak"] == figures["counted_peak"] == max(sum(held.values()) for held in counters)
        assert figures["step"] == 3 and figures["dropped"] == 0
        forwards = [event["name"] for event in recorded["traceEvents"] if event["ph"] == "X"]
        stages = set(forwards)
        assert len(forwards) == 2 * MICRO_BATCHES and len(stages) == 2  # a wave has two stages on each rank
        assert set(counters[0]) >= {"parameters", "gradients", "optimizer state", "workspace", *stages}
        # Adam's two numbers, and the weights.
        assert counters[0]["optimizer state"] > counters[0]["parameters"] > 0
        assert all(any(held[stage] for held in counters) for stage in stages)
        assert all(size >= 0 for held in counters for size in held.values())
        # Losses and such that DeepSpeed holds on to.
        assert sum(counters[-1][stage] for stage in stages) <= 64 * MICRO_BATCHES


class Failing(torch.nn.Linear):
    """Fails in its third training step."""

    calls = 0

    def forward(self, hidden):
        Failing.calls += self.training
        if Failing.calls > 2 * MICRO_BATCHES:
            raise ArithmeticError("the layer is out of numbers")
        return super().forward(hidden)


@contextmanager
def failing_head():
    """The last layer of the models made meanwhile."""
    Failing.calls = 0
    made, models.layers = models.layers, lambda tied, in_place: [*made(tied, in_place)[:-1], failing_spec()]
    try:
        yield
    finally:
        models.layers = made


def failing_spec():
    from deepspeed.pipe import LayerSpec

    return LayerSpec(Failing, models.WIDTH, models.VOCABULARY)


def failure(options: Options) -> tuple[int, str, str]:
    """(steps done, kind and message, notes) of the error."""
    with failing_head():
        engine = make_engine(options)
    data = data_of(engine)
    try:
        for _ in range(5):
            engine.train_batch(data)
    except Exception as error:
        return engine.global_steps, f"{type(error).__name__}: {error}", "; ".join(error.__notes__)
    return engine.global_steps, "", ""


def test_an_error_in_a_layer(world2, plans):
    """It keeps its type and says where it was; the other rank names the instruction that it waited for."""
    section = {"plan": plans["looped"], "timeout_s": 3.0}
    waited, failed = world2.run(failure, Options(section=section))
    # A forward before step 1 has learned what layers draw.
    assert failed[:2] == (1, "ArithmeticError: the layer is out of numbers")
    assert "rank 1 (pipeline rank 1), step 2, plan " in failed[2]
    assert waited[0] == 1 and "rank 0 (pipeline rank 0), step 2" in waited[2]
    assert re.search(r"RECV_[FB]\d", waited[1]), waited[1]
    world2.restart()  # its transfers are out of step


def failed_evaluation(options: Options) -> str:
    """The notes of its error."""

    def fails(*_):
        raise ArithmeticError("the layer is out of numbers")

    engine = make_engine(options)
    if engine.stage_id == 0:
        engine.forward_stage = fails
    try:
        engine.eval_batch(data_of(engine))
    except Exception as error:
        return "; ".join(error.__notes__)
    return ""


def test_an_error_in_an_evaluation_does_not_mention_a_check(world2, plans):
    """Which compares steps."""
    notes, _ = world2.run(failed_evaluation, Options(section={"plan": plans["looped"], "timeout_s": 3.0}))
    assert "layers of each rank: " in notes and "DeepSpeed's own schedule" not in notes, notes
    world2.restart()  # its transfers are out of step


def said(options: Options) -> str:
    """What a rank prints in its first two steps."""
    engine = make_engine(options)
    data, printed = data_of(engine), io.StringIO()
    with redirect_stdout(printed):
        for _ in range(2):
            engine.train_batch(data)
    return "\n".join(line for line in printed.getvalue().splitlines() if line.startswith("ostinato"))


def test_a_backward_that_cannot_be_split_says_so(world2, plans):
    options = Options(checkpoint_interval=1, checkpointable=("Block",), section={"plan": plans["split"]})
    first, second = world2.run(said, options)
    assert (
        first
        == "ostinato: rank 0: the backward of s0, s2 ran whole although the plan splits it: activation checkpointing cannot be split"
    )
    assert "rank 1" in second and "s3" in second and "\n" not in second
    assert world2.run(said, Options(section={"plan": plans["split"]})) == ["", ""]


def untouched(options: Options) -> bool:
    """Without a section the engine and the module are DeepSpeed's own, to the last attribute."""
    from deepspeed.pipe import PipelineModule
    from deepspeed.runtime.pipe.engine import PipelineEngine

    engine = make_engine(options)
    ours = [name for owner in (engine, engine.module) for name in vars(owner) if "ostinato" in name]
    return type(engine) is PipelineEngine and type(engine.module) is PipelineModule and not ours


def test_untouched_without_a_section(world2, plans):
    world2.run(few_steps, Options(section={"plan": plans["wave"]}))
    assert world2.run(untouched, Options()) == [True, True]


def timed(options: Options) -> list[str]:
    """wall_clock_breakdown: DeepSpeed's timers start and stop around what the executor runs."""
    engine = make_engine(options)
    data = data_of(engine)
    for _ in range(2):
        engine.train_batch(data)
    return [
        name
        for name in ("fwd_microstep", "bwd_microstep", "step_microstep")
        if name in engine.timers.get_timers()
    ]


@pytest.mark.parametrize("layout", everyday(["wave", "split"], "split"))
def test_timers(world2, plans, layout):
    section = {"plan": plans[layout]}
    (names, _) = world2.run(timed, Options(section=section, config={"wall_clock_breakdown": True}))
    assert names == ["fwd_microstep", "bwd_microstep", "step_microstep"]
