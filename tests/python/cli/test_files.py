# SPDX-License-Identifier: Apache-2.0
"""Files that commands write: whole, through links and pipes, and refused before the work is done."""

import fcntl
import os
import resource
import signal
import stat
from pathlib import Path

import pytest
from ostinato import cli, devices, files, report
from ostinato.files import Diagnostic, why_not_all, why_not_apart, write_text
from ostinato.profile import options
from ostinato.profile.command import main, outputs


def test_a_file_is_replaced_as_a_whole_and_its_folder_is_made(tmp_path):
    path = tmp_path / "new" / "profile.json"
    write_text(path, "long text")
    write_text(path, "short")
    assert path.read_text() == "short" and os.listdir(path.parent) == ["profile.json"]


def test_a_name_need_not_be_utf_8(tmp_path, capfd):
    placement = os.fsdecode(os.fsencode(tmp_path) + b"/n\xff.toml")
    for words in (["placement", "v", "--output", placement], ["search", placement, "--micro-batches", "2", "--output", f"{placement}.json"], ["verify", f"{placement}.json", placement]):  # fmt: skip
        assert cli.main(words) == 0, capfd.readouterr()
    assert cli.main(["search", f"{placement}.none", "--micro-batches", "2", "--output", "x"]) == 3
    assert "cannot be read" in capfd.readouterr().err


def test_the_file_behind_a_link_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "there" / "file")  # that is not there yet
    for text in ("first", "second"):
        write_text(link, text)
        assert link.is_symlink() and (tmp_path / "there" / "file").read_text() == text


def test_who_may_read_a_file(tmp_path):
    """As the umask says; of one that is replaced, as before."""
    before = os.umask(0o077)
    try:
        write_text(tmp_path / "new", "")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o600
    (tmp_path / "new").chmod(0o640)
    write_text(tmp_path / "new", "again")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


@pytest.mark.parametrize("without_a_name", [True, False])
def test_a_writer_that_is_killed_leaves_nothing_for_long(tmp_path, monkeypatch, without_a_name):
    if not without_a_name:  # as on a file system that cannot
        monkeypatch.setattr("ostinato.files.OWN_FILES", "/nowhere")
    abandoned, path = tmp_path / ".ostinato-0123.tmp", tmp_path / "file"
    write = os.fork()
    if write == 0:
        write_text(path, "first")
        monkeypatch.setattr(os, "replace", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        write_text(path, "second")
    os.waitpid(write, 0)
    assert path.read_text() == "first" and len(os.listdir(tmp_path)) == 2
    abandoned.write_text("half")
    (tmp_path / ".ostinato-link.tmp").symlink_to("file")
    with open(tmp_path / ".ostinato-4567.tmp", "w") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        write_text(path, "third")
    assert (
        sorted(os.listdir(tmp_path)) == [".ostinato-4567.tmp", ".ostinato-link.tmp", "file"]
        and path.read_text() == "third"
    )


def test_a_diagnostic_is_lost_and_the_run_is_not(tmp_path, capsys):
    """Said once each time that it begins to fail."""
    told = Diagnostic(tmp_path / "trace" / "rank-0.json")
    told.write("whole")
    for limit in (0, 0, resource.RLIM_INFINITY, 0):  # bytes that a file may have: as on a disk that is full
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            told.write("more")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    said = capsys.readouterr().err
    assert (
        said.count("rank-0.json could not be written: File too large; the run goes on\n")
        == said.count("\n")
        == 2
    )
    assert os.listdir(tmp_path / "trace") == ["rank-0.json"]


def test_a_pipe_stays_a_pipe(tmp_path):
    """As /dev/null and /dev/stdout do."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert not why_not_all({"--output": pipe, "--html": pipe}) and not why_not_apart(
        {"--output": pipe, "--html": pipe}, [pipe]
    )
    write_text(pipe, "text")
    assert os.read(reader, 100) == b"text" and stat.S_ISFIFO(pipe.stat().st_mode)
    os.close(reader)


def test_what_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    assert "is a folder" in why_not_all({"--output": tmp_path})
    assert "file is not a folder" in why_not_all({"--output": tmp_path / "file" / "deep" / "p.json"})
    assert "nothing can be written to /proc" in why_not_all({"--output": Path("/proc/none/p.json")})
    assert not why_not_all({"--output": tmp_path / "a" / "b" / "c", "--html": tmp_path / "file"})
    assert os.listdir(tmp_path) == ["file"]


def test_outputs_apart(tmp_path):
    file, link, hard, new = (tmp_path / name for name in ("file", "link", "hard", "new"))
    file.write_text("")
    link.symlink_to("file")
    os.link(file, hard)
    for other in (file, link, hard):
        same = {"--output": file, "--html": None, "--perfetto": other}
        assert why_not_apart(same, []) == f"--perfetto {other}: --output writes the same file"
        assert "would overwrite an input file" in why_not_apart({"--output": other}, [new, file])
    assert "--html" in why_not_apart({"--output": new, "--html": tmp_path / "." / "new"}, [])
    assert not why_not_apart({"--output": new, "--html": file}, [tmp_path / "train.py", Path("x" * 5000)])


@pytest.mark.parametrize("option", ["--output", "--html", "--perfetto"])
@pytest.mark.parametrize("word", ["train.py", "ds.json", "hard.json", "module.py"])
def test_profile_writes_over_nothing_that_it_reads(tmp_path, monkeypatch, capsys, option, word):
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "ds.json", "module.py"):
        (tmp_path / name).write_text("")
    os.link("ds.json", "hard.json")
    script = ["-m", "module"] if word == "module.py" else ["train.py"]
    assert main([*script, option, word, "--", "--deepspeed_config=ds.json", "--local_rank", "0"]) == 2
    told = capsys.readouterr().err
    assert f"{option} {word} would overwrite an input file" in told and "Try: ostinato profile --help" in told
    assert not any(path.stat().st_size for path in tmp_path.iterdir())


def test_report_writes_over_no_trace(tmp_path, capsys):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rank-0.json").write_text("kept")
        words = [
            str(tmp_path / "a"),
            "--against",
            str(tmp_path / "b"),
            "--perfetto",
            str(tmp_path / folder / "rank-0.json"),
        ]
        assert report.main(words) == 2
        assert (
            "would overwrite an input file" in capsys.readouterr().err
            and (tmp_path / folder / "rank-0.json").read_text() == "kept"
        )


def test_what_a_run_measured_goes_over_no_profile(tmp_path, capsys):
    for name in ("profile.json", "rank-0.json"):
        (tmp_path / name).write_text("kept")
    assert (
        report.main([str(tmp_path), "--profile", str(tmp_path / "profile.json"), "--measured", str(tmp_path)])
        == 2
    )
    assert (
        "would overwrite an input file" in capsys.readouterr().err
        and (tmp_path / "profile.json").read_text() == "kept"
    )


def test_a_device_file_goes_over_no_profile(tmp_path, capsys):
    (tmp_path / "profile.json").write_text("kept")
    with pytest.raises(SystemExit, match="2"):
        devices.main(
            ["--output", str(tmp_path / "profile.json"), "--profile", str(tmp_path / "profile.json")]
        )
    assert (
        "would overwrite an input file" in capsys.readouterr().err
        and (tmp_path / "profile.json").read_text() == "kept"
    )


def test_every_option_that_writes_is_known_here():
    """Whoever adds one adds it to what is refused, and to the tests above."""
    written = {"--output", "--html", "--perfetto"}
    paths = [action for action in options.parser()._actions if action.type is Path and action.option_strings]
    assert (
        {action.option_strings[-1] for action in paths}
        == written
        == set(outputs(options.parser().parse_args(["x"])))
    )
    of_report = {
        a.option_strings[-1] for a in report.parser()._actions if a.type is Path and a.option_strings
    }
    assert of_report == {"--perfetto", "--measured", "--against", "--profile", "--placement"}


@pytest.mark.parametrize(
    ("wrong", "status"), [(["-o", "X", "--html", "X"], 2), (["-o", "/proc/none/p.json"], 3), (["-o", "."], 3)]
)
def test_profile_looks_before_it_measures(tmp_path, monkeypatch, capsys, wrong, status):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("open('ran', 'w')")
    assert main(["train.py", *wrong]) == status
    assert wrong[1] in capsys.readouterr().err and os.listdir(tmp_path) == ["train.py"]


def test_report_looks_first_too(tmp_path, capsys):
    assert report.main([str(tmp_path), "--perfetto", str(tmp_path)]) == 3
    assert "is a folder" in capsys.readouterr().err


@pytest.mark.parametrize("renames", [False, True])
def test_writers_in_one_folder_leave_each_other_s_files(tmp_path, renames):
    """Also where a library writes a file of its own, and renames it: safetensors does."""
    with files.replaced(tmp_path / "mine") as beside:
        beside.write_text("old")
        if renames:
            beside.with_name("other").write_text("mine")
            os.replace(beside.with_name("other"), beside)
        write_text(tmp_path / "theirs", "theirs")
        with files.replaced(tmp_path / "third") as third:
            third.write_text("third")
    assert sorted(os.listdir(tmp_path)) == ["mine", "theirs", "third"]
    assert (tmp_path / "mine").read_text() == ("mine" if renames else "old")


def test_a_writer_by_name_changes_nothing_else_of_a_file(tmp_path):
    """Neither who may read it, nor that it is a pipe; a folder is refused before anything is written."""
    private, pipe = tmp_path / "private", tmp_path / "pipe"
    private.write_text("")
    private.chmod(0o600)
    with files.replaced(private) as beside:
        beside.write_text("secret")
        assert beside.parent.stat().st_mode & 0o77 == 0
    assert private.stat().st_mode & 0o777 == 0o600
    os.mkfifo(pipe)
    with files.replaced(pipe) as beside:
        assert beside == pipe
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    with pytest.raises(IsADirectoryError, match="is a folder"), files.replaced(tmp_path):
        raise AssertionError


@pytest.mark.parametrize("writer", [files.replaced, files.new_folder])
def test_what_a_writer_by_name_left_when_it_was_killed_is_removed(tmp_path, writer):
    write = os.fork()
    if write == 0:
        with writer(tmp_path / "file") as beside:
            (beside / "part" if beside.is_dir() else beside).write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(write, 0)
    assert len(os.listdir(tmp_path)) == 1
    write_text(tmp_path / "other", "")
    assert os.listdir(tmp_path) == ["other"]


@pytest.mark.parametrize("writer", [files.replaced, files.new_folder])
def test_nothing_is_left_of_a_writer_by_name_that_failed(tmp_path, writer):
    with pytest.raises(ZeroDivisionError), writer(tmp_path / "file") as beside:
        (beside / "part" if beside.is_dir() else beside).write_text("half")
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []


def test_a_folder_appears_as_a_whole_and_replaces_none(tmp_path):
    with files.new_folder(tmp_path / "new" / "folder") as made:
        (made / "below").mkdir()
        (made / "below" / "file").write_text("whole")
        assert not (tmp_path / "new" / "folder").exists()
    assert (tmp_path / "new" / "folder" / "below" / "file").read_text() == "whole"
    with pytest.raises(OSError, match="not empty"), files.new_folder(tmp_path / "new" / "folder") as made:
        (made / "file").write_text("")
    assert os.listdir(tmp_path / "new") == ["folder"] and os.listdir(tmp_path / "new" / "folder") == ["below"]


@pytest.mark.parametrize("without_a_name", [True, False])
def test_a_file_that_was_taken_for_abandoned_before_it_was_locked_is_made_again(
    tmp_path, monkeypatch, without_a_name
):
    """Ranks that write into one folder at once: one tidies up between another's making a file, or a folder,
    and locking it."""
    if not without_a_name:
        monkeypatch.setattr("ostinato.files.OWN_FILES", "/nowhere")
    locked, lock = [], files._locked

    def tidied_before(handle):
        if not locked:
            files._remove_abandoned(tmp_path)
        locked.append(handle)
        return lock(handle)

    monkeypatch.setattr(files, "_locked", tidied_before)
    if without_a_name:
        with files.replaced(tmp_path / "whole.bin") as beside:
            beside.write_bytes(b"whole")
    else:
        write_text(tmp_path / "whole.bin", "whole")
    assert (tmp_path / "whole.bin").read_bytes() == b"whole" and len(locked) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["whole.bin"]
