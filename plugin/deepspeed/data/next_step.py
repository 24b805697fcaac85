# SPDX-License-Identifier: Apache-2.0
"""The micro-batches of the step that comes, read while this one is about to run, so that its plan is searched meanwhile ("read_ahead").

    ahead = NextStep(search=lambda sizes: (FOUND, text), size_of=tokens, say=print)
    ahead.prepare(iterator, batch_fn, count=8)       # the step that runs now has all its items
    next(ahead.before(iterator))                     # what was read of it comes first, its errors at their place
    ahead.found((512.0, 2048.0))                     # what search() gives for them, or None: they are not those

Nothing rests on it but time. What was read is given out in its order to whoever reads the iterator next, a step or an evaluation. A plan
that was searched for other sizes than the step turns out to have is dropped, and a search gives the same plan whenever it runs.
"""

from collections import deque
from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

from ostinato.errors import counted
from ostinato.ranks import threads

from .items import own
from ..randomness.random_state import KINDS, same, states
from .sizes import seen_by

Sizes = tuple[float, ...]
Found = tuple[int, str]


class Unread(Iterator[Any]):
    """An iterator of which some items have been taken that come first; an error that ended the taking comes after them, once."""

    def __init__(self, iterator: Iterator[Any]):
        self.iterator = iterator
        self._items: deque[Any] = deque()
        self._error: Exception | None = None

    def __next__(self) -> Any:
        if self._items:
            return self._items.popleft()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return next(self.iterator)

    def __len__(self) -> int:
        return len(self._items)

    @property
    def items(self) -> list[Any]:
        return list(self._items)

    @property
    def ended(self) -> bool:
        return self._error is not None

    def put_back(self, items: list[Any]) -> None:
        self._items.extendleft(reversed(items))

    def fill(self, count: int) -> None:
        """Until it holds `count` items, or reading one fails."""
        while len(self._items) < count and not self.ended:
            try:
                self._items.append(own(next(self.iterator)))
            except Exception as error:  # of the user's loader: it belongs to the step that reads so far
                self._error = error


class Ahead:
    """A search that runs beside the training."""

    def __init__(self, search: Callable[[Sizes], Found], sizes: Sizes):
        self.sizes = sizes
        self._search = search
        self._found: Found | None = None
        self._error: Exception | None = None
        self._thread: Thread = threads.start(self._run)

    def _run(self) -> None:
        try:
            self._found = self._search(self.sizes)
        except Exception as error:
            self._error = error

    def result(self) -> Found:
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._found is not None
        return self._found


class NextStep:
    """Of one engine, on the rank of its pipeline that searches. `say`: prints a line, each kind of which it is given once."""

    def __init__(self, search: Callable[[Sizes], Found], size_of: Callable[[Any], Any], say: Callable[[str], None]):
        self._search, self._size_of, self._say = search, size_of, say
        self._unread: Unread | None = None
        self._ahead: Ahead | None = None
        self._off = False  # for good
        self._said: set[str] = set()
        self.hits = 0  # steps whose plan was there

    @property
    def held(self) -> int:
        """Items that were read, and not given out."""
        return 0 if self._unread is None else len(self._unread)

    def before(self, iterator: Iterator[Any] | None) -> Iterator[Any] | None:
        """What to read instead of it."""
        return self._unread if self._unread is not None and self._unread.iterator is iterator else iterator

    def put_back(self, iterator: Iterator[Any], items: list[Any]) -> None:
        """They come before all else of it. Nothing was read of it so far."""
        self._unread = Unread(iterator)
        self._unread.put_back(items)

    def prepare(self, iterator: Iterator[Any] | None, batch_fn: Callable[..., Any] | None, count: int) -> None:
        """Reads the next `count` items, and begins the search for them."""
        self._ahead = None
        if self._off or iterator is None or self._cannot(iterator, batch_fn):
            return
        self._unread = self._unread or Unread(iterator)
        before = states()
        self._unread.fill(count)
        drew = [kind for kind, was, now in zip(KINDS, before, states(), strict=True) if not same(was, now)]
        if drew:
            self._once(
                "draws",
                f"the data loader draws random numbers from {' and '.join(drew)} while micro-batches are read, a step earlier than without "
                '"read_ahead": what else draws from there has other numbers',
            )
        if len(self._unread) < count:
            return
        seen = seen_by(self._size_of, self._unread.items)
        if seen.sizes:  # else the step itself says what is wrong
            self._ahead = Ahead(self._search, seen.sizes)

    def found(self, sizes: Sizes) -> Found | None:
        """What the search for these sizes gave; None where it was for others."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead.sizes != sizes:
            return None
        self.hits += 1
        return ahead.result()

    def tell(self, what: str) -> None:
        """`what` happens to the training: "save_checkpoint()". Says that items have been read of which it knows nothing."""
        if count := self.held:
            self._once(
                what,
                f'{what}: what comes next, {counted(count, "micro-batch")}, has been read already ("read_ahead"): a loader whose position is '
                "saved or set now lies after them",
            )

    def _cannot(self, iterator: Iterator[Any], batch_fn: Callable[..., Any] | None) -> bool:
        if batch_fn is not None:
            self._once("batch_fn", '"read_ahead" has no effect while the engine has a batch_fn, which may be called for items of this step alone')
            return True
        if self._unread is None or self._unread.iterator is iterator:
            return False
        if len(self._unread) or self._unread.ended:
            self._off = True
            self._once("iterator", '"read_ahead" ends here: train_batch() is given another iterator than in the step before')
            if not len(self._unread):
                self._unread = None
        else:
            self._unread = None
        return self._off

    def _once(self, kind: str, text: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            self._say(text)
