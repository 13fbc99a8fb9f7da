"""Orphaned indexes: whether the records that an index without a data file lists are in other segments.

A segment in front of the orphaned index may reach beyond the index's first id.  Its records with these ids are either copies of
those that the index lists, or other records, which a truncation should have removed before the next segment was begun.  The index
entries give the byte offset of each record, and so the length of each but the last.  Where all lengths are the same, the records
are taken for copies, and nothing was lost with the data file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack

import numpy as np

from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.findings import Code, Finding, without_held
from waltzctl.engine.log.evidence import written_entries
from waltzctl.engine.log.places import open_source
from waltzctl.engine.log.view import SegmentView
from waltzctl.engine.scan.byte_source import ByteSource, read_bytes
from waltzctl.engine.scan.columns import Damage
from waltzctl.engine.scan.scanner import summarise_records
from waltzctl.formats.segment import ENTRY_SIZE, HEADER_SIZE, decode_entries, entry_position


def stand_elsewhere(orphan: SegmentView, holders: Iterable[SegmentView]) -> bool:
    """Whether the records that an index lists are in the data files of `holders`, which have all of their ids.

    False also for an index with a single entry, which gives no length, and when a file cannot be read.
    """
    stop = orphan.first_transaction_id + written_entries(orphan) - 1
    chosen = [
        one
        for one in holders
        if one.data is not None and one.data.size > HEADER_SIZE and one.first_transaction_id < stop
    ]
    try:
        with ExitStack() as opened:
            return listed_in(
                orphan, [(one.first_transaction_id, opened.enter_context(open_source(one.data_path))) for one in chosen]
            )
    except (DiskReadError, FileNotFoundError):
        return False


def without_held_records(finding: Finding, reached: int, segments: Sequence[SegmentView]) -> Finding:
    """A finding about the end of a segment without the ids below `reached`, which segments in front of it hold (`without_held`).

    Of a file without a header all are counted whose index lists records that are in no data file of `segments`, the partition's.
    """
    counted = without_held(finding, reached)
    if counted is not finding and finding.code is Code.SEGMENT_HEADER_SHORT:
        own = (one for one in segments if one.first_transaction_id == finding.segment)
        if any(one.entries > 0 and not stand_elsewhere(one, segments) for one in own):
            return finding
    return counted


def listed_in(orphan: SegmentView, holders: Iterable[tuple[int, ByteSource]]) -> bool:
    """`stand_elsewhere` for the bytes of data files, each with its first id, that need not be on the disk yet.

    Raises DiskReadError, FileNotFoundError.
    """
    first = orphan.first_transaction_id
    stop, compared = first + written_entries(orphan) - 1, 0
    with open_source(orphan.index_path) as index:
        for begins, data in holders:
            if begins >= stop:
                continue
            alike = _alike(index, first, stop, begins, data)
            if alike is None:
                return False
            compared += alike
    return compared > 0


def _alike(index: ByteSource, first: int, stop: int, begins: int, data: ByteSource) -> int | None:
    """How many records from `first` to `stop` - 1 a data file has with the lengths of the index; None where a length differs.

    `begins`: the id of the data file's first record.  Raises DiskReadError.
    """
    compared = 0
    for run in summarise_records(data, first_transaction_id=begins):
        if isinstance(run, Damage):
            continue
        low = max(run.first_transaction_id, first)
        high = min(run.first_transaction_id + len(run), stop)
        if low >= high:
            continue
        sizes = np.diff(run.offset, append=run.end)
        raw = read_bytes(index, entry_position(low, first), (high - low + 1) * ENTRY_SIZE)
        listed = np.diff(decode_entries(raw))
        if not np.array_equal(listed, sizes[low - run.first_transaction_id : high - run.first_transaction_id]):
            return None
        compared += high - low
    return compared
