# SPDX-License-Identifier: Apache-2.0
"""What an engine saves and loads under a plan, and what may not change under it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

from ostinato.groups import everyones

from ..errors import OstinatoError
from ..section.agreement import FileFault, of_rank_0
from ..save import checkpoint, digests, lr_schedule, optimizer_state, partition, seal, universal
from ..tell import announce
from .run import Run
from ..upstream import Engine


@contextmanager
def _written_to(folder) -> Iterator[None]:
    """Names it where a file cannot be written, as on a full disk: the script may go on."""
    try:
        yield
    except FileFault as error:
        raise OstinatoError(f"saving a checkpoint to {folder}: {error}") from None


class PlanCheckpoints(Engine):
    """Mixed in before PipelineEngine."""

    _ostinato: Run

    def get_global_grad_norm(self):
        """ZeRO and half precision sum the norm rank by rank: where layers have moved it rounds differently
        than under 1F1B."""
        norm, run = super().get_global_grad_norm(), self._ostinato
        if norm is not None and run.stock_names is not None and not run.told_of_norm:
            run.told_of_norm = True
            announce.say(announce.NORM)
        return norm

    def save_checkpoint(self, save_dir, tag=None, client_state=None, save_latest=True, *args, **kwargs):
        """DeepSpeed's rank 0 would write `latest` while other ranks still write the checkpoint: here it waits
        for them."""
        self._stay()
        tag = str(f"global_step{self.global_steps}" if tag is None else tag)
        with _written_to(save_dir), self._ostinato.outside.checkpoint("saving a checkpoint"):
            mine = optimizer_state.named(self), optimizer_state.parts_of(self)
            names, parts = zip(*everyones(mine, self.grid.pp_proc_group), strict=True)
            facts = partition.facts_of(self.module)
            # Else it writes in the background, and knows when it is done.
            finishes = not self.checkpoint_engine.is_decoupled()
            if save_dir:
                stages = self._ostinato.stages
                of_rank_0(
                    lambda: checkpoint.write(save_dir, tag, stages, [*names], [*parts], facts, finishes)
                )
            held = checkpoint.held_by(self._ostinato.stages)
            moved = held != checkpoint.held_alone(self._ostinato.stock_parts)
            kept = seal.sealing(self.optimizer) if moved and self.optimizer is not None else nullcontext()
            theirs = save_latest and not finishes
            with kept, digests.noting(self.checkpoint_engine) as written:
                saved = super().save_checkpoint(
                    save_dir, tag, {} if client_state is None else client_state, theirs, *args, **kwargs
                )
                # All ranks have written, and all see it when this returns.
                if finishes:
                    files = digests.gathered(written)
                    of_rank_0(lambda: checkpoint.finish(Path(save_dir) / tag, files))
                if save_latest and not theirs:
                    of_rank_0(lambda: checkpoint.write_latest(save_dir, tag))
        if self._ostinato.adapt is not None and save_latest and not theirs:
            check = partial(optimizer_state.check_moved, self, save_dir, tag)
            self._ostinato.adapt.saved(self.global_steps, check)
        return saved

    def _stay(self) -> None:
        if self._ostinato.speedup is not None:
            self._ostinato.speedup.stay("a checkpoint was saved or loaded under it")

    def _save_zero_checkpoint(self, save_path, tag):
        with universal.wholes_saved(self, self._ostinato.parameter_parts):
            super()._save_zero_checkpoint(save_path, tag)

    def _get_zero_param_shapes(self):
        """The shapes of whole parameters, by group."""
        whole = universal.whole_shapes(self, self._ostinato.parameter_parts)
        groups = super()._get_zero_param_shapes()
        return [
            type(group)((name, whole.get(name, shape)) for name, shape in group.items()) for group in groups
        ]

    def load_checkpoint(
        self, load_dir, tag=None, load_module_strict=True, load_optimizer_states=True, *args, **kwargs
    ):
        self._stay()
        with self._ostinato.outside.checkpoint("loading a checkpoint"):
            folder = checkpoint.folder_read(self, load_dir, tag)
            with_schedule = kwargs.get("load_lr_scheduler_states", args[0] if args else True)
            module_only = kwargs.get("load_module_only", args[1] if len(args) > 1 else False)
            saved = None
            optimizer = checkpoint.reads_optimizer(self, load_optimizer_states, module_only)
            digests.refuse_torn(folder, optimizer)
            by_rank = checkpoint.reads_weights_by_rank(self)
            held = checkpoint.held_by(self._ostinato.stages)
            alone = checkpoint.held_alone(self._ostinato.stock_parts)
            if optimizer or by_rank:
                saved = checkpoint.found(load_dir, tag, held, self)
            if self.load_universal_checkpoint():
                if load_optimizer_states and not module_only:
                    universal.refuse_unlike_groups(self, self._ostinato.idle)
            elif not by_rank:
                self.module.refuse_unreadable(folder)
            with (
                optimizer_state.loading(self, saved if optimizer else None, with_schedule),
                lr_schedule.of_same_groups(self, None if optimizer else folder, held, alone),
                universal.idle_reads_nothing(self, self._ostinato.idle),
            ):
                loaded = super().load_checkpoint(
                    load_dir, tag, load_module_strict, load_optimizer_states, *args, **kwargs
                )
        universal.drop_wholes(self)
        if loaded[1] and "optimizer" in loaded[1]:  # DeepSpeed leaves it in what it returns
            loaded[1]["optimizer"] = seal.unsealed(loaded[1]["optimizer"])
        return loaded
