# SPDX-License-Identifier: Apache-2.0
"""`ostinato completion`: what the shells that it is for make of it."""

import os
import shutil
import subprocess
import sys

import pytest

OSTINATO = f'ostinato() {{ {sys.executable} -m ostinato "$@"; }}\n'


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_bash_completes_commands_options_and_choices():
    def completed(*words):
        array = " ".join(f"'{word}'" for word in ("ostinato", *words))
        ask = f'eval "$(ostinato completion bash)"; COMP_WORDS=({array}); COMP_CWORD={len(words)}; _ostinato; echo ${{COMPREPLY[*]}}'
        return subprocess.run(
            ["bash", "-c", OSTINATO + ask], capture_output=True, text=True, timeout=300
        ).stdout.split()

    assert completed("pl") == ["placement", "plan"]
    assert completed("search", "v.toml", "--ob") == ["--objective"]
    assert completed("search", "v.toml", "--objective", "la") == ["latency"]
    assert completed("placement", "wa") == ["wave"]
    assert completed("search", "--strategy") == []
    assert completed("doctor", "--req") == ["--require"]  # of the Python half, from its help
    assert completed("checkpoint", "con") == ["convert"]
    assert completed("checkpoint", "convert", "--sta") == ["--stages"]


class Zsh:
    """A shell at a terminal of its own, as somebody sits before it. `begin`: in its .zshrc before ours; leave
    with end()."""

    def __init__(self, home, begin=""):
        show = 'show() { print -r -- "<$BUFFER>"; BUFFER=; }; zle -N show; bindkey "^T" show; PS1=; print ready\n'
        (home / ".zshrc").write_text(f'{OSTINATO}{begin}\neval "$(ostinato completion zsh)"\n{show}')
        environment = os.environ | {"HOME": str(home), "ZDOTDIR": str(home), "TERM": "dumb"}
        self.terminal, theirs = os.openpty()
        self.shell = subprocess.Popen(
            ["zsh", "-d", "-i"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            cwd=home,
            start_new_session=True,
        )
        os.close(theirs)
        self.shown = b""
        self.said = self.until(b"ready").decode()

    def until(self, mark: bytes) -> bytes:
        while mark not in self.shown:
            self.shown += os.read(self.terminal, 4096)  # of a shell that has ended: an error
        before, _, self.shown = self.shown.partition(mark)
        return before

    def completed(self, line: str) -> str:
        """The line that TAB leaves."""
        os.write(self.terminal, line.encode() + b"\t\x14")
        self.until(b"<")
        return self.until(b">").decode()

    def end(self):
        self.shell.kill()
        self.shell.wait()
        os.close(self.terminal)


@pytest.fixture(
    params=["", "autoload -Uz compinit && compinit -u; compinit() { print again; }"],
    ids=["bare", "with completions of its own"],
)
def zsh(request, tmp_path):
    if not shutil.which("zsh"):
        pytest.skip("needs zsh")
    shell = Zsh(tmp_path, request.param)
    yield shell
    shell.end()


def test_zsh_completes_commands_options_choices_and_files(zsh, tmp_path):
    assert zsh.said == ""
    (tmp_path / "plan.json").touch()
    assert zsh.completed("ostinato pl") == "ostinato pla"  # cement, n
    assert zsh.completed("ostinato comp") == "ostinato comp"  # are, letion
    assert zsh.completed("ostinato compl") == "ostinato completion "
    assert zsh.completed("ostinato search v.toml --objecti") == "ostinato search v.toml --objective "
    assert (
        zsh.completed("ostinato search v.toml --objective la")
        == "ostinato search v.toml --objective latency "
    )
    assert zsh.completed("ostinato placement wa") == "ostinato placement wave "
    assert zsh.completed("ostinato verify pla") == "ostinato verify plan.json "
    # Of the Python half, from its help.
    assert zsh.completed("ostinato doctor --req") == "ostinato doctor --require "
