# SPDX-License-Identifier: Apache-2.0
"""A PipelineModule whose rank holds several stages, only one of which runs at a time.

    adopt(model, owners, stages)       # changes the class of `model` in place
    model.show(stage)                  # forward() is now this stage's
    model.show_all()                   # the resting state: all local layers, as checkpoints and compile() want them

The stage must be shown during its backward too: activation checkpointing recomputes through forward_funcs.
"""

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.activation_checkpointing import checkpointing
from ostinato.nn import Shard, ShardedLogits, cut_state, whole_state
from ostinato.nn.layers import split_of

from .draws import LOSS, Watcher
from .errors import OstinatoError
from .forward_state import ForwardState
from .graph_model import Wires, wired
from .plans import Stage
from .random_state import KINDS, foreign, foreign_again, same, states
from .upstream import Model


class StagedLayers(Model):
    """Mixed in before the model's own class."""

    _owners: list[int]  # adopt() says what these are
    _stages: list[Stage]
    _shards: dict[int, Shard]
    _wires: dict[int, list[Wires]]
    _local_funcs: list[Any]
    _local_layers: list[int]
    _views: "dict[int, _View]"
    _shown: "_View | None"
    _shown_layers: Sequence[int]
    _own_checkpointing: tuple[int, Callable[..., Any]] | None
    _run: int  # which of the runs of layers that are checkpointed
    _running: int  # layer
    _given_alone: bool
    _drew: set[str]
    written_elsewhere: set[int]
    read_for_others: list[Any] | None
    run_twice: list[str]

    watcher: Any = None  # (draws) is told of each layer before it runs
    whole_logits = False  # forward() of a sharded head returns the logits of all its ranks
    _generators: Any = None  # their states in a backward that is watched, before what runs in it next
    _one_backward = False  # layers are compiled so that gradients of inputs and weights come together

    def forward(self, forward_input):
        """DeepSpeed's, in which each run of layers that is checkpointed knows which one it is, when it is recomputed, too."""
        self._refuse_gaps()
        self._given_alone = isinstance(forward_input, tuple) and len(forward_input) == 1
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
        if self.watcher is not None:
            self.watcher.enter(LOSS)
        return made.whole() if self.whole_logits and isinstance(made, ShardedLogits) else made

    def _look_where_draws_begin(self, first: list) -> None:
        """Of layers that are checkpointed: once more where they began the first time, unless preserve_rng_state is off."""
        if not isinstance(self.watcher, Watcher):
            return
        now = states()
        if first and not all(map(same, first[0], now)):
            self.watcher.drawn_anew()
        first[:] = [now]

    def _refuse_gaps(self) -> None:
        """The script calls the model, and what this rank has is no piece of it."""
        layers = self._local_layers
        if self._shown is None and layers != list(range(layers[0], layers[-1] + 1)):
            raise OstinatoError(
                f"engine.module was called by itself, and this rank has layers {', '.join(map(str, layers))} under the plan, which hand nothing on to each "
                "other: use engine.eval_batch(), or call the layers in engine.module.forward_funcs"
            )

    def _check_learns(self, checkpoint, run: int, inputs: tuple) -> None:
        """A re-entrant checkpoint whose inputs need no gradient gives none to what learns inside of it, and says nothing: DeepSpeed alone
        stops in its backward, but here the next stage may go on.
        """
        if not torch.is_grad_enabled() or not self._is_reentrant(checkpoint) or any(torch.is_tensor(t) and t.requires_grad for t in inputs):
            return
        first, interval = run * self.activation_checkpoint_interval, self.activation_checkpoint_interval
        if _learn(self.forward_funcs[first : first + interval]):
            layers = self._shown_layers[first : first + interval]
            raise OstinatoError(
                f"layers {layers[0]} to {layers[-1]} are checkpointed, and nothing that they are given needs a gradient (first layers, or frozen "
                'ones before them): DeepSpeed\'s re-entrant checkpointing would leave out what learns in them. Set "pipeline": '
                '{"use_reentrant": false}'
            )

    def _is_reentrant(self, checkpoint) -> bool:
        while isinstance(checkpoint, partial):
            if checkpoint.func == self._once:
                return False
            checkpoint = checkpoint.args[0] if checkpoint.func is _by_tensors else checkpoint.func
        return checkpoint is checkpointing.checkpoint

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
            self._checkpoint(stage)

    def learns(self, stage: Stage) -> bool:
        """Whether some parameter of its layers does."""
        return _learn(self.functions_of(stage))

    def functions_of(self, stage: Stage) -> list:
        """What the stage runs, in order; its own list."""
        return self._views[stage.index].functions

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
            if given(functions[at]) is old:
                functions[at] = new
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

    @property
    def own_checkpointing(self) -> tuple:
        """DeepSpeed's interval and function, whatever the stage that is shown has instead."""
        return self._own_checkpointing or (self.activation_checkpoint_interval, self.activation_checkpoint_func)

    def _checkpoint(self, stage: Stage) -> None:
        """Until another stage is shown. One that recomputes: its forward keeps its inputs only, as DeepSpeed checkpoints all its
        layers at once. What a sharded stage recomputes has collectives in it: each of its ranks comes to them at the same place of
        its backward, because each has the same graph.
        """
        self._own_checkpointing = self.own_checkpointing
        if stage.recomputes:
            self.activation_checkpoint_interval = len(stage.layers)
            self.activation_checkpoint_func = checkpointing.non_reentrant_checkpoint  # takes inputs without a gradient, too
            if not self._own_checkpointing[0]:  # where DeepSpeed recomputes by itself, forwards count twice
                self.activation_checkpoint_func = partial(self._once, self._views[stage.index].state)
            self.is_checkpointable_results = [True]
        if stage.sharded:
            self.activation_checkpoint_func = partial(_by_tensors, self.activation_checkpoint_func)

    def _once(self, state: ForwardState, function, *inputs):
        """Recomputes `function` without a trace: in buffers and attributes of the layers it has run once, and it draws
        the same numbers of Python's and NumPy's; DeepSpeed's checkpointing sees to torch's."""
        before, drawn, alone = state.now(), foreign(), self._given_alone
        first: list[bool] = []

        def run(*values):
            values = tuple(v.clone() if torch.is_tensor(v) else v for v in values)  # a layer may change them in place
            values = (values,) if alone else values  # a tuple of one tensor, which checkpointing hands on as the tensor
            if first:
                with state.put_back(before), foreign_again(drawn):
                    return function(*values)
            try:
                made = function(*values)
            except RuntimeError as error:
                if "not compatible with .grad()" in str(error):
                    raise OstinatoError(_computes_gradients(self._running)) from error
                raise
            first.append(isinstance(made, tuple) and len(made) == 1)
            self.run_twice += state.learn(before)
            return made

        made = checkpointing.non_reentrant_checkpoint(run, *inputs)
        return (made,) if first[0] else made

    def watch_backward(self, stage: Stage) -> Callable[[], None]:
        """To be called after the stage's backward: notes buffers, attributes and generators that recomputation in it has
        changed. Layers that checkpoint
        themselves, and those that DeepSpeed does, run their forwards twice; the order of the two among others is the plan's.
        """
        state = ForwardState(dict(zip(stage.layers, self.functions_of(stage), strict=True)), whole=False)
        before, self._generators, self._drew = state.now(), states(), set()

        def note() -> None:
            self._look_at_generators()
            changed = state.changed_buffers(before) + state.lost(before) + [f"the generator {kind}" for kind in sorted(self._drew)]
            self._generators = None
            self.run_twice += [f"{name} (when it is a backward's turn in the plan)" for name in changed]

        return note

    def _look_at_generators(self) -> None:
        now = states()
        self._drew |= {kind for kind, was, is_now in zip(KINDS, self._generators, now, strict=True) if not same(was, is_now)}
        self._generators = now

    @contextmanager
    def _own_seeds(self):
        """Around layers that run once more in a backward: where each of them is seeded, what they draw is what they drew."""
        if self._generators is None or not self.seed_layers:
            yield
            return
        self._look_at_generators()
        yield
        self._generators = states()

    def _put_away(self) -> None:
        if self._own_checkpointing is not None:
            self.activation_checkpoint_interval, self.activation_checkpoint_func = self._own_checkpointing
            self._own_checkpointing = None

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

    def sharded_parameters(self) -> set[str]:
        """Names of the parameters of which this rank holds a part."""
        names = set()
        for layer, shard in zip(self._local_funcs, (self._shards.get(i) for i in self._local_layers), strict=True):
            if shard is not None:
                of_layer = {id(p) for name, p in getattr(layer, "named_parameters", dict)() if name in split_of(layer)}
                names |= {name for name, p in self.named_parameters() if id(p) in of_layer}
        return names

    def save_state_dict(self, save_dir, *args, **kwargs):
        """Sharded layers are put together first, so that files are those of DeepSpeed's own partition."""
        with self._as_whole():
            super().save_state_dict(save_dir, *args, **kwargs)

    def load_state_dir(self, load_dir, *args, **kwargs):
        with self._as_whole(collect=False):
            super().load_state_dir(load_dir, *args, **kwargs)

    def _synchronize_tied_weights(self):
        """After a checkpoint was read. DeepSpeed takes them from the lowest rank, which may not have read them."""
        if self.read_for_others is None:  # they are where DeepSpeed has them
            return super()._synchronize_tied_weights()
        for weights, source, group in self.read_for_others:
            for weight in weights:
                dist.broadcast(weight.detach(), source, group=group)

    @contextmanager
    def _as_whole(self, collect: bool = True):
        """Puts stand-ins with the state of whole layers into the place of sharded ones."""
        layers = self.forward_funcs
        self.forward_funcs = [
            self._stand_in(index, layer, collect) if isinstance(layer, torch.nn.Module) else layer
            for index, layer in zip(self._local_layers, layers, strict=True)
        ]
        try:
            yield
        finally:
            self.forward_funcs = layers

    def _stand_in(self, index: int, layer, collect: bool):
        if collect and index in self.written_elsewhere:
            return None
        return WholeLayer(layer, self._shards[index], collect) if index in self._shards else layer

    def ckpt_layer_path(self, ckpt_dir, local_layer_idx):
        return super().ckpt_layer_path(ckpt_dir, self._local_layers[local_layer_idx] - self._local_start)

    def ckpt_layer_path_list(self, ckpt_dir, local_layer_idx):
        return super().ckpt_layer_path_list(ckpt_dir, self._local_layers[local_layer_idx] - self._local_start)


def given(function: Any) -> Any:
    """What the script gave for a function that borders look at."""
    return getattr(function, "ostinato_given", function)


def _learn(functions: Sequence[Any]) -> bool:
    inside = [value for function in functions for value in (function, *getattr(function, "args", ()))]  # of tied layers: partial()
    return any(p.requires_grad for layer in inside if isinstance(layer, torch.nn.Module) for p in layer.parameters())


class _View:
    """What changes with the stage that is shown."""

    def __init__(self, functions: dict):
        """`functions`: by layer."""
        self.functions = list(functions.values())  # what its stage runs, in order
        self.state = ForwardState(functions)
        self.checkpointable: list[bool] = []


class WholeLayer:
    """Stands for a sharded layer while checkpoints are written or read."""

    def __init__(self, part, shard, collect: bool):
        self._part, self._shard = part, shard
        if collect and (state := whole_state(part, shard)) is not None:  # only the first rank writes
            self.state_dict = lambda: state

    def load_state_dict(self, state, strict=True):
        return self._part.load_state_dict(cut_state(state, self._part, self._shard), strict=strict)


def _computes_gradients(layer: int) -> str:
    return (
        f"layer {layer} computes gradients in its forward (torch.autograd.grad), and its stage is recomputed, which does not go "
        "together: take \"recompute\" from that stage in the placement, and search a plan anew"
    )


def _by_tensors(checkpoint, function, *inputs):
    """checkpoint(function, *inputs) for functions that may return ShardedLogits, where DeepSpeed's hand on tensors only."""
    form: list[Any] = []

    def of_tensors(*values):
        made = function(*values)
        if not isinstance(made, ShardedLogits):
            return made
        form[:] = made.shard, made.classes, made.axis
        return made.part

    made = checkpoint(of_tensors, *inputs)
    return ShardedLogits(made, *form) if form else made


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
    model.read_for_others = None  # (tied weights, the rank that reads them, its group with those that have them too)
    model._local_funcs = model.forward_funcs
    model._local_layers = sorted({layer for stage in stages for layer in stage.layers})
    functions = dict(zip(model._local_layers, model._local_funcs, strict=True))
    model._views = {stage.index: _View({layer: functions[layer] for layer in stage.layers}) for stage in stages}
    model.run_twice = []  # what recomputation changes once more, in words
    model._shown = model._own_checkpointing = None
    model.show_all()
