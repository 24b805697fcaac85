# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_nn.py run: parts of layers against the whole ones, which every rank computes too."""

import dataclasses

import torch
import torch.distributed as dist
from ostinato import nn as parts
from torch import nn
from torch.nn import functional

WIDTH, VOCABULARY, ROWS = 6, 11, 9


_places: dict[str, parts.Shard] = {}


def shard() -> parts.Shard:
    return _places["now"]


def by(way: str, job: str, *args):
    """A job of this module whose ranks meet in the "memory" of their host, or over the process "group"."""
    if way not in _places:
        _places["memory"] = parts.Shard.among(dist.group.WORLD)
        _places["group"] = dataclasses.replace(_places["memory"], near=None)
        assert _places["memory"].near is not None
    _places["now"] = _places[way]
    return globals()[job](*args)


def rank_of(value: torch.Tensor) -> list:
    """Every rank's value."""
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, value)
    return everyone


def embedding(padding_idx):
    torch.manual_seed(1)
    whole = nn.Embedding(VOCABULARY, WIDTH, padding_idx=padding_idx)
    tokens, gradient = torch.randint(VOCABULARY, (ROWS, 2)), torch.randn(ROWS, 2, WIDTH)
    part = parts.sharded(whole, shard())
    expected, found = whole(tokens), part(tokens)
    expected.backward(gradient)
    found.backward(gradient)
    assert torch.equal(found, expected)
    assert torch.equal(part.weight.grad, shard().cut(whole.weight.grad, 0))
    return len(part.weight)


def linear(gather: bool):
    """The largest error of outputs and gradients; all ranks must get the same bits."""
    torch.manual_seed(2)
    whole = nn.Linear(WIDTH, VOCABULARY).double()
    x = torch.randn(ROWS, WIDTH, dtype=torch.double, requires_grad=True)
    gradient = torch.randn(ROWS, VOCABULARY, dtype=torch.double)
    part, same = parts.sharded(whole, shard(), last=not gather), x.detach().clone().requires_grad_()
    expected = whole(x)
    found = part(same) if gather else part(same).whole()
    expected.backward(gradient)
    found.backward(gradient)
    assert all(torch.equal(same.grad, other) for other in rank_of(same.grad))
    pairs = [(found, expected), (same.grad, x.grad)]
    pairs += [
        (p.grad, shard().cut(w.grad, 0)) for p, w in zip(part.parameters(), whole.parameters(), strict=True)
    ]
    return max((a - b).abs().max().item() for a, b in pairs)


LOSSES = {
    "rows": lambda logits, targets: functional.cross_entropy(logits, targets),
    "flat": lambda logits, targets: functional.cross_entropy(
        logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=3, reduction="sum"
    ),
    "channels": lambda logits, targets: functional.cross_entropy(
        logits.transpose(1, 2), targets, label_smoothing=0.1
    ),
    "module": lambda logits, targets: nn.CrossEntropyLoss(reduction="none")(
        logits.permute(0, 2, 1), targets
    ).sum(),
    "shifted": lambda logits, targets: functional.cross_entropy(
        logits[..., :-1, :].flatten(0, 1).float(), targets[:, 1:].reshape(-1)
    ),
    "torch": lambda logits, targets: functional.cross_entropy(
        torch.reshape(torch.flatten(logits, 0, 1), (-1, VOCABULARY)), targets.flatten()
    ),
}


def loss(name: str):
    """The largest error of a loss and its gradients, as a user's loss function takes it."""
    torch.manual_seed(3)
    shape = (ROWS,) if name == "rows" else (ROWS, 4)
    whole, x = nn.Linear(WIDTH, VOCABULARY), torch.randn(*shape, WIDTH, requires_grad=True)
    targets = torch.randint(VOCABULARY, shape)
    part, same = parts.sharded(whole, shard(), last=True), x.detach().clone().requires_grad_()
    expected, found = LOSSES[name](whole(x), targets), LOSSES[name](part(same), targets)
    assert all(torch.equal(found.detach(), other) for other in rank_of(found.detach()))
    (3 * expected).backward()
    (3 * found).backward()
    assert found.shape == expected.shape and found.dtype == expected.dtype
    pairs = [(found, expected), (same.grad, x.grad)]
    pairs += [
        (p.grad, shard().cut(w.grad, 0)) for p, w in zip(part.parameters(), whole.parameters(), strict=True)
    ]
    return max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs)


class Experts(nn.Module):
    """A layer of a user, with the protocol: two matrices cut along different dimensions, a scale that is
    whole."""

    def __init__(self, width=WIDTH):
        super().__init__()
        self.up, self.down = nn.Linear(width, 7), nn.Linear(7, width, bias=False)
        self.scale = nn.Parameter(torch.tensor([2.0]))
        self.register_buffer("shift", torch.ones(width))

    def forward(self, x):
        return self.scale * (self.down(torch.tanh(self.up(x))) + self.shift.to(x.dtype))

    def sharded(self, shard):
        return ShardedExperts(self, shard)


class ShardedExperts(nn.Module):
    split = {"up.weight": 0, "up.bias": 0, "down.weight": 1}

    def __init__(self, whole, shard):
        super().__init__()
        self.shard = shard
        (begin, end), width = shard.bounds(7), len(whole.shift)
        self.up, self.down = nn.Linear(width, end - begin), nn.Linear(end - begin, width, bias=False)
        self.scale = nn.Parameter(whole.scale.detach().clone())
        self.register_buffer("shift", whole.shift.clone())
        self.load_state_dict(parts.cut_state(whole.state_dict(), self, shard))

    def forward(self, x):
        y = self.shard.leave(self.down(torch.tanh(self.up(self.shard.enter(x)))))
        return self.scale * (y + self.shift.to(x.dtype))


def protocol():
    """Errors of a user's layer, and its state put together again."""
    torch.manual_seed(4)
    whole, x = Experts(), torch.randn(ROWS, WIDTH)
    part = parts.sharded(whole, shard())
    expected, found = whole(x), part(x)
    expected.sum().backward()
    found.sum().backward()
    state = parts.whole_state(part, shard())
    if dist.get_rank() == 0:
        assert state.keys() == whole.state_dict().keys()
        assert all(torch.equal(value, state[name]) for name, value in whole.state_dict().items())
    else:
        assert state is None
    assert torch.allclose(part.scale.grad, whole.scale.grad) and torch.allclose(found, expected, atol=1e-6)
    return (part.down.weight.grad - shard().cut(whole.down.weight.grad, 1)).abs().max().item()


def refused(what: str) -> str:
    """The error of a wrong token or target, on every rank."""
    torch.manual_seed(5)
    try:
        if what == "token":
            parts.sharded(nn.Embedding(VOCABULARY, WIDTH), shard())(torch.tensor([VOCABULARY]))
        else:
            logits = parts.sharded(nn.Linear(WIDTH, VOCABULARY), shard(), last=True)(torch.randn(1, WIDTH))
            functional.cross_entropy(logits, torch.tensor([VOCABULARY]))
    except RuntimeError as error:
        return str(error)
    return ""
