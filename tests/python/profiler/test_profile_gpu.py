# SPDX-License-Identifier: Apache-2.0
"""The profiler on a real GPU; skipped with the reason elsewhere. The target `gpu` runs it, and
docs/gpu-runs.md keeps what it says.

Lines that start with "gpu-run:" are for that file (tests/gpu/run.py).
"""

import statistics
import time

import pytest
import torch
from torch import nn

from ostinato import _profiler
from ostinato.profile import Job, profile_layers
from ostinato.profile.measure.check import check_profile
from ostinato.profile.machine.device import Cuda
from ostinato.profile.measure.rank_memory import record_memory
from ostinato.profile.measure.operators import EVENTS, recording
from ostinato.profile.machine.transfers import measure_transfers

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason=f"torch {torch.__version__} finds no GPU"
)

LAYERS, WIDTH, BATCH, TOKENS = 6, 1024, 8, 512
GRAIN = 512  # bytes: the caching allocator rounds up to it


def say(what):
    print(f"gpu-run: {what}")


def job(**options):
    torch.manual_seed(0)
    blocks = [nn.TransformerEncoderLayer(WIDTH, 16, 4 * WIDTH, 0.0, batch_first=True) for _ in range(LAYERS)]
    options = {"repeats": 10, "warm_up": 3, "device": Cuda()} | options
    return Job(
        layers=blocks,
        inputs=torch.randn(BATCH, TOKENS, WIDTH),
        loss_fn=lambda out, _: out.square().mean(),
        **options,
    )


@pytest.fixture(scope="module")
def profile():
    return profile_layers(job())


def milliseconds(result):
    return sum(row.forward.median + row.backward.median for row in result.layers) / 1e6


def test_every_operator_and_launch_is_accounted_for(profile):
    state = profile.completeness
    say(f"profile: timer {profile.timer} {profile.timer_note}; {milliseconds(profile):.3f} ms a micro-batch; {state.seen} of "
        f"{state.expected} operators and launches, {state.dropped} dropped, {state.out_of_range} out of range; {state.reason}")  # fmt: skip
    assert state.complete, state.reason
    assert all(row.forward.median > 0 and row.backward.median > 0 for row in profile.layers)
    work = sum(row.self_time.median for row in profile.operators)
    assert 0 < work


def test_device_events_see_the_same_model(profile, monkeypatch):
    monkeypatch.setattr(torch.autograd, "_profiler_enabled", lambda: True)
    events = profile_layers(job())
    work, of_events = (
        sum(row.calls * row.self_time.median for row in of.operators) for of in (profile, events)
    )
    say(
        f"device events: operators take {of_events / max(1, work):.3f} of what {profile.timer} says; layers, by events both times, "
        f"{milliseconds(events):.3f} and {milliseconds(profile):.3f} ms a micro-batch"
    )
    assert events.timer == "device-events" and events.completeness.complete, events.completeness.reason
    assert 0.5 < milliseconds(events) / milliseconds(profile) < 2


def test_memory_is_recorded_as_the_allocator_counts_it(profile):
    for rank in record_memory(job(), profile, 2):
        say(f"memory of layers {rank.first} to {rank.last - 1}: {rank.peak()} B by owner, {rank.counted_peak} B counted, {len(rank.changes)} "
            f"changes, {rank.dropped} dropped")  # fmt: skip
        assert rank.dropped == 0 and rank.changes
        assert abs(rank.peak() - rank.counted_peak) <= GRAIN * len(rank.changes)


def test_stages_are_predicted(profile):
    for check in check_profile(job(), profile, 2):
        whole, rows = check.measured, check.from_layers
        off = {
            "forward": rows.forward * check.drift / whole.forward, "backward": rows.backward * check.drift / whole.backward,
            "kept": rows.kept / whole.kept, "workspace": rows.workspace / whole.workspace,
            "operators": (check.operators_forward + check.operators_backward) * check.drift / (whole.forward + whole.backward),
        }  # fmt: skip
        say(
            f"layers {check.first} to {check.last - 1}, predicted over measured: "
            + ", ".join(f"{k} {v:.3f}" for k, v in off.items())
        )
        assert all(0.5 < ratio < 2 for ratio in off.values()), off


def step_time(model, inputs):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    model(inputs).square().mean().backward()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def test_what_profiling_costs_a_step():
    with torch.device("cuda"):
        model, inputs = nn.Sequential(*job().layers).to("cuda"), torch.randn(BATCH, TOKENS, WIDTH)
    recorder = _profiler.OperatorRecorder(events_per_thread=EVENTS)
    bare, ours = [], []
    for turn in range(13):
        bare.append(step_time(model, inputs))
        timer, note = _profiler.choose_timer("cuda", "")
        with recording(recorder, timer=timer):
            recorder.begin_pass(0, "forward")
            ours.append(step_time(model, inputs))
            recorder.end_pass()
        timer.stop()
        if turn < 3:  # the first sessions instrument what is loaded
            bare.clear(), ours.clear()
    ratio = statistics.median(a / b for a, b in zip(ours, bare, strict=True))
    say(
        f"a step takes {1e3 * statistics.median(bare):.3f} ms, profiled by {timer.name} {note} {100 * (ratio - 1):+.1f} %"
    )
    assert ratio < 3


def test_transfers_use_the_backend_of_training():
    costs = measure_transfers(2, Cuda())
    for cost in costs[:1]:
        say(f"transfers over {cost.backend}: {cost.latency} ns + bytes / {cost.bytes_per_second / 1e9:.2f} GB/s, off by at most "
            f"{100 * cost.residual:.0f} %")  # fmt: skip
    assert {cost.backend for cost in costs} == ({"nccl"} if torch.cuda.device_count() > 1 else set())
