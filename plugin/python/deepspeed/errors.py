# SPDX-License-Identifier: Apache-2.0
"""What stops a run before its first step."""

from ostinato.errors import Error


class OstinatoError(Error, RuntimeError):
    """A wrong section, plan or run; `str()` says what is wrong and what would be right."""


class Unsupported(OstinatoError):
    """A plan does not work with this DeepSpeed, this build or a feature of this run.

    With `"require": false` the run then goes on under DeepSpeed's own 1F1B, and says so; any other
    OstinatoError stops it.
    """


class OtherModel(OstinatoError):
    """The plan was made for another model. `how`: what differs, in a few words."""

    def __init__(self, message: str, how: str):
        super().__init__(message)
        self.how = how


class NoPlan(OstinatoError):
    """The layers could not be measured, or no plan fits the ranks. With `"auto": true` and `"fallback"` the run then
    goes on under DeepSpeed's own 1F1B, and says so."""


# For a PipelineModule that already has, or had, an engine.
NEW_MODULE = (
    "give each engine a new PipelineModule, and carry weights over with save_checkpoint() and "
    "load_checkpoint(..., load_module_only=True)"
)
HAS_ENGINE = f"this PipelineModule already has an engine that runs a plan: {NEW_MODULE}"
PLACED = (
    "PipelineModule placed its layers for a plan, but this engine's configuration names no plan: name it in the "
    '"ostinato" section, or remove it from where PipelineModule found it'
)
