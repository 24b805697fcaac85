# SPDX-License-Identifier: Apache-2.0
"""What a script does to parameter groups before the first step reaches the same groups under the plan, whichever each rank has."""

import functools
from types import SimpleNamespace

import pytest
import torch
from deepspeed.runtime.pipe.engine import PipelineEngine
from ostinato.deepspeed.auto import AutoEngine
from ostinato.deepspeed.engine import PlanEngine
from ostinato.deepspeed.errors import OstinatoError
from ostinato.deepspeed.optimizers import beside_updates
from ostinato.deepspeed.parameter_groups import Snapshot
from ostinato.deepspeed.script_changes import ScriptChanges


def engine_with(groups: list[dict], optimizer=None):
    optimizer = optimizer or torch.optim.SGD([{"params": [torch.nn.Parameter(torch.ones(1))], **group} for group in groups])
    return SimpleNamespace(optimizer=optimizer, lr_scheduler=None)


def rates(engine) -> list[float]:
    return [group["lr"] for group in engine.optimizer.param_groups]


def repeated_on(engine, new):
    """`engine` had its first group's rate changed; what `new`, the engine that comes after it, makes of that."""
    changes = ScriptChanges(engine)
    engine.optimizer.param_groups[0]["lr"] = 0.7
    changes.note()
    changes._engine = new
    changes.repeat()
    return rates(new)


def test_groups_of_the_scripts_optimizer_are_known_by_themselves():
    engine = engine_with([{"lr": 0.1}, {"lr": 0.1}, {"lr": 0.3}])
    snapshot = Snapshot(engine.optimizer, None)
    del engine.optimizer.param_groups[1]  # as DeepSpeed does, where it has no parameters
    new = engine_with([], engine.optimizer)
    changes = ScriptChanges(engine)
    engine.optimizer.param_groups[1]["lr"] = 0.7
    changes.note()
    snapshot.restore()
    assert rates(new) == [0.1, 0.1, 0.3]  # all groups are there again, with the options that they had
    del engine.optimizer.param_groups[0]
    changes.repeat()
    assert rates(new) == [0.1, 0.7]


def test_groups_of_the_configurations_optimizer_are_known_by_their_options():
    groups = [{"lr": 0.1}, {"lr": 0.2}]
    assert repeated_on(engine_with(groups), engine_with(groups)) == [0.7, 0.2]
    assert repeated_on(engine_with(groups), engine_with([{"lr": 0.2}])) == [0.2]  # the other has no parameters here any more
    assert repeated_on(engine_with(groups), engine_with([{"lr": 0.2}, {"lr": 0.1}])) == [0.2, 0.7]


def test_a_group_that_was_not_here_is_refused_where_the_script_changed_some():
    with pytest.raises(OstinatoError, match="did not have then"):
        repeated_on(engine_with([{"lr": 0.1}]), engine_with([{"lr": 0.2}]))
    engine, new = engine_with([{"lr": 0.1}]), engine_with([{"lr": 0.2}])
    changes = ScriptChanges(engine)
    changes.note()
    changes._engine = new
    changes.repeat()
    assert rates(new) == [0.2]


def test_a_rate_in_a_tensor_is_compared_to_its_last_digit():
    """A tensor's repr() has four."""
    engine = engine_with([{"lr": torch.tensor(0.01, dtype=torch.float64)}])
    new = engine_with([{"lr": torch.tensor(0.01, dtype=torch.float64)}])
    changes = ScriptChanges(engine)
    engine.optimizer.param_groups[0]["lr"] += 1e-6
    changes.note()
    changes._engine = new
    changes.repeat()
    assert rates(new)[0].item() == pytest.approx(0.010001, rel=1e-12)


@pytest.mark.parametrize("name", ["optimizer", "lr_scheduler"])
def test_what_the_script_sets_on_the_engine_is_refused_where_it_would_be_lost(name):
    """A scheduler of the old engine's optimizer would change rates that nothing reads."""
    engine = engine_with([{"lr": 0.1}])
    changes = ScriptChanges(engine)
    setattr(engine, name, torch.optim.lr_scheduler.ExponentialLR(engine.optimizer, 0.9))
    with pytest.raises(OstinatoError, match=f"the script set engine.{name} after"):
        changes.note()


def switched(engine, new, change):
    """What `new`, which comes after it, makes of what `change` does to `engine`."""
    changes = ScriptChanges(engine)
    change(engine)
    changes.note()
    changes._engine = new
    changes.repeat()


def test_who_holds_the_optimizer_or_its_groups_holds_the_new_ones():
    engine, new = engine_with([{"lr": 0.1}, {"lr": 0.2}]), engine_with([{"lr": 0.2}, {"lr": 0.1}])
    optimizer, groups, (first, second) = engine.optimizer, engine.optimizer.param_groups, engine.optimizer.param_groups
    has = {group["lr"]: group["params"][0] for group in new.optimizer.param_groups}
    switched(engine, new, lambda engine: setattr(engine.optimizer, "mine", 3))
    assert new.optimizer.param_groups is groups and groups[0] is second and groups[1] is first
    assert first["params"][0] is has[0.1] and second["params"][0] is has[0.2]
    optimizer.param_groups[0]["lr"] = 0.9
    assert rates(new) == [0.9, 0.1] and new.optimizer.mine == 3


def test_what_was_loaded_comes_before_what_the_script_did_to_it():
    engine, new = engine_with([{"lr": 0.1}]), engine_with([{"lr": 0.1}])
    changes = ScriptChanges(engine)
    engine.optimizer.param_groups[0]["lr"] = 0.7
    loaded = engine_with([{"lr": 0.3}]).optimizer.state_dict()
    changes.note()
    changes._engine = new
    changes.repeat(lambda: new.optimizer.load_state_dict(loaded))
    assert rates(new) == [0.7]


def test_hooks_for_states_are_kept():
    engine, new, seen = engine_with([{"lr": 0.1}]), engine_with([{"lr": 0.1}]), []
    switched(engine, new, lambda engine: engine.optimizer.register_state_dict_post_hook(lambda *_: seen.append(1)))
    new.optimizer.state_dict()
    assert seen == [1]


def test_a_step_that_has_the_name_of_torchs_is_the_scripts():
    engine = engine_with([{"lr": 0.1}])
    step = engine.optimizer.step
    engine.optimizer.step = functools.wraps(step)(lambda *args: step(*args))
    assert [key[0] for key in beside_updates(engine)] == ["step"]
    engine = engine_with([{"lr": 0.1}])
    torch.optim.lr_scheduler.ExponentialLR(engine.optimizer, 0.9)  # counts steps
    assert not beside_updates(engine)


def test_a_method_held_since_before_the_switch_is_the_plans_after_it():
    changed = {name for kind in PlanEngine.__mro__[:-1] for name in vars(kind) if hasattr(PipelineEngine, name) and not name.startswith("_")}
    assert {"save_checkpoint", "eval_batch"} < changed <= set(vars(AutoEngine))

    class Later:
        def save_checkpoint(self, folder):
            return folder

    class Earlier(AutoEngine):
        pass

    engine = Earlier()
    save = engine.save_checkpoint
    engine.__class__ = Later
    assert save("folder") == "folder"
