# SPDX-License-Identifier: Apache-2.0
"""Placements as Megatron-LM's pipeline layout: what the text says is what the placement has; what it cannot
say is refused by name."""

import doctest
import re

import ostinato
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ostinato import megatron


def read(text: str) -> list[str]:
    """The layers of each stage, by the grammar of the user guide: commas mean nothing, (ab|)*2 is ab|ab|, x*3
    is xxx."""
    text = text.replace(",", "")
    text = re.sub(r"\(([^)]+)\)\*(\d+)", lambda found: found[1] * int(found[2]), text)
    return re.sub(r"(.)\*(\d+)", lambda found: found[1] * int(found[2]), text).split("|")


def chain(cuts: list[int], devices: int) -> dict:
    """Stages of so many layers each, dealt out to the devices in turn."""
    borders = [sum(cuts[:place]) for place in range(len(cuts) + 1)]
    stages = [{"name": f"s{i}", "layers": borders[i : i + 2]} for i in range(len(cuts))]
    forwards = [
        {
            "name": f"s{i}.F",
            "stage": f"s{i}",
            "kind": "forward",
            "devices": [i % devices],
            "after": [f"s{i - 1}.F"] if i else [],
        }
        for i in range(len(cuts))
    ]
    return {"devices": [{"name": f"d{d}"} for d in range(devices)], "stages": stages, "blocks": forwards}


def test_the_examples_hold():
    found = doctest.testmod(megatron)
    assert found.attempted >= 2 and found.failed == 0


def test_the_example_of_the_user_guide():
    """DeepSeek-V3: 61 decoder layers and one of multi-token prediction, 16 ranks with 2 chunks each."""
    assert megatron.layout(chain([4, *[2] * 29, 1, 1], 16), "E,t*61,m,L") == "Et*3|(tt|)*29,m|L"


@given(st.data())
def test_the_text_says_what_the_placement_has(data):
    devices, chunks = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4))
    cuts = data.draw(st.lists(st.integers(1, 6), min_size=devices * chunks, max_size=devices * chunks))
    if sum(cuts) < 2:
        cuts[0] += 1
    letters = "E" + "t" * (sum(cuts) - 2) + "L"
    said = read(megatron.layout(chain(cuts, devices)))
    assert "".join(said) == letters and [len(part) for part in said] == cuts


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("shape", ["v", "looped"])
def test_placements_of_the_commands_are_said(shape, devices):
    placement = ostinato.placement(shape, devices=devices, layers=16)
    said = read(placement.megatron_layout())
    assert [len(part) for part in said] == [
        stage["layers"][1] - stage["layers"][0] for stage in placement.to_dict()["stages"]
    ]


def test_layers_that_megatron_holds_in_others_are_left_out():
    assert megatron.layout(chain([3, 3], 2), "Ett,t.L") == "Ett|tL"
    # An empty stage is legal.
    assert megatron.layout(chain([3, 1, 3, 3], 2), "Ett . ttt t.L") == "Ett||t*3|tL"


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ("wave", 'stage "s2", number 2, is on device 1: chunks take the ranks in turn'),
        ("m", "is on 2 devices|do not give a whole number of chunks"),
        ("x", "the same layers|is on device"),
        ("k", "branches|do not give a whole number of chunks|is on device"),
    ],
)
def test_what_the_text_cannot_say_is_refused(shape, words):
    with pytest.raises(
        ostinato.UsageError,
        match=f"^Megatron-LM's pipeline layout cannot express this placement: .*({words})",
    ):
        ostinato.placement(shape, devices=2, layers=16).megatron_layout()


def test_branches_are_refused():
    placement = chain([2, 2, 2, 2], 4)
    placement["blocks"][2]["after"] = ["s0.F"]
    with pytest.raises(
        ostinato.UsageError, match='stage "s2" does not take just the output of the stage before it'
    ):
        megatron.layout(placement)
    placement = chain([2, 2], 2)
    placement["stages"][0]["layers"] = [[0, 1], [2, 3]]
    with pytest.raises(ostinato.UsageError, match="not consecutive"):
        megatron.layout(placement)


@pytest.mark.parametrize(
    ("letters", "words"),
    [
        ("Ett", "3 letters in 'Ett' for 8 layers"),
        ("Ex*6L", "'x' is not a layer of Megatron-LM"),
        ("t*7L", "the layers are t[*]7,L; Megatron-LM needs E, then t, then m, then L"),
        ("EmtttttL", "needs E, then t, then m"),
        ("E.t*5L", ""),
        ("..Ett..L", "E in the first stage"),
        ("Ettmt..L", "needs E, then t, then m"),
        ("Etttmmm,L", "all of m in one stage"),
        ("Ettt,mm,.L", "not on the first rank"),
        ("Etmm,....", "one E and one L"),
    ],
)
def test_letters_that_megatron_does_not_take_are_refused(letters, words):
    placement = chain([2, 2, 2, 2], 2)
    if not words:
        assert megatron.layout(placement, letters)
        return
    with pytest.raises(ostinato.UsageError, match=words):
        megatron.layout(placement, letters)


def test_a_placement_without_layers_is_refused():
    with pytest.raises(
        ostinato.UsageError, match=r"give it \[\[stages\]\] \(`ostinato placement --layers N`\)"
    ):
        ostinato.placement("v").megatron_layout()
