"""A model of two branches that meet, emulated on 4 ranks: stages over its branches (K) under a plan from the search, against DeepSpeed's
own 1F1B on the best chain partition of the same layers.

    PYTHONPATH=build/python python tests/bench/branches_bench.py [--unit 5] [--micro-batches 4] [--steps 4]

Layers sleep for their times and are real beside that. Each branch has half of the ranks; where they meet, all ranks share the work. Both
trainings run in the same processes, one after the other, and must lose alike.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
sys.path.insert(0, str(Path(__file__).resolve().parent))
from sharded_bench import LENGTH, RANKS, VOCABULARY, WIDTH, Block, Slow, loss, search  # noqa: E402
from support.shapes import Stage  # noqa: E402
from support.worlds import World  # noqa: E402

NAMES = ("text", "text1", "text2", "text3", "image", "image1", "image2", "image3", "both", "head")
READS = (("tokens",), ("text",), ("text1",), ("text2",), ("pixels",), ("image",), ("image1",), ("image2",), ("text3", "image3"), ("both",))
COSTS = (2, 4, 4, 4, 2, 4, 4, 4, 4, 8)  # forward, in units; backwards take twice as long
ALL = tuple(range(RANKS))
STAGES = [
    Stage("a0", 0, 2, (0,)),
    Stage("a1", 2, 4, (1,), ("a0",)),
    Stage("b0", 4, 6, (2,)),
    Stage("b1", 6, 8, (3,), ("b0",)),
    Stage("c", 8, 10, ALL, ("a1", "b1")),
]


class Sum(nn.Module):
    """Two branches become one. It has no weights: ranks that share it all add."""

    def __init__(self, seconds: float):
        super().__init__()
        self.slow = Slow(nn.Identity, (), seconds)

    def forward(self, a, b):
        return self.slow(a + b)

    def sharded(self, shard):
        return Sum(self.slow.seconds / shard.count)


def layers(unit: float) -> list:
    import ostinato.deepspeed
    from deepspeed.pipe import LayerSpec

    made = []
    for name, cost in zip(NAMES, COSTS, strict=True):
        kind = (nn.Embedding, (VOCABULARY, WIDTH)) if name in ("text", "image") else (Block, ())
        kind = (nn.Linear, (WIDTH, VOCABULARY)) if name == "head" else kind
        made.append(LayerSpec(Sum, unit * cost) if name == "both" else LayerSpec(Slow, *kind, unit * cost))
    described = {name: (layer, *reads) for name, layer, reads in zip(NAMES, made, READS, strict=True)}
    return ostinato.deepspeed.graph(described, ("tokens", "pixels"))


def batches():
    generator = torch.Generator().manual_seed(0)
    while True:
        tokens = torch.randint(VOCABULARY, (2, 1, LENGTH), generator=generator)
        yield (tokens[0], tokens[1]), (tokens[0] + tokens[1]) % VOCABULARY


def train(unit: float, micro_batches: int, steps: int, parts: list[int], plan: str | None) -> dict:
    """Losses, and the seconds of each step but the first. `parts`: DeepSpeed's own partition."""
    import deepspeed
    from deepspeed.pipe import PipelineModule

    class Partitioned(PipelineModule):
        def _partition_layers(self, method):
            self.parts = parts
            self._set_bounds(parts[self.stage_id], parts[self.stage_id + 1])

    torch.manual_seed(dist.get_rank())
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": micro_batches,
        "steps_per_print": 10**9,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    } | ({"ostinato": {"plan": plan}} if plan else {})
    model = Partitioned(layers(unit), num_stages=RANKS, loss_fn=loss)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config)
    data, losses, seconds = batches(), [], []
    for _ in range(steps + 1):
        dist.barrier()
        begin = time.perf_counter()
        losses.append(engine.train_batch(data).item())
        seconds.append(time.perf_counter() - begin)
    return {"losses": losses, "seconds": seconds[1:]}


def placement(stages: list[Stage], unit: float) -> str:
    text = 'format = "ostinato-placement/1"\nname = "branches"\ntime_unit = "s"\n'
    text += "".join(f'[[devices]]\nname = "rank{r}"\n' for r in range(RANKS))
    text += "".join(f'[[stages]]\nname = "{s.name}"\nlayers = [{s.first}, {s.end}]\n' for s in stages)
    for s in stages:
        seconds = unit * sum(COSTS[s.first : s.end]) / len(s.devices)
        takers = [f"{t.name}.B" for t in stages if s.name in t.inputs]
        for letter, kind, times, after in (
            ("F", "forward", 1, [f"{i}.F" for i in s.inputs]),
            ("B", "backward", 2, [f"{s.name}.F", *takers]),
        ):
            text += f'[[blocks]]\nname = "{s.name}.{letter}"\nstage = "{s.name}"\nkind = "{kind}"\n'
            text += f"devices = {list(s.devices)}\ntime = {times * seconds:.9f}\nafter = {json.dumps(after)}\n"
    return text


def best_chain(folder: Path, unit: float, micro_batches: int) -> tuple[list[int], float]:
    """DeepSpeed's best partition into one chunk a rank: its cuts, and the seconds that 1F1B takes on it."""
    cuts = [(0, *c, len(COSTS)) for c in itertools.combinations(range(1, len(COSTS)), RANKS - 1)]
    makespans = {}
    for cut in cuts:
        chain = [Stage(f"s{r}", a, b, (r,), (f"s{r - 1}",) if r else ()) for r, (a, b) in enumerate(itertools.pairwise(cut))]
        makespans[cut] = search(folder, placement(chain, unit), micro_batches, "1f1b")["makespan"] / 1e9
    best = min(makespans, key=makespans.get)
    return list(best), makespans[best]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--unit", type=float, default=5.0, help="milliseconds of a forward of cost 1")
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()
    unit = args.unit / 1e3
    with tempfile.TemporaryDirectory() as scratch, World(RANKS) as world:
        folder = Path(scratch)
        parts, expected = best_chain(folder / "chain", unit, args.micro_batches)
        plan = search(folder / "k", placement(STAGES, unit), args.micro_batches, "auto")
        chain = world.run(train, unit, args.micro_batches, args.steps, parts, None)[0]
        branches = world.run(train, unit, args.micro_batches, args.steps, parts, str(folder / "k" / "plan.json"))[0]
    difference = max(abs(a - b) for a, b in zip(chain["losses"], branches["losses"], strict=True))
    print(f"\n{args.micro_batches} micro-batches on {RANKS} ranks; costs {COSTS}, unit {args.unit:g} ms; losses differ by {difference:.1e}")
    print(f"{'':44}{'planned':>12}{'measured':>12}{'measured/planned':>18}")
    rows = (
        (f"DeepSpeed 1F1B on its best chain {parts}", expected, chain["seconds"]),
        ("ostinato, stages over the branches (K)", plan["makespan"] / 1e9, branches["seconds"]),
    )
    for name, planned, seconds in rows:
        measured = statistics.median(seconds)
        print(f"{name:44}{planned * 1e3:9.1f} ms{measured * 1e3:9.1f} ms{measured / planned:18.3f}")
    print(f"DeepSpeed's step takes {statistics.median(chain['seconds']) / statistics.median(branches['seconds']):.2f} times as long")


if __name__ == "__main__":
    main()
