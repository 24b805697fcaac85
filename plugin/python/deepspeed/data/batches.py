# SPDX-License-Identifier: Apache-2.0
"""What a rank takes from the data iterator: batch i is its i-th item, in any order that the plan asks for."""

from typing import Any

from deepspeed.runtime.pipe import schedule
from ostinato.errors import counted

from ..errors import OstinatoError
from .items import own
from ..section.plans import Stage
from ..upstream import Engine


class Batches:
    """The batches of one step. DeepSpeed's own code reads each once; its inputs, and its labels, are freed
    when all stages of this rank that take them have had them. `count`: of the batches; `stages`: the stages
    of this rank that will run; `copies`: of the model, see Stage.
    """

    def __init__(self, engine: Engine, count: int, stages: list[Stage], copies: int):
        self._engine, self._count, self._copies = engine, count, copies
        self._loaded = 0
        # By batch and name: how many stages will take it, and the value.
        self._held: dict[tuple[int, str], tuple[int, Any]] = {}
        self._takers = [
            {
                "inputs": sum(c.reads for c in stages if c.copy == copy),
                "labels": sum(c.ends for c in stages if c.copy == copy),
            }
            for copy in range(copies)
        ]

    def has_read(self, index: int) -> bool:
        """Whether batch `index` has been read, so that take() reads nothing."""
        return index < self._loaded

    def take(self, index: int, name: str):
        """The "inputs" or the "labels" of batch `index`."""
        while not self.has_read(index):
            self._load()
        takers, value = self._held.pop((index, name))
        if takers > 1:
            self._held[index, name] = (takers - 1, value)
        return value

    def read_first(self) -> None:
        """To be called before any batch is taken."""
        if not self._loaded:
            self._load()

    def _load(self) -> None:
        engine, index, buffers = self._engine, self._loaded, self._engine.pipe_buffers
        kept = bool(engine._ostinato.step.read_ahead)
        try:
            engine._INSTRUCTION_MAP[schedule.LoadMicroBatch](engine, index)
        except StopIteration:
            if index == 0:
                raise  # nothing has begun: this is how scripts end
            raise OstinatoError(
                f"the data iterator ended after {index} of {counted(self._count, 'micro-batch')}, in the middle of a train_batch() or eval_batch(): "
                "give it a whole number of steps, or make it start over (deepspeed.utils.RepeatingLoader)"
            ) from None
        self._loaded += 1
        for name, takers in self._takers[index % self._copies].items():
            if takers:
                value = buffers[name][index]  # DeepSpeed copies inputs
                self._held[index, name] = (takers, value if kept or name == "inputs" else own(value))
            buffers[name][index] = None
