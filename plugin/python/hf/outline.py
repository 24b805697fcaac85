# SPDX-License-Identifier: Apache-2.0
"""Where the parts of a transformers model are: modules before its blocks, the blocks, modules after them.

    outline = outline_of(model)              # LlamaForCausalLM, also on the device "meta"
    outline.blocks, outline.count            # "model.layers", 32
    outline.before, outline.after            # ("model.embed_tokens",), ("model.norm", "lm_head")

A model says so in `config.base_model_pp_plan`; for models without it, PLANS does. Raises Refused if a parameter is
in no part.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from ostinato.errors import counted
from torch import nn

from .errors import Refused

# Of the base model, by `config.model_type`: modules before the blocks, the list of blocks, modules after
# them.
PLANS: dict[str, tuple[tuple[str, ...], str, tuple[str, ...]]] = {
    "gpt2": (("wte", "wpe", "drop"), "h", ("ln_f",)),
    "bert": (("embeddings",), "encoder.layer", ()),
    "vit": (("embeddings",), "layers", ("layernorm",)),
}


# Attributes of a module.
HUNG = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "forward")


@dataclass(frozen=True)
class Outline:
    """Names of modules. `words` and `head`: the embedding and the linear layer that share a weight ("": none
    do); `bias`: the name under which the head's bias is saved ("": it has none); `shared`: all names of the
    shared weight, and of that bias.
    """

    before: tuple[str, ...]
    blocks: str
    count: int
    after: tuple[str, ...]
    words: str = ""
    head: str = ""
    bias: str = ""
    shared: frozenset[str] = frozenset()


def inside(name: str, module: str) -> bool:
    """Whether a parameter or module is in `module`, or is `module` itself."""
    return name == module or name.startswith(module + ".")


def outline_of(model) -> Outline:
    before, blocks, after = _plan(model)
    base = model.base_model_prefix
    after = (*after, *(name for name, _ in model.named_children() if name != base))
    found = Outline(before, blocks, len(model.get_submodule(blocks)), after)
    _check_complete(model, found)
    return _with_tied(model, found)


def _plan(model) -> tuple[tuple[str, ...], str, tuple[str, ...]]:
    base, config = model.base_model_prefix, model.config
    if not hasattr(model, base):
        name = type(model).__name__
        raise Refused(
            f"{name} has no head: use a class with a loss, such as {_with_head(model)}"
            if name.endswith("Model")
            else f'{name} has no attribute "{base}" (its base_model_prefix), where the model behind its head would be: write its layers by hand'
        )
    inner = getattr(model, base)
    if plan := config.base_model_pp_plan:
        names = [name for name in plan if hasattr(inner, name)]
        lists = [name for name in names if isinstance(getattr(inner, name), nn.ModuleList)]
        if len(lists) != 1:
            raise Refused(
                f"the pipeline plan of {config.model_type} names {counted(len(lists), 'list')} of blocks ({', '.join(names)}), but only one can be cut"
            )
        at = names.index(lists[0])
        before, blocks, after = tuple(names[:at]), lists[0], tuple(names[at + 1 :])
    elif config.model_type in PLANS:
        before, blocks, after = PLANS[config.model_type]
    else:
        raise Refused(
            f"{config.model_type} has no pipeline plan (base_model_pp_plan), nor does ostinato.hf have one for it: write its layers by hand"
        )
    return (
        tuple(f"{base}.{name}" for name in before),
        f"{base}.{blocks}",
        tuple(f"{base}.{name}" for name in after),
    )


def _with_head(model) -> str:
    return type(model).__name__.removesuffix("Model") + (
        "ForImageClassification" if model.main_input_name == "pixel_values" else "ForCausalLM"
    )


def _check_complete(model, outline: Outline) -> None:
    """Checks that every parameter, and every dropout, is before the blocks, in them, or after them."""
    parts = (*outline.before, outline.blocks, *outline.after)
    drawing = {
        name for name, module in model.named_modules() if isinstance(module, nn.modules.dropout._DropoutNd)
    }
    lost = [
        name
        for name in (*(n for n, _ in model.named_parameters()), *drawing)
        if not any(inside(name, part) for part in parts)
    ]
    if lost:
        raise Refused(
            f'{type(model).__name__}: "{lost[0]}" is in no part of its pipeline plan ({", ".join(parts)})'
        )


def check_untouched(model, outline: Outline) -> None:
    """Raises Refused for what the script has put on the model and layers would not do as the model does."""
    parts = (*outline.before, outline.blocks, *outline.after)
    for name, module in model.named_modules():
        hung = next((kind for kind in HUNG if vars(module).get(kind)), None)
        if hung is None:
            continue
        what = f'"{name}" of {type(model).__name__}' if name else type(model).__name__
        if not any(inside(name, part) and name != outline.blocks for part in parts):
            raise Refused(
                f"the script has set {hung.strip('_')} on {what}, which every layer would run: set them on the embedding, blocks or head"
            )
        if name == outline.head:
            raise Refused(
                f"the script has set {hung.strip('_')} on {what}, which shares its weight with {outline.words}: layers compute logits from "
                "that weight and do not call the head. Set them on the embedding or blocks, or give the head its own weight "
                "(tie_word_embeddings=False)"
            )
        if "forward" in vars(module) and not _follows(module.forward, module):
            raise Refused(
                f"the script has set forward on {what} to a function that runs the model's modules, not their copies in a layer, so these "
                "would learn nothing: set it in change=, which is called with a layer's modules, or bind it to its module "
                "(types.MethodType) and reach the rest through `self`"
            )
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise Refused(
                f'the script has registered hooks on "{name}" of {type(model).__name__}, which the copy of it in a layer does not have: '
                "register them in change=, or on the layers that PipelineModule has built"
            )


def _follows(function: Callable, module: nn.Module) -> bool:
    """Whether a copy of the module runs the function on itself: deepcopy keeps functions, and what they close
    over, as they are."""
    cells = getattr(getattr(function, "__func__", None), "__closure__", None) or ()
    held = [getattr(cell.cell_contents, "__self__", cell.cell_contents) for cell in cells]
    return getattr(function, "__self__", None) is module and not any(
        isinstance(value, nn.Module | torch.Tensor) for value in held
    )


def _with_tied(model, outline: Outline) -> Outline:
    """The outline with the tied embedding. Raises Refused if two parts share anything else."""
    groups: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), []).append(name)
    across = [names for names in groups.values() if len({_part(name, outline) for name in names}) > 1]
    if not across:
        return outline
    words = _module_name(model, model.get_input_embeddings())
    head = _module_name(model, model.get_output_embeddings())
    expected = {f"{words}.weight", f"{head}.weight"}
    if (
        getattr(model, "peft_config", None)
        and all(inside(name, words) or inside(name, head) for name in across[0])
        and set(across[0]) != expected
    ):
        raise Refused(
            f"{type(model).__name__}: {words} and {head} share their weight, but adapters change one of them: remove both from target_modules, "
            "modules_to_save and trainable_token_indices, or give the head its own weight (tie_word_embeddings=False)"
        )
    if len(across) > 1 or set(across[0]) != expected:
        raise Refused(
            f"{type(model).__name__}: {' and '.join(across[0])} are one tensor, but only the embedding and the head may share one"
        )
    if type(model.get_submodule(head)) is not nn.Linear or not isinstance(
        model.get_submodule(words), nn.Embedding
    ):
        kinds = f"{type(model.get_submodule(words)).__name__} and {type(model.get_submodule(head)).__name__}"
        raise Refused(
            f"{type(model).__name__}: {words} and {head} share their weight, but are {kinds}: only an Embedding and a Linear can be tied"
        )
    biases = next((names for names in groups.values() if f"{head}.bias" in names), [])
    bias = next((name for name in biases if name != f"{head}.bias"), biases[0] if biases else "")
    return Outline(
        outline.before,
        outline.blocks,
        outline.count,
        outline.after,
        words,
        head,
        bias,
        frozenset({*expected, *biases}),
    )


def _part(name: str, outline: Outline) -> str:
    """Which of the pipeline's layers holds a parameter."""
    if inside(name, outline.blocks):
        return ".".join(name.split(".")[: outline.blocks.count(".") + 2])
    return "before" if any(inside(name, part) for part in outline.before) else "after"


def check_tied(model, outline: Outline, expected: dict[str, str]) -> None:
    """Raises Refused where the head's weight is tied and the configuration says it is not, or the other way
    round: a checkpoint would not be read as it was trained. `expected`: the tied names by the configuration."""
    head = _module_name(model, model.get_output_embeddings())
    says = f"{head}.weight" in {*expected, *expected.values()}
    if says and not outline.head:
        raise Refused(
            f"{type(model).__name__}: {head} has its own weight, but the configuration ties it to the embedding: set "
            "model.config.tie_word_embeddings = False, so that save() writes both"
        )
    if outline.head and not says:
        raise Refused(
            f"{type(model).__name__}: {outline.head} shares its weight with {outline.words}, but the configuration does not say so: set "
            "model.config.tie_word_embeddings = True, so that the saved model is tied too"
        )


def _module_name(model, wanted) -> str:
    return next((name for name, module in model.named_modules() if module is wanted), "")
