# SPDX-License-Identifier: Apache-2.0
"""Keys of a DeepSpeed configuration that do not work with a plan; docs/deepspeed-keys.toml covers all keys.

    check_keys({"autotuning": {"enabled": True}})     # raises Unsupported: "autotuning": {"enabled": true} ...

DeepSpeed accepts each of them for a pipeline, and would then hang, or train something other than what was
asked for.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import Unsupported


def _is_on(value) -> bool:
    """As DeepSpeed reads a section: by its "enabled", or because it is there."""
    return bool(value.get("enabled", value)) if isinstance(value, dict) else bool(value)


@dataclass(frozen=True)
class RefusedKey:
    """`key` with dots between sections; `why`: what is wrong, and what would be right."""

    key: str
    why: str
    on: Callable[[object], bool] = _is_on  # of its value


SAMPLING, ROUTING = "data_efficiency.data_sampling", "data_efficiency.data_routing"
REMOVED = "DeepSpeed removed it after 0.19.7, and plans were not tried with it: remove it"

LATER = "it writes after save_checkpoint() has returned, and plans were not tried with it: remove it"

REFUSED = (
    RefusedKey(
        "autotuning",
        "it tries sizes that the plan is not for, and ends the run: tune first, then search a plan",
    ),
    RefusedKey(
        "compile.deepcompile",
        "compiled graphs decide for themselves when to reduce gradients: use engine.compile() alone",
    ),
    RefusedKey("compile.passes", "they rewrite what a rank computes and sends: use engine.compile() alone"),
    RefusedKey(
        "tensor_parallel.autotp_size",
        "it cuts layers that the plan keeps whole: see ostinato.nn",
        lambda size: size not in (0, 1, None),
    ),
    RefusedKey("expert_parallel", "it replaces layers after the plan has placed them: remove it"),
    RefusedKey(
        f"{ROUTING}.random_ltd",
        "layers drop tokens by a schedule that does not move with them to another rank: remove it",
    ),
    RefusedKey(
        f"{SAMPLING}.curriculum_learning",
        "in a pipeline DeepSpeed's sampler sends from rank 0 to groups that rank 0 is not in: let the loader change lengths, and call "
        "reset_activation_shape()",
    ),
    RefusedKey(
        "zero_optimization.zenflow",
        "it updates parts of the weights at its own times: remove it",
        lambda value: value is not None,
    ),
    RefusedKey(
        "zero_optimization.offload_optimizer.device",
        'DeepSpeed supports it under ZeRO-3 only: use "cpu"',
        lambda device: device == "nvme",
    ),
    RefusedKey(
        "checkpoint.use_node_local_storage",
        "with it, DeepSpeed does not save all ranks of a pipeline, and loads none: use a folder that all nodes share",
    ),
    RefusedKey("checkpoint.writer", LATER, lambda value: value is not None),
    RefusedKey("datastates_ckpt", LATER, lambda value: value is not False),
    *(
        RefusedKey(key, REMOVED)
        for key in (
            "amp",
            "compression_training",
            "curriculum_learning",
            "eigenvalue",
            "elasticity",
            "graph_harvesting",
            "nebula",
            "progressive_layer_drop",
            "quantize_training",
            "sparse_attention",
            "sparse_gradients",
        )
    ),
)


def check_keys(configuration: dict) -> None:
    """Raises Unsupported for the first key that does not work. `configuration` is the dictionary that
    DeepSpeed was given."""
    for refused in REFUSED:
        found, value = _look_up(configuration, refused.key.split("."))
        if found and refused.on(value):
            raise Unsupported(f"{_written(refused.key, value)} does not work with a plan: {refused.why}")
    _check_autocast(configuration)


def _check_autocast(configuration: dict) -> None:
    """Without ZeRO, only the rank that computes the loss has its scale, but DeepSpeed reads the scale on every
    rank: the rest fail in step 1."""
    autocast = configuration.get("torch_autocast")
    if not isinstance(autocast, dict) or not autocast.get("enabled"):
        return
    _, stage = _look_up(configuration, ["zero_optimization", "stage"])
    if not stage and str(autocast.get("dtype")) in ("fp16", "float16", "half", "torch.float16"):
        raise Unsupported(
            '"torch_autocast" with fp16 needs "zero_optimization": {"stage": 1} in a pipeline: without it, ranks that '
            "compute no loss have no loss scale"
        )


# The key beside which it was tried; "": none.
UNTRIED = {
    "bf16.bf16_master_weights_and_grads": "bf16.bf16_optimizer_states",
    "fp16.fp16_master_weights_and_grads": "",
    "optimizer.legacy_fusion": "",
}
UNTRIED_OPTIMIZERS = ("lamb", "lion", "muadam", "muadamw", "muon", "musgd")


def untried_keys(configuration: dict) -> str:
    """What to say of keys that need more than the tests' machine has; "" where there are none."""

    def on(key: str) -> bool:
        return bool(key and _look_up(configuration, key.split("."))[1])

    found = [key for key, tried in UNTRIED.items() if on(key) and not on(tried)]
    _, optimizer = _look_up(configuration, ["optimizer", "type"])
    found += [f"optimizer {optimizer}"] if str(optimizer).lower() in UNTRIED_OPTIMIZERS else []
    return (
        f"{', '.join(found)}: not tried with a plan; compare the first losses with a run of DeepSpeed alone"
        if found
        else ""
    )


def whole_messages(configuration: dict) -> str:
    """What to say where ranks hold slices of layers, for which DeepSpeed by default lets each send a part of a
    message."""
    keys = {
        key: _look_up(configuration, ["pipeline", key]) for key in ("pipe_partitioned", "grad_partitioned")
    }
    if written := [_written(f"pipeline.{key}", True) for key, (_, value) in keys.items() if value]:
        return f"{' and '.join(written)}: no effect under a plan, whose ranks send whole messages; the values are the same"
    on = [key for key, (found, _) in keys.items() if not found]
    return (
        f"{' and '.join(on)}, on by default in DeepSpeed, {'are' if on[1:] else 'is'} off under a plan: ranks send whole messages"
        if on
        else ""
    )


def _look_up(configuration: object, path: list[str]) -> tuple[bool, object]:
    for name in path:
        if not isinstance(configuration, dict) or name not in configuration:
            return False, None
        configuration = configuration[name]
    return True, configuration


def _written(key: str, value: object) -> str:
    """As it stands in the file; of a long section, only its name and what switches it on."""
    if isinstance(value, dict):
        value = {"enabled": value["enabled"]} if "enabled" in value else ...
    names = [f'"{name}"' for name in key.split(".")]
    text = "{...}" if value is ... else json.dumps(value, default=str)
    return ": {".join(names) + ": " + text + "}" * (len(names) - 1)
