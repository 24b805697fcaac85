# SPDX-License-Identifier: Apache-2.0
"""Tied layers: their gradients are added as on DeepSpeed's own ranks, or it is said. Tied modules with parts that
are not tied, as word and position embeddings: they go where their layers go, or it is said, or refused."""

import io
from contextlib import redirect_stdout
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from ostinato import _search
from ostinato.deepspeed.equal.recorder import Recorder
from ostinato.deepspeed.equal.comparison import Comparison, compare
from ostinato.deepspeed.equal.records import Records
from ostinato.deepspeed.place.tied import beside, bound_layers, source_of, sums_of, together_now
from support import models, training
from support.plans import Layout, make_plan, placement_text
from support.tiers import everyday
from support.training import MICRO_BATCHES, Options, bytes_of, data_of, make_engine, trained_and_saved
from test_deepspeed_features import fp16_on_a_processor
from torch import nn

WIDTH, VOCABULARY, LENGTH, LAYERS = 8, 11, 5, 6
BASE = Options(model="positions", optimizer="SGD", steps=3)


class Embedding(nn.Module):
    """(rows, length) tokens -> (rows, length, width). Positions are not tied."""

    def __init__(self):
        super().__init__()
        self.words, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)

    @property
    def weight(self):
        return self.words.weight

    def forward(self, tokens):
        return self.words(tokens) + self.positions.weight


def logits(embedding, hidden):
    return hidden @ embedding.words.weight.t()


class Positions:
    @staticmethod
    def layers_of(_options) -> list:
        from deepspeed.pipe import LayerSpec, TiedLayerSpec

        blocks = [LayerSpec(nn.Linear, WIDTH, WIDTH) for _ in range(LAYERS - 2)]
        tied = {"tied_weight_attr": "weight"}
        return [
            TiedLayerSpec("embed", Embedding, **tied),
            *blocks,
            TiedLayerSpec("embed", Embedding, forward_fn=logits, **tied),
        ]

    @staticmethod
    def loss(made, labels):
        return nn.functional.cross_entropy(made.flatten(0, 1), labels.flatten())

    @staticmethod
    def micro_batches(seed: int):
        generator = torch.Generator().manual_seed(seed)
        while True:
            yield tuple(torch.randint(VOCABULARY, (2, LENGTH), generator=generator) for _ in range(2))


training.MODELS["positions"] = Positions()


def trained(options: Options) -> tuple:
    engine = make_engine(options)
    data = data_of(engine)
    losses, tied = [engine.train_batch(data).item() for _ in range(options.steps)], engine.module.tied_modules
    return losses, bytes_of(tied["embed"].words.weight) if "embed" in tied else b""


TURNED, LOOPED = ("turned", (3,), (1, 0)), ("looped", (1, 3, 4), (0, 1, 0, 1))


@pytest.mark.parametrize(("name", "cuts", "ranks"), everyday([TURNED, LOOPED], LOOPED))
def test_what_is_not_tied_goes_with_its_layer(world2, stock, tmp_path, name, cuts, ranks):
    plan = make_plan(tmp_path, Layout(name, cuts, ranks), LAYERS, MICRO_BATCHES)
    theirs = stock(world2, BASE, trained)
    ours = world2.run(trained, Options(**{**vars(BASE), "section": {"plan": str(plan)}}))
    assert [losses for losses, _ in ours] == [losses for losses, _ in theirs]
    assert {word for _, word in ours} == {word for _, word in theirs}


@pytest.mark.parametrize("config", [{}, {"gradient_clipping": 0.1}], ids=["", "clipped"])
@pytest.mark.parametrize(("name", "cuts", "ranks"), everyday([TURNED, LOOPED], TURNED))
def test_what_is_not_tied_is_compared_and_counted_by_layer(
    world2, stock, tmp_path, name, cuts, ranks, config
):
    """Not by rank: in the norm DeepSpeed counts the first rank's, which is the first layer's."""
    options = replace(BASE, config=config)
    comparison, _ = told(world2, stock, tmp_path, Layout(name, cuts, ranks), options, layers=LAYERS)
    assert comparison.equal, comparison.sentence()


@pytest.mark.parametrize("ranks", [(0, 1, 1, 0), (1, 0, 0, 1)])
def test_both_on_one_rank_train_alike(world2, stock, tmp_path, ranks):
    """Also on the rank of the last one, which has a module already."""
    plan = make_plan(tmp_path, Layout("wave", (1, 3, 4), ranks), LAYERS, MICRO_BATCHES)
    theirs = stock(world2, BASE, trained)
    ours = world2.run(trained, Options(**{**vars(BASE), "section": {"plan": str(plan)}}))
    assert [losses for losses, _ in ours] == [losses for losses, _ in theirs]
    assert {word for _, word in ours if word} == {word for _, word in theirs}


def test_what_tied_layers_share_on_one_rank_is_a_condition(world2, stock, tmp_path):
    """Positions, which the head does not use."""
    layout = Layout("wave", (1, 3, 4), (0, 1, 1, 0))
    comparison, said = told(world2, stock, tmp_path, layout, BASE, layers=LAYERS)
    assert comparison.equal and "bit for bit, unless several tied layers use" in said, said


def again(embed, hidden):
    """A third use of the table."""
    return hidden + models.unembed(embed, hidden) @ embed.weight


class Thrice:
    """models, whose embedding is used in the middle, too: by layer 2 of 8."""

    loss, micro_batches = staticmethod(models.loss), staticmethod(models.micro_batches)

    @staticmethod
    def layers_of(_options) -> list:
        from deepspeed.pipe import LayerSpec, TiedLayerSpec

        first, *_, last = models.layers(tied=True, in_place=False)
        blocks = [LayerSpec(models.Block) for _ in range(5)]
        return [first, blocks[0], TiedLayerSpec("embed", models.Embed, forward_fn=again), *blocks[1:], last]


training.MODELS["thrice"] = Thrice

SPLIT, WAVE = Layout("split", (1, 4, 6), (0, 1, 1, 0), split=True), Layout("wave", (1, 4, 6), (1, 0, 0, 1))
TIED, ZERO_1, BF16 = Options(tied=True, steps=3), {"zero_optimization": {"stage": 1}}, {"enabled": True}
FP16 = {"enabled": True, "initial_scale_power": 16, "hysteresis": 1}  # the first step is skipped
KINDS = {
    "fp32": {},
    "clipped": {"gradient_clipping": 0.1},
    "zero1": ZERO_1,
    "zero1, overlapping": {"zero_optimization": {"stage": 1, "overlap_comm": True}},
    "fp16": {"fp16": FP16},
    "fp16-zero1": {"fp16": FP16} | ZERO_1,
    "bf16": {"bf16": BF16},
    "bf16-zero1": {"bf16": BF16} | ZERO_1,
    "bf16, sums in hooks": {"bf16": BF16 | {"immediate_grad_update": True}} | ZERO_1,
    "bf16, sums in bf16": {"bf16": BF16, "data_types": {"grad_accum_dtype": "bf16"}} | ZERO_1,
}
BIT_FOR_BIT, ADDED_OTHERWISE = "bit for bit", "layers tied as embed are added in a different order"
ADDED_APART = {kind: (WAVE, replace(TIED, config=config)) for kind, config in KINDS.items()} | {
    "split, fp16-zero1": (SPLIT, replace(TIED, config=KINDS["fp16-zero1"])),
    "split, bf16-zero1": (SPLIT, replace(TIED, config=KINDS["bf16-zero1"])),
    "the script's optimizer": (WAVE, replace(TIED, own_optimizer=True)),
    "checkpointed": (WAVE, replace(TIED, checkpoint_interval=1, checkpointable=("Block",))),
    "one rank's uses in one stage": (Layout("three", (4, 6), (0, 1, 0)), replace(TIED, model="thrice")),
}


def recorded(options: Options) -> tuple[str, list[str]]:
    """What each step computed, gradients too, and which losses rank 0 expects."""
    printed = io.StringIO()
    with redirect_stdout(printed), fp16_on_a_processor():
        engine = make_engine(options)
        recorder, data = Recorder(engine, options.steps), data_of(engine)
        for _ in range(options.steps):
            engine.train_batch(data)
        records = recorder.all().to_text()
    return records, [line for line in printed.getvalue().splitlines() if "ostinato: expected:" in line]


def told(
    world, stock, folder, layout: Layout, options: Options, text: str = "", layers: int = models.LAYERS
) -> tuple[Comparison, str]:
    section = {"plan": str(make_plan(folder, layout, layers, MICRO_BATCHES, text=text))}
    theirs = stock(world, options, recorded)[0][0]
    ours, said = world.run(recorded, replace(options, section=section))[0]
    return compare(Records.from_text(theirs), Records.from_text(ours)), said[0]


@pytest.mark.parametrize(
    "case",
    everyday(
        ADDED_APART,
        "fp32",
        "fp16",
        "split, fp16-zero1",
        "bf16, sums in hooks",
        "one rank's uses in one stage",
    ),
)
def test_both_uses_on_one_rank_are_added_as_on_two(case, world2, stock, tmp_path):
    comparison, said = told(world2, stock, tmp_path, *ADDED_APART[case])
    assert comparison.equal and not comparison.unseen, comparison.sentence()
    assert said.endswith(BIT_FOR_BIT)


def test_where_their_stages_recompute(world2, stock, tmp_path):
    text = placement_text(WAVE, models.LAYERS).replace("layers = [", "recompute = true\nlayers = [")
    comparison, said = told(world2, stock, tmp_path, WAVE, TIED, text)
    assert comparison.equal and said.endswith(BIT_FOR_BIT), comparison.sentence()


@pytest.mark.parametrize("kind", everyday(["fp32", "zero1", "bf16-zero1"], "bf16-zero1"))
def test_with_replicas(kind, world4, stock, tmp_path):
    comparison, said = told(world4, stock, tmp_path, SPLIT, replace(TIED, config=KINDS[kind]))
    assert comparison.equal and said.endswith(BIT_FOR_BIT), comparison.sentence()


def test_uses_of_one_rank_in_two_stages_round(world2, stock, tmp_path):
    comparison, said = told(world2, stock, tmp_path, WAVE, replace(TIED, model="thrice"))
    assert comparison.within_rounding and not comparison.equal, comparison.sentence()
    first = "first in step 1, gradient of layer 0 (tied_modules.embed.weight) by "
    assert f"equal DeepSpeed's 1F1B up to rounding: {first}" in comparison.sentence()
    assert said.endswith(ADDED_OTHERWISE)


def test_gradients_that_deepspeed_does_not_add_are_not_called_equal(world2, tmp_path):
    """Sums in a different type than the weights under ZeRO-1: its all-reduce over tied layers finds no gradient."""
    config = {"fp16": FP16, "data_types": {"grad_accum_dtype": "fp32"}} | ZERO_1
    section = {"plan": str(make_plan(tmp_path, WAVE, models.LAYERS, MICRO_BATCHES))}
    _, said = world2.run(recorded, replace(TIED, config=config, steps=1, section=section))[0]
    assert said[0].endswith(ADDED_OTHERWISE)


def test_which_gradients_are_added_up_apart():
    """DeepSpeed's partition: layers 0 and 1, 2 and 3, ... a rank. `stages`: the rank of each; `uses`: their stages."""

    def sums(uses: dict[int, int], *ranks: int) -> tuple:
        stages = [SimpleNamespace(index=index, rank=rank) for index, rank in enumerate(ranks)]
        spec, bounds = SimpleNamespace(key="table", tied_weight_attr="weight"), [0, 2, 4, 6]
        specs = [spec if layer in uses else object() for layer in range(6)]
        model = SimpleNamespace(partitions=lambda: bounds, _layer_specs=specs)
        return sums_of(model, [stages[uses.get(layer, 0)] for layer in range(6)])

    assert sums({0: 0, 5: 1}, 0, 2) == sums({0: 0, 5: 1}, 1, 0) == ([], {})
    assert sums({0: 0, 5: 1}, 1, 1) == ([], {1: ["table"]})
    assert sums({0: 0, 1: 0, 5: 1}, 1, 1) == ([], {1: ["table"]})
    # One rank's, divided.
    assert sums({0: 0, 1: 1, 5: 2}, 1, 1, 1) == sums({0: 0, 1: 1}, 0, 0) == (["table"], {})
    assert sums({0: 0, 5: 0}, 0) == (["table"], {})  # of two ranks, in one stage
    assert sums({0: 0, 2: 1, 5: 2}, 0, 1, 2) == ([], {})
    for ranks in ((1, 0, 2), (0, 1, 0), (0, 0, 0)):  # an all-reduce of three adds in the order of the ranks
        assert sums({0: 0, 2: 1, 5: 2}, *ranks) == (["table"], {})


class Head(Embedding):
    """ChatGLM-Finetuning: the head is another class, under the same key."""

    def forward(self, hidden):
        return logits(self, hidden)


class Terminal(Embedding):
    """gdGPT: the head is the same class, told apart by an argument."""

    def __init__(self, is_first: bool):
        super().__init__()
        self.is_first = is_first

    def forward(self, given):
        return super().forward(given) if self.is_first else logits(self, given)


class TwoModules(Positions):
    @staticmethod
    def layers_of(options) -> list:
        from deepspeed.pipe import TiedLayerSpec

        def tied(kind: type, *given):
            return TiedLayerSpec("embed", kind, *given, tied_weight_attr="weight")

        blocks = Positions.layers_of(options)[1:-1]
        if options.change == "argument":
            return [tied(Terminal, True), *blocks, tied(Terminal, False)]
        return [tied(Embedding), *blocks, tied(Head)]


training.MODELS["two modules"] = TwoModules()


def refused(options: Options) -> str:
    return training.refusal(options)


@pytest.mark.parametrize("change", everyday(["class", "argument"], "argument"))
def test_two_modules_under_one_key_stay_on_their_ranks(world2, stock, tmp_path, change):
    """On one rank they would be one module. A plan that moves either is refused."""
    options = replace(BASE, model="two modules", change=change)
    looped, wave = (
        str(make_plan(tmp_path / name, Layout(name, (1, 3, 4), ranks), LAYERS, MICRO_BATCHES))
        for name, ranks in (("looped", (0, 1, 0, 1)), ("wave", (0, 1, 1, 0)))
    )
    theirs = stock(world2, options, trained)
    ours = world2.run(trained, replace(options, section={"plan": looped}))
    assert [losses for losses, _ in ours] == [losses for losses, _ in theirs]
    for said in world2.run(refused, replace(options, section={"plan": wave})):
        assert (
            'the placement has layer 5 on a device other than 1 (tied as "embed", but layers 0 and 5' in said
        )
        assert "have different classes or arguments, and on one rank would be one module" in said


def averages(engine) -> bytes:
    """Adam's, of the positions: zeros on the last rank, which runs no forward() of the module."""
    state = engine.optimizer.state[engine.module.tied_modules["embed"].positions.weight]
    return bytes_of(state["exp_avg"])


def save(options: Options, folder: str) -> bytes:
    return averages(trained_and_saved(options, folder, 2)[0])


def load(options: Options, folder: str) -> bytes:
    engine = make_engine(options)
    engine.load_checkpoint(folder)
    return averages(engine)


def test_a_plan_reads_the_optimizer_state_of_each_ranks_part_that_is_not_tied(world2, tmp_path):
    alone = replace(BASE, optimizer="Adam")
    saved = world2.run(save, alone, str(tmp_path / "saved"))
    assert saved[0] != saved[1]
    plan = make_plan(tmp_path, Layout(*LOOPED), LAYERS, MICRO_BATCHES)
    assert world2.run(load, replace(alone, section={"plan": str(plan)}), str(tmp_path / "saved")) == saved


def test_of_whom_a_rank_takes_its_module():
    names, before = ["t", None, None, "t"], [0, 0, 1, 1]
    assert (
        source_of(names, before, [(1,), (0,), (0,), (0,)], "t", 1) == 0
        and source_of(names, before, [(1,), (0,), (0,), (0,)], "t", 0) == 1
    )
    assert (
        source_of(names, before, [(0,), (1,), (1,), (0,)], "t", 0)
        == source_of(names, before, [(1,), (0,), (0,), (1,)], "t", 1)
        == 0
    )  # the first


def test_layers_of_one_module_stay_together_where_not_all_of_it_is_tied():
    from deepspeed.pipe import LayerSpec, TiedLayerSpec

    spec = TiedLayerSpec("embed", Embedding, tied_weight_attr="weight")
    assert beside(spec, Embedding()) == ["positions.weight"]
    module, units = Embedding(), {"1": nn.Linear(1, 1)}
    specs = [spec, LayerSpec(nn.Linear, 1, 1), spec, spec]
    model = SimpleNamespace(
        partitions=lambda: [0, 3, 4],
        stage_id=0,
        _layer_specs=specs,
        get_submodule=lambda unit: units.get(unit, module),
    )
    (bound,) = bound_layers(model)
    assert bound.layers == (0, 2) and bound.device == -1 and '"positions.weight" is not tied' in bound.reason
    assert (
        "layers 0, 2 on different devices"
        in _search.broken([bound.row], [([0, 1], [0]), ([2, 3], [1])], 2, False)[0]
    )
    assert not _search.broken([bound.row], [([0], [1]), ([1], [0]), ([2], [1]), ([3], [0])], 2, False)[0]
    specs[3], specs[1] = units["1"], units["1"]  # on both ranks
    assert [(one.layers, one.device) for one in bound_layers(model)] == [((0, 2), -1), ((1,), 0)]
    specs[1], specs[3] = LayerSpec(nn.Linear, 1, 1), spec
    units["1"].weight = module.words.weight
    assert [(one.layers, one.device) for one in bound_layers(model)] == [((0, 2), -1), ((0, 1, 2), 0)]
    assert not together_now([0, 3], [0, 0, 1, 1], [(1,), (0,), (0,), (0,)], "positions.weight")
    (said,) = together_now([0, 3], [0, 0, 1, 1], [(0,), (1,), (1,), (0,)], "positions.weight")
    assert "tied layers 0, 3 share the module of layer 0" in said
