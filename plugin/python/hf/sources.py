# SPDX-License-Identifier: Apache-2.0
"""Where layers get their modules from: a model in memory, a checkpoint on disk, or just a configuration.

source = source_of(LlamaConfig(...))             # the rank that builds a layer initialises it as the model does
source = source_of("folder/of/a/checkpoint")     # safetensors: a layer reads only its own tensors
source = source_of(model)                        # copies
source.carved(stubs, keeps)                      # the model with only some modules and parameters (carving)
"""

import contextlib
import copy
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from .adapters import check_adapters, unwrapped
from .carving import Stub, carve, drop, shallow
from .errors import Refused
from .outline import check_tied, check_untouched, outline_of

INDEX, WHOLE = "model.safetensors.index.json", "model.safetensors"


class Source(ABC):
    """`kind`: the class, e.g. LlamaForCausalLM; `outline`: where its parts are; `children`: by module, the names
    of its children; `tables`: modules with buffers; `saved`: names of the tensors in a checkpoint, before the
    model's own conversions.
    """

    in_memory = False
    folder: str | None = None  # of a checkpoint
    wrapped: Any = None  # peft's PeftModel around the model
    loss: Callable | None = None  # the model's `loss_function`, where it is known
    change: Callable | None = (
        None  # what the script does to a layer's part of the model, in the layer's constructor
    )

    def __init__(self, model):
        self.kind, self.config, self.outline = type(model), model.config, outline_of(model)
        self.children = {name: tuple(module._modules) for name, module in model.named_modules()}
        self.generation = model.generation_config if model.can_generate() else None
        self.tables = [name for name, module in model.named_modules() if name and module._buffers]
        plain = self.empty()
        self.tied = dict(plain.all_tied_weights_keys)
        # Patterns of tied names that are alone in the files, and where they go.
        self.moved: dict[str, str] = {}
        self.saved = set(plain.state_dict()) - set(self.tied)
        self.loss = loss_of(model)

    def __repr__(self) -> str:  # DeepSpeed prints the arguments of layers
        return self.kind.__name__

    def find_tied(self) -> None:
        """Finds tied weights in the files as transformers does, which takes them under either name. Raises Refused
        where it would not tie them: if both names are there, and differ."""
        prefix = f"{self.kind.base_model_prefix}."  # the files of a model without a head do not have it
        held = {name.removeprefix(prefix): (name, file) for name, file in _files(self.folder).items()}
        for target, source in self.tied.items():
            first, second = (held.get(name.removeprefix(prefix)) for name in (target, source))
            if first and second and not _equal(first, second):
                raise Refused(
                    f'{self}: "{self.folder}" holds {target} and {source}, which differ, but its configuration ties them: set '
                    '"tie_word_embeddings": false in its config.json, as transformers does not tie them either'
                )
            if first and not second:
                self.moved[f"^{re.escape(first[0])}$"] = source

    def carved(self, stubs: dict[str, Stub], keeps: Callable[[str], bool]):
        made = self._carved(stubs, keeps)
        made.generation_config = None  # no layer needs it, and it is a different object on every rank
        if self.change is not None:
            self.change(made)
        return made

    @abstractmethod
    def _carved(self, stubs: dict[str, Stub], keeps: Callable[[str], bool]): ...

    def empty(self):
        """The model without memory for its weights."""
        with torch.device("meta"):
            return self.kind(copy.deepcopy(self.config))


class FromModel(Source):
    in_memory = True

    def __init__(self, model, wrapped):
        super().__init__(model)
        check_untouched(model, self.outline)
        if wrapped is None:  # else save() writes adapters only
            check_tied(model, self.outline, self.tied)
        self.model, self.wrapped = model, wrapped

    def _carved(self, stubs, keeps):
        made = shallow(self.model, leave=lambda name: name in stubs)
        carve(made, stubs)
        drop(made, keeps)
        # All layers share it, so the profile sees that they are equal.
        copied = copy.deepcopy(made, {id(self.config): self.config})
        for old, new in zip(made.parameters(), copied.parameters(), strict=True):
            vars(new).update(vars(old))  # attributes that the script has set
        return copied


class FromFiles(Source):
    """`folder`: a checkpoint, or None: weights are initialised."""

    def __init__(self, folder: str | None, kind: type, config, dtype):
        from transformers import GenerationConfig

        self.folder, self.dtype, self.kind, self.config = folder, dtype, kind, config
        super().__init__(self.empty())
        self.shared = None  # the configuration of the first layer that is built
        if folder and Path(folder, "generation_config.json").is_file():
            self.generation = GenerationConfig.from_pretrained(folder, local_files_only=True)

    def _carved(self, stubs, keeps):
        def begin(model, config, *args, **more) -> None:
            super(kind, model).__init__(config, *args, **more)
            carve(model, stubs)
            model.all_tied_weights_keys = {}
            model._keys_to_ignore_on_load_unexpected = {"."}  # tensors of other layers

        kind: Any = type(
            self.kind.__name__, (self.kind,), {"__init__": begin, "__module__": self.kind.__module__}
        )
        given: dict[str, Any] = (
            {"state_dict": {}}
            if self.folder is None
            else {"local_files_only": True, "use_safetensors": True, "key_mapping": self.moved}
        )
        with _quiet(missing_too=self.folder is None):
            made = kind.from_pretrained(
                self.folder, config=copy.deepcopy(self.config), dtype=self.dtype, **given
            )
        made.__class__ = self.kind
        drop(made, keeps)
        vars(made).pop("_weight_conversions", None)
        own, self.shared = made.config, self.shared or made.config
        for module in [module for module in made.modules() if vars(module).get("config") is own]:
            module.config = self.shared  # all layers share it, so the profile sees that they are equal
        return made.train()


def _files(folder: str | None) -> dict[str, Path]:
    """By the names of a checkpoint's tensors, as transformers looks for them."""
    from safetensors import safe_open

    if folder and Path(folder, WHOLE).is_file():
        with safe_open(Path(folder, WHOLE), "pt") as file:
            return dict.fromkeys(file.keys(), Path(folder, WHOLE))
    if folder and Path(folder, INDEX).is_file():
        where = json.loads(Path(folder, INDEX).read_text())["weight_map"]
        return {name: Path(folder, file) for name, file in where.items()}
    return {}


def _equal(*saved: tuple[str, Path]) -> bool:
    from safetensors import safe_open

    def read(name: str, path: Path) -> torch.Tensor:
        with safe_open(path, "pt") as file:
            return file.get_tensor(name)

    first, second = (read(*of) for of in saved)
    wider = torch.promote_types(first.dtype, second.dtype)
    return torch.equal(first.to(wider), second.to(wider))


@contextlib.contextmanager
def _quiet(missing_too: bool) -> Iterator[None]:
    """Suppresses a progress bar per layer, and the report of weights that are missing because there is no
    checkpoint."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    if missing_too:
        logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def source_of(given, kind: type | None = None, dtype=None, untried: bool = False) -> Source:
    from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

    from .refusals import check_config, check_shape

    check_adapters(given, untried)
    given, wrapped = unwrapped(given)
    if isinstance(given, PreTrainedModel):
        check_shape(given.config)
        check_config(given.config, type(given))
        if dtype is not None or kind is not None:
            raise Refused(
                "layers(): `kind` and `dtype` are for configurations and checkpoints: remove them for a model in memory"
            )
        return FromModel(given, wrapped)
    folder = None
    if isinstance(given, (str, os.PathLike)):
        folder = str(given)
        if not Path(folder, "config.json").is_file():
            raise Refused(
                f'"{folder}" is not a folder with a config.json: use a checkpoint on disk (ostinato downloads nothing)'
            )
        given = AutoConfig.from_pretrained(folder, local_files_only=True)
    if not isinstance(given, PreTrainedConfig):
        raise Refused(
            f"layers() takes a transformers model, a configuration or the folder of a checkpoint, but got {type(given).__name__}"
        )
    check_shape(given)
    kind = kind or kind_of(given)
    check_config(given, kind)
    return FromFiles(folder, kind, given, dtype or ("auto" if folder else given.dtype or torch.float32))


def loss_of(model) -> Callable | None:
    """The model's `loss_function`: what the script has set, else what `loss_type` names; None: what the name of
    its class says."""
    from transformers.loss.loss_utils import LOSS_MAPPING

    return getattr(model, "_loss_function", None) or LOSS_MAPPING.get(getattr(model, "loss_type", None))


def kind_of(config) -> type:
    """The class that a configuration names (`architectures`), else its causal language model, or the nearest to
    that."""
    import transformers

    for name in config.architectures or ():
        if found := getattr(transformers, name, None):
            return found
    images, causal, masked = (
        getattr(transformers, f"MODEL_FOR_{name}_MAPPING")
        for name in ("IMAGE_CLASSIFICATION", "CAUSAL_LM", "MASKED_LM")
    )
    for mapping in (images, masked, causal) if config.model_type == "bert" else (images, causal, masked):
        if type(config) in mapping:
            return mapping[type(config)]
    raise Refused(
        f"{type(config).__name__} names no class in `architectures`: pass the class to layers() as `kind`"
    )
