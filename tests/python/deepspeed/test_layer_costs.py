# SPDX-License-Identifier: Apache-2.0
"""What "auto" measures in DeepSpeed's engine, and `ostinato profile` of the same layers: one stopwatch, by
one clock."""

import json
from types import SimpleNamespace

import pytest
import torch
from support import training
from support.training import Options
from torch import nn
from torch.utils.checkpoint import set_checkpoint_early_stop

from ostinato.profile import Job, profile_layers
from ostinato.profile.machine.device import Cpu, device_at
from ostinato.profile.measure.samples import counted_memory, measure
from ostinato.profile.settings import read_settings

CONFIG = {
    "train_micro_batch_size_per_gpu": 32,
    "gradient_accumulation_steps": 2,
    "steps_per_print": 10**9,
    "gradient_clipping": 0.0,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
}


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

    clock = MovedClock()

    def __init__(self, there, back, scratch=0):
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.there, self.back, self.scratch = there, back, scratch

    def forward(self, x):
        torch.zeros(self.scratch)
        return Takes.apply(self.linear(x), self.clock, self.there, self.back)


BLOCKS = (1000, 2500, 1 << 18), (300, 700), (20, 50), (40, 90)


def loss_fn(outputs, labels):
    """It writes to its labels."""
    labels -= outputs.detach().mean()
    return Takes.apply((outputs - labels).pow(2).mean(), Block.clock, 7, 11)


def facts_of(row) -> dict:
    fields = (
        "name",
        "digest",
        "parameters",
        "gradients",
        "optimizer_state",
        "step_together",
        "step_alone",
        "input_bytes",
        "output_bytes",
    )
    return {
        "forward": (row.forward.median, row.forward.low, row.forward.high),
        "backward": (row.backward.median, row.backward.low, row.backward.high),
        "memory": (row.kept + row.forward_workspace, row.backward_workspace),
        **{field: getattr(row, field) for field in fields},
    }


def in_engine(config: dict, interval: int = 0) -> tuple[list[dict], bool]:
    """Rows of this rank's layers after a step, and whether DeepSpeed has seen gradients meanwhile."""
    import deepspeed
    from deepspeed.pipe import LayerSpec, PipelineModule

    from ostinato.deepspeed.start.layer_costs import measure as measure_layers

    torch.manual_seed(1)
    model = PipelineModule(
        [LayerSpec(Block, *block) for block in BLOCKS],
        num_stages=2,
        loss_fn=loss_fn,
        partition_method="uniform",
        activation_checkpoint_interval=interval,
    )
    engine = deepspeed.initialize(
        model=model, model_parameters=list(model.parameters()), config=CONFIG | config
    )[0]
    seen = []
    dtype = torch.bfloat16 if "bf16" in config else torch.float32
    items = [(torch.rand(32, 64, dtype=dtype), torch.rand(32, 64, dtype=dtype)) for _ in range(4)]
    engine.train_batch(iter(items))
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(seen.append)
    with set_checkpoint_early_stop(False):  # else it ends before the clock moves
        measured = measure_layers(
            engine, items[2:3], 1, Block.clock, read_settings(CONFIG | config, None), None
        )
    return [facts_of(layer.row()) for layer in measured], bool(seen)


def alone(config: dict) -> list[dict]:
    layers = [Block(*block) for block in BLOCKS]
    inputs, labels = torch.rand(32, 64), torch.rand(32, 64)
    job = Job(
        layers=layers,
        inputs=inputs,
        labels=labels,
        loss_fn=loss_fn,
        config=CONFIG | config,
        device=Block.clock,
        warm_up=1,
        repeats=3,
    )
    return [facts_of(row) for row in profile_layers(job).layers]


def test_rows_are_those_of_the_profiler(world2):
    ours, theirs = [row for rows, _ in world2.run(in_engine, {}) for row in rows], alone({})
    for row, of_profiler in zip(ours, theirs, strict=True):
        # Which hold the class: a module here, a LayerSpec there.
        expected = of_profiler | {"name": row["name"], "digest": row["digest"]}
        assert row == expected
    assert [row["forward"][0] for row in ours] == [1000, 300, 20, 47]
    assert [row["backward"][0] for row in ours] == [2500, 700, 50, 101]
    assert [row["name"].split(":")[0] for row in ours] == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    "config", [{"zero_optimization": {"stage": 1}}, {"bf16": {"enabled": True}}], ids=["zero", "bf16"]
)
def test_deepspeed_sees_no_gradient_of_what_is_measured(world2, config):
    for rows, seen in world2.run(in_engine, config):
        assert not seen and all(row["backward"][0] > 0 for row in rows)


def test_a_recomputed_forward_belongs_to_the_backward(world2):
    rows = [row for rows, _ in world2.run(in_engine, {}, 2) for row in rows]
    assert [row["forward"][0] for row in rows] == [1000, 300, 20, 47]
    assert [row["backward"][0] for row in rows] == [3500, 1000, 70, 141]  # the loss is not recomputed


def test_the_cpu_waits_for_nothing_and_counts_its_memory():
    device = device_at(torch.device("cpu"))
    with counted_memory(device):
        before = device.live_bytes()
        held = torch.zeros(1000)
        assert device.live_bytes() - before >= held.nbytes
    assert device.now() <= device.now()


def test_an_accelerators_work_is_timed_by_events_on_its_stream(monkeypatch):
    """Of whatever kind: its module of torch tells."""
    place, done = torch.device("xpu", 1), []
    allocated, clock = iter([100, 140]), iter([7.0, 7.25])  # bytes; milliseconds

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self, stream):
            done.append(("recorded on", stream))
            self.at = next(clock)

        def synchronize(self):
            done.append("waited")

        def elapsed_time(self, end):
            return end.at - self.at

    module = SimpleNamespace(
        Event=Event,
        current_stream=lambda on: f"stream of {on}",
        synchronize=lambda on: done.append(("waited for", on)),
        reset_peak_memory_stats=lambda on: done.append(("reset", on)),
        memory_allocated=lambda on: next(allocated),
        max_memory_allocated=lambda on: 175,
    )
    monkeypatch.setattr(torch, "get_device_module", lambda on: {place: module}[on])
    result, sample = measure(device_at(place), "work", lambda: done.append("work") or 5)
    recorded = ("recorded on", "stream of xpu:1")
    assert done == [("waited for", place), ("reset", place), recorded, "work", recorded, "waited", "waited"]
    assert (result, sample.time, sample.kept, sample.peak) == (5, 250_000, 40, 75)


def until_it_ends(options: Options) -> int | str | None:
    try:
        training.train(options)
    except SystemExit as end:
        return end.code
    return "it went on"


def test_auto_counts_what_one_of_several_replicas_holds(world4, tmp_path):
    """ZeRO divides the optimizer's state over them; tied layers that a plan puts on one rank hold one copy."""
    section = {"auto": "profile", "output": str(tmp_path)}
    options = Options(stages=2, tied=True, section=section, config={"zero_optimization": {"stage": 1}})
    assert world4.run(until_it_ends, options) == [0] * 4
    profile = json.loads((tmp_path / "profile.json").read_text())
    assert profile["zero"] == {"ranks": 2, "step": True}
    rows, adam = profile["layers"], 3 * 4
    for row in rows:
        numbers = row["gradients"] // 4
        assert row["optimizer_state"] == -(-numbers * adam // 2)
    first, last = (row for row in rows if row["name"].endswith(("Embed", "unembed")))
    assert "tied" not in first
    assert last["tied"] == last["parameters"] + last["gradients"] + last["optimizer_state"] > 0
