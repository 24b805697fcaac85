# SPDX-License-Identifier: Apache-2.0
"""`ostinato report --measured`: what a run took becomes costs of layers and speeds of devices, and the
planner plans with them."""

import json
import tomllib

import ostinato
import pytest
from ostinato import report
from ostinato.deepspeed.tell.trace import means_of
from ostinato.measured import Measured, MeasuredBlock, replanned, speeds_in, times_in
from ostinato.trace import read_traces
from support.profiles import write_profile

LAYERS, DEVICES, MICRO_BATCHES = [1000] * 12, 4, 16


@pytest.fixture
def ran(tmp_path):
    """run(slower, costlier, steady): a folder with the files of a plan, and the trace of a run in which
    devices and stages took so many times as long."""
    from ostinato import _plugin

    profile = ostinato.Profile.from_file(write_profile(tmp_path / "profile.json", LAYERS))
    plan = ostinato.plan(profile, devices=DEVICES, micro_batches=MICRO_BATCHES, max_chunks=1, time_limit=2)
    plan.placement.save(tmp_path / "placement.toml")
    plan.save(tmp_path / "plan.json")
    program = _plugin.lower(str(tmp_path / "plan.json"), str(tmp_path / "placement.toml"))

    def run(slower=(1, 1, 1, 1), costlier=(1, 1, 1, 1), steady: bool = True, **changes):
        for rank in range(DEVICES):
            rows, now = [], 0
            for i in program.instructions(rank):
                took = round((i.end - i.start) * slower[rank] * costlier[i.stage]) if i.action in "FB" else 0
                rows.append({
                    "text": str(i), "action": i.action, "stage": i.stage, "micro_batch": i.micro_batch,
                    "planned_start": i.start, "planned_end": i.end, "start": now, "end": now + took,
                })  # fmt: skip
                now += took
            blocks = {
                (row["stage"], row["action"]): row["end"] - row["start"]
                for row in rows
                if row["action"] in "FB"
            }
            if not steady:
                rows[0]["end"] = rows[0]["start"]  # which the steady blocks do not heed
            trace = {
                "format": "ostinato-trace/1", "rank": rank, "device": rank, "step": 1, "plan_sha256": program.plan_sha256, "makespan": plan.makespan,
                "placement_sha256": plan.placement.sha256, "instructions": rows, "step_seconds": [1.0],
                "blocks": [{"stage": s, "action": a, "median": t, "low": t, "high": t, "steps": 9} for (s, a), t in blocks.items()],
            } | changes  # fmt: skip
            (tmp_path / f"rank-{rank}.json").write_text(json.dumps(trace))
        return tmp_path

    return run


def again(folder) -> ostinato.Plan:
    assert (
        report.main(
            [str(folder), "--profile", str(folder / "profile.json"), "--measured", str(folder / "new")]
        )
        == 0
    )
    devices = ostinato.Devices.from_file(folder / "new" / "devices.toml")
    profile = ostinato.Profile.from_file(folder / "new" / "profile.json")
    return ostinato.plan(
        profile, devices=devices, micro_batches=MICRO_BATCHES, max_chunks=1, all_devices=True, time_limit=2
    )


def test_a_slow_device_gets_fewer_layers(ran, capsys):
    folder = ran(slower=(1, 1, 1.5, 1))
    plan = again(folder)
    said = capsys.readouterr().out
    assert "Device 2 took 1.50 times as long as planned, compared with the median device" in " ".join(
        said.split()
    )
    table = plan.placement.to_dict()
    device_of = {block["stage"]: block["devices"][0] for block in table["blocks"]}
    sizes = {device_of[stage["name"]]: stage["layers"][1] - stage["layers"][0] for stage in table["stages"]}
    before = ostinato.Plan.from_file(
        folder / "plan.json", ostinato.Placement.from_file(folder / "placement.toml")
    )
    assert sizes[2] < 3 and sum(sizes.values()) == 12
    # Three layers on it would take half as long again as before; two take as long as three do elsewhere.
    assert plan.makespan < 1.35 * before.makespan


def test_costlier_layers_are_not_a_slow_device(ran):
    """Where all blocks took longer alike, by whatever a stage costs, devices stay alike."""
    found = Measured.of(read_traces(ran(costlier=(1.2, 1.2, 1.2, 1.2))))
    assert found.overall == pytest.approx(1.2) and set(found.devices.values()) == {1.0}
    plan = again(ran(costlier=(1.2, 1.2, 1.2, 1.2)))
    assert plan.placement.times["s0.F"] == pytest.approx(1.2 * 3_000_000, rel=0.01)


@pytest.mark.parametrize(
    ("costlier", "says"),
    [
        ((1.2, 1.25, 1.2, 1.2), "All blocks took about 1.20 times as long as planned: the machine was slower"),
        ((0.8, 0.8, 0.8, 0.8), "All blocks took about 0.80 times as long as planned: the machine was faster"),
        ((1.5, 1.2, 1.2, 1.2), "Blocks took 1.20 times as long as planned on the median device: profile again"),
        ((1.1, 1.1, 1.1, 1.1), ""),
    ],
)  # fmt: skip
def test_a_machine_that_is_slower_altogether_needs_no_new_profile(ran, costlier, says):
    first = next(Measured.of(read_traces(ran(costlier=costlier))).conclusions(1, 1), "")
    assert first.startswith(says) and bool(first) == bool(says)


def test_a_block_takes_again_what_it_took(ran):
    folder = ran(slower=(1, 1.3, 1, 1), costlier=(1.02, 1, 1, 0.98))
    found = Measured.of(read_traces(folder))
    placement = tomllib.loads((folder / "placement.toml").read_text())
    profile, devices = replanned(found, placement, json.loads((folder / "profile.json").read_text()))
    rows = json.loads(profile)["layers"]
    speed_of = {kind["name"]: kind["speed"] for kind in tomllib.loads(devices)["kinds"]}
    speeds = [
        speed_of[node["kind"]] for node in tomllib.loads(devices)["nodes"] for _ in range(node["devices"])
    ]
    for stage, row in enumerate(placement["stages"]):
        for action, key in (("F", "forward"), ("B", "backward")):
            took = next(
                time
                for block, time in found.measured.items()
                if (block.stage, block.action) == (stage, action)
            )
            assert sum(rows[layer][key]["median"] for layer in range(*row["layers"])) / speeds[
                stage
            ] == pytest.approx(took, rel=0.002)


HALVES = {"backward_input": 1_900_000, "backward_weight": 700_000}


def with_overheads(path, lanes: dict[int, str]) -> dict:
    """A profile, as a table, with two stages of three layers, and what blocks cost beside them."""
    told = json.loads(write_profile(path, [1000, 1400, 900, 800, 1100, 1200], lanes=lanes).read_text())
    told["rank"] = {"held": 0, "step": 0, "buffers": 0, "forward": 200_000, "backward": 300_000, "read": 50_000, "average": 1_100_000}  # fmt: skip
    told["restrictions"] = [
        {"rule": "together", "layers": [0, 1, 2], "device": 0, "reason": "one stage"},
        {"rule": "together", "layers": [3, 4, 5], "device": 1, "reason": "the other"},
    ]
    for row in told["layers"]:  # of some the halves take less than the whole, of some more
        row |= {
            key: {"median": time, "low": time, "high": time, "repeats": 1} for key, time in HALVES.items()
        }
    return told


@pytest.mark.parametrize(
    ("lanes", "options"),
    [
        ({}, {}),
        ({}, {"split_backward": True}),
        ({}, {"recompute": "always"}),
        ({}, {"recompute": "always", "split_backward": True}),
        ({1: "network"}, {}),
    ],
)
@pytest.mark.parametrize("slow", [1.0, 1.5])
def test_stages_placed_again_take_what_they_took(tmp_path, lanes, options, slow):
    """Only layers are scaled, and not what blocks cost beside them: none on a lane, the same on a slow device."""
    told = with_overheads(tmp_path / "profile.json", lanes)
    before = ostinato.partition(ostinato.Profile.from_text(json.dumps(told)), devices=2, **options)
    table, wanted, rows = before.to_dict(), {}, []
    stages = [stage["name"] for stage in table["stages"]]
    for at, block in enumerate(table["blocks"]):
        device, planned = block["devices"][0], before.times[block["name"]]
        wanted[block["name"]] = planned * (1.2 + 0.07 * at) * (slow if device else 1)
        ran = MeasuredBlock(device, stages.index(block["stage"]), block["name"].rpartition(".")[2])
        rows.append((ran, planned, wanted[block["name"]]))
    found = Measured.of_rows(rows)
    profile, devices = replanned(found, table, told)
    after = ostinato.partition(
        ostinato.Profile.from_text(profile), devices=ostinato.Devices.from_text(devices), **options
    )
    assert after.to_dict()["stages"] == table["stages"]
    assert after.times == pytest.approx(wanted, rel=0.001)


def test_blocks_shorter_than_what_they_cost_beside_their_layers(tmp_path):
    told = with_overheads(tmp_path / "profile.json", {})
    placement = ostinato.partition(ostinato.Profile.from_text(json.dumps(told)), devices=2).to_dict()
    found = Measured.of_rows(
        [(MeasuredBlock(0, 0, "F"), 3_000_000, 100_000), (MeasuredBlock(1, 1, "F"), 200_000, 900_000)]
    )
    rows = json.loads(replanned(found, placement, told)[0])["layers"]
    times = [row["forward"]["median"] for row in rows]
    assert max(times[:3]) <= 1 and times[3:] == [800_000, 1_100_000, 1_200_000]


def test_the_plan_that_ran_is_replayed_with_what_its_blocks_took(ran):
    folder = ran(slower=(1, 1, 1.5, 1), costlier=(1.2, 1.2, 1.2, 1.2))
    placement = ostinato.Placement.from_file(folder / "placement.toml")
    plan = ostinato.Plan.from_file(folder / "plan.json", placement)
    times = times_in(Measured.of(read_traces(folder)), placement.to_dict())
    assert set(times) == set(placement.blocks) and times["s2.B"] == round(1.8 * placement.times["s2.B"])
    now = ostinato.simulate(plan, sizes=[{"times": times}] * MICRO_BATCHES, runs=1).at(100)
    assert 1.5 * plan.makespan < now < 1.8 * plan.makespan  # the slowest device sets the pace
    # With the same costs, a new plan gains what it moves off the slow device, and not what all blocks have in common.
    assert 1.0 < now / again(folder).makespan < 1.5
    nothing = Measured({}, {MeasuredBlock(0, 0, "F"): 0.0}, 0.0, {})
    assert times_in(nothing, placement.to_dict()) == {}, "as planned"


def test_the_last_step_alone_does_not_decide(ran):
    assert Measured.of(read_traces(ran(slower=(1.5, 1, 1, 1), steady=False))).devices[0] == pytest.approx(1.5)


@pytest.mark.parametrize("devices", [2, 3])
def test_a_device_that_was_planned_slow_is_as_fast_as_the_rest_again(devices):
    """What is left of its slowness decides which device is compared with, not what the plan expected of it."""
    speeds = (1.0, 0.5, 0.5)[:devices]
    rows = [
        (MeasuredBlock(device, device, "F"), 10.0 / speed, 10.0 * (1.03 - 0.01 * device))
        for device, speed in enumerate(speeds)
    ]
    found = Measured.of_rows(rows, speeds)
    assert found.overall == pytest.approx(1.03)
    assert found.devices == pytest.approx(dict(enumerate(speeds)), rel=0.02)
    placement = {
        "devices": [{}] * devices,
        "blocks": [],
        "stages": [{"name": f"s{n}", "layers": [n, n + 1]} for n in range(devices)],
    }
    time = {"median": 10, "low": 10, "high": 10, "repeats": 3}
    times = dict.fromkeys(("forward", "backward", "backward_input", "backward_weight"), time)
    _, text = replanned(found, placement, {"layers": [times] * devices})
    assert speeds_in(text) == pytest.approx([1.0] * devices, abs=0.025)
    as_planned = Measured.of_rows([(block, planned, planned) for block, planned, _ in rows], speeds)
    assert as_planned.overall == 1.0 and set(as_planned.devices.values()) == {1.0}


def test_blocks_that_took_no_time_are_not_known():
    """During training, where "adapt" and the watch over slow devices compare."""
    rows = [(MeasuredBlock(device, device, "F"), 10.0, took) for device, took in enumerate((0.0, 20.0, 20.0))]
    found = Measured.of_rows(rows)
    assert found.overall == 2.0 and set(found.devices.values()) == {1.0}
    nothing = Measured.of_rows([(block, planned, 0.0) for block, planned, _ in rows])
    assert nothing.overall == 0.0 and set(nothing.devices.values()) == {1.0}
    assert list(nothing.conclusions(10, 10)) == []


def test_refusals(ran, capsys):
    folder = ran()
    assert report.main([str(folder), "--measured", str(folder / "new")]) == 2
    assert "--measured needs --profile" in capsys.readouterr().err
    alone = folder / "alone" / "profile.json"
    alone.parent.mkdir()
    alone.write_text((folder / "profile.json").read_text())
    assert report.main([str(folder), "--profile", str(alone), "--measured", str(folder / "new")]) == 3
    assert "placement.toml: no such file; --placement names what ran" in capsys.readouterr().err
    assert report.main([str(folder), "--profile", "none.json", "--measured", str(folder / "new")]) == 3
    assert "ostinato report: none.json: no such file" in capsys.readouterr().err
    given = ["--profile", str(folder / "profile.json"), "--measured", str(alone)]
    assert report.main([str(folder), *given]) == 3
    assert f"--measured {alone}: this is a file; give a folder" in capsys.readouterr().err
    ran(placement_sha256="0" * 64)
    assert (
        report.main(
            [str(folder), "--profile", str(folder / "profile.json"), "--measured", str(folder / "new")]
        )
        == 3
    )
    assert "is not the placement that ran" in capsys.readouterr().err and not (folder / "new").exists()


def test_means_of_a_step():
    blocks = [(0, "F"), None, (0, "B"), (0, "F")]
    assert means_of(blocks, [(0, 0, 10), (1, 10, 90), (2, 90, 97), (3, 97, 117)]) == {
        (0, "F"): 15,
        (0, "B"): 7,
    }


def test_a_device_that_is_fast_again(ran):
    """Beside a plan for its slowness; two of a kind are one node."""
    folder = ran(slower=(1, 1, 0.5, 1))
    placement = tomllib.loads((folder / "placement.toml").read_text())
    _, devices = replanned(
        Measured.of(read_traces(folder), [1, 1, 0.5, 1]),
        placement,
        json.loads((folder / "profile.json").read_text()),
    )
    made = tomllib.loads(devices)
    assert [kind["speed"] for kind in made["kinds"]] == [1] and [
        node["devices"] for node in made["nodes"]
    ] == [DEVICES]


def test_a_plan_that_adapt_has_made_is_measured_by_what_it_was_made_from(ran, capsys):
    """Else what "adapt" has found out would be lost: that plan already expects it."""
    folder = ran()
    (folder / "adapted").mkdir()
    base = folder / "adapted/base.json"
    write_profile(base, [2000] * 12)
    arguments = [
        str(folder),
        "--placement",
        str(folder / "placement.toml"),
        "--measured",
        str(folder / "new"),
    ]
    assert report.main([*arguments, "--profile", str(folder / "profile.json")]) == 3
    said = capsys.readouterr().err
    assert '"adapt" has measured since' in said and f"use --profile {base}" in said
    before = [1.0, 0.5, 1.0, 1.0]
    kinds = "".join(f'[[kinds]]\nname = "{at}"\nspeed = {speed}\n' for at, speed in enumerate(before))
    nodes = "".join(f'[[nodes]]\nkind = "{at}"\ndevices = 1\n' for at in range(4))
    (folder / "adapted/base-devices.toml").write_text(kinds + nodes)
    assert report.main([*arguments, "--profile", str(base)]) == 0
    assert speeds_in((folder / "new/devices.toml").read_text()) == before


def test_a_missing_rank_is_named(ran, capsys):
    folder = ran()
    (folder / "rank-2.json").unlink()
    arguments = ["--profile", str(folder / "profile.json"), "--measured", str(folder / "new")]
    assert report.main([str(folder), *arguments]) == 3
    assert "no file of a rank on device 2: gather those of all ranks" in capsys.readouterr().err
    assert not (folder / "new").exists()
