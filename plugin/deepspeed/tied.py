# SPDX-License-Identifier: Apache-2.0
"""What a tied layer uses of its module beside the weight that is tied.

DeepSpeed builds a tied module once on every rank that has one of its layers, and keeps only the tied weight equal. Anything else of it,
a bias or a position embedding, is another one on every rank. So a layer may run on the module of another rank than DeepSpeed's
partition gives it only where it uses nothing else:

    function = only_tied(spec.forward_fn, tied_tensors(spec, module), "layer 7 ..., because {}; ...")
    function(module, x)      # the first time raises where something else of the module is read
"""

import torch

from .errors import OstinatoError


def built_alike(a, b) -> bool:
    """Whether two TiedLayerSpecs build the same: of one type, from equal arguments."""
    if a is b:
        return True
    try:
        return a.typename is b.typename and bool(a.module_args == b.module_args and a.module_kwargs == b.module_kwargs)
    except Exception:  # arguments that cannot be compared, tensors say
        return False


def tied_tensors(spec, module: torch.nn.Module) -> set[int]:
    """Ids of what is tied."""
    attributes = [spec.tied_weight_attr] if isinstance(spec.tied_weight_attr, str) else spec.tied_weight_attr
    return {id(_found(module, name)) for name in attributes}


def beside(tied: set[int], module: torch.nn.Module) -> list[str]:
    """Names of the module's other parameters and buffers."""
    return [name for name, tensor in (*module.named_parameters(), *module.named_buffers()) if id(tensor) not in tied]


def only_tied(function, tied: set[int], why: str):
    """`function` of (module, inputs), whose first call raises OstinatoError where it reads a tensor of the module that is not tied."""
    looked = False

    def first(module, *inputs):
        nonlocal looked
        if looked:
            return function(module, *inputs)
        looked, others = True, {id(_found(module, name)): name for name in beside(tied, module)}
        read: set[str] = set()
        kinds = {part: type(part) for part in module.modules()}
        for part, kind in kinds.items():
            part.__class__ = type(kind.__name__, (kind,), {"__getattr__": _noting(kind, others, read), "__module__": kind.__module__})
        try:
            made = function(module, *inputs)
        finally:
            for part, kind in kinds.items():
                part.__class__ = kind
        if read:
            raise OstinatoError(why.format(f'"{min(read)}" is not tied'))
        return made

    return first


def _found(module: torch.nn.Module, name: str):
    *path, last = name.split(".")
    for part in path:
        module = getattr(module, part)
    return getattr(module, last)


def _noting(kind: type, others: dict[int, str], read: set[str]):
    def look_up(self, name: str):
        value = kind.__getattr__(self, name)  # type: ignore[attr-defined]  # a Module's
        if id(value) in others:
            read.add(others[id(value)])
        return value

    return look_up
