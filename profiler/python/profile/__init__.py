# SPDX-License-Identifier: Apache-2.0
"""Measures what every layer and operator of a model costs on this machine, and writes `ostinato-profile/1`.

From the command line, with a training script that knows nothing of it:

    ostinato profile train.py --output profile.json -- --deepspeed_config ds_config.json

From Python, with a list of layers (an nn.Sequential, DeepSpeed LayerSpecs, callables) and one micro-batch:

    from ostinato.profile import Job, profile_layers
    profile = profile_layers(Job(layers=layers, inputs=tokens, labels=targets, loss_fn=loss))
    profile.write("profile.json")

docs/profiler.md says what each figure means and how it is measured.
"""

import importlib

# Imported when they are asked for.
_WHERE = {"ProfileError": "errors", "Job": "model.job", "profile_layers": "run"}

__all__ = ["Job", "ProfileError", "main", "profile_layers"]


def __getattr__(name: str):
    if name in _WHERE:
        return getattr(importlib.import_module(f"ostinato.profile.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'ostinato.profile' has no attribute {name!r}")


def main(argv: list[str]) -> int:
    """`ostinato profile`. `--help` and mistakes in options end it (SystemExit) before torch is imported."""
    from ostinato.profile.options import arguments_of, split_arguments

    arguments_of(split_arguments(argv)[0])
    return importlib.import_module("ostinato.profile.command").main(argv)
