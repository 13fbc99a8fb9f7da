"""Questions to log servers, for data and for marks: when they are repeated; a log server in this process, in virtual time."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.client.log_in_process import LogInProcess, quiet
from tests.client.told_servers import Directory
from tests.server.storing import LOG
from tests.simulation.virtual_time import hold_up, simulate
from waltzctl.engine.client.client_options import ClientOptions
from waltzctl.engine.client.log_client import LogClient
from waltzctl.engine.client.log_connection import LogConnection
from waltzctl.engine.client.log_transaction import Draft
from waltzctl.engine.client.partition_mount import ClientAheadError, Mount
from waltzctl.engine.errors import DeadlineError, InvalidRequestError, PeerUnreachableError, RefusedError
from waltzctl.engine.metadata.server_directory import PartitionServer
from waltzctl.engine.net.addresses import Address
from waltzctl.formats.checksums import crc32
from waltzctl.formats.wire import client as wire

DATA = bytes(1000)
SILENCE = 1.0
"""Seconds after which data is asked for again."""


@dataclass
class AskedServer(LogInProcess):
    """Answers nothing by itself; `asked`: the questions, in their order."""

    asked: list[Any] = field(default_factory=list)

    def _answer(self, message: Any) -> None:
        self.asked.append(message)

    def answer(self, number: int = 0, data: bytes = DATA) -> bytes:
        """The frame that answers a question for data."""
        question = self.asked[number]
        outcome = wire.TransactionData(data, crc32(data))
        return wire.encode(wire.TransactionDataResponse(question.request_id, question.transaction_id, outcome))

    async def send(self, frames: bytes, pieces: int, every: float) -> None:
        """In so many pieces, each of them so many seconds later."""
        assert self._connection is not None
        size = -(-len(frames) // pieces)
        for begin in range(0, len(frames), size):
            await asyncio.sleep(every)
            self._connection.data_received(frames[begin : begin + size])


def run(test: Callable[[AskedServer, LogClient], Awaitable[None]], timeout: float = 30.0) -> None:
    async def whole() -> None:
        server, directory = AskedServer(), Directory(servers={0: PartitionServer("here", 1, 1)})
        options = ClientOptions(timeout=timeout, first_retry=0.01)
        async with LogClient(directory, server.connect, log=LOG, options=options) as client:
            await quiet()
            await test(server, client)

    simulate(whole())


def test_data_that_takes_long_to_come_is_asked_for_once() -> None:
    async def test(server: AskedServer, client: LogClient) -> None:
        asking = asyncio.ensure_future(client.data(0, 7))
        await quiet()
        await server.send(server.answer(), 20, 0.9 * SILENCE)
        assert await asking == DATA
        assert len(server.asked) == 1

    run(test)


@pytest.mark.parametrize("coming", [True, False])
def test_data_that_comes_is_asked_for_once_however_often_the_program_is_held_up(coming: bool) -> None:
    """Behind its third stop the second question had the server send all of it once more."""

    async def test(server: AskedServer, client: LogClient) -> None:
        asking = asyncio.ensure_future(client.data(0, 7))
        await quiet()
        frame, connection = server.answer(), server._connection
        assert connection is not None
        for place in range(0, len(frame), 100):
            hold_up(3 * SILENCE)
            if coming:
                asyncio.get_running_loop().call_later(0.01, connection.data_received, frame[place : place + 100])
            await asyncio.sleep(0.1)
        if coming:
            assert await asking == DATA
        assert (len(server.asked) == 1) is coming
        asking.cancel()
        await asyncio.wait([asking])

    run(test, timeout=100.0)


def test_a_refusal_without_a_text_is_one() -> None:
    """The text of an error of the release may be missing; the connection was closed for it, and data asked for for ever."""

    async def test(server: AskedServer, client: LogClient) -> None:
        asking = asyncio.ensure_future(client.data(0, 7))
        await quiet()
        question = server.asked[0]
        answer = wire.TransactionDataResponse(question.request_id, 7, wire.TransactionRefused(None))
        await server.send(wire.encode(answer), 1, 0.1)
        with pytest.raises(RefusedError, match="transaction 7: the server names no reason"):
            await asking
        assert len(server.asked) == 1

    run(test)


NOT_NOW = pytest.mark.parametrize(
    "reason",
    [
        "partition not ready",
        "com.wepay.waltz.store.exception.StorePartitionClosedException",
        "com.wepay.waltz.store.exception.GenerationMismatchException",
    ],
)


@NOT_NOW
def test_data_that_a_server_cannot_give_at_this_moment_is_asked_for_again(reason: str) -> None:
    """A released server closes a partition that goes to another one, or has no session for it without ZooKeeper."""

    async def test(server: AskedServer, client: LogClient) -> None:
        asking = asyncio.ensure_future(client.data(0, 7))
        await quiet()
        refusal = wire.TransactionRefused(reason)
        server.say(wire.TransactionDataResponse(server.asked[0].request_id, 7, refusal))
        await asyncio.sleep(SILENCE)
        assert len(server.asked) == 2
        await server.send(server.answer(1), 1, 0.1)
        assert await asking == DATA

    run(test)


@NOT_NOW
def test_what_a_server_says_instead_of_data_stands_in_the_error_of_the_deadline(reason: str) -> None:
    async def test(server: AskedServer, client: LogClient) -> None:
        asking = asyncio.ensure_future(client.data(0, 7, timeout=1.1))
        await quiet()
        server.say(wire.TransactionDataResponse(server.asked[0].request_id, 7, wire.TransactionRefused(reason)))
        with pytest.raises(DeadlineError, match=reason):
            await asking

    run(test)


@pytest.mark.parametrize(
    "reason",
    [
        "com.wepay.waltz.store.exception.TransactionNotFoundException: partition=0transactionId=7",
        "partition 0 has no transaction 7",
    ],
)
def test_a_transaction_that_is_not_there_is_asked_for_once(reason: str) -> None:
    async def test(server: AskedServer, client: LogClient) -> None:
        asking = asyncio.ensure_future(client.data(0, 7))
        await quiet()
        server.say(wire.TransactionDataResponse(server.asked[0].request_id, 7, wire.TransactionRefused(reason)))
        with pytest.raises(RefusedError, match=reason):
            await asking
        assert len(server.asked) == 1

    run(test)


def test_data_that_stands_behind_others_is_asked_for_once() -> None:
    async def test(server: AskedServer, client: LogClient) -> None:
        asking = [asyncio.ensure_future(client.data(0, number)) for number in range(10)]
        await quiet()
        for number in range(10):
            await server.send(server.answer(number, b"%d" % number), 1, 0.9 * SILENCE)
        assert await asyncio.gather(*asking) == [b"%d" % number for number in range(10)]
        assert len(server.asked) == 10

    run(test)


def test_data_is_asked_for_again_when_nothing_was_heard_for_a_while() -> None:
    """As of a server that passes a question over; and so again behind a piece of an answer, whatever came before it."""

    async def test(server: AskedServer, client: LogClient) -> None:
        asking = asyncio.ensure_future(client.data(0, 7))
        await asyncio.sleep(0.9 * SILENCE)
        assert len(server.asked) == 1
        await asyncio.sleep(0.4 * SILENCE)
        assert len(server.asked) == 2
        sending = asyncio.ensure_future(server.send(server.answer(1), 2, 1.5 * SILENCE))
        await asyncio.sleep(3.3 * SILENCE)  # the second time twice as long
        assert len(server.asked) == 2
        await sending
        assert await asking == DATA

    run(test)


def test_a_mark_is_asked_for_again_soon_though_data_is_coming() -> None:
    async def test(server: AskedServer, client: LogClient) -> None:
        data, mark = asyncio.ensure_future(client.data(0, 7)), asyncio.ensure_future(client.high_water_mark(0))
        await quiet()
        await server.send(server.answer(), 10, 0.1)
        assert await data == DATA
        marks = [one for one in server.asked if isinstance(one, wire.HighWaterMarkRequest)]
        assert len(marks) > 2
        server.say(wire.HighWaterMarkResponse(marks[-1].request_id, 7))
        assert await mark == 7

    run(test)


@pytest.mark.parametrize(
    ("every", "why"),
    [(0.9 * SILENCE, "answers of server here:1 were still coming"), (1.1 * SILENCE, "no session for it as yet")],
)
def test_data_that_is_late_while_it_comes_is_told_so(every: float, why: str) -> None:
    async def test(server: AskedServer, client: LogClient) -> None:
        asking = asyncio.ensure_future(client.data(0, 7))
        await quiet()
        sending = asyncio.ensure_future(server.send(server.answer(), 1000, every))
        with pytest.raises(DeadlineError, match=why):
            await asking
        sending.cancel()
        await asyncio.wait([sending])

    run(test, timeout=every * 6 - 0.01)


CALLS: dict[str, Callable[[LogClient], Awaitable[object]]] = {
    "append": lambda client: client.append(0, Draft(b"x")),
    "append_all": lambda client: client.append_all(0, [Draft(b"x")]),
    "flush": lambda client: client.flush(0),
    "data": lambda client: client.data(0, 0),
    "high_water_mark": lambda client: client.high_water_mark(0),
    "feed": lambda client: anext(client.feed(0)),
}


@pytest.mark.parametrize("state", ["no server", "connecting", "asked", "no session"])
@pytest.mark.parametrize("called", CALLS)
def test_calls_that_wait_when_the_client_is_closed_end_and_so_do_later_ones(called: str, state: str) -> None:
    async def whole() -> None:
        server, directory, loop = AskedServer(), Directory(), asyncio.get_running_loop()
        if state != "no server":
            directory.servers = {0: PartitionServer("here", 1, 1)}

        async def connect(address: Address) -> LogConnection:
            made.append(None)
            if state == "connecting":
                await loop.create_future()
            return await server.connect(address)

        made: list[None] = []
        async with LogClient(directory, connect, log=LOG) as client:
            waiting = [asyncio.ensure_future(CALLS[called](client)) for _ in range(3)]
            await quiet()
            assert bool(made) is (state != "no server")
            if state == "no session" and called != "feed":
                for one in server.asked:
                    if isinstance(one, wire.HighWaterMarkRequest):
                        server.say(wire.HighWaterMarkResponse(one.request_id, -(2**63)))
                await quiet()
            closed = loop.time()
        made.clear()
        done, _ = await asyncio.wait(waiting)
        assert [str(one.exception()) for one in done] == ["the client: it was closed"] * 3
        with pytest.raises(PeerUnreachableError, match="the client: it was closed"):
            await CALLS[called](client)
        assert loop.time() <= closed + (client.options.not_ready if state == "no session" else 0.0)
        assert made == []

    simulate(whole())


def test_a_call_that_waits_for_the_metadata_when_the_client_is_closed_has_its_deadline() -> None:
    async def whole() -> None:
        class Silent(Directory):
            async def client_id(self) -> int:
                await asyncio.Event().wait()
                raise AssertionError

        async with LogClient(Silent(), AskedServer().connect, log=LOG, options=ClientOptions(timeout=5.0)) as client:
            waiting = asyncio.ensure_future(client.append(0, Draft(b"x")))
            await asyncio.sleep(1.0)
        with pytest.raises(DeadlineError, match="an append to partition 0"):
            await waiting
        assert asyncio.get_running_loop().time() == 5.0

    simulate(whole())


@pytest.mark.parametrize("seconds", [2.0, 8.0])
@pytest.mark.parametrize("called", ["append", "append_all", "flush"])
def test_a_call_s_own_time_holds_where_its_partition_is_not_mounted_as_yet(called: str, seconds: float) -> None:
    async def test(_server: AskedServer, client: LogClient) -> None:
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "append": lambda: client.append(0, Draft(b"x"), timeout=seconds),
            "append_all": lambda: client.append_all(0, [Draft(b"x")], timeout=seconds),
            "flush": lambda: client.flush(0, timeout=seconds),
        }
        with pytest.raises(DeadlineError, match=f"within {seconds:g} s to (an append|appends|a flush)"):
            await calls[called]()
        assert asyncio.get_running_loop().time() == seconds

    run(test, timeout=5.0)


def depth(error: BaseException) -> int:
    """Frames of a traceback, each of which keeps what its call was given."""
    found, trace = 0, error.__traceback__
    while trace is not None:
        found, trace = found + 1, trace.tb_next
    return found


@pytest.mark.parametrize("closed", [True, False], ids=["of the client", "of a partition"])
def test_an_error_that_is_told_again_and_again_keeps_nothing_of_those_it_was_told_to(closed: bool) -> None:
    async def test(server: AskedServer, client: LogClient) -> None:
        mount = Mount(client._connections.endpoint, client.options, 0, 1, -1, None)
        if closed:
            await client.close()
        else:
            mount.end(ClientAheadError("ahead"))
        depths = set()
        for _ in range(3):
            try:
                await (client.append(0, Draft(DATA)) if closed else mount.flush())
            except (PeerUnreachableError, ClientAheadError) as error:
                depths.add(depth(error))
        assert len(depths) == 1

    run(test)


@pytest.mark.turns(10)
def test_a_connection_that_fails_when_nobody_waits_for_it_any_more_is_no_mistake() -> None:
    told: list[dict[str, Any]] = []

    async def connect(address: Address) -> LogConnection:
        await asyncio.sleep(5.0)
        raise PeerUnreachableError(str(address), "nobody there")

    async def whole() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        directory = Directory(servers={0: PartitionServer("here", 1, 1)})
        async with LogClient(directory, connect, log=LOG, options=ClientOptions(timeout=3.0)) as client:
            for _ in range(3):
                with pytest.raises(DeadlineError):
                    await client.high_water_mark(0)
                await asyncio.sleep(5.0)
                gc.collect()

    simulate(whole())
    gc.collect()
    assert told == []


@pytest.mark.parametrize("begin", [-1, -2, {0: -3}, 2**63])
def test_a_feed_begins_no_earlier_than_the_log_and_no_later_than_an_id_can_be(begin: Any) -> None:
    """A server would end the connection, and so again and again; what no frame can say is never sent, and waited for."""

    async def test(server: AskedServer, client: LogClient) -> None:
        feed = client.feed(begin if isinstance(begin, dict) else 0, after=-1 if isinstance(begin, dict) else begin)
        coming = asyncio.ensure_future(anext(feed))
        await quiet()
        if begin == -1:
            assert not coming.done()
            coming.cancel()
        else:
            with pytest.raises(InvalidRequestError, match=r"a feed begins behind transaction (-[23]|9223)"):
                await coming

    run(test)


@dataclass
class Unanswered(Directory):
    """Metadata that gives no client id in the first minute; `hangs`: and does not even say so."""

    hangs: bool = False

    async def client_id(self) -> int:
        if asyncio.get_running_loop().time() < 60.0:
            if not self.hangs:
                raise PeerUnreachableError("the metadata", "nobody there")
            await asyncio.sleep(60.0)
        return await super().client_id()


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize("seconds", [5.0, 90.0])
@pytest.mark.parametrize("called", ["flush", "feed"])
def test_metadata_that_gives_no_client_id_is_waited_for(called: str, seconds: float, hangs: bool) -> None:
    async def whole() -> None:
        directory = Unanswered(servers={0: PartitionServer("here", 1, 1)}, hangs=hangs)
        async with LogClient(
            directory, LogInProcess().connect, log=LOG, options=ClientOptions(timeout=seconds)
        ) as client:
            feed = client.feed(0, timeout=seconds)
            call = asyncio.ensure_future(client.flush(0) if called == "flush" else anext(feed))
            await asyncio.sleep(4.9)
            assert not call.done()
            if seconds == 5.0:
                await asyncio.sleep(0.2)
                assert isinstance(error := call.exception(), DeadlineError)
                assert ("the metadata does not answer" in str(error)) is not hangs
            else:
                await asyncio.sleep(61.0)
                assert call.done() is (called == "flush"), "nothing comes in the feed"
                call.cancel()
            await asyncio.wait([call])
            await feed.aclose()

    simulate(whole())


@pytest.mark.parametrize(
    "wrong", [{"in_flight": 0}, {"ahead": 0}, {"timeout": -1.0}, {"nudge": float("nan")}, {"max_body": 0}]
)
def test_options_that_cannot_be_meant_are_refused(wrong: dict[str, Any]) -> None:
    """With none of them would anything ever be sent, or given up."""
    with pytest.raises(InvalidRequestError, match=rf"{next(iter(wrong))}=.*no less than"):
        ClientOptions(**wrong)


@pytest.mark.parametrize("timeout", [-1.0, float("nan")])
def test_a_time_that_cannot_be_meant_is_refused(timeout: float) -> None:
    async def test(server: AskedServer, client: LogClient) -> None:
        for call in (
            lambda: client.data(0, 0, timeout=timeout),
            lambda: client.append(0, Draft(b""), timeout=timeout),
            lambda: anext(client.feed(0, timeout=timeout)),
        ):
            with pytest.raises(InvalidRequestError, match="timeout="):
                await call()

    run(test)


@pytest.mark.parametrize("number", [-1, 2**63])
def test_data_of_what_cannot_be_is_not_asked_for(number: int) -> None:
    async def test(server: AskedServer, client: LogClient) -> None:
        with pytest.raises(InvalidRequestError, match=f"there is no transaction {number}"):
            await client.data(0, number)

    run(test)
