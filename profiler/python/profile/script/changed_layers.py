# SPDX-License-Identifier: Apache-2.0
"""The layers as they are when the script trains: what it changed after PipelineModule() had built them is
measured, not the LayerSpec.

A LayerSpec that is built again may get modules and tensors that are there already: from a model in its
arguments, a global variable or a cache. Such a layer is measured on a copy that shows the same memory.

Rank 0 has only its own layers. A LayerSpec of another rank is taken to be changed as the equal ones of rank 0
are, where those are all changed alike; else it is taken as it is written. `layers_as_changed()` says so in
words.
"""

from __future__ import annotations

import copy
import functools
import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ostinato.profile.model.identity import PLAIN, Keys, layer_key, structure

Types = dict[int, torch.dtype]  # by id of a parameter or buffer: before DeepSpeed casts it


def built(model: Any, index: int) -> nn.Module | None:
    """The module that rank 0 calls as this layer, below a TiedLayerSpec's forward_fn; None: not a module."""
    spec, called = model._layer_specs[index], model.forward_funcs[index - model._local_start]
    if hasattr(spec, "key") and isinstance(called, functools.partial):
        called = model.tied_modules[spec.key]
    return called if isinstance(called, nn.Module) else None


def built_or_spec(model: Any) -> list[Any]:
    """By layer, DeepSpeed's module where rank 0 has it: no copy, which may have its weights in another memory."""
    made = {index: built(model, index) for index in local(model)}
    specs = enumerate(model._layer_specs)
    return [spec if (here := made.get(index)) is None else here for index, spec in specs]


def local(model: Any) -> range:
    return range(model._local_start, model._local_start + len(model.forward_funcs))


def states_of(model: Any) -> dict[int, Any]:
    """State that shows whether a layer of rank 0 has changed since, by index."""
    made = {index: built(model, index) for index in local(model)}
    return {
        index: (Keys(types=False).module(module), structure(module))
        for index, module in made.items()
        if module is not None
    }


def is_compiled(module: nn.Module) -> bool:
    """Whether compile() was called on it or a part of it. A copy of such a part is not compiled."""
    return any(part._compiled_call_impl is not None for part in module.modules())


def compiled_layers(model: Any, states: dict[int, Any]) -> list[int]:
    """Those of rank 0's layers that the script has compiled, by itself or with `engine.compile()`. What a
    LayerSpec compiles when it is built is compiled there again."""
    now, found = states_of(model), []
    for index in local(model):
        spec, called = model._layer_specs[index], model.forward_funcs[index - model._local_start]
        if isinstance(called, nn.Module):
            as_built = hasattr(spec, "typename") and now[index] == states.get(index)
            compiled = not as_built and is_compiled(called)
        else:
            made_in = getattr(getattr(called, "__code__", None), "co_filename", "")  # torch wraps it
            compiled = called is not spec and "/torch/_dynamo/" in made_in
        found += [index] * compiled
    return found


@contextmanager
def in_training(model: Any) -> Iterator[None]:
    """Within, rank 0's layers are in the mode in which a step would put them. Some train() leave parts of a layer in
    evaluation mode."""
    made = [module for index in local(model) if (module := built(model, index)) is not None]
    before = [(part, part.training) for module in made for part in module.modules()]
    try:
        for module in made:
            module.train()
        yield
    finally:
        for part, training in before:
            part.training = training


@contextmanager
def shared_memory(types: Types) -> Iterator[None]:
    """Within, copy.deepcopy() of a tensor shows the same memory, as far as DeepSpeed has not cast it."""
    before = {kind: kind.__deepcopy__ for kind in (torch.Tensor, nn.Parameter)}

    def shown(tensor: torch.Tensor, _memo: dict[int, Any]) -> torch.Tensor:
        value = tensor.detach().to(types.get(id(tensor), tensor.dtype))
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(value, tensor.requires_grad)
        return value.requires_grad_(tensor.requires_grad and tensor.is_leaf)

    try:
        for kind in before:
            kind.__deepcopy__ = shown  # type: ignore[method-assign]  # put back below
        yield
    finally:
        for kind, stock in before.items():
            kind.__deepcopy__ = stock  # type: ignore[method-assign]  # torch's own


def twin(module: nn.Module, types: Types) -> nn.Module:
    """A copy with separate tensors in the same memory, including unregistered ones: it has none of the hooks
    that DeepSpeed puts on parameters."""
    with shared_memory(types):
        return copy.deepcopy(module)


def changed_alike(made: nn.Module, now: nn.Module) -> None:
    """Gives `made`, an earlier twin, what the script has changed in the module since: modes, plain values, and
    which parameters are frozen."""
    parts = dict(now.named_modules())
    for name, part in made.named_modules():
        here = parts.get(name, part)
        for key, value in vars(here).items():
            if isinstance(value, PLAIN) and isinstance(vars(part).get(key, part), PLAIN):
                vars(part)[key] = value
        for key, parameter in part._parameters.items():
            like = here._parameters.get(key)
            if parameter is not None and like is not None:
                parameter.requires_grad_(like.requires_grad)


def renewed(module: nn.Module, types: Types) -> nn.Module:
    """The module itself, which cannot be copied, with parameters as twin() has them."""
    memo: dict[int, Any] = {}
    with shared_memory(types):
        for part in module.modules():
            part._parameters.update(copy.deepcopy(dict(part._parameters), memo))
    return module


class There:
    """The tensors that are there now."""

    def __init__(self) -> None:
        tensors = (one for one in gc.get_objects() if issubclass(type(one), torch.Tensor))
        self.known = {id(tensor): weakref.ref(tensor) for tensor in tensors}

    def borrowed(self, module: nn.Module) -> bool:
        """Whether the module has some of them."""
        held = (*module.parameters(), *module.buffers())
        return any(id(one) in self.known and self.known[id(one)]() is one for one in held)


def apart(spec: Any, there: There, types: Types, alike: bool) -> Any:
    """The LayerSpec; what it builds is in training mode, and a twin if it has tensors of the script's. `alike`: equal
    ones have built it on rank 0 already."""
    made, build = copy.copy(spec), spec.build
    if alike:
        made.alike = True  # build.unlike() need not look

    def built_apart(log: bool = False) -> Any:
        layer = build()
        if not isinstance(layer, nn.Module):
            return layer
        if there.borrowed(layer):
            try:
                layer = twin(layer, types)
            except Exception:  # whatever a module of the script's may have in it
                return renewed(layer, types)
        layer.train()
        return layer

    made.build = built_apart
    return made


def changed(spec: Any, module: nn.Module, build: Callable[[], nn.Module]) -> Any:
    """The LayerSpec with a different layer than it says."""
    made = copy.copy(spec)
    made.changed_to = module  # layer_key() compares this
    made.build = lambda log=False: build()
    return made


def meant(spec: Any) -> Any:
    """Equal for LayerSpecs that the script must have meant alike: of one class with the same arguments, or
    tied."""
    return ("tied", spec.key) if hasattr(spec, "key") else layer_key(spec)


def is_spec(layer: Any) -> bool:
    return hasattr(layer, "typename") and hasattr(layer, "build") and not hasattr(layer, "reads")


def built_unlike(specs: list[Any], states: dict[int, Any]) -> tuple[list[int], set[Any]]:
    """Layers of rank 0 that differ though their LayerSpecs are equal, by a counter of their class, say; and the
    meant() of those that are alike."""
    groups: dict[Any, dict[int, Any]] = {}
    for index, (_, made_of) in states.items():
        if is_spec(specs[index]):
            groups.setdefault(meant(specs[index]), {})[index] = made_of
    apart = {key for key, group in groups.items() if len(set(group.values())) > 1}
    return [index for key in apart for index in groups[key]], set(groups) - apart


def layers_as_changed(model: Any, states: dict[int, Any], types: Types) -> tuple[list[Any], list[str]]:
    """The model's layers, and what is taken for granted about them. `states`: states_of() when the model was
    made."""
    layers, notes = list(model._layer_specs), []
    now, (differ, alike) = states_of(model), built_unlike(layers, states)
    if differ:
        what = f"layers {spelled(differ)} have equal LayerSpecs that built unlike layers"
        notes.append(f"{what}: measuring what they built")
    touched: dict[int, Any] = {
        index: built(model, index)
        for index in now
        if is_spec(layers[index]) and (now[index] != states.get(index) or index in differ)
    }
    mine = {id(parameter) for parameter in model.parameters()}  # DeepSpeed's hooks are on them
    modules = {i: one for i, one in enumerate(layers) if i not in now and isinstance(one, nn.Module)}
    far = {i for i, module in modules.items() if any(id(one) in mine for one in module.parameters())}
    for index in (*now, *far):
        try:
            if index in touched:
                copied = twin(touched[index], types)
                layers[index] = changed(layers[index], copied, functools.partial(twin, copied, {}))
            elif isinstance(layers[index], nn.Module) and not hasattr(layers[index], "reads"):
                here: Any = layers[index] if index in far else built(model, index)
                layers[index] = twin(here, types)
        except Exception as error:  # whatever a module of the script's may have in it
            instead = "its LayerSpec builds it" if is_spec(layers[index]) else "DeepSpeed has left it"
            notes.append(
                f"layer {index} cannot be copied ({type(error).__name__}: {error}): measuring it as {instead}"
            )
            touched.pop(index, None)
            if isinstance(layers[index], nn.Module):
                layers[index] = renewed(layers[index], types)
    wired = [index for index in now if hasattr(layers[index], "reads") and now[index] != states.get(index)]
    if wired:
        notes.append(
            f"layers {spelled(wired)} of graph() were changed after PipelineModule(): measuring them as their LayerSpecs build them"
        )
    notes += _carry_over(model, layers, touched, now, differ)
    there = There()
    return [
        apart(layer, there, types, is_spec(layer) and meant(layer) in alike)
        if hasattr(layer, "typename") and not hasattr(layer, "changed_to")
        else layer
        for layer in layers
    ], notes


def _carry_over(
    model: Any, layers: list[Any], touched: dict[int, Any], now: dict[int, Any], differ: list[int]
) -> list[str]:
    """Applies changes to equal LayerSpecs of other ranks. Returns what to say."""
    if not touched:
        return []
    specs, carried, open_ = model._layer_specs, [], []
    keys = {index: meant(spec) for index, spec in enumerate(specs) if is_spec(spec)}
    for index in (i for i in keys if i not in now):
        same = [other for other in now if other in keys and keys[index] == keys[other]]
        if not any(other in touched for other in same):
            continue
        if all(other in touched for other in same) and len({now[other] for other in same}) == 1:
            source = layers[same[0]]
            layers[index] = changed(
                specs[index], source.changed_to, functools.partial(copy.deepcopy, source.changed_to)
            )
            carried.append(index)
        else:
            open_.append(index)
    changed_since = [index for index in touched if index not in differ]
    notes = (
        [f"measuring layers {spelled(changed_since)} as the script changed them after PipelineModule()"]
        if changed_since
        else []
    )
    if carried:
        notes.append(
            f"layers {spelled(carried)} are on other ranks: assuming the same changes as to equal layers on rank 0"
        )
    if open_:
        notes.append(
            f"layers {spelled(open_)} are on other ranks, but rank 0's equal layers are not alike: measuring them as their "
            "LayerSpecs build them (--world-size 1 with num_stages=1 puts all layers on one rank)"
        )
    return notes


def spelled(numbers: list[int]) -> str:
    """`0 to 3, 7`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
