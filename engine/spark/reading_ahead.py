"""Reading ahead in a task: the next piece is made while Spark takes the one before.

A worker hands its batches over through a socket and waits there until Java has written them.  A thread uses that time.  It ends
with the task, and one piece more is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")


def made_ahead(items: Iterable[Item], make: Callable[[Item], Sequence[Made]]) -> Iterator[Made]:
    """What `make` gives for each of `items`, in order; one call is ahead of what was taken.

    Raises what `make` raises, in its place.  `make` runs in another thread, one call at a time.  Whoever closes the iterator
    waits for the call that is under way.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="reading-ahead") as pool:
        before: Future[Sequence[Made]] | None = None
        for item in items:
            following = pool.submit(make, item)
            if before is not None:
                yield from before.result()
            before = following
        if before is not None:
            yield from before.result()
