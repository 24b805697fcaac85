# SPDX-License-Identifier: Apache-2.0
"""Worlds as in tests/python; one stock training for each model and optimizer."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "python"))

from support import worlds as support_worlds  # noqa: E402

from .cases import cases, every_day  # noqa: E402
from .catalogue import MODELS  # noqa: E402
from .placements import Placement  # noqa: E402
from .table import keep_verdicts, read_verdicts, write_table  # noqa: E402
from .trainings import train_named  # noqa: E402
from .verdict import Verdict  # noqa: E402

PRELOADED = ["transformers.models." + name for name in (
    "bert.modeling_bert", "gpt2.modeling_gpt2", "llama.modeling_llama", "mixtral.modeling_mixtral", "qwen2_moe.modeling_qwen2_moe",
    "resnet.modeling_resnet", "t5.modeling_t5", "vit.modeling_vit", "whisper.modeling_whisper",
)]  # fmt: skip
support_worlds.LOADED.extend(PRELOADED)  # ranks are forked from a process that has them
# Seconds of a training; trainings of a world, which then starts anew: that takes a second.
LIMIT, RUNS = 90, 12


def pytest_addoption(parser):
    parser.addoption(
        "--all",
        action="store_true",
        help="every model of the zoo under every placement, and many drawn models",
    )
    parser.addoption("--examples", type=int, help="so many drawn models")
    parser.addoption(
        "--so-far", metavar="FILE", help="verdicts of earlier runs, which this run's are added to"
    )
    parser.addoption(
        "--table", metavar="FILE", help="write the table of verdicts into FILE, e.g. docs/zoo.md"
    )


def pytest_generate_tests(metafunc):
    """Model and placement: the telling ones, or all of them."""
    if "case" in metafunc.fixturenames:
        given = [
            pytest.param(case, marks=() if every_day(*case) else pytest.mark.slow)
            for case in cases(metafunc.config.getoption("--all"))
        ]
        metafunc.parametrize("case", given, ids=lambda case: f"{case[0]} × {case[1]}")


@pytest.fixture(scope="session")
def worlds():
    with support_worlds.World(2, LIMIT, RUNS) as two, support_worlds.World(4, LIMIT, RUNS) as four:
        yield {2: two, 4: four}


@pytest.fixture(scope="session")
def trained(worlds):
    """trained(case, folder): (outcomes of DeepSpeed alone, outcomes under the placement), by rank."""
    stock = {}

    def run(name: str, placement: Placement, folder: Path):
        world, model = worlds[placement.ranks], MODELS[name]
        key = name, placement.ranks, placement.optimizer
        if key not in stock:
            stock[key] = world.run(train_named, name, None, placement.optimizer)
        ours = world.run(train_named, name, placement.section(model, folder), placement.optimizer)
        if any(outcome.failed for outcome in ours):
            world.restart()
        return stock[key], ours

    return run


@pytest.fixture(scope="session")
def table(request):
    """verdicts[model][placement], which --table writes down when all is over."""
    earlier = request.config.getoption("--so-far")
    verdicts: dict[str, dict[str, Verdict]] = read_verdicts(Path(earlier)) if earlier else {}
    yield verdicts
    if earlier:
        keep_verdicts(Path(earlier), verdicts)
    if request.config.getoption("--table"):
        write_table(Path(request.config.getoption("--table")), verdicts)
