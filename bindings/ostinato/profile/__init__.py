"""Measures what every layer and operator of a model costs on this machine, and writes `ostinato-profile/1`.

From the command line, with a training script that knows nothing of it:

    ostinato profile train.py --output profile.json -- --deepspeed_config ds_config.json

From Python, with a list of layers (an nn.Sequential, DeepSpeed LayerSpecs, callables) and one micro-batch:

    from ostinato.profile import Job, profile_layers
    profile = profile_layers(Job(layers=layers, inputs=tokens, labels=targets, loss_fn=loss))
    profile.write("profile.json")

docs/profiler.md says what each figure means and how it is measured.
"""

from ostinato.profile.command import main
from ostinato.profile.errors import ProfileError
from ostinato.profile.job import Job
from ostinato.profile.run import profile_layers

__all__ = ["Job", "ProfileError", "main", "profile_layers"]
