"""Stages that a plan recomputes (a mode "recompute" that the search chose) behind DeepSpeed's engine."""

import json
from dataclasses import replace

import pytest
from support import models
from support.models import LAYERS
from support.plans import Layout, placement_text
from support.training import MICRO_BATCHES, Options, data_of, make_engine, train

CUTS, RANKS = (2, 4, 6), (0, 1, 0, 1)


def choices(split: bool) -> str:
    """Every stage may drop half of what its forward keeps, and compute it again."""
    back, text = ("I" if split else "B"), ""
    for s in range(len(RANKS)):
        changes = [f'{{ block = "s{s}.F", memory = 1 }}']
        changes += [f'{{ block = "s{s}.{back}", kind = "backward", memory = -1, time = 600 }}']
        changes += [f'{{ block = "s{s}.W", absent = true }}'] if split else []
        text += f'[[choices]]\nname = "s{s}"\nmodes = [{{ name = "keep" }}, {{ name = "recompute", blocks = [{", ".join(changes)}] }}]\n'
    return text


def plan_of(folder, split: bool) -> tuple[str, list[int]]:
    """Its file, and the stages that it recomputes: memory is too short to keep everything."""
    from ostinato import _search

    folder.mkdir(exist_ok=True)
    layout = Layout("recompute", CUTS, RANKS, split=split)
    text = placement_text(layout, LAYERS).replace('name = "device0"', 'name = "device0"\nmemory = 3')
    placement, plan = folder / "placement.toml", folder / "plan.json"
    placement.write_text(text + choices(split))
    options = ["--micro-batches", str(MICRO_BATCHES), "--choose", "--time-limit", "2", "--output", str(plan)]
    assert _search.main(["search", str(placement), *options]) in (0, 5)
    taken = json.loads(plan.read_text())["modes"]["taken"]
    return str(plan), [int(t["choice"][1:]) for t in taken if t["mode"] == "recompute"]


@pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])
def test_same_numbers(world2, tmp_path, split):
    """Recomputing changes no bit, the first stage's integers and the last stage's loss included."""
    options = Options(stages=2, optimizer="SGD", seed_layers=True)
    plan, stages = plan_of(tmp_path, split)
    assert stages
    expected, got = (world2.run(train, o)[0] for o in (options, replace(options, section={"plan": plan})))
    assert (got["losses"], got["evaluation"], got["last"]) == (expected["losses"], expected["evaluation"], expected["last"])


def forwards_of_blocks(options: Options) -> tuple[int, int]:
    """How often this rank's Blocks run in a training step, and in an evaluation."""
    engine, count = make_engine(options), 0
    original = models.Block.forward

    def counting(block, hidden):
        nonlocal count
        count += 1
        return original(block, hidden)

    models.Block.forward = counting
    try:
        engine.train_batch(data_of(engine))
        trained, count = count, 0
        engine.eval_batch(data_of(engine))
    finally:
        models.Block.forward = original
    return trained, count


def test_stages_run_twice(world2, tmp_path):
    plan, stages = plan_of(tmp_path, split=False)
    blocks = {layer for layer, spec in enumerate(models.layers(False, False)) if getattr(spec, "typename", None) is models.Block}
    bounds = [0, *CUTS, LAYERS]
    times = [sum(b in range(bounds[s], bounds[s + 1]) for b in blocks) * (1 + (s in stages)) for s in range(4)]
    got = world2.run(forwards_of_blocks, Options(stages=2, section={"plan": plan}))
    for rank, (trained, evaluated) in enumerate(got):
        own = [s for s in range(4) if RANKS[s] == rank]
        assert trained == MICRO_BATCHES * sum(times[s] for s in own)
        assert evaluated == MICRO_BATCHES * sum(times[s] // (1 + (s in stages)) for s in own)
