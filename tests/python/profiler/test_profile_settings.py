# SPDX-License-Identifier: Apache-2.0
"""What is read from DeepSpeed's configuration, and the model's digest."""

import functools

import pytest
import torch
from torch import nn

from ostinato import _profiler
from ostinato.profile.model.model_digest import (
    digest_of_layers,
    layer_digest,
    layer_name,
    layer_parameters,
    model_digest,
)
from ostinato.profile.settings import micro_batch_size, read_settings, step_temporaries

PARAMETERS = [nn.Parameter(torch.zeros(10))]


@pytest.mark.parametrize(
    ("optimizer", "numbers"),
    [
        ({"type": "Adam"}, 2),
        ({"type": "FusedAdam"}, 2),
        ({"type": "AdamW", "params": {"lr": 1}}, 2),
        ({"type": "DeepSpeedCPUAdam"}, 2),
        ({"type": "Lion"}, 1),
        ({"type": "SGD"}, 0),
        ({"type": "SGD", "params": {"momentum": 0.9}}, 1),
        ({"type": "AdamW", "params": {"amsgrad": True}}, 3),
        ({"type": "RMSprop", "params": {"momentum": 0.9, "centered": True}}, 3),
        ({"type": "of-my-own"}, 2),
    ],
)
def test_optimizer_state(optimizer, numbers):
    assert read_settings({"optimizer": optimizer}, None).optimizer_bytes(PARAMETERS) == 10 * 4 * numbers


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.complex128, torch.float16])
def test_an_optimizer_keeps_numbers_as_wide_as_the_parameters(dtype):
    parameter = nn.Parameter(torch.zeros(10, dtype=dtype))
    adam = torch.optim.Adam([parameter], foreach=False)
    parameter.grad = torch.zeros_like(parameter)
    adam.step()
    kept = adam.state[parameter]["exp_avg"].nbytes + adam.state[parameter]["exp_avg_sq"].nbytes
    settings = read_settings({}, adam)
    # Of half precision it counts fp32, which some optimizers keep.
    assert settings.optimizer_bytes([parameter]) == max(kept, 10 * 4 * 2)
    assert settings.step_bytes([parameter])[1] == 10 * max(dtype.itemsize, 4) * settings.alone > 0


def test_the_optimizers_numbers_may_be_on_the_host():
    offload = {"optimizer": {"type": "Adam"}, "zero_optimization": {"stage": 1, "cpu_offload": True}}
    said = {"stage": 1, "offload_optimizer": {"device": "cpu"}}
    for config in (offload, offload | {"zero_optimization": said}):
        assert read_settings(config, None, accelerator=True).optimizer_bytes(PARAMETERS) == 0
        assert read_settings(config, None).optimizer_bytes(PARAMETERS) == 10 * 4 * 3
    said["offload_optimizer"]["device"] = "none"
    stays = read_settings(offload | {"zero_optimization": said}, None, accelerator=True)
    assert stays.optimizer_bytes(PARAMETERS) == 10 * 4 * 3


@pytest.mark.parametrize("name", ["fp32", "float32", "float", "torch.float32"])
def test_every_spelling_of_fp32_sums(name):
    """In which DeepSpeed takes its BF16_Optimizer, without buckets, for ZeRO-1 as well."""
    zero = {"stage": 1, "offload_optimizer": {"device": "none"}}
    config = {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": name}, "zero_optimization": zero}
    settings = read_settings(config, None)
    assert settings.bucket_bytes() == (0, 0) and settings.gradient_copy == 4


def test_the_scripts_own_optimizer_counts_first():
    own = torch.optim.SGD(PARAMETERS, lr=1, momentum=0.5)
    assert read_settings({"optimizer": {"type": "Adam"}}, own).optimizer_bytes(PARAMETERS) == 10 * 4
    assert read_settings({}, None).optimizer_bytes(PARAMETERS) == 0


def test_fp32_copies_of_half_precision():
    half = [nn.Parameter(torch.zeros(10, dtype=torch.bfloat16))]
    settings = read_settings({"bf16": {"enabled": True}, "optimizer": {"type": "Adam"}}, None)
    assert settings.dtype == torch.bfloat16
    assert settings.optimizer_bytes(half) == 10 * 4 * 3
    assert settings.gradient_bytes(half) == 10 * (2 + 2)  # those that come, and their sums
    told = {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
    assert read_settings(told, None).gradient_bytes(half) == 10 * (2 + 4)
    zero = {"zero_optimization": {"stage": 1}}
    assert read_settings({"bf16": {"enabled": True}} | zero, None).gradient_bytes(half) == 10 * 2
    assert read_settings(told | zero, None).gradient_bytes(half) == 10 * (2 + 4)
    assert read_settings({"fp16": {"enabled": True}}, None).gradient_bytes(half) == 10 * 2
    assert read_settings({"fp16": {"enabled": False}}, None).dtype is None


def test_what_zero_keeps_in_bf16():
    half = [nn.Parameter(torch.zeros(10, dtype=torch.bfloat16))]
    adam = {"optimizer": {"type": "Adam", "params": {"torch_adam": True}}, "zero_optimization": {"stage": 1}}
    brain = {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    for name in ("bf16", "bfloat16"):
        settings = read_settings(adam | {name: brain}, None)
        assert settings.optimizer_bytes(half) == 10 * 2 * 3
        assert settings.gradient_bytes(half) == 10 * 2
        # The flat gradients are the optimizer's, and Adam's two copies of a bf16 number.
        assert settings.step_bytes(half) == (10 * 2 * 3 - 10 * 2, 0)
    master = {"bf16": brain | {"bf16_optimizer_states": False}}
    assert read_settings(adam | master, None).optimizer_bytes(half) == 10 * (2 + 4 * 2)
    # DeepSpeed's BF16_Optimizer does not look at them.
    sums = {"data_types": {"grad_accum_dtype": "fp32"}}
    assert read_settings(adam | {"bf16": brain} | sums, None).optimizer_bytes(half) == 10 * 4 * 3
    assert (
        read_settings(adam | {"bf16": brain | {"enabled": False}}, None).optimizer_bytes(half) == 10 * 4 * 3
    )


def test_sizes_of_batches():
    assert micro_batch_size({"train_micro_batch_size_per_gpu": 4}) == 4
    assert micro_batch_size({"train_batch_size": 12, "gradient_accumulation_steps": 3}) == 4
    assert micro_batch_size({}) == 0


def rows(*layers):
    return [(layer_name(i, layer), layer_parameters(layer)) for i, layer in enumerate(layers)]


def test_the_digest_names_layers_and_shapes():
    base = model_digest(rows(nn.Linear(2, 3), nn.ReLU()))
    assert base == model_digest(rows(nn.Linear(2, 3), nn.ReLU())) and len(base) == 64
    others = [
        rows(nn.Linear(3, 2), nn.ReLU()),
        rows(nn.ReLU(), nn.Linear(2, 3)),
        rows(nn.Linear(2, 3), nn.GELU()),
        rows(nn.Linear(2, 3)),
    ]
    assert len({base, *map(model_digest, others)}) == 5
    assert base == model_digest(rows(nn.Linear(2, 3).half().requires_grad_(False), nn.ReLU()))
    assert base == digest_of_layers([layer_digest(*row) for row in rows(nn.Linear(2, 3), nn.ReLU())])


def test_the_digest_does_not_change_between_versions():
    digest = model_digest(
        [("0:Linear", [("weight", (3, 2), "float32"), ("bias", (3,), "float32")]), ("1:ReLU", [])]
    )
    assert digest == "7581af06f851e3b3defbcc890bb20603970dc895c2d7fa199c66d7ef7afadbac"


def test_names_of_layers():
    def reshape(x):
        return x

    assert layer_name(0, nn.Linear(1, 1)) == "0:Linear"
    assert layer_name(1, reshape) == layer_name(1, functools.partial(reshape)) == "1:reshape"


@pytest.mark.parametrize(
    "sizes", [(50_000, 10_000, 30_000), (50_000, 50_000, 50_000)], ids=["falling", "equal"]
)
@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("kind", ["Adam", "AdamW", "SGD", "RMSprop", "Adagrad"])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_what_a_step_takes_for_a_while(kind, decay, foreach, sizes):
    """Against torch's own optimizers, by the allocator that counts."""
    parameters = [nn.Parameter(torch.ones(size)) for size in sizes]
    optimizer = getattr(torch.optim, kind)(parameters, lr=0.1, weight_decay=decay, foreach=foreach)
    alone, together = step_temporaries({}, optimizer, accelerator=False)
    planned = 4 * max(alone * max(sizes), together * sum(sizes))
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()  # makes its state
    _profiler.install_allocator()
    try:
        before = _profiler.live_bytes()
        _profiler.reset_peak()
        optimizer.step()
        taken = _profiler.peak_bytes() - before
    finally:
        _profiler.remove_allocator()
    assert taken <= planned + 4096
    assert 2 * taken >= planned


def test_the_end_of_a_step():
    parameters = [nn.Parameter(torch.ones(size)) for size in (100, 300)]
    config = {"optimizer": {"type": "Adam", "params": {"torch_adam": True}}}
    # A flat copy of gradients; Adam's of the largest.
    assert read_settings(config, None).step_bytes(parameters) == (1600, 3600)
    assert read_settings(config, None, accelerator=True).step_bytes(parameters) == (1600, 0)
    # Works in place.
    assert read_settings({"optimizer": {"type": "Adam"}}, None).step_bytes(parameters) == (1600, 0)


def test_the_end_of_a_step_on_fp32_copies():
    """One flat parameter. Of fp32 gradients none is left when the optimizer has its copy; half precision's
    are half of that."""
    adam = {"optimizer": {"type": "Adam", "params": {"torch_adam": True}}}
    zero, brain = {"zero_optimization": {"stage": 1}}, {"bf16": {"enabled": True}}
    whole = [nn.Parameter(torch.ones(size)) for size in (100, 300)]
    half = [nn.Parameter(p.detach().bfloat16()) for p in whole]
    assert read_settings(adam | zero, None).step_bytes(whole) == (1600 + 3200 - 1600, 0)
    assert read_settings(adam | zero | brain, None).step_bytes(half) == (1600 + 3200 - 800, 0)
    # A flat copy, and fp32 numbers of it.
    assert read_settings(zero | brain, None).step_bytes(half) == (800 + 1600, 0)
    assert read_settings(adam | brain, None).step_bytes(half) == (1600 + 3200, 0)
    assert read_settings(adam | brain | {"data_types": {"grad_accum_dtype": "fp32"}}, None).step_bytes(
        half
    ) == (3200, 0)


def test_what_data_parallel_ranks_divide():
    """What ZeRO-1 keeps and takes for a while; of DeepSpeed's BF16_Optimizer not the flat copy of the gradients; and
    nothing where each rank has an optimizer for all."""
    adam = {"optimizer": {"type": "Adam", "params": {"torch_adam": True}}}
    zero, brain = {"zero_optimization": {"stage": 1}}, {"bf16": {"enabled": True}}
    whole = [nn.Parameter(torch.ones(size)) for size in (100, 301)]
    half = [nn.Parameter(p.detach().bfloat16()) for p in whole]
    for config, parameters, kept, taken in (
        (adam | zero, whole, 4812 // 2, 4812 // 2 - 1604),
        (adam | zero | brain, half, 4812 // 2, 4812 // 2 - 802),
        (adam | brain, half, 4812 // 2, 4812 // 2),
        (brain, half, 1604 // 2, 802),
        (adam, whole, 2 * 1604, 1604),
    ):
        settings = read_settings(config, None, ranks=2, accelerator=config == adam)
        assert settings.optimizer_bytes(parameters) == kept, config
        assert settings.step_bytes(parameters)[0] == taken, config


def test_buckets_of_zero():
    size = {"zero_optimization": {"stage": 1, "reduce_bucket_size": 1000}}
    brain = {"bf16": {"enabled": True}}
    assert read_settings(size, None).bucket_bytes() == (4000, 4000)
    assert read_settings(size | brain, None).bucket_bytes() == (2000, 2000)
    # DeepSpeed's own.
    assert read_settings({"zero_optimization": {"stage": 1}} | brain, None).bucket_bytes() == (10**9, 10**9)
    assert read_settings(
        size | brain | {"data_types": {"grad_accum_dtype": "fp32"}}, None
    ).bucket_bytes() == (0, 0)
    twice = {"zero_optimization": size["zero_optimization"] | {"overlap_comm": True}}
    assert read_settings(twice, None).bucket_bytes() == (8000, 4000)
    assert read_settings(brain, None).bucket_bytes() == (0, 0)
