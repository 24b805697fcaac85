# SPDX-License-Identifier: Apache-2.0
"""Memory by owner, recorded from the allocator while a micro-batch runs."""

import gc
import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from ostinato import _profiler
from ostinato.profile import Job, ProfileError, profile_layers
from ostinato.profile.machine.counted import check_counted
from ostinato.profile.machine.device import Cpu
from ostinato.profile.measure.owners import Span, attribute
from ostinato.profile.measure.rank_memory import record_memory
from ostinato.profile.settings import read_settings
from ostinato.profile.views.page import html
from ostinato.profile.views.perfetto import perfetto
from ostinato.profile.views.timeline import ranks_of

FP32 = 4
SCRATCH = 100_000


class Wasteful(nn.Module):
    """Keeps its output, and takes much more while it runs."""

    def forward(self, x):
        torch.empty(SCRATCH, dtype=torch.uint8)
        return torch.tanh(x)


def job(layers=None, **options):
    layers = layers or [nn.Linear(8, 16), Wasteful(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)]
    options = {"repeats": 1, "warm_up": 1, "config": {"optimizer": {"type": "Adam"}}} | options
    return Job(
        layers=layers, inputs=torch.randn(32, 8), loss_fn=lambda out, _: out.square().mean(), **options
    )


def recorded(the_job, ranks):
    profile = profile_layers(the_job)
    return profile, record_memory(the_job, profile, ranks)


def held_over_time(recording):
    return [dict(held) for held in recording.over_time()]


def test_garbage_collection_is_left_as_it_was():
    """Nothing is kept out of it in a user's process; of what earlier modules of tests have imported, all is."""

    def memory() -> list[tuple[int, ...]]:
        return [
            (row.kept, row.forward_workspace, row.backward_workspace) for row in profile_layers(job()).layers
        ]

    gc.unfreeze()
    of_user = memory()
    assert gc.get_freeze_count() == 0
    gc.freeze()
    assert memory() == of_user and gc.get_freeze_count() > 0


def test_a_block_belongs_to_who_left_it():
    spans = [Span("0:a", 10, 20), Span("1:b", 20, 30), Span("", 40, 60)]
    events = [
        (11, 1, 100, 0), (12, 2, 50, 0), (15, 2, -50, 0),  # a keeps one, and frees one itself
        (21, 2, 70, 0), (28, 7, -30, 0), (29, 9, -5, 0),   # the same address is b's; what was received goes; 9 is nobody's
        (41, 3, 10, 0), (42, 2, -70, 0), (43, 1, -100, 0), (55, 3, -10, 0),
    ]  # fmt: skip
    changes = attribute(events, spans, {7: ("received", 30), 8: ("parameters", 400)})
    assert [(change.owner, change.bytes) for change in changes] == [
        ("0:a", 100), ("workspace", 50), ("workspace", -50), ("1:b", 70), ("received", -30), ("workspace", 10), ("1:b", -70),
        ("0:a", -100), ("workspace", -10),
    ]  # fmt: skip


def test_what_somebody_is_seen_to_own_is_theirs():
    """As a gradient that a training step makes, and drops again."""
    events = [(1, 1, 100, 0), (2, 2, 50, 0), (5, 1, -100, 0), (6, 1, 30, 0), (7, 3, 8, 0)]
    noted = [(3, {1: ("gradients", 100)}), (9, {2: ("optimizer state", 50), 9: ("optimizer state", 1)})]
    changes = attribute(events, [Span("", 0, 9)], {}, noted)
    assert [change.owner for change in changes] == [
        "gradients",
        "optimizer state",
        "gradients",
        "workspace",
        "workspace",
    ]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_owners_add_up_to_the_peak_that_the_allocator_counted(ranks):
    profile, recordings = recorded(job(), ranks)
    assert [rank.first for rank in recordings] == [rank.rows[0].index for rank in ranks_of(profile, ranks)]
    for rank in recordings:
        assert rank.dropped == 0 and rank.changes
        assert rank.peak() == rank.counted_peak == max(sum(held.values()) for held in held_over_time(rank))


def test_every_owner_holds_what_its_row_says():
    profile, (rank,) = recorded(job(), 1)
    assert rank.held["parameters"] == sum(row.parameters for row in profile.layers)
    assert rank.held["gradients"] == sum(row.gradients for row in profile.layers)
    assert rank.held["received"] == (32 * 8 + 1) * FP32  # the inputs, and the gradient of the loss
    over_time = held_over_time(rank)
    after_forward = over_time[sum(change.at <= rank.phase("forward")[1] for change in rank.changes)]
    # A linear layer keeps no output of its own: the next one, or the loss, needs it no longer than it runs.
    assert {row.name: after_forward.get(row.name, 0) for row in profile.layers[:4]} == {
        row.name: row.kept for row in profile.layers[:4]
    }
    assert max(held.get("workspace", 0) for held in over_time) >= SCRATCH
    assert all(size >= 0 for held in over_time for size in held.values())
    last = over_time[-1]
    assert {owner for owner, size in last.items() if size} <= {"parameters", "gradients", "received"}


def test_checkpointed_layers_hold_little_until_the_backward():
    block = [nn.Sequential(nn.Linear(8, 256), nn.Tanh(), nn.Linear(256, 8)) for _ in range(3)]
    whole, checkpointed = (recorded(job(block, checkpoint_interval=n), 1)[1][0] for n in (0, 1))
    assert checkpointed.peak() == checkpointed.counted_peak < whole.peak()


def test_a_forward_without_a_graph_holds_two_activations_at_a_time():
    width = 32 * 256 * FP32
    deep = nn.Sequential(nn.Linear(8, 256), *[nn.Tanh() for _ in range(8)])

    class Differentiates(nn.Module):
        def forward(self, x):
            return torch.autograd.grad(x.tanh().sum(), x, create_graph=True)[0]

    rows = profile_layers(job([deep, nn.Linear(256, 4), Differentiates()])).layers
    assert rows[0].inference_workspace == 2 * width < rows[0].kept == 8 * width
    assert (
        rows[2].inference_workspace == rows[2].kept + rows[2].forward_workspace > 0
    )  # it does not run without


def test_replicas_send_the_copies_in_which_gradients_are_added():
    for config, kind, held, sent in (
        ({}, torch.float32, 4, 4),
        ({"bf16": {"enabled": True}}, torch.bfloat16, 4, 2),
        ({"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}, torch.bfloat16, 6, 4),
        ({"fp16": {"enabled": True}}, torch.float16, 2, 2),
    ):
        weight = nn.Parameter(torch.zeros(10, dtype=kind))
        state = read_settings(config, None).state_bytes([weight], 0)
        assert (state.gradients, state.reduced) == (10 * held, 10 * sent)


def test_a_module_that_is_a_graph_is_recorded_as_one_rank():
    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            return torch.tanh(self.left(x)) * torch.tanh(self.right(x))

    towers = Job(module=Towers(), inputs=torch.randn(4, 8), name="towers", repeats=1, warm_up=0)
    profile, (rank,) = recorded(towers, 1)
    assert rank.peak() == rank.counted_peak and "towers" in {change.owner for change in rank.changes}
    assert record_memory(towers, profile, 2) == [None, None]


def test_a_rank_that_does_not_fit_is_drawn_from_its_rows(monkeypatch):
    monkeypatch.setattr(Cpu, "free_bytes", lambda self: 10)
    profile, recordings = recorded(job(), 2)
    assert recordings == [None, None]
    assert html(profile, 2, recordings).count("as the profile's rows say") == 2


def test_a_log_that_is_full_says_what_it_lost(monkeypatch):
    log = _profiler.MemoryLog
    monkeypatch.setattr(_profiler, "MemoryLog", lambda: log(events=5))
    profile, (rank,) = recorded(job(), 1)
    assert rank.dropped > 0 and f"{rank.dropped} changes lost" in html(profile, 1, [rank])


def test_page_and_trace_show_the_recording():
    profile, recordings = recorded(job(), 2)
    assert html(profile, 2, recordings).count("recorded from the allocator") == 2
    events = json.loads(perfetto(profile, 2, recordings))["traceEvents"]
    adam = [2 * sum(row.parameters for row in rank.rows) for rank in ranks_of(profile, 2)]
    for number, recording in enumerate(recordings):
        counters = [event for event in events if event["ph"] == "C" and event["pid"] == number]
        highest = max(sum(event["args"].values()) for event in counters)
        assert highest == recording.counted_peak + adam[number]
        assert [event["ts"] for event in counters] == sorted(event["ts"] for event in counters)


def test_memory_that_torch_does_not_count_is_refused(monkeypatch):
    gpu = SimpleNamespace(place=torch.device("cuda", 0))
    check_counted(gpu)
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "0")  # whatever its value
    check_counted(Cpu())
    with pytest.raises(ProfileError, match="PYTORCH_NO_CUDA_MEMORY_CACHING.*cuda:0: unset it"):
        check_counted(gpu)
