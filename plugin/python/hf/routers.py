# SPDX-License-Identifier: Apache-2.0
"""The loss of a model's routers (`output_router_logits=True`): it needs the logits of every block's router, so they
travel with the hidden state, one tensor per block with experts, and the last layer passes them to the loss.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from .errors import Refused

BALANCE = "load_balancing_loss_func"  # of the module that defines the model


def wanted(config) -> bool:
    return bool(getattr(config, "output_router_logits", False))


def check_routers(kind: type) -> None:
    """Raises Refused if ostinato does not know which modules are routers, or what their loss is."""
    if _recorder(kind) is None or not hasattr(sys.modules[kind.__module__], BALANCE):
        raise Refused(
            f"{kind.__name__}: output_router_logits=True adds a loss of all layers' routers, which ostinato does not know for this model: "
            "set it to False to train without the routers' loss"
        )


def _recorder(kind: type) -> Any:
    """How transformers itself records routers: `target_class`, and the `index` of the logits in its outputs."""
    found = (getattr(kind, "_can_record_outputs", None) or {}).get("router_logits")
    return found if hasattr(found, "target_class") else None


@contextmanager
def noted(block: nn.Module, kind: type) -> Iterator[list[torch.Tensor]]:
    """The logits of the block's routers in a forward inside the with block; [] for a block without experts."""
    recorder, logits = _recorder(kind), []

    def note(_module: nn.Module, _inputs: tuple, made: tuple) -> None:
        logits.append(made[recorder.index])

    handles = [
        module.register_forward_hook(note)
        for module in block.modules()
        if isinstance(module, recorder.target_class)
    ]
    try:
        yield logits
    finally:
        for handle in handles:
            handle.remove()


class RouterLoss:
    """The routers' loss, which the model adds to the loss of the tokens."""

    def __init__(self, kind: type, config):
        self._balance = getattr(sys.modules[kind.__module__], BALANCE)
        self._experts = config.num_experts
        self._chosen = config.num_experts_per_tok
        self._weight = config.router_aux_loss_coef

    def __call__(self, beside: list[torch.Tensor]) -> torch.Tensor:
        """`beside`: what comes with the logits: the routers' logits, and the batch's mask if there is one."""
        routers = tuple(tensor for tensor in beside if tensor.is_floating_point())
        mask = next((tensor for tensor in beside if not tensor.is_floating_point()), None)
        return self._weight * self._balance(routers, self._experts, self._chosen, mask)
