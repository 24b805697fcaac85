# SPDX-License-Identifier: Apache-2.0
"""States of torch's generators, moved on by a count as drawing would move them."""

import pytest
import torch
from hypothesis import given, strategies as st
from ostinato import _plugin
from ostinato.deepspeed.randomness import generators

BLOCK = 624  # words that the generator makes at a time
NEAR = st.sampled_from([0, 1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1])
COUNTS = NEAR | st.integers(0, 5000)


def drawn(generator: torch.Generator, count: int) -> torch.Tensor:
    """The state after so many words: each random byte takes one."""
    if count:
        torch.empty(count, dtype=torch.uint8).random_(generator=generator)
    return generator.get_state()


@given(seed=st.integers(0, 2**32), first=COUNTS, count=COUNTS)
def test_skipping_leads_where_drawing_leads(seed, first, count):
    generator = torch.Generator().manual_seed(seed)
    before = drawn(generator, first)
    kept = before.clone()
    after = drawn(generator, count)
    assert torch.equal(_plugin.skip_words(before, count), after) and torch.equal(before, kept)
    assert generators.advanced((before,), (count,))[0].equal(after)
    assert generators.taken((before,), (after,)) == (count,)


def test_states_that_drawing_does_not_connect():
    before, after = (drawn(torch.Generator().manual_seed(seed), 10) for seed in (1, 2))
    assert _plugin.words_between(before, after, 1 << 16) is None
    later = drawn(torch.Generator().manual_seed(1), 10 + 3 * BLOCK)
    assert _plugin.words_between(before, later, 2 * BLOCK) is None
    assert _plugin.words_between(before, later, 3 * BLOCK) == 3 * BLOCK
    assert _plugin.words_between(later, before, 1 << 16) is None


def test_a_pair_of_normal_numbers_of_which_one_is_left_is_not_counted():
    generator = torch.Generator().manual_seed(1)
    before = generator.get_state()
    torch.empty(1).normal_(generator=generator)
    assert generators.taken((before,), (generator.get_state(),)) is None


@pytest.mark.parametrize("state", [torch.zeros(16, dtype=torch.uint8), torch.zeros(6000)])
def test_what_is_no_state(state):
    with pytest.raises(ValueError, match="no state of torch's generator"):
        _plugin.skip_words(state, 1)
