# SPDX-License-Identifier: Apache-2.0
"""What the profiler says of operators and of a profile as a whole: counts, completeness, the file."""

from collections import Counter

import pytest
import torch
from ostinato import _profiler
from ostinato.profile import run as run_module
from ostinato.profile.measure import operators
from support.profiling import Front, profile
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode


def structure(result):
    layers = [
        (r.name, r.same_as, r.kept, r.forward_workspace, r.backward_workspace, r.parameters)
        for r in result.layers
    ]
    operators = [(r.layer, r.phase, r.name, r.calls, r.allocated) for r in result.operators]
    return result.model_sha256, layers, operators


def test_a_second_profile_has_the_same_structure():
    layers, inputs = [nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU()], torch.randn(2, 4)
    assert structure(profile(layers, inputs)) == structure(profile(layers, inputs))


class CountOperators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.counts[function._schema.name] += 1
        return function(*args, **(kwargs or {}))


def test_operators_agree_with_an_independent_count():
    layers = [nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 4)]
    result = profile(layers, torch.randn(2, 4))
    recorded = Counter()
    for row in result.operators:
        if row.phase == "forward":
            recorded[row.name] += row.calls
    with CountOperators() as mode:
        nn.Sequential(*layers)(torch.randn(2, 4))
    for name in ("aten::addmm", "aten::native_layer_norm", "aten::gelu", "aten::t"):
        assert recorded[name] == mode.counts[name] > 0, name
    state = result.completeness
    assert state.complete and state.seen == state.expected >= sum(mode.counts.values())


def test_flops_agree_with_torchs_own_count():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.inward, self.outward = nn.Linear(16, 48), nn.Linear(16, 16)

        def forward(self, x):
            q, k, v = (part.unflatten(-1, (4, 4)).transpose(1, 2) for part in self.inward(x).chunk(3, -1))
            mixed = nn.functional.scaled_dot_product_attention(q, k, v)
            return self.outward(mixed.transpose(1, 2).flatten(2)) @ x.transpose(1, 2)

    image = [
        Front(),
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.ConvTranspose2d(8, 4, 3),
        nn.Conv1d(5, 7, 3),
    ]
    # Two products there and five back, which torch does not count on a CPU.
    fused = 7 * 2 * (2 * 4) * 6 * 6 * 4
    for layers, inputs, more in (([Front(), Attention()], torch.randn(2, 6, 16), fused),
                                 (image[:3], torch.randn(2, 3, 9, 9), 0),
                                 ([image[0], image[3]], torch.randn(2, 5, 20), 0)):  # fmt: skip
        measured = sum(row.flops or 0 for row in profile(layers, inputs).operators)
        with FlopCounterMode(display=False) as counter:
            nn.Sequential(*layers)(inputs.clone().requires_grad_()).sum().backward()
        assert measured - more == counter.get_total_flops() > 0


def test_what_does_not_fit_makes_the_profile_incomplete(monkeypatch):
    class Small(_profiler.OperatorRecorder):
        def __init__(self, **_sizes):
            super().__init__(events_per_thread=4, threads=1)

    monkeypatch.setattr(run_module._profiler, "OperatorRecorder", Small)
    state = profile([nn.Linear(4, 8)], torch.randn(2, 4)).completeness
    assert not state.complete and state.dropped > 0 and state.seen < state.expected
    assert "did not fit into the buffers" in state.reason and "operators were not recorded" in state.reason


class Steps(nn.Module):
    """Many operators."""

    def forward(self, x):
        for _ in range(100):
            x = torch.tanh(x)
        return x


@pytest.mark.parametrize("most", [1 << 12, 256])
def test_the_recorder_grows_with_the_operators_of_a_layer(monkeypatch, most):
    monkeypatch.setattr(operators, "EVENTS", 256)
    monkeypatch.setattr(operators, "MOST_EVENTS", most)
    result = profile([nn.Linear(4, 4), Steps(), nn.Linear(4, 4)], torch.randn(2, 4))
    state = result.completeness
    if most > 256:
        assert state.complete and state.dropped == 0
        assert sum(row.calls for row in result.operators if row.name == "aten::tanh") == 100
    else:
        assert not state.complete and "hold 256 of a thread" in state.reason
        assert "cutting layer 1:Steps into several" in state.reason


def test_the_allocator_is_given_back():
    profile([nn.Linear(4, 8)], torch.randn(2, 4))
    before = _profiler.live_bytes()
    kept = torch.empty(1000)
    assert _profiler.live_bytes() == before and kept.numel() == 1000


def test_a_file_reads_back(tmp_path):
    result = profile([nn.Linear(4, 8), nn.ReLU()], torch.randn(2, 4))
    result.transfers = [_profiler.fit_link(0, 1, [(1, 1000), (1 << 20, 500_000)])]
    result.write(str(tmp_path / "profile.json"))
    again = _profiler.read_profile(str(tmp_path / "profile.json"))
    assert again.json() == result.json()
    assert again.micro_batch_size == 2 and again.timer == "cpu" and again.device_kind == "cpu"
