# SPDX-License-Identifier: Apache-2.0
"""Layers that the script thaws in mid-run.

    thawed = Thawed(module, stages, group)     # with each executor
    if thawed.seen(): ...                      # before each step, on all ranks: it needs another executor

Stages announce once whether gradients come back for what they hand on (plugin/executor/traffic.h), so a stage that
learns only later needs executors that announce it again, on all ranks at once. Where a stage is frozen as a whole,
ranks ask each other before every step; in all other runs they do so once.
"""

from collections.abc import Sequence

import torch.distributed as dist
from ostinato.buffers import modules_of
from ostinato.groups import everyones

from ..section.plans import Stage
from ..stages.module import StagedLayers


class Thawed:
    """`group`: the ranks of the pipeline."""

    def __init__(self, module: StagedLayers, stages: Sequence[Stage], group: dist.ProcessGroup | None):
        self._module, self._group = module, group
        self._stages = [stage for stage in stages if stage.on(module.stage_id) and not stage.lane]
        self._frozen: list[Stage] | None = None  # of this rank, as shapes were announced
        self._anywhere = False  # on any rank

    def seen(self) -> bool:
        """Whether a stage that was frozen as shapes were announced learns now, on any rank. All ranks must call it."""
        if self._frozen is None:
            self._frozen = [s for s in self._stages if self._has_parameters(s) and not self._module.learns(s)]
            self._anywhere = any(everyones(bool(self._frozen), self._group))
            return False
        return self._anywhere and any(everyones(any(map(self._module.learns, self._frozen)), self._group))

    def _has_parameters(self, stage: Stage) -> bool:
        functions = self._module.functions_of(stage)
        return any(True for f in functions for layer in modules_of(f) for _ in layer.parameters())
