# SPDX-License-Identifier: Apache-2.0
"""The executor from Python: bit for bit against one process, errors that keep their type and say where they
were."""

from __future__ import annotations

import gc
import types
import warnings

import executor_jobs as jobs
import pytest
import torch
from ostinato import _plugin, _profiler
from plan_files import write_chain
from support.worlds import forked
from torch.distributed.pipelining import schedules

STEPS = 4
CASES = {
    2: {
        "1f1b": dict(device_of=[0, 1], micro_batches=4, in_flight=2),
        "gpipe": dict(device_of=[0, 1], micro_batches=4),
        "looped": dict(device_of=[0, 1, 0, 1], micro_batches=5),
        "wave": dict(device_of=[0, 1, 1, 0], micro_batches=5),
        "split": dict(device_of=[0, 1, 1, 0], micro_batches=4, split=True),
        "one_rank_apart": dict(device_of=[1, 0, 0, 1, 1], micro_batches=3),
    },
    4: {
        "1f1b": dict(device_of=[0, 1, 2, 3], micro_batches=8, in_flight=4),
        "looped": dict(device_of=[0, 1, 2, 3, 0, 1, 2, 3], micro_batches=6),
        "wave": dict(device_of=[0, 1, 2, 3, 3, 2, 1, 0], micro_batches=6),
    },
}


def spawn(job, world, folder, *arguments):
    assert forked().get_start_method() == "forkserver"
    torch.multiprocessing.start_processes(
        job, (world, str(folder), *arguments), nprocs=world, start_method="forkserver"
    )


@pytest.fixture(
    scope="module", params=[(2, True), (2, False), (4, True)], ids=["2ranks", "2ranks_gloo_only", "4ranks"]
)
def trained(request, tmp_path_factory):
    """All cases of so many ranks, trained in one set of processes, which use the host's memory or do not:
    {case: results of each rank}."""
    world, shared_memory = request.param
    folder = tmp_path_factory.mktemp(f"ranks{world}")
    files = {name: write_chain(folder / name, **case) for name, case in CASES[world].items()}
    spawn(jobs.train_job, world, folder, files, STEPS, shared_memory)
    return (
        world,
        files,
        {name: [torch.load(folder / f"{name}.{r}.pt") for r in range(world)] for name in CASES[world]},
    )


def test_losses_and_weights_equal_one_process_bit_for_bit(trained):
    world, files, results = trained
    for name, ranks in results.items():
        case = CASES[world][name]
        program = _plugin.lower(*files[name])
        assert program.keeps_order
        losses, weights = jobs.reference(len(case["device_of"]), case["micro_batches"], STEPS)
        assert ranks[case["device_of"][-1]]["losses"] == losses, name
        for s, expected in enumerate(weights):
            got = ranks[case["device_of"][s]]["weights"][s]
            for key, value in expected.items():
                assert torch.equal(got[key], value), f"{name}: stage {s}, {key}"


def test_every_planned_instruction_is_recorded_once(trained):
    _, files, results = trained
    for name, ranks in results.items():
        program = _plugin.lower(*files[name])
        for rank, result in enumerate(ranks):
            records = result["records"]
            assert sorted(r[0] for r in records) == list(range(len(program.instructions(rank)))), name
            assert all(0 <= begin <= end for _, begin, end in records)
            ends = [end for index, _, end in records if program.instructions(rank)[index].action in "FB"]
            assert ends == sorted(ends)


def test_own_buffers_stay_within_what_is_in_flight(trained):
    world, _, results = trained
    message = jobs.WIDTH * jobs.BATCH * 4 + 8
    for rank, result in enumerate(results["1f1b"]):
        # Activations in flight and one ahead, a gradient and one ahead, sends of both that are not proven
        # over yet.
        assert 0 < result["peak_bytes"] <= (world - rank + 1 + 2 + 4) * message


def test_timeout_names_instruction_peer_and_position(tmp_path):
    spawn(jobs.timeout_job, 2, tmp_path, write_chain(tmp_path / "plan", [0, 1], 2, 2))
    result = torch.load(tmp_path / "timeout.pt")
    assert "rank 1 waited 2.0 s for 1RECV_F0 from rank 0, instruction 0" in result["error"]
    assert "0SEND_F0 of rank 0 (its instruction 1)" in result["error"]
    assert "rank 1 is in step 1 at instruction 0 of 8 (1RECV_F0)" in result["error"]
    assert any("ms for 1RECV_F0" in position for position in result["seen"])


@pytest.mark.parametrize("shared_memory", [True, False])
def test_the_end_of_a_rank_is_noticed_by_its_peer(tmp_path, shared_memory):
    # Rank 0, in the middle of its second step.
    with pytest.raises(torch.multiprocessing.ProcessExitedException):
        spawn(jobs.lost_job, 2, tmp_path, write_chain(tmp_path / "plan", [0, 1], 4, 2), shared_memory)
    error = (tmp_path / "lost.txt").read_text()
    assert "rank 1: 1RECV_F2 from rank 0, instruction" in error
    assert not shared_memory or "the other rank's process has ended" in error


def test_a_rank_that_makes_no_executor_is_named(tmp_path):
    spawn(jobs.absent_job, 2, tmp_path, write_chain(tmp_path / "plan", [0, 1], 2, 2))
    assert "rank 0 did not create its executor in time" in (tmp_path / "absent.txt").read_text()


# What follows needs one rank only, and no process group.


def one_rank(tmp_path, micro_batches=2, stages=1):
    program = _plugin.lower(*write_chain(tmp_path, [0] * stages, micro_batches))
    return program, _plugin.Executor(program, 0, None, [0])


def test_callables_run_in_the_planned_order(tmp_path):
    program, executor = one_rank(tmp_path, micro_batches=3, stages=2)
    weight, log = torch.ones(2, requires_grad=True), []

    def first(m, inputs):
        assert inputs is None
        log.append(f"0F{m}")
        return weight * (m + 1)

    def second(m, inputs):
        (x,) = inputs
        assert x.requires_grad and x.grad_fn is not None  # the executor's own leaf is behind it, without data
        log.append(f"1F{m}")
        return (x * x).sum()

    executor.set_stage(
        0, first, lambda m, part: log.append(f"before {m}"), lambda m, part: log.append(f"0{part}{m}")
    )
    executor.set_stage(1, second, after_backward=lambda m, part: log.append(f"1B{m}"))
    executor.run()
    assert [entry for entry in log if "before" not in entry] == program.text(0, transfers=False).split(",")
    assert [entry for entry in log if "before" in entry] == ["before 0", "before 1", "before 2"]
    assert weight.grad.tolist() == [2 * (1 + 4 + 9)] * 2


def test_nothing_of_a_step_stays_alive(tmp_path):
    _, executor = one_rank(tmp_path, micro_batches=3, stages=2)
    weight = torch.ones(1009, requires_grad=True)  # no other test of this process keeps so many numbers
    executor.set_stage(0, lambda m, inputs: weight * 2)
    executor.set_stage(1, lambda m, inputs: inputs[0].exp().sum())
    executor.run()
    gc.collect()
    alive = [t for t in gc.get_objects() if type(t) is torch.Tensor and t.numel() == 1009 and t is not weight]
    assert all(t is weight.grad for t in alive)


def test_a_thousand_steps_leave_no_byte(tmp_path):
    _profiler.install_allocator()
    try:
        program = _plugin.lower(*write_chain(tmp_path, [0, 0, 0], 3, split=True))
        executor = _plugin.Executor(program, 0, None, [0])
        weight = torch.ones(100, requires_grad=True)
        executor.set_stage(0, lambda m, inputs: weight * m)
        executor.set_stage(1, lambda m, inputs: (inputs[0] * weight, None, torch.arange(m + 1)))
        executor.set_stage(2, lambda m, inputs: inputs[0].exp().sum())
        live = []
        for _ in range(1000):
            executor.run()
            live.append(_profiler.live_bytes())
        assert set(live[5:]) == {live[5]}
    finally:
        _profiler.remove_allocator()


def test_autocast_of_the_caller_holds_in_the_stages(tmp_path):
    _, executor = one_rank(tmp_path)
    linear, seen = torch.nn.Linear(4, 4), []

    def forward(m, inputs):
        out = linear(torch.ones(2, 4))
        seen.append(out.dtype)
        return out.float().sum()

    executor.set_stage(0, forward)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        executor.run()
    assert seen == [torch.bfloat16] * 2


def test_warnings_of_backwards_are_shown_once_as_python_shows_them(tmp_path):
    library = torch.library.Library("ostinato_tests", "DEF")
    library.define("same(Tensor x) -> Tensor")
    library.impl("same", lambda x: x.clone(), "CPU")  # without a backward, of which the engine warns in C++
    _, executor = one_rank(tmp_path, micro_batches=3)
    weight = torch.ones(2, requires_grad=True)
    executor.set_stage(0, lambda m, i: (weight + torch.ops.ostinato_tests.same(weight)).sum())
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        for _ in range(2):
            executor.run()
    assert ["autograd kernel was not registered" in str(w.message) for w in shown] == [True]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="autograd kernel was not registered") as raised:
            executor.run()
    assert "between steps" in raised.value.__notes__[0]


def test_errors_of_the_autograd_engine_say_where(tmp_path):
    _, executor = one_rank(tmp_path)

    def used_up(*_):
        weight = torch.ones(2, requires_grad=True)
        loss = (weight * weight).sum()
        loss.backward()
        return loss

    executor.set_stage(0, used_up)
    with pytest.raises(RuntimeError, match="backward through the graph a second time") as raised:
        executor.run()
    assert "instruction 1 of 4 (0B0)" in raised.value.__notes__[0]


def test_reentrant_checkpointing_cannot_be_split_and_runs_whole(tmp_path):
    from torch.utils.checkpoint import checkpoint

    program = _plugin.lower(*write_chain(tmp_path, [0, 0], 2, split=True))
    executor = _plugin.Executor(program, 0, None, [0])
    weights = [torch.full((3,), 2.0, requires_grad=True) for _ in range(2)]
    executor.set_stage(0, lambda m, inputs: weights[0] * (m + 1))
    executor.set_stage(
        1, lambda m, inputs: checkpoint(lambda x: x * weights[1], inputs[0], use_reentrant=True).sum()
    )
    executor.run()
    assert executor.unsplit_stages == [1]
    assert weights[0].grad.tolist() == [2 * (1 + 2)] * 3
    assert weights[1].grad.tolist() == [2 * (1 + 2)] * 3


class Unhappy(Exception):
    pass


class BadBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise Unhappy("in the backward")


def raising(*_):
    raise Unhappy("in the forward")


@pytest.mark.parametrize(
    "forward, where",
    [
        (raising, "instruction 0 of 4 (0F0)"),
        (lambda m, i: BadBackward.apply(torch.ones(1, requires_grad=True)).sum(), "(0B0)"),
    ],
)
def test_exceptions_keep_their_type_and_say_where(tmp_path, forward, where):
    _, executor = one_rank(tmp_path)
    executor.set_stage(0, forward)
    with pytest.raises(Unhappy) as caught:
        executor.run()
    assert any("ostinato: rank 0 is in step 1" in note and where in note for note in caught.value.__notes__)
    with pytest.raises(_plugin.ExecutionError, match="an earlier step failed"):
        executor.run()


@pytest.mark.parametrize(
    "result, error, words",
    [
        ("text", TypeError, "stage '0' returns str; expected a tensor or a tuple"),
        ((torch.ones(1), 3), TypeError, "returns a tuple that holds a value of type int"),
        (torch.ones(3), RuntimeError, "must be the scalar"),
        (None, RuntimeError, "must be the scalar"),
    ],
)
def test_results_that_are_no_loss_are_refused(tmp_path, result, error, words):
    _, executor = one_rank(tmp_path)
    executor.set_stage(0, lambda m, i: result)
    with pytest.raises(error, match=words):
        executor.run()


def test_wrong_arguments_are_refused(tmp_path):
    program, executor = one_rank(tmp_path)
    with pytest.raises(RuntimeError, match="has no module"):
        executor.run()
    with pytest.raises(RuntimeError, match="stage 1 is not on rank 0"):
        executor.set_stage(1, raising)
    with pytest.raises(ValueError, match="1 rank, but `ranks` has 2"):
        _plugin.Executor(program, 0, None, [0, 1])
    with pytest.raises(RuntimeError, match="no rank 3"):
        _plugin.Executor(program, 3, None, [0])
    with pytest.raises(ValueError, match="timeout_s"):
        _plugin.Executor(program, 0, None, [0], timeout_s=0)
    two = _plugin.lower(*write_chain(tmp_path / "two", [0, 1], 2))
    with pytest.raises(ValueError, match="needs a process group"):
        _plugin.Executor(two, 0, None, [0, 1])
    with pytest.raises(IndexError):
        program.text(1)


def test_bad_files_are_value_errors(tmp_path):
    plan, placement = write_chain(tmp_path, [0, 1], 2)
    with pytest.raises(ValueError, match="no.toml"):
        _plugin.lower(plan, str(tmp_path / "no.toml"))
    text = (tmp_path / "plan.json").read_text()
    (tmp_path / "plan.json").write_text(text.replace('"makespan": ', '"makespan": 1', 1))
    with pytest.raises(ValueError, match="is not correct"):
        _plugin.lower(plan, placement)


@pytest.mark.parametrize("device_of", [[0, 1, 2], [0, 1, 0, 1], [0, 1, 1, 0]])
@pytest.mark.parametrize("split", [False, True])
def test_torch_reads_and_simulates_our_text(tmp_path, device_of, split):
    program = _plugin.lower(*write_chain(tmp_path, device_of, 4, split=split))
    world, stages = program.ranks, len(device_of)
    fake = [types.SimpleNamespace(num_stages=stages, group_size=world, group_rank=0, stage_index=0)]
    for form in ("compute_only", "compute_comms"):
        path = tmp_path / f"{form}.csv"
        path.write_text(
            "".join(program.text(r, transfers=form == "compute_comms") + "\n" for r in range(world))
        )
        schedule = schedules._PipelineScheduleRuntime(fake, 4, loss_fn=lambda *_: None)
        schedule._load_csv(str(path), format=form)
        if form == "compute_comms":
            assert schedule._simulate()
        ours = {r: {str(i) for i in program.instructions(r)} for r in range(world)}
        theirs = {r: {str(a) for a in schedule.pipeline_order_with_comms[r]} for r in range(world)}
        for rank in range(world):  # torch adds steps of its own for sharded data parallelism
            own = {a for a in theirs[rank] if not any(w in a for w in ("SHARD", "REDUCE"))}
            assert own == ours[rank]
