# SPDX-License-Identifier: Apache-2.0
"""A saved TorchScript program, profiled by its submodules and operators, against the profile of its module."""

import contextlib
import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import ostinato
from ostinato import _profiler, cli
from ostinato.profile import Job, main, profile_layers
from ostinato.profile.model import archives
from ostinato.profile.options import arguments_of


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.narrow(torch.relu(self.wide(self.norm(x))))


class Towers(nn.Module):
    """Two submodules beside each other, and operators of the program's own."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.head = Block(16), Block(16), nn.Linear(32, 2)

    def forward(self, x):
        return self.head(torch.cat([self.left(x), torch.tanh(self.right(x))], -1))


class Wrapped(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, x):
        return self.layers(x)


class Placed(nn.Module):
    """Makes a tensor where its input is."""

    def forward(self, x):
        return x + torch.arange(x.size(1), device=x.device)


class Beneath(nn.Module):
    """Two chains, which have a length beside their forward."""

    def __init__(self):
        super().__init__()
        self.left, self.right = (nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2))

    def forward(self, x):
        return self.left(x) + self.right(x)


def chain():
    return nn.Sequential(nn.Embedding(50, 16), Block(16), Block(16), nn.Linear(16, 4))


def said(*words):
    """Status of the command, and what it writes to standard error."""
    with contextlib.redirect_stderr(io.StringIO()) as told:
        try:
            return main([*map(str, words)]), told.getvalue()
        except SystemExit as ended:  # of wrong options
            return ended.code, told.getvalue()


def run(tmp_path, module, *inputs, options=(), status=0):
    path, output = tmp_path / "model.pt", tmp_path / "profile.json"
    torch.jit.script(module).save(str(path))
    words = [word for shape in inputs for word in ("--input", shape)]
    ended, told = said(
        path, *words, "--repeats", "2", "--warm-up", "1", "--no-transfers", "--output", output, *options
    )
    assert ended == status, told
    return told if status != 0 else _profiler.read_profile(str(output))


def test_a_chain_costs_what_its_layers_cost(tmp_path):
    saved = run(tmp_path, Wrapped(chain()), "8x6:int64:50")
    layers = profile_layers(
        Job(layers=list(chain()), inputs=torch.zeros(8, 6, dtype=torch.long), repeats=1, warm_up=1)
    )
    assert [row.name for row in saved.layers] == ["0:layers.0", "1:layers.1", "2:layers.2", "3:layers.3"]
    assert [row.same_as for row in saved.layers] == [-1, -1, 1, -1]
    for mine, theirs in zip(saved.layers, layers.layers, strict=True):
        for figure in (
            "kept",
            "forward_workspace",
            "backward_workspace",
            "parameters",
            "gradients",
            "input_bytes",
            "output_bytes",
        ):
            assert getattr(mine, figure) == getattr(theirs, figure), (mine.name, figure)
        assert (
            mine.optimizer_state == 2 * mine.gradients
            and mine.forward.median > 0
            and mine.backward.median > 0
        )
        assert mine.forward.repeats == mine.backward_input.repeats == 2
    assert saved.completeness.complete and saved.completeness.seen == saved.completeness.expected > 0
    assert saved.timer == "cpu" and saved.micro_batch_size == 8 and saved.device_name


def test_operators_and_flops_are_those_of_the_module(tmp_path):
    saved = run(tmp_path, Wrapped(chain()), "8x6:int64:50")
    layers = profile_layers(
        Job(layers=list(chain()), inputs=torch.zeros(8, 6, dtype=torch.long), repeats=1, warm_up=1)
    )

    def products(profile):
        return {
            (row.layer, row.phase, row.name): (row.calls, row.flops) for row in profile.operators if row.flops
        }

    assert products(saved) == products(layers)


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


def test_questions_that_torch_shows_to_no_recorder_are_not_missed(tmp_path):
    """A scripted MultiheadAttention asks for sizes, and for is_leaf, in every call."""
    state = run(tmp_path, Attends(), "4x6x16").completeness
    assert state.complete and state.seen == state.expected > 0


def test_branches_are_steps_with_their_edges(tmp_path):
    saved = run(tmp_path, Towers(), "4x16")
    names = [row.name.split(":", 1)[1] for row in saved.layers]
    assert names == ["left", "right", "aten::tanh", "aten::cat", "head"]
    edges = [[(source.layer, source.bytes) for source in row.after] for row in saved.layers]
    of_batch = 4 * 16 * 4
    assert edges == [[], [], [(1, of_batch)], [(0, of_batch), (2, of_batch)], [(3, 2 * of_batch)]]
    assert saved.layers[1].same_as == 0
    whole = profile_layers(Job(layers=[Towers()], inputs=torch.randn(4, 16), repeats=1, warm_up=1)).layers[0]
    assert sum(row.kept for row in saved.layers) == whole.kept


def doubled(x, factor: int):
    return x * factor + 1


class Mixed(nn.Module):
    """Functions, lists, tuples and dictionaries between what computes, sizes that it asks for, and work in
    place."""

    def __init__(self):
        super().__init__()
        self.first, self.weight = nn.Linear(4, 4), nn.Parameter(torch.randn(4, 4))
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x):
        y = self.first(x).view(x.size(0), -1)
        halves = torch.split(y, 2, dim=1)
        parts = [halves[0]]
        parts.append(doubled(x, 2))
        named = {"left": torch.cat(parts, 1)}
        named["right"] = y
        for block in self.blocks:
            y = block(y)
        left, right = torch.matmul(y + named["right"], self.weight).chunk(2, dim=1)
        return left.tanh_() * right, named["left"]


def test_what_is_no_submodule_is_a_step_too(tmp_path):
    torch.manual_seed(0)
    module = Mixed()
    saved = run(tmp_path, module, "3x4")
    names = [row.name.split(":", 1)[1] for row in saved.layers]
    assert names == ["first", "aten::view", "aten::split", "doubled", "aten::cat", "blocks.0", "blocks.1", "aten::add", "aten::matmul",
                     "aten::chunk", "aten::tanh_", "aten::mul"]  # fmt: skip
    read = {
        name: [names[source.layer] for source in row.after]
        for name, row in zip(names, saved.layers, strict=True)
    }
    assert read["doubled"] == [] and read["aten::cat"] == ["aten::split", "doubled"]
    assert read["aten::add"] == ["aten::view", "blocks.1"] and read["aten::mul"] == [
        "aten::chunk",
        "aten::tanh_",
    ]
    assert saved.layers[names.index("blocks.1")].same_as == names.index("blocks.0")
    assert saved.layers[names.index("aten::matmul")].parameters == module.weight.nbytes
    assert saved.completeness.complete


def test_from_python_it_is_a_module_like_others():
    torch.manual_seed(0)
    program = torch.jit.script(Wrapped(chain()))
    inputs = torch.zeros(8, 6, dtype=torch.long)
    labels = torch.zeros(8, 6, 4)
    job = Job(
        module=program,
        inputs=inputs,
        labels=labels,
        loss_fn=nn.MSELoss(),
        optimizer_numbers=0,
        repeats=1,
        warm_up=0,
    )
    rows = profile_layers(job).layers
    assert [row.name for row in rows] == [
        "0:layers.0",
        "1:layers.1",
        "2:layers.2",
        "3:layers.3",
        "4:loss (MSELoss)",
    ]
    assert (
        rows[-1].labels == labels.nbytes
        and [row.optimizer_state for row in rows] == [0] * 5
        and rows[1].gradients > 0
    )


def halves(row):
    return row.backward_input.median, row.backward_weight.median


def test_the_backward_is_measured_in_its_halves_too(tmp_path):
    """First the embedding, whose input takes no gradient, then blocks with both halves, then one without
    parameters."""
    saved = run(
        tmp_path, nn.Sequential(nn.Embedding(50, 16), Block(16), nn.Tanh(), nn.Linear(16, 4)), "8x6:int64:50"
    )
    assert all(row.backward_input.repeats == row.backward_weight.repeats == 2 for row in saved.layers)
    embedding, block, tanh, head = map(halves, saved.layers)
    assert embedding[0] == tanh[1] == 0
    assert embedding[1] > 0 and tanh[0] > 0 and min(*block, *head) > 0


class Shared(nn.Module):
    """Uses one weight twice: the second half of its backward must not run the first again."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return self.inner(torch.tanh(self.inner(x)))


def test_a_weight_that_is_used_twice_is_split_too(tmp_path):
    saved = run(tmp_path, nn.Sequential(nn.Linear(8, 8), Shared(), nn.Linear(8, 8)), "4x8")
    row = next(row for row in saved.layers if row.parameters == (64 + 8) * 4 and row.index == 1)
    assert min(halves(row)) > 0


def test_a_weight_of_two_submodules_is_held_once(tmp_path):
    embedding, head = nn.Embedding(16, 8), nn.Linear(8, 16)
    head.weight = embedding.weight
    rows = run(tmp_path, nn.Sequential(embedding, nn.Tanh(), head), "4x2:int64:16").layers
    assert [row.tied for row in rows] == [0, 0, 16 * 8 * 4 * 4]
    assert rows[2].parameters == (16 * 8 + 16) * 4


@pytest.mark.parametrize(
    ("loss", "bytes_kept"), [("sum", 0), ("mean", 0), ("mse", 0), ("cross-entropy", 8 * 6 * 4 * 4)]
)
def test_the_loss_is_a_last_step(tmp_path, loss, bytes_kept):
    saved = run(tmp_path, Wrapped(chain()), "8x6:int64:50", options=("--loss", loss))
    last = saved.layers[-1]
    assert last.name == f"4:loss ({loss})" and [source.layer for source in last.after] == [3]
    assert last.input_bytes == 8 * 6 * 4 * 4 and last.output_bytes == 4
    assert last.forward.median > 0 and last.backward.median > 0 and last.kept >= bytes_kept
    assert saved.completeness.complete


def test_a_link_that_is_given_is_in_the_profile(tmp_path):
    saved = run(
        tmp_path, Wrapped(chain()), "8x6:int64:50", options=("--latency", "20", "--bandwidth", "12.5")
    )
    found = [
        (c.source, c.target, c.latency, c.bytes_per_second, c.residual, c.backend) for c in saved.transfers
    ]
    assert found == [(a, b, 20_000, 12_500_000_000, 0, "given") for a, b in ((0, 1), (1, 0))]


def test_from_a_saved_program_to_a_plan_that_is_checked(tmp_path):
    """profile, plan with split backwards over the given link, verify: as a user would type it."""
    blocks = nn.Sequential(nn.Embedding(50, 16), *(Block(16) for _ in range(6)), nn.Linear(16, 50))
    run(
        tmp_path,
        Wrapped(blocks),
        "8x6:int64:50",
        options=("--loss", "cross-entropy", "--latency", "5", "--bandwidth", "10"),
    )
    ours = Path(ostinato.__file__).parents[2] / "bindings" / "ostinato"
    command = [str(ours)] if ours.exists() else [sys.executable, "-m", "ostinato"]

    def ostinato_does(*words):
        done = subprocess.run([*command, *map(str, words)], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr

    placement, plan = tmp_path / "placement.toml", tmp_path / "plan.json"
    ostinato_does(
        "partition", tmp_path / "profile.json", "--devices", 2, "--output", placement, "--split-backward"
    )
    ostinato_does("plan", tmp_path / "profile.json", "--devices", 2, "--all-devices", "--micro-batches", 4, "--split-backward",
                  "--placement-output", placement, "--output", plan)  # fmt: skip
    ostinato_does("verify", plan, placement)
    text = placement.read_text()
    assert 'kind = "backward_input"' in text and 'kind = "backward_weight"' in text
    assert "bandwidth = 10" in text and json.loads(plan.read_text())["makespan"] > 0


def test_it_looks_as_deep_as_it_is_told(tmp_path):
    saved = run(tmp_path, Towers(), "4x16", options=("--depth", "1"))
    names = [row.name.split(":", 1)[1] for row in saved.layers]
    assert names[:5] == ["left.norm", "left.wide", "aten::relu", "left.narrow", "aten::add"]


def test_an_inference_program_keeps_what_evaluation_keeps(tmp_path):
    dropped = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8))
    trained, evaluated = (run(tmp_path, dropped, "4x8", options=options) for options in ((), ("--eval",)))
    assert trained.layers[1].kept > evaluated.layers[1].kept == 0


class Drops(nn.Module):
    def forward(self, x):
        parts = [x.tanh(), x.exp()]
        parts.pop()
        return parts[0]


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        if bool(x.sum() > 0):
            x = self.a(x)
        return self.b(x)


@pytest.mark.parametrize(
    ("make", "inputs", "status", "message"),
    [
        (Branching, ["2x4"], 3, "branches on values (prim::If): move the branching into a submodule"),
        (Drops, ["2x4"], 3, "changes a list or dictionary with aten::pop"),
        (Towers, ["4x15"], 3, "step 0:left raised RuntimeError: Given normalized_shape=[16]"),
        (Towers, ["4x16", "4x16"], 3, "the program takes 1 input, but got 2"),
        (Towers, ["4xmany"], 2, "'many' is not a number"),
        (Towers, ["4x16:float8"], 2, "the type 'float8' is not one"),
        (Towers, ["4x16:float32:3"], 2, "floating point inputs take no bound"),
    ],
)
def test_what_cannot_be_profiled_is_said(tmp_path, make, inputs, status, message):
    assert message in run(tmp_path, make(), *inputs, status=status)


@pytest.mark.parametrize(
    "option",
    [["--depth", "1"], ["--loss", "sum"], ["--optimizer-numbers", "0"], ["--eval"], ["--input", "2x4"]],
)
def test_options_of_a_program_are_of_no_other_file(tmp_path, option):
    for name in ("model.pt2", "train.py") if option[0] != "--optimizer-numbers" else ("train.py",):
        status, told = said(tmp_path / name, *option)
        assert (
            status == 2
            and f"{option[0]} is for a TorchScript program, which {tmp_path / name} is not" in told
        )


@pytest.mark.parametrize(
    "option",
    [
        ["--latency", "-1"],
        ["--latency", "5h"],
        ["--latency", "99999999999999999999s"],
        ["--bandwidth", "0"],
        ["--bandwidth", "fast"],
        ["--depth", "-1"],
    ],
)
def test_numbers_that_cannot_be_are_refused(option):
    status, told = said("model.pt", "--input", "2x4", *option)
    assert status == 2 and option[0] in told and option[1] in told


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [("20", 20_000), ("20us", 20_000), ("0.5 ms", 500_000), ("7ns", 7), ("1s", 10**9)],
)
def test_a_latency_has_a_unit_or_is_in_microseconds(text, nanoseconds):
    assert arguments_of(["model.pt", "--latency", text]).latency == nanoseconds


def test_the_command_has_two_names(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["ostinato-profile", "none.pt", "--input", "2x4"])
    assert cli.profile() == 3
    assert "none.pt: no such file" in capsys.readouterr().err


class Counts(nn.Module):
    def forward(self, x):
        return torch.argmax(x, -1)


def test_losses_that_cannot_be_are_said(tmp_path):
    assert "no output of the program is floating point" in run(
        tmp_path, Counts(), "2x4", options=("--loss", "sum"), status=2
    )
    narrow = nn.Linear(4, 1)
    assert "an output with the classes, at least two, as its last dimension" in run(
        tmp_path, narrow, "2x4", options=("--loss", "cross-entropy"), status=2
    )
    assert "--loss" in run(tmp_path, narrow, "2x4", options=("--loss", "hinge"), status=2)


class Beside(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        other = torch.jit.fork(self.left, x)
        return self.right(x) + torch.jit.wait(other)


class Raises(nn.Module):
    def forward(self, x):
        raise RuntimeError("never")


class Named(nn.Module):
    def forward(self, x: dict[str, torch.Tensor]):
        return x["a"] + 1


@pytest.mark.parametrize(
    ("module", "sizes", "why"),
    [
        (Beside, "2x4", "prim::fork"),
        (Raises, "2x4", "prim::"),
        (Named, "2x4", "aten::__getitem__"),
        (Wrapped, "1000000x1000000", "--input 1000000x1000000"),
    ],
)
def test_a_program_that_cannot_be_taken_apart_says_where(tmp_path, module, sizes, why):
    made = module(nn.Linear(4, 4)) if module is Wrapped else module()
    torch.jit.script(made).save(tmp_path / "model.pt")
    status, told = said(tmp_path / "model.pt", "--input", sizes, "-o", tmp_path / "out.json")
    assert status in (2, 3) and why in told and "Traceback" not in told
    assert not (tmp_path / "out.json").exists()


class Runs:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_no_code_of_an_exported_archive_runs(tmp_path):
    torch.export.save(torch.export.export(nn.Linear(4, 4), (torch.ones(2, 4),)), tmp_path / "good.pt2")
    instead = io.BytesIO()
    torch.save(Runs(tmp_path / "ran"), instead)
    with zipfile.ZipFile(tmp_path / "good.pt2") as good, zipfile.ZipFile(tmp_path / "bad.pt2", "w") as bad:
        for name in good.namelist():
            bad.writestr(name, instead.getvalue() if name.endswith(".pt") else good.read(name))
    status, told = said(tmp_path / "bad.pt2", "-o", tmp_path / "out.json")
    assert (
        status == 3
        and "bad.pt2: torch.export.load() cannot load it" in told
        and not (tmp_path / "ran").exists()
    )


def refused(path):
    status, told = said(path, "--input", "2x4")
    assert status == 3
    return told


@pytest.mark.parametrize("kind", ["exported", "traced", "scripted"])
def test_what_a_program_makes_is_on_the_device_that_it_is_profiled_on(tmp_path, monkeypatch, kind):
    """Not on the one that it was exported or traced on."""
    monkeypatch.setattr(
        archives, "device_of_this_process", lambda: SimpleNamespace(place=torch.device("meta"))
    )
    given, path = torch.ones(2, 4), tmp_path / ("model.pt2" if kind == "exported" else "model.pt")
    if kind == "exported":
        torch.export.save(torch.export.export(Placed(), (given,)), path)
        job = archives.load_exported(path)
    else:
        torch.jit.save(
            torch.jit.trace(Placed(), given) if kind == "traced" else torch.jit.script(Placed()), path
        )
        job = archives.load_script(path, ["2x4"])
    assert job.module(job.inputs[0].to("meta")).is_meta


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(4, 4)

    def forward(self, hidden, mask, *, scale):
        return self.mix(hidden * mask) * scale


def test_a_program_with_positional_and_named_inputs(tmp_path):
    given = (torch.ones(2, 4), torch.ones(2, 4)), {"scale": torch.full((2, 4), 3.0)}
    torch.export.save(torch.export.export(Scaled(), *given), tmp_path / "model.pt2")
    status, told = said(tmp_path / "model.pt2", "--no-transfers", "--repeats", "2", "-o", tmp_path / "p.json")
    assert status == 0, told
    layers = json.loads((tmp_path / "p.json").read_text())["layers"]
    assert [layer["input_bytes"] for layer in layers] == [
        64,
        32,
        64,
    ]  # hidden and mask; their product; with scale


def test_chains_beside_each_other(tmp_path):
    names = [row.name for row in run(tmp_path, Beneath(), "2x4").layers]
    assert names == ["0:left", "1:right", "2:aten::add"]


def test_other_files_are_told_apart(tmp_path):
    module, path = nn.Linear(4, 4), tmp_path / "model.pt2"
    torch.export.save(torch.export.export(module, (torch.randn(2, 4),)), str(path))
    status, told = said(path, "--input", "2x4")
    assert status == 2 and "--input is for a TorchScript program" in told
    status, told = said(tmp_path / "model.onnx")
    assert status == 2 and "ONNX is not read" in told
    path.rename(tmp_path / "model.pt")
    assert "is a torch.export archive: rename it to .pt2" in refused(tmp_path / "model.pt")
    torch.save(module, str(tmp_path / "pickle.pt"))
    assert "pickle from torch.save()" in refused(tmp_path / "pickle.pt")
    (tmp_path / "text.pt").write_text(json.dumps({}))
    assert "not an archive of torch" in refused(tmp_path / "text.pt")
    assert "no such file" in refused(tmp_path / "none.pt")
