# SPDX-License-Identifier: Apache-2.0
"""Counts the random numbers between two states of torch's generators, and advances a state by a count.

    count = taken(before, after)          # per generator; None: drawing does not lead from one to the other
    state = advanced(before, count)

Besides torch's own generators this covers the states of trackers, which Megatron's layers switch to while they draw
for a slice: deepspeed.checkpointing's, and Megatron-Core's, from which they draw where the former is not configured.

A CPU's generator (mt19937) yields 32-bit words, and is advanced block by block without making them; an
accelerator's (Philox) counts, so its state is a seed and an offset. A state is a tuple with one entry per generator
of this process.
"""

import sys
from typing import Any

import torch

MEGATRON = "megatron.core.tensor_parallel.random"
PHILOX = 16  # bytes of a state: seed and offset
FURTHEST = 1 << 28  # words: a layer that draws more from a CPU's generator is not followed
# Bytes of a state with the words to come; behind is the second of a pair of normal numbers.
WORDS = 24 + 8 * 624

State = tuple[torch.Tensor, ...]
Counts = tuple[int, ...]


def current() -> State:
    return *own(), *tracked()


def tracked() -> State:
    """The states of trackers, those of each ordered by name."""
    return tuple(states[name] for _, states in _trackers() for name in sorted(states))


def _trackers() -> list[tuple[Any, dict[str, torch.Tensor]]]:
    """With their states."""
    from deepspeed.runtime.activation_checkpointing.checkpointing import get_cuda_rng_tracker

    found = [get_cuda_rng_tracker()]
    theirs = getattr(sys.modules.get(MEGATRON), "get_cuda_rng_tracker", None)
    if theirs is not None and (tracker := theirs()) is not found[0]:
        found.append(tracker)
    return [(tracker, tracker.get_states()) for tracker in found]


def own() -> State:
    from deepspeed.accelerator import get_accelerator

    accelerator = get_accelerator()
    if accelerator.device_name() == "cpu":
        return (torch.get_rng_state(),)
    return torch.get_rng_state(), accelerator.get_rng_state()


def become(state: State) -> None:
    from deepspeed.accelerator import get_accelerator

    host, *others = state
    torch.set_rng_state(host)
    if get_accelerator().device_name() != "cpu":
        get_accelerator().set_rng_state(others.pop(0))
    for tracker, states in _trackers():
        tracker.set_states(states | {name: others.pop(0) for name in sorted(states) if others})


def same(a: State, b: State) -> bool:
    return len(a) == len(b) and all(map(torch.equal, a, b))


def taken(before: State, after: State) -> Counts | None:
    """O(words between the states, or FURTHEST where drawing does not lead from one to the other), a quarter of a
    nanosecond each."""
    counts = [
        (_offsets if was.numel() == PHILOX else _words_drawn)(was, now)
        for was, now in zip(before, after, strict=False)
    ]
    known = tuple(count for count in counts if count is not None)
    return known if len(known) == len(before) == len(after) else None


def advanced(state: State, counts: Counts) -> State:
    """O(words) for a CPU's generator, else O(1)."""
    return tuple(
        (_after_offset if was.numel() == PHILOX else _after_words)(was, count)
        for was, count in zip(state, counts, strict=True)
    )


def _words_drawn(before: torch.Tensor, after: torch.Tensor) -> int | None:
    if not torch.equal(before[WORDS:], after[WORDS:]):
        return None
    return _compiled().words_between(before, after, FURTHEST)


def _after_words(state: torch.Tensor, count: int) -> torch.Tensor:
    return _compiled().skip_words(state, count) if count else state


def _compiled() -> Any:
    """Imported late: without it, a run that requires no plan goes on under DeepSpeed's schedule."""
    from ostinato import _plugin

    return _plugin


def _offsets(before: torch.Tensor, after: torch.Tensor) -> int | None:
    """Of a Philox generator: (seed, offset), 8 bytes each."""
    if torch.equal(before, after):
        return 0
    if after.numel() != PHILOX or not torch.equal(before[:8], after[:8]):
        return None
    difference = int(after[8:].view(torch.int64) - before[8:].view(torch.int64))
    return difference if difference > 0 else None


def _after_offset(state: torch.Tensor, count: int) -> torch.Tensor:
    if not count:
        return state
    made = state.clone()
    made[8:].view(torch.int64).add_(count)
    return made
