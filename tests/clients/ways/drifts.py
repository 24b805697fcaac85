# SPDX-License-Identifier: Apache-2.0
"""Rank 1 becomes slow after a few steps. The script saves every ten steps, and goes on from its last
checkpoint wherever it starts; --kind forgets: it does not. It ends a while after it has started for the third
time.
"""

import time

from common import Block, args, blocks, data, done, initialize, made, rank

BATCHES, SLOW_FROM, MOST = 4, 8, 200
starts = args.results.with_suffix(f".{rank}.starts")
number = len(starts.read_text()) + 1 if starts.exists() else 1
starts.write_text("x" * number)
plain = args.kind == "plain"
slow = 1.0


class Slowed(Block):
    def forward(self, x):
        time.sleep(0 if plain else 0.004 * slow)
        return x + self.linear(x).tanh()


engine, *_ = initialize(made(blocks(Slowed)))
folder, batches, losses = str(args.folder), data(), args.results.with_suffix(f".{rank}.losses")
if (args.folder / "latest").is_file() and args.kind != "forgets":
    engine.load_checkpoint(folder)
first = engine.global_steps
for _ in range(first * BATCHES):
    next(batches)
while engine.global_steps < MOST and not (number == 3 and engine.global_steps >= first + 12):
    slow = 2.5 if rank == 1 and engine.global_steps >= SLOW_FROM else 1.0
    loss = engine.train_batch(batches).item()
    with open(losses, "a") as file:
        file.write(f"{engine.global_steps} {loss.hex()}\n")
    if engine.global_steps % 10 == 0 and not plain:
        engine.save_checkpoint(folder)
done([], engine, starts=number, steps=engine.global_steps, held=len(engine.module.forward_funcs))
