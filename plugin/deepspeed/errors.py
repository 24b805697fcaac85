# SPDX-License-Identifier: Apache-2.0
"""What stops a run before its first step."""

from ostinato.errors import Error


class OstinatoError(Error, RuntimeError):
    """A wrong section, plan or run; `str()` says what is wrong and what would be right."""


class Unsupported(OstinatoError):
    """This DeepSpeed, this build or a feature of this run cannot be combined with a plan.

    With `"require": false` the run then goes on under DeepSpeed's own 1F1B, and says so; every other OstinatoError stops.
    """
