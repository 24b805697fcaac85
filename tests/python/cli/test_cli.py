# SPDX-License-Identifier: Apache-2.0
"""The `ostinato` command as a user runs it: both halves behind one name."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.commands import begun, hard_placement, ostinato

from ostinato import cli
from ostinato.profile import options

PROFILE = Path(__file__).parents[3] / "examples" / "notebooks" / "gpt.profile.json"


@pytest.fixture
def placement(tmp_path):
    path = tmp_path / "v.toml"
    assert ostinato("placement", "v", "--output", path).returncode == 0
    return path


def test_help_lists_both_halves_in_the_order_of_the_pipeline():
    result = ostinato("--help")
    assert result.returncode == 0
    commands = [
        line.split()[0] for line in result.stdout.splitlines() if line.startswith("  ") and line[2].isalpha()
    ]
    assert commands == [
        "profile", "placement", "partition", "search", "plan", "simulate",
        "verify", "lower", "show", "compare", "report", "checkpoint", "config", "doctor", "completion",
    ]  # fmt: skip


def test_every_python_command_is_listed_and_importable():
    from ostinato import _search

    assert set(cli.PYTHON_COMMANDS) < set(_search.commands())
    for command in cli.PYTHON_COMMANDS:
        if command == "profile" and importlib.util.find_spec("ostinato._profiler") is None:
            assert ostinato(command, "--help").returncode == 7  # a build without torch
            continue
        result = ostinato(command, "--help")
        assert result.returncode == 0, result.stderr
        assert "usage" in result.stdout.lower()


@pytest.mark.parametrize(("memory", "status"), [("1MB", 4), ("10MB", 5)])  # proved, and not
def test_what_does_not_fit_is_told_in_the_units_of_the_device_file(tmp_path, memory, status):
    devices = tmp_path / "devices.toml"
    devices.write_text(
        f'format = "ostinato-devices/1"\n[[kinds]]\nname = "A"\nmemory = "{memory}"\n[[nodes]]\nkind = "A"\ndevices = 4\n'
    )
    outputs = ("--output", tmp_path / "plan.json", "--placement-output", tmp_path / "placement.toml")
    result = ostinato("plan", PROFILE, "--devices", devices, "--micro-batches", 8, *outputs)
    assert result.returncode == status
    assert result.stderr.endswith(f"\n  {devices}:4: {memory} of memory on 'A'\n")
    assert " bytes" not in result.stderr


def test_version():
    import ostinato as package

    assert ostinato("--version").stdout == f"ostinato {package.__version__}\n"
    with pytest.raises(AttributeError):
        package.nothing  # noqa: B018


def test_cpp_commands_do_not_import_torch():
    code = "import sys; from ostinato.cli import main; main(['config']); sys.exit('torch' in sys.modules)"
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment).returncode == 0


@pytest.mark.parametrize(("words", "status", "said"), [
    (["profile", "--help"], 0, "usage: ostinato profile"),
    (["profile", "--repeats=0", "train.py"], 2, "--repeats: needs a whole number"),
    (["profile", "--ranks=1", "train.py"], 2, "--ranks: needs a whole number from 2"),
    (["profile", "train.py"], 7, "torch"),
    (["report", "folder"], 3, "folder"),
    (["doctor"], 7, "torch"),
], ids=lambda value: " ".join(value) if isinstance(value, list) else None)  # fmt: skip
def test_without_torch_options_are_told_and_what_needs_torch_says_so(words, status, said, tmp_path):
    code = f"import sys; sys.modules['torch'] = sys.modules['ostinato._profiler'] = None; from ostinato.cli import main; sys.exit(main({words}))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=300
    )
    assert (result.returncode, said in result.stdout + result.stderr) == (status, True), result
    assert "Traceback" not in result.stderr


def test_search_verify_show(tmp_path, placement):
    plan = tmp_path / "plan.json"
    result = ostinato("search", placement, "--micro-batches", 4, "--output", plan, "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["makespan"] == 21000
    assert result.stderr == ""
    assert ostinato("verify", plan, placement).returncode == 0
    shown = ostinato("show", plan, placement)
    assert shown.returncode == 0
    assert "\x1b" not in shown.stdout


def test_a_plan_does_not_depend_on_the_number_of_threads(tmp_path, placement):
    made = []
    for threads in (1, 2, 3):
        plan = tmp_path / f"{threads}.json"
        files = [placement, "--micro-batches", 6, "--output", plan]
        assert ostinato("search", *files, "--time-limit", 0, "--threads", threads).returncode == 0
        made.append(plan.read_text())
    assert made[0] == made[1] == made[2]


@pytest.mark.slow  # 20 s a run; test_a_plan_does_not_depend_on_the_number_of_threads has a small placement
def test_a_plan_in_little_memory_does_not_depend_on_the_number_of_threads(tmp_path):
    made = []
    for threads in (1, 2):
        plan, of = tmp_path / f"{threads}.json", tmp_path / "placement.toml"
        tight = ["--devices", 4, "--micro-batches", 9, "--device-memory", "24MiB", "--exact-losses"]
        files = ["--output", plan, "--placement-output", of]
        assert (
            ostinato("plan", PROFILE, *tight, *files, "--time-limit", 0, "--threads", threads).returncode == 0
        )
        made.append((plan.read_text(), of.read_text()))
    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("args", "status"),
    [([], 2), (["serach"], 2), (["search", "--nonsense"], 2), (["verify", "/no/plan", "/no/placement"], 3)],
)
def test_exit_statuses_come_through(args, status):
    assert ostinato(*args).returncode == status


def test_a_missing_package_is_named(monkeypatch, capsys):
    def missing(name):
        raise ModuleNotFoundError("no", name="torch")

    monkeypatch.setattr(cli.importlib, "import_module", missing)
    assert cli.main(["profile", "train.py", "--json"]) == 7
    captured = capsys.readouterr()
    assert "torch is missing" in captured.err
    assert json.loads(captured.out) == {
        "status": 7,
        "error": "the Python package torch is missing: pip install torch",
    }


def test_interrupting_a_python_command_has_its_status(monkeypatch, capsys):
    def interrupted(name):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.importlib, "import_module", interrupted)
    assert cli.main(["doctor"]) == 130


def test_signal_handlers_are_given_back(tmp_path):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGPIPE)
    assert cli.main(["placement", "v", "--output", str(tmp_path / "v.toml")]) == 0
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGPIPE)) == before


@pytest.mark.parametrize("command", ["doctor", "--help", "placement v", "profile --help"])
def test_a_full_output_is_named(command):
    done = subprocess.run(
        f"{sys.executable} -m ostinato {command} >/dev/full",
        shell=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (
        done.returncode == 1
        and "cannot write to standard output" in done.stderr
        and "Traceback" not in done.stderr
    ), done.stderr


def test_without_an_output_files_are_written(tmp_path):
    """And nothing that is printed goes into them."""
    placement, plan = tmp_path / "v.toml", tmp_path / "plan.json"
    words = f"placement v --output {placement} >&- 2>&- && {sys.executable} -m ostinato search {placement} --micro-batches 2 --output {plan} >&- 2>&- <&-"
    assert subprocess.run(f"{sys.executable} -m ostinato {words}", shell=True, timeout=300).returncode == 0
    assert json.loads(plan.read_text())["micro_batches"] == 2 and placement.read_text().startswith("format")


def test_a_closed_pipe_ends_the_command_quietly():
    command = f"{sys.executable} -m ostinato placement looped --devices 2000 --chunks 8 | head -1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=300)
    assert result.stdout.startswith("format")
    assert result.stderr == ""


@pytest.mark.parametrize("command", [["doctor"], ["config"]])
def test_a_pipe_that_nobody_reads_is_no_error(command):
    """Both halves end as a program does that a closed pipe ends, and say nothing."""
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "ostinato", *command]
    done = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=300)
    os.close(writer)
    assert done.stderr == ""
    assert done.returncode in (-signal.SIGPIPE, 128 + signal.SIGPIPE)


def test_arguments_of_the_script_are_told_where_they_belong(tmp_path):
    if importlib.util.find_spec("ostinato._profiler") is None:
        pytest.skip("a build without torch")
    result = ostinato("profile", "train.py", "--output", "p.json", "--deepspeed_config", "ds.json")
    assert result.returncode == 2
    assert (
        "put the script's own after --: ostinato profile train.py --output p.json -- --deepspeed_config ds.json"
        in result.stderr
    )


@pytest.mark.parametrize(("given", "right"), [
    (["--foo", "train.py"], "train.py -- --foo"),
    (["--repeats", "1", "a b.py", "--lr", "1", "--json"], "--repeats 1 'a b.py' --json -- --lr 1"),
], ids=str)  # fmt: skip
def test_the_script_stays_in_front_of_its_arguments(capsys, given, right):
    with pytest.raises(SystemExit) as ended:
        options.arguments_of(given)
    assert ended.value.code == 2
    assert f"put the script's own after --: ostinato profile {right}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("report", "the following arguments are required: trace"),
        ("doctor --foo", "unrecognized arguments: --foo"),
        ("checkpoint foo", "argument what: invalid choice: 'foo'"),
        ("profile --repeats 0 train.py", "argument --repeats: needs a whole number"),
        ("profile train.py --foo", "unknown arguments: --foo"),
    ],
)
def test_a_mistake_in_the_options_is_told_in_json_too(command, said):
    name, *words = command.split()
    plain, result = ostinato(name, *words), ostinato(name, *words, "--json")
    assert plain.returncode == result.returncode == 2
    assert plain.stdout == "" and plain.stderr.startswith(f"ostinato {name}: {said}")
    told = json.loads(result.stdout)
    assert told["status"] == 2 and told["error"].startswith(said)
    assert told["error"].endswith(f"\nTry: ostinato {name} --help")


@pytest.mark.parametrize("number", ["x", "0", "1.5", "-1", "3" * 5000])
@pytest.mark.parametrize(
    ("command", "option"), [("profile train.py", "--repeats"), ("checkpoint show folder", "--stages")]
)
def test_numbers_of_python_commands_are_refused_with_their_range(command, option, number):
    if importlib.util.find_spec("ostinato._profiler") is None:
        pytest.skip("a build without torch")
    result = ostinato(*command.split(), f"{option}={number}")
    assert result.returncode == 2
    assert f'{option}: needs a whole number from 1 to 2147483647, got "{number}"' in result.stderr


def wait_until_searching(process, plan):
    """The search takes SIGINT once it runs: its handler shows in the process's caught signals."""
    for _ in range(2000):
        for line in open(f"/proc/{process.pid}/status"):
            if line.startswith("SigCgt:") and int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1:
                return
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    raise AssertionError("the search did not begin")


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc")
def test_ctrl_c_writes_the_best_plan(tmp_path):
    """A placement that is too large to be finished: 130 with a valid plan."""
    placement, plan = hard_placement(tmp_path / "p.toml"), tmp_path / "plan.json"
    words = ["search", placement, "--micro-batches", 64, "--time-limit", 0, "--output", plan]
    process = begun(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until_searching(process, plan)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130, errors
    assert ostinato("verify", plan, placement).returncode == 0
