"""The weaknesses W10 to W19 of release 0.13.2 (docs/weaknesses.md): what changes files, and who may.

Each test shows first what the release would do with the very bytes, by `release_model`, and then what this engine does."""

from __future__ import annotations

import os
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import CREATED, KEY, build_directory, digest, make_records, write_segment
from tests.storage import release_model
from tests.storage.support import (
    LAYOUTS,
    assert_quarantined_and_kept,
    built,
    codes,
    damage,
    data_path,
    index_path,
    offset_of,
    opened,
    write_at,
)
from waltzctl.engine.durable import disk
from waltzctl.engine.errors import (
    CorruptRecordError,
    DamageError,
    DirectoryLockedError,
    DiskFullError,
    DiskWriteError,
    MismatchError,
    SyncFailedError,
    WaltzError,
)
from waltzctl.engine.inspect.verify import verify
from waltzctl.formats.control import FLAG_ASSIGNED, FLAG_AVAILABLE, Layout, decode_control, initial_control
from waltzctl.formats.segment import HEADER_SIZE, Record, SegmentHeader, segment_name


@LAYOUTS
def test_w10_a_crash_inside_a_truncation_resurrects_nothing(
    tmp_path: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = built(tmp_path / "a", 10, layout=layout)
    index = index_path(tmp_path / "a").read_bytes()
    theirs = release_model.open_segment(data_path(tmp_path / "a").read_bytes(), index[: HEADER_SIZE + 8 * 5], -1)
    assert theirs.last == 9, "index cut, data not: the release has all ten again"
    changes: list[disk.Change] = []
    with opened(tmp_path / "a") as storage:
        with monkeypatch.context() as patch:
            patch.setattr(disk, "observer", changes.append)
            storage.partition(0).truncate(4)
        cuts = [(c.kind, c.path.suffix) for c in changes]
        assert cuts == [("truncate", ".seg"), ("sync", ".seg"), ("truncate", ".idx"), ("sync", ".idx")]
    index_path(tmp_path / "a").write_bytes(index)  # the state between the two cuts
    with opened(tmp_path / "a") as storage:
        assert not storage.partition(0).quarantined
        assert storage.partition(0).max_transaction_id == 4
        assert storage.partition(0).read_range(0, 20) == records[:5]


def test_w10_a_deletion_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The release logs it and goes on, so that the segment is there again after a restart."""
    built(tmp_path, 30)

    def fail(path: object) -> None:
        raise OSError(5, "injected")

    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", fail)
            with pytest.raises(DiskWriteError, match="remove"):
                partition.truncate(4)
        with pytest.raises(DiskWriteError):
            partition.append(make_records(1, first=5))
    with opened(tmp_path) as storage:
        assert storage.partition(0).max_transaction_id == 29, "an unbroken beginning that holds at least what was kept"


def test_w11_a_reset_never_risks_both_structs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_directory(tmp_path, {0: 5}, session=7)
    control = tmp_path / "waltz-storage.ctl"
    info = decode_control(control.read_bytes()).partitions[0]
    torn = release_model.reset_before_its_only_sync(info)
    raw = control.read_bytes()
    assert decode_control(raw[:128] + torn + raw[204:]).partitions[0].current is None, "a torn reset loses both"
    pending: list[disk.Change] = []
    states = 0
    durable = raw

    def observe(change: disk.Change) -> None:
        nonlocal durable, states
        if change.path != control:
            return
        if change.kind == "sync":
            durable = control.read_bytes()
            pending.clear()
        elif change.kind == "write":
            pending.append(change)
            assert len(pending) == 1, "one struct at a time"
            for end in range(len(change.data) + 1):  # torn at every byte
                tried = bytearray(durable)
                tried[change.offset : change.offset + end] = change.data[:end]
                assert decode_control(tried).partitions[0].current is not None
                states += 1

    with opened(tmp_path) as storage:
        monkeypatch.setattr(disk, "observer", observe)
        storage.unassign(0, delete_files=True)
    assert states > 100
    assert decode_control(control.read_bytes()).partitions[0].current_struct.marks == (-1, -1, -1)  # type: ignore[union-attr]


@LAYOUTS
def test_w12_a_short_or_blank_control_file_is_damage_and_stays(tmp_path: Path, layout: Layout) -> None:
    build_directory(tmp_path, {0: 5, 1: 5}, layout=layout)
    control = tmp_path / "waltz-storage.ctl"
    whole = control.read_bytes()
    for size in (0, 50, 127):
        assert release_model.control_is_taken_for_new(size), "the release forgets all assignments and marks"
        control.write_bytes(whole[:size])
        with pytest.raises(DamageError) as caught, opened(tmp_path):
            pass
        assert codes(caught.value.findings) == ["control-file-size"]
        assert control.read_bytes() == whole[:size]
    control.write_bytes(whole[:128] + bytes(len(whole) - 128))  # a body that was never flushed
    with opened(tmp_path) as storage:
        assert [p.quarantined for p in storage.partitions.values()] == [True, True]
        assert "control-pair-checksum" in codes(storage.findings)


def test_w12_a_control_file_is_created_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from waltzctl.engine.storage.control_file import create_control_file

    kinds: list[str] = []
    monkeypatch.setattr(disk, "observer", lambda change: kinds.append(change.kind))
    create_control_file(tmp_path / "waltz-storage.ctl", initial_control(Layout.RELEASED, KEY, 3, CREATED))
    assert kinds == ["create", "write", "sync", "rename", "sync-directory"]


def _header(path: Path, **changes: object) -> None:
    header = SegmentHeader.decode(path.read_bytes())
    write_at(path, 0, replace(header, **changes).encode())  # type: ignore[arg-type]


@LAYOUTS
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"version": 1}, "unknown-version"),
        ({"cluster_key": KEY.__class__(int=5)}, "segment-key"),
        ({"partition": 3}, "segment-partition"),
        ({"first_transaction_id": 11}, "segment-name"),
    ],
)
@pytest.mark.parametrize("count", [20, 30])
def test_w13_headers_are_compared_with_everything(
    tmp_path: Path, layout: Layout, changes: dict[str, object], code: str, count: int
) -> None:
    """Version, key, partition and name, in data and index files, sealed or last.  (The release compares key and partition.)"""
    records = built(tmp_path / "data", count, layout=layout)
    _header(data_path(tmp_path / "data", 10), **changes)
    assert_quarantined_and_kept(tmp_path / "data", digest(tmp_path / "data"), code)
    with opened(tmp_path / "data") as storage:
        assert storage.partition(0).read_range(0, 50) == records, "the index's header vouches for them"
    _header(index_path(tmp_path / "data", 10), **changes)
    with opened(tmp_path / "data") as storage:
        assert storage.partition(0).read_range(0, 50) == records[:10], "files of somebody else are not served"
        with pytest.raises(CorruptRecordError):
            storage.partition(0).read(12)
    built(tmp_path / "index", count, layout=layout)
    before = digest(tmp_path / "index")
    _header(index_path(tmp_path / "index", 10), **changes)
    with opened(tmp_path / "index") as storage:
        assert not storage.partition(0).quarantined
        told = storage.partition(0).findings
        assert codes(told) == [code if code == "unknown-version" else "index-header"]
        assert storage.partition(0).mended == told
    after = digest(tmp_path / "index")
    assert {name: after[name] for name in before} == before, "an index is made anew"


def test_w13_versions_and_stored_partition_ids_of_the_control_file(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 5, 1: 5})
    control = tmp_path / "waltz-storage.ctl"
    write_at(control, 128, struct.pack(">i", 1))
    with opened(tmp_path) as storage:
        assert storage.partition(0).quarantined
        assert "control-partition-id" in codes(storage.findings)
        assert not storage.partition(1).quarantined
    write_at(control, 0, struct.pack(">i", 2))
    with pytest.raises(MismatchError, match="version 2"), opened(tmp_path):
        pass


class _Failing:
    """Lets `allowed` calls of a function of `os` pass and fails the next ones."""

    def __init__(self, name: str, allowed: int, error: int) -> None:
        self._real = getattr(os, name)
        self.allowed, self._error = allowed, error

    def __call__(self, *arguments: object) -> object:
        self.allowed -= 1
        if self.allowed < 0:
            raise OSError(self._error, "injected")
        return self._real(*arguments)


@LAYOUTS
@pytest.mark.parametrize("allowed", range(8))
def test_w14_a_failed_write_leaves_nothing_of_the_batch(
    tmp_path: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch, allowed: int
) -> None:
    """The batch crosses two segments; whichever of its writes fails, the same batch succeeds afterwards."""
    records = built(tmp_path, 5, layout=layout, per_segment=5)
    batch = make_records(24, first=5, size=100)
    before = {name: d for name, d in digest(tmp_path).items() if name.startswith("0/")}
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", _Failing("pwrite", allowed, 28))
            with pytest.raises(DiskFullError):
                partition.append(batch)
        assert partition.max_transaction_id == 4
        assert partition.read(5) is None
        present = {name: d for name, d in digest(tmp_path).items() if name.startswith("0/")}
        assert present == before, "the files are as they were"
        partition.append(batch)
        assert partition.read_range(0, 100) == records + batch


@LAYOUTS
@pytest.mark.parametrize("allowed", range(5))
def test_w14_after_a_failed_sync_nothing_is_written_until_it_is_opened_again(
    tmp_path: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch, allowed: int
) -> None:
    records = built(tmp_path, 5, layout=layout, per_segment=5)
    batch = make_records(24, first=5, size=100)
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", _Failing("fdatasync", allowed, 5))
            with pytest.raises(SyncFailedError):
                partition.append(batch)
        before = {name: d for name, d in digest(tmp_path).items() if name.startswith("0/")}
        for write in (
            lambda: partition.append(batch),
            lambda: partition.truncate(1),
            lambda: partition.set_low_water_mark(9, 99),
        ):
            with pytest.raises(SyncFailedError):
                write()
        assert {name: d for name, d in digest(tmp_path).items() if name.startswith("0/")} == before
        assert partition.max_transaction_id == 4
        assert partition.read_range(0, 100) == records, "what was acknowledged is read, and nothing else"
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert not partition.quarantined
        count = partition.next_transaction_id
        assert partition.read_range(0, 100) == (records + batch)[:count]
        partition.append(batch[count - 5 :])


@LAYOUTS
def test_w15_a_partition_that_comes_back_still_has_its_session_and_marks(tmp_path: Path, layout: Layout) -> None:
    """In the release it comes back with session -1 and mark -1, and the server truncates everything."""
    records = built(tmp_path, 20, layout=layout, mark=15)
    with opened(tmp_path) as storage:
        marks = storage.info(0).current_struct
        assert marks is not None
        storage.unassign(0, delete_files=False)
        assert 0 not in storage.partitions
    with opened(tmp_path) as storage:
        assert 0 not in storage.partitions
        storage.assign(0)
        partition = storage.partition(0)
        assert (partition.session_id, partition.low_water_mark, partition.local_low_water_mark) == marks.marks
        assert partition.read_range(0, 50) == records
    with opened(tmp_path) as storage:
        assert storage.partition(0).max_transaction_id == 19


@LAYOUTS
def test_w16_acknowledged_transactions_that_are_missing_are_noticed(tmp_path: Path, layout: Layout) -> None:
    records = built(tmp_path, 30, layout=layout, mark=25)
    for path in (data_path(tmp_path, 20), index_path(tmp_path, 20)):
        path.unlink()
    theirs = release_model.open_segment(data_path(tmp_path, 10).read_bytes(), index_path(tmp_path, 10).read_bytes(), 25)
    assert (theirs.fatal, theirs.last) == (None, 19), "the release answers with the smaller number"
    assert_quarantined_and_kept(tmp_path, digest(tmp_path), "acknowledged-missing")
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert partition.read_range(0, 50) == records[:20]
        with pytest.raises(CorruptRecordError, match="missing"):
            partition.read(22)
        assert partition.read(26) is None


def test_w17_the_sequence_number_may_wrap(tmp_path: Path) -> None:
    control = tmp_path / "waltz-storage.ctl"
    initial = initial_control(Layout.RELEASED, KEY, 1, CREATED)
    info = initial.partitions[0]
    flags = FLAG_ASSIGNED | FLAG_AVAILABLE
    first = replace(info.structs[0], session_id=8, sequence=2**31 - 1, flags=flags).sealed()
    second = replace(info.structs[1], session_id=7, sequence=2**31 - 2, flags=flags).sealed()
    info = info.with_struct(1, first).with_struct(2, second)
    (tmp_path / "0").mkdir()
    write_segment(tmp_path / "0", make_records(3), partition=0)
    control.write_bytes(replace(initial, partitions=(info,)).encode())
    with opened(tmp_path) as storage:
        storage.partition(0).set_low_water_mark(9, 2)
    wrapped = decode_control(control.read_bytes()).partitions[0]
    theirs = release_model.choose_by_sequence(wrapped)
    assert theirs is not None
    assert theirs.session_id == 8, "the release goes back to the session before"
    with opened(tmp_path) as storage:
        assert storage.partition(0).session_id == 9
        storage.partition(0).set_low_water_mark(10, 2)
    with opened(tmp_path) as storage:
        assert storage.partition(0).session_id == 10


@LAYOUTS
def test_w18_inspection_changes_nothing(tmp_path: Path, layout: Layout) -> None:
    """The released disk tool opens a segment as the node does, and so cuts a damaged one before it looks."""
    records = built(tmp_path, 10, layout=layout)
    damage(data_path(tmp_path), offset_of(records, 5) + 20)
    theirs = release_model.open_segment(data_path(tmp_path).read_bytes(), index_path(tmp_path).read_bytes(), -1)
    assert len(theirs.data) < data_path(tmp_path).stat().st_size, "the release's tool would cut it"
    before = digest(tmp_path)
    times = {path: (path.stat().st_mtime_ns, path.stat().st_ctime_ns) for path in sorted(tmp_path.rglob("*"))}
    found = [finding.code for finding in verify([tmp_path]) if hasattr(finding, "code")]
    assert "record-checksum" in found
    assert digest(tmp_path) == before
    assert {path: (path.stat().st_mtime_ns, path.stat().st_ctime_ns) for path in sorted(tmp_path.rglob("*"))} == times


@LAYOUTS
def test_w19_the_whole_directory_is_locked(tmp_path: Path, layout: Layout) -> None:
    """In the release a second control file lock is all there is; ours also holds a lock file, even if that one is gone."""
    build_directory(tmp_path, {0: 5}, layout=layout)
    control = tmp_path / "waltz-storage.ctl"
    with opened(tmp_path):
        with pytest.raises(DirectoryLockedError) as caught, opened(tmp_path):
            pass
        assert caught.value.pid == os.getpid()
        copy = control.read_bytes()
        control.unlink()
        control.write_bytes(copy)  # another file of the same name, on which nobody holds a lock
        with pytest.raises(DirectoryLockedError), opened(tmp_path):
            pass
    with opened(tmp_path) as storage:
        assert storage.partition(0).max_transaction_id == 4


def test_every_error_of_the_engine_is_one_of_its_own(tmp_path: Path) -> None:
    """A directory of which nothing is right raises an error with a status, whichever file is spoiled."""
    build_directory(tmp_path, {0: 5})
    for path in sorted(p for p in tmp_path.rglob("*") if p.is_file()):
        whole = path.read_bytes()
        for spoiled in (b"", whole[:50], bytes(len(whole)), b"\xff" * len(whole)):
            path.write_bytes(spoiled)
            try:
                with opened(tmp_path) as storage:
                    assert storage.partitions == {} or isinstance(storage.partition(0).findings, tuple)
            except WaltzError as error:
                assert error.status in ("damaged", "mismatch", "not-waltz", "io-error")  # noqa: PT017
        path.write_bytes(whole)


def test_records_are_what_they_were(tmp_path: Path) -> None:
    """Golden vectors: two records and their index entries, as release 0.13.2 writes them."""
    from waltzctl.engine.storage.directory import create_cluster
    from waltzctl.formats.request_id import RequestId

    create_cluster([tmp_path / "s"], num_partitions=1, layout=Layout.RELEASED, cluster_key=KEY)
    with opened(tmp_path / "s") as storage:
        storage.partition(0).append(
            [
                Record.make(0, RequestId(1, 2, 3, 4), 5, b"abc"),
                Record.make(1, RequestId(1, 2, 3, 5), 6, b""),
            ]
        )
    assert (tmp_path / "s" / "0" / segment_name(0)).read_bytes()[HEADER_SIZE:].hex() == (
        "0000000000000000000000010000000200000003000000040000000500000003352441c2616263201cb6fd"
        "00000000000000010000000100000002000000030000000500000006000000000000000075516b9f"
    )  # fmt: skip
    assert index_path(tmp_path / "s").read_bytes()[HEADER_SIZE:].hex() == "000000000000008000000000000000ab"
