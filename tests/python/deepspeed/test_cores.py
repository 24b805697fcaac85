# SPDX-License-Identifier: Apache-2.0
"""Ranks that share cores: who they are, what rank 0 says, and what is planned with."""

from ostinato.devices import Rank, device_file, shared_cores
from ostinato.ranks.cores import Place, here, hosts, note, sharing

from ostinato import Devices


def test_ranks_with_a_core_each_share_none():
    for places in (
        [Place("a", (0,)), Place("a", (1,)), Place("b", (0, 1))],
        [Place("a", (0, 1)), Place("a", (0, 1))],
        [Place("gpus", ())] * 8,
    ):
        assert (
            sharing(places) == []
            and hosts(places, range(len(places))) == ()
            and note(places, planned=False) == ""
        )


def test_threads_take_a_core_each():
    places = [Place("a", tuple(range(8)), threads=4)] * 4
    (shared,) = sharing(places)
    assert (shared.ranks, shared.cores, shared.share) == ((0, 1, 2, 3), 2, 2)


def test_the_host_that_is_shared_most_is_named_where_the_plan_does_not_count_it():
    places = [Place("a", (0, 1))] * 3 + [Place("b", (0, 1))] * 4 + [Place("c", (0, 1, 2, 3))] * 4
    said = note(places, planned=False)
    assert said.startswith(
        "4 ranks share 2 cores of b, but this plan assumes one core per rank: steps may take up to 2 times as long"
    )
    assert note([Place("a", (7,))] * 2, planned=False).startswith("2 ranks share 1 core of a")
    assert note(places, planned=True) == ""


def test_a_plan_is_for_the_hosts_of_one_pipeline():
    places = [Place("a", (0, 1))] * 4 + [Place("b", tuple(range(8)))] * 4
    assert hosts(places, range(8)) == ((4, 2), (4, 4))
    assert hosts(places, [0, 1, 4, 5]) == ((2, 1), (2, 2))  # the other pipeline has the other core
    assert hosts(places, [4, 5, 6, 7]) == ()


def test_this_rank_has_cores_where_it_computes_on_them():
    assert here(on_cpu=True).host and here(on_cpu=True).cores and here(on_cpu=True).threads >= 1
    assert here(on_cpu=False).cores == ()


def test_the_device_file_of_a_launch_says_it():
    places = [Place("a", (0, 1))] * 4 + [Place("b", tuple(range(8)))] * 2
    shared = shared_cores(places, range(6))
    assert shared == {0: 2}
    ranks = [Rank("a", "cpu", 100)] * 4 + [Rank("b", "cpu", 100)] * 2
    links = [_link(0, 1), _link(4, 5), _link(0, 4)]
    text = device_file(ranks, links, shared=shared)
    assert text.count("cores = ") == 1
    nodes = Devices.from_text(text).to_dict()["nodes"]
    assert [node.get("cores") for node in nodes] == [2, None]


def _link(source, target):
    from ostinato import _profiler

    return _profiler.fit_link(source, target, [(1024, 1000), (4096, 2000)], "gloo")
