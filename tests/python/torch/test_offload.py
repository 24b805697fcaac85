# SPDX-License-Identifier: Apache-2.0
"""What stages keep is copied to the host and back: the same bits, under both hosts. On the CPU, where the check that
refuses it is left out: both memories are one there, and what is tried is what moves when."""

from unittest import mock

import pytest
import torch
from ostinato import offload
from ostinato.offload import NeedsAccelerator, Offloaded
from support import torch_jobs
from support.models import LAYERS
from support.plans import Layout, make_plan
from support.torch_jobs import MICRO_BATCHES, Case, check_gradients
from support.training import Options, refusal, train
from torch import nn

OFFLOADED = Layout("offloaded", (4,), (0, 1), offloaded=(0,))
SPLIT = Layout("offloaded and split", (4,), (0, 1), split=True, offloaded=(0,))


def in_one_memory(job, *args):
    """job(*args), and how many storages went to the host, on each rank."""
    moved = []
    leave = offload.Storage.leave

    def counted(storage):
        moved.append(storage)
        leave(storage)

    with mock.patch.object(offload, "check"), mock.patch.object(offload.Storage, "leave", counted):
        return job(*args), len(moved)


@pytest.mark.parametrize("layout", [OFFLOADED, SPLIT], ids=lambda layout: layout.name)
def test_torch_pipelines_equal_one_process(world2, tmp_path, layout):
    case = Case(str(make_plan(tmp_path, layout, torch_jobs_layers(), MICRO_BATCHES)))
    expected, results = torch_jobs.alone(case), world2.run(in_one_memory, torch_jobs.train, case)
    assert results[0][1] > MICRO_BATCHES and results[1][1] == 0
    trained = [result for result, _ in results]
    assert trained[1]["losses"] == pytest.approx(expected["losses"], rel=1e-7)
    check_gradients(trained, expected, torch.equal)
    assert "0O0" in [text for text, _, _ in trained[0]["ran"]]


def torch_jobs_layers() -> int:
    return len(torch_jobs.chain())


@pytest.mark.parametrize("config", [{}, {"bf16": {"enabled": True}, "zero_optimization": {"stage": 1}}])
def test_deepspeed_trains_as_alone(world2, stock, tmp_path, config):
    plan = make_plan(tmp_path, OFFLOADED, LAYERS, MICRO_BATCHES)
    options = Options(config=config, steps=4)
    results = world2.run(in_one_memory, train, Options(**vars(options) | {"section": {"plan": str(plan)}}))
    assert results[0][1] > 4 * MICRO_BATCHES and results[1][1] == 0
    for (mine, _), alone in zip(results, stock(world2, options, train), strict=True):
        assert all(mine[name] == alone[name] for name in ("losses", "last", "evaluation"))


def test_a_cpu_is_refused(world2, tmp_path):
    plan = str(make_plan(tmp_path, OFFLOADED, LAYERS, MICRO_BATCHES))
    says = "the plan offloads stage s0, which saves nothing on a CPU"
    assert all(says in said for said in world2.run(refusal, Options(section={"plan": plan})))
    assert all(says in said for said in world2.run(refused_pipeline, plan))


def refused_pipeline(plan: str) -> str:
    try:
        torch_jobs.train(Case(plan))
    except NeedsAccelerator as error:
        return str(error)
    return ""


def test_weights_stay_and_views_come_back_as_they_were():
    torch.manual_seed(1)
    layer, kept = nn.Linear(4, 4), Offloaded()
    rows = torch.randn(6, 4, requires_grad=True)
    with kept.of(0, layer.parameters()):
        made = torch.tanh(layer(rows[::2]))  # a view; the input, and the result, which are saved
    storages = kept._kept[0]
    weight = layer.weight.untyped_storage().data_ptr()
    assert len(storages) == 2 and weight not in [s.there().untyped_storage().data_ptr() for s in storages]
    kept.move(0, "O")
    with pytest.raises(RuntimeError, match="has not come back"):
        made.sum().backward(retain_graph=True)
    kept.move(0, "L")
    made.sum().backward()
    mine, rows.grad = (rows.grad.clone(), layer.weight.grad.clone()), None
    layer.zero_grad()
    torch.tanh(layer(rows[::2])).sum().backward()
    assert torch.equal(mine[0], rows.grad) and torch.equal(mine[1], layer.weight.grad)
    assert not kept._kept
