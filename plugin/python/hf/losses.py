# SPDX-License-Identifier: Apache-2.0
"""The loss that a transformers model computes from labels, as a `loss_fn` for PipelineModule."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from .errors import Refused
from .routers import RouterLoss, wanted


class Loss:
    """loss(logits, labels): the same as `model(..., labels=labels).loss`. Causal models shift the labels
    themselves, and -100 is ignored. `own`: the model's `loss_function`, where it is known.

    Labels may be (labels, count): the sum over the labels is then divided by `count`, as the model does with
    `num_items_in_batch`. Pass the step's number of labels divided by its number of micro-batches, because
    DeepSpeed takes the mean over these.
    """

    def __init__(self, kind: type, config, own: Callable | None = None):
        from transformers.loss.loss_utils import LOSS_MAPPING

        self.config = copy.deepcopy(config)
        self.name = next(
            name
            for name in ("ForMaskedLM", "ForImageClassification", "ForCausalLM")
            if _sounds(kind.__name__, name)
        )
        self._function: Any = own or LOSS_MAPPING[self.name]
        self._routers = RouterLoss(kind, self.config) if wanted(self.config) else None

    def __call__(self, outputs: torch.Tensor | tuple[torch.Tensor, ...], labels) -> torch.Tensor:
        """`outputs`: logits; with `output_router_logits` followed by the routers' outputs."""
        logits, *beside = outputs if isinstance(outputs, tuple) else (outputs,)
        loss = self._of_words(logits, labels)
        return loss if self._routers is None else loss + self._routers(beside)

    def _of_words(self, logits: torch.Tensor, labels) -> torch.Tensor:
        labels, more = (
            (labels[0], {"num_items_in_batch": labels[1]})
            if isinstance(labels, tuple | list)
            else (labels, {})
        )
        if isinstance(count := more.get("num_items_in_batch"), torch.Tensor) and count.numel() != 1:
            raise Refused(
                f"the count beside the labels holds {count.numel()} numbers, but a micro-batch has one: a DataLoader collects one from each "
                "sample, so give it (labels, count) in collate_fn"
            )
        if self.name == "ForImageClassification":
            return self._function(labels, logits, self.config, **more)
        if self.name == "ForCausalLM":
            return self._function(logits, labels, vocab_size=self.config.vocab_size, **more)
        rows = logits.view(-1, self.config.vocab_size), labels.view(-1)
        if more:
            return functional.cross_entropy(*rows, reduction="sum") / more["num_items_in_batch"]
        return functional.cross_entropy(*rows)


def _sounds(kind: str, loss: str) -> bool:
    return kind.endswith(loss) or (loss == "ForCausalLM" and kind.endswith("LMHeadModel"))
