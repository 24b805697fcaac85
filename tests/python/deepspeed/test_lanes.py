# SPDX-License-Identifier: Apache-2.0
"""Stages on a lane of their rank, in DeepSpeed's engine: the same bits as its own 1F1B, and what may not be there."""

import re
import threading
from dataclasses import replace

import pytest
from ostinato.nn import on_lane
from support.models import LAYERS
from support.plans import Layout, make_plan, placement_text
from support.training import MICRO_BATCHES, MODELS, Options, Replacing, data_of, make_engine, refusal, weights
from torch import nn

# Layer 1 runs on rank 0's lane, layer 4, whose input comes from rank 0, on rank 1's.
LANES = Layout("lanes", (1, 2, 4, 5), (0, 0, 0, 1, 1), lanes=(1, 3))
threads: set[int] = set()


@on_lane
class Exchange(nn.Module):
    """Stands for one: the values change, and the layer has no parameters."""

    def forward(self, hidden):
        threads.add(threading.get_ident())
        return 1.5 * hidden.flip(0)


MODELS["exchanging"] = Replacing(Exchange)
PLAIN = Options(model="exchanging", changed=((1, "exchange"), (4, "exchange")))
PRECISE = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 1}}


def trained(options: Options) -> dict:
    engine, here = make_engine(options), threading.get_ident()
    data = data_of(engine)
    threads.clear()
    losses = [engine.train_batch(data).item() for _ in range(4)]
    beside = bool(threads) and here not in threads
    return {"losses": losses, "weights": weights(engine), "beside": beside}


def refused(options: Options) -> str:
    """From this module, which adds the model."""
    return refusal(options)


@pytest.fixture(scope="module")
def section(tmp_path_factory):
    return {"plan": str(make_plan(tmp_path_factory.mktemp("plan"), LANES, LAYERS, MICRO_BATCHES))}


@pytest.mark.parametrize("config", [{}, PRECISE], ids=["fp32", "bf16, ZeRO-1"])
def test_equal_bits_beside_what_the_rank_computes(world2, stock, section, config):
    options = replace(PLAIN, config=config)
    mine = world2.run(trained, replace(options, section=section))
    assert [of_rank["beside"] for of_rank in mine] == [True, True]
    assert compared(mine) == compared(stock(world2, options, trained))


def test_equal_bits_where_what_computes_recomputes(world2, stock, tmp_path):
    text = placement_text(LANES, LAYERS)
    for stage in (0, 2, 4):
        text = re.sub(rf'(name = "s{stage}"\nlayers = .*)', r"\1\nrecompute = true", text)
    plan = make_plan(tmp_path, LANES, LAYERS, MICRO_BATCHES, text=text)
    mine = world2.run(trained, replace(PLAIN, section={"plan": str(plan)}))
    assert [of_rank["beside"] for of_rank in mine] == [True, True]
    assert compared(mine) == compared(stock(world2, PLAIN, trained))


def compared(results: list[dict]) -> list[dict]:
    return [{name: of_rank[name] for name in ("losses", "weights")} for of_rank in results]


def test_a_layer_that_learns_is_refused_on_a_lane(world2, section):
    said = world2.run(refused, replace(PLAIN, changed=((4, "exchange"),), section=section))
    assert said[0] == said[1]
    assert said[0] == (
        "Unsupported: layer 1 on lane network has parameters: only layers that exchange or copy what they are given may be on a lane"
    )


def test_an_exchange_that_is_computed_beside_a_lane_is_refused(world2, section):
    said = world2.run(refused, replace(PLAIN, changed=(*PLAIN.changed, (2, "exchange")), section=section))
    assert said[0] == said[1] and said[0].startswith(
        'Unsupported: stage "s2" computes layer 2, while other layers run on lane network of its rank'
    )
