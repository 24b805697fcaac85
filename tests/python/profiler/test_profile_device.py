# SPDX-License-Identifier: Apache-2.0
"""Times from a device's own clock, from the operators of a model to the rows of its profile.

The device is the CPU with CUPTI's stand-in (tests/profiler/cupti/standin): an operator of the tests launches a
made-up kernel there, and the device's clock stands where all kernels so far have ended. It shows that records
reach the right rows, and nothing about CUPTI or a GPU.
"""

import ctypes
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

import ostinato
from ostinato import _profiler
from ostinato.profile import Job, ProfileError, profile_layers
from ostinato.profile.measure.check import check_profile
from ostinato.profile.machine.device import Cpu, Cuda, device_of_this_process
from ostinato.profile.measure.operators import recording

# Of the build tree that ostinato is imported from; of script/test's, where it is installed.
BUILDS = (Path(ostinato.__file__).parents[2], Path(__file__).parents[3] / "build" / "release")
STAND_INS = next(
    (f for b in BUILDS if (f := b / "tests/profiler/cupti").joinpath("libcupti_standin.so").exists()), None
)
pytestmark = pytest.mark.skipif(
    STAND_INS is None, reason="the stand-in for CUPTI is built with the C++ tests"
)


class StandIn:
    """libcupti's stand-in in this process, with a library that has the driver's name."""

    def __init__(self):
        ctypes.CDLL(str(STAND_INS / "libcuda_standin.so"))
        self.library = ctypes.CDLL(str(STAND_INS / "libcupti_standin.so"))
        self.library.cupti_stand_in_launch.argtypes = [ctypes.c_uint64]
        self.library.cupti_stand_in_hold.argtypes = [ctypes.c_char_p]
        self.library.cupti_stand_in_drop.argtypes = [ctypes.c_size_t]
        self.library.cupti_stand_in_reset()
        self.clock = 0  # ns that all kernels have taken

    def launch(self, time):
        self.clock += time
        self.library.cupti_stand_in_launch(time)

    def __getattr__(self, name):
        return getattr(self.library, f"cupti_stand_in_{name}")


class Device(Cpu):
    """Tensors and memory are the CPU's, work is the stand-in's."""

    own_clock = True

    def __init__(self, stand_in):
        self.stand_in = stand_in

    def synchronize(self):
        self.stand_in.run_device()

    def mark(self):
        return self.stand_in.clock


@pytest.fixture
def stand_in(monkeypatch):
    monkeypatch.setenv("OSTINATO_CUPTI", str(STAND_INS / "libcupti_standin.so"))
    loaded = StandIn()
    library = torch.library.Library("ostinato_device_test", "DEF")
    library.define("work(Tensor x, int time) -> Tensor")

    def launch(x, time):
        loaded.launch(time)
        return x.clone()

    library.impl("work", launch, "CPU")
    yield loaded
    library._destroy()
    loaded.reset()


class Work(torch.autograd.Function):
    """One operator each way, which launches a kernel of so many nanoseconds."""

    @staticmethod
    def forward(ctx, x, there, back):
        ctx.back = back
        return torch.ops.ostinato_device_test.work(x, there)

    @staticmethod
    def backward(ctx, gradient):
        return torch.ops.ostinato_device_test.work(gradient, ctx.back), None, None


class Weighted(nn.Module):
    """Work on its input and, apart from it, on its weight."""

    def __init__(self, there, back, weight_there, weight_back):
        super().__init__()
        self.times, self.weight_times = (there, back), (weight_there, weight_back)
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return Work.apply(x, *self.times) + Work.apply(self.weight, *self.weight_times)


LAYERS = [nn.Linear(4, 4), Weighted(100, 200, 10, 20), nn.Linear(4, 4), Weighted(1000, 2000, 300, 400)]


def job(stand_in, layers=LAYERS, **options):
    options = {"repeats": 3, "warm_up": 1, "device": Device(stand_in)} | options
    return Job(layers=layers, inputs=torch.randn(2, 4), **options)


def profile(stand_in, layers=LAYERS, **options):
    return profile_layers(job(stand_in, layers, **options))


def test_every_launch_is_in_the_row_of_its_operator(stand_in):
    result = profile(stand_in)
    assert result.timer == "cupti" and result.timer_note == ""
    assert result.completeness.complete, result.completeness.reason
    rows = {
        (row.layer, row.phase): row for row in result.operators if row.name == "ostinato_device_test::work"
    }
    times = {key: row.self_time.median for key, row in rows.items()}
    assert times == {(1, "forward"): 110, (1, "backward"): 220, (3, "forward"): 1300, (3, "backward"): 2400}
    for row in rows.values():
        assert row.calls == 2 and row.self_time.repeats == 3 and row.self_time.low == row.self_time.high
    # What launches nothing takes the device no time, however long the host was busy with it.
    assert all(row.self_time.high == 0 for row in result.operators if row.name == "aten::addmm")


def test_a_layers_time_is_that_between_two_marks(stand_in):
    rows = profile(stand_in).layers
    figures = ("forward", "backward", "backward_input", "backward_weight")
    assert [[getattr(row, figure).median for figure in figures] for row in rows] == [
        [0, 0, 0, 0], [110, 220, 200, 20], [0, 0, 0, 0], [1300, 2400, 2000, 400]
    ]  # fmt: skip
    assert all(getattr(row, figure).repeats == 3 for row in rows for figure in figures)


@pytest.mark.parametrize(
    ("stages", "forward", "backward"), [(1, [1410], [2620]), (2, [110, 1300], [220, 2400])]
)
def test_a_stage_is_checked_by_the_devices_clock(stand_in, stages, forward, backward):
    checks = check_profile(job(stand_in), profile(stand_in), stages)
    assert [check.measured.forward for check in checks] == forward
    assert [check.measured.backward for check in checks] == backward
    assert all(
        (c.from_layers.forward, c.from_layers.backward) == (c.measured.forward, c.measured.backward)
        for c in checks
    )
    assert all(check.drift == 1 for check in checks)


def test_timers_are_freed_layer_by_layer(stand_in):
    """Each has the records of a whole session."""
    recorder, timers = _profiler.OperatorRecorder(), []
    for _ in range(3):
        timer, _ = _profiler.choose_timer("cpu", "")
        timers.append(weakref.ref(timer))
        with recording(recorder, timer=timer):
            pass
        timer.stop()
        del timer
    # The last one's recorder may be read still.
    assert [made() is None for made in timers] == [True, True, False]


def test_layers_are_timed_without_a_range_or_a_recorder(stand_in, monkeypatch):
    """Ranges and records cost the host time, which a layer that waits for launches would show."""
    running, measured = [], []
    start, stop = _profiler.OperatorRecorder.start, _profiler.OperatorRecorder.stop
    monkeypatch.setattr(
        _profiler.OperatorRecorder, "start", lambda self, **how: [running.append(1), start(self, **how)]
    )
    monkeypatch.setattr(_profiler.OperatorRecorder, "stop", lambda self: [running.pop(), stop(self)])

    class Watched(Device):
        def between(self, begin, end):
            measured.append(len(running))
            return super().between(begin, end)

    row = profile(stand_in, [LAYERS[1]], device=Watched(stand_in)).layers[0]
    assert measured.count(0) >= 6 * row.forward.repeats and row.forward.median == 110


def test_a_kernel_that_no_operator_launches_is_its_layers(stand_in):
    class Bare(nn.Module):
        def forward(self, x):
            stand_in.launch(50)
            return x * 2

    result = profile(stand_in, [nn.Linear(4, 4), Bare()])
    assert result.completeness.complete, result.completeness.reason
    assert result.layers[1].forward.median == 50


def test_kernels_of_launches_are_counted(stand_in):
    state = profile(stand_in).completeness
    assert state.seen == state.expected > 0 and state.dropped == state.out_of_range == 0


def test_dropped_records_gate_completeness(stand_in):
    class Lossy(nn.Module):
        def forward(self, x):
            stand_in.drop(1)
            return Work.apply(x, 5, 5)

    result = profile(stand_in, [Lossy(), LAYERS[1]])
    assert not result.completeness.complete and result.completeness.dropped > 0
    assert "dropped by CUPTI" in result.completeness.reason


def test_a_device_without_events_says_who_holds_cupti(stand_in):
    stand_in.hold(b"Nsight Systems")
    with pytest.raises(ProfileError, match="Nsight Systems.*no device events"):
        profile(stand_in)


def test_torch_profiler_is_told_to_stop_first(stand_in):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        with pytest.raises(ProfileError, match="torch.profiler"):
            profile(stand_in)


def test_memory_is_counted_on_the_device(stand_in):
    assert [row.kept for row in profile(stand_in).layers] == [
        row.kept
        for row in profile_layers(Job(layers=LAYERS, inputs=torch.randn(2, 4), repeats=1, warm_up=1)).layers
    ]


def test_the_note_is_in_the_file(tmp_path):
    result = _profiler.Profile()
    result.set_device(name="", kind="", driver="", torch="", cuda="", clocks="")
    result.timer = "device-events"
    result.timer_note = "CUPTI is held by another tool"
    result.micro_batch_size = 1
    result.write(str(tmp_path / "profile.json"))
    assert _profiler.read_profile(str(tmp_path / "profile.json")).timer_note == result.timer_note


def test_a_gpu_is_profiled_where_training_runs_on_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    chosen = device_of_this_process()
    assert isinstance(chosen, Cuda) and chosen.place == torch.device("cuda", 1)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    assert isinstance(device_of_this_process(), Cpu)
