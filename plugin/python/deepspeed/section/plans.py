# SPDX-License-Identifier: Apache-2.0
"""The plan as the DeepSpeed side needs it: lowered, and checked against the model and the configuration."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain

from deepspeed.runtime.pipe import schedule
from ostinato.errors import counted

from .config import Paths
from ..errors import OstinatoError, OtherModel, Unsupported


@dataclass(frozen=True)
class Stage:
    """Pipeline ranks `ranks` run `layers` of the model, ascending; several ranks hold a shard each.

    `copy`: where the plan runs the model in two directions, each direction has its own copy of the weights;
    copy c runs the batches i with i % copies == c. `takes`: elements of the batch's inputs that the stage
    reads, where stages are not a chain. `recomputes`: its forward keeps only its inputs. `lane`: it runs beside
    what its ranks compute, in a thread on a CPU. `offloads`: what its graph keeps is on the host between forward
    and backward.
    """

    index: int  # among the stages of the program
    ranks: tuple[int, ...]
    layers: Sequence[int]
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    copy: int = 0
    takes: tuple[int, ...] | None = None
    recomputes: bool = False
    lane: str = ""
    offloads: bool = False

    @property
    def first(self) -> int:
        return self.layers[0]

    @property
    def rank(self) -> int:
        """The first of its ranks, which reads the data and reports the loss if the stage does."""
        return self.ranks[0]

    @property
    def sharded(self) -> bool:
        return len(self.ranks) > 1

    @property
    def reads(self) -> bool:
        """Whether it takes the inputs of a batch, or some of them."""
        return not self.inputs or bool(self.takes)

    @property
    def ends(self) -> bool:
        """Whether it computes the loss."""
        return not self.outputs

    def on(self, rank: int) -> bool:
        return rank in self.ranks


@contextmanager
def naming(file: str | None) -> Iterator[None]:
    """What the block refuses begins with the file that the section names, if it does."""
    try:
        yield
    except OstinatoError as error:
        if file is not None:
            error.args = (f"{file}: {error}", *error.args[1:])
        raise


def lower(paths: Paths):
    """The lowered program. Raises OstinatoError with file and line where plan and placement do not fit."""
    plugin = compiled()
    try:
        return plugin.lower(str(paths.plan), str(paths.placement))
    except ValueError as error:
        raise OstinatoError(str(error)) from None


def compiled():
    """The compiled module. Raises Unsupported where it is missing or was built for a different torch (it
    checks itself)."""
    try:
        from ostinato import _plugin
    except ImportError as error:
        raise Unsupported(f"ostinato's compiled part does not load: {error}") from None
    return _plugin


def stages_of(program) -> list[Stage]:
    """The stages in the placement's order, which is model order within one copy of the model."""
    copies = _connected(program.stages)
    return [
        Stage(
            index,
            tuple(s.ranks),
            s.layers,
            tuple(s.inputs),
            tuple(s.outputs),
            copy,
            recomputes=s.recomputes,
            lane=s.lane,
            offloads=bool(s.offload),
        )
        for index, (s, copy) in enumerate(zip(program.stages, copies, strict=True))
    ]


def _connected(stages: list) -> list[int]:
    """The connected part that each stage belongs to; parts are numbered by their first stage."""
    part = list(range(len(stages)))
    for index, stage in enumerate(stages):
        for other in stage.inputs:
            low, high = sorted((part[index], part[other]))
            part = [low if p == high else p for p in part]
    numbers = sorted(set(part))
    return [numbers.index(p) for p in part]


def copies_of(stages: list[Stage]) -> int:
    """The number of directions in which the plan runs the model."""
    return 1 + max(stage.copy for stage in stages)


def is_chain(stages: list[Stage]) -> bool:
    """Whether every stage takes the output of the stage before it in its copy of the model, and nothing else."""
    return all(_is_chain(of_copy(stages, copy)) for copy in range(copies_of(stages)))


def _is_chain(stages: list[Stage]) -> bool:
    before = [(), *((stage.index,) for stage in stages[:-1])]
    return all(stage.inputs == expected for stage, expected in zip(stages, before, strict=True))


def of_copy(stages: list[Stage], copy: int) -> list[Stage]:
    """The stages of one copy of the model: each after those that feed it, else by its first layer."""
    waiting, order = [stage for stage in stages if stage.copy == copy], []
    while waiting:
        late = {stage.index for stage in waiting}
        order.append(
            min(
                (stage for stage in waiting if not late & set(stage.inputs)),
                key=lambda stage: tuple(stage.layers[:1]),
            )
        )
        waiting.remove(order[-1])
    return order


def wired(stages: list[Stage], specs: list) -> list[Stage]:
    """The same stages; where they are not a chain, with the inputs that they take from the batch."""
    if is_chain(stages):
        return stages
    from ..graph_model import stage_wires

    wires = stage_wires(specs, stages)
    return [replace(stage, takes=wires[stage.index].takes) for stage in stages]


def check_micro_batches(program, micro_batches: int) -> None:
    """Raises OstinatoError where the plan is for a different number of micro-batches."""
    copies = copies_of(stages_of(program))
    if trains(program) and program.micro_batches * copies != micro_batches:
        ways = "" if copies == 1 else f", each for {copies} directions,"
        needed = (
            ""
            if micro_batches % copies
            else f": make a plan for that with ostinato plan PROFILE --micro-batches {micro_batches // copies}"
        )
        raise OstinatoError(
            f"the plan is for {counted(program.micro_batches, 'micro-batch')}{ways} a step, but gradient_accumulation_steps is "
            f"{micro_batches}{needed}"
        )


def check_shape(program, pipeline_ranks: int, specs: list) -> None:
    """Raises OstinatoError where the plan is for a different number of ranks or a different model. `specs`:
    layers of the PipelineModule."""
    stages = stages_of(program)
    devices = program.ranks
    if devices != pipeline_ranks:
        raise OstinatoError(
            f'placement "{program.placement_name}" has {counted(devices, "device")}, but the pipeline has '
            f"{counted(pipeline_ranks, 'stage')} (PipelineModule's num_stages): they must be equal: "
            f"ostinato plan --devices {pipeline_ranks} --all-devices gives each rank a stage"
        )
    for copy in range(copies_of(stages)):
        _check_layers(program, of_copy(stages, copy), specs)
    idle = set(range(devices)) - {rank for stage in stages for rank in stage.ranks}
    if idle:
        raise OstinatoError(f'placement "{program.placement_name}": device {min(idle)} runs no stage')
    _check_shards(program, stages)


def _check_shards(program, stages: list[Stage]) -> None:
    """A rank holds one part of a sharded layer, and it is the same part for every direction."""
    names = [stage.name for stage in program.stages]
    for stage in (c for c in stages if c.sharded):
        for other in (c for c in stages if c.copy != stage.copy and {*c.layers} & {*stage.layers}):
            apart = len(other.ranks) == len(stage.ranks) and not {*other.ranks} & {*stage.ranks}
            if other.ranks != stage.ranks and not apart:
                raise Unsupported(
                    f'placement "{program.placement_name}": stages "{names[stage.index]}" and "{names[other.index]}" hold the same '
                    f"layers for two directions, on devices {list(stage.ranks)} and {list(other.ranks)}: give both the same devices, or "
                    "as many that do not overlap"
                )


def _check_layers(program, stages: list[Stage], specs: list) -> None:
    """The stages of one copy must hold each layer once, and take what their layers read."""
    name = program.placement_name
    if unsaid := [program.stages[stage.index].name for stage in stages if not stage.layers]:
        raise OstinatoError(
            f'placement "{name}" does not say which layers stage "{unsaid[0]}" holds: write [[stages]], or let ostinato '
            f"placement --layers {len(specs)} share them equally, or ostinato plan or ostinato partition by their times"
        )
    check_count(program, stages, specs)
    held = sorted((layer, program.stages[stage.index].name) for stage in stages for layer in stage.layers)
    for expected, (layer, stage) in enumerate(held):
        if layer != expected:
            raise OstinatoError(
                f'placement "{name}": stage "{stage}" holds layer {layer}, but layer {expected} comes next'
            )
    if not _is_chain(stages):
        _check_branches(program, stages, specs)


def check_count(program, stages: list[Stage], specs: list) -> None:
    """Raises OtherModel where these stages are for another number of layers."""
    count = 1 + max((stage.layers[-1] for stage in stages if stage.layers), default=-1)
    if count not in (0, len(specs)):
        raise OtherModel(
            f'placement "{program.placement_name}" is for a model of {counted(count, "layer")}, but this PipelineModule has {len(specs)}: '
            "make one for this model with ostinato profile and ostinato plan; where a script trains several models, make each with "
            'its engine in its own "with ostinato.deepspeed.enable(...)"',
            f"it has {counted(count, 'layer')}, and this one {len(specs)}",
        )


def _check_branches(program, stages: list[Stage], specs: list) -> None:
    from ..graph_model import feeds, is_graph

    name, names = program.placement_name, [stage.name for stage in program.stages]
    if not is_graph(specs):
        odd = next(
            c
            for c, before in zip(stages, [None, *stages], strict=False)
            if c.inputs != ((before.index,) if before else ())
        )
        raise Unsupported(
            f'placement "{name}": stage "{names[odd.index]}" does not take just the output of the stage before it, but a '
            "PipelineModule is a chain: say what its layers read with ostinato.deepspeed.graph()"
        )
    expected = feeds(specs, stages)
    for stage in stages:
        if set(stage.inputs) != expected[stage.index]:
            needs = ", ".join(names[s] for s in sorted(expected[stage.index])) or "no stage"
            raise OstinatoError(
                f'placement "{name}": stage "{names[stage.index]}" takes the outputs of '
                f"{', '.join(names[s] for s in stage.inputs) or 'no stage'}, but its layers read those of {needs}"
            )
    if ends := [names[stage.index] for stage in stages[:-1] if stage.ends]:
        raise OstinatoError(
            f'placement "{name}": stage "{ends[0]}" feeds no other stage, but is not the last of the model'
        )


def trains(program) -> bool:
    """False for a plan that holds forwards only."""
    return any(stage.has_backward for stage in program.stages)


def splits(program, stage: Stage | None = None) -> bool:
    """Whether the plan splits any backward, or any of the stage, into two halves, which start from all outputs at
    once."""
    return any(
        i.action == "W" and (stage is None or i.stage == stage.index)
        for rank in (range(program.ranks) if stage is None else stage.ranks)
        for i in program.instructions(rank)
    )


def one_by_one(stage: Stage, parts: Sequence[int]) -> bool:
    """DeepSpeed runs Tensor.backward() for each output of a rank, one after the other, through all of its
    layers; a stage that begins and ends where the rank does in its partition (`parts`) keeps that order, in
    which gradients are added. Recomputing it several times is not possible.
    """
    begins = dict(zip(parts[1:-1], parts, strict=False))  # by the layer after a rank's last
    return begins.get(stage.layers[-1] + 1) == stage.first and not stage.recomputes


def as_in_1f1b(program, stage: Stage, owner: int, stages: int) -> bool:
    """Whether a stage's forwards and backwards run in the order in which DeepSpeed's 1F1B runs stage `owner`
    of `stages`."""
    ran = [
        i.action == "F"
        for i in program.instructions(stage.rank)
        if i.stage == stage.index and i.action in ("F", "B", "I")
    ]
    usual = chain.from_iterable(schedule.TrainSchedule(program.micro_batches, stages, owner))
    passes = [
        isinstance(c, schedule.ForwardPass)
        for c in usual
        if isinstance(c, (schedule.ForwardPass, schedule.BackwardPass))
    ]
    return ran == passes
