# SPDX-License-Identifier: Apache-2.0
"""A PipelineModule whose rank holds several stages, only one of which runs at a time.

    adopt(model, owners, stages)       # changes the class of `model` in place
    model.show(stage)                  # forward() now runs this stage
    model.show_all()                   # the resting state: all local layers, as checkpoints and compile() expect

The stage must be shown during its backward too: activation checkpointing recomputes through forward_funcs.
"""

from collections.abc import Sequence
from typing import Any

import torch
from deepspeed.runtime.activation_checkpointing import checkpointing
from ostinato.nn import Shard, ShardedLogits

from ostinato.buffers import Buffers
from ..randomness.draws import LOSS
from ..errors import OstinatoError
from ..graph_model import Wires, wired
from ..save.layer_files import LayerFiles
from ..section.plans import Stage
from ..upstream import STOCK_PARTS, stock_parts
from .recomputation import RecomputedLayers, learn


class StagedLayers(RecomputedLayers, LayerFiles):
    """Mixed in before the model's own class."""

    _owners: list[int]  # adopt() says what these are
    _stages: list[Stage]
    _wires: dict[int, list[Wires]]
    _views: "dict[int, _View]"
    _shown: "_View | None"
    _run: int  # index of the current run of checkpointed layers

    own_kind: type  # the script's class, or PipelineModule
    placed_in_order: bool  # equal on every rank: DeepSpeed's own schedule could run the layers where they are
    whole_logits = False  # forward() of a sharded head returns the logits of all its ranks
    _one_backward = False  # compiled layers compute the gradients of inputs and weights together

    def forward(self, forward_input):
        """DeepSpeed's forward, in which each run of checkpointed layers knows its index, also when it is
        recomputed."""
        self._refuse_gaps()
        self._given_alone = isinstance(forward_input, tuple) and len(forward_input) == 1
        own, self._run = self.activation_checkpoint_func, -1

        def numbered(function, *inputs):
            before = self._run
            first: list = []  # states of the generators at its start
            self._check_learns(own, before + 1, inputs)

            def run(*values):
                self._run = before
                self._look_where_draws_begin(first)
                return function(*values)

            return own(run, *inputs)

        self.activation_checkpoint_func = numbered
        try:
            made = super().forward(forward_input)
        finally:
            self.activation_checkpoint_func = own
        if self.watcher is not None and self._shown_layers[-1] == self._num_layers - 1:
            self.watcher.enter(LOSS)
        return made.whole() if self.whole_logits and isinstance(made, ShardedLogits) else made

    def _refuse_gaps(self) -> None:
        """Raises where the script calls the model and this rank's layers are not consecutive."""
        layers = self._local_layers
        if self._shown is None and layers != list(range(layers[0], layers[-1] + 1)):
            raise OstinatoError(
                f"engine.module was called directly, but under the plan this rank has layers {', '.join(map(str, layers))}, which do not follow each "
                "other: use engine.eval_batch(), or call the layers in engine.module.forward_funcs"
            )

    def show(self, stage: Stage) -> None:
        """Makes `stage` the layers that forward() runs. O(layers of the stage)."""
        view = self._views[stage.index]
        if view is self._shown:
            return
        self._put_away()
        self._shown = view
        self.forward_funcs = view.functions
        self.is_checkpointable_results = view.checkpointable
        self._shown_layers = stage.layers
        self._set_bounds(stage.first, stage.layers[-1] + 1)
        for function, wires in zip(self.forward_funcs, self._wires.get(stage.index, ()), strict=False):
            if (node := wired(function)) is not None:
                node.wires = wires
        if torch.is_grad_enabled() and (stage.recomputes or stage.sharded):
            self._checkpoint(stage, view.buffers)

    def learns(self, stage: Stage) -> bool:
        """Whether the stage has trainable parameters."""
        return learn(self.functions_of(stage))

    def functions_of(self, stage: Stage) -> list:
        """The functions that the stage runs, in order (not a copy)."""
        return self._views[stage.index].functions

    def show_all(self) -> None:
        """The resting state: every local layer, in model order."""
        self._put_away()
        self._shown = None
        self.forward_funcs = self._local_funcs
        self._shown_layers = self._local_layers
        self._set_bounds(FirstLayer(self._local_layers), self._local_layers[-1] + 1)

    def follow(self) -> None:
        """To be called before a step: takes over what the script has put into forward_funcs since the last."""
        functions = self.forward_funcs
        if len(functions) != len(self._local_layers):
            raise OstinatoError(
                f"model.forward_funcs holds {len(functions)} layers, but this rank has {len(self._local_layers)} under the plan: replace layers one by one"
            )
        self._local_funcs = functions
        of_layer = dict(zip(self._local_layers, functions, strict=True))
        for stage in self._stages:
            self._views[stage.index].take({layer: of_layer[layer] for layer in stage.layers})

    @property
    def curr_layer(self) -> int:
        """The number that DeepSpeed's own partition gives the current layer, and uses as its seed where
        seed_layers is on: it counts from the rank's first layer, in each run of checkpointed layers.
        """
        start = max(part for part in stock_parts(self)[:-1] if part <= self._running)
        within, interval = self._running - start, self.own_checkpointing[0]
        return start + (within % interval if interval else within)

    @curr_layer.setter
    def curr_layer(self, counted: int) -> None:
        """DeepSpeed counts up from the first layer, and starts over in each run; a stage of a graph may skip
        layers."""
        place = counted - self._local_start
        self._run += place == 0
        self._running = self._shown_layers[self._run * self.activation_checkpoint_interval + place]
        if self.watcher is not None:
            self.watcher.enter(self._running)

    def stage_owner(self, layer_idx):
        """The pipeline rank that runs the layer."""
        return self._owners[layer_idx]

    def _precompute_checkpointable_values(self):
        reentrant = self.activation_checkpoint_func is not checkpointing.non_reentrant_checkpoint
        for stage in self._stages:
            self.show(stage)
            self._put_away()  # compute with DeepSpeed's own interval: evaluation runs under it
            self.is_checkpointable_results_interval = None  # the parent caches by interval, not by stage
            super()._precompute_checkpointable_values()
            # A sharded embedding: gradients would not come back to it.
            if stage.sharded and stage.reads and reentrant:
                self.is_checkpointable_results = [False] * len(self.is_checkpointable_results)
            self._views[stage.index].checkpointable = self.is_checkpointable_results
        self.show_all()

    def may_split(self, stage: Stage) -> bool:
        """Whether the stage's backward can run in two halves: DeepSpeed's checkpointing recomputes all of it
        at once, and a compiled layer has one operator for both.
        """
        own = self.activation_checkpoint_interval and any(self._views[stage.index].checkpointable)
        return not (stage.recomputes or own or (self._one_backward and not stage.sharded))

    def compile(self, *args, **kwargs):
        """Compiles each local layer, as DeepSpeed does at rest. In a graph(), it compiles what a node runs,
        as its inputs change with the stage. Parts of sharded layers are not compiled.
        """
        made = {}
        for index, function in self.layers_here().items():
            node = wired(function)
            layer = getattr(node, "layer", None) if node else function
            if isinstance(layer, torch.nn.Module) and index not in self._shards:
                layer.compile(*args, **kwargs)
            elif layer is not None and not isinstance(layer, torch.nn.Module):
                made[id(function)] = torch.compile(function, *args, **kwargs)
        for functions in (self._local_funcs, *(view.functions for view in self._views.values())):
            functions[:] = [made.get(id(function), function) for function in functions]
        self._one_backward = kwargs.get("backend") != "eager"

    def layers_here(self) -> dict[int, Any]:
        """The function of each layer of this rank, by its index in the model."""
        return dict(zip(self._local_layers, self._local_funcs, strict=True))


class FirstLayer(int):
    """The number of a rank's first layer at rest. A place in forward_funcs is added to it, by scripts and by
    DeepSpeed: then the number of the layer in that place, also where a rank's layers are not consecutive."""

    _layers: Sequence[int] = ()

    def __new__(cls, layers: Sequence[int] | int):
        if isinstance(layers, int):  # a copy, which gets its attributes later
            return super().__new__(cls, layers)
        made = super().__new__(cls, layers[0])
        made._layers = layers
        return made

    def __add__(self, place: Any) -> Any:
        if place in range(len(self._layers)):
            return self._layers[place]
        return int(self) + place

    __radd__ = __add__


def _bounds(model: StagedLayers) -> list[int]:
    """What scripts read as model.parts, which agrees with _local_start and _local_stop on this rank: by rank the first
    of its layers, and behind the last rank the number of layers."""
    owners, rank = model._owners, model.stage_id
    first = [owners.index(r) if r in owners else part for r, part in enumerate(stock_parts(model)[:-1])]
    bounds = [*first, len(owners)]
    bounds[rank : rank + 2] = FirstLayer(model._local_layers), model._local_layers[-1] + 1
    return bounds


class _View:
    """What changes with the shown stage."""

    def __init__(self, functions: dict):
        """`functions`: by layer."""
        self.functions: list = []  # that its stage runs, in order
        self.take(functions)
        self.checkpointable: list[bool] = []

    def take(self, functions: dict) -> None:
        if self.functions != list(functions.values()) or not self.functions:
            self.functions, self.buffers = list(functions.values()), Buffers(functions)


def adopt(
    model,
    owners: list[int],
    stages: list[Stage],
    shards: dict[int, Shard],
    elsewhere: set[int],
    wires: dict[int, list],
) -> None:
    """Makes `model` run `stages`; its forward_funcs already hold their layers in model order.

    `owners[i]` is the pipeline rank of layer i, the first of several; `shards` has this rank's part of
    sharded layers; `elsewhere`: layers that another rank writes into checkpoints; `wires`: by stage, what its
    layers take and return (graph_model), where stages are not a chain: one layer may serve two directions. The
    class keeps its name, which DeepSpeed looks at.
    """
    kind = type(model)
    model.__class__ = type(kind.__name__, (StagedLayers, kind), {"__module__": kind.__module__})
    stages = sorted(stages, key=lambda stage: stage.first)
    model._owners, model._stages, model._shards, model.written_elsewhere = owners, stages, shards, elsewhere
    model.own_kind = kind
    model._wires = wires
    model.read_for_others = None
    model._local_funcs = model.forward_funcs
    model._local_layers = sorted({layer for stage in stages for layer in stage.layers})
    functions = model.layers_here()
    model._views = {
        stage.index: _View({layer: functions[layer] for layer in stage.layers}) for stage in stages
    }
    model._shown = model._own_checkpointing = None
    model.show_all()
    vars(model)[STOCK_PARTS] = model.parts
    model.parts = _bounds(model)
