# SPDX-License-Identifier: Apache-2.0
"""What a plan cannot be combined with is refused by its name; no world of processes is needed to see it."""

from types import SimpleNamespace

import pytest
from ostinato.deepspeed.section import refusals
from ostinato.deepspeed.start import start
from ostinato.deepspeed.errors import Unsupported


def config(stage=1):
    return SimpleNamespace(zero_config=SimpleNamespace(stage=stage), _param_dict={})


def test_a_plain_run_is_accepted():
    refusals.check_run(SimpleNamespace(_ostinato_made=True), config())


@pytest.mark.parametrize("stage", [2, 3])
def test_zero_is_refused_by_name(stage):
    with pytest.raises(Unsupported, match=f'"stage": {stage}'):
        refusals.check_run(SimpleNamespace(_ostinato_made=True), config(stage))


@pytest.mark.parametrize("version", ["0.16.9", "0.19.3", "0.9.0+abc"])
def test_an_old_deepspeed_is_refused(monkeypatch, version):
    monkeypatch.setattr("deepspeed.__version__", version)
    with pytest.raises(Unsupported, match="too old: ostinato needs 0.19.4 or newer"):
        refusals.check_run(SimpleNamespace(_ostinato_made=True), config())


@pytest.mark.parametrize(
    ("version", "tried"), [("0.19.4", True), ("0.19.8+cpu", True), ("0.19.9", False), ("9.9.9", False)]
)
def test_a_newer_deepspeed_is_not_taken_without_a_word(version, tried):
    said = refusals.untried_version(version)
    assert not said if tried else version in said and "0.19.4 to 0.19.8" in said


def test_a_newer_deepspeed_is_told_of_once(monkeypatch, capsys):
    monkeypatch.setattr("deepspeed.__version__", "9.9.9")
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 0)
    start._tell_untried_version.cache_clear()
    for _ in range(2):
        start._tell_untried_version()
    start._tell_untried_version.cache_clear()
    assert capsys.readouterr().out.count("DeepSpeed 9.9.9 was not tried") == 1


def test_dual_pipe_v_brings_its_own_stages():
    """Known by name: DeepSpeed 0.19.7 has no such class yet."""

    class DualPipeVModule:
        pass

    class Derived(DualPipeVModule):
        pass

    with pytest.raises(Unsupported, match="DualPipeVModule has its own stages"):
        refusals.check_run(Derived(), None)
