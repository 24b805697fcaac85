# SPDX-License-Identifier: Apache-2.0
"""What scripts of strangers do before their first step: what works under DeepSpeed works under `ostinato
profile`."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import profile_scripts
import pytest
import torch
from ostinato.profile import profile_layers
from ostinato.profile.script import first_step
from ostinato.profile.script.first_step import capture


pytestmark = pytest.mark.usefixtures("script_alone")


HEAD = """
import math, os, sys
import deepspeed, torch
import torch.distributed as dist
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from torch import nn
CONFIG = {"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 2,
          "optimizer": {"type": "Adam", "params": {"lr": 0.01}},
          "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5}}}
def batches():
    while True:
        yield torch.ones(3, 8), torch.ones(3, 8)
def made(stages=4, layers=None, config=CONFIG, **options):
    layers = layers or [LayerSpec(nn.Linear, 8, 8) for _ in range(8)]
    model = PipelineModule(layers, num_stages=stages, loss_fn=nn.functional.mse_loss, partition_method="uniform", **options)
    return model, deepspeed.initialize(model=model, config=config, model_parameters=[p for p in model.parameters() if p.requires_grad])
"""
TAIL = "\nengine.train_batch(batches())\nraise AssertionError('the script goes on after its first step')\n"


def captured(tmp_path, body, *arguments, size=None):
    (tmp_path / "train.py").write_text(HEAD + body)
    return capture(tmp_path / "train.py", list(arguments), size)


# Every one of these is asked of the engine, the model and torch.distributed; each is an expression or a
# statement.
TOUCHES = """
engine.grid.get_pipe_parallel_rank() == 0 and engine.grid.get_data_parallel_world_size() == 1
engine.mpu.get_model_parallel_world_size() == 4
engine.stage_id == 0 and engine.num_stages == 4 and engine.is_first_stage() and not engine.is_last_stage()
math.isclose(engine.get_lr()[0], CONFIG["optimizer"]["params"]["lr"], abs_tol=1)
engine._config.train_batch_size == engine.train_batch_size() == 6
engine.config["gradient_accumulation_steps"] == engine.micro_batches == 2
math.log(engine.eval_batch(batches())) < 1e9
engine.eval_batch(batches(), return_logits=True)[0] is not None
engine.set_batch_fn(lambda batch: batch) is None
engine.save_checkpoint(FOLDER, client_state={"step": 7}) in (True, None)
engine.load_checkpoint(FOLDER)[1]["step"] == 7
engine.save_16bit_model(FOLDER) in (True, False)
[group["lr"] for group in engine.optimizer.param_groups] + [group["params"][0].shape for group in optimizer.param_groups]
engine.set_train_batch_size(12) is None and engine.train_batch_size() == 12
engine.lr_scheduler.step() is None
engine.module._grid.stage_id == 0 and model._topo.world_size() == 4
model.parts == model.partitions() and len(model.forward_funcs) == 2
model.topology().get_dim("pipe") == model.num_pipeline_stages() == 4
[name for name, _ in model.named_parameters()] == ["0.weight", "0.bias", "1.weight", "1.bias"]
sum(p.numel() for p in engine.module.parameters()) == 2 * 72
engine.module.state_dict()["0.weight"].shape == (8, 8)
engine.train() is engine and engine.eval() is engine
engine.global_rank == 0 and engine.world_size == 4 and engine.global_steps == 0
engine.set_dataiterator(batches()) is None
engine.zero_optimization_stage() == 0 and not engine.fp16_enabled()
str(engine.device) in ("cpu", "cpu:0") and next(engine.module.parameters()).device.type == "cpu"
dist.get_world_size() == 4 == int(os.environ["WORLD_SIZE"]) and dist.get_rank() == 0
dist.get_backend() == "nccl"
dist.barrier() is None and deepspeed.comm.barrier() is None
total(torch.ones(2)) == 8
gathered({"rank": 0}) == [{"rank": 0}] * 4
told(["configuration"], src=0) == ["configuration"] and told([None], src=3) == [None]
dist.new_group([0, 1]).size() == 2 and dist.get_rank(dist.new_group([2, 3])) == -1
dist.broadcast(torch.ones(2), src=3) is None
dist.monitored_barrier(dist.new_group(backend="gloo")) is None
torch.utils.data.distributed.DistributedSampler(range(8)).num_replicas == 4
refused(lambda: engine(torch.ones(3, 8))) and refused(lambda: engine.backward(None)) and refused(lambda: engine.step())
""".strip().splitlines()

TOUCHING = """
def refused(call):
    try:
        call()
    except deepspeed.runtime.pipe.module.PipelineError:
        return True
def total(tensor):
    dist.all_reduce(tensor)
    return tensor.sum().item()
def gathered(value):
    values = [None] * 4
    dist.all_gather_object(values, value)
    return values
def told(values, src):
    dist.broadcast_object_list(values, src=src)
    return values
dist.init_process_group("nccl")
assert dist.get_world_size() == 4
deepspeed.init_distributed()
model, (engine, optimizer, _, scheduler) = made()
FOLDER, wrong = sys.argv[1], []
for touch in open(sys.argv[2]).read().splitlines():
    try:
        if not eval(touch):
            wrong.append(touch)
    except BaseException as error:
        wrong.append(f"{touch}: {type(error).__name__}: {error}")
assert not wrong, chr(10).join(wrong)
"""


def test_what_ordinary_scripts_touch(tmp_path):
    """The number of ranks is found: the script insists on it before it makes its model."""
    (tmp_path / "touches").write_text("\n".join(TOUCHES))
    folder = tmp_path / "checkpoints"
    (folder / "latest").mkdir(parents=True)  # whatever was there stays as it was
    job = captured(tmp_path, TOUCHING + TAIL, str(folder), str(tmp_path / "touches"))
    assert len(job.layers) == 8 and job.inputs.shape == (3, 8)
    assert [path.name for path in folder.iterdir()] == ["latest"]


PROBE = """
import inspect, json
LEFT_OUT = {"train_batch", "forward", "destroy", "__call__", "compile", "share_memory", "set_data_post_process_func"}
if "RANK" not in os.environ:  # stock DeepSpeed: a world of one rank, over gloo
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[2])
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
deepspeed.init_distributed()
model, (engine, *_) = made(1, config=CONFIG | {"optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}}})
def works(thing, name):
    try:
        value = getattr(thing, name)
        if callable(value) and name not in LEFT_OUT:
            required = [p for p in inspect.signature(value).parameters.values() if p.default is p.empty and p.kind not in (2, 4)]
            if not required:
                value()
        return True
    except Exception:
        return False
told = {f"{kind}.{name}": works(thing, name) for kind, thing in (("engine", engine), ("model", model), ("grid", engine.grid))
        for name in sorted(dir(thing)) if not name.startswith("_")}
json.dump(told, open(sys.argv[1], "w"))
"""


def test_whatever_works_in_stock_deepspeed_works(tmp_path):
    """Every public attribute, and every public method that needs no argument, of the engine, the model and
    the grid."""
    ours, stock = tmp_path / "ours.json", tmp_path / "stock.json"
    (tmp_path / "probe.py").write_text(HEAD + PROBE)
    command = [sys.executable, str(tmp_path / "probe.py"), str(stock), str(first_step.free_port())]
    running = subprocess.Popen(
        command, env=os.environ | {"DS_ACCELERATOR": "cpu"}, stdout=subprocess.DEVNULL, cwd=tmp_path
    )
    captured(tmp_path, PROBE + TAIL, str(ours), size=1)
    assert running.wait(timeout=300) == 0
    expected, found = json.loads(stock.read_text()), json.loads(ours.read_text())
    assert sum(expected.values()) > 400
    assert {name for name, works in expected.items() if works and not found.get(name)} == set()


STRANGE = {
    "world size of a launcher's own": """
world = int(os.environ["WORLD_SIZE"])
if world < 2:
    sys.exit("this needs at least 2 gpus")
deepspeed.init_distributed()
model, (engine, *_) = made(world)
""",
    "batches that ask for replicas": """
deepspeed.init_distributed()
model, (engine, *_) = made(2, config=CONFIG | {"train_batch_size": 12})
assert engine.grid.get_data_parallel_world_size() == 2
""",
    "topology of the world's size": """
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
deepspeed.init_distributed()
topology = PipeModelDataParallelTopology(num_pp=2, num_mp=2, num_dp=dist.get_world_size() // 4)
model, (engine, *_) = made(None, topology=topology)
""",
    "local rank of deepspeed's launcher": """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
args = deepspeed.add_config_arguments(parser).parse_args()
deepspeed.init_distributed(dist_backend="nccl")
args.local_rank = int(os.environ["LOCAL_RANK"])
torch.manual_seed(args.local_rank)
model, (engine, *_) = made(2)
""",
    "data on the ends of the pipeline": """
deepspeed.init_distributed()
model, (engine, *_) = made(2)
if engine.is_first_stage() or engine.is_last_stage():
    loader = torch.utils.data.DataLoader([(torch.ones(8), torch.ones(8))] * 6, batch_size=3, num_workers=1)
    data = iter(deepspeed.utils.RepeatingLoader(loader))
batches = lambda: data
""",
    "processes of its own": """
def worker(rank, size):
    global engine
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29500", RANK=str(rank), WORLD_SIZE=str(size))
    dist.init_process_group("gloo", rank=rank, world_size=size)
    deepspeed.init_distributed()
    engine = made(2)[1][0]
    engine.train_batch(batches())
torch.multiprocessing.spawn(worker, args=(2,), nprocs=2)
""",
    "a context of half precision and ZeRO": """
deepspeed.init_distributed()
def batches():
    while True:
        yield torch.ones(3, 8, dtype=torch.bfloat16), torch.ones(3, 8, dtype=torch.bfloat16)
model, (engine, *_) = made(2, config=CONFIG | {"bf16": {"enabled": True}, "zero_optimization": {"stage": 1}})
engine.save_checkpoint("checkpoints")
""",
    "a child that holds its parent": """
class Child(nn.Linear):
    def __init__(self, parent):
        super().__init__(8, 8)
        self.parents = [parent]
class Parent(nn.Module):
    def __init__(self):
        super().__init__()
        self.child = Child(self)
    def forward(self, x):
        return self.child(x)
deepspeed.init_distributed()
model = PipelineModule([LayerSpec(Parent) for _ in range(8)], num_stages=2, loss_fn=nn.MSELoss())
engine, *_ = deepspeed.initialize(model=model, config=CONFIG)
""",
    "its own optimizer, after a validation": """
deepspeed.init_distributed()
model = PipelineModule([LayerSpec(nn.Linear, 8, 8) for _ in range(8)], num_stages=2, loss_fn=nn.CrossEntropyLoss(weight=torch.ones(8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
engine, optimizer, _, scheduler = deepspeed.initialize(
    model=model, optimizer=optimizer, config={"train_micro_batch_size_per_gpu": 3},
    lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1))
best = engine.eval_batch(batches()).item()
assert scheduler.get_last_lr() == [0.1]
""",
}


@pytest.mark.parametrize("name", STRANGE)
def test_strange_scripts(tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = captured(tmp_path, STRANGE[name] + TAIL)
    assert len(job.layers) == 8
    job.repeats, job.warm_up = 1, 0
    rows = profile_layers(job).layers
    assert len(rows) == 8 and rows[0].parameters and rows[1].same_as == -1 and rows[2].same_as == 1
    assert not (tmp_path / "checkpoints").exists()


def test_a_script_that_only_evaluates(tmp_path):
    job = captured(
        tmp_path, "deepspeed.init_distributed()\nengine = made(2)[1][0]\nengine.eval_batch(batches())\n"
    )
    assert len(job.layers) == 8 and job.labels.shape == (3, 8)


def test_layers_are_measured_as_the_script_left_them(tmp_path, capfd):
    """What rank 0's layers show is carried over to equal ones of other ranks where it is the same for all."""
    layers = "[LayerSpec(nn.Linear, 8, 8), LayerSpec(nn.Linear, 8, 8), LayerSpec(nn.Linear, 8, 4), LayerSpec(nn.Linear, 4, 8)] + "
    layers += "[LayerSpec(nn.Linear, 8, 8) for _ in range(4)]"
    job = captured(tmp_path, f"""
deepspeed.init_distributed()
model = PipelineModule({layers}, num_stages=2, loss_fn=nn.functional.mse_loss, partition_method="uniform")
for layer in model.forward_funcs[:2]:
    layer.weight.requires_grad_(False)
engine = deepspeed.initialize(model=model, config=CONFIG | {{"bf16": {{"enabled": True}}}}, model_parameters=model.parameters())[0]
model.forward_funcs[2].register_forward_hook(lambda module, inputs, output: torch.nn.functional.gelu(output))
batches = lambda: iter([(torch.ones(3, 8, dtype=torch.bfloat16), torch.ones(3, 8, dtype=torch.bfloat16))])
""" + TAIL)  # fmt: skip
    told = capfd.readouterr().out
    assert (
        "measuring layers 0 to 2 as the script changed them" in told
        and "layers 4 to 7 are on other ranks: assuming" in told
    )
    job.repeats, job.warm_up = 1, 0
    profile = profile_layers(job)
    # Bf16, and their sums in bf16; frozen weights have none.
    assert [row.gradients for row in profile.layers] == [32, 32, 144, 160, 32, 32, 32, 32]
    assert "aten::gelu" in {row.name for row in profile.operators if row.layer == 2}
    stock = captured(
        tmp_path, f"deepspeed.init_distributed()\nmodel, (engine, *_) = made(2, {layers})\n" + TAIL
    )
    stock.repeats, stock.warm_up = 1, 0
    assert profile_layers(stock).model_sha256 == profile.model_sha256  # as built, whatever DeepSpeed casts to


COUNTS = """
class Block(nn.Module):
    made = 0

    def __init__(self):
        super().__init__()
        Block.made += 1
        self.layer = nn.Sequential(*(nn.Linear(8, 8) for _ in range(1 + Block.made % 2)))

    def forward(self, values):
        return self.layer(values)
"""


def test_equal_layer_specs_may_build_unlike_layers(tmp_path, capfd):
    """What rank 0 has built is measured; of the second rank's layers, what they build here."""
    layers = "[LayerSpec(Block) for _ in range(6)] + [LayerSpec(nn.Linear, 8, 8) for _ in range(2)]"
    job = captured(
        tmp_path, f"{COUNTS}\ndeepspeed.init_distributed()\nmodel, (engine, *_) = made(2, {layers})\n" + TAIL
    )
    told = capfd.readouterr().out
    assert "layers 0 to 3 have equal LayerSpecs that built unlike layers" in told
    assert "layers 4 to 5 are on other ranks, but rank 0's equal layers are not alike" in told
    assert "as the script changed them" not in told
    job.repeats, job.warm_up = 1, 0
    rows = profile_layers(job).layers
    assert [row.parameters // 288 for row in rows] == [2, 1, 2, 1, 2, 1, 1, 1]


def test_layers_that_see_to_their_mode_have_not_changed(tmp_path, capfd):
    """In a step a part of each stays in evaluation mode: no layer draws anything."""
    job = captured(tmp_path, """
class Steady(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer, self.drops = nn.Linear(width, 8), nn.Dropout()

    def train(self, mode=True):
        super().train(mode)
        self.drops.eval()

    def forward(self, values):
        return self.drops(self.layer(values))

deepspeed.init_distributed()
layers = [LayerSpec(Steady, 8), LayerSpec(nn.Linear, 8, 4), LayerSpec(Steady, 4), LayerSpec(nn.Linear, 8, 8)]
model = PipelineModule(layers, num_stages=2, loss_fn=nn.functional.mse_loss, partition_method="uniform")
assert model.forward_funcs[0].drops.training
engine = deepspeed.initialize(model=model, config=CONFIG, model_parameters=list(model.parameters()))[0]
""" + TAIL)  # fmt: skip
    assert "as the script changed them" not in capfd.readouterr().out
    job.repeats, job.warm_up = 1, 0
    assert not any("bernoulli" in row.name for row in profile_layers(job).operators)


def test_a_graph_of_layers(tmp_path, capfd):
    job = captured(tmp_path, """
import ostinato.deepspeed
class Add(nn.Module):
    def forward(self, a, b):
        return a + b
deepspeed.init_distributed()
nodes = {"left": (LayerSpec(nn.Linear, 8, 8), "x"), "right": (LayerSpec(nn.Linear, 8, 8), "x"), "sum": (LayerSpec(Add), "left", "right")}
model = PipelineModule(ostinato.deepspeed.graph(nodes, inputs=("x",)), num_stages=3, loss_fn=nn.functional.mse_loss)
model.requires_grad_(False)
engine = deepspeed.initialize(model=model, config=CONFIG, model_parameters=list(model.parameters()))[0]
batches = lambda: iter([((torch.ones(3, 8),), torch.ones(3, 8))])
""" + TAIL)  # fmt: skip
    assert "layers 0 of graph() were changed" in capfd.readouterr().out
    job.repeats, job.warm_up = 1, 0
    assert [row.name for row in profile_layers(job).layers] == ["0:left", "1:right", "2:sum"]


RUDE = """
class Loud:
    def write(self, text): sys.__stdout__.write("LOUD " + text)
    def flush(self): sys.__stdout__.flush()
if __name__ == "__main__":
    deepspeed.init_distributed()
    assert int(os.environ["WORLD_SIZE"]) == 4
    model, (engine, *_) = made(4)
    engine.save_checkpoint("checkpoints")
    sys.stdout = Loud()
    os.chdir("/")
    import atexit
    atexit.register(open(sys.argv[1], "w").write, "done")
    loader = torch.utils.data.DataLoader([(torch.ones(8), torch.ones(8))] * 6, batch_size=3, num_workers=1)
    for step in range(3):
        try:
            engine.train_batch(iter((inputs, None) for inputs, _ in loader))
        except:
            pass
    os._exit(17)
"""


def test_a_script_that_catches_everything_and_leaves_by_force(tmp_path):
    """From its module, by the command, in a folder of its own."""
    package, temporary = tmp_path / "package", Path(tempfile.mkdtemp())  # short: it holds sockets
    package.mkdir()
    (package / "train.py").write_text(HEAD + RUDE)
    words = (
        "-m ostinato.profile -m package.train -o out/p.json --repeats 1 --warm-up 0 --no-transfers --json --"
    )
    result = subprocess.run(
        [sys.executable, *words.split(), str(tmp_path / "ended")], cwd=tmp_path, capture_output=True, text=True,
        timeout=300, env=os.environ | {"DS_ACCELERATOR": "cpu", "TMPDIR": str(temporary)},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert not list(temporary.glob("ostinato-checkpoint-*"))
    shutil.rmtree(temporary)
    assert json.loads(result.stdout)["layers"] == 8  # one object, and nothing else
    assert json.loads((tmp_path / "out" / "p.json").read_text())["model"]["name"] == "train"
    assert (tmp_path / "ended").read_text() == "done"
    assert "starting the script again with a world of 4 ranks" in result.stderr
    assert "the profile lacks the loss, because rank 0's batch has no labels" in result.stderr


def test_a_world_that_the_user_gives_is_kept(tmp_path):
    with pytest.raises(first_step.ProfileError, match="must divide distributed world size"):
        captured(tmp_path, "deepspeed.init_distributed()\nmodel, (engine, *_) = made(4)" + TAIL, size=3)


def test_training_really_is_as_before(tmp_path):
    """The wrappers of torch.distributed are gone afterwards."""
    captured(tmp_path, "deepspeed.init_distributed()\nmodel, (engine, *_) = made(1)" + TAIL)
    first_step.forget_processes()
    train, _ = profile_scripts.write(tmp_path)
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        value = torch.ones(1)
        torch.distributed.all_reduce(value)
        assert torch.distributed.get_backend() == "gloo" and value.item() == 1
    finally:
        torch.distributed.destroy_process_group()
