# SPDX-License-Identifier: Apache-2.0
"""Scripts with trainers' habits (ways/), each in a run of DeepSpeed alone, under a plan that moves layers,
and under "auto", which starts all ranks again: the same losses and weights, or a refusal before the second
start with advice that works.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import ostinato
import pytest
from support.started import Run, launched
from support.tiers import everyday

WAYS = Path(__file__).parent / "ways"
LAYERS, BATCHES = 8, 4  # as ways/common.py has them
OPTIMIZER = {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}}
OWN = ("frozen", "own_optimizer", "two_engines")  # scripts with optimizers
AUTO = {"auto": True, "fallback": False, "search": {"time_limit": 1}}
AGAIN = "all ranks start again, once"
EQUAL = r"ostinato: measured: step 1: loss, gradients and weights of \d layers equal DeepSpeed's 1F1B bit for bit( \(layers? .* no parameter or buffer of (its|their) own\))?\n"


@dataclass(frozen=True)
class Trained:
    """What the script has written down, by rank; [] where it has not come to its end."""

    run: Run
    losses: list[list[str]]
    weights: dict[str, str]
    more: list[dict]

    @property
    def result(self) -> tuple:
        return self.losses, self.weights, self.more


@pytest.fixture(scope="session")
def plan(tmp_path_factory):
    """Two chunks a rank, in turn."""
    folder = tmp_path_factory.mktemp("plan")
    placement = ostinato.placement("looped", devices=2, chunks=2, layers=LAYERS)
    placement.save(folder / "placement.toml")
    ostinato.search(placement, micro_batches=BATCHES, time_limit=1).save(folder / "plan.json")
    return {"plan": str(folder / "plan.json")}


@pytest.fixture
def train(tmp_path):
    """train("hooks", section, late=False, ...): runs a script; `late`: it reads the section after it has made
    its model. Scripts of one test share the folder in which checkpoints lie.
    """
    runs = 0

    def run(
        way: str,
        section: dict | None = None,
        late: bool = False,
        environment: dict | None = None,
        kind: str = "",
        micro_batches: int = BATCHES,
        real: bool = False,
    ) -> Trained:
        nonlocal runs
        runs += 1
        folder = tmp_path / str(runs)
        folder.mkdir()
        configuration = {
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": micro_batches,
            "gradient_clipping": 1.0,
        }
        configuration |= {} if way in OWN else {"optimizer": OPTIMIZER}
        configuration |= {} if section is None else {"ostinato": {"timeout_s": 60} | section}
        (folder / "ds.json").write_text(json.dumps(configuration))
        given = [
            "--late" if late else "--deepspeed_config",
            str(folder / "ds.json"),
            "--results",
            str(folder / "result"),
            "--kind",
            kind,
        ]
        return _read(
            launched(
                WAYS / f"{way}.py",
                [*given, "--folder", str(tmp_path / "kept")],
                folder,
                "yes\nno\n",
                environment,
                real,
            ),
            folder,
        )

    return run


def _read(run: Run, folder: Path) -> Trained:
    found = [
        json.loads(file.read_text()) for rank in range(2) if (file := folder / f"result.{rank}").exists()
    ]
    weights = {name: digest for of_rank in found for name, digest in of_rank["weights"].items()}
    return Trained(
        run, [of_rank["losses"] for of_rank in found], weights, [of_rank["more"] for of_rank in found]
    )


def check(ours: Trained, plain: Trained) -> None:
    assert plain.run.status == [0, 0] and len(plain.losses) == 2, plain.run.said[-3000:]
    assert ours.run.status == [0, 0], ours.run.said[-3000:]
    assert ours.result == plain.result


def refused(ours: Trained) -> str:
    """What is said where a run ends before its second start."""
    assert ours.run.status == [1, 1] and not ours.losses and AGAIN not in ours.run.said, ours.run.said[-3000:]
    return ours.run.said


ALL = ("adapters", "borrowed", "dropout", "evaluates_first", "first_norm", "frozen", "hooks", "loader", "loss_layer", "megatron", "numbers_layers", "own_optimizer", "subclass",
       "surroundings", "talks_to_last", "tied", "training_data", "two_engines", "wrapped_step")  # fmt: skip
# Every day the one with most habits; those of the rest are tried one by one in test_strangers*.py,
# test_deepspeed_changed.py, test_deepspeed_forward_state.py, test_deepspeed_engines.py and, what goes around
# a second start, test_again.py.
EVERY_DAY = ("megatron",)


@pytest.mark.parametrize("way", everyday(ALL, *EVERY_DAY))
def test_equal(train, plan, way):
    plain = train(way)
    planned, found = train(way, plan), train(way, AUTO, real=True)
    check(planned, plain)
    check(found, plain)
    assert "ostinato: plan " in planned.run.said and AGAIN not in planned.run.said
    assert found.run.said.count(AGAIN) == 1 and re.search(EQUAL, found.run.said)


MOVED = 'with "check": 1 the step first runs under DeepSpeed\'s own schedule, which shows whether it fails there, too; layers of each rank: '
RESTORED = r"ostinato: trainable weights of \d layers differed from those of the first start, "


@pytest.mark.slow  # test_first_weights.py has the same in one process
def test_adapters_that_each_rank_draws(train, plan):
    """The second start trains from those of the first. Without a first start, layers that moved have different
    ones."""
    plain, found, planned = (train("adapters", section, kind="drawn") for section in (None, AUTO, plan))
    check(found, plain)
    assert re.search(EQUAL, found.run.said) and re.search(RESTORED, found.run.said)
    assert planned.run.status == [0, 0] and planned.losses != plain.losses
    assert not re.search(RESTORED, planned.run.said)


@pytest.mark.slow  # test_loss_reads.py has such a model
def test_a_loss_that_reads_what_a_layer_has_stored(train, plan):
    """ "auto" keeps both in one stage. A plan that does not is refused where DeepSpeed's own schedule shows it first;
    else step 1 fails, and the error says what is different from DeepSpeed's partition."""
    plain, found = train("stores_loss"), train("stores_loss", AUTO)
    check(found, plain)
    assert re.search(EQUAL, found.run.said)
    why = 'the plan has layer 5 and the loss in different stages, but the loss reads "extra", which layer 5 stores'
    assert why in refused(train("stores_loss", plan | {"check": 1}))
    failed = train("stores_loss", plan)
    assert 0 not in failed.run.status and not failed.losses
    assert MOVED in failed.run.said, failed.run.said[-3000:]


def test_a_plan_that_comes_after_the_model(train, plan):
    late = train("own_optimizer", plan, late=True)
    check(late, train("own_optimizer"))
    assert late.run.said.count(AGAIN) == 1 and "ostinato: plan " in late.run.said


@pytest.mark.slow  # test_placing.py compares as many steps as there are
def test_fewer_steps_than_are_checked(train, plan):
    """The run is DeepSpeed's own, and says so."""
    for way, section in (("one_step", plan | {"check": 3}), ("never_trains", AUTO)):
        ours = train(way, section)
        check(ours, train(way))
        assert AGAIN not in ours.run.said and ours.run.said.count("no plan has run") == 1, ours.run.said[
            -3000:
        ]


@pytest.mark.slow  # test_deepspeed_inference.py has what it trains and evaluates
def test_a_script_that_evaluates_runs_a_plan(train, plan):
    check(train("never_trains", plan), train("never_trains"))


@pytest.mark.slow  # test_again.py has such a script, test_placing.py what it is told to do
def test_a_script_that_reads_standard_input(train, plan):
    """It cannot start again by itself, and does as it is told."""
    plain = train("reads_input")
    for section, late in ((AUTO, False), (plan, True)):
        said = refused(train("reads_input", section, late))
        assert "(the script has read standard input, which cannot be read twice)" in said
        advice = re.search(r"start it again with (OSTINATO_PLAN)=(\S+)", said)
        assert advice, said[-3000:]
        check(train("reads_input", section, late, dict([advice.groups()])), plain)


@pytest.mark.slow  # test_deepspeed_refusals.py has another model, test_deepspeed_engines.py several engines
def test_a_second_model_of_another_shape(train, plan):
    """A plan is for one of them; where "auto" has found it, the other one runs without."""
    plain, found = train("two_models"), train("two_models", AUTO)
    check(found, plain)
    assert "which runs under DeepSpeed's own schedule" in found.run.said and re.search(EQUAL, found.run.said)
    assert "is for a model of 8 layers, but this PipelineModule has 6" in refused(train("two_models", plan))


@pytest.mark.slow  # test_deepspeed_stopped.py names who is late, with the line
def test_a_loader_that_waits_for_another_rank(train, plan):
    """It relies on the order in which ranks read under 1F1B: who waits for nobody in the pipeline is named,
    with the line of the script."""
    assert train("sends").run.status == [0, 0]
    ours = train("sends", plan | {"timeout_s": 5})
    assert 0 not in ours.run.status and not ours.losses
    waits = (WAYS / "sends.py").read_text().splitlines().index(" " * 16 + "sent.wait()") + 1
    told = rf"rank 1 gave up; rank 0 is in step \d at instruction \d+ of \d+ \(\w+\), /\S+/sends.py:{waits}, in shared\. It said: rank 1 "
    assert re.search(told, ours.run.said), ours.run.said[-3000:]


@pytest.mark.slow  # test_deepspeed_checkpoint.py has the plan, test_deepspeed_search.py "auto"
def test_a_checkpoint_of_deepspeed_alone(train, plan):
    """Optimizer state goes to the ranks that hold its layers, in either start."""
    assert train("resumes").run.status == [0, 0]
    plain = train("resumes")
    for section in (plan, plan | {"check": 1}, AUTO):
        check(train("resumes", section), plain)
    plain = train("weights_only")
    check(train("weights_only", plan), plain)
    check(train("weights_only", AUTO), plain)


def test_an_engine_with_a_forward_pass_that_keeps_several_losses(train, plan):
    """It runs once for all layers of a rank, so a plan with several stages a rank is refused, and a search
    makes none."""
    plain, found = train("reports"), train("reports", AUTO)
    check(found, plain)
    assert re.search(EQUAL, found.run.said)
    for section in (plan, plan | {"check": 1}):
        assert "Reporting has its own forward pass" in refused(train("reports", section))


@pytest.mark.slow  # test_strangers.py has such an engine under a plan
def test_an_engine_with_its_own_backward_pass(train):
    """It is refused before its first step, or trains without a plan."""
    plain, ours = train("own_backward"), train("own_backward", AUTO | {"require": False})
    check(ours, plain)
    assert AGAIN not in ours.run.said
    assert "engine._exec_backward_pass() is not DeepSpeed's own" in refused(train("own_backward", AUTO))


def test_gradients_cross_a_border_as_they_lie_in_memory(train, plan):
    plain, checked = train("transposed"), train("transposed", plan | {"check": 1})
    check(checked, plain)
    assert re.search(EQUAL, checked.run.said)


def test_what_a_border_makes_contiguous(train, plan):
    """It may round, which rank 0 says unless a check measures that it does not."""
    planned, checked = (train("transposed", section, kind="slice") for section in (plan, plan | {"check": 1}))
    assert planned.run.status == [0, 0] and checked.result == planned.result
    assert "passes from layer 5 to the next, or its gradient, is a slice or expanded" in planned.run.said
    assert re.search(EQUAL, checked.run.said) and "slice or expanded" not in checked.run.said


@pytest.mark.parametrize(
    "kind", everyday(["module", "environment", "iterator", "context", "logger"], "module")
)
def test_layers_that_share_state(train, plan, kind):
    """Against the contract: nothing says that losses are equal."""
    plain, ours = train("shares_state", kind=kind), train("shares_state", plan, kind=kind)
    assert ours.run.status == [0, 0] and ours.losses != plain.losses
    assert "expected: the same losses as 1F1B, bit for bit" in ours.run.said and not re.search(
        "ostinato: .*equal", ours.run.said
    )


@pytest.mark.slow  # test_placing.py stops such a run
def test_shared_state_is_measured(train, plan):
    """The run stops, and names the step and a layer."""
    checked = train("shares_state", plan | {"check": 1}, kind="environment")
    assert checked.run.status == [1, 1] and not checked.losses and AGAIN in checked.run.said
    named = r"step 1 differs from .*: loss by .*, gradient of layer \d \(\d.linear.weight\) by"
    assert re.search(named, checked.run.said), checked.run.said[-3000:]


SLOWER = "ostinato: this plan is slower than your run before"


def test_a_slower_plan_is_given_up(train):
    """All ranks start a third time, under DeepSpeed's own schedule, and train what it trains."""
    plain, ours = train("slower"), train("slower", AUTO | {"fallback": True})
    assert ours.run.status == [0, 0] and (ours.losses, ours.weights) == (plain.losses, plain.weights), (
        ours.run.said[-3000:]
    )
    assert [rank["starts"] for rank in ours.more] == [3, 3] and ours.run.said.count(SLOWER) == 2
    assert re.search(
        r"ostinato: .*slower than .*; the run goes on under DeepSpeed's own schedule\n", ours.run.said
    )


@pytest.mark.slow  # test_speedup.py has what is decided
@pytest.mark.parametrize(
    ("kind", "section", "why"),
    [
        (
            "saves",
            AUTO | {"fallback": True},
            "(the plan stays, because a checkpoint was saved or loaded under it)",
        ),
        ("", AUTO, "turn it off or profile again\n"),
    ],
)
def test_a_slower_plan_that_stays(train, kind, section, why):
    ours = train("slower", section, kind=kind)
    assert ours.run.status == [0, 0] and [rank["starts"] for rank in ours.more] == [2, 2], ours.run.said[
        -3000:
    ]
    assert ours.run.said.count(SLOWER) == 1 and why in ours.run.said


STAYS = "the run goes on under DeepSpeed's own schedule"


def test_the_own_schedule_stays_where_the_plan_is_expected_to_gain_nothing(train, tmp_path):
    """The run starts again without a plan, once; the next one runs none either."""
    out = tmp_path / "out"
    section = {"auto": True, "search": {"time_limit": 1, "max_chunks": 1}, "output": str(out)}
    plain, first, second = (train("settled", given, micro_batches=1) for given in (None, section, section))
    for ours, starts in ((first, 2), (second, 1)):
        assert ours.run.status == [0, 0] and ours.run.said.count(STAYS) == 1, ours.run.said[-3000:]
        assert (ours.losses, ours.weights) == (plain.losses, plain.weights)
        assert [rank["starts"] for rank in ours.more] == [
            starts
        ] * 2 and "ostinato: plan " not in ours.run.said
    takes = (
        r"DeepSpeed's own step takes \S+ ms, measured, and the plan's \S+ ms, expected and scaled by \d\.\d\d"
    )
    assert re.search(rf'{takes} \("fallback": false runs the plan\); {STAYS}\n', first.run.said)
    assert re.search(
        rf"the plan in {out} is not used \({takes}\); {STAYS}: delete verdict.json there", second.run.said
    )


ADAPT = AUTO | {"output": "out", "fallback": False, "adapt": {"every": 5, "move": True}}


def losses_by_step(ours: Trained, folder: Path) -> dict[str, set[str]]:
    """All of a step that was trained twice."""
    made: dict[str, set[str]] = {}
    for line in (folder / "result.0.losses").read_text().splitlines():
        step, loss = line.split()
        made.setdefault(step, set()).add(loss)
    return made


def test_a_plan_follows_its_run(train, tmp_path):
    """Rank 1 becomes slow: a new plan is searched, and the run goes on with it from its next checkpoint, with
    the losses of 1F1B."""
    plain, ours = train("drifts", kind="plain"), train("drifts", ADAPT)
    said = ours.run.said
    assert ours.run.status == [0, 0] and [rank["starts"] for rank in ours.more] == [3, 3], said[-3000:]
    assert re.search(r"step \d+: device 1 takes \d\.\d+ times as long as planned", said), said[-3000:]
    held = [rank["held"] for rank in ours.more]
    assert sum(held) == LAYERS and held[0] > held[1], held
    assert re.search(r"measured since the move: \S+ times as fast", said), said[-3000:]
    theirs, trained = losses_by_step(plain, tmp_path / "1"), losses_by_step(ours, tmp_path / "2")
    assert trained == {step: theirs[step] for step in trained}


def test_a_script_that_does_not_resume_is_not_moved_without_a_word(train):
    ours = train("drifts", ADAPT, kind="forgets")
    assert (
        ours.run.status == [1, 1]
        and "the script begins with step 1: let it load its latest checkpoint" in ours.run.said
    ), ours.run.said[-3000:]
