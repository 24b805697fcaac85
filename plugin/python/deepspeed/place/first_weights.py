# SPDX-License-Identifier: Apache-2.0
"""The trainable weights and the random states with which the first start trains, for the second.

    first = kept(model, states)                # in the first start, before its engine is made; None: too large
    first.write(file)
    restored = restore(model, stages, read(file), states)      # in the second: all ranks, with their model and states
    restored.states, restored.said                             # states to go on from, and what rank 0 is to say

A script may draw weights after PipelineModule() has made the layers: adapters, as a rule, on the rank that
holds the layer. In the second start that is a different rank, or there was no seed, so it draws different ones.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from ostinato.errors import counted
from ostinato.groups import everyones

from ..save.tensor_names import in_layers, module_name_of, module_of
from ..section.plans import Stage
from ostinato.buffers import as_bytes
from ..upstream import Model
from .loss_state import NAME as LOSS
from .tied import owners_of

LIMIT = 1 << 30  # bytes of a rank's trainable weights: of adapters, or of a small model
PIECE = 1 << 24  # bytes that are copied from a device at once

Fingerprint = tuple[str, tuple[int, ...], str]  # of a tensor: dtype, shape, digest


class First(NamedTuple):
    """Of one rank. `weights`: on the CPU, by name in the model."""

    weights: dict[str, torch.Tensor]
    states: tuple

    def write(self, file: Path) -> None:
        """Leaves no file where there is no room for it."""
        *others, (kind, key, *rest) = self.states  # NumPy's, with an array
        try:
            torch.save((self.weights, (*others, (kind, list(map(int, key)), *rest))), file)
        except (OSError, RuntimeError):  # torch's writer raises either
            with suppress(OSError):
                file.unlink()


@dataclass(frozen=True)
class Restored:
    states: tuple
    said: str = ""


def kept(model: Model, states: tuple) -> First | None:
    weights = dict(_trainable(model))
    if sum(weight.nbytes for weight in weights.values()) > LIMIT:
        return None
    return First({name: weight.to("cpu", copy=True) for name, weight in weights.items()}, states)


def read(file: Path) -> First | None:
    """Removes the file, which may lie in memory."""
    if not file.is_file():
        return None
    made = First(*torch.load(file, weights_only=True))
    file.unlink()
    return made


def restore(model: Model, stages: Sequence[Stage], first: First | None, states: tuple) -> Restored:
    """All ranks of the pipeline must call it. Changes nothing where a rank has nothing from its first start, and
    no layer of a sharded stage, which a rank holds in part. `first`: this rank's."""
    everyone = everyones(
        first and {name: _fingerprint(weight) for name, weight in first.weights.items()}, _group(model)
    )
    if first is None or None in everyone:
        return Restored(states)
    mine, sources = dict(_trainable(model)), _sources(model, stages)
    wanted = [
        (name, source)
        for name, weight in mine.items()
        if (source := sources.get(module_of(name))) is not None
        and (theirs := everyone[source].get(name)) is not None
        and theirs[:2] == (ours := _fingerprint(weight))[:2]
        and theirs != ours
    ]
    of_ranks = everyones(wanted, _group(model))
    for name, values in _exchanged(model, of_ranks, first):
        mine[name].copy_(values)
    layers = len({module_of(name) for names in of_ranks for name, _ in names})
    return Restored(first.states, _said(layers))


def _said(layers: int) -> str:
    if not layers:
        return ""
    return (
        f"trainable weights of {counted(layers, 'layer')} differed from those of the first start, as where a script draws them without a seed "
        "or on the rank that holds the layer: they were set to those of the first start"
    )


def _exchanged(
    model: Model, wanted: list[list[tuple[str, int]]], first: First
) -> Iterator[tuple[str, torch.Tensor]]:
    """What this rank has asked for. `wanted`: by pipeline rank, names and the rank that has them; all ranks
    send in that order, so that blocking transfers cannot deadlock."""
    from deepspeed.accelerator import get_accelerator

    device = get_accelerator().device_name(model.local_rank)
    for target, asked in enumerate(wanted):
        for name, source in asked:
            if model.stage_id == source == target:
                yield name, first.weights[name]
            elif model.stage_id == source:
                dist.send(
                    as_bytes(first.weights[name].to(device)),
                    model._grid.pp_group[target],
                    group=_group(model),
                )
            elif model.stage_id == target:
                held = model.get_parameter(name)
                values = torch.empty(held.shape, dtype=held.dtype, device=device)
                dist.recv(as_bytes(values), model._grid.pp_group[source], group=_group(model))
                yield name, values


def _trainable(model: Model) -> Iterator[tuple[str, torch.Tensor]]:
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.numel():
            yield name, parameter.detach()


def _sources(model: Model, stages: Sequence[Stage]) -> dict[str, int]:
    """By name of a module that this rank holds whole, the pipeline rank that has it in DeepSpeed's own partition
    (tied)."""
    before, last = owners_of(model), len(model._grid.pp_group) - 1
    stays = all(stage.rank == last for stage in stages if stage.ends)
    sources = {LOSS: model.stage_id if stays else last}
    here = {
        layer for stage in stages if stage.on(model.stage_id) and not stage.sharded for layer in stage.layers
    }
    for layer in sorted(here):
        if (name := module_name_of(layer, model._layer_specs[layer])) is not None:
            sources.setdefault(name, before[layer])
    for name, _ in model.named_parameters():
        if not in_layers(name):  # what the script keeps on the model itself
            sources.setdefault(module_of(name), sources[LOSS])
    return sources


def _fingerprint(tensor: torch.Tensor) -> Fingerprint:
    digest = hashlib.sha1(usedforsecurity=False)
    for piece in as_bytes(tensor).split(PIECE):
        digest.update(piece.cpu().numpy().data)
    return str(tensor.dtype), tuple(tensor.shape), digest.hexdigest()


def _group(model: Model) -> dist.ProcessGroup:
    return model._grid.pp_proc_group
