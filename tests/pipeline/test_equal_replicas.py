"""Chunks that all replicas hold alike are read side by side; what comes of any chunk is what comes of comparing copies."""

from __future__ import annotations

import random
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from tests.builders import build_directory, make_records
from tests.pipeline.test_streams import Query
from waltzctl.engine.pipeline import agreement_stream as agreement_module
from waltzctl.engine.pipeline.agreement_chunks import ChunkComparer
from waltzctl.engine.scan.columns import RecordBatch
from waltzctl.formats.checksums import crc32
from waltzctl.formats.segment import CHECKSUM, Record

COUNT = 90


def replicas(place: Path, cuts: list[int], records: list[Record] | None = None) -> list[Path]:
    """Directories of the same records, each with segments of as many as its cut says."""
    known = make_records(COUNT) if records is None else records
    return [
        build_directory(
            place / str(number),
            {0: [known[at : at + cut] for at in range(0, len(known), cut)]},
            local_low_water_mark=len(known) - 1,
        )
        for number, cut in enumerate(cuts)
    ]


def both_ways(sources: list[Path], limit: int | None = None) -> tuple[list[Any], list[Any]]:
    """Transactions and differences, and the same where every chunk's copies are compared; with how many chunks were equal."""
    told = []
    for quick in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            if not quick:
                patch.setattr(ChunkComparer, "_equal", lambda self, chunk: None)
            told.append([Query(kind, *sources).run(limit) for kind in ("transactions", "differences")])
    return told[0], told[1]


@pytest.fixture
def equal(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each chunk that was tried is one that all replicas hold alike."""
    found: list[bool] = []
    before = ChunkComparer._equal

    def seen(self: ChunkComparer, chunk: Any) -> Any:
        rows = before(self, chunk)
        found.append(rows is not None)
        return rows

    monkeypatch.setattr(ChunkComparer, "_equal", seen)
    return found


@pytest.mark.turns(10)
@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("limit", [None, 7])
def test_equal_replicas(tmp_path: Path, equal: list[bool], count: int, limit: int | None) -> None:
    sources = replicas(tmp_path, [30] * count)
    rows = Query("transactions", *sources).run(limit)
    assert [(one["transaction_id"], one["replicas"]) for one in rows] == [(number, count) for number in range(COUNT)]
    assert [one["data"] for one in rows] == [one.data for one in make_records(COUNT)]
    assert equal
    assert all(equal), "chunks whose copies are compared one by one cost twice as much"
    assert Query("differences", *sources).run(limit) == []


@pytest.mark.parametrize("size", [1, 7, 16])
def test_data_is_handed_on_as_it_stood_though_the_scan_reads_on(tmp_path: Path, size: int) -> None:
    """Also of chunks of a single record: nothing refers to a buffer that is written over."""
    records = make_records(COUNT, size=200)
    (source,) = replicas(tmp_path, [COUNT], records)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agreement_module, "CHUNK", size)
        reader = Query("transactions", source).reader()
        end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
        tasks = reader.partitions(reader.initialOffset(), end)
        batches = [batch for task in tasks for batch in reader.read(task)]
    assert [row["data"] for batch in batches for row in batch.to_pylist()] == [one.data for one in records]


def test_segments_that_are_cut_elsewhere_are_compared_copy_by_copy(tmp_path: Path, equal: list[bool]) -> None:
    sources = replicas(tmp_path, [30, 45])
    assert [one["replicas"] for one in Query("transactions", *sources).run()] == [2] * COUNT
    assert False in equal


def test_a_replica_that_tells_of_something_behind_its_records_is_looked_at(
    tmp_path: Path, equal: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first segment goes on where the next one begins, and the chunk ends there."""
    monkeypatch.setattr(agreement_module, "CHUNK", 30)
    records = make_records(COUNT)
    (source,) = replicas(tmp_path, [30])
    segments = [records[:35], records[30:60], records[60:]]
    other = build_directory(tmp_path / "other", {0: segments}, local_low_water_mark=COUNT - 1)
    assert [one["transaction_id"] for one in Query("transactions", source, other).run()] == [*range(COUNT)]
    assert equal == [True, False, True] * 2


@pytest.mark.turns(8)
@pytest.mark.parametrize("at", [0, 1, 44, COUNT - 2, COUNT - 1])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_one_byte_that_differs_is_told(tmp_path: Path, equal: list[bool], which: int, at: int) -> None:
    sources = replicas(tmp_path, [30, 30, 30], make_records(COUNT, size=9))
    records = make_records(COUNT, size=9)
    old = records[at]
    records[at] = Record.make(at, old.request_id, old.header, bytes([old.data[0] ^ 1]) + old.data[1:])
    (sources[which],) = replicas(tmp_path / "other", [30], records)
    rows = Query("transactions", *sources).run()
    assert [one["replicas"] for one in rows] == [2 if number == at else 3 for number in range(COUNT)]
    assert rows[at]["data"] == old.data
    (difference,) = Query("differences", *sources).run()
    assert (difference["node"], difference["transaction_id"]) == (str(sources[which]), at)
    assert not any(equal)


def test_data_that_is_not_what_came_with_it_is_told_though_all_hold_it(tmp_path: Path, equal: list[bool]) -> None:
    records = make_records(COUNT, size=9)
    wrong = replace(records[7], data_checksum=records[7].data_checksum ^ 1)
    records[7] = replace(wrong, record_checksum=crc32(wrong.encode()[: -CHECKSUM.size]))
    sources = replicas(tmp_path, [30, 30, 30], records)
    assert [one["transaction_id"] for one in Query("transactions", *sources).run()] == [*range(7), *range(8, COUNT)]
    assert not any(equal)


def injure(luck: random.Random, directory: Path) -> None:
    """Something that happens to files."""
    files = sorted((directory / "0").iterdir())
    file = luck.choice(files)
    data = bytearray(file.read_bytes() or b"\0")
    match luck.randrange(5):
        case 0 | 1:
            data[luck.randrange(len(data))] ^= 1 << luck.randrange(8)
        case 2:
            del data[luck.randrange(len(data)) :]
        case 3:
            file.unlink()
            return
        case 4:
            data += luck.randbytes(luck.randrange(1, 300))
    file.write_bytes(data)


@pytest.mark.turns(8)
@settings(max_examples=40)
@given(
    luck=st.randoms(use_true_random=False),
    cuts=st.lists(st.sampled_from([30, 30, 30, 45, 90]), min_size=1, max_size=3),
    limit=st.sampled_from([None, None, 25]),
)
def test_whatever_happened_to_them(luck: random.Random, cuts: list[int], limit: int | None) -> None:
    with tempfile.TemporaryDirectory() as place:
        sources = replicas(Path(place), cuts)
        for _ in range(luck.choice((0, 1, 1, 2, 3))):
            injure(luck, luck.choice(sources))
        quick, slow = both_ways(sources, limit)
        assert quick == slow


def test_rows_are_made_of_batches_of_the_leader_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others' records are the leader's: no checksum of theirs is computed."""
    from waltzctl.engine.scan.walk import RecordWalk

    taken: list[RecordBatch] = []
    before = RecordWalk.take_batch

    def take(self: RecordWalk) -> RecordBatch:
        taken.append(before(self))
        return taken[-1]

    monkeypatch.setattr(RecordWalk, "take_batch", take)
    sources = replicas(tmp_path, [30, 30, 30])
    query = Query("transactions", *sources)
    reader = query.reader()
    end = reader.latestOffset(query.offset, reader.getDefaultReadLimit())
    tasks = reader.partitions(query.offset, end)
    taken.clear()
    assert sum(batch.num_rows for task in tasks for batch in reader.read(task)) == COUNT
    assert sum(map(len, taken)) == COUNT
