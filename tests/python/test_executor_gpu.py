"""The executor over NCCL; skipped with the reason where there are not two GPUs. The target `gpu` runs it."""

import executor_jobs as jobs
import pytest
import torch
from plan_files import write_chain

GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
pytestmark = pytest.mark.skipif(GPUS < 2, reason=f"torch {torch.__version__} finds {GPUS} GPUs, and NCCL needs one for each rank")

CASES = {
    "1f1b": dict(device_of=[0, 1], micro_batches=8, in_flight=2),
    "looped": dict(device_of=[0, 1, 0, 1], micro_batches=6),
    "split": dict(device_of=[0, 1, 1, 0], micro_batches=6, split=True),
}
STEPS = 5


def test_losses_and_weights_are_those_of_one_process(tmp_path):
    files = {name: write_chain(tmp_path / name, **case) for name, case in CASES.items()}
    torch.multiprocessing.spawn(jobs.nccl_job, (2, str(tmp_path), files, STEPS), nprocs=2, join=True)
    for name, case in CASES.items():
        losses, weights = jobs.reference(len(case["device_of"]), case["micro_batches"], STEPS, "cuda")
        results = [torch.load(tmp_path / f"{name}.{r}.pt", map_location="cuda:0") for r in range(2)]
        off = max(abs(a - b) for a, b in zip(sum(results[case["device_of"][-1]]["losses"], []), sum(losses, [])))
        for s, expected in enumerate(weights):
            got = results[case["device_of"][s]]["weights"][s]
            assert all(torch.allclose(got[key], value) for key, value in expected.items()), f"{name}: stage {s}"
        print(f"gpu-run: executor over NCCL, {name}: losses of {STEPS} steps off by at most {off:g}")
        assert off < 1e-5
