# SPDX-License-Identifier: Apache-2.0
"""Halves of a backward that were measured to take less than the whole are measured again, and made to add up
where that does not help."""

from dataclasses import replace

import torch
from torch import nn

from ostinato.profile import Job, profile_layers, run
from ostinato.profile.measure.halves import add_up, settle
from ostinato.profile.measure.samples import Sample, Samples


def samples(whole, first, second, off=0):
    def times(median):
        return (
            [Sample(median - off, 0, 0), Sample(median, 0, 0), Sample(median + off, 0, 0)] if median else []
        )

    return Samples(times(1000), times(whole), times(first), times(second))


STEADY = samples(4000, 2000, 1950)
SPLIT_COSTS = samples(4000, 3000, 3000)
NO_HALVES = samples(4000, 0, 0)
NOISY = samples(9000, 2000, 1000)


def test_what_adds_up():
    assert add_up(STEADY) and add_up(SPLIT_COSTS) and add_up(NO_HALVES)
    assert not add_up(NOISY) and add_up(samples(4000, 1500, 1500, off=600))  # within their spread


def never(layers):
    raise AssertionError("measured again")


def test_what_adds_up_is_measured_once():
    measured = [STEADY, SPLIT_COSTS, NO_HALVES]
    assert settle(["a", "b", "c"], measured, never) == 0
    assert measured == [STEADY, SPLIT_COSTS, NO_HALVES]


def test_what_is_short_is_not_worth_it():
    large = samples(10**7, 10**7, 1)
    assert settle(["a", "b"], [large, NOISY], never) == 0


def test_what_does_not_add_up_is_measured_again():
    measured, asked = [STEADY, NOISY, NO_HALVES], []

    def again(layers):
        asked.append(list(layers))
        return [NOISY if len(asked) == 1 else SPLIT_COSTS]

    assert settle(["a", "b", "c"], measured, again) == 0
    assert asked == [["b"], ["b"]] and measured == [STEADY, SPLIT_COSTS, NO_HALVES]


def test_what_never_does_is_written_as_long_as_the_whole():
    measured = [STEADY, NOISY]
    assert settle(["a", "b"], measured, lambda layers: [NOISY for _ in layers]) == 1
    assert measured[0] == STEADY and measured[1].backward == NOISY.backward
    assert (measured[1].spread("input_half").median, measured[1].spread("weight_half").median) == (6000, 3000)


def test_layers_in_slices_are_not_measured_again_on_one_rank():
    """Its peers would not run their collectives."""
    measured = [NOISY]
    assert settle(["a"], measured, never, tries=0) == 1 and add_up(measured[0])


def test_the_profile_says_so(monkeypatch):
    def in_noise(layers, job, **options):
        def lasting(half, time):
            return [replace(sample, time=time) for sample in half]

        return [
            Samples(
                lasting(s.forward, 1000),
                lasting(s.backward, 4000),
                lasting(s.input_half, 1000),
                lasting(s.weight_half, 500),
            )
            for s in measured(layers, job, **options)
        ]

    measured = run.in_turns
    monkeypatch.setattr(run, "in_turns", in_noise)
    layers = [nn.Linear(256, 256), nn.Sequential(nn.Linear(256, 256), nn.Tanh())]
    profile = profile_layers(Job(layers=layers, inputs=torch.ones(64, 256), repeats=5, warm_up=1))
    assert profile.timer_note.startswith("the halves of the backward of 2 layers took less than the whole")
    for row in profile.layers:
        assert (row.backward.median, row.backward_input.median, row.backward_weight.median) == (
            4000,
            2666,
            1333,
        )


def test_a_process_that_waits_for_a_core_says_so():
    assert run.noted("", 0, 0, 0.05) == ""
    assert run.noted("", 0, 0, 0.72).startswith(
        "this process waited for a core for 72 % of the time, so times"
    )
