# SPDX-License-Identifier: Apache-2.0
"""What stops a run before its first step."""

from ostinato.errors import Error


class OstinatoError(Error, RuntimeError):
    """A wrong section, plan or run; `str()` says what is wrong and what would be right."""


class Unsupported(OstinatoError):
    """This DeepSpeed, this build or a feature of this run cannot be combined with a plan.

    With `"require": false` the run then goes on under DeepSpeed's own 1F1B, and says so; every other
    OstinatoError stops.
    """


# A PipelineModule that an engine has, or had.
ANEW = (
    "give each engine a new PipelineModule; weights go from one to the other by save_checkpoint() and "
    "load_checkpoint(..., load_module_only=True)"
)
HAS_ENGINE = f"this PipelineModule has an engine already that runs a plan: {ANEW}"
PLACED = (
    "the layers of this PipelineModule lie where a plan has them, and the configuration of this engine names no plan: name it in the "
    '"ostinato" section, or take it from where PipelineModule found it'
)
