# SPDX-License-Identifier: Apache-2.0
"""What ranks run in test_torch_serving.py, and the same on one process."""

import threading
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import _get_default_store

from .models import LENGTH
from .torch_jobs import MICRO_BATCHES, Case, batch, branches, build, chain


def infer(case: Case) -> list:
    """Outputs of every call; the first rank does not wait for the last one in between."""
    from ostinato.torch import Pipeline

    pipe = Pipeline(case.plan, build(case))
    pipe.eval()
    results = []
    for step in range(case.steps):
        tokens, picture, _ = batch(step)
        results.append(pipe.infer({"left": tokens, "right": picture} if case.branches else tokens))
    return results


def requests_of(case: Case, count: int, lengths: tuple[int, ...] = (LENGTH,)) -> list:
    """Inputs of requests 0, 1, ...: of the chain, or by stage."""
    given = []
    for number in range(count):
        tokens, picture, _ = (
            t.chunk(MICRO_BATCHES)[number % MICRO_BATCHES] for t in batch(number // MICRO_BATCHES)
        )
        length = lengths[number % len(lengths)]
        tokens, picture = tokens[:, :length], picture[:, :length]
        given.append({"left": tokens, "right": picture} if case.branches else tokens)
    return given


def answers_alone(case: Case, given: list) -> list:
    torch.set_num_threads(1)
    parts = branches() if case.branches else {"chain": nn.Sequential(*chain())}
    with torch.no_grad():
        if case.branches:
            return [parts["join"](parts["left"](one["left"]), parts["right"](one["right"])) for one in given]
        return [parts["chain"](one) for one in given]


def in_inference_mode(case: Case, given: list) -> tuple[list | None, list | None]:
    """What infer() and serve() answer on this rank, of which one is called in torch.no_grad() before."""
    from ostinato.torch import Pipeline

    pipe, served = Pipeline(case.plan, build(case)), {}
    pipe.eval()
    for mode in (torch.no_grad, torch.inference_mode, torch.no_grad):
        with mode():
            inferred = pipe.infer(given)
            pipe.serve(given, served.__setitem__, slots=4)
    return inferred, [served[number] for number in sorted(served)] or None


@dataclass(frozen=True)
class Load:
    """How requests come: all at once, or each one when the one before it is answered, and after a pause."""

    slots: int = 8
    in_turn: bool = False
    pause_s: float = 0.0
    timeout_s: float = 120.0
    dynamic_shapes: bool = False


def serve(case: Case, given: list, load: Load) -> tuple[int, dict[int, torch.Tensor]]:
    """How many were served, and the answers that came out on this rank. Twice, with the same pipeline."""
    from ostinato.torch import Pipeline

    pipe = Pipeline(case.plan, build(case), timeout_s=load.timeout_s, dynamic_shapes=load.dynamic_shapes)
    pipe.eval()
    store = _get_default_store().clone()
    for turn in range(2):
        answers: dict[int, torch.Tensor] = {}

        def answer(number: int, outputs, turn=turn, answers=answers) -> None:
            assert number not in answers
            answers[number] = outputs
            store.set(f"{case.plan}/{turn}/{number}", "answered")

        requests = in_turn(given, f"{case.plan}/{turn}", load.pause_s) if load.in_turn else given
        served = pipe.serve(requests, answer, slots=load.slots)
        assert pipe.position().endswith("between steps")
    return served, answers


def serve_in_two_groups(case: Case, given: dict[tuple[int, ...], list]) -> dict[tuple[int, ...], list]:
    """Answers that came out on this rank, by the ranks that serve; those of one after those of the other."""
    from ostinato.torch import Pipeline

    groups = {ranks: dist.new_group(list(ranks)) for ranks in given}
    answered: dict[tuple[int, ...], list] = {}
    for ranks, requests in given.items():
        if dist.get_rank() not in ranks:
            continue
        answers: dict[int, torch.Tensor] = {}
        Pipeline(case.plan, build(case), group=groups[ranks], timeout_s=60).eval().serve(
            requests, answers.__setitem__, slots=4
        )
        answered[ranks] = [answers[number] for number in sorted(answers)]
    return answered


def serve_what_fails(case: Case, request: torch.Tensor) -> tuple[list[str], list[int]]:
    """What serve() raises where the first request fails to come, and what is no requests; and how many these calls and
    the next one count."""
    from ostinato.torch import Pipeline

    pipe, raised, counts = Pipeline(case.plan, build(case), timeout_s=60), [], []
    for requests in (failing(), 3, iter([request])):
        try:
            counts.append(pipe.serve(requests if dist.get_rank() == 0 else None))
        except (OSError, TypeError) as error:
            raised.append(str(error))
            counts.append(0)
    return raised, counts


def failing():
    raise OSError("no more from this socket")
    yield


def refuse_an_answer(case: Case, given: list) -> str:
    """Where the pipeline is after serve() has ended with an error of answer()."""
    from ostinato.torch import Pipeline

    def refuse(number: int, outputs) -> None:
        raise KeyError(number)

    pipe = Pipeline(case.plan, build(case), timeout_s=2)
    try:
        pipe.serve(given, refuse, slots=4)
    except (KeyError, RuntimeError):
        pass
    return pipe.position()


def serve_refusal(case: Case, given: list) -> str:
    """What serve() raises on this rank; its peer hears of it or waits in vain."""
    from ostinato.torch import Pipeline

    try:
        Pipeline(case.plan, build(case), timeout_s=2).serve(given, slots=4)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def in_turn(given: list, name: str, pause_s: float):
    from ostinato.torch import Requests

    requests, store = Requests(), _get_default_store().clone()

    def feed() -> None:
        for number, inputs in enumerate(given):
            time.sleep(pause_s if number else 0)
            requests.put(inputs)
            store.wait([f"{name}/{number}"])
        requests.close()

    threading.Thread(target=feed, daemon=True).start()
    return requests
