"""Stages on several ranks behind DeepSpeed's engine, against DeepSpeed's own 1F1B on the same model."""

from dataclasses import dataclass, field, replace

import pytest
import torch
import torch.distributed as dist
from sharded_jobs import Experts
from support import training
from support.models import BATCH, LENGTH, WIDTH, Block
from support.plans import Layout, make_plan
from torch import nn

VOCABULARY, MICRO_BATCHES = 19, 4
LAYERS = 8  # embedding, two blocks, one of the user's own, two blocks, norm, head
ALL_2, ALL_4 = (0, 1), (0, 1, 2, 3)

EMBEDDING_2 = Layout("embedding", (1, 4), (ALL_2, 0, 1))
M_2 = Layout("m", (1, 3, 6), (ALL_2, 0, 1, ALL_2))
HEAD_2 = Layout("head", (3, 6), (0, 1, ALL_2))
M_4 = Layout("m", (1, 2, 3, 5, 6), (ALL_4, 0, 1, 2, 3, ALL_4))
NN_4 = Layout("nn", (1, 2, 3, 4, 5), (ALL_4, 0, 1, ALL_4, 2, 3))
ODD_4 = Layout("odd", (1, 2, 3, 4, 6), ((0, 2, 3), 1, 0, (1, 2), 3, (0, 1)))


@dataclass(frozen=True)
class Options:
    """`section`: the "ostinato" section, or None for DeepSpeed alone."""

    stages: int = 2
    section: dict | None = None
    config: dict = field(default_factory=dict)
    optimizer: str = "SGD"
    own_optimizer: bool = False
    steps: int = 10

    def configuration(self) -> dict:
        parameters = {"lr": 0.05} if self.optimizer == "SGD" else {"lr": 0.01, "torch_adam": True}
        made = {
            "train_micro_batch_size_per_gpu": BATCH,
            "gradient_accumulation_steps": MICRO_BATCHES,
            "steps_per_print": 10**9,
            "zero_allow_untested_optimizer": True,
            **self.config,
        }
        if not self.own_optimizer:
            made["optimizer"] = {"type": self.optimizer, "params": parameters}
        return made | ({"ostinato": self.section} if self.section is not None else {})


class Mixer(Experts):
    """The user's layer, as wide as the model: it says itself how it is cut."""

    def __init__(self):
        super().__init__(WIDTH)


def layers() -> list:
    from deepspeed.pipe import LayerSpec

    block, norm = LayerSpec(Block), LayerSpec(nn.LayerNorm, WIDTH)
    first, last = LayerSpec(nn.Embedding, VOCABULARY, WIDTH), LayerSpec(nn.Linear, WIDTH, VOCABULARY)
    return [first, block, block, LayerSpec(Mixer), block, block, norm, last]


def loss(logits, targets):
    return nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1))


def make_engine(options: Options, changed: dict | None = None):
    import deepspeed
    from deepspeed.pipe import PipelineModule

    torch.manual_seed(1000 + dist.get_rank())
    made = layers()
    for index, layer in (changed or {}).items():
        made[index] = layer
    model = PipelineModule(made, num_stages=options.stages, loss_fn=loss, partition_method="uniform")
    optimizer = training._two_groups(model) if options.own_optimizer else None
    given = {} if options.own_optimizer else {"model_parameters": list(model.parameters())}
    return deepspeed.initialize(model=model, optimizer=optimizer, config=options.configuration(), **given)[0]


def data_of(engine, seed: int = 7):
    """(tokens, targets); nothing on ranks that DeepSpeed does not read from, so that they must be given theirs."""
    if not (engine.is_first_stage() or engine.is_last_stage()):
        return None
    return batches(seed + engine.grid.data_parallel_id)


def batches(seed: int):
    """Endless (tokens, the tokens after them in the vocabulary)."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        tokens = torch.randint(VOCABULARY, (BATCH, LENGTH), generator=generator)
        yield tokens, (tokens + 1) % VOCABULARY


def weights(engine) -> dict[str, torch.Tensor]:
    """Every parameter of the whole model by name and replica; parts are put together. Asserts that replicas of one agree."""
    parts = getattr(engine.module, "sharded_parameters", set)()
    own = {f"{name}@{engine.grid.data_parallel_id}": (name in parts, p.detach().clone()) for name, p in engine.module.named_parameters()}
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    found: dict[str, list] = {}
    for held in everyone:
        for name, value in held.items():
            found.setdefault(name, []).append(value)
    whole = {}
    for name, values in found.items():
        if values[0][0]:
            whole[name] = torch.cat([v for _, v in values], dim=1 if "down.weight" in name else 0)
        else:
            assert all(torch.equal(v, values[0][1]) for _, v in values), f"two ranks hold different {name}"
            whole[name] = values[0][1]
    return whole


def train(options: Options) -> dict:
    engine = make_engine(options)
    first, data = weights(engine), data_of(engine)
    held_out = data_of(engine, seed=99)
    before = engine.eval_batch(held_out).item()
    losses = [engine.train_batch(data).item() for _ in range(options.steps)]
    after, logits = engine.eval_batch(held_out, return_logits=True, num_micro_batches=3)
    return {
        "first": first,
        "losses": losses,
        "last": weights(engine),
        "evaluation": (before, after.item()),
        "logits": None if logits is None else logits.detach().clone(),
        "norm": engine.get_global_grad_norm() if options.config.get("gradient_clipping") else None,
    }


ZERO_1 = {"zero_optimization": {"stage": 1}}
CLIPPED = {"gradient_clipping": 0.1}
TWO, FOUR = Options(stages=2), Options(stages=4)

CASES = {
    "m": (2, M_2, TWO),
    "head-adam": (2, HEAD_2, replace(TWO, optimizer="Adam")),
    "m-zero1-clipped": (2, M_2, replace(TWO, config=ZERO_1 | CLIPPED)),
    "m-clipped": (2, M_2, replace(TWO, config=CLIPPED)),
    "m-own-optimizer": (2, M_2, replace(TWO, own_optimizer=True)),
    "m4": (4, M_4, FOUR),
    "nn4": (4, NN_4, FOUR),
    "odd4-zero1": (4, ODD_4, replace(FOUR, config=ZERO_1)),
    "data-parallel-m-zero1": (4, M_2, replace(TWO, config=ZERO_1)),
}


REPEATED = ("m", "nn4")


@pytest.fixture(scope="module")
def worlds(world2, world4):
    return {2: world2, 4: world4}


@pytest.fixture(scope="module")
def stock():
    """DeepSpeed alone, once for the cases that differ in the placement only."""
    results = {}

    def run(world, options):
        key = (world.size, repr(options))
        if key not in results:
            results[key] = world.run(train, options)
        return results[key]

    return run


@pytest.mark.parametrize("case", CASES)
def test_trains_what_deepspeed_trains(case, worlds, stock, tmp_path):
    """Within rounding: a head's sums and the norms for clipping are added rank by rank. Equal from run to run."""
    size, layout, options = CASES[case]
    world, planned = worlds[size], replace(options, section={"plan": str(plan_of(tmp_path, layout))})
    expected, got = stock(world, options), world.run(train, planned)
    repeated = world.run(train, planned) if case in REPEATED else got
    for ours, theirs, again in zip(got, expected, repeated, strict=True):
        same(ours["first"], theirs["first"])
        close(ours["losses"], theirs["losses"])
        assert ours["losses"][-1] < ours["losses"][0] or "gradient_clipping" in options.config
        close(ours["evaluation"], theirs["evaluation"])
        for name, value in theirs["last"].items():
            torch.testing.assert_close(ours["last"][name], value, rtol=BOUND, atol=BOUND, msg=lambda m, n=name: f"{n}: {m}")
        if options.config.get("gradient_clipping") and options.config.get("zero_optimization"):
            close([float(ours["norm"])], [float(theirs["norm"])])
        same(again["last"], ours["last"])
        assert again["losses"] == ours["losses"]
    logits = [r["logits"] for r in got if r["logits"] is not None]
    whole = next(r["logits"] for r in expected if r["logits"] is not None)
    assert logits and logits[0].shape[-1] == VOCABULARY
    torch.testing.assert_close(logits[0], whole, rtol=BOUND, atol=BOUND)


BOUND = 2e-5


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_a_sharded_embedding_alone_keeps_every_bit(world2, stock, tmp_path, optimizer):
    """All addends of its sums but one are zero."""
    options = Options(optimizer=optimizer, steps=50)
    planned = replace(options, section={"plan": str(plan_of(tmp_path, EMBEDDING_2))})
    for ours, theirs in zip(world2.run(train, planned), stock(world2, options), strict=True):
        same(ours["last"], theirs["last"])
        assert (ours["losses"], ours["evaluation"]) == (theirs["losses"], theirs["evaluation"])


def plan_of(folder, layout):
    return make_plan(folder / layout.name, layout, LAYERS, MICRO_BATCHES)


def same(ours: dict, theirs: dict) -> None:
    assert ours.keys() == theirs.keys()
    assert not [name for name, value in theirs.items() if not torch.equal(ours[name], value)]


def close(ours, theirs) -> None:
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=BOUND, atol=BOUND)


# ---- checkpoints


def save(options: Options, folder: str) -> dict:
    """Trains 3 steps, saves, trains 3 more."""
    engine = make_engine(options)
    data = data_of(engine)
    for _ in range(3):
        engine.train_batch(data)
    engine.save_checkpoint(folder)
    return {"weights": weights(engine), "losses": [engine.train_batch(data).item() for _ in range(3)]}


def load(options: Options, folder: str, optimizer: bool = True) -> dict:
    engine = make_engine(options)
    data = data_of(engine)
    for _ in range(3 * MICRO_BATCHES if data is not None else 0):
        next(data)
    try:
        engine.load_checkpoint(folder, load_optimizer_states=optimizer)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"weights": weights(engine), "losses": [engine.train_batch(data).item() for _ in range(3)]}


@pytest.mark.parametrize("config", [{}, ZERO_1], ids=["zero0", "zero1"])
def test_a_checkpoint_goes_on_where_it_was_saved(world2, tmp_path, config):
    options = Options(optimizer="Adam", config=config, section={"plan": str(plan_of(tmp_path, M_2))})
    expected = world2.run(save, options, str(tmp_path))
    for rank, result in enumerate(world2.run(load, options, str(tmp_path))):
        assert "error" not in result, result
        same(result["weights"], expected[rank]["weights"])
        assert result["losses"] == expected[rank]["losses"]


@pytest.mark.parametrize("first", ["deepspeed", "ostinato"])
def test_weights_pass_between_deepspeed_and_shards(world2, tmp_path, first):
    alone, ours = Options(), Options(section={"plan": str(plan_of(tmp_path, M_2))})
    writer, reader = (alone, ours) if first == "deepspeed" else (ours, alone)
    expected = world2.run(save, writer, str(tmp_path))
    files = sorted(path.name for path in (tmp_path / "global_step3").glob("layer_*"))
    assert files == [f"layer_{i:02d}-model_states.pt" for i in range(LAYERS)]
    for rank, result in enumerate(world2.run(load, reader, str(tmp_path), False)):
        same(result["weights"], expected[rank]["weights"])
        close(result["losses"], expected[rank]["losses"])


def test_optimizer_state_of_another_placement_is_refused(world2, tmp_path):
    for saved, loaded in ((M_2, HEAD_2), (None, M_2), (M_2, Layout("stock", (4,), (0, 1)))):
        options = [Options(section={"plan": str(plan_of(tmp_path, x))} if x else None) for x in (saved, loaded)]
        folder = str(tmp_path / f"{saved.name if saved else 'deepspeed'}-{loaded.name}")
        world2.run(save, options[0], folder)
        for result in world2.run(load, options[1], folder):
            assert result["error"].startswith("OstinatoError: ") and "load_optimizer_states=False" in result["error"]
            assert "ds_to_universal" not in result["error"]


# ---- refusals


def refusal(options: Options, which: str) -> str:
    from deepspeed.pipe import LayerSpec, TiedLayerSpec

    changed = {
        "unknown": {0: LayerSpec(Embed)},
        "tied": {0: TiedLayerSpec("table", nn.Embedding, VOCABULARY, WIDTH)},
        "sparse": {0: LayerSpec(nn.Embedding, VOCABULARY, WIDTH, max_norm=1.0)},
        "few": {0: LayerSpec(nn.Embedding, 1, WIDTH)},
        "universal": {},
    }
    if which == "universal":
        options = replace(options, config={"checkpoint": {"load_universal": True}})
    try:
        make_engine(options, changed[which])
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


class Embed(nn.Module):
    """An embedding that does not say how it is cut."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)


REFUSED = {
    "unknown": "Unsupported: stage 0 is sharded over pipeline ranks [0, 1], and its layer 0: Embed does not say how it is cut",
    "tied": 'Unsupported: stage 0 is sharded over pipeline ranks [0, 1], and its layer 0 is tied ("table")',
    "sparse": 'OstinatoError: layer "0": nn.Embedding(max_norm=1.0) cannot be sharded',
    "few": "OstinatoError: layer \"0\": Embedding: 'weight' has 1 rows, too few for 2 ranks",
    "universal": 'Unsupported: "checkpoint": {"load_universal": true} does not work with sharded stages',
}


@pytest.mark.parametrize("which", REFUSED)
def test_what_cannot_be_sharded_is_refused_before_step_1(world2, tmp_path, which):
    options = Options(section={"plan": str(plan_of(tmp_path, M_2))})
    for said in world2.run(refusal, options, which):
        assert said.startswith(REFUSED[which]), said
