# SPDX-License-Identifier: Apache-2.0
"""Changes the working directory and the environment, puts a writer of a few lines in the place of standard
output, has a child process, a log file and no standard error, and ends by sys.exit()."""

import atexit
import logging
import os
import subprocess
import sys
import tempfile

from common import args, data, done, initialize, made, rank


class Tee:
    def __init__(self, stream):
        self.write = stream.write


sys.stdout, sys.stderr = Tee(sys.stdout), None
args.results = args.results.absolute()
args.deepspeed_config = args.deepspeed_config and os.path.abspath(args.deepspeed_config)
args.late = args.late and os.path.abspath(args.late)
os.chdir(tempfile.gettempdir())
os.environ["MY_RUN"] = os.environ.get("MY_RUN", "") + "x"
logging.basicConfig(filename=args.results.with_suffix(f".{rank}.log"), level=logging.INFO)
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
atexit.register(child.kill)
engine, *_ = initialize(made())
batches, losses = data(), []
for step in range(3):
    losses.append(engine.train_batch(batches).item())
    logging.info("step %d: %s", step, losses[-1])
done(losses, engine, variable=os.environ["MY_RUN"])
sys.stdout = sys.__stdout__  # Python flushes it at the end
sys.exit(0)
