# SPDX-License-Identifier: Apache-2.0
"""Files that commands write: whole, through links and pipes, and refused before the work is done."""

import os
import stat
from pathlib import Path

import pytest
from ostinato import report
from ostinato.files import why_not_all, write_text
from ostinato.profile.command import main


def test_a_file_is_replaced_as_a_whole_and_its_folder_is_made(tmp_path):
    path = tmp_path / "new" / "profile.json"
    write_text(path, "long text")
    write_text(path, "short")
    assert path.read_text() == "short" and os.listdir(path.parent) == ["profile.json"]


def test_the_file_behind_a_link_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "there" / "file")  # that is not there yet
    for text in ("first", "second"):
        write_text(link, text)
        assert link.is_symlink() and (tmp_path / "there" / "file").read_text() == text


def test_a_pipe_stays_a_pipe(tmp_path):
    """As /dev/null and /dev/stdout do."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert not why_not_all({"--output": pipe, "--html": pipe})
    write_text(pipe, "text")
    assert os.read(reader, 100) == b"text" and stat.S_ISFIFO(pipe.stat().st_mode)
    os.close(reader)


def test_what_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("file")
    assert "is a folder" in why_not_all({"--output": tmp_path})
    assert "file is no folder" in why_not_all({"--output": tmp_path / "file" / "deep" / "p.json"})
    assert "nothing can be written to /proc" in why_not_all({"--output": Path("/proc/none/p.json")})
    same = {"--output": tmp_path / "file", "--html": None, "--perfetto": tmp_path / "link"}
    assert "--perfetto" in why_not_all(same) and "--output goes to the same file" in why_not_all(same)
    assert not why_not_all({"--output": tmp_path / "a" / "b" / "c", "--html": tmp_path / "file"})
    assert sorted(os.listdir(tmp_path)) == ["file", "link"]


@pytest.mark.parametrize("wrong", [["-o", "X", "--html", "X"], ["-o", "/proc/none/p.json"], ["-o", "."]])
def test_profile_looks_before_it_measures(tmp_path, monkeypatch, capsys, wrong):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("open('ran', 'w')")
    assert main(["train.py", *wrong]) == 3
    assert wrong[1] in capsys.readouterr().err and os.listdir(tmp_path) == ["train.py"]


def test_report_looks_first_too(tmp_path, capsys):
    assert report.main([str(tmp_path), "--perfetto", str(tmp_path)]) == 3
    assert "is a folder" in capsys.readouterr().err
