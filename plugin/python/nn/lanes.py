# SPDX-License-Identifier: Apache-2.0
"""Layers that run beside what their rank computes."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from ostinato.profile.model.lanes import ATTRIBUTE, lane_of
from torch import nn

Kind = TypeVar("Kind", bound=type[nn.Module])


def on_lane(kind: Kind, lane: str = "network") -> Kind:
    """Says of a class of layers without parameters that it exchanges or copies, and so can run while its rank
    computes another micro-batch. Profiles note it, and plans then put such layers on that lane of their device
    (docs/formats.md).

        @on_lane
        class Dispatch(nn.Module):
            def forward(self, inputs):
                tokens, gates, rest = inputs
                return exchanged(tokens), gates, rest     # an all-to-all: on its way back another one

    A model is then a list of parts: attention and gate, dispatch, experts, combine. The layer must not draw random
    numbers, and no layer of another class may exchange in its group. Where no plan uses lanes it is a layer as any
    other.
    """
    setattr(kind, ATTRIBUTE, lane)
    return kind


def computed_beside(stages: Sequence[Any], layers: Iterable[Any]) -> str:
    """Which stage of a program computes a layer of a lane while its rank may have that lane at work, in words; "":
    none does. Both would exchange with the same ranks, on two threads: in an order that differs from rank to
    rank. `layers`: of the model, as lane_of() takes them."""
    lanes = list(map(lane_of, layers))
    used = {(rank, stage.lane) for stage in stages for rank in stage.ranks}
    for stage in stages:
        for layer in stage.layers if not stage.lane else ():
            lane = lanes[layer] if layer < len(lanes) else ""  # of another model, which is refused elsewhere
            if lane and lane not in stage.holds and any((rank, lane) in used for rank in stage.ranks):
                return (
                    f'stage "{stage.name}" computes layer {layer}, while other layers run on lane {lane} of its rank: '
                    f'plan again, or give its blocks lane = ["compute", "{lane}"]'
                )
    return ""
