# SPDX-License-Identifier: Apache-2.0
"""The layers, built one at a time, with the real input of each: a chain, or the graph that
ostinato.deepspeed.graph() describes.

Every layer is run once, without gradients, so that its readers get its shapes. A layer that is the same as an
earlier one, on an input of the same shape, is neither built nor run again: it gets that one's output. One
that differs in an index only (alike.py) is built, run once and let go. Equal LayerSpecs may build unlike layers,
by a counter of their class: that is looked at on `meta`, without memory.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from ostinato.errors import counted
from torch import nn

from ostinato.profile.errors import ProfileError
from ostinato.profile.model.alike import Alike
from ostinato.profile.model.chain import Chain, Source
from ostinato.profile.model.identity import class_key, input_key, layer_key, structure
from ostinato.profile.model.job import Job
from ostinato.profile.model.layer import Layer, recomputed, run_once, under_autocast
from ostinato.profile.model.model_digest import (
    Parameter,
    layer_digest,
    layer_name,
    layer_parameters,
    model_digest,
)
from ostinato.profile.model.tensors import bytes_of, map_tensors, moved, tensors, unusable
from ostinato.profile.model.wanted import find_wanted
from ostinato.profile.settings import Settings
from ostinato.restrictions import experts_in


TRIES = 16  # of a LayerSpec that builds unlike layers, until it builds the one that is needed


class Builder:
    """Builds layers as DeepSpeed's PipelineModule does; tied layers share one module."""

    def __init__(self, settings: Settings, device: Any):
        self.settings, self.device = settings, device
        self.tied: dict[Any, nn.Module] = {}
        self.described: list[tuple[str, list[Parameter]]] = []

    def build(self, name: str, layer: Any, built: Any = None, there: Any = None) -> tuple[Callable, Any]:
        """The function to call, and the module that holds its parameters (or the function itself). `built`: the
        structure() that it must have; `there`: it was built already."""
        try:
            tries = (self._module(layer) if there is None else there for _ in range(TRIES))
            module = next((made for made in tries if built is None or structure(made) == built), None)
        except Exception as error:
            raise ProfileError(f"layer {name} could not be built: {type(error).__name__}: {error}") from error
        if module is None:
            raise ProfileError(
                f"layer {name} cannot be built again: its LayerSpec builds another layer each time; give it what differs "
                "as an argument"
            )
        parameters = layer_parameters(module)
        self.described.append((name, parameters))
        if isinstance(module, nn.Module):
            module.to(device=self.device.place, dtype=self.settings.dtype)
        forward = getattr(layer, "forward_fn", None)
        return (functools.partial(forward, module) if forward else module), module

    def describe_again(self, name: str, first: int) -> None:
        self.described.append((name, self.described[first][1]))

    def _module(self, layer: Any) -> Any:
        if not hasattr(layer, "typename"):
            return layer
        if not hasattr(layer, "forward_fn"):
            return layer.build()
        if layer.key not in self.tied:
            self.tied[layer.key] = layer.build()
        return self.tied[layer.key]


def unlike(layers: Sequence[Any], itself: Callable[[Any], Any]) -> tuple[list[Any], dict[int, Any]]:
    """By layer: the structure() of what its LayerSpec builds, where equal ones build unlike layers; else None. And
    the first of equal ones, by index: it has memory, as later ones may find tensors of it in a cache. What cannot be
    built on `meta` counts as alike."""
    specs = {index: itself(layer) for index, layer in enumerate(layers)}
    specs = {index: spec for index, spec in specs.items() if may_vary(spec)}
    keys = {index: layer_key(spec) for index, spec in specs.items()}
    often = Counter(keys.values())
    kinds = {spec.typename for index, spec in specs.items() if often[keys[index]] > 1}
    found: dict[Any, dict[int, Any]] = {}  # by key and layer
    first: dict[int, Any] = {}
    for index in (index for index, spec in specs.items() if spec.typename in kinds):
        made = found.setdefault(keys[index], {})
        with contextlib.suppress(Exception), torch.device("meta") if made else contextlib.nullcontext():
            layer = layers[index].build()
            if not made:
                first[index] = layer
            made[index] = structure(layer)
    whole = (made for key, made in found.items() if len(made) == often[key] and len(set(made.values())) > 1)
    varied = {index: one for made in whole for index, one in made.items()}
    return [varied.get(index) for index in range(len(layers))], first


def may_vary(spec: Any) -> bool:
    """Whether what a LayerSpec builds is not known: it is not tied, and script/changed_layers.py says nothing of it."""
    return hasattr(spec, "typename") and not any(
        hasattr(spec, name) for name in ("forward_fn", "changed_to", "alike")
    )


def with_loss(run: Callable, job: Job) -> Callable:
    labels = moved(job.labels, job.device)
    loss = job.loss_fn
    assert loss is not None
    if isinstance(loss, nn.Module):
        loss.to(job.device.place)
    return lambda inputs: loss(run(inputs), labels)


class Line:
    """The values in a chain: each layer takes the output of the one before it."""

    reads = after = None

    def __init__(self, inputs: Any, _layers: Sequence[Any]):
        self.value, self.reached = inputs, [False for _ in tensors(inputs)]

    def taken(self, _spec: Any) -> tuple[Any, list[bool]]:
        """The inputs of the layer, and the tensors among them that need a gradient."""
        return self.value, self.reached

    def give(self, _spec: Any, outputs: Any, flows: list[bool]) -> None:
        self.value, self.reached = outputs, flows

    def called(self, run: Callable) -> Callable:
        return run

    def itself(self, spec: Any) -> Any:
        return spec


class Branches:
    """The values in a graph of layers: each takes just the values that it names."""

    def __init__(self, inputs: Any, layers: Sequence[Any]):
        given = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
        names = layers[0].inputs
        if len(names) != len(given):
            raise ProfileError(
                f"graph() names {counted(len(names), 'input')} ({', '.join(names)}), but a batch has {len(given)}"
            )
        self.values: dict[str, Any] = dict(zip(names, given, strict=True))
        self.rows: dict[str, int] = {}  # of values that layers made
        self.reached: dict[str, bool] = {}  # of the same: whether a backward goes on behind it
        self.reads: list[list[Source]] = []
        self.after: list[dict[int, int]] = []

    def taken(self, spec: Any) -> tuple[Any, list[bool]]:
        rows = {name: self.rows[name] for name in spec.reads if name in self.rows}
        self.reads.append([(rows[name], 0) if name in rows else None for name in spec.reads])
        self.after.append(
            {
                row: bytes_of(self.values[name])
                for row, name in sorted((row, name) for name, row in rows.items())
            }
        )
        return tuple(self.values[name] for name in spec.reads), [
            self.reached.get(name, False) for name in spec.reads
        ]

    def give(self, spec: Any, outputs: Any, flows: list[bool]) -> None:
        if not isinstance(outputs, torch.Tensor):
            raise ProfileError(
                f'layer "{spec.name}" of graph() must return one tensor, but returned {type(outputs).__name__}'
            )
        self.values[spec.name] = outputs
        self.rows[spec.name] = len(self.rows)
        self.reached[spec.name] = flows[0]

    def called(self, run: Callable) -> Callable:
        first: Any
        again: Any
        # Of tied layers.
        first, again = (run.args[0], run.func) if isinstance(run, functools.partial) else (run, run)
        layer = first.called(again.forward_fn)
        return lambda inputs: layer(*inputs)

    def itself(self, spec: Any) -> Any:
        return spec.layer


def has_branches(layers: Sequence[Any]) -> bool:
    """Whether ostinato.deepspeed.graph() made them."""
    return all(hasattr(layer, "reads") for layer in layers)


def trained(module: Any) -> list[nn.Parameter]:
    return [p for p in module.parameters() if p.requires_grad] if isinstance(module, nn.Module) else []


def held_bytes(module: Any) -> int:
    return bytes_of([*module.parameters(), *module.buffers()]) if isinstance(module, nn.Module) else 0


def build_layer(
    index: int, name: str, function: Callable, run: Callable, module: Any, taken: tuple, job: Job
) -> Layer:
    value, reached = taken
    parameters = trained(module)
    held = held_bytes(module)
    checkpointed = job.checkpoint_interval > 0 and job.checkpointable([function])
    experts = isinstance(module, nn.Module) and bool(experts_in(module))
    run = under_autocast(run, job.device.place, job.autocast)
    run = recomputed(run) if checkpointed else run
    return Layer(index, name, run, value, None, parameters, held, reached, checkpointed, job.device, experts)


def build_chain(job: Job, settings: Settings) -> Chain:
    if not len(job.layers):
        raise ProfileError("the model has no layers")
    found = unusable(job.inputs)
    if found is not None:
        raise ProfileError(f"the inputs of the model hold {found[0]}: {found[1]}")
    inputs = moved(map_tensors(torch.Tensor.detach, job.inputs), job.device)
    flow = (Branches if has_branches(job.layers) else Line)(inputs, job.layers)
    chain, builder = Chain(reads=flow.reads, after=flow.after), Builder(settings, job.device)
    known: dict[Any, Layer] = {}
    alike = Alike()
    last = len(job.layers) - 1
    chain.built, there = unlike(job.layers, flow.itself)
    for index, spec in enumerate(job.layers):
        name = layer_name(index, spec)
        taken = flow.taken(spec)
        meant = layer_key(flow.itself(spec)), chain.built[index]
        key = (meant, input_key(taken[0]), tuple(taken[1]), index == last)
        if key not in known:
            run, module = builder.build(name, spec, chain.built[index], there.pop(index, None))
            layer = build_layer(index, name, run, flow.called(run), module, taken, job)
            kind = None if index == last else class_key(flow.itself(spec))
            same = alike.measured((kind, *key[1:]), layer, module) if kind is not None else None
            if same is not None:
                known[key] = same
        if key not in known:
            layer.outputs = run_once(layer)
            # A forward may freeze or thaw parameters, and make buffers.
            layer.parameters, layer.parameter_bytes = trained(module), held_bytes(module)
            if index == last and job.loss_fn is not None:
                layer.run, layer.name = with_loss(layer.run, job), f"{name} with its loss"
                run_once(layer)
                layer.name = name
            known[key] = layer
            chain.layers.append(layer)
        elif len(builder.described) == index:
            builder.describe_again(name, known[key].index)
        layer = known[key]
        chain.rows.append((name, layer))
        flow.give(spec, layer.outputs, layer.flows)
    chain.digest = model_digest(builder.described)
    chain.digests = [layer_digest(*row) for row in builder.described]
    find_wanted(chain)
    return chain
