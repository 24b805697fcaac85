"""eval_batch() over the chunks of a placement: forwards only, without a plan.

Wave t holds every (stage, micro-batch m) where the stage is number t - m of the model. A rank computes its part of a wave, in the order of the stages
(so that ranks which share several sharded stages meet), then all ranks go through the transfers of that wave in one order, sends without blocking; so no two ranks ever wait for each other.
"""

import torch
import torch.distributed as dist

from .plans import Chunk

HEADER = 256  # int64 entries: number of tensors, then dtype (NONE: there is none), dimensions and sizes of each
NONE = -1


def run_forwards(engine, chunks: list[Chunk], micro_batches: int) -> None:
    """Runs every stage of this rank on every micro-batch; DeepSpeed collects losses and outputs as it always does.

    `chunks`: the stages of one copy of the model, in model order; each comes after those that feed it.
    """
    place = {chunk.stage: at for at, chunk in enumerate(chunks)}
    arrived: dict[tuple[int, int, int], tuple] = {}  # by (from, to, micro-batch)
    for wave in range(len(chunks) + micro_batches - 1):
        parts = [(c, wave - at) for at, c in enumerate(chunks) if 0 <= wave - at < micro_batches]
        outputs = {}
        for chunk, m in parts:
            if chunk.on(engine.stage_id):
                inputs = sum((arrived.pop((source, chunk.stage, m)) for source in chunk.inputs), ())
                outputs[chunk.stage] = engine.forward_chunk(chunk, m, inputs or None)
        sends = []
        for chunk, m in parts:
            for taker in (chunks[place[stage]] for stage in chunk.outputs):
                key = (chunk.stage, taker.stage, m)
                for rank in taker.ranks:  # a rank that holds the outputs takes them; the first serves the others
                    if rank == engine.stage_id and chunk.on(rank):
                        arrived[key] = _as_tuple(outputs[chunk.stage])
                    elif rank == engine.stage_id:
                        arrived[key] = _receive(engine, chunk.rank)
                    elif chunk.rank == engine.stage_id and not chunk.on(rank):
                        sends += _send(engine, _as_tuple(outputs[chunk.stage]), rank)
        for work, _ in sends:
            work.wait()


def _as_tuple(outputs) -> tuple:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _send(engine, tensors: tuple, rank: int) -> list:
    """(work, tensor) pairs: the tensors must live until the work is done. Shapes go first; they may change at any time."""
    header = [len(tensors)]
    for tensor in tensors:
        header += [NONE] if tensor is None else [engine.DTYPE_TO_ID[tensor.dtype], tensor.dim(), *tensor.shape]
    header += [0] * (HEADER - len(header))
    group, peer = engine._ostinato.group, engine.grid.stage_to_global(rank)
    sent = [torch.tensor(header, dtype=torch.int64, device=engine.device), *(t.contiguous() for t in tensors if t is not None)]
    return [(dist.isend(tensor, peer, group=group), tensor) for tensor in sent]


def _receive(engine, rank: int) -> tuple:
    group, peer = engine._ostinato.group, engine.grid.stage_to_global(rank)
    header = torch.empty(HEADER, dtype=torch.int64, device=engine.device)
    dist.recv(header, peer, group=group)
    entries = iter(header.tolist())
    tensors = []
    for _ in range(next(entries)):
        if (dtype := next(entries)) == NONE:
            tensors.append(None)
            continue
        sizes = [next(entries) for _ in range(next(entries))]
        tensors.append(torch.empty(sizes, dtype=engine.ID_TO_DTYPE[dtype], device=engine.device))
    for tensor in (t for t in tensors if t is not None):
        dist.recv(tensor, peer, group=group)
    return tuple(tensors)
