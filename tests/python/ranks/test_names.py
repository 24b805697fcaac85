# SPDX-License-Identifier: Apache-2.0
"""Ranks of one group agree on a name, whatever other groups each of them is in."""

from collections import Counter

from ostinato.ranks import names

GROUPS = [(0, 1), (1, 2), (2, 3), (0, 1, 2, 3), (0, 1)]


def names_on(rank: int, monkeypatch) -> list[tuple[tuple[int, ...], str]]:
    """As a process of that rank makes them."""
    monkeypatch.setattr(names, "_made", Counter())
    return [(group, names.agreed("serve", group)) for group in GROUPS if rank in group]


def test_all_ranks_of_a_group_have_its_names_and_no_other_group_has(monkeypatch):
    by_name: dict[str, set] = {}
    made = Counter()
    for rank in range(4):
        for group, name in names_on(rank, monkeypatch):
            by_name.setdefault(name, set()).add(group)
            made[name] += 1
    assert len(by_name) == len(GROUPS) and all(len(groups) == 1 for groups in by_name.values())
    assert all(made[name] == len(*groups) for name, groups in by_name.items())


def test_another_kind_counts_by_itself(monkeypatch):
    monkeypatch.setattr(names, "_made", Counter())
    assert names.agreed("serve", [0]) != names.agreed("pipeline", [0]) and names.agreed(
        "serve", [0]
    ).startswith("serve 1 of ")
