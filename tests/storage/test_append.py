"""append_lines and AppendSession: a store can be filled with no server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import build_directory, digest
from tests.storage.support import LAYOUTS, SMALL, damage, data_path, opened
from waltzctl.engine.durable import disk
from waltzctl.engine.errors import (
    InvalidRequestError,
    MismatchError,
    NotAssignedError,
    NotAvailableError,
    PartitionQuarantinedError,
    RefusedError,
)
from waltzctl.engine.storage.append import AppendResult, PendingRecord, append_lines, grouped
from waltzctl.engine.storage.directory import create_cluster
from waltzctl.engine.storage.fences import SessionFences
from waltzctl.formats.control import Layout
from waltzctl.formats.ids import LAST_SESSION_ID
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import HEADER_SIZE


@LAYOUTS
def test_records_become_durable_batch_by_batch_in_a_new_session(tmp_path: Path, layout: Layout) -> None:
    create_cluster([tmp_path / "s"], num_partitions=3, layout=layout)
    told: list[int] = []
    own = RequestId(5, -6, 7, -8)
    items = [PendingRecord(b"a" * n, n, own if n == 4 else None) for n in range(10)]
    result = append_lines(tmp_path / "s", partition=2, records=items, batch=4, on_durable=told.append, options=SMALL)
    assert result == AppendResult(2, 0, 9, 10, sum(40 + n for n in range(10)))
    assert told == [3, 7, 9]
    again = append_lines(tmp_path / "s", partition=2, records=[PendingRecord(b"x")], options=SMALL)
    assert again == AppendResult(2, 10, 10, 1, 41)
    with opened(tmp_path / "s") as storage:
        partition = storage.partition(2)
        records = partition.read_range(0, 100)
        assert [(r.data, r.header) for r in records[:10]] == [(i.data, i.header) for i in items]
        assert records[3].request_id == RequestId(0, 0, 2, 3), "client 0, generation: the session, partition, place"
        assert records[4].request_id == own
        assert records[10].request_id == RequestId(0, 1, 2, 0)
        assert (partition.session_id, partition.low_water_mark, partition.local_low_water_mark) == (1, 9, 9)


@pytest.mark.parametrize(("batch", "durable"), [(1, [5, 6, 7]), (2, [6, 7]), (3, [7]), (4, [7])])
def test_a_batch_may_be_a_single_record(tmp_path: Path, batch: int, durable: list[int]) -> None:
    build_directory(tmp_path, {0: 5})
    told: list[int] = []
    append_lines(tmp_path, partition=0, records=[PendingRecord(b"x")] * 3, batch=batch, on_durable=told.append)
    assert told == durable


@LAYOUTS
def test_no_input_begins_no_session(tmp_path: Path, layout: Layout) -> None:
    build_directory(tmp_path, {0: 5}, layout=layout)
    before = digest(tmp_path)
    assert append_lines(tmp_path, partition=0, records=[]) == AppendResult(0, None, None, 0, 0)
    assert {name: d for name, d in digest(tmp_path).items() if name in before} == before


@pytest.mark.parametrize("fence", [0, 6, 7, 40])
def test_the_session_is_later_than_any_that_was_let_in(tmp_path: Path, fence: int) -> None:
    """Its server, if it comes back in the session that it had, must not find its own session here with other transactions."""
    path = build_directory(tmp_path / "s", {0: 5, 1: 5}, session=6)
    with opened(path), SessionFences.open(path, 2) as fences:
        fences.raise_to(0, fence)
        fences.raise_to(1, 99)
    append_lines(path, partition=0, records=[PendingRecord(b"x")])
    with opened(path) as storage:
        assert storage.partition(0).session_id == max(6, fence) + 1


def test_no_session_follows_the_last_one_that_was_let_in(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "s", {0: 5})
    with opened(path), SessionFences.open(path, 1) as fences:
        fences.raise_to(0, LAST_SESSION_ID)
    before = digest(path)
    with pytest.raises(RefusedError, match="is the last that there can be"):
        append_lines(path, partition=0, records=[PendingRecord(b"x")])
    assert digest(path) == before


def test_the_generation_is_the_low_half_of_a_huge_session(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 5}, session=2**40 + 2**32 - 2)
    append_lines(tmp_path, partition=0, records=[PendingRecord(b"")])
    with opened(tmp_path) as storage:
        record = storage.partition(0).read(5)
        assert record is not None
        assert record.request_id == RequestId(0, -1, 0, 0)


def test_an_input_that_fails_leaves_whole_batches(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 0})
    told: list[int] = []

    def items() -> Iterator[PendingRecord]:
        yield from (PendingRecord(b"x"),) * 5
        raise RuntimeError("the input ends here")

    with pytest.raises(RuntimeError):
        append_lines(tmp_path, partition=0, records=items(), batch=2, on_durable=told.append)
    assert told == [1, 3]
    with opened(tmp_path) as storage:
        assert storage.partition(0).max_transaction_id == 3


def test_a_batch_is_one_write_and_one_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_directory(tmp_path, {0: 3})
    changes: list[str] = []
    monkeypatch.setattr(
        disk, "observer", lambda change: changes.append(change.kind) if change.path.suffix == ".seg" else None
    )
    append_lines(tmp_path, partition=0, records=[PendingRecord(b"x")] * 6, batch=3)
    while changes[0] == "sync":  # what a process before may have left is made durable at the opening
        changes.pop(0)
    assert changes == ["write", "sync"] * 2


def test_a_refusal_leaves_what_a_crash_left_and_another_cluster_s_storage_as_they_are(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 3})
    with data_path(tmp_path).open("ab") as file:
        file.write(b"half a record")
    before = digest(tmp_path)
    for words, error in (
        ({"options": replace(SMALL, max_data_length=3)}, InvalidRequestError),
        ({"expected_key": uuid.UUID(int=99)}, MismatchError),
    ):
        with pytest.raises(error):
            append_lines(tmp_path, partition=0, records=[PendingRecord(b"long")], **words)  # type: ignore[arg-type]
        after = digest(tmp_path)
        assert {name: after.get(name) for name in before} == before


def test_what_is_refused(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 9}, num_partitions=2, local_low_water_mark=5)
    with pytest.raises(NotAssignedError, match="Partition:1 is not assigned"):
        append_lines(tmp_path, partition=1, records=[])
    with pytest.raises(InvalidRequestError):
        append_lines(tmp_path, partition=0, records=[], batch=0)
    for bad in (PendingRecord(b"", 2**31), PendingRecord(b"", 0, RequestId(2**31, 0, 0, 0))):
        with pytest.raises(InvalidRequestError, match="signed 32-bit"):
            append_lines(tmp_path, partition=0, records=[bad])
    with pytest.raises(InvalidRequestError, match="at most 3"):
        append_lines(tmp_path, partition=0, records=[PendingRecord(b"long")], options=replace(SMALL, max_data_length=3))
    with opened(tmp_path) as storage:
        storage.set_availability(0, writable=False)
    with pytest.raises(NotAvailableError):
        append_lines(tmp_path, partition=0, records=[PendingRecord(b"")])
    with opened(tmp_path) as storage:
        storage.set_availability(0, writable=True)
        storage.partition(0).set_low_water_mark(10, 50)
    with pytest.raises(RefusedError, match="behind its cluster"):
        append_lines(tmp_path, partition=0, records=[PendingRecord(b"")])
    damage(data_path(tmp_path), HEADER_SIZE)
    with pytest.raises(PartitionQuarantinedError):
        append_lines(tmp_path, partition=0, records=[PendingRecord(b"")])


def test_a_batch_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waltzctl.engine.storage.append.BATCH_BYTES", 200)
    sizes = [len(group) for group in grouped((PendingRecord(b"x" * 60) for _ in range(5)), 1000)]
    assert sizes == [2, 2, 1]
