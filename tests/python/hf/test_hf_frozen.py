# SPDX-License-Identifier: Apache-2.0
"""Frozen parts and adapters: trained as in one process, also where a rank has nothing to train, with which
DeepSpeed does not start."""

import pytest
import torch
from safetensors.torch import load_file
from support.hf_jobs import (
    MICRO_BATCHES,
    Job,
    backwards,
    first_step_refused,
    refused,
    resumed,
    train_alone,
    train_hf,
)
from support.hf_models import Case
from support.plans import Layout, make_plan
from support.tiers import everyday
from support.training import bytes_of

CASE = Case(inputs=("input_ids", "attention_mask"))  # front, 4 blocks, tail
ZERO_1, CLIPPED = {"zero_optimization": {"stage": 1}}, {"gradient_clipping": 0.05}
HALVES, SWAPPED = Layout("halves", (3,), (0, 1)), Layout("swapped", (3,), (1, 0))
WAVE, LOOPED = Layout("wave", (1, 3, 5), (0, 1, 1, 0)), Layout("looped", (1, 3, 4), (0, 1, 0, 1))
SPLIT = Layout("split", (3,), (0, 1), split=True, method="zb-h1")
BF16 = {"bf16": {"enabled": True}}


def planned(files, layout: Layout, change: str, timeout_s: int = 60, **more) -> Job:
    plan = make_plan(files, layout, 6, MICRO_BATCHES)
    return Job(CASE, {"plan": str(plan), "timeout_s": timeout_s}, change=change, **more)


LEARNING = [
    ("freeze_first_half", HALVES), ("freeze_first_half", SWAPPED), ("freeze_first_half", WAVE), ("freeze_first_half", SPLIT),
    ("freeze_second_half", HALVES), ("freeze_second_half", SWAPPED), ("adapt_second_half", HALVES), ("adapt", WAVE), ("adapt", LOOPED),
]  # fmt: skip
EVERY_DAY = [
    ("freeze_first_half", SPLIT),
    ("freeze_second_half", SWAPPED),
    ("adapt_second_half", HALVES),
    ("adapt", WAVE),
]


@pytest.mark.parametrize(
    ("change", "layout"), everyday(LEARNING, *EVERY_DAY), ids=lambda value: getattr(value, "name", value)
)
def test_what_learns_learns_as_in_one_process(change, layout, world2, tmp_path):
    alone = world2.run(train_alone, CASE, change)[0]
    ours = world2.run(train_hf, planned(tmp_path, layout, change))[0]
    assert ours["losses"] == alone["losses"] and alone["losses"][0] != alone["losses"][-1]
    assert [name for name, value in alone["weights"].items() if ours["weights"][name] != value] == []


@pytest.mark.parametrize("layout", everyday([WAVE, LOOPED, SPLIT], SPLIT), ids=lambda layout: layout.name)
def test_no_backward_runs_in_front_of_what_learns(layout, world2, tmp_path):
    """A stage that learns nothing behind another such: whoever comes first behind them takes no gradient of
    its inputs, either."""
    found = {
        layer: n
        for of_rank in world2.run(backwards, planned(tmp_path, layout, "freeze_first_half"))
        for layer, n in of_rank.items()
    }
    frozen = range(3)
    assert found == {layer: 0 if layer in frozen else MICRO_BATCHES for layer in range(6)}


@pytest.mark.parametrize(
    "config", everyday([ZERO_1, BF16, BF16 | ZERO_1], BF16 | ZERO_1), ids=["ZeRO-1", "bf16", "both"]
)
def test_ranks_with_nothing_to_train_do_not_stop_the_others(config, world2, tmp_path):
    """Whether rank 0 has nothing to train or both have something: the same numbers."""
    idle = world2.run(train_hf, planned(tmp_path / "halves", HALVES, "freeze_first_half", config=config))[0]
    busy = world2.run(train_hf, planned(tmp_path / "wave", WAVE, "freeze_first_half", config=config))[0]
    assert idle["losses"] == busy["losses"] and idle["weights"] == busy["weights"]


@pytest.mark.parametrize("layout", everyday([HALVES, SWAPPED], HALVES), ids=lambda layout: layout.name)
def test_gradients_are_clipped_where_the_first_rank_learns_nothing(layout, world2, tmp_path):
    """By the norm of what learns: DeepSpeed takes that of its first rank's layers, which is 0 here."""
    clipped = world2.run(train_hf, planned(tmp_path, layout, "freeze_first_half", config=CLIPPED))[0]
    alone = world2.run(train_alone, CASE, "freeze_first_half", CLIPPED["gradient_clipping"])[0]
    free = world2.run(train_alone, CASE, "freeze_first_half")[0]
    assert clipped["losses"] == pytest.approx(alone["losses"], rel=1e-6)
    assert abs(clipped["losses"][-1] - free["losses"][-1]) > 1e-5


@pytest.mark.parametrize("config", everyday([{}, BF16 | ZERO_1], BF16 | ZERO_1), ids=["fp32", "bf16, ZeRO-1"])
def test_a_rank_with_nothing_to_train_resumes(config, world2, tmp_path):
    job = planned(tmp_path / "plan", HALVES, "freeze_first_half", config=config)
    for expected, got in world2.run(resumed, job, str(tmp_path / "saved")):
        assert got == expected and got[0] != got[1]


def test_deepspeed_alone_trains_adapters_alike(world2, stock, tmp_path):
    theirs = stock(world2, Job(CASE, change="adapt"), train_hf)[0]
    ours = world2.run(train_hf, planned(tmp_path, WAVE, "adapt"))[0]
    assert ours["losses"] == theirs["losses"] and ours["weights"] == theirs["weights"]


def test_adapters_may_be_put_on_built_layers(world2, tmp_path):
    """They are drawn in the order of the rank's layers: as in 1F1B where these are the same."""
    theirs = world2.run(train_hf, Job(CASE, change="built_adapt"))[0]
    ours = world2.run(train_hf, planned(tmp_path / "halves", HALVES, "built_adapt"))[0]
    assert ours["losses"] == theirs["losses"] and ours["weights"] == theirs["weights"]
    elsewhere = world2.run(train_hf, planned(tmp_path / "wave", WAVE, "built_adapt"))[0]
    assert elsewhere["weights"].keys() == theirs["weights"].keys() and elsewhere["losses"] == pytest.approx(
        theirs["losses"], rel=0.1
    )


def test_re_entrant_checkpoints_that_would_leave_adapters_out_are_refused(world2, tmp_path):
    """Where DeepSpeed's own partition fails in its backward; a stage whose input comes from another rank
    learns."""
    alone = world2.run(train_alone, CASE, "adapt")[0]
    checkpointed = {"pipeline": {"activation_checkpoint_interval": 1}}
    said = world2.run(
        first_step_refused, planned(tmp_path / "halves", HALVES, "adapt", timeout_s=3, **checkpointed)
    )[0]
    assert "layers 1 to 1 are checkpointed" in said and '"use_reentrant": false' in said
    for name, layout, config in (
        ("wave", WAVE, {}),
        ("once", HALVES, {"pipeline": {"use_reentrant": False}}),
    ):
        ours = world2.run(train_hf, planned(tmp_path / name, layout, "adapt", config=config, **checkpointed))[
            0
        ]
        assert ours["losses"] == alone["losses"] and ours["weights"] == alone["weights"]


@pytest.mark.parametrize(
    "layout",
    [Layout("wave", (2, 4, 7), (0, 1, 1, 0)), Layout("halves", (4,), (0, 1))],
    ids=lambda layout: layout.name,
)
def test_a_frozen_embedding_is_shared_with_the_head(layout, world2, tmp_path):
    case = Case(tied=True, inputs=CASE.inputs)
    plan = make_plan(tmp_path, layout, 8, MICRO_BATCHES)
    alone = world2.run(train_alone, case, "adapt")[0]
    ours = world2.run(train_hf, Job(case, {"plan": str(plan)}, change="adapt"))[0]
    assert ours["losses"] == alone["losses"] and ours["weights"] == alone["weights"]


def test_adapters_on_layers_from_files(world2, tmp_path):
    """`change` is called where a layer is built, and the layer moves; what learns is saved by its name."""
    case = Case(tied=True, inputs=CASE.inputs)
    case.make().save_pretrained(tmp_path / "begin")
    plan = make_plan(tmp_path / "plan", Layout("wave", (2, 4, 7), (0, 1, 1, 0)), 8, MICRO_BATCHES)
    job = Job(
        case,
        {"plan": str(plan)},
        folder=str(tmp_path / "begin"),
        change="each_adapt",
        learned=str(tmp_path / "end"),
    )
    ours = world2.run(train_hf, job)[0]
    learned = load_file(tmp_path / "end" / "learned.safetensors")
    assert len(learned) == 8 and all(".q_proj." in name for name in learned)
    assert {name: bytes_of(value) for name, value in learned.items()} == {
        name: ours["weights"][name] for name in learned
    }
    frozen = case.make().state_dict()
    assert all(ours["weights"][n] == bytes_of(v) for n, v in frozen.items() if n in ours["weights"])


def test_auto_refuses_a_rank_with_nothing_to_train(world2):
    """And starts where each has something."""
    for said in world2.run(refused, Job(CASE, {"auto": True}, change="freeze_first_half")):
        assert (
            said.startswith("OstinatoError")
            and "rank 0 has no trainable parameters in DeepSpeed's partition" in said
        ), said
    assert world2.run(refused, Job(CASE, {"auto": True}, change="adapt")) == ["", ""]


def test_the_idle_parameter_changes_nothing_and_is_in_no_group_twice():
    from ostinato.deepspeed.stages.idle import NAME, give_idle, learn_nothing

    model, groups = torch.nn.Linear(2, 2).requires_grad_(False), [{"params": []}, {"params": []}]
    idle = give_idle(model, groups)
    learn_nothing(idle)
    torch.optim.AdamW([idle], 0.1).step()
    assert not idle.any() and groups[0]["params"] == [idle] and groups[1]["params"] == []
    assert dict(model.named_parameters())[NAME] is idle and give_idle(model, groups) is idle
    assert groups[0]["params"] == [idle]
    model.weight.requires_grad_()
    assert give_idle(model, groups) is None and not idle.requires_grad
