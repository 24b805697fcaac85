"""When one rank gives up waiting, every rank says where it is: who waits for whom is then in the logs of one run.

    watch = Watch(store, "step", rank, ranks, executor.position, period_s=1.0)
    try:
        executor.run()
    except StepTimeout:
        watch.give_up()          # returns when all have spoken, or after a few periods
        raise

A thread of each rank asks the store once a period, so a rank is heard while it waits in the executor, or computes without
end in Python. It costs a message a period, and nothing in between.
"""

import sys
import threading
import time
from collections.abc import Callable


def say(text: str) -> None:
    print(f"ostinato: {text}", file=sys.stderr, flush=True)


class Watch:
    """`name`: the same on all ranks of one pipeline, and of this pipeline alone. The store is not shared with other threads."""

    def __init__(self, store, name: str, rank: int, ranks: int, position: Callable[[], str], period_s: float):
        self._store, self._rank, self._ranks = store.clone(), rank, ranks
        self._failed, self._spoken = f"ostinato/watch/{name}/failed", f"ostinato/watch/{name}/spoken"
        self._position, self._period_s = position, period_s
        self._over = threading.Event()
        threading.Thread(target=self._run, daemon=True, name="ostinato-watch").start()

    def give_up(self) -> None:
        """This rank has failed and says so itself: the others are asked to, and given the time."""
        self._over.set()
        try:
            self._store.set(self._failed, str(self._rank))
            end = time.monotonic() + 5 * self._period_s
            spoken = self._store.add(self._spoken, 1)
            while spoken < self._ranks and time.monotonic() < end:
                time.sleep(self._period_s / 10)
                spoken = self._store.add(self._spoken, 0)
        except RuntimeError:
            pass  # the rank that holds the store is gone: nobody is left to ask

    def close(self) -> None:
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(self._period_s):
            try:
                if not self._store.check([self._failed]):
                    continue
                who = f"rank {self._store.get(self._failed).decode()} gave up"
                say(f"{who}; {self._position()}")
                self._store.add(self._spoken, 1)
            except RuntimeError:
                say(f"the store of the process group is gone; {self._position()}")
            return
