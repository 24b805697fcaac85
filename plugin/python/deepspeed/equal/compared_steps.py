# SPDX-License-Identifier: Apache-2.0
"""Compares the first steps under a plan with those that DeepSpeed's own 1F1B ran in the first start
("check")."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ostinato.groups import everyones

from ..tell.announce import ran_again, say, written_again
from ..errors import OstinatoError
from .comparison import Comparison, compare
from .recorder import Recorder
from .records import Records
from ..upstream import Engine

WHY = (
    "a layer that keeps state outside its buffers, an optimizer that looks at several parameters together, data that differ by "
    "rank, random numbers that the script draws without a seed or for the layers of its rank, or that layers draw from a tracker "
    "which is neither deepspeed.checkpointing's nor Megatron-Core's, or a file that the script wrote before it started again and then read"
)


OTHERS = (
    "random numbers differ from 1F1B's, as said above, so that these steps cannot be compared: if layers draw them, "
    'PipelineModule(seed_layers=True) makes them equal; "check": 0 compares nothing'
)


class Shown(NamedTuple):
    """What step 1 shows of a model. `sizes`: that activations are larger or smaller than planned, in words;
    `rounding`: why bits may differ; `written_again`: layers that write to buffers in a recomputed forward, in an
    order that is not 1F1B's."""

    sizes: str = ""
    rounding: Sequence[str] = ()
    written_again: Sequence[int] = ()

    def lines(self) -> list[str]:
        again = [written_again(self.written_again)] if self.written_again else []
        return [*filter(None, [self.sizes]), *self.rounding, *again]


class ComparedSteps:
    """Under a plan, the steps that the first start ran under 1F1B.

        compared = ComparedSteps(engine, first, require=True, leave=leave)
        compared.shown = Shown(...)     # once step 1 is over

    `first`: Records of the first start, as text. A script that goes on from a checkpoint which the first start
    saved begins with a later step, and is compared from there. Where the steps differ beyond rounding the run
    stops after the last of them, unless `require` is off. `leave`: for later starts; gets the result. All
    ranks must make one.
    """

    def __init__(self, engine: Engine, first: str, require: bool, leave: Callable[[Comparison], None]):
        self.shown = Shown()  # rank 0 says it with the result, if it explains that
        self._engine, self._require, self._leave = engine, require, leave
        self._theirs = Records.from_text(first)
        self._left = len(self._theirs.steps)
        self._recorder, self._train = Recorder(engine, self._left), engine.train_batch
        vars(engine)["train_batch"] = self._train_batch

    def _train_batch(self, *args: Any, **kwargs: Any) -> Any:
        if self._left == len(self._theirs.steps):
            ahead = self._engine.global_steps - self._theirs.began
            if 0 < ahead < self._left:
                self._left -= ahead
        loss = self._train(*args, **kwargs)
        self._left -= 1
        if self._left == 0:
            self._tell()
        return loss

    def _tell(self) -> None:
        keys = [getattr(spec, "key", None) for spec in self._engine.module._layer_specs]
        told = compare(self._theirs, self._recorder.all(), keys, self.shown.written_again)
        self._leave(told)
        others = any(everyones(self._engine._ostinato.random_numbers.said))
        tell(told, self.shown, self._require, self._theirs.drew, others)


def tell(told: Comparison, shown: Shown, require: bool, drew: str, others: bool = False) -> None:
    """`drew`: the optimizer that draws random numbers, or ""; `others`: a rank has said that random numbers
    differ from 1F1B's. Raises OstinatoError where steps differ beyond rounding, unless `require` is off."""
    rounding = () if told.equal else shown.rounding
    for line in shown._replace(rounding=rounding, written_again=told.written_again).lines():
        say(line)
    if require and not told.within_rounding:
        draws = f"{drew}.step(), which draws random numbers for its rank's parameters, " * bool(drew)
        why = f"possible causes: {draws}{WHY}"
        if told.other_data and not drew:
            why = f"{told.other_data} are not those of the first start: seed what shuffles or draws them"
        elif others:
            why = OTHERS
        elif told.written_again:
            why = f"probably: {ran_again(told.written_again)}"
        raise OstinatoError(
            f'{told.sentence()} ({why}); "require": false in the "ostinato" section lets the run go on anyway'
        )
    say(f"measured: {told.sentence()}")
