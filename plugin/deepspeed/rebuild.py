# SPDX-License-Identifier: Apache-2.0
"""Gives a PipelineModule the layers of a placement, with the weights that DeepSpeed's own partition initialised.

DeepSpeed has built each layer on the rank of its partition, with that rank's random numbers. Layers that stay are kept as
they are; those that move are built anew on their new rank, under a copy of the random state, and take over parameters and
buffers by name, and what a script has done to them since they were built (moved_state). So every weight, and every random number
drawn afterwards, is what it would have been without ostinato.
Units are what DeepSpeed registers: "3" for layer 3, "tied_modules.embed" for a tied module, once a rank. A layer of a sharded
stage is a unit of each of the stage's ranks, which gets its part of every tensor.
"""

from dataclasses import dataclass
from functools import partial
from itertools import combinations

import torch
from ostinato.nn import Shard, ShardingError, sharded
from ostinato.nn.layers import split_of
from ostinato.ranks.groups import everyones

from .copies import Copies, Holders, shared_by
from .errors import OstinatoError
from .graph_model import Again, Node, Wires, stage_wires
from .held import apart, differing, values_of
from .holdings import Holdings, check_transfer, facts_of, receive_tensors, send_tensors, tensors_of
from .layer_state import Described, Marks, describe
from .left import given_to, let_go
from .module import adopt
from .moved_state import MovedState, functions_changed
from .packing import digest
from .parameter_groups import GroupMap, mark_left
from .plans import Stage, copies_of, of_copy
from .random_state import random_state_kept
from .tied import beside, built_alike, only_tied, tied_tensors
from .universal import Part
from .upstream import Model, count_elsewhere


@dataclass(frozen=True)
class Rebuilt:
    """`moved`: parameter names of each pipeline rank before the move; None where no layer changed its rank. `regrouped`:
    keys of tied layers whose gradients are now summed in another order. `copies`: what this rank holds together with others,
    where the plan runs the model in several directions. `parts`: the parameters of which it holds a part. `notes`: what rank 0 is to
    say of layers that moved."""

    moved: list[list[str]] | None
    regrouped: list[str]
    copies: Copies | None
    parts: list[Part]
    notes: list[str]


def rebuild(
    model, stages: list[Stage], groups: GroupMap, shards: dict[int, Shard], engines: dict[str, Marks] | None = None
) -> Rebuilt:
    """Places the layers as `stages` says, in place. All ranks must call it. `shards`: this rank's place in sharded stages;
    `engines`: what an engine has done to the layers, which need not move.

    Raises OstinatoError on every rank where a layer cannot be moved.
    """
    before = [model.stage_owner(layer) for layer in range(model._num_layers)]
    of_layer = {layer: stage for stage in of_copy(stages, 0) for layer in stage.layers}
    by_layer = [of_layer[layer] for layer in range(model._num_layers)]
    holders = [_holders(stages, layer) for layer in range(model._num_layers)]
    mine = [stage for stage in stages if stage.on(model.stage_id)]
    moves = holders != [(rank,) for rank in before]
    names, copies, parts, notes = None, None, [], []
    if moves:
        mover = _Mover(model, before, holders, _places(stages), groups, shards)
        mover.stages = [{stage.index for stage in stages if layer in stage.layers} for layer in range(model._num_layers)]
        names = mover.move(engines or {})
        parts, notes = mover.parts, mover.notes
    several = copies_of(stages) > 1
    others_write = {i for stage in mine for i in stage.layers if holders[i][0] not in stage.ranks}
    wires = _wires(model, stages)
    adopt(model, [stage.rank for stage in by_layer], mine, shards, others_write, wires)
    model.placed_in_order = not wires and all(len(ranks) == 1 for ranks in holders) and holders == sorted(holders)
    if moves:
        if several:
            copies = mover.share()
        else:
            mover.tie()
    return Rebuilt(names, [] if several else _regrouped(model, before, by_layer), copies, parts, notes)


def _holders(stages: list[Stage], layer: int) -> tuple[int, ...]:
    """Pipeline ranks that hold the layer, ascending."""
    return tuple(sorted({rank for c in stages if layer in c.layers for rank in c.ranks}))


def _places(stages: list[Stage]) -> dict[int, dict[int, Shard]]:
    """By sharded layer and pipeline rank, which part it holds: the same for all directions that it serves."""
    places: dict[int, dict[int, Shard]] = {}
    for stage in (c for c in stages if c.sharded):
        parts = {rank: Shard(index, len(stage.ranks)) for index, rank in enumerate(stage.ranks)}
        for layer in stage.layers:
            places.setdefault(layer, {}).update(parts)
    return places


def _wires(model: Model, stages: list[Stage]) -> dict[int, list[Wires]]:
    """Where the stages are not a chain: by stage, what each of its layers is given and hands on."""
    if stages[0].takes is None:
        return {}
    return {index: wires.layers for index, wires in stage_wires(model._layer_specs, stages).items()}


def _regrouped(model: Model, before: list[int], by_layer: list[Stage]) -> list[str]:
    """DeepSpeed adds the gradients of tied layers within a stage as they come, and those of several ranks at the end.

    The sums are the same where layers that shared a rank share a stage, and those that did not are on different ranks.
    """
    tied: dict[str, list[int]] = {}
    for layer, spec in enumerate(model._layer_specs):
        if hasattr(spec, "tied_weight_attr"):
            tied.setdefault(spec.key, []).append(layer)
    changed = set()
    for key, layers in tied.items():
        for a, b in combinations(layers, 2):
            together = before[a] == before[b]
            same = by_layer[a] is by_layer[b] if together else by_layer[a].rank != by_layer[b].rank
            changed |= set() if same else {key}
    return sorted(changed)


class _Mover:
    """Moves the units of one pipeline between its ranks."""

    def __init__(
        self,
        model,
        before: list[int],
        owners: list[tuple[int, ...]],
        places: dict[int, dict[int, Shard]],
        groups: GroupMap,
        shards: dict[int, Shard],
    ):
        """By layer: its rank in DeepSpeed's partition, those that will hold it, and the part of each where it is sharded."""
        self.model, self.groups, self.rank, self.owners = model, groups, model.stage_id, owners
        self.group, self.ranks = model._grid.pp_proc_group, model._grid.pp_group
        self.names = [_unit(layer, spec) for layer, spec in enumerate(model._layer_specs)]
        everyone = range(len(self.ranks))
        self.before = before
        self.old = [self._units([(rank,) for rank in before], rank) for rank in everyone]
        self.new = [self._units(owners, rank) for rank in everyone]
        self.layers = [layer for layer, ranks in enumerate(owners) if self.rank in ranks]
        self.shards = {self.names[layer]: shard for layer, shard in shards.items()}
        held = {unit: parts for layer, parts in places.items() if (unit := self.names[layer]) is not None}
        self.held = Holders(self.new, held, self.rank)
        self.stages: list[set[int]] = []  # by layer
        self.fresh: dict[str, dict] = {}  # of what arrives: as its constructor made it
        self.parts: list[Part] = []  # filled by move()
        self.notes: list[str] = []
        self.borrowed: dict[int, str] = {}  # tied layers that run on another rank's module; what to say where they use what is not tied

    def move(self, engines: dict[str, Marks]) -> list[list[str]]:
        """Builds what arrives, exchanges the weights, and registers the layers in model order.

        Returns the names of the parameters that each rank held before.
        """
        kept, transfers = {unit: self._module(unit) for unit in self.old[self.rank]}, self._transfers()
        with random_state_kept():
            built, error = self._build_all(kept)
        error = error or functions_changed(self.model, self.names) or self._shared(kept, built) or self._tied_apart(kept)
        error = error or apart(self.model._layer_specs, self.before, self.owners, self.stages)
        leaving = {unit: describe(kept[unit]) for unit, source, _ in transfers if source == self.rank and not error}
        leaving = {unit: engines[unit].without(facts) if unit in engines else facts for unit, facts in leaving.items()}
        holdings = self._exchange_facts(kept, built, error, leaving)
        if other := differing([held.beside for held in holdings], self.before, self.owners, self.ranks):
            raise OstinatoError(other)
        state = MovedState(self.group, self.ranks, self.rank, transfers, (leaving, self.fresh))
        state.compare([(held.left, held.arrived) for held in holdings])
        self.notes = state.exchange(self.model._layer_specs, self.names, kept, built, self.shards, self._build)
        for unit, source, target in transfers:
            check_transfer(unit, holdings[source], holdings[target], self.ranks[source], self.held.part(unit, target))
        for unit, source, target in transfers:
            if source == self.rank:
                part = self.held.part(unit, target)
                send_tensors(kept[unit], holdings[target].built[unit], part, self.ranks[target], self.group)
            elif target == self.rank:
                receive_tensors(built[unit], unit, holdings[source], self.ranks[source], self.group, self.groups)
        state.give(built)
        self.parts = [part for unit in built if unit in self.shards for part in self._parts_of(unit, built[unit], holdings)]
        stay = set(self.new[self.rank]) - set(built)
        lost: set[torch.Tensor] = {p for unit in self.old[self.rank] if unit not in stay for p in kept[unit].parameters()}
        self._register(kept | built)
        self.groups.apply(self.model, lost)
        mark_left(lost - set(self.model.parameters()))
        self._let_go(kept)
        return [held.names for held in holdings]

    def _let_go(self, kept: dict[str, torch.nn.Module]) -> None:
        """What has left, and was built for this rank: of a layer that is a module the script has one on every rank."""
        stay = {id(part) for module in (self.model, self.model.loss_fn) if isinstance(module, torch.nn.Module) for part in (*module.modules(), *module.parameters())}
        for unit in set(self.old[self.rank]) - set(self.new[self.rank]):
            layer = self.names.index(unit)
            spec = self.model._layer_specs[layer]
            if hasattr(spec, "module_args"):
                let_go(kept[unit], f'layer "{unit}"', self.ranks[self.owners[layer][0]], stay | given_to(spec))

    def _parts_of(self, unit: str, module: torch.nn.Module, holdings: list[Holdings]) -> list[Part]:
        had = next(held.kept[unit] for held in holdings if unit in held.kept)
        whole, split = {fact.name: fact.shape for fact in had}, split_of(module)
        named = ((name, p) for name, p in module.named_parameters() if name in split)
        return [Part(int(unit), p, self.shards[unit], split[name], whole[name]) for name, p in named]

    def _build_all(self, kept: dict) -> tuple[dict, str]:
        """The units that arrive, and this rank's part of those that it has and shares from now on; why not, where it cannot."""
        built: dict[str, torch.nn.Module] = {}
        try:
            for unit in self.new[self.rank]:
                if unit in self.shards:
                    built[unit] = self._build_part(unit, kept.get(unit))
                elif unit not in kept:
                    built[unit] = self._place(self._build(unit))
                    self.fresh[unit] = describe(built[unit])
        except ShardingError as error:
            return {}, f'layer "{unit}": {error}'
        return built, ""

    def _build_part(self, unit: str, whole: torch.nn.Module | None) -> torch.nn.Module:
        last = unit == self.names[-1] and self.model.loss_fn is not None
        layer = self._build(unit) if whole is None else whole
        if whole is None:
            self.fresh[unit] = describe(layer)
        part = layer.sharded(self.shards[unit], last) if isinstance(layer, Node) else sharded(layer, self.shards[unit], last)
        if whole is not None:
            had = dict(whole.named_parameters())
            for name, parameter in part.named_parameters():
                group = self.groups.group_of(had[name])
                if group is not None:
                    self.groups.put(parameter, self.groups.options()[group], group)
        return self._place(part)

    def tie(self) -> None:
        """The groups over which the gradients of tied layers are summed, and who reads their weights from checkpoints."""
        model = self.model
        for parameter in model.parameters():
            count_elsewhere(parameter, False)
        model.tied_comms = model._index_tied_modules()
        for unit in (u for u in self.shards if u is not None):
            for name, parameter in self._module(unit).named_parameters():
                count_elsewhere(parameter, self.held.counts_elsewhere(unit, name, self._module(unit)))
        model.read_for_others = []
        for key, tied in model.tied_comms.items():
            weights = [model._recursive_getattr(tied["module"], name) for name in tied["weight_attr"]]
            model.read_for_others.append((weights, self._reader(f"tied_modules.{key}"), tied["group"]))

    def share(self) -> Copies:
        """In the place of tie(), where the plan runs the model in several directions."""
        self.model.tied_comms, self.model.read_for_others = {}, []
        copies, holders = shared_by(self.model, self.held), self.held.ranks()
        for unit in sorted(u for u in self.new[self.rank] if "." in u and len(holders[u, None]) > 1):
            weights, group = list(self._module(unit).parameters()), copies.groups[holders[unit, None]]
            self.model.read_for_others.append((weights, self._reader(unit), group))
        return copies

    def _reader(self, unit: str) -> int:
        """The rank that reads the tied module from checkpoints: DeepSpeed has it there for a layer without a forward_fn only."""
        tied = [layer for layer, name in enumerate(self.names) if name == unit]
        read = [layer for layer in tied if self.model._layer_specs[layer].forward_fn is None]
        return self.ranks[self.owners[(read or tied)[0]][0]]

    def _units(self, owners: list[tuple[int, ...]], rank: int) -> list[str]:
        """The units of a rank, in model order."""
        names = (self.names[layer] for layer, ranks in enumerate(owners) if rank in ranks)
        return list(dict.fromkeys(name for name in names if name is not None))

    def _module(self, unit: str) -> torch.nn.Module:
        return self.model.get_submodule(unit)

    def _build(self, unit: str) -> torch.nn.Module:
        spec = self.model._layer_specs[self.names.index(unit)]
        return spec if isinstance(spec, torch.nn.Module) else spec.build()

    def _place(self, module: torch.nn.Module) -> torch.nn.Module:
        from deepspeed.accelerator import get_accelerator

        return module.to(get_accelerator().device_name(self.model.local_rank))

    def _transfers(self) -> list[tuple[str, int, int]]:
        """(unit, from, to) in one order for all ranks, so that blocking transfers cannot deadlock.

        Of a tied module, which several ranks may have built, the first one that holds it hands it on.
        """
        moves = []
        for target, units in enumerate(self.new):
            for unit in (u for u in units if u not in self.old[target]):
                moves.append((unit, next(r for r, had in enumerate(self.old) if unit in had), target))
        return moves

    def _shared(self, kept: dict, built: dict) -> str:
        """Why layers that share a tensor cannot be apart, or run in different stages; "" where there are none."""
        holder: dict[int, str] = {}
        for unit, module in (kept | built).items():
            for place in {t.data_ptr() for _, t, _ in tensors_of(module) if t.numel()} - {0}:
                other = holder.setdefault(place, unit)
                if other != unit and not self._together(unit, other, built):
                    return (
                        f'layers "{other}" and "{unit}" share tensors ("{type(module).__name__}"), and the placement moves layers: one '
                        "object at several places of the model, or a parameter of two layers, has one set of weights on one rank "
                        "and several on several; use TiedLayerSpec for layers that share weights"
                    )
        return ""

    def _tied_apart(self, kept: dict) -> str:
        """Why a tied layer cannot run on the module of another rank than in DeepSpeed's partition, where each rank has built one of its
        own, from the first of its tied layers; "" where it can. Where a function runs the layer, its first forward tells (borrowed).
        """
        for layer, (unit, rank) in enumerate(zip(self.names, self.before, strict=True)):
            if unit is None or "." not in unit:
                continue
            spec = self.model._layer_specs[layer]
            sources = {t if unit in self.old[t] else next(r for r, had in enumerate(self.old) if unit in had) for t in self.owners[layer]}
            for source in sources - {rank}:
                why = (
                    f'layer {layer} is tied ("{spec.key}"), and each rank has built a module of its own for that: it cannot run on the one of '
                    f"rank {self.ranks[source]}, because {{}}; let the placement keep layer {layer} on rank {self.ranks[rank]}"
                )
                if not built_alike(*(self.model._layer_specs[self._built_from(unit, r)] for r in (rank, source))):
                    return why.format("the two are built from other arguments")
                if spec.forward_fn is not None:
                    self.borrowed[layer] = why
                elif unit in kept and (more := beside(tied_tensors(spec, kept[unit]), kept[unit])):
                    return why.format(f'"{more[0]}" is not tied')
        return ""

    def _built_from(self, unit: str, rank: int) -> int:
        """The first tied layer of the rank in DeepSpeed's partition."""
        return next(layer for layer, name in enumerate(self.names) if name == unit and self.before[layer] == rank)

    def _together(self, unit: str, other: str, built: dict) -> bool:
        """Both stay on this rank, in one stage."""
        stages = [self.stages[layer] for layer, name in enumerate(self.names) if name in (unit, other)]
        stay = all(u in self.new[self.rank] and u not in built for u in (unit, other))
        return stay and all(s == stages[0] and len(s) == 1 for s in stages)

    def _exchange_facts(self, kept: dict, built: dict, error: str, leaving: Described) -> list[Holdings]:
        kept, built = ({unit: facts_of(m, self.groups) for unit, m in modules.items()} for modules in (kept, built))
        names = [name for name, _ in self.model.named_parameters()]
        left, arrived = ({unit: digest(sorted(facts.items())) for unit, facts in d.items()} for d in (leaving, self.fresh))
        beside = values_of(self.model._layer_specs)
        everyone = everyones(Holdings(kept, built, self.groups.options(), names, error, left, arrived, beside), self.group)
        errors = [held.error for held in everyone if held.error]
        if errors:
            raise OstinatoError(errors[0])
        return everyone

    def _register(self, modules: dict) -> None:
        """Puts the modules where PipelineModule._build() would have put them."""
        model = self.model
        for unit in self.old[self.rank]:
            parent, _, name = unit.rpartition(".")
            delattr(model.get_submodule(parent), name)
        model.forward_funcs, model.fwd_map, model.tied_weight_attrs = [], {}, {}
        for layer in self.layers:
            self._register_layer(layer, modules)

    def _forward_of(self, layer: int, module: torch.nn.Module):
        """The layer's forward_fn, watched where it runs on another rank's module."""
        spec, refusal = self.model._layer_specs[layer], self.borrowed.get(layer)
        if refusal is None:
            return spec.forward_fn
        tied = tied_tensors(spec, module)
        if isinstance(spec.forward_fn, Again):
            return spec.forward_fn.with_function(lambda function: only_tied(function, tied, refusal))
        return only_tied(spec.forward_fn, tied, refusal)

    def _register_layer(self, layer: int, modules: dict) -> None:
        model, unit, spec = self.model, self.names[layer], self.model._layer_specs[layer]
        function = spec
        if unit is not None:
            function = modules[unit]
        if unit is not None and "." in unit:
            model.tied_modules[spec.key] = function
            model.tied_weight_attrs[spec.key] = spec.tied_weight_attr
            if spec.forward_fn is not None:
                function = partial(self._forward_of(layer, function), function)
        elif unit is not None:
            model.fwd_map[unit] = len(model.forward_funcs)
            model.add_module(unit, function)
        model.forward_funcs.append(function)


def units_of(model: Model) -> dict[str, torch.nn.Module]:
    """The modules of this rank's layers under DeepSpeed's own partition, by their units."""
    local = range(model._local_start, model._local_stop)
    names = dict.fromkeys(_unit(layer, model._layer_specs[layer]) for layer in local)
    return {name: model.get_submodule(name) for name in names if name is not None}


def _unit(layer: int, spec) -> str | None:
    """None for a plain function, which has no weights."""
    from deepspeed.runtime.pipe.module import LayerSpec, TiedLayerSpec

    if isinstance(spec, TiedLayerSpec):
        return f"tied_modules.{spec.key}"
    return str(layer) if isinstance(spec, LayerSpec | torch.nn.Module) else None
