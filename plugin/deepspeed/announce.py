"""The one line that rank 0 prints: which plan runs, what it promises, and how its numbers relate to 1F1B's."""


def ran_whole(rank: int, stages: list[str]) -> str:
    """What a rank says after the first step of a plan that splits backwards which cannot be split."""
    return (
        f"ostinato: rank {rank}: the backward of {', '.join(stages)} ran whole, where its input half is planned: activation "
        "checkpointing cannot be split"
    )


def line(program, regrouped: list[str], clipped: bool, copies: int = 1, branches: bool = False) -> str:
    """`regrouped`: tied layers whose gradients meet in another order (rebuild). `clipped`: gradients are clipped by a norm
    that is summed over other ranks than in DeepSpeed's partition. `copies`: directions in which the plan runs the model. `branches`: its layers come from graph()."""
    against = f"1F1B {program.one_f_one_b / 1e6:.3f} ms" if program.one_f_one_b else "this placement has no 1F1B"
    if copies > 1:
        equal = f"gradients of the {copies} directions are added at the end: equal to 1F1B up to rounding"
    elif branches:
        equal = "gradients of what several layers read are added in another order than 1F1B's: equal up to rounding"
    elif not program.keeps_order:
        equal = "gradients are added in another order than 1F1B's: equal up to rounding"
    elif shared := [stage.name for stage in program.stages if len(stage.ranks) > 1]:
        equal = f"ranks sum their parts of {', '.join(shared)}, which 1F1B computes on one: equal up to rounding"
    elif regrouped:
        equal = f"gradients of layers tied as {', '.join(regrouped)} are added in another order than 1F1B's: equal up to rounding"
    elif clipped:
        equal = "gradient clipping sums its norm rank by rank, and layers have moved: equal to 1F1B up to rounding"
    else:
        equal = "equal to 1F1B bit for bit"
    return (
        f'ostinato: plan {program.plan_sha256[:12]} on placement "{program.placement_name}", {program.micro_batches} '
        f"micro-batches: predicted step {program.makespan / 1e6:.3f} ms, {against}; {equal}"
    )
