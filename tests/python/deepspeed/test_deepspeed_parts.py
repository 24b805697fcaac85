# SPDX-License-Identifier: Apache-2.0
"""The parts of the DeepSpeed side that need no world of processes."""

import json
import re
import weakref
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from deepspeed.runtime.pipe import schedule

from ostinato.deepspeed.start import install
from ostinato.deepspeed import hook
from ostinato.deepspeed.start.first_pass import tell_of_frozen_inputs
from ostinato.deepspeed.start.install import digest_of
from ostinato.deepspeed.tell.announce import after_move, changed, expected, gain_of, is_exact, lines, places
from ostinato.deepspeed.data.batches import Batches
from ostinato.deepspeed.engine.run import StepState
from ostinato.deepspeed.save.checkpoint import layers_of_ranks
from ostinato.deepspeed.section.config import parse_section, resolve
from ostinato.deepspeed.errors import OstinatoError
from ostinato.deepspeed.section.plans import Stage
from ostinato.deepspeed.stages.idle import give_idle
from ostinato.deepspeed.tell.trace import Trace
from ostinato.trace import read_traces


def test_layers_of_each_rank():
    stages = [
        Stage(i, ranks, layers)
        for i, (ranks, layers) in enumerate([((0,), [0]), ((1,), [1, 2]), ((0,), [3, 4])])
    ]
    assert places(stages, [0, 2, 5]) == (
        "layers of each rank: 0, 3-4 | 1-2 (DeepSpeed prints its own partition: 0-1 | 2-4)"
    )
    assert places([Stage(0, (0,), [0, 1]), Stage(1, (1,), [2, 3, 4])], [0, 2, 5]) == ""


def test_defaults_of_the_section():
    section = parse_section({"plan": "plan.json"}, "here")
    assert section.model_dump() == {
        "plan": "plan.json",
        "placement": None,
        "profile": None,
        "search": None,
        "auto": False,
        "check": None,
        "output": None,
        "timeout_s": 1800.0,  # torch's, as there is no process group yet
        "trace": None,
        "memory": None,
        "require": True,
        "sizes": None,
        "size": None,
        "keep_order": False,
        "effort": None,
        "fallback": None,
        "adapt": None,
    }


def test_all_wrong_keys_are_named():
    with pytest.raises(OstinatoError) as error:
        parse_section({"plam": "plan.json", "xyz": 1}, "ds_config.json")
    said = str(error.value)
    assert 'ds_config.json: unknown key "plam"' in said and 'did you mean "plan"?' in said
    assert 'unknown key "xyz"' in said and "known keys: plan, placement" in said


FAULTS = """{
  "train_micro_batch_size_per_gpu": 4,
  "search": {},
  "ostinato": {
    "auto": true,
    "outptu": "x",
    "search": {
      "max_chunks": 0
    },
    "require": "no"
  }
}"""
WAYS = """{"ostinato": {
  "profile": "profile.json",
  "size": 3,
  "fallback": true,
  "adapt": {}
}}"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            FAULTS,
            [
                ':6: unknown key "outptu" in the "ostinato" section: did you mean "output"?',
                ':8: "max_chunks" in the "search" section must be at least 1, not 0',
                ':10: "require" in the "ostinato" section must be true or false, not "no"',
            ],
        ),
        (
            WAYS,
            [
                ':3: "size" in the "ostinato" section needs "sizes"',
                ':4: "fallback" in the "ostinato" section needs "auto" or "check", which time DeepSpeed\'s own steps first',
                ':5: "adapt" in the "ostinato" section needs "auto" or "profile", and "output", a folder for new plans',
            ],
        ),
    ],
)
def test_every_fault_is_told_with_its_line(tmp_path, text, said):
    file = tmp_path / "ds_config.json"
    file.write_text(text)
    with pytest.raises(OstinatoError) as error:
        parse_section(json.loads(text)["ostinato"], str(file))
    assert str(error.value).split("\n") == [f"{file}{line}" for line in said]


@pytest.mark.parametrize(
    ("section", "said"),
    [
        (True, 'the "ostinato" section must be an object: {"auto": true}'),
        ({"auto": True, "adapt": True}, "must be an object ({} has the defaults), not true"),
        ({"auto": True, "effort": 1.5}, "must be a whole number, not 1.5"),
        ({"auto": True, "timeout_s": "10"}, 'must be a number of seconds, not "10"'),
        ({"auto": True, "timeout_s": 0}, "must be above 0, not 0"),
        ({"auto": True, "check": 2000}, "must be at most 1000, not 2000"),
        ({"auto": True, "output": 1}, "must be a text, not 1"),
        ({"auto": True, "output": ""}, "must have at least one character"),
        ({"auto": True, "search": {"objective": "speed"}}, "must be 'makespan', 'span' or 'latency'"),
    ],
)
def test_a_wrong_value_is_told_in_words_of_a_configuration(section, said):
    with pytest.raises(OstinatoError) as error:
        parse_section(section, "ds_config.json")
    assert said in str(error.value) and "Input" not in str(error.value) and "valid" not in str(error.value)


def test_files(tmp_path):
    (tmp_path / "plan.json").write_text("{}")
    (tmp_path / "placement.toml").write_text("")
    section = parse_section({"plan": "plan.json", "trace": "out/trace"}, "")
    paths = resolve(section, str(tmp_path / "ds_config.json"))
    assert (paths.plan, paths.placement) == (tmp_path / "plan.json", tmp_path / "placement.toml")
    assert paths.trace == tmp_path / "out" / "trace"


@pytest.mark.parametrize(
    "key", ["zero_optimization", "optimizer", "train_batch_size", "ostinato_off", "monitor"]
)
def test_other_keys_are_left_alone(key):
    assert hook.section_of({key: {}}) == (None, None)


def stage(name, *ranks, has_backward=True):
    return SimpleNamespace(name=name, ranks=list(ranks), has_backward=has_backward, lane="", offload="")


@pytest.mark.parametrize(
    ("said", "interval", "inside", "hinted"),
    [
        ("element 0 of tensors does not require grad and does not have a grad_fn", 1, False, True),
        ("element 0 of tensors does not require grad and does not have a grad_fn", 0, True, True),
        ("element 0 of tensors does not require grad and does not have a grad_fn", 0, False, False),
        ("mat1 and mat2 shapes cannot be multiplied", 1, False, False),
    ],
)
def test_a_backward_that_checkpointing_has_cut_gets_a_hint(said, interval, inside, hinted):
    layer = SimpleNamespace(gradient_checkpointing=inside)
    model = SimpleNamespace(activation_checkpoint_interval=interval, modules=lambda: [layer])

    def fails(first):
        raise RuntimeError(said)

    with pytest.raises(RuntimeError, match=said) as raised:
        tell_of_frozen_inputs(fails)(SimpleNamespace(_engine=SimpleNamespace(module=model)))
    notes = getattr(raised.value, "__notes__", [])
    assert [
        '"use_reentrant": false' in note and "enable_input_require_grads()" in note for note in notes
    ] == [True] * hinted


def program(**changes):
    values = {
        "plan_sha256": "3f2a91c0d4e5b6a7",
        "placement_sha256": "0a1b",
        "placement_name": "gpt-4",
        "micro_batches": 8,
        "makespan": 27_000_000,
        "predicted": 27_000_000,
        "whole_step": 0,
        "beside": [("your run now", 36_000_000, 37_500_000), ("1F1B on the best stages", 29_100_000, 0)],
        "keeps_order": True,
        "stages": [stage("front", 0), stage("back", 1)],
    }
    return SimpleNamespace(**values | changes)


def told(of) -> str:
    return "\n".join(lines(of, gain_of(of)))


def test_the_line():
    assert told(program()) == (
        'plan 3f2a91c0d4e5 on placement "gpt-4", 8 micro-batches: expected to be 1.33 times as fast as your run when it was profiled (1.24 by other stages, 1.08 by the schedule)\n'
        "measured 37.5 -> expected 28.1 ms a step; layers alone: 36.0 -> 27.0 ms (1F1B on the best stages: 29.1 ms), scaled by 1.04"
    )


@pytest.mark.parametrize(
    "measured, said",
    [
        # 9 ms more than the layers add up to, of which the plan shortens a part
        (45, "1.25 to 1.33 times as fast as your run when it was profiled\nmeasured 45.0 -> expected 33.8 to 36.0 ms a step; layers alone: "),
        (18, "1.33 times as fast as your run when it was profiled\nmeasured 18.0 -> expected 13.5 ms a step, in doubt: no step is shorter than its layers, so these were measured while the machine was busier; layers alone: "),
    ],
)  # fmt: skip
def test_the_line_where_layers_say_little_of_the_step(measured, said):
    assert said in told(program(beside=[("your run now", 36_000_000, measured * 1_000_000)]))


def test_the_line_of_another_batch_size_keeps_to_one_yardstick():
    beside = [("interleaved 1F1B on the plan's stages", 28_000_000, 0), ("GPipe", 29_000_000, 0)]
    what = 'plan 3f2a91c0d4e5 on placement "gpt-4", 8 micro-batches: '
    assert changed(program(beside=beside)) == changed(program(beside=[])) == f"{what}predicted 27.0 ms a step"
    own = (
        "1F1B on DeepSpeed's own partition when it was profiled (1.24 by other stages, 1.08 by the schedule)"
    )
    assert changed(program()) == f"{what}expected to be 1.33 times as fast as {own}"
    unmeasured = [("your run now", 36_000_000, 0)]
    assert changed(program(beside=unmeasured)).endswith("as fast as 1F1B on DeepSpeed's own partition")
    assert ", 1 micro-batch: " in changed(program(micro_batches=1))
    assert ", 1 micro-batch: " in told(program(micro_batches=1))


def test_the_line_after_a_move_is_of_this_plan_alone():
    assert after_move(program(), 90_000_000, 142_000_000) == (
        'plan 3f2a91c0d4e5 on placement "gpt-4", 8 micro-batches: expected to take 90.0 ms a step, without the optimizer; '
        "142.0 ms before the move"
    )


def test_what_was_compared_depends_on_what_is_recomputed():
    config = SimpleNamespace(_param_dict={"train_batch_size": 8, "ostinato": {}})
    one, other = (
        digest_of(config, SimpleNamespace(activation_checkpoint_interval=every)) for every in (0, 1)
    )
    assert one != other


def test_stages_that_gain_nothing_lose_nothing():
    beside = [("your run now", 36_000_000, 0), ("1F1B on the best stages", 36_500_000, 0)]
    assert "your run now (1.00 by other stages, 1.33 by the schedule)\npredicted 36.0" in told(
        program(beside=beside)
    )


def test_the_line_where_nothing_was_measured():
    assert told(program(beside=[("1F1B on the best stages", 36_000_000, 0)], whole_step=29_500_000)).endswith(
        "1.33 times as fast as 1F1B on the best stages\npredicted 36.0 -> 27.0 ms a step; 29.5 ms with the optimizer"
    )


def test_the_line_counts_the_optimizer_of_both():
    """37.5 ms are measured with it, and the layers' 36.0 are without. So are the shares: 39 / 32.1 and 32.1 / 30."""
    assert (
        "expected to be 1.30 times as fast as your run when it was profiled (1.21 by other stages, 1.07 by the schedule)\nmeasured 37.5 -> expected 28.8 ms a step; layers alone: 36.0 -> 27.0 ms (1F1B on the best stages: 29.1 ms), scaled by 0.96"
        in told(program(whole_step=30_000_000))
    )


@pytest.mark.parametrize("measured", [0, 75_000_000, 200_000_000])
def test_the_shares_multiply_to_what_is_expected(measured):
    """The optimizer takes a third of a step: of layers alone the plan gains 1.33, of steps 1.21."""
    beside = [("your run now", 36_000_000, measured), ("1F1B on the best stages", 30_000_000, 0)]
    line = told(program(beside=beside, whole_step=42_000_000))
    times = re.search(r"([\d.]+) times as fast .*\(([\d.]+) by other stages, ([\d.]+) by the schedule", line)
    assert times is not None
    headline, stages, schedule = map(float, times.groups())
    assert headline == (1.21 if measured else 1.33)
    assert stages * schedule == pytest.approx(headline, abs=0.012)


@pytest.mark.parametrize(("now", "worth"), [(27_000_000, False), (27_100_000, False), (27_300_000, True)])
@pytest.mark.parametrize("measured", [20_000_000, 60_000_000])
def test_a_plan_is_worth_it_where_its_step_is_shorter_than_the_one_measured(now, worth, measured):
    assert gain_of(program(beside=[("your run now", now, measured)])).is_worth_it == worth
    assert gain_of(program(beside=[("your run now", now, 0)])).is_worth_it  # nothing says otherwise


def test_the_line_without_1f1b():
    assert told(program(beside=[])).endswith("8 micro-batches: expected to take 27.0 ms a step")


def test_the_line_of_forwards_only():
    assert "8 requests: predicted 27.000 ms; forwards only" in told(
        program(stages=[stage("front", 0, has_backward=False)])
    )


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        (
            expected(program(keeps_order=False), [], False),
            "the same losses as 1F1B up to rounding, because gradients or losses are added in a different order",
        ),
        (expected(program(), ["embed"], False), "layers tied as embed"),
        (expected(program(stages=[stage("head", 0, 1)]), [], False), "several ranks compute parts of head "),
        (expected(program(), [], True), "gradient clipping"),
        (expected(program(), [], False, copies=2), "gradients of the 2 directions"),
        (expected(program(), [], False, branches=True), "gradients of outputs that several layers read"),
    ],
)
def test_no_more_is_promised_than_holds(losses, words):
    assert words in losses and "bit for bit" not in losses and "\n" not in losses


def test_conditions_are_said_with_the_promise():
    """Of an embedding's positions, say, which the head does not use."""
    said = expected(program(), [], False, unless=["this", "that"])
    assert said.endswith("bit for bit, unless this or that") and is_exact(said)
    assert not is_exact(expected(program(keeps_order=False), [], False, unless=["this"]))


def batches_of(count: int, there: int) -> Batches:
    """Of a rank that holds the first and the last stage, whose iterator has `there` items."""
    buffers = {name: [None] * count for name in ("inputs", "labels")}
    engine = SimpleNamespace(pipe_buffers=buffers, _ostinato=SimpleNamespace(step=StepState()))
    items = iter(range(there))

    def load(_engine, index):
        item = next(items)
        for name in ("inputs", "labels"):
            buffers[name][index] = torch.full((2,), float(item))

    engine._INSTRUCTION_MAP = {schedule.LoadMicroBatch: load}
    first, last = Stage(0, (0,), [0, 1], outputs=(1,)), Stage(3, (0,), [6, 7], inputs=(2,))
    return Batches(engine, count, [first, last], 1)


def test_data_that_end_in_the_middle_are_no_end_of_an_epoch():
    """StopIteration would be taken for one, while other ranks wait for the rest of the step."""
    with pytest.raises(StopIteration):
        batches_of(4, 0).take(0, "inputs")
    batches = batches_of(4, 2)
    assert [batches.take(i, "inputs")[0] for i in range(2)] == [0, 1]
    with pytest.raises(
        OstinatoError, match="ended after 2 of 4 micro-batches, in the middle of a train_batch"
    ):
        batches.take(2, "inputs")


def test_inputs_of_a_batch_do_not_wait_for_its_labels():
    """The rank of a V reads both, and takes the labels much later."""
    batches = batches_of(2, 2)
    inputs = batches.take(1, "inputs")
    assert inputs.tolist() == [1, 1]
    held = weakref.ref(inputs)
    del inputs
    assert held() is None
    assert batches.take(0, "inputs").tolist() == [0, 0]  # read on the way
    assert [batches.take(i, "labels").tolist() for i in range(2)] == [[0, 0], [1, 1]]
    with pytest.raises(KeyError):
        batches.take(0, "labels")


def test_layers_of_ranks():
    stages = [Stage(0, (1,), range(2)), Stage(1, (0,), [2]), Stage(2, (0,), [3]), Stage(3, (0, 1), [4, 5])]
    assert layers_of_ranks(stages) == [[2, 3, 4, 5], [0, 1, 4, 5]]


class Planned(SimpleNamespace):
    peer = -1

    def __str__(self):
        return f"{self.stage}{self.action}{self.micro_batch}"


def test_trace_is_what_report_reads(tmp_path):
    planned = [
        Planned(action="F", stage=0, micro_batch=0, start=0, end=5),
        Planned(action="B", stage=0, micro_batch=0, start=5, end=15),
    ]
    plan = program(instructions=lambda rank: planned)
    executor = SimpleNamespace(records=lambda: [(0, 1, 6), (1, 7, 20)])
    trace = Trace(tmp_path / "new", plan, rank=0, device=0)
    written = []
    for step in range(1, 12):
        trace.step(0.5 * step, executor)
        if json.loads((tmp_path / "new" / "rank-0.json").read_text())["step"] == step:
            written.append(step)
    assert written == [1, 2, 3, 4, 5, 7, 9]  # less and less often
    trace.write()
    (read,) = read_traces(tmp_path / "new")
    assert (read.step, read.step_seconds[-1], read.makespan) == (11, 5.5, 27_000_000)
    assert [(i.text, i.planned, i.measured) for i in read.instructions] == [("0F0", 5, 5), ("0B0", 10, 13)]
    assert [(block.action, block.median, block.steps) for block in read.blocks] == [
        ("B", 13, 9),  # the first two steps warm up
        ("F", 5, 9),
    ]
    assert read.peak_memory > 0 and read.peak_memory_of in ("process", "accelerator")


def test_a_run_on_the_processors_of_a_machine_with_gpus_tells_of_its_process():
    from deepspeed.accelerator import cpu_accelerator
    from ostinato.deepspeed.tell import trace

    with (
        mock.patch.object(torch.accelerator, "is_available", return_value=True),
        mock.patch.object(torch.accelerator, "max_memory_allocated", return_value=0),
        mock.patch.object(trace, "get_accelerator", cpu_accelerator.CPU_Accelerator),
    ):
        held = trace._peak_memory()
    assert held["peak_memory_of"] == "process" and held["peak_memory"] > 0


@pytest.mark.parametrize(
    ("kept", "then", "noted"), [(True, [8, 8], False), (True, [14, 2], True), (True, None, False), (False, [14, 2], False)]
)  # fmt: skip
def test_a_plan_that_was_compared_with_another_partition_says_so(monkeypatch, tmp_path, kept, then, noted):
    monkeypatch.setattr(install, "of_rank_0", lambda answer: answer())
    (tmp_path / "profile.json").write_text(json.dumps({"run": {"layers": then}} if then else {}))
    prepared = SimpleNamespace(kept=kept, checked=lambda: (None, SimpleNamespace(output=tmp_path)))
    said = install.of_another_partition(prepared, SimpleNamespace(partitions=lambda: [0, 8, 16]))
    assert said.startswith("DeepSpeed's partition has stages of 8|8 layers, and had 14|2 when") == noted
    assert bool(said) == noted


def test_a_rank_with_frozen_layers_alone_has_something_to_train_for_the_scripts_optimizer():
    layer = torch.nn.Linear(2, 2).requires_grad_(False)
    model = torch.nn.Sequential(layer)
    idle = give_idle(model, [])
    learns = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert len(learns) == 1 and learns[0] is idle
    groups = torch.optim.AdamW(learns).param_groups
    unfilled = [{"params": []}, {"params": [layer.weight]}]
    for given, after in ((groups, [1]), (unfilled, [1, 1]), (unfilled, [1, 1])):  # once
        assert give_idle(model, given) is idle and [len(group["params"]) for group in given] == after
    layer.weight.requires_grad_(True)
    assert give_idle(model, groups) is None and not idle.requires_grad
