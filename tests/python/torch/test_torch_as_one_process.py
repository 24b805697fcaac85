# SPDX-License-Identifier: Apache-2.0
"""ostinato.torch.Pipeline beside plain torch on one process, where a rank by itself does not see the whole
model."""

import pytest
from support import one_process
from support.one_process import LAYERS, MICRO_BATCHES
from support.plans import Layout, make_plan, placement_text
from support.tiers import everyday

from ostinato.torch import layers

LAYOUTS = {
    "whole": Layout("whole", (4,), (0, 1)),
    "split": Layout("split", (4,), (0, 1), split=True),
    "looped": Layout("looped", (2, 4, 6), (0, 1, 0, 1), split=True),
    "wave": Layout("wave", (1, 4, 6), (0, 1, 1, 0)),  # embedding and head on one rank
}
SHARDED = Layout("sharded", (1, 3, 6), ((0, 1), 0, 1, (0, 1)))


def plan_of(folder, layout: str | Layout) -> str:
    layout = LAYOUTS[layout] if isinstance(layout, str) else layout
    return str(make_plan(folder, layout, LAYERS, MICRO_BATCHES))


def check(reports) -> None:
    losses = [pair for report in reports for pair in report.losses]
    assert losses
    for mine, one in losses:
        assert mine == pytest.approx(one, rel=1e-5)
    assert [report.worst for report in reports] == pytest.approx([0, 0], abs=1e-4)
    assert [report.without for report in reports] == [0, 0]


@pytest.mark.parametrize("layout", everyday(LAYOUTS, "looped", "wave"))
@pytest.mark.parametrize("kind", ["tied", "twice", "tied_frozen", "tied_memory_frozen", "tied_sparse"])
def test_weights_in_common(world2, tmp_path, kind, layout):
    check(world2.run(one_process.train, plan_of(tmp_path, layout), kind))


def test_moving_takes_parameters_in_one_memory_apart():
    chain = layers(one_process.made("tied_memory"))
    assert [list(tie) for tie in chain.ties("cpu")] == [[0, LAYERS - 1]] and not chain.ties("meta")


@pytest.mark.parametrize("kind", ["tied_memory", "tied_unregistered"])
def test_weights_in_common_that_ranks_cannot_see_are_on_one(world2, tmp_path, kind):
    check(world2.run(one_process.train, plan_of(tmp_path, "wave"), kind))


def test_weights_in_common_accumulate(world2, tmp_path):
    check(world2.run(one_process.train, plan_of(tmp_path, "whole"), "tied", "", 3, 2))


def test_weights_in_common_accumulate_on_torchs_runtime(world2, tmp_path):
    """Where embedding and head are stages of one rank."""
    assert max(world2.run(one_process.accumulate_on_torch, plan_of(tmp_path, "wave"), "tied")) < 1e-6


@pytest.mark.parametrize("kind", ["frozen_start", "handed_weight", "views"])
def test_split_backwards_on_torchs_runtime(world2, tmp_path, kind):
    """torch leaves out weights that no input leads to, and cannot detach views in place."""
    assert max(world2.run(one_process.accumulate_on_torch, plan_of(tmp_path, "looped"), kind)) < 1e-6


@pytest.mark.parametrize("layout", ["split", "looped"])
def test_a_split_backward_calls_hooks_of_outputs_once(world2, tmp_path, layout):
    check(world2.run(one_process.train, plan_of(tmp_path, layout), "hooked"))


def test_a_loss_that_trains_is_where_it_is_computed(world2, tmp_path):
    """With a weight that it shares with a layer of another rank."""
    (first, nowhere, _), (last, there, _) = world2.run(one_process.train_a_loss, plan_of(tmp_path, "split"))
    assert max(first, last) < 1e-6
    assert (nowhere, there) == ([], ["loss_fn.weight", "loss_fn.scale"])


def test_a_function_that_changes_what_it_saved_runs_once_in_a_split_backward(world2, tmp_path):
    """It leads to inputs and to weights, so both halves need it."""
    plan = plan_of(tmp_path, "split")
    (first, _, _), (last, _, ran) = world2.run(one_process.train_a_loss, plan, one_process.FusedScored)
    assert max(first, last) < 1e-6
    assert ran == MICRO_BATCHES


def test_a_loss_that_closes_over_a_weight_of_its_rank(tmp_path):
    plan = plan_of(tmp_path, Layout("one", (4,), (0, 0), split=True))
    assert one_process.difference_with_a_closure(plan) < 1e-6


def test_a_plan_of_forwards_takes_a_loss_that_trains(world2, tmp_path):
    text = placement_text(LAYOUTS["whole"], LAYERS, trains=False)
    plan = make_plan(tmp_path, LAYOUTS["whole"], LAYERS, MICRO_BATCHES, text=text)
    assert world2.run(one_process.forwards_with_a_loss, str(plan)) == [True, True]


def test_weights_in_common_under_fully_shard(world4, tmp_path):
    plan = plan_of(tmp_path, "split")
    assert max(world4.run(one_process.train_tied_shards, plan, "01")) < 1e-6
    for said in world4.run(one_process.train_tied_shards, plan, "0"):
        assert "hold different parts of it: apply fully_shard()" in said


def test_weights_in_common_that_loading_has_replaced(world2, tmp_path):
    assert max(world2.run(one_process.loaded_by_assignment, plan_of(tmp_path, "whole"))) < 1e-6


def test_shapes_that_torchs_runtime_learns_write_to_no_buffer(world2, tmp_path):
    assert world2.run(one_process.unlike_buffers, plan_of(tmp_path, "looped")) == [[], []]


def test_a_split_backward_runs_checkpointed_layers_again_once(world2, tmp_path):
    forwards = world2.run(one_process.forwards_of_checkpointed, plan_of(tmp_path, "split"))
    assert forwards == [{2 * MICRO_BATCHES}] * 2


def test_autocast_around_a_step_is_for_its_forwards(world2, tmp_path):
    found = world2.run(one_process.under_autocast, plan_of(tmp_path, "split"))
    assert found == [{"forwards": {True}, "backwards": {False}, "after": {True}}] * 2


@pytest.mark.parametrize("layout", everyday(LAYOUTS, "split"))
@pytest.mark.parametrize("outside", ["inputs", "listed", "targets"])
def test_what_a_trained_module_outside_makes(world2, tmp_path, outside, layout):
    check(world2.run(one_process.train, plan_of(tmp_path, layout), "linears", outside))


@pytest.mark.parametrize("layout", everyday(LAYOUTS, "looped"))
def test_layers_that_hand_on_tuples(world2, tmp_path, layout):
    check(world2.run(one_process.train, plan_of(tmp_path, layout), "pairs"))


REFUSED = {  # by how it is used: the chain, whether each rank says it, words
    "no_grad": ("linears", True, ["PipelineError: step() computes gradients", "torch.no_grad()"]),
    "no targets": ("linears", False, ["PipelineError: loss_fn(outputs, None) raises", "got no targets"]),
    "closure": (
        "tied",
        False,
        ["PipelineError: loss_fn computes with a weight of shape (12, 8)", "on rank 1", "torch.nn.Module"],
    ),
    "unregistered": (
        "tied_unregistered",
        False,
        [
            'PipelineError: stage "s1" computes with a weight of shape (12, 8), layer 0 (weight),',
            "register it in",
        ],
    ),
    "one memory": (
        "tied_memory",
        True,
        ["PipelineError: layer 0 (weight) and layer 7 (weight) are different parameters in the same memory"],
    ),
    "two losses": ("linears", False, ["PipelineError: loss_fn returns a tuple", "the mean loss"]),
    "in place": (
        "in_place",
        False,
        ['PipelineError: stage "s1" changes its input in place', "inplace=False"],
    ),
    "a list": ("lists", False, ["ValueError: a Listing, the last", "a list of 1", "return a tensor"]),
    "frozen": ("frozen", False, ["PipelineError: loss_fn returns a loss that has no gradient"]),
    "unfrozen between": ("linears", False, ["Pipeline.reset_shapes()", "unfrozen since"]),
    "seen by one": (
        "tied",
        True,
        ["PipelineError: ranks [1] see different shared weights", "none", "layer 0 (weight)"],
    ),
    "torch": (
        "tied",
        True,
        ["PipelineError: torch.distributed.pipelining", "layer 0 (weight) and layer 7 (weight)"],
    ),
}


@pytest.mark.parametrize("how", REFUSED)
def test_wrong_use_is_named(world2, tmp_path, how):
    kind, everywhere, words = REFUSED[how]
    said = world2.run(one_process.refusals, plan_of(tmp_path, "whole"), kind, how)
    if everywhere:
        assert all(word in one for one in said for word in words), said
    else:
        assert any(all(word in one for word in words) for one in said), said


def test_a_shared_weight_in_a_stage_that_ranks_share_is_named(world2, tmp_path):
    for said in world2.run(one_process.refusals, plan_of(tmp_path, SHARDED), "tied"):
        assert said.startswith("PipelineError: layer 0 (weight) and layer 7 (weight) share a weight"), said


@pytest.mark.parametrize("layout", everyday(["whole", "split"], "split"))
def test_a_graph_that_micro_batches_share_is_not_run_in_parts(world2, tmp_path, layout):
    """As torch says of it; a split backward took it apart, and lost its gradients but the first."""
    said = world2.run(one_process.refusals, plan_of(tmp_path, layout), "cached")
    assert said[0].startswith("RuntimeError: Trying to backward through the graph a second time"), said
