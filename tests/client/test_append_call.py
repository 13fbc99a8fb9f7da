"""Appends in bulk: the window, turns, what is sent again, and the end of a client id; one step to each side of every decision."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import count

import pytest

from tests.client.log_in_process import OPTIONS, Bulk, InProcess, drafts, named, quiet, run
from waltzctl.engine.client.log_connection import LogConnection
from waltzctl.engine.client.log_transaction import Draft
from waltzctl.engine.client.partition_mount import SPENT_AT
from waltzctl.engine.errors import PeerUnreachableError
from waltzctl.formats.wire import client as wire

# ---- the window -------------------------------------------------------------------------------------------------------------


def test_as_many_are_under_way_as_may_be_and_the_next_leave_as_soon_as_some_are_decided() -> None:
    async def test(made: InProcess) -> None:
        bulk, log = Bulk(made, drafts(range(8))), made.log
        await quiet()
        assert (log.came, bulk.taken) == ([named([0, 1, 2])], 3)
        log.commit()
        await quiet()
        assert (log.came[1:], bulk.taken) == ([named([3])], 4)
        log.commit(2)
        await quiet()
        assert (log.came[2:], bulk.taken) == ([named([4, 5])], 6)  # both in one write
        assert bulk.told == [(0, 0), (1, 1), (2, 2)]
        log.commit(3)
        await quiet()
        assert not bulk.task.done()
        log.commit(2)
        assert await bulk.task == 8
        assert bulk.told == [(one, one) for one in range(8)]
        assert log.committed == named(range(8))
        assert log.most == 3

    run(test)


def test_nothing_new_leaves_while_the_connection_takes_no_more() -> None:
    """However long they are: what the server does not read would pile up in the client."""

    async def test(made: InProcess) -> None:
        log, connection = made.log, made.log._connection
        assert connection is not None
        connection.pause_writing()
        bulk, single = Bulk(made, drafts(range(4))), asyncio.ensure_future(made.client.append(0, Draft(b"single")))
        await quiet()
        assert (log.came, bulk.taken) == ([], 0)
        connection.resume_writing()
        await quiet()
        assert log.came == [named([0, 1, 2])]
        connection.pause_writing()
        log.commit(2)
        await quiet()
        assert len(log.came) == 1
        log.cut()  # the next one takes what comes
        await asyncio.sleep(0.1)
        log.commit(3)
        await asyncio.sleep(0.1)
        log.commit(3)
        assert await bulk.task == 4
        await single
        assert sorted(log.committed) == sorted([*named(range(4)), b"single"])

    run(test)


def test_nothing_to_append_is_a_call_that_is_done() -> None:
    async def test(made: InProcess) -> None:
        assert await made.client.append_all(0, []) == 0
        assert await made.client.append_all(0, [lambda _mark: None] * 10) == 0
        assert made.log.came == []

    run(test)


def test_what_there_is_nothing_to_append_for_is_left_out() -> None:
    async def test(made: InProcess) -> None:
        given = [Draft(b"0"), *[lambda _mark: None] * 9, Draft(b"10"), lambda mark: Draft(b"%d" % mark)]
        bulk = Bulk(made, given)
        await quiet()
        assert made.log.under_way == [b"0", b"10", b"-1"]
        made.log.commit(3)
        assert await bulk.task == 3
        assert bulk.told == [(0, 0), (10, 1), (11, 2)]

    run(test)


def test_a_call_that_tells_nobody() -> None:
    async def test(made: InProcess) -> None:
        bulk = Bulk(made, drafts(range(2)), told=None)
        await quiet()
        made.log.commit(2)
        assert await bulk.task == 2

    run(test)


def test_locks_and_headers_are_sent() -> None:
    async def test(made: InProcess) -> None:
        locks = {"write_locks": [("w", 1)], "read_locks": [("r", 2)], "append_locks": [("a", 3), ("b", 4)]}
        bulk = Bulk(made, drafts([0], header=-5, **locks))
        await quiet()
        (sent,) = made.log.appends
        assert (sent.header, len(sent.write_locks), len(sent.read_locks), len(sent.append_locks)) == (-5, 1, 1, 2)
        made.log.commit()
        assert await bulk.task == 1

    run(test)


# ---- what is sent again -----------------------------------------------------------------------------------------------------


def test_what_a_lock_refused_is_built_anew_and_sent_in_front_of_what_is_new() -> None:
    async def test(made: InProcess) -> None:
        log = made.log
        bulk = Bulk(made, [lambda mark, number=number: Draft(b"%d at %d" % (number, mark)) for number in range(5)])
        await quiet()
        assert log.under_way == [b"0 at -1", b"1 at -1", b"2 at -1"]
        log.refuse(1, behind=1)
        await quiet()
        assert len(log.came) == 1, "the feed has not come to what is in the way"
        assert bulk.taken == 3, "what was refused is undecided"
        log.commit()
        await quiet()
        assert log.under_way == [b"2 at -1", b"1 at 0", b"3 at 0"]
        log.refuse(0)
        log.refuse(0)
        await quiet()
        assert log.under_way == [b"3 at 0", b"1 at 0", b"2 at 0"], "in their order"
        log.commit(3, others=2)
        await quiet()
        log.commit()
        assert await bulk.task == 5
        assert bulk.told == [(0, 0), (3, 3), (1, 4), (2, 5), (4, 6)]
        assert log.most == 3

    run(test)


def test_what_was_refused_and_is_not_wanted_any_more_is_left_out() -> None:
    async def test(made: InProcess) -> None:
        bulk = Bulk(made, [lambda mark: Draft(b"0") if mark < 0 else None, Draft(b"1")])
        await quiet()
        made.log.commit(0, others=1)
        made.log.refuse(0)
        await quiet()
        made.log.commit()
        assert await bulk.task == 1
        assert bulk.told == [(1, 1)]

    run(test)


def test_a_mount_that_is_lost_decides_what_was_under_way_and_nothing_is_lost_or_there_twice() -> None:
    async def test(made: InProcess) -> None:
        bulk, log = Bulk(made, drafts(range(5))), made.log
        await quiet()
        log.commit(2, told=False)
        log.cut()
        await quiet()
        assert log.mounts == 2
        assert bulk.told == [(0, 0), (1, 1)]
        assert log.under_way == named([2, 3, 4]), "what was under way in front of what is new"
        log.commit(3)
        assert await bulk.task == 5
        assert log.committed == named(range(5))

    run(test)


def test_nothing_is_sent_to_a_server_that_is_not_ready() -> None:
    async def test(made: InProcess) -> None:
        log = made.log
        log.state = wire.MountState.NOT_READY
        log.cut()
        await quiet()
        bulk, one = Bulk(made, drafts(range(2))), asyncio.ensure_future(made.client.append(0, Draft(b"one")))
        await asyncio.sleep(1)
        assert log.mounts > 2
        assert (log.came, bulk.taken) == ([], 0)
        log.state = wire.MountState.READY
        await asyncio.sleep(1)
        assert log.under_way == [*named([0, 1]), b"one"], "in the order of the calls"
        log.commit(3)
        assert (await bulk.task, (await one).transaction_id) == (2, 2)  # type: ignore[union-attr]

    run(test)


def test_what_a_connection_did_not_take_is_sent_by_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(made: InProcess) -> None:
        connection = made.mount._connection
        assert connection is not None
        connection._error = PeerUnreachableError("here", "it broke, and the mount is not told as yet")
        bulk = Bulk(made, drafts(range(4)))
        asyncio.get_running_loop().call_soon(made.mount._endpoint._lost, connection._error)  # type: ignore[union-attr]
        await quiet()
        assert made.log.under_way == named([0, 1, 2])
        made.log.commit(3)
        await quiet()
        made.log.commit(1)
        assert await bulk.task == 4

    run(test)


def test_appends_that_the_server_passed_over_are_found_by_what_follows_or_by_a_nudge() -> None:
    async def test(made: InProcess) -> None:
        bulk, log = Bulk(made, drafts(range(3))), made.log
        await quiet()
        log.pass_over()
        log.commit()
        await quiet()
        assert log.under_way == named([2, 0])
        log.pass_over()
        log.pass_over()
        await asyncio.sleep(9.9)  # twice: something was decided in the first time
        assert log.under_way == []
        await asyncio.sleep(0.2)
        assert log.under_way == named([0, 2])
        log.commit(2)
        assert await bulk.task == 3

    run(test, replace(OPTIONS, nudge=5.0))


@pytest.mark.parametrize("silent", [1, 3])
def test_a_mount_that_a_server_leaves_unanswered_is_asked_for_again(silent: int) -> None:
    """A released server does, and goes on otherwise, where it gets no session for a moment, say without ZooKeeper."""

    async def test(made: InProcess) -> None:
        made.log.silent = silent
        made.moves(2)
        bulk = Bulk(made, drafts(range(1)), timeout=100.0)
        await asyncio.sleep(5.0 * (2**silent - 1) - 0.1)
        assert (made.log.under_way, made.log.mounts) == ([], 1)
        await asyncio.sleep(0.2)
        assert made.log.under_way == named([0])
        made.log.commit()
        assert await bulk.task == 1

    run(test, replace(OPTIONS, nudge=5.0))


@pytest.mark.parametrize("appends", [True, False])
def test_a_flush_that_a_server_leaves_unanswered_is_decided_by_the_next_mount(appends: bool) -> None:
    async def test(made: InProcess) -> None:
        made.log.silent = 1
        if appends:
            bulk = Bulk(made, drafts(range(1)))
            await quiet()
            made.log.pass_over()
            await asyncio.sleep(15.1)  # a nudge, and then the mount
            assert made.log.under_way == named([0])
            made.log.commit()
            assert await bulk.task == 1
        else:
            assert await made.client.flush(0) == -1
        assert made.log.mounts == 2

    run(test, replace(OPTIONS, nudge=5.0))


@pytest.mark.parametrize("kind", [wire.FlushRequest, wire.MountRequest])
def test_a_moment_without_memory_in_which_appends_are_asked_for_is_not_the_last_one(
    monkeypatch: pytest.MonkeyPatch, kind: type
) -> None:
    """Nothing was sent any more, and all calls waited for their deadlines."""
    real, failed = LogConnection.send, list[object]()

    def send(connection: LogConnection, message: wire.ClientRequest) -> None:
        if isinstance(message, kind) and not failed:
            failed.append(message)
            raise MemoryError
        real(connection, message)

    async def test(made: InProcess) -> None:
        bulk = Bulk(made, drafts(range(1)), timeout=100.0)
        await quiet()
        made.log.pass_over()
        made.log.silent = 1  # the flush, so that the next mount decides
        monkeypatch.setattr(LogConnection, "send", send)
        await asyncio.sleep(30.0)
        assert failed
        assert made.log.under_way == named([0])
        made.log.commit()
        assert await bulk.task == 1

    run(test, replace(OPTIONS, nudge=5.0))


def test_a_mount_has_time_for_its_answer_also_without_a_nudge() -> None:
    """With a `nudge` of 0 one followed the other, and none was the last one when its answer came."""

    async def test(made: InProcess) -> None:
        made.moves(2)
        bulk = Bulk(made, drafts(range(1)))
        await quiet()
        assert (made.log.mounts, made.log.under_way) == (2, named([0]))
        made.log.commit()
        assert await bulk.task == 1

    run(test, replace(OPTIONS, nudge=0.0))


def test_a_feed_that_a_server_has_given_up_is_begun_again() -> None:
    """A released server passes over the request for a feed where it has no session at that moment."""

    async def test(made: InProcess) -> None:
        bulk = Bulk(made, drafts(range(1)))
        await quiet()
        made.log.commit(told=False)
        await asyncio.sleep(10.1)
        assert await bulk.task == 1
        assert made.log.committed == named([0])

    run(test, replace(OPTIONS, nudge=5.0))


def test_a_mount_whose_feed_goes_on_is_not_asked_for_again() -> None:
    async def test(made: InProcess) -> None:
        bulk = Bulk(made, drafts(range(1)))
        for _ in range(20):
            await asyncio.sleep(3.0)
            made.log.commit(0, others=1)
        assert made.log.mounts == 1
        made.log.commit()
        assert await bulk.task == 1

    run(test, replace(OPTIONS, nudge=5.0, timeout=100.0))


# ---- the end of a client id -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [0, 1, 2, 3, 4])
def test_c10_a_call_goes_on_under_the_next_client_id_when_all_under_way_is_decided(before: int) -> None:
    async def test(made: InProcess) -> None:
        log, old = made.log, made.mount
        old._sequence = SPENT_AT - before
        calls = [Bulk(made, drafts(range(4))), Bulk(made, drafts(range(10, 12)))]
        one = asyncio.ensure_future(made.client.append(0, Draft(b"one")))
        await quiet()
        assert [request.request_id.client for request in log.appends] == [old.client_id] * min(before, 3) or before == 0
        while not (calls[0].task.done() and calls[1].task.done() and one.done()):
            if len({request.request_id.client for request in log.appends}) > 1:
                raise AssertionError("the next client id is used while something is under way under the last one")
            log.commit(1)
            await quiet()
        ids = [number for number, _ in log.log]
        assert [number.client for number in ids] == [101] * before + [102] * (7 - before)
        assert len({*ids}) == 7
        assert sorted(log.committed) == sorted([*named([*range(4), 10, 11]), b"one"])
        assert [await call.task for call in calls] == [4, 2]
        assert made.mount is not old or before > 6

    run(test)


# ---- several calls at once --------------------------------------------------------------------------------------------------


def test_all_calls_of_a_partition_share_one_window_and_have_their_turns() -> None:
    async def test(made: InProcess) -> None:
        log = made.log
        bulks = [Bulk(made, drafts(count(1000 * one))) for one in range(2)]
        await quiet()
        assert log.under_way == named([0, 1, 2])
        singles = [asyncio.ensure_future(made.client.append(0, Draft(b"single"))) for _ in range(4)]
        for _ in range(12):
            await quiet()
            assert len(log.appends) == 3
            log.commit(1)
        await quiet()
        assert log.committed == [*named([0, 1, 2, 3, 1000]), *[b"single"] * 4, *named([4, 1001, 5])]
        assert all(one.done() for one in singles)
        assert log.most == 3
        for bulk in bulks:
            bulk.task.cancel()
        await asyncio.gather(*(bulk.task for bulk in bulks), return_exceptions=True)

    run(test)


def test_a_call_in_whose_turn_nothing_comes_is_in_nobody_s_way() -> None:
    async def test(made: InProcess) -> None:
        log = made.log
        first = Bulk(made, drafts(range(3)))
        await quiet()
        waiting = [asyncio.ensure_future(made.client.append(0, Draft(b"%d" % one))) for one in (10, 11, 12)]
        await quiet()
        waiting[0].cancel()
        log.commit(1)
        await quiet()
        assert log.under_way == named([1, 2, 11])
        log.commit(3)
        await quiet()
        assert log.under_way == named([12])
        log.commit(1)
        assert await first.task == 3

    run(test)


def test_new_appends_go_behind_those_that_other_calls_have_to_send_again() -> None:
    async def test(made: InProcess) -> None:
        log = made.log
        bulk = Bulk(made, drafts(range(6)))
        await quiet()
        one = asyncio.ensure_future(made.client.append(0, Draft(b"one")))
        await quiet()
        for _ in range(2):
            log.commit(1)
            await quiet()
        assert log.under_way == [b"2", b"3", b"one"]
        log.refuse(2, behind=1)
        await quiet()
        log.commit(1)  # the bulk is woken first
        await quiet()
        assert log.under_way == [b"3", b"one", b"4"]
        log.commit(3)
        await quiet()
        log.commit(1)
        assert (await bulk.task, (await one).transaction_id) == (6, 4)  # type: ignore[union-attr]

    run(test)
