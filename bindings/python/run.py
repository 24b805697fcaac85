# SPDX-License-Identifier: Apache-2.0
"""Runs a training script with ostinato, for where `import torch` does not load it (ostinato is on the path but not
installed, or TORCH_DEVICE_BACKEND_AUTOLOAD=0).

    torchrun --nproc-per-node 4 -m ostinato.run train.py --deepspeed_config ds_config.json
    deepspeed --module ostinato.run train.py --deepspeed_config ds_config.json
    srun --ntasks-per-node 4 python -m ostinato.run train.py --deepspeed_config ds_config.json
    python -m ostinato.run -m package.train --deepspeed_config ds_config.json
"""

import os
import runpy
import sys
import traceback

from ostinato import autoload, slurm

USAGE = "usage: python -m ostinato.run SCRIPT [ARGUMENT ...] | -m MODULE [ARGUMENT ...]"


def missing(what: str) -> int:
    print(f"python -m ostinato.run: {what}\n{USAGE}", file=sys.stderr)
    return 2


def main() -> int:
    """Runs the script as `python SCRIPT` would: `__main__`, its folder first on the path, its arguments in
    sys.argv."""
    arguments = sys.argv[1:]
    # The deepspeed launcher puts its own option before the script.
    launcher = [a for a in arguments[:1] if a.startswith("--local_rank=")]
    arguments = arguments[len(launcher) :]
    module = arguments[:1] == ["-m"]
    target = arguments[int(module) :]
    if not target or target[0] in ("-h", "--help"):
        print(f"{__doc__}\n{USAGE}", file=sys.stdout if target else sys.stderr)
        return 0 if target else 2
    if not module and not os.path.exists(target[0]):
        return missing(f"{target[0]}: no such file")
    slurm.adopt()
    autoload.name_absent()
    autoload.register()
    sys.argv = [target[0], *launcher, *target[1:]]
    if module:
        sys.path.insert(0, os.getcwd())
        try:
            runpy.run_module(target[0], run_name="__main__", alter_sys=True)
        except ImportError as error:
            # No line of the module has run.
            if traceback.extract_tb(error.__traceback__)[-1].filename == "<frozen runpy>":
                return missing(f"-m {target[0]}: {error}")
            raise
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(target[0])))
        runpy.run_path(target[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
