# SPDX-License-Identifier: Apache-2.0
"""Rank 0 says where ranks share cores, which a plan does not know."""

from ostinato.deepspeed.cores import Place, here, note


def test_ranks_with_a_core_each_are_not_spoken_of():
    assert note([Place("a", (0,)), Place("a", (1,)), Place("b", (0, 1))]) == ""
    assert note([Place("a", (0, 1)), Place("a", (0, 1))]) == ""
    assert note([Place("gpus", ())] * 8) == ""


def test_the_host_that_is_shared_most_is_named():
    said = note([Place("a", (0, 1))] * 3 + [Place("b", (0, 1))] * 4 + [Place("c", (0, 1, 2, 3))] * 4)
    assert said.startswith("4 ranks share 2 cores of b, and a plan has one for each: steps may take up to 2 times as long")
    assert note([Place("a", (7,))] * 2).startswith("2 ranks share 1 core of a")


def test_this_rank_has_cores_where_it_computes_on_them():
    assert here().host and here().cores
