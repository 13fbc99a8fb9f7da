"""Reading ahead in a task: a thread makes the next piece while Spark takes the one before.

A worker sends its batches through a socket, and waits there until Java has read them; the thread uses that time.  It ends with
the task.  One more piece is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")


def made_ahead(items: Iterable[Item], make: Callable[[Item], Sequence[Made]]) -> Iterator[Made]:
    """The results of ``make(item)`` for all items, in order; `make` is called one item ahead, in another thread.

    Raises what `make` raises, at that item's place.  Closing the iterator waits for a running call.
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
