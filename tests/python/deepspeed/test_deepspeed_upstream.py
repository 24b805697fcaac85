# SPDX-License-Identifier: Apache-2.0
"""What DeepSpeed's own tests of its pipelines check, with their models and settings, under plans.

They ask for losses within some per cent of another run; here a plan must give DeepSpeed's own numbers bit for bit. Of its 0.19.8:
    runtime/pipe/test_pipe.py               here; images are random
    pipe/test_pipe_module.py                here
    checkpoint/test_pipeline.py             test_deepspeed_checkpoint.py, test_deepspeed_together.py
    runtime/pipe/test_pipe_schedule.py      its generator, which a plan replaces: tests/plugin/lowering, tests/search
    runtime/pipe/test_topology.py           its grid, which stays as it is
"""

import pytest
import torch
from support.plans import Layout, make_plan
from support.tiers import everyday
from support.training import bytes_of, known
from torch import nn

ADAM = {
    "type": "Adam",
    "params": {"lr": 0.001, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 3e-7, "torch_adam": True},
}


def make_engine(
    layers: list,
    stages: int,
    section: dict | None,
    config: dict,
    loss=None,
    given: dict | None = None,
    **options,
):
    import deepspeed
    from deepspeed.pipe import PipelineModule

    with known(section):
        model = PipelineModule(layers=layers, num_stages=stages, loss_fn=loss, **options)
    whole = {"steps_per_print": 10**9, "zero_allow_untested_optimizer": True, **config}
    whole |= {"ostinato": section} if section is not None else {}
    return deepspeed.initialize(
        model=model, model_parameters=list(model.parameters()), config=whole, **(given or {})
    )[0]


def both(world, function, plan, *arguments):
    """(DeepSpeed's results, ours) by rank."""
    return world.run(function, None, *arguments), world.run(function, {"plan": str(plan)}, *arguments)


def scaled_once(section: dict | None) -> float:
    layers = [nn.Linear(1, 1, bias=False) for _ in range(2)]
    for layer in layers:
        layer.weight.data.fill_(1.0)
    config = {
        "train_batch_size": 2,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.0,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "pipeline": {"activation_checkpoint_interval": 0},
    }
    engine = make_engine(layers, 2, section, config, nn.MSELoss())
    engine.train_batch(iter([(torch.ones(1, 1), torch.zeros(1, 1))] * 2))
    return next(engine.module.parameters()).item()


def test_gradients_are_scaled_once(world2, tmp_path):
    plan = make_plan(tmp_path, Layout("swapped", (1,), (1, 0)), 2, 2)
    expected, got = both(world2, scaled_once, plan)
    assert got == expected == pytest.approx([0.8, 0.8])


# in, out, size, stride, padding of AlexNet's convolutions for small images, and whether their results are
# pooled
CONVOLUTIONS = [
    (3, 64, 11, 4, 5, True),
    (64, 192, 5, 1, 2, True),
    (192, 384, 3, 1, 1, False),
    (384, 256, 3, 1, 1, False),
    (256, 256, 3, 1, 1, True),
]


def flat(images):
    return images.flatten(1)


def alexnet() -> list:
    """15 layers, the same weights on every rank."""
    torch.manual_seed(3)
    layers: list = []
    for *sizes, pooled in CONVOLUTIONS:
        layers += [nn.Conv2d(*sizes), nn.ReLU(inplace=True), *([nn.MaxPool2d(2)] if pooled else [])]
    return [*layers, flat, nn.Linear(256, 10)]


def images(seed: int):
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randn(2, 3, 32, 32, generator=generator), torch.randint(10, (2,), generator=generator)


def of_images(section: dict | None, stages: int, pipeline: dict) -> dict:
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 4,
        "optimizer": ADAM,
        "pipeline": {"seed_layers": True, "activation_checkpoint_interval": 1, **pipeline},
    }
    engine = make_engine(alexnet(), stages, section, config, nn.CrossEntropyLoss())
    data = images(engine.grid.data_parallel_id)
    losses = [engine.train_batch(data).item() for _ in range(8)]
    own = {name: bytes_of(p) for name, p in engine.module.named_parameters()}
    everyone = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(everyone, own)
    return {"losses": losses, "weights": {name: value for held in everyone for name, value in held.items()}}


IMAGES = {
    "2-stages-of-2-replicas": (2, Layout("wave", (3, 8, 10), (0, 1, 1, 0)), {}),
    "4-stages": (4, Layout("mixed", (3, 6, 8), (3, 1, 0, 2)), {}),
    "4-stages-not-reentrant": (4, Layout("mixed", (3, 6, 8), (3, 1, 0, 2)), {"use_reentrant": False}),
}


@pytest.mark.parametrize("case", everyday(IMAGES, "2-stages-of-2-replicas"))
def test_images(world4, tmp_path, case):
    stages, layout, pipeline = IMAGES[case]
    expected, got = both(world4, of_images, make_plan(tmp_path, layout, 15, 4), stages, pipeline)
    assert got == expected and got[0]["losses"][-1] != got[0]["losses"][0]


def evaluated(section: dict | None, interval: int) -> tuple[float, float]:
    """(what the pipeline makes, what one process makes) of one input; the layers are a Sequential, and there
    is no loss."""
    torch.manual_seed(6)
    whole = nn.Sequential(*[nn.Linear(32, 32) for _ in range(8)], nn.Linear(32, 1))
    x = torch.randn(1, 32)
    alone = whole(x).item()
    config = {
        "train_batch_size": 2,
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": ADAM,
        "pipeline": {"activation_checkpoint_interval": interval},
    }
    engine = make_engine(whole, 2, section, config)
    return engine.eval_batch(iter([(x, torch.zeros(()))] * 2)).item(), alone


@pytest.mark.parametrize("interval", everyday([0, 1], 1))
def test_a_sequential_is_evaluated(world2, tmp_path, interval):
    plan = make_plan(tmp_path, Layout("wave", (2, 5, 7), (1, 0, 0, 1)), 9, 2)
    for made, alone in world2.run(evaluated, {"plan": str(plan)}, interval):
        assert made == alone


def of_a_changed_interval(section: dict | None, reentrant: bool) -> tuple:
    """Checkpointing is switched on after initialize()."""
    torch.manual_seed(7)
    layers = [*(nn.ReLU() for _ in range(2)), *(nn.Linear(32, 32) for _ in range(6))]
    config = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2, "optimizer": ADAM,
              "pipeline": {"activation_checkpoint_interval": 0, "use_reentrant": reentrant}}  # fmt: skip
    engine = make_engine(layers, 2, section, config, nn.MSELoss())
    before = engine._reentrant_activation_checkpointing()
    engine.module.set_checkpoint_interval(2)
    generator = torch.Generator().manual_seed(8)
    data = [
        (torch.randn(1, 32, generator=generator), torch.randn(1, 32, generator=generator)) for _ in range(6)
    ]
    batches = iter(data)
    losses = [engine.train_batch(batches).item() for _ in range(3)]
    return (
        losses,
        before,
        engine._reentrant_activation_checkpointing(),
        engine.module.activation_checkpoint_interval,
    )


@pytest.mark.parametrize("reentrant", everyday([True, False], True))
def test_checkpointing_is_switched_on_later(world2, tmp_path, reentrant):
    import deepspeed

    if not hasattr(deepspeed.runtime.pipe.engine.PipelineEngine, "_reentrant_activation_checkpointing"):
        pytest.skip("DeepSpeed 0.19.7 ignores set_checkpoint_interval()")
    plan = make_plan(tmp_path, Layout("looped", (2, 4, 6), (0, 1, 0, 1)), 8, 2)
    # DeepSpeed cuts where parameters are even: the first rank of its own has trained layers as well.
    expected, got = both(world2, of_a_changed_interval, plan, reentrant)
    assert got == expected and got[0][1:] == (False, reentrant, 2)


def compiled(section: dict | None, backend: str) -> tuple:
    """Losses of compiled layers, the outputs of an evaluation, and the stages whose backward ran whole where
    the plan splits it."""
    torch.manual_seed(9)
    layers = [
        *(nn.Linear(16, 16) for _ in range(3)),
        torch.tanh,
        nn.LayerNorm(16),
        *(nn.Linear(16, 16) for _ in range(3)),
    ]
    config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "optimizer": ADAM}
    engine = make_engine(layers, 2, section, config, nn.MSELoss())
    engine.compile(backend=backend)
    generator = torch.Generator().manual_seed(10)
    batches = [
        (torch.randn(2, 16, generator=generator), torch.randn(2, 16, generator=generator)) for _ in range(10)
    ]
    data = iter(batches)
    losses = [engine.train_batch(data).item() for _ in range(3)]
    whole = sorted(engine._ostinato.executor.unsplit_stages) if section else None
    calls = [m._compiled_call_impl is not None for m in engine.module.modules() if isinstance(m, nn.Linear)]
    return losses, engine.eval_batch(data).item(), all(calls), whole


@pytest.mark.parametrize("backend", everyday(["eager", "aot_eager"], "aot_eager"))
def test_compiled_layers(world2, tmp_path, backend):
    """engine.compile(), which is PipelineModule.compile(): what is compiled with its backward has one
    operator for both halves."""
    plan = make_plan(tmp_path, Layout("wave", (2, 4, 6), (1, 0, 0, 1), split=True), 8, 2)
    expected, got = both(world2, compiled, plan, backend)
    assert [of_rank[:3] for of_rank in got] == [of_rank[:3] for of_rank in expected]
    assert all(of_rank[2] for of_rank in got)
    assert [of_rank[3] for of_rank in got] == ([[], []] if backend == "eager" else [[1, 2], [0, 3]])
