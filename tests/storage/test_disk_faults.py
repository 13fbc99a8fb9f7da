"""Disks that fail under a group commit: what was acknowledged stays, the error says what and where, the directory goes on."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.blocks import encoded_block, wire_record
from tests.builders import build_directory, make_records
from tests.repair.trees import recording
from tests.storage.faulty_disks import everything_is_there
from tests.storage.support import LAYOUTS, SMALL, built, damage, data_path, index_path, offset_of, opened
from waltzctl.engine.durable import disk
from waltzctl.engine.errors import DiskFullError, DiskWriteError, PartitionQuarantinedError, SyncFailedError
from waltzctl.engine.inspect.verify import VerifySummary, verify
from waltzctl.engine.node.outages import standing_outage
from waltzctl.engine.storage.append import AppendSession, PendingRecord
from waltzctl.engine.storage.directory import StorageDirectory, StorageOptions
from waltzctl.engine.storage.failed_syncs import forget_failed_sync, sync_failed
from waltzctl.engine.storage.partition import Partition
from waltzctl.formats.control import CONTROL_FILE_NAME, CONTROL_HEADER
from waltzctl.formats.segment import ENTRY_SIZE, segment_name
from waltzctl.formats.wire.failure import FailureCode
from waltzctl.formats.wire.records import pack_records

ROOT = Path(__file__).resolve().parents[2]


def run_fault(fault: str, tmp_path: Path, *before: str) -> tuple[int, Path]:
    """The acknowledged transactions and a copy of what the disk held."""
    place, target = tmp_path / "place", tmp_path / "copy"
    place.mkdir()
    command = [sys.executable, "-m", "tests.storage.faulty_disks", fault, str(place), str(target)]
    done = subprocess.run([*before, *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout), target


def assert_sound(path: Path, acknowledged: int) -> None:
    with opened(path, StorageOptions()) as storage:
        assert storage.findings == (), "nothing of what failed was left"
        everything_is_there(storage.partition(0), acknowledged)
    *findings, summary = verify([path])
    assert findings == []
    assert isinstance(summary, VerifySummary)


def _may_mount() -> bool:
    if not shutil.which("unshare"):
        return False
    probe = "mount -t tmpfs -o size=64k none /mnt"
    return not subprocess.run(["unshare", "-Urm", "sh", "-c", probe], capture_output=True, check=False).returncode


@pytest.mark.turns(10)
@pytest.mark.skipif(not _may_mount(), reason="no file system can be mounted here")
@pytest.mark.parametrize("fault", ["full", "full, rolling"])
def test_a_full_file_system(fault: str, tmp_path: Path) -> None:
    """A real one of 500 kB: within a segment, and where segments are made."""
    mounting = ("unshare", "-Urm", "sh", "-c", f'mount -t tmpfs -o size=500k none {tmp_path}/place && exec "$@"', "sh")
    acknowledged, copy = run_fault(fault, tmp_path, *mounting)
    assert acknowledged > 400
    assert_sound(copy, acknowledged)


@pytest.mark.turns(10)
@pytest.mark.parametrize("fault", ["limited", "descriptors"])
def test_a_limit_of_the_system(fault: str, tmp_path: Path) -> None:
    """Files that may not grow, and no descriptor to be had."""
    acknowledged, copy = run_fault(fault, tmp_path)
    assert acknowledged > 80
    assert_sound(copy, acknowledged)


@contextmanager
def failing(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], code: int, allowed: int, matches: Callable[[str], bool]
) -> Iterator[list[str]]:
    """After `allowed` calls on files whose name matches, these functions of the system fail with an error of the system."""
    calls: list[str] = []

    def wrapped(name: str) -> Callable[..., object]:
        real = getattr(os, name)

        def call(descriptor: int, *arguments: object) -> object:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            if matches(path):
                calls.append(f"{name} {Path(path).suffix}")
                if len(calls) > allowed:
                    raise OSError(code, os.strerror(code))
            return real(descriptor, *arguments)

        return call

    with monkeypatch.context() as patch:
        for name in names:
            patch.setattr(os, name, wrapped(name))
        yield calls


WRITES = ("pwrite", "pwritev")
SYNCS = ("fdatasync", "fsync")
GROUP = 12


def blocks(following: int, partition: int = 0) -> list:
    records = make_records(GROUP, first=following, partition=partition, seed=following)
    return [encoded_block(records[:5], 2), encoded_block(records[5:])]


def records_until(stop: int) -> bytes:
    groups = [make_records(GROUP, first=first, seed=first) for first in range(0, stop, GROUP)]
    return pack_records(wire_record(record) for group in groups for record in group)


def fill(partition: Partition) -> None:
    """Append groups until that is refused."""
    while True:
        partition.append_blocks(blocks(partition.next_transaction_id))


@LAYOUTS
@pytest.mark.parametrize("suffix", [".seg", ".idx"])
@pytest.mark.parametrize("allowed", range(3))
def test_a_failed_sync_ends_the_partition_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout, suffix: str, allowed: int
) -> None:
    """No further write is tried, the error stays, the other partition works, and after opening again so does this one."""
    build_directory(tmp_path, {0: 0, 1: 0}, layout=layout)
    with opened(tmp_path, SMALL) as storage:
        partition = storage.partition(0)
        with (
            failing(
                monkeypatch, SYNCS, errno.EIO, allowed, lambda path: f"/0/{'0' * 10}" in path and suffix in path
            ) as calls,
            pytest.raises(SyncFailedError, match="cannot sync: Input/output error") as caught,
        ):
            fill(partition)
        acknowledged = partition.next_transaction_id
        assert acknowledged % GROUP == 0
        assert str(tmp_path / "0") in str(caught.value)
        assert len(calls) == allowed + 1, "a failed sync is not tried again"
        assert partition.failed is caught.value
        for write in (
            lambda: partition.append_blocks(blocks(acknowledged)),
            lambda: partition.truncate(-1, allow_data_loss=True),
            lambda: partition.set_low_water_mark(99, 10**6),
        ):
            with pytest.raises(SyncFailedError):
                write()
        assert partition.read_wire(0, 10**6).data == records_until(acknowledged)
        storage.partition(1).append_blocks(blocks(0, 1))
        changes: list[tuple[str, str]] = []
        with monkeypatch.context() as patch:
            patch.setattr(disk, "observer", lambda change: changes.append((change.kind, change.path.name)))
            reopened = storage.reopen(0)
        assert any(kind == "rename" and name.endswith(f".idx{disk.TEMPORARY_SUFFIX}") for kind, name in changes), (
            "what the system takes for written is written again"
        )
        assert reopened.read_wire(0, 10**6).data == records_until(acknowledged)
        reopened.append_blocks(blocks(acknowledged))
    with opened(tmp_path, SMALL) as storage:
        assert storage.partition(0).read_wire(0, 10**6).data == records_until(acknowledged + GROUP)
        assert storage.partition(1).max_transaction_id == GROUP - 1


def test_a_disk_that_failed_a_sync_and_spoiled_a_record_leaves_a_partition_to_read_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is damaged is not cut either when it is opened again."""
    records = built(tmp_path, 10, mark=9)
    with opened(tmp_path, SMALL) as storage:
        with (
            failing(monkeypatch, SYNCS, errno.EIO, 0, lambda path: path.endswith(".seg")),
            pytest.raises(SyncFailedError),
        ):
            storage.partition(0).append_blocks(blocks(10))
        damage(data_path(tmp_path), offset_of(records, 9) + 9)
        reopened = storage.reopen(0)
        assert reopened.quarantined
        assert reopened.read_range(0, 9) == records[:9]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("allowed", [0, 1, 2, 3, 7, 12])
def test_a_failed_write_takes_the_whole_group_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, allowed: int
) -> None:
    """In the data, in the index, in a new segment: nothing of the group remains, and the next one is written as if not."""
    build_directory(tmp_path, {0: 0})
    with opened(tmp_path, SMALL) as storage:
        partition = storage.partition(0)
        with (
            failing(monkeypatch, WRITES, code, allowed, lambda path: "/0/" in path),
            pytest.raises(DiskFullError if code in (errno.ENOSPC, errno.EDQUOT) else DiskWriteError) as caught,
        ):
            fill(partition)
        acknowledged = partition.next_transaction_id
        assert acknowledged % GROUP == 0
        assert os.strerror(code) in str(caught.value)
        assert partition.failed is None
        assert partition.read_wire(0, 10**6).data == records_until(acknowledged)
        partition.append_blocks(blocks(acknowledged))
    with opened(tmp_path, SMALL) as storage:
        assert storage.findings == ()
        assert storage.partition(0).read_wire(0, 10**6).data == records_until(acknowledged + GROUP)


@pytest.mark.parametrize("allowed", range(6))
def test_a_disk_that_can_no_longer_be_changed_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: int
) -> None:
    """The system made the file system read-only in the middle of a group, so that nothing can be taken back either.

    The partition fails; what was acknowledged can be read, now and after opening again.
    """
    build_directory(tmp_path, {0: 0, 1: 0})
    with opened(tmp_path, SMALL) as storage:
        partition = storage.partition(0)
        everything = (*WRITES, *SYNCS, "ftruncate")
        with (
            failing(monkeypatch, everything, errno.EROFS, 12 + allowed, lambda path: "/0/" in path),
            pytest.raises(DiskWriteError, match="Read-only file system"),
        ):
            fill(partition)
        acknowledged = partition.next_transaction_id
        assert acknowledged % GROUP == 0
        assert partition.failed is not None
        with pytest.raises(DiskWriteError):
            partition.append_blocks(blocks(acknowledged))
        assert partition.read_wire(0, 10**6).data == records_until(acknowledged)
        storage.partition(1).append_blocks(blocks(0, 1))
    with opened(tmp_path, SMALL) as storage:
        partition = storage.partition(0)
        assert not partition.quarantined
        found = partition.read_wire(0, 10**6)
        assert found.data.startswith(records_until(acknowledged))
        group = make_records(GROUP, first=acknowledged, seed=acknowledged)
        whole = records_until(acknowledged) + pack_records(map(wire_record, group))
        assert whole.startswith(found.data), "what was under way may be there, nothing else"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES])
def test_what_a_crash_left_and_the_disk_does_not_let_be_mended_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Each partition with a torn tail was *quarantined* on a full disk, none of its records could be read, and the remedy was
    to recover it from another replica.
    """
    build_directory(tmp_path, {0: 20, 1: 20})
    with data_path(tmp_path).open("ab") as file:
        file.write(b"torn")
    full = code in (errno.ENOSPC, errno.EDQUOT)
    with failing(monkeypatch, WRITES, code, 0, lambda path: "/quarantine/" in path), opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert (partition.max_transaction_id, partition.mended) == (19, ())
        assert partition.read_range(0, 30) == make_records(20)
        with pytest.raises(DiskFullError if full else DiskWriteError, match=os.strerror(code)):
            partition.check_writable()
        outage = standing_outage(partition)
        assert outage is not None
        assert outage.code is (FailureCode.DISK_FULL if full else FailureCode.IO_ERROR)
        assert "recover" not in outage.remedy
        assert storage.partition(1).failed is None
    with (
        failing(monkeypatch, WRITES, code, 0, lambda path: "/quarantine/" in path),
        StorageDirectory.open(tmp_path, partitions=[]) as storage,
    ):
        session = AppendSession(storage, 0)
        with pytest.raises(DiskWriteError, match=os.strerror(code)):
            session.append([PendingRecord(b"more")])
        with pytest.raises(DiskWriteError, match=os.strerror(code)):
            AppendSession(storage, 0)
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert (partition.failed, partition.quarantined) == (None, False)
        assert [one.code.value for one in partition.mended] == ["torn-tail"]
        partition.append(make_records(1, first=20))


def test_after_a_flush_that_failed_while_it_is_mended_nothing_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows what of it is on the disk."""
    build_directory(tmp_path, {0: 20})
    with data_path(tmp_path).open("ab") as file:
        file.write(b"torn")
    with failing(monkeypatch, SYNCS, errno.EIO, 0, lambda path: "/quarantine/" in path), opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert (partition.max_transaction_id, type(partition.failed)) == (-1, SyncFailedError)


@pytest.mark.parametrize("when", ["opened", "mended", "appended", "closed"])
def test_after_a_flush_that_failed_the_next_process_writes_the_last_segment_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Its own flush does not fail any more: what is in memory only counted as durable, and was gone after a power loss."""
    build_directory(tmp_path, {0: 20, 1: 20})
    if when == "mended":
        with index_path(tmp_path).open("r+b") as index:
            index.truncate(index.seek(0, os.SEEK_END) - ENTRY_SIZE)
    with contextlib.ExitStack() as stack:

        def break_syncs(suffix: str = "", allowed: int = 0) -> None:
            name = f"/0/{data_path(tmp_path).stem}"
            stack.enter_context(
                failing(monkeypatch, SYNCS, errno.EIO, allowed, lambda path: name in path and path.endswith(suffix))
            )

        if when == "opened":
            break_syncs()
        if when == "mended":  # behind the sync of what is there
            break_syncs(".idx", 1)
        storage = stack.enter_context(opened(tmp_path, StorageOptions()))
        match when:
            case "appended":
                break_syncs()
                with pytest.raises(SyncFailedError):
                    storage.partition(0).append(make_records(1, first=20))
            case "closed":
                storage.partition(0).append(make_records(1, first=20))
                break_syncs(".idx")
                with pytest.raises(SyncFailedError):
                    storage.close()
        assert when == "closed" or isinstance(storage.partition(0).failed, SyncFailedError)
    size = data_path(tmp_path).stat().st_size
    for again in (True, False):
        with recording() as changes, opened(tmp_path, StorageOptions()) as storage:
            assert storage.partition(0).failed is None
        of_data = [(one.kind, one.offset) for one in changes if one.path == data_path(tmp_path)]
        assert of_data[: 2 * again] == [("write", 0), ("sync", 0)][: 2 * again]
        assert ("write" in dict(of_data)) is again
        if again:
            (written,) = (one.data for one in changes if one.path == data_path(tmp_path) and one.kind == "write")
            assert len(written or b"") == size
            renamed = [one for one in changes if one.target == data_path(tmp_path).with_suffix(".idx")]
            assert len(renamed) == 1
        assert not [one for one in changes if one.path.parent.name == "1" and one.kind == "write"]


@pytest.mark.parametrize("info_damaged", [False, True])
def test_a_file_that_this_user_may_not_write_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, info_damaged: bool
) -> None:
    """With a data file of another user's a sound partition was to be recovered from another replica, which changes nothing."""
    build_directory(tmp_path, {0: 20, 1: 20})
    if info_damaged:
        damage(tmp_path / CONTROL_FILE_NAME, CONTROL_HEADER.size)
    real = os.open

    def refusing(path: str | Path, flags: int, *rest: int, **options: int | None) -> int:
        if str(path).endswith(f"0/{segment_name(0)}") and flags & os.O_ACCMODE != os.O_RDONLY:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path, flags, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refusing)
        with opened(tmp_path) as storage:
            outage = standing_outage(storage.partition(0))
            assert outage is not None
            assert outage.code is (FailureCode.QUARANTINED if info_damaged else FailureCode.IO_ERROR)
            assert ("recover" in outage.remedy) == info_damaged
        refusal = PartitionQuarantinedError if info_damaged else DiskWriteError
        with StorageDirectory.open(tmp_path, partitions=[]) as storage, pytest.raises(refusal):
            AppendSession(storage, 0)
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert (partition.damaged, partition.max_transaction_id) == (info_damaged, 19)


@pytest.mark.parametrize("mark", [-1, 15])
@pytest.mark.parametrize("unassigned", [False, True])
def test_a_partition_that_could_not_be_mended_is_not_cut_when_it_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: int, unassigned: bool
) -> None:
    """It had read nothing, so its last transaction was -1, and the next opening cut off all behind that one."""
    build_directory(tmp_path, {0: 20}, local_low_water_mark=mark)
    with data_path(tmp_path).open("ab") as file:
        file.write(b"torn")
    with StorageDirectory.open(tmp_path, partitions=[]) as storage:
        with failing(monkeypatch, SYNCS, errno.EIO, 0, lambda path: "/quarantine/" in path):
            assert isinstance(storage.partition(0).failed, SyncFailedError)
        if unassigned:
            storage.unassign(0, delete_files=False)
            storage.assign(0)
        else:
            storage.reopen(0)
        partition = storage.partition(0)
        assert (partition.failed, partition.max_transaction_id) == (None, 19)
        assert partition.read_range(0, 30) == make_records(20)


@pytest.mark.turns(10)
@pytest.mark.parametrize(
    ("code", "names"),
    [(errno.ENOSPC, (*WRITES, "ftruncate")), (errno.EIO, SYNCS), (errno.EROFS, (*WRITES, "ftruncate"))],
)
def test_a_mending_in_whose_midst_the_disk_failed_begins_anew_when_it_is_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, names: tuple[str, ...]
) -> None:
    """It could not be taken back either, and kept each partition from being mended: switched off and on as is told, they were
    called damaged, to be recovered from another replica, until the node was restarted.
    """
    allowed, failed = 0, True
    while failed:
        path = build_directory(tmp_path / str(allowed), {0: 20, 1: 20}, per_segment=10)
        for number in (0, 1):
            with data_path(path, 10, number).open("ab") as file:
                file.write(b"torn")
        with StorageDirectory.open(path, partitions=[]) as storage:
            with failing(monkeypatch, names, code, allowed, lambda name: True) as calls:
                for _ in range(2):
                    assert [storage.partition(number).damaged for number in (0, 1)] == [False, False]
                    for number in (1, 0):
                        with contextlib.suppress(DiskWriteError):
                            storage.reopen(number)
                failed = len(calls) > allowed
            for number in (1, 0, 1):
                partition = storage.reopen(number)
                assert not partition.damaged
            for number in (0, 1):
                assert storage.partition(number).failed is None
                assert storage.partition(number).read_range(0, 30) == make_records(20, partition=number)
        *_, summary = verify([path])
        assert isinstance(summary, VerifySummary)
        assert summary.status == "clean"
        allowed += 1
    assert allowed > 8


@contextmanager
def writing(monkeypatch: pytest.MonkeyPatch, path: Path) -> Iterator[list[bytes]]:
    """What is written to a file meanwhile, and to one that is to replace it."""
    written: list[bytes] = []

    def observe(change: disk.Change) -> None:
        if change.kind == "write" and Path(change.path).name.startswith(path.name):
            written.append(change.data)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "observer", observe)
        yield written


@pytest.mark.parametrize("suffix", [".seg", ".idx"])
@pytest.mark.parametrize("noted", [True, False])
def test_what_could_not_be_flushed_when_it_was_opened_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, noted: bool
) -> None:
    """The system reports a failed flush once, and takes the file for clean then: what was in memory only counted as durable.

    On a disk that took no file there is no note of it, and none is needed in the same process.
    """
    build_directory(tmp_path, {0: 20})
    path = data_path(tmp_path).with_suffix(suffix)
    size, before = path.stat().st_size, path.read_bytes()
    with StorageDirectory.open(tmp_path, partitions=[]) as storage:
        with failing(monkeypatch, SYNCS, errno.EIO, 0, lambda name: name == str(path)):
            assert isinstance(storage.partition(0).failed, SyncFailedError)
        if not noted:
            forget_failed_sync(tmp_path, 0)
        with writing(monkeypatch, path) as written:
            storage.reopen(0)
        assert (storage.partition(0).failed, storage.partition(0).max_transaction_id) == (None, 19)
    assert (sum(map(len, written)), path.read_bytes()) == (size, before)


@pytest.mark.parametrize("suffix", [".seg", ".idx"])
def test_after_a_failed_append_each_file_is_written_again_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """The opening of the partition found the note, and wrote the index a second time."""
    build_directory(tmp_path, {0: 20})
    path = data_path(tmp_path).with_suffix(suffix)
    with StorageDirectory.open(tmp_path) as storage:
        fails = failing(monkeypatch, SYNCS, errno.EIO, 0, lambda name: name == str(data_path(tmp_path)))
        with fails, pytest.raises(SyncFailedError):
            storage.partition(0).append(make_records(1, first=20))
        assert sync_failed(tmp_path, 0)
        size = path.stat().st_size
        with writing(monkeypatch, path) as written:
            storage.reopen(0)
        assert (storage.partition(0).failed, storage.partition(0).max_transaction_id) == (None, 19)
        assert not sync_failed(tmp_path, 0)
    assert sum(map(len, written)) == size


@pytest.mark.parametrize("suffix", [".seg", ".idx"])
@pytest.mark.parametrize("arrived", [0, 1, 8, 9])
def test_whatever_part_of_a_write_arrived_is_cut_off_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, arrived: int
) -> None:
    build_directory(tmp_path, {0: 3})
    before = {path: path.read_bytes() for path in (tmp_path / "0").iterdir()}
    write = os.pwrite

    def some(descriptor: int, data: memoryview, offset: int) -> int:
        if not os.readlink(f"/proc/self/fd/{descriptor}").endswith(suffix):
            return write(descriptor, data, offset)
        write(descriptor, data[:arrived], offset)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with opened(tmp_path, SMALL) as storage:
        partition = storage.partition(0)
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", some)
            with recording() as changes, pytest.raises(DiskFullError):
                partition.append(make_records(1, first=3))
        written = [".seg"] * (arrived > 0) if suffix == ".seg" else [".seg"] + [".idx"] * (arrived > 0)
        assert [one.path.suffix for one in changes if one.kind == "truncate"] == written, "only what was written"
        assert {path: path.read_bytes() for path in (tmp_path / "0").iterdir()} == before
        partition.append(make_records(1, first=3))
