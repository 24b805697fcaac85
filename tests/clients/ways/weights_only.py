# SPDX-License-Identifier: Apache-2.0
"""Loads the weights of the checkpoint in the folder alone, as fine-tuning does."""

from common import args, data, done, initialize, made

engine, *_ = initialize(made())
loaded, _ = engine.load_checkpoint(
    str(args.folder), load_optimizer_states=False, load_lr_scheduler_states=False
)
assert loaded is not None
batches = data()
losses = [engine.train_batch(batches).item() for _ in range(2)]
done(losses, engine, steps=engine.global_steps)
