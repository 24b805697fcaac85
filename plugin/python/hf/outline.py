# SPDX-License-Identifier: Apache-2.0
"""Where the parts of a transformers model are: modules before its blocks, the blocks, modules after them.

    outline = outline_of(model)              # LlamaForCausalLM, also on the device "meta"
    outline.blocks, outline.count            # "model.layers", 32
    outline.before, outline.after            # ("model.embed_tokens",), ("model.norm", "lm_head")

A model says so in `config.base_model_pp_plan`; for models without it, PLANS does. Raises Refused if a parameter is
in no part.
"""

from dataclasses import dataclass

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
        raise Refused(
            f"{type(model).__name__} has no head: use a class with a loss, such as {_with_head(model)}"
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
    """Raises Refused for hooks on modules around the parts, which would run in every layer."""
    parts = (*outline.before, outline.blocks, *outline.after)
    for name, module in model.named_modules():
        if any(inside(name, part) and name != outline.blocks for part in parts):
            continue
        if hung := next((kind for kind in HUNG if vars(module).get(kind)), None):
            what = f'"{name}" of {type(model).__name__}' if name else type(model).__name__
            raise Refused(
                f"the script has set {hung.strip('_')} on {what}, which every layer would run: set them on the embedding, blocks or head"
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


def _module_name(model, wanted) -> str:
    return next((name for name, module in model.named_modules() if module is wanted), "")
