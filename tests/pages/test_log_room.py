"""Room behind the last record of a log: zeros written ahead, overwritten in place, and cut off when the log is closed."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.pages.stores import crash, data, put
from waltzctl.engine.durable.disk import WritableFile
from waltzctl.engine.durable.quarantine import list_entries
from waltzctl.engine.pages import blob_store, wal_store
from waltzctl.engine.pages.page_batch import WriteBatch
from waltzctl.engine.pages.page_options import PageOptions
from waltzctl.engine.pages.page_storage import FLUSHED_AT_ONCE, PageStorage
from waltzctl.engine.pages.torn_tail import STORE
from waltzctl.engine.pages.wal_reader import read_wal, wal_findings
from waltzctl.engine.pages.wal_store import MOST_ROOM


def log(path: Path, number: int = 1) -> Path:
    return path / "wal" / f"log_{number}_0"


def codes(path: Path) -> list[str]:
    return [str(one.code) for one in wal_findings(read_wal(path))]


def sizes(path: Path, records: int, **options: int) -> list[tuple[int, int]]:
    """Behind each record: where it ends, and where the file does."""
    found = []
    with PageStorage.create(path, PageOptions(**options)) as store:
        for number in range(records):
            put(store, 1, b"%d" % number)
            found.append((store.wal._position, log(path).stat().st_size))
    return found


def test_the_room_grows_with_the_log(tmp_path: Path) -> None:
    found = sizes(tmp_path / "s", 40)
    assert found[0][1] == 2 * found[0][0]
    for (end, size), (next_end, next_size) in itertools.pairwise(found):
        assert next_size == (size if next_end <= size else 2 * next_end)
        assert size <= 2 * end
    assert len({size for _, size in found}) == 5
    assert (log(tmp_path / "s").stat().st_size, codes(tmp_path / "s")) == (found[-1][0] + 15, [])


@pytest.mark.parametrize("less", [0, 1])
def test_a_record_that_ends_where_the_file_does_takes_no_room(tmp_path: Path, less: int) -> None:
    with PageStorage.create(tmp_path / "s") as store:
        put(store, 1, b"one")
        assert store.wal._room_end == 2 * store.wal._position  # the next record is as long as this one
        store.wal._room_end -= less
        put(store, 1, b"two")
        end = store.wal._position
        assert log(tmp_path / "s").stat().st_size == (2 * end if less else end)


def test_there_is_a_most_of_room(tmp_path: Path) -> None:
    with PageStorage.create(tmp_path / "s") as store:
        batch = WriteBatch()
        for page in range(MOST_ROOM // 40):
            batch.put_external(page)
        store.write(batch)
        end = store.wal._position
        assert MOST_ROOM < end < 4 * MOST_ROOM
        assert log(tmp_path / "s").stat().st_size == end + MOST_ROOM


def test_no_room_behind_what_a_log_may_hold(tmp_path: Path) -> None:
    (first, size), (_, rolled) = sizes(tmp_path / "s", 2, log_size=180)
    assert (first < size, size) == (True, 180)
    assert rolled == 2 * first + 15


def test_a_log_that_is_full_ends_with_its_last_record(tmp_path: Path) -> None:
    with PageStorage.create(tmp_path / "s") as store:
        put(store, 1, b"one")
        end = store.wal._position
        assert store.wal.roll() == 1
        assert log(tmp_path / "s").stat().st_size == end + 15


def test_who_died_left_room_and_nothing_torn(tmp_path: Path) -> None:
    store = PageStorage.create(tmp_path / "s")
    for number in range(3):
        put(store, number, b"%d" % number)
    end = store.wal._position
    crash(store)
    assert log(tmp_path / "s").stat().st_size > end
    contents = read_wal(tmp_path / "s")
    assert (contents.torn_from, contents.files[0].end, contents.files[0].size) == (None, end, end)
    assert codes(tmp_path / "s") == []
    with PageStorage.open(tmp_path / "s") as again:
        assert [data(again, number) for number in range(3)] == [b"0", b"1", b"2"]
        assert log(tmp_path / "s").stat().st_size == end + 15
    assert (codes(tmp_path / "s"), list_entries(tmp_path / "s", STORE)) == ([], ())


@pytest.mark.parametrize("kept", [1, 40, 60])
def test_a_record_that_is_torn_within_its_room(tmp_path: Path, kept: int) -> None:
    """Its first bytes are there, and behind them the zeros that stood there before."""
    store = PageStorage.create(tmp_path / "s")
    put(store, 1, b"one")
    put(store, 2, b"two")
    middle, end = store.wal._position // 2, store.wal._position
    crash(store)
    with open(log(tmp_path / "s"), "r+b") as file:
        file.seek(middle + kept)
        file.write(bytes(end - middle - kept))
    assert codes(tmp_path / "s") == ["log-torn-tail"]
    (found,) = wal_findings(read_wal(tmp_path / "s"))
    assert found.offset == middle
    assert 0 < found.length <= kept
    with PageStorage.open(tmp_path / "s") as again:
        assert (data(again, 1), data(again, 2)) == (b"one", None)
    assert len(list_entries(tmp_path / "s", STORE)) == 1


def test_zeros_in_front_of_a_record_are_damage(tmp_path: Path) -> None:
    store = PageStorage.create(tmp_path / "s")
    for number in range(3):
        put(store, number, b"%d" % number)
    third = store.wal._position // 3
    crash(store)
    with open(log(tmp_path / "s"), "r+b") as file:
        file.seek(third)
        file.write(bytes(third))
    assert codes(tmp_path / "s") == ["log-record-checksum"]


class Flushes:
    """What was flushed, and how."""

    def __init__(self, store: PageStorage, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: list[str] = []
        self.begun: list[str] = []
        flusher, sync = store._flusher, WritableFile.sync

        def at_once(files: Sequence[WritableFile]) -> list[None]:
            self.told.append("at once " + " ".join(file.path.name for file in files))
            return [None] * len(files)

        def alone(file: WritableFile) -> None:
            self.told.append(file.path.name)
            sync(file)

        def begin(file: WritableFile, offset: int, size: int) -> None:
            self.begun.append(f"{file.path.name} {size}")

        monkeypatch.setattr(flusher, "flush", at_once)
        monkeypatch.setattr(WritableFile, "sync", alone)
        monkeypatch.setattr(blob_store, "begin_writing", begin)
        monkeypatch.setattr(wal_store, "begin_writing", begin)


@pytest.mark.parametrize("size", [1, FLUSHED_AT_ONCE - 1, FLUSHED_AT_ONCE])
def test_little_of_one_writer_is_flushed_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    with PageStorage.create(tmp_path / "s") as store:
        put(store, 1, b"one")
        flushes, before = Flushes(store, monkeypatch), store.wal._position
        put(store, 2, bytes(size))
        wanted = ["blobfile_1", "log_1_0"] if size < FLUSHED_AT_ONCE else ["at once blobfile_1 log_1_0"]
        assert flushes.told == wanted
        record = [f"log_1_0 {store.wal._position - before}"] * (size < FLUSHED_AT_ONCE)
        assert flushes.begun == [f"blobfile_1 {size}", *record]
        monkeypatch.undo()


def test_what_several_write_is_flushed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk does not begin with it before: it would have to wait for that."""
    with PageStorage.create(tmp_path / "s") as store:
        put(store, 1, b"one")
        flushes = Flushes(store, monkeypatch)
        with store.commit_lock:
            writers = [threading.Thread(target=put, args=(store, page, b"more")) for page in (2, 3)]
            for writer in writers:
                writer.start()
            while len(store._queue) < 2:
                threading.Event().wait(0.001)
        for writer in writers:
            writer.join()
        assert (flushes.told, flushes.begun) == (["at once blobfile_1 log_1_0"], [])
        assert (data(store, 2), data(store, 3)) == (b"more", b"more")
        monkeypatch.undo()


def test_of_a_record_without_data_nothing_was_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with PageStorage.create(tmp_path / "s") as store:
        put(store, 1, b"one")
        flushes = Flushes(store, monkeypatch)
        with store.collection_lock:
            store.confirm()
        store.write(WriteBatch().put_ref(2, 1))
        assert (flushes.told, flushes.begun) == (["log_1_0"] * 2, [])
        monkeypatch.undo()
