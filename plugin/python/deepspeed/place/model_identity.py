# SPDX-License-Identifier: Apache-2.0
"""Whether a plan was made for this model: its placement holds the digest of each profiled layer.

A rank has built only some layers. So each rank sends the digests of its layers (agreement), and together they
make the model's, before DeepSpeed casts anything. A profile shows layers as deepspeed.initialize() gets them:
when the PipelineModule is made, the script has not added its adapters yet, so only names are compared then.
"""

import torch
from ostinato.profile.model.model_digest import digest_of_layers, layer_digest, layer_name, layer_parameters

from ..errors import OstinatoError, OtherModel
from ..randomness.random_state import random_state_kept
from ..save.layer_files import layers_here
from ..upstream import Model, Topology


def names_of(model: Model) -> list[str]:
    """The names of all layers, known without building them; [] of a model that check_run() refuses."""
    return [layer_name(index, spec) for index, spec in enumerate(getattr(model, "_layer_specs", ()))]


def local_digests(model: Model) -> dict[int, str]:
    """Digests of the layers that this rank has built and holds whole, by index."""
    if not hasattr(model, "_layer_specs"):
        return {}  # check_run() refuses it
    digests = {}
    parts = vars(model).get("_shards", {})
    for index, function in (
        (i, f) for i, f in zip(layers_here(model), model.forward_funcs, strict=False) if i not in parts
    ):
        spec = model._layer_specs[index]
        module = model.tied_modules[spec.key] if hasattr(spec, "tied_weight_attr") else function
        digests[index] = layer_digest(layer_name(index, spec), layer_parameters(module))
    return digests


def together(of_ranks: list[dict[int, str]], topology: Topology) -> dict[int, str]:
    """The digests of layers, by index; of slices, the first one's, which is profiled. Raises OstinatoError
    where two ranks hold the same layer, or the same slice of it, with different parameters.
    """
    whole: dict[tuple[int, int], tuple[str, int]] = {}
    for rank, digests in enumerate(of_ranks):
        which = getattr(topology.get_coord(rank=rank), "model", 0)
        for index, digest in digests.items():
            known, first = whole.setdefault((which, index), (digest, rank))
            if known != digest:
                raise OstinatoError(
                    f"layer {index} has different parameters on rank {rank} than on rank {first}"
                )
    return {index: digest for (which, index), (digest, _) in whole.items() if which == 0}


def check(program, digests: dict[int, str], specs: list, made: bool) -> str:
    """What rank 0 is to say, or "". Raises the same OtherModel on every rank where the plan was made for a
    different model.

    `digests`: of this model's layers, except layers that ranks hold in parts; `made`: the script has finished
    the model.
    """
    if not program.model_sha256:  # a placement that was written by hand
        return ""
    placement, expected = program.placement_name, program.model_layers
    here = [layer_name(index, spec) for index, spec in enumerate(specs)]
    if len(expected) != len(specs):
        whole = [digests.get(index, "") for index in range(len(specs))]
        if digest_of_layers(whole) == program.model_sha256 or not made:
            return ""
        return f'placement "{placement}" was made from a profile without digests of layers: it may be for a different model'
    differing = [
        i
        for i, digest in sorted(digests.items())
        if digest != expected[i][1] and (made or here[i] != expected[i][0])
    ]
    changed = [
        i
        for i in differing
        if here[i] == expected[i][0] and _as_specified(here[i], specs[i]) == expected[i][1]
    ]
    if wrong := [i for i in differing if i not in changed]:
        raise _difference(placement, wrong, here, [name for name, _ in expected])
    return (
        changed
        and (
            f"layers {', '.join(map(str, changed))} got different parameters after they were built: the plan was made for what their "
            "LayerSpecs build"
        )
        or ""
    )


def size_note(program, samples: int) -> str:
    """What rank 0 is to say of micro-batches of `samples` samples, or ""."""
    if program.micro_batch_size in (0, samples):
        return ""
    return (
        f"the plan was made for micro-batches of {program.micro_batch_size} samples, but this run has {samples} "
        "(train_micro_batch_size_per_gpu): its times and memory will differ from the plan; profile again"
    )


def _difference(placement: str, wrong: list[int], here: list[str], expected: list[str]) -> OtherModel:
    first = wrong[0]
    what = f'layer {first} is "{here[first]}", but was "{expected[first]}"'
    if here[first] == expected[first]:
        what = f'layer {first} ("{here[first]}") has different parameters than'
    more = (
        f" ({len(wrong) - 1} more differ: {', '.join(map(str, wrong[1:9]))}{', ...' if len(wrong) > 9 else ''})"
        if wrong[1:]
        else ""
    )
    how = f"{what} when the model was profiled{more}"
    return OtherModel(
        f'placement "{placement}" was made for a different model: {how}; profile this model ("ostinato profile") and plan again',
        how,
    )


def _as_specified(name: str, spec) -> str:
    """The digest of what a LayerSpec builds, built without memory; "" where that fails."""
    if not hasattr(spec, "build"):
        return ""
    try:
        with random_state_kept(), torch.device("meta"):
            return layer_digest(name, layer_parameters(spec.build()))
    except Exception:  # from the user's constructor, on a device that it may not expect
        return ""
