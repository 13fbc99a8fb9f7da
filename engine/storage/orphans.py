"""An index without its data file: whether the records that it lists are those that stand in other segments.

A segment that ends where the next one began does not hold that one's records.  One that goes on has either kept a second copy of
them, or other records: what a truncation should have taken away before the next segment was begun.  The entries of the index say
where each record began, and so how long it was, but for the last one.  Where all lengths agree, the records are taken for the
same, and nothing is lost with the data file.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack

import numpy as np

from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.log.evidence import written_entries
from waltzctl.engine.log.places import open_source
from waltzctl.engine.log.view import SegmentView
from waltzctl.engine.scan.byte_source import ByteSource, read_bytes
from waltzctl.engine.scan.columns import Damage
from waltzctl.engine.scan.scanner import summarise_records
from waltzctl.formats.segment import ENTRY_SIZE, HEADER_SIZE, decode_entries, entry_position


def stand_elsewhere(orphan: SegmentView, holders: Iterable[SegmentView]) -> bool:
    """Whether the records that an index lists stand in the data files of `holders`, which have all of their ids.

    False also for a single entry, which tells no length, and where something cannot be read.
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


def listed_in(orphan: SegmentView, holders: Iterable[tuple[int, ByteSource]]) -> bool:
    """The same for bytes of data files, each with the id of its first record, that need not be on the disk yet.

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
    """How many records from `first` to `stop` - 1 a data file has in the lengths that the index tells; None where one differs.

    `begins`: the id of its first record.  Raises DiskReadError.
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
