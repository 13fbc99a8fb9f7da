"""Metrics for Graphite: the release's names and units, sent over real sockets, and a receiver that comes and goes."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import threading
from types import SimpleNamespace

import pytest

from tests.reserved_ports import reserved_ports
from waltzctl.engine.net import graphite
from waltzctl.engine.net.graphite import report_for_ever, report_lines, send
from waltzctl.engine.net.metrics import NamedMetric
from waltzctl.engine.net.monitoring_options import GraphiteOptions
from waltzctl.engine.net.single_flight import OverdueError
from waltzctl.engine.node.node_metrics import NodePartitionMetrics, PartitionGauges
from waltzctl.engine.node.readings import NodePartitionReading, NodeReading

NOW = 1_700_000_000
LOG = logging.getLogger("tests.node.graphite")


def reading() -> NodeReading:
    metrics = NodePartitionMetrics(3)
    metrics.append.mark(7)
    metrics.append_latency.update(0.25, 2)
    gauges = PartitionGauges(
        flags=5, local_low_water_mark=-1, low_water_mark=9, max_transaction_id=12, process_queue_size=0, sequence_number=1,
        session_id=4,
    )  # fmt: skip
    return NodeReading("0.13 beta", (3,), (NodePartitionReading(3, metrics, gauges),))


def values() -> dict[str, str]:
    found = {}
    for line in report_lines(reading().metrics(), "waltz", NOW):
        name, value, seconds = line.split(" ")
        assert seconds == str(NOW)
        found[name] = value
    return found


def test_names_and_units_are_those_of_the_release() -> None:
    found = values()
    assert found["waltz.waltz-storage.waltz-storage-num-partitions"] == "1"
    partition = "waltz.waltz-storage.partition-3"
    assert found[f"{partition}.low-water-mark"] == "9"
    assert found[f"{partition}.local-low-water-mark"] == "-1"
    assert found[f"{partition}.append.count"] == "7"
    assert found[f"{partition}.append.m1_rate"] == "0.00"
    assert found[f"{partition}.append-latency.count"] == "2"
    assert found[f"{partition}.append-latency.p99"] == "250.00"
    assert found[f"{partition}.append-latency.max"] == "250.00"
    assert found[f"{partition}.record-request.count"] == "0"


def test_what_is_no_number_is_left_out() -> None:
    assert not [name for name in values() if name.endswith(("waltz-version-id", "partition-ids"))]
    for value in values().values():
        assert re.fullmatch(r"-?\d+(\.\d\d)?", value)


def test_a_prefix_can_hold_blanks_or_be_missing() -> None:
    assert report_lines(reading().metrics(), "my  node", NOW)[0].startswith("my-node.waltz-storage.")
    assert report_lines(reading().metrics(), "", NOW)[0].startswith("waltz-storage.")


def test_a_report_over_a_connection_is_lines() -> None:
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def take() -> None:
            connection, _ = server.accept()
            with connection:
                while part := connection.recv(65536):
                    received.append(part)

        thread = threading.Thread(target=take)
        thread.start()
        send(GraphiteOptions("127.0.0.1", server.getsockname()[1]), ["a 1 2", "b 3 4"])
        thread.join()
    assert b"".join(received) == b"a 1 2\nb 3 4\n"


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_report_by_datagrams_is_a_line_each(family: socket.AddressFamily) -> None:
    host = "127.0.0.1" if family == socket.AF_INET else "::1"
    with socket.socket(family, socket.SOCK_DGRAM) as server:
        try:
            server.bind((host, 0))
        except OSError:
            pytest.skip(f"this machine has no {host}")
        server.settimeout(60)
        send(GraphiteOptions(host, server.getsockname()[1], udp=True), ["a 1 2", "b 3 4"])
        assert [server.recv(100), server.recv(100)] == [b"a 1 2", b"b 3 4"]


def test_a_datagram_goes_to_the_address_that_the_system_prefers(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as first,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as second,
    ):
        for one in (first, second):
            one.bind(("127.0.0.1", 0))
            one.setblocking(False)
        found = [(socket.AF_INET, socket.SOCK_DGRAM, 0, "", one.getsockname()) for one in (first, second)]
        monkeypatch.setattr(graphite.socket, "getaddrinfo", lambda *_, **__: found)
        send(GraphiteOptions("metrics", 1, udp=True), ["a 1 2"])
        assert first.recv(100) == b"a 1 2"
        with pytest.raises(BlockingIOError):
            second.recv(100)


def test_a_datagram_goes_to_the_next_address_where_one_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(60)
        refused = ("255.255.255.255", 1)  # broadcasts have to be asked for
        found = [(socket.AF_INET, socket.SOCK_DGRAM, 0, "", one) for one in (refused, server.getsockname())]
        monkeypatch.setattr(graphite.socket, "getaddrinfo", lambda *_, **__: found)
        send(GraphiteOptions("metrics", 1, udp=True), ["a 1 2"])
        assert server.recv(100) == b"a 1 2"
        monkeypatch.setattr(graphite.socket, "getaddrinfo", lambda *_, **__: found[:1])
        with pytest.raises(PermissionError):
            send(GraphiteOptions("metrics", 1, udp=True), ["a 1 2"])


def test_between_two_reports_is_the_time_that_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []

    async def sleep(seconds: float) -> None:
        done.append(seconds)
        if len(done) > 4:
            raise asyncio.CancelledError

    def sent(options: GraphiteOptions, lines: list[str]) -> None:
        done.append("report")
        assert len(done) < 6, "without a pause"

    monkeypatch.setattr(graphite.asyncio, "sleep", sleep)
    monkeypatch.setattr(graphite, "send", sent)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(report_for_ever(GraphiteOptions("h", 1, interval=7.0), list, LOG))
    assert done == [7.0, "report", 7.0, "report", 7.0]


def test_reporting_goes_on_when_the_receiver_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    (port,) = reserved_ports(1)
    arrived = asyncio.Event

    async def scenario() -> None:
        got = arrived()

        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if b"waltz" in await reader.read():
                got.set()
            writer.close()

        options = GraphiteOptions("127.0.0.1", port, interval=0.01)
        reporting = asyncio.ensure_future(report_for_ever(options, lambda: reading().metrics(), LOG))
        while not caplog.records:
            await asyncio.sleep(0)
        receiver = await asyncio.start_server(take, "127.0.0.1", port)
        async with receiver:
            await got.wait()
            while len(caplog.records) < 2:
                await asyncio.sleep(0)
        reporting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reporting

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())
    first, second = caplog.messages
    assert "could not be sent" in first
    assert "sent again" in second


def test_a_receiver_that_does_not_answer_is_waited_for_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []

    def connect(*arguments: object) -> socket.socket:
        asked.append(arguments)
        raise TimeoutError

    monkeypatch.setattr(graphite.socket, "create_connection", connect)
    with pytest.raises(TimeoutError):
        send(GraphiteOptions("h", 7), ["a 1 2"])
    assert asked == [(("h", 7), 10.0)]


def test_lines_have_the_time_of_day(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []

    def take(_options: GraphiteOptions, lines: list[str]) -> None:
        sent.extend(lines)
        raise asyncio.CancelledError

    monkeypatch.setattr(graphite, "send", take)
    monkeypatch.setattr(graphite, "time", SimpleNamespace(time=lambda: 1_700_000_000.9, monotonic=lambda: 5.0))
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(report_for_ever(GraphiteOptions("h", 1, interval=0), lambda: reading().metrics(), LOG))
    assert {line.split()[2] for line in sent} == {"1700000000"}


def test_a_report_that_hangs_is_a_failure_and_not_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes: list[BaseException] = [OverdueError("the report to Graphite", 20.0), asyncio.CancelledError()]

    async def result(_flight: object, deadline: float) -> None:
        assert deadline == 20.0
        raise outcomes.pop(0)

    monkeypatch.setattr(graphite.SingleFlight, "result", result)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(report_for_ever(GraphiteOptions("h", 1, interval=0), list, LOG))
    assert caplog.messages == [
        "Graphite at h:1: metrics could not be sent: the report to Graphite has not come back for 20.0 s"
    ]


@pytest.mark.parametrize("error", [OSError("nobody there"), KeyError("of ours"), UnicodeError("of ours")])
def test_a_reading_that_fails_is_not_the_last_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """What is no matter of the network is told with its trace."""
    readings: list[BaseException | None] = [error, None, asyncio.CancelledError()]
    sent: list[list[str]] = []

    def read() -> list[NamedMetric]:
        outcome = readings.pop(0)
        if outcome is not None:
            raise outcome
        return []

    monkeypatch.setattr(graphite, "send", lambda _, lines: sent.append(lines))
    with caplog.at_level(logging.INFO, LOG.name), pytest.raises(asyncio.CancelledError):
        asyncio.run(report_for_ever(GraphiteOptions("h", 1, interval=0), read, LOG))
    assert sent == [[]]
    assert caplog.messages == [
        f"Graphite at h:1: metrics could not be sent: {error}",
        "Graphite at h:1: metrics are sent again",
    ]
    assert bool(caplog.records[0].exc_info) != isinstance(error, OSError)


@pytest.mark.parametrize(
    ("outcomes", "said"),
    [
        ("ok ok", ""),
        ("no no", "failed"),
        ("no ok", "failed again"),
        ("no ok ok no", "failed again failed"),
        ("no ok no ok", "failed again failed again"),
    ],
)
def test_a_failure_is_said_once_and_so_is_its_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, outcomes: str, said: str
) -> None:
    left = outcomes.split()

    def sent(_options: GraphiteOptions, _lines: list[str]) -> None:
        if not left:
            raise asyncio.CancelledError
        if left.pop(0) == "no":
            raise OSError("nobody there")

    monkeypatch.setattr(graphite, "send", sent)
    with caplog.at_level(logging.INFO, LOG.name), pytest.raises(asyncio.CancelledError):
        asyncio.run(
            asyncio.wait_for(report_for_ever(GraphiteOptions("h", 1, interval=0), lambda: reading().metrics(), LOG), 30)
        )
    told = ["failed" if "could not" in line.message else "again" for line in caplog.records if line.name == LOG.name]
    assert " ".join(told) == said
