# SPDX-License-Identifier: Apache-2.0
"""What stops a run before its first step."""

from ostinato.errors import Error


class OstinatoError(Error, RuntimeError):
    """A wrong section, plan or run; `str()` says what is wrong and what would be right."""


class Unsupported(OstinatoError):
    """This DeepSpeed, this build or a feature of this run cannot be combined with a plan.

    With `"require": false` the run then goes on under DeepSpeed's own 1F1B, and says so; every other OstinatoError stops.
    """

# A PipelineModule that an engine has had before.
ANEW = (
    "give each engine a new PipelineModule; weights go from one to the other by save_checkpoint() and "
    "load_checkpoint(..., load_module_only=True)"
)
PLACED = f"an earlier deepspeed.initialize() has placed the layers of this PipelineModule for its plan: {ANEW}"
