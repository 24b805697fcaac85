# SPDX-License-Identifier: Apache-2.0
"""All models by name."""

from .alexnet import ALEXNET
from .hazards import HAZARDS
from .huggingface import HUGGING_FACE
from .model import Model

REAL: dict[str, Model] = {ALEXNET.name: ALEXNET, **HUGGING_FACE}
MODELS: dict[str, Model] = {**REAL, **HAZARDS}
