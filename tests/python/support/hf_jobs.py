# SPDX-License-Identifier: Apache-2.0
"""Trainings of transformers' models on every rank of a World, and the same in one process without DeepSpeed."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from ostinato.groups import everyones

from .hf_models import BATCH, IN_PEFT, Case, batch, own_loss
from .training import bytes_of

MICRO_BATCHES, STEPS, RATE = 4, 3, 0.125


@dataclass(frozen=True)
class Job:
    """`section`: ostinato's, or None. `folder`: of a checkpoint to begin with, else the case's model; `save`:
    where to leave one, `learned`: what learns. `change`: in hf_changes, done to the model before layers(), to
    the PipelineModule ("built_..."), or in each layer ("each_...").
    """

    case: Case
    section: dict | None = None
    config: dict = field(default_factory=dict)
    folder: str = ""
    save: str = ""
    learned: str = ""
    change: str = ""
    stages: int = 2
    pipeline: dict = field(default_factory=dict)
    all_parameters: bool = False  # the optimizer is given frozen ones, too

    def configuration(self) -> dict:
        made = {
            "train_micro_batch_size_per_gpu": BATCH, "gradient_accumulation_steps": MICRO_BATCHES, "steps_per_print": 10**9,
            "optimizer": {"type": "SGD", "params": {"lr": RATE, "momentum": 0.5}}, "zero_allow_untested_optimizer": True, "gradient_clipping": 0.0, **self.config,
        }  # fmt: skip
        return made | ({"ostinato": self.section} if self.section else {})


def batches(case: Case) -> Iterator[tuple]:
    seed = 0
    while True:
        inputs, labels = batch(case, seed := seed + 1)
        yield (tuple(inputs.values()) if len(inputs) > 1 else next(iter(inputs.values()))), labels


def engine_of(job: Job):
    import deepspeed
    from deepspeed.pipe import PipelineModule
    from ostinato import hf

    from . import hf_changes
    from .training import known

    torch.manual_seed(1000 + dist.get_rank())
    change = getattr(hf_changes, job.change, None)
    source = job.folder
    if not source:
        with torch.random.fork_rng():
            source = job.case.make()
            if change and not job.change.startswith(("built", "each")):
                source = change(source) or source
    in_each = change if job.change.startswith("each") else None
    layers = hf.layers(source, job.case.inputs, change=in_each)
    with known(job.section):
        module = PipelineModule(
            layers, num_stages=job.stages, loss_fn=hf.loss(source), partition_method="uniform", **job.pipeline
        )
    if change and job.change.startswith("built"):
        change(module)
    learning = [p for p in module.parameters() if p.requires_grad or job.all_parameters]
    engine, *_ = deepspeed.initialize(model=module, config=job.configuration(), model_parameters=learning)
    return engine


def train_hf(job: Job) -> dict:
    """Losses, and weights by the model's own names (of all ranks together), as bytes."""
    from ostinato import hf
    from ostinato.hf.saving import weights_of

    engine = engine_of(job)
    data = batches(job.case)
    losses = [engine.train_batch(data).item() for _ in range(STEPS)]
    evaluation = engine.eval_batch(batches(job.case)).item()
    mine = {name: bytes_of(value) for name, value in weights_of(engine.module).items()}
    everyone: list = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    merged: dict[str, bytes] = {}
    for held in everyone:
        for name, value in held.items():
            assert merged.setdefault(name, value) == value, f"two ranks hold different {name}"
    if job.save:
        hf.save(engine, job.save)
    if job.learned:
        hf.save(engine, job.learned, learned=True)
    return {
        "losses": losses,
        "evaluation": evaluation,
        "weights": merged,
        "kind": type(engine).__mro__[1].__name__,
    }


def train_alone(case: Case, change: str = "", clipping: float = 0.0) -> dict:
    """What train_hf() is to equal: the model itself, in one process. `change`: in hf_changes."""
    from . import hf_changes

    model = case.make()
    if change:
        model = getattr(hf_changes, change)(model) or model
    model.train()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], RATE, momentum=0.5)
    losses, seed = [], 0
    for _ in range(STEPS):
        total = 0.0
        for _ in range(MICRO_BATCHES):
            inputs, labels = batch(case, seed := seed + 1)
            loss = own_loss(model, inputs, labels).loss
            (loss / MICRO_BATCHES).backward()
            total = total + loss.detach()
        losses.append((total / MICRO_BATCHES).item())
        if clipping:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clipping)
        optimizer.step()
        optimizer.zero_grad()
    tied = set(model.all_tied_weights_keys)
    own = {name.removeprefix(IN_PEFT): value for name, value in model.state_dict().items()}
    return {
        "losses": losses,
        "weights": {name: bytes_of(value) for name, value in own.items() if name not in tied},
    }


def refused(job: Job) -> str:
    try:
        engine_of(job)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def first_step_refused(job: Job) -> str:
    engine = engine_of(job)
    try:
        engine.train_batch(batches(job.case))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def backwards(job: Job) -> dict[int, int]:
    """Of one step: how many gradients came back to what each layer has made, by layer, of all ranks. Under a
    plan."""
    engine, counts = engine_of(job), {}

    def watch(layer: int):
        counts[layer] = 0

        def count(_gradient):
            counts[layer] += 1

        def made(_module, _inputs, outputs):
            hidden = outputs[0] if isinstance(outputs, tuple) else outputs
            if hidden.requires_grad:
                hidden.register_hook(count)

        return made

    for layer, function in zip(engine.module._local_layers, engine.module._local_funcs, strict=True):
        function.register_forward_hook(watch(layer))
    engine.train_batch(batches(job.case))
    return {layer: count for of_rank in everyones(counts) for layer, count in of_rank.items()}


def resumed(job: Job, folder: str) -> tuple[list[float], list[float]]:
    """Losses of steps 2 and 3: of a run that goes on, and of another engine that has read the first one's
    checkpoint."""
    engine = engine_of(job)
    data = batches(job.case)
    engine.train_batch(data)
    engine.save_checkpoint(folder)
    expected = [engine.train_batch(data).item() for _ in range(2)]
    other = engine_of(job)
    other.load_checkpoint(folder)
    again = batches(job.case)
    for _ in range(MICRO_BATCHES):
        next(again)
    return expected, [other.train_batch(again).item() for _ in range(2)]


def refused_save(job: Job, learned: bool) -> str:
    from ostinato import hf

    try:
        hf.save(engine_of(job), "/nowhere", learned=learned)
    except hf.Refused as error:
        return str(error)
    return ""
