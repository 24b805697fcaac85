# SPDX-License-Identifier: Apache-2.0
"""A PipelineModule whose rank holds several stages, only one of which runs at a time.

    adopt(model, owners, stages)       # changes the class of `model` in place
    model.show(stage)                  # forward() is now this stage's
    model.show_all()                   # the resting state: all local layers, as checkpoints and compile() want them

The stage must be shown during its backward too: activation checkpointing recomputes through forward_funcs.
"""

from collections.abc import Callable
from typing import Any

import torch
from deepspeed.runtime.activation_checkpointing import checkpointing
from ostinato.nn import Shard, ShardedLogits

from .draws import LOSS
from .errors import OstinatoError
from .forward_state import ForwardState
from .graph_model import Wires, wired
from .layer_files import LayerFiles
from .plans import Stage
from .recomputation import RecomputedLayers, learn


class StagedLayers(RecomputedLayers, LayerFiles):
    """Mixed in before the model's own class."""

    _owners: list[int]  # adopt() says what these are
    _stages: list[Stage]
    _wires: dict[int, list[Wires]]
    _views: "dict[int, _View]"
    _shown: "_View | None"
    _run: int  # which of the runs of layers that are checkpointed

    placed_in_order: bool  # on every rank alike: DeepSpeed's own schedule could run the layers where they are
    given: Any = None  # (overlaps) is told what a stage runs on, which DeepSpeed has copied
    whole_logits = False  # forward() of a sharded head returns the logits of all its ranks
    _one_backward = False  # layers are compiled so that gradients of inputs and weights come together

    def forward(self, forward_input):
        """DeepSpeed's, in which each run of layers that is checkpointed knows which one it is, when it is recomputed, too."""
        self._refuse_gaps()
        self._given_alone = isinstance(forward_input, tuple) and len(forward_input) == 1
        if self.given is not None:
            self.given(forward_input)
        own, self._run = self.activation_checkpoint_func, -1

        def numbered(function, *inputs):
            before = self._run
            first: list = []  # states of generators, where it began
            self._check_learns(own, before + 1, inputs)

            def run(*values):
                self._run = before
                self._look_where_draws_begin(first)
                with self._own_seeds():
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
        """The script calls the model, and what this rank has is no piece of it."""
        layers = self._local_layers
        if self._shown is None and layers != list(range(layers[0], layers[-1] + 1)):
            raise OstinatoError(
                f"engine.module was called by itself, and this rank has layers {', '.join(map(str, layers))} under the plan, which hand nothing on to each "
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
            self._checkpoint(stage, view.state)

    def learns(self, stage: Stage) -> bool:
        """Whether some parameter of its layers does."""
        return learn(self.functions_of(stage))

    def functions_of(self, stage: Stage) -> list:
        """What the stage runs, in order; its own list."""
        return self._views[stage.index].functions

    def watch_backward(self, stage: Stage) -> Callable[[], None]:
        """Before the stage's backward. To be called after it: notes what recomputation in it has changed."""
        return self._watch_backward(ForwardState(dict(zip(stage.layers, self.functions_of(stage), strict=True)), whole=False))

    def show_all(self) -> None:
        """The resting state: every local layer, in model order."""
        self._put_away()
        self._shown = None
        self.forward_funcs = self._local_funcs
        self._shown_layers = self._local_layers
        self._set_bounds(self._local_layers[0], self._local_layers[-1] + 1)

    def replace_layer(self, layer: int, old: Any, new: Any) -> None:
        """`new` runs in the place of `old`, which forward_funcs held before a script changed it."""
        for stage in (c for c in self._stages if layer in c.layers):
            functions, at = self.functions_of(stage), list(stage.layers).index(layer)
            assert given(functions[at]) in (old, new), f"stage {stage.index} runs something else than layer {layer} of forward_funcs"
            functions[at] = new  # which compile() may have done
            self._views[stage.index].state = ForwardState(dict(zip(stage.layers, functions, strict=True)))
        self._local_funcs[self._local_layers.index(layer)] = new

    @property
    def curr_layer(self) -> int:
        """What DeepSpeed's own partition calls the layer that runs, which seeds it where seed_layers is on: it counts from the first layer
        of the rank in each run of layers that is checkpointed.
        """
        start = max(part for part in self.parts[:-1] if part <= self._running)
        within, interval = self._running - start, self.own_checkpointing[0]
        return start + (within % interval if interval else within)

    @curr_layer.setter
    def curr_layer(self, counted: int) -> None:
        """DeepSpeed counts on from the first layer, in each run anew; a stage over a graph may leave some out."""
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
            self._put_away()  # what DeepSpeed's own interval makes of it: evaluation runs under that
            self.is_checkpointable_results_interval = None  # the parent caches by interval, not by stage
            super()._precompute_checkpointable_values()
            if stage.sharded and stage.reads and reentrant:  # a sharded embedding: gradients would not come back to it
                self.is_checkpointable_results = [False] * len(self.is_checkpointable_results)
            self._views[stage.index].checkpointable = self.is_checkpointable_results
        self.show_all()

    def may_split(self, stage: Stage) -> bool:
        """Whether the stage's backward can run in two halves: DeepSpeed's checkpointing recomputes all of it at once, and a compiled
        layer has one operator for both.
        """
        own = self.activation_checkpoint_interval and any(self._views[stage.index].checkpointable)
        return not (stage.recomputes or own or (self._one_backward and not stage.sharded))

    def compile(self, *args, **kwargs):
        """Each local layer, as DeepSpeed does at rest. Of a graph(), what a node runs: what it is given changes with the stage. Parts
        of sharded layers run as they are.
        """
        made = {}
        for index, function in zip(self._local_layers, self._local_funcs, strict=True):
            node = wired(function)
            layer = getattr(node, "layer", None) if node else function
            if isinstance(layer, torch.nn.Module) and index not in self._shards:
                layer.compile(*args, **kwargs)
            elif layer is not None and not isinstance(layer, torch.nn.Module):
                made[id(function)] = torch.compile(function, *args, **kwargs)
        for functions in (self._local_funcs, *(view.functions for view in self._views.values())):
            functions[:] = [made.get(id(given(function)), function) for function in functions]
        self._one_backward = kwargs.get("backend") != "eager"


def given(function: Any) -> Any:
    """What the script gave for a function that borders look at."""
    return getattr(function, "ostinato_given", function)


class _View:
    """What changes with the stage that is shown."""

    def __init__(self, functions: dict):
        """`functions`: by layer."""
        self.functions = list(functions.values())  # what its stage runs, in order
        self.state = ForwardState(functions)
        self.checkpointable: list[bool] = []


def adopt(
    model, owners: list[int], stages: list[Stage], shards: dict[int, Shard], elsewhere: set[int], wires: dict[int, list]
) -> None:
    """Turns `model` into one whose rank runs `stages`; its forward_funcs already hold their layers in model order.

    `owners[i]` is the pipeline rank of layer i, the first of several; `shards` has this rank's part of sharded layers;
    `elsewhere`: layers that another rank writes into checkpoints; `wires`: by stage, what its layers are given and hand on (graph_model),
    where stages are not a chain: one layer may serve two directions. The class keeps its name, which DeepSpeed looks at.
    """
    kind = type(model)
    model.__class__ = type(kind.__name__, (StagedLayers, kind), {"__module__": kind.__module__})
    stages = sorted(stages, key=lambda stage: stage.first)
    model._owners, model._stages, model._shards, model.written_elsewhere = owners, stages, shards, elsewhere
    model._wires = wires
    model.read_for_others = None
    model._local_funcs = model.forward_funcs
    model._local_layers = sorted({layer for stage in stages for layer in stage.layers})
    functions = dict(zip(model._local_layers, model._local_funcs, strict=True))
    model._views = {stage.index: _View({layer: functions[layer] for layer in stage.layers}) for stage in stages}
    model.run_twice = []  # what recomputation changes once more, in words
    model._shown = model._own_checkpointing = None
    model.show_all()
