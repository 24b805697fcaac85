# SPDX-License-Identifier: Apache-2.0
"""A layer of deepspeed.moe in parts: what the layer computes, and its gradients, bit for bit; exchanges on a lane."""

from unittest import mock

import pytest
import torch
import torch.distributed as dist
from ostinato.nn import moe_parts
from ostinato.profile.model.lanes import lane_of
from torch import nn

WIDTH, EXPERTS = 8, 4


def made(ranks: int, **options):
    """The same gate on all ranks, and for each its experts."""
    from deepspeed.moe.layer import MoE
    from deepspeed.utils import groups

    torch.manual_seed(3)
    expert = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
    settings = {"num_experts": EXPERTS, "ep_size": ranks, "use_rts": False, "top2_2nd_expert_sampling": False}
    moe = MoE(WIDTH, expert, **settings | options)
    torch.manual_seed(5 + dist.get_rank())
    for parameter in moe.deepspeed_moe.experts.parameters():
        nn.init.normal_(parameter, std=0.5)
    if moe.expert_group_name not in groups._get_expert_parallel_group_dict():
        with mock.patch.object(groups, "mpu", None):  # an engine of an earlier test may have left its own
            groups._create_expert_and_data_parallel(ranks)
    moe.deepspeed_moe._set_ep_group(groups._get_expert_parallel_group(moe.expert_group_name))
    return moe


def compared(ranks: int, k: int) -> list[bool]:
    """Output, auxiliary loss, gradients of the input and of all parameters."""
    moe = made(ranks, k=k)
    torch.manual_seed(9 + dist.get_rank())
    hidden = torch.randn(3, 5, WIDTH, requires_grad=True)
    results = []
    for in_parts in (False, True):
        moe.zero_grad()
        hidden.grad = None
        if in_parts:
            value = (hidden, hidden)
            for part in moe_parts(moe):
                value = part(value)
            output, l_aux, rest = value
            assert rest is hidden and l_aux.shape == (1,)
        else:
            output, l_aux, _ = moe(hidden)
        ((output + hidden).square().mean() + 0.1 * l_aux.sum()).backward()
        found = [output.detach(), l_aux.detach().view(()), hidden.grad]
        results.append([*found, *(p.grad.clone() for p in moe.parameters())])
    return [torch.equal(mine, whole) for mine, whole in zip(*results, strict=True)]


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("ranks", [1, 2])
def test_parts_compute_what_the_layer_does(world2, ranks, k):
    for found in world2.run(compared, ranks, k):
        assert len(found) > 6 and all(found)


def on_lanes() -> list[str]:
    return [lane_of(part) for part in moe_parts(made(2))]


def refused(options: dict) -> str:
    try:
        moe_parts(made(1, **options))
    except ValueError as error:
        return str(error)
    return ""


def test_the_exchanges_are_on_a_lane(world2):
    assert world2.run(on_lanes)[0] == ["", "network", "", "network", ""]


@pytest.mark.parametrize("option", [{"use_residual": True}, {"drop_tokens": False}], ids=str)
def test_what_has_no_parts(world2, option):
    name = next(iter(option))
    assert f"a layer with {name}={option[name]} cannot be cut" in world2.run(refused, option)[0]
