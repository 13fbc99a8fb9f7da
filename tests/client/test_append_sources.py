"""Appends in bulk from an asynchronous iterable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.client.log_in_process import Bulk, InProcess, named, quiet, run
from waltzctl.engine.client.log_transaction import Draft
from waltzctl.engine.errors import DeadlineError


class Fed:
    """An asynchronous iterable that a test fills."""

    def __init__(self) -> None:
        self._items: asyncio.Queue[Draft | Exception | None] = asyncio.Queue()
        self.taken = 0

    def give(self, *items: bytes | Exception | None) -> None:
        for item in items:
            self._items.put_nowait(Draft(item) if isinstance(item, bytes) else item)

    async def __aiter__(self) -> AsyncIterator[Draft]:
        while (item := await self._items.get()) is not None:
            if isinstance(item, Exception):
                raise item
            self.taken += 1
            yield item


def test_drafts_are_awaited_and_read_ahead_by_no_more_than_a_window() -> None:
    async def test(made: InProcess) -> None:
        source, log = Fed(), made.log
        bulk = Bulk(made, source)  # type: ignore[arg-type]
        await quiet()
        source.give(b"0")
        await quiet()
        assert log.under_way == [b"0"]
        source.give(*named(range(1, 20)))
        await quiet()
        assert log.under_way == named([0, 1, 2])
        assert source.taken == 6
        while len(log.log) < 20:
            log.commit(2)
            await quiet()
        assert not bulk.task.done()
        source.give(None)
        assert await bulk.task == 20
        assert bulk.told == [(one, one) for one in range(20)]
        assert log.most == 3

    run(test)


@pytest.mark.parametrize(("size", "ahead"), [(49, 3), (50, 2), (99, 2), (100, 1), (1000, 1)])
def test_drafts_are_read_ahead_by_no_more_than_so_many_bytes(
    size: int, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waltzctl.engine.client.append_call.AHEAD_BYTES", 100)

    async def test(made: InProcess) -> None:
        source, log = Fed(), made.log
        bulk = Bulk(made, source)  # type: ignore[arg-type]
        source.give(*[bytes(size)] * 20, None)
        for committed in range(15):
            await quiet()
            assert len(log.under_way) == 3
            assert source.taken == committed + 3 + ahead
            log.commit(1)
        while not bulk.task.done():
            log.commit(1)
            await quiet()
        assert await bulk.task == 20

    run(test)


def test_a_call_that_waits_for_drafts_is_never_late() -> None:
    async def test(made: InProcess) -> None:
        source, log = Fed(), made.log
        bulk = Bulk(made, source, timeout=10)  # type: ignore[arg-type]
        for number in range(3):
            await asyncio.sleep(17)
            source.give(b"%d" % number)
            await asyncio.sleep(9.9)
            assert not bulk.task.done(), "the deadline begins when it is sent"
            log.commit()
            await quiet()
        source.give(b"3")
        await asyncio.sleep(10.1)
        assert isinstance(bulk.task.exception(), DeadlineError)

    run(test)


def test_the_error_of_an_asynchronous_source_is_raised_when_all_before_it_is_decided() -> None:
    async def test(made: InProcess) -> None:
        source, log = Fed(), made.log
        bulk = Bulk(made, source)  # type: ignore[arg-type]
        source.give(*named(range(4)), ZeroDivisionError())
        await quiet()
        assert log.under_way == named(range(3))
        log.commit(3)
        await quiet()
        assert log.under_way == named([3])
        log.commit(1)
        with pytest.raises(ZeroDivisionError):
            await bulk.task
        assert len(bulk.told) == 4

    run(test)


def test_a_source_is_let_go_when_the_call_is_cancelled() -> None:
    async def test(made: InProcess) -> None:
        source = Fed()
        before = len(asyncio.all_tasks())
        bulk = Bulk(made, source)  # type: ignore[arg-type]
        source.give(*named(range(20)))
        await quiet()
        bulk.task.cancel()
        await asyncio.wait([bulk.task])
        assert bulk.task.cancelled()
        assert len(asyncio.all_tasks()) == before

    run(test)
