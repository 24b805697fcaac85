# SPDX-License-Identifier: Apache-2.0
"""What a page of the documents shows as Python, trained on every rank of a World, and in one process without
DeepSpeed."""

import re
from pathlib import Path

import torch
from torch import nn

from .training import known

DOCS = Path(__file__).parents[3] / "docs"
MICRO_BATCHES, STEPS, RATE, ROWS, WIDTH, CLASSES = 4, 3, 0.1, 4, 8, 4


def block(page: str, heading: str) -> str:
    """The first of Python under that heading."""
    part = (DOCS / page).read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.search(r"```python\n(.*?)```", part, re.DOTALL)[1]


def shown(code: str) -> dict:
    from deepspeed.pipe import LayerSpec

    names = {"torch": torch, "nn": nn, "LayerSpec": LayerSpec, "__name__": "shown"}
    exec(code, names)
    return names


def batches():
    generator = torch.Generator().manual_seed(1)
    while True:
        yield (
            torch.randn(ROWS, WIDTH, generator=generator),
            torch.randint(CLASSES, (ROWS,), generator=generator),
        )


def drawn(layers) -> None:
    """Weights by the place of their layer, so that it counts nowhere which rank has which."""
    for index, layer in layers:
        for number, parameter in enumerate(layer.parameters()):
            parameter.data.normal_(0, 0.3, generator=torch.Generator().manual_seed(100 * index + number))


def train(code: str, section: dict | None) -> list[float]:
    """Losses."""
    import deepspeed
    from deepspeed.pipe import PipelineModule

    names = shown(code)
    with known(section):
        module = PipelineModule(
            names["layers"], num_stages=2, loss_fn=names["loss"], partition_method="uniform"
        )
    drawn((int(name), layer) for name, layer in module.named_children() if name.isdigit())
    config = {
        "train_micro_batch_size_per_gpu": ROWS, "gradient_accumulation_steps": MICRO_BATCHES, "steps_per_print": 10**9,
        "optimizer": {"type": "SGD", "params": {"lr": RATE}}, "zero_allow_untested_optimizer": True, "gradient_clipping": 0.0,
    }  # fmt: skip
    engine, *_ = deepspeed.initialize(
        model=module,
        config=config | ({"ostinato": section} if section else {}),
        model_parameters=list(module.parameters()),
    )
    data = batches()
    return [engine.train_batch(data).item() for _ in range(STEPS)]


def run_elsewhere(code: str) -> str:
    """On a device other than the CPU; the name of the one that the loss is on."""
    names = shown(code)
    model = nn.Sequential(*(spec.build() for spec in names["layers"])).to("meta")
    inputs, labels = (tensor.to("meta") for tensor in next(batches()))
    return str(names["loss"](model(inputs), labels).device)


def train_alone(code: str) -> list[float]:
    names = shown(code)
    model = nn.Sequential(*(spec.build() for spec in names["layers"]))
    drawn(enumerate(model))
    optimizer, data, losses = torch.optim.SGD(model.parameters(), RATE), batches(), []
    for _ in range(STEPS):
        total = torch.zeros(())
        for _ in range(MICRO_BATCHES):
            inputs, labels = next(data)
            loss = names["loss"](model(inputs), labels)
            (loss / MICRO_BATCHES).backward()
            total += loss.detach()
        losses.append((total / MICRO_BATCHES).item())
        optimizer.step()
        optimizer.zero_grad()
    return losses
