# SPDX-License-Identifier: Apache-2.0
"""What the executor calls for a stage: its forward, and what runs around its backward, through DeepSpeed's own
passes."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint
from deepspeed.runtime.pipe import schedule
from deepspeed.runtime.utils import register_output_backward_hooks
from ostinato.nn import ShardedLogits
from ostinato.profile.model.tensors import map_tensors, tensors

from ..section import plans
from .crossings import crossing
from ..errors import OstinatoError
from ..stages.idle import learn_nothing
from ..section.plans import Stage
from .run import Run
from ..upstream import Engine


class Nothing:
    """Replaces None among the inputs of a stage, because DeepSpeed's forward pass clones each."""

    def clone(self) -> None:
        return None


class AsMade:
    """Replaces a tensor in an evaluation where only the plan cuts: a layer sees whether it requires a gradient,
    which DeepSpeed's clone would not."""

    def __init__(self, tensor: torch.Tensor):
        self._tensor = tensor

    def clone(self) -> torch.Tensor:
        return self._tensor.clone().requires_grad_(self._tensor.requires_grad)


NOTHING = Nothing()

# Sent with the tensor of a one-element tuple, which a layer must not get as a bare tensor.
ALONE = torch.empty(0, 1, 0, 3, dtype=torch.uint8, device="cpu")


def _is_mark(value) -> bool:
    return torch.is_tensor(value) and value.shape == ALONE.shape and value.dtype == ALONE.dtype


def _taken(stage: Stage, given, made: tuple | None):
    """The inputs of a stage that reads data: all inputs of the batch, or those that it takes and the outputs
    of other stages."""
    if stage.takes is None:
        return given
    given = given if isinstance(given, tuple) else (given,)
    values = (*(given[i] for i in stage.takes), *(made or ()))
    return values if len(values) > 1 else values[0]


def _handed_on(inputs: tuple) -> Any:
    """The inputs of a stage that reads no data, made from what the executor passes."""
    if len(inputs) == 1:
        return inputs[0]
    if len(inputs) == 2 and _is_mark(inputs[1]):
        return inputs[:1]
    return tuple(NOTHING if tensor is None else tensor for tensor in inputs)


def _ask_for_gradient(inputs: Any) -> None:
    """Makes outputs of frozen stages require a gradient: a re-entrant checkpoint runs no backward if none of
    its inputs does."""
    for tensor in inputs if isinstance(inputs, tuple) else (inputs,):
        if torch.is_tensor(tensor) and tensor.is_floating_point() and tensor.is_leaf:
            tensor.requires_grad_()


def _by_itself(loss: torch.Tensor) -> torch.Tensor:
    """A loss may share the memory of the logits that it was reduced from: then a copy."""
    return loss if loss.untyped_storage().nbytes() <= loss.nbytes else loss.clone()


class StagePasses(Engine):
    """Mixed in before PipelineEngine."""

    _ostinato: Run
    _crosses_as_in_1f1b = False
    _steps_here = 0  # training steps of this engine; global_steps continues from a checkpoint

    def _train_forward(self, stage: Stage, micro_batch: int, inputs: tuple | None):
        """The executor calls it; returns the outputs of a stage, or the scaled loss."""
        run = self._ostinato
        copies, name = plans.copies_of(run.stages), run.program.stages[stage.index].name
        kept = run.offloaded.get(stage.index)
        stays = kept and kept.of(micro_batch, (*self.module.parameters(), *self.module.buffers()))
        watched = run.memory.forward(name) if run.memory and not stage.lane else nullcontext()
        with watched, stays or nullcontext():
            outputs = self.forward_stage(stage, batch := copies * micro_batch + stage.copy, inputs)
        if not stage.ends:
            return outputs
        if self.fwd_outputs:  # the script's own forward pass may keep nothing
            run.step.losses[batch] = map_tensors(_by_itself, self.fwd_outputs.pop())
        if not torch.is_tensor(self.loss):
            raise OstinatoError(
                f"the loss is a {type(self.loss).__name__}: return one tensor (further losses go through the model's get_additional_losses())"
            )
        loss = self.scale(self.loss / self.gradient_accumulation_steps())
        self.loss = self.loss.detach()  # so that the executor frees the graph after the backward
        return loss

    def forward_stage(self, stage: Stage, batch: int, inputs: tuple | None):
        """DeepSpeed's forward pass of one stage on one batch. `inputs`: the outputs of the stages before it;
        None for the first."""
        if stage.lane:
            return self._forward_beside(stage, inputs)
        run, buffers = self._ostinato, self.pipe_buffers
        if stage.reads:
            inputs = _taken(stage, self._read(stage, batch, "inputs"), inputs)
        elif inputs is not None:
            inputs = _handed_on(inputs)
            if run.first_step is not None:
                run.first_step.taken(stage, inputs)
            if not torch.is_grad_enabled() and stage.first not in run.stock_parts:
                inputs = map_tensors(
                    lambda tensor: AsMade(tensor) if tensor.requires_grad else tensor, inputs
                )
        if (
            torch.is_grad_enabled()
            and self._reentrant_activation_checkpointing()
            and self.module.learns(stage)
        ):
            _ask_for_gradient(inputs)
        # Read them first: reading uses these buffers.
        labels = self._read(stage, batch, "labels") if stage.ends else None
        buffers["inputs"][batch], buffers["labels"][batch] = inputs, labels
        run.step.active = stage
        self.module.show(stage)
        # Seeds the layers of a micro-batch where seed_layers is on.
        self.module.micro_offset = run.batches_before + batch
        with run.random_numbers.forward(batch):
            # As DeepSpeed does: it ignores methods of a subclass.
            self._INSTRUCTION_MAP[schedule.ForwardPass](self, batch)
        run.step.active = None
        outputs = buffers["outputs"][batch]
        if isinstance(outputs, ShardedLogits):
            self._follow(outputs)
        buffers["inputs"][batch] = buffers["outputs"][batch] = buffers["labels"][batch] = None
        if run.first_step is not None and torch.is_grad_enabled():
            run.first_step.refuse_unregistered(stage, inputs, self.loss if stage.ends else outputs)
        if stage.ends:
            return outputs
        return self._made(stage, outputs)

    def _forward_beside(self, stage: Stage, inputs: tuple | None):
        """A stage on a lane, in that lane's thread, while another stage is shown: its layers and nothing else.
        check_lanes() has seen to it that they need no more."""
        values = _handed_on(inputs or ())
        for function in self.module.functions_of(stage):
            values = function(values)
        return self._made(stage, values)

    def _made(self, stage: Stage, outputs: Any) -> Any:
        """A stage's outputs, as they pass to the next."""
        run = self._ostinato
        outputs = crossing(stage, outputs, run.stock_parts, self.has_attention_mask or self.has_bool_tensors)
        if run.first_step is not None and not stage.lane:
            self._check_learns(stage, outputs)
            run.first_step.handed_on(stage, outputs)
        alone = isinstance(outputs, tuple) and len(outputs) == 1
        return (*outputs, ALONE.to(outputs[0].device)) if alone else outputs

    def _check_learns(self, stage: Stage, outputs: Any) -> None:
        """A re-entrant checkpoint inside a layer after frozen ones silently gives its parameters no gradients.
        DeepSpeed alone stops in its backward where it sends such outputs, but a plan's next stage may go on."""
        last = stage.layers[-1]
        if (
            torch.is_grad_enabled()
            and last + 1 in self._ostinato.stock_parts
            and not any(tensor.requires_grad for tensor in tensors(outputs))
            and self.module.learns(stage)
        ):
            raise OstinatoError(
                f"layers {stage.first} to {last} have trainable parameters, but what layer {last} returns requires no gradient, so they would "
                "learn nothing: a layer detaches it, or checkpoints re-entrantly what comes first or after frozen layers "
                "(use_reentrant=False)"
            )

    def _read(self, stage: Stage, batch: int, name: str):
        """The "inputs" or "labels" of a batch; the first rank of a sharded stage reads them for all its ranks."""
        run, value = self._ostinato, None
        if stage.rank == self.stage_id:
            with nullcontext() if run.step.batches.has_read(batch) else self._reading():
                value = run.step.batches.take(batch, name)
        courier = run.couriers.get((stage.index, name))
        return value if courier is None else courier.share(value)

    @contextmanager
    def _reading(self):
        """Around DeepSpeed's reading of a batch: what a loader draws there belongs to no layer."""
        run = self._ostinato
        run.step.reading = True
        try:
            with run.random_numbers.reading():
                yield
        finally:
            run.step.reading = False

    def _reentrant_activation_checkpointing(self):
        """Also called while a batch is read, when the last stage is still shown."""
        interval, function = self.module.own_checkpointing
        return interval > 0 and function is not non_reentrant_checkpoint

    def _follow(self, logits: ShardedLogits) -> None:
        """Does what DeepSpeed does with outputs that are tensors: sets its backward hooks, and keeps logits for
        evaluation."""
        register_output_backward_hooks(
            logits.part, self._backward_prologue, self._backward_prologue_per_tensor
        )
        if self.eval_return_logits:
            self.outputs = logits.whole()

    def _before_backward(self, stage: Stage, micro_batch: int, part: str) -> None:
        """Recomputation needs the stage's layers, and DeepSpeed's gradient hooks ask who runs the backward.
        `part`: "B" (whole), "I" or "W". DeepSpeed prepares for gradients of weights (bf16: clears the last
        ones) in the part that makes them.
        """
        run = self._ostinato
        run.step.active = stage
        self.module.show(stage)
        batch = plans.copies_of(run.stages) * micro_batch + stage.copy
        run.random_numbers.before_backward(batch)
        self._running_engine_backward = True
        if run.tied_sums is not None:
            run.tied_sums.exchange(stage)
        if run.first_step is not None:
            run.first_step.before_backward(stage)
        if part == "I":
            self._start_timers(self.engine_timers.backward_timers)
        else:
            super()._backward_prologue()
            if run.idle is not None:
                learn_nothing(run.idle)

    def _after_backward(self, _micro_batch: int, part: str) -> None:
        """Does what DeepSpeedEngine.backward() does once the gradients are there (bf16: adds them to their
        fp32 sums)."""
        if part == "I":
            self._stop_timers(self.engine_timers.backward_timers)
        else:
            self._backward_epilogue()
        run = self._ostinato
        self._running_engine_backward = False
        run.random_numbers.after_backward()
        assert run.step.active is not None
        if run.tied_sums is not None:
            run.tied_sums.exchange(run.step.active)
        if run.first_step is not None:
            run.first_step.after_backward(part)
        run.step.active = None

    def _backward_prologue(self):
        """Does nothing: DeepSpeed calls it from a hook on the outputs, which only the first half of a split
        backward passes."""

    def _backward_prologue_per_tensor(self, grad):
        """The loss was already divided by the accumulation steps. But DeepSpeed divides gradients that the loss
        itself takes of its inputs, and so must a plan."""
        return grad if self._running_engine_backward else super()._backward_prologue_per_tensor(grad)

    def _exec_backward_pass(self, buffer_id):
        raise OstinatoError("DeepSpeed started a backward outside the plan")
