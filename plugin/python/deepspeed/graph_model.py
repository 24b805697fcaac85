# SPDX-License-Identifier: Apache-2.0
"""Models with branches as a PipelineModule: layers that say what they read, and what flows between stages.

    layers = graph(
        {
            "text": (LayerSpec(Embed), "tokens"),               # the layer, then the names of its inputs
            "text1": (LayerSpec(Block), "text"),
            "image": (LayerSpec(Patches), "pixels"),
            "both": (LayerSpec(Join), "text1", "image"),        # forward(text1, image)
        },
        inputs=("tokens", "pixels"),                            # elements of the batch's inputs, in order
    )
    model = PipelineModule(layers, num_stages=4, loss_fn=loss)

Each layer returns one tensor, and the last layer's goes to the loss. DeepSpeed alone runs the layers one after
the other, and passes values that are still needed from each to the next, in a tuple. Under a plan with stages
that are not a chain (K: branches that meet, skip edges) a stage gets just the outputs of the stages that feed
it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from deepspeed.pipe import LayerSpec, TiedLayerSpec
from torch import nn

from .errors import OstinatoError


@dataclass(frozen=True)
class Wires:
    """The values that a layer gets, and those that it passes on, by name and in order."""

    given: tuple[str, ...]
    kept: tuple[str, ...]


class Wired:
    """Picks a layer's inputs from the values that it gets, and passes values on together with its output."""

    name: str
    reads: tuple[str, ...]
    wires: Any  # Wires

    def wire(self, name: str, reads: tuple[str, ...], wires: Wires) -> None:
        self.name, self.reads, self.wires = name, reads, wires

    def run(self, layer: Callable, state):
        values = self._values(state)
        values[self.name] = layer(*(values[name] for name in self.reads))
        kept = tuple(values[name] for name in self.wires.kept)
        return kept if len(kept) > 1 else kept[0]

    def taken(self, state) -> tuple:
        """The values in `state` that the layer reads."""
        values = self._values(state)
        return tuple(values[name] for name in self.reads)

    def _values(self, state) -> dict[str, Any]:
        return dict(zip(self.wires.given, state if isinstance(state, tuple) else (state,), strict=True))

    def made(self, state):
        """The layer's own output in `state`."""
        return state[self.wires.kept.index(self.name)] if isinstance(state, tuple) else state


class GraphLayer(Wired, nn.Module):
    """A layer, or the first of tied ones. `forward_fn(module, *values)`: runs in place of its forward(), as in
    TiedLayerSpec.
    """

    def __init__(
        self, layer, name: str, reads: tuple[str, ...], wires: Wires, forward_fn: Callable | None = None
    ):
        super().__init__()
        self.layer = layer.build() if isinstance(layer, LayerSpec) else layer
        self.forward_fn = forward_fn
        self.wire(name, reads, wires)

    def forward(self, state):
        return self.run(self.called(self.forward_fn), state)

    def called(self, forward_fn: Callable | None) -> Callable:
        """The layer as a function of its inputs."""
        return self.layer if forward_fn is None else partial(forward_fn, self.layer)

    @property
    def split(self) -> dict[str, int]:
        """For ostinato.nn: how the tensors of a part are cut."""
        from ostinato.nn.layers import split_of

        return {f"layer.{name}": dimension for name, dimension in split_of(self.layer).items()}

    def sharded(self, shard, last: bool = False):
        from ostinato.nn import sharded

        return GraphLayer(sharded(self.layer, shard, last), self.name, self.reads, self.wires)


class Again(Wired):
    """A later one of tied layers: a TiedLayerSpec's forward_fn, which gets the GraphLayer of the first, or a copy of
    it on another rank."""

    def __init__(self, name: str, reads: tuple[str, ...], wires: Wires, forward_fn: Callable | None):
        self.forward_fn = forward_fn
        self.wire(name, reads, wires)

    def __call__(self, first: GraphLayer, state):
        return self.run(first.called(self.forward_fn), state)


class NodeSpec(LayerSpec):
    """Builds a GraphLayer; its names are known before."""

    def __init__(self, layer, name: str, reads: tuple[str, ...], wires: Wires):
        super().__init__(GraphLayer, layer, name, reads, wires)
        self.layer, self.name, self.reads = layer, name, reads


class TiedNodeSpec(TiedLayerSpec):
    """The same for a tied layer. Every rank builds the GraphLayer of the `first` tied layer (None: this one), which
    DeepSpeed writes into checkpoints; later ones run through it.
    """

    def __init__(
        self,
        layer: TiedLayerSpec,
        name: str,
        reads: tuple[str, ...],
        wires: Wires,
        first: "TiedNodeSpec | None",
    ):
        own, weights = layer.forward_fn, [f"layer.{attribute}" for attribute in layer.tied_weight_attr]
        plain = LayerSpec(layer.typename, *layer.module_args, **layer.module_kwargs)
        built = first.module_args if first else (plain, name, reads, wires, own)
        again = Again(name, reads, wires, own) if first else None
        super().__init__(layer.key, GraphLayer, *built, forward_fn=again, tied_weight_attr=weights)
        self.layer, self.name, self.reads = layer, name, reads


def wired(function) -> Wired | None:
    """The Wired behind a function of a PipelineModule; None where its layer is not from graph()."""
    return next((f for f in (function, getattr(function, "func", None)) if isinstance(f, Wired)), None)


def graph(layers: Mapping[str, tuple], inputs: tuple[str, ...]) -> list[LayerSpec]:
    """Layers for a PipelineModule, in the order of `layers`. Raises OstinatoError for a name that is used before
    it is defined, or defined twice, and for a layer whose output no layer reads.
    """
    known = list(inputs)
    for name, (_, *reads) in layers.items():
        if name in known:
            raise OstinatoError(f'graph(): "{name}" is already the name of an input')
        if unknown := [r for r in reads if r not in known]:
            raise OstinatoError(
                f'graph(): layer "{name}" reads "{unknown[0]}", which is neither an input nor an earlier layer'
            )
        if not reads:
            raise OstinatoError(f'graph(): layer "{name}" reads nothing')
        known.append(name)
    wires = wires_of(
        [tuple(reads) for _, *reads in layers.values()], list(layers), tuple(inputs), (known[-1],)
    )
    for name, wire in zip(layers, wires, strict=True):
        if name not in wire.kept:
            raise OstinatoError(f'graph(): no layer reads layer "{name}"')
    specs: list[Any] = []
    first: dict[str, TiedNodeSpec] = {}
    for (name, (layer, *reads)), wire in zip(layers.items(), wires, strict=True):
        if isinstance(layer, TiedLayerSpec):
            specs.append(TiedNodeSpec(layer, name, tuple(reads), wire, first.get(layer.key)))
            first.setdefault(layer.key, specs[-1])
        else:
            specs.append(NodeSpec(layer, name, tuple(reads), wire))
    specs[0].inputs = tuple(inputs)
    return specs


def wires_of(
    reads: list[tuple[str, ...]], names: list[str], given: tuple[str, ...], results: tuple[str, ...]
) -> list[Wires]:
    """For layers that run one after the other on `given`, with `results` needed after them. O(layers^2)."""
    wires, live = [], given
    for index, name in enumerate(names):
        needed = {r for later in reads[index + 1 :] for r in later} | set(results)
        last = index + 1 == len(names)
        kept = results if last else tuple(value for value in (*live, name) if value in needed)
        wires.append(Wires(live, kept))
        live = kept
    return wires


def is_graph(specs: list) -> bool:
    return bool(specs) and all(isinstance(spec, NodeSpec | TiedNodeSpec) for spec in specs)


def layers_read(specs: list[LayerSpec]) -> list[list[int]]:
    """By layer, the layers whose outputs it reads, ascending."""
    index = {spec.name: i for i, spec in enumerate(specs)}
    return [sorted({index[name] for name in spec.reads if name in index}) for spec in specs]


@dataclass(frozen=True)
class StageWires:
    """The values in one stage. `takes`: elements of the batch's inputs that its layers read."""

    takes: tuple[int, ...]
    layers: list[Wires]


def stage_wires(specs: list[LayerSpec], stages: list) -> dict[int, StageWires]:
    """By stage index, where the stages are not a chain. A stage sends the same values to all that it feeds."""
    inputs = specs[0].inputs
    made = {stage.index: [specs[i].name for i in stage.layers] for stage in stages}
    results = {}
    for stage in stages:
        outside = {r for i, spec in enumerate(specs) if i not in stage.layers for r in spec.reads}
        results[stage.index] = tuple(name for name in made[stage.index] if name in outside) or (
            made[stage.index][-1],
        )
    wires = {}
    for stage in stages:
        own = [specs[i] for i in stage.layers]
        read = {r for spec in own for r in spec.reads}
        takes = tuple(i for i, name in enumerate(inputs) if name in read)
        given = (*(inputs[i] for i in takes), *(name for before in stage.inputs for name in results[before]))
        of_layers = wires_of([spec.reads for spec in own], made[stage.index], given, results[stage.index])
        wires[stage.index] = StageWires(takes, of_layers)
    return wires


def feeds(specs: list[LayerSpec], stages: list) -> dict[int, set[int]]:
    """By stage, the stages that its layers read from."""
    maker = {specs[i].name: stage.index for stage in stages for i in stage.layers}
    return {
        stage.index: {maker[r] for i in stage.layers for r in specs[i].reads if r in maker} - {stage.index}
        for stage in stages
    }
