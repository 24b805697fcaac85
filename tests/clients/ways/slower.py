# SPDX-License-Identifier: Apache-2.0
"""Its layers take longer in its second start, whatever the plan is. --kind saves: it saves a checkpoint after
its first step."""

import time

from common import Block, args, blocks, data, done, initialize, made, rank

starts = args.results.with_suffix(f".{rank}.starts")
number = len(starts.read_text()) + 1 if starts.exists() else 1
starts.write_text("x" * number)


class Slower(Block):
    def forward(self, x):
        time.sleep(0.03 if number == 2 else 0.002)
        return super().forward(x)


engine, *_ = initialize(made(blocks(Slower)))
batches, losses = data(), []
for step in range(9):
    losses.append(engine.train_batch(batches).item())
    if args.kind == "saves" and step == 0:
        engine.save_checkpoint(str(args.folder))
done(losses, engine, starts=number)
