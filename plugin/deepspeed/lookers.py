# SPDX-License-Identifier: Apache-2.0
"""Layers, and a loss, that look through the model: their rank has other layers than in 1F1B.

    lookers = Lookers(engine)      # the engine is made
    said = lookers.new(step)       # before each step: those that have not been said yet, in words

A script may tell them of the model at any time: a loss object is handed the engine, or parameters, once that is there. So they are
looked at in steps 1, 2, 4, 8, and so on, and when the loss is another one, or has other attributes, or other parts in a list of its own.
"""

from bisect import bisect_right
from contextlib import suppress
from typing import Any

import torch

from .draws import LOSS
from .reads import held_by, looks_at_model
from .upstream import Engine

MOST_IN_ONE = 256


class Lookers:
    """Of one engine."""

    def __init__(self, engine: Engine):
        self._model, self._stock = engine.module, engine._ostinato.stock_parts
        self._looks: set[Any] = set()  # said
        self._loss: tuple | None = None  # as it was when last looked at
        self._held = held_by(self._model.loss_fn)  # from before, when layers had not moved: no reference of this rank's

    def new(self, step: int) -> list[str]:
        loss = _made_of(self._model.loss_fn)
        if step & (step - 1) and loss == self._loss:
            return []
        self._loss = loss
        found = [layer for layer, function in self._functions() if layer not in self._looks and self._looks_through(layer, function)]
        self._looks.update(found)
        return [_words(layer) for layer in found]

    def _functions(self) -> list[tuple[Any, Any]]:
        """By layer, those that have others beside them."""
        model = self._model
        functions: list[tuple[Any, Any]] = list(zip(model._local_layers, model._local_funcs, strict=True))
        if any(stage.ends for stage in model._stages):
            functions.append((LOSS, model.loss_fn))
        return [(layer, function) for layer, function in functions if self._has_others(layer)]

    def _has_others(self, layer: Any) -> bool:
        """Beside it on this rank than in 1F1B, or it does not run together with all of them."""
        model = self._model
        part = bisect_right(self._stock, len(model._layer_specs) - 1 if layer == LOSS else layer)
        return model._local_layers != list(range(*self._stock[part - 1 : part + 1])) or len(model._stages) > 1

    def _looks_through(self, layer: Any, function: Any) -> bool:
        return looks_at_model(function) or (layer == LOSS and bool((held_by(function) - self._held) & self._parts()))

    def _parts(self) -> set[int]:
        """Ids of what this rank's layers consist of, and of their parameters; not of the loss's own."""
        of_loss = set(self._model.loss_fn.modules()) if isinstance(self._model.loss_fn, torch.nn.Module) else set()
        modules = set(self._model.modules()) - of_loss - {self._model}
        return {id(held) for module in modules for held in (module, *module._parameters.values()) if held is not None}


def _made_of(loss: Any) -> tuple:
    """Another one where the loss is, or holds something else."""
    held = list(getattr(loss, "__dict__", {}).values())
    for cell in getattr(loss, "__closure__", None) or ():
        with suppress(ValueError):  # nothing in it
            held.append(cell.cell_contents)
    return tuple(map(id, (loss, *held, *(part for value in held for part in _parts_in(value)))))


def _parts_in(value: Any) -> list:
    """Parameters and modules among the last of what it contains: a history of numbers may be long."""
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple | set) else ()
    return [item for item in list(values)[-MOST_IN_ONE:] if isinstance(item, torch.nn.Parameter | torch.nn.Module)]


def _words(layer: Any) -> str:
    what = "the loss" if layer == LOSS else f"layer {layer}"
    return (
        f"{what} looks through the model, of which its rank has other layers than in 1F1B: what it computes of their parameters or attributes has other numbers; hand "
        "it on from layer to layer instead"
    )
