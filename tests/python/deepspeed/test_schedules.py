# SPDX-License-Identifier: Apache-2.0
"""Schedules of learning rates over groups of the optimizer of which a plan leaves a rank without some."""

from dataclasses import replace

import pytest
import torch
from support import models
from support.models import LAYERS
from support.plans import Layout, make_plan
from support.training import MICRO_BATCHES, Options, data_of, make_model, weights

ALONE = Layout("alone", (1,), (0, 1))  # rank 0 has the embedding alone, and so no vectors
ZERO_1 = {"zero_optimization": {"stage": 1}}


def trained(options: Options) -> dict:
    """Vectors and matrices, each with a rate that changes as it likes."""
    import deepspeed

    model = make_model(options)
    kinds = ([p for p in model.parameters() if (p.dim() > 1) is wanted] for wanted in (False, True))
    optimizer = torch.optim.AdamW([{"params": kind} for kind in kinds], lr=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, [lambda step: 0.5**step, lambda step: 1 / (1 + step)]
    )
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, lr_scheduler=schedule, config=options.configuration()
    )
    engine.batches = models.micro_batches
    data = data_of(engine)
    losses = [engine.train_batch(data).item() for _ in range(3)]
    return {"losses": losses, "weights": weights(engine), "rates": schedule.get_last_lr()}


@pytest.mark.parametrize("config", [{}, ZERO_1])
def test_a_rank_without_a_group_keeps_the_rates_of_all_groups(world2, stock, tmp_path, config):
    options = Options(config=config, own_optimizer=True)
    plan = make_plan(tmp_path, ALONE, LAYERS, MICRO_BATCHES)
    ours = world2.run(trained, replace(options, section={"plan": str(plan)}))
    assert ours == stock(world2, options, trained)
