# SPDX-License-Identifier: Apache-2.0
"""The error for what ostinato.hf refuses, by name, before it builds anything."""

from ostinato.errors import Error


class Refused(Error, ValueError):
    """A model, a configuration or a batch that would train differently in a pipeline. `str()` says which, and
    what would work."""
