# SPDX-License-Identifier: Apache-2.0
"""Hooks on layers and gradients, a reference to a layer, an average of weights that begins before the first
step, an attribute set."""

from common import Block, data, done, initialize, made

model = made()
kept = None
for name, module in model.named_children():
    if not isinstance(module, Block):
        continue  # DeepSpeed's dictionary of tied layers
    module.linear.weight.register_hook(lambda gradient: gradient * 0.5)
    module.register_forward_hook(lambda module, given, output: output * 0.9)
    if name == "3":
        kept = module
    module.name = name
engine, *_ = initialize(model)
average = {name: p.detach().clone() for name, p in model.named_parameters()}
batches, losses = data(), []
for _ in range(3):
    losses.append(engine.train_batch(batches).item())
    for name, parameter in engine.module.named_parameters():
        average[name].lerp_(parameter.detach(), 0.1)
for module in model.modules():
    assert not isinstance(module, Block) or dict(model.named_children())[module.name] is module
if kept is not None:
    assert (
        any(module is kept for module in engine.module.modules())
        and (kept.linear.weight != average["3.linear.weight"]).any()
    )
done(losses, engine)
