# SPDX-License-Identifier: Apache-2.0
"""Optimizers whose step may depend on which parameters a rank has.

    coupling(engine)      # "Prodigy": its class, where it may; "" where layers can lie on any rank

1F1B gives each rank the parameters of its own layers, and a plan gives it others. What updates each element, or each tensor, by itself does not
notice. An optimizer that takes one norm, or one step size, of all that it is given does. ZeRO and half precision put tensors together.
"""

from .script_changes import plain
from .upstream import Engine

ELEMENTS = {"SGD", "Adam", "AdamW", "SparseAdam", "Adamax", "NAdam", "RAdam", "Adagrad", "Adadelta", "ASGD", "RMSprop", "Rprop"}
ELEMENTS |= {"FusedAdam", "DeepSpeedCPUAdam", "FusedLion", "DeepSpeedCPULion", "DeepSpeedCPUAdagrad"}
TENSORS = ELEMENTS | {"Adafactor", "Muon", "MuonWithAuxAdam", "FusedLamb"}


def coupling(engine: Engine) -> str:
    together = engine.zero_optimization() or engine.fp16_enabled() or engine.bfloat16_enabled()
    kind = type(plain(engine.optimizer))
    known = kind.__module__.startswith(("torch.", "deepspeed.")) and kind.__name__ in (ELEMENTS if together else TENSORS)
    return "" if known or engine.optimizer is None else kind.__name__
