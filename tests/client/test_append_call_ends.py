"""How a call of appends ends: in time or not, by an error of who appends, of who is told, of the mount."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import pytest

from tests.client.log_in_process import OPTIONS, Bulk, InProcess, drafts, named, quiet, run
from tests.simulation.virtual_time import hold_up
from waltzctl.engine.client.append_bounds import OversizedAppendError
from waltzctl.engine.client.append_call import AppendCall
from waltzctl.engine.client.client_options import ClientOptions
from waltzctl.engine.client.log_transaction import Build, Draft
from waltzctl.engine.client.partition_mount import ClientAheadError
from waltzctl.engine.errors import DeadlineError, InvalidRequestError, PeerUnreachableError
from waltzctl.engine.net.peer_limits import PortLimits
from waltzctl.formats.wire import client as wire
from waltzctl.formats.wire.append_frames import append_writer
from waltzctl.formats.wire.frame import FRAME_HEADER


def test_a_call_of_which_nothing_is_decided_in_time_ends() -> None:
    async def test(made: InProcess) -> None:
        bulk, log = Bulk(made, drafts(range(7)), timeout=10), made.log
        for number in range(6):  # the first ones make room, behind the others nothing is left to be sent
            await asyncio.sleep(9.9)
            log.commit(1)
            await quiet()
            assert not bulk.task.done(), number
        await asyncio.sleep(9.9)
        assert not bulk.task.done()
        await asyncio.sleep(0.2)
        with pytest.raises(DeadlineError, match=re.escape("no answer within 10 s to appends to partition 0")) as raised:
            bulk.task.result()
        assert "those that were not told may or may not be committed" in str(raised.value)
        assert [place for place, _ in bulk.told] == [*range(6)]
        log.commit(1)
        await quiet()
        one = asyncio.ensure_future(made.client.append(0, Draft(b"one")))
        await quiet()
        assert log.under_way == [b"one"], "what was given up is in nobody's way"
        log.commit()
        assert (await one).transaction_id == 7  # type: ignore[union-attr]

    run(test)


def test_what_is_refused_again_and_again_is_late() -> None:
    async def test(made: InProcess) -> None:
        bulk, log = Bulk(made, drafts(range(1)), timeout=10), made.log
        for _ in range(9):
            await asyncio.sleep(1)
            log.refuse()
        await asyncio.sleep(0.9)
        assert not bulk.task.done()
        await asyncio.sleep(0.2)
        with pytest.raises(DeadlineError):
            bulk.task.result()

    run(test)


def test_what_is_committed_in_the_moment_of_the_deadline_counts() -> None:
    async def test(made: InProcess) -> None:
        bulk, log = Bulk(made, drafts(range(2)), timeout=10), made.log
        await quiet()

        def slow() -> None:
            log.commit()
            hold_up(1.0)

        asyncio.get_running_loop().call_later(
            9.5, slow
        )  # so that the answer is there when the timer rings, and not told
        await asyncio.sleep(20.4)
        assert (bulk.told, bulk.task.done()) == ([(0, 0)], False)
        await asyncio.sleep(0.2)
        assert isinstance(bulk.task.exception(), DeadlineError)

    run(test)


def test_time_in_which_the_loop_was_held_up_counts_for_nothing() -> None:
    """A process that was stopped, or a program that printed: what came meanwhile is looked at first."""

    async def test(made: InProcess) -> None:
        bulk, log = Bulk(made, drafts(range(1)), timeout=10), made.log
        await quiet()
        hold_up(20.0)
        await asyncio.sleep(0)
        await quiet()
        log.commit()
        assert await bulk.task == 1
        late = Bulk(made, drafts(range(1)), timeout=10)
        await quiet()
        hold_up(20.0)
        await asyncio.sleep(9.9)
        assert not late.task.done()
        await asyncio.sleep(0.2)
        assert isinstance(late.task.exception(), DeadlineError), "what has not come then is late all the same"
        always = Bulk(made, drafts(range(1)), timeout=10)
        for held_up in range(5):
            await quiet()
            assert always.task.done() is (held_up == 4), "three times it begins anew"
            hold_up(20.0)
            await asyncio.sleep(0)

    run(test)


def test_a_flush_waits_for_what_was_refused_meanwhile_and_is_sent_again() -> None:
    async def test(made: InProcess) -> None:
        log = made.log
        one = asyncio.ensure_future(made.client.append(0, Draft(b"one")))
        bulk = Bulk(made, drafts(range(3)))  # the last one waits for room
        await quiet()
        flush = asyncio.ensure_future(made.client.flush(0))
        await quiet()
        log.refuse()
        log.commit(others=1)
        await quiet()
        assert not flush.done()
        log.commit(1)
        log.refuse()
        await quiet()
        assert not flush.done(), "two are sent again"
        while log.appends:
            log.commit(1)
            await quiet()
        assert await flush >= max((await one).transaction_id, bulk.told[0][1])  # type: ignore[union-attr]

    run(test)


def test_a_server_that_is_nowhere_is_waited_for_until_the_deadline() -> None:
    async def test(made: InProcess) -> None:
        made.directory.tell({})
        bulk = Bulk(made, drafts(range(2)), timeout=10)
        with pytest.raises(DeadlineError):
            await bulk.task
        assert bulk.taken == 0

    run(test)


def test_a_flush_that_lacks_memory_when_it_begins_is_waited_for_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client id that was spent was never given up: its mount waited for that flush."""

    def fails(_call: object) -> set[int]:
        raise MemoryError

    async def test(made: InProcess) -> None:
        bulk = Bulk(made, drafts(range(2)))
        await quiet()
        with monkeypatch.context() as patch:
            patch.setattr(AppendCall, "undecided", property(fails))
            with pytest.raises(MemoryError):
                await made.mount.flush()
        made.log.commit(2)
        assert await bulk.task == 2
        await asyncio.wait_for(made.mount.settled(), 1)

    run(test)


def test_a_call_that_is_cancelled_leaves_nothing_behind() -> None:
    async def test(made: InProcess) -> None:
        bulk, log = Bulk(made, drafts(count())), made.log
        await quiet()
        log.refuse(1)
        await asyncio.sleep(0)
        assert made.mount._undecided.to_resend == 1
        bulk.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await bulk.task
        one = asyncio.ensure_future(made.client.append(0, Draft(b"one")))
        log.commit(1)
        await quiet()
        assert log.under_way == [b"2", b"one"]
        assert (made.mount._undecided.to_resend, len(made.mount._undecided.sent)) == (0, 1)
        log.commit(2)
        assert (await one).transaction_id == 2  # type: ignore[union-attr]
        assert (bulk.told, made.mount._running.appending, made.mount._running.turns, made.mount._undecided.sent) == (
            [],
            {},
            {},
            {},
        )
        await asyncio.wait_for(made.mount.settled(), 1)

    run(test)


def test_the_error_of_a_builder_is_raised_when_all_in_front_is_decided_and_nothing_behind_it_is_sent() -> None:
    async def test(made: InProcess) -> None:
        def fails(_mark: int) -> Draft:
            raise ZeroDivisionError

        log, bulk = made.log, Bulk(made, [Draft(b"0"), fails, Draft(b"2"), Draft(b"3")])
        await quiet()
        assert log.under_way == [b"0"]
        log.refuse()
        await quiet()
        assert (log.under_way, bulk.task.done()) == ([b"0"], False)
        log.commit()
        with pytest.raises(ZeroDivisionError):
            await bulk.task
        assert bulk.told == [(0, 0)]

    run(test)


def test_of_two_errors_of_builders_the_one_in_front_is_raised_and_what_is_behind_is_not_sent_again() -> None:
    async def test(made: InProcess) -> None:
        def builder(number: int) -> Build:
            def build(mark: int) -> Draft:
                if mark >= 0:
                    raise ValueError(str(number))
                return Draft(b"%d" % number)

            return build

        bulk = Bulk(made, map(builder, range(5)))
        await quiet()
        made.log.commit(1)
        await quiet()
        assert made.log.under_way == named([1, 2])
        assert bulk.taken == 4
        made.log.refuse(1)
        await quiet()
        made.log.refuse(0)
        with pytest.raises(ValueError, match=r"^1$"):
            await bulk.task
        assert made.log.under_way == []

    run(test)


def test_what_is_under_way_behind_an_error_is_not_sent_again() -> None:
    async def test(made: InProcess) -> None:
        bulk, log = (
            Bulk(made, [Draft(b"0"), lambda mark: Draft(b"%d" % (1 // -mark)), Draft(b"2"), Draft(b"3")]),
            made.log,
        )
        await quiet()
        log.commit(1)
        await quiet()
        assert log.under_way == named([1, 2, 3])
        log.refuse(0)
        await quiet()
        log.refuse(0)
        await quiet()
        assert log.under_way == named([3])
        log.commit(1)
        with pytest.raises(ZeroDivisionError):
            await bulk.task
        assert bulk.told == [(0, 0), (3, 1)]

    run(test)


def test_the_error_of_who_gives_the_drafts_is_raised_when_all_that_came_before_is_decided() -> None:
    async def test(made: InProcess) -> None:
        def given() -> Iterator[Draft]:
            yield from drafts(range(2))
            raise ZeroDivisionError

        bulk = Bulk(made, given())
        await quiet()
        made.log.refuse(1)
        await quiet()
        assert made.log.under_way == named([0, 1])
        made.log.commit(1)
        await quiet()
        assert not bulk.task.done()
        made.log.commit(1)
        with pytest.raises(ZeroDivisionError):
            await bulk.task
        assert bulk.told == [(0, 0), (1, 1)]

    run(test)


def test_what_a_frame_cannot_say_is_the_callers_error() -> None:
    async def test(made: InProcess) -> None:
        for wrong in (Draft(b"", header=2**31), Draft(b"", header=2**31, write_locks=[("l", 1)])):
            bulk = Bulk(made, [Draft(b"0"), wrong, Draft(b"2")])
            await quiet()
            made.log.commit()
            with pytest.raises(InvalidRequestError, match="AppendRequest"):
                await bulk.task
            with pytest.raises(InvalidRequestError, match="AppendRequest"):
                await made.client.append(0, wrong)
        assert made.log.committed == [b"0", b"0"]

    run(test)


def test_an_append_that_no_server_takes_is_the_callers_error_and_disturbs_nobody() -> None:
    """One step to each side of the longest; what is under way, and what others append, goes on over the same mount."""
    empty = len(append_writer(4)(0, 0, 0, 0, 0, 0, b"", (), (), ())) - FRAME_HEADER.size
    most = empty + 100

    async def test(made: InProcess) -> None:
        log, mounts = made.log, made.log.mounts
        bulk = Bulk(made, [Draft(b"0"), Draft(bytes(100)), Draft(bytes(101)), Draft(b"3")])
        single = asyncio.ensure_future(
            made.client.append(0, Draft(bytes(92), write_locks=[("a", 1), ("b", 1), ("c", 1)]))
        )
        await quiet()
        assert log.under_way == [b"0", bytes(100)]
        log.commit(2)
        with pytest.raises(
            OversizedAppendError, match=f"{most + 1} bytes; the longest that a server takes is {most}"
        ) as told:
            await bulk.task
        assert told.value.place == 2
        assert bulk.told == [(0, 0), (1, 1)]
        with pytest.raises(OversizedAppendError, match=f"{most + 4} bytes"):
            await single
        await quiet()
        assert (log.under_way, log.mounts, made.mount._undecided.sent) == ([], mounts, {})

    run(test, replace(OPTIONS, max_body=most))


@pytest.mark.turns(10)
@pytest.mark.parametrize("kind", ["write_locks", "read_locks", "append_locks"])
def test_more_locks_than_a_server_takes_are_the_callers_error(kind: str) -> None:
    """One step to each side of the most.  A server closed the connection, with what others had in flight, time and again."""
    most = 65_536
    locks = [("lock", number) for number in range(most + 1)]

    def draft(count: int) -> Draft:
        return Draft(b"", **{kind: locks[:count]})

    async def test(made: InProcess) -> None:
        single = asyncio.ensure_future(made.client.append(0, draft(most)))
        with pytest.raises(OversizedAppendError, match=f"{most + 1} locks of one kind; the most .* are {most}"):
            await made.client.append(0, draft(most + 1))
        await quiet()
        assert len(made.log.under_way) == 1
        made.log.commit()
        assert await single is not None

    run(test)


def test_the_longest_append_is_that_of_a_server_that_was_not_told_otherwise() -> None:
    assert ClientOptions().max_body == PortLimits().max_client_body


@pytest.mark.parametrize(
    ("cuts", "why"), [(0, "no session"), (1, "no session"), (2, "is lost again and again: here:1: ")]
)
def test_a_call_that_is_late_says_that_the_server_closes_the_connections(cuts: int, why: str) -> None:
    async def test(made: InProcess) -> None:
        for _ in range(5):
            made.log.cut()  # before the call
            await asyncio.sleep(1.0)
        late = asyncio.ensure_future(made.client.append(0, Draft(b"0"), timeout=10.0))
        for _ in range(cuts):
            await asyncio.sleep(1.0)
            made.log.cut()
        with pytest.raises(DeadlineError, match=why):
            await late

    run(test)


def test_the_error_of_who_is_told_is_raised_at_once() -> None:
    async def test(made: InProcess) -> None:
        def told(place: int, _number: int) -> None:
            raise ZeroDivisionError

        bulk = Bulk(made, drafts(count()), told=told)
        await quiet()
        made.log.commit()
        with pytest.raises(ZeroDivisionError):
            await bulk.task
        assert made.mount._undecided.sent == {}

    run(test)


def test_a_client_that_is_closed_and_one_that_is_ahead_end_the_call() -> None:
    async def closed(made: InProcess) -> None:
        bulk = Bulk(made, drafts(count()))
        await quiet()
        made.log.commit(1)
        await quiet()
        await made.client.close()
        with pytest.raises(PeerUnreachableError, match="it was closed"):
            await bulk.task
        assert bulk.told == [(0, 0)]

    async def ahead(made: InProcess) -> None:
        bulk = Bulk(made, drafts(count()))
        await quiet()
        made.log.state = wire.MountState.CLIENT_AHEAD
        made.log.commit(1, told=False)
        made.log.cut()
        with pytest.raises(ClientAheadError):
            await bulk.task
        assert bulk.told == [(0, 0)], "what is decided is told before"
        with pytest.raises(ClientAheadError):
            await made.client.append_all(0, drafts(range(1)))

    run(closed)
    run(ahead)
