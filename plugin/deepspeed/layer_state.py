# SPDX-License-Identifier: Apache-2.0
"""What a layer is beside the values of its tensors: hooks, plain attributes, attributes of parameters, its make-up.

    facts = describe(layer)                       # {Place: digest}, equal on every rank that holds an equal layer
    changed = differing(facts, describe(fresh))   # what a script did to it since it was built
    state = taken(layer, changed)                 # plain data; raises CannotMove by name
    give(fresh, made(fresh, state, finder))       # on another rank

`Place` says where in the layer. What a script may change in place of a constructor's doing: `p` of a Dropout, hooks, `forward` of
one object, `lr_scale` of a parameter. What changes the make-up of a layer (its class, submodules, names of parameters) does not travel.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn.modules.module import _WrappedHook
from torch.utils.hooks import RemovableHandle

from .packing import CannotMove, Finder, Own, digest, pack, unpack

# By the dictionary of a module that holds hooks: others with a flag for some of them.
HOOKS: dict[str, tuple[str, ...]] = {
    "_forward_hooks": ("_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    "_forward_pre_hooks": ("_forward_pre_hooks_with_kwargs",),
    "_backward_hooks": (),
    "_backward_pre_hooks": (),
    "_state_dict_hooks": (),
    "_state_dict_pre_hooks": (),
    "_load_state_dict_pre_hooks": (),
    "_load_state_dict_post_hooks": (),
}
TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
MEMBERS = ("_parameters", "_buffers", "_modules")
NO_ATTRIBUTES = {*HOOKS, *(flag for flags in HOOKS.values() for flag in flags), *MEMBERS}
COMPILED = "_compiled_call_impl"  # Module.compile() sets it: two compiled calls are equal, though what torch keeps in them is not
DEEPSPEEDS = {"ds_pipe_replicated"}  # on parameters; PipelineModule sets it


class Place(NamedTuple):
    """`where`: name of a submodule, or of a tensor; `kind`: "make-up", "attribute", "hooks", or the same two "of a tensor"."""

    where: str
    kind: str
    name: str

    def words(self) -> str:
        """As in: its attribute "p" of "norm"."""
        of = f' of "{self.where}"' if self.where else ""
        if self.kind == "make-up":
            return f"its {self.name}{of}"
        what = self.kind.removesuffix(" of a tensor")
        return f'its {self.name.strip("_").replace("_", " ")}{of}' if what == "hooks" else f'its attribute "{self.name}"{of}'


Facts = dict[Place, str]
Described = dict[str, Facts]  # by the name of a layer's unit (rebuild)


def describe(layer: torch.nn.Module) -> Facts:
    """O(modules, attributes and tensors); tensors that are plain attributes are read."""
    own, facts = Own(layer), {}
    for where, module in layer.named_modules():
        for name, value in _make_up(module).items():
            facts[Place(where, "make-up", name)] = value
        for name, value in vars(module).items():
            if name not in NO_ATTRIBUTES and not _is_compiled(module):
                facts[Place(where, "attribute", name)] = digest("compiled" if name == COMPILED and value else pack(value, own))
        for name in HOOKS:
            if vars(module).get(name):
                facts[Place(where, "hooks", name)] = digest(_pack_hooks(module, name, own, strict=False))
    for where, tensor in _tensors(layer):
        for name, value in vars(tensor).items():
            if name not in DEEPSPEEDS:
                facts[Place(where, "attribute of a tensor", name)] = digest(pack(value, own))
        for name in TENSOR_HOOKS:
            if hooks := getattr(tensor, name, None):
                facts[Place(where, "hooks of a tensor", name)] = digest([pack(hook, own) for hook in hooks.values()])
        if tensor.is_leaf and tensor.grad is not None:
            facts[Place(where, "make-up", "gradient")] = "there"
    return facts


def _is_compiled(module: torch.nn.Module) -> bool:
    """By torch.compile(): its attributes are torch's, and what the script gives it goes to the module in it."""
    return (type(module).__module__, type(module).__name__) == ("torch._dynamo.eval_frame", "OptimizedModule")


def _make_up(module: torch.nn.Module) -> dict[str, str]:
    kind = type(module)
    return {
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "submodules": ", ".join(sorted(name for name, child in module._modules.items() if child is not None)),
        "parameters": ", ".join(sorted(name for name, p in module._parameters.items() if p is not None)),
        "buffers": ", ".join(sorted(name for name, b in module._buffers.items() if b is not None)),
    }


def _tensors(layer: torch.nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    yield from layer.named_parameters()
    yield from layer.named_buffers()


@dataclass(frozen=True)
class Marks:
    """What an engine does to a layer when it is made, and does again when another is made for the same model."""

    before: Facts
    after: Facts

    def without(self, facts: Facts) -> Facts:
        """`facts` where nobody has changed since what the engine did."""
        own = {p for p in {**self.before, **self.after} if self.before.get(p) != self.after.get(p) == facts.get(p)}
        return {p: f for p, f in {**facts, **{p: self.before.get(p) for p in own}}.items() if f is not None}


def differing(facts: Facts, others: Facts) -> list[Place]:
    return [place for place in {**facts, **others} if facts.get(place) != others.get(place)]


def taken(layer: torch.nn.Module, places: Iterable[Place]) -> dict[Place, tuple | None]:
    """The state at these places as plain data; None where there is none. Raises CannotMove by name for what cannot travel."""
    own, state = Own(layer), {}
    for place in places:
        try:
            state[place] = _taken(layer, place, own)
        except CannotMove as error:
            raise CannotMove(f"{place.words()}: {error}") from None
    return state


def _taken(layer, place: Place, own: Own) -> tuple | None:
    if place.kind == "make-up":
        raise CannotMove("it is not what its constructor made")
    if place.kind == "hooks":
        return _pack_hooks(layer.get_submodule(place.where), place.name, own, strict=True)
    if place.kind == "hooks of a tensor":
        hooks = getattr(own.tensor(place.where), place.name, None) or {}
        return tuple(pack(hook, own, strict=True) for hook in hooks.values())
    holder = layer.get_submodule(place.where) if place.kind == "attribute" else own.tensor(place.where)
    return pack(vars(holder)[place.name], own, strict=True) if place.name in vars(holder) else None


def _pack_hooks(module, name: str, own: Own, strict: bool) -> tuple:
    """(function, flags) of each, in order. torch wraps some that it calls with their module."""
    packed = []
    for key, hook in vars(module).get(name, {}).items():
        wrapped = isinstance(hook, _WrappedHook)
        function = pack(hook.hook if wrapped else hook, own, strict)
        packed.append((function, wrapped and hook.with_module, tuple(key in vars(module)[flag] for flag in HOOKS[name])))
    return tuple(packed)


def made(layer: torch.nn.Module, state: dict[Place, tuple | None], finder: Finder, device: torch.device) -> dict[Place, Any]:
    """Values for give(), out of what taken() made of an equal layer. Raises CannotMove by name."""
    own = Own(layer)
    values: dict[Place, Any] = {}
    for place, packed in state.items():
        try:
            if packed is None:
                values[place] = None
            elif place.kind == "hooks":
                values[place] = [(unpack(hook, own, finder, device), *rest) for hook, *rest in packed]
            elif place.kind == "hooks of a tensor":
                values[place] = [unpack(hook, own, finder, device) for hook in packed]
            else:
                values[place] = (unpack(packed, own, finder, device),)
        except CannotMove as error:
            raise CannotMove(f"{place.words()}: {error}") from None
    return values


def give(layer: torch.nn.Module, values: dict[Place, Any]) -> None:
    """Puts them into the layer. Its tensors must have their values and `requires_grad` already."""
    own = Own(layer)
    for place, value in values.items():
        if place.kind == "hooks":
            _set_hooks(layer.get_submodule(place.where), place.name, value)
        elif place.kind == "hooks of a tensor":
            _set_tensor_hooks(own.tensor(place.where), place.name, value)
        else:
            holder = layer.get_submodule(place.where) if place.kind == "attribute" else own.tensor(place.where)
            vars(holder).pop(place.name, None)
            if value is not None:
                vars(holder)[place.name] = value[0]


def _set_hooks(module, name: str, hooks: list) -> None:
    table = vars(module).setdefault(name, OrderedDict())
    table.clear()
    for function, with_module, flags in hooks:
        handle = RemovableHandle(table)
        wraps = name == "_load_state_dict_pre_hooks"
        table[handle.id] = _WrappedHook(function, module if with_module else None) if wraps else function
        for flag, on in zip(HOOKS[name], flags, strict=True):
            vars(module)[flag].pop(handle.id, None)
            if on:
                vars(module)[flag][handle.id] = True


def _set_tensor_hooks(tensor: torch.Tensor, name: str, hooks: list) -> None:
    trains = tensor.requires_grad
    tensor.requires_grad_(True)  # hooks that were registered before it was frozen stay
    for table in filter(None, [getattr(tensor, name, None)]):
        table.clear()
    register = tensor.register_hook if name == "_backward_hooks" else tensor.register_post_accumulate_grad_hook
    for hook in hooks:
        register(hook)
    tensor.requires_grad_(trains)
