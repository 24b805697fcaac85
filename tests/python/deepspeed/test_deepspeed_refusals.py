# SPDX-License-Identifier: Apache-2.0
"""What is wrong stops the run before its first step, on every rank, with the reason."""

import json
import re
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO

import pytest
from ostinato.deepspeed.errors import OstinatoError
from ostinato.deepspeed.hook import section_of
from ostinato.profile.model.model_digest import digest_of_layers, layer_digest, layer_name, layer_parameters
from support import models, training
from support.models import LAYERS
from support.plans import Layout, make_plan, placement_text, without_block
from support.training import MICRO_BATCHES, Options, make_engine, refusal

LOOPED = Layout("looped", (2, 4, 6), (0, 1, 0, 1))
BASE = Options(stages=2)


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    return make_plan(tmp_path_factory.mktemp("plan"), LOOPED, LAYERS, MICRO_BATCHES)


def refused(world, options, *words):
    """Every rank raised an error that holds all the words."""
    for message in world.run(refusal, options):
        assert message.startswith(("OstinatoError", "Unsupported")), message or "nothing was raised"
        for word in words:
            assert word in message, message


def with_section(**section):
    return replace(BASE, section=section)


def test_misspelt_key_of_the_section(world2, plan):
    refused(
        world2,
        with_section(plan=str(plan), timeouts=1),
        'unknown key "timeouts"',
        'did you mean "timeout_s"?',
    )


@pytest.mark.parametrize("key", ["ostinatto", "Ostinato", "ostinto"])
def test_misspelt_section(world2, plan, key):
    refused(world2, replace(BASE, config={key: {"plan": str(plan)}}), f'"{key}"', 'did you mean "ostinato"?')


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"ostinato": None}, ['"ostinato" is null', "remove the key", '"ostinato_off"']),
        ({"pipeline": {"ostinato_off": {}}}, ['key "ostinato_off" in "pipeline"']),
        ({"pipeline": {"ostinato": {"auto": True}}}, ['"ostinato" section in "pipeline"', "top level"]),
        ({"ostinato.plan": "plan.json"}, ['key "ostinato.plan"', 'did you mean "ostinato"?']),
        ({"ostinato_config": {}}, ['key "ostinato_config"']),
        ({"pipeline": {"activation": [{"Ostinatto": {}}]}}, ['"Ostinatto" in "activation" in "pipeline"']),
    ],
    ids=["null", "off-inside", "inside", "dotted", "longer", "deep"],
)
def test_a_section_that_would_be_silently_off(config, words):
    """No engine is made for these: the run stops as soon as DeepSpeed hands the configuration over."""
    with pytest.raises(OstinatoError) as caught:
        section_of({"train_batch_size": 8, **config})
    for word in words:
        assert word in str(caught.value)


def test_a_configuration_without_the_section():
    named_otherwise = {
        "optimizer": {"params": {"obstacle": 1}},
        "csv_monitor": {"job_name": "ostinato"},
        3: [1, {"x": None}],
    }
    assert section_of(named_otherwise) == (None, None)


def test_a_null_section_stops_an_engine(world2):
    refused(world2, replace(BASE, config={"ostinato": None}), '"ostinato" is null')


@pytest.mark.parametrize("key", ["trace", "memory"])
def test_a_folder_that_cannot_be_written_stops_the_run_before_it_trains(world2, plan, tmp_path, key):
    (tmp_path / "file").write_text("")
    refused(
        world2,
        with_section(plan=str(plan), **{key: str(tmp_path / "file" / "deep")}),
        f'"{key}"',
        "file is not a folder",
    )


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({}, ['needs "plan"']),
        ({"plan": 3}, ['"plan"', "must be a text, not 3"]),
        ({"plan": "p.json", "timeout_s": 0}, ['"timeout_s"', "must be above 0, not 0"]),
        ({"plan": "p.json", "require": "yes"}, ['"require"', 'must be true or false, not "yes"']),
        ("plan.json", ["must be an object"]),
        ({"plan": "/nowhere/plan.json"}, ["/nowhere/plan.json: no such file"]),
        ({"plan": "/"}, ['"plan": /: this is a folder, not a file']),
        ({"plan": "hand.toml", "placement": "hand.json"}, ['"plan" and "placement" swapped']),
    ],
    ids=["empty", "kind", "range", "strict", "no-object", "missing-plan", "folder", "swapped"],
)
def test_wrong_section(world2, section, words):
    refused(world2, replace(BASE, section=section), *words)


def test_missing_placement(world2, plan, tmp_path):
    alone = tmp_path / "plan.json"
    alone.write_bytes(plan.read_bytes())
    refused(world2, with_section(plan=str(alone)), "placement.toml: no such file", "beside the plan")


def test_placement_that_the_plan_does_not_name(world2, plan, tmp_path):
    other = tmp_path / "placement.toml"
    other.write_text(placement_text(LOOPED, LAYERS, forward=101))
    refused(world2, with_section(plan=str(plan), placement=str(other)), str(plan), "sha256")


def test_plan_that_is_not_json(world2, plan, tmp_path):
    broken = tmp_path / "plan.json"
    broken.write_text("{\n")
    section = {"plan": str(broken), "placement": str(plan.with_name("placement.toml"))}
    refused(world2, with_section(**section), f"{broken}:")


def test_other_number_of_micro_batches(world2, tmp_path):
    plan = make_plan(tmp_path, LOOPED, LAYERS, MICRO_BATCHES + 2)
    refused(
        world2, with_section(plan=str(plan)), f"{plan}: the plan is for 6", "gradient_accumulation_steps is 4"
    )


def test_other_number_of_devices(world2, tmp_path):
    plan = make_plan(tmp_path, Layout("four", (2, 4, 6), (0, 1, 2, 3)), LAYERS, MICRO_BATCHES)
    refused(world2, with_section(plan=str(plan)), "4 devices", "2 stages")


def test_another_model(world2, tmp_path):
    plan = make_plan(tmp_path, LOOPED, LAYERS + 1, MICRO_BATCHES)
    refused(world2, with_section(plan=str(plan)), "9 layers", "this PipelineModule has 8")


def table_of(changed: dict[int, tuple[str, list]]) -> str:
    """The table [model] of a placement for the model of these tests, some of whose layers are others."""
    rows = []
    for index, spec in enumerate(models.layers(tied=False, in_place=True)):
        built = spec.build() if hasattr(spec, "build") else spec
        rows.append(changed.get(index) or (layer_name(index, spec), layer_parameters(built)))
    digests = [layer_digest(*row) for row in rows]
    entries = [f'"{name} {digest}"' for (name, _), digest in zip(rows, digests, strict=True)]
    return f'\n[model]\nsha256 = "{digest_of_layers(digests)}"\nlayers = [{", ".join(entries)}]\n'


ANOTHER = {
    "parameters": (
        {1: ("1:Block", [("norm.weight", (9,), "float32")])},
        'layer 1 ("1:Block") has different parameters than when',
    ),
    "layers": ({5: ("5:Bigger", []), 6: ("6:Bigger", [])}, 'layer 5 is "5:Block", but was "5:Bigger"'),
}


@pytest.mark.parametrize("case", ANOTHER)
def test_a_plan_for_another_model_of_as_many_layers(world2, tmp_path, case):
    changed, words = ANOTHER[case]
    text = placement_text(LOOPED, LAYERS) + table_of(changed)
    plan = make_plan(tmp_path, LOOPED, LAYERS, MICRO_BATCHES, text=text)
    refused(
        world2, with_section(plan=str(plan)), "was made for a different model", words, "profile this model"
    )


def said(options):
    printed = StringIO()
    with redirect_stdout(printed):
        make_engine(options)
    return printed.getvalue()


def test_a_plan_of_another_micro_batch_size(world2, tmp_path):
    """It runs, but not as planned: rank 0 says so, once."""
    words = f"made for micro-batches of {models.BATCH + 1} samples, but this run has {models.BATCH} "
    for samples in (models.BATCH, models.BATCH + 1):
        text = f"{placement_text(LOOPED, LAYERS)}{table_of({})}micro_batch_size = {samples}\n"
        plan = make_plan(tmp_path / str(samples), LOOPED, LAYERS, MICRO_BATCHES, text=text)
        first, second = world2.run(said, with_section(plan=str(plan)))
        assert first.count(words) == (samples != models.BATCH) and words not in second


def test_a_plan_for_this_model(world2, tmp_path):
    """What is frozen, and what DeepSpeed casts, does not count."""
    plan = make_plan(
        tmp_path, LOOPED, LAYERS, MICRO_BATCHES, text=placement_text(LOOPED, LAYERS) + table_of({})
    )
    options = replace(with_section(plan=str(plan)), config={"bf16": {"enabled": True}})
    assert world2.run(refusal, options) == ["", ""]


def test_placement_without_layers(world2, plan, tmp_path):
    placement = plan.with_name("placement.toml").read_text()
    bare = "[[devices]]".join(part.split("[[stages]]")[0] for part in placement.split("[[devices]]"))
    bare += "[[blocks]]" + placement.split("[[blocks]]", 1)[1]
    made = make_plan(tmp_path, LOOPED, LAYERS, MICRO_BATCHES, text=bare)
    refused(world2, with_section(plan=str(made)), "does not say which layers", "[[stages]]")


def test_a_stage_without_a_backward_that_learns(world2, tmp_path):
    stock = Layout("stock", (4,), (0, 1))
    text = without_block("s0.B", placement_text(stock, LAYERS))
    plan = make_plan(tmp_path, stock, LAYERS, MICRO_BATCHES, text=text)
    refused(
        world2,
        with_section(plan=str(plan)),
        'stage "s0" has trainable parameters, but no backward in the plan',
    )


def test_zero_2(world2, plan):
    options = replace(with_section(plan=str(plan)), config={"zero_optimization": {"stage": 2}})
    refused(world2, options, '"zero_optimization": {"stage": 2}')


def refusal_by_rank(sections: list[dict | None], options: Options) -> str:
    """Each rank with a section of its own."""
    return refusal(replace(options, section=sections[training.dist.get_rank()]))


def test_ranks_that_disagree(world2, plan, tmp_path):
    other = make_plan(tmp_path, LOOPED, LAYERS, MICRO_BATCHES, method="gpipe")
    for message in world2.run(refusal_by_rank, [{"plan": str(plan)}, {"plan": str(other)}], BASE):
        assert "rank 1 holds a different plan than rank 0" in message


def test_rank_with_an_error_of_its_own(world2, plan):
    for message in world2.run(refusal_by_rank, [{"plan": str(plan)}, {"plan": "/gone.json"}], BASE):
        assert "rank 1: " in message and "/gone.json: no such file" in message


def test_rank_with_other_options(world2, plan):
    sections = [{"plan": str(plan)}, {"plan": str(plan), "timeout_s": 10.0}]
    for message in world2.run(refusal_by_rank, sections, BASE):
        assert 'rank 1 holds different options in the "ostinato" section' in message


def refusal_by_configuration(configurations: list[dict], options: Options) -> str:
    return refusal(replace(options, config=configurations[training.dist.get_rank()]))


@pytest.mark.parametrize(
    ("configurations", "words"),
    [
        ([{"zero_optimization": {"stage": 1}}, {}], "zero_config.stage: 0 against zero_config.stage: 1"),
        (
            [{"gradient_clipping": 1.0}, {"gradient_clipping": 0.0}],
            "gradient_clipping: 0.0 against gradient_clipping: 1.0",
        ),
        (
            [{"bf16": {"enabled": False}}, {"bf16": {"enabled": True}}],
            "bfloat16_config.enabled: True against bfloat16_config.enabled: False",
        ),
    ],
)
def test_rank_with_another_configuration_of_deepspeed(world2, plan, configurations, words):
    """DeepSpeed's ranks would wait for each other in different collectives, and name nobody."""
    for message in world2.run(refusal_by_configuration, configurations, with_section(plan=str(plan))):
        assert f"rank 1 holds a different DeepSpeed configuration than rank 0: {words}" in message, message


def test_what_names_folders_may_differ(world2, plan, tmp_path):
    configurations = [
        {"tensorboard": {"enabled": False, "output_path": str(tmp_path / str(rank))}} for rank in range(2)
    ]
    assert world2.run(refusal_by_configuration, configurations, with_section(plan=str(plan))) == ["", ""]


def refusal_of_rank_0(section: dict, options: Options) -> str:
    """Rank 1 makes a model, and no engine."""
    if training.dist.get_rank() == 0:
        return refusal(replace(options, section=section))
    training.make_model(options)
    return ""


def test_rank_that_does_not_report(world2, plan):
    message, _ = world2.run(refusal_of_rank_0, {"plan": str(plan), "timeout_s": 1.0}, BASE)
    assert (
        "rank 1 did not report within 1 s: check that ostinato is installed there," in message
        and "still runs (see its log)" in message
    )
    world2.restart()  # the ranks have now made different numbers of engines


def fallback(options: Options) -> str:
    """The kind of engine that a run under "require": false got."""
    engine = training.make_engine(options)
    loss = engine.train_batch(training.data_of(engine)).item()
    return f"{type(engine).__mro__[1].__name__} {loss > 0}"


def test_not_required(world2, plan, monkeypatch):
    """A feature that a plan cannot keep lets the run go on under DeepSpeed's schedule, where the section says
    so."""
    kinds = world2.run(without_the_compiled_part, with_section(plan=str(plan), require=False))
    assert kinds == ["DeepSpeedEngine True"] * 2
    messages = world2.run(without_the_compiled_part, with_section(plan=str(plan)))
    assert all(m.startswith("Unsupported: ostinato's compiled part does not load") for m in messages)


def without_the_compiled_part(options: Options) -> str:
    import sys

    import ostinato

    name = "ostinato._plugin"  # loaded already: both places where Python would find it
    attribute, module = ostinato.__dict__.pop("_plugin", None), sys.modules.get(name)
    sys.modules[name] = None
    try:
        return fallback(options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        del sys.modules[name]
        if module is not None:
            sys.modules[name] = module
        if attribute is not None:
            ostinato._plugin = attribute


def relative(folder: str, section: dict) -> str:
    """The configuration as a file, whose folder is not the working directory."""
    path = f"{folder}/ds_config.json"
    if training.dist.get_rank() == 0:
        with open(path, "w") as file:
            json.dump(replace(BASE, section=section).configuration(), file)
    training.dist.barrier()
    with training.known(path):
        return refusal(BASE, configuration=path)


def test_paths_are_relative_to_the_file(world2, plan):
    assert world2.run(relative, str(plan.parent), {"plan": "plan.json"}) == ["", ""]
    for message in world2.run(relative, str(plan.parent), {"plan": "elsewhere.json"}):
        assert f"{plan.parent}/elsewhere.json: no such file" in message
        assert re.search(r'/ds_config\.json:\d+: "plan": ', message)


def changed_size(options: Options) -> str:
    engine = training.make_engine(options)
    try:
        engine.set_train_batch_size(2 * engine.train_batch_size())
    except Exception as error:
        return str(error)
    return ""


def test_train_batch_size_is_the_plans(world2, plan):
    for message in world2.run(changed_size, with_section(plan=str(plan))):
        assert "set_train_batch_size(16)" in message and "is for 4 micro-batches a step" in message
