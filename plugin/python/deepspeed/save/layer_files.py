# SPDX-License-Identifier: Apache-2.0
"""Checkpoint files of a model with several stages per rank: the same files as in DeepSpeed's own partition."""

import zipfile
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ostinato.nn import Shard, cut_state, whole_state
from ostinato.nn.layers import split_of
from ostinato.groups import everyones

from ..errors import OstinatoError
from ..upstream import Model


def layers_here(model: Model) -> Sequence[int]:
    """Layers of this rank, under a plan or in DeepSpeed's own partition."""
    return vars(model).get("_local_layers") or range(
        model._local_start, model._local_start + len(model.forward_funcs)
    )


class LayerFiles(Model):
    """Mixed in before the model's own class."""

    _shards: dict[int, Shard]  # by layer: this rank's part
    _local_funcs: list[Any]
    _local_layers: list[int]
    written_elsewhere: set[int]
    # Tied weights, the rank that reads them, the group of all ranks that have them.
    read_for_others: list[Any] | None

    def sharded_parameters(self) -> set[str]:
        """Names of the parameters that this rank holds in part."""
        names = set()
        for layer, shard in zip(
            self._local_funcs, (self._shards.get(i) for i in self._local_layers), strict=True
        ):
            if shard is not None:
                of_layer = {
                    id(p) for name, p in getattr(layer, "named_parameters", dict)() if name in split_of(layer)
                }
                names |= {name for name, p in self.named_parameters() if id(p) in of_layer}
        return names

    def refuse_unreadable(self, folder: Path | None) -> None:
        """Raises OstinatoError on every rank where a layer file of any rank is missing or incomplete. All
        ranks must call it."""
        has_file = (at for at, layer in enumerate(self.forward_funcs) if hasattr(layer, "load_state_dict"))
        said = (
            [why for at in has_file if (why := self._why_unreadable(folder, at))]
            if folder is not None and folder.is_dir()
            else []
        )
        if errors := [why for of_rank in everyones(said) for why in of_rank]:
            raise OstinatoError(f"{folder}: {errors[0]}")

    def _why_unreadable(self, folder: Path, at: int) -> str:
        paths = [Path(path) for path in self.ckpt_layer_path_list(str(folder), at)]
        if not paths:
            return f"{Path(self.ckpt_layer_path(str(folder), at)).name} is missing"
        for path in paths:
            with open(path, "rb") as file:
                # An archive of torch.save() without its end.
                if file.read(2) in (b"PK", b"") and not zipfile.is_zipfile(path):
                    return f"{path.name} cannot be read: it is incomplete"
        return ""

    def save_state_dict(self, save_dir, *args, **kwargs):
        """Assembles sharded layers first, so that files are the same as in DeepSpeed's own partition."""
        with self._as_whole():
            super().save_state_dict(save_dir, *args, **kwargs)

    def load_state_dir(self, load_dir, *args, **kwargs):
        with self._as_whole(collect=False):
            super().load_state_dir(load_dir, *args, **kwargs)

    def _synchronize_tied_weights(self):
        """Called after a checkpoint was read. DeepSpeed would broadcast them from the lowest rank, which may
        not have read them."""
        if self.read_for_others is None:  # they are placed as in DeepSpeed's partition
            return super()._synchronize_tied_weights()
        for weights, source, group in self.read_for_others:
            for weight in weights:
                dist.broadcast(weight.detach(), source, group=group)

    @contextmanager
    def _as_whole(self, collect: bool = True):
        """Replaces sharded layers by stand-ins with the state of whole layers."""
        layers = self.forward_funcs
        self.forward_funcs = [
            self._stand_in(index, layer, collect) if isinstance(layer, torch.nn.Module) else layer
            for index, layer in zip(self._local_layers, layers, strict=True)
        ]
        try:
            yield
        finally:
            self.forward_funcs = layers

    def _stand_in(self, index: int, layer, collect: bool):
        if collect and index in self.written_elsewhere:
            return None
        return WholeLayer(layer, self._shards[index], collect) if index in self._shards else layer


class WholeLayer:
    """Stands for a sharded layer while checkpoints are written or read."""

    def __init__(self, part, shard, collect: bool):
        self._part, self._shard = part, shard
        if collect and (state := whole_state(part, shard)) is not None:  # only the first rank writes
            self.state_dict = lambda: state

    def load_state_dict(self, state, strict=True):
        return self._part.load_state_dict(cut_state(state, self._part, self._shard), strict=strict)
