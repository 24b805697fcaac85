# SPDX-License-Identifier: Apache-2.0
"""Which tests `script/test` leaves to `script/test --all`: those with the marker `slow`. Every promise keeps
a test without it."""

from collections.abc import Iterable

import pytest


def everyday(cases: Iterable, *kept) -> list:
    """For parametrize: all the cases, of which only `kept` are run every day. Tuples are the values of
    several arguments."""
    cases = list(cases)
    assert kept and all(case in cases for case in kept), "no such case"
    return [
        case
        if case in kept
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in cases
    ]
