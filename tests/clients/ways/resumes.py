# SPDX-License-Identifier: Apache-2.0
"""Loads the checkpoint that lies in the folder, where there is one, and saves one at its end."""

from common import args, data, done, initialize, made

engine, *_ = initialize(made())
folder, tag = str(args.folder), None
if (args.folder / "latest").is_file():
    folder_loaded, state = engine.load_checkpoint(folder)
    assert folder_loaded is not None and state["seen"] == 8
batches = data()
losses = [engine.train_batch(batches).item() for _ in range(2)]
done(losses, engine, steps=engine.global_steps)
if engine.global_steps == 2:
    engine.save_checkpoint(folder, client_state={"seen": 8})
