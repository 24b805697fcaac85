# SPDX-License-Identifier: Apache-2.0
"""Optimizer state of layers that a placement has moved, so saved that DeepSpeed alone cannot take it for that of other layers.

    with sealing(engine.optimizer):         # DeepSpeed's save_checkpoint()
        ...
    with unsealing(engine.optimizer):       # and its load_checkpoint()
        ...

Where ostinato is not installed, or turned off, nothing else would notice: state of equal shapes fits. Sealed, the first thing that DeepSpeed's optimizers look
up in it raises an error that ends in SEALED: the version under which ZeRO saved it is none, and without ZeRO the state lies one level deeper in a dictionary
whose other keys are SEALED as a number. All of it is made of built-in types; weights load, and so does ds_to_universal.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from deepspeed.checkpoint.constants import DS_VERSION

SEALED = (
    "this optimizer state belongs to a placement of ostinato's, and DeepSpeed alone would give it to other layers: "
    "load it under an ostinato plan, convert it (ostinato checkpoint convert), or load_optimizer_states=False"
)
KEY = "ostinato"  # what was sealed


def sealed(state: dict) -> dict:
    if DS_VERSION in state:  # ZeRO, bf16
        return state | {DS_VERSION: SEALED, KEY: state[DS_VERSION]}
    return defaultdict(partial(float, SEALED), {KEY: state})


def unsealed(state: Any) -> Any:
    """What sealed() was given; what is not sealed as it is."""
    if not isinstance(state, dict) or KEY not in state:
        return state
    if DS_VERSION not in state:
        return state[KEY]
    return {key: value for key, value in state.items() if key != KEY} | {DS_VERSION: state[KEY]}


@contextmanager
def sealing(optimizer: Any) -> Iterator[None]:
    own = optimizer.state_dict
    with replaced(optimizer, "state_dict", lambda: sealed(own())):
        yield


@contextmanager
def unsealing(optimizer: Any) -> Iterator[None]:
    own = optimizer.load_state_dict

    def take(state=None, **options):
        """DeepSpeed gives ZeRO's by name, a list in which other replicas' are missing."""
        if state is not None:
            return own(unsealed(state), **options)
        return own(state_dict_list=[unsealed(one) for one in options.pop("state_dict_list")], **options)

    with replaced(optimizer, "load_state_dict", take):
        yield


@contextmanager
def replaced(of: Any, name: str, value: Any) -> Iterator[None]:
    """An attribute of an object itself, as long as it lasts."""
    had = vars(of).get(name)
    setattr(of, name, value)
    try:
        yield
    finally:
        if had is None:
            delattr(of, name)
        else:
            setattr(of, name, had)
