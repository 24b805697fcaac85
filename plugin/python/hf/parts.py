# SPDX-License-Identifier: Apache-2.0
"""The layers of a transformers model in a PipelineModule.

    Front → Block … Block → Tail                         # tokens → hidden → … → hidden → logits
    Words → Front → Block … Block → Tail → Words         # where embedding and head share a weight (Words is tied)

Layers pass on the hidden state and the model's inputs other than images: (hidden, input_ids, attention_mask, ...).
Each layer runs the forward of the whole model, with stubs in place of the modules of other layers. So it makes the
same masks and tables as the model: that costs each block one mask, and nothing is sent.
"""

from collections.abc import Collection, Sequence
from typing import Any

import torch
from ostinato.errors import counted
from torch import nn
from torch.nn import functional

from . import routers
from .carving import StubCall, Reached, Stub, hidden_of, run
from .errors import Refused
from .outline import inside
from .refusals import parameters_of
from .sources import Source

State = torch.Tensor | tuple[torch.Tensor, ...]


class Part(nn.Module):
    """`model`: this layer's part of the model. `inputs`: names of what a batch holds, in order."""

    def __init__(self, source: Source, inputs: Sequence[str], model: nn.Module):
        super().__init__()
        self.model, self.inputs = model, tuple(inputs)
        self.main = str(model.main_input_name)
        self.rides = tuple(name for name in self.inputs if name != self.main or name == "input_ids")
        self.constants = {"return_dict": True}
        for name in ("use_cache", "output_router_logits"):
            if name in parameters_of(source.kind):
                self.constants[name] = False
        self.kind, self.routed = source.kind, routers.wanted(source.config)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model.__class__.__name__})"

    def named_weights(self) -> dict[str, torch.Tensor]:
        """This layer's weights, by the names under which the model saves them."""
        return self.model.state_dict(keep_vars=True)

    def _apply(self, fn, recurse: bool = True):
        """Moves tables that are not weights (rotary frequencies) to the device, but keeps their dtype, as
        from_pretrained() does: in half precision positions would be rounded."""
        tables = [
            (m, name, m._buffers[name])
            for m in self.modules()
            for name in m._non_persistent_buffers_set & m._buffers.keys()
        ]
        super()._apply(fn, recurse)
        for module, name, table in tables:
            if table is not None and (now := module._buffers[name]) is not None and table.is_floating_point():
                module._buffers[name] = table.to(now.device)
        return self

    def ran(self, at, values: dict, hidden: torch.Tensor):
        """The value that a stub reaches in the model's forward, or that the forward returns."""
        return run(self.model, StubCall(at, hidden), {**values, **self.constants})

    def unpacked(self, state: State) -> tuple[torch.Tensor, tuple[torch.Tensor, ...], dict]:
        """(hidden, inputs passed along, the model's arguments) from a state between layers."""
        hidden, *rides = state if isinstance(state, tuple) else (state,)
        # Followed by the routers' outputs.
        values = dict(zip(self.rides, rides[: len(self.rides)] if self.routed else rides, strict=True))
        if self.main not in values:
            values[self.main] = hidden.new_zeros(0)
        return hidden, tuple(rides), values

    def begun(self, state: State) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...], dict]:
        """(the batch's values, inputs passed along, the model's arguments) from a batch."""
        given = state if isinstance(state, tuple | list) else (state,)
        if len(given) != len(self.inputs):
            raise Refused(
                f"a batch holds {counted(len(given), 'input')}, but layers() was told {len(self.inputs)}: {', '.join(self.inputs)}"
            )
        values = dict(zip(self.inputs, given, strict=True))
        for name in self.rides:
            if values[name].is_floating_point():
                raise Refused(
                    f'"{name}" is {values[name].dtype}: use integers or booleans (DeepSpeed sends back a gradient for every float)'
                )
        return tuple(given), tuple(values[name] for name in self.rides), values

    def scored(self, logits: torch.Tensor, rides: tuple, values: dict) -> State:
        """The input of the loss."""
        mask = values.get("attention_mask")
        return (
            (logits, *rides[len(self.rides) :], *([] if mask is None else [mask])) if self.routed else logits
        )


def _given(hidden: torch.Tensor, rides: tuple) -> State:
    return (hidden, *rides) if rides else hidden


class Words(nn.Module):
    """The embedding of a tied pair, and the head that shares its weight: as_head(). `bias` is the head's."""

    bias: nn.Parameter | None

    def __init__(self, source: Source, inputs: Sequence[str]):
        super().__init__()
        outline = source.outline
        names = {f"{outline.words}.weight", *([outline.bias] if outline.bias else [])}
        stubs = {name: Stub("inner") for name in _beside(source, "", names)}
        whole = source.carved(stubs, lambda name: name in names)
        self.embed = whole.get_submodule(outline.words)
        self.names = {"embed.weight": f"{outline.words}.weight"} | (
            {"bias": outline.bias} if outline.bias else {}
        )
        holder, _, last = outline.bias.rpartition(".")
        self.register_parameter(
            "bias", whole.get_submodule(holder)._parameters[last] if outline.bias else None
        )
        self.head = Head(source, inputs)

    def named_weights(self) -> dict[str, torch.Tensor]:
        held = self.state_dict(keep_vars=True)
        return {name: held[own] for own, name in self.names.items()}

    def forward(self, state: State) -> State:
        given, rides, values = self.head.begun(state)
        words = self.embed(values["input_ids"])
        return (words if self.bias is None else _Beside.apply(words, self.bias), *given)


def as_head(words: Words, state: State) -> State:
    """The forward_fn of the second of the tied pair."""
    table: Any = words.embed.weight
    return words.head.logits(state, table, words.bias)


class Logits(Words):
    """The second of the pair if their weight is frozen: DeepSpeed would add gradients that do not exist."""

    def forward(self, state: State) -> State:
        return as_head(self, state)


class _Beside(torch.autograd.Function):
    """Returns the first of two; the second gets a gradient of zeros, because DeepSpeed adds the gradients of all
    tied weights on every rank."""

    @staticmethod
    def forward(context, made, beside):
        context.save_for_backward(beside)
        return made.view_as(made)

    @staticmethod
    def backward(context, gradient):
        return gradient, torch.zeros_like(context.saved_tensors[0])


class Front(Part):
    """What runs before the blocks: a batch, or (words, batch), -> (hidden, inputs passed along)."""

    def __init__(self, source: Source, inputs: Sequence[str]):
        outline = source.outline
        stubs = _stubs(source, after=True) | ({outline.words: Stub("words")} if outline.words else {})
        super().__init__(
            source,
            inputs,
            source.carved(stubs, lambda name: any(inside(name, part) for part in outline.before)),
        )
        self.tied = bool(outline.words)

    def forward(self, state: State) -> State:
        words = [state[0]] if self.tied else []
        _, rides, values = self.begun(state[1:] if self.tied else state)

        def at(stub, *args, **kwargs):
            if stub.role == "block":
                raise Reached(hidden_of(args, kwargs)[0])
            if not words:
                raise Refused(
                    f"{type(self.model).__name__} uses its embedding twice, and the embedding is tied to its head: set tie_word_embeddings=False"
                )
            return words.pop()

        like = words[0] if words else next(p for p in self.parameters() if p.is_floating_point())
        return _given(self.ran(at, values, like), rides)


class Block(Part):
    """One of the blocks, with the masks and tables that the model's forward makes for it: (hidden, ...) ->
    (hidden, ...)."""

    def __init__(self, source: Source, inputs: Sequence[str], index: int):
        outline = source.outline
        name = f"{outline.blocks}.{index}"
        stubs = _stubs(source, before=True, after=True)
        del stubs[name]
        model = source.carved(stubs, lambda where: inside(where, name))
        block = model.get_submodule(name)
        model.get_submodule(outline.blocks)._modules[str(index)] = Stub("block", index).in_place_of(block)
        super().__init__(source, inputs, model)
        self.block, self.blocks, self.index = block, outline.blocks, index

    def named_weights(self) -> dict[str, torch.Tensor]:
        return {
            f"{self.blocks}.{self.index}.{name}": value
            for name, value in self.block.state_dict(keep_vars=True).items()
        }

    def train(self, mode: bool = True):
        """Modules that are not this layer's stay in evaluation mode, so they draw no random numbers."""
        super().train(mode)
        self.model.train(False)
        return self

    def forward(self, state: State) -> State:
        hidden, rides, values = self.unpacked(state)
        beside: list[torch.Tensor] = []

        def at(stub, *args, **kwargs):
            if stub.role != "block" or stub.index != self.index:
                return hidden.detach()
            _, rest, words = hidden_of(args, kwargs)
            if not self.routed:
                raise Reached(self.block(hidden, *rest, **words))
            with routers.noted(self.block, self.kind) as logits:
                made = self.block(hidden, *rest, **words)
            beside.extend(logits)
            raise Reached(made)

        made = self.ran(at, values, hidden)
        if not isinstance(made, torch.Tensor):
            raise Refused(
                f"{type(self.block).__name__} returns a {type(made).__name__}, but a block of a pipeline must return one tensor"
            )
        return _given(made, (*rides, *beside))


class Tail(Part):
    """What runs after the blocks: (hidden, ...) -> logits; with a tied head, (hidden, ...) -> (the head's input,
    ...)."""

    def __init__(self, source: Source, inputs: Sequence[str]):
        outline = source.outline
        stubs = _stubs(source, before=True) | ({outline.head: Stub("head")} if outline.head else {})
        after, shared = outline.after, outline.shared
        model = source.carved(
            stubs, lambda name: name not in shared and any(inside(name, part) for part in after)
        )
        super().__init__(source, inputs, model)
        self.last, self.own = outline.count - 1, outline.after

    def train(self, mode: bool = True):
        super().train(mode)
        self.model.train(False)
        for name in self.own:
            self.model.get_submodule(name).train(mode)
        return self

    def forward(self, state: State) -> State:
        hidden, rides, values = self.unpacked(state)

        def at(stub, *args, **kwargs):
            if stub.role == "head":
                raise Reached(_given(args[0], rides))
            return hidden if stub.role == "block" and stub.index == self.last else hidden.detach()

        made = self.ran(at, values, hidden)
        return self.scored(made.logits, rides, values) if hasattr(made, "logits") else made


class Head(Part):
    """What the model's forward does around its head, without weights or tables: tied layers may share nothing
    else."""

    def __init__(self, source: Source, inputs: Sequence[str]):
        outline = source.outline
        stubs = {name: Stub("inner") for name in source.tables} | _stubs(source, before=True)
        for part in outline.after:
            stubs |= {name: Stub("after") for name in _beside(source, part, (outline.head,))}
        super().__init__(
            source, inputs, source.carved(stubs | {outline.head: Stub("head")}, lambda name: False)
        )

    def train(self, mode: bool = True):
        return super().train(False)

    def logits(self, state: State, weight: torch.Tensor, bias: torch.Tensor | None) -> State:
        hidden, rides, values = self.unpacked(state)

        def at(stub, *args, **kwargs):
            return functional.linear(hidden, weight, bias) if stub.role == "head" else hidden.detach()

        return self.scored(self.ran(at, values, hidden).logits, rides, values)


def _stubs(source: Source, before: bool = False, after: bool = False) -> dict[str, Stub]:
    """In place of the blocks, and of what runs before or after them."""
    outline = source.outline
    made = {name: Stub("before") for name in outline.before} if before else {}
    made |= {f"{outline.blocks}.{i}": Stub("block", i) for i in range(outline.count)}
    return made | ({name: Stub("after") for name in outline.after} if after else {})


def _beside(source: Source, part: str, kept: Collection[str]) -> list[str]:
    """The largest modules in `part` ("": the model) that hold none of those modules and parameters."""
    if part in kept:
        return []
    if part and not any(inside(name, part) for name in kept):
        return [part]
    return [
        found
        for child in source.children[part]
        for found in _beside(source, f"{part}.{child}".lstrip("."), kept)
    ]
