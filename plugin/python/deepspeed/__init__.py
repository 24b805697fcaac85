# SPDX-License-Identifier: Apache-2.0
"""ostinato inside DeepSpeed's pipeline engine.

On by configuration: `"ostinato": {"plan": "plan.json"}` in `ds_config.json` is enough where ostinato is
installed (`import torch` loads `ostinato.autoload`). Where it is not, this import, or `python -m
ostinato.run`, does the same:

    import ostinato.deepspeed                            # heed the section of the configuration
    ostinato.deepspeed.enable("out/plan.json")           # or: without a section
    ostinato.deepspeed.enable(profile="profile.json", search={"time_limit": 30})
"""

from contextlib import ExitStack

from ostinato import autoload

from . import hook
from .errors import OstinatoError, Unsupported

__all__ = ["OstinatoError", "Unsupported", "enable", "graph"]


def graph(layers, inputs):
    """Makes the layers of a PipelineModule with branches; see ostinato.deepspeed.graph_model, which needs DeepSpeed
    imported."""
    from .graph_model import graph as make

    return make(layers, inputs)


def enable(plan=None, **options) -> ExitStack:
    """Runs `plan` in pipeline models and engines made from now on, as a section {"plan": plan, **options}
    would.

        ostinato.deepspeed.enable("plan.json")      # for good
        with ostinato.deepspeed.enable("plan.json"):
            ...                                     # for what is made in here

    `options` are the section's other keys; without a plan, give `profile` or `auto=True`. Relative paths start
    at the working directory. Raises OstinatoError for a wrong key or value. Every rank must call it.
    """
    from .section.config import Section

    given = options if plan is None else {"plan": plan, **options}
    hook.enable({key: str(value) if key in Section.PATHS else value for key, value in given.items()})
    ends = ExitStack()
    ends.callback(hook.disable)
    return ends


autoload.register()
