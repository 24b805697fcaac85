# SPDX-License-Identifier: Apache-2.0
"""Trainings whose memory is counted, byte by byte: what runs on every rank."""

import importlib
from dataclasses import dataclass, field
from pathlib import Path

import torch

MICRO_BATCHES = 4
STEPS = 2  # in the second the state of the optimizer and the buffers of the executor are there from the start


@dataclass(frozen=True)
class Training:
    """`module` has layers(**sizes), batch(generator, **sizes) and loss."""

    module: str
    sizes: dict = field(default_factory=dict)
    config: dict = field(default_factory=dict)  # DeepSpeed's
    checkpoint_interval: int = 0

    def layers(self) -> list:
        return importlib.import_module(self.module).layers(**self.sizes)

    def loss(self):
        return importlib.import_module(self.module).loss

    def batches(self, seed: int):
        generator, batch = torch.Generator().manual_seed(seed), importlib.import_module(self.module).batch
        while True:
            yield batch(generator, **self.sizes)

    def configuration(self, micro_batches: int = MICRO_BATCHES) -> dict:
        first = next(self.batches(7))[0]
        made = {
            "train_micro_batch_size_per_gpu": len(first[0] if isinstance(first, tuple) else first),
            "gradient_accumulation_steps": micro_batches,
            "steps_per_print": 10**9,
            "zero_allow_untested_optimizer": True,
        }
        return made | self.config


def profiled(training: Training, path: Path, seed: int = 7) -> None:
    """The profile of the training's layers, with times that do not depend on this machine."""
    from ostinato import _profiler
    from ostinato.profile import Job, profile_layers

    inputs, labels = next(training.batches(seed))
    job = Job(
        layers=training.layers(),
        inputs=inputs,
        labels=labels,
        loss_fn=training.loss(),
        config=training.configuration(),
    )
    job.repeats, job.warm_up, job.checkpoint_interval = 1, 0, training.checkpoint_interval
    profile = profile_layers(job)
    rows = profile.layers
    for row in rows:
        row.forward, row.backward, row.backward_input, row.backward_weight = (
            _profiler.spread_of([time]) for time in (1000, 2000, 1000, 1000)
        )
    profile.layers = rows
    profile.write(str(path))


@dataclass
class Counted:
    """Bytes of live tensors on one rank."""

    between: int  # steps
    run: int  # at the peak of forwards, backwards and transfers
    end: int  # at the peak of what follows the last backward: reductions, the optimizer

    @property
    def peak(self) -> int:
        return max(self.run, self.end)


def train(training: Training, plan: str, micro_batches: int = MICRO_BATCHES) -> list[Counted]:
    """Of each step. Layers that other ranks run do not count: a list of modules holds them on every rank."""
    import deepspeed
    import ostinato.deepspeed
    from deepspeed.pipe import PipelineModule

    from ostinato import _profiler

    _profiler.install_allocator()
    before = _profiler.live_bytes()
    torch.manual_seed(0)
    layers = training.layers()
    with ostinato.deepspeed.enable(plan):
        module = PipelineModule(
            layers,
            num_stages=2,
            loss_fn=training.loss(),
            partition_method="uniform",
            activation_checkpoint_interval=training.checkpoint_interval,
        )
        engine, *_ = deepspeed.initialize(
            model=module,
            model_parameters=list(module.parameters()),
            config=training.configuration(micro_batches),
        )
    data, counted, run = training.batches(7), [], engine._ostinato.executor.run

    def noted(name: str):
        run(name)
        peaks.append(_profiler.peak_bytes())
        _profiler.reset_peak()

    engine._ostinato.executor = Watched(engine._ostinato.executor, noted)
    elsewhere = before + sum(
        size for place, size in storages(layers).items() if place not in storages([engine.module])
    )
    for _ in range(STEPS):
        peaks: list[int] = []
        start = _profiler.live_bytes()
        _profiler.reset_peak()
        engine.train_batch(data)
        counted.append(Counted(start - elsewhere, peaks[0] - elsewhere, _profiler.peak_bytes() - elsewhere))
    _profiler.remove_allocator()
    return counted


class Watched:
    """An executor with another run()."""

    def __init__(self, executor, run):
        self._executor, self.run = executor, run

    def __getattr__(self, name):
        return getattr(self._executor, name)


def storages(layers: list) -> dict[int, int]:
    """Bytes of each that parameters and buffers lie in."""
    modules = [layer for layer in layers if isinstance(layer, torch.nn.Module)]
    memory = [t.untyped_storage() for module in modules for t in (*module.parameters(), *module.buffers())]
    return {storage.data_ptr(): storage.nbytes() for storage in memory}
