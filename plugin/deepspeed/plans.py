"""The plan as the DeepSpeed side needs it: lowered, checked against the model and the configuration."""

from dataclasses import dataclass

from .config import Paths
from .errors import OstinatoError, Unsupported


@dataclass(frozen=True)
class Chunk:
    """One stage: layers [first, end) of the model, run by the pipeline ranks `ranks`; several of them hold a shard each."""

    stage: int
    ranks: tuple[int, ...]
    first: int
    end: int

    @property
    def rank(self) -> int:
        """The first of its ranks, which reads the data and reports the loss where the stage does."""
        return self.ranks[0]

    @property
    def sharded(self) -> bool:
        return len(self.ranks) > 1

    def on(self, rank: int) -> bool:
        return rank in self.ranks


def lower(paths: Paths):
    """The lowered program. Raises OstinatoError with file and line where plan and placement are not right together."""
    plugin = compiled()
    try:
        return plugin.lower(str(paths.plan), str(paths.placement))
    except ValueError as error:
        raise OstinatoError(str(error)) from None


def compiled():
    """The compiled module. Raises Unsupported where it is missing or was built for another torch (it checks itself)."""
    try:
        from ostinato import _plugin
    except ImportError as error:
        raise Unsupported(f"ostinato's compiled part does not load: {error}") from None
    return _plugin


def chunks_of(program) -> list[Chunk]:
    """The stages in model order."""
    return [Chunk(index, tuple(s.ranks), s.first_layer, s.end_layer) for index, s in enumerate(program.stages)]


def check_shape(program, micro_batches: int, pipeline_ranks: int, layers: int) -> None:
    """Raises OstinatoError where the plan is for another size or another model."""
    if program.micro_batches != micro_batches:
        raise OstinatoError(
            f"the plan is for {program.micro_batches} micro-batches a step, and gradient_accumulation_steps is "
            f"{micro_batches}: search again with --micro-batches {micro_batches}"
        )
    devices = program.ranks
    if devices != pipeline_ranks:
        raise OstinatoError(
            f'placement "{program.placement_name}" has {devices} devices, and the pipeline has {pipeline_ranks} '
            f"stages (PipelineModule's num_stages): they must be equal"
        )
    _check_layers(program, layers)
    idle = set(range(devices)) - {rank for stage in program.stages for rank in stage.ranks}
    if idle:
        raise OstinatoError(f'placement "{program.placement_name}": device {min(idle)} runs no stage')


def _check_layers(program, layers: int) -> None:
    """The stages must be a chain that covers the layers once, in order."""
    name, next_layer = program.placement_name, 0
    for index, stage in enumerate(program.stages):
        if list(stage.inputs) != ([index - 1] if index else []):
            raise Unsupported(
                f'placement "{name}": stage "{stage.name}" takes more than the output of the stage before it; a '
                "PipelineModule is a chain"
            )
        if stage.end_layer <= stage.first_layer:
            raise OstinatoError(
                f'placement "{name}" does not say which layers stage "{stage.name}" holds: give it [[stages]], as '
                "ostinato partition does"
            )
        if stage.first_layer != next_layer:
            raise OstinatoError(
                f'placement "{name}": stage "{stage.name}" begins at layer {stage.first_layer}, not at {next_layer}'
            )
        next_layer = stage.end_layer
    if next_layer != layers:
        raise OstinatoError(
            f'placement "{name}" is for a model of {next_layer} layers, and this PipelineModule has {layers}: partition '
            "this model"
        )


def check_actions(program) -> None:
    """Raises OstinatoError where the plan is not one of a training."""
    actions = {i.action for rank in range(program.ranks) for i in program.instructions(rank)}
    if not actions & {"B", "I"}:
        raise OstinatoError("the plan holds forwards only: training needs one with backward blocks")
