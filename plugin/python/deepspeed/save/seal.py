# SPDX-License-Identifier: Apache-2.0
"""Saves optimizer state of layers that a placement has moved so that DeepSpeed alone cannot load it into the
wrong layers.

    with sealing(engine.optimizer):         # DeepSpeed's save_checkpoint()
        ...
    with unsealing(engine.optimizer):       # and its load_checkpoint()
        ...

Where ostinato is not installed, or turned off, nothing would notice a mix-up: state of equal shapes fits. With
sealed state, torch's optimizers raise an error that ends in SEALED when they ask a parameter group for its
"params": these are kept beside the groups, and a missing key is float(SEALED), which raises. The file holds
only built-in types: weights load, and ds_to_universal, which does not ask for "params", converts it. Files of
"elastic_checkpoint" have no groups: there SEALED takes the place of the version under which ZeRO saved it.
"""

import zipfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from deepspeed.checkpoint import constants

# Under one of these, or directly, DeepSpeed saves the state of torch's optimizer.
INNER = (constants.BASE_OPTIMIZER_STATE, constants.OPTIMIZER_STATE_DICT)
SEALED = (
    "this optimizer state belongs to an ostinato placement, and DeepSpeed alone would load it into the wrong layers: "
    "load it under an ostinato plan, convert it (ostinato checkpoint convert), or set load_optimizer_states=False"
)
KEY = "ostinato"  # has what was sealed
GAPS = "param_alignment_paddings"  # a key of DeepSpeed's, from 0.19.7 on


class _Group(dict[str, Any]):
    """Is saved as a defaultdict, which DeepSpeed cannot copy: it calls the class with the items alone."""

    def __reduce__(self) -> tuple[Any, ...]:
        return defaultdict, (partial(float, SEALED), dict(self))


def inner_of(state: dict) -> Any:
    """The part that torch's optimizer has saved."""
    return next((state[key] for key in INNER if key in state), state)


def _with_inner(state: dict, inner: dict) -> dict:
    return state | next(({key: inner} for key in INNER if key in state), inner)


def sealed(state: dict) -> dict:
    inner = inner_of(state)
    if not isinstance(inner, dict):  # "elastic_checkpoint"
        return state | {constants.DS_VERSION: SEALED, KEY: state[constants.DS_VERSION]}
    if "param_groups" not in inner:  # a trainer's stand-in for an optimizer, on a rank with nothing to train
        return state
    groups = inner["param_groups"]
    gaps = {key: state[key] for key in (GAPS,) if key in state}
    rest = [_Group({key: value for key, value in group.items() if key != "params"}) for group in groups]
    # Else DeepSpeed would compare these first, and blame a different setting.
    kept = {key: value for key, value in state.items() if key not in gaps}
    return _with_inner(
        kept, inner | {"param_groups": rest, KEY: ([group["params"] for group in groups], gaps)}
    )


def unsealed(state: Any) -> Any:
    """Undoes sealed(); returns state that is not sealed as it is."""
    if not isinstance(state, dict):
        return state
    if KEY in state and constants.DS_VERSION in state:
        return {key: value for key, value in state.items() if key != KEY} | {constants.DS_VERSION: state[KEY]}
    inner = inner_of(state)
    if not isinstance(inner, dict) or KEY not in inner:
        return state
    params, gaps = inner[KEY]
    groups = [
        dict(group) | {"params": of_group}
        for group, of_group in zip(inner["param_groups"], params, strict=True)
    ]
    opened = {key: value for key, value in inner.items() if key != KEY} | {"param_groups": groups}
    return opened if inner is state else _with_inner(state, opened) | gaps


def is_sealed(state: Any) -> bool:
    return unsealed(state) is not state


def holds_sealed(path: Path) -> bool:
    """Whether a file of torch.save() has sealed state; reads no tensor."""
    try:
        with zipfile.ZipFile(path) as archive:
            pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            return any(SEALED.encode() in archive.read(name) for name in pickles)
    except (OSError, zipfile.BadZipFile):
        return False


@contextmanager
def sealing(optimizer: Any) -> Iterator[None]:
    own = optimizer.state_dict
    with replaced(optimizer, "state_dict", lambda: sealed(own())):
        yield


@contextmanager
def unsealing(optimizer: Any) -> Iterator[None]:
    own = optimizer.load_state_dict

    def take(*states, **options):
        """DeepSpeed passes ZeRO's state by keyword, as a list that lacks the other replicas'; for a universal
        checkpoint it passes none."""
        if options.get("state_dict_list"):
            options["state_dict_list"] = [unsealed(state) for state in options["state_dict_list"]]
        return own(*map(unsealed, states), **options)

    with replaced(optimizer, "load_state_dict", take):
        yield


@contextmanager
def replaced(of: Any, name: str, value: Any) -> Iterator[None]:
    """Sets an attribute of an object, and restores it on exit."""
    had = vars(of).get(name)
    setattr(of, name, value)
    try:
        yield
    finally:
        if had is None:
            delattr(of, name)
        else:
            setattr(of, name, had)
