"""A store from outside: pages, fields, snapshots, threads, what is damaged, what stays after a restart."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import digest
from tests.pages.stores import crash, data, delete, put, ref
from waltzctl.engine.catalogue import Code
from waltzctl.engine.durable.disk import WritableFile
from waltzctl.engine.errors import (
    DamageError,
    DirectoryLockedError,
    DiskWriteError,
    InvalidOptionsError,
    InvalidRequestError,
    NoSuchPageError,
    PageConflictError,
    PageStoreFailedError,
)
from waltzctl.engine.pages.blob_stats import BlobSpan
from waltzctl.engine.pages.inspection import verify_store
from waltzctl.engine.pages.page_batch import WriteBatch
from waltzctl.engine.pages.page_cache import PageCache
from waltzctl.engine.pages.page_gc import collect_garbage
from waltzctl.engine.pages.page_options import PageOptions
from waltzctl.engine.pages.page_storage import PageStorage, _Ticket
from waltzctl.engine.pages.wal_reader import read_wal
from waltzctl.formats.pages.write_batch import PageId, Version, decode_batch, encode_batch


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PageStorage]:
    with contextlib.closing(PageStorage.create(tmp_path / "s", PageOptions(blob_limit=64 << 10))) as opened:
        yield opened


@pytest.mark.parametrize("others", [0, 300])
def test_more_blob_files_than_a_process_may_have_open_unless_it_asks(tmp_path: Path, others: int) -> None:
    """With the limit that shells and timers set a vault of 256 GiB could neither be written to nor pruned.

    `others`: files that the process has open besides, with 10 free descriptors below them.
    """
    options = PageOptions(blob_limit=10)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as held:
        with contextlib.ExitStack() as between:
            for number in range(others):
                (between if number < 10 else held).enter_context(open(os.devnull))
        few = max(map(int, os.listdir("/proc/self/fd"))) + (1 if others else 20)
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        for fresh in (True, False):
            resource.setrlimit(resource.RLIMIT_NOFILE, (few, before[1]))
            with (PageStorage.create if fresh else PageStorage.open)(tmp_path / "s", options) as store:
                for page in range(30):
                    put(store, page + 100 * fresh, b"0123456789")
                assert len(store.status().blobs) == (30 if fresh else 60)


def test_an_empty_batch_is_a_no_op(store: PageStorage) -> None:
    assert store.write(WriteBatch()) == 0
    assert put(store, 1, b"x") == 1
    written = store.wal.written
    assert store.write(WriteBatch()) == 1
    assert delete(store, 77) == 1  # nor has this anything to do
    assert store.wal.written == written


def test_pages_of_namespaces_tags_and_fields(store: PageStorage) -> None:
    batch = WriteBatch(3).put_page(1, b"abcdef", tag=2**64 - 1, field_sizes=[1, 0, 5]).put_page(2, [b"gh", b"", b"i"])
    store.write(batch.put_page(3, memoryview(bytearray(b"jk"))))
    put(store, 1, b"other")
    page = store.read(1, namespace=3)
    assert (page.id, page.namespace, page.tag, page.data) == (1, 3, 2**64 - 1, b"abcdef")
    assert page.fields == (b"a", b"", b"bcdef")
    assert store.read_fields(1, [2, 0], namespace=3) == [b"bcdef", b"a"]
    assert [bytes(one.data) for one in store.read_many([3, 2], namespace=3)] == [b"jk", b"ghi"]
    assert store.read(2, namespace=3).fields == (b"gh", b"", b"i")
    assert [one.page for one in store.traverse()] == [(0, 1), (3, 1), (3, 2), (3, 3)]
    assert [one.page.id for one in store.traverse(namespace=0)] == [1]
    assert (store.max_id(namespace=3), store.max_id(), store.max_id(namespace=8)) == (3, 1, 0)


def test_what_cannot_be_meant_is_said(store: PageStorage) -> None:
    put(store, 1, b"x")
    store.write(WriteBatch().put_external(2))
    for act in (
        lambda: WriteBatch(-1),
        lambda: WriteBatch().put_page(2**64, b""),
        lambda: WriteBatch().put_page(1, b"abc", field_sizes=[1, 1]),
        lambda: WriteBatch().put_page(1, b"abc", field_sizes=[4, -1]),
        lambda: WriteBatch().put_page(1, b"", tag=-1),
        lambda: store.read_fields(1, [0]),
    ):
        with pytest.raises(InvalidRequestError):
            act()
    for act in (
        lambda: store.read(9),
        lambda: store.read(2),
        lambda: store.normal_page_id(9),
        lambda: store.read_many([1, 9]),
    ):
        with pytest.raises(NoSuchPageError):
            act()
    assert store.get_entry(9) is None


def test_empty_pages(store: PageStorage, tmp_path: Path) -> None:
    store.write(WriteBatch().put_page(1, b"", tag=5).put_page(2, [b"", b""]).put_ref(3, 1))
    assert store.blobs.stats.status() == ()
    crash(store)
    with PageStorage.open(tmp_path / "s") as again:
        assert (again.read(3).data, again.read(3).tag, again.read_fields(2, [1])) == (b"", 5, [b""])
        entry = again.get_entry(1)
        assert entry is not None
        assert entry.entry is not None
        assert (entry.entry.file_id, entry.entry.offset, entry.entry.size, entry.entry.checksum) == (0, 0, 0, 0)
        collect_garbage(again, checkpoint=True)
        assert data(again, 1) == b""


def test_a_snapshot_never_blocks_a_writer_and_sees_what_it_saw(store: PageStorage) -> None:
    put(store, 1, b"old")
    with store.snapshot() as snapshot:
        put(store, 1, b"new")
        delete(store, 1)
        put(store, 2, b"later")
        for _ in range(2):
            collect_garbage(store, checkpoint=True)
        assert (data(store, 1, snapshot), data(store, 2, snapshot)) == (b"old", None)
        assert [one.page.id for one in store.traverse(snapshot=snapshot)] == [1]
        assert (data(store, 1), data(store, 2)) == (None, b"later")
        statistics = store.snapshot_statistics()
        assert (statistics.count, statistics.oldest_sequence, statistics.oldest_age >= 0) == (1, 1, True)
    assert store.snapshot_statistics().count == 0
    with pytest.raises(InvalidRequestError, match="closed"):
        store.read(1, snapshot=snapshot)


def test_a_snapshot_of_another_store_is_refused(store: PageStorage, tmp_path: Path) -> None:
    with PageStorage.create(tmp_path / "t") as other, pytest.raises(InvalidRequestError, match="another store"):
        store.get_entry(1, snapshot=other.snapshot())


def test_hundred_held_snapshots_each_see_their_own(store: PageStorage) -> None:
    held = []
    for number in range(100):
        put(store, 1, b"%d" % number)
        put(store, 2 + number % 3, b"%d" % -number)
        held.append((store.snapshot(), number))
    collect_garbage(store)
    for snapshot, number in held:
        assert data(store, 1, snapshot) == b"%d" % number
    for snapshot, _ in held[::2]:
        snapshot.close()
    collect_garbage(store)
    for snapshot, number in held[1::2]:
        assert data(store, 1, snapshot) == b"%d" % number
        snapshot.close()
    collect_garbage(store)
    assert store.directory.size.rows == 4


def test_space_is_used_again_and_then_restored(store: PageStorage, tmp_path: Path) -> None:
    for number in range(8):
        put(store, number, bytes([number]) * 1000)
    delete(store, 1, 3)
    for _ in range(2):
        collect_garbage(store)
    put(store, 20, b"fits" * 250)
    (blob,) = store.status().blobs
    assert (blob.total, blob.valid) == (8000, 7000)
    crash(store)
    with PageStorage.open(tmp_path / "s") as again:
        assert [data(again, number) for number in (0, 1, 2, 20)] == [b"\0" * 1000, None, b"\2" * 1000, b"fits" * 250]
        assert again.status().blobs[0].valid == 7000
        put(again, 21, b"also" * 250)
        assert again.status().blobs[0].boundary == 8000


def test_a_field_is_read_through_a_reference_after_a_restore(store: PageStorage, tmp_path: Path) -> None:
    store.write(WriteBatch().put_page(1, [b"ab", b"cde"]))
    ref(store, 2, 1)
    delete(store, 1)
    collect_garbage(store, checkpoint=True)
    store.close()
    with PageStorage.open(tmp_path / "s") as again:
        assert again.read_fields(2, [1, 0]) == [b"cde", b"ab"]
        assert (again.read(2).id, again.normal_page_id(2), data(again, 1)) == (2, 1, None)


def test_the_highest_id_is_never_given_away_twice(store: PageStorage, tmp_path: Path) -> None:
    put(store, 500, b"x")
    delete(store, 500)
    collect_garbage(store, checkpoint=True)
    store.close()
    with PageStorage.open(tmp_path / "s") as again:
        assert (again.max_id(), again.directory.sequence) == (500, 2)


def test_a_reopened_store_with_a_smaller_limit(store: PageStorage, tmp_path: Path) -> None:
    for number in range(5):
        put(store, number, bytes([number]) * 10_000)
    store.close()
    with PageStorage.open(tmp_path / "s", PageOptions(blob_limit=15_000)) as again:
        put(again, 9, b"9" * 10_000)
        assert [blob.file_id for blob in again.status().blobs] == [1, 2]
        assert [data(again, number) for number in (0, 4, 9)] == [b"\0" * 10_000, b"\4" * 10_000, b"9" * 10_000]


def test_one_writer_at_a_time_has_the_directory(store: PageStorage, tmp_path: Path) -> None:
    with pytest.raises(DirectoryLockedError):
        PageStorage.open(tmp_path / "s")
    store.close()
    store.close()
    PageStorage.open(tmp_path / "s").close()
    for act in (lambda: put(store, 1, b""), lambda: store.read(1), store.snapshot, lambda: collect_garbage(store)):
        with pytest.raises(InvalidRequestError, match="closed"):
            act()


@pytest.mark.parametrize("put_there", ["copy", "nothing"])
def test_a_store_that_was_moved_commits_nothing(tmp_path: Path, put_there: str) -> None:
    """Its next blob file would get into the copy, and the log that names the pages in it would not."""
    path, moved = tmp_path / "here", tmp_path / "moved"
    with PageStorage.create(path, PageOptions(blob_limit=4096)) as store:
        put(store, 1, b"1" * 3000)
        path.rename(moved)
        if put_there == "copy":
            shutil.copytree(moved, path)
        with pytest.raises(DiskWriteError):
            put(store, 2, b"2" * 3000)
        shutil.rmtree(path, ignore_errors=True)
        moved.rename(path)
        with pytest.raises(PageStoreFailedError) if put_there == "copy" else contextlib.nullcontext():
            put(store, 3, b"3" * 3000)
    assert verify_store(path).status != "damaged"
    with PageStorage.open(path) as store:
        later = None if put_there == "copy" else b"3" * 3000
        assert [data(store, page) for page in (1, 2, 3)] == [b"1" * 3000, None, later]
        put(store, 2, b"2" * 3000)


@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_store_that_was_moved_collects_nothing_in_a_copy(tmp_path: Path, *, checkpoint: bool) -> None:
    """An older copy still has the pages whose blob files were removed there."""
    path, moved, copy = tmp_path / "here", tmp_path / "moved", tmp_path / "copy"
    with PageStorage.create(path, PageOptions(blob_limit=4096)) as store:
        for page in (1, 2, 3):
            put(store, page, b"1" * 3000)
        shutil.copytree(path, copy)
        delete(store, 1, 2)
        path.rename(moved)
        copy.rename(path)
        before = digest(path)
        with pytest.raises(DiskWriteError, match="moved or replaced while it was open"):
            collect_garbage(store, checkpoint=checkpoint)
        assert digest(path) == before
    with PageStorage.open(path) as older:
        assert [data(older, page) for page in (1, 2, 3)] == [b"1" * 3000] * 3


def test_a_damaged_page_is_never_served_and_costs_only_itself(store: PageStorage, tmp_path: Path) -> None:
    store.write(WriteBatch().put_page(1, [b"aaaa", b"bbbb"]).put_page(2, b"cccc"))
    path = tmp_path / "s" / "blob" / "blobfile_1"
    raw = bytearray(path.read_bytes())
    raw[5] ^= 1
    path.write_bytes(raw)
    with pytest.raises(DamageError, match="page 0:1: the checksum of its data is wrong") as caught:
        store.read(1)
    assert [one.code for one in caught.value.findings] == [Code.PAGE_CHECKSUM]
    with pytest.raises(DamageError, match="the checksum of field 1"):
        store.read_fields(1, [1])
    assert store.read_fields(1, [0]) == [b"aaaa"]
    assert data(store, 2) == b"cccc"
    path.write_bytes(raw[:9])
    with pytest.raises(DamageError, match="has 4 bytes, and the file has 1 of them") as caught:
        store.read(2)
    assert [one.code for one in caught.value.findings] == [Code.PAGE_MISSING]


def test_a_missing_blob_file_costs_its_pages_only(store: PageStorage, tmp_path: Path) -> None:
    put(store, 1, b"1" * 60_000)
    put(store, 2, b"2" * 60_000)
    store.close()
    (tmp_path / "s" / "blob" / "blobfile_1").unlink()
    with PageStorage.open(tmp_path / "s") as again:
        assert data(again, 2) == b"2" * 60_000
        with pytest.raises(DamageError, match="the file has 0 of them"):
            again.read(1)
        put(again, 1, b"anew")
        for _ in range(3):
            collect_garbage(again)
        assert data(again, 1) == b"anew"
        assert [blob.file_id for blob in again.status().blobs] == [2]


def test_pages_that_overlap_are_refused(store: PageStorage, tmp_path: Path) -> None:
    put(store, 1, b"abcd")
    found = store.directory.at(store.directory.head_of(PageId(0, 1)))
    assert found is not None
    edit = WriteBatch().put_page(2, b"bc").edits[0]
    assert edit.entry is not None
    entry = edit.entry._replace(file_id=1, offset=1)
    store.wal.append(encode_batch([replace(edit, version=Version(2), entry=entry)]))
    crash(store)
    with pytest.raises(DamageError, match="bytes 1 to 3 belong to a page") as caught:
        PageStorage.open(tmp_path / "s")
    assert [one.code for one in caught.value.findings] == [Code.SPACE_OVERLAP]


def test_batches_of_a_group_see_one_another(store: PageStorage) -> None:
    """Writers that come together share one record of the log, and are judged in order."""

    def ticket(batch: WriteBatch) -> _Ticket:
        return _Ticket(batch.edits)

    put(store, 1, b"")
    group = [
        ticket(WriteBatch().put_ref(2, 1)),
        ticket(WriteBatch().put_page(1, b"")),
        ticket(WriteBatch().delete(2)),
        ticket(WriteBatch().put_page(1, b"", tag=8)),
        ticket(WriteBatch().put_ref(5, 5)),
        ticket(WriteBatch().put_page(3, b"").put_ref(4, 3)),
    ]
    with store.commit_lock:
        store._queue = list(group)
        store._commit()
    assert [one.sequence for one in group] == [2, None, 3, 4, None, 5]
    assert [type(one.error) for one in group if one.error] == [PageConflictError, PageConflictError]
    assert store.read(1).tag == 8
    assert [len(decode_batch(record.payload)) for record in read_wal(store.path).files[0].records] == [1, 5]
    assert [data(store, page) for page in (2, 3, 4)] == [None, b"", b""]


@pytest.mark.parametrize("flushed_with_record", [0, 1 << 20])
def test_a_refused_batch_leaves_nothing_in_a_blob_file(tmp_path: Path, flushed_with_record: int) -> None:
    with PageStorage.create(tmp_path / "s", PageOptions(flushed_with_record=flushed_with_record)) as store:
        put(store, 1, b"a" * 100)
        before = (store.blob_size(), store.wal.written)
        for batch in (
            WriteBatch().put_page(2, b"b" * 10_000).put_ref(3, 99),
            WriteBatch().put_page(2, b"b" * 10_000).put_ref(3, 2).put_page(2, b"c"),
        ):
            with pytest.raises(PageConflictError):
                store.write(batch)
        assert (store.blob_size(), store.wal.written) == before
    assert verify_store(tmp_path / "s").findings == ()


def test_a_batch_that_is_refused_when_its_data_is_in_place_takes_no_room(
    store: PageStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer's batch came in between, which the first judgement did not know."""
    put(store, 1, b"one")
    write = store.blobs.write

    def meanwhile(*given: object, **named: object) -> object:
        monkeypatch.undo()
        ref(store, 2, 1)
        return write(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(store.blobs, "write", meanwhile)
    with pytest.raises(PageConflictError, match="1 other pages refer to it"):
        put(store, 1, b"another")
    assert data(store, 1) == data(store, 2) == b"one"
    assert [blob.valid for blob in store.blobs.stats.status()] == [3]
    put(store, 3, b"later")
    assert [blob.valid for blob in store.blobs.stats.status()] == [8]


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        (lambda store: ref(store, 2, 1), lambda store: put(store, 1, b"x"), "1 other pages refer to it"),
        (lambda store: put(store, 2, b"x"), lambda store: ref(store, 2, 1), "is there and no reference"),
        (
            lambda store: put(store, 2, b"x"),
            lambda store: store.write(WriteBatch().put_external(2)),
            "is a page with data",
        ),
    ],
    ids=["referred to and written", "written and a reference", "written and external"],
)
def test_of_batches_that_are_written_together_each_is_judged_with_those_before_it(
    store: PageStorage, first: Callable[[PageStorage], object], second: Callable[[PageStorage], object], why: str
) -> None:
    """By itself each may be written: the other one was not there when it was judged."""
    put(store, 1, b"one")
    refused: list[PageConflictError] = []

    def write(one: Callable[[PageStorage], object]) -> None:
        try:
            one(store)
        except PageConflictError as error:
            refused.append(error)

    writers = [threading.Thread(target=write, args=(one,)) for one in (first, second)]
    with store.commit_lock:
        for number, writer in enumerate(writers, start=1):
            writer.start()
            while len(store._queue) < number:
                time.sleep(0.001)
    for writer in writers:
        writer.join()
    assert [why in str(one) for one in refused] == [True]
    assert data(store, 1) == b"one"


@pytest.mark.parametrize("flushed_with_record", [0, 1 << 20])
def test_data_is_written_by_several_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flushed_with_record: int
) -> None:
    """Nobody waits for another one's data, in the same file or not: each goes on when all of them are writing."""
    store = PageStorage.create(tmp_path / "s", PageOptions(blob_limit=2000, flushed_with_record=flushed_with_record))
    together, write = threading.Barrier(4), WritableFile.write_pieces_at

    def waiting(file: WritableFile, offset: int, pieces: Sequence[bytes]) -> None:
        together.wait(60)
        write(file, offset, pieces)

    monkeypatch.setattr(WritableFile, "write_pieces_at", waiting)
    threads = [threading.Thread(target=put, args=(store, page, bytes([page]) * 900)) for page in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    monkeypatch.undo()
    assert [data(store, page) for page in range(4)] == [bytes([page]) * 900 for page in range(4)]
    assert len(store.status().blobs) == 2
    store.close()


def test_an_interrupted_write_stops_the_store(store: PageStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """What came of it nobody knows; a later write behind it would promise more than is known."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store.wal, "append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        put(store, 1, b"x")
    waiting = [_Ticket(WriteBatch().put_page(number, b"").edits) for number in (3, 4)]
    store._failure = None
    store._queue = list(waiting)
    with pytest.raises(KeyboardInterrupt):
        store._commit()
    assert [type(one.error) for one in waiting] == [PageStoreFailedError] * 2
    monkeypatch.undo()
    with pytest.raises(PageStoreFailedError, match="interrupted"):
        put(store, 2, b"x")


def test_who_reads_while_the_store_is_closed_is_not_told_of_damage(store: PageStorage) -> None:
    store.write(WriteBatch().put_page(1, b"abcdef", field_sizes=[3, 3]))
    store._cache = PageCache(0)
    original = store.blobs.read

    def closed_before(span: BlobSpan) -> bytes:
        store.close()
        return original(span)

    store.blobs.read = closed_before  # type: ignore[method-assign]
    with pytest.raises(InvalidRequestError, match="is closed"):
        store.read(1)
    store._closed = False
    with pytest.raises(InvalidRequestError, match="is closed"):
        store.read_fields(1, [0])


class _Interrupting:
    """A lock behind which whoever took what waits is interrupted, before it comes to anything else."""

    def __init__(self, store: PageStorage) -> None:
        self._store, self._lock = store, store._queue_lock

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        taken = not self._store._queue
        self._lock.release()
        if taken:
            self._store._queue_lock = self._lock
            raise KeyboardInterrupt


def test_who_waits_for_a_writer_that_is_interrupted_before_it_writes_is_told(store: PageStorage) -> None:
    """The batch was in nobody's hands any more, and an assertion failed."""
    errors: list[BaseException] = []

    def write(page: int) -> None:
        try:
            put(store, page, bytes([page]) * 900)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(page,)) for page in (2, 3)]
    with store.commit_lock:
        for thread in threads:
            thread.start()
        while len(store._queue) < len(threads):
            time.sleep(0.001)
        store._queue_lock = _Interrupting(store)  # type: ignore[assignment]
    for thread in threads:
        thread.join()
    assert {type(one) for one in errors} == {KeyboardInterrupt, PageStoreFailedError}
    crash(store)
    with PageStorage.open(store.path) as again:
        assert [data(again, page) for page in (2, 3)] == [None, None]


def test_who_waits_for_a_writer_that_is_interrupted_at_the_end_gives_nothing_back(
    store: PageStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it wrote is in the log and shown by then: another page in its room would be read as this one."""
    put(store, 1, b"a" * 900)

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store.wal, "roll_when_full", interrupted)
    errors: list[BaseException] = []

    def write(page: int) -> None:
        try:
            put(store, page, bytes([page]) * 900)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(page,)) for page in (2, 3)]
    with store.commit_lock:
        for thread in threads:
            thread.start()
        while len(store._queue) < len(threads):
            time.sleep(0.001)
    for thread in threads:
        thread.join()
    monkeypatch.undo()
    assert {type(one) for one in errors} == {KeyboardInterrupt, PageStoreFailedError}
    with pytest.raises(PageStoreFailedError):
        put(store, 4, b"x" * 900)
    assert [data(store, page) for page in (2, 3)] == [b"\2" * 900, b"\3" * 900]
    crash(store)
    with PageStorage.open(store.path) as again:
        assert [data(again, page) for page in (1, 2, 3, 4)] == [b"a" * 900, b"\2" * 900, b"\3" * 900, None]


def test_writers_readers_and_collection_side_by_side(store: PageStorage, tmp_path: Path) -> None:
    """Every reader sees whole batches, of one moment, whatever moves meanwhile."""
    pages, writers, rounds = range(1, 7), 3, 40
    store.write(_equal(pages, 0, 0))
    failures: list[BaseException] = []
    left = threading.Semaphore(0)

    def write(number: int) -> None:
        try:
            rng = random.Random(number)
            for turn in range(rounds):
                store.write(_equal(pages, number * 1000 + turn, rng.randrange(3000)))
        except BaseException as error:
            failures.append(error)
        finally:
            left.release()

    def read() -> None:
        try:
            while not done.is_set():
                with store.snapshot() as snapshot:
                    assert len({one.tag for one in store.read_many(pages, snapshot=snapshot)}) == 1
                tags = {(one.tag, bytes(one.data[:1])) for one in store.read_many(pages)}
                assert len(tags) == 1
        except BaseException as error:
            failures.append(error)

    def collect() -> None:
        try:
            while not done.is_set():
                collect_garbage(store)
        except BaseException as error:
            failures.append(error)

    done = threading.Event()
    threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
    others = [threading.Thread(target=read), threading.Thread(target=collect)]
    for thread in threads + others:
        thread.start()
    for _ in threads:
        left.acquire()
    done.set()
    for thread in threads + others:
        thread.join()
    assert failures == []
    assert store.directory.sequence == 1 + writers * rounds
    before = store.read_many(pages)
    crash(store)
    with PageStorage.open(tmp_path / "s") as again:
        assert again.read_many(pages) == before


def _equal(pages: range, tag: int, size: int) -> WriteBatch:
    batch = WriteBatch()
    for page in pages:
        batch.put_page(page, bytes([tag % 251]) * (size + 1), tag=tag)
    return batch


@pytest.mark.parametrize("kind", ["heavy write", "skewed window", "pages of many fields"])
def test_workloads(store: PageStorage, tmp_path: Path, kind: str) -> None:
    """Small forms of what the released program is measured with; the measured ones are in `benchmarks`."""
    rng = random.Random(kind)
    kept: dict[int, bytes] = {}
    for turn in range(40):
        batch = WriteBatch()
        if kind == "heavy write":
            wanted = {rng.randrange(30): rng.randbytes(int(2 ** rng.uniform(0, 14))) for _ in range(4)}
        elif kind == "skewed window":
            wanted = {turn + max(0, int(rng.gauss(25, 3))): rng.randbytes(rng.randint(100, 10_000))}
        else:
            wanted = {rng.randrange(5): rng.randbytes(10_000)}
        for page, content in wanted.items():
            sizes = [10] * 1000 if kind == "pages of many fields" else []
            batch.put_page(page, content, field_sizes=sizes)
        store.write(batch)
        kept |= wanted
        if turn % 7 == 0:
            collect_garbage(store)
    store.close()
    with PageStorage.open(tmp_path / "s") as again:
        assert {one.page.id: data(again, one.page.id) for one in again.traverse()} == kept
        for _ in range(4):
            collect_garbage(again, checkpoint=True)
        assert {page: data(again, page) for page in kept} == kept
        amplification = again.status().space_amplification
        assert amplification is not None
        assert amplification < 2
        if kind == "pages of many fields":
            assert again.read_fields(1, [999, 0]) == [kept[1][-10:], kept[1][:10]]


@pytest.mark.parametrize(
    "options",
    [
        {"blob_limit": 0},
        {"blob_limit": 2**32},
        {"log_size": 0},
        {"max_log_files": 0},
        {"full_gc_rate": 1.0},
        {"full_gc_rate": -0.1},
    ],
)
def test_options_that_cannot_be_meant(options: dict[str, float]) -> None:
    with pytest.raises(InvalidOptionsError, match=f"{next(iter(options))} is .*, and has to be at least"):
        PageOptions(**options)  # type: ignore[arg-type]


def test_what_fails_in_memory_behind_the_log_stops_the_store(
    store: PageStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, 1, b"x")

    def failing(_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(store.directory, "apply", failing)
    with pytest.raises(MemoryError):
        put(store, 2, b"x")
    monkeypatch.undo()
    with pytest.raises(PageStoreFailedError):
        put(store, 3, b"x")
    crash(store)
    with PageStorage.open(store.path) as again:  # the log had it
        assert [data(again, page) for page in (1, 2, 3)] == [b"x", b"x", None]
