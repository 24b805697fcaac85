# SPDX-License-Identifier: Apache-2.0
"""LayerSpecs around modules and tensors that are there already, as around one Hugging Face model in memory:
`ostinato profile` builds each layer a second time, which gets the same weights again."""

import copy
import os
import subprocess
import sys

import pytest
import torch
from ostinato.profile import profile_layers
from ostinato.profile.script.changed_layers import twin
from ostinato.profile.script.first_step import capture
from torch import nn

pytestmark = pytest.mark.usefixtures("script_alone")

SCRIPT = """
import functools, sys
import deepspeed, torch
import ostinato.deepspeed
from deepspeed.pipe import LayerSpec, PipelineModule
from torch import nn

there = nn.ModuleDict({"parts": nn.ModuleList(nn.Linear(8, 8) for _ in range(6)), "norm": nn.BatchNorm1d(8)})

class Block(nn.Module):
    def __init__(self, model, index):
        super().__init__()
        self.part, self.norm = model.parts[index], model.norm
    def forward(self, x):
        return self.norm(self.part(x))

class Weight(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.weight = there.parts[index].weight
    def forward(self, x):
        return x @ self.weight + x

class Unregistered(nn.Module):
    def __init__(self, model, index):
        super().__init__()
        self.own, self.models, self.index = nn.Linear(8, 8), [model], index
    def forward(self, x):
        return self.own(x) + self.models[0].parts[self.index].weight.to(x.dtype)[:3]

@functools.cache
def table():
    return torch.ones(8)

class Cached(nn.Linear):
    def __init__(self):
        super().__init__(8, 8)
        self.register_buffer("table", table())
    def forward(self, x):
        return super().forward(x) + self.table

class Uncopied(nn.Linear):
    def __deepcopy__(self, memo):
        raise TypeError("there is one only")

class Around(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.own, self.part = nn.Linear(8, 8), part
    def forward(self, x):
        return self.own(self.part(x))

one = nn.Linear(8, 8)

class Fails(nn.Module):
    def forward(self, x):
        return torch.addmm(x)  # wrong

WAYS = {
    "arguments": lambda: [LayerSpec(Block, there, index) for index in range(6)],
    "a global": lambda: [LayerSpec(Weight, index) for index in range(6)],
    "unregistered": lambda: [LayerSpec(Unregistered, there, index) for index in range(6)],
    "a cache": lambda: [LayerSpec(Cached) for _ in range(6)],
    "a graph": lambda: ostinato.deepspeed.graph(
        {f"n{i}": (part, f"n{i - 1}" if i else "x") for i, part in enumerate(there.parts)}, inputs=("x",)),
    "no copies": lambda: [Uncopied(8, 8) for _ in range(6)],
    "one object": lambda: [one, nn.Tanh(), one, nn.Linear(8, 8), one, nn.Tanh()],
    "one argument": lambda: [LayerSpec(Around, one if index % 3 != 1 else nn.Linear(8, 8)) for index in range(6)],
    "fails": lambda: [LayerSpec(Block, there, 0), LayerSpec(Fails), LayerSpec(Block, there, 1)],
}
way, config = sys.argv[1], eval(sys.argv[2])
deepspeed.init_distributed()
kind = torch.bfloat16 if config else torch.float32
batches = iter([(torch.ones(3, 8, dtype=kind), torch.ones(3, 8, dtype=kind))] * 4)
model = PipelineModule(WAYS[way](), num_stages=2, loss_fn=nn.functional.mse_loss, partition_method="uniform")
engine, *_ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config={
    "train_micro_batch_size_per_gpu": 3, "optimizer": {"type": "Adam", "params": {"lr": 0.01}}} | config)
engine.train_batch(batches)
"""
PLAIN, HALF = "{}", '{"bf16": {"enabled": True}, "zero_optimization": {"stage": 1}}'
NUMBERS = {
    "arguments": 72 + 16,
    "a global": 64,
    "unregistered": 72,
    "a cache": 72,
    "a graph": 72,
    "no copies": 72,
}


@pytest.mark.parametrize("config", [PLAIN, HALF], ids=["plain", "half"])
@pytest.mark.parametrize("way", NUMBERS)
def test_what_is_there_already_stays(tmp_path, way, config):
    (tmp_path / "train.py").write_text(SCRIPT)
    job = capture(tmp_path / "train.py", [way, config], 2)
    job.repeats, job.warm_up = 1, 0
    rows = profile_layers(job).layers
    assert [row.gradients for row in rows] == [NUMBERS[way] * (4 if config == PLAIN else 2)] * 6
    if (way, config) == ("arguments", PLAIN):
        places = [[tensor.data_ptr() for tensor in job.layers[0].build().parameters()] for _ in range(2)]
        assert places[0] == places[1] and all(places[0])  # none of the weights is there twice


def test_a_twin_shows_the_memory_of_what_is_not_registered_as_well():
    module, inner = nn.Linear(2, 2), nn.Linear(2, 2)
    module.held, module.bare = [inner], torch.ones(2, requires_grad=True)
    made = twin(module, {id(module.bias): torch.float64})
    shown = [made.weight, made.held[0].weight, made.bare]
    assert [tensor.data_ptr() for tensor in shown] == [
        tensor.data_ptr() for tensor in (module.weight, inner.weight, module.bare)
    ]
    assert all(tensor.requires_grad for tensor in shown) and made.held[0].weight is not inner.weight
    assert made.bias.dtype == torch.float64  # as before DeepSpeed's cast
    assert copy.deepcopy(inner).weight.data_ptr() != inner.weight.data_ptr()  # torch's own again


@pytest.mark.parametrize("config", [PLAIN, HALF], ids=["plain", "half"])
@pytest.mark.parametrize(
    ("way", "again", "together"),
    [
        ("one object", [2, 4], [(0, [0, 2]), (1, [4])]),
        ("one argument", [2, 3, 5], [(0, [0, 2]), (1, [3, 5])]),
    ],
)
def test_layers_that_share_weights_hold_them_once_and_stay_where_deepspeed_has_them(
    tmp_path, way, again, together, config
):
    (tmp_path / "train.py").write_text(SCRIPT)
    job = capture(tmp_path / "train.py", [way, config], 2)
    job.repeats, job.warm_up = 1, 0
    profile = profile_layers(job)
    numbers = 4 * 4 if config == PLAIN else 2 + 2 + 3 * 4  # parameters, gradients, and Adam's
    tied = [72 * numbers if index in again else 0 for index in range(6)]
    assert [row.tied for row in profile.layers] == tied
    assert [(device, layers) for _, why, _, layers, device in profile.restrictions] == together
    assert all("they share tensors" in why for _, why, *_ in profile.restrictions)


@pytest.mark.parametrize("options", [[], ["-X", "dev"]], ids=["message", "traceback"])
def test_a_layer_that_fails_is_named_with_its_line(tmp_path, options):
    (tmp_path / "train.py").write_text(SCRIPT)
    result = subprocess.run(
        [sys.executable, *options, "-m", "ostinato.profile", "train.py", "-o", "p.json", "--world-size", "2", "--", "fails", PLAIN],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, env=os.environ | {"DS_ACCELERATOR": "cpu"},
    )  # fmt: skip
    line = 1 + SCRIPT.splitlines().index("        return torch.addmm(x)  # wrong")
    told = result.stderr.splitlines()
    message = f"ostinato profile: layer 1:Fails raised TypeError in its forward (train.py:{line}): "
    assert result.returncode == 3 and any(row.startswith(message) for row in told), result.stderr
    shown = [row for row in told if row.strip() == "return torch.addmm(x)  # wrong"]
    assert bool(shown) == bool(options) == ("Traceback (most recent call last):" in told)
