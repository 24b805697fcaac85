# SPDX-License-Identifier: Apache-2.0
"""`ostinato profile TRAIN.py`: the script is not changed, and what is wrong with it is said."""

import json
import os
import signal
import subprocess
import sys

import deepspeed
import profile_scripts
import pytest
import torch
from torch import nn
from ostinato.profile import ProfileError, command, profile_layers
from ostinato.profile.command import main
from ostinato.profile.measure.check import check_profile
from ostinato.profile.measure.rank_memory import record_memory
from ostinato.profile.script.first_step import capture


pytestmark = pytest.mark.usefixtures("script_alone")


def run(*arguments):
    command = [sys.executable, "-m", "ostinato.profile", *map(str, arguments)]
    environment = os.environ | {"DS_ACCELERATOR": "cpu"}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)


def test_a_plain_script_from_start_to_file(tmp_path):
    train, config = profile_scripts.write(tmp_path)
    output = tmp_path / "results" / "profile.json"
    result = run(
        train, "-o", output, "--repeats", 2, "--json", "--", "--width", 16, "--deepspeed_config", config
    )
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)  # one object, and nothing else
    assert "the script prints" in result.stderr
    written = json.loads(output.read_text())
    assert written["format"] == "ostinato-profile/1"
    assert (
        written["micro_batch_size"] == 3 and written["repeats"] == 2 and written["completeness"]["complete"]
    )
    layers = written["layers"]
    assert sum(written["run"]["layers"]) == 4 and set(written["run"]) == {"layers", "micro_batches"}
    assert [layer["name"] for layer in layers] == ["0:Linear", "1:ReLU", "2:Linear", "3:tanh"]
    assert (
        layers[0]["parameters"] == (8 * 16 + 16) * 4
        and layers[0]["optimizer_state"] == 2 * layers[0]["parameters"]
    )
    assert layers[1]["input_bytes"] == 3 * 16 * 4
    assert (
        summary["status"] == 0
        and summary["layers"] == 4
        and summary["transfers"] == len(written["transfers"]) == 2
    )
    assert summary["forward"] == sum(layer["forward"]["median"] for layer in layers)


class Left(BaseException):
    """What ends the process elsewhere."""


def leave(status):
    raise Left(status)


def test_the_tables_are_printed(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(command, "leave", leave)
    train, config = profile_scripts.write(tmp_path)
    options = ["-o", str(tmp_path / "p.json"), "--repeats", "1", "--warm-up", "0", "--no-transfers"]
    with pytest.raises(Left, match="0"):
        main(
            [
                str(train),
                "--world-size",
                "4",
                *options,
                "--",
                "--width",
                "16",
                "--deepspeed_config",
                str(config),
            ]
        )
    out = capfd.readouterr().out
    assert (
        "2:Linear" in out
        and "aten::addmm" in out
        and "complete: the profile has all" in out
        and "transfers: not measured" in out
    )


def captured(tmp_path, text, *arguments, config=profile_scripts.CONFIG):
    train, settings = profile_scripts.write(tmp_path, text, config)
    return capture(train, [*arguments, "--deepspeed_config", str(settings)])


SHORT = """
import deepspeed, torch
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from torch import nn
def loss(output, labels):
    return output.sum()
deepspeed.init_distributed()
"""


COMPILED = (
    SHORT
    + """
class Compiled(nn.Module):
    def __init__(self, layer_idx):
        super().__init__()
        self.layer_idx, self.inner = layer_idx, nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
        self.inner[2].compile(backend="aot_eager")
        self.inner = torch.compile(self.inner, backend="aot_eager")
    def forward(self, x):
        return self.inner(x)
class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
    def forward(self, x):
        return self.inner(x)
layers = [LayerSpec(Compiled, 0), LayerSpec(Plain), torch.tanh, LayerSpec(Compiled, 1)]
model = PipelineModule(layers, num_stages=1, loss_fn=loss)
engine, *_ = deepspeed.initialize(model=model, config=CONFIG)
HOW
engine.train_batch(iter([(torch.ones(3, 8), torch.ones(3, 8))] * 2))
""".replace("CONFIG", repr(profile_scripts.CONFIG))
)


def test_other_ranks_layers_are_not_built(tmp_path):
    job = captured(tmp_path, SHORT + """
class Huge(nn.Module):
    def __init__(self, stage):
        super().__init__()
        assert stage == 0, "built"
model = PipelineModule([LayerSpec(Huge, stage // 2) for stage in range(16)], num_stages=8, loss_fn=loss, activation_checkpoint_interval=1,
                       partition_method="uniform")
engine, *_ = deepspeed.initialize(model=model, config={"train_batch_size": 6, "gradient_accumulation_steps": 2},
                                  training_data=torch.utils.data.TensorDataset(torch.ones(9, 8), torch.zeros(9)))
engine.train_batch()
""")  # fmt: skip
    assert len(job.layers) == 16 and job.checkpoint_interval == 1 and job.loss_fn.__name__ == "loss"
    assert job.inputs.shape == (3, 8) and torch.equal(job.labels, torch.zeros(3))
    assert job.name == "train" and job.config["train_batch_size"] == 6 and not job.restrictions
    assert job.config["train_micro_batch_size_per_gpu"] == 3 and job.checkpointable([torch.nn.Linear(1, 1)])


def test_a_subclass_and_its_topology(tmp_path):
    job = captured(tmp_path, SHORT + """
from deepspeed.runtime.pipe.topology import PipeDataParallelTopology
class Mine(PipelineModule):
    def __init__(self):
        super().__init__(layers=[nn.Linear(8, 8)], topology=PipeDataParallelTopology(num_pp=4, num_dp=2), loss_fn=loss)
    def forward(self, inputs):
        return super().forward(inputs)
engine, *_ = deepspeed.initialize(model=Mine(), config={"train_micro_batch_size_per_gpu": 3})
engine.train_batch(iter([(torch.ones(3, 8), None)]))
""")  # fmt: skip
    assert len(job.layers) == 1
    assert [(one.rule, one.chunks, one.reason[:28]) for one in job.restrictions] == [
        ("most_chunks", 1, "Mine has its own forward(), "), ("no_shards", 0, "Mine has its own forward(), ")
    ]  # fmt: skip
    job.repeats, job.warm_up = 1, 0
    assert profile_layers(job).restrictions == [one.row for one in job.restrictions]


def test_layers_of_experts_are_on_every_device(tmp_path):
    job = captured(tmp_path, SHORT + """
from deepspeed.moe.layer import MoE
class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.moe = MoE(8, nn.Linear(8, 8), num_experts=2, min_capacity=0)
    def forward(self, hidden):
        return hidden + self.moe(hidden)[0]
layers = [LayerSpec(kind, *sizes) for kind, *sizes in [(nn.Linear, 8, 8), (Experts,), (nn.Linear, 8, 8), (Experts,)]]
model = PipelineModule(layers, num_stages=2, loss_fn=loss, partition_method="uniform")
engine, *_ = deepspeed.initialize(model=model, config={"train_micro_batch_size_per_gpu": 3})
engine.train_batch(iter([(torch.ones(3, 8), torch.zeros(3))]))
""")  # fmt: skip
    job.repeats, job.warm_up = 1, 0
    assert [(rule, layers) for rule, _, _, layers, _ in profile_layers(job).restrictions] == [
        ("spread", [1, 3])
    ]


def test_tied_layers_share_their_weight(tmp_path):
    job = captured(tmp_path, SHORT + """
def back(module, x):
    return x @ module.weight.t()
tied = dict(key="embedding")
layers = [TiedLayerSpec("embedding", nn.Embedding, 10, 8), nn.Tanh(),
          TiedLayerSpec("embedding", nn.Embedding, 10, 8, forward_fn=back)]
model = PipelineModule(layers, num_stages=2, loss_fn=loss)
engine, *_ = deepspeed.initialize(model=model, config={"train_micro_batch_size_per_gpu": 3})
engine.train_batch(iter([(torch.ones(3, dtype=torch.long), None)]))
""")  # fmt: skip
    job.repeats = 1
    rows = profile_layers(job).layers
    assert [row.parameters for row in rows] == [320, 0, 320]  # each stage that has one holds a copy
    assert rows[2].output_bytes == 3 * 10 * 4 and rows[2].same_as == -1


def test_a_module_that_is_no_pipeline(tmp_path):
    job = captured(tmp_path, SHORT + """
class Scaled(nn.Module):
    def forward(self, x, scale=1):
        return x * scale
engine, *_ = deepspeed.initialize(model=Scaled(), config={"train_micro_batch_size_per_gpu": 3})
loss(engine(torch.ones(3, 8), scale=torch.full((8,), 2.0)), None).backward()
""")  # fmt: skip
    assert type(job.module).__name__ == "Scaled" and list(job.inputs) == [0, "scale"]
    job.repeats = job.warm_up = 1
    [row] = profile_layers(job).layers
    assert row.name == "0:mul" and row.input_bytes == (3 * 8 + 8) * 4


def test_a_module_of_any_signature_that_is_changed_after_another_has_run(tmp_path):
    """A teacher runs first; and what the script changes behind initialize() is measured."""
    job = captured(tmp_path, SHORT + """
class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.drop, self.b = nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8)
    def forward(self, *args, **named):
        return self.loss(*args, **named)
    def loss(self, x, target=None):
        return nn.functional.mse_loss(self.b(self.drop(self.a(x))), target)
config = {"train_micro_batch_size_per_gpu": 3}
teacher, *_ = deepspeed.initialize(model=nn.Linear(8, 8), config=config)
engine, *_ = deepspeed.initialize(model=Student(), config=config | {"optimizer": {"type": "Adam"}})
with torch.no_grad():
    target = teacher(torch.ones(3, 8))
engine.module.a.requires_grad_(False)
engine.module.drop.p = 0.0
engine(torch.ones(3, 8), target=target)
""")  # fmt: skip
    assert type(job.module).__name__ == "Student" and job.module.drop.p == 0.0
    job.repeats, job.warm_up = 1, 0
    rows = profile_layers(job).layers
    assert rows[0].name == "0:a linear" and rows[0].gradients == 0 and rows[-1].name.endswith("mse_loss")


AUTOCAST = {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}


def test_layers_run_under_the_engines_autocast_but_not_the_loss(tmp_path):
    job = captured(tmp_path, SHORT + """
class Seen(nn.Linear):
    seen = set()
    def forward(self, x):
        self.seen.add(torch.is_autocast_enabled("cpu"))
        return super().forward(x)
def loss(output, labels):
    loss.seen = torch.is_autocast_enabled("cpu")
    return (output.float() - labels).square().mean()
layers = [LayerSpec(Seen, 8, 8) for _ in range(3)]
model = PipelineModule(layers, num_stages=1, loss_fn=loss, activation_checkpoint_interval=1)
engine, *_ = deepspeed.initialize(model=model, config=CONFIG)
engine.train_batch(iter([(torch.ones(3, 8), torch.ones(3, 8))] * 2))
""".replace("CONFIG", repr(profile_scripts.CONFIG | AUTOCAST)))  # fmt: skip
    job.repeats = job.warm_up = 1
    profile = profile_layers(job)
    assert [row.output_bytes for row in profile.layers[:2]] == [3 * 8 * 2] * 2  # bfloat16
    assert job.layers[0].typename.seen == {True} and not job.loss_fn.seen
    job.layers[0].typename.seen.clear()
    check_profile(job, profile, 2), record_memory(job, profile, 2)
    assert job.layers[0].typename.seen == {True} and not job.loss_fn.seen


def test_a_module_runs_under_the_engines_autocast(tmp_path):
    job = captured(tmp_path, SHORT + """
engine, *_ = deepspeed.initialize(model=nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), config=CONFIG)
engine(torch.ones(3, 8))
""".replace("CONFIG", repr(profile_scripts.CONFIG | AUTOCAST)))  # fmt: skip
    job.repeats = job.warm_up = 1
    profile = profile_layers(job)
    rows = profile.layers
    assert [row.name for row in rows] == ["0:0 linear", "1:1 linear"]
    assert [row.output_bytes for row in rows] == [3 * 8 * 2] * 2  # bfloat16
    assert all(record_memory(job, profile, 1))


@pytest.mark.parametrize(
    ("how", "which"),
    [
        ("engine.compile(backend='eager')", "4 layers .0 to 3."),
        ("engine.module.forward_funcs[1].compile(backend='eager')", "1 layer .1."),
        ("engine.module.forward_funcs[1].inner.compile(backend='eager')", "1 layer .1."),
    ],
)
def test_layers_that_the_script_compiles_are_refused(tmp_path, how, which):
    """Copies are measured, and copies are not compiled."""
    with pytest.raises(ProfileError, match=f'compile.. was called on {which},.*"auto"'):
        captured(tmp_path, COMPILED.replace("HOW", how))


def test_layers_that_compile_themselves_are_measured_compiled(tmp_path):
    job = captured(tmp_path, COMPILED.replace("HOW", ""))
    job.repeats = job.warm_up = 1
    rows = profile_layers(job).layers
    assert [row.backward_weight.repeats for row in rows[::3]] == [0, 0]  # one operator is not split
    assert rows[1].backward_weight.repeats == 1
    assert [row.same_as for row in rows] == [-1] * 4


def test_a_module_that_the_script_compiles_is_refused(tmp_path):
    with pytest.raises(ProfileError, match="compile.. was called on the model"):
        captured(tmp_path, SHORT + """
engine, *_ = deepspeed.initialize(model=nn.Linear(8, 8), config={"train_micro_batch_size_per_gpu": 3})
engine.compile(backend="eager")
engine(torch.ones(3, 8))
""")  # fmt: skip


def test_a_module_whose_parameters_zero_3_takes_away(tmp_path):
    """Measured as it is without ZeRO: whole, with torch's own operators."""
    job = captured(tmp_path, SHORT + """
config = {"train_micro_batch_size_per_gpu": 3, "zero_optimization": {"stage": 3}}
with deepspeed.zero.Init(config_dict_or_path=config):
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU())
engine, *_ = deepspeed.initialize(model=model, config=config)
engine(torch.ones(3, 8))
""")  # fmt: skip
    assert [tuple(p.shape) for p in job.module.parameters()] == [(4, 8), (4,)]
    assert nn.functional.linear is torch._C._nn.linear


@pytest.mark.parametrize(
    ("body", "message", "status"),
    [
        ("", "ended without a training step", 3),
        ("raise ValueError('no data')", "raised ValueError before its first training step.*no data", 3),
        ("raise SystemExit(2)", "ended with 2 before its first training step", 2),
        ("import os; os._exit(5)", "ended with 5 before its first training step", 5),
        ("deepspeed.initialize(model=[nn.Linear(1, 1)], config=CONFIG)", "got a list as its model", 3),
        (
            "deepspeed.initialize(model=MODEL, config=CONFIG)[0](torch.ones(1))",
            "raised PipelineError before",
            3,
        ),
        ("deepspeed.initialize(model=MODEL)", "requires --deepspeed_config to specify configuration file", 3),
        ("deepspeed.initialize(model=MODEL, config='none.json')", "none.json", 3),
        ("deepspeed.initialize(model=MODEL, config=CONFIG)[0].train_batch()", "without data_iter", 3),
        (
            "deepspeed.initialize(model=MODEL, config=CONFIG)[0].train_batch(iter([torch.ones(1)]))",
            "must yield .inputs, labels",
            3,
        ),
    ],
)
def test_what_a_script_gets_wrong(tmp_path, body, message, status):
    model = "PipelineModule([nn.Linear(8, 8)], num_stages=1, loss_fn=loss)"
    start = SHORT + 'CONFIG = {"train_micro_batch_size_per_gpu": 3}\n'
    with pytest.raises(ProfileError, match=message) as raised:
        captured(tmp_path, start + body.replace("MODEL", model))
    assert raised.value.status == status


def test_deepspeed_is_as_before(tmp_path):
    def methods():
        kinds = (
            deepspeed.DeepSpeedEngine,
            deepspeed.PipelineEngine,
            deepspeed.pipe.PipelineModule,
            deepspeed.runtime.config.DeepSpeedConfig,
        )
        return [dict(vars(kind)) for kind in kinds], dict(vars(torch.distributed)), os._exit

    before = methods()
    with pytest.raises(ProfileError):
        captured(tmp_path, "")
    assert before == methods()


@pytest.mark.parametrize("arguments", [["--repeats", "0"], ["--warm-up", "-1"], []])
def test_usage_errors(arguments):
    with pytest.raises(SystemExit) as ended:
        main([*(["train.py"] if arguments else []), *arguments])
    assert ended.value.code == 2


def test_an_exported_program_on_its_own_inputs(tmp_path, capsys):
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    torch.export.save(torch.export.export(model, (torch.randn(3, 4),)), str(tmp_path / "model.pt2"))
    options = ["--no-transfers", "--repeats", "1", "--warm-up", "0", "-o", str(tmp_path / "p.json"), "--json"]
    assert main([str(tmp_path / "model.pt2"), *options]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["model"] == "model" and told["layers"] == 3 and told["complete"]
    for numbers in (2, 0):  # Adam's by default
        assert all(
            row["optimizer_state"] == numbers * row["parameters"]
            for row in json.loads((tmp_path / "p.json").read_text())["layers"]
        )
        given = ["--optimizer-numbers", "0", *options[:-1], "--quiet"]
        assert main([str(tmp_path / "model.pt2"), *given]) == 0
    assert capsys.readouterr().out == ""
    # The inputs take no gradient.
    assert told["flops"] == 2 * 3 * (4 * 8 + 8 * 2) + 2 * 3 * 4 * 8 + 2 * 2 * 3 * 8 * 2


def test_other_programs_are_told_what_profiles_them(tmp_path, capsys):
    torch.jit.script(torch.nn.Tanh()).save(str(tmp_path / "model.pt"))
    assert main([str(tmp_path / "model.pt")]) == 2
    assert "give each, in order, as --input 8x128:int64:50257" in capsys.readouterr().err
    (tmp_path / "broken.pt2").write_text("no archive")
    assert main([str(tmp_path / "broken.pt2"), "--no-transfers"]) == 3
    assert "torch.export.load() cannot load it" in capsys.readouterr().err


def test_sigterm_ends_it_like_ctrl_c(capsys, monkeypatch):
    monkeypatch.setattr(command, "run", lambda *_: signal.raise_signal(signal.SIGTERM))
    assert main(["train.py"]) == 130
    assert "interrupted, nothing was written" in capsys.readouterr().err


def test_no_such_script(capsys, tmp_path):
    assert main([str(tmp_path / "none.py")]) == 3
    assert "none.py: no such file" in capsys.readouterr().err
    assert main([str(tmp_path)]) == 3
    assert f"{tmp_path}: this is a folder; give a file" in capsys.readouterr().err
    (tmp_path / "plan.json").write_text("{}")
    assert main([str(tmp_path / "plan.json")]) == 3
    assert "plan.json is not a Python script: give the one that trains" in capsys.readouterr().err
    assert main([str(tmp_path / "none.py"), "--json"]) == 3
    told = json.loads(capsys.readouterr().out)
    assert told["status"] == 3 and "none.py: no such file" in told["error"]


@pytest.mark.parametrize(
    ("name", "why"),
    [("none", "No module named none"), ("pack", "'pack' is a package and cannot be directly executed")],
)
def test_no_such_module_is_one_message(tmp_path, name, why):
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").touch()
    command = [sys.executable, "-m", "ostinato.profile", "-m", name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 3
    assert (
        done.stderr.startswith(f"ostinato profile: -m {name}: ")
        and why in done.stderr
        and "Traceback" not in done.stderr
    )
