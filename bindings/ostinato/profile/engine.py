"""A stand-in for DeepSpeed's PipelineEngine: what a script may ask before its first step, answered for one rank."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ostinato.profile.errors import ProfileError
from ostinato.profile.job import Job
from ostinato.profile.settings import accumulation_steps, micro_batch_size


class Captured(BaseException):
    """Ends the script: not an Exception, so that a script's own handlers let it through."""

    def __init__(self, job: Job):
        super().__init__()
        self.job = job


class UnknownAttribute(ProfileError, AttributeError):
    """So that hasattr() answers no."""


class StandInEngine:
    """Lasts until train_batch(), or until it is called where the model is no PipelineModule."""

    def __init__(self, model: nn.Module, config: dict, optimizer: Any, data: Any, device: torch.device):
        self.module, self.optimizer, self.config = model, optimizer, config
        self.training_dataloader = data
        self.data_iterator = iter(data) if data is not None else None
        self.global_rank = self.local_rank = 0
        self.world_size = self.dp_world_size = 1
        self.device = device
        self.global_steps = self.micro_steps = 0
        self.lr_scheduler = None

    def train_micro_batch_size_per_gpu(self) -> int:
        return micro_batch_size(self.config) or 1

    def gradient_accumulation_steps(self) -> int:
        return accumulation_steps(self.config)

    def train_batch_size(self) -> int:
        return self.train_micro_batch_size_per_gpu() * self.gradient_accumulation_steps()

    def is_first_stage(self) -> bool:
        return True

    def is_last_stage(self) -> bool:
        return True

    def set_dataiterator(self, iterator: Iterator) -> None:
        self.data_iterator = iterator

    def set_dataloader(self, loader: Any) -> None:
        self.data_iterator = iter(loader)

    def load_checkpoint(self, *_args: Any, **_kwargs: Any) -> tuple[None, dict]:
        return None, {}

    def train(self, mode: bool = True) -> StandInEngine:
        return self

    def __call__(self, *inputs: Any, **named: Any) -> None:
        """The first forward of a module that is no PipelineModule. Its loss, if it has none inside, is not known."""
        if hasattr(self.module, "_layer_specs"):
            raise ProfileError("the script calls the engine of a PipelineModule: call its train_batch()")
        if inputs and named:
            inputs, named = (), inspect.signature(self.module.forward).bind(*inputs, **named).arguments
        job = Job(module=self.module, inputs=named or inputs, config=self.config, optimizer=self.optimizer)
        raise Captured(job)

    def train_batch(self, data_iter: Iterator | None = None) -> None:
        iterator = data_iter if data_iter is not None else self.data_iterator
        if iterator is None:
            raise ProfileError("train_batch() was called without data_iter, and initialize() without training_data")
        batch = next(iterator)
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise ProfileError("the data iterator must give (inputs, labels), as DeepSpeed's pipeline engine asks")
        raise Captured(job_of(self, batch))

    def __getattr__(self, name: str) -> Any:
        raise UnknownAttribute(
            f"the script uses engine.{name} before its first training step: profiling does not know it"
        )


def job_of(engine: StandInEngine, batch: Any) -> Job:
    model = engine.module
    return Job(
        layers=model._layer_specs,
        inputs=batch[0],
        labels=batch[1],
        loss_fn=model.loss_fn,
        config=engine.config,
        optimizer=engine.optimizer,
        checkpoint_interval=model.activation_checkpoint_interval,
    )
