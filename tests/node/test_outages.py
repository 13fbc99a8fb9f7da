"""A partition that cannot take part in a session refuses the session's first question, and goes on being read.

A released server takes a replica for absent if LastSessionInfo is refused, and for nothing else; so each cause is looked at by
that question, by the requests that follow it in a session, and by what an operator still has to be able to ask.
"""

from __future__ import annotations

import errno
import logging
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.builders import build_directory
from tests.node.service_support import LOG, Served, appended, created, serving
from tests.storage.support import built, damage, data_path, index_path, offset_of
from waltzctl.engine.durable import disk
from waltzctl.engine.errors import (
    CorruptRecordError,
    DiskError,
    DiskFullError,
    DiskReadError,
    DiskWriteError,
    RefusedError,
    SyncFailedError,
    WaltzError,
)
from waltzctl.engine.findings import Finding
from waltzctl.engine.node.disk_probe import DiskProbe
from waltzctl.engine.node.node_settings import HealthOptions
from waltzctl.engine.node.outages import Return, Room, outage_of, reads_again
from waltzctl.engine.node.partition_outage import PartitionOutage
from waltzctl.engine.storage.partition_condition import DAMAGED, WRITABLE
from waltzctl.engine.storage.storage_options import StorageOptions
from waltzctl.formats.segment import ENTRY_SIZE, HEADER_SIZE
from waltzctl.formats.wire.storage import (
    FailureResponse,
    LastSessionInfoRequest,
    LastSessionInfoResponse,
    MaxTransactionIdRequest,
    MaxTransactionIdResponse,
    RecordHeaderListRequest,
    RecordHeaderRequest,
    RecordListRequest,
    RecordRequest,
    RecordResponse,
    SetLowWaterMarkRequest,
    StorageMessage,
    TruncateRequest,
)

SESSION = 1000
"""Above those of directories that were built by hand."""
NO_FLOOR = HealthOptions(min_free_bytes=0, max_age=0.0)


def first_question(session: int = SESSION) -> LastSessionInfoRequest:
    return LastSessionInfoRequest(session, 0, 0)


def refused(served: Served, message: StorageMessage) -> str:
    return str(served.failure(message).code)


def expect_out(served: Served, code: str) -> None:
    """No session can begin or go on with a write, each refused by the same word; reading is possible, on both ports."""
    for message in (
        first_question(),
        first_question(SESSION + 1),
        appended(30, session=SESSION),
        TruncateRequest(SESSION, 0, 0, 29),
        SetLowWaterMarkRequest(SESSION, 0, 0, 40),
    ):
        assert refused(served, message) == code
    assert isinstance(served.one(MaxTransactionIdRequest(SESSION, 0, 0)), MaxTransactionIdResponse)
    answer = served.one(RecordRequest(SESSION, 0, 0, 1))
    assert isinstance(answer, RecordResponse)
    assert answer.record is not None
    assert served.hosted.read_wire(0, 1, 1).count == 1
    assert served.hosted.session_info(0) is not None
    service = served.hosted.service(0)
    assert service is not None
    assert service.access.outage is not None
    assert service.access.outage.code == code


def expect_in(served: Served) -> None:
    """A session can begin."""
    assert isinstance(served.one(first_question()), LastSessionInfoResponse)
    service = served.hosted.service(0)
    assert service is not None
    assert service.access.outage is None


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines of the log that an operator sees about partition 0's part in sessions."""
    return [
        one.message
        for one in caplog.records
        if one.levelno >= logging.WARNING
        and one.message.startswith("partition 0")
        and "part in sessions" in one.message
    ]


def fail(patch: pytest.MonkeyPatch, call: str, name: str, error: int) -> None:
    """Have the system refuse a call on files whose name ends so."""
    real: Callable[..., object] = getattr(os, call)

    def failing(descriptor: int, *arguments: object) -> object:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(name):
            raise OSError(error, os.strerror(error))
        return real(descriptor, *arguments)

    patch.setattr(os, call, failing)


# --- quarantine -------------------------------------------------------------------------------------------------------


def test_a_quarantined_partition_refuses_the_first_question(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "s"
    records = built(path, 30, per_segment=10, mark=29)
    damage(data_path(path, 20), offset_of(records[20:], 24) + 45)
    with serving(path) as served:
        expect_out(served, "quarantined")
        offline = served.one(LastSessionInfoRequest(served.hosted.session_info(0).session_id, 0, 0, True))
        assert isinstance(offline, FailureResponse), "it is switched on"
        assert offline.failure.code == "online"
        [line] = told(caplog)
        assert f"waltzctl recover {path} --partition 0 --from REPLICA" in line
    damage(data_path(path, 20), offset_of(records[20:], 24) + 45)  # repaired
    with serving(path) as served:
        expect_in(served)


def test_where_nothing_tells_what_a_partition_held_a_copy_is_advised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """recover would find nothing that is proven, and nothing to restore."""
    path = tmp_path / "s"
    built(path, 30, per_segment=10, mark=-1)
    for file in (path / "0").iterdir():
        file.unlink()
    with serving(path) as served:
        assert refused(served, first_question(SESSION + 1)) == "quarantined"
        [line] = told(caplog)
        assert "remove-partition --partition 0 --delete-storage-files, then add-partition --partition 0" in line
        assert "recover" not in line


def test_a_refused_question_shuts_out_nobody(tmp_path: Path) -> None:
    """The session that asked is not let in: who was in before reads on."""
    records = built(tmp_path / "s", 30, per_segment=10, mark=29)
    damage(data_path(tmp_path / "s", 20), offset_of(records[20:], 24) + 45)
    with serving(tmp_path / "s") as served:
        assert isinstance(served.one(RecordRequest(SESSION, 0, 0, 1)), RecordResponse)
        assert refused(served, first_question(SESSION + 1)) == "quarantined"
        assert isinstance(served.one(RecordRequest(SESSION, 0, 0, 1)), RecordResponse)


def test_a_partition_that_may_only_be_read_refuses_the_first_question(tmp_path: Path) -> None:
    """A server that is let in and then must not set its mark gives up all replicas."""
    built(tmp_path / "s", 3, mark=-1)
    with serving(tmp_path / "s") as served:
        served.hosted.set_availability([0], writable=False)
        assert refused(served, first_question()) == "not-available"
        assert isinstance(served.one(RecordRequest(SESSION, 0, 0, 1)), RecordResponse)
        offline = LastSessionInfoRequest(served.hosted.session_info(0).session_id, 0, 0, True)
        assert isinstance(served.one(offline), LastSessionInfoResponse)
        served.hosted.set_availability([0], writable=True)
        expect_in(served)


# --- flushes and writes -----------------------------------------------------------------------------------------------


def test_a_failed_flush_keeps_a_partition_out_until_it_is_switched_off_and_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    built(tmp_path / "s", 30, mark=-1)
    with serving(tmp_path / "s") as served:
        expect_in(served)
        with monkeypatch.context() as patch:
            fail(patch, "fdatasync", ".seg", errno.EIO)
            assert refused(served, appended(30, 5, session=SESSION)) == "sync-failed"
        expect_out(served, "sync-failed")
        served.hosted.set_availability([0], readable=True, writable=True)  # it was on: nothing changes
        expect_out(served, "sync-failed")
        assert len(told(caplog)) == 1
        served.hosted.set_availability([0], readable=False, writable=False)
        served.hosted.set_availability([0], readable=True, writable=True)
        expect_in(served)
        assert told(caplog)[1:] == ["partition 0 takes part in sessions again"]
        answer = served.one(MaxTransactionIdRequest(SESSION, 0, 0))
        assert isinstance(answer, MaxTransactionIdResponse)
        assert answer.transaction_id == 29, "what was not acknowledged is gone"
        served.succeed(appended(30, 5, session=SESSION))


@pytest.mark.parametrize(("error", "stays_out"), [(errno.EIO, True), (errno.EROFS, True), (errno.EMFILE, False)])
def test_a_failed_write_keeps_a_partition_out_unless_it_was_the_process_that_was_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, stays_out: bool
) -> None:
    built(tmp_path / "s", 30, mark=-1)
    with serving(tmp_path / "s") as served:
        with monkeypatch.context() as patch:
            fail(patch, "pwrite", ".seg", error)
            fail(patch, "pwritev", ".seg", error)
            assert refused(served, appended(30, session=SESSION)) == "io-error"
        if stays_out:
            expect_out(served, "io-error")
            served.hosted.reopen(0)
        expect_in(served)
        served.succeed(appended(30, session=SESSION))


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
@pytest.mark.parametrize("call", ["open", "pread"])
def test_a_shortage_while_a_partition_is_opened_again_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: int
) -> None:
    """It was quarantined, to be recovered from another replica, and nothing is wrong with it."""
    built(tmp_path / "s", 30, mark=-1)
    real: Callable[..., object] = getattr(os, call)

    def failing(where: Any, *given: Any, **words: Any) -> object:
        if str(os.readlink(f"/proc/self/fd/{where}") if isinstance(where, int) else where).endswith(".seg"):
            raise OSError(error, os.strerror(error))
        return real(where, *given, **words)

    with serving(tmp_path / "s") as served:
        with monkeypatch.context() as patch:
            patch.setattr(os, call, failing)
            served.hosted.reopen(0)
        assert refused(served, first_question()) == "io-error"
        service = served.hosted.service(0)
        assert service is not None
        assert service.access.outage is not None
        assert "switch the partition off and on" in service.access.outage.remedy
        served.hosted.reopen(0)
        expect_in(served)
        served.succeed(appended(30, session=SESSION))


@pytest.mark.parametrize(
    ("call", "suffix"), [("fstat", ".seg"), ("fstat", ".idx"), ("stat", ".seg"), ("lstat", ".seg.waltzctl-tmp")]
)
def test_files_that_cannot_be_looked_at_keep_a_partition_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, suffix: str
) -> None:
    """As on a disk that is gone.  It was an internal error, and the partition went on taking part in sessions."""
    records = built(tmp_path / "s", 30, mark=-1)
    real: Callable[..., object] = getattr(os, call)

    def failing(where: Any, *given: Any, **words: Any) -> object:
        if str(os.readlink(f"/proc/self/fd/{where}") if isinstance(where, int) else where).endswith(suffix):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(where, *given, **words)

    with serving(tmp_path / "s", storage=StorageOptions(segment_size_threshold=offset_of(records, 10))) as served:
        with monkeypatch.context() as patch:
            patch.setattr(os, call, failing)
            assert refused(served, appended(30, session=SESSION)) == "io-error"
        expect_out(served, "io-error")
        served.hosted.reopen(0)
        expect_in(served)
        served.succeed(appended(30, session=SESSION))


def test_marks_that_cannot_be_written_keep_a_partition_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Setting the mark is what a server does with every replica; one that fails there would stop the others again and again."""
    built(tmp_path / "s", 30, mark=-1)
    with serving(tmp_path / "s") as served:
        with monkeypatch.context() as patch:
            fail(patch, "fdatasync", "waltz-storage.ctl", errno.EIO)
            assert refused(served, SetLowWaterMarkRequest(SESSION, 0, 0, 29)) == "sync-failed"
        expect_out(served, "sync-failed")
        service = served.hosted.service(0)
        assert service is not None
        assert service.access.outage is not None
        assert service.access.outage.remedy.endswith("restart the node"), (
            "no switch lets the control file be written again"
        )


@pytest.mark.parametrize("again", [False, True])
def test_no_session_begins_that_could_not_set_its_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Every other partition, and one that is opened `again`, let it begin, which ended the recovery of all its replicas."""
    build_directory(tmp_path / "s", {0: 30, 1: 3})
    with serving(tmp_path / "s") as served:
        served.succeed(appended(30, session=SESSION))
        with monkeypatch.context() as patch:
            fail(patch, "fdatasync", "waltz-storage.ctl", errno.EIO)
            failing = SetLowWaterMarkRequest(SESSION, 0, 0, 30) if again else SetLowWaterMarkRequest(SESSION, 0, 1, 2)
            assert refused(served, failing) == "sync-failed"
        if again:
            served.hosted.reopen(0)
        served.succeed(appended(31, session=SESSION))
        assert refused(served, first_question(SESSION + 1)) == "sync-failed"
        served.succeed(appended(32, session=SESSION))
        assert served.hosted.sessions_failed is not None
    with serving(tmp_path / "s") as served:
        assert isinstance(served.one(first_question(SESSION + 1)), LastSessionInfoResponse)


@pytest.mark.parametrize("name", [".waltzctl/sessions", "waltz-storage.ctl"])
def test_sessions_that_are_refused_again_and_again_take_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A server asks until the node is restarted; the error that is raised each time kept every request and its connection."""
    build_directory(tmp_path / "s", {0: 30, 1: 3})
    with serving(tmp_path / "s") as served:
        with monkeypatch.context() as patch:
            fail(patch, "fdatasync", name, errno.EIO)
            failing = SetLowWaterMarkRequest(SESSION, 0, 1, 2) if name.endswith(".ctl") else first_question()
            assert refused(served, failing) == "sync-failed"
        depths = []
        for _ in range(10):
            assert refused(served, first_question(SESSION + 1)) == "sync-failed"
            assert refused(served, appended(30, session=SESSION + 1)) == "sync-failed"
            assert served.hosted.sessions_failed is not None
            depths.append(len([*traceback.walk_tb(served.hosted.sessions_failed.__traceback__)]))
        assert len({*depths}) == 1


def test_a_session_that_comes_back_and_could_not_set_its_mark_is_told_at_its_first_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a lost connection its server sets the mark again, and what fails there ends the recovery of other replicas."""
    build_directory(tmp_path / "s", {0: 30, 1: 3})
    with serving(tmp_path / "s") as served:
        assert isinstance(served.one(first_question()), LastSessionInfoResponse)
        served.succeed(SetLowWaterMarkRequest(SESSION, 0, 0, 29))
        with monkeypatch.context() as patch:
            fail(patch, "fdatasync", "waltz-storage.ctl", errno.EIO)
            assert refused(served, SetLowWaterMarkRequest(SESSION, 0, 1, 2)) == "sync-failed"
        served.succeed(appended(30, session=SESSION))
        failure = served.failure(first_question())
        assert failure.code == "sync-failed"
        assert "restart the node" in str(failure.message)
        served.succeed(appended(31, session=SESSION))


def test_a_session_whose_fence_could_not_be_synced_is_not_let_in_by_assigning_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file shows it, and the disk perhaps not: behind a power loss the session before would write beside it."""
    build_directory(tmp_path / "s", {0: 30, 1: 3})
    with serving(tmp_path / "s") as served:
        served.succeed(appended(30, session=SESSION))
        with monkeypatch.context() as patch:
            fail(patch, "fdatasync", ".waltzctl/sessions", errno.EIO)
            assert refused(served, first_question(SESSION + 1)) == "sync-failed"
        served.hosted.unassign([0], delete_files=False)
        served.hosted.assign([0])
        assert refused(served, first_question(SESSION + 1)) == "sync-failed"
        served.succeed(appended(31, session=SESSION))
    with serving(tmp_path / "s") as served:
        assert isinstance(served.one(first_question(SESSION + 1)), LastSessionInfoResponse)


@pytest.mark.parametrize("path_of", [index_path, data_path])
def test_a_file_where_a_segment_is_to_begin_keeps_a_partition_out(
    tmp_path: Path, path_of: Callable[[Path, int], Path]
) -> None:
    """Every append failed there, and each new session asked the same replica once more."""
    records = built(tmp_path / "s", 30, mark=-1)
    with serving(tmp_path / "s", storage=StorageOptions(segment_size_threshold=offset_of(records, 10))) as served:
        orphan = path_of(tmp_path / "s", 30)
        orphan.write_bytes(bytes(HEADER_SIZE + ENTRY_SIZE))
        assert refused(served, appended(30, session=SESSION)) == "damaged"
        expect_out(served, "damaged")
        orphan.unlink()
        served.hosted.reopen(0)
        expect_in(served)
        served.succeed(appended(30, session=SESSION))


# --- space ------------------------------------------------------------------------------------------------------------


def test_a_full_disk_keeps_a_partition_out_until_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    built(tmp_path / "s", 30, mark=-1)
    with serving(tmp_path / "s", health=NO_FLOOR) as served:
        expect_in(served)
        with monkeypatch.context() as patch:
            for call in ("pwrite", "pwritev"):
                fail(patch, call, ".seg", errno.ENOSPC)
                fail(patch, call, disk.TEMPORARY_SUFFIX, errno.ENOSPC)
            assert refused(served, appended(30, session=SESSION)) == "disk-full"
            expect_out(served, "disk-full")
        assert len(told(caplog)) == 1
        expect_in(served)
        assert told(caplog)[1:] == ["partition 0 takes part in sessions again"]
        served.succeed(appended(30, session=SESSION))
        assert list((tmp_path / "s" / disk.STATE_DIRECTORY).glob(f"*{disk.TEMPORARY_SUFFIX}")) == []


def test_a_session_that_goes_on_finds_the_space_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built(tmp_path / "s", 30, mark=-1)
    with serving(tmp_path / "s", health=NO_FLOOR) as served:
        with monkeypatch.context() as patch:
            fail(patch, "pwrite", ".seg", errno.ENOSPC)
            fail(patch, "pwritev", ".seg", errno.ENOSPC)
            assert refused(served, appended(30, session=SESSION)) == "disk-full"
        served.succeed(appended(30, session=SESSION))


def test_a_look_at_the_disk_frees_only_what_was_out_before_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The health check's look may be a little old."""
    built(tmp_path / "s", 30, mark=-1)
    with serving(tmp_path / "s", health=HealthOptions(min_free_bytes=1 << 62, max_age=0.0)) as served:
        with monkeypatch.context() as patch:
            fail(patch, "pwrite", ".seg", errno.ENOSPC)
            fail(patch, "pwritev", ".seg", errno.ENOSPC)
            assert refused(served, appended(30, session=SESSION)) == "disk-full"
        service = served.hosted.service(0)
        assert service is not None
        service.access.note_space(3600.0)
        expect_out(served, "disk-full")
        service.access.note_space(0.0)
        expect_in(served)


@pytest.mark.parametrize("used_up", [pytest.param({4: 0}, id="bytes"), pytest.param({5: 200, 7: 0}, id="inodes")])
def test_a_partition_on_a_full_disk_of_its_own_stays_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, used_up: dict[int, int]
) -> None:
    """Room where the others are is no room for it: it would be let in, and fail, again and again."""
    built(tmp_path / "s", 30, mark=-1)
    own, stat, statvfs = tmp_path / "s" / "0", os.stat, os.statvfs
    full = True

    def other(path: object, **more: object) -> object:
        found = stat(path, **more)  # type: ignore[call-overload]
        return os.stat_result((*found[:2], found.st_dev + 1, *found[3:])) if path == own else found

    def room(path: object) -> object:
        found = statvfs(path)  # type: ignore[arg-type]
        if path == own and full:
            return os.statvfs_result([used_up.get(place, value) for place, value in enumerate(found)])
        return found

    with serving(tmp_path / "s", health=NO_FLOOR) as served:
        with monkeypatch.context() as patch:
            fail(patch, "pwrite", ".seg", errno.ENOSPC)
            fail(patch, "pwritev", ".seg", errno.ENOSPC)
            assert refused(served, appended(30, session=SESSION)) == "disk-full"
        monkeypatch.setattr(os, "stat", other)
        monkeypatch.setattr(os, "statvfs", room)
        service = served.hosted.service(0)
        assert service is not None
        service.access.note_space(0.0)
        expect_out(served, "disk-full")
        full = False
        expect_in(served)


def test_space_means_the_space_that_should_be_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte less than the floor is not enough; others that have not found the disk full go on writing meanwhile."""
    created(tmp_path / "s")
    real = os.statvfs(tmp_path)
    free = real.f_bavail * real.f_frsize
    monkeypatch.setattr(os, "statvfs", lambda _: real)
    with serving(tmp_path / "s", health=HealthOptions(min_free_bytes=free + 1, max_age=0.0)) as served:
        with monkeypatch.context() as patch:
            fail(patch, "pwrite", ".seg", errno.ENOSPC)
            fail(patch, "pwritev", ".seg", errno.ENOSPC)
            assert refused(served, appended(0, session=SESSION)) == "disk-full"
        assert refused(served, first_question()) == "disk-full"
        served.succeed(appended(0, partition=1))
        served.hosted.use_health(HealthOptions(min_free_bytes=free, max_age=0.0))
        expect_in(served)


def test_a_look_that_found_no_space_is_believed_for_a_while_and_one_that_did_is_not(tmp_path: Path) -> None:
    created(tmp_path / "s")
    probe = DiskProbe(tmp_path / "s", min_free_bytes=0, name="test-probe")
    (tmp_path / "s" / disk.STATE_DIRECTORY).mkdir(exist_ok=True)
    writes: list[Path] = []
    disk.observer = lambda change: writes.append(change.path) if change.kind == "write" else None
    try:
        room = Room(probe, max_age=3600.0)
        assert room.there()
        assert room.there()
        assert len(writes) == 2
        probe.min_free_bytes = 1 << 62
        assert not room.there()
        assert not room.there()
        assert len(writes) == 3
    finally:
        disk.observer = None


def test_a_look_at_a_disk_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    room = Room(DiskProbe(tmp_path, min_free_bytes=0), max_age=0.0)
    with room._lock:  # somebody is looking
        assert not room.there()


# --- values -----------------------------------------------------------------------------------------------------------


class Partition:
    """What an outage looks at."""

    number, path = 3, Path("/d/3")
    marks_failed = None

    def __init__(self) -> None:
        self.condition = WRITABLE
        self.findings: tuple[Finding, ...] = ()
        self.unreadable: WaltzError | None = None

    def read(self, _transaction_id: int) -> None:
        if self.unreadable is not None:
            raise self.unreadable


def disk_error(kind: type[DiskError], number: int) -> DiskError:
    return kind(Path("/d/3"), 0, OSError(number, os.strerror(number)))


@pytest.mark.parametrize(
    ("error", "transaction_id", "code", "returns"),
    [
        (disk_error(DiskFullError, errno.ENOSPC), None, "disk-full", Return.SPACE),
        (disk_error(DiskFullError, errno.EDQUOT), 4, "disk-full", Return.SPACE),
        (disk_error(DiskWriteError, errno.EIO), None, "io-error", Return.OPENED),
        (disk_error(SyncFailedError, errno.EIO), None, "sync-failed", Return.OPENED),
        *(
            (disk_error(DiskWriteError, number), None, None, None)
            for number in (errno.EMFILE, errno.ENFILE, errno.EINTR)
        ),
        (disk_error(DiskReadError, errno.EIO), 4, "io-error", Return.RECORD),
        (disk_error(DiskReadError, errno.EMFILE), 4, "io-error", Return.RECORD),
        (disk_error(DiskReadError, errno.EIO), None, None, None),
        (CorruptRecordError("torn"), 4, "corrupt-record", Return.RECORD),
        (CorruptRecordError("torn"), None, None, None),
        (RefusedError("no"), 4, None, None),
        (ZeroDivisionError(), 4, None, None),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, BaseException) else "",
)
def test_what_follows_for_the_partition_from_a_failure(
    error: BaseException, transaction_id: int | None, code: str | None, returns: Return | None
) -> None:
    found = outage_of(error, Partition(), transaction_id)  # type: ignore[arg-type]
    assert (code, returns) == (None, None) if found is None else (found.code, found.returns) == (code, returns)
    if found is not None:
        assert found.transaction_id == (transaction_id if returns is Return.RECORD else None)


@pytest.mark.parametrize(
    "error", [CorruptRecordError("torn"), disk_error(DiskReadError, errno.EIO), RefusedError("no")]
)
def test_a_record_that_fails_in_any_way_keeps_the_partition_out(error: WaltzError) -> None:
    partition = Partition()
    assert reads_again(partition, 4)  # type: ignore[arg-type]
    partition.unreadable = error
    assert not reads_again(partition, 4)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "over"),
    [
        (disk_error(DiskFullError, errno.ENOSPC), True),
        (disk_error(DiskWriteError, errno.EIO), True),
        (CorruptRecordError("torn"), False),
    ],
)
def test_what_opening_a_partition_again_ends(error: WaltzError, over: bool, tmp_path: Path) -> None:
    """A record that could not be read is looked at when it is asked for."""
    room = Room(DiskProbe(tmp_path, min_free_bytes=0), max_age=0.0)
    outage = PartitionOutage(Partition(), room, LOG)  # type: ignore[arg-type]
    outage.note_failure(error, 4)
    assert outage.now is not None
    outage.opened_again(Partition())  # type: ignore[arg-type]
    assert (outage.now is None) == over


def test_a_partition_that_is_out_by_itself_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    partition = Partition()
    partition.condition = DAMAGED
    room = Room(DiskProbe(tmp_path, min_free_bytes=0), max_age=0.0)
    outage = PartitionOutage(partition, room, LOG)  # type: ignore[arg-type]
    for _ in range(3):
        outage.note_failure(disk_error(DiskReadError, errno.EIO), 4)
    assert len(caplog.records) == 1


# --- records ----------------------------------------------------------------------------------------------------------

READS = [
    pytest.param(RecordRequest(SESSION, 0, 0, 4), id="record"),
    pytest.param(RecordHeaderRequest(SESSION, 0, 0, 4), id="header"),
    pytest.param(RecordListRequest(SESSION, 0, 0, 4, 3), id="list"),
    pytest.param(RecordHeaderListRequest(SESSION, 0, 0, 4, 3), id="header-list"),
    pytest.param(TruncateRequest(SESSION, 0, 0, 4), id="truncate"),
]


@pytest.mark.parametrize("read", READS)
def test_a_corrupt_record_that_a_session_meets_keeps_the_partition_out_until_it_is_mended(
    tmp_path: Path, read: StorageMessage, caplog: pytest.LogCaptureFixture
) -> None:
    records = built(tmp_path / "s", 30, mark=-1)
    with serving(tmp_path / "s") as served:
        expect_in(served)
        place = offset_of(records, 4) + 45
        damage(data_path(tmp_path / "s"), place)
        expect_in(served)  # nobody has met it
        assert refused(served, read) == "corrupt-record"
        expect_out(served, "corrupt-record")
        assert refused(served, read) == "corrupt-record"
        [line] = told(caplog)
        assert "transaction 4" in line
        served.hosted.reopen(0)
        expect_out(served, "corrupt-record")  # opening alone mends nothing
        damage(data_path(tmp_path / "s"), place)
        expect_in(served)
        assert told(caplog)[1:] == ["partition 0 takes part in sessions again"]
        served.succeed(appended(30, session=SESSION))


def test_a_list_that_ends_in_front_of_a_corrupt_record_is_an_answer(tmp_path: Path) -> None:
    records = built(tmp_path / "s", 30, mark=-1)
    with serving(tmp_path / "s") as served:
        damage(data_path(tmp_path / "s"), offset_of(records, 4) + 45)
        assert served.one(RecordListRequest(SESSION, 0, 0, 2, 9)) is not None
        expect_in(served)


def test_an_operator_who_meets_a_corrupt_record_closes_nothing(tmp_path: Path) -> None:
    """Looking through the admin port changes nothing."""
    records = built(tmp_path / "s", 30, mark=-1)
    with serving(tmp_path / "s") as served:
        damage(data_path(tmp_path / "s"), offset_of(records, 4) + 45)
        with pytest.raises(CorruptRecordError):
            served.hosted.read_wire(0, 4, 1)
        expect_in(served)


def test_a_record_that_the_disk_does_not_give_keeps_the_partition_out_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(tmp_path / "s", 30, mark=-1)
    with serving(tmp_path / "s") as served:
        with monkeypatch.context() as patch:
            for call in ("pread", "preadv"):
                fail(patch, call, ".seg", errno.EIO)
            assert refused(served, RecordRequest(SESSION, 0, 0, 4)) == "io-error"
            assert refused(served, first_question()) == "io-error"
        expect_in(served)  # the disk gives it again


def test_offline_recovery_may_replace_a_corrupt_record(tmp_path: Path) -> None:
    """A tool cuts in front of it and writes it anew: nothing keeps the partition out then."""
    records = built(tmp_path / "s", 30, per_segment=30, mark=-1)
    with serving(tmp_path / "s") as served:
        expect_in(served)
        served.succeed(SetLowWaterMarkRequest(SESSION, 0, 0, 29))
        damage(data_path(tmp_path / "s"), offset_of(records, 20) + 45)
        assert refused(served, RecordRequest(SESSION, 0, 0, 20)) == "corrupt-record"
        served.hosted.set_availability([0], readable=False, writable=False)
        answer = served.one(TruncateRequest(SESSION, 0, 0, 19, True))
        assert isinstance(answer, MaxTransactionIdResponse)
        assert answer.transaction_id == 19
        served.succeed(appended(20, 10, session=SESSION, offline=True))
        served.hosted.set_availability([0], readable=True, writable=True)
        expect_in(served)
        assert isinstance(served.one(RecordRequest(SESSION, 0, 0, 20)), RecordResponse)
