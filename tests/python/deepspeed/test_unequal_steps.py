# SPDX-License-Identifier: Apache-2.0
"""Micro-batches that differ in size: each step has a plan of its own, and trains what DeepSpeed's 1F1B with
dynamic shapes trains."""

import io
import itertools
import json
from contextlib import redirect_stdout
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from ostinato.deepspeed.errors import OstinatoError
from ostinato.deepspeed.data.sizes import Seen, agreed, seen_by, size_function, tokens
from support.models import LAYERS
from support.plans import Layout, make_plan, placement_text
from support.shapes import placement_text as shape_text
from support.shapes import two_directions
from support.tiers import everyday
from support.training import MICRO_BATCHES, Options, close, make_engine, weights

from ostinato import report
from ostinato.trace import read_traces

LAYOUTS = [
    Layout("halves", (4,), (0, 1)),
    Layout("looped", (2, 4, 6), (0, 1, 0, 1)),
    Layout("wave", (1, 4, 6), (0, 1, 1, 0)),
    Layout("split", (4,), (0, 1), split=True),
]
UNEQUAL = Options(dynamic_shape=True, steps=6)
LENGTHS = [5, 1, 4, 1, 2, 5, 3]  # of micro-batches, over and over; a step has four


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    return {x.name: make_plan(folder / x.name, x, LAYERS, MICRO_BATCHES) for x in LAYOUTS}


def data_of_many_lengths(engine, lengths=LENGTHS):
    return (
        (x[:, :n], y[:, :n]) for (x, y), n in zip(engine.batches(7), itertools.cycle(lengths), strict=False)
    )


def unequal_steps(options: Options) -> dict:
    """Of one rank, with what it printed and in which order it ran forwards in each step."""
    printed, orders = io.StringIO(), []
    with redirect_stdout(printed):
        engine = make_engine(options)
        data = data_of_many_lengths(engine)
        losses = []
        for _ in range(options.steps):
            losses.append(engine.train_batch(data).item())
            if options.section is not None:
                orders.append([text for text in ran(engine) if "SEND" not in text and "RECV" not in text])
        held_out = engine.eval_batch(data_of_many_lengths(engine, [4, 2])).item()
    said = [line for line in printed.getvalue().splitlines() if line.startswith("ostinato:")]
    return {
        "losses": losses,
        "weights": weights(engine),
        "evaluation": held_out,
        "said": said,
        "orders": orders,
    }


def ran(engine) -> list[str]:
    run = engine._ostinato
    instructions = run.trace._planned if run.trace else []
    return [str(instructions[index]) for index, _, _ in run.executor.records()] if instructions else []


def section_of(plan, **keys) -> dict:
    return {"placement": str(plan.with_name("placement.toml")), "sizes": "tokens", **keys}


def numbers_of(results: list[dict]) -> list[tuple]:
    return [(r["losses"], r["weights"], r["evaluation"]) for r in results]


@pytest.mark.parametrize("layout", everyday([x.name for x in LAYOUTS], "looped", "split"))
def test_in_the_order_of_1f1b_every_bit_is_deepspeeds(world2, stock, plans, layout, tmp_path):
    section = section_of(plans[layout], keep_order=True, trace=str(tmp_path))
    expected = stock(world2, UNEQUAL, unequal_steps)
    got = world2.run(unequal_steps, replace(UNEQUAL, section=section))
    assert numbers_of(got) == numbers_of(expected)
    assert "each step gets a plan for its sizes" in " ".join(got[0]["said"])
    assert "up to rounding" not in " ".join(got[0]["said"]) and not got[1]["said"]


def test_in_orders_of_their_own_steps_are_equal_up_to_rounding_and_say_so(world2, stock, plans, tmp_path):
    section = section_of(plans["halves"], trace=str(tmp_path))
    expected = stock(world2, UNEQUAL, unequal_steps)
    got = world2.run(unequal_steps, replace(UNEQUAL, section=section))
    for theirs, ours in zip(expected, got, strict=True):
        torch.testing.assert_close(ours["losses"], theirs["losses"], rtol=1e-5, atol=1e-6)
        close(ours["weights"], theirs["weights"], 1e-4)
    assert sum("each step adds gradients and losses in its own order" in line for line in got[0]["said"]) == 1
    forwards = [[text for text in order if "F" in text] for order in got[0]["orders"]]
    assert any(order != sorted(order) for order in forwards), "no step ran in another order"
    assert len({tuple(order) for order in forwards}) > 1, "all steps ran in one order"


TOGETHER = [
    Options(config={"zero_optimization": {"stage": 1}, "bf16": {"enabled": True}}),
    Options(
        checkpoint_interval=1,
        checkpointable=("Block",),
        seed_layers=True,
        config={"pipeline": {"use_reentrant": False}},
    ),
]


@pytest.mark.parametrize("options", TOGETHER, ids=["zero-bf16", "checkpointing"])
def test_with_other_features(world2, stock, plans, options):
    options = replace(options, dynamic_shape=True, steps=3)
    expected = stock(world2, options, unequal_steps)
    got = world2.run(unequal_steps, replace(options, section=section_of(plans["wave"], keep_order=True)))
    assert numbers_of(got) == numbers_of(expected)


def test_both_uses_of_a_tied_layer_on_one_rank(world2, stock, plans):
    options = Options(tied=True, dynamic_shape=True, steps=3)
    expected = stock(world2, options, unequal_steps)
    got = world2.run(unequal_steps, replace(options, section=section_of(plans["wave"], keep_order=True)))
    assert numbers_of(got) == numbers_of(expected)
    assert "bit for bit" in " ".join(got[0]["said"])


def test_each_replica_plans_its_own_steps(world4, stock, plans):
    options = replace(UNEQUAL, steps=3)
    expected = stock(world4, options, replicas)
    got = world4.run(replicas, replace(options, section=section_of(plans["halves"], keep_order=True)))
    assert got == expected


def replicas(options: Options) -> dict:
    engine = make_engine(options)
    replica = engine.grid.data_parallel_id
    data = data_of_many_lengths(engine, LENGTHS[replica:] + LENGTHS[:replica])
    return {
        "losses": [engine.train_batch(data).item() for _ in range(options.steps)],
        "weights": weights(engine),
    }


def test_the_report_tells_of_each_step(world2, plans, tmp_path, capsys):
    section = section_of(plans["halves"], size=10, trace=str(tmp_path / "trace"))
    world2.run(unequal_steps, replace(UNEQUAL, section=section))
    ranks = read_traces(tmp_path / "trace")
    steps = ranks[0].step  # of the last time that it was written
    assert steps >= 5 and all(len(rank.step_plans) == steps for rank in ranks)
    for rank in ranks:
        last = rank.step_plans[-1]
        assert (last.plan_sha256, last.makespan) == (rank.plan_sha256, rank.makespan)
        assert all(0 < one.lower_bound <= one.makespan <= one.one_f_one_b for one in rank.step_plans)
    assert report.main([str(tmp_path / "trace"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["steps"]
    assert [row["step"] for row in told] == list(range(1, steps + 1))
    assert all(row["predicted"] == one.makespan for row, one in zip(told, ranks[0].step_plans, strict=True))
    assert report.main([str(tmp_path / "trace")]) == 0
    shown = capsys.readouterr().out
    assert "Steps planned for their sizes" in shown and "above the bound" in shown


# ---- sizes, and what is none


def loop_over(kind: str):
    """A size function that fails in one way; on the last rank alone where it says so."""

    def size_of(item):
        number = {
            "zero": 0,
            "nan": float("nan"),
            "negative": -3,
            "infinite": float("inf"),
            "word": "long",
            "flag": True,
        }.get(kind)
        if kind == "raises":
            raise KeyError("length")
        if kind == "differs":
            return tokens(item) + dist.get_rank()
        return number

    return size_of


zero, nan, negative, infinite, word, flag, raises, differs = map(
    loop_over, ("zero", "nan", "negative", "infinite", "word", "flag", "raises", "differs")
)


def refused_step(options: Options) -> str:
    """What train_batch() raises."""
    engine = make_engine(options)
    try:
        engine.train_batch(data_of_many_lengths(engine))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("zero", ["micro-batch 0", "0 must be above 0"]),
        ("nan", ["nan must be above 0"]),
        ("negative", ["-3 must be above 0"]),
        ("infinite", ["inf must be above 0"]),
        ("word", ["a str is not a number"]),
        ("flag", ["a bool is not a number"]),
        ("raises", ["KeyError: 'length'"]),
        ("differs", ["micro-batch 0", "on pipeline rank 0 and", "on pipeline rank 1", "the same items"]),
    ],
)
def test_a_size_that_is_none_stops_every_rank(world2, plans, function, words):
    section = section_of(plans["halves"]) | {"sizes": f"test_unequal_steps:{function}"}
    for message in world2.run(refused_step, replace(UNEQUAL, section=section)):
        assert message.startswith("OstinatoError"), message or "nothing was raised"
        assert all(part in message for part in words), message


@pytest.mark.parametrize(
    ("items", "words"), [(2, "reading micro-batch 2: StopIteration"), (0, "StopIteration: ")]
)
def test_a_loader_that_ends_stops_every_rank(world2, plans, items, words):
    """Between two steps by the exception with which scripts end."""
    for message in world2.run(short_of_data, replace(UNEQUAL, section=section_of(plans["halves"])), items):
        assert words in message and (items or message == words), message


def short_of_data(options: Options, items: int) -> str:
    engine = make_engine(options)
    try:
        engine.train_batch(itertools.islice(data_of_many_lengths(engine), items))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_a_step_that_fits_no_memory_names_its_sizes(world2, tmp_path):
    text = placement_text(LAYOUTS[0], LAYERS).replace('name = "device0"\n', 'name = "device0"\nmemory = 3\n')
    section = section_of(make_plan(tmp_path, LAYOUTS[0], LAYERS, MICRO_BATCHES, text=text), size=5)
    for message in world2.run(refused_step, replace(UNEQUAL, section=section)):
        assert message.startswith(
            "OstinatoError: step 1: found no plan for micro-batches of sizes 10, 2, 8, 2"
        ), message


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            {"auto": True, "placement": None, "size": 4},
            '"size" in the "ostinato" section does not go with "auto"',
        ),
        ({"read_ahead": True}, 'unknown key "read_ahead" in the "ostinato" section'),
        ({"sizes": None, "keep_order": True}, '"keep_order" in the "ostinato" section needs "sizes"'),
        ({"sizes": "length"}, '"tokens", or name a function'),
        ({"sizes": "no_such_module:length"}, "No module named"),
        ({"sizes": "math:lengths"}, "has no attribute 'lengths'"),
        ({"sizes": "math:pi"}, "a float, not a function"),
        ({"placement": "nowhere.toml"}, "no such file"),
        ({"size": 0}, '"size" in the "ostinato" section'),
        ({"search": {"objective": "span"}}, '"objective" in the "search" section does not go with "sizes"'),
        ({"search": {"robust": 0.3}}, '"robust" in the "search" section does not go with "sizes"'),
        ({"search": {"max_chunks": 2}}, '"max_chunks" in the "search" section does not go with "placement"'),
    ],
)
def test_sections_that_are_wrong(world2, plans, keys, words):
    section = {key: value for key, value in (section_of(plans["halves"]) | keys).items() if value is not None}
    for message in world2.run(refused_start, replace(UNEQUAL, section=section)):
        assert message.startswith(("OstinatoError", "Unsupported")) and words in message, message


def refused_start(options: Options) -> str:
    try:
        make_engine(options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_placements_whose_steps_cannot_have_their_own_plans(world2, tmp_path):
    cases = {
        "two directions": shape_text("x", two_directions((4,), LAYERS)),
        "has forwards only": placement_text(LAYOUTS[0], LAYERS, trains=False),
        "over several ranks": placement_text(Layout("m", (4,), ((0, 1), 1)), LAYERS),
    }
    for number, (words, text) in enumerate(cases.items()):
        path = tmp_path / f"{number}.toml"
        path.write_text(text)
        for message in world2.run(
            refused_start, replace(UNEQUAL, section={"placement": str(path), "sizes": "tokens"})
        ):
            assert message.startswith("Unsupported") and words in message, message


def test_sizes_of_items():
    item = (torch.zeros(2, 7, 3), torch.zeros(2))
    assert tokens(item) == 14 and tokens(((torch.zeros(5),), None)) == 5
    assert seen_by(lambda _: torch.tensor(3), [item]).sizes == (3.0,)
    assert "not a tensor with dimensions" in seen_by(tokens, [(torch.tensor(1.0), None)]).error
    assert size_function("math:sqrt")(4) == 2
    assert agreed([Seen((1.0,)), Seen(), Seen((1.0,))]) == (1.0,)
    with pytest.raises(OstinatoError, match="pipeline rank 1: broken"):
        agreed([Seen((1.0,)), Seen(error="broken")])


def test_buffers_of_many_shapes_are_let_go(world2, plans):
    section = section_of(plans["halves"], keep_order=True, size=10)
    equal, unequal = (
        world2.run(buffers, replace(UNEQUAL, section=section), lengths)[1]
        for lengths in ([5, 5], [5, 4, 3, 2])
    )
    largest = 2 * 5 * 8 * 4  # bytes of a message: samples, length, width, float32
    assert 0 < unequal <= equal + largest, (
        "in another order one more may be in flight; each shape's buffer kept would be 832 bytes more"
    )


def buffers(options: Options, lengths: list[int]) -> int:
    """The most bytes that transfers held in a few steps."""
    engine = make_engine(options)
    data = data_of_many_lengths(engine, lengths)
    for _ in range(3):
        engine.train_batch(data)
    return engine._ostinato.executor.peak_bytes
