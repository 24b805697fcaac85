# SPDX-License-Identifier: Apache-2.0
"""ostinato: pipeline schedules that are searched, proved and enforced. `ostinato --help` lists the commands.

    import ostinato

    plan = ostinato.search(ostinato.placement("m", devices=4), micro_batches=8)     # ostinato.core has all of it

What is here is loaded when it is first asked for, and needs no torch.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ostinato.core import (
        Check, Devices, GraphPartition, GraphRow, Placement, Plan, Profile, Simulation, SteadyState, Step, explain, lower, pareto,
        partition, partition_graph, placement, plan, search, search_sizes, simulate, steady_state, verify,
    )  # fmt: skip
    from ostinato.errors import Error, InfeasibleError, InputError, Interrupted, UndecidedError, UsageError

__all__ = [
    "Check", "Devices", "Error", "GraphPartition", "GraphRow", "InfeasibleError", "InputError", "Interrupted", "Placement", "Plan",
    "Profile", "Simulation", "SteadyState", "Step", "UndecidedError", "UsageError", "explain", "lower", "pareto", "partition",
    "partition_graph", "placement", "plan", "search", "search_sizes", "simulate", "steady_state", "verify",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name == "__version__":
        from ostinato._search import version

        return version()
    if name in __all__:
        from ostinato import core, errors

        return getattr(errors if hasattr(errors, name) else core, name)
    if name in ("_plugin", "_profiler"):
        return _built_with_torch(f"ostinato.{name}")
    raise AttributeError(f"module 'ostinato' has no attribute {name!r}")


def _built_with_torch(name: str) -> object:
    from importlib import import_module, metadata

    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
    try:
        torch = f"torch {metadata.version('torch')} is installed, but was not when ostinato was built"
        advice = "build it again (pip install --force-reinstall --no-deps .)"
    except metadata.PackageNotFoundError:
        torch, advice = "they need torch", "install it and then ostinato again (pip install .)"
    raise ImportError(
        f"profiler and plugin are not installed: {torch}: {advice}, or install the wheel ostinato-deepspeed"
    )


def __dir__() -> list[str]:
    return [*globals(), *__all__, "__version__"]
