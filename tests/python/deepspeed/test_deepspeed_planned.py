# SPDX-License-Identifier: Apache-2.0
"""From the model to its training in one path: profile, `ostinato plan`, DeepSpeed. Models with branches,
against one process; and plans that shard some layers and recompute others."""

import json
import tomllib
from dataclasses import replace
from functools import partial

import pytest
import torch
from support import branch_model as branches
from support import training
from support import vocabulary_model as shards
from support.branch_model import Block, Join
from support.models import BATCH, LENGTH, VOCABULARY, WIDTH
from support.profiles import write_profile
from support.tiers import everyday
from support.training import MICRO_BATCHES, Options, in_both_starts
from torch import nn

from ostinato import _profiler
from ostinato.deepspeed import graph
from ostinato.profile import Job, profile_layers

STEPS = 6
TOWERS = Options(model="branches", optimizer="SGD", steps=STEPS)


def described(tied: bool = False) -> dict:
    """The layers of two towers in turn, so that those of one tower are no run. `tied`: their tables are one,
    and the head's."""
    from deepspeed.pipe import LayerSpec, TiedLayerSpec

    embed = LayerSpec(nn.Embedding, VOCABULARY, WIDTH)
    block = LayerSpec(Block)
    head = LayerSpec(nn.Linear, WIDTH, VOCABULARY)
    if tied:
        embed = TiedLayerSpec("table", nn.Embedding, VOCABULARY, WIDTH)
        head = TiedLayerSpec("table", nn.Embedding, VOCABULARY, WIDTH, forward_fn=branches.unembed)
    return {
        "text": (embed, "tokens"),
        "image": (embed, "pixels"),
        "text1": (block, "text"),
        "image1": (block, "image"),
        "text2": (block, "text1"),
        "image2": (block, "image1"),
        "join": (LayerSpec(Join), "text2", "image2", "text"),
        "head": (head, "join"),
    }


def make_engine(options: Options):
    original, branches.described = branches.described, described
    try:
        return training.make_engine(options)
    finally:
        branches.described = original


def train(options: Options) -> dict:
    """As the neighbouring file trains its model; with the weights at the beginning and at the end."""
    engine = make_engine(options)
    data = branches.micro_batches(7)
    first = training.weights(engine)
    losses = [engine.train_batch(data).item() for _ in range(options.steps)]
    return {
        "first": first,
        "losses": losses,
        "last": training.weights(engine),
        "kind": type(engine).__mro__[1].__name__,
    }


def tensors_of(weights: dict) -> dict:
    """By DeepSpeed's name of the parameter."""
    return {
        name.partition("@")[0]: torch.frombuffer(bytearray(data), dtype=torch.float32)
        for name, data in weights.items()
    }


def in_one_process(first: dict, tied: bool = False) -> tuple[list[float], dict]:
    """Losses and last weights of the same training, written down as one would without any pipeline."""
    specs, modules = described(tied), nn.ModuleDict({"tied_modules": nn.ModuleDict()})
    for index, (spec, *_) in enumerate(specs.values()):
        key = getattr(spec, "key", None)
        if key is None:
            modules[str(index)] = nn.ModuleDict({"layer": spec.build()})
        elif key not in modules["tied_modules"]:
            modules["tied_modules"][key] = nn.ModuleDict({"layer": spec.build()})
    with torch.no_grad():
        for name, parameter in modules.named_parameters():
            parameter.copy_(first[name].view_as(parameter))
    optimizer, data, losses = torch.optim.SGD(modules.parameters(), lr=0.05), branches.micro_batches(7), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        of_step = []
        for _ in range(MICRO_BATCHES):
            inputs, targets = next(data)
            values = dict(zip(branches.INPUTS, inputs, strict=True))
            for index, (name, (spec, *reads)) in enumerate(specs.items()):
                key = getattr(spec, "key", None)
                layer = (modules[str(index)] if key is None else modules["tied_modules"][key])["layer"]
                call = partial(spec.forward_fn, layer) if getattr(spec, "forward_fn", None) else layer
                values[name] = call(*(values[read] for read in reads))
            loss = branches.loss(values["head"], targets)
            (loss / MICRO_BATCHES).backward()
            of_step.append(loss.item())
        optimizer.step()
        losses.append(sum(of_step) / MICRO_BATCHES)
    return losses, dict(modules.named_parameters())


def plan(folder, *options) -> dict:
    """The section that runs what `ostinato plan` chooses for folder/profile.json."""
    from ostinato import _search

    files = ["--output", str(folder / "plan.json"), "--placement-output", str(folder / "placement.toml")]
    words = [*map(str, options), "--micro-batches", str(MICRO_BATCHES), "--time-limit", "5", *files]
    assert _search.main(["plan", str(folder / "profile.json"), "--all-devices", *words]) == 0
    assert _search.main(["verify", files[1], files[3]]) == 0
    return {"plan": files[1]}


def stages_of(folder) -> list[dict]:
    return tomllib.loads((folder / "placement.toml").read_text())["stages"]


@pytest.fixture(scope="module")
def measured():
    return profile_of(tied=False)


def profile_of(tied: bool):
    """The profile of the model with branches, with times that do not depend on this machine."""
    tokens = torch.randint(VOCABULARY, (2, BATCH, LENGTH))
    job = Job(
        layers=graph(described(tied), branches.INPUTS),
        inputs=tuple(tokens),
        labels=tokens[0],
        loss_fn=branches.loss,
    )
    job.repeats, job.warm_up = 1, 0
    profile = profile_layers(job)
    rows = profile.layers
    for row in rows:
        cheap = row.name in ("6:join", "7:head")
        row.forward, row.backward = (
            _profiler.spread_of([time]) for time in ((1000, 1000) if cheap else (10**6, 2 * 10**6))
        )
    profile.layers = rows
    return profile


def test_a_graph_is_profiled_as_a_graph(measured):
    rows, carried = measured.layers, BATCH * LENGTH * WIDTH * 4
    assert [row.name for row in rows] == [f"{i}:{name}" for i, name in enumerate(described())]
    assert [[i.layer for i in row.after] for row in rows] == [[], [], [0], [1], [2], [3], [0, 4, 5], [6]]
    assert all(i.bytes == carried for row in rows for i in row.after)
    assert [row.output_bytes for row in rows[:7]] == [carried] * 7  # nothing that rides along counts
    assert [row.same_as for row in rows[:6]] == [-1, 0, -1, 2, 2, 2]  # as the same layers of a chain
    assert [row.shardable for row in rows] == [True, True, *[False] * 5, True]  # what ostinato.nn cuts


@pytest.mark.parametrize("objective", everyday(["latency", "makespan"], "latency"))
@pytest.mark.parametrize("ranks", everyday([2, 4], 4))
def test_branches_from_the_profile_to_the_training(request, measured, ranks, objective, tmp_path):
    """Within rounding of one process: what two layers read has its gradients added in another order."""
    measured.write(str(tmp_path / "profile.json"))
    # Halves in a chain may be as quick as the towers.
    whole = ["--without", "split"] if objective == "latency" else []
    section = plan(tmp_path, "--devices", ranks, "--objective", objective, *whole)
    if objective == "latency":  # the towers beside each other
        assert any(isinstance(stage["layers"][0], list) for stage in stages_of(tmp_path))
        found = json.loads((tmp_path / "plan.json").read_text())
        assert found["optimal"]["latency"] and found["lower_bound"]["latency"] < 10**7
    trained_as_in_one_process(
        request.getfixturevalue(f"world{ranks}"), replace(TOWERS, stages=ranks, section=section)
    )


def trained_as_in_one_process(world, options: Options) -> None:
    got, again = (world.run(train, options)[0] for _ in range(2))
    assert got["kind"] == "PlanEngine"
    assert (got["losses"], got["last"]) == (again["losses"], again["last"])
    losses, weights = in_one_process(tensors_of(got["first"]), options.tied)
    assert got["losses"] == pytest.approx(losses, rel=1e-5)
    last = tensors_of(got["last"])
    assert set(weights) == set(last)
    for name, value in weights.items():
        assert torch.allclose(value.detach().flatten(), last[name], atol=1e-5), name


def test_tied_branches_from_the_profile_to_the_training(world2, tmp_path):
    profile = profile_of(tied=True)
    assert [row.shardable for row in profile.layers] == [False] * len(profile.layers)
    profile.write(str(tmp_path / "profile.json"))
    section = plan(tmp_path, "--devices", 2, "--objective", "latency", "--without", "split")
    trained_as_in_one_process(world2, replace(TOWERS, tied=True, section=section))


def evaluated(options: Options) -> dict:
    """Losses and outputs of eval_batch()."""
    engine = make_engine(options)
    data = branches.micro_batches(7)
    losses = [engine.eval_batch(data, num_micro_batches=n).item() for n in (None, 6)]
    engine.total_loss = None
    outputs = engine.eval_batch(
        data, compute_loss=False, reduce_output=None, bcast_loss=False, num_micro_batches=5
    )
    return {"losses": losses, "outputs": outputs, "kind": type(engine).__mro__[1].__name__}


@pytest.mark.parametrize("way", everyday(["latency", "makespan", "section"], "section"))
def test_branches_from_the_profile_to_answers(world2, measured, way, tmp_path):
    """Forwards alone, planned by `ostinato plan --inference` or by the section itself; what DeepSpeed's own
    engine gives."""
    measured.write(str(tmp_path / "profile.json"))
    if way == "section":
        section = {
            "profile": str(tmp_path / "profile.json"),
            "search": {"inference": True, "time_limit": 2},
            "output": str(tmp_path),
        }
    else:
        section = plan(tmp_path, "--devices", 2, "--inference", "--objective", way)
    options = Options(model="branches", optimizer=None)
    expected, got = (
        world2.run(in_both_starts, evaluated, o) for o in (options, replace(options, section=section))
    )
    blocks = tomllib.loads((tmp_path / "placement.toml").read_text())["blocks"]
    assert {block["kind"] for block in blocks} == {"forward"}
    if way == "latency":  # the towers beside each other
        assert json.loads((tmp_path / "plan.json").read_text())["lower_bound"]["latency"] < 4 * 10**6
    assert got[0]["kind"] == "PlanEngine"
    assert [rank["losses"] for rank in got] == [rank["losses"] for rank in expected]
    mine, theirs = (
        next(r["outputs"] for r in results if r["outputs"] is not None) for results in (got, expected)
    )
    assert len(mine) == 5 and all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


@pytest.mark.slow  # test_a_graph_is_profiled_as_a_graph has the edges, a section's profile the answers
def test_auto_measures_branches(world2, stock, tmp_path):
    """The profile that is measured inside DeepSpeed has the edges, and what rides along in a chain is no
    layer's own."""
    options = replace(
        TOWERS, section={"auto": True, "output": str(tmp_path), "search": {"time_limit": 1, "max_chunks": 2}}
    )
    got = world2.run(in_both_starts, train, options)[0]
    assert got["kind"] == "PlanEngine"
    rows, carried = json.loads((tmp_path / "profile.json").read_text())["layers"], BATCH * LENGTH * WIDTH * 4
    assert rows[6]["after"] == [{"layer": layer, "bytes": carried} for layer in (0, 4, 5)]
    assert got["losses"] == pytest.approx(stock(world2, TOWERS, train)[0]["losses"], rel=1e-5)


@pytest.mark.parametrize("ranks", everyday([2, 4], 2))
def test_shards_beside_stages_that_recompute(request, stock, ranks, tmp_path):
    """Memory is too short for the head on one device, and for what the stages would keep."""
    write_profile(tmp_path / "profile.json", [100] * (shards.LAYERS - 1) + [1200])
    profile = json.loads((tmp_path / "profile.json").read_text())
    for row in profile["layers"]:
        row["kept"], row["input_bytes"], row["shardable"] = 4096, 64, row["index"] == shards.LAYERS - 1
    (tmp_path / "profile.json").write_text(json.dumps(profile))
    section = plan(tmp_path, "--devices", ranks, "--device-memory", "24KiB" if ranks == 2 else "14KiB")
    stages = stages_of(tmp_path)
    blocks = tomllib.loads((tmp_path / "placement.toml").read_text())["blocks"]
    assert any(len(block["devices"]) == ranks for block in blocks), "no layer is sharded"
    assert any(stage.get("recompute") for stage in stages), "no stage recomputes"
    world = request.getfixturevalue(f"world{ranks}")
    options = Options(model="vocabulary", optimizer="SGD", stages=ranks, steps=10)
    expected, got = stock(world, options)[0], world.run(training.train, replace(options, section=section))[0]
    assert got["losses"] == pytest.approx(expected["losses"], rel=1e-5)
