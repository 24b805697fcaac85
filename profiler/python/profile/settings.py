# SPDX-License-Identifier: Apache-2.0
"""Memory and precision, from DeepSpeed's configuration."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

FP32 = 4
NAMES_OF_FP32 = "fp32", "float32", "float", "torch.float32", torch.float32
BUCKET = 500_000_000  # numbers, where the configuration does not say: DeepSpeed's

# fp32 numbers that an optimizer keeps for each parameter, by its name in lower case without "fused", "cpu",
# "torch".
STATES = {"adam": 2, "adamw": 2, "lamb": 2, "onebitadam": 2, "onebitlamb": 2, "zerooneadam": 2, "muadam": 2,
          "muadamw": 2, "lion": 1, "adagrad": 1, "rmsprop": 1, "sgd": 0, "musgd": 0, "muon": 1}  # fmt: skip
UNKNOWN_STATES = 2  # as Adam: better too much than too little


# Copies of a parameter that a step of torch's own optimizers makes for a while: where it takes one parameter
# after the other (of the largest one; the last copy of a parameter lives on until that of the next is there,
# which may be as large), and where it takes all together. DeepSpeed's own work in place.
TEMPORARIES = {"adam": (3, 1), "adamw": (3, 1), "rmsprop": (2, 1), "adagrad": (2, 2), "sgd": (0, 0)}
UNKNOWN_TEMPORARIES = (3, 2)  # better too much than too little


@dataclass(frozen=True)
class StateBytes:
    """The memory of a layer's parameters in training."""

    parameters: int  # with frozen parameters and buffers
    gradients: int
    optimizer: int
    reduced: int  # of the gradients, what DeepSpeed sums over replicas
    step_together: int  # Settings.step_bytes()
    step_alone: int


@dataclass
class Settings:
    dtype: torch.dtype | None  # that DeepSpeed casts the model to; None: it stays as it is
    states: int  # optimizer numbers per parameter
    master: bool  # a copy of the parameters, mostly fp32: half precision's, and ZeRO's always
    gradient_copy: int  # bytes a number of the copy of the gradients in which DeepSpeed adds them up; 0: none
    micro_batch_size: int  # 0: the configuration does not say
    alone: int = 0  # fp32 copies of the largest parameter that the optimizer's step makes for a while ...
    together: int = 0  # ... and of all parameters
    zero: bool = False  # its optimizer is ZeRO's
    divides: bool = False  # DeepSpeed divides the optimizer's numbers over data-parallel ranks ...
    ranks: int = 1  # ... so many
    bucket: int = 0  # numbers in a bucket that ZeRO copies gradients into; 0: it has none
    buckets: int = 1  # that it holds from the first backward on
    bucket_number: int = FP32  # bytes
    master_number: int = FP32  # bytes in the copy of the parameters
    state_number: int = FP32  # bytes of an optimizer's number
    offloaded: bool = False  # the optimizer's numbers are in the host's memory, not in the device's

    @property
    def master_type(self) -> torch.dtype | None:
        """Of the copy of the parameters; None: there is none."""
        if not self.master:
            return None
        return torch.float32 if self.master_number == FP32 else self.dtype

    def bucket_bytes(self) -> tuple[int, int]:
        """What a rank holds of ZeRO's buckets whichever layers it has: always, and more while gradients are
        reduced at the end of a step, when DeepSpeed's pipeline engine asks for another.
        """
        size = self.bucket * self.bucket_number
        return self.buckets * size, size

    def step_bytes(self, parameters: list[nn.Parameter]) -> tuple[int, int]:
        """What the end of a step takes for a while, when nothing is kept: over the layers of a device the
        first add up, and of the second the largest counts. DeepSpeed reduces gradients in one flat copy.
        Where it keeps fp32 copies of parameters, the optimizer sees one flat parameter, whose gradient is a
        copy as well where gradients are no fp32.
        """
        sizes = [p.numel() * self._number(p, self.master_number) for p in parameters]
        gradients = self.gradient_bytes(parameters)
        if not self.master:
            return max(gradients, sum(sizes) * self.together), max(sizes, default=0) * self.alone
        # Nothing lives on from another parameter.
        of_optimizer = sum(sizes) * max(self.alone - 1, self.together)
        share = self._share
        # It flattens gradients, makes fp32 numbers of that, and lets both go before the optimizer's step.
        if self.zero:
            flat = sum(p.numel() * self.bucket_number for p in parameters)
            whole = sum(sizes) if self.bucket_number != self.master_number else 0
            return max(share(flat + whole), share(sum(sizes) + of_optimizer) - gradients), 0
        flat = self._summed_bytes(parameters)
        return max(flat, share(of_optimizer + (0 if self.gradient_copy == FP32 else sum(sizes)))), 0

    def state_bytes(self, trained: list[nn.Parameter], held: int) -> StateBytes:
        """Of a layer with these parameters that are trained; `held`: bytes of all its parameters and buffers."""
        return StateBytes(
            held,
            self.gradient_bytes(trained),
            self.optimizer_bytes(trained),
            self._summed_bytes(trained),
            *self.step_bytes(trained),
        )

    def gradient_bytes(self, parameters: list[nn.Parameter]) -> int:
        return sum(p.numel() * (p.element_size() + self.gradient_copy) for p in parameters)

    def optimizer_bytes(self, parameters: list[nn.Parameter]) -> int:
        if self.offloaded:
            return 0
        copy = self.master_number if self.master else 0
        return self._share(
            sum(p.numel() * (self.states * self._number(p, self.state_number) + copy) for p in parameters)
        )

    def _number(self, parameter: nn.Parameter, number: int) -> int:
        """Bytes of an optimizer's number for each of the parameter's. Where the optimizer has the parameter itself,
        the number has its type, which fp64 and complex parameters make wider.
        """
        return number if self.master else max(number, parameter.element_size())

    def _summed_bytes(self, parameters: list[nn.Parameter]) -> int:
        return sum(p.numel() * (self.gradient_copy or p.element_size()) for p in parameters)

    @property
    def sharing_ranks(self) -> int:
        """Over how many ranks the optimizer's numbers and its step are divided."""
        return self.ranks if self.divides else 1

    def _share(self, size: int) -> int:
        return -(-size // self.sharing_ranks)


def enabled(config: dict, section: str) -> bool:
    return bool(config.get(section, {}).get("enabled", False))


def in_half(config: dict, name: str) -> bool:
    """Whether ZeRO keeps in half precision what it otherwise keeps in fp32: "master_weights_and_grads" or
    "optimizer_states"."""
    sections = {"fp16": "fp16", "bf16": "bf16", "bfloat16": "bf16"}
    return any(
        enabled(config, section) and config[section].get(f"{kind}_{name}")
        for section, kind in sections.items()
    )


def configured_optimizer(config: dict) -> tuple[str, dict]:
    """The optimizer's type and arguments, as far as the configuration has them."""
    named = config.get("optimizer") or {}
    return str(named.get("type") or ""), dict(named.get("params") or {})


def optimizer_states(config: dict, optimizer) -> int:
    """Of the script's own optimizer where it has one, else of the configuration's; 0 where there is none."""
    if optimizer is not None:
        name, options = type(optimizer).__name__, optimizer.defaults if hasattr(optimizer, "defaults") else {}
    elif config.get("optimizer"):
        name, options = configured_optimizer(config)
    else:
        return 0
    name = name.lower()
    for prefix in ("deepspeed", "fused", "cpu", "torch"):
        name = name.removeprefix(prefix)
    more = [options.get(option) for option in ("amsgrad", "centered")]
    more += [options.get("momentum")] if name.endswith(("sgd", "rmsprop")) else []
    return STATES.get(name, UNKNOWN_STATES) + sum(map(bool, more))


def step_temporaries(config: dict, optimizer, accelerator: bool) -> tuple[int, int]:
    """(alone, together) of TEMPORARIES for the script's own optimizer where it has one, else for the
    configuration's."""
    if optimizer is not None:
        kind, options = type(optimizer), getattr(optimizer, "defaults", {})
        name, of_torch = kind.__name__.lower(), kind.__module__.startswith("torch.")
    elif config.get("optimizer"):
        name, options = configured_optimizer(config)
        name = name.lower()
        of_torch = bool(options.get("torch_adam")) or not name.startswith(("adam", "lion"))
    else:
        return 0, 0
    if options.get("fused") or (not of_torch and any(part in name for part in ("adam", "lion", "fused"))):
        return 0, 0
    one, all_of_them = TEMPORARIES.get(name, UNKNOWN_TEMPORARIES)
    more = 1 if options.get("weight_decay") and not name.endswith("adamw") else 0
    foreach = options.get("foreach")
    if accelerator if foreach is None else foreach:
        return 0, all_of_them + more
    return one + more, 0


def offloads_optimizer(zero: dict) -> bool:
    """To the CPU, by either spelling."""
    device = (zero.get("offload_optimizer") or {}).get("device")
    return bool(zero.get("cpu_offload")) or device not in (None, "none")


def micro_batch_size(config: dict) -> int:
    """As DeepSpeed derives it, for one data-parallel rank; 0 if the configuration does not say."""
    size = config.get("train_micro_batch_size_per_gpu")
    if size is None and "train_batch_size" in config:
        size = config["train_batch_size"] // config.get("gradient_accumulation_steps", 1)
    return int(size or 0)


def read_settings(config: dict, optimizer, accelerator: bool = False, ranks: int = 1) -> Settings:
    """`accelerator`: the model trains on one, where torch's optimizers take all parameters together; `ranks`: that
    train the same layers, data-parallel."""
    alone, together = step_temporaries(config, optimizer, accelerator)
    half, brain = enabled(config, "fp16"), enabled(config, "bf16") or enabled(config, "bfloat16")
    zero = config.get("zero_optimization", {})
    stage = int(zero.get("stage", 0) or 0)
    fp32_sums = config.get("data_types", {}).get("grad_accum_dtype") in NAMES_OF_FP32
    offloads = offloads_optimizer(zero)
    number = FP32 if fp32_sums or not (half or brain) else FP32 // 2
    # DeepSpeed's BF16_Optimizer, which it takes for stage 1 as well where gradients are added up in fp32.
    own_sums = brain and (stage == 0 or (stage == 1 and fp32_sums and not offloads))
    zero_own = stage > 0 and not own_sums
    has_bucket = zero_own and zero.get("contiguous_gradients", True)
    bucket = int(zero.get("reduce_bucket_size", BUCKET)) if has_bucket else 0
    return Settings(
        dtype=torch.float16 if half else torch.bfloat16 if brain else None,
        states=optimizer_states(config, optimizer),
        master=half or brain or stage > 0,
        gradient_copy=number if own_sums or ((half or brain) and fp32_sums) else 0,
        micro_batch_size=micro_batch_size(config),
        alone=alone,
        together=together,
        zero=zero_own,
        divides=stage > 0 or own_sums,
        master_number=FP32 // 2 if zero_own and in_half(config, "master_weights_and_grads") else FP32,
        state_number=FP32 // 2 if zero_own and in_half(config, "optimizer_states") else FP32,
        ranks=ranks,
        bucket=bucket,
        buckets=2 if zero.get("overlap_comm") else 1,
        bucket_number=number,
        offloaded=offloads and accelerator,
    )
