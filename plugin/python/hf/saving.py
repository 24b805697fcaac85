# SPDX-License-Identifier: Apache-2.0
"""Saves the weights of a pipeline as a checkpoint in the model's own format, without any rank ever holding them all.

Each rank writes its layers to a separate file; rank 0 adds the index and config.json. If several ranks have the same
tensor (a tied embedding, replicas, two directions), the lowest of them writes it.
"""

import copy
import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from ostinato.errors import Error
from ostinato.files import replaced, write_text
from ostinato.groups import everyones

from . import adapters
from .errors import Refused
from .sources import INDEX, WHOLE, Source

LEARNED = "learned.safetensors"
Made = TypeVar("Made")
Written = dict[str, tuple[int, torch.dtype]]  # bytes and type by name


def save_model(engine, folder) -> None:
    """All ranks must call it. `engine`: a DeepSpeed engine, or its PipelineModule."""
    module = getattr(engine, "module", engine)
    source, mine = _source(module), weights_of(module)
    held = everyones(list(mine))
    _check(source, {name for names in held for name in names})
    first = {name: rank for rank in reversed(range(len(held))) for name in held[rank]}
    own = {name: value.detach().cpu() for name, value in mine.items() if first[name] == dist.get_rank()}
    path = Path(folder)
    if any(everyones((path / WHOLE).exists())):
        raise Refused(
            f"save(): {path / WHOLE} exists, and from_pretrained() would read it instead: use another folder"
        )
    written = _together(lambda: _write(source, own, path))
    _together(lambda: _write_index(source, written, path) if dist.get_rank() == 0 else None)


def save_learned(engine, folder) -> None:
    """Saves parameters that require gradients, gathered on rank 0: they should be few, else use save_model(). All
    ranks must call it."""
    from safetensors.torch import save_file

    module = getattr(engine, "module", engine)
    source, mine = _source(module), weights_of(module)
    if source.wrapped is not None:
        return _save_adapters(source.wrapped, mine, folder)

    def write(made: dict[str, torch.Tensor]) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        save_file(made, Path(folder) / LEARNED, metadata={"format": "pt"})

    _on_rank_0({name: value for name, value in mine.items() if value.requires_grad}, write)


def _save_adapters(wrapped, mine: dict[str, torch.Tensor], folder) -> None:
    """Saves as PeftModel.save_pretrained() does. Raises Refused, on every rank, if peft would not save a trainable
    parameter."""
    kept = {
        name: value for name, value in mine.items() if value.requires_grad or not adapters.is_put_aside(name)
    }
    of_all: dict[str, tuple] = {}
    for held in everyones({name: (tuple(value.shape), value.requires_grad) for name, value in kept.items()}):
        of_all |= held
    wanted = adapters.names_saved(wrapped, {name: shape for name, (shape, _) in of_all.items()})
    if lost := sorted(name for name, (_, learns) in of_all.items() if learns and name not in wanted):
        raise Refused(
            f'save(): "{lost[0]}" ({len(lost)} such) is trainable but in no adapter, so peft would not save it: add it to modules_to_save'
        )
    _on_rank_0(
        {name: value for name, value in kept.items() if name in wanted},
        lambda made: wrapped.save_pretrained(
            folder, state_dict={adapters.PREFIX + name: value for name, value in made.items()}
        ),
    )


def _on_rank_0(mine: dict[str, torch.Tensor], write: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Writes all ranks' tensors there, of which the lowest rank's win."""
    of_all = everyones({name: value.detach().cpu().contiguous() for name, value in mine.items()})
    made = {name: value for held in reversed(of_all) for name, value in held.items()}
    _together(lambda: write(made) if dist.get_rank() == 0 else None)


def _together(write: Callable[[], Made]) -> list[Made]:
    """What it returns on each rank. Where it fails on one, all raise: they would wait for that rank in the next
    collective."""
    made, failed = None, None
    try:
        made = write()
    except Exception as error:
        failed = error
    everyone = everyones((made, "" if failed is None else f"{type(failed).__name__}: {failed}"))
    for rank, (_, why) in enumerate(everyone):
        if why:
            raise Error(
                f"save(): rank {rank} could not write its part, so the checkpoint is not whole: {why}"
            ) from failed
    return [made for made, _ in everyone]


def weights_of(module) -> dict[str, torch.Tensor]:
    """The weights of this rank's layers, by the names in the model's own checkpoints."""
    parts = [part for part in module.modules() if hasattr(part, "named_weights")]
    return {name: value for part in parts for name, value in part.named_weights().items()}


def _source(module) -> Source:
    for spec in module._layer_specs:
        for argument in getattr(spec, "module_args", ()):
            if isinstance(argument, Source):
                return argument
    raise Refused("save(): these layers do not come from ostinato.hf.layers()")


def _check(source: Source, names: set[str]) -> None:
    """Raises Refused if there are tensors that the model does not have, or some are missing."""
    expected = source.saved
    if more := sorted(names - expected):
        raise Refused(
            f'save(): the layers hold "{more[0]}" ({len(more)} such), which {source} does not have: to save adapters, use save(..., learned=True)'
        )
    if lost := sorted(expected - names):
        raise Refused(f'save(): no rank holds "{lost[0]}" ({len(lost)} such)')


def _write(source: Source, own: dict[str, torch.Tensor], folder: Path) -> Written:
    """Writes the file of this rank, if it has tensors; returns what is in it."""
    from safetensors.torch import save_file
    from transformers.core_model_loading import revert_weight_conversion

    model = source.empty()
    made = {name: value.contiguous() for name, value in revert_weight_conversion(model, own).items()}
    folder.mkdir(parents=True, exist_ok=True)
    if made:
        with replaced(folder / _file_name(dist.get_rank())) as beside:
            save_file(made, beside, metadata={"format": "pt"})
    return {name: (value.numel() * value.element_size(), value.dtype) for name, value in made.items()}


def _write_index(source: Source, written: list[Written], folder: Path) -> None:
    """Writes the index, and config.json with the dtype of the weights: else from_pretrained() would cast them."""
    where = {name: _file_name(rank) for rank, names in enumerate(written) for name in names}
    total = sum(size for names in written for size, _ in names.values())
    write_text(
        folder / INDEX,
        json.dumps({"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}, indent=2)
        + "\n",
    )
    types = [dtype for names in written for _, dtype in names.values() if dtype.is_floating_point]
    _write_configurations(source, max(types, key=lambda dtype: dtype.itemsize), folder)


def _write_configurations(source: Source, dtype, folder) -> None:
    config = copy.deepcopy(source.config)
    config.architectures, config.dtype = [source.kind.__name__], dtype
    config.save_pretrained(folder)
    if source.generation is not None:
        source.generation.save_pretrained(folder)


def check_configurations(source: Source) -> None:
    """Raises Refused where transformers refuses to write them in save(), which would show when the training is over.
    Other errors are left to save(), which a run may do without."""
    try:
        with suppress(OSError, TypeError), tempfile.TemporaryDirectory() as folder:
            _write_configurations(source, source.config.dtype, folder)
    except ValueError as error:
        raise Refused(
            f"{source}: transformers refuses to save its configurations, and so would save() after the training: mend "
            f"model.config or model.generation_config (of a folder, its files): {error}"
        ) from error


def _file_name(rank: int) -> str:
    return f"model-{rank + 1:05}-of-{dist.get_world_size():05}.safetensors"
