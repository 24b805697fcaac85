"""Models with branches (K: several inputs and outputs per stage, skip edges) behind DeepSpeed's engine."""

from dataclasses import dataclass, field, replace

import pytest
import torch
import torch.distributed as dist
from ostinato.deepspeed import OstinatoError, graph
from support import training
from support.plans import Layout, make_plan
from support.shapes import Stage, placement_text
from torch import nn

VOCABULARY, WIDTH, LENGTH, BATCH, MICRO_BATCHES = 13, 8, 5, 2, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + torch.tanh(self.mix(self.norm(x)))


class Join(nn.Module):
    """Two branches, and the first one's beginning once more."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, text, image, skipped):
        return self.mix(torch.cat([text, image], dim=-1)) + 0.5 * skipped


def described() -> dict:
    from deepspeed.pipe import LayerSpec

    embed, block = LayerSpec(nn.Embedding, VOCABULARY, WIDTH), LayerSpec(Block)
    return {
        "text": (embed, "tokens"),
        "text1": (block, "text"),
        "text2": (block, "text1"),
        "image": (embed, "pixels"),
        "image1": (block, "image"),
        "join": (LayerSpec(Join), "text2", "image1", "text"),
        "after": (block, "join"),
        "head": (LayerSpec(nn.Linear, WIDTH, VOCABULARY), "after"),
    }


INPUTS = ("tokens", "pixels")
K_2 = [
    Stage("text", 0, 3, (0,)),
    Stage("image", 3, 5, (1,)),
    Stage("both", 5, 8, (0,), ("text", "image")),
]
K_4 = [
    Stage("text", 0, 2, (0,)),
    Stage("more", 2, 3, (1,), ("text",)),
    Stage("image", 3, 5, (2,)),
    Stage("both", 5, 7, (3,), ("more", "image", "text")),
    Stage("head", 7, 8, (0,), ("both",)),
]
# As Tessel draws it: the branches meet in a stage on all devices.
K_SHARDED_4 = [
    Stage("text", 0, 2, (0,)),
    Stage("more", 2, 3, (1,), ("text",)),
    Stage("image", 3, 4, (2,)),
    Stage("image1", 4, 5, (3,), ("image",)),
    Stage("both", 5, 7, (1,), ("more", "image1", "text")),
    Stage("head", 7, 8, (0, 1, 2, 3), ("both",)),
]
CHAIN_2 = [Stage("front", 0, 4, (1,)), Stage("back", 4, 8, (0,), ("front",))]


@dataclass(frozen=True)
class Options:
    """`section`: the "ostinato" section, or None for DeepSpeed alone."""

    stages: int = 2
    section: dict | None = None
    config: dict = field(default_factory=dict)
    optimizer: str = "SGD"
    steps: int = 10

    def configuration(self) -> dict:
        parameters = {"lr": 0.05} if self.optimizer == "SGD" else {"lr": 0.01, "torch_adam": True}
        made = {
            "train_micro_batch_size_per_gpu": BATCH,
            "gradient_accumulation_steps": MICRO_BATCHES,
            "steps_per_print": 10**9,
            "zero_allow_untested_optimizer": True,
            "optimizer": {"type": self.optimizer, "params": parameters},
            **self.config,
        }
        return made | ({"ostinato": self.section} if self.section is not None else {})


def loss(logits, targets):
    return nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1))


def batches(seed: int):
    generator = torch.Generator().manual_seed(seed)
    while True:
        tokens = torch.randint(VOCABULARY, (3, BATCH, LENGTH), generator=generator)
        yield (tokens[0], tokens[1]), (tokens[0] + tokens[1]) % VOCABULARY


def make_engine(options: Options):
    import deepspeed
    from deepspeed.pipe import PipelineModule

    torch.manual_seed(1000 + dist.get_rank())
    layers = graph(described(), INPUTS)
    model = PipelineModule(layers, num_stages=options.stages, loss_fn=loss, partition_method="uniform")
    parameters = list(model.parameters())
    return deepspeed.initialize(model=model, model_parameters=parameters, config=options.configuration())[0]


def train(options: Options) -> dict:
    engine = make_engine(options)
    data, held_out = batches(7), batches(99)
    before = engine.eval_batch(held_out).item()
    losses = [engine.train_batch(data).item() for _ in range(options.steps)]
    after = engine.eval_batch(held_out, num_micro_batches=3)
    parts = getattr(engine.module, "sharded_parameters", set)()
    weights = {} if parts else training.weights(engine)
    return {"losses": losses, "weights": weights, "evaluation": (before, after.item())}


def plan_of(folder, stages, split=False) -> dict:
    text = placement_text("k", stages, split)
    return {"plan": str(make_plan(folder, Layout("k", (), ()), 8, MICRO_BATCHES, "auto", text))}


ZERO_1 = {"zero_optimization": {"stage": 1}}
CASES = {
    "branches": (K_2, False, Options(steps=50)),
    "split-zero1": (K_2, True, Options(config=ZERO_1)),
    "chain": (CHAIN_2, False, Options(optimizer="Adam")),
}
CASES_4 = {
    "branches": (K_4, False, Options(stages=4)),
    "split-adam": (K_4, True, Options(stages=4, optimizer="Adam")),
}


@pytest.mark.parametrize("case", CASES)
def test_two_ranks(case, world2, tmp_path):
    compare(world2, *CASES[case], tmp_path)


@pytest.mark.parametrize("case", CASES_4)
def test_four_ranks(case, world4, tmp_path):
    compare(world4, *CASES_4[case], tmp_path)


def compare(world, stages, split, options, folder):
    """Equal from run to run; against the same layers in DeepSpeed's chain, where what a later layer reads rides along and each of
    several outputs has a backward of its own, but for the order of sums."""
    ours = replace(options, section=plan_of(folder, stages, split))
    expected, got, again = (world.run(train, o)[0] for o in (options, ours, ours))
    assert got["losses"] == again["losses"] and got["weights"] == again["weights"]
    assert got["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert got["losses"][-1] < got["losses"][0]
    assert got["evaluation"] == pytest.approx(expected["evaluation"], rel=1e-5)
    for name, value in expected["weights"].items():
        a, b = (torch.frombuffer(bytearray(v), dtype=torch.float32) for v in (got["weights"][name], value))
        assert torch.allclose(a, b, atol=1e-5 if options.optimizer == "SGD" else 1e-3), name


def test_branches_that_meet_in_a_stage_on_all_devices(world4, tmp_path):
    options = Options(stages=4)
    expected = world4.run(train, options)[0]
    ours = replace(options, section=plan_of(tmp_path, K_SHARDED_4))
    got, again = world4.run(train, ours), world4.run(train, ours)
    assert got[0]["losses"] == again[0]["losses"] == got[3]["losses"]
    assert got[0]["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert got[0]["evaluation"] == pytest.approx(expected["evaluation"], rel=1e-5)


def refusal(options: Options) -> str:
    try:
        make_engine(options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_edges_that_the_model_does_not_have(world2, tmp_path):
    wrong = [K_2[0], replace(K_2[1], inputs=("text",)), K_2[2]]
    for message in world2.run(refusal, Options(section=plan_of(tmp_path, wrong))):
        assert 'stage "image" takes the outputs of text, and its layers read those of no stage' in message, message


def test_a_plain_chain_has_no_branches(world2, tmp_path):
    section = plan_of(tmp_path, [replace(K_2[0], end=3), replace(K_2[1], end=5), K_2[2]])
    for message in world2.run(training.refusal, training.Options(stages=2, section=section)):
        assert 'stage "image" does not take the output of the stage before it alone' in message
        assert "ostinato.deepspeed.graph()" in message


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ({"a": (nn.Identity(), "b")}, 'layer "a" reads "b", which no input or earlier layer is called'),
        ({"x": (nn.Identity(), "x")}, 'the name "x" is taken by an input'),
        ({"a": (nn.Identity(), "x"), "b": (nn.Identity(), "x")}, 'nobody reads layer "a"'),
        ({"a": (nn.Identity(),)}, 'layer "a" reads nothing'),
    ],
)
def test_graphs_that_are_wrong(layers, words):
    with pytest.raises(OstinatoError, match=words):
        graph(layers, ("x",))
