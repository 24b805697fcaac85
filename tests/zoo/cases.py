# SPDX-License-Identifier: Apache-2.0
"""Which models run under which placements."""

from itertools import cycle

from .catalogue import MODELS, REAL
from .placements import PLACEMENTS

EVERYONE = "wave"  # layers move, and ranks hold several stages
OFTEN = ("AlexNet", "GPT-2", "T5")  # of the real models, every day; of the hazards all, under EVERYONE
ALSO = ("recompute", "looped", "split, wave", "two directions", "uneven")  # in turn, one for each real model
TELLING = {
    "BatchNorm": ("recompute, wave", "two directions"),
    "dropout": ("recompute", "looped"),
    "dropout off, by the script": ("auto",),
    "embedding and head to shard": ("shards",),
    "GPT-2": ("four ranks", "profiled"),
    "frozen front, by the script": ("profiled",),
    "AlexNet": ("auto", "recompute"),
    "learning rate, after the start": ("auto",),
    "noise": ("uneven",),
    "state of Python's": ("auto", "recompute"),
    "hooks of backwards, by the script": ("two directions",),
    "a compiled part": ("split, wave",),
    "tied embedding": ("split",),
    "checkpointing of DeepSpeed's": ("recompute",),
    "noise of Python's and NumPy's": ("1F1B's own", "recompute"),
    "stochastic depth": ("1F1B's own", "recompute"),
    "several gradients": ("uneven", "finer"),
    "unused parameters": ("two directions",),
    "bf16, ZeRO-1": ("two directions",),
    "convolutions, channels_last": ("split",),
    "views": ("uneven",),
    "BatchNorm in a checkpoint": ("split",),
}
EVERY_DAY = {("BatchNorm in a checkpoint", "split")}  # what EVERYONE does not show
# On four ranks DeepSpeed alone stops: a view is sent ("input tensor has to be contiguous"), or a rank has
# nothing to train ("optimizer got an empty parameter list").
ALONE_ON_TWO = ("Whisper", "T5", "T5, dropout", "views", "frozen front", "frozen front, by the script")


def cases(everything: bool) -> list[tuple[str, str]]:
    """(model, placement); `everything`: all pairs, else the telling ones."""
    if everything:
        return [(model, name) for model in MODELS for name in PLACEMENTS if possible(model, name)]
    more = {model: (name,) for model, name in zip(REAL, cycle(ALSO), strict=False)}
    return [
        (model, name) for model in MODELS for name in (EVERYONE, *TELLING.get(model, more.get(model, ())))
    ]


def every_day(model: str, placement: str) -> bool:
    usual = placement == EVERYONE and (model not in REAL or model in OFTEN)
    return usual or (model, placement) in EVERY_DAY


def possible(model: str, placement: str) -> bool:
    """A placement that shards is for models whose ends can be cut; and DeepSpeed alone must be able to train
    what it is compared with."""
    alone = PLACEMENTS[placement].ranks == 2 or model not in ALONE_ON_TWO
    return alone and (MODELS[model].shardable or not PLACEMENTS[placement].shards)
