# SPDX-License-Identifier: Apache-2.0
"""Compares the first steps under a plan with those that DeepSpeed's own 1F1B ran in the first start
("check")."""

from collections.abc import Callable, Sequence
from typing import Any

from ..tell.announce import say
from ..errors import OstinatoError
from .comparison import compare
from .recorder import Recorder
from .records import Records
from ..upstream import Engine

WHY = (
    "a layer that keeps state outside its buffers, an optimizer that looks at several parameters together, data that differ by "
    "rank, or random numbers that the script draws without a seed or for the layers of its rank"
)


def compare_with(
    engine: Engine, first: str, require: bool, unsaid: list[str], leave: Callable[[str, bool], None]
) -> None:
    """`first`: Records of the first start, as text. Where the compared steps differ beyond rounding the run
    stops after the last of them, unless `require` is off. `unsaid`: reasons that step 1 has shown; rank 0
    says them where steps differ. `leave`: for later starts; gets the result, and whether bits are equal. All ranks
    must call it.
    """
    theirs = Records.from_text(first)
    recorder, train = Recorder(engine, len(theirs.steps)), engine.train_batch
    left = len(theirs.steps)

    def train_batch(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        loss = train(*args, **kwargs)
        left -= 1
        if left == 0:
            keys = [getattr(spec, "key", None) for spec in engine.module._layer_specs]
            _tell(theirs, recorder.all(), require, unsaid, keys, leave)
        return loss

    vars(engine)["train_batch"] = train_batch


def _tell(
    theirs: Records,
    ours: Records,
    require: bool,
    unsaid: list[str],
    keys: Sequence[str | None],
    leave: Callable[[str, bool], None],
) -> None:
    told = compare(theirs, ours, keys)
    if told.steps:
        leave(told.sentence(), told.equal)
    for why in unsaid if not told.equal else []:
        say(why)
    if require and not told.within_rounding:
        drew = f"{theirs.drew}.step(), which draws random numbers for its rank's parameters, " * bool(
            theirs.drew
        )
        raise OstinatoError(
            f'{told.sentence()} (possible causes: {drew}{WHY}); "require": false in the "ostinato" section lets the run go on anyway'
        )
    say(f"measured: {told.sentence()}")
