# SPDX-License-Identifier: Apache-2.0
"""Trainings that run on every rank of a World: DeepSpeed's own 1F1B, or the same under a plan."""

import hashlib
import json
import os
import tempfile
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
import torch.distributed as dist
from ostinato.groups import timeout_of

from . import branch_model, changed_model, models, random_model, sliced_model, strangers, vocabulary_model
from .linked import a_group_for_each_direction

MICRO_BATCHES = 4
MODELS = {
    "mixed": models,
    "branches": branch_model,
    "vocabulary": vocabulary_model,
    "random": random_model,
    "changed": changed_model,
    "strangers": strangers,
}
MODELS |= {
    "sliced": sliced_model.Sliced(),
    "sliced dropout": sliced_model.Sliced(dropout=0.2),
    "megatron's tracker": sliced_model.Sliced(dropout=0.2, megatron=True),
    "gpt2": sliced_model.Sliced(module="GPT2ModelPipe"),
}


@dataclass(frozen=True)
class Replacing:
    """models, with layers of this class in the places of the layers `changed`."""

    kind: type

    loss, micro_batches = staticmethod(models.loss), staticmethod(models.micro_batches)

    def layers_of(self, options: "Options") -> list:
        from deepspeed.pipe import LayerSpec

        places = [index for index, _ in options.changed]
        return [
            LayerSpec(self.kind) if i in places else layer
            for i, layer in enumerate(models.layers_of(options))
        ]


@dataclass(frozen=True)
class Options:
    """`section`: the "ostinato" section, or None for DeepSpeed alone. Other fields change the training
    itself."""

    stages: int = 2
    slices: int = 0  # of each layer, on so many ranks: of a sliced model alone
    section: dict | None = None
    config: dict = field(default_factory=dict)
    model: str = "mixed"  # in MODELS
    changed: tuple[tuple, ...] = ()  # of "vocabulary": (index, function that makes another layer)
    change: str = ""  # of "changed": what the script does to the layers before initialize()
    tied: bool = False
    optimizer: str | None = "Adam"
    own_optimizer: bool = False  # a torch optimizer with two groups, made by the script
    frozen_too: bool = True  # the optimizer is given frozen parameters, too
    partition: str = "uniform"
    checkpoint_interval: int = 0
    checkpointable: tuple[str, ...] | None = None
    built: bool = False  # layers are modules, not LayerSpecs
    seed_layers: bool = False
    draws_every: int = 0  # of "random": batches between two numbers that its loader draws
    dynamic_shape: bool = False
    steps: int = 6

    def configuration(self) -> dict:
        parameters = {"lr": 0.05} if self.optimizer == "SGD" else {"lr": 0.01, "torch_adam": True}
        made = {
            "train_micro_batch_size_per_gpu": models.BATCH,
            "gradient_accumulation_steps": MICRO_BATCHES,
            "steps_per_print": 10**9,
            "gradient_clipping": 0.0,
            "zero_allow_untested_optimizer": True,
            **self.config,
        }
        if not self.own_optimizer and self.optimizer is not None:
            made["optimizer"] = {"type": self.optimizer, "params": parameters}
        return made | ({"ostinato": in_any_case(self.section)} if self.section is not None else {})


def in_any_case(section):
    """Under "auto" the plan runs, whether or not a tiny model gains from it on this machine."""
    if isinstance(section, dict) and section.get("auto"):
        return {"fallback": False} | section
    return section


def make_model(options: Options):
    """The plan is known by then, as where the environment names it."""
    with known(options.section):
        return _make_model(options)


@contextmanager
def known(section):
    """A section, or the file that holds it, is in the environment while it lasts; of None, and of what is no
    section, nothing is."""
    from ostinato.deepspeed.section import VARIABLE

    if isinstance(section, dict):
        os.environ[VARIABLE] = json.dumps(in_any_case(section))
    elif isinstance(section, str) and os.path.isfile(section):
        os.environ[VARIABLE] = section
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None)


@contextmanager
def second_start(files: dict):
    """As in a process that has replaced itself, with these files."""
    from ostinato.ranks import again

    _as_in_a_new_process()
    with tempfile.TemporaryDirectory(prefix=again._prefix()) as folder:
        again.write(files, Path(folder))
        os.environ[again.FOLDER] = folder
        again.folder_of_first_start.cache_clear()
        try:
            yield
        finally:
            del os.environ[again.FOLDER]
            again.folder_of_first_start.cache_clear()


def _as_in_a_new_process() -> None:
    """Forgets the engines and models of this one."""
    from ostinato.deepspeed import hook, section
    from ostinato.deepspeed.start import install, prepare, second_start

    second_start._first = {}
    prepare._engines.clear()
    install.with_kept.clear()
    hook.models.clear()
    section.unplanned.clear()


def in_both_starts(job, *args):
    """job(*args), and once more with what it leaves where ranks are to start again: processes of a World
    cannot replace themselves."""
    from ostinato.deepspeed.start.second_start import ANEW, NeedsNewStart

    _as_in_a_new_process()
    files: dict = {}
    for in_start in (
        nullcontext,
        second_start,
        second_start,
    ):  # one line calls the job, as one command starts all
        with in_start(files):
            try:
                return job(*args)
            except NeedsNewStart as error:
                if in_start is second_start and ANEW not in files:
                    raise
                files = error.files
    raise AssertionError


def _make_model(options: Options):
    from deepspeed.pipe import PipelineModule

    torch.manual_seed(1000 + dist.get_rank())  # each rank draws other numbers
    kind = MODELS[options.model]
    layers = kind.layers_of(options)
    if options.built:
        layers = [layer.build() if hasattr(layer, "build") else layer for layer in layers]
    return getattr(kind, "module", PipelineModule)(
        layers,
        num_stages=options.stages,
        topology=sliced_model.topology_of(options) if options.slices else None,
        loss_fn=kind.loss,
        partition_method=options.partition,
        activation_checkpoint_interval=options.checkpoint_interval,
        checkpointable_layers=list(options.checkpointable) if options.checkpointable else None,
        seed_layers=options.seed_layers,
        dynamic_shape=options.dynamic_shape,
    )


def make_engine(options: Options, configuration=None):
    """`configuration`: a file to read instead of options.configuration()."""
    import deepspeed

    model = make_model(options)
    changed_model.change(model, options.change)
    optimizer = _two_groups(model) if options.own_optimizer else None
    stepped = [p for p in model.parameters() if p.requires_grad or options.frozen_too]
    given = {} if options.own_optimizer else {"model_parameters": stepped}
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=configuration or options.configuration(), **given
    )
    engine.batches = MODELS[options.model].micro_batches  # for data_of()
    return engine


def _two_groups(model):
    """Matrices with weight decay, everything else without and slower; one bias is left out."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for name, p in model.named_parameters() if p.dim() <= 1 and name != "2.mix.bias"]
    groups = [
        {"params": matrices, "weight_decay": 0.1},
        {"params": vectors, "lr": 0.005, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.01)


def data_of(engine, seed: int = 7, after: int = 0):
    """Other data for each data-parallel replica; None on ranks that DeepSpeed does not read from, so that
    they must be given theirs. `after`: so many steps, as they go on from a checkpoint."""
    if not (engine.is_first_stage() or engine.is_last_stage()):
        return None
    data = engine.batches(seed + engine.grid.data_parallel_id)
    for _ in range(after * MICRO_BATCHES):
        next(data)
    return data


def trained_and_saved(options: Options, folder: str, steps: int, **how) -> tuple:
    """An engine that has saved a checkpoint after so many steps, and the rest of its data. `how`: for
    save_checkpoint()."""
    engine = make_engine(options)
    data = data_of(engine)
    for _ in range(steps):
        engine.train_batch(data)
    engine.save_checkpoint(folder, **how)
    return engine, data


def weights(engine) -> dict[str, bytes]:
    """Every parameter and buffer of the whole model by its name and data-parallel replica, as bytes; parts
    are put together. Asserts that all that hold the same agree.
    """
    mine = dict(engine.module.named_parameters())
    mine |= dict(engine.module.named_buffers(remove_duplicate=False))  # shared ones by the name in each layer
    mine.pop("ostinato_idle", None)  # of a rank with nothing to train: no layer's
    run = getattr(engine, "_ostinato", None)
    places = {id(p.parameter): (p.shard.index, p.dimension) for p in run.parameter_parts} if run else {}
    replica = engine.grid.data_parallel_id
    if engine.grid.slice_parallel_size > 1:
        replica = f"{replica}, slice {engine.grid.get_slice_parallel_rank()}"
    own = {f"{name}@{replica}": (places.get(id(t), (0, 0)), t.detach().clone()) for name, t in mine.items()}
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    merged: dict[str, bytes] = {}
    for name in {name: None for held in everyone for name in held}:
        parts: dict[int, torch.Tensor] = {}
        for (index, dimension), value in (held[name] for held in everyone if name in held):  # noqa: B007
            assert bytes_of(parts.setdefault(index, value)) == bytes_of(value), (
                f"two ranks hold different {name}"
            )
        merged[name] = bytes_of(
            torch.cat([parts[i] for i in sorted(parts)], dim=dimension) if len(parts) > 1 else parts[0]
        )
    return merged


def floats(value: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(value), dtype=torch.float32)


def close(ours: dict[str, bytes], theirs: dict[str, bytes], bound: float = 2e-5) -> None:
    """Asserts that weights are equal up to `bound`, relative to the largest of a tensor where that is above
    1."""
    for name, value in theirs.items():
        a, b = floats(ours[name]), floats(value)
        assert (a - b).abs().max() <= bound * max(1.0, float(b.abs().max())), name


def bytes_of(tensor) -> bytes:
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def random_state() -> str:
    return hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()


def train(options: Options) -> dict:
    return in_both_starts(_train, options)


def _train(options: Options) -> dict:
    """Losses, first and last weights, an evaluation before and after, and the random state after
    initialize()."""
    engine = make_engine(options)
    after_start = random_state()
    first = weights(engine)
    data, held_out = data_of(engine), data_of(engine, seed=99)
    before = engine.eval_batch(held_out).item()
    losses = [engine.train_batch(data).item() for _ in range(options.steps)]
    after, logits = engine.eval_batch(held_out, return_logits=True, num_micro_batches=3)
    clipped = options.config.get("gradient_clipping") and options.config.get("zero_optimization")
    return {
        "random_state": after_start,
        "first": first,
        "losses": losses,
        "last": weights(engine),
        "evaluation": (before, after.item()),
        "logits": None if logits is None else logits.detach().clone(),
        "norm": float(engine.get_global_grad_norm()) if clipped else None,
        "kind": type(engine).__mro__[1].__name__,
    }


def train_over_links(options: Options) -> dict:
    """train() with a group for each direction between two ranks, as on GPUs."""
    with a_group_for_each_direction() as made:
        result = train(options)
    ways = [group for group in made if group.one_way]
    pairs, limits = [group.members for group in ways], {group.limit_s for group in ways}
    return result | {"pairs": pairs, "limits": limits, "world": timeout_of()}


def train_enabled(options: Options, section: dict) -> dict:
    """train() with what enable() was given instead of a section."""
    import ostinato.deepspeed
    from ostinato.deepspeed import hook

    ostinato.deepspeed.enable(**section)
    try:
        return train(options)
    finally:
        hook.disable()


def train_with_costs(options: Options, profile: str, job=train) -> dict:
    """train() under "auto", which measures, and then searches for these costs: what moves does not depend on
    the machine."""
    from ostinato.deepspeed.start import first_pass

    measured = first_pass._profile
    first_pass._profile = lambda *given: measured(*given) and profile
    try:
        return in_both_starts(job, options)
    finally:
        first_pass._profile = measured


def resumed(options: Options, folder: str) -> list[float]:
    return in_both_starts(_resumed, options, folder)


def _resumed(options: Options, folder: str) -> list[float]:
    """Losses after loading the weights that a run of DeepSpeed alone leaves in `folder`, where none are there
    yet."""
    if not os.path.exists(folder):
        stock = make_engine(replace(options, section=None))
        stock.train_batch(data_of(stock, seed=5))
        stock.save_checkpoint(folder)
    engine = make_engine(options)
    engine.load_checkpoint(folder, load_optimizer_states=False)
    data = data_of(engine)
    return [engine.train_batch(data).item() for _ in range(3)]


def train_unsupported(options: Options) -> dict:
    """train() where every program that is lowered is one that DeepSpeed cannot run."""
    from ostinato.deepspeed.section import plans
    from ostinato.deepspeed.errors import Unsupported

    def refuse(*_):
        raise Unsupported("for a test")

    original, plans.check_shape = plans.check_shape, refuse
    try:
        return train(options)
    finally:
        plans.check_shape = original


def first_step_refused(options: Options) -> str:
    """What the first train_batch() raised, before it changed a weight."""
    engine = make_engine(options)
    before = [p.detach().clone() for p in engine.module.parameters()]
    try:
        engine.train_batch(data_of(engine))
    except Exception as error:
        assert all(torch.equal(p, was) for p, was in zip(engine.module.parameters(), before, strict=True))
        return f"{type(error).__name__}: {error}"
    return ""


def refusal(options: Options, configuration=None, differing: str = "") -> str:
    """What initialize() raised, as "Kind: message"; "" where it raised nothing. `differing`: a key of the
    search whose value is another on every rank."""
    if differing:
        options = replace(options, section={**options.section, "search": {differing: dist.get_rank()}})
    try:
        in_both_starts(make_engine, options, configuration)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
