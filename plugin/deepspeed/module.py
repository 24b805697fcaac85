"""A PipelineModule whose rank holds several chunks of layers, only one of which runs at a time.

    adopt(model, owners, chunks)       # changes the class of `model` in place
    model.show(chunk)                  # forward() is now this chunk's
    model.show_all()                   # the resting state: all local layers, as checkpoints and compile() want them

The chunk must be shown during its backward too: activation checkpointing recomputes through forward_funcs.
"""

from .plans import Chunk


class ChunkedLayers:
    """Mixed in before the model's own class."""

    def show(self, chunk: Chunk) -> None:
        """Makes `chunk` the layers that forward() runs. O(layers of the chunk)."""
        view = self._views[chunk.stage]
        if view is self._shown:
            return
        self._put_away()
        self._shown = view
        self.forward_funcs = self._local_funcs[view.begin : view.begin + chunk.end - chunk.first]
        self.micro_offset = view.micro_offset
        self.is_checkpointable_results = view.checkpointable
        self._set_bounds(chunk.first, chunk.end)

    def show_all(self) -> None:
        """The resting state: every local layer, in model order."""
        self._put_away()
        self._shown = None
        self.forward_funcs = self._local_funcs
        first, last = (self._chunks[0], self._chunks[-1])
        self._set_bounds(first.first, last.end)

    def _put_away(self) -> None:
        if self._shown is not None:
            self._shown.micro_offset = self.micro_offset

    def stage_owner(self, layer_idx):
        """The pipeline rank that runs the layer."""
        return self._owners[layer_idx]

    def _precompute_checkpointable_values(self):
        for chunk in self._chunks:
            self.show(chunk)
            self.is_checkpointable_results_interval = None  # the parent caches by interval, not by chunk
            super()._precompute_checkpointable_values()
            self._shown.checkpointable = self.is_checkpointable_results
        self.show_all()

    def ckpt_layer_path(self, ckpt_dir, local_layer_idx):
        return super().ckpt_layer_path(ckpt_dir, self._local_layers[local_layer_idx] - self._local_start)

    def ckpt_layer_path_list(self, ckpt_dir, local_layer_idx):
        return super().ckpt_layer_path_list(ckpt_dir, self._local_layers[local_layer_idx] - self._local_start)


class _View:
    """What changes with the chunk that is shown."""

    def __init__(self, begin: int):
        self.begin = begin  # in forward_funcs of the resting state
        self.micro_offset = 0  # per chunk: it seeds the layers of a micro-batch where seed_layers is on
        self.checkpointable = []


def adopt(model, owners: list[int], chunks: list[Chunk]) -> None:
    """Turns `model` into one whose rank runs `chunks`; its forward_funcs already hold their layers in model order.

    `owners[i]` is the pipeline rank of layer i. The class keeps its name, which DeepSpeed looks at.
    """
    kind = type(model)
    model.__class__ = type(kind.__name__, (ChunkedLayers, kind), {"__module__": kind.__module__})
    model._owners, model._chunks = owners, chunks
    model._local_funcs = model.forward_funcs
    model._local_layers = [layer for chunk in chunks for layer in range(chunk.first, chunk.end)]
    begins = [sum(c.end - c.first for c in chunks[:i]) for i in range(len(chunks))]
    model._views = {chunk.stage: _View(begin) for chunk, begin in zip(chunks, begins, strict=True)}
    model._shown = None
    model.show_all()
