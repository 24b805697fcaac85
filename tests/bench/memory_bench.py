# SPDX-License-Identifier: Apache-2.0
"""Memory of a training step behind DeepSpeed's engine: the peak against the plan's, and whether anything
grows over 1,000 steps.

    PYTHONPATH=build/release/python python tests/bench/memory_bench.py [--steps 1000] [--micro-batches 8]

Two ranks over gloo train a small GPT. First each stage's forward and backward run once by themselves, and
what they keep and use is counted by an allocator of our own; those bytes go into the placement, the search
makes a plan, and the same allocator counts the steps under it: parameters, gradients and optimizer state are
there before and count for nobody.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
from support.worlds import World  # noqa: E402

RANKS, VOCABULARY, WIDTH, LENGTH, BATCH = 2, 256, 128, 64, 4
CUTS = (0, 3, 6)  # embedding and two layers, two layers and head


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


def loss(logits, targets):
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batches():
    generator = torch.Generator().manual_seed(0)
    while True:
        tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator)
        yield tokens[:, :-1], tokens[:, 1:]


def make_engine(micro_batches: int, plan: str):
    import deepspeed
    import ostinato.deepspeed
    from deepspeed.pipe import LayerSpec, PipelineModule

    torch.manual_seed(dist.get_rank())
    first, last = LayerSpec(nn.Embedding, VOCABULARY, WIDTH), LayerSpec(nn.Linear, WIDTH, VOCABULARY)
    layers = [first, *[LayerSpec(Layer, WIDTH, 4)] * 4, last]
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_accumulation_steps": micro_batches,
        "steps_per_print": 10**9,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    }
    with ostinato.deepspeed.enable(plan):
        model = PipelineModule(layers, num_stages=RANKS, loss_fn=loss, partition_method="uniform")
        return deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config)[0]


def stage_bytes(plan: str) -> dict[str, int]:
    """What this rank's stage keeps from forward to backward, and uses beyond that while each runs; gradients
    are there already."""
    from ostinato import _profiler
    from ostinato.deepspeed.data.batches import Batches

    _profiler.install_allocator()
    engine = make_engine(1, plan)
    engine.train_batch(batches())
    run, counted = engine._ostinato, {}
    stage = next(c for c in run.stages if c.on(engine.stage_id))
    engine.set_dataiterator(batches())
    for _ in range(2):  # the first one makes the gradients
        run.step.batches = Batches(engine, 1, [stage], 1)
        before = _profiler.live_bytes()
        _profiler.reset_peak()
        # No leaf, for a leaf lives as long as the graph: as the executor's inputs, it is gone where no
        # operator saved it.
        inputs = (
            None
            if stage.reads
            else (torch.randn(BATCH, LENGTH, WIDTH) + torch.zeros((), requires_grad=True),)
        )
        output = engine._train_forward(stage, 0, inputs)
        edge, gradient = torch.autograd.graph.get_gradient_edge(output), torch.ones_like(output)
        forward_peak = _profiler.peak_bytes() - gradient.nbytes
        del output, inputs
        kept = _profiler.live_bytes() - gradient.nbytes - before
        _profiler.reset_peak()
        engine._before_backward(stage, 0, "B")
        torch.autograd.backward(edge, gradient)
        engine._after_backward("B")
        counted = {
            "kept": kept,
            "forward": max(0, forward_peak - before - kept),
            "backward": max(0, _profiler.peak_bytes() - before - kept),
        }
        del edge, gradient
    _profiler.remove_allocator()
    return counted


def train(plan: str, micro_batches: int, steps: int) -> dict:
    """Bytes beyond those before the first step: at the end of some steps, and at the peak of any but the
    first two."""
    from ostinato import _profiler

    _profiler.install_allocator()
    engine, data = make_engine(micro_batches, plan), batches()
    for _ in range(2):
        engine.train_batch(data)
    # DeepSpeed lets the gradients go between steps; they are no part of what the plan counts.
    gradients = sum(p.nbytes for p in engine.module.parameters() if p.grad is None)
    base, marks = _profiler.live_bytes(), {}
    _profiler.reset_peak()
    peak = 0
    for step in range(1, steps + 1):
        engine.train_batch(data)
        if step in (10, 100, steps):
            marks[step] = _profiler.live_bytes() - base
        peak = max(peak, _profiler.peak_bytes() - base - gradients)
    _profiler.remove_allocator()
    return {"marks": marks, "peak": peak}


def placement(costs: list[dict[str, int]]) -> str:
    text = ['format = "ostinato-placement/1"\nname = "memory"\ntime_unit = "us"\nmemory_unit = "B"\n']
    text += [f'[[devices]]\nname = "d{r}"\n' for r in range(RANKS)]
    text += [f'[[stages]]\nname = "{r}"\nlayers = [{CUTS[r]}, {CUTS[r + 1]}]\n' for r in range(RANKS)]
    for r, cost in enumerate(costs):
        edges = {
            "F": [f"{r - 1}.F"] if r else [],
            "B": [f"{r}.F"] + ([f"{r + 1}.B"] if r + 1 < RANKS else []),
        }
        for letter, kind, sign in (("F", "forward", 1), ("B", "backward", -1)):
            text.append(
                f'[[blocks]]\nname = "{r}.{letter}"\nstage = "{r}"\nkind = "{kind}"\ndevices = [{r}]\n'
                f"time = {100 if sign > 0 else 200}\nmemory = {sign * cost['kept']}\nworkspace = {cost[kind]}\n"
                f"after = {json.dumps(edges[letter])}\n"
            )
    return "\n".join(text)


def search(folder: Path, costs: list[dict[str, int]], micro_batches: int) -> Path:
    from ostinato import _search

    folder.mkdir()
    (folder / "placement.toml").write_text(placement(costs))
    plan = folder / "plan.json"
    arguments = [
        "search",
        str(folder / "placement.toml"),
        "--micro-batches",
        str(micro_batches),
        "--output",
        str(plan),
    ]
    assert _search.main([*arguments, "--method", "1f1b"]) == 0
    return plan


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--micro-batches", type=int, default=8)
    o = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, World(RANKS) as world:
        folder = Path(temporary)
        nothing = {"kept": 1, "forward": 0, "backward": 0}
        costs = world.run(stage_bytes, str(search(folder / "one", [nothing] * RANKS, 1)))
        plan = search(folder / "all", costs, o.micro_batches)
        planned = json.loads(plan.read_text())["peak_memory"]
        results = world.run(train, str(plan), o.micro_batches, o.steps)
    for rank, (cost, peak, result) in enumerate(zip(costs, planned, results, strict=True)):
        print(
            f"rank {rank}: {' '.join(f'{name} {value / 2**20:.2f}' for name, value in cost.items())} MiB a micro-batch"
        )
        print(
            f"  peak planned {peak / 2**20:.2f} MiB, measured {result['peak'] / 2**20:.2f} MiB, {result['peak'] / peak:.3f}x"
        )
        print(
            "  beyond step 2: "
            + ", ".join(f"step {step}: {size} B" for step, size in result["marks"].items())
        )


if __name__ == "__main__":
    main()
