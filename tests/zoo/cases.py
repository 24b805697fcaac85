"""Which models run under which placements."""

from itertools import cycle

from .catalogue import MODELS
from .placements import PLACEMENTS

EVERYONE = "wave"  # layers move, and ranks hold several stages
ALSO = ("recompute", "looped", "auto", "split, wave", "two directions", "uneven")  # in turn, one for each model
TELLING = {
    "BatchNorm": ("recompute, wave", "two directions"),
    "embedding and head to shard": ("shards",),
    "GPT-2": ("shards", "four ranks"),
    "AlexNet": ("auto", "uneven"),
    "learning rate, after the start": ("auto",),
    "state of Python's": ("auto", "recompute"),
    "dropout off, by the script": ("auto",),
    "several gradients": ("uneven",),
}


def cases(everything: bool) -> list[tuple[str, str]]:
    """(model, placement); `everything`: all pairs, else the telling ones."""
    if everything:
        return [(model, name) for model in MODELS for name in PLACEMENTS if possible(model, name)]
    more = dict(zip(MODELS, cycle(ALSO), strict=False))
    return [(model, name) for model in MODELS for name in dict.fromkeys((EVERYONE, *TELLING.get(model, (more[model],))))]


def possible(model: str, placement: str) -> bool:
    """A placement that shards is for models whose ends can be cut."""
    return MODELS[model].shardable or not PLACEMENTS[placement].shards
