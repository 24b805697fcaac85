# SPDX-License-Identifier: Apache-2.0
"""Records what an engine computes in its first steps, to compare it with what another schedule computes
(comparison).

    recorder = Recorder(engine, steps=2)             # right after the engine is made, on every rank; it may be DeepSpeed's or a plan's
    for _ in range(2):
        engine.train_batch(data)
    recorder.repeat(run)                             # optional: is a step equal when it runs once more?
    text = recorder.all().to_text()                  # what all ranks saw; the engine is as it was

Per step it records the loss, the gradients that the optimizer gets (which DeepSpeed has reduced by then),
their norm, and the weights and buffers after the step. Tensors have their names in the model, which are the
same under every placement. It also notes an optimizer that draws random numbers: each rank draws for the
parameters that it holds, so they differ where layers move.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from operator import itemgetter
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.pipe.schedule import OptimizerStep
from ostinato.groups import everyones
from torch.utils._pytree import tree_leaves

from ..data.same_data import KINDS as DATA, digest
from ..randomness import random_state
from ..randomness.random_state import random_state_kept
from ..save.tensor_names import layer_of, tied_key
from ostinato.buffers import Buffers
from ..stages.idle import NAME as IDLE
from .comparison import compare
from .records import BEFORE, KINDS, Difference, Fingerprint, Records, Step, fingerprint_of, same
from ..upstream import Engine


class Recorder:
    """Keeps fingerprints of the engine's first `steps` training steps, then leaves the engine as it was."""

    def __init__(self, engine: Engine, steps: int):
        self._engine, self._expected = engine, steps
        self._steps: list[Step] = []
        self._layers: dict[str, int] = {}
        self._left_out: set[str] = set()
        self._unseen = self._drew = ""
        self._itself: list[Difference] = []  # repeat()
        self._now: Step = {}  # of the current step
        self._began = 0
        self._data: list[dict[str, str]] = []
        instructions, train, read = engine._INSTRUCTION_MAP, engine.train_batch, engine._next_batch
        step = instructions[OptimizerStep]
        self._ours = {
            "_INSTRUCTION_MAP": instructions | {OptimizerStep: lambda _, **given: self._step(step, **given)},
            "train_batch": lambda *args, **given: self._train(train, *args, **given),
            "_next_batch": lambda: self._read(read),
        }
        self._theirs = {name: engine.__dict__[name] for name in self._ours if name in engine.__dict__}
        if steps:
            engine.__dict__.update(self._ours)

    def all(self) -> Records:
        """The records of all ranks, equal on each. A tensor that several ranks hold appears once. All must call it."""
        self._leave()
        mine, grid = self._records(self._steps, self._itself), self._engine.grid
        which, replica = grid.get_slice_parallel_rank(), grid.get_data_parallel_rank()
        used = {name: _first_use(name, self._engine.module) for name in mine.layers}
        return _merged(everyones((f"{replica}, slice {which}" if which else str(replica), used, mine)))

    def _records(self, steps: list[Step], itself: list[Difference]) -> Records:
        return Records(
            steps,
            self._layers,
            sorted(self._left_out),
            self._unseen,
            self._eps(),
            itself,
            self._drew,
            self._began,
            self._data,
        )

    def _eps(self) -> float:
        return max((torch.finfo(dtype).eps for dtype in self._dtypes()), default=0.0)

    def repeat(self, run: Callable[[], None]) -> None:
        """`run`: forwards and backwards of one step, on all ranks. Runs them twice from the same weights,
        buffers and random state, and notes how they differ. For an engine that does not train on: its
        gradients, and any other state that layers keep, are lost.
        """
        engine, model = self._engine, self._engine.module
        buffers, offset = Buffers({"": model}), model.micro_offset
        before, seen = buffers.now(), list[Step]()
        for _ in range(2):
            with random_state_kept(), buffers.as_they_were(before):
                model.micro_offset = offset  # seed_layers makes its seeds from it
                engine.zero_grad()
                engine.optimizer.zero_grad()
                run()
                seen.append(self._of_passes())
        once, again = (self._records([step], []) for step in seen)
        self._itself = compare(once, again).differences

    def _of_passes(self) -> Step:
        """Fingerprints of what forwards and backwards have left on this rank."""
        engine = self._engine
        step: Step = {kind: {} for kind in KINDS}
        step["loss"] = {} if engine.total_loss is None else {"": _fingerprint_of_number(engine.total_loss)}
        gradients = {
            name: self._unreduced(parameter)
            for name, parameter in self._held(engine.module.named_parameters())
        }
        step["gradients"] = {
            name: None if gradient is None else fingerprint_of(gradient)
            for name, gradient in gradients.items()
        }
        step["buffers"] = self._fingerprints(_named_buffers(engine.module))
        return step

    def _unreduced(self, parameter: Any) -> torch.Tensor | None:
        """The gradient of this replica alone."""
        if self._engine.using_bf16_optimizer:
            return getattr(parameter, "_hp_grad", None)
        accumulated = getattr(parameter, "grad_accum", None)  # where gradients are added in a different dtype
        return parameter.grad if accumulated is None else accumulated

    def _leave(self) -> None:
        """Where a script has wrapped one of our methods, both stay, and pass everything through."""
        self._expected, attributes = 0, self._engine.__dict__
        for name in [name for name, value in self._ours.items() if attributes.get(name) is value]:
            del attributes[name]
            attributes.update({name: self._theirs[name]} if name in self._theirs else {})

    def _train(self, train: Callable, *args: Any, **given: Any) -> Any:
        if not self._steps:
            self._began = self._engine.global_steps
        if self._expected:
            self._data.append({})
        loss = train(*args, **given)
        if self._expected:
            self._now["loss"] = {"": _fingerprint_of_numbers(loss)}
            self._steps.append(self._now)
            if len(self._steps) == self._expected:
                self._leave()
        return loss

    def _read(self, read: Callable[[], Any]) -> Any:
        item = read()
        if self._expected and len(self._data) > len(self._steps):  # not for an evaluation
            parts = item if isinstance(item, tuple | list) else ()
            for kind, part, stage in zip(DATA, parts, (0, self._engine.num_stages - 1), strict=False):
                if self._engine.stage_id == stage:
                    name, this = f"{kind} of rank {dist.get_rank()}", digest(part)
                    before = self._data[-1].get(name, "")
                    # A plan may look at an item before it reads it.
                    self._data[-1][name] = before + this * (this not in before)
        return item

    def _step(self, step: Callable, **given: Any) -> None:
        """Runs DeepSpeed's instruction, and records what is there before and after it."""
        engine = self._engine
        if not self._expected:
            return step(engine, **given)
        gradients = self._gradients()
        before = {} if self._steps else {BEFORE: self._fingerprints(engine.module.named_parameters())}
        drawn = random_state.states()
        with self._last_seen(gradients):
            step(engine, **given)
        if not all(map(random_state.same, drawn, random_state.states())):
            self._drew = type(engine.basic_optimizer).__name__
        norm = engine._global_grad_norm  # not get_global_grad_norm(), which prints a note under a plan
        self._now = before | {
            "gradients": gradients,
            "norm": {} if norm is None else {"": _fingerprint_of_number(norm)},
            "weights": self._fingerprints(engine.module.named_parameters()),
            "buffers": self._fingerprints(_named_buffers(engine.module)),
        }

    @contextmanager
    def _last_seen(self, gradients: dict[str, Fingerprint | None]) -> Iterator[None]:
        """Without a DeepSpeed wrapper, takes the gradients that torch's optimizer steps with: under Adam,
        weights do not show what a script does to its rank's gradients, such as clipping by their own norm.
        """
        optimizer, hook = self._engine.optimizer, None
        # An optimizer that torch has not initialised has no hooks, as one around several.
        with suppress(AttributeError):
            if optimizer is self._engine.basic_optimizer:
                hook = optimizer.register_step_pre_hook(lambda *_: gradients.update(self._gradients()))
        try:
            yield
        finally:
            if hook is not None:
                hook.remove()

    def _fingerprints(self, named: Iterable[tuple[str, torch.Tensor]]) -> dict[str, Fingerprint | None]:
        return {name: fingerprint_of(tensor) for name, tensor in self._held(named)}

    def _held(self, named: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, Any]]:
        """The tensors that this rank holds whole."""
        run = getattr(self._engine, "_ostinato", None)
        parts, shards = (
            ({id(part.parameter) for part in run.parameter_parts}, run.shards) if run else (set(), {})
        )
        for name, tensor in named:
            layer = _layer_of(name, self._engine.module._layer_specs)
            of_shard = layer in shards and not isinstance(tensor, torch.nn.Parameter)
            if of_shard or id(tensor) in parts:
                self._left_out.add(name)
            elif name != IDLE:
                self._layers[name] = layer
                yield name, tensor

    def _gradients(self) -> dict[str, Fingerprint | None]:
        """All ranks that hold the same parameters must call it: under ZeRO they gather their shares."""
        learning = {
            name: p for name, p in self._held(self._engine.module.named_parameters()) if p.requires_grad
        }
        if not self._readable(list(learning.values())):
            self._unseen = type(self._engine.optimizer).__name__
            return {}
        found = ((name, self._gradient(parameter)) for name, parameter in learning.items())
        eps = self._eps()
        return {
            name: None if gradient is None else fingerprint_of(gradient, eps=eps) for name, gradient in found
        }

    def _gradient(self, parameter: Any) -> torch.Tensor | None:
        if self._engine.using_bf16_optimizer:
            return getattr(parameter, "_hp_grad", None)  # whole on every replica
        return parameter.get_full_hp_grad() if hasattr(parameter, "_hp_mapping") else parameter.grad

    def _readable(self, parameters: list[Any]) -> bool:
        """Whether every replica can read its shares of ZeRO's gradients: one that cannot would leave the rest
        waiting."""
        try:
            mine = self._engine.using_bf16_optimizer or all(map(_has_share, parameters))
        except (AttributeError, LookupError, TypeError, ValueError):  # DeepSpeed keeps them elsewhere
            mine = False
        agreed = torch.tensor(int(mine), device=self._engine.device)
        dist.all_reduce(agreed, op=dist.ReduceOp.MIN, group=self._engine.grid.get_data_parallel_group())
        return bool(agreed)

    def _dtypes(self) -> Iterator[torch.dtype]:
        """The dtypes in which the model computes, as far as DeepSpeed and torch know."""
        engine = self._engine
        yield from {p.dtype for p in engine.module.parameters() if p.is_floating_point()}
        if engine.torch_autocast_enabled():
            yield engine.torch_autocast_dtype()
        if engine.device.type == "cuda" and torch.get_float32_matmul_precision() != "highest":
            yield torch.float16  # as many digits as TF32


def _named_buffers(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """One that several layers share by its name in each: the first that this rank has may be another's elsewhere."""
    return module.named_buffers(remove_duplicate=False)


def _fingerprint_of_number(number: Any) -> Fingerprint:
    """In fp64, because the dtype differs on ranks that DeepSpeed has sent the number to."""
    return fingerprint_of(torch.tensor(float(number), dtype=torch.float64, device="cpu"))


def _fingerprint_of_numbers(returned: Any) -> Fingerprint:
    """Of what train_batch() returns, which may be several losses in a subclass."""
    numbers = [
        torch.as_tensor(leaf, device=None if torch.is_tensor(leaf) else "cpu")
        .detach()
        .double()
        .flatten()
        .cpu()
        for leaf in tree_leaves(returned)
        if isinstance(leaf, torch.Tensor | int | float)
    ]
    return fingerprint_of(torch.cat(numbers or [torch.zeros(1, dtype=torch.float64, device="cpu")]))


def _has_share(parameter: Any) -> bool:
    mapping = getattr(parameter, "_hp_mapping", None)
    return mapping is None or (
        not mapping.use_offload
        and torch.is_tensor(mapping.get_lp_grad_fragment(parameter._index_in_param_group))
    )


def _layer_of(name: str, specs: list[Any]) -> int:
    """By the tensor's name in a PipelineModule."""
    if (key := tied_key(name)) is not None:
        return next(index for index, spec in enumerate(specs) if getattr(spec, "key", None) == key)
    return len(specs) if (layer := layer_of(name)) is None else layer


def _first_use(name: str, model: Any) -> int:
    """The first layer of this rank that uses the tied tensor; of one that is not tied, 0."""
    if (key := tied_key(name)) is None:
        return 0
    tied = [index for index, spec in enumerate(model._layer_specs) if getattr(spec, "key", None) == key]
    return next((index for index in tied if model.stage_owner(index) == model.stage_id), 0)


def _merged(everyone: list[tuple[str, dict[str, int], Records]]) -> Records:
    """`everyone`: (replica and slice, first layers that use a tensor, record) by rank. A tensor that differs
    between them (BatchNorm's statistics, a slice of a weight, what is not tied in a tied module) is called
    name@replica where a later layer, or rank, has it.
    """
    records = [mine for *_, mine in everyone]
    layers: dict[str, int] = {}
    steps: list[Step] = [
        {kind: {} for kind in KINDS} for _ in range(min(len(mine.steps) for mine in records))
    ]
    fingerprints = [
        (used.get(name, 0), step[kind], name, replica, fingerprint, mine)
        for replica, used, mine in everyone
        for step, own in zip(steps, mine.steps, strict=False)
        for kind in own
        for name, fingerprint in own[kind].items()
    ]
    for _, merged, name, replica, fingerprint, mine in sorted(fingerprints, key=itemgetter(0)):
        key = name
        while not same(merged.setdefault(key, fingerprint), fingerprint):
            key = f"{name}@{replica}" if key == name else f"{key}'"
        layers |= {key: mine.layers[name]} if name else {}
    return Records(
        steps,
        dict(sorted(layers.items(), key=itemgetter(1))),
        sorted({name for mine in records for name in mine.left_out}),
        max(mine.unseen for mine in records),
        max(mine.eps for mine in records),
        [difference for mine in records for difference in mine.itself],
        max(mine.drew for mine in records),
        records[0].began,
        [
            {name: at for of in step for name, at in of.items()}
            for step in zip(*(mine.data for mine in records), strict=False)
        ],
    )
