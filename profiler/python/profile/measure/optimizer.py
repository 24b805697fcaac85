# SPDX-License-Identifier: Apache-2.0
"""What the optimizer's step takes, layer by layer: a step of its kind on copies of the layer's parameters.

    clock = StepClock.of(config, optimizer, settings, device)
    clock.time(layer.parameters, warm_up=3, repeats=20)      # ns; 0: nothing to train, or no step that can be measured

Optimizers of DeepSpeed's own are not measured: they are compiled when they are first used. Clipping counts
where the configuration asks for it. Reductions over replicas do not: links say what they take. A step that
fails on the copies (of LBFGS, which wants a closure; of Muon, on a bias) is not measured either: whether the
training can run is DeepSpeed's to say.

The copies and their state may not fit beside the layers, where the training's, cast and divided by ZeRO, do. A
step is linear in elements, so it is then measured on a part of each parameter.
"""

from __future__ import annotations

import gc
import inspect
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ostinato.errors import put
from ostinato.profile.measure.samples import measure, quiet_collector, rounds
from ostinato.profile.settings import Settings, configured_optimizer

PARTS = (1, 4, 16, 64)  # of each parameter, one in this many is measured
# DeepSpeed's, in any case of letters, also where torch has one of that name.
OWN = {"lamb", "lion", "muon", "muadam", "muadamw", "musgd"}
SMALL = 1e-3  # a gradient that changes a parameter, and is no denormal number in any type


def kind_of(config: dict, optimizer: Any) -> tuple[type | None, dict]:
    """The class of the training's optimizer where it is torch's, as DeepSpeed would take it, and its
    arguments; else None."""
    kind: Any
    if optimizer is not None:
        kind, options = type(optimizer), dict(getattr(optimizer, "defaults", {}))
    else:
        name, options = configured_optimizer(config)
        kind = _class_of(name, options)
    if not (
        isinstance(kind, type)
        and issubclass(kind, torch.optim.Optimizer)
        and kind.__module__.startswith("torch.optim")
    ):
        return None, {}
    known = inspect.signature(kind).parameters
    return kind, {name: value for name, value in options.items() if name in known and name != "params"}


def _class_of(name: str, options: dict) -> Any:
    """What DeepSpeed would call to make one; None: its own."""
    if name.lower() in OWN:
        return None
    if name.lower() in ("adam", "adamw"):
        if not options.get("torch_adam"):
            return None
        return (
            torch.optim.AdamW
            if name.lower() == "adamw" or options.get("adam_w_mode", True)
            else torch.optim.Adam
        )
    return torch.optim.Adagrad if name.lower() == "adagrad" else getattr(torch.optim, name, None)


def part_of(parameter: torch.Tensor, parts: int) -> torch.Tensor:
    """Its first rows, one of `parts`; at least one, of as many dimensions."""
    whole = parameter.detach()
    return whole[: math.ceil(len(whole) / parts)] if parts > 1 and whole.dim() else whole


def lacks_memory(error: Exception) -> bool:
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)


@dataclass
class StepClock:
    kind: type | None
    options: dict
    flat: torch.dtype | None  # of DeepSpeed's one parameter for all; None: it keeps them as they are
    ranks: int  # that each take a share of all parameters
    clip: float  # norm that gradients are clipped to; 0: they are not
    device: Any  # machine/device.py
    rates: list[float] = field(default_factory=list)  # ns for an element of the layers measured so far
    told: bool = False  # that some did not fit

    @classmethod
    def of(cls, config: dict, optimizer: Any, settings: Settings, device: Any) -> StepClock:
        kind, options = kind_of(config, optimizer)
        clip = config.get("gradient_clipping", 0)  # "auto", in a file that another library completes
        norm, ranks = float(clip) if isinstance(clip, int | float) else 0.0, settings.sharing_ranks
        return cls(kind, options, settings.master_type, ranks, norm, device)

    def time(self, parameters: Sequence[nn.Parameter], warm_up: int, repeats: int) -> int:
        if self.kind is None or not parameters or any(parameter.is_meta for parameter in parameters):
            return 0
        elements = sum(parameter.numel() for parameter in parameters) / self.ranks
        for parts in PARTS:
            try:
                some = [part_of(parameter, parts) for parameter in parameters]
                rate = self._time(some, warm_up, repeats) / max(1, sum(part.numel() for part in some))
            except Exception as error:  # of an optimizer on parameters that are not the training's: other ranks wait for what this one has measured
                if not lacks_memory(error):
                    return 0
            else:
                self.rates.append(rate)
                return round(rate * elements)
            self._make_room()
        return round(statistics.median(self.rates) * elements) if self.rates else 0

    def _make_room(self) -> None:
        """After an error has been let go, which held what did fit."""
        if not self.told:
            self.told = True
            put(
                "ostinato: the optimizer's step on copies of a layer's parameters does not fit into memory: measuring it on "
                "a part of them, and scaling it",
                error=True,
            )
        gc.collect()
        if self.device.place.type == "cuda":
            torch.cuda.empty_cache()

    def _time(self, parameters: Sequence[torch.Tensor], warm_up: int, repeats: int) -> int:
        step, times = self._step(parameters), []
        with quiet_collector():
            for repeat in rounds(max(1, warm_up), repeats):  # the first step makes the state
                _, sample = measure(self.device, "optimizer", step)
                if repeat >= 0:
                    times.append(sample.time)
        return round(statistics.median(times))

    def _step(self, parameters: Sequence[torch.Tensor]) -> Callable[[], None]:
        copies = [nn.Parameter(p.detach().clone()) for p in parameters]
        gradients = [torch.full_like(p, SMALL) for p in copies]
        held = (
            [nn.Parameter(torch.cat([p.detach().to(self.flat).flatten() for p in copies]))]
            if self.flat
            else copies
        )
        optimizer = self.kind(held, **self.options)  # type: ignore[misc]  # not None

        def step() -> None:
            if self.flat:
                held[0].grad = torch.cat([g.to(self.flat).flatten() for g in gradients])
            else:
                for parameter, gradient in zip(held, gradients, strict=True):
                    parameter.grad = gradient
            if self.clip:
                nn.utils.clip_grad_norm_(held, self.clip)
            optimizer.step()
            if self.flat:
                with torch.no_grad():
                    for copy, part in zip(copies, held[0].split([p.numel() for p in copies]), strict=True):
                        copy.copy_(part.view_as(copy))
            optimizer.zero_grad()

        return step
