# SPDX-License-Identifier: Apache-2.0
"""What the loss reads that a layer has stored on the PipelineModule: such a layer must stay in one stage with the
loss, as the rest of the ranks, and of the stages, would read nothing, or what another micro-batch has stored.

    with LossReads(model) as seen:      # around step 1 under DeepSpeed's own schedule
        engine.train_batch(data)
    seen.together()                     # restrictions, of the rank that computes the loss

Megatron's layers pass an auxiliary loss on to a function that stores it, and the loss function adds it. Only
functions among the layers are looked at, as modules do not know the model. It counts if it happens for every
micro-batch: what a layer stores once, and every rank's first layer can store (a mask), binds nothing.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from ostinato.restrictions import Restriction

from ..errors import Unsupported
from ..section.plans import Stage
from ..upstream import Model


class LossReads:
    """Changes the model's class, and the functions among its layers, until it ends."""

    def __init__(self, model: Model):
        self._model, self._kind = model, type(model)
        self._functions: dict[int, tuple[Any, Any]] = {}  # by place in forward_funcs: the own one, and ours
        self._layer: int | None = None  # the function that runs
        self._forwards, self._in_loss = 0, False
        self._stored: dict[str, int] = {}  # in this forward: by name, the layer that has stored it
        # Forwards in which the loss has read it.
        self._read: dict[tuple[int, str], set[int]] = defaultdict(set)

    def __enter__(self) -> LossReads:
        model = self._model
        for place, function in enumerate(model.forward_funcs if model.loss_fn is not None else ()):
            if not isinstance(function, torch.nn.Module):
                watched = self._watched(model._local_start + place, function)
                self._functions[place], model.forward_funcs[place] = (function, watched), watched
        if self._functions:
            model.__dict__["_ostinato_reads"] = self
            kind = self._kind
            model.__class__ = type(kind.__name__, (_Watched, kind), {"__module__": kind.__module__})
        return self

    def __exit__(self, *_: object) -> None:
        model = self._model
        if self._functions:
            model.__class__ = self._kind
            del model.__dict__["_ostinato_reads"]
        for place, (function, watched) in self._functions.items():
            if model.forward_funcs[place] is watched:
                model.forward_funcs[place] = function

    def _watched(self, layer: int, function: Callable) -> Callable:
        @functools.wraps(function)
        def watched(*inputs):
            self._layer = layer
            try:
                return function(*inputs)
            finally:
                self._layer = None

        return watched

    def stores(self, name: str) -> None:
        """Of the model. DeepSpeed counts forwards there."""
        if name == "micro_offset":
            self._forwards, self._in_loss, self._stored = self._forwards + 1, False, {}
        elif self._layer is not None:
            self._stored[name] = self._layer

    def reads(self, name: str) -> None:
        if name == "loss_fn":
            self._in_loss = True
        elif self._in_loss and self._layer is None and name in self._stored:
            self._read[self._stored[name], name].add(self._forwards)

    def together(self) -> list[Restriction]:
        return [
            Restriction(
                "one_stage",
                f'the loss reads "{name}", which layer {layer} stores on the model',
                layers=tuple(range(layer, self._model._num_layers)),
            )
            for (layer, name), forwards in sorted(self._read.items())
            if len(forwards) == self._forwards and layer < self._model._num_layers - 1
        ]


class _Watched:
    """Mixed in before the model's own class."""

    def __setattr__(self, name: str, value: object) -> None:
        vars(self)["_ostinato_reads"].stores(name)
        super().__setattr__(name, value)

    def __getattribute__(self, name: str) -> Any:
        if name != "__dict__":
            vars(self)["_ostinato_reads"].reads(name)
        return super().__getattribute__(name)


def refuse_apart(together: Iterable[Restriction], stages: Iterable[Stage]) -> None:
    """Raises Unsupported where a layer is not in one stage with the loss that reads what it stores."""
    last = [stage for stage in stages if stage.ends]
    for one in together:
        if any(one.layers[0] not in stage.layers for stage in last):
            raise Unsupported(
                f"the plan has layer {one.layers[0]} and the loss in different stages, but {one.reason}: make a plan with both in one, as "
                '"auto" does'
            )
