# SPDX-License-Identifier: Apache-2.0
"""A placement as Megatron-LM says it: the text of `--pipeline-model-parallel-layout`.

    placement = ostinato.Placement.from_file("placement.toml")
    placement.megatron_layout()                     # "Et*3|(tt|)*29,m|L"

Stages stand in model order, parted by "|"; stage i runs on rank i modulo the number of ranks. A letter is a
layer: E embedding, t decoder, m multi-token prediction, L head and loss; x*3 is xxx, (tt|)*2 is tt|tt|, and
commas mean nothing. Source: Megatron Core's user guide, "Custom Pipeline Model Parallel Layout", and the
rules of its PipelineParallelLayerLayout.
"""

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from ostinato.errors import UsageError, counted

INSIDE = "."  # a layer that Megatron-LM holds in its neighbour


def layout(placement: dict[str, Any], layers: str = "") -> str:
    """Of a placement as a dictionary (docs/formats.md). `layers`: a letter for each layer, x*3 for xxx; "":
    "Et*N,L". Raises UsageError for what the text cannot say: a stage on several devices, two directions,
    branches, chunks that are not dealt out in turn."""
    stages = placement.get("stages")
    if not stages:
        raise UsageError(
            "the placement does not say which layers its stages hold: give it [[stages]] (`ostinato placement --layers N`)"
        )
    check_map(placement, stages)
    count = stages[-1]["layers"][1]
    letters = expanded(layers) if layers else ("E" + "t" * (count - 2) + "L" if count > 1 else "")
    if len(letters) != count:
        raise UsageError(f"{counted(len(letters), 'letter')} in {layers!r} for {counted(count, 'layer')}")
    parts = [letters[slice(*stage["layers"])].replace(INSIDE, "") for stage in stages]
    check_letters(parts, len(placement["devices"]))
    return text_of(parts)


def expanded(layers: str) -> str:
    """One letter a layer.

    >>> expanded("E, t*3, L")
    'EtttL'
    """
    letters = re.sub(r"(.)\*(\d+)", lambda found: found[1] * int(found[2]), re.sub(r"[,\s]", "", layers))
    if wrong := set(letters) - set("EtmL" + INSIDE):
        known = f"it has E, t, m and L, and {INSIDE!r} for one inside another layer"
        raise UsageError(f"{layers!r}: {sorted(wrong)[0]!r} is not a layer of Megatron-LM; {known}")
    return letters


def check_map(placement: dict[str, Any], stages: Sequence[dict[str, Any]]) -> None:
    """Whether the stages are a chain, dealt out to the ranks in turn."""
    ranks = len(placement["devices"])
    if len(stages) % ranks:
        raise refused(
            f"{counted(len(stages), 'stage')} on {counted(ranks, 'device')} do not give a whole number of chunks per device"
        )
    names = [stage["name"] for stage in stages]
    if any(not isinstance(border, int) for stage in stages for border in stage["layers"]):
        raise refused("the layers of a stage are not consecutive (branches)")
    if len({tuple(stage["layers"]) for stage in stages}) < len(stages):
        raise refused("two stages run the same layers (two directions)")
    stage_of = {block["name"]: block.get("stage", block["name"]) for block in placement["blocks"]}
    for block in placement["blocks"]:
        stage = stage_of[block["name"]]
        place = names.index(stage)
        if len(block["devices"]) > 1:
            raise refused(f'stage "{stage}" is on {counted(len(block["devices"]), "device")}')
        if block["devices"][0] != place % ranks:
            turn = f"chunks take the ranks in turn, so it must be on {place % ranks} (this is a wave, or a custom map)"
            raise refused(f'stage "{stage}", number {place}, is on device {block["devices"][0]}: {turn}')
        if block.get("kind") == "forward":
            taken = {
                stage_of[one["block"] if isinstance(one, dict) else one] for one in block.get("after", ())
            }
            if taken != set(names[place - 1 : place] if place else ()):
                raise refused(
                    f'stage "{stage}" does not take just the output of the stage before it (branches)'
                )


def check_letters(parts: Sequence[str], ranks: int) -> None:
    """Whether the letters of the stages are in an order that Megatron-LM takes."""
    whole = "".join(parts)
    if not re.fullmatch("Et*m*L", whole):
        raise UsageError(
            f"the layers are {text_of([whole])}; Megatron-LM needs E, then t, then m, then L, with one E and one L"
        )
    if "E" not in parts[0] or "L" not in parts[-1]:
        raise UsageError("Megatron-LM needs E in the first stage and L in the last")
    with_m = [place for place, part in enumerate(parts) if "m" in part]
    if len(with_m) > 1 or any(
        place < len(parts) - ranks or (place % ranks == 0 and ranks > 1) for place in with_m
    ):
        raise UsageError(
            "Megatron-LM needs all of m in one stage, the last of its rank, and not on the first rank"
        )


def text_of(parts: Sequence[str]) -> str:
    """Letters of each stage as one text.

    >>> text_of(["Ettt", *["tt"] * 29, "m", "L"])
    'Et*3|(tt|)*29,m|L'
    """
    *bodies, last = [run_lengths(part) for part in parts]
    text = ""
    for body, same in groupby(bodies):
        times = len(list(same))
        text += f"({body}|)*{times}," if times > 2 and body else f"{body}|" * times
    return (text + last).rstrip(",")


def run_lengths(part: str) -> str:
    """Of "Ettt" it is "Et*3"."""
    groups = [(letter, len(list(same))) for letter, same in groupby(part)]
    return re.sub(
        r"(\d)(?=[A-Za-z])",
        r"\1,",
        "".join(f"{letter}*{times}" if times > 2 else letter * times for letter, times in groups),
    )


def refused(reason: str) -> UsageError:
    return UsageError(f"Megatron-LM's pipeline layout cannot express this placement: {reason}")
