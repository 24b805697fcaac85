# SPDX-License-Identifier: Apache-2.0
"""Memory between the halves of a split backward: our executor, torch.distributed.pipelining, and what must
live.

    PYTHONPATH=build/release/python python tests/bench/split_backward_bench.py [--layers 6] [--width 128] [--length 64]

A stage of transformer layers runs forward and the input half of its backward; then the bytes that live beyond
those before the forward are counted by an allocator of our own. What must live: the input and the gradient of
the output of every module with weights, each storage once, and LayerNorm's two figures a row. The gradient
that goes back to the stage before counts for nobody.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
from plan_files import write_chain  # noqa: E402

from ostinato import _plugin, _profiler  # noqa: E402


class Layer(nn.Module):
    """A pre-norm transformer layer out of operators whose needs are known."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).transpose(-4, -2).unbind(-3)
        x = x + self.out((torch.softmax(q @ k.transpose(-1, -2), -1) @ v).transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


def must_live(stage: nn.Sequential, x: torch.Tensor) -> int:
    """Bytes that the weights' gradients of `stage` need, by a plain run whose every such tensor is held."""
    kept: dict[int, torch.Tensor] = {}
    extra = 0

    def keep(tensor):
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)

    def watch(module, inputs, output):
        nonlocal extra
        keep(inputs[0])
        output.register_hook(keep)
        if isinstance(module, nn.LayerNorm):
            extra += 2 * 4 * inputs[0][..., 0].numel()

    hooks = [
        m.register_forward_hook(watch) for m in stage.modules() if isinstance(m, nn.Linear | nn.LayerNorm)
    ]
    stage(x).sum().mul(0.5).backward()
    for hook in hooks:
        hook.remove()
    return extra + sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def executors(folder: str, stage: nn.Sequential, make_input) -> int:
    program = _plugin.lower(*write_chain(Path(folder), [0, 0, 0], 1, split=True))
    executor = _plugin.Executor(program, 0, None, [0])
    source = torch.zeros((), requires_grad=True)
    seen = {}

    def middle(m, inputs):
        seen["before"] = _profiler.live_bytes() - inputs[0].nbytes
        return stage(inputs[0])

    def after(m, part):
        if part == "I":
            seen["between"] = _profiler.live_bytes()

    executor.set_stage(0, lambda m, inputs: make_input() + source)
    executor.set_stage(1, middle, after_backward=after)
    executor.set_stage(2, lambda m, inputs: inputs[0].sum() * 0.5)
    for _ in range(2):  # the weights' own gradients are there from the second step on
        executor.run()
    return seen["between"] - seen["before"]


def pipelining(stage: nn.Sequential, make_input) -> int:
    """As its PipelineStage keeps things between stage_backward_input and stage_backward_weight."""
    from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

    for _ in range(2):
        before = _profiler.live_bytes()
        x = make_input().requires_grad_()
        output = stage(x)
        gradient = torch.full_like(output, 0.5)
        dinputs, groups = stage_backward_input([output], [gradient], [x], stage.parameters())
        state = ([x], groups, [output], [gradient])
        between = _profiler.live_bytes() - before
        stage_backward_weight(stage.parameters(), groups)
        del state, groups
    return between - sum(d.nbytes for d in dinputs)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (("layers", 6), ("width", 128), ("heads", 4), ("length", 64), ("batch", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    o = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    stage = nn.Sequential(*(Layer(o.width, o.heads) for _ in range(o.layers)))

    def make_input():
        return torch.randn(o.batch, o.length, o.width)

    needed = must_live(stage, make_input().requires_grad_())
    _profiler.install_allocator()
    try:
        with tempfile.TemporaryDirectory() as folder:
            ours = executors(folder, stage, make_input) - make_input().nbytes
        theirs = pipelining(stage, make_input)
    finally:
        _profiler.remove_allocator()
    print(f"{o.layers} transformer layers, {o.batch} x {o.length} x {o.width}: between the halves")
    for name, value in (("must live", needed), ("ostinato", ours), ("torch.distributed.pipelining", theirs)):
        print(f"{name:30}{value / 2**20:8.2f} MiB{value / needed:8.3f}x")


if __name__ == "__main__":
    main()
