# SPDX-License-Identifier: Apache-2.0
"""Ranks are forked from a process that has these models."""

from importlib.util import find_spec

from support import worlds
from support.hf_models import KINDS

worlds.LOADED.extend(f"transformers.models.{name}.modeling_{name}" for name in KINDS)
if find_spec("peft"):
    worlds.LOADED.append("peft")
