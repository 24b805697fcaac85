"""What a rank takes from the data iterator: batch i is its i-th item, in whatever order the plan asks for them."""

from .plans import Chunk


class Batches:
    """The batches of one step. Each is read by DeepSpeed's own code, once, and let go when all stages of the rank have had
    what they take of it. `chunks`: the stages of this rank that will run; `copies`: of the model, see Chunk.
    """

    NAMES = ("inputs", "labels")

    def __init__(self, engine, chunks: list[Chunk], copies: int):
        self._engine, self._copies = engine, copies
        self._loaded, self._held = 0, {}
        self._takers = [sum(c.reads + c.ends for c in chunks if c.copy == copy) for copy in range(copies)]

    def take(self, index: int, name: str):
        """The "inputs" or the "labels" of batch `index`."""
        while self._loaded <= index:
            self._load()
        takers, values = self._held.pop(index)
        if takers > 1:
            self._held[index] = (takers - 1, values)
        return values[name]

    def _load(self) -> None:
        index, buffers = self._loaded, self._engine.pipe_buffers
        self._engine._exec_load_micro_batch(index)
        self._loaded += 1
        takers = self._takers[index % self._copies]
        if takers:
            self._held[index] = (takers, {name: buffers[name][index] for name in self.NAMES})
        for name in self.NAMES:
            buffers[name][index] = None
