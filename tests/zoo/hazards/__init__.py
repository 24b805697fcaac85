# SPDX-License-Identifier: Apache-2.0
"""Small models, each with one thing that ordinary training code does and that a pipeline plan must not lose,
by subject.

The names of HAZARDS are those of the table in docs/zoo.md, in the order of these imports.
"""

from . import inside, parameters, borders, autograd, scripts  # isort: skip
from .base import CLASSES, HAZARDS, WIDTH, cross_entropy, spec, vectors

__all__ = [
    "CLASSES",
    "HAZARDS",
    "WIDTH",
    "autograd",
    "borders",
    "cross_entropy",
    "inside",
    "parameters",
    "scripts",
    "spec",
    "vectors",
]
