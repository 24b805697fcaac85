# SPDX-License-Identifier: Apache-2.0
"""What forwards and backwards leave for each other: under a plan they take turns otherwise than in 1F1B.

    watched = Interleaved(model)
    if watched.looks(step, micro_batch, of):          # now and then: at steps 1 to 8, 16, 32, ...
        seen = watched.before(stage, forward=True)
        ...                                           # the stage's forward, or its backward
        watched.forward(seen, outputs)                # or watched.backward(seen)
    watched.new()                                     # in words, once

A tensor that a forward changes through `.data` is another one for the backward of an earlier micro-batch, and autograd does not see it. So is
an attribute, or a global, that a hook, an autograd.Function or a part of a layer that runs again (torch.utils.checkpoint) reads. A weight, a global or a gradient that a backward changes is another one
for the forwards that come.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from deepspeed.runtime.pipe import schedule

from .forward_state import ForwardState, Moment
from .module import StagedLayers
from .plans import Stage
from .reads import asks_for_rank, changes_in_place, held_by, reads_gradients
from .script_state import Place as ScriptPlace
from .script_state import ScriptState
from .tensor_hooks import CHECKPOINT, TensorHooks, hooks_of, may_read

FIRST = 8  # steps that are all looked at: some layers change what they keep in every third forward only
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of an element
PIECE = 1 << 17  # elements
STATISTICS = ("running_mean", "running_var")  # which kernels of torch change so, and no backward reads


def as_1f1b(program, stages: list[Stage], stock: list[int]) -> bool:
    """Whether each rank runs the layers of DeepSpeed's own partition, and its forwards and backwards in 1F1B's order."""
    if [(stage.ranks, tuple(stage.layers)) for stage in stages] != [((r,), tuple(range(*stock[r : r + 2]))) for r in range(len(stock) - 1)]:
        return False
    return all(_order(program, rank) == _usual(program, rank) for rank in range(program.ranks))


def _order(program, rank: int) -> str:
    return "".join(i.action for i in program.instructions(rank) if i.action in ("F", "B", "I", "W"))


def _usual(program, rank: int) -> str:
    kinds = {schedule.ForwardPass: "F", schedule.BackwardPass: "B"}
    steps = schedule.TrainSchedule(micro_batches=program.micro_batches, stages=program.ranks, stage_id=rank)
    return "".join(kinds.get(type(command), "") for commands in steps for command in commands)


@dataclass
class Before:
    """A forward or backward of a stage: tensors by name, with their sums and versions, and what else is in the layers."""

    stage: Stage
    tensors: dict[str, tuple[torch.Tensor, int, int]]
    state: ForwardState
    moment: Moment
    script: list[tuple[ScriptPlace, Any]]  # what the layers use beside themselves


class Interleaved:
    """Of one rank."""

    def __init__(self, model: StagedLayers):
        self._model = model
        self._found: dict[str, bool] = {}  # in words: whether it has been said
        self._hooks = TensorHooks(lambda: model._running)
        self.halved: set[int] = set()  # stages whose backwards the plan splits
        self._scripts: dict[tuple[int, bool], ScriptState] = {}  # by stage, and whether what its hooks on backwards use counts
        mine = list(zip(model._local_layers, model._local_funcs, strict=True))
        if layers := [str(layer) for layer, function in mine if _is_scripted(function)]:
            self._note(f"layers {', '.join(layers)} are TorchScript, which torch compiles by what has run before")
        if layers := [str(layer) for layer, function in mine if reads_gradients(function)]:
            self._note(f"forwards of layers {', '.join(layers)} read .grad, which backwards add to")
        own = range(*model.parts[model.stage_id : model.stage_id + 2])  # in DeepSpeed's partition
        if layers := [str(layer) for layer, function in mine if layer not in own and asks_for_rank(function)]:
            self._note(f"forwards of layers {', '.join(layers)} ask for the rank, its process or its machine, which is another one there")
        if any(stage.ends for stage in model._stages) and model.stage_id + 2 != len(model.parts) and asks_for_rank(model.loss_fn):
            self._note("the loss asks for the rank, its process or its machine, which is another one there")

    @staticmethod
    def looks(step: int, micro_batch: int, of: int) -> bool:
        """By their last micro-batch layers have made what they make once."""
        return micro_batch == of - 1 and (step <= FIRST or step & (step - 1) == 0)

    def before(self, stage: Stage, forward: bool) -> Before:
        layers = dict(zip(stage.layers, self._model.functions_of(stage), strict=True))
        state = ForwardState(layers, whole=False).without_tensors()
        tensors = {name: (tensor, bits_summed(tensor), tensor._version) for name, tensor in _tensors(layers)}
        key = stage.index, forward
        if key not in self._scripts:
            self._scripts[key] = ScriptState(layers, backwards=forward)
        if forward:
            self._hooks.watch()
        return Before(stage, tensors, state, state.now(), self._scripts[key].now())

    def forward(self, seen: Before, outputs: Any) -> None:
        functions = [f for f in self._model.functions_of(seen.stage) if isinstance(f, torch.nn.Module)]
        again = self._run_again(seen.stage, outputs)
        hooks = [*self._hooks.end(), *(hook for f in functions for hook in hooks_of(f.parameters()))]
        for name, (tensor, was, version) in seen.tensors.items():
            if tensor._version == version and bits_summed(tensor) != was:
                self._note(f"forwards change {name} where autograd does not see it (.data), and backwards read it")
            elif name.endswith(again) and tensor._version != version and bits_summed(tensor) != was:
                self._note(f"forwards change {name}, and backwards run a part of the layer again (torch.utils.checkpoint)")
        runs = _runs_python(functions, outputs)
        any_layers = runs or any(map(held_by, hooks))  # a checkpoint reads of its own layer alone
        attributes = seen.state.changed_attributes(seen.moment) if any_layers or again else []
        attributes = [name for name in attributes if any_layers or name.endswith(again)]
        for kind in {node._forward_cls for node in _graph(outputs) if seen.stage.index in self.halved and _is_the_scripts(node)}:
            if changed := changes_in_place(kind):
                self._note(f"the plan runs the backward of {kind.__qualname__} in two halves, each of which runs all of it, and it changes things ({', '.join(sorted(changed))})")
        for name in (*attributes, *(_changed(seen.script) if runs or again or hooks else [])):
            self._note(f"forwards change {name}, and backwards run Python that may read it (hooks, autograd.Functions, checkpoints)")

    def _run_again(self, stage: Stage, outputs: Any) -> tuple[str, ...]:
        """How the names of what layers with a checkpoint inside have end; of a re-entrant one the graph does not say whose it is. Where all of the
        stage is recomputed, that is with what it was in its forward (recomputation).
        """
        if stage.recomputes or self._model.own_checkpointing[0]:
            return ()
        layers = set(stage.layers) if any(map(_is_checkpoint, _graph(outputs))) else self._hooks.reruns
        return tuple(f" of layer {layer}" for layer in sorted(layers))

    def backward(self, seen: Before) -> None:
        for name, (tensor, was, _) in seen.tensors.items():
            if bits_summed(tensor) != was:
                self._note(f"backwards change {name}, and forwards read it")
        for name in _changed(seen.script):
            self._note(f"backwards change {name}, and forwards may read it")

    def end(self) -> None:
        """Of a step, whatever has happened in it."""
        self._hooks.end()

    def new(self) -> list[str]:
        found = [words for words, said in self._found.items() if not said]
        self._found |= dict.fromkeys(found, True)
        return [f"{'; '.join(found)}: forwards and backwards take turns otherwise than in 1F1B, and numbers may be others"] if found else []

    def _note(self, words: str) -> None:
        self._found.setdefault(words, False)


def _runs_python(functions: list[torch.nn.Module], outputs: Any) -> bool:
    """What is handed modules, or may have kept them; hooks on tensors are looked at one by one."""
    modules = (m for f in functions for m in f.modules())
    return any(m._backward_hooks or m._backward_pre_hooks for m in modules) or any(map(_is_the_scripts, _graph(outputs)))


def _changed(script: list[tuple[ScriptPlace, Any]]) -> list[str]:
    """In words, of what one layer uses: what several share is said once for all (shared_state)."""
    return [place.words or "an object" for place in ScriptState.changed(script)]


def _is_scripted(function: Any) -> bool:
    return isinstance(function, torch.nn.Module) and any(isinstance(module, torch.jit.ScriptModule) for module in function.modules())


def _is_the_scripts(node: Any) -> bool:
    """An autograd.Function of the script's, or one whose gradients run through a hook of its."""
    maker = getattr(type(node), "_forward_cls", None)
    return maker is not None and may_read(maker)


def _is_checkpoint(node: Any) -> bool:
    return getattr(getattr(type(node), "_forward_cls", None), "__module__", None) == CHECKPOINT


def _graph(outputs: Any) -> Iterator[Any]:
    left = [t.grad_fn for t in (outputs if isinstance(outputs, tuple) else (outputs,)) if torch.is_tensor(t) and t.grad_fn is not None]
    seen = set(left)
    while left:
        yield (node := left.pop())
        more = {n for n, _ in node.next_functions if n is not None} - seen
        seen |= more
        left += more


def _tensors(layers: dict[int, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers by name; once where several layers have them."""
    had: set[int] = set()
    for number, layer in layers.items():
        for module in (layer, *getattr(layer, "args", ())):  # of a tied layer
            if isinstance(module, torch.nn.Module):
                for name, tensor in (*module.named_parameters(), *module.named_buffers()):
                    if id(tensor) not in had and has_bits(tensor) and not name.endswith(STATISTICS):
                        had.add(id(tensor))
                        yield f'"{name}" of layer {number}', tensor


def has_bits(tensor: torch.Tensor) -> bool:
    kind = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return kind and tensor.layout is torch.strided and not tensor.is_meta and not tensor.is_quantized and tensor.element_size() in INTEGERS


def bits_summed(tensor: torch.Tensor) -> int:
    """Of its bits, as integers; piece by piece, for torch adds up in a copy of 8 bytes an element."""
    raw = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    values = raw.view(INTEGERS[raw.element_size()])
    if values.numel() <= PIECE:
        return int(values.sum(dtype=torch.int64))
    longest = max(range(values.ndim), key=values.size)
    rows = max(1, PIECE * values.size(longest) // values.numel())
    return int(torch.stack([part.sum(dtype=torch.int64) for part in values.split(rows, longest)]).sum())
