# SPDX-License-Identifier: Apache-2.0
"""Layers that run beside what their rank computes."""

from typing import TypeVar

from ostinato.profile.model.lanes import ATTRIBUTE
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
    numbers. Where no plan uses lanes it is a layer as any other.
    """
    setattr(kind, ATTRIBUTE, lane)
    return kind
