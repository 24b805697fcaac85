# SPDX-License-Identifier: Apache-2.0
"""The loss of a PipelineModule, while something else stands in its place."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..upstream import Model


@contextmanager
def loss_replaced(model: Model, loss: Callable) -> Iterator[None]:
    """`model.loss_fn` is `loss` until this ends. A loss that is a module is a child of the model, and stays one."""
    held = {name: vars(model)[name] for name in ["loss_fn"] if name in vars(model)}
    vars(model)["loss_fn"] = loss
    try:
        yield
    finally:
        del vars(model)["loss_fn"]
        vars(model).update(held)
