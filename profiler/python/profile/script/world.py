# SPDX-License-Identifier: Apache-2.0
"""A world of ranks where only rank 0 exists, for the script that is profiled.

    world = World(4)
    with world.pretended():
        torch.distributed.init_process_group("nccl")  # at once, on any machine

Nothing is sent. The other ranks are assumed to hold what this rank holds: a sum over 4 ranks is 4 times this
rank's, a gathered list has this rank's object 4 times, and what another rank would broadcast stays as it is
here.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

REDUCED = ("all_reduce", "reduce", "all_reduce_coalesced")


class World:
    """`size` may change until the process group is made: the script may name it itself. `asked`: by group,
    the backend that the script asked for."""

    def __init__(self, size: int):
        self.size = size
        self.asked: dict[Any, str] = {}

    @contextmanager
    def pretended(self) -> Iterator[None]:
        """torch.distributed and the launcher's environment as rank 0 of this world finds them."""
        made = {
            getattr(dist, name): wrap(self, getattr(dist, name))
            for name, wrap in WRAPPERS.items()
            if hasattr(dist, name)
        }
        made[torch.multiprocessing.spawn] = spawn(self, torch.multiprocessing.spawn)
        replace_everywhere(made)
        try:
            yield
        finally:
            replace_everywhere({new: old for old, new in made.items()})

    def adopt(self, size: Any) -> None:
        """The script says itself how many ranks there are."""
        if str(size).isdigit() and int(size) > 0:
            self.size = int(size)
            os.environ["WORLD_SIZE"] = str(self.size)


def replace_everywhere(functions: dict[Callable, Callable]) -> None:
    """In every module that has imported one of them by name, too."""
    by_id = {id(old): new for old, new in functions.items()}
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if isinstance(names, dict):
            for name, value in list(names.items()):
                if id(value) in by_id:
                    names[name] = by_id[id(value)]


def init_process_group(world: World, original: Callable) -> Callable:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init(*args: Any, **named: Any) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        given = signature.bind(*args, **named).arguments
        world.adopt(
            given.get("world_size", -1) if given.get("world_size", -1) > 0 else os.environ.get("WORLD_SIZE")
        )
        original("fake", store=FakeStore(), rank=0, world_size=world.size)
        world.asked[dist.group.WORLD] = str(given.get("backend") or default_backend())

    return init


def default_backend() -> str:
    return "nccl" if torch.cuda.is_available() else "gloo"


def new_group(world: World, original: Callable) -> Callable:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def make(*args: Any, **named: Any) -> Any:
        given = signature.bind(*args, **named).arguments
        group = original(given.get("ranks"), backend="fake", group_desc=given.get("group_desc"))
        world.asked[group] = str(given.get("backend") or world.asked.get(dist.group.WORLD, default_backend()))
        return group

    return make


def get_backend(world: World, original: Callable) -> Callable:
    @functools.wraps(original)
    def told(group: Any = None) -> str:
        told = original(group)
        return world.asked.get(group or dist.group.WORLD, told)

    return told


def reduced(_world: World, original: Callable) -> Callable:
    """All ranks hold the same: their sum is this many times this rank's."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def reduce(*args: Any, **named: Any) -> Any:
        work = original(*args, **named)
        given = signature.bind(*args, **named)
        given.apply_defaults()
        values: Any = given.arguments.get("tensor", given.arguments.get("tensors"))
        ranks = dist.get_world_size(given.arguments["group"])
        for value in values if isinstance(values, (list, tuple)) else [values]:
            repeat(value, given.arguments["op"], ranks)
        return work

    return reduce


def repeat(value: torch.Tensor, op: Any, ranks: int) -> None:
    if ranks > 1 and value.dtype != torch.bool:
        with torch.no_grad():
            if op == dist.ReduceOp.SUM:
                value.mul_(ranks)
            elif op == dist.ReduceOp.PRODUCT:
                value.pow_(ranks)


def from_rank_0_only(_world: World, original: Callable) -> Callable:
    """broadcast_object_list() and scatter_object_list(): what another rank would send is not there, and the
    list stays as it is."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def tell(*args: Any, **named: Any) -> Any:
        given = signature.bind(*args, **named).arguments
        ranks = dist.get_process_group_ranks(given.get("group") or dist.group.WORLD)
        source = given.get("src")
        if source is None and given.get("group_src") is not None:
            source = ranks[given["group_src"]]
        return original(*args, **named) if source in (None, 0) else None

    return tell


def nothing(_world: World, original: Callable) -> Callable:
    return functools.wraps(original)(lambda *args, **named: None)


def received_nothing(_world: World, original: Callable) -> Callable:
    """recv_object_list(): from the rank that was asked."""
    return functools.wraps(original)(lambda objects, src=None, *args, **named: 1 if src is None else src)


def spawn(world: World, original: Callable) -> Callable:
    """torch.multiprocessing.spawn(): the function is called as process 0, here."""

    @functools.wraps(original)
    def run(fn: Callable, args: tuple = (), nprocs: int = 1, **_named: Any) -> None:
        if nprocs > 1:
            world.adopt(nprocs)
        fn(0, *args)

    return run


WRAPPERS: dict[str, Callable[[World, Callable], Callable]] = {
    "init_process_group": init_process_group,
    "new_group": new_group,
    "get_backend": get_backend,
    "broadcast_object_list": from_rank_0_only,
    "scatter_object_list": from_rank_0_only,
    "recv_object_list": received_nothing,
    "monitored_barrier": nothing,
    **dict.fromkeys(REDUCED, reduced),
}
