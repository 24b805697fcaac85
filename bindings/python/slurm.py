# SPDX-License-Identifier: Apache-2.0
"""What torch.distributed and DeepSpeed ask of the environment, from what Slurm says.

    srun --ntasks-per-node 8 python -m ostinato.run train.py --deepspeed_config ds_config.json

Neither reads Slurm's variables by itself. Inside a job step (srun, not the batch script) RANK, WORLD_SIZE,
LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT are derived; what is set already stays, and so does
everything under torchrun or the deepspeed launcher. Source: Slurm's srun(1), "Output environment variables".
"""

import os
import re
from collections.abc import Mapping


def variables(slurm: Mapping[str, str]) -> dict[str, str]:
    """What a job step's variables mean; {} outside one, or where a launcher has been at work."""
    if "SLURM_STEP_ID" not in slurm or "SLURM_PROCID" not in slurm or "RANK" in slurm:
        return {}
    local = slurm.get("SLURM_STEP_TASKS_PER_NODE", slurm.get("SLURM_TASKS_PER_NODE", "1"))
    made = {
        "RANK": slurm["SLURM_PROCID"],
        "WORLD_SIZE": slurm.get("SLURM_STEP_NUM_TASKS", slurm.get("SLURM_NTASKS", "1")),
        "LOCAL_RANK": slurm.get("SLURM_LOCALID", "0"),
        "LOCAL_WORLD_SIZE": tasks_of_node(local, int(slurm.get("SLURM_NODEID", "0"))),
        "MASTER_ADDR": first_node(
            slurm.get("SLURM_STEP_NODELIST", slurm.get("SLURM_JOB_NODELIST", "localhost"))
        ),
        "MASTER_PORT": str(20000 + int(slurm.get("SLURM_JOB_ID", "0")) % 10000),
    }
    return {name: value for name, value in made.items() if name not in slurm}


def first_node(nodes: str) -> str:
    """ "gpu[03-07,9],login" -> "gpu03"; a name may have several brackets: "rack[0-1]node[0-3]"."""
    first = re.match(r"(\[[^\]]*\]|[^,])*", nodes)  # up to a comma outside brackets
    assert first is not None  # it may be empty
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0])


def tasks_of_node(counts: str, node: int) -> str:
    """ "4(x2),3": four on the first two nodes, three on the last."""
    each: list[str] = []
    for part in counts.split(","):
        count, _, times = part.partition("(x")
        each += [count] * int(times.rstrip(")") or 1)
    return each[min(node, len(each) - 1)]


def adopt() -> None:
    """Puts them into this process's environment."""
    os.environ.update(variables(os.environ))
