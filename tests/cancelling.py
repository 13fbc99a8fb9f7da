"""Calls that are cancelled at each of their awaits, one after the other, and what must be as before behind each of them.

A caller may cancel while a call waits, and when what it waits for has come and its task has not gone on yet: then the call has to
close what was made for it.  A caller that is impatient cancels again while the call clears away.

A scene is made anew for each await.  With the call it is over; whatever it leaves in the event loop is an error.
"""

from __future__ import annotations

import asyncio
import enum
import functools
import gc
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

import pytest

from tests.simulation.virtual_time import simulate

S = TypeVar("S")
TURNS = 20
"""Of the loop, in which what was closed at the end of a scene is gone."""
_MOST_AWAITS = 2000
"""More of them than any call here has; a call that goes on for ever behind its cancellations would not end."""


class Moment(enum.Enum):
    """When an await is cancelled."""

    WAITS = "waits"
    HAS_COME = "has come"


WAYS = pytest.mark.parametrize(
    ("moment", "again"),
    [(Moment.WAITS, 0), (Moment.HAS_COME, 0), (Moment.WAITS, 3)],
    ids=["waits", "has-come", "again-and-again"],
)
"""`again`: at how many awaits behind the first one the call is cancelled as well."""


@dataclass
class _Cancelling:
    """Awaited in place of `work`: cancels its task at await `at`, and at the next `again` ones; they are counted from 0."""

    work: Coroutine[Any, Any, Any]
    at: int
    moment: Moment
    again: int
    awaits: int = 0
    cancelled: int = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Callable[[], Any] = functools.partial(self.work.send, None)
        while True:
            try:
                waits_for = step()
            except StopIteration as ended:
                return ended.value
            if self.at <= self.awaits <= self.at + self.again:
                self._cancel(waits_for)
            self.awaits += 1
            assert self.awaits < _MOST_AWAITS, "it goes on and on"
            try:
                step = functools.partial(self.work.send, (yield waits_for))
            except BaseException as error:
                step = functools.partial(self.work.throw, error)

    def _cancel(self, waits_for: asyncio.Future[Any] | None) -> None:
        task = asyncio.current_task()
        assert task is not None

        def cancel(_: object = None) -> None:
            self.cancelled += 1
            task.cancel()

        if self.moment is Moment.WAITS or waits_for is None:
            cancel()
        else:
            waits_for.add_done_callback(cancel)  # called in front of the task's own


async def cancelled_at(work: Coroutine[Any, Any, Any], at: int, moment: Moment, again: int = 0) -> bool:
    """Run `work` in a task and cancel it; False where it ended in front of that await.

    Fails where the cancellation does not reach the caller.
    """
    cancelling = _Cancelling(work, at, moment, again)

    async def whole() -> object:
        return await cancelling

    task = asyncio.ensure_future(whole())
    await asyncio.wait([task])
    if not cancelling.cancelled:
        task.result()
        return False
    if not task.cancelled():
        outcome = task.exception() or task.result()
        raise AssertionError(f"cancelled at await {at} it ended with {outcome!r}") from task.exception()
    return True


def at_each_await(
    scene: Callable[[], AbstractAsyncContextManager[S]],
    call: Callable[[S], Coroutine[Any, Any, Any]],
    then: Callable[[S], Awaitable[object]],
    *,
    moment: Moment,
    again: int,
    run: Callable[[Coroutine[Any, Any, bool]], bool] = simulate,
) -> int:
    """Cancel `call` at each of its awaits, each time in a new scene, and look `then`; how many awaits there are."""
    told: list[dict[str, Any]] = []

    async def one(at: int) -> bool:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        before = asyncio.all_tasks()
        try:
            async with scene() as made:
                was_cancelled = await cancelled_at(call(made), at, moment, again)
                await then(made)
            for _ in range(TURNS):
                await asyncio.sleep(0)
            left = asyncio.all_tasks() - before
            assert not left, f"tasks are left: {left}"
        except BaseException as error:
            error.add_note(f"cancelled at await {at}, {moment.value}")
            raise
        return was_cancelled

    awaits = next(at for at in count() if not run(one(at)))
    gc.collect()  # tells of tasks and exceptions that nobody looked after
    assert not told, told
    return awaits
