# SPDX-License-Identifier: Apache-2.0
"""What a script does to the PipelineModule and the engine after deepspeed.initialize(), where a plan needs to know of it.

    changes = LateChanges(engine)      # the engine is made
    said = changes.follow(step)        # before each step: why numbers may be others than 1F1B's; raises OstinatoError by name

Layers that the script puts into `engine.module.forward_funcs` run under the plan, too. Hooks on the PipelineModule itself run once for
each of a rank's stages, where 1F1B runs them once for all of its layers.
"""

from typing import Any

import torch
from deepspeed.runtime.pipe import schedule
from ostinato.errors import counted

from .errors import OstinatoError, Unsupported
from .lookers import Lookers
from .moved_state import RUN_HOOKS
from .optimizers import beside_updates
from .packing import words_of
from .upstream import Engine, Model

# What the executor runs instead of DeepSpeed; the rest of a training schedule (reductions, the step) stays DeepSpeed's.
EXECUTED = (
    schedule.LoadMicroBatch,
    schedule.ForwardPass,
    schedule.BackwardPass,
    schedule.SendActivation,
    schedule.RecvActivation,
    schedule.SendGrad,
    schedule.RecvGrad,
)

FORWARD = "forward"
OF_ALL_MODULES: dict[str, dict] = {  # register_module_forward_hook() and its like: on the PipelineModule, too
    "all_" + name: getattr(torch.nn.modules.module, name)
    for name in ("_global_forward_pre_hooks", "_global_forward_hooks", "_global_backward_pre_hooks", "_global_backward_hooks")
}
# Methods of PipelineEngine in whose place the executor runs, or PlanEngine's own.
REPLACED = ("_exec_schedule", "_exec_backward_pass", "_exec_send_activations", "_exec_recv_activations", "_exec_send_grads", "_exec_recv_grads")


class LateChanges:
    """Of one engine."""

    def __init__(self, engine: Engine):
        self._engine, self._module = engine, engine.module
        self._functions = list(self._module._local_funcs)
        self._hooks = {key for key, _ in _hooks(self._module) if key[0] not in OF_ALL_MODULES}
        self._optimizer = engine.optimizer
        self._optimizers: set[tuple] = set()  # of whose hooks and steps it has been said
        self._lookers = Lookers(engine)

    def follow(self, step: int) -> list[str]:
        if names := [name for name in REPLACED if name in vars(self._engine)]:
            raise OstinatoError(
                f"the script has replaced engine.{names[0]}, which a plan does not call: it runs forwards, backwards and transfers by itself"
            )
        kind = type(self._engine).__bases__[1]
        check_passes(kind, OstinatoError)
        if "_INSTRUCTION_MAP" in vars(self._engine):
            check_map(kind.__name__, self._engine._INSTRUCTION_MAP, OstinatoError)
        self._follow_functions()
        return self._follow_hooks() + self._follow_optimizer() + self._lookers.new(step)

    def _follow_hooks(self) -> list[str]:
        found = {key: hook for key, hook in _hooks(self._module) if key not in self._hooks}
        self._hooks |= set(found)
        return [
            f"{words_of(hook)} is {'the forward()' if key[0] == FORWARD else 'a hook'} on the PipelineModule, which runs once for each of a rank's stages, and in "
            "1F1B once for all of its layers: what it changes has other numbers there; register it on layers"
            for key, hook in found.items()
            if len(self._module._stages) > 1 or not self._is_stock()
        ]

    def _follow_optimizer(self) -> list[str]:
        if self._engine._ostinato.stock_names is None or self._engine.optimizer is None:
            return []
        functions = beside_updates(self._engine)
        if self._engine.optimizer is not self._optimizer:  # one of the script's
            functions["step", id(self._engine.optimizer)] = type(self._engine.optimizer).step
        found = {key: function for key, function in functions.items() if key not in self._optimizers}
        self._optimizers |= set(found)
        return [
            f"{words_of(function)} runs with the optimizer's step and may see the parameters of a rank together, which are others than in 1F1B, for layers "
            "have moved: what it computes of several of them has other numbers"
            for function in found.values()
        ]

    def _is_stock(self) -> bool:
        """This rank runs what it runs in DeepSpeed's own partition."""
        parts, rank = self._engine._ostinato.stock_parts, self._engine.stage_id
        return self._module._local_layers == list(range(parts[rank], parts[rank + 1]))

    def _follow_functions(self) -> None:
        module, functions = self._module, self._module.forward_funcs
        if len(functions) != len(self._functions):
            raise OstinatoError(
                f"model.forward_funcs holds {counted(len(functions), 'layer')}, and this rank has {len(self._functions)} under the plan: replace layers one by one"
            )
        for layer, old, new in zip(module._local_layers, self._functions, functions, strict=True):
            if new is not old:
                module.replace_layer(layer, old, new)
        self._functions = list(functions)


def check_classes(model: Model, engine: Any) -> None:
    """Of the model, and the class of its engine. Raises Unsupported where they are the script's own and do what a plan would leave out, or
    do once for each stage.
    """
    if "forward" in vars(model) or not _is_deepspeeds(type(model).forward):
        raise Unsupported(
            f"{type(model).__name__} has a forward() of its own, which in 1F1B runs once for all layers of a rank, and under a plan once for each "
            "stage: put what it does into layers"
        )
    check_passes(engine, Unsupported)


def check_passes(engine: Any, error: type[OstinatoError]) -> None:
    """Of a class of engines. Raises `error` where passes are not DeepSpeed's own."""
    for name in REPLACED:
        if not _is_deepspeeds(getattr(engine, name)):
            raise error(f"{engine.__name__}.{name}() is not DeepSpeed's own, and a plan runs forwards, backwards and transfers without it")
    check_map(engine.__name__, engine._INSTRUCTION_MAP, error)


def check_map(engine: str, passes: dict[type, Any], error: type[OstinatoError]) -> None:
    """Of a class of engines, or of one engine that the script gave its own."""
    for command in EXECUTED:
        function = passes[command]
        if not _is_deepspeeds(function):
            name = f"{engine}._INSTRUCTION_MAP[{command.__name__}]"
            raise error(f"{name} is {words_of(function)}, not DeepSpeed's own, and a plan does not call it")


def _is_deepspeeds(function: Any) -> bool:
    return (getattr(function, "__module__", None) or "").startswith(("deepspeed.", "ostinato."))


def _is_torchs(hook: Any) -> bool:
    """It counts, and changes nothing (a FlopCounterMode's)."""
    return (getattr(hook, "__module__", None) or "").startswith("torch.")


def _hooks(module: Model) -> list[tuple[tuple[str, int], Any]]:
    """And forward(), which a script may replace, too."""
    forward = getattr(module.forward, "__func__", module.forward)
    of_all = [((name, key), hook) for name, hooks in OF_ALL_MODULES.items() for key, hook in hooks.items() if not _is_torchs(hook)]
    return [((FORWARD, id(forward)), forward), *of_all] + [((name, key), hook) for name in RUN_HOOKS for key, hook in vars(module).get(name, {}).items()]
