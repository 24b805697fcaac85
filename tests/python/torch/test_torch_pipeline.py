# SPDX-License-Identifier: Apache-2.0
"""ostinato.torch: plans without DeepSpeed, against the same model on one process."""

import copy
import functools
import gc
import pickle
import warnings
import weakref
from contextlib import nullcontext
from typing import NamedTuple

import ostinato
import pytest
import torch
from support import serving_jobs, torch_jobs
from support.linked import Made
from support.plans import Layout, make_plan, placement_text
from support.tiers import everyday
from support.torch_jobs import MICRO_BATCHES, Case, check_gradients
from support.worlds import World
from ostinato.groups import later_than, timeout_of
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from ostinato.torch import Pipeline, PipelineError
from ostinato.torch.checks import check_copies, lowered
from ostinato.torch.draws import Draws, described
from ostinato.torch.stages import InARow

LAYERS = 8
ALL = (0, 1)
CHAINS = {
    "stock": Layout("stock", (4,), (0, 1)),
    "looped": Layout("looped", (2, 4, 6), (0, 1, 0, 1)),
    "wave": Layout("wave", (1, 4, 6), (0, 1, 1, 0)),
}
SHARDED = Layout("m", (1, 3, 6), (ALL, 0, 1, ALL))
BRANCHES = """
format = "ostinato-placement/1"
name = "k"
[[devices]]
name = "d0"
[[devices]]
name = "d1"
"""
BLOCKS = [  # name, kind, device, after
    ("left.F", "forward", 0, []),
    ("right.F", "forward", 1, []),
    ("join.F", "forward", 1, ["left.F", "right.F"]),
    ("join.B", "backward", 1, ["join.F"]),
    ("left.B", "backward", 0, ["left.F", "join.B"]),
    ("right.B", "backward", 1, ["right.F", "join.B"]),
]


def branches(trains: bool) -> str:
    text = BRANCHES
    for name, kind, device, after in BLOCKS:
        if trains or kind == "forward":
            text += f'[[blocks]]\nname = "{name}"\nstage = "{name[:-2]}"\nkind = "{kind}"\ndevices = [{device}]\ntime = 10\n'
            text += f"memory = 0\nafter = {after}\n".replace("'", '"')
    return text


def plan_of(folder, layout=CHAINS["stock"], text="", **options) -> str:
    return str(make_plan(folder, layout, LAYERS, MICRO_BATCHES, text=text, **options))


def check_losses(results, expected, exact: bool) -> None:
    losses = [result["losses"] for result in results if result["losses"][0] is not None]
    assert losses
    for mine in losses:
        assert mine == pytest.approx(expected["losses"], rel=1e-6 if not exact else 1e-7)


@pytest.mark.parametrize("layout", everyday(CHAINS, "wave"))
def test_chains_equal_one_process_bit_for_bit(world2, tmp_path, layout):
    case = Case(plan_of(tmp_path, CHAINS[layout]))
    expected, results = torch_jobs.alone(case), world2.run(torch_jobs.train, case)
    check_losses(results, expected, exact=True)
    check_gradients(results, expected, torch.equal)
    assert any(text.endswith("SEND_F0") for text, _, _ in results[0]["ran"])


def test_stages_that_recompute(world2, tmp_path):
    text = placement_text(CHAINS["wave"], LAYERS).replace(
        "layers = [1, 4]\n", "layers = [1, 4]\nrecompute = true\n"
    )
    case = Case(plan_of(tmp_path, text=text))
    assert "recompute" in text
    expected, results = torch_jobs.alone(case), world2.run(torch_jobs.train, case)
    check_losses(results, expected, exact=True)
    check_gradients(results, expected, torch.equal)


def test_sharded_stages(world2, tmp_path):
    case = Case(plan_of(tmp_path, SHARDED))
    expected, results = torch_jobs.alone(case), world2.run(torch_jobs.train, case)
    check_losses(results, expected, exact=False)
    check_gradients(results, expected, lambda a, b: torch.allclose(a, b, rtol=1e-4, atol=1e-6))


@pytest.mark.parametrize("naming", [nullcontext, torch_jobs.named_as_in_2_14])
def test_ranks_that_were_in_different_numbers_of_groups(world4, tmp_path, naming):
    """torch names a group that some of the ranks make alone by that number, or by how many they made, and
    splits the communicator of a world that is bound to GPUs for each, which hangs without the other ranks:
    ostinato.groups."""
    case = Case(plan_of(tmp_path, SHARDED), steps=1)
    expected, results = torch_jobs.alone(case), world4.run(torch_jobs.train_in_half_a_world, case, naming)
    for half in (results[:2], results[2:]):
        check_losses(half, expected, exact=False)
        check_gradients(half, expected, lambda a, b: torch.allclose(a, b, rtol=1e-4, atol=1e-6))
    for rank, result in enumerate(results):
        ranks = [0, 1] if rank < 2 else [2, 3]
        # The pipeline's, of each direction, and of the sharded stages. Ranks give up before torch would.
        assert result["made"] == [
            Made(tuple(ranks), one_way, bound=False, limit_s=later_than(timeout_of()).total_seconds())
            for one_way in (False, True, True, False)
        ]
        assert result["links"] == {1 - rank % 2: [ranks, ranks]}


def test_branches_that_meet(world2, tmp_path):
    case = Case(plan_of(tmp_path, text=branches(trains=True)), branches=True)
    expected, results = torch_jobs.alone(case), world2.run(torch_jobs.train, case)
    check_losses(results, expected, exact=True)
    check_gradients(results, expected, torch.equal)


@pytest.mark.parametrize("layout", everyday(CHAINS, "looped"))
def test_torch_runs_the_same_plan(world2, tmp_path, layout):
    case = Case(plan_of(tmp_path, CHAINS[layout]))
    expected, results = torch_jobs.alone(case), world2.run(torch_jobs.train_on_torch, case)
    check_losses(results, expected, exact=False)
    bounds = [0, *CHAINS[layout].cuts]
    for step, of_model in enumerate(expected["gradients"]):
        for key, gradient in (item for result in results for item in result["gradients"][step].items()):
            stage, _, name = key.partition("/")
            layer, _, rest = name.partition(".")
            assert torch.allclose(
                gradient, of_model[f"chain.{bounds[int(stage)] + int(layer)}.{rest}"], atol=1e-7
            ), key


@pytest.mark.parametrize("trains", [False, True], ids=["forwards", "of_a_plan_that_trains"])
@pytest.mark.parametrize("kind", ["wave", "sharded", "branches"])
def test_inference(world2, tmp_path, kind, trains):
    """Several requests in flight, call after call; the results are those of one process, in order."""
    layout = SHARDED if kind == "sharded" else CHAINS["wave"]
    text = branches(trains) if kind == "branches" else placement_text(layout, LAYERS, trains=trains)
    case = Case(plan_of(tmp_path, text=text), branches=kind == "branches")
    expected = torch_jobs.alone(case, trains=False)["outputs"]
    answered = [results for results in world2.run(serving_jobs.infer, case) if results[0] is not None]
    assert answered
    for results in answered:
        for step, of_step in enumerate(results):
            for mine, theirs in zip(of_step, expected[step], strict=True):
                assert (
                    torch.allclose(mine, theirs, atol=1e-6)
                    if kind == "sharded"
                    else torch.equal(mine, theirs)
                )


def refused(world, words, *args):
    for message in world.run(torch_jobs.refusal, *args):
        assert all(word in message for word in words), message or "nothing was raised"


@pytest.mark.parametrize("seeded", [False, True])
def test_ranks_of_a_sharded_stage_that_draw_different_numbers_are_named(world2, tmp_path, seeded):
    said = world2.run(torch_jobs.refusal_of_draws, Case(plan_of(tmp_path, SHARDED)), seeded)
    for message in said:
        assert message.startswith("" if seeded else "PipelineError: stage "), message
        assert bool(message) != seeded and ("is sharded, and draws different" in message) != seeded


UNLIKE = ["inputs", "targets", "keywords", "a number", "shape"]


@pytest.mark.parametrize("what", [*UNLIKE, "", "a fraction", "order"])
def test_ranks_of_a_sharded_stage_that_are_given_different_data_are_named(world2, tmp_path, what):
    """Not where each draws them, once its pipeline is made: parts of unequal size leave the generators alike. Nor
    where fractions differ, which each may have computed."""
    for message in world2.run(torch_jobs.refusal_of_data, Case(plan_of(tmp_path, SHARDED)), what):
        stage = "s3" if what == "targets" else "s0"
        said = (
            f'PipelineError: stage "{stage}" is sharded, and its ranks were given different inputs, targets'
        )
        assert message.startswith(said) if what in UNLIKE else not message, message


def test_data_are_compared_by_what_they_hold():
    """Of labels that are a column, also where a micro-batch is one sample, and of ones that are repeated."""
    tokens = torch.arange(12).reshape(4, 3)
    for label in (tokens[:, -1], tokens[1:2, -1], tokens[1, :1].expand(4), tokens.t() > 3, tokens[0, 0]):
        assert described([~label]) != described([label]) == described([label.clone().contiguous()])
    noted = [Draws(torch.device("cpu")) for _ in range(2)]
    for micro_batch in range(256):
        for draws, last in zip(noted, (0, 1), strict=True):
            with draws.noted(0, micro_batch, last if micro_batch == 255 else 0):
                torch.rand(1)
    first, other = (draws.text() for draws in noted)
    assert first != other and len(first) < 200


@pytest.mark.parametrize("how", ["Pipeline", "schedule"])
def test_a_chain_of_another_length_is_refused_on_every_rank(world2, tmp_path, how):
    case, layers = Case(plan_of(tmp_path)), torch_jobs.chain()
    for given in (layers[:-1], [*layers, torch.nn.Tanh()]):
        for message in world2.run(torch_jobs.refusal_of_chain, case, given, how):
            assert f"hold 8 layers, but the chain has {len(given)}" in message, (
                message or "nothing was raised"
            )


def test_layers_that_are_no_modules_and_time_outs_that_are_no_time(world2, tmp_path):
    case, layers = Case(plan_of(tmp_path)), torch_jobs.chain()
    said = world2.run(torch_jobs.refusal_of_chain, case, [*layers[:-1], torch.tanh], "Pipeline")
    assert all("layer 7 of the chain is a builtin_function_or_method" in message for message in said), said
    for seconds in (0, -1.0, "5"):
        job = functools.partial(torch_jobs.refusal_of_chain, timeout_s=seconds)
        for message in world2.run(job, case, layers, "Pipeline"):
            assert f"timeout_s is {seconds!r}: expected a number of seconds above 0" in message, message


@pytest.mark.parametrize("how", ["Pipeline", "schedule"])
def test_a_device_that_no_backend_serves_is_named(world2, tmp_path, how):
    job = functools.partial(torch_jobs.refusal_of_chain, device="meta")
    for message in world2.run(job, Case(plan_of(tmp_path)), torch_jobs.chain(), how):
        assert message.startswith(
            'PipelineError: the stages are on "meta", but the process group has cpu:gloo'
        ), message


def test_what_torch_cannot_run_is_named(world2, tmp_path):
    refused(world2, ["PipelineError", "is on several ranks", "ostinato.torch.Pipeline can"],
            Case(plan_of(tmp_path / "m", SHARDED)), "schedule")  # fmt: skip
    forwards = plan_of(tmp_path / "f", text=placement_text(CHAINS["stock"], LAYERS, trains=False))
    refused(world2, ["has no backward"], Case(forwards), "schedule")
    join = plan_of(tmp_path / "k", text=branches(trains=True))
    refused(
        world2,
        ['stage "right"', "just the output of the stage before it"],
        Case(join, branches=True),
        "schedule",
    )


def test_one_rank_needs_no_group(tmp_path):
    case = Case(plan_of(tmp_path, Layout("one", (4,), (0, 0))))
    expected = torch_jobs.alone(case)
    check_gradients([torch_jobs.train(case)], expected, torch.equal)
    assert "takes the inputs of the step" in torch_jobs.refusal(case, "step")


def test_a_stage_without_a_backward_has_nothing_to_train(tmp_path):
    text = BRANCHES.partition("[[devices]]")[0] + '[[devices]]\nname = "d0"\n'
    for name, kind, after in (
        ("s0.F", "forward", []),
        ("s1.F", "forward", ["s0.F"]),
        ("s1.B", "backward", ["s1.F"]),
    ):
        text += f'[[blocks]]\nname = "{name}"\nstage = "{name[:2]}"\nkind = "{kind}"\ndevices = [0]\ntime = 10\nafter = {after}\n'
    stages = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
    pipe = Pipeline(plan_of(tmp_path, text=text), lambda stage: stages[stage.index], torch.nn.MSELoss())
    batch = torch.ones(MICRO_BATCHES, 2), torch.ones(MICRO_BATCHES, 1)
    with pytest.raises(PipelineError, match='stage "s0" has trainable parameters, but no backward'):
        pipe.step(*batch)
    stages[0].requires_grad_(False)
    pipe.step(*batch)
    assert stages[1].weight.grad is not None


@pytest.mark.parametrize("kind", ["sharded", "other"])
def test_torchs_checkpoints(world2, tmp_path, kind):
    """Of parts of layers, and for another placement."""
    layouts = {"sharded": [SHARDED, SHARDED], "other": [CHAINS["wave"], CHAINS["looped"]]}[kind]
    plans = [plan_of(tmp_path / layout.name, layout) for layout in layouts]
    assert world2.run(torch_jobs.saved_and_loaded, plans, str(tmp_path / "saved")) == [[], []]


def test_a_build_that_returns_no_module_is_named(tmp_path):
    plan = plan_of(tmp_path, Layout("one", (4,), (0, 0)))
    with pytest.raises(ValueError, match='build.. returns a NoneType for stage "s0"'):
        Pipeline(plan, lambda stage: None)


@pytest.mark.parametrize("how", [copy.deepcopy, pickle.dumps])
def test_a_pipeline_that_is_copied_says_what_to_copy(tmp_path, how):
    pipe = Pipeline(plan_of(tmp_path, Layout("one", (4,), (0, 0))), lambda stage: torch.nn.Linear(2, 2))
    with pytest.raises(PipelineError, match="copy .* its `stages`"):
        how(pipe)
    assert how(pipe.stages)


@pytest.mark.parametrize("late", ["", "stages"])
def test_gradients_that_fully_shard_adds_up(world2, tmp_path, late):
    case = Case(plan_of(tmp_path, Layout("one", (4,), (0, 0), split=True)), steps=2)
    first, second = torch_jobs.alone(case)["gradients"]
    for raised, gradients in world2.run(torch_jobs.train_in_parallel, case, "fully_shard", late):
        assert not raised and gradients.keys() == first.keys(), raised
        for name, gradient in gradients.items():
            assert torch.allclose(gradient, (first[name] + second[name]) / 2, atol=1e-7), name


def test_a_refused_call_that_the_script_catches(world2, tmp_path):
    """On all ranks it leaves nothing behind. On one, the next batch would meet the targets of this one."""
    case = Case(plan_of(tmp_path, Layout("stock", (4,), (0, 1))), steps=1)
    (first, _), (second, value) = world2.run(torch_jobs.refused_and_caught, case, (0, 1), 60)
    assert len(first) == len(second) == 1 and "micro-batches" in first[0] and "micro-batches" in second[0]
    assert value == pytest.approx(torch_jobs.alone(case)["losses"][0])
    (first, _), (second, value) = world2.run(torch_jobs.refused_and_caught, case, (0,), 3)
    assert "rank 1 did not report within 3 s: call 1 was refused on rank 0 only" in first[1]
    assert len(second) == 2 and value is None


@pytest.mark.parametrize("split", [False, True])
def test_fully_shard_reduces_once_a_step(world2, tmp_path, split):
    """Also where the plan splits backwards, and with forwards alone between the steps."""
    case = Case(plan_of(tmp_path, Layout("one", (4,), (0, 0), split=split)))
    for reductions, layers, worst in world2.run(torch_jobs.reductions_of_a_step, case):
        assert reductions == layers > 1 and worst < 1e-6


@pytest.mark.parametrize("how", ["DistributedDataParallel", "FullyShardedDataParallel"])
@pytest.mark.parametrize("late", ["", "stages", "layer"])
def test_wrappers_for_one_micro_batch_in_flight_are_refused(world2, tmp_path, how, late):
    case = Case(plan_of(tmp_path, Layout("one", (4,), (0, 0))))
    for raised, _ in world2.run(torch_jobs.train_in_parallel, case, how, late):
        assert raised.startswith(f'PipelineError: stage "s0" holds a {how}, which allows one'), raised


def test_a_module_that_replaces_one_of_a_pipeline_runs(tmp_path):
    layout = Layout("one", (4,), (0, 0))
    forwards = plan_of(tmp_path, text=placement_text(layout, LAYERS, trains=False))
    pipe, given, served = Pipeline(forwards, lambda stage: torch.nn.Identity()), torch.ones(1, 2), {}
    for factor in (1, 2):
        pipe.stages["1"] = torch.nn.Linear(2, 2, bias=False)
        torch.nn.init.constant_(pipe.stages["1"].weight, factor)
        pipe.serve([given], served.__setitem__)
        for answer in (served[0], pipe.infer([given] * MICRO_BATCHES)[0]):
            assert torch.equal(answer, given * 2 * factor)


def test_a_module_that_was_replaced_is_freed(tmp_path):
    forwards = plan_of(tmp_path, text=placement_text(Layout("one", (4,), (0, 0)), LAYERS, trains=False))
    pipe = Pipeline(forwards, lambda stage: torch.nn.Linear(2, 2))
    replaced = weakref.ref(pipe.stages["1"])
    pipe.stages["1"] = torch.nn.Identity()
    pipe.infer(torch.ones(MICRO_BATCHES, 2))
    gc.collect()
    assert replaced() is None


class Wrapper(torch.Tensor):
    """As a DTensor: its elements are elsewhere."""

    @staticmethod
    def __new__(cls, elements):
        return torch.Tensor._make_wrapper_subclass(cls, elements.shape, dtype=elements.dtype)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise NotImplementedError(function)


class Beside(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def forward(self, x):
        return x, self.kind(x)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Wrapper, "of type Wrapper, which cannot"),
        (torch.Tensor.to_sparse, r"layout torch.sparse_coo, .* \(.to_dense\(\)\)"),
        (torch.Tensor.to_mkldnn, r"layout torch._mkldnn, .* \(.to_dense\(\)\)"),
        (lambda x: torch.nested.nested_tensor([x, x]), "nested tensor, .* as its values"),
        (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), r"quantized tensor, .* \(.dequantize"),
    ],
    ids=["subclass", "sparse", "mkldnn", "nested", "quantized"],
)
def test_outputs_that_are_no_plain_tensors_are_refused(tmp_path, kind, words):
    """Where another stage takes them."""
    forwards = plan_of(tmp_path, text=placement_text(Layout("one", (4,), (0, 0)), LAYERS, trains=False))
    pipe = Pipeline(forwards, lambda stage: Beside(kind) if stage.index == 0 else torch.nn.Identity())
    with pytest.raises(TypeError, match=f"stage 's0' returns a .*{words}"):
        pipe.infer(torch.ones(MICRO_BATCHES, 2))
    last = Pipeline(forwards, lambda stage: torch.nn.Identity() if stage.index == 0 else Beside(kind))
    assert len(last.infer(torch.ones(MICRO_BATCHES, 2))) == MICRO_BATCHES


def test_what_no_losses_can_be_added_to_is_refused_before_the_step(tmp_path):
    chain, rows = [torch.nn.Linear(2, 2) for _ in range(LAYERS)], torch.ones(MICRO_BATCHES, 2)
    pipe = Pipeline(plan_of(tmp_path, Layout("one", (4,), (0, 0))), chain, torch.nn.MSELoss())
    with pytest.raises(PipelineError, match="losses is 3: expected a list"):
        pipe.step(rows, rows, losses=3)
    assert all(parameter.grad is None for parameter in pipe.parameters())


def test_split_backwards_that_run_whole_are_named(tmp_path):
    layout, rows = Layout("split", (4,), (0, 0), split=True), torch.ones(MICRO_BATCHES, 2)
    chain = [torch.nn.Linear(2, 2) for _ in range(LAYERS)]
    chain[5] = checkpoint_wrapper(chain[5])
    pipe = Pipeline(plan_of(tmp_path, layout), chain, torch.nn.MSELoss())
    with pytest.warns(UserWarning, match='^the backwards of "[^"]*" run whole though the plan splits them'):
        pipe.step(rows, rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once
        pipe.step(rows, rows)


def test_a_batch_is_not_kept_until_the_next_one(tmp_path):
    """Nor what infer() has returned."""
    layout, rows = Layout("one", (4,), (0, 0)), range(MICRO_BATCHES)
    forwards = plan_of(tmp_path / "f", layout, text=placement_text(layout, LAYERS, trains=False))
    pipe = Pipeline(plan_of(tmp_path, layout), lambda stage: torch.nn.Linear(2, 2), torch.nn.MSELoss())
    infers = Pipeline(forwards, lambda stage: pipe.stages[str(stage.index)])
    given, targets = [torch.ones(1, 2) for _ in rows], [torch.ones(1, 2) for _ in rows]
    pipe.step(given, targets)
    kept = [weakref.ref(tensor) for tensor in [*given, *targets, *infers.infer(given)]]
    del given, targets
    gc.collect()
    assert [ref() for ref in kept] == [None] * 3 * MICRO_BATCHES


class Halves(torch.nn.Module):
    def forward(self, x):
        return x.chunk(2)


class Product(torch.nn.Module):
    def forward(self, pair):
        return pair[0] * pair[1]


def test_a_wrapped_layer_takes_a_tuple_as_the_layer_does():
    """torch's wrappers have a forward that takes any arguments."""
    compiled = torch.compile(Product(), backend="eager")
    for layer in compiled, checkpoint_wrapper(Product()), checkpoint_wrapper(compiled):
        assert torch.equal(InARow(Halves(), layer)(torch.ones(4) * 3), torch.full((2,), 9.0))


def test_a_plan_that_is_missing_is_named_before_its_placement(tmp_path):
    with pytest.raises(ValueError, match=r"missing\.json: cannot be read"):
        lowered(tmp_path / "missing.json", None)


def test_layers_that_are_placed_twice_are_refused(tmp_path):
    placement = ostinato.placement("x", devices=2, layers=4)
    placement.save(tmp_path / "placement.toml")
    ostinato.search(placement, micro_batches=2).save(tmp_path / "plan.json")
    with pytest.raises(PipelineError, match='"a0" and "b0" hold the same layers, .* place each layer once'):
        check_copies(lowered(tmp_path / "plan.json", None))


def test_wrong_size_of_the_group(world2, tmp_path):
    looped = Layout("four", (2, 4, 6), (0, 1, 2, 3))
    refused(world2, ["4 devices", "2 ranks"], Case(plan_of(tmp_path, looped)), "step")


class Packed(NamedTuple):
    ends: torch.Tensor
    longest: int


EIGHT = torch.arange(8)
MASK = torch.ones(5, 5)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.zeros(7, 2), ["(7, 2)", "not divisible into 4 micro-batches", "drop_last"]),
        ([1, 2], ["2 entries", "4 micro-batches"]),
        ("text", ["is a str"]),
        ((torch.zeros(32), EIGHT), ["(32,), (8,)", "list with an entry for each of the 4 micro-batches"]),
        ((EIGHT, Packed(torch.zeros(4), 3)), ["(8,), (4,)"]),
        ((EIGHT, {"mask": MASK}), ["(8,), (5, 5)", "[mask] * 4"]),
        ((EIGHT, torch.ones(1, 8)), ["(8,), (1, 8)"]),
        ((EIGHT, [MASK] * 3), ["3 entries"]),
        ((EIGHT, object()), ["holds a object"]),
    ],
)
def test_batches_that_do_not_fit(value, words):
    from ostinato.torch import BatchError
    from ostinato.torch.batches import micro_batches

    with pytest.raises(BatchError) as raised:
        micro_batches(value, 4, "inputs")
    assert all(word in str(raised.value) for word in words), raised.value


def test_batches_keep_their_kinds():
    from ostinato.torch.batches import as_arguments, micro_batches

    scalar = torch.tensor(2.0)
    given = (EIGHT, Packed(EIGHT * 2, 3), {"mask": [MASK] * 4, "none": None, "scale": scalar}, ())
    for m, (tokens, packed, named, nothing) in enumerate(micro_batches(given, 4, "inputs")):
        assert tokens.tolist() == [2 * m, 2 * m + 1]
        assert type(packed) is Packed and packed.longest == 3 and torch.equal(packed.ends, tokens * 2)
        assert named == {"mask": MASK, "none": None, "scale": scalar} and nothing == ()
        assert as_arguments(packed) == (packed,)
    assert micro_batches(None, 2, "targets") == [None, None]
    assert [part.shape for part in micro_batches(torch.zeros(0, 2), 4, "inputs")] == [(0, 2)] * 4


def test_a_micro_batch_that_a_stage_changes_in_place_is_the_only_one():
    """Views of the batch would all count the change, and what of them is handed on would be refused."""
    from ostinato.torch.batches import micro_batches

    given = torch.arange(8)
    parts = micro_batches(given, 4, "inputs")
    parts[1].add_(1)
    assert [part._version for part in parts] == [0, 1, 0, 0] and given.tolist() == [0, 1, 3, 4, 4, 5, 6, 7]


def test_a_dictionary_is_by_stage(world2, tmp_path):
    given = {"inputs": {"input_ids": torch.zeros(8, dtype=torch.long)}}
    refused(
        world2,
        ["BatchError", "'input_ids' is not a stage", '"s0"', "tuple"],
        Case(plan_of(tmp_path / "s")),
        "step",
        given,
    )
    text = placement_text(CHAINS["stock"], LAYERS, trains=False)
    said, _ = world2.run(
        serving_jobs.serve_refusal, Case(plan_of(tmp_path / "f", text=text)), [given["inputs"]]
    )
    assert said.startswith("BatchError: inputs is a dictionary"), said


def test_a_rank_that_gives_up_makes_all_say_where_they_are(world2, tmp_path):
    (_, said), (raised, _) = world2.run(torch_jobs.stuck, Case(plan_of(tmp_path)))
    assert raised.startswith("StepTimeout: rank 1 waited 2.0 s for 1RECV_F0 from rank 0"), raised
    assert len(said) == 1 and said[0].startswith("rank 1 gave up; rank 0 is in step 1 at instruction 0"), said


@pytest.mark.parametrize(
    "shared_memory, kind", [(True, ValueError), (False, ValueError), (True, KeyboardInterrupt)]
)
def test_who_waits_for_a_rank_that_has_failed_is_told_why(world2, tmp_path, shared_memory, kind):
    """And does not wait for the whole of its time-out, 200 s here."""
    (failed, _), (told, waited) = world2.run(
        torch_jobs.beside_a_failure, Case(plan_of(tmp_path)), shared_memory, kind
    )
    assert failed == f"{kind.__name__}: no such token"
    assert (
        told.startswith("ExecutionError: rank 1: 1RECV_F0 ")
        and f"rank 0 failed with {kind.__name__}: no such token" in told
    ), told
    assert waited < 150


def test_a_pipeline_that_is_dropped_is_gone(world2, tmp_path):
    """With its modules and the thread of its watch."""
    plan = make_plan(tmp_path, Layout("chain", (5,), (0, 1)), LAYERS, torch_jobs.MICRO_BATCHES)
    assert world2.run(torch_jobs.make_and_drop, Case(str(plan))) == [(True, False)] * 2


def test_a_rank_that_makes_no_pipeline_is_named(world2, tmp_path):
    said, _ = world2.run(torch_jobs.refusal_of_each, [plan_of(tmp_path), None], 1.0)
    assert (
        said
        == "rank 1 did not report within 1 s: every rank of the group must make the pipeline; if one has ended, its log says why"
    )
    world2.restart()  # the ranks have now made different numbers of pipelines


def test_ranks_with_other_plans_are_named(world2, tmp_path):
    plans = [plan_of(tmp_path / name, CHAINS[name]) for name in ("stock", "wave")]
    said = world2.run(torch_jobs.refusal_of_each, plans, 60.0)
    assert said[0] == said[1] and said[0].startswith("ranks [1] hold a different plan than rank 0: "), said


@pytest.mark.parametrize("stopped", everyday([0, 1], 1), ids=["rank_0_with_the_store", "rank_1"])
def test_who_makes_a_pipeline_beside_a_stopped_rank_names_it(tmp_path, monkeypatch, stopped):
    monkeypatch.setattr("support.worlds.GRACE", 0)  # for the rank that is stopped
    with World(2, timeout=120) as world, pytest.raises(AssertionError, match="the process ended"):
        world.run(torch_jobs.make_beside_a_stopped_rank, Case(plan_of(tmp_path)), stopped, str(tmp_path))
    said = (tmp_path / f"{1 - stopped}.err").read_text()
    assert f"rank {1 - stopped} is making its pipeline: " in said, said
    assert ("the store does not answer" if stopped == 0 else "rank 1 gave no sign of life for 2 s") in said, (
        said
    )
