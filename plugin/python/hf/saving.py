# SPDX-License-Identifier: Apache-2.0
"""Saves the weights of a pipeline as a checkpoint in the model's own format, without any rank ever holding them all.

Each rank writes its layers to a separate file; rank 0 adds the index and config.json. If several ranks have the same
tensor (a tied embedding, replicas, two directions), the lowest of them writes it.
"""

import copy
import json
from pathlib import Path

import torch
import torch.distributed as dist
from ostinato.files import replaced, write_text

from . import adapters
from .errors import Refused
from .sources import Source

INDEX, WHOLE, LEARNED = "model.safetensors.index.json", "model.safetensors", "learned.safetensors"
Written = dict[str, tuple[int, torch.dtype]]  # bytes and type by name


def save_model(engine, folder) -> None:
    """All ranks must call it. `engine`: a DeepSpeed engine, or its PipelineModule."""
    module = getattr(engine, "module", engine)
    source, mine = _source(module), weights_of(module)
    everyones = _everyones(list(mine))
    _check(source, {name for names in everyones for name in names})
    first = {name: rank for rank in reversed(range(len(everyones))) for name in everyones[rank]}
    own = {name: value.detach().cpu() for name, value in mine.items() if first[name] == dist.get_rank()}
    path = Path(folder)
    if any(_everyones((path / WHOLE).exists())):
        raise Refused(
            f"save(): {path / WHOLE} exists, and from_pretrained() would read it instead: use another folder"
        )
    path.mkdir(parents=True, exist_ok=True)
    written = _everyones(_write(source, own, path))
    if dist.get_rank() == 0:
        _write_index(source, written, path)
    dist.barrier()


def save_learned(engine, folder) -> None:
    """Saves parameters that require gradients, gathered on rank 0: they should be few, else use save_model(). All
    ranks must call it."""
    from safetensors.torch import save_file

    module = getattr(engine, "module", engine)
    source, mine = _source(module), weights_of(module)
    if source.wrapped is not None:
        return _save_adapters(source.wrapped, mine, folder)
    if (made := _on_rank_0({name: value for name, value in mine.items() if value.requires_grad})) is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        save_file(made, Path(folder) / LEARNED, metadata={"format": "pt"})
    dist.barrier()


def _save_adapters(wrapped, mine: dict[str, torch.Tensor], folder) -> None:
    """Saves as PeftModel.save_pretrained() does. Raises Refused, on every rank, if peft would not save a trainable
    parameter."""
    kept = {
        name: value for name, value in mine.items() if value.requires_grad or not adapters.is_put_aside(name)
    }
    of_all: dict[str, tuple] = {}
    for held in _everyones({name: (tuple(value.shape), value.requires_grad) for name, value in kept.items()}):
        of_all |= held
    wanted = adapters.names_saved(wrapped, {name: shape for name, (shape, _) in of_all.items()})
    if lost := sorted(name for name, (_, learns) in of_all.items() if learns and name not in wanted):
        raise Refused(
            f'save(): "{lost[0]}" ({len(lost)} such) is trainable but in no adapter, so peft would not save it: add it to modules_to_save'
        )
    if (made := _on_rank_0({name: value for name, value in kept.items() if name in wanted})) is not None:
        wrapped.save_pretrained(
            folder, state_dict={adapters.PREFIX + name: value for name, value in made.items()}
        )
    dist.barrier()


def _on_rank_0(mine: dict[str, torch.Tensor]) -> dict[str, torch.Tensor] | None:
    """All ranks' tensors on rank 0, where the lowest rank's win; None elsewhere."""
    everyones = _everyones({name: value.detach().cpu().contiguous() for name, value in mine.items()})
    return (
        {name: value for held in reversed(everyones) for name, value in held.items()}
        if dist.get_rank() == 0
        else None
    )


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
    config = copy.deepcopy(source.config)
    config.architectures = [source.kind.__name__]
    types = [dtype for names in written for _, dtype in names.values() if dtype.is_floating_point]
    config.dtype = max(types, key=lambda dtype: dtype.itemsize)
    config.save_pretrained(folder)
    if source.generation is not None:
        source.generation.save_pretrained(folder)


def _file_name(rank: int) -> str:
    return f"model-{rank + 1:05}-of-{dist.get_world_size():05}.safetensors"


def _everyones(mine) -> list:
    made = [None] * dist.get_world_size()
    dist.all_gather_object(made, mine)
    return made
