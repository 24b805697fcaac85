# SPDX-License-Identifier: Apache-2.0
"""Optimizers whose step may depend on which parameters a rank has.

    coupling(engine)          # "Prodigy": its class, where it may; "" where layers can lie on any rank
    beside_updates(engine)    # the script's functions that its step calls or is, by what they are

1F1B gives each rank the parameters of its own layers, and a plan gives it others. What updates each element, or each tensor, by itself does not
notice. An optimizer that takes one norm, or one step size, of all that it is given does. ZeRO and half precision put tensors together.
"""

from collections.abc import Callable
from typing import Any

from torch.optim import optimizer as torchs

from .script_changes import STEP_HOOKS, plain
from .upstream import Engine

ELEMENTS = {"SGD", "Adam", "AdamW", "SparseAdam", "Adamax", "NAdam", "RAdam", "Adagrad", "Adadelta", "ASGD", "RMSprop", "Rprop"}
ELEMENTS |= {"FusedAdam", "DeepSpeedCPUAdam", "FusedLion", "DeepSpeedCPULion", "DeepSpeedCPUAdagrad"}
TENSORS = ELEMENTS | {"Adafactor", "Muon", "MuonWithAuxAdam", "FusedLamb"}


def coupling(engine: Engine) -> str:
    together = engine.zero_optimization() or engine.fp16_enabled() or engine.bfloat16_enabled()
    kind = type(plain(engine.optimizer))
    known = kind.__module__.startswith(("torch.", "deepspeed.")) and kind.__name__ in (ELEMENTS if together else TENSORS)
    return "" if known or engine.optimizer is None else kind.__name__


def beside_updates(engine: Engine) -> dict[tuple[str, int], Callable]:
    """Hooks of this optimizer, and of all; a step() that the script has put into its place, where it is no scheduler's counter."""
    found: dict[tuple[str, int], Any] = {(name, key): hook for name in STEP_HOOKS for key, hook in getattr(plain(engine.optimizer), name, {}).items()}
    found |= {("every", key): hook for hooks in (torchs._global_optimizer_pre_hooks, torchs._global_optimizer_post_hooks) for key, hook in hooks.items()}
    wrapped = engine.optimizer
    while wrapped is not None:
        step = vars(wrapped).get("step")
        if step is not None and not _home(step).startswith(("torch.", "deepspeed.")):
            found["step", id(step)] = step
        wrapped = getattr(wrapped, "optimizer", None)
    return found


def _home(step: Any) -> str:
    """The module that it was written in: functools.wraps() gives a function another's name."""
    function = getattr(step, "__func__", step)
    return getattr(function, "__globals__", {}).get("__name__") or getattr(function, "__module__", None) or ""
