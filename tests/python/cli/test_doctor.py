# SPDX-License-Identifier: Apache-2.0
"""`ostinato doctor`: says what is there, and fails where something that is needed is not."""

import json

from ostinato import doctor


def run(capsys, *argv):
    status = doctor.main(list(argv))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_json_lists_every_finding_with_a_known_state(capsys):
    _, out, _ = run(capsys, "--json")
    assert json.loads(out)["status"] == 0
    findings = json.loads(out)["findings"]
    assert {"python", "torch", "transfers", "cuda", "cupti", "deepspeed", "activation"} <= {
        f["what"] for f in findings
    }
    assert {f["state"] for f in findings} <= {"ok", "absent", "missing"}


def test_the_plugin_was_built_for_this_torch(capsys):
    _, out, _ = run(capsys, "--json")
    assert {f["what"]: f["state"] for f in json.loads(out)["findings"]}["torch"] == "ok"


def test_what_is_absent_is_missing_when_it_is_asked_for(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "findings", lambda: [doctor.Finding("cuda", "absent", "no GPU")])
    assert run(capsys)[0] == 0
    status, out, _ = run(capsys, "--require", "cuda")
    assert status == 7 and out.startswith("missing")


def test_an_unknown_requirement_is_a_usage_error(capsys):
    status, _, err = run(capsys, "--require", "cuba")
    assert status == 2 and "--require cuba: not one of python, torch" in err


def test_without_torch_what_needs_it_is_missing_when_it_is_asked_for(capsys, monkeypatch):
    _, with_torch, _ = run(capsys, "--json")
    find = doctor.importlib.util.find_spec
    monkeypatch.setattr(
        doctor.importlib.util, "find_spec", lambda name: None if name == "torch" else find(name)
    )
    status, out, _ = run(capsys, "--require", "cuda", "--json")
    rows = json.loads(out)["findings"]
    assert status == 7 and [row["what"] for row in rows if row["state"] == "missing"][:2] == ["torch", "cuda"]
    assert [row["what"] for row in rows] == [row["what"] for row in json.loads(with_torch)["findings"]]


def test_autoload_turned_off_is_noticed(monkeypatch):
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    finding = doctor.check_activation()
    assert finding.state == "missing" and "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in finding.detail
