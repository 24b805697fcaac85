# SPDX-License-Identifier: Apache-2.0
"""When a plan is known, where layers lie then, and what starts again: by arguments, environment, enable(), or
too late."""

import base64
import hashlib
import io
import json
import os
import random
import re
import shutil
import sys
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from ostinato.deepspeed import hook
from ostinato.deepspeed.errors import OstinatoError
from ostinato.deepspeed.section import VARIABLE, kept, verdict
from ostinato.deepspeed.section.config import parse_section, resolve
from ostinato.deepspeed.start import second_start, start
from ostinato.deepspeed.start.second_start import NeedsNewStart
from support import training
from support.models import LAYERS
from support.plans import Layout, make_plan
from support.profiles import write_profile
from support.training import MICRO_BATCHES, Options, data_of, in_both_starts, refusal, weights

LAYOUTS = [
    Layout("wave", (1, 4, 6), (0, 1, 1, 0)),
    Layout("turned", (4,), (1, 0)),
    Layout("stock", (4,), (0, 1)),
]
BASE = Options(optimizer="SGD", steps=3)


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    return {x.name: str(make_plan(folder / x.name, x, LAYERS, MICRO_BATCHES)) for x in LAYOUTS}


def known(monkeypatch, arguments: list[str], variable: str = "") -> tuple:
    monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
    monkeypatch.setenv(VARIABLE, variable)
    return hook.known_section()


def test_a_section_is_found_where_it_stands(monkeypatch, tmp_path):
    section, file = {"plan": "plan.json"}, tmp_path / "ds_config.json"
    file.write_text(json.dumps({"ostinato": section}))
    for arguments in (
        ["--deepspeed_config", str(file)],
        [f"--deepspeed_config={file}"],
        ["--local_rank=0", "--deepspeed-config", str(file)],
    ):
        assert known(monkeypatch, arguments) == (section, str(file))
        # A script that reads the file and hands on what is in it.
        assert hook.section_of({"ostinato": dict(section)}) == (section, str(file))
        assert hook.section_of({"ostinato": {"plan": "another"}}) == ({"plan": "another"}, None)
    encoded = base64.urlsafe_b64encode(json.dumps({"ostinato": section}).encode()).decode()
    assert known(monkeypatch, ["--deepspeed_config", encoded]) == (section, None)
    assert known(monkeypatch, [], json.dumps(section)) == (section, None)
    assert known(monkeypatch, [], str(file)) == (section, str(file))
    plan = tmp_path / "plan.json"
    plan.write_text('{"format": "ostinato-plan/1"}')
    assert known(monkeypatch, [], str(plan)) == ({"plan": str(plan)}, str(plan))


def test_what_is_no_section_is_left_to_deepspeed(monkeypatch, tmp_path):
    (tmp_path / "none.json").write_text("{}")
    for arguments in (
        [],
        ["--deepspeed_config"],
        ["--deepspeed_config", "nowhere.json"],
        ["--deepspeed_config", str(tmp_path / "none.json")],
    ):
        assert known(monkeypatch, arguments)[0] is None
    with pytest.raises(OstinatoError, match="nowhere.json: no such file"):
        known(monkeypatch, [], "nowhere.json")
    with pytest.raises(OstinatoError, match=f"{tmp_path}: this is a folder, not a file; give a plan"):
        known(monkeypatch, [], str(tmp_path))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (
            '{"format": "ostinato-profile/9"}',
            r"made\.json is of the format ostinato-profile/9; give a plan\.json",
        ),
        ("[model]", r"made\.json is not valid JSON \(.*\); give a plan\.json"),
        ('{"format": "ostin', r"made\.json is not valid JSON"),
        ("\xff\x80", r"made\.json is not valid JSON \(.*can't decode byte 0xff"),
    ],
)
def test_a_wrong_file_in_the_environment_is_named(monkeypatch, tmp_path, content, told):
    (tmp_path / "made.json").write_text(content, "latin-1")
    with pytest.raises(OstinatoError, match=told):
        known(monkeypatch, [], str(tmp_path / "made.json"))


def test_a_wrong_section_in_the_environment_is_said_to_be_there(monkeypatch):
    with pytest.raises(OstinatoError, match='OSTINATO_PLAN: "auto" in the "ostinato" section must be'):
        known(monkeypatch, [], '{"auto": 3}')


def trained(options: Options, how: str) -> dict:
    """`how` the plan is known when the model is made. With which layers this rank has then."""
    import deepspeed
    import ostinato.deepspeed

    section, argv, printed = options.section, list(sys.argv), io.StringIO()
    made = options.configuration()
    if how == "arguments":
        encoded = base64.urlsafe_b64encode(json.dumps(made).encode()).decode()
        sys.argv += ["--deepspeed_config", encoded]
    if how == "enabled":
        del made["ostinato"]
        ostinato.deepspeed.enable(**section)
    try:
        with redirect_stdout(printed):
            model = training._make_model(options)
            held = sorted(name for name, _ in model.named_children() if name.isdigit())
            engine, *_ = deepspeed.initialize(
                model=model, model_parameters=list(model.parameters()), config=made
            )
    finally:
        sys.argv[:] = argv
        hook.disable()
    engine.batches = training.MODELS[options.model].micro_batches
    data = data_of(engine)
    return {
        "losses": [engine.train_batch(data).item() for _ in range(options.steps)],
        "weights": weights(engine),
        "held": held,
        "kind": type(engine).__mro__[1].__name__,
    }


@pytest.mark.parametrize("how", ["arguments", "enabled"])
def test_layers_are_there_when_the_model_is_made(world2, stock, plans, how):
    theirs = world2.run(trained, BASE, "")
    ours = world2.run(trained, replace(BASE, section={"plan": plans["turned"]}), how)
    assert [rank["held"] for rank in ours] == [rank["held"] for rank in reversed(theirs)]
    for mine, alone in zip(ours, theirs, strict=True):
        assert (mine["losses"], mine["weights"], mine["kind"]) == (
            alone["losses"],
            alone["weights"],
            "PlanEngine",
        )


def first_device(options: Options, how: str) -> int | None:
    """The device that is current when the rank first sends an object, as NCCL would from there."""
    from deepspeed.accelerator import get_accelerator

    current: list[int | None] = [None]
    sends: list[int | None] = []
    send = dist.all_gather_object

    def noted(*args, **kwargs):
        sends.append(current[0])
        return send(*args, **kwargs)

    with (
        mock.patch.object(get_accelerator(), "set_device", lambda number: current.__setitem__(0, number)),
        mock.patch.object(dist, "all_gather_object", noted),
        suppress(NeedsNewStart),
    ):
        trained(options, how)
    return sends[0]


@pytest.mark.parametrize("how", ["arguments", ""])
@pytest.mark.parametrize("section", ["plan", "auto"])
def test_ranks_first_speak_from_their_own_devices(world2, plans, how, section):
    given = {"plan": plans["wave"]} if section == "plan" else {"auto": True, "search": {"time_limit": 1}}
    assert world2.run(first_device, replace(BASE, section=given), how) == [0, 1]


def test_a_plan_that_comes_too_late_and_moves_nothing_runs(world2, plans):
    theirs = world2.run(trained, BASE, "")
    ours = world2.run(trained, replace(BASE, section={"plan": plans["stock"]}), "")
    assert [rank["losses"] for rank in ours] == [rank["losses"] for rank in theirs] and ours[0][
        "kind"
    ] == "PlanEngine"


def test_one_that_is_searched_then_and_moves_nothing_runs(world2, tmp_path):
    profile = write_profile(tmp_path / "profile.json", [100] * LAYERS)
    section = {
        "profile": str(profile),
        "search": {"time_limit": 1, "max_chunks": 1},
        "output": str(tmp_path / "out"),
    }
    assert world2.run(trained, replace(BASE, section=section), "")[0]["kind"] == "PlanEngine"
    assert "layers = [4, 8]" in (tmp_path / "out" / "placement.toml").read_text()


def too_late(options: Options) -> str:
    try:
        trained(options, "")
    except NeedsNewStart as error:
        return f"{sorted(error.files)} {error}"
    return ""


def test_one_that_moves_layers_starts_again_or_says_how(world2, plans):
    first, second = world2.run(too_late, replace(BASE, section={"plan": plans["wave"]}))
    # weights are those of every engine of the process that is not collected: earlier tests' may be
    files = r"\['engine.txt', 'placement.toml', 'plan.json', 'section.json', 'unplanned.json'(, 'weights-[0-9a-f]+.pt')+\]"
    assert re.match(files, first) and re.match(files, second)
    for said in (first, second):  # of mp.spawn's children, one is heard
        assert (
            f"start it again with {VARIABLE}={plans['wave']}" in said and "child of multiprocessing" in said
        )


def test_every_rank_says_where_a_plan_without_output_is(world2, tmp_path):
    profile = write_profile(tmp_path / "profile.json", [800, *[100] * (LAYERS - 1)])
    section = {"profile": str(profile), "search": {"time_limit": 1, "max_chunks": 1}}
    first, second = (
        re.search(rf"start it again with {VARIABLE}=(\S+plan\.json)", said)
        for said in world2.run(too_late, replace(BASE, section=section))
    )
    assert first is not None and second is not None and first[1] == second[1]
    shutil.rmtree(Path(first[1]).parent)


def named_otherwise(options: Options, other: str) -> str:
    with training.known({"plan": other}):
        model = training._make_model(options)
    made, training.make_model = training.make_model, lambda _: model
    try:
        return refusal(options)
    finally:
        training.make_model = made


def test_a_model_of_another_plan_is_refused(world2, plans):
    for said in world2.run(named_otherwise, replace(BASE, section={"plan": plans["turned"]}), plans["wave"]):
        assert 'placed its layers for placement "wave"' in said and 'names a plan on "turned"' in said
        assert said.endswith('in its own "with ostinato.deepspeed.enable(...)"')
    for said in world2.run(named_otherwise, BASE, plans["wave"]):
        assert "this engine's configuration names no plan" in said


def scaled(options: Options) -> dict:
    """A PipelineModule with its own forward(), around all layers of a rank."""
    from deepspeed import pipe

    class Scaled(pipe.PipelineModule):
        def forward(self, inputs):
            made = super().forward(inputs)
            return made * 1.5 if self.stage_id == self.num_stages - 1 else made

    module, pipe.PipelineModule = pipe.PipelineModule, Scaled
    try:
        return checked(options)
    finally:
        pipe.PipelineModule = module


def test_a_forward_around_the_layers_of_a_rank_leaves_one_stage_to_each(world2, stock, tmp_path, plans):
    profile = write_profile(tmp_path / "profile.json", [300] * 4 + [100] * (LAYERS - 4))
    section = {"profile": str(profile), "search": {"time_limit": 1}, "output": str(tmp_path / "out")}
    theirs = stock(world2, BASE, scaled)
    ours = world2.run(in_both_starts, scaled, replace(BASE, section=section))
    assert not ours[0]["error"]
    assert [rank["losses"] for rank in ours] == [rank["losses"] for rank in theirs]
    assert (tmp_path / "out" / "placement.toml").read_text().count("[[stages]]") == 2
    for rank in world2.run(scaled, replace(BASE, section={"plan": plans["wave"]})):
        assert "Scaled has its own forward()" in rank["error"] and "--max-chunks 1" in rank["error"]


def test_what_auto_measures_says_that_the_module_has_its_own_forward(world2, tmp_path):
    section = {"auto": True, "search": {"time_limit": 1, "ends": "free"}, "output": str(tmp_path)}
    assert not world2.run(in_both_starts, scaled, replace(BASE, section=section))[0]["error"]
    restrictions = json.loads((tmp_path / "profile.json").read_text())["restrictions"]
    assert [row["rule"] for row in restrictions] == ["most_chunks", "no_shards"] and restrictions[0][
        "chunks"
    ] == 1


def test_a_kept_plan_that_the_options_forbid_is_refused(world2, plans):
    section = {"auto": True, "output": str(Path(plans["wave"]).parent)}
    for rank in world2.run(checked, replace(BASE, section=section)):
        assert (
            "the plan has inputs or loss not on the devices of 1F1B" in rank["error"]
            and '"search": {"ends": "free"} allows them' in rank["error"]
            and not rank["losses"]
        )
    assert not world2.run(checked, replace(BASE, section={**section, "search": {"ends": "free"}}))[0]["error"]


# ---- check


def test_a_given_profile_is_searched_before_the_steps_that_are_compared(world2, tmp_path):
    profile = write_profile(tmp_path / "profile.json", [100] * 4 + [300] * (LAYERS - 4))
    section = {
        "profile": str(profile),
        "check": 1,
        "search": {"time_limit": 1},
        "output": str(tmp_path / "out"),
    }
    ours = world2.run(in_both_starts, checked, replace(BASE, section=section))
    assert "measured: step 1:" in ours[0]["said"] and not (tmp_path / "out" / "profile.json").exists()


def test_a_plan_in_output_is_found_where_the_section_comes_late(world2, plans):
    section = {"auto": True, "output": str(Path(plans["stock"]).parent)}
    ours = world2.run(trained, replace(BASE, section=section), "")
    assert ours[0]["kind"] == "PlanEngine" and not (Path(plans["stock"]).parent / "profile.json").exists()


def said_in_the_first_start(options: Options) -> tuple[str, str]:
    """And the kind of its engine; "": it would start again."""
    printed, kind = io.StringIO(), ""
    with redirect_stdout(printed), suppress(NeedsNewStart):
        engine = training.make_engine(options)
        engine.train_batch(data_of(engine))
        kind = type(engine).__name__
    return printed.getvalue(), kind


def test_a_plan_that_a_run_has_given_up_is_not_used(world2, plans, tmp_path):
    """Unless it is to run anyway."""
    out = shutil.copytree(Path(plans["stock"]).parent, tmp_path / "out")
    verdict.leave(out / "plan.json", verdict.digest_of(out / "plan.json"), verdict.OWN, "it was slower")
    options = replace(BASE, section={"auto": True, "fallback": True, "output": str(out)})
    why = f"ostinato: the plan in {out} is not used (it was slower); the run goes on under DeepSpeed's own schedule: delete verdict.json there"
    said, kind = world2.run(said_in_the_first_start, options)[0]
    assert why in said and kind == "PipelineEngine" and "ostinato: running" not in said
    options.section["fallback"] = False
    said, kind = world2.run(said_in_the_first_start, options)[0]
    assert "not used" not in said and "ostinato: plan " in said


def test_after_a_plan_that_was_slower_than_in_an_earlier_run_the_next_one_measures(world2, plans, tmp_path):
    out = shutil.copytree(Path(plans["stock"]).parent, tmp_path / "out")
    verdict.leave(out / "plan.json", verdict.digest_of(out / "plan.json"), verdict.MEASURE, "it was slower")
    section = {"auto": True, "fallback": True, "output": str(out), "search": {"time_limit": 1}}
    said, kind = world2.run(said_in_the_first_start, replace(BASE, section=section))[0]
    assert "is not used (it was slower); measuring again" in said and "running the first step under" in said
    assert kind == "" and (out / "profile.json").is_file()


def test_after_a_plan_that_was_not_equal_the_next_start_measures(world2, plans, tmp_path):
    """Also where it is to run however slow it is; a retried job would train under it."""
    out = shutil.copytree(Path(plans["stock"]).parent, tmp_path / "out")
    said = "step 1 differs from DeepSpeed's 1F1B beyond rounding: loss by 0.1"
    section = {"auto": True, "fallback": False, "output": str(out), "search": {"time_limit": 1}}
    under = {"plan_sha256": verdict.digest_of(out / "plan.json")}
    for within, require in ((True, True), (False, False), (False, True)):
        verdict.leave_check(out / "plan.json", verdict.Check(under, said, False, within))
        options = replace(BASE, section=section | {"require": require})
        printed, kind = world2.run(said_in_the_first_start, options)[0]
        measures = require and not within
        assert (f"is not used ({said}); measuring again" in printed) == (kind == "") == measures


def said_on_a_gpu(options: Options, name: str) -> tuple[str, str]:
    with mock.patch.object(kept, "gpu", lambda: name):
        return said_in_the_first_start(options)


def test_what_was_measured_on_another_gpu_is_measured_again(world2, plans, tmp_path):
    out = shutil.copytree(Path(plans["stock"]).parent, tmp_path / "out")
    before = json.dumps({"timer": "device-events", "device": {"name": "NVIDIA A100"}})
    (out / "profile.json").write_text(before)
    section = {"auto": True, "fallback": False, "output": str(out), "search": {"time_limit": 1}}
    options = replace(BASE, section=section)
    for name in ("NVIDIA A100", ""):
        said, kind = world2.run(said_on_a_gpu, options, name)[0]
        assert "not used" not in said and "ostinato: plan " in said and kind
    said, kind = world2.run(said_on_a_gpu, options, "NVIDIA H200")[0]
    assert "is not used (it was measured on NVIDIA A100, this is NVIDIA H200); measuring again" in said
    assert kind == "" and (out / "profile.json").read_text() != before
    # Nor is there a search with these measurements, for another number of ranks.
    (out / "profile.json").write_text(before)
    parsed, size = parse_section(section, "x.json"), kept.Size(4, MICRO_BATCHES)
    for name, known in (("NVIDIA A100", True), ("NVIDIA H200", False)):
        with mock.patch.object(kept, "gpu", lambda name=name: name):
            assert (kept.profile_for(parsed, resolve(parsed, None), size) is not None) == known


DIGEST_OF_A = hashlib.sha256(b"a").hexdigest()


def said_after_a_fallback(options: Options, out: str, seconds: list[float], grows: bool = False) -> str:
    """`grows`: the script makes the batch larger."""
    printed = io.StringIO()
    plan = Path(out) / "plan.json"
    left = json.dumps(["the engine", str(plan), verdict.digest_of(plan), seconds])
    with (
        mock.patch.object(start, "named", lambda _: "the engine"),
        training.second_start({"without.txt": "it was slower", "given_up.json": left}),
        redirect_stdout(printed),
    ):
        engine = training.make_engine(options)
        data = data_of(engine)
        for step in range(options.steps):
            if grows and step == 3:
                engine.set_train_batch_size(2 * engine.train_batch_size())
            engine.train_batch(data)
    return printed.getvalue()


def test_a_verdict_of_a_busy_minute_is_withdrawn(world2, plans, tmp_path):
    """Where DeepSpeed's own steps take longer after all; not where they are shorter, or other steps."""
    out = shutil.copytree(Path(plans["stock"]).parent, tmp_path / "out")
    verdict.leave(out / "plan.json", verdict.digest_of(out / "plan.json"), verdict.OWN, "it was slower")
    options = replace(BASE, steps=24, section={"auto": True, "fallback": True, "output": str(out)})
    for seconds, grows in (([900.0] * 5, False), ([1e-6] * 5, True)):
        said = world2.run(said_after_a_fallback, options, str(out), seconds, grows)[0]
        assert "it was slower; the run goes on under" in said and "own steps take" not in said
        assert verdict.found(out / "plan.json")
    said = world2.run(said_after_a_fallback, options, str(out), [1e-6] * 5)[0]
    assert f"the next start runs the plan in {out} again" in said and said.count("own steps take longer") == 1
    assert not (out / verdict.VERDICT).exists()


def test_a_verdict_is_on_one_plan(tmp_path):
    plan = tmp_path / "plan.json"
    assert not verdict.leave(plan, DIGEST_OF_A, verdict.OWN, "there is none")
    assert verdict.found(plan) is None and not (tmp_path / verdict.VERDICT).exists()
    plan.write_text("a")
    assert verdict.leave(plan, DIGEST_OF_A, verdict.OWN, "it was slower")
    assert verdict.found(plan) == (verdict.OWN, "it was slower")
    assert verdict.withdraw(plan, DIGEST_OF_A) and verdict.found(plan) is None
    plan.write_text("another")
    assert verdict.found(plan) is None
    for text in ("", "{}", "[]", '{"plan_sha256": 1, "then": 2}'):
        (tmp_path / verdict.VERDICT).write_text(text)
        assert verdict.found(plan) is None


def test_a_run_leaves_no_verdict_on_the_plan_of_another(tmp_path):
    """Both have the same "output"."""
    plan = tmp_path / "plan.json"
    plan.write_text("another")
    verdict.leave(plan, verdict.digest_of(plan), verdict.OWN, "theirs")
    assert not verdict.leave(plan, DIGEST_OF_A, verdict.OWN, "ours")
    assert not verdict.withdraw(plan, DIGEST_OF_A)
    verdict.leave_check(plan, verdict.Check({"plan_sha256": DIGEST_OF_A}, "step 1: equal", True, True))
    verdict.leave_options(plan, DIGEST_OF_A, {})
    assert verdict.found(plan) == (verdict.OWN, "theirs")
    assert {path.name for path in tmp_path.iterdir()} == {"plan.json", verdict.VERDICT}


def test_what_was_compared_belongs_to_one_plan_and_partition(tmp_path):
    under = {"plan_sha256": DIGEST_OF_A, "partition": [0, 4, 7]}
    plan, check = tmp_path / "plan.json", verdict.Check(under, "step 1: equal", True, True)
    plan.write_text("a")
    verdict.leave_check(plan, check)
    assert verdict.check_of(plan, check.under) == check and verdict.found(plan) is None
    assert verdict.check_of(plan, under | {"partition": [0, 3, 7]}) is None
    kept._move(tmp_path, tmp_path / "2-ranks")
    moved = tmp_path / "2-ranks" / "plan.json"
    assert verdict.check_of(moved, check.under) == check and verdict.check_of(plan, check.under) is None
    verdict.leave_options(moved, DIGEST_OF_A, {"seed": 1})
    assert verdict.options_of(moved) == {"seed": 1}
    moved.write_text("another")
    assert verdict.check_of(moved, check.under) is None and verdict.options_of(moved) is None
    for text in ("", "[]", '{"plan_sha256": 1, "under": 2}'):
        (tmp_path / "2-ranks" / verdict.CHECK).write_text(text)
        assert verdict.check_of(moved, check.under) is None


class Remembering(training.models.Block):
    """Shares what it counts with every layer of its process, where nobody looks for it."""

    def forward(self, hidden):
        os.environ["CALLS"] = str(int(os.environ.get("CALLS", 0)) + 1)
        return super().forward(hidden) * (1 + 0.01 * (int(os.environ["CALLS"]) % 7))


class Unsteady(training.models.Block):
    """As kernels that add in an order that they do not keep."""

    def forward(self, hidden):
        return super().forward(hidden) * (1 + 1e-5 * random.SystemRandom().random())


class Skipping(training.models.Block):
    """As LayerDrop, or dropout of sequences that differ in length: draws more for one micro-batch than for another."""

    def forward(self, hidden):
        made = super().forward(hidden)
        return torch.nn.functional.dropout(made, 0.3) if torch.rand(()) < 0.5 else made


class Instead:
    """Of Block, another class."""

    loss, micro_batches = staticmethod(training.models.loss), staticmethod(training.models.micro_batches)

    def __init__(self, kind: type):
        self._kind = kind

    def layers_of(self, options) -> list:
        from deepspeed.pipe import LayerSpec

        layers = training.models.layers_of(options)
        return [
            LayerSpec(self._kind) if getattr(layer, "typename", None) is training.models.Block else layer
            for layer in layers
        ]


training.MODELS |= {
    "silent": Instead(Remembering),
    "unsteady": Instead(Unsteady),
    "skipping": Instead(Skipping),
}


def checked(options: Options, folder: str = "") -> dict:
    """`folder`: of checkpoints; one is saved after each step, and the latest is loaded in the beginning."""
    printed, losses, error = io.StringIO(), [], ""
    os.environ.pop("CALLS", None)
    with redirect_stdout(printed):
        try:
            engine = training.make_engine(options)
            data = data_of(engine)
            if folder and os.path.exists(f"{folder}/latest"):
                engine.load_checkpoint(folder)
            for _ in range(MICRO_BATCHES * engine.global_steps if data else 0):  # not every rank reads
                next(data)
            while engine.global_steps < options.steps:
                losses.append(engine.train_batch(data).item())
                if folder:
                    engine.save_checkpoint(folder)
        except NeedsNewStart:
            raise
        except OstinatoError as raised:
            error = str(raised)
    return {"losses": losses, "said": printed.getvalue(), "error": error}


def checked_across_starts(options: Options) -> dict:
    """And leaves in "between" what a run that ends between its two starts leaves of a check."""
    out = Path(options.section["output"])

    def begin(files, timeout_s):
        if dist.get_rank() == 0:
            (out / "between").write_text(verdict.unlike_1f1b(out / "plan.json"))
        raise NeedsNewStart("", files)

    with (
        mock.patch.object(second_start, "_why_not_again", lambda: ""),
        mock.patch.object(second_start, "_begin_again", begin),
    ):
        return checked(options)


def test_a_plan_that_its_run_has_not_compared_is_measured_again(world2, tmp_path):
    plan = tmp_path / "plan.json"
    section = {"auto": True, "fallback": False, "output": str(tmp_path), "search": {"time_limit": 1}}
    options = replace(BASE, section=section)
    ours = world2.run(in_both_starts, checked_across_starts, options)
    assert (tmp_path / "between").read_text() == verdict.UNCHECKED
    assert "measured: step 1: " in ours[0]["said"] and verdict.unlike_1f1b(plan) == ""
    verdict.leave_unchecked(plan, verdict.digest_of(plan))
    said, kind = world2.run(said_in_the_first_start, options)[0]
    assert f"is not used ({verdict.UNCHECKED}); measuring again" in said and kind == ""
    verdict.withdraw_unchecked(plan, verdict.digest_of(plan))  # no step was the same
    said, kind = world2.run(said_in_the_first_start, options)[0]
    assert "no run has compared this plan with DeepSpeed's 1F1B" in said and kind


@pytest.mark.parametrize("steps", [1, 2])
def test_what_is_equal_is_measured(world2, stock, plans, steps):
    section = {"plan": plans["wave"], "check": steps}
    theirs = stock(world2, BASE, checked)
    ours = world2.run(in_both_starts, checked, replace(BASE, section=section))
    assert [rank["losses"] for rank in ours] == [rank["losses"] for rank in theirs]
    words = "step 1:" if steps == 1 else "steps 1 and 2:"
    assert (
        f"ostinato: measured: {words}" in ours[0]["said"]
        and "equal DeepSpeed's 1F1B bit for bit" in ours[0]["said"]
    )
    assert "measured" not in ours[1]["said"] and "repeat itself" not in ours[0]["said"]


def test_a_script_that_resumes_from_its_first_start_is_compared_from_there(world2, stock, plans, tmp_path):
    options = replace(BASE, section={"plan": plans["wave"], "check": 2})
    ours, theirs = world2.run(in_both_starts, checked, options, str(tmp_path)), stock(world2, BASE, checked)
    assert [rank["losses"] for rank in ours] == [rank["losses"][1:] for rank in theirs], ours
    assert re.search(r"ostinato: measured: step 2: .* equal DeepSpeed's 1F1B bit for bit", ours[0]["said"])


def test_1f1b_is_its_own_control(world2, plans):
    ours = world2.run(
        in_both_starts, checked, replace(BASE, model="unsteady", section={"plan": plans["wave"], "check": 1})
    )
    said = r"ostinato: measured: step 1: loss, gradients, weights and buffers of 7 layers equal DeepSpeed's 1F1B as far as it repeats itself(?: \(first in step 1, .*\))?; "
    # Whether the loss is among what differs is chance.
    itself = r"DeepSpeed's 1F1B does not repeat itself here: (?:loss by \S+, )?gradient of layer \d \(\S+\) by \S+, and \d+ more layers \(layer 4 has no parameter or buffer of its own\)\n"
    assert re.search(said + itself, ours[0]["said"]), ours[0]


def test_what_differs_stops_the_run_unless_it_may(world2, plans):
    options = replace(BASE, model="silent", section={"plan": plans["wave"], "check": 1})
    for rank in world2.run(in_both_starts, checked, options):
        assert (
            "beyond rounding" in rank["error"] and '"require": false' in rank["error"] and not rank["losses"]
        )
    ours = world2.run(
        in_both_starts, checked, replace(options, section={**options.section, "require": False})
    )
    assert "beyond rounding" in ours[0]["said"] and len(ours[0]["losses"]) == 3
    unchecked = world2.run(checked, replace(options, section={"plan": plans["wave"]}))
    assert "equal" not in unchecked[0]["said"] and "expected: the same losses as 1F1B" in unchecked[0]["said"]


def test_random_numbers_that_are_known_to_differ_are_named(world2, plans):
    options = replace(BASE, model="skipping", section={"plan": plans["wave"], "check": 1})
    for rank in world2.run(in_both_starts, checked, options):
        assert "(random numbers differ from 1F1B's, as said above, " in rank["error"], rank
        assert "possible causes" not in rank["error"] and not rank["losses"]


def measuring(options: Options) -> str:
    printed = io.StringIO()
    with redirect_stdout(printed), pytest.raises(SystemExit) as ended:
        engine = training.make_engine(options)
        engine.train_batch(data_of(engine))
    assert ended.value.code == 0
    return printed.getvalue()


def test_measuring_may_be_all(world2, tmp_path):
    section = {"auto": "measure", "output": str(tmp_path), "search": {"time_limit": 1}}
    said = world2.run(measuring, replace(BASE, section=section))
    assert (
        f"the plan is in {tmp_path / 'plan.json'}: the next start runs it" in said[0]
        and (tmp_path / "placement.toml").is_file()
    )
    ours = world2.run(checked, replace(BASE, section=section))  # which is that
    assert "ostinato: plan " in ours[0]["said"] and len(ours[0]["losses"]) == 3
    ours = world2.run(in_both_starts, checked, replace(BASE, section={**section, "check": 1}))
    assert "measured: step 1" in ours[0]["said"] and len(ours[0]["losses"]) == 3
