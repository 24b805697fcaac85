# SPDX-License-Identifier: Apache-2.0
"""Training on real GPUs: the executor, Pipeline and DeepSpeed's engine over NCCL. Skipped with the reason
where there are too few. The target `gpu` runs it, and docs/gpu-runs.md keeps what it says (tests/gpu/run.py).

    OSTINATO_GPU_TESTS=cpu pytest tests/python/deepspeed/test_training_gpu.py        # tries the tests themselves, over gloo
"""

from dataclasses import replace

import executor_jobs
import pytest
import torch
from plan_files import write_chain
from support import gpu_jobs, torch_jobs
from support.gpu_jobs import GPUS, ON_CPU, spawn
from support.plans import Layout, make_plan
from support.torch_jobs import MICRO_BATCHES, Case, check_gradients

CASES = {
    1: {"one rank": dict(device_of=[0, 0, 0], micro_batches=8)},
    2: {
        "1f1b": dict(device_of=[0, 1], micro_batches=8, in_flight=2),
        "looped": dict(device_of=[0, 1, 0, 1], micro_batches=6),
        "split": dict(device_of=[0, 1, 1, 0], micro_batches=6, split=True),
    },
    3: {
        "1f1b": dict(device_of=[0, 1, 2], micro_batches=8, in_flight=3),
        "wave": dict(device_of=[0, 1, 2, 2, 1, 0], micro_batches=6),
    },
    4: {
        "1f1b": dict(device_of=[0, 1, 2, 3], micro_batches=8, in_flight=4),
        "looped": dict(device_of=[0, 1, 2, 3, 0, 1, 2, 3], micro_batches=8),
    },
}
PIPELINES = {
    1: Layout("one", (4,), (0, 0)),
    2: Layout("stock", (4,), (0, 1)),
    3: Layout("three", (2, 5), (0, 1, 2)),
    4: Layout("four", (2, 4, 6), (0, 1, 2, 3)),
}
SHARDED = Layout("m", (1, 3, 6), ((0, 1), 0, 1, (0, 1)))
LAYERS = 8
STEPS, LATER = 4, 20  # memory may grow in the first steps, and not in those that follow


def on(ranks: int):
    """Skips where there are fewer GPUs: NCCL wants one for each rank."""
    reason = f"{ranks} GPUs are needed, and torch {torch.__version__} finds {GPUS}"
    return pytest.param(
        ranks, marks=pytest.mark.skipif(not ON_CPU and GPUS < ranks, reason=reason), id=f"{ranks} ranks"
    )


def say(what):
    print(f"gpu-run: {what}")


def device() -> str:
    return "cpu" if ON_CPU else "cuda"


@pytest.mark.parametrize("looks", [True, False], ids=["forwards that look", "forwards that only issue"])
@pytest.mark.parametrize("eager", [False, True], ids=["lazy", "eager"])
@pytest.mark.parametrize("ranks", [on(1), on(2), on(3), on(4)])
def test_the_executor_trains_as_one_process_and_its_memory_stays(tmp_path, ranks, eager, looks):
    cases = CASES[ranks]
    files = {name: write_chain(tmp_path / name.replace(" ", "-"), **case) for name, case in cases.items()}
    results = spawn(gpu_jobs.train_on_executors, ranks, tmp_path, files, STEPS + LATER, eager, looks)
    for name, case in cases.items():
        losses, weights = executor_jobs.reference(
            len(case["device_of"]), case["micro_batches"], STEPS + LATER, device()
        )
        ours = sum(results[case["device_of"][-1]][name]["losses"], [])
        off = max(abs(a - b) for a, b in zip(ours, sum(losses, []), strict=True))
        for s, expected in enumerate(weights):
            got = results[case["device_of"][s]][name]["weights"][s]
            assert all(torch.allclose(got[key], value.cpu(), atol=1e-5) for key, value in expected.items()), (
                f"{name}: stage {s}"
            )
        held = [result[name]["reserved"] for result in results]
        grown = max(each[-1] - each[STEPS - 1] for each in held)
        say(f"executor, {ranks} ranks, {'eager' if eager else 'lazy'}, {'forwards that look' if looks else 'forwards that only issue'}, {name}: "
            f"losses of {STEPS + LATER} steps off by at most {off:g}, reserved memory grew by {grown} B after step {STEPS}")  # fmt: skip
        assert off < 1e-5
        assert grown == 0


@pytest.mark.parametrize("ranks", [on(1), on(2), on(3), on(4)])
def test_pipeline(tmp_path, ranks):
    case = Case(str(make_plan(tmp_path / "plan", PIPELINES[ranks], LAYERS, MICRO_BATCHES)), device=device())
    check(spawn(gpu_jobs.train_pipeline, ranks, tmp_path, case, True), case)


@pytest.mark.parametrize("ranks", [on(2)])
def test_a_stage_on_several_ranks(tmp_path, ranks):
    case = Case(str(make_plan(tmp_path / "plan", SHARDED, LAYERS, MICRO_BATCHES)), device=device())
    check(spawn(gpu_jobs.train_pipeline, ranks, tmp_path, case, True), case)


@pytest.mark.parametrize("ranks", [on(1), on(2)])
def test_a_stage_that_is_offloaded(tmp_path, ranks):
    """The copies run, and change nothing; what stays in the memory of the GPU is said."""
    peaks = {}
    for offloaded in ((), (0,)):
        layout = replace(PIPELINES[ranks], offloaded=offloaded)
        folder = tmp_path / str(len(offloaded))
        case = Case(str(make_plan(folder / "plan", layout, LAYERS, MICRO_BATCHES)), device=device())
        results = spawn(gpu_jobs.train_pipeline, ranks, folder, case, True)
        check(results, case)
        peaks[offloaded] = results[0]["peak"]
    say(
        f"offloaded on {ranks} ranks: rank 0 holds {peaks[0,]} B at most, {peaks[()]} B where nothing is offloaded"
    )


def check(results, case) -> None:
    """Against one process on a CPU."""
    expected = torch_jobs.alone(case)
    losses = [result["losses"] for result in results if result["losses"][0] is not None]
    off = max(abs(a - b) for mine in losses for a, b in zip(mine, expected["losses"], strict=True))
    say(f"Pipeline on {len(results)} ranks: losses of {case.steps} steps off from a CPU's by at most {off:g}")
    assert losses and off < 1e-4
    check_gradients(results, expected, lambda a, b: torch.allclose(a, b, rtol=1e-3, atol=1e-5))


@pytest.mark.parametrize("ranks", [on(1), on(2), on(4)])
def test_deepspeeds_engine(tmp_path, ranks):
    plan = make_plan(tmp_path / "plan", PIPELINES[ranks], LAYERS, MICRO_BATCHES)
    results = spawn(gpu_jobs.train_with_deepspeed, ranks, tmp_path, str(plan), 6)
    for result in results:
        alone, planned = result["alone"], result["planned"]
        off = max(abs(a - b) for a, b in zip(planned["losses"], alone["losses"], strict=True))
        say(f"DeepSpeed on {ranks} ranks: losses of 6 steps off from its own schedule's by at most {off:g}, the evaluation by "
            f"{abs(planned['evaluation'] - alone['evaluation']):g}")  # fmt: skip
        assert off < 1e-4
        assert planned["losses"][-1] < planned["losses"][0]
