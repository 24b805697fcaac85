# SPDX-License-Identifier: Apache-2.0
"""ostinato.torch serves requests: from a profile to a plan of forwards to answers, and requests without end."""

import io
import json
import os
import pickle
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from unittest import mock

import pytest
import torch
from support import serving_jobs, torch_jobs
from support.models import LENGTH
from support.plans import Layout, make_plan, placement_text
from support.tiers import everyday
from support.serving_jobs import Load
from support.torch_jobs import Case
from test_torch_pipeline import LAYERS, SHARDED, branches

from ostinato.profile import Job, profile_layers
from ostinato.torch import PipelineError, requests

COUNT = 21
HOST = torch.device("cpu")
LAYOUTS = {
    "chain": Layout("chain", (5,), (0, 1)),
    "wave": Layout("wave", (1, 4, 6), (0, 1, 1, 0)),
    "looped": Layout("looped", (2, 4, 6), (0, 1, 0, 1)),
    "sharded": SHARDED,
}


def case_of(folder, kind: str) -> Case:
    text = (
        branches(trains=False) if kind == "branches" else placement_text(LAYOUTS[kind], LAYERS, trains=False)
    )
    plan = make_plan(folder, LAYOUTS.get(kind, SHARDED), LAYERS, 6, text=text)
    return Case(str(plan), branches=kind == "branches")


def same(mine: torch.Tensor, theirs: torch.Tensor, exact: bool) -> bool:
    return torch.equal(mine, theirs) if exact else torch.allclose(mine, theirs, atol=1e-6)


def check(results: list, expected: list, exact: bool = True) -> None:
    """Every request is answered, where answers come out, as by one process; every rank counts them all."""
    assert [served for served, _ in results] == [len(expected)] * len(results)
    answered = [answers for _, answers in results if answers]
    assert answered
    for answers in answered:
        for number, wanted in enumerate(expected):
            mine = answers.pop(number)
            assert same(mine, wanted, exact), number
        assert not answers


def test_a_request_comes_out_as_it_went_in():
    given = (
        3,
        {"tokens": (torch.arange(4), [1.5, "text", None, True]), "mask": torch.zeros(0, 2, dtype=torch.bool)},
    )
    number, inputs = requests.unpacked(requests.packed(given), HOST)
    assert (
        number == 3 and torch.equal(inputs["tokens"][0], torch.arange(4)) and inputs["mask"].shape == (0, 2)
    )
    assert inputs["tokens"][1] == [1.5, "text", None, True] and isinstance(inputs["tokens"], tuple)


def test_a_request_travels_without_the_batch_that_it_is_a_row_of():
    batch = torch.arange(250_000.0).reshape(500, 500)
    sent = requests.packed((3, {"row": (batch[7], batch[:, 7]), "mask": torch.ones(1, 1).expand(500, 500)}))
    assert len(sent) < 20_000
    _, inputs = requests.unpacked(sent, HOST)
    assert torch.equal(inputs["row"][0], batch[7]) and torch.equal(inputs["row"][1], batch[:, 7])
    assert torch.equal(inputs["mask"], torch.ones(500, 500))


def test_a_request_from_an_accelerator_comes_to_that_of_the_rank():
    """To none here: torch would look for the first rank's GPU."""
    with mock.patch("torch.serialization.location_tag", return_value="cuda:0"):
        sent = requests.packed((3, torch.arange(4)))
    number, tokens = requests.unpacked(sent, HOST)
    assert number == 3 and tokens.device == HOST and torch.equal(tokens, torch.arange(4))


class Runs:
    """What a pickle may do to who reads it."""

    def __reduce__(self):
        return os.abort, ()


def saved(value) -> bytes:
    into = io.BytesIO()
    torch.save(value, into)
    return into.getvalue()


@pytest.mark.parametrize("pack", [pickle.dumps, saved])
def test_what_other_ranks_send_runs_nothing(pack):
    with pytest.raises(pickle.UnpicklingError):
        requests.unpacked(pack((0, Runs())), HOST)


@pytest.mark.parametrize("value", [Runs(), {1: [Runs()]}, print])
def test_a_request_that_cannot_be_sent_is_refused_where_it_is_given(value):
    with pytest.raises(TypeError, match="cannot be sent to the other ranks"):
        requests.packed((0, value))


@pytest.fixture(scope="module")
def profile():
    job = Job(layers=torch_jobs.chain(), inputs=torch_jobs.batch(0)[0])
    job.repeats, job.warm_up = 2, 1
    return profile_layers(job)


@pytest.mark.parametrize("objective", everyday(["latency", "makespan"], "latency"))
def test_from_the_profile_to_answers(world2, profile, objective, tmp_path):
    """profile, plan --inference, verify; then infer() with the plan's requests, and serve() with many more."""
    from ostinato import _search

    costs, plan, placement = (
        str(tmp_path / name) for name in ("profile.json", "plan.json", "placement.toml")
    )
    profile.write(costs)
    words = [
        "--all-devices",
        "--inference",
        "--devices",
        "2",
        "--micro-batches",
        str(torch_jobs.MICRO_BATCHES),
        "--objective",
        objective,
    ]
    files = ["--time-limit", "2", "--output", plan, "--placement-output", placement]
    assert _search.main(["plan", costs, *words, *files]) == 0
    assert _search.main(["verify", plan, placement]) == 0
    assert {
        step["block"].rpartition(".")[2]
        for step in json.loads((tmp_path / "plan.json").read_text())["schedule"]
    } == {"F"}
    blocks = tomllib.loads((tmp_path / "placement.toml").read_text())["blocks"]
    exact = all(len(block["devices"]) == 1 for block in blocks)  # ranks of a sharded stage sum their parts
    case = Case(plan)
    expected = torch_jobs.alone(case, trains=False)["outputs"]
    results = next(r for r in world2.run(serving_jobs.infer, case) if r[0] is not None)
    for mine, theirs in zip(results, expected, strict=True):
        assert all(same(a, b, exact) for a, b in zip(mine, theirs, strict=True))
    given = serving_jobs.requests_of(case, COUNT)
    check(world2.run(serving_jobs.serve, case, given, Load()), serving_jobs.answers_alone(case, given), exact)


@pytest.mark.parametrize("in_turn", everyday([False, True], False), ids=["at-once", "in-turn"])
@pytest.mark.parametrize("kind", everyday([*LAYOUTS, "branches"], "looped", "sharded", "branches"))
def test_requests_without_end(world2, kind, in_turn, tmp_path):
    """More than a run has slots; in turn: one goes all the way through before the next one comes."""
    case = case_of(tmp_path, kind)
    given = serving_jobs.requests_of(case, COUNT)
    results = world2.run(serving_jobs.serve, case, given, Load(in_turn=in_turn))
    check(results, serving_jobs.answers_alone(case, given), exact=kind != "sharded")


@pytest.mark.parametrize("kind", everyday(["wave", "branches"], "wave"))
def test_requests_of_any_shape(world2, kind, tmp_path):
    case = case_of(tmp_path, kind)
    given = serving_jobs.requests_of(case, COUNT, (LENGTH, LENGTH - 1, 1))
    expected = serving_jobs.answers_alone(case, given)
    for in_turn in (False, True):
        check(
            world2.run(serving_jobs.serve, case, given, Load(in_turn=in_turn, dynamic_shapes=True)), expected
        )


def test_no_request_for_longer_than_the_timeout(world2, tmp_path):
    case = case_of(tmp_path, "wave")
    given = serving_jobs.requests_of(case, 2)
    results = world2.run(serving_jobs.serve, case, given, Load(in_turn=True, pause_s=6, timeout_s=5))
    check(results, serving_jobs.answers_alone(case, given))


def test_none_at_all(world2, tmp_path):
    assert world2.run(serving_jobs.serve, case_of(tmp_path, "looped"), [], Load()) == [(0, {})] * 2


SIDE_BY_SIDE, ONE_AFTER_THE_OTHER = [(0, 1), (2, 3)], [(0, 1), (1, 2)]


@pytest.mark.parametrize(
    "groups",
    everyday([SIDE_BY_SIDE, ONE_AFTER_THE_OTHER], ONE_AFTER_THE_OTHER),
    ids=["side-by-side", "one-after-the-other"],
)
def test_groups_of_one_world_answer_their_own_requests(world4, groups, tmp_path):
    """Ranks count how often they serve, and a rank of both groups counts twice."""
    case = case_of(tmp_path, "chain")
    given = {
        ranks: serving_jobs.requests_of(case, COUNT)[place :: place + 1] for place, ranks in enumerate(groups)
    }
    results = world4.run(serving_jobs.serve_in_two_groups, case, given)
    for ranks in groups:
        mine = results[ranks[1]][ranks]
        assert len(mine) == len(given[ranks]) and all(
            map(torch.equal, mine, serving_jobs.answers_alone(case, given[ranks]))
        )


def test_after_a_failed_answer_the_next_call_is_no_request(world2, tmp_path):
    """serve() leaves the pipeline as infer() needs it."""
    for position in world2.run(
        serving_jobs.refuse_an_answer, case_of(tmp_path, "chain"), [torch.zeros(1, LENGTH, dtype=torch.long)]
    ):
        assert position.endswith("between steps")


def test_requests_that_fail_end_the_call_on_every_rank(world2, tmp_path):
    """Between two runs, where nothing waits in the executor; the next call serves."""
    request = torch.zeros(1, LENGTH, dtype=torch.long)
    front, last = world2.run(serving_jobs.serve_what_fails, case_of(tmp_path, "chain"), request)
    assert front == (["no more from this socket", "'int' object is not iterable"], [0, 0, 1])
    assert last == ([], [0, 0, 1])


def test_no_request_comes_after_close():
    given = requests.Requests()
    given.put(3)
    given.close()
    with pytest.raises(PipelineError, match=r"put\(\) after close\(\)"):
        given.put(4)
    assert [given.take(0) for _ in range(3)] == [(requests.REQUEST, 3), *[(requests.END, None)] * 2]


def test_one_rank_needs_no_group(tmp_path):
    one = Layout("one", (4,), (0, 0))
    plan = make_plan(tmp_path, one, LAYERS, 2, text=placement_text(one, LAYERS, trains=False))
    case, answers = Case(str(plan)), {}
    given = serving_jobs.requests_of(case, 5)
    from ostinato.torch import Pipeline

    pipe = Pipeline(case.plan, torch_jobs.build(case))
    for slots in (0, 2.5, True, 2**40):
        with pytest.raises(PipelineError, match=f"slots is {slots}: expected a whole number from 1 to "):
            pipe.serve(given, slots=slots)
    assert pipe.serve(iter(given), answers.__setitem__, slots=4) == 5
    assert all(
        torch.equal(answers[n], wanted) for n, wanted in enumerate(serving_jobs.answers_alone(case, given))
    )


def test_in_inference_mode(world2, tmp_path):
    """Tensors that are made there count no changes."""
    case = case_of(tmp_path, "looped")
    given = serving_jobs.requests_of(case, 6)
    expected = serving_jobs.answers_alone(case, given)
    inferred, answers = zip(*world2.run(serving_jobs.in_inference_mode, case, given), strict=True)
    for mine in (*inferred, *answers):
        assert mine is None or all(map(torch.equal, mine, expected))
    assert any(inferred) and any(answers)


def answered_in(threads: ThreadPoolExecutor, within: Callable, *_) -> None:
    threads.submit(within).result()


def test_a_call_within_a_call_is_refused(tmp_path):
    """As one of a second thread: the executor runs one at a time."""
    from ostinato.torch import Pipeline

    one = Layout("one", (4,), (0, 0))
    plan = make_plan(tmp_path, one, LAYERS, 2, text=placement_text(one, LAYERS, trains=False))
    given = serving_jobs.requests_of(Case(str(plan)), 2)
    pipe = Pipeline(plan, torch_jobs.build(Case(str(plan))))
    for name, *values in (("infer", given), ("reset_shapes",)):
        within = partial(getattr(pipe, name), *values)
        with ThreadPoolExecutor() as threads, pytest.raises(PipelineError, match="another call of this pipe"):
            pipe.serve(given, partial(answered_in, threads, within))
        pipe.reset_shapes()  # after a failed answer
    assert len(pipe.infer(given)) == 2


def test_a_plan_for_training_is_refused(world2, tmp_path):
    case = replace(
        case_of(tmp_path, "chain"), plan=str(make_plan(tmp_path / "t", LAYOUTS["chain"], LAYERS, 2))
    )
    for message in world2.run(torch_jobs.refusal, case, "serve"):
        assert "PipelineError" in message and "ostinato plan --inference" in message
