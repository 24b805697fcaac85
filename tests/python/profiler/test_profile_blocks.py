# SPDX-License-Identifier: Apache-2.0
"""What a block costs beside its layers, and a batch to read: measured, written, planned with."""

import json
import os
from types import SimpleNamespace

import pytest

from ostinato.deepspeed.block_time import costs
from ostinato.profile import ProfileError
from ostinato.profile.machine import block_time, device
from ostinato.profile.machine.device import Cpu, UndisturbedCpu
from ostinato.profile.measure.samples import Sample, Samples, average
from ostinato.profile.script.engine import READS, time_to_read

NEEDS_CORES = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")


def instruction(action):
    return SimpleNamespace(action=action)


def test_a_block_costs_until_what_it_made_is_sent():
    actions = [instruction(action) for action in ("RECV_F", "F", "SEND_F", "F", "B", "SEND_B", "RECV_B")]
    records = [(i, 10 * i, 10 * i + 5) for i in range(len(actions))]
    found = [(block.action, cost) for block, cost in costs(actions, records, {"F": [3, 4], "B": [7]})]
    assert found == [("F", 17), ("B", 13)]  # the F that sends nothing does not count


def test_a_thread_that_waits_just_after_it_has_read_the_clock_gets_no_negative_time(monkeypatch):
    """The second of three readings: what the system says of the wait holds 500 ns that the clock has not."""
    times, waits = iter([1000, 1100, 1600]), [0]

    def read() -> int:
        time = next(times)
        waits[0] = 500 * (time > 1000)
        return time

    monkeypatch.setattr(device, "_profiler", SimpleNamespace(now=read))
    monkeypatch.setattr(device, "waited_for_a_core", lambda: waits[0])
    cpu = UndisturbedCpu()
    start = cpu.now()
    assert cpu.now() - start == 100


@NEEDS_CORES
def test_blocks_are_measured_in_a_training_of_two_ranks():
    cost = block_time.measure_blocks(4096, 1 << 16)
    assert (
        0 < cost.forward < 10**9
        and 0 <= cost.backward < 10**9
        and 0 <= cost.read < 10**9
        and 0 < cost.step < 10**9
    )


@NEEDS_CORES
def test_a_rank_that_fails_says_why(monkeypatch, tmp_path):
    """Both fail; the first to end is named."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    (tmp_path / "deepspeed.py").write_text("raise SystemExit('no DeepSpeed today')")
    with pytest.raises(
        ProfileError, match="rank [01] of the measurement of blocks failed: no DeepSpeed today"
    ):
        block_time.measure_blocks(4096, 0)


def test_nothing_is_measured_where_it_would_say_nothing(monkeypatch):
    assert not block_time.can_measure(object())  # an accelerator, which the host runs ahead of
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert not block_time.can_measure(Cpu())


def test_borders_carry_what_most_layers_put_out():
    rows = [SimpleNamespace(output_bytes=size) for size in (8, 8, 8, 4096)]
    assert block_time.border_bytes(rows) == 8


def test_a_stage_touches_its_share_of_the_model():
    row = SimpleNamespace(parameters=100, kept=20, forward_workspace=3)
    assert block_time.touched_bytes([row] * 4) == 2 * 123


def samples_of(forward, backward):
    return Samples([Sample(time, 0, 0) for time in forward], [Sample(time, 0, 0) for time in backward])


def test_a_profile_says_what_layers_take_on_average():
    assert average([samples_of([10] * 5, [20] * 5)]) == 10**6
    assert average([samples_of([10, 10, 10, 10, 15], [20] * 5)]) == round(10**6 * 31 / 30)
    # Interrupted: counts as twice the median.
    assert average([samples_of([10, 10, 10, 10, 10**9], [])]) == 1_200_000
    assert average([]) == average([Samples()]) == 0


def reader(batches, micro_batches=9):
    iterator = iter(batches)
    return SimpleNamespace(micro_batches=micro_batches, _next_batch=lambda: next(iterator))


def test_reading_is_timed_within_one_step():
    left = iter(range(100))
    assert time_to_read(SimpleNamespace(micro_batches=9, _next_batch=lambda: next(left))) > 0
    assert next(left) == READS
    assert time_to_read(SimpleNamespace(micro_batches=2, _next_batch=lambda: next(left))) > 0
    assert next(left) == READS + 2
    assert time_to_read(reader(range(9), micro_batches=1)) == 0  # the next would be another step's


def test_an_iterator_that_ends_is_no_error():
    assert time_to_read(reader([])) == 0
    assert time_to_read(reader([None] * 9)) == 0  # a rank that reads nothing


def test_a_profile_keeps_them(tmp_path):
    from ostinato import _profiler

    profile = _profiler.Profile()
    rank = profile.rank
    rank.forward, rank.backward, rank.read, rank.step_time, rank.average = 200, 100, 300, 400, 1_020_000
    profile.rank = rank
    written = {"forward": 200, "backward": 100, "read": 300, "step_time": 400, "average": 1_020_000}
    assert json.loads(profile.json())["rank"] == {"held": 0, "step": 0, "buffers": 0} | written
