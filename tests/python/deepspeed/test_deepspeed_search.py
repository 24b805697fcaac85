# SPDX-License-Identifier: Apache-2.0
"""Plans that are searched when the run starts: from a profile, and after measuring (auto)."""

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from ostinato.deepspeed.section import kept, search
from ostinato.deepspeed.section.config import Paths, Search, Section
from ostinato.deepspeed.errors import OstinatoError
from ostinato.deepspeed.start import first_pass, second_start
from ostinato.profile.errors import ProfileError
from ostinato.restrictions import Restriction
from support.models import LAYERS, WIDTH, Block
from support.plans import Layout, make_plan
from support.profiles import write_profile
from support.tiers import everyday
from torch import nn
from support.training import (
    MICRO_BATCHES,
    Options,
    data_of,
    in_both_starts,
    make_engine,
    refusal,
    resumed,
    train,
    train_enabled,
    train_unsupported,
    train_with_costs,
    weights,
)

BASE = Options(stages=2, steps=6)


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    """The second half is three times the first: DeepSpeed's partition by number of layers is far from
    balanced."""
    return write_profile(
        tmp_path_factory.mktemp("profile") / "profile.json", [100] * 4 + [300] * (LAYERS - 4)
    )


@pytest.fixture(scope="module")
def alone(world2, stock):
    return stock(world2, BASE)


def same_numbers(got: list[dict], expected: list[dict]) -> None:
    for mine, theirs in zip(got, expected, strict=True):
        for key in ("random_state", "first", "losses", "last", "evaluation"):
            assert mine[key] == theirs[key], key


def test_searches_from_a_profile(world2, profile, alone, tmp_path):
    section = {
        "profile": str(profile),
        "search": {"time_limit": 1, "seed": 3},
        "output": str(tmp_path / "out"),
    }
    got = world2.run(train, replace(BASE, section=section))
    same_numbers(got, alone)
    assert {result["kind"] for result in got} == {"PlanEngine"}
    plan = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert plan["search"]["seed"] == 3
    # Balanced otherwise than by number.
    assert "layers = [0, 4]" not in (tmp_path / "out" / "placement.toml").read_text()


def test_rank_0_says_what_was_not_tried_and_why(profile, capsys):
    asked = Search(time_limit=1, max_chunks=3)
    own = Restriction("most_chunks", "Net has its own forward()", chunks=1)
    found = search._search(
        asked, profile, search.Size(2, MICRO_BATCHES, restrictions=[own, *asked.restrictions()])
    )
    said = capsys.readouterr().out
    assert (
        "ostinato: not tried: more than 1 stage per device (Net has its own forward())\n" in said
        and "more than 3" not in said
    )
    assert found.placement.text.count("[[stages]]") == 2
    search._search(asked, profile, search.Size(2, MICRO_BATCHES, restrictions=asked.restrictions()))
    assert (
        'not tried: inputs or loss not on the devices of 1F1B, as in waves ("search": {"ends": "free"} allows them); none of the candidates'
        in capsys.readouterr().out
    )


def test_enable_searches_too(world2, profile, alone):
    options = {"profile": str(profile), "search": {"time_limit": 1, "max_chunks": 1}}
    same_numbers(world2.run(train_enabled, BASE, options), alone)


QUICK = {"time_limit": 1, "max_chunks": 2}
AUTO = {
    "zero1": replace(BASE, config={"zero_optimization": {"stage": 1}}),
    "bf16": replace(BASE, config={"bf16": {"enabled": True}}),
    "own-optimizer-zero1": replace(BASE, own_optimizer=True, config={"zero_optimization": {"stage": 1}}),
    "tied-checkpointed": replace(
        BASE,
        tied=True,
        checkpoint_interval=1,
        seed_layers=True,
        config={"pipeline": {"use_reentrant": False}},
    ),
}


# Memory for the activations of one micro-batch at most: a stage must recompute.
SHORT = {"time_limit": 2, "max_chunks": 1, "device_memory": f"{4 * 2**20 + 8192}B"}


@pytest.mark.parametrize("way", everyday(["profile", "auto"], "profile"))
def test_a_searched_plan_that_recomputes(world2, alone, tmp_path, way):
    costs = write_profile(tmp_path / "profile.json", [4000] * LAYERS, kept=1 << 20)
    section = {"search": SHORT, "output": str(tmp_path / "out")} | (
        {"auto": True} if way == "auto" else {"profile": str(costs)}
    )
    got = world2.run(train_with_costs, replace(BASE, section=section), costs.read_text())
    assert "recompute = true" in (tmp_path / "out" / "placement.toml").read_text()
    assert {result["kind"] for result in got} == {"PlanEngine"}
    same_numbers(got, alone)


def test_auto_measures_and_switches(world2, alone, tmp_path):
    section = {"auto": True, "search": QUICK, "output": str(tmp_path)}
    measured = world2.run(train, replace(BASE, section=section))
    assert {result["kind"] for result in measured} == {"PlanEngine"}
    same_numbers(measured, alone)
    profile = json.loads((tmp_path / "profile.json").read_text())
    assert [row["index"] for row in profile["layers"]] == list(range(LAYERS))
    assert all(row["forward"]["median"] > 0 for row in profile["layers"])
    assert [(row["from"], row["to"], row["backend"]) for row in profile["transfers"]] == [
        (0, 1, "gloo"),
        (1, 0, "gloo"),
    ]
    # One is hidden by the next, in place.
    assert sum(row["backward"]["median"] > 0 for row in profile["layers"]) >= LAYERS - 1
    (tmp_path / "profile.json").unlink()
    same_numbers(world2.run(train, replace(BASE, section=section)), alone)
    assert not (tmp_path / "profile.json").exists()  # the plan was found, and nothing measured again


def on_a_full_disk(run, options):
    error = OSError(28, "No space left on device")
    with mock.patch("ostinato.files.write_text", side_effect=error), redirect_stderr(io.StringIO()) as said:
        with mock.patch("ostinato.deepspeed.start.first_pass.write_text", side_effect=error):
            return run(options), said.getvalue()


def refused_step(options):
    engine = make_engine(options)
    with pytest.raises(OstinatoError) as error:
        engine.train_batch(data_of(engine))
    return str(error.value)


def test_auto_where_the_disk_is_full(world2, alone, tmp_path):
    options = replace(BASE, section={"auto": True, "search": QUICK, "output": str(tmp_path)})
    measured, said = zip(*world2.run(on_a_full_disk, train, options), strict=True)
    assert {result["kind"] for result in measured} == {"PlanEngine"}
    same_numbers(measured, alone)
    lost = f"ostinato: {tmp_path / 'profile.json'} could not be written: No space left on device; the run goes on"
    assert lost in said[0] and not said[1]
    options = replace(options, section=options.section | {"auto": "measure"})
    for error, _ in world2.run(on_a_full_disk, refused_step, options):
        assert error == f"the plan could not be written to {tmp_path}"
    assert not list(tmp_path.iterdir())


def test_where_the_disk_is_full_an_older_plan_is_not_taken_for_the_new_one(tmp_path, monkeypatch):
    monkeypatch.setattr(second_start.again, "why_not_again", lambda further: "it is a notebook")
    monkeypatch.setattr(second_start.tempfile, "tempdir", str(tmp_path))
    files = {second_start.PLAN: "new", "placement.toml": "new"}
    for there, expected in {"old": False, "new": True}.items():
        (tmp_path / second_start.PLAN).write_text(there)
        named, is_there = second_start._kept(files, tmp_path)
        assert (Path(named).parent == tmp_path) == is_there == expected
        assert Path(named).read_text() == "new"


def measured_apart(options: Options, folder: str) -> tuple[object, str]:
    """The status with which "auto": "measure" ends where ranks have different paths, and what rank 0 said."""
    output = Path(folder) / str(dist.get_rank())
    engine = make_engine(replace(options, section=options.section | {"output": str(output)}))
    with redirect_stdout(io.StringIO()) as printed, pytest.raises(SystemExit) as end:
        engine.train_batch(data_of(engine))
    return end.value.code, printed.getvalue()


def test_measuring_on_nodes_with_different_paths(world2, tmp_path):
    """Rank 0 has written the plan; only its path counts."""
    options = replace(BASE, section={"auto": "measure", "search": QUICK, "fallback": False})
    got = world2.run(measured_apart, options, str(tmp_path))
    assert [status for status, _ in got] == [0, 0]
    assert f"the plan is in {tmp_path / '0' / 'plan.json'}: the next start runs it" in got[0][1]


@pytest.mark.parametrize("wrong", ["plan.json", "placement.toml"])
def test_a_damaged_plan_in_output_stops_all_ranks(world2, tmp_path, wrong):
    """Rank 0 alone reads it: the others would wait for it."""
    make_plan(tmp_path, Layout("kept", (3,), (0, 1)), LAYERS, MICRO_BATCHES)
    (tmp_path / wrong).write_text("{")
    section = {"auto": True, "fallback": True, "output": str(tmp_path)}
    for message in world2.run(refusal, replace(BASE, section=section)):
        assert message.startswith("OstinatoError: ") and f"{tmp_path / wrong}:1" in message, message
        assert f"delete {tmp_path}, or choose another folder" in message


@pytest.mark.slow  # test_auto_measures_and_switches and test_deepspeed_forward_state.py have "auto", test_deepspeed_training.py the options
@pytest.mark.parametrize("case", AUTO)
def test_auto_is_as_if_the_plan_had_been_there(world2, profile, tmp_path, case):
    options = AUTO[case]
    section = {"auto": True, "search": QUICK, "output": str(tmp_path)}
    measured = world2.run(train_with_costs, replace(options, section=section), profile.read_text())
    assert {result["kind"] for result in measured} == {"PlanEngine"}
    assert "layers = [0, 4]" not in (tmp_path / "placement.toml").read_text()  # layers have moved
    same_numbers(measured, world2.run(train, replace(options, section={"plan": str(tmp_path / "plan.json")})))


def fed(options: Options, folder: str, everywhere: bool) -> tuple:
    """Losses and last weights where "auto" finds the plan of a folder; or the error."""
    found, texts = search._found, {name: (Path(folder) / name).read_text() for name in kept.FILES}
    search._found = lambda section, paths, size: texts
    try:
        return in_both_starts(_fed, options, everywhere)
    except OstinatoError as error:
        return (str(error),)
    finally:
        search._found = found


def _fed_alone(options: Options) -> tuple:
    return _fed(options, False)


def _fed(options: Options, everywhere: bool, known: bool = True) -> tuple:
    engine = (
        make_engine(options)
        if known
        else make_engine(replace(options, section=None), options.configuration())
    )
    data = engine.batches(7) if everywhere else data_of(engine)
    return [engine.train_batch(data).item() for _ in range(options.steps)], weights(engine)


@pytest.mark.slow  # test_slices.py turns who reads, under a plan
def test_auto_where_other_ranks_read_than_under_1f1b(world4, tmp_path):
    """DeepSpeed's own engine, which measures, drops what the script gives to ranks in the middle."""
    options = replace(BASE, stages=4, steps=3)
    plan = make_plan(tmp_path, Layout("turned", (2, 4, 6), (1, 0, 3, 2)), LAYERS, MICRO_BATCHES)
    auto = {"auto": True, "search": {"ends": "free"}}
    measured = world4.run(fed, replace(options, section=auto), str(plan.parent), True)
    assert len(measured[0]) == 2 and measured == world4.run(
        fed, replace(options, section={"plan": str(plan)}), str(plan.parent), True
    )
    # Each start asks its engine who reads.
    assert measured == world4.run(fed, replace(options, section=auto), str(plan.parent), False)


def test_auto_after_loading_weights(world2, tmp_path):
    """load_checkpoint() before the first step holds after the switch too; the run goes on as under the plan."""
    section = {"auto": True, "search": QUICK, "output": str(tmp_path / "out")}
    went_on = world2.run(resumed, replace(BASE, section=section), str(tmp_path / "saved"))
    planned = replace(BASE, section={"plan": str(tmp_path / "out" / "plan.json")})
    assert went_on == world2.run(resumed, planned, str(tmp_path / "saved"))


@pytest.mark.slow  # test_deepspeed_refusals.py goes on without a plan that is given
def test_auto_goes_on_without_a_plan_where_it_may(world2, alone):
    """A placement of another kind than DeepSpeed can run is found out after measuring only."""
    section = {"auto": True, "require": False, "search": {**QUICK, "device_memory": "1GiB"}}
    same_numbers(world2.run(train_unsupported, replace(BASE, section=section)), alone)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"profile": "p.json", "plan": "q.json"}, ['"plan" and "profile"', "only one is allowed"]),
        ({"profile": "p.json", "auto": True}, ['"profile" and "auto"']),
        ({"plan": "p.json", "search": {}}, ['"search"', 'needs "profile" or "auto"']),
        ({"profile": "p.json", "placement": "x.toml"}, ['"placement"', 'goes with "plan"']),
        (
            {"profile": "p.json", "search": {"time_limits": 3}},
            ['"time_limits" in the "search"', 'mean "time_limit"?'],
        ),
        (
            {"profile": "p.json", "device_memory": "40GiB"},
            ['unknown key "device_memory"', 'it belongs in "search"'],
        ),
        ({"profile": "p.json", "memory": "40GiB"}, ['"memory"', '"search": {"device_memory": "40GiB"}']),
        (
            {"profile": "p.json", "effort": 400},
            ['"effort"', 'needs "sizes"; that of a search belongs in "search"'],
        ),
        (
            {"profile": "p.json", "search": {"effort": 0}},
            ['"effort" in the "search" section must be at least 1'],
        ),
        ({"profile": "p.json", "search": {"seed": 1 << 64}}, ['"seed" in the "search" section must be']),
        (
            {"profile": "p.json", "search": {"time_limit": float("inf")}},
            ['"time_limit" in the "search" section must be'],
        ),
        ({"profile": "p" * 5000}, ['"profile": ', "no such file"]),
        ({"plan": "p" * 5000}, ['"plan": ', "no such file"]),
        ({"profile": "p.json", "search": {"every": 3}}, ['"every" in the "search"', 'it belongs in "adapt"']),
        (
            {"profile": "p.json", "search": {"objective": "speed"}},
            ['"objective" in the "search" section must be \'makespan\''],
        ),
        ({"profile": "/nowhere/p.json"}, ["/nowhere/p.json: no such file", "ostinato profile"]),
        ({"auto": 1}, ['"auto"', 'true, false, "measure" or "profile"']),
        ({"auto": True, "search": {"inference": True}}, ['"inference"', 'needs "profile"']),
        ({"auto": True, "adapt": {}}, ['"adapt"', 'needs "auto" or "profile", and "output"']),
        ({"plan": "p.json", "adapt": {}}, ['"adapt"', 'needs "auto" or "profile", and "output"']),
        ({"auto": True, "output": "o", "adapt": {"evry": 5}}, ['"evry" in the "adapt"', 'mean "every"?']),
        (
            {"auto": True, "output": "o", "adapt": {"every": 0}},
            ['"every" in the "adapt" section must be at least 2'],
        ),
    ],
)
def test_wrong_section(world2, section, words):
    for message in world2.run(refusal, replace(BASE, section=section)):
        assert message.startswith("OstinatoError"), message or "nothing was raised"
        for word in words:
            assert word in message, message


def test_auto_on_another_number_of_ranks(world2, world4, stock, tmp_path):
    """What was measured on two ranks is planned for four, and not measured again; each number keeps its plan."""
    section = {"auto": True, "search": QUICK, "output": str(tmp_path)}
    options = replace(BASE, steps=2, section=section)
    world2.run(train, options)
    measured, for_two = ((tmp_path / name).read_bytes() for name in ("profile.json", "plan.json"))
    got = world4.run(train, replace(options, stages=4))
    assert {result["kind"] for result in got} == {"PlanEngine"} and (
        tmp_path / "profile.json"
    ).read_bytes() == measured
    assert (tmp_path / "placement.toml").read_text().count("[[devices]]") == 4
    same_numbers(got, stock(world4, replace(options, stages=4, section=None)))
    for_four = (tmp_path / "plan.json").read_bytes()
    assert (tmp_path / "2-ranks/plan.json").read_bytes() == for_two
    world2.run(train, options)
    assert (tmp_path / "plan.json").read_bytes() == for_two and not (tmp_path / "2-ranks").exists()
    assert (tmp_path / "4-ranks/plan.json").read_bytes() == for_four
    assert (tmp_path / "profile.json").read_bytes() == measured


def test_ranks_go_on_where_one_cannot_leave_files_for_a_new_start(monkeypatch):
    """Such as on a full disk: with the plan that they have."""
    why = "rank 1 cannot start again by itself, because OSError: [Errno 28] No space left on device"

    def refuses(*_, **__):
        raise second_start.again.Refused(why)

    monkeypatch.setattr(second_start, "everyones", lambda mine: [mine])
    monkeypatch.setattr(second_start, "say", lambda _: None)
    monkeypatch.setattr(second_start.again, "why_not_again", lambda further: "")
    monkeypatch.setattr(second_start.again, "begin_again", refuses)
    section = Section(auto=True)
    prepared = SimpleNamespace(checked=lambda: (section, SimpleNamespace(output=None)), engine="")
    assert second_start.move(prepared, {}, second_start.Moved(step=3, took=1.0)) == why
    assert second_start.fall_back(prepared, "slower", [1.0]) == why


@pytest.mark.parametrize("adapts", [False, True])
def test_a_new_search_removes_what_an_earlier_adapt_has_left(tmp_path, adapts):
    """Else a plan for another number of ranks would be searched with times of the plan before."""
    made = write_profile(tmp_path / "profile.json", [100] * LAYERS)
    base, devices = (tmp_path / "adapted" / name for name in ("base.json", "base-devices.toml"))
    base.parent.mkdir()
    for file in (base, devices):
        file.write_text("of the plan before")
    section = Section(profile=str(made), output=str(tmp_path), adapt={} if adapts else None)
    paths = Paths(plan=None, placement=None, profile=made, output=tmp_path, trace=None, memory=None)
    search._found(section, paths, search.Size(2, 4))
    assert not devices.exists() and base.exists() == adapts
    assert not adapts or base.read_bytes() == made.read_bytes()


FILES = "plan.json", "placement.toml", "profile.json"


def said_and_trained(options: Options, known: bool) -> tuple[str, list[float], dict]:
    """`known`: the section is known when the model is made. What rank 0 said in both starts, losses and weights."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        losses, last = in_both_starts(_fed, options, False, known)
    return printed.getvalue(), losses, last


@pytest.mark.parametrize("known", [True, False])
def test_auto_with_another_number_of_micro_batches(world2, profile, stock, tmp_path, known):
    """The kept plan makes room for one that is searched with the profile beside it; layers that the kept plan has
    moved already move once more."""
    make_plan(tmp_path, Layout("kept", (3,), (0, 1)), LAYERS, MICRO_BATCHES)
    (tmp_path / "profile.json").write_bytes(profile.read_bytes())
    config = {"gradient_accumulation_steps": 2 * MICRO_BATCHES}
    options = replace(BASE, steps=2, config=config)
    auto = replace(options, section={"auto": True, "search": QUICK, "output": str(tmp_path)})
    alone = stock(world2, options, _fed_alone)
    got = world2.run(said_and_trained, auto, known)
    assert (
        f'ostinato: the plan in "output" ({tmp_path}) is for 2 ranks and {MICRO_BATCHES} micro-batches a step, not 2 ranks and '
        f"{2 * MICRO_BATCHES} micro-batches a step: searching again with the profile there\n" in got[0][0]
    )
    assert "ostinato: running the first" not in got[0][0]
    assert [rank[1:] for rank in got] == alone
    plan = (tmp_path / "plan.json").read_bytes()
    assert json.loads(plan)["micro_batches"] == 2 * MICRO_BATCHES
    assert "layers = [0, 3]" not in (tmp_path / "placement.toml").read_text()
    again = world2.run(said_and_trained, auto, known)
    assert "searching again" not in again[0][0] and [rank[1:] for rank in again] == alone
    assert (tmp_path / "plan.json").read_bytes() == plan
    less = {**auto.section, "search": {**QUICK, "device_memory": "1GiB", "threads": 1}}
    got = world2.run(said_and_trained, replace(auto, section=less), known)
    assert 'was searched with different options ("device_memory"): searching again' in got[0][0]
    assert [rank[1:] for rank in got] == alone
    assert "memory = 1073741824" in (tmp_path / "placement.toml").read_text()


def test_a_plan_that_another_run_has_left(world2, tmp_path):
    """For another number of micro-batches, without a profile: the folder is named."""
    make_plan(tmp_path, Layout("stale", (2, 4), (0, 1, 0)), LAYERS, MICRO_BATCHES + 1)
    for message in world2.run(refusal, replace(BASE, section={"auto": True, "output": str(tmp_path)})):
        assert "micro-batches" in message and message.endswith(
            f'"output": delete {tmp_path}, or choose another folder'
        ), message


class Wider(Block):
    """A layer of the same name, with more parameters."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, hidden):
        return super().forward(hidden) + self.bias


Wider.__name__ = "Block"


def wider():
    from deepspeed.pipe import LayerSpec

    return LayerSpec(Wider)


SMALL = replace(BASE, steps=2, model="vocabulary")
OTHERS = {  # than SMALL; whether its layers have the same names
    "layers": (replace(BASE, steps=2), False),
    "parameters": (replace(SMALL, changed=((4, wider),)), True),
}


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("other", OTHERS)
def test_auto_with_another_model(world2, stock, tmp_path, other, known):
    """A folder serves every model: each has its own plan there. Layers that were placed by their names, when
    PipelineModule() knows no more of them, take one more start."""
    auto = {"auto": True, "search": QUICK, "output": str(tmp_path)}
    changed, named_alike = OTHERS[other]
    for options in (SMALL, changed, SMALL):
        left = [(tmp_path / name).read_bytes() for name in FILES] if options is changed else []
        got = world2.run(said_and_trained, replace(options, section=auto), known)
        assert [rank[1:] for rank in got] == stock(world2, options, _fed_alone)
        said = got[0][0]
        if options is changed:
            (aside,) = tmp_path.glob("model-*")
            assert [(aside / name).read_bytes() for name in FILES] == left
            assert f'the plan in "output" ({tmp_path}) is for another model (layer ' in said
            assert f"it waits in {aside.name} there for that model\n" in said
            assert said.count("Using topology") == 2 + (named_alike and known)  # starts
            assert "ostinato: running the first" in said
    back = (f"the plan for this model is in {tmp_path} again", "ostinato: running the first")
    assert [words in said for words in back] == [True, False] and not aside.exists()
    assert len([*tmp_path.glob("model-*")]) == 1


def test_auto_with_a_plan_for_another_number_of_layers(world2, stock, tmp_path):
    """One that was written by hand, which has no digest of a model."""
    make_plan(tmp_path, Layout("stale", (2, 4), (0, 1, 0)), LAYERS - 1, MICRO_BATCHES)
    options = replace(BASE, steps=2, section={"auto": True, "search": QUICK, "output": str(tmp_path)})
    got = world2.run(said_and_trained, options, True)
    assert f"is for another model (it has {LAYERS - 1} layers, and this one {LAYERS})" in got[0][0]
    assert [rank[1:] for rank in got] == stock(world2, replace(options, section=None), _fed_alone)
    assert len([*tmp_path.glob("model-*/plan.json")]) == 1


def of_two_models(options: Options, other: Options) -> tuple[str, list[float]]:
    """What rank 0 said, and losses of two engines that train in turn."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        return in_both_starts(_of_two_models, options, other), printed.getvalue()


def _of_two_models(options: Options, other: Options) -> list[float]:
    engines = [make_engine(options), make_engine(other)]
    data = [data_of(engine) for engine in engines]
    return [engine.train_batch(of).item() for _ in range(2) for engine, of in zip(engines, data, strict=True)]


def test_a_second_model_leaves_the_plan_that_the_first_one_runs(world2, tmp_path):
    auto = {"auto": True, "search": QUICK, "output": str(tmp_path)}
    one, other = replace(BASE, steps=2), SMALL
    alone = world2.run(of_two_models, one, other)
    world2.run(train, replace(one, section=auto))
    got = world2.run(of_two_models, replace(one, section=auto), replace(other, section=auto))
    assert [losses for losses, _ in got] == [losses for losses, _ in alone]
    assert "the plan is not for this model, which runs under DeepSpeed's own schedule" in got[0][1]
    assert "start again" not in got[0][1] and not [*tmp_path.glob("model-*")]


def test_what_the_search_refuses(world2, profile):
    """Its words reach every rank."""
    cases = [
        ({"method": "1g1b"}, '"method" in the "search" section is "1g1b", not one of auto, gpipe, 1f1b'),
        ({"device_memory": "1KiB"}, "no partition fits"),
    ]
    for wanted, words in cases:
        for message in world2.run(
            refusal, replace(BASE, section={"profile": str(profile), "search": wanted})
        ):
            assert words in message, message


def without_times(options: Options) -> tuple[str, list[float], dict]:
    """said_and_trained() where rank 1 cannot measure its layers."""
    measure = first_pass.measure

    def measured(*given):
        found = measure(*given)
        if dist.get_rank() == 1:
            raise ProfileError("layer 5 fails alone")
        return found

    with mock.patch.object(first_pass, "measure", measured):
        return said_and_trained(options, True)


@pytest.mark.parametrize("why", ["memory", "measuring"])
def test_auto_goes_on_under_deepspeeds_own_schedule_without_a_plan(world2, stock, tmp_path, why):
    """No plan fits the memory, or a layer cannot be measured: it would have trained without ostinato."""
    job, search, words = {
        "memory": (said_and_trained, {"device_memory": "1KiB"}, "found no plan: infeasible: "),
        "measuring": (without_times, {}, '"auto" cannot measure the model: layer 5 fails alone'),
    }[why]
    options = replace(BASE, steps=2)
    auto = {"auto": True, "fallback": True, "search": {**QUICK, **search}}
    given = [replace(options, section=auto)] + ([True] if job is said_and_trained else [])
    got = world2.run(job, *given)
    assert words in got[0][0] and got[0][0].count("; the run goes on under DeepSpeed's own schedule") == 1
    assert '("fallback": false stops the run); the run goes on under' in got[0][0]
    assert [rank[1:] for rank in got] == stock(world2, options, _fed_alone)
    for change in ({"fallback": False}, {"auto": "measure", "output": str(tmp_path)}):
        if why == "memory":
            for error in world2.run(refused_step, replace(options, section=auto | change)):
                assert words in error and "goes on" not in error


@pytest.mark.parametrize("known", [True, False])
def test_auto_goes_on_where_no_other_plan_is_found(world2, profile, stock, tmp_path, known):
    """For another number of micro-batches than the plan in "output": nothing is measured, so only a rank whose layers
    that plan has moved starts again."""
    make_plan(tmp_path, Layout("kept", (3,), (0, 1)), LAYERS, MICRO_BATCHES)
    (tmp_path / "profile.json").write_bytes(profile.read_bytes())
    options = replace(BASE, steps=2, config={"gradient_accumulation_steps": 2 * MICRO_BATCHES})
    search = {**QUICK, "device_memory": "1KiB"}
    auto = {"auto": True, "fallback": True, "output": str(tmp_path), "search": search}
    got = world2.run(said_and_trained, replace(options, section=auto), known)
    assert "found no plan: infeasible: " in got[0][0] and "running the first" not in got[0][0]
    assert [rank[1:] for rank in got] == stock(world2, options, _fed_alone)


def test_ranks_that_ask_for_different_searches(world2, profile):
    for message in world2.run(refusal, replace(BASE, section={"profile": str(profile)}), None, "seed"):
        assert "different options" in message, message
