# SPDX-License-Identifier: Apache-2.0
"""The core as Python has it: the examples of its docstrings, the same bytes as the commands write, errors,
Ctrl-C."""

import copy
import doctest
import inspect
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import ostinato
import pytest
from ostinato import _search, arguments, core, objects
from support.profiles import write_profile

CONFIGS = Path(__file__).parents[3] / "configs"
# Searched for seconds: nothing proves its best plan the best.
SLOW = dict(
    devices=8, forward=[3, 7, 4, 9, 5, 8, 6, 2], backward=[11, 5, 13, 7, 9, 17, 8, 6], memory=1, capacity=9
)


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    return write_profile(
        tmp_path_factory.mktemp("profile") / "profile.json", [100, 300, 200, 100, 500, 100, 100, 200]
    )


def command(*words) -> None:
    assert _search.main([str(word) for word in words]) == 0


def test_the_examples_hold():
    assert core.__doc__
    names = {name: getattr(core, name) for name in core.__all__}
    found = [doctest.testmod(module, extraglobs=names) for module in (arguments, core, objects)]
    assert all(one.attempted >= 5 and one.failed == 0 for one in found)


def test_no_torch_is_imported():
    code = "import sys, ostinato; ostinato.search(ostinato.placement('v'), micro_batches=4); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_everything_is_found_in_the_package():
    assert all(getattr(ostinato, name) is not None for name in ostinato.__all__)
    assert set(ostinato.__all__) <= set(dir(ostinato))
    with pytest.raises(AttributeError, match="no attribute 'serch'"):
        ostinato.serch  # noqa: B018


OPTIONS = {
    "search": ["search"],
    "pareto": ["search"],
    "plan": ["plan", "partition", "search"],
    "partition": ["partition"],
    "simulate": ["simulate"],
}


@pytest.mark.parametrize("name", OPTIONS)
def test_keywords_are_the_options_of_the_command(name):
    """Same names, same defaults."""
    table = {key: default for section, key, default in _search.option_table() if section in OPTIONS[name]}
    given = {
        key: p.default
        for key, p in inspect.signature(getattr(core, name)).parameters.items()
        if p.default is not p.empty
    }
    own = {"progress", "micro_batches", "sizes", "size", "keep_order"}
    assert {key: arguments.typed(key, value) for key, value in given.items() if key not in own} == {
        key: table[key] for key in given if key not in own
    }
    chosen_by_plan = {"chunks", "layout", "stages", "recompute", "points"}
    left_out = {"search": {"points"}, "pareto": {"method", "robust"}, "plan": chosen_by_plan}.get(name, set())
    assert table.keys() - given.keys() == left_out


def test_integers_of_numpy_are_integers():
    numpy = pytest.importorskip("numpy")
    made = []
    for of in (int, numpy.int64, numpy.int32):
        given = {"memory": [of(3), of(4)], "capacity": of(100), "forward": of(7), "bandwidth": of(2)}
        devices = ostinato.Devices(of(2), memory=of(2**30))
        made.append((ostinato.placement("v", devices=of(2), bytes=of(8), **given), repr(devices)))
    assert made[0] == made[1] == made[2]
    assert arguments.typed("robust", numpy.float32(0.25)) == "0.25"


@pytest.mark.parametrize(
    ("key", "value", "least"),
    [("time_limit", 1e-12, "0.000001"), ("bandwidth", 5e-10, "0.000000001"), ("forward", [2, 0.4], "1")],
)
def test_what_would_round_to_nothing_is_refused(key, value, least):
    """0 is no limit, and free bytes."""
    with pytest.raises(ostinato.UsageError, match=f"{key} is .*; the least above 0 is {least}$"):
        arguments.typed(key, value)
    assert arguments.typed(key, float(least)) == least and arguments.typed(key, 0.0) == "0"
    assert ostinato.placement("v", devices=2, bytes=1, bandwidth=1e-9).to_dict()["link"]["bandwidth"] == 1e-9


def test_a_search_gives_the_bytes_of_the_command(tmp_path):
    placement, plan = tmp_path / "m.toml", tmp_path / "m.json"
    command("placement", "m", "--devices", 4, "--forward", "1ms", "--backward", "3ms", "--output", placement)
    command("search", placement, "--micro-batches", 8, "--output", plan)
    mine = ostinato.placement("m", devices=4, forward="1ms", backward=3_000_000)
    assert (
        mine == ostinato.Placement.from_file(placement)
        and mine.sha256 == ostinato.Placement.from_file(placement).sha256
    )
    found = ostinato.search(mine, micro_batches=8)
    assert found.text == plan.read_text() == ostinato.Plan.from_file(plan, placement).text
    with open(tmp_path / "a.toml", "wb") as too_large:  # for a placement: it is passed over
        too_large.truncate(300 << 20)
    assert ostinato.Plan.from_file(plan).placement == found.placement
    alone = tmp_path / "alone" / "plan.json"
    alone.parent.mkdir()
    alone.write_text(found.text)
    with pytest.raises(ostinato.InputError, match="its placement is not in the same folder"):
        ostinato.Plan.from_file(alone)
    found.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == plan.read_bytes()
    assert found.to_dict()["makespan"] == found.makespan == max(step.end for step in found.schedule)
    assert found.placement == mine and mine.to_dict()["name"] == "m-shape-4"
    assert ostinato.verify(found) and not ostinato.verify(found).failures


def test_a_plan_of_a_profile_is_that_of_the_command(profile, tmp_path):
    files = ["--output", tmp_path / "plan.json", "--placement-output", tmp_path / "placement.toml"]
    command("plan", profile, "--devices", 2, "--micro-batches", 4, "--device-memory", "1GiB", *files)
    found = ostinato.plan(
        ostinato.Profile.from_file(profile), devices=2, micro_batches=4, device_memory=2**30
    )
    assert found.text == (tmp_path / "plan.json").read_text()
    assert found.placement.text == (tmp_path / "placement.toml").read_text()
    assert found.report["chosen"] in str(found) and len(found.report["candidates"]) > 2
    assert found.makespan == found.report["makespan"] and found.facts["named"]
    check = ostinato.verify(found, profile=ostinato.Profile.from_file(profile))
    assert check and any("(D1)" in line for line in check.passed)
    assert not ostinato.verify(found, profile=ostinato.Profile.from_file(profile), devices=3)


def test_a_partition_is_that_of_the_command(profile, tmp_path):
    command(
        *f"partition {profile} --devices 4 --chunks 2 --layout wave --output {tmp_path / 'p.toml'}".split()
    )
    found = ostinato.partition(
        ostinato.Profile.from_file(profile), devices=ostinato.Devices(4), chunks=2, layout="wave"
    )
    assert found.text == (tmp_path / "p.toml").read_text()
    assert found.report["busiest"] >= found.report["lower_bound"] > 0


def test_devices_of_a_file(profile, tmp_path):
    text = 'format = "ostinato-devices/1"\nmemory_unit = "GiB"\n[[kinds]]\nname = "a"\nmemory = 1\n[[kinds]]\nname = "b"\nspeed = 2.0\n'
    text += '[[nodes]]\nkind = "a"\ndevices = 1\n[[nodes]]\nkind = "b"\ndevices = 1\n'
    (tmp_path / "devices.toml").write_text(text)
    two = ostinato.Devices.from_file(tmp_path / "devices.toml")
    assert len(two) == 2 and two.to_dict()["kinds"][1] == {"name": "b", "speed": 2.0}
    two.save(tmp_path / "again.toml")
    assert (tmp_path / "again.toml").read_text() == text
    found = ostinato.partition(ostinato.Profile.from_file(profile), devices=two)
    layers = {stage["devices"][0]: len(stage["layers"]) for stage in found.report["stages"]}
    assert layers[1] > layers[0]  # the fast one has more of them
    with pytest.raises(ValueError, match="have their own"):
        ostinato.partition(ostinato.Profile.from_file(profile), devices=two, device_memory="1GiB")
    with pytest.raises(ValueError, match="a number, not a file"):
        ostinato.Devices(2).save(tmp_path / "none.toml")


def test_all_say_what_shared_cores_take(profile, tmp_path, capfd):
    """plan, compare and Python of the same two plans."""
    (tmp_path / "devices.toml").write_text(
        'format = "ostinato-devices/1"\n[[kinds]]\nname = "cpu"\n[[nodes]]\nkind = "cpu"\ndevices = 4\ncores = 2\n'
    )
    taken = []
    for name, method in (("a", "auto"), ("b", "1f1b")):
        (tmp_path / name).mkdir()
        files = [
            "-o",
            tmp_path / name / "plan.json",
            "--placement-output",
            tmp_path / name / "placement.toml",
        ]
        command(
            "plan", profile, "--devices", tmp_path / "devices.toml", "--micro-batches", 4, "--method", method, *files, "--json"
        )  # fmt: skip
        of_plan = json.loads(capfd.readouterr().out)
        plan = ostinato.Plan.from_file(tmp_path / name / "plan.json")
        assert plan.predicted_makespan == of_plan["shared_makespan"] > plan.makespan
        assert plan.facts["named"]["gpipe"]["shared_makespan"] > plan.facts["named"]["gpipe"]["makespan"]
        taken.append(plan.predicted_makespan)
    command("compare", *(tmp_path / name / "plan.json" for name in "ab"), "--json")
    compared = json.loads(capfd.readouterr().out)["plans"]
    assert [of["shared_makespan"] for of in compared] == taken
    assert compared[1]["ratio"] == taken[1] / taken[0] != compared[1]["makespan"] / compared[0]["makespan"]


def test_devices_that_share_cores_are_told_apart():
    two = ostinato.Devices(4, "40GiB", hosts=[(4, 2)])
    assert eval(repr(two), {"Devices": ostinato.Devices}) == two != ostinato.Devices(4, "40GiB")
    assert two.to_dict() == {"count": 4, "memory": "40GiB", "hosts": [[4, 2]]}
    with pytest.raises(ValueError, match="must be pairs of devices and cores"):
        ostinato.Devices(4, hosts=[4, 2])


def test_what_robust_cannot_vary_is_said():
    free = ostinato.placement("v", forward=[0, 1000, 1000, 1000])
    plan = ostinato.search(free, micro_batches=4, robust=0.3)
    assert 'robust            not applied: block "s0.F" takes no time' in str(plan).replace("'", '"')


def test_objects_are_pickled(profile, tmp_path, monkeypatch):
    costs = ostinato.Profile.from_file(profile)
    plan = ostinato.plan(costs, devices=2, micro_batches=4)
    assert pickle.loads(pickle.dumps(costs)) == copy.deepcopy(costs) == costs
    again = pickle.loads(pickle.dumps((plan, plan.placement)))
    assert again == (plan, plan.placement)
    assert str(again[0]) == str(plan) and again[0].report == plan.report and again[0].placement is again[1]
    assert ostinato.verify(again[0])

    (tmp_path / "profile.json").write_bytes(profile.read_bytes())
    (tmp_path / "devices.toml").write_text(
        'format = "ostinato-devices/1"\n[[kinds]]\nname = "a"\nprofile = "profile.json"\n[[nodes]]\nkind = "a"\ndevices = 2\n'
    )
    monkeypatch.chdir(tmp_path)
    read = ostinato.Devices.from_file("devices.toml")
    monkeypatch.chdir("/")
    for devices in (ostinato.Devices(2, "40GiB", hosts=[(2, 1)]), read):
        again = pickle.loads(pickle.dumps(devices))
        assert ostinato.plan(costs, devices=again, micro_batches=4).to_dict() == ostinato.plan(
            costs, devices=devices, micro_batches=4
        ).to_dict()  # fmt: skip


@pytest.mark.parametrize("failing", [
    lambda: ostinato.Placement.from_text("x = 1"),
    lambda: ostinato.placement("v", devices=0),
    lambda: ostinato.search(ostinato.placement("v", memory=1, capacity=0), micro_batches=2),
])  # fmt: skip
def test_errors_are_pickled(failing):
    """As a process pool does with them."""
    with pytest.raises(ostinato.Error) as raised:
        failing()
    again = pickle.loads(pickle.dumps(raised.value))
    assert type(again) is type(raised.value) and str(again) == str(raised.value)
    assert vars(again) == vars(raised.value)


def test_what_is_wrong_in_a_file_has_its_line(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text((CONFIGS / "v-shape-4.toml").read_text().replace("kind", "knd", 1))
    with pytest.raises(ostinato.InputError) as caught:
        ostinato.Placement.from_file(path)
    assert caught.value.file == str(path) and caught.value.line > 0
    assert str(caught.value).startswith(f"{path}:{caught.value.line}: ")
    assert isinstance(caught.value, ostinato.Error) and isinstance(caught.value, ValueError)
    with pytest.raises(ostinato.InputError, match="nowhere.json"):
        ostinato.Profile.from_file(tmp_path / "nowhere.json")


def test_a_plan_of_another_placement_is_refused(tmp_path):
    ostinato.search(ostinato.placement("v", devices=2), micro_batches=2).save(tmp_path / "v.json")
    with pytest.raises(ostinato.InputError, match="v.json"):
        ostinato.Plan.from_file(tmp_path / "v.json", ostinato.placement("v", devices=2, forward="7us"))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda v: ostinato.search(v, micro_batches=2, time_limit=-1), ["time_limit needs", '"-1"']),
        (lambda v: ostinato.search(v, micro_batches=2, method="1f1c"), ["method", "did you mean 1f1b?"]),
        (lambda v: ostinato.search(v, micro_batches=0), ["micro"]),
        (lambda v: ostinato.search(v, micro_batches=-3), ["micro"]),
        (lambda v: ostinato.pareto(v, micro_batches=2, points=1), ["points needs", "from 2"]),
        (lambda v: ostinato.Devices(0), ["devices needs a whole number from 1 to 65536"]),
        (lambda v: ostinato.Devices(2, memory="40"), ["device_memory needs a number with a unit"]),
        (lambda v: ostinato.placement("m", forward="fast"), ["forward needs a time"]),
        (lambda v: ostinato.placement("mm"), ["did you mean m?"]),
        (lambda v: ostinato.placement("m", layers=-1), ["layers needs a whole number from 0, got -1"]),
        (
            lambda v: ostinato.search(v, micro_batches=2.5),
            ["micro_batches is 2.5; it must be a whole number"],
        ),
        (
            lambda v: ostinato.search(v, micro_batches="2"),
            ["micro_batches is '2'; it must be a whole number"],
        ),
        (lambda v: ostinato.search(v, micro_batches=True), ["micro_batches is True"]),
        (lambda v: ostinato.simulate(ostinato.search(v, micro_batches=2), size=3), ["size needs sizes"]),
        (lambda v: ostinato.Devices(2.5), ["devices is 2.5"]),
        (lambda v: ostinato.Devices(True), ["devices is True"]),
        (lambda v: ostinato.search_sizes(v, [1.5]), ["size is 1.5"]),
        (lambda v: ostinato.search_sizes(v, [1], size=2**63), ["size is 9223372036854775808; the largest"]),
        (lambda v: ostinato.search_sizes(v, {1: 5}), ["sizes are a dict"]),
        (lambda v: ostinato.search(v, micro_batches=2, seed=2**63), ["the largest is 9223372036854775807"]),
        (lambda v: ostinato.Plan.from_file("a\0b"), ["a\\u0000b: no file has a NUL"]),
        (lambda v: ostinato.steady_state(v, time_limit=-1), ["time_limit needs", '"-1"']),
        (lambda v: ostinato.steady_state(v, time_limit=float("nan")), ["time_limit needs", '"nan"']),
        (lambda v: ostinato.steady_state(v, time_limit="soon"), ["time_limit needs", '"soon"']),
        (lambda v: ostinato.Simulation((1, 2)).at(200), ["percent is 200; it must be from 0 to 100"]),
        (lambda v: ostinato.Simulation((1, 2)).at(-1), ["percent is -1"]),
        (lambda v: ostinato.Simulation((1, 2)).at(0.5), ["percent is 0.5; it must be a whole number"]),
    ],
)
def test_what_is_asked_wrongly_is_said(call, words):
    with pytest.raises((ostinato.UsageError, ostinato.InputError)) as caught:
        call(ostinato.placement("v", devices=2))
    assert "--" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_infeasible_holds_the_proof():
    with pytest.raises(ostinato.InfeasibleError, match="device0"):
        ostinato.search(ostinato.placement("v", devices=2, memory=2, capacity=1), micro_batches=2)


@pytest.fixture
def takes_ctrl_c():
    """As Python does in a terminal; what runs in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_gives_the_best_so_far(takes_ctrl_c):
    seen = []

    def progress(*figures):
        seen.append(figures)
        if figures[0] > 0:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(ostinato.Interrupted) as caught:
        ostinato.search(ostinato.placement("nn", **SLOW), micro_batches=64, time_limit=0, progress=progress)
    best = caught.value.best
    assert isinstance(caught.value, KeyboardInterrupt) and best.cut_by_limit and ostinato.verify(best)
    value, bound, seconds, phase = seen[-1]
    assert value >= best.makespan >= bound > 0 and seconds >= 0 and phase


@pytest.mark.parametrize("command", ["search_sizes", "simulate"])
def test_ctrl_c_ends_what_reports_no_progress(takes_ctrl_c, command):
    placement = ostinato.placement("nn", **SLOW)
    plan = ostinato.search(placement, micro_batches=64, time_limit=0.1)
    calls = {
        "search_sizes": lambda: ostinato.search_sizes(placement, range(1, 65), size=8, effort=100_000),
        "simulate": lambda: ostinato.simulate(plan, runs=1_000_000, jitter=0.1),
    }
    alarm = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    alarm.start()
    with pytest.raises(ostinato.Interrupted) as caught:
        calls[command]()
    best = caught.value.best
    assert ostinato.verify(best) if command == "search_sizes" else 0 < len(best.makespans) < 1_000_000


def test_what_progress_raises_ends_the_search():
    def progress(*figures):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        ostinato.search(ostinato.placement("nn", **SLOW), micro_batches=64, time_limit=0, progress=progress)


def test_other_threads_go_on():
    """A thread of Python's stops the search, which it could not if the search held the interpreter."""
    going, counted = threading.Event(), []

    def count():
        while not going.is_set():
            counted.append(time.monotonic())
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    ostinato.search(ostinato.placement("nn", **SLOW), micro_batches=64, time_limit=1)
    going.set()
    thread.join()
    assert len(counted) > 10


def test_one_name_needs_no_list(profile):
    layers = ostinato.Profile.from_file(profile)
    asked = {"devices": 2, "micro_batches": 2, "time_limit": 1}
    listed = ostinato.plan(layers, without=["chunks", "split"], **asked)
    assert ostinato.plan(layers, without="chunks,split", **asked) == listed
    assert ostinato.plan(layers, only="chunks", **asked) == ostinato.plan(layers, only=["chunks"], **asked)


def test_a_curve_over_memory():
    curve = ostinato.pareto(ostinato.placement("v", devices=4), micro_batches=8, points=3)
    assert 2 <= len(curve) <= 3 and all(map(ostinato.verify, curve))
    assert [max(plan.peak_memory) for plan in curve] == sorted(
        (max(plan.peak_memory) for plan in curve), reverse=True
    )


def test_a_plan_is_replayed_explained_lowered_and_drawn(monkeypatch):
    plan = ostinato.search(ostinato.placement("m", devices=4), micro_batches=8)
    calm, rough = ostinato.simulate(plan, runs=3), ostinato.simulate(plan, jitter=0.2, runs=50)
    assert calm.makespans == (plan.makespan,) * 3 and rough.at(0) <= rough.at(50) <= rough.at(100)
    assert rough == ostinato.simulate(plan, jitter=0.2, runs=50)
    assert [objects.Simulation((1, 2, 3)).at(percent) for percent in (0, 33, 34, 66, 67)] == [1, 1, 2, 2, 3]
    assert ostinato.explain(plan) and len(ostinato.lower(plan)) == 4
    page = plan._repr_html_()
    assert page.startswith("<iframe srcdoc=") and "&lt;html" in page
    monkeypatch.setitem(
        sys.modules, "pandas", SimpleNamespace(DataFrame=lambda rows, columns: (rows, columns))
    )
    rows, columns = plan.to_frame()
    assert len(rows) == len(plan.schedule) and columns[0] == "block" and json.dumps(rows[0])


def test_a_plan_that_does_not_run_tells_nothing(tmp_path):
    """verify() says what is wrong with it; nothing else takes it."""
    v = ostinato.placement("v", devices=2)
    plan = ostinato.search(v, micro_batches=2)
    path = tmp_path / "plan.json"
    path.write_text(plan.text.replace(f'"makespan": {plan.makespan}', f'"makespan": {plan.makespan // 2}'))
    wrong = ostinato.Plan.from_file(path, v)
    assert not ostinato.verify(wrong)
    for use in (
        wrong.html,
        lambda: str(wrong),
        lambda: wrong.schedule,
        lambda: wrong.facts,
        lambda: ostinato.simulate(wrong),
    ):
        with pytest.raises(ostinato.InputError, match="the makespan is"):
            use()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: ostinato.search("v.toml", micro_batches=2),
            r"takes a Placement, but got a str: Placement.from_file\('v.toml'\) reads one",
        ),
        (
            lambda: ostinato.plan("p.json", devices=2, micro_batches=2),
            r"takes a Profile, but got a str: Profile.from_file\('p.json'\) reads one",
        ),
        (lambda: ostinato.plan(None, devices=2, micro_batches=2), "takes a Profile, but got a NoneType$"),
        (lambda: ostinato.partition(1, devices=2, micro_batches=2), "takes a Profile, but got a int$"),
        (lambda: ostinato.explain("plan.json"), "takes a Plan, but got a str: Plan"),
    ],
)
def test_a_path_is_no_object(call, said):
    with pytest.raises(ostinato.UsageError, match=said):
        call()


def test_a_flag_is_true_or_false():
    numpy = pytest.importorskip("numpy")
    v = ostinato.placement("v", devices=2, inference=numpy.True_)
    for call, said in [
        (lambda: ostinato.placement("v", inference="no"), "inference is 'no'; it must be True or False"),
        (lambda: ostinato.lower(ostinato.search(v, micro_batches=1), transfers=1), "transfers is 1; "),
        (lambda: ostinato.search_sizes(v, [1, 2], size=1, keep_order=None), "keep_order is None; "),
        (lambda: ostinato.partition_graph("g.csv", devices="d.csv", inference=0), "inference is 0; "),
    ]:
        with pytest.raises(ostinato.UsageError, match=said):
            call()
