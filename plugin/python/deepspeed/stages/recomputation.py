# SPDX-License-Identifier: Apache-2.0
"""Layers whose forward runs again in a backward: because the plan recomputes their stage, or DeepSpeed
checkpoints them.

Where the plan recomputes a stage, buffers change only once, and Python's and NumPy's generators start again
from the state of the forward.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from deepspeed.runtime.activation_checkpointing import checkpointing
from ostinato.nn import ShardedLogits

from ostinato.buffers import Buffers, modules_of
from ..randomness.draws import Watcher
from ..errors import OstinatoError
from ..section.plans import Stage
from ..randomness.random_state import foreign, foreign_again, same, states
from ..upstream import Model


class RecomputedLayers(Model):
    """Mixed in before the model's own class."""

    _shown_layers: Sequence[int]
    _own_checkpointing: tuple[int, Callable[..., Any]] | None
    _running: int  # layer
    _given_alone: bool

    watcher: Any = None  # (draws) hears of each layer before it runs

    @property
    def own_checkpointing(self) -> tuple:
        """DeepSpeed's own interval and function, even while the shown stage has different ones."""
        return self._own_checkpointing or (
            self.activation_checkpoint_interval,
            self.activation_checkpoint_func,
        )

    def _checkpoint(self, stage: Stage, buffers: Buffers) -> None:
        """Sets up checkpointing until another stage is shown. A stage that the plan recomputes keeps only its
        inputs: DeepSpeed checkpoints all its layers at once. Recomputing a sharded stage runs collectives: its
        ranks reach them at the same place of the backward, because all have the same graph.
        """
        self._own_checkpointing = self.own_checkpointing
        if stage.recomputes:
            self.activation_checkpoint_interval = len(stage.layers)
            # Takes inputs without a gradient, too.
            self.activation_checkpoint_func = checkpointing.non_reentrant_checkpoint
            # Where DeepSpeed recomputes by itself, forwards change buffers twice.
            if not self._own_checkpointing[0]:
                self.activation_checkpoint_func = partial(self._once, buffers)
            self.is_checkpointable_results = [True]
        if stage.sharded:
            self.activation_checkpoint_func = partial(_by_tensors, self.activation_checkpoint_func)

    def _once(self, buffers: Buffers, function, *inputs):
        """Checkpoints `function` so that recomputing leaves no trace: buffers change only once, and Python's
        and NumPy's generators draw the same numbers; DeepSpeed's checkpointing restores torch's."""
        before, drawn, alone = buffers.now(), foreign(), self._given_alone
        first: list[bool] = []

        def run(*values):
            # A layer may change them in place.
            values = tuple(v.clone() if torch.is_tensor(v) else v for v in values)
            # A tuple of one tensor, which checkpointing passes as a tensor.
            values = (values,) if alone else values
            if first:
                with buffers.as_they_were(before), foreign_again(drawn):
                    return function(*values)
            try:
                made = function(*values)
            except RuntimeError as error:
                if "not compatible with .grad()" in str(error):
                    raise OstinatoError(_computes_gradients(self._running)) from error
                raise
            first.append(isinstance(made, tuple) and len(made) == 1)
            return made

        made = checkpointing.non_reentrant_checkpoint(run, *inputs)
        return (made,) if first[0] else made

    def _put_away(self) -> None:
        if self._own_checkpointing is not None:
            self.activation_checkpoint_interval, self.activation_checkpoint_func = self._own_checkpointing
            self._own_checkpointing = None

    def _look_where_draws_begin(self, first: list) -> None:
        """Compares where checkpointed layers begin to draw with their first run: equal, unless
        preserve_rng_state is off."""
        if not isinstance(self.watcher, Watcher):
            return
        now = states()
        if first and not all(map(same, first[0], now)):
            self.watcher.drawn_anew()
        first[:] = [now]

    def _check_learns(self, checkpoint, run: int, inputs: tuple) -> None:
        """A re-entrant checkpoint whose inputs need no gradient silently gives none to the parameters in it:
        DeepSpeed alone stops in its backward, but under a plan the next stage may go on.
        """
        if (
            not torch.is_grad_enabled()
            or not self._is_reentrant(checkpoint)
            or any(torch.is_tensor(t) and t.requires_grad for t in inputs)
        ):
            return
        first, interval = run * self.activation_checkpoint_interval, self.activation_checkpoint_interval
        if learn(self.forward_funcs[first : first + interval]):
            layers = self._shown_layers[first : first + interval]
            raise OstinatoError(
                f"layers {layers[0]} to {layers[-1]} are checkpointed, but their inputs need no gradient (they come first, or after frozen "
                "layers): DeepSpeed's re-entrant checkpointing would give their parameters no gradients. Set "
                '"pipeline": {"use_reentrant": false}'
            )

    def _is_reentrant(self, checkpoint) -> bool:
        while isinstance(checkpoint, partial):
            if checkpoint.func == self._once:
                return False
            checkpoint = checkpoint.args[0] if checkpoint.func is _by_tensors else checkpoint.func
        return checkpoint is checkpointing.checkpoint


def learn(functions: Sequence[Any]) -> bool:
    """Whether any of the functions has trainable parameters."""
    return any(
        p.requires_grad
        for function in functions
        for layer in modules_of(function)
        for p in layer.parameters()
    )


def _computes_gradients(layer: int) -> str:
    return (
        f"layer {layer} computes gradients in its forward (torch.autograd.grad), which does not work in a stage that is recomputed: "
        'remove "recompute" from that stage in the placement, and search again'
    )


def _by_tensors(checkpoint, function, *inputs):
    """checkpoint(function, *inputs) for functions that may return ShardedLogits: DeepSpeed's checkpointing
    returns only tensors."""
    form: list[Any] = []

    def of_tensors(*values):
        made = function(*values)
        if not isinstance(made, ShardedLogits):
            return made
        form[:] = made.shard, made.classes, made.axis
        return made.part

    made = checkpoint(of_tensors, *inputs)
    return ShardedLogits(made, *form) if form else made
