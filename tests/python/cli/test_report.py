# SPDX-License-Identifier: Apache-2.0
"""`ostinato report`: reads traces, says what is wrong with them, and compares planned with measured."""

import hashlib
import json
import os
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
from ostinato import _plugin, _search, report
from ostinato.deepspeed.tell import trace as trace_file
from ostinato.deepspeed.tell.trace import Trace
from ostinato.trace import TraceError, perfetto, read_traces
from plan_files import write_chain


def instruction(text, action, planned, measured, micro_batch=0):
    return {
        "text": text, "action": action, "stage": 0, "micro_batch": micro_batch,
        "planned_start": planned[0], "planned_end": planned[1], "start": measured[0], "end": measured[1],
    }  # fmt: skip


def trace(rank, **changes):
    instructions = [
        instruction("0F0", "F", (0, 100), (0, 110)),
        instruction("0SEND_F0", "SEND_F", (100, 100), (110, 120)),
        instruction("0B0", "B", (100, 300), (120, 340)),
    ]
    made = {
        "format": "ostinato-trace/1", "rank": rank, "device": rank, "step": 3, "plan_sha256": "ab", "makespan": 300,
        "instructions": instructions, "step_seconds": [9.0, 2.0, 1.0], "peak_memory": 1 << 20,
    }  # fmt: skip
    return {**made, **changes}


def write(folder, *traces):
    for made in traces:
        (folder / f"rank-{made['rank']}.json").write_text(json.dumps(made))
    return folder


def test_blocks_ranks_and_step_are_compared(tmp_path):
    summary = report.summary(read_traces(write(tmp_path, trace(0), trace(1))))
    assert summary["blocks"][0] == {
        "stage": 0,
        "kind": "backward",
        "rank": 0,
        "planned": 200,
        "measured": 220,
    }
    assert summary["ranks"][1]["planned_busy"] == 300
    assert summary["ranks"][1]["planned_bubble"] == 0
    assert summary["ranks"][1]["measured_bubble"] == pytest.approx(1 - 330 / 340)
    # The first two steps warm up and are left out.
    assert summary["step"] == {
        "predicted": 300, "predicted_step": None, "measured_pipeline": 340,
        "measured_step": 1_000_000_000, "steps": 3,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("held_by", "column", "explained"),
    [
        ("process", "peak of the process", True),
        ("accelerator", "peak of the allocator", False),
        (None, "peak memory", False),
    ],
)
def test_says_that_the_memory_of_the_process_is_not_what_a_plan_counts(
    tmp_path, capsys, held_by, column, explained
):
    whose = {"peak_memory_of": held_by} if held_by else {}
    folder = str(write(tmp_path, trace(0, peak_memory=528 << 20, **whose)))
    assert report.main([folder]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "528.0 MiB" in shown
    assert ("The peak of the process is not the plan's peak memory" in shown) == explained
    assert all(word in shown for word in column.split())
    assert report.main([folder, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ranks"][0]["peak_memory_of"] == held_by


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"makespan": 0}, "'makespan' is 0"),
        ({"instructions": [instruction("0F0", "F", (0, 100), (5, 5))]}, "all blocks took 0 ns"),
        ({"instructions": [instruction("0SEND_F0", "SEND_F", (0, 1), (0, 1))]}, "no instruction computes"),
    ],
)
def test_a_trace_without_times_is_refused(tmp_path, capsys, changes, words):
    folder = write(tmp_path, trace(0, **changes))
    assert report.main([str(folder)]) == 3
    assert f"{folder}/rank-0.json: {words}" in capsys.readouterr().err


def planned(sha, makespan, **changes):
    made = {
        "plan_sha256": sha,
        "makespan": makespan,
        "lower_bound": 200,
        "one_f_one_b": 500,
        "planning": 3,
        "measured": 330,
    }
    return made | changes


def test_steps_of_their_own_plans(tmp_path, capsys):
    """Two replicas with plans of their own: the one that is planned to end last counts."""
    mine = [planned("aa", 250), planned("ab", 300), planned("ac", 300, measured=700)]
    other = [
        planned("ba", 400, lower_bound=390, one_f_one_b=0),
        planned("bb", 210),
        planned("bc", 310, planning=9),
    ]
    folder = write(
        tmp_path, trace(0, step_plans=mine), trace(1, step_plans=other, plan_sha256="bc", makespan=310)
    )
    rows = report.summary(read_traces(folder))["steps"]
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert rows[0] == {
        "step": 1,
        "predicted": 400,
        "lower_bound": 390,
        "predicted_1f1b": None,
        "measured": 330,
        "planning": 3,
    }
    assert (rows[1]["predicted"], rows[2]["measured"], rows[2]["planning"]) == (300, 700, 9)
    assert report.above(rows[1]) == pytest.approx(0.5)
    assert report.main([str(folder)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        "Steps planned for their sizes" in shown
        and "55.00% above the bound" in shown
        and "reordering saves 38.0% of it" in shown
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"step_plans": [planned("aa", 250)]}, "'step_plans' has 1 entry for 3 steps"),
        ({"step_plans": [planned("aa", -1)] * 3}, "step_plans.0.makespan"),
        ({"step_plans": [{"plan_sha256": "aa"}] * 3}, "step_plans.0.makespan"),
    ],
)
def test_plans_of_steps_that_are_wrong(tmp_path, changes, words):
    with pytest.raises(TraceError, match=words):
        read_traces(write(tmp_path, trace(0, **changes)))


def test_perfetto_has_planned_beside_measured(tmp_path):
    events = perfetto(read_traces(write(tmp_path, trace(0))))["traceEvents"]
    spans = [(e["name"], e["cat"], e["tid"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert ("0F", "forward", 0, 0.0, 0.11) in spans and ("0F", "forward", 2, 0.0, 0.1) in spans
    assert ("0SEND_F", "transfer", 1, 0.11, 0.01) in spans


def transfers(rank, *rows):
    """Rows (action, stage, micro-batch, planned, measured)."""
    made = [
        {**instruction("", action, planned, measured, m), "stage": stage}
        for action, stage, m, planned, measured in rows
    ]
    return trace(rank, instructions=made)


def arrows(events):
    """(rank, track) of the slice in which each begins, and of that in which it ends."""
    found = {}
    for event in events:
        if event["ph"] in "sf":
            inside = [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == (event["pid"], event["tid"])
                      and e["ts"] < event["ts"] < e["ts"] + e["dur"]]  # fmt: skip
            found.setdefault(event["id"], []).append(
                [(e["name"], e["args"]["micro_batch"], e["pid"]) for e in inside]
            )
    return sorted(tuple(slice for slices in ends for slice in slices) for ends in found.values())


def test_arrows_lead_from_sends_to_receives(tmp_path):
    there, back = ((100, 110), (300, 310)), ((200, 210), (400, 410))
    first = transfers(
        0,
        ("SEND_F", 0, 0, there[0], (100, 130)),
        ("SEND_F", 0, 1, there[1], (120, 140)),
        ("RECV_B", 0, 0, back[0], (250, 260)),
    )
    second = transfers(
        1,
        ("RECV_F", 1, 0, there[0], (90, 135)),
        ("RECV_F", 1, 1, there[1], (95, 145)),
        ("SEND_B", 1, 0, back[0], (240, 255)),
    )
    events = perfetto(read_traces(write(tmp_path, first, second)))["traceEvents"]
    assert arrows(events) == [
        (("0SEND_F", 0, 0), ("1RECV_F", 0, 1)), (("0SEND_F", 1, 0), ("1RECV_F", 1, 1)), (("1SEND_B", 0, 1), ("0RECV_B", 0, 0)),
    ]  # fmt: skip
    slices = [e for e in events if e["ph"] == "X"]
    for one in slices:  # none overlaps another of its track
        for other in slices:
            if one is not other and (one["pid"], one["tid"]) == (other["pid"], other["tid"]):
                assert one["ts"] >= other["ts"] + other["dur"] or other["ts"] >= one["ts"] + one["dur"]


def test_arrows_of_replicas_stay_in_theirs_and_what_is_not_clear_has_none(tmp_path):
    there = (100, 110)
    ranks = [
        transfers(r, (action, r // 2, 0, there, (100 + r, 130 + r)))
        for r, action in enumerate(["SEND_F", "SEND_F", "RECV_F", "RECV_F"])
    ]
    in_replicas = [{**made, "device": made["rank"] // 2} for made in ranks]
    found = arrows(perfetto(read_traces(write(tmp_path, *in_replicas)))["traceEvents"])
    assert found == [(("0SEND_F", 0, 0), ("1RECV_F", 0, 2)), (("0SEND_F", 0, 1), ("1RECV_F", 0, 3))]
    # One pipeline: whose is whose?
    assert arrows(perfetto(read_traces(write(tmp_path, *ranks)))["traceEvents"]) == []


def test_peers_say_whose_is_whose(tmp_path):
    """Two messages that leave at the same time from two ranks, crossing: by their planned times alone nobody
    could tell."""
    there = (100, 110)
    # By rank: action, stage = rank, peer.
    rows = [("SEND_F", 0, 3), ("SEND_F", 1, 2), ("RECV_F", 2, 1), ("RECV_F", 3, 0)]
    ranks = []
    for rank, (action, stage, peer) in enumerate(rows):
        made = transfers(rank, (action, stage, 0, there, (100 + rank, 130 + rank)))
        made["instructions"][0] |= {"peer": peer, "peer_stage": peer}
        ranks.append(made)
    found = arrows(perfetto(read_traces(write(tmp_path, *ranks)))["traceEvents"])
    assert found == [(("0SEND_F", 0, 0), ("3RECV_F", 0, 3)), (("1SEND_F", 0, 1), ("2RECV_F", 0, 2))]


def test_devices_whose_ranks_have_no_file_here_are_named(tmp_path, capsys):
    """As where every node has written to a disk of its own."""

    def sending(rank: int, device: int) -> dict:
        made = trace(rank, device=device)
        made["instructions"][1] |= {"peer": 1 - device, "peer_stage": 1 - device}
        return made

    write(tmp_path, sending(0, 0), sending(1, 1), sending(2, 0))
    assert report.main([str(tmp_path)]) == 0
    assert "ranks on device 1 are missing" in " ".join(capsys.readouterr().out.split())
    write(tmp_path, sending(3, 1))
    assert report.summary(read_traces(tmp_path))["missing_devices"] == []
    for rank in (1, 3):
        (tmp_path / f"rank-{rank}.json").unlink()
    assert report.summary(read_traces(tmp_path))["missing_devices"] == [1]


def test_a_run_names_the_peers_of_its_transfers(tmp_path):
    there = SimpleNamespace(action="SEND_F", stage=0, micro_batch=0, peer=1, peer_stage=1, start=0, end=0)
    here = SimpleNamespace(action="F", stage=0, micro_batch=0, peer=-1, peer_stage=-1, start=0, end=0)
    program = SimpleNamespace(
        plan_sha256="ab",
        placement_sha256="cd",
        makespan=1,
        predicted=1,
        whole_step=3,
        beside=[],
        stages=[SimpleNamespace(lane="network", offload="")],
        instructions=lambda device: [here, there],
    )
    written = Trace(tmp_path, program, 0, 0)
    written.step(1.0, SimpleNamespace(records=lambda: [(0, 0, 1), (1, 1, 2)]))
    computed, sent = read_traces(tmp_path)[0].instructions
    written.close()
    assert read_traces(tmp_path)[0].whole_step == 3
    assert (computed.lane, sent.lane) == ("network", "")
    assert (sent.peer, sent.peer_stage) == (1, 1) and (computed.peer, computed.peer_stage) == (None, None)


def test_the_peak_so_far_outlasts_a_reset(monkeypatch):
    """Which recording a step's memory makes."""
    peaks = iter([900, 500, 950])
    gpu = SimpleNamespace(device_name=lambda: "cuda", max_memory_allocated=lambda: next(peaks))
    monkeypatch.setattr(trace_file, "get_accelerator", lambda: gpu)
    monkeypatch.setattr(trace_file, "_before_reset", 0)
    trace_file.keep_peak()
    assert [trace_file._peak_memory()["peak_memory"] for _ in range(2)] == [900, 950]


def test_command_prints_json_alone_and_writes_perfetto(tmp_path, capsys):
    write(tmp_path, trace(0))
    assert report.main([str(tmp_path), "--json", "--perfetto", str(tmp_path / "new" / "trace.json")]) == 0
    assert json.loads(capsys.readouterr().out)["step"]["steps"] == 3
    assert "traceEvents" in json.loads((tmp_path / "new" / "trace.json").read_text())


def test_command_prints_tables(tmp_path, capsys):
    assert report.main([str(write(tmp_path, trace(0)))]) == 0
    out = capsys.readouterr().out
    assert "backward" in out and "pipeline part " in out and "1F1B" not in out


def test_the_gain_is_said(tmp_path, capsys):
    assert (
        report.main(
            [
                str(
                    write(
                        tmp_path,
                        trace(
                            0,
                            makespan=3_000_000,
                            beside=[
                                ["your run now", 4_020_000, 0],
                                ["1F1B on the best stages", 3_600_000, 0],
                            ],
                        ),
                    )
                )
            ]
        )
        == 0
    )
    told = " ".join(capsys.readouterr().out.split())
    assert (
        "This plan was expected to be 1.34 times as fast as your run now (1.12 by other stages, 1.20 by the schedule): predicted 4.0 -> 3.0 ms a step (1F1B on the best stages: 3.6 ms)"
        in told
    )


def test_names_in_a_trace_colour_no_terminal(tmp_path, capsys):
    named = trace(0, makespan=3_000_000, beside=[["\x1b[31mRED [bold]run", 4_020_000, 0]])
    assert report.main([str(write(tmp_path, named))]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\\u001b[31mRED [bold]run" in " ".join(out.split())


def test_the_step_with_the_optimizer(tmp_path, capsys):
    assert report.main([str(write(tmp_path, trace(0, makespan=3_000_000, whole_step=1_000_000_000)))]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "whole step with the optimizer: predicted 1000.0 ms, measured 1000.0 ms, 1.00x" in told


def steady(steps: int, forward: int, end: int):
    rows = [("F", forward, end - 100), ("B", 200, end)]
    return [{"stage": 0, "action": a, "median": t, "low": t, "high": t, "steps": steps, "end": e} for a, t, e in rows]  # fmt: skip


@pytest.mark.parametrize(
    ("steps", "seen", "said"),
    [
        (1, 1, "Measured: step 1."),
        (2, 2, "Measured: whole steps, step 2; blocks, ranks and pipeline, medians of the last 2 steps."),
        (9, 7, "Measured: medians of steps 3 to 9."),
        (40, 32, "Measured: whole steps, medians of steps 3 to 40; blocks, ranks and pipeline, medians of the last 32 steps."),
        (40, 0, "Measured: whole steps, medians of steps 3 to 40; blocks, ranks and pipeline, the last step."),
    ],
)  # fmt: skip
def test_every_figure_is_a_median_of_several_steps_and_says_of_which(tmp_path, capsys, steps, seen, said):
    """The last step took 110 for a forward, and 340 in all; the median of the steps 150 and 400."""
    seconds = [9.0, 8.0, *[1.0] * 37, 3.0][:steps]
    more = {"blocks": steady(seen, 150, 400)} if seen else {}
    folder = write(tmp_path, *(trace(rank, step=steps, step_seconds=seconds, **more) for rank in (0, 1)))
    told = report.summary(read_traces(folder))
    forward, of_step = told["blocks"][2]["measured"], told["step"]["measured_pipeline"]
    assert (forward, of_step, told["ranks"][0]["measured_busy"]) == (
        (150, 400, 350) if seen else (110, 340, 330)
    )
    assert told["step"]["measured_step"] == {1: 9, 2: 8}.get(steps, 1) * 1_000_000_000
    assert report.main([str(folder)]) == 0
    assert " ".join(capsys.readouterr().out.split()).startswith(said)


def program_of_two_blocks():
    instruction = SimpleNamespace(action="F", stage=0, micro_batch=0, peer=-1, peer_stage=-1, start=0, end=0)
    values = {
        "plan_sha256": "a",
        "placement_sha256": "c",
        "makespan": 1,
        "predicted": 1,
        "whole_step": 0,
        "beside": [],
        "stages": [SimpleNamespace(lane="", offload="")],
    }
    return SimpleNamespace(**values, instructions=lambda device: [instruction, instruction])


def test_a_trace_leaves_out_the_steps_that_warm_up(tmp_path):
    written = Trace(tmp_path, program_of_two_blocks(), 0, 0)
    for took in (900, 800, 10, 30, 20):
        records = [(0, 0, took), (1, 100, 100 + took)]
        written.step(1.0, SimpleNamespace(records=lambda records=records: records))
    written.close()
    (block,) = read_traces(tmp_path)[0].blocks
    assert (block.steps, block.median, block.end) == (3, 20, 120) and read_traces(tmp_path)[0].pipeline == 120


def test_of_two_engines_with_one_folder_the_later_one_writes(tmp_path, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(trace_file, "say", said.append)
    executor = SimpleNamespace(records=lambda: [(0, 0, 10), (1, 10, 20)])
    first = Trace(tmp_path, program_of_two_blocks(), 0, 0)
    first.step(1.0, executor)
    second = Trace(tmp_path, program_of_two_blocks(), 0, 0)
    second.step(2.0, executor)
    assert said == []  # the script may have dropped the first one
    for _ in range(3):
        first.step(1.0, executor)
    (line,) = said
    assert line.startswith(f'"trace": an engine that was made later writes to {tmp_path}, so ')
    first.close()
    second.step(3.0, executor)
    second.close()
    assert read_traces(tmp_path)[0].step_seconds == [2.0, 3.0]
    third = Trace(tmp_path, program_of_two_blocks(), 0, 0)
    third.step(4.0, executor)
    third.close()
    assert read_traces(tmp_path)[0].step_seconds == [4.0] and len(said) == 1


def test_a_trace_removes_what_more_ranks_have_left(tmp_path, monkeypatch):
    """And nothing else."""
    write(tmp_path, *map(trace, range(4)))
    kept = ("rank-02.json", "rank-2.json.bak", "rank--2.json", "rank-3.json5", "my-rank-3.json")
    for name in kept:
        (tmp_path / name).write_text(json.dumps(trace(2)))
    (tmp_path / "rank-7.json").write_text('{"mine": 1}')
    (tmp_path / "rank-8.json").mkdir()
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setattr(trace_file.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(trace_file.dist, "get_world_size", lambda: 2)
    Trace(tmp_path, program_of_two_blocks(), 0, 0).close()
    left = {"rank-0.json", "rank-1.json", "rank-7.json", "rank-8.json", *kept}
    assert {path.name for path in tmp_path.iterdir()} == left
    Trace(tmp_path / "new", program_of_two_blocks(), 0, 0).close()


def test_a_plans_baselines_reach_the_report(tmp_path, capsys):
    """Of a plan that has some, 1F1B is that; of another, it is 1F1B on the plan's own placement."""
    plan, placement = write_chain(tmp_path, [0, 1], micro_batches=3)
    found = json.loads(Path(plan).read_text())
    assert _plugin.lower(plan, placement).beside == [("1F1B on the plan's stages", (3 + 1) * (10 + 20), 0)]
    found["baselines"] = [{"name": "1f1b", "makespan": 1500, "objective_value": 1500, "fits": True}]
    Path(plan).write_text(json.dumps(found))
    program = _plugin.lower(plan, placement)
    assert program.beside == [("1F1B on the best stages", 1500, 0)] and program.whole_step == 0
    with open(placement, "a") as file:
        file.write("\n[model]\nstep_time = [0, 70]\n")
    found["placement"]["sha256"] = hashlib.sha256(Path(placement).read_bytes()).hexdigest()
    Path(plan).write_text(json.dumps(found))
    program = _plugin.lower(plan, placement)
    assert program.whole_step == max(program.makespan, 70 + max(i.end for i in program.instructions(1)))
    left = Trace(tmp_path / "trace", program, 0, 0)
    left.step(0.25, SimpleNamespace(records=lambda: [(0, 0, 10)]))
    left.close()
    assert report.main([str(tmp_path / "trace"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["beside"] == [
        {"name": "1F1B on the best stages", "predicted": 1500, "measured_step": None}
    ]
    assert (
        _search.main(
            [
                "show",
                str(plan),
                str(placement),
                "--html",
                str(tmp_path / "page.html"),
                "--trace",
                str(tmp_path / "trace"),
            ],
            "",
        )
        == 0
    )


def test_a_run_beside_another(tmp_path, capsys):
    folders = [tmp_path / name for name in ("mine", "other")]
    for folder in folders:
        folder.mkdir()
    write(folders[0], trace(0))
    write(folders[1], trace(0, plan_sha256="cd", makespan=450, step_seconds=[9.0, 3.0, 3.0]))
    assert report.main([str(folders[0]), "--against", str(folders[1]), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["status"] == 0 and told["against"]["plan_sha256"] == "cd"
    assert told["against"]["ratios"] == {"predicted": 1.5, "measured_pipeline": 1.0, "measured_step": 3.0}
    assert report.main([str(folders[0]), "--against", str(folders[1])]) == 0
    out = capsys.readouterr().out
    assert "Against" in out and "3.00" in out and "1000.00" in out and "3000.00" in out
    assert "│" not in out  # like the other tables


@pytest.mark.parametrize("option", ["--profile", "--placement"])
def test_what_is_for_measured_is_not_ignored(tmp_path, capsys, option):
    assert report.main([str(write(tmp_path, trace(0))), option, "a"]) == 2
    assert "--profile and --placement are for --measured: add it" in capsys.readouterr().err


def test_against_no_trace_is_refused(tmp_path, capsys):
    assert report.main([str(write(tmp_path, trace(0))), "--against", str(tmp_path / "none"), "--json"]) == 3
    out, err = capsys.readouterr()
    assert "there is no such folder" in err and json.loads(out) == {
        "status": 3,
        "error": err.removeprefix("ostinato report: ").strip(),
    }


@pytest.mark.parametrize(
    ("traces", "message"),
    [
        ([], "no rank-*.json here"),
        (
            [trace(0, format="ostinato-trace/2")],
            "rank-0.json: 'format' is 'ostinato-trace/2'; this version of ostinato reads 'ostinato-trace/1'",
        ),
        (
            [trace(0, format="ostinato-plan/1\x1b")],
            "'format' is 'ostinato-plan/1\\x1b'; 'ostinato-trace/1' is expected here: is this the right file?",
        ),
        ([trace(0, format=1)], "rank-0.json: format"),
        ([trace(0, surprise=1)], "rank-0.json: surprise"),
        ([trace(0, instructions=[])], "rank-0.json: instructions"),
        ([trace(0), trace(1, plan_sha256="cd")], "the ranks differ in plan_sha256"),
        ([trace(0), trace(1, step=4, step_seconds=[1.0] * 4)], "the ranks differ in step"),
    ],
)
def test_a_bad_trace_is_refused_with_its_reason(tmp_path, capsys, traces, message):
    write(tmp_path, *traces)
    assert report.main([str(tmp_path)]) == 3
    assert message in capsys.readouterr().err


def test_files_of_another_run_are_named(tmp_path, capsys):
    """Those of four ranks, and then of two."""
    write(tmp_path, *(trace(rank, step=4, step_seconds=[1.0] * 4) for rank in range(4)))
    for rank in (2, 3):
        os.utime(tmp_path / f"rank-{rank}.json", (1, 1))
    write(tmp_path, trace(0), trace(1))
    assert report.main([str(tmp_path)]) == 3
    assert (
        "the ranks differ in step: this folder mixes files of several runs; delete those of the earlier ones: rank-2.json, rank-3.json\n"
    ) in capsys.readouterr().err


def test_a_file_of_a_trace_is_not_its_folder(tmp_path, capsys):
    file = write(tmp_path, trace(0)) / "rank-0.json"
    assert report.main([str(file)]) == 3
    assert f"{file}: this is a file; give its folder" in capsys.readouterr().err


def test_broken_json_is_refused_with_its_line(tmp_path, capsys):
    (tmp_path / "rank-0.json").write_text('{\n"format": }')
    assert report.main([str(tmp_path)]) == 3
    assert "rank-0.json:2: not JSON" in capsys.readouterr().err
    (tmp_path / "rank-0.json").write_text('{\n"format": "ost')
    assert report.main([str(tmp_path)]) == 3
    assert "rank-0.json:2: the file ends in the middle of its JSON" in capsys.readouterr().err
    (tmp_path / "rank-0.json").write_text("[]")
    assert report.main([str(tmp_path)]) == 3
    assert "rank-0.json: the file must hold a table, not a list" in capsys.readouterr().err


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """What two ranks leave of three steps: the text of their files."""
    folder = tmp_path_factory.mktemp("real")
    program = _plugin.lower(*write_chain(folder, [0, 1, 0, 1], micro_batches=3))
    for rank in range(2):
        records = [(i, 1000 * i, 1000 * i + 700) for i in range(len(program.instructions(rank)))]
        left = Trace(folder / "trace", program, rank, rank)
        for _ in range(3):
            left.step(0.25, SimpleNamespace(records=lambda records=records: records))
    return [(folder / "trace" / f"rank-{rank}.json").read_bytes() for rank in range(2)]


CHANGES = int(os.environ.get("OSTINATO_SOAK_MUTATIONS", 400))  # of bytes, and of fields
SEED = int(os.environ.get("OSTINATO_SOAK_SEED", 0))
STRANGE = [
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**63,
    10**400,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "F",
    "\x1b[2J\n",
    [],
    {},
    [[[]]],
    0.5,
]


def with_other_bytes(text: bytes, random: Random) -> bytes:
    at, length = random.randrange(len(text)), random.randrange(1, 60)
    other = [
        bytes([random.randrange(256)]),
        random.choice([b"[" * 100_000, b"9" * 5000, b"\xff", b"", b"-", b'"']),
    ]
    inserted = random.choice([*other, text[at // 2 : at // 2 + length]])
    return text[:at] + inserted + text[at + random.choice([0, 1, length]) :]


def with_other_fields(text: bytes, random: Random) -> bytes:
    made = json.loads(text)
    holder = random.choice([made, random.choice(made["instructions"])])
    key = random.choice(list(holder))
    match random.randrange(4):
        case 0:
            del holder[key]
        case 1:
            made["instructions"] = made["instructions"][: random.randrange(3)]
        case _:
            holder[key] = random.choice(
                [*STRANGE, *json.loads(text).values(), *made["instructions"][-1].values()]
                if made["instructions"]
                else STRANGE
            )
    return json.dumps(made).encode()


def refuse_constants(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


@pytest.mark.parametrize("change", [with_other_bytes, with_other_fields])
def test_a_damaged_trace_is_refused_or_reported(tmp_path, capsys, real, change):
    """Never a traceback, and never figures that are none."""
    names, told, refused = ("rank-0.json", "rank-1.json"), 0, 0
    for seed in range(SEED, SEED + CHANGES):
        random = Random(seed)
        texts = list(real)
        which = random.randrange(2)
        texts[which] = change(texts[which], random)
        for name, text in zip(names, texts, strict=True):
            (tmp_path / name).write_bytes(text)
        arguments = [str(tmp_path), "--perfetto", str(tmp_path / "perfetto.json")]
        status = report.main([*arguments, "--json"] if seed % 10 else arguments)
        out, err = capsys.readouterr()
        assert status in (0, 3) and (not status or not out or json.loads(out)["status"] == status), seed
        if status == 0:
            told += 1
            for text in ([out] if seed % 10 else []) + [(tmp_path / "perfetto.json").read_text()]:
                json.loads(text, parse_constant=refuse_constants)
        else:
            refused += 1
            assert (
                err.startswith(f"ostinato report: {tmp_path}") and err.count("\n") == 1 and "\x1b" not in err
            ), seed
    assert refused > CHANGES // 3 and told > CHANGES // 30


def test_a_trace_that_is_a_folder_is_refused(tmp_path, capsys):
    (tmp_path / "rank-0.json").mkdir()
    assert report.main([str(tmp_path)]) == 3
    assert "rank-0.json: cannot be read" in capsys.readouterr().err


def test_two_files_of_one_rank_are_refused(tmp_path, capsys):
    write(tmp_path, trace(0))
    (tmp_path / "rank-00.json").write_text(json.dumps(trace(0)))
    assert report.main([str(tmp_path)]) == 3
    assert "two files belong to rank 0" in capsys.readouterr().err
