# SPDX-License-Identifier: Apache-2.0
"""As many stages as ranks; trains on from the last checkpoint until the file `enough` is in the folder."""

import os

import torch.distributed as dist
from common import BATCHES, args, data, initialize, made, rank

world = dist.get_world_size()
engine, *_ = initialize(made(num_stages=world))
engine.load_checkpoint(str(args.folder / "checkpoints"))
batches, enough = data(), [False]
for _ in range(engine.global_steps * BATCHES):
    next(batches)
while not enough[0]:
    loss = engine.train_batch(batches).item()
    if rank == 0:
        with open(args.folder / "losses", "a") as losses:
            losses.write(f"{engine.global_steps} {world} {loss.hex()}\n")
    if engine.global_steps % 4 == 0:
        engine.save_checkpoint(str(args.folder / "checkpoints"))
        enough = [os.path.exists(args.folder / "enough")]
        dist.broadcast_object_list(enough, 0)
