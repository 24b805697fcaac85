"""What cannot be combined with a plan, each refused by its name before step 1."""

import re

from .errors import Unsupported
from .plans import copies_of

OLDEST = (0, 19, 7)  # before it, gradients were scaled wrongly where engine.backward() is bypassed


def check_run(model, config) -> None:
    """Raises Unsupported for the first feature of the run that a plan cannot keep. `config` is a DeepSpeedConfig."""
    import deepspeed

    _check_version(deepspeed.__version__)
    if any(kind.__name__ == "DualPipeVModule" for kind in type(model).__mro__):  # DeepSpeed has it since 0.19.8
        raise Unsupported("DualPipeVModule brings its own stages and schedule: give ostinato a PipelineModule")
    for key in ("pipe_partitioned", "grad_partitioned"):
        if config.pipeline[key] and model.topology().get_dim("model") > 1:
            raise Unsupported(f'"pipeline": {{"{key}": true}} does not work with a plan: switch it off')
    stage = config.zero_config.stage
    if stage > 1:
        raise Unsupported(f'"zero_optimization": {{"stage": {stage}}} does not work with pipelines: use 0 or 1')
    if type(model).__name__ == "GPT2ModelPipe":
        raise Unsupported("GPT2ModelPipe's attention mask is sent by DeepSpeed in a way of its own: pass it to the layers")


def check_sharded_run(chunks, config) -> None:
    """What works with layers on one rank each only."""
    if copies_of(chunks) > 1 and config.load_universal_checkpoint:
        raise Unsupported(
            '"checkpoint": {"load_universal": true} does not work with two directions: the converter does not expect a layer on '
            "several pipeline ranks; load the layer files with load_checkpoint(..., load_optimizer_states=False)"
        )
    if any(chunk.sharded for chunk in chunks) and config.load_universal_checkpoint:
        raise Unsupported(
            '"checkpoint": {"load_universal": true} does not work with sharded stages: the converter takes their shards for '
            "other parameters; load the layer files with load_checkpoint(..., load_optimizer_states=False)"
        )


def _check_version(version: str) -> None:
    found = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
    if found < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise Unsupported(f"DeepSpeed {version} is too old: ostinato needs {oldest} or newer")


def check_loss_rank(last_rank: int, pipeline_ranks: int) -> None:
    """DeepSpeed 0.19.7 takes the loss from the last rank, wherever it was computed."""
    from deepspeed.runtime.pipe.engine import PipelineEngine

    if last_rank != pipeline_ranks - 1 and not hasattr(PipelineEngine, "_loss_stage_global_rank"):
        raise Unsupported(
            f"the placement computes the loss on pipeline rank {last_rank}, which needs DeepSpeed 0.19.8 or newer"
        )
