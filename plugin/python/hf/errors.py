# SPDX-License-Identifier: Apache-2.0
"""What ostinato.hf refuses, by name, before anything is built."""

from ostinato.errors import Error


class Refused(Error, ValueError):
    """A model, a configuration or a batch that would train to other numbers in a pipeline. `str()` says
    which, and what would do."""
