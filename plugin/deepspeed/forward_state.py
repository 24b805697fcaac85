# SPDX-License-Identifier: Apache-2.0
"""What running layers changes in them beside gradients: buffers (BatchNorm's statistics), counters, lists that grow, and parameters (those of a
teacher that follows its student, an embedding with max_norm).

    state = ForwardState({3: layer})       # by number
    before = state.now()                   # what forwards change, or may change
    ...                                    # a forward
    lost = state.learn(before)             # the first time: what cannot be put back, in words
    with state.put_back(before):           # the layers are what they were; afterwards what they have become since
        ...
    state.restore(before)                  # or: for good

The first forward shows which tensors change: until then now() copies all, afterwards those. Attributes are kept as they are bound (a
counter, a cached tensor); lists, dictionaries, sets and deques with what is in them; generators of random numbers; globals, closures and
objects of the script's.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from .changing import content_of, fill, generators_of, held_in, is_another, is_container, set_generator
from .layer_state import NO_ATTRIBUTES, describe, differing
from .random_state import same
from .script_state import ScriptState


@dataclass
class Moment:
    """What was at one time. Copies are shallow: a container's content, the attributes and the buffers of a module."""

    contents: list[tuple[Any, Any]] = field(default_factory=list)  # (container, copy)
    attributes: list[tuple[torch.nn.Module, dict]] = field(default_factory=list)
    buffers: list[tuple[torch.nn.Module, dict]] = field(default_factory=list)
    generators: list[tuple[Any, Any]] = field(default_factory=list)  # (generator, state)
    values: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)  # by id: (tensor, copy; of a parameter in the host's memory)
    versions: dict[int, int] = field(default_factory=dict)  # of tensors that are not known to change
    script: list[tuple[Any, Any]] = field(default_factory=list)  # of what layers use beside themselves
    facts: dict[int, dict] = field(default_factory=dict)  # by number of the layer, before the first forward


class ForwardState:
    """Of the layers of a rank, or of a stage. `layers`: modules, or functions that hold some, by number. `whole`: parameters count, and what
    layers use beside themselves (script_state). Not for several threads.
    """

    def __init__(self, layers: Mapping[Any, Any], whole: bool = True):
        self._whole, self._given = whole, layers
        self._script: ScriptState | None = None
        self._layers = [(number, module) for number, layer in layers.items() for module in _modules_of(layer)]
        modules = {id(m): m for _, layer in self._layers for m in layer.modules()}
        self._modules = [m for m in modules.values() if isinstance(m._buffers, dict)]  # (compiled by torch.jit: what it holds is not Python's)
        self._changing: set[tuple[int, str]] | None = None  # (module, name) of tensors; None: not known yet

    def now(self) -> Moment:
        moment = Moment()
        noted: set[int] = set()
        if self._whole:
            moment.script = self._scripts().now()
        for module in self._modules:
            attributes = {name: value for name, value in vars(module).items() if name not in NO_ATTRIBUTES}
            moment.attributes.append((module, attributes))
            moment.buffers.append((module, dict(module._buffers)))
            for value in attributes.values():
                _note_container(value, moment.contents, noted)
                moment.generators += generators_of(value)
            for name, tensor in self._own_tensors(module):
                if self._changing is None or (id(module), name) in self._changing:
                    moment.values[id(tensor)] = tensor, _copy(tensor)
                else:
                    moment.versions[id(tensor)] = tensor._version
        if self._changing is None:
            moment.facts = {number: describe(layer) for number, layer in self._layers}
        return moment

    def _scripts(self) -> ScriptState:
        """With it the modules that layers use and that are no part of any: in a closure, in a list."""
        if self._script is None:
            self._script = ScriptState(self._given)
            had = {id(module) for module in self._modules}
            self._modules += [m for m in self._script.hidden if id(m) not in had and isinstance(m._buffers, dict)]
        return self._script

    def without_tensors(self) -> "ForwardState":
        """Copies none."""
        self._changing = set()
        return self

    def learn(self, before: Moment) -> list[str]:
        """After a forward since `before`. What it changed that put_back() does not put back, in words; the first time that it is seen."""
        if self._changing is None:
            self._changing = set(self._changed_tensors(before))
            if self._script is not None:
                self._script.only(self._script.changed(before.script))
            with self.put_back(before):
                return self._unequal(before)
        late = []
        for module, name, tensor in self._tensors():
            if before.versions.get(id(tensor), tensor._version) != tensor._version:
                self._changing.add((id(module), name))
                late.append(f'"{name}" of a {type(module).__name__}, which changes for the first time in this step')
        return late

    def restore(self, moment: Moment) -> None:
        """The layers are what they were then."""
        for module, attributes in moment.attributes:
            for name in [n for n in vars(module) if n not in NO_ATTRIBUTES and n not in attributes]:
                del vars(module)[name]
            vars(module).update(attributes)
        for module, buffers in moment.buffers:
            module._buffers.clear()
            module._buffers.update(buffers)
        for container, content in moment.contents:
            fill(container, content)
        for generator, state in moment.generators:
            set_generator(generator, state)
        for tensor, value in moment.values.values():
            tensor.data.copy_(value)
        ScriptState.restore(moment.script)

    def changed_buffers(self, moment: Moment) -> list[str]:
        """Since the first moment, in words."""
        found = []
        for number, layer in self._layers:
            held = {id(module): dict(buffers) for module, buffers in moment.buffers}
            for where, module in layer.named_modules():
                for name, buffer in module._buffers.items():
                    had = held.get(id(module), {}).get(name)
                    was = moment.values.get(id(had), (None, had))[1]
                    if buffer is not None and (was is None or not _same_bits(buffer, was)):
                        found.append(f'"{f"{where}." if where else ""}{name}" of layer {number}')
        return found

    def changed_attributes(self, moment: Moment) -> list[str]:
        """Since then, in words: bound anew, or containers with something else in them."""
        held = {id(module): attributes for module, attributes in moment.attributes}
        contents = {id(container): content for container, content in moment.contents}
        return [
            f'the attribute "{f"{where}." if where else ""}{name}" of layer {number}'
            for number, layer in self._layers
            for where, module in layer.named_modules()
            for name, value in vars(module).items()
            if name not in NO_ATTRIBUTES and id(module) in held and is_another(held[id(module)].get(name), value, contents)
        ]

    def changed_generators(self, moment: Moment) -> list[str]:
        """Since the first moment, in words: those that a layer has of its own."""
        was = {id(generator): state for generator, state in moment.generators}
        return [
            f'"{name}" of layer {number}'
            for number, layer in self._layers
            for module in layer.modules()
            for name, value in vars(module).items()
            if name not in NO_ATTRIBUTES and any(not same(was.get(id(g), state), state) for g, state in generators_of(value))
        ]

    def lost(self, moment: Moment) -> list[str]:
        """After restore() of the first moment: what is not what it was, in words."""
        return self._unequal(moment)

    def iterators(self) -> list[str]:
        """In words; whether a forward has moved them on nobody knows."""
        return [
            f'layer {number}: the attribute "{name}", an iterator'
            for number, layer in self._layers
            for module in layer.modules()
            for name, value in vars(module).items()
            if name not in NO_ATTRIBUTES and isinstance(value, Iterator)
        ]

    @contextmanager
    def put_back(self, moment: Moment) -> Iterator[None]:
        """Tensors that change are others meanwhile, so that the layers' own, and what graphs have saved of them, stay untouched."""
        after = self.now()
        after.values = {}
        self.restore(replace(moment, values={}))
        copies = {key: value.to(tensor.device, copy=True) for key, (tensor, value) in moment.values.items()}
        held = [(tensor, tensor.data) for tensor, _ in moment.values.values() if _is_parameter(tensor)]
        for tables in (moment.attributes, moment.buffers):
            for module, table in tables:
                target = vars(module) if tables is moment.attributes else module._buffers
                target.update({name: copies[id(value)] for name, value in table.items() if id(value) in copies})
        for parameter, _ in held:
            parameter.data = copies[id(parameter)]
        try:
            yield
        finally:
            for parameter, data in held:
                parameter.data = data
            self.restore(after)

    def _tensors(self) -> Iterator[tuple[torch.nn.Module, str, torch.Tensor]]:
        for module in self._modules:
            for name, tensor in self._own_tensors(module):
                yield module, name, tensor

    def _own_tensors(self, module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        """Not what a forward has computed and left there, which has a history."""
        for table in (vars(module), module._buffers, module._parameters):
            for name, value in table.items():
                if torch.is_tensor(value) and value.grad_fn is None and (not _is_parameter(value) or (self._whole and table is module._parameters)):
                    yield name, value

    def _changed_tensors(self, before: Moment) -> Iterator[tuple[int, str]]:
        for module, name, tensor in self._tensors():
            if id(tensor) in before.values and not _same_bits(tensor, before.values[id(tensor)][1]):
                yield id(module), name

    def _unequal(self, moment: Moment) -> list[str]:
        words = []
        for number, layer in self._layers:
            for place in differing(moment.facts.get(number, {}), describe(layer)) if moment.facts else ():
                if place.kind == "attribute" and place.name != "wires":  # a stage sets those of a graph's Node
                    words.append(f"layer {number}: {place.words()}")
        return words


def _modules_of(layer: Any) -> list[torch.nn.Module]:
    if isinstance(layer, partial):
        return [module for part in (layer.func, *layer.args) for module in _modules_of(part)]
    return [layer] if isinstance(layer, torch.nn.Module) else []


def _is_parameter(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, torch.nn.Parameter)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Beside the parameters an accelerator may not have room for them once more."""
    return tensor.detach().to("cpu", copy=True) if _is_parameter(tensor) else tensor.detach().clone()


def _note_container(value: Any, contents: list, noted: set[int]) -> None:
    if is_container(value) and id(value) not in noted:
        noted.add(id(value))
        contents.append((value, content_of(value)))
        for item in held_in(value):
            _note_container(item, contents, noted)


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    raw = [t.detach().to(b.device).contiguous().view(-1).view(torch.uint8) if t.numel() else t.detach().to(b.device) for t in (a, b)]
    return torch.equal(*raw)
