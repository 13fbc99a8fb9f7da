"""What a node says of itself, compared as a whole: its health, its families for Prometheus, its failures."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.node.service_support import LOG, STORAGE, Peer, appended, request_of, run_of
from waltzctl.engine import errors
from waltzctl.engine.catalogue import Code, Severity
from waltzctl.engine.durable import disk
from waltzctl.engine.errors import DamageError, DiskWriteError, InvalidRequestError
from waltzctl.engine.net.metrics import BUCKETS
from waltzctl.engine.net.single_flight import SingleFlight
from waltzctl.engine.node import answers, disk_probe
from waltzctl.engine.node.disk_probe import PROBE_SIZE, DiskProbe, DiskState
from waltzctl.engine.node.failure_responses import denial_of
from waltzctl.engine.node.health import DiskHealth, Health, NodeHealthReport, PartitionHealth, PortHealth
from waltzctl.engine.node.node_collector import NodeCollector, NodeSurroundings
from waltzctl.engine.node.node_metrics import NodeMetrics, PartitionGauges
from waltzctl.engine.node.node_settings import HealthOptions
from waltzctl.engine.node.outages import Outage, Return, standing_outage
from waltzctl.engine.node.permissions import Denial, closed, not_loaded
from waltzctl.engine.node.readings import NodePartitionReading, NodeReading
from waltzctl.engine.storage.partition_condition import DAMAGED, WRITABLE
from waltzctl.formats.wire.failure import (
    CONCURRENT_UPDATE_EXCEPTION,
    IO_EXCEPTION,
    OUT_OF_MEMORY_ERROR,
    PLAIN_EXCEPTION,
    RUNTIME_EXCEPTION,
    STORAGE_EXCEPTION,
    FailureCode,
)
from waltzctl.formats.wire.storage import FailureResponse, MaxTransactionIdRequest, SuccessResponse, encode

# ---- health -------------------------------------------------------------------------------------------------------------


def test_a_report_names_every_problem_and_every_number() -> None:
    report = NodeHealthReport(
        DiskHealth(5, 0.25, "the disk is full"),
        (
            PartitionHealth(1, True, False, 3, 0.5, "quarantined", "partition 1 is quarantined"),
            PartitionHealth(2, False, True, 4, 2.5, None, None),
            PartitionHealth(7, False, False, 0, 0.0, None, None),
        ),
        (PortHealth("data", True), PortHealth("admin", False)),
        draining=True,
    )
    problems = [
        "the disk is full",
        "partition 1 is quarantined",
        "the admin port does not listen; restart the node",
        "the node is stopping",
    ]
    assert report.problems == tuple(problems)
    assert not report.healthy
    assert json.loads(report.message()) == {
        "storage": "false",
        "problems": problems,
        "disk": {"healthy": False, "free_bytes": 5, "write_seconds": 0.25},
        "partitions": {
            "assigned": [1, 2, 7], "quarantined": [1], "failed": [2], "out_of_service": {"1": "quarantined"},
        },
        "queues": {"requests": 7, "stalled_seconds": 2.5},
        "ports": {"data": True, "admin": False},
    }  # fmt: skip
    assert report.document() == {"storage-health-check": {"healthy": False, "message": report.message()}}
    assert NodeSurroundings.of(report, [("data", 3)]) == NodeSurroundings(
        False, [("data", 3)], 5, frozenset({1}), frozenset({2})
    )


@pytest.mark.parametrize("silent", ["data", "admin", "http"])
def test_a_port_that_does_not_listen_is_named_whichever_it_is(silent: str) -> None:
    ports = tuple(PortHealth(name, name != silent) for name in ("data", "admin", "http"))
    report = NodeHealthReport(DiskHealth(5, 0.25, None), (), ports)
    assert report.problems == (f"the {silent} port does not listen; restart the node",)


def test_a_partition_that_is_out_for_another_reason_is_neither_quarantined_nor_failed() -> None:
    one = PartitionHealth(1, False, False, 0, 0.0, "disk-full", "partition 1 found the disk full")
    found = NodeSurroundings.of(NodeHealthReport(DiskHealth(0, None, None), (one,), ()), [])
    assert (found.quarantined, found.failed, found.free_bytes) == (frozenset(), frozenset(), 0)


def test_a_look_at_the_disk_is_shared_as_long_as_the_options_say(tmp_path: Path) -> None:
    storage: Any = SimpleNamespace(path=tmp_path, partitions={}, journal=None)
    hosted: Any = SimpleNamespace(services=(), sessions_failed=None)
    looks: list[int] = []
    for max_age in (60.0, 0.0):
        health = Health(storage, hosted, ports=dict, options=HealthOptions(max_age=max_age))
        health._disk_check = SingleFlight(lambda: looks.append(1) or DiskState(1, 0.1, None), name="look")

        async def twice(health: Health = health) -> None:
            await health.check()
            await health.check()

        asyncio.run(twice())
        assert len(looks) == (1 if max_age else 3)


def test_a_report_of_a_node_that_is_well() -> None:
    report = NodeHealthReport(DiskHealth(5, 0.25, None), (), (PortHealth("data", True),))
    assert report.healthy
    assert report.message() == (
        '{"storage":"true","problems":[],"disk":{"healthy":true,"free_bytes":5,"write_seconds":0.25},'
        '"partitions":{"assigned":[],"quarantined":[],"failed":[],"out_of_service":{}},'
        '"queues":{"requests":0,"stalled_seconds":0.0},"ports":{"data":true}}'
    )
    assert report.document()["storage-health-check"]["healthy"] is True


OUT = Outage(FailureCode.DISK_FULL, "found the disk full", "make room", Return.SPACE)


def looked_at(tmp_path: Path, partition: Any, service: Any, max_stall: float = 30.0) -> PartitionHealth:
    """Partition 4 as a look at the node finds it."""
    storage = SimpleNamespace(path=tmp_path, partitions={4: partition} if partition else {})
    hosted = SimpleNamespace(service=lambda _: service)
    health = Health(storage, hosted, ports=dict, options=HealthOptions(max_stall=max_stall))  # type: ignore[arg-type]
    return health._partition(4)


class Looked:
    """A service, and its access control, that notes what it is told about the disk."""

    queue_size, stalled_seconds, outage = 0, 0.0, None

    def __init__(self) -> None:
        self.told: list[float] = []
        self.access = self

    def note_space(self, age: float) -> None:
        self.told.append(age)


@pytest.mark.parametrize("problem", [None, "the disk is full"])
def test_a_look_tells_the_partitions_that_the_disk_is_well(tmp_path: Path, problem: str | None) -> None:
    partition = SimpleNamespace(damaged=False, failed=None)
    service = Looked()
    storage: Any = SimpleNamespace(path=tmp_path, partitions={5: partition, 2: partition}, journal=None)
    hosted: Any = SimpleNamespace(service=lambda _: service, services=(service,), sessions_failed=None)
    health = Health(
        storage, hosted, ports=lambda: {"b": True, "a": False}, options=HealthOptions(max_age=3.0, deadline=4.0)
    )
    monkey = pytest.MonkeyPatch()
    monkey.setattr(health, "_disk_check", SingleFlight(lambda: DiskState(9, 0.5, problem), name="x"))
    health.begin_draining()
    report = asyncio.run(health.check())
    monkey.undo()
    assert service.told == ([] if problem else [7.0])
    assert report == NodeHealthReport(
        DiskHealth(9, 0.5, problem),
        tuple(PartitionHealth(number, False, False, 0, 0.0, None, None) for number in (2, 5)),
        (PortHealth("b", True), PortHealth("a", False)),
        True,
    )
    assert health.last is report


def test_a_disk_of_which_nothing_can_be_said_is_a_problem(tmp_path: Path) -> None:
    storage: Any = SimpleNamespace(path=tmp_path, partitions={}, journal=None)
    hosted: Any = SimpleNamespace(services=(), sessions_failed=None)
    health = Health(storage, hosted, ports=dict)

    def no_thread() -> DiskState:
        raise RuntimeError("no thread")

    health._disk_check = SingleFlight(no_thread, name="x")
    report = asyncio.run(health.check())
    assert report == NodeHealthReport(DiskHealth(None, None, "the disk cannot be looked at: no thread"), (), (), False)


@pytest.mark.parametrize(
    ("partition", "service", "found"),
    [
        ((False, None), (0, 0.0, None), (False, False, 0, 0.0, None, None)),
        ((True, None), (2, 0.5, None), (True, False, 2, 0.5, None, None)),
        ((False, "x"), (2, 30.0, None), (False, True, 2, 30.0, None, None)),
        (
            (False, None),
            (2, 30.04, None),
            (False, False, 2, 30.04, None, "partition 4 has made no progress for 30.0 s with 2 requests waiting"),
        ),
        (
            (False, None),
            (2, 99.0, OUT),
            (
                False, False, 2, 99.0, "disk-full",
                "partition 4 found the disk full; it takes no part in sessions: make room",
            ),
        ),
        (None, None, (False, False, 0, 0.0, None, None)),
    ],
)  # fmt: skip
def test_what_a_look_finds_of_a_partition(tmp_path: Path, partition: Any, service: Any, found: tuple[Any, ...]) -> None:
    made = partition and SimpleNamespace(damaged=partition[0], failed=partition[1])
    served = service and SimpleNamespace(
        queue_size=service[0], stalled_seconds=service[1], access=SimpleNamespace(outage=service[2])
    )
    assert looked_at(tmp_path, made, served) == PartitionHealth(4, *found)


def test_the_worst_finding_is_told_of_a_quarantined_partition() -> None:
    minor = SimpleNamespace(code=Code.TEMPORARY_FILE, severity=Severity.NOTE, message="minor")
    damage = SimpleNamespace(code=Code.DATA_CHECKSUM, severity=Severity.DAMAGE, message="a torn record")
    partition: Any = SimpleNamespace(number=2, path=Path("/d/2"), condition=DAMAGED, findings=(minor, damage))
    remedy = "stop the node, run waltzctl recover /d --partition 2 --from REPLICA, and start it again"
    assert standing_outage(partition) == Outage(
        FailureCode.QUARANTINED, "is quarantined, every byte is kept: a torn record", remedy, Return.OPENED
    )
    partition.findings = (minor,)
    found = standing_outage(partition)
    assert found is not None
    assert found.denial(2) == Denial(
        FailureCode.QUARANTINED,
        STORAGE_EXCEPTION,
        f"partition 2 is quarantined, every byte is kept: damage was found; it takes no part in sessions: {remedy}",
    )
    broken = DiskWriteError(Path("/d/2"), 0, OSError(5, "no"))
    partition.condition = WRITABLE.after(broken)
    found = standing_outage(partition)
    assert found is not None
    assert (found.code, found.returns, found.transaction_id) == (FailureCode.IO_ERROR, Return.OPENED, None)
    assert found.reason == f"accepts no writes after: {broken}"
    partition.condition = WRITABLE
    assert standing_outage(partition) is None


# ---- the disk's probe ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("least", "enough"), [(999, True), (1000, True), (1001, False)])
def test_space_is_compared_with_what_should_be_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: int, enough: bool
) -> None:
    status = SimpleNamespace(f_bavail=10, f_frsize=100, f_flag=0)
    monkeypatch.setattr(disk_probe.os, "statvfs", lambda _: status)
    (tmp_path / disk.STATE_DIRECTORY).mkdir()
    changes: list[tuple[str, str, int | None]] = []
    monkeypatch.setattr(disk, "observer", lambda change: changes.append((change.kind, change.path.name, change.size)))
    state = DiskProbe(tmp_path, min_free_bytes=least).state()
    problem = (
        f"{tmp_path / disk.STATE_DIRECTORY}: 1000 bytes are free, and 1001 should be; make room before appends fail"
    )
    assert state.seconds is not None
    assert 0 <= state.seconds < 60
    assert state == DiskState(1000, state.seconds, None if enough else problem)
    assert PROBE_SIZE == 4096
    assert {name for _, name, _ in changes} == {f"health-probe{disk.TEMPORARY_SUFFIX}"}
    assert [kind for kind, _, _ in changes if kind in ("write", "sync", "unlink")][:2] == ["write", "sync"]
    assert not list((tmp_path / disk.STATE_DIRECTORY).iterdir())


# ---- Prometheus ---------------------------------------------------------------------------------------------------------


def families() -> dict[str, dict[tuple[str, ...], float]]:
    """Every sample of a node with two partitions: family, then name behind it and values of its labels."""
    metrics = NodeMetrics()
    one = metrics.partition(2)
    one.append.mark(3)
    one.append_latency.update(0.003, 2)
    one.flush_latency.update(0.2)
    one.flush_requests.update(7.0, 3)
    one.truncate_request.increment(5)
    readings = (
        NodePartitionReading(2, one, PartitionGauges(1, 11, 12, 13, 14, 15, 16), "disk-full"),
        NodePartitionReading(5, metrics.partition(5), PartitionGauges(6, 1, 2, 3, 4, 5, 6)),
    )
    surroundings = NodeSurroundings(True, [("data", 3), ("http", 1)], 77, frozenset({5}), frozenset({2}))
    collector = NodeCollector(NodeReading("1.2", (2, 5), readings), surroundings)
    assert collector.describe() == []
    return {
        family.name.removeprefix("waltz_storage_"): {
            (sample.name.removeprefix(family.name), *sample.labels.values()): sample.value for sample in family.samples
        }
        for family in collector.collect()
    }


def test_every_family_has_every_partition() -> None:
    found = families()
    latency, flush = found.pop("append_latency_seconds"), found.pop("flush_latency_seconds")
    requests = found.pop("requests")
    assert found == {
        "waltz_storage": {("_info", "1.2"): 1},
        "partitions": {("",): 2},
        "healthy": {("",): 1},
        "disk_free_bytes": {("",): 77},
        "connections": {("", "data"): 3, ("", "http"): 1},
        "session_id": {("", "2"): 16, ("", "5"): 6},
        "low_water_mark": {("", "2"): 12, ("", "5"): 2},
        "local_low_water_mark": {("", "2"): 11, ("", "5"): 1},
        "max_transaction_id": {("", "2"): 13, ("", "5"): 3},
        "queued_requests": {("", "2"): 14, ("", "5"): 4},
        "available": {("", "2"): 1, ("", "5"): 0},
        "quarantined": {("", "2"): 0, ("", "5"): 1},
        "failed": {("", "2"): 1, ("", "5"): 0},
        "out_of_service": {("", "2"): 1, ("", "5"): 0},
        "flushed_append_requests": {("_total", "2"): 21, ("_total", "5"): 0},
    }
    bounds = [*map(repr, BUCKETS), "+Inf"]
    assert [latency["_bucket", "2", bound] for bound in bounds] == [0] * 5 + [2] * 12
    assert [flush["_bucket", "2", bound] for bound in bounds] == [0] * 10 + [1] * 7
    assert (latency["_sum", "2"], latency["_sum", "5"]) == (pytest.approx(0.006), 0)
    assert {key: value for key, value in requests.items() if value} == {
        ("_total", "2", "append"): 3, ("_total", "2", "truncate"): 5,
    }  # fmt: skip
    assert len(requests) == 2 * 9


def test_what_is_not_known_is_left_out() -> None:
    names = {family.name for family in NodeCollector(NodeReading("1", (), ()), NodeSurroundings()).collect()}
    assert "waltz_storage_connections" in names
    full = {f.name: f for f in NodeCollector(NodeReading("1", (), ()), NodeSurroundings(free_bytes=0)).collect()}
    assert full["waltz_storage_disk_free_bytes"].samples[0].value == 0, "known, and nothing left"
    assert not {"waltz_storage_healthy", "waltz_storage_disk_free_bytes"} & names


# ---- the disk -----------------------------------------------------------------------------------------------------------


def test_a_read_only_disk_and_one_that_fails_are_told_with_the_space_that_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = [os.ST_RDONLY]
    monkeypatch.setattr(
        disk_probe.os, "statvfs", lambda _: SimpleNamespace(f_bavail=3, f_bfree=9, f_frsize=512, f_flag=flags[0])
    )
    probe = DiskProbe(tmp_path, min_free_bytes=0)
    place = tmp_path / disk.STATE_DIRECTORY
    assert probe.state() == DiskState(1536, None, f"{place}: the file system is read-only")
    flags[0] = 0
    found = probe.state()
    assert (found.free_bytes, found.seconds) == (1536, None)
    assert "No such file" in str(found.problem)


# ---- failures -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code", "exception"),
    [
        (errors.CorruptRecordError("x"), "corrupt-record", STORAGE_EXCEPTION),
        (errors.PartitionQuarantinedError("x"), "quarantined", STORAGE_EXCEPTION),
        (errors.ChecksumMismatchError("x"), "data-checksum", STORAGE_EXCEPTION),
        (errors.DamageError("x"), "damaged", STORAGE_EXCEPTION),
        (errors.ConcurrentUpdateError("x"), "session-changed", CONCURRENT_UPDATE_EXCEPTION),
        (errors.MarkWouldFallError("x"), "mark-would-fall", STORAGE_EXCEPTION),
        (errors.BelowLowWaterMarkError("x"), "below-low-water-mark", STORAGE_EXCEPTION),
        (errors.NotAssignedError("x"), "not-assigned", PLAIN_EXCEPTION),
        (errors.NotAvailableError("x"), "not-available", STORAGE_EXCEPTION),
        (errors.OutOfOrderError("x"), "out-of-order", STORAGE_EXCEPTION),
        (errors.StalePlanError("x"), "refused", STORAGE_EXCEPTION),
        (errors.MismatchError("x"), "mismatch", STORAGE_EXCEPTION),
        (errors.InvalidRequestError("x"), "invalid-request", STORAGE_EXCEPTION),
        (errors.DiskFullError(Path("/d"), 0, OSError(28, "x")), "disk-full", IO_EXCEPTION),
        (errors.SyncFailedError(Path("/d"), 0, OSError(5, "x")), "sync-failed", IO_EXCEPTION),
        (errors.DiskWriteError(Path("/d"), 0, OSError(5, "x")), "io-error", IO_EXCEPTION),
        (errors.DiskReadError(Path("/d"), 0, OSError(5, "x")), "io-error", IO_EXCEPTION),
        (MemoryError(), "out-of-memory", OUT_OF_MEMORY_ERROR),
        (KeyError("x"), "internal", RUNTIME_EXCEPTION),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, BaseException) else "",
)
def test_each_error_has_its_own_word(error: BaseException, code: str, exception: str) -> None:
    denial = denial_of(error)
    assert (denial.code, denial.exception) == (code, exception)
    assert denial.text


def test_trouble_with_a_connection_is_told_and_is_nobody_else_s(caplog: pytest.LogCaptureFixture) -> None:
    class Sender(Peer):
        def post(self, *_: object) -> None:
            raise ZeroDivisionError

        break_off = later = post

    sender = Sender()
    answers.post(sender, b"", 1, 1, LOG)
    answers.break_off(sender, "nonsense", 1, 1, LOG)
    answers.later(sender, LOG, print)
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 3


@pytest.mark.parametrize("count", [1, 2, 5])
def test_one_answer_for_each_request(count: int) -> None:
    """Each with its own session and sequence number."""
    frames = [encode(appended(n, session=n + 1, sequence=10 + n, partition=3)) for n in range(count)]
    peer = Peer()
    answers.refuse(run_of(peer, frames), not_loaded(3), LOG)
    peer.post(answers.successes(run_of(peer, frames).table), count, 0)
    found = [(a.session_id, a.sequence, a.partition) for a in peer.answers]
    assert found == [(n + 1, 10 + n, 3) for n in range(count)] * 2
    assert {type(a) for a in peer.answers[:count]} == {FailureResponse}
    assert {type(a) for a in peer.answers[count:]} == {SuccessResponse}
    assert peer.requests == 2 * count


def test_a_refusal_of_a_message_says_what_for_and_how_large_it_was() -> None:
    peer = Peer()
    request = request_of(peer, MaxTransactionIdRequest(4, 5, 6))
    answers.refuse(request, closed(), LOG)
    [answer] = peer.answers
    assert isinstance(answer, FailureResponse)
    assert (answer.session_id, answer.sequence, answer.partition) == (4, 5, 6)
    assert answer.failure.message == f"{STORAGE}Control file is already closed."
    assert (peer.requests, peer.size) == (1, request.size)


def test_where_not_even_a_failure_can_be_made_the_connection_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none_left(*_: object) -> bytes:
        raise MemoryError

    monkeypatch.setattr(answers, "failures_for", none_left)
    peer = Peer()
    run = run_of(peer, [encode(appended(n)) for n in range(3)])
    answers.refuse(run, closed(), LOG)
    assert (peer.answers, peer.reasons, peer.requests, peer.size) == (
        [], ["no memory is left for an answer"], 3, run.size,
    )  # fmt: skip
    assert [record.getMessage() for record in caplog.records] == [
        "no memory is left for an answer: the connection is closed"
    ]


@pytest.mark.parametrize(
    ("error", "level", "line", "traced"),
    [
        (ZeroDivisionError("oops"), logging.ERROR, "it failed: internal error: ZeroDivisionError: oops", True),
        (MemoryError(), logging.ERROR, "it failed: the node ran out of memory", True),
        (DamageError("torn"), logging.ERROR, "it failed: torn", False),
        (InvalidRequestError("no"), logging.DEBUG, "it refused: no", False),
    ],
)
def test_the_operator_is_told_what_is_no_peer_s_affair(
    error: BaseException, level: int, line: str, traced: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, LOG.name):
        denial = answers.report(error, LOG, "it")
    [record] = caplog.records
    assert (record.levelno, record.getMessage(), bool(record.exc_info)) == (level, line, traced)
    assert line.endswith(denial.text)
