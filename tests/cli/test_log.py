"""log get, tail and append over a log server in this process that is in trouble or has limits; mostly in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import pytest

from tests.cli.running import invoke
from tests.client.log_in_process import OTHER, LogInProcess
from tests.client.told_servers import Directory
from tests.server.storing import LOG
from tests.simulation.virtual_time import simulate
from waltzctl.commands.log import append, get, tail, validate
from waltzctl.console import Console
from waltzctl.engine.client.client_options import ClientOptions
from waltzctl.engine.client.log_client import LogClient
from waltzctl.engine.client.log_connection import LogConnection
from waltzctl.engine.client.log_load import Validation
from waltzctl.engine.client.log_transaction import Transaction
from waltzctl.engine.metadata.server_directory import PartitionServer
from waltzctl.engine.net.addresses import Address
from waltzctl.formats.checksums import crc32
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire import client as wire
from waltzctl.options import DataForm, Format
from waltzctl.outcome import ReaderGoneError
from waltzctl.render.table import TableWriter


@dataclass
class Troubled(LogInProcess):
    """Has transactions 0 to 2 of partition 0; `marks_at`, `mounts_at`, `data_at`: the time from which it answers, None for never.
    `data_each`: seconds that each transaction's data takes, one after the other.

    What is appended it commits at once; `max_body`: bytes of the longest append that clients believe it takes.
    """

    log: list[tuple[RequestId, bytes]] = field(
        default_factory=lambda: [(RequestId(OTHER, 1, 0, number + 1), b"%d" % number) for number in range(3)]
    )
    marks_at: float | None = 0.0
    mounts_at: float | None = 0.0
    data_at: float | None = 0.0
    data_each: float = 0.0
    max_body: int = 1000

    async def connect(self, address: Address) -> LogConnection:
        """Each connection is served on its own."""
        return await LogInProcess.connect(replace(self), address)

    def took(self, connection: LogConnection, data: bytes) -> None:
        super().took(connection, data)
        if self.appends:
            self.commit(len(self.appends))

    def _answer(self, message: Any) -> None:
        match message:
            case wire.MountRequest() if not self._reached(self.mounts_at):
                pass
            case wire.TransactionDataRequest() if not self._reached((message.transaction_id + 1) * self.data_each):
                pass
            case wire.HighWaterMarkRequest() if not self._reached(self.marks_at):
                pass
            case wire.TransactionDataRequest() if self._reached(self.data_at):
                data = self.log[message.transaction_id][1]
                found = wire.TransactionData(data, crc32(data))
                self.say(wire.TransactionDataResponse(message.request_id, message.transaction_id, found))
            case _:
                super()._answer(message)

    @staticmethod
    def _reached(when: float | None) -> bool:
        return when is not None and asyncio.get_running_loop().time() >= when


@pytest.fixture
def over(monkeypatch: pytest.MonkeyPatch) -> Callable[[Troubled], None]:
    """Lets commands meet this server instead of a cluster's."""

    def prepared(server: Troubled) -> None:
        def use_log(
            run: Callable[[Any], Any],
            _target: object,
            _console: object,
            work: Callable[[LogClient], Awaitable[Any]],
            options: ClientOptions,
        ) -> Any:
            async def whole() -> Any:
                directory = Directory(num_partitions=1, servers={0: PartitionServer("here", 1, 1)})
                limits = replace(options, max_body=server.max_body)
                async with LogClient(directory, server.connect, log=LOG, options=limits) as client:
                    return await work(client)

            return run(whole())

        for module, run in ((get, simulate), (tail, simulate), (append, asyncio.run)):  # append reads in a thread
            monkeypatch.setattr(module, "use_log", partial(use_log, run))

    return prepared


ACTIONS = {"get": ("get", "--partition", 0, 0, 1, 2), "tail": ("tail", "--partition", 0)}
MORE = ("--metadata", "x", "--timeout", "5s", "--data", "utf8", "--format", "ndjson")


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("answers", [{}, {"data_at": 2.0}, {"data_each": 2.0}])
def test_what_is_there_is_shown(over: Callable[[Troubled], None], action: str, answers: dict[str, float]) -> None:
    over(Troubled(**answers))
    done = invoke("log", *ACTIONS[action], *MORE)
    assert (done.status, [one["data"] for one in done.objects]) == (0, ["0", "1", "2"])


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize(
    ("answers", "what"),
    [({"mounts_at": None}, "a feed of partition 0"), ({"data_at": None}, "the data of transaction 0")],
)
def test_a_server_that_cannot_read_is_given_up(
    over: Callable[[Troubled], None], action: str, answers: dict[str, None], what: str
) -> None:
    over(Troubled(**answers))
    done = invoke("log", *ACTIONS[action], *MORE)
    assert done.status == 14
    (error,) = done.objects
    assert f"no answer within 5 s to {what}" in error["message"]


@pytest.mark.parametrize("answers", [{"data_at": 100.0}, {"marks_at": 100.0}])
def test_a_tail_that_follows_waits_for_a_server_that_cannot_read(
    over: Callable[[Troubled], None], answers: dict[str, float]
) -> None:
    over(Troubled(**answers))
    done = invoke("log", "tail", "--follow", "--to", 2, *MORE)
    assert (done.status, [one["data"] for one in done.objects]) == (0, ["0", "1", "2"])


def test_a_tail_that_follows_holds_no_row_of_a_table_back(
    over: Callable[[Troubled], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal that is its form."""
    shown: list[str] = []
    line = TableWriter.line

    def noted(writer: TableWriter, text: str = "") -> None:
        with contextlib.suppress(RuntimeError):  # there is no loop any more: all has come
            asyncio.get_running_loop()
            shown.append(text.split()[-1])
        line(writer, text)

    monkeypatch.setattr(TableWriter, "line", noted)
    over(Troubled(data_each=2.0))
    done = invoke("log", "tail", "--metadata", "x", "--follow", "--to", 2, "--format", "table")
    assert (done.status, done.out.splitlines()[-2].split()[-1]) == (0, "2")
    assert shown[:2] == ["DATA", "0"]


@pytest.mark.parametrize("socket_pair", [False, True], ids=["pipe", "socket"])
def test_a_tail_that_follows_ends_with_its_reader(monkeypatch: pytest.MonkeyPatch, socket_pair: bool) -> None:
    """``log tail --follow | head -1`` waited for another transaction, which may never come.  Some shells join by sockets."""

    async def feed() -> AsyncGenerator[Transaction, None]:
        yield Transaction(0, 0, RequestId(OTHER, 1, 0, 1), 0)
        os.read(reading, 1 << 16)
        os.close(reading)
        await asyncio.Event().wait()

    monkeypatch.setattr(tail, "_LOOK_FOR_READER", 0.02)
    reading, writing = [one.detach() for one in socket.socketpair()] if socket_pair else os.pipe()
    with os.fdopen(writing, "w") as shown:
        shower = tail.RecordShower(Console(Format.NDJSON, stream=shown), DataForm.NONE, follow=True)
        with pytest.raises(ReaderGoneError):
            asyncio.run(asyncio.wait_for(shower.show_all(cast("LogClient", None), feed()), 20))
        assert shower.count == 1


def test_a_tail_that_follows_and_waits_for_its_cluster_or_its_first_transaction_ends_with_its_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither a cluster that does not answer nor transactions in front of ``--from`` give it anything to write."""

    async def feed() -> AsyncGenerator[Transaction, None]:
        while True:
            yield Transaction(0, 0, RequestId(OTHER, 1, 0, 1), 0)
            await asyncio.sleep(0.001)

    monkeypatch.setattr(tail, "_LOOK_FOR_READER", 0.02)
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as shown:
        shower = tail.RecordShower(Console(Format.NDJSON, stream=shown), DataForm.NONE, follow=True)
        for work in (
            shower.while_read(asyncio.Event().wait()),
            shower.show_all(cast("LogClient", None), feed(), first=9),
        ):
            with pytest.raises(ReaderGoneError):
                asyncio.run(asyncio.wait_for(work, 5))


def test_a_tail_reads_no_partition_from_where_a_shorter_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can begin behind the end of a log; where others end is no matter of a partition."""
    asked: list[object] = []

    @dataclass
    class Marks:
        num_partitions: int = 3
        options: ClientOptions = field(default_factory=ClientOptions)

        async def high_water_mark(self, partition: int) -> int:
            return (1_000_000, 7, -1)[partition]

        awaited_high_water_mark = high_water_mark

        async def feed(self, partitions: object, **_: object) -> AsyncGenerator[Transaction, None]:
            asked.append(partitions)
            for transaction_id in (7, 8, 9):
                yield Transaction(1, transaction_id, RequestId(OTHER, 1, 1, 1), 0)

    monkeypatch.setattr(tail, "use_log", lambda _target, _console, work, _options: asyncio.run(work(Marks())))
    done = invoke("log", "tail", "--metadata", "x", "--follow", "--from", 9, "--data", "none", "--format", "ndjson")
    assert (done.status, [one["transaction_id"] for one in done.objects]) == (0, [9])
    assert asked == [{0: 8, 1: 7, 2: -1}]


def test_a_line_that_is_too_long_for_any_server_is_named(over: Callable[[Troubled], None]) -> None:
    server = Troubled()
    over(server)
    lines = b"\n".join([b"a", b"b", bytes(1001), b"d"])
    done = invoke("log", "append", "--partition", 0, "--metadata", "x", "--format", "ndjson", given=lines)
    result, error = done.objects
    assert (done.status, result["records"], result["last_transaction_id"]) == (2, 2, 4)
    assert "input line 3: an append of" in error["message"]
    assert "the longest that a server takes is 1000" in error["message"]
    assert [data for _, data in server.log[3:]] == [b"a", b"b"]


@pytest.mark.parametrize("more", [("--metadata", "x", "--timeout", "0s"), ("--metadata", "/nowhere/at/all"), ()])
def test_where_nothing_was_sent_nothing_may_be_committed(
    more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WALTZCTL_METADATA", raising=False)
    done = invoke("log", *more, "append", "--partition", 0, given=b"a\n")
    assert done.status != 0
    assert "0 transactions committed; none was sent" in done.err


@pytest.mark.parametrize("form", ["plain", "table", "ndjson"])
def test_a_validation_that_is_well_says_nothing_when_quiet(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    done = Validation(transactions=4, retries=1, seconds=0.5)
    monkeypatch.setattr(validate, "use_logs", lambda *given, **more: done)
    answer = invoke("log", "--metadata", "x", "validate", "-q", "--format", form)
    assert (answer.status, answer.err, answer.out == "") == (0, "", form != "ndjson")
