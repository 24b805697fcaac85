# SPDX-License-Identifier: Apache-2.0
"""The models of the benchmarks against DeepSpeed, and a training script of each for `ostinato profile`:

    ostinato profile tests/bench/emulated_models.py --output profile.json -- --model encoder-decoder --unit 4

Costs are those of a forward in units; backwards take twice as long.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from emulated_layers import LENGTH, VOCABULARY, WIDTH, Block, Exchange, Scale, Slow, SlowInParts, Sum, loss
from torch import nn
from torch.nn import functional

ROWS, COLUMNS = 128, 128  # of a micro-batch of a chain: 64 KiB are kept by every layer
LARGE_ROWS = (
    640  # 320 KiB: more than the slots of the executor's shared memory take, so that nothing lies there
)


@dataclass(frozen=True)
class Model:
    """`layers(unit)`: for a PipelineModule, where a forward of cost 1 takes `unit` seconds. `batches()`:
    endless."""

    costs: tuple[int, ...]
    layers: Callable[[float], list]
    batches: Callable[[], Iterator]
    loss: Callable = loss


KINDS = {  # how it is slowed down, the layer, its sizes
    "embedding": (SlowInParts, nn.Embedding, (VOCABULARY, WIDTH)),
    "block": (Slow, Block, ()),
    "sum": (SlowInParts, Sum, ()),
    "head": (SlowInParts, nn.Linear, (WIDTH, VOCABULARY)),
}


def layer(kind: str, seconds: float):
    from deepspeed.pipe import LayerSpec

    slow, made, sizes = KINDS[kind]
    return LayerSpec(slow, made, sizes, seconds)


def tokens(count: int) -> Iterator[torch.Tensor]:
    """Endless (count, 1, LENGTH)."""
    generator = torch.Generator().manual_seed(0)
    while True:
        yield torch.randint(VOCABULARY, (count, 1, LENGTH), generator=generator)


# ---- M: a GPT whose vocabulary makes embedding and head as heavy as several layers

GPT_COSTS = (8, 2, 2, 2, 2, 2, 2, 2, 2, 16)


def gpt(unit: float) -> list:
    kinds = ["embedding", *["block"] * 8, "head"]
    return [layer(kind, unit * cost) for kind, cost in zip(kinds, GPT_COSTS, strict=True)]


def next_tokens() -> Iterator:
    return ((x[0], (x[0] + 1) % VOCABULARY) for x in tokens(1))


# ---- NN: an encoder and a decoder, each with an embedding that is heavier than all its layers; every layer
# of the decoder reads the encoder's output

TRANSLATION = {  # name: its kind, its cost, what it reads
    "source": ("embedding", 20, "source_tokens"),
    "e1": ("block", 2, "source"),
    "e2": ("block", 2, "e1"),
    "e3": ("block", 2, "e2"),
    "e4": ("block", 2, "e3"),
    "target": ("embedding", 20, "target_tokens"),
    "d1": ("block", 3, "target", "e4"),
    "d2": ("block", 3, "d1", "e4"),
    "d3": ("block", 3, "d2", "e4"),
    "d4": ("block", 3, "d3", "e4"),
    "head": ("head", 4, "d4"),
}

# ---- K: two branches that meet

BRANCHES = {
    "text": ("embedding", 2, "tokens"),
    "text1": ("block", 4, "text"),
    "text2": ("block", 4, "text1"),
    "text3": ("block", 4, "text2"),
    "image": ("embedding", 2, "pixels"),
    "image1": ("block", 4, "image"),
    "image2": ("block", 4, "image1"),
    "image3": ("block", 4, "image2"),
    "both": ("sum", 4, "text3", "image3"),
    "head": ("head", 8, "both"),
}


def graph_of(described: dict, inputs: tuple[str, ...], unit: float) -> list:
    import ostinato.deepspeed

    return ostinato.deepspeed.graph(
        {name: (layer(kind, unit * cost), *reads) for name, (kind, cost, *reads) in described.items()}, inputs
    )


def pairs() -> Iterator:
    return (((x[0], x[1]), (x[0] + x[1]) % VOCABULARY) for x in tokens(2))


# ---- chains of layers that scale, for V placements

EVEN = (2,) * 16
UNEVEN = (4, 1, 2, 2, 3, 3, 1, 2, 4, 4, 2, 3, 1, 5, 3, 4)


def square_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """`targets`: one a row. As labels are, they are small beside activations."""
    return functional.mse_loss(outputs, targets.expand_as(outputs))


def chain(costs: tuple[int, ...], rows: int = ROWS) -> Model:
    def layers(unit: float) -> list:
        from deepspeed.pipe import LayerSpec

        return [LayerSpec(Scale, COLUMNS, unit * cost) for cost in costs]

    def batches() -> Iterator:
        generator = torch.Generator().manual_seed(0)
        while True:
            yield torch.rand(rows, COLUMNS, generator=generator), torch.rand(rows, 1, generator=generator)

    return Model(costs, layers, batches, square_loss)


# ---- experts: attention, dispatch, experts, combine, eight times


def experts(share: float) -> Model:
    """Exchanges take `share` of the time of what computes, in either direction as long."""

    def layers(unit: float) -> list:
        from deepspeed.pipe import LayerSpec

        exchange = LayerSpec(Exchange, 1.5 * share * unit)
        block = [LayerSpec(Scale, COLUMNS, unit), exchange, LayerSpec(Scale, COLUMNS, unit), exchange]
        return [*block * 8, LayerSpec(Scale, COLUMNS, 0.0)]

    return Model((1,) * 33, layers, chain(()).batches, square_loss)


# ---- a GPT that computes: nothing sleeps

HEADS, HIDDEN = 4, 256


def transformer() -> type[nn.Module]:
    """Made with a width, and HEADS."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "gpt"))
    from model import Block

    return Block


def computed(blocks: int, vocabulary: int, width: int = HIDDEN) -> Model:
    """Sequences are as long as the model is wide."""

    def layers(unit: float) -> list:
        from deepspeed.pipe import LayerSpec

        middle = [LayerSpec(transformer(), width, HEADS) for _ in range(blocks)]
        return [LayerSpec(nn.Embedding, vocabulary, width), *middle, LayerSpec(nn.Linear, width, vocabulary)]

    def batches() -> Iterator:
        generator = torch.Generator().manual_seed(0)
        while True:
            text = torch.randint(vocabulary, (1, width + 1), generator=generator)
            yield text[:, :-1], text[:, 1:]

    def loss(logits, targets):
        return functional.cross_entropy(logits.reshape(-1, vocabulary), targets.reshape(-1))

    return Model((1,) * (blocks + 2), layers, batches, loss)


def of_graph(described: dict, inputs: tuple[str, ...]) -> Model:
    costs = tuple(cost for _, cost, *_ in described.values())
    return Model(costs, lambda unit: graph_of(described, inputs, unit), pairs)


MODELS = {
    "gpt": Model(GPT_COSTS, gpt, next_tokens),
    "encoder-decoder": of_graph(TRANSLATION, ("source_tokens", "target_tokens")),
    "two-branches": of_graph(BRANCHES, ("tokens", "pixels")),
    "even": chain(EVEN),
    "uneven": chain(UNEVEN),
    "even-large": chain(EVEN, LARGE_ROWS),
    "uneven-large": chain(UNEVEN, LARGE_ROWS),
    **{f"experts-{share}": experts(share) for share in (0.3, 0.6, 0.9)},
    "gpt-computed": computed(8, 256),
    "vocabulary-computed": computed(6, 8192),
    "small-computed": computed(8, 256, 64),
    "large-computed": computed(4, 256, 512),
}


def configuration(micro_batches: int) -> dict:
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": micro_batches,
        "steps_per_print": 10**9,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    }


def main():
    import deepspeed
    from deepspeed.pipe import PipelineModule

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--unit", type=float, default=5.0, help="milliseconds of a forward of cost 1")
    args = parser.parse_args()
    model = MODELS[args.model]
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    module = PipelineModule(model.layers(args.unit / 1e3), num_stages=1, loss_fn=model.loss)
    engine, *_ = deepspeed.initialize(
        model=module, model_parameters=list(module.parameters()), config=configuration(1)
    )
    engine.train_batch(model.batches())


if __name__ == "__main__":
    main()
