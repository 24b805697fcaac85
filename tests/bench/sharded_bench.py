"""A GPT whose vocabulary makes embedding and head as heavy as several layers, emulated on 4 ranks: both sharded over all ranks
(M) under a plan from the search, against DeepSpeed's own 1F1B on the best chain partition of the same model.

    PYTHONPATH=build/python python tests/bench/sharded_bench.py [--unit 5] [--micro-batches 12] [--steps 4]

Layers sleep for their times and are real beside that: parameters, tokens, transfers, collectives, gradients. Both trainings run in
the same processes, one after the other, and must lose alike.
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
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
from support.worlds import World  # noqa: E402

RANKS, VOCABULARY, WIDTH, LENGTH = 4, 64, 16, 8
COSTS = (8, 2, 2, 2, 2, 2, 2, 2, 2, 16)  # forward, in units; backwards take twice as long
STAGES = ((0, 1, range(RANKS)), *((2 * r + 1, 2 * r + 3, (r,)) for r in range(RANKS)), (9, 10, range(RANKS)))


class Sleep(torch.autograd.Function):
    """The identity, which takes `seconds`, and twice that on the way back."""

    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(2 * ctx.seconds)
        return gradient, None


class Slow(nn.Module):
    """A layer that takes `seconds` beside its own work. Cut into n parts, each takes the n-th part of them."""

    def __init__(self, make, sizes: tuple, seconds: float):
        super().__init__()
        self.layer, self.seconds = make(*sizes), seconds

    def forward(self, x):
        if x.is_floating_point():
            return self.layer(Sleep.apply(x, self.seconds))
        return Sleep.apply(self.layer(x), self.seconds)

    def sharded(self, shard):
        from ostinato.nn import sharded

        made = Slow(nn.Identity, (), self.seconds / shard.count)
        made.layer = sharded(self.layer, shard, last=isinstance(self.layer, nn.Linear))
        made.split = {f"layer.{name}": dimension for name, dimension in made.layer.split.items()}
        return made


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + torch.tanh(self.mix(x))


def loss(logits, targets):
    return functional.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1))


def train(unit: float, micro_batches: int, steps: int, parts: list[int], plan: str | None) -> dict:
    """Losses, and the seconds of each step but the first. `parts`: DeepSpeed's own partition."""
    import deepspeed
    from deepspeed.pipe import LayerSpec, PipelineModule

    class Partitioned(PipelineModule):
        def _partition_layers(self, method):
            self.parts = parts
            self._set_bounds(parts[self.stage_id], parts[self.stage_id + 1])

    torch.manual_seed(dist.get_rank())
    kinds = [(nn.Embedding, (VOCABULARY, WIDTH)), *[(Block, ())] * 8, (nn.Linear, (WIDTH, VOCABULARY))]
    layers = [LayerSpec(Slow, *kind, unit * cost) for kind, cost in zip(kinds, COSTS, strict=True)]
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": micro_batches,
        "steps_per_print": 10**9,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    } | ({"ostinato": {"plan": plan}} if plan else {})
    model = Partitioned(layers, num_stages=RANKS, loss_fn=loss)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config)
    data, losses, seconds = batches(), [], []
    for _ in range(steps + 1):
        dist.barrier()
        begin = time.perf_counter()
        losses.append(engine.train_batch(data).item())
        seconds.append(time.perf_counter() - begin)
    return {"losses": losses, "seconds": seconds[1:]}


def batches():
    generator = torch.Generator().manual_seed(0)
    while True:
        tokens = torch.randint(VOCABULARY, (1, LENGTH + 1), generator=generator)
        yield tokens[:, :-1], tokens[:, 1:]


def placement(name: str, stages, unit: float) -> str:
    """A chain of `stages`: (first layer, end, devices), each device of which takes an equal share of the time."""
    text = f'format = "ostinato-placement/1"\nname = "{name}"\ntime_unit = "s"\n'
    text += "".join(f'[[devices]]\nname = "rank{r}"\n' for r in range(RANKS))
    text += "".join(f'[[stages]]\nname = "{s}"\nlayers = [{first}, {end}]\n' for s, (first, end, _) in enumerate(stages))
    blocks = [(s, "F", "forward", [f"{s - 1}.F"] * (s > 0)) for s in range(len(stages))]
    blocks += [(s, "B", "backward", [f"{s}.F"] + [f"{s + 1}.B"] * (s + 1 < len(stages))) for s in range(len(stages))]
    for s, letter, kind, after in blocks:
        first, end, devices = stages[s]
        seconds = unit * sum(COSTS[first:end]) / len(devices) * (2 if letter == "B" else 1)
        text += f'[[blocks]]\nname = "{s}.{letter}"\nstage = "{s}"\nkind = "{kind}"\ndevices = {list(devices)}\n'
        text += f"time = {seconds:.9f}\nafter = {json.dumps(after)}\n"
    return text


def search(folder: Path, text: str, micro_batches: int, method: str) -> dict:
    from ostinato import _search

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "placement.toml").write_text(text)
    options = ["--micro-batches", str(micro_batches), "--method", method, "--time-limit", "5", "--json"]
    status = _search.main(["search", str(folder / "placement.toml"), *options, "--output", str(folder / "plan.json")])
    assert status in (0, 5), f"ostinato search ended with status {status}"
    return json.loads((folder / "plan.json").read_text())


def best_chain(folder: Path, unit: float, micro_batches: int) -> tuple[list[int], float]:
    """DeepSpeed's best partition into one chunk a rank: its cuts, and the seconds that 1F1B takes on it."""
    cuts = ([0, *c, len(COSTS)] for c in itertools.combinations(range(1, len(COSTS)), RANKS - 1))
    bottleneck = {tuple(c): max(sum(COSTS[a:b]) for a, b in itertools.pairwise(c)) for c in cuts}
    candidates = [c for c, worst in bottleneck.items() if worst == min(bottleneck.values())]
    makespans = {}
    for cut in candidates:
        chain = [(a, b, (r,)) for r, (a, b) in enumerate(itertools.pairwise(cut))]
        makespans[cut] = search(folder, placement("chain", chain, unit), micro_batches, "1f1b")["makespan"] / 1e9
    best = min(makespans, key=makespans.get)
    return list(best), makespans[best]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--unit", type=float, default=5.0, help="milliseconds of a forward of cost 1")
    parser.add_argument("--micro-batches", type=int, default=12)
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()
    unit = args.unit / 1e3
    with tempfile.TemporaryDirectory() as scratch, World(RANKS) as world:
        folder = Path(scratch)
        parts, expected = best_chain(folder / "chain", unit, args.micro_batches)
        plan = search(folder / "m", placement("m", STAGES, unit), args.micro_batches, "auto")
        chain = world.run(train, unit, args.micro_batches, args.steps, parts, None)[0]
        sharded = world.run(train, unit, args.micro_batches, args.steps, parts, str(folder / "m" / "plan.json"))[0]
    difference = max(abs(a - b) for a, b in zip(chain["losses"], sharded["losses"], strict=True))
    print(f"\n{args.micro_batches} micro-batches on {RANKS} ranks; costs {COSTS}, unit {args.unit:g} ms; losses differ by {difference:.1e}")
    print(f"{'':44}{'planned':>12}{'measured':>12}{'measured/planned':>18}")
    rows = (
        (f"DeepSpeed 1F1B on its best chain {parts}", expected, chain["seconds"]),
        ("ostinato, embedding and head on all ranks", plan["makespan"] / 1e9, sharded["seconds"]),
    )
    for name, planned, seconds in rows:
        measured = statistics.median(seconds)
        print(f"{name:44}{planned * 1e3:9.1f} ms{measured * 1e3:9.1f} ms{measured / planned:18.3f}")
    print(f"DeepSpeed's step takes {statistics.median(chain['seconds']) / statistics.median(sharded['seconds']):.2f} times as long")


if __name__ == "__main__":
    main()
