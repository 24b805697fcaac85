# SPDX-License-Identifier: Apache-2.0
"""The peak that a plan says is the one that a training under it has: bytes of live tensors, by an allocator
that counts them.

The profile is the model's own, but for its times; two ranks train two steps, of which the last is compared:
buffers stay from the first on, and the optimizer's state from the first step.
"""

import json
import tomllib

import memory_jobs
import pytest
from memory_jobs import MICRO_BATCHES, Training, profiled
from support.tiers import everyday

from ostinato import _search

ADAM = {"optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}}}
SGD = {"optimizer": {"type": "SGD", "params": {"lr": 1e-3}}}
BF16 = {"bf16": {"enabled": True}}
ALL_BF16 = {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}}
BUCKET = {"zero_optimization": {"stage": 1, "reduce_bucket_size": 5_000_000}}
WITHIN = 0.03
# Of forwards and backwards, where that is not reached: outputs that were sent count to their backward, though
# gradients of earlier micro-batches show that they have arrived.
KNOWN = {"all forwards first": (0.0, 0.08)}  # less, more
REPLICAS = 2
# How much less may be planned than the end of a step of ZeRO-1 takes: gloo's threads free their copies of what replicas
# gather, late where the machine is busy.
LATE = 0.1
# And how much less and more is planned at most than is taken: an optimizer's step is divided with ZeRO's only.
DIVIDED = {
    "bf16, two replicas": (ADAM | BF16, WITHIN, 0.35),
    "bf16, ZeRO-1, two replicas": (ADAM | BF16 | BUCKET, LATE, 0.1),
}
TRAININGS = {
    "Adam": (ADAM, "1f1b", []),
    "SGD": (SGD, "1f1b", []),
    "all forwards first": (SGD, "gpipe", []),
    "split": (SGD, "zb-h1", ["--split-backward"]),
    "recompute": (SGD, "1f1b", ["--recompute", "always"]),
    "bf16": (ADAM | BF16, "1f1b", []),
    "bf16, ZeRO-1": (ADAM | BF16 | BUCKET, "1f1b", []),
    "all in bf16, ZeRO-1": (ADAM | ALL_BF16 | BUCKET, "1f1b", []),
    "ZeRO-1": (ADAM | BUCKET, "1f1b", []),
    "bf16, ZeRO-1, SGD": (SGD | BF16 | BUCKET, "1f1b", []),
    "a wave": (SGD, "auto", ["--chunks", "2", "--layout", "wave"]),
    "looped": (SGD, "auto", ["--chunks", "2"]),
}


PROFILES: dict[str, str] = {}


def write_profile(training: Training, path) -> None:
    """profiled(), once for each training: matmuls in bf16 take seconds on a CPU."""
    key = repr(training)
    if key not in PROFILES:
        profiled(training, path)
        PROFILES[key] = path.read_text()
    path.write_text(PROFILES[key])


def planned(folder, training: Training, method: str, options: list[str]) -> list[tuple[int, int]]:
    """By rank, at the peak of its schedule and at the end of the step."""
    placement, plan = folder / "placement.toml", folder / "plan.json"
    write_profile(training, folder / "profile.json")
    cut = f"partition {folder / 'profile.json'} --devices 2 --output {placement}"
    assert _search.main([*cut.split(), *options]) == 0
    search = (
        f"search {placement} --micro-batches {MICRO_BATCHES} --method {method} --time-limit 5 --output {plan}"
    )
    assert _search.main(search.split()) == 0
    assert _search.main(["verify", str(plan), str(placement)]) == 0
    devices, model = (tomllib.loads(placement.read_text())[key] for key in ("devices", "model"))
    ends = [device["static"] + step for device, step in zip(devices, model["step_memory"], strict=True)]
    return list(zip(json.loads(plan.read_text())["peak_memory"], ends, strict=True))


@pytest.mark.parametrize("name", everyday(DIVIDED, "bf16, ZeRO-1, two replicas"))
def test_zero_divides_the_optimizer_over_replicas(world4, name, tmp_path):
    config, less, more = DIVIDED[name]
    training = Training("support.memory_model", config=config)
    profile, placement, plan = (tmp_path / file for file in ("profile.json", "placement.toml", "plan.json"))
    write_profile(training, profile)
    words = f"plan {profile} --devices {2 * REPLICAS} --replicas {REPLICAS} --micro-batches {REPLICAS * MICRO_BATCHES}"
    files = f"--placement-output {placement} --output {plan}"
    assert _search.main(f"{words} --max-chunks 1 --without moves,split,recompute {files}".split()) == 0
    counted = world4.run(memory_jobs.train, training, str(plan))
    model, peaks = tomllib.loads(placement.read_text()), json.loads(plan.read_text())["peak_memory"]
    for stage, run in enumerate(peaks):
        end = model["devices"][stage]["static"] + model["model"]["step_memory"][stage]
        for steps in counted[stage * REPLICAS : (stage + 1) * REPLICAS]:
            both = run, end, steps[-1]
            assert run == pytest.approx(steps[-1].run, rel=2 * WITHIN), both
            assert (1 - less) * steps[-1].peak <= max(run, end) <= (1 + more) * steps[-1].peak, both


@pytest.mark.parametrize(
    "name", everyday(TRAININGS, "looped", "split", "recompute", "all forwards first", "bf16, ZeRO-1")
)
def test_the_planned_peak_is_the_measured_one(world2, name, tmp_path):
    config, method, options = TRAININGS[name]
    training = Training("support.memory_model", config=config)
    peaks = planned(tmp_path, training, method, options)
    counted = world2.run(memory_jobs.train, training, str(tmp_path / "plan.json"))
    less, more = KNOWN.get(name, (WITHIN, WITHIN))
    for (run, end), steps in zip(peaks, counted, strict=True):
        both = [(planned, of_rank[-1]) for planned, of_rank in zip(peaks, counted, strict=True)]
        assert (1 - less) * steps[-1].run <= run <= (1 + more) * steps[-1].run, both
        assert max(run, end) == pytest.approx(steps[-1].peak, rel=WITHIN), both
