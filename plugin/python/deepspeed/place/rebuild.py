# SPDX-License-Identifier: Apache-2.0
"""Moves the layers of a new PipelineModule to the ranks of a placement, with the weights that DeepSpeed's own
partition initialised.

DeepSpeed has built each layer on the rank of its partition, with that rank's random numbers. Layers that stay
are kept as they are. The rest move one at a time: the new rank builds the layer from the random states from
which the old one has built it (its own are restored afterwards), and receives parameters and buffers by name; the
old rank drops its layer before the next one moves. So every weight, and every random number drawn afterwards, is what it would be without ostinato,
and no rank holds more than one layer beyond those of the two partitions.

What moves is a module under the name by which DeepSpeed registers it: "3" for layer 3, "tied_modules.embed" for
a tied module, once a rank. A layer of a sharded stage goes to each of the stage's ranks, which gets its part of
every tensor.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from ostinato.nn import Shard, ShardingError, sharded
from ostinato.nn.layers import split_of
from ostinato.groups import everyones

from ostinato import _search

from ..stages.copies import Copies, Holders
from ..errors import OstinatoError
from ..graph_model import GraphLayer, Wires, stage_wires
from ..stages.module import adopt
from ..section.plans import Stage, copies_of, of_copy
from ..randomness.random_state import become, random_state_kept
from .built import states_of
from .tied import beside, fixed_layers, owners_of, source_of, sums_of, together_now
from .transfer import Metadata, check_transfer, metadata_of, receive_tensors, send_tensors
from ..save.tensor_names import module_name_of
from ..save.universal import ParameterPart
from ..upstream import Model, count_elsewhere


@dataclass(frozen=True)
class Rebuilt:
    """`stock_modules`: by pipeline rank, the names of its modules in DeepSpeed's partition, in the order in which
    it registers them; None where no layer changed its rank. `regrouped`: keys of tied layers whose gradients are
    now summed in a different order. `apart`: by stage, keys of tied layers whose gradients it adds up apart from
    its rank's. `copies`: what this rank shares with its peers, where the plan runs the model in several directions.
    `parts`: the parameters that it holds in part. `joined`: what rank 0 is to say of tied layers that have a
    module each in DeepSpeed's partition, and share one now, with what is not tied.
    """

    stock_modules: list[list[str]] | None
    regrouped: list[str]
    apart: dict[int, list[str]]
    copies: Copies | None
    parts: list[ParameterPart]
    joined: list[str]


def rebuild(model, stages: list[Stage], shards: dict[int, Shard], timeout_s: float) -> Rebuilt:
    """Places the layers as `stages` says, in place. All ranks must call it. `shards`: this rank's place in
    sharded stages. `timeout_s`: the longest wait for another rank.

    Raises OstinatoError on every rank where a layer cannot be moved.
    """
    before = owners_of(model)
    of_layer = {layer: stage for stage in of_copy(stages, 0) for layer in stage.layers}
    by_layer = [of_layer[layer] for layer in range(model._num_layers)]
    holders = [_holders(stages, layer) for layer in range(model._num_layers)]
    mine = [stage for stage in stages if stage.on(model.stage_id)]
    _refuse_forbidden(model, stages)
    mover = _Mover(model, before, holders, _places(stages), shards) if moves(model, stages) else None
    if mover is not None:
        mover.move()
    several = copies_of(stages) > 1
    others_write = {i for stage in mine for i in stage.layers if holders[i][0] not in stage.ranks}
    wires = _wires(model, stages)
    adopt(model, [stage.rank for stage in by_layer], mine, shards, others_write, wires)
    model.placed_in_order = (
        not wires and all(len(ranks) == 1 for ranks in holders) and holders == sorted(holders)
    )
    regrouped, apart = ([], {}) if several else sums_of(model, by_layer)
    if mover is None:
        return Rebuilt(None, regrouped, apart, None, [], [])
    copies = mover.share(timeout_s) if several else None
    if not several:
        mover.tie()
    return Rebuilt(mover.old, regrouped, apart, copies, mover.parts, mover.notes)


def _refuse_forbidden(model, stages: list[Stage]) -> None:
    """Raises the same error on every rank where one's layers do not allow these stages."""
    what, _ = _search.broken(
        [one.row for one in fixed_layers(model)],
        [(list(stage.layers), list(stage.ranks)) for stage in stages],
        model.num_stages,
        False,
    )
    if errors := [said for said in everyones(what, model._grid.pp_proc_group) if said]:
        raise OstinatoError(f"the placement has {errors[0]}")


def moves(model, stages: list[Stage]) -> bool:
    """Whether these stages put any layer on a different rank than DeepSpeed's partition."""
    return [_holders(stages, layer) for layer in range(model._num_layers)] != [
        (rank,) for rank in owners_of(model)
    ]


def _holders(stages: list[Stage], layer: int) -> tuple[int, ...]:
    """Pipeline ranks that hold the layer, ascending."""
    return tuple(sorted({rank for c in stages if layer in c.layers for rank in c.ranks}))


def _places(stages: list[Stage]) -> dict[int, dict[int, Shard]]:
    """By sharded layer and pipeline rank, the part that the rank holds: the same for all directions."""
    places: dict[int, dict[int, Shard]] = {}
    for stage in (c for c in stages if c.sharded):
        parts = {rank: Shard(index, len(stage.ranks)) for index, rank in enumerate(stage.ranks)}
        for layer in stage.layers:
            places.setdefault(layer, {}).update(parts)
    return places


def _wires(model: Model, stages: list[Stage]) -> dict[int, list[Wires]]:
    """Where the stages are not a chain: by stage, what each of its layers takes and returns."""
    if stages[0].takes is None:
        return {}
    return {index: wires.layers for index, wires in stage_wires(model._layer_specs, stages).items()}


@dataclass
class _Said:
    """What a rank says of the module that moves next: its tensors there, and why it cannot build it ("" where
    it can)."""

    tensors: list[Metadata] = field(default_factory=list)
    error: str = ""


class _Mover:
    """Moves the modules of one pipeline between its ranks."""

    def __init__(
        self,
        model,
        before: list[int],
        owners: list[tuple[int, ...]],
        places: dict[int, dict[int, Shard]],
        shards: dict[int, Shard],
    ):
        """By layer: its rank in DeepSpeed's partition, the ranks that will hold it, and the part of each where
        it is sharded."""
        self.model, self.rank, self.owners, self.before = model, model.stage_id, owners, before
        self.group, self.ranks = model._grid.pp_proc_group, model._grid.pp_group
        self.specs = model._layer_specs
        self.names = [module_name_of(layer, spec) for layer, spec in enumerate(self.specs)]
        everyone = range(len(self.ranks))
        self.old = [self._module_names([(rank,) for rank in before], rank) for rank in everyone]
        self.new = [self._module_names(owners, rank) for rank in everyone]
        self.layers = [layer for layer, ranks in enumerate(owners) if self.rank in ranks]
        self.shards = {self.names[layer]: shard for layer, shard in shards.items()}
        held = {name: parts for layer, parts in places.items() if (name := self.names[layer]) is not None}
        self.held = Holders(self.new, held, self.rank)
        # What this rank has built in DeepSpeed's partition, until it has sent it.
        self.modules: dict[str, torch.nn.Module] = {}
        self.arrived: dict[str, torch.nn.Module] = {}
        self.whole: dict[str, list[Metadata]] = {}  # of sharded modules, before they were cut
        self.states: list[dict[str, tuple]] = []  # by pipeline rank, from which it has built what leaves it
        self.parts: list[ParameterPart] = []
        self.notes: list[str] = []

    def move(self) -> None:
        """Exchanges the modules, and registers the layers in model order."""
        self.modules = {name: self.model.get_submodule(name) for name in self.old[self.rank]}
        self._note_together()
        self._unregister()
        transfers = self._transfers()
        leaving = {name for name, source, _ in transfers if source == self.rank}
        built = states_of(self.model, {name: self._spec(name, self.rank) for name in self.old[self.rank]})
        self.states = everyones({name: built[name] for name in built.keys() & leaving}, self.group)
        with random_state_kept():
            for number, (name, source, target) in enumerate(transfers):
                self._transfer(
                    name,
                    source,
                    target,
                    last=all((name, source) != later[:2] for later in transfers[number + 1 :]),
                )
            self._refuse(self._cut_own())
        self.modules = {
            name: self.arrived[name] if name in self.arrived else self.modules[name]
            for name in self.new[self.rank]
        }
        self.parts = [part for name in self.modules if name in self.shards for part in self._parts_of(name)]
        for layer in self.layers:
            self._register_layer(layer)

    def _refuse(self, error: str) -> None:
        """Raises the same error on every rank where one has an error, and collects their notes. All ranks must
        call it."""
        everyone = everyones((error, self.notes), self.group)
        if errors := [said for said, _ in everyone if said]:
            raise OstinatoError(errors[0])
        self.notes = sorted({note for _, notes in everyone for note in notes})

    def _transfer(self, name: str, source: int, target: int, last: bool) -> None:
        """Sends one module from a rank to another. `last`: the source sends it to no further rank."""
        said, built = _Said(), None
        if self.rank == source:
            said = _Said(metadata_of(self.modules[name]))
        elif self.rank == target:
            built, error = self._try_to_build(name, source)
            said = _Said(metadata_of(built) if built is not None else [], error)
        everyone = everyones(said, self.group)
        if everyone[target].error:
            raise OstinatoError(everyone[target].error)
        part = self.held.part(name, target)
        check_transfer(name, everyone[source].tensors, everyone[target].tensors, self.ranks[source], part)
        if self.rank == source:
            send_tensors(self.modules[name], everyone[target].tensors, part, self.ranks[target], self.group)
            if last and (name not in self.new[self.rank] or self._source(name, self.rank) != self.rank):
                self.modules.pop(name, None)
        elif built is not None:
            receive_tensors(built, self.ranks[source], self.group)
            self.arrived[name], self.whole[name] = built, everyone[source].tensors

    def _try_to_build(self, name: str, source: int) -> tuple[torch.nn.Module | None, str]:
        """Builds the module as `source` has, or this rank's part of it."""
        try:
            layer = self._build(name, source)
            return self._place(self._cut(name, layer) if name in self.shards else layer), ""
        except ShardingError as error:
            return None, f'layer "{name}": {error}'
        except Exception as error:  # of the layer's constructor
            return (
                None,
                f'layer "{name}" cannot be built on rank {self.ranks[self.rank]}: {type(error).__name__}: {error}',
            )

    def _cut_own(self) -> str:
        """Cuts the modules that this rank has whole and is to hold a part of. Why one cannot be cut, or ""."""
        for name in (n for n in self.new[self.rank] if n in self.shards and n in self.old[self.rank]):
            whole = self.modules[name]
            self.whole[name] = metadata_of(whole)
            try:
                self.modules[name] = self._place(self._cut(name, whole))
            except ShardingError as error:
                return f'layer "{name}": {error}'
        return ""

    def _cut(self, name: str, layer: torch.nn.Module) -> torch.nn.Module:
        last = name == self.names[-1] and self.model.loss_fn is not None
        return (
            layer.sharded(self.shards[name], last)
            if isinstance(layer, GraphLayer)
            else sharded(layer, self.shards[name], last)
        )

    def _parts_of(self, name: str) -> list[ParameterPart]:
        module = self.modules[name]
        whole, split = {tensor.name: tensor.shape for tensor in self.whole[name]}, split_of(module)
        cut = ((inner, p) for inner, p in module.named_parameters() if inner in split)
        return [
            ParameterPart(int(name), p, self.shards[name], split[inner], whole[inner]) for inner, p in cut
        ]

    def tie(self) -> None:
        """Makes the groups that sum the gradients of tied layers, and notes who reads their weights from
        checkpoints."""
        model = self.model
        for parameter in model.parameters():
            count_elsewhere(parameter, False)
        model.tied_comms = model._index_tied_modules()
        for name in filter(None, self.shards):
            module = self.model.get_submodule(name)
            for inner, parameter in module.named_parameters():
                count_elsewhere(parameter, self.held.counts_elsewhere(name, inner, module))
        model.read_for_others = []
        for key, tied in model.tied_comms.items():
            weights = [model._recursive_getattr(tied["module"], name) for name in tied["weight_attr"]]
            model.read_for_others.append((weights, self._reader(f"tied_modules.{key}"), tied["group"]))
            # DeepSpeed counts all of the module on the lowest rank, which has the first layer in its partition.
            first = self.owners[self.names.index(f"tied_modules.{key}")]
            for parameter in tied["module"].parameters():
                count_elsewhere(parameter, self.rank not in first)

    def share(self, timeout_s: float) -> Copies:
        """Replaces tie() where the plan runs the model in several directions."""
        self.model.tied_comms, self.model.read_for_others = {}, []
        copies, holders = Copies(self.model, self.held, timeout_s), self.held.ranks()
        for name in sorted(n for n in self.new[self.rank] if "." in n and len(holders[n, None]) > 1):
            weights = list(self.model.get_submodule(name).parameters())
            group = copies.groups[holders[name, None]]
            self.model.read_for_others.append((weights, self._reader(name), group))
        return copies

    def _reader(self, name: str) -> int:
        """The rank that reads the tied module from checkpoints: DeepSpeed saves it only for a layer without a
        forward_fn."""
        tied = [layer for layer, held in enumerate(self.names) if held == name]
        read = [layer for layer in tied if self.specs[layer].forward_fn is None]
        return self.ranks[self.owners[(read or tied)[0]][0]]

    def _module_names(self, owners: list[tuple[int, ...]], rank: int) -> list[str]:
        """The names of the modules of a rank, in model order."""
        names = (self.names[layer] for layer, ranks in enumerate(owners) if rank in ranks)
        return list(dict.fromkeys(name for name in names if name is not None))

    def _build(self, name: str, source: int) -> torch.nn.Module:
        """Builds it as the rank `source` has in DeepSpeed's partition."""
        spec = self._spec(name, source)
        if isinstance(spec, torch.nn.Module):
            return spec
        if (states := self.states[source].get(name)) is not None:
            become(states)
        return spec.build()

    def _spec(self, name: str, source: int) -> Any:
        """From which the rank `source` has it in DeepSpeed's partition."""
        return self.specs[
            next(i for i, held in enumerate(self.names) if held == name and self.before[i] == source)
        ]

    def _place(self, module: torch.nn.Module) -> torch.nn.Module:
        from deepspeed.accelerator import get_accelerator

        return module.to(get_accelerator().device_name(self.model.local_rank))

    def _source(self, name: str, target: int) -> int:
        """The rank that has built, in DeepSpeed's partition, what `target` is to hold."""
        return source_of(self.names, self.before, self.owners, name, target)

    def _transfers(self) -> list[tuple[str, int, int]]:
        """(module, from, to), in the same order on all ranks, so that blocking transfers cannot deadlock: layers
        move first from ranks that hold many to ranks that hold few.
        """
        waiting = [
            (name, s, target)
            for target, names in enumerate(self.new)
            for name in names
            if (s := self._source(name, target)) != target
        ]
        held = [len(names) for names in self.old]
        order = []
        while waiting:
            best = min(waiting, key=lambda move: (held[move[2]], -held[move[1]], *move[1:], move[0]))
            waiting.remove(best)
            order.append(best)
            held[best[2]] += 1
            held[best[1]] -= 1
        return order

    def _note_together(self) -> None:
        """Notes tied layers that move from several ranks to one."""
        for name in sorted(
            {held for held in self.names if held is not None and "." in held} & self.modules.keys()
        ):
            layers = [layer for layer, held in enumerate(self.names) if held == name]
            if more := beside(self.specs[layers[0]], self.modules[name]):
                self.notes += together_now(layers, self.before, self.owners, more[0])

    def _unregister(self) -> None:
        """From here on only `modules` holds this rank's layers, so that a layer that was sent takes no memory."""
        model = self.model
        for name in self.old[self.rank]:
            parent, _, last = name.rpartition(".")
            delattr(model.get_submodule(parent), last)
        model.forward_funcs, model.fwd_map, model.tied_weight_attrs = [], {}, {}
        model.tied_comms = {}

    def _register_layer(self, layer: int) -> None:
        """Registers it as PipelineModule._build() would have."""
        model, name, spec = self.model, self.names[layer], self.specs[layer]
        function = spec
        if name is not None:
            function = self.modules[name]
        if name is not None and "." in name:
            model.tied_modules[spec.key] = function
            model.tied_weight_attrs[spec.key] = spec.tied_weight_attr
            if spec.forward_fn is not None:
                function = partial(spec.forward_fn, function)
        elif name is not None:
            model.fwd_map[name] = len(model.forward_funcs)
            model.add_module(name, function)
        model.forward_funcs.append(function)
