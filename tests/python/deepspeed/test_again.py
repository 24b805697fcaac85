# SPDX-License-Identifier: Apache-2.0
"""Ranks replace themselves, once: under launchers, with what a script may have open, and not where that
cannot go well."""

import json
import multiprocessing
import os
import stat
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import ostinato
import pytest
import torch.distributed as dist
from ostinato.ranks import again, last_words
from support import second_start, worlds
from support.fault_jobs import is_running

TESTS = Path(__file__).parents[1]
OURS = Path(ostinato.__file__).absolute().parents[1]
SCRIPT = os.path.relpath(second_start.__file__, TESTS)
SECOND = "this is already its second start"


def torchrun(*more: str) -> list[str]:
    return ["-m", "torch.distributed.run", "--max-restarts", "0", *more]


def meeting(rank: int, port: str) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }


def launched(folder: Path, commands: list[list[str]], environments: list[dict[str, str]]) -> str:
    """What all of them print. Python's words each; started in TESTS with the script's arguments behind."""
    common = worlds.without_launcher() | {
        "PYTHONPATH": f"{TESTS}{os.pathsep}{OURS}",
        "GLOO_SOCKET_IFNAME": "lo",
        "TMPDIR": str(folder),
    }
    with open(folder / "printed", "w+") as printed:
        started = [
            subprocess.Popen(
                [sys.executable, *words],
                cwd=TESTS,
                env=common | more,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
            )
            for words, more in zip(commands, environments, strict=True)
        ]
        try:
            status = [process.wait(worlds.TIMEOUT) for process in started]
        finally:
            for process in started:
                process.kill()
    said = (folder / "printed").read_text()
    assert status == [0] * len(status), said[-4000:]
    return said


def seen(folder: Path, rank: int, number: int) -> dict:
    return json.loads((folder / f"{rank}-{number}.json").read_text())


def check(folder: Path, said: str) -> None:
    """Of both ranks, whoever has started them."""
    for rank in range(2):
        first, second = seen(folder, rank, 1), seen(folder, rank, 2)
        same = ("pid", "argv", "folder", "sum", "variable", "inherited")
        assert {key: first[key] for key in same} == {key: second[key] for key in same}, said[-4000:]
        assert (first["folder"], first["sum"], first["variable"], first["inherited"]) == (
            str(TESTS),
            3.0,
            "x",
            False,
        )
        assert (first["why"], second["why"]) == ("", SECOND)
        assert (
            folder / f"{rank}-2.refused"
        ).read_text() == f"rank 0 cannot start again by itself, because {SECOND}", "a third start"
        assert (
            second["left"]["plan.json"] == f"plan of rank {rank}"
            and stat.filemode(second["mode"]) == "?rwx------"
        )
        assert not Path(second["where"]).exists(), "the folder goes with the second start"
        assert len(first["children"]) == 2 and not any(map(is_running, first["children"]))
        assert not (folder / f"{rank}-1.ended").exists() and (folder / f"{rank}-2.ended").exists(), "atexit"
        assert (folder / f"{rank}.log").read_text() == "kept until then\n" and (
            folder / f"{rank}.events"
        ).read_text() == ""
        assert said.count(f"rank {rank} has said this") == 1
    assert "Traceback" not in said and "TCPStore" not in said, said[-4000:]


def test_torchrun(tmp_path):
    """Its agent keeps the store, and what the first start has left there. A rank that comes up late is named
    meanwhile."""
    port = str(worlds.free_port())
    said = launched(
        tmp_path, [torchrun("--nproc-per-node", "2", "--master-port", port, SCRIPT, str(tmp_path), "1")], [{}]
    )
    check(tmp_path, said)
    assert "in torch.distributed.init_process_group(): rank 1 has not called it" in said
    assert (
        seen(tmp_path, 0, 1)["port"] == port != seen(tmp_path, 0, 2)["port"] == seen(tmp_path, 1, 2)["port"]
    )
    print(
        f"{max(s['at'] - float(s['left']['began']) for s in (seen(tmp_path, rank, 2) for rank in range(2))):.1f} s for the second start"
    )


def test_a_script_that_sets_the_port(tmp_path):
    """Its own MASTER_PORT is that of the store that torchrun's agent keeps."""
    port = str(worlds.free_port())
    command = torchrun("--nproc-per-node", "2", "--master-port", port, SCRIPT, str(tmp_path), "", port)
    check(tmp_path, launched(tmp_path, [command], [{}]))


@pytest.mark.slow  # test_torchrun has a second start under a launcher, test_launch.py two nodes
def test_torchrun_on_two_nodes(tmp_path):
    place = [
        "--nnodes",
        "2",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        f"127.0.0.1:{worlds.free_port()}",
        "--local-addr",
        "127.0.0.1",
    ]
    check(tmp_path, launched(tmp_path, [torchrun(*place, SCRIPT, str(tmp_path))] * 2, [{}] * 2))


@pytest.mark.slow  # test_torchrun has a second start, test_launch.py this launcher
def test_deepspeed_launcher(tmp_path):
    world = "eyJsb2NhbGhvc3QiOiBbMCwgMV19"  # {"localhost": [0, 1]}
    words = [
        "-m",
        "deepspeed.launcher.launch",
        "--world_info",
        world,
        "--master_port",
        str(worlds.free_port()),
        "--no_local_rank",
    ]
    check(tmp_path, launched(tmp_path, [[*words, SCRIPT, str(tmp_path)]], [{}]))


@pytest.mark.slow  # test_modules_and_commands has a second start without a launcher, test_launch.py srun
def test_srun_with_ostinatos_command(tmp_path):
    """The launcher's variables become torch's in each start."""
    job = {
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_STEP_NODELIST": "localhost",
    }
    job["SLURM_JOB_ID"] = str(worlds.free_port() - 20_000)
    tasks = [job | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in range(2)]
    check(tmp_path, launched(tmp_path, [["-m", "ostinato.run", SCRIPT, str(tmp_path)]] * 2, tasks))


def test_modules_and_commands(tmp_path):
    """Ranks with words of Python's own: `-m` and `-c`, behind options."""
    module = ["-W", "ignore", "-um", "support.second_start", str(tmp_path)]
    command = [
        "-X",
        "faulthandler",
        "-c",
        "import sys; from support import second_start; second_start.main(sys.argv[1])",
        str(tmp_path),
    ]
    port = str(worlds.free_port())
    check(tmp_path, launched(tmp_path, [module, command], [meeting(rank, port) for rank in range(2)]))


def missed(folder: str) -> list[str]:
    """Of a rank: all come, and are children of multiprocessing; then rank 1 does not come. And what this rank
    has left."""
    tempfile.tempdir, said = folder, []
    for ranks in ((0, 1), (0,)):
        if dist.get_rank() in ranks:
            with pytest.raises(again.CannotStartAgain) as error:
                again.begin_again({"plan.json": ""}, timeout_s=0.5 if ranks == (0,) else 60)
            said.append(str(error.value))
    tempfile.tempdir = None
    return [*said, *(name for name in os.listdir(folder) if name.startswith(again._prefix()))]


def test_all_ranks_or_none(world2, tmp_path):
    child = "rank 0 cannot start again by itself, because it is a child of multiprocessing, which only its parent can start"
    late = "the ranks cannot start again together: rank 1 did not report within 0.5 s"
    assert world2.run(missed, str(tmp_path)) == [[child, late], [child]]


def cannot_write(folder: str) -> str:
    """Of a rank: rank 0 has no place for its files."""
    tempfile.tempdir = str(Path(folder, "gone")) if dist.get_rank() == 0 else folder
    with pytest.raises(again.CannotStartAgain) as error:
        again.begin_again({"plan.json": ""}, timeout_s=60)
    tempfile.tempdir = None
    return str(error.value)


def test_what_one_rank_cannot_write_every_rank_knows(tmp_path):
    with worlds.World(2) as world:
        everyone = world.run(cannot_write, str(tmp_path))
    for said in everyone:
        assert said.startswith("rank 0 cannot start again by itself, because FileNotFoundError: ")
        assert str(tmp_path / "gone") in said and said.endswith(
            "(TMPDIR chooses where it leaves files for its second start)"
        )


@pytest.fixture
def started(monkeypatch):
    """started("-m", "train"): as if Python had been started with these words; why that does not do."""
    monkeypatch.setattr(again, "_CWD", str(TESTS))

    def start(*words: str) -> str:
        monkeypatch.setattr(sys, "orig_argv", ["python", *words])
        return again.why_not_again()

    return start


@pytest.mark.parametrize(
    "words",
    ["conftest.py", "-u conftest.py", "-m train", "-Im train", "-c pass", "-uc pass", "-W error conftest.py", "-Werror -X dev conftest.py -",
     ".", "-bX dev conftest.py", "--check-hash-based-pycs always conftest.py"],
)  # fmt: skip
def test_programs_that_start_again(started, words):
    assert started(*words.split()) == ""


@pytest.mark.parametrize("words", ["", "-", "-u -", "-W error", "-u - conftest.py"])
def test_a_program_from_standard_input(started, words):
    assert started(*words.split()) == "its program comes from standard input, which cannot be read twice"


def test_a_folder_that_is_gone(started, monkeypatch, tmp_path):
    monkeypatch.setattr(again, "_CWD", str(tmp_path / "job"))
    assert started(str(TESTS / "conftest.py")) == f"{tmp_path / 'job'}, where it was started, is gone"


def test_a_program_that_is_not_there(started):
    assert started("gone.py").startswith(f"its script is not at {TESTS / 'gone.py'}")
    ours, theirs = os.pipe()
    assert "not at /dev/fd/" in started(f"/dev/fd/{ours}"), "bash's <(...)"
    os.close(ours)
    os.close(theirs)


def test_where_python_is_not_on_its_own(started, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "ps1", ">>> ", raising=False)
        assert "interactive" in started("conftest.py")
    with monkeypatch.context() as patch:
        patch.setattr("builtins.get_ipython", lambda: None, raising=False)
        assert "notebook" in started("conftest.py")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "")
        assert "embedded" in started("conftest.py")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "ray", types.SimpleNamespace(is_initialized=lambda: True))
        assert started("conftest.py") == "Ray has started it"
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "mpi4py.MPI", types.ModuleType("mpi4py.MPI"))
        assert "MPI" in started("conftest.py")
    assert started("conftest.py") == ""


READS = """
import multiprocessing, sys
from ostinato.ranks import again
print(again.why_not_again())
child = multiprocessing.get_context("fork").Process(target=lambda: print(again.why_not_again(), flush=True))
child.start(), child.join()
input()
print(again.why_not_again())
"""


@pytest.mark.parametrize("kind", ["a pipe", "a file"])
def test_a_script_that_reads_standard_input(tmp_path, kind):
    """It may be there as long as the script leaves it alone: launchers hand on all sorts."""
    (tmp_path / "reads.py").write_text(READS)
    (tmp_path / "input").write_text("skipped\nread\nleft\n")
    with open(tmp_path / "input") as file:
        os.lseek(file.fileno(), len("skipped\n"), os.SEEK_SET)  # by a shell's loop, say
        given = {"input": "read\nleft\n"} if kind == "a pipe" else {"stdin": file}
        done = subprocess.run(
            [sys.executable, "reads.py"],
            cwd=tmp_path,
            env=worlds.without_launcher() | {"PYTHONPATH": str(OURS)},
            capture_output=True,
            text=True,
            **given,
        )
    child = "it is a child of multiprocessing, which only its parent can start"
    assert done.stdout.splitlines() == [
        "",
        child,
        "the script has read standard input, which cannot be read twice",
    ], done.stderr


def test_programs_of_a_second_start_are_first_starts(tmp_path, monkeypatch):
    """They inherit its environment."""
    folder = tmp_path / f"{again._prefix()}x"
    folder.mkdir()
    for pid, expected in ((os.getpid(), folder), (os.getpid() + 1, None)):
        again.folder_of_first_start.cache_clear()
        monkeypatch.setenv(again.FOLDER, str(folder))
        monkeypatch.setattr(os, "getpid", lambda pid=pid: pid)
        assert again.folder_of_first_start() == expected
    again.folder_of_first_start.cache_clear()


def test_a_folder_that_the_first_start_has_made_is_explained(tmp_path, monkeypatch, capsys):
    """A script that refuses one which exists dies in its second start."""
    seen = []
    monkeypatch.setattr(sys, "excepthook", lambda *error: seen.append(error[0]))
    last_words.speak_last()
    for folder, kind in ((tmp_path, ValueError), (None, FileExistsError), (tmp_path, FileExistsError)):
        monkeypatch.setattr(again, "folder_of_first_start", lambda folder=folder: folder)
        assert "second start" not in capsys.readouterr().err
        sys.excepthook(kind, kind("it is there"), None)
    assert seen == [ValueError, FileExistsError, FileExistsError]
    assert "this is the second start of the script" in capsys.readouterr().err


def test_what_a_killed_process_has_left_is_removed(tmp_path, monkeypatch):
    """Not what a process left that lives, or of whose host or container nothing is known here."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gone = subprocess.Popen(["true"])
    gone.wait()
    here = again._prefix_here()
    names = [f"{here}{gone.pid}-x", f"{here}{os.getpid()}-x", f"{here}x", f"ostinato-second-{gone.pid}-x"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "plan.json").write_text("")
    (tmp_path / f"{here}{gone.pid}-y").write_text("a file")
    again._remove_abandoned()
    assert not (tmp_path / names[0]).exists() and all((tmp_path / name).is_dir() for name in names[1:])


def test_ranks_that_met_in_a_file(tmp_path):
    """The file would still hold what the first start has written there."""
    child = multiprocessing.get_context("fork").Process(target=_met_in_a_file, args=(tmp_path,))
    child.start()
    child.join()
    assert (
        tmp_path / "why"
    ).read_text() == "its ranks meet in a FileStore, which would keep what the first start wrote"


def _met_in_a_file(folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=0, world_size=1)
    multiprocessing.process._parent_process = None
    (folder / "why").write_text(again.why_not_again())


def test_the_environment_of_the_launcher(monkeypatch):
    """What the process has changed in its own comes a second time; where a library has written over the first
    one, it is as it is now."""
    monkeypatch.setenv("OSTINATO_TESTED", "x")
    assert "OSTINATO_TESTED" not in again._first_environment() and "PATH" in again._first_environment()
    for left in (b"\0" * 100, b"a title\0\0", b""):
        monkeypatch.setattr(Path, "read_bytes", lambda self, left=left: left)
        assert again._first_environment() == dict(os.environ)
