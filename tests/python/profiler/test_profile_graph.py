# SPDX-License-Identifier: Apache-2.0
"""Any nn.Module as a graph of operators: the rows add up to the module, and know their branches."""

import json
import tomllib

import pytest
from support.commands import output_of
from support.hf_models import Case
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ostinato import _profiler
from ostinato.profile import Job, ProfileError, profile_layers
from ostinato.profile.model.graph import build_graph
from ostinato.profile.measure.kept import Memory
from ostinato.profile.settings import read_settings


class Branches(nn.Module):
    """Two branches that meet, an in-place operator, views that are read by several, a buffer that is written."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8)
        self.relu, self.batch = nn.ReLU(inplace=True), nn.BatchNorm1d(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        mixed = self.norm(self.relu(self.a(x)) + torch.tanh(self.b(x)))
        left, right = mixed.chunk(2, -1)
        mixed = torch.cat([right, left], -1)
        attended = self.attention(mixed, mixed, mixed, need_weights=False)[0]
        return attended + self.batch(mixed.transpose(1, 2)).transpose(1, 2)


def job(module, inputs, **options):
    return Job(module=module, inputs=inputs, repeats=2, warm_up=1, **options)


def rows_of(profile):
    return {row.name.split(":")[1]: row for row in profile.layers}


def whole(module, inputs, **options):
    """The module measured as one layer."""
    return profile_layers(Job(layers=[module], inputs=inputs, repeats=2, warm_up=1, **options)).layers[0]


def test_the_rows_keep_to_the_byte_what_the_module_keeps():
    torch.manual_seed(0)
    loss = {"labels": torch.randn(2, 4, 8), "loss_fn": nn.functional.mse_loss}
    inputs = torch.randn(2, 4, 8)
    profile = profile_layers(job(Branches(), inputs, **loss))
    measured = whole(Branches(), inputs, **loss)
    assert sum(row.kept for row in profile.layers) == measured.kept
    assert sum(row.parameters for row in profile.layers) == measured.parameters
    assert profile.completeness.complete


def test_operators_of_the_same_kind_and_shape_are_measured_once():
    rows = rows_of(profile_layers(job(Branches(), torch.randn(2, 4, 8))))
    assert rows["a linear"].same_as == -1 and rows["b linear"].same_as == rows["a linear"].index
    assert rows["attention linear"].same_as == -1  # three times as wide


def test_branches_are_read_from_where_they_come():
    chain = build_graph(job(Branches(), torch.randn(2, 4, 8)), read_settings({}, None))
    names = [name.split(":")[1] for name, _ in chain.rows]
    sources = dict(zip(names, chain.reads, strict=True))
    assert sources["a linear"] == sources["b linear"] == [None]
    meet = names.index("add")
    assert {names[row] for row, _ in chain.reads[meet]} == {"relu relu_", "tanh"}
    assert all(row < index for index, reads in enumerate(chain.reads) for row, _ in filter(None, reads))


class TwoTowers(nn.Module):
    """Two branches of the same cost that meet."""

    def __init__(self, width=128, depth=2):
        super().__init__()
        self.left, self.right = (
            nn.Sequential(*(nn.Linear(width, width) for _ in range(depth))) for _ in range(2)
        )
        self.head = nn.Linear(2 * width, 1)

    def forward(self, x):
        return self.head(torch.cat([self.left(x), self.right(x)], -1)).sum()


def test_the_file_has_the_edges_and_their_bytes():
    width, batch = 16, 4
    rows = profile_layers(job(TwoTowers(width), torch.randn(batch, width))).layers
    names = [row.name.split(":")[1] for row in rows]
    edges = {names[row.index]: {names[i.layer]: i.bytes for i in row.after} for row in rows}
    of_batch = batch * width * 4
    assert edges["left.0 linear"] == edges["right.0 linear"] == {}
    assert edges["left.1 linear"] == {"left.0 linear": of_batch}
    assert edges["cat"] == {"left.1 linear": of_batch, "right.1 linear": of_batch}
    assert edges["head linear"] == {"cat": 2 * of_batch}


def test_a_value_that_is_read_in_parts_costs_its_parts():
    class Parts(nn.Module):
        def forward(self, x):
            first, second = (x * 2).chunk(2)
            return torch.tanh(first) + torch.relu(second)

    rows = profile_layers(job(Parts(), torch.randn(8, 4))).layers
    assert [[(i.layer, i.bytes) for i in row.after] for row in rows] == [
        [], [(0, 4 * 4 * 4)], [(0, 4 * 4 * 4)], [(1, 4 * 4 * 4), (2, 4 * 4 * 4)]
    ]  # fmt: skip


def test_a_chain_of_layers_needs_no_edges():
    profile = profile_layers(
        Job(layers=[nn.Linear(4, 4), nn.Tanh()], inputs=torch.randn(2, 4), repeats=1, warm_up=0)
    )
    assert [row.after for row in profile.layers] == [None, None] and '"after"' not in profile.json()


def test_a_module_with_branches_is_planned_with_its_branches(tmp_path):
    """From the module to a checked plan: the towers run beside each other, which no chain of the same layers
    does."""
    profile = profile_layers(job(TwoTowers(64, 3), torch.randn(8, 64)))
    rows = profile.layers
    for row in rows:  # the machine's own times would make the choice a matter of luck
        costly = row.name.endswith("linear") and "head" not in row.name
        row.forward, row.backward = (
            _profiler.spread_of([time if costly else 1000]) for time in (1_000_000, 2_000_000)
        )
    profile.layers = rows
    profile.write(str(tmp_path / "profile.json"))
    files = tmp_path / "plan.json", tmp_path / "placement.toml"
    output_of("plan", tmp_path / "profile.json", "--devices", 2, "--micro-batches", 1, "--objective", "latency",
             "--output", files[0], "--placement-output", files[1])  # fmt: skip
    output_of("verify", *files)
    blocks = tomllib.loads(files[1].read_text())["blocks"]
    roots = [block["devices"] for block in blocks if block["kind"] == "forward" and not block["after"]]
    # Each tower starts on a device of its own.
    assert len(roots) >= 2 and len({tuple(devices) for devices in roots}) == 2
    one_after_the_other = 6 * 3_000_000
    assert json.loads(files[0].read_text())["makespan"] < 0.7 * one_after_the_other


def test_what_the_caller_gets_is_not_freed():
    class Two(nn.Module):
        def forward(self, x):
            return x + 1, torch.tanh(x * 2)

    chain = build_graph(job(Two(), torch.randn(4, requires_grad=False)), read_settings({}, None))
    assert [name.split(":")[1] for name, _ in chain.rows] == ["add", "mul", "tanh"]
    memory = Memory(chain)
    assert memory.freed(0) == memory.freed(2) == 0


def test_named_arguments():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x, scale):
            return x * self.weight * scale

    profile = profile_layers(job(Scaled(), {"scale": torch.ones(4), "x": torch.ones(2, 4)}))
    assert [row.name for row in profile.layers] == ["0:mul", "1:mul"]
    assert [row.parameters for row in profile.layers] == [16, 0]


def test_a_decoder_of_transformers_is_exported_without_its_cache(capsys):
    model, tokens = Case(more={"num_hidden_layers": 1}).make(), torch.randint(3, 48, (2, 8))
    rows = [
        len(build_graph(job(model, inputs), read_settings({}, None)).rows)
        for inputs in (tokens, {"input_ids": tokens, "use_cache": False})
    ]
    assert rows[0] == rows[1]
    assert capsys.readouterr().err.count("a call with use_cache=False: give this in the script") == 1


def test_frozen_parameters_take_no_gradient():
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[0].requires_grad_(False)
    first, second = profile_layers(job(module, torch.randn(2, 4))).layers
    assert first.gradients == 0 and first.parameters == 20 * 4
    assert second.gradients == 20 * 4 and second.same_as == -1
    assert first.backward.median == 0 and second.backward.median > 0


def test_a_weight_that_earlier_rows_read_is_held_once():
    class Repeats(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.frozen = nn.Linear(4, 4), nn.Parameter(torch.ones(4), requires_grad=False)

        def forward(self, x):
            for _ in range(3):
                x = self.inner(x * self.frozen)
            return x @ self.inner.weight

    rows = profile_layers(job(Repeats(), torch.randn(2, 4), optimizer_numbers=2)).layers
    linear, weight, frozen = (16 + 4) * 4 * 4, 16 * 4 * 4, 4 * 4
    assert [row.tied for row in rows] == [0, 0, frozen, linear, frozen, linear, weight]


def test_a_module_that_cannot_be_exported_is_told_apart():
    class Asks(nn.Module):
        def forward(self, x):
            return x + 1 if x.sum().item() > 0 else x - 1

    with pytest.raises(ProfileError, match="cannot be exported.*layers as a list"):
        profile_layers(job(Asks(), torch.randn(4)))


class Rotary(nn.Module):
    """`with` blocks in each other, as HF's rotary embeddings have them."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        with torch.no_grad():
            scale = x.abs().sum()
            with torch.autocast("cpu", torch.bfloat16):
                coarse = self.linear(x).float()
                with torch.enable_grad():
                    learned = self.linear(x)
        return self.linear(x) * scale + coarse, learned


def test_operators_run_under_the_modes_of_their_with_blocks():
    rows = profile_layers(job(Rotary(), torch.randn(4, 8))).layers
    names = [row.name.split(":")[1] for row in rows]
    assert names == ["abs", "sum", "linear linear", "linear linear", "linear linear", "mul", "add"]
    assert all(row.backward.median == 0 for row in rows[:2])
    assert [row.kept for row in rows[:2]] == [0, 4]  # the product needs its factor
    quiet, loud, plain = rows[2:5]
    assert quiet.backward.median == 0 and quiet.output_bytes == 4 * 8 * 4
    assert loud.backward.median > 0 and loud.output_bytes == 4 * 8 * 2  # bfloat16
    assert plain.backward.median > 0 and plain.output_bytes == 4 * 8 * 4


class Doubles(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


def refused(forward):
    class Part(nn.Linear):
        def forward(self, x):
            return forward(super().forward(x))

    return nn.Sequential(nn.Tanh(), Part(8, 8))


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (refused(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))), '"1" uses torch.cond'),
        (refused(Doubles.apply), "DoublesBackward, a torch.autograd.Function"),
        (
            refused(lambda x: checkpoint(torch.tanh, x, use_reentrant=False)),
            '"1" uses activation checkpointing',
        ),
        (nn.Sequential(nn.Linear(8, 8), torch.compile(nn.Tanh(), backend="eager")), '"1" .* is compiled'),
    ],
)
def test_what_a_graph_of_operators_would_leave_out_is_refused_by_name(module, why):
    with pytest.raises(ProfileError, match=f"(?s){why}.*layers as a list"):
        profile_layers(job(module, torch.randn(4, 8)))
