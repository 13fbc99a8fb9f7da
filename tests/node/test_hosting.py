"""An open directory under service, and a node around it: what is opened and closed, how often, and what is told then."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import logging
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.exceptions import KazooException, NoAuthError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from tests.node.running import Peer, append, node_options, run, running
from tests.node.service_support import LOG, appended, created, record, request_of, run_of, serving
from tests.node.service_support import Peer as Witness
from tests.node.test_partition_service import Pool
from tests.storage.support import full_disk
from waltzctl.engine.durable import file_system
from waltzctl.engine.durable.directory_lock import hold_file
from waltzctl.engine.durable.file_system import FileSystem
from waltzctl.engine.durable.flusher import FEWEST_AT_ONCE
from waltzctl.engine.errors import (
    DamageError,
    DiskFullError,
    DiskWriteError,
    InvalidRequestError,
    MismatchError,
    NotWaltzError,
    PartitionQuarantinedError,
    RefusedError,
    WaltzError,
)
from waltzctl.engine.net import port as port_module
from waltzctl.engine.net.monitoring_options import GraphiteOptions, HttpLimits
from waltzctl.engine.net.peer_limits import PortLimits
from waltzctl.engine.net.single_flight import OverdueError
from waltzctl.engine.net.tls_options import TlsOptions
from waltzctl.engine.node import admin_port, cluster_metadata, hosted_storage, node
from waltzctl.engine.node.cluster_metadata import ClusterMetadata
from waltzctl.engine.node.hosted_storage import HostedStorage
from waltzctl.engine.node.node import Node, NodeReadyInfo
from waltzctl.engine.node.node_metrics import NodeMetrics
from waltzctl.engine.node.node_settings import HealthOptions, NodeOptions, ServiceOptions, ZooKeeperOptions
from waltzctl.engine.node.permissions import NotLoadedError
from waltzctl.engine.storage.assignment import put_aside_path
from waltzctl.engine.storage.directory import StorageDirectory, StorageOptions
from waltzctl.engine.storage.journal_recovery import WrittenBack
from waltzctl.formats.control import CONTROL_FILE_NAME, MAX_PARTITIONS, Layout, decode_control
from waltzctl.formats.wire.storage import (
    AppendRequest,
    FailureResponse,
    MaxTransactionIdRequest,
    MaxTransactionIdResponse,
    SuccessResponse,
)
from waltzctl.formats.znodes import StoreParameters


@pytest.mark.parametrize(
    ("partitions", "workers", "threads", "syncing"),
    [
        (1, None, 3, 0),
        (2, None, 4, 1),
        (16, None, 18, 15),
        (17, None, 19, 15),
        (30, None, 32, 15),
        (31, None, 32, 15),
        (3, 7, 7, 2),
    ],
)
def test_there_are_as_many_workers_as_partitions_and_two_up_to_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: int, workers: int | None, threads: int, syncing: int
) -> None:
    """And beside whoever syncs a thread for each other partition, up to a bound of its own."""
    made: list[int] = []
    flushing: list[int] = []

    class Flushing(hosted_storage.Flusher):  # type: ignore[name-defined,misc]
        def __init__(self, *, log: logging.Logger, threads: int, file_system: FileSystem | None) -> None:
            flushing.append(threads)
            super().__init__(log=log, threads=threads, file_system=file_system)

    real = hosted_storage.Executor

    def noting(size: int, **words: Any) -> Any:
        made.append(size)
        return real(size, **words)

    monkeypatch.setattr(hosted_storage, "Executor", noting)
    monkeypatch.setattr(admin_port, "Executor", noting)
    monkeypatch.setattr(hosted_storage, "Flusher", Flushing)
    created(tmp_path, partitions, assigned=[])
    with serving(tmp_path, options=ServiceOptions(workers=workers)) as served:
        admin_port.AdminPort(served.hosted, metrics=str, limits=NodeOptions().limits, log=LOG).pool.close()
    assert (made, flushing) == ([threads, 4], [syncing])


class Waiting(Pool):
    """Whose jobs are executed when the test says so."""

    def time(self) -> float:
        return time.monotonic()

    def call_later(self, seconds: float, call: object) -> bool:
        """Nothing hangs here."""
        return True

    def close(self) -> None:
        """It has no thread."""


@pytest.mark.parametrize("setting", [True, False])
@pytest.mark.parametrize("promise", [True, False])
@pytest.mark.parametrize("number", [0, errno.EIO])
def test_what_a_pass_wrote_is_flushed_with_its_file_system_where_that_is_a_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: bool, promise: bool, number: int
) -> None:
    """One flush, whose failure is the failure of every partition in the pass; they refuse to write from then on."""
    created(tmp_path, FEWEST_AT_ONCE)
    monkeypatch.setattr(file_system, "keeps_its_promise", lambda *_: promise)
    monkeypatch.setattr(file_system, "dirty_bytes", lambda: 0)
    calls: list[int] = []

    def flushed(descriptor: int) -> int:
        calls.append(descriptor)
        ctypes.set_errno(number)
        return -1 if number else 0

    waiting, witness = Waiting(), Witness()
    hosted = HostedStorage(
        StorageDirectory.open(tmp_path, options=StorageOptions()),
        options=ServiceOptions(flush_file_system=setting),
        metrics=NodeMetrics(),
        log=LOG,
        executor=waiting,  # type: ignore[arg-type]
    )
    whole = hosted._flusher._file_system
    assert (whole is not None) is (setting and promise)
    if whole is not None:
        monkeypatch.setattr(whole, "_sync_file_system", flushed)
    for partition in range(FEWEST_AT_ONCE):
        service = hosted.service(partition)
        assert service is not None
        service.submit(run_of(witness, [appended(0, partition=partition, sequence=partition)]))
    waiting.line[0].run()  # a pass, which takes all that stands in line
    failed = whole is not None and number != 0
    assert len(calls) == (whole is not None)
    answers = witness.wait(FEWEST_AT_ONCE)
    assert [isinstance(answer, SuccessResponse) for answer in answers] == [not failed] * FEWEST_AT_ONCE
    if failed:
        assert [answer.failure.code for answer in answers if isinstance(answer, FailureResponse)] == [
            "sync-failed"
        ] * FEWEST_AT_ONCE
    assert [one.access.outage is not None for one in hosted.services] == [failed] * FEWEST_AT_ONCE
    hosted.close()


def test_what_many_partitions_append_on_a_real_disk_is_there_when_it_is_opened_again(
    disk_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through threads and passes as they come, with the file system's own flush where it is a promise."""
    partitions, appends = 2 * FEWEST_AT_ONCE, 40
    flushes: list[int] = []
    real = FileSystem.sync
    monkeypatch.setattr(FileSystem, "sync", lambda self, files: (flushes.append(len(files)), real(self, files))[1])
    monkeypatch.setattr(file_system, "dirty_bytes", lambda: 0)
    place = disk_path / "storage"
    created(place, partitions)
    with serving(place) as served:
        for number in range(appends):
            witnesses = [Witness() for _ in range(partitions)]
            for partition, witness in enumerate(witnesses):
                records = (record(number, partition=partition),)
                served.submit(witness, AppendRequest(1, number, partition, records, False), partition=partition)
            for witness in witnesses:
                (answer,) = witness.wait(1)
                assert isinstance(answer, SuccessResponse)
    with StorageDirectory.open(place, options=StorageOptions()) as opened:
        for one in opened.partitions.values():
            assert [record.transaction_id for record in one.read_range(0, appends + 1)] == list(range(appends))
    if FileSystem.of(place) is None:
        pytest.skip("a flush of this file system as a whole is no promise: every file was synced by itself")
    assert flushes
    assert min(flushes) >= FEWEST_AT_ONCE


def test_files_that_a_partition_left_behind_are_deleted_and_nothing_else_is_given_up(tmp_path: Path) -> None:
    created(tmp_path, 3, assigned=[0])
    with serving(tmp_path) as served:
        served.hosted.unassign([0], delete_files=False)
        assert (tmp_path / "0").is_dir()
        with pytest.raises(NotLoadedError):
            served.hosted.unassign([0], delete_files=False)
        with pytest.raises(NotLoadedError):
            served.hosted.unassign([0, 1], delete_files=True)
        assert (tmp_path / "0").is_dir(), "all are looked at before the first is given up"
        served.hosted.unassign([0], delete_files=True)
        assert not (tmp_path / "0").exists()
        with pytest.raises(NotLoadedError):
            served.hosted.unassign([0], delete_files=True)
        aside = put_aside_path(tmp_path, 1)
        aside.mkdir(parents=True)
        served.hosted.unassign([1], delete_files=True)
        assert not aside.exists()


def test_of_a_partition_that_was_given_up_the_passes_keep_nothing(tmp_path: Path) -> None:
    created(tmp_path, 2)
    with serving(tmp_path) as served:
        passes = served.hosted._passes
        passes._last_arrival.update(dict.fromkeys(served.hosted._services.values(), 0.0))
        served.hosted.unassign([0], delete_files=False)
        assert [*passes._last_arrival] == [served.hosted._services[1]]


def test_a_full_disk_can_be_made_room_on_by_deleting_a_partition(tmp_path: Path) -> None:
    """What a deletion needs is there since the start; where the disk was full by then, the partition goes on being served."""
    created(tmp_path, 2)
    with serving(tmp_path) as served:
        served.succeed(appended(0))
    (tmp_path / ".waltzctl" / "deleting").rmdir()
    with full_disk(), serving(tmp_path) as served:
        with pytest.raises(DiskFullError):
            served.hosted.unassign([0], delete_files=True)
        served.succeed(appended(1))
    with serving(tmp_path) as served, full_disk():
        served.hosted.unassign([0], delete_files=True)
        served.hosted.set_availability([1], readable=False, writable=False)
        assert not (tmp_path / "0").exists()
        assert served.hosted.assigned_status() == [(1, False)]


@pytest.mark.parametrize("gone", [False, True])
def test_a_partition_that_could_not_be_given_up_is_served_as_far_as_the_directory_still_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, gone: bool
) -> None:
    created(tmp_path, 2)
    with serving(tmp_path) as served:
        hosted, real = served.hosted, served.hosted.storage.unassign

        def fails(number: int, *, delete_files: bool) -> None:
            if gone:
                real(number, delete_files=False)
            raise DiskWriteError(tmp_path, 0, OSError(5, "no"), doing="remove")

        monkeypatch.setattr(hosted.storage, "unassign", fails)
        with pytest.raises(DiskWriteError):
            hosted.unassign([0, 1], delete_files=True)
        assert [number for number, _ in hosted.assigned_status()] == ([1] if gone else [0, 1])
        assert list(hosted._metrics.partitions()) == ([1] if gone else [0, 1])
        served.succeed(appended(0, partition=1))
        if not gone:
            served.succeed(appended(0, partition=0))


@pytest.mark.parametrize("spoilt", ["none in force", "another id"])
def test_availability_changes_of_none_where_the_info_of_one_is_damaged(tmp_path: Path, spoilt: str) -> None:
    created(tmp_path, 3)
    file = tmp_path / CONTROL_FILE_NAME
    control = decode_control(file.read_bytes())
    info = control.partitions[1].encode()
    wrong = bytes(4) + info[4:] if spoilt == "another id" else info[:4] + bytes(len(info) - 4)
    file.write_bytes(file.read_bytes().replace(info, wrong))
    with serving(tmp_path) as served:
        with pytest.raises(PartitionQuarantinedError, match="partition 1: its info in the control file is damaged"):
            served.hosted.set_availability([0, 1, 2], readable=False)
        assert served.hosted.assigned_status()[0] == (0, True)
        served.hosted.set_availability([0, 2], readable=False)
        assert served.hosted.assigned_status()[0] == (0, False)


def test_a_node_of_a_cluster_takes_its_key_from_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty directory gets its control file; one of another cluster does not open."""
    key, options = uuid.uuid4(), ZooKeeperOptions("zk:2181", "/w")
    asked: list[ZooKeeperOptions] = []

    def metadata(given: ZooKeeperOptions) -> ClusterMetadata:
        asked.append(given)
        return ClusterMetadata(key, 5, "here")

    monkeypatch.setattr(cluster_metadata, "read_cluster_metadata", metadata)

    async def work() -> None:
        nonlocal key
        async with running(tmp_path, http_port=None, zookeeper=options) as one:
            assert (one.storage.cluster_key, one.storage.num_partitions) == (key, 5)
        key = uuid.uuid4()
        with pytest.raises(MismatchError):
            await Node.start(node_options(tmp_path, http_port=None, zookeeper=options), log=LOG)

    run(work())
    assert asked == [options] * 2


def test_options_that_cannot_be_meant_are_told_before_anybody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(cluster_metadata, "connected")
    for ask in (cluster_metadata.read_cluster_metadata, lambda options: cluster_metadata.read_znodes(options, ["a"])):
        with pytest.raises(InvalidRequestError):
            ask(ZooKeeperOptions("zk:2181", "no path"))


WHERE = "ZooKeeper at zk:2181"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (NoNodeError(), f"{WHERE}: there is no node /w/store"),
        (NoAuthError(), f"{WHERE}: node /w/store may not be read by this program"),
        (KazooException("odd"), f"{WHERE}: node /w/store cannot be read: KazooException odd"),
        (KazooTimeoutError(), f"{WHERE}: no answer within 4 s for node /w/store"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_zookeeper_answers_instead_is_told(
    monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    class Client:
        handler = SimpleNamespace(timeout_exception=KazooTimeoutError)

        def get_async(self, path: str) -> Client:
            assert path == "/w/store"
            return self

        def get(self, block: bool, seconds: float) -> None:
            assert (block, seconds) == (True, 4.0)
            raise error

    monkeypatch.setattr(cluster_metadata, "connected", lambda _: contextlib.nullcontext((Client(), None)))
    with pytest.raises(WaltzError) as caught:
        cluster_metadata.read_cluster_metadata(ZooKeeperOptions("zk:2181", "/w", connect_timeout=4.0))
    assert caught.value.message == message


def test_the_root_of_a_cluster_may_end_with_a_slash(monkeypatch: pytest.MonkeyPatch) -> None:
    store = StoreParameters(uuid.UUID(int=3), 4)
    asked: list[str] = []

    def get_async(path: str) -> Any:
        asked.append(path)
        return SimpleNamespace(get=lambda *_: (store.encode(), None))

    client = SimpleNamespace(get_async=get_async)
    monkeypatch.setattr(cluster_metadata, "connected", lambda _: contextlib.nullcontext((client, None)))
    monkeypatch.setattr(ZooKeeperOptions, "check", lambda _: None)
    for root in ("/w", "/w/"):
        found = cluster_metadata.read_cluster_metadata(ZooKeeperOptions("zk:2181", root))
        assert (found.cluster_key, found.num_partitions) == (store.cluster_key, 4)
        cluster_metadata.read_znodes(ZooKeeperOptions("zk:2181", root), ["store"])
    assert asked == ["/w/store"] * 4


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda data: b"\x02" + data[1:], MismatchError),
        (lambda data: data[:-1], DamageError),
        (lambda data: b"\x01", DamageError),
    ],
)
def test_what_stands_there_instead_of_a_cluster_key_is_told(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[bytes], bytes], error: type[WaltzError]
) -> None:
    """Another version is no damage: a newer program may have written it."""
    data = change(StoreParameters(uuid.UUID(int=3), 4).encode())
    client = SimpleNamespace(get_async=lambda _: SimpleNamespace(get=lambda *_: (data, None)))
    monkeypatch.setattr(cluster_metadata, "connected", lambda _: contextlib.nullcontext((client, None)))
    with pytest.raises(error, match=f"{WHERE}, node /w/store: ") as caught:
        cluster_metadata.read_cluster_metadata(ZooKeeperOptions("zk:2181", "/w"))
    assert type(caught.value) is error


def test_nodes_without_data_are_told_and_others_are_read_in_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    data = {"/w/a": b"one", "/w/b/c": b"two", "/w/empty": b""}
    connections: list[int] = []

    def connected(_: object) -> Any:
        connections.append(1)
        client = SimpleNamespace(get_async=lambda path: SimpleNamespace(get=lambda *_: (data[path], None)))
        return contextlib.nullcontext((client, None))

    monkeypatch.setattr(cluster_metadata, "connected", connected)
    options = ZooKeeperOptions("zk:2181", "/w")
    assert cluster_metadata.read_znodes(options, ["a", "b/c"]) == (b"one", b"two")
    assert connections == [1]
    with pytest.raises(NotWaltzError) as caught:
        cluster_metadata.read_znodes(options, ["a", "empty"])
    assert caught.value.message == f"{WHERE}, node /w/empty: holds nothing"
    data["/w/store"] = b""
    with pytest.raises(NotWaltzError) as caught:
        cluster_metadata.read_cluster_metadata(options)
    assert caught.value.message == f"{WHERE}, node /w/store: holds no cluster key"


@pytest.mark.parametrize(
    ("count", "served"), [(0, False), (1, True), (MAX_PARTITIONS, True), (MAX_PARTITIONS + 1, False)]
)
def test_a_node_serves_so_many_partitions(monkeypatch: pytest.MonkeyPatch, count: int, served: bool) -> None:
    store = StoreParameters(uuid.UUID(int=3), count)
    client = SimpleNamespace(get_async=lambda _: SimpleNamespace(get=lambda *_: (b"x", None)))
    monkeypatch.setattr(cluster_metadata, "connected", lambda _: contextlib.nullcontext((client, None)))
    monkeypatch.setattr(cluster_metadata.StoreParameters, "decode", lambda _: store)
    options = ZooKeeperOptions("zk:2181", "/w")
    if served:
        where = f"{WHERE}, node /w/store"
        assert cluster_metadata.read_cluster_metadata(options) == ClusterMetadata(store.cluster_key, count, where)
    else:
        with pytest.raises(MismatchError, match=f"{count} partitions; a node can serve 1 to {MAX_PARTITIONS}"):
            cluster_metadata.read_cluster_metadata(options)


def test_a_partition_that_cannot_be_served_ends_the_opening_and_lets_go_of_the_fences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise DiskWriteError(tmp_path, 0, OSError(5, "no"))

    closed: list[int] = []
    created(tmp_path)
    monkeypatch.setattr(hosted_storage, "PartitionService", fails)
    monkeypatch.setattr(hosted_storage.SessionFences, "close", lambda _: closed.append(1))
    metrics = NodeMetrics()
    with StorageDirectory.open(tmp_path) as storage, pytest.raises(DiskWriteError):
        HostedStorage(storage, options=ServiceOptions(), metrics=metrics, log=LOG)
    assert closed == [1]
    assert metrics.partitions() == {}, "nor are there metrics of it"


def test_closing_a_second_time_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    created(tmp_path)
    with serving(tmp_path) as served:
        for owner, name in (
            (served.hosted.storage, "storage"),
            (served.hosted._pool, "pool"),
            (served.hosted._fences, "fences"),
        ):

            def noting(real: Callable[[], None] = owner.close, name: str = name) -> None:  # type: ignore[attr-defined]
                closed.append(name)
                real()

            monkeypatch.setattr(owner, "close", noting)
        assert served.hosted.close()
        assert closed == ["pool", "fences", "storage"]
        assert served.hosted.close()
        assert served.hosted.close(0.0)
        assert len(closed) == 3


@pytest.mark.parametrize(
    ("seconds", "left"), [(None, [None] * 3), (50.0, [50.0, 30.0, 10.0]), (30.0, [30.0, 10.0, 0.0])]
)
def test_all_partitions_together_have_the_time_that_closing_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float | None, left: list[float | None]
) -> None:
    created(tmp_path, 3)
    now = [100.0]
    given: list[float | None] = []

    def drain(_over: object, seconds: float | None = None) -> bool:
        given.append(seconds)
        now[0] += 20.0
        return True

    with serving(tmp_path) as served:
        monkeypatch.setattr(hosted_storage, "time", SimpleNamespace(monotonic=lambda: now[0]))
        for service in served.hosted.services:
            service.drain = drain  # type: ignore[method-assign]
        assert served.hosted.close(seconds)
    assert given == left


def test_at_the_end_all_are_refused_before_the_first_is_waited_for_and_each_is_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """However many hang, nobody else is left without an answer."""
    created(tmp_path, 3)
    done: list[str] = []
    with serving(tmp_path) as served:
        reals = []
        for service in served.hosted.services:
            reals.append((service, service.refuse, service.drain))

            def refuse(_over: object, number: int = service.number) -> None:
                done.append(f"refuse {number}")

            def drain(_over: object, _seconds: float | None = None, number: int = service.number) -> bool:
                done.append(f"drain {number}")
                return number == 1

            service.refuse, service.drain = refuse, drain  # type: ignore[method-assign]
        assert not served.hosted.close(5.0)
        assert done == ["refuse 0", "refuse 1", "refuse 2", "drain 0", "drain 1", "drain 2"]
        assert caplog.messages == ["partitions [0, 2] do not come to an end; their files are left as they are"]
        for service, real_refuse, real_drain in reals:
            service.refuse, service.drain = real_refuse, real_drain  # type: ignore[method-assign]


@pytest.mark.parametrize("given_up", [False, True])
def test_a_partition_that_could_not_be_given_up_is_served_on_unless_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given_up: bool
) -> None:
    created(tmp_path)
    with serving(tmp_path) as served:
        storage = served.hosted.storage
        real = storage.unassign

        def fails(number: int, *, delete_files: bool) -> None:
            if given_up:
                real(number, delete_files=delete_files)
            raise DiskWriteError(tmp_path, 0, OSError(5, "no"))

        monkeypatch.setattr(storage, "unassign", fails)
        service = served.hosted.service(0)
        assert service is not None
        with pytest.raises(DiskWriteError):
            served.hosted.unassign([0], delete_files=False)
        assert (served.hosted.service(0) is None) == given_up
        peer = Witness()
        service.submit(request_of(peer, MaxTransactionIdRequest(1, 1, 0)))
        [answer] = peer.wait(1)
        assert isinstance(answer, FailureResponse if given_up else MaxTransactionIdResponse)
        assert sorted(served.hosted._metrics.partitions()) == ([1] if given_up else [0, 1])


def test_a_partition_that_could_not_be_opened_again_answers_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created(tmp_path)

    def fails(_number: int) -> None:
        raise DiskWriteError(tmp_path, 0, OSError(5, "no"))

    with serving(tmp_path) as served:
        monkeypatch.setattr(served.hosted.storage, "reopen", fails)
        with pytest.raises(DiskWriteError):
            served.hosted.reopen(0)
        assert served.one(MaxTransactionIdRequest(1, 1, 0)) == MaxTransactionIdResponse(1, 1, 0, -1)


def test_a_change_that_does_not_end_keeps_the_directory_open(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    created(tmp_path)
    with serving(tmp_path) as served:
        taken, go = threading.Event(), threading.Event()

        def change() -> None:
            with served.hosted._lock:
                taken.set()
                go.wait(60)

        thread = threading.Thread(target=change)
        thread.start()
        taken.wait(60)
        assert not served.hosted.close(0.0)
        assert [record.getMessage() for record in caplog.records] == [
            "a change of a partition does not come to an end; the files are left as they are"
        ]
        with pytest.raises(RefusedError):
            served.hosted.check_open(served.hosted.storage.cluster_key, served.hosted.storage.num_partitions)
        go.set()
        thread.join()


@pytest.mark.parametrize("way", ["late", "overdue"])
def test_partitions_that_do_not_end_are_told_and_the_node_is_closed_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    created(tmp_path)
    asked: list[float | None] = []

    async def work() -> None:
        one = await Node.start(node_options(tmp_path, http_port=None), log=LOG)
        real = one.hosted.close

        def late(seconds: float | None = None) -> bool:
            asked.append(seconds)
            if way == "overdue":
                raise OverdueError("closing", 65.0)
            return False

        waited: list[float | None] = []
        real_result = node.SingleFlight.result

        async def result(flight: Any, deadline: float | None, **words: Any) -> Any:
            waited.append(deadline)
            return await real_result(flight, deadline, **words)

        monkeypatch.setattr(node.SingleFlight, "result", result)
        monkeypatch.setattr(one.hosted, "close", late)
        with pytest.raises(DiskWriteError) as caught:
            await one.stop(1.0)
        await one.wait_closed()
        assert waited == [10.0, 65.0], "the admin port's threads, and the partitions"
        what = {
            "late": "partitions did not come to an end within 60 s",
            "overdue": "closing has not come back for 65.0 s",
        }
        assert what[way] in str(caught.value)
        assert str(tmp_path) in str(caught.value)
        assert not one.data.listening
        real()

    run(work())
    assert asked == [60.0]
    assert node.CLOSING_SECONDS == 60.0


def test_a_node_that_speaks_tls_goes_on_doing_so_until_it_is_started_anew(tmp_path: Path) -> None:
    created(tmp_path)

    async def work() -> None:
        async with running(tmp_path, plaintext=False, http_port=None) as one:
            used: list[Any] = []
            one.data.use_context = one.admin.use_context = used.append  # type: ignore[method-assign]
            reloaded = await one.reload(replace(one.options, plaintext=True))
            assert (reloaded.changed, reloaded.needs_restart) == ((), ("plaintext",))
            assert used == []
            await one.reload(one.options)
            assert len(used) == 2
        async with running(tmp_path, http_port=None) as one:
            one.data.use_context = used.append  # type: ignore[method-assign]
            await one.reload(replace(one.options, plaintext=False))
            assert len(used) == 2, "nor does one that speaks none begin to"

    run(work())


def test_a_reload_is_passed_on_to_everything_it_concerns(tmp_path: Path) -> None:
    created(tmp_path)

    async def work() -> None:
        async with running(tmp_path, http_port=None) as one:
            health = replace(one.options.health, min_free_bytes=5, max_stall=7.0, max_age=0.25)
            limits = replace(one.options.limits, max_connections=3, output=777_777, reads=9, memory=200 << 20)
            await one.reload(replace(one.options, health=health, limits=limits, drain_seconds=3.0))
            assert (one.options.health, one.options.limits, one.options.drain_seconds) == (health, limits, 3.0)
            assert (one.data.limits, one.admin.limits) == (limits, limits)
            assert one.data.output_budget.capacity == 777_777
            assert (one.data.reads.capacity, one.data.budget.capacity) == (9, 200 << 20)
            assert one.health.probe.min_free_bytes == one.hosted._room.probe.min_free_bytes == 5
            assert one.hosted._room.max_age == 0.25
            assert one.health._options is health

    run(work())


@pytest.mark.parametrize("number", [1, 2])
def test_limits_for_which_there_is_no_memory_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Neither at the port whose buffer it is nor at the other one, nor the certificates that were read with them."""
    created(tmp_path)
    made = 0

    def buffer(size: int) -> bytearray:
        nonlocal made
        made += 1
        if made == number:
            raise MemoryError
        return bytearray(size)

    async def work() -> None:
        async with running(tmp_path, http_port=None) as one:
            before, used = one.options, SimpleNamespace(use_context=lambda _: pytest.fail("it was changed"))
            for port in (one.data, one.admin):
                monkeypatch.setattr(port, "use_context", used.use_context)
            one.options = replace(before, plaintext=False)
            monkeypatch.setattr(port_module, "bytearray", buffer, raising=False)
            with pytest.raises(MemoryError):
                await one.reload(replace(one.options, limits=replace(before.limits, big_frame=1 << 20, reads=9)))
            assert (one.data.limits, one.admin.limits, one.data.reads.capacity) == (
                before.limits,
                before.limits,
                before.limits.reads,
            )

    run(work())


@pytest.mark.parametrize("http", [None, 0])
def test_what_a_node_has_to_say_when_it_has_started(
    tmp_path: Path, http: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    created(tmp_path, 3, assigned=[2, 0])

    async def work() -> None:
        with caplog.at_level(logging.INFO, LOG.name):
            async with running(tmp_path, http_port=http) as one:
                where = one.addresses
                assert one.ready_info == NodeReadyInfo(
                    tmp_path, Layout.RELEASED, one.storage.cluster_key, 3, (0, 2), (), 0, where, tls=False
                )
                assert (where.http_port is None) == (http is None)
                peer = await Peer.data(one)
                assert await peer.request(append(0)) == SuccessResponse(7, 0, 0)
                found = [("data", 1), ("admin", 0)] + ([("http", 0)] if http is not None else [])
                assert one.connections() == found
                assert one._listening() == {name: True for name, _ in found}
                await peer.close()
        told = [record.getMessage() for record in caplog.records if record.getMessage().startswith("serving")]
        port = where.http_port or "off"
        assert told == [
            f"serving {tmp_path}: data port {where.port}, admin port {where.admin_port}, HTTP port {port} at {where.host}"
        ]

    run(work())


def test_partitions_are_named_in_their_order_whichever_was_taken_in_first() -> None:
    partitions = {number: SimpleNamespace(damaged=number != 1) for number in (2, 0, 1)}
    storage = SimpleNamespace(
        partitions=partitions, path=Path("/d"), layout=Layout.RELEASED, cluster_key=None, num_partitions=3, findings=[1]
    )
    one = SimpleNamespace(storage=storage, addresses=None, options=SimpleNamespace(plaintext=False))
    found = Node.ready_info.fget(one)  # type: ignore[attr-defined]
    assert (found.assigned, found.quarantined, found.findings, found.tls) == ((0, 1, 2), (0, 2), 1, True)


def test_a_drain_takes_as_long_as_the_options_say_unless_it_is_told(tmp_path: Path) -> None:
    created(tmp_path)

    async def drain(one: Node, into: list[tuple[float, bool]], seconds: float) -> None:
        into.append((seconds, one.health._draining.is_set()))

    async def work() -> None:
        for given, expected in ((None, 9.0), (2.0, 2.0), (0.0, 0.0)):
            drained = list[tuple[float, bool]]()
            one = await Node.start(node_options(tmp_path, http_port=None, drain_seconds=9.0), log=LOG)
            for port in (one.data, one.admin):
                port.drain = partial(drain, one, drained)  # type: ignore[method-assign]
            await one.stop(given)
            assert drained == [(expected, True)] * 2, "and the node is unwell by then"

    run(work())


def test_a_stop_goes_on_when_whoever_asked_for_it_waits_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created(tmp_path)
    closed: list[float] = []

    async def close(_: object, seconds: float) -> bool:
        closed.append(seconds)
        return True

    monkeypatch.setattr(node.Health, "close", close)

    async def work() -> None:
        one = await Node.start(node_options(tmp_path, http_port=None), log=LOG)
        asking = asyncio.ensure_future(one.stop(1.0))
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await one.stop()
        await one.wait_closed()
        assert closed == [1.0], "the look at the disk has ended, too"
        with StorageDirectory.open(tmp_path):
            pass

    run(work())


def test_a_start_that_is_cancelled_while_the_partitions_are_taken_in_leaves_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created(tmp_path)
    begun, go = threading.Event(), threading.Event()
    real = Node._make_hosted

    def host(one: Node) -> HostedStorage:
        begun.set()
        assert go.wait(60)
        return real(one)

    monkeypatch.setattr(Node, "_make_hosted", host)
    ended: list[HostedStorage] = []
    close = node._close_hosted
    monkeypatch.setattr(node, "_close_hosted", lambda hosted: (ended.append(hosted), close(hosted)))

    async def work() -> None:
        starting = asyncio.ensure_future(Node.start(node_options(tmp_path, http_port=None), log=LOG))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        starting.cancel()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await starting

    run(work())
    assert len(ended) == 1, "its threads have ended"
    with StorageDirectory.open(tmp_path):
        pass


def test_a_reload_that_cannot_be_meant_changes_nothing(tmp_path: Path) -> None:
    created(tmp_path)

    async def work() -> None:
        async with running(tmp_path, http_port=None) as one:
            before = one.options
            for changed in (
                {"limits": replace(before.limits, max_connections=0)},
                {"health": replace(before.health, deadline=0.0)},
            ):
                with pytest.raises(InvalidRequestError):
                    await one.reload(replace(before, **changed))
            assert (one.options, one.data.limits, one.admin.limits) == (before, before.limits, before.limits)

    run(work())


@pytest.mark.parametrize(
    "changed",
    [
        {"health": HealthOptions(deadline=0.0)},
        {"http": HttpLimits(max_connections=0)},
        {"limits": PortLimits(max_connections=0)},
        {"service": ServiceOptions(queue_requests=0)},
        {"storage": StorageOptions(cached_segments=0)},
        {"tls": TlsOptions(key=Path("/k"))},
        {"zookeeper": ZooKeeperOptions("zk:2181", "no path")},
        {"graphite": GraphiteOptions("")},
        {"drain_seconds": -1.0},
    ],
    ids=lambda one: next(iter(one)),
)
def test_options_of_every_group_are_looked_at(tmp_path: Path, changed: dict[str, Any]) -> None:
    node_options(tmp_path).check()
    with pytest.raises(InvalidRequestError):
        replace(node_options(tmp_path), **changed).check()


def test_what_a_node_has_to_say_of_its_partitions(tmp_path: Path) -> None:
    partitions = {
        5: SimpleNamespace(damaged=True, failed=None),
        3: SimpleNamespace(damaged=False, failed=DiskWriteError(tmp_path, 0, OSError(5, "no"))),
        4: SimpleNamespace(damaged=True, failed=None),
    }
    storage: Any = SimpleNamespace(
        path=tmp_path, layout=Layout.RELEASED, cluster_key=uuid.UUID(int=1), num_partitions=9, partitions=partitions,
        findings=(1, 2),
    )  # fmt: skip

    async def work() -> None:
        one = Node(node_options(tmp_path), version="1", log=LOG)
        one.storage, one.addresses = storage, node.NodeAddresses("h", 1, 2, None)
        info = one.ready_info
        assert (info.assigned, info.quarantined, info.findings) == ((3, 4, 5), (4, 5), 2)

    run(work())


def test_what_the_start_changed_unasked_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    partition = SimpleNamespace(
        number=4, mended=[SimpleNamespace(code="torn-tail", message="cut")], undo_ids=["2026-1", "2026-2"]
    )
    written_back = WrittenBack(Path("/fast/journal"), {4: DamageError("a segment is not there")})
    storage: Any = SimpleNamespace(taken_back=["2026-0"], partitions={4: partition}, written_back=written_back)

    async def work() -> None:
        Node(node_options(tmp_path), version="1", log=LOG)._log_changes(storage)

    run(work())
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.WARNING, "what the commit journal /fast/journal held was written back"),
        (logging.ERROR, "partition 4: the commit journal is kept for it: a segment is not there"),
        (logging.WARNING, "the repair 2026-0 was interrupted; it was taken back, byte for byte"),
        (logging.WARNING, "mended: torn-tail: cut"),
        (logging.WARNING, "what was taken away from partition 4 is kept in 2026-1"),
        (logging.WARNING, "what was taken away from partition 4 is kept in 2026-2"),
    ]


@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.parametrize("written", [True, False])
def test_that_a_journal_stays_which_another_directory_may_need_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, stays: bool, written: bool
) -> None:
    """Nobody else removes its 64 MiB.  One step to the side: one that a process writes is not to be removed."""
    journal = tmp_path / "journal"
    if stays:
        journal.touch()
    storage: Any = SimpleNamespace(taken_back=[], partitions={}, written_back=WrittenBack(journal, {}))

    async def work() -> None:
        Node(node_options(tmp_path), version="1", log=LOG)._log_changes(storage)

    with journal.open("r+b") if stays and written else contextlib.nullcontext() as file:
        if file is not None:
            hold_file(file.fileno())
        run(work())
    told = [
        f"what the commit journal {journal} held was written back",
        f"the commit journal {journal} stays: this directory may be a copy of one that needs it; remove it if it is not",
    ]
    assert [record.getMessage() for record in caplog.records] == told[: 1 + (stays and not written)]
