# SPDX-License-Identifier: Apache-2.0
"""Plans under torch.distributed, without DeepSpeed.

    from ostinato.torch import Pipeline, layers

    pipe = Pipeline("plan.json", layers([Embed(), Block(), Block(), nn.Linear(96, 256)]), loss_fn=F.cross_entropy)
    optimizer = torch.optim.AdamW(pipe.parameters())
    loss = pipe.step(tokens, targets)          # cuts tensors into the plan's micro-batches; a list has one entry for each
    optimizer.step(); optimizer.zero_grad()

    pipe = Pipeline("inference-plan.json", layers(...))         # a plan without backwards (ostinato plan --inference)
    outputs = pipe.infer(batch)                                 # as many requests as the plan has micro-batches
    pipe.serve(requests, lambda number, outputs: ...)           # as long as requests come, many in flight

`schedule()` runs a plan on torch.distributed.pipelining's own runtime instead, if that can run it.
docs/torch.md.
"""

from .batches import BatchError
from .checks import PipelineError
from .pipeline import Pipeline
from .requests import Requests
from .runtime import schedule
from .stages import Stage, layers

__all__ = ["BatchError", "Pipeline", "PipelineError", "Requests", "Stage", "layers", "schedule"]
