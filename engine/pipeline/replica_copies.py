"""The copies that one replica holds of a chunk of ids, to be compared with another replica's.

Where two replicas have the same ids, records from files are compared as their bytes on disk.  Rows are made only of copies that
differ, and of those that are returned: with three equal replicas, of one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waltzctl.engine.pipeline.agreement import common_ids
from waltzctl.engine.pipeline.schemas import COPY
from waltzctl.engine.scan.known_records import KnownRecords
from waltzctl.engine.spark.stream_rows import ScannedRows

_COMPARED = ("request_id", "header", "data_length", "data_checksum", "data")
"""Columns in which two intact copies of an id are equal if and only if their bytes are."""
_Ids = npt.NDArray[np.int64]


class ReplicaCopies:
    """The copies.  `ids`: those of the intact records, rising; `damaged`: half-open ranges of ids whose records are damaged."""

    def __init__(self, pieces: Sequence[pa.RecordBatch | ScannedRows]) -> None:
        """`pieces`: what the replica holds of the chunk, in order; rows have the columns of `COPY`."""
        self._pieces = pieces
        self._scanned = [one for one in pieces if isinstance(one, ScannedRows) and one.records.data_ok.all()]
        self.damaged: list[tuple[int, int]] = []
        self.ids: _Ids = np.concatenate([np.empty(0, np.int64), *(one.records.transaction_id for one in self._scanned)])
        if len(self._scanned) < len(pieces) or not _rises(self.ids):
            self._scanned = []
            self.table, self.damaged = _intact(pieces)
            self.ids = self.table["transaction_id"].to_numpy()

    @cached_property
    def table(self) -> pa.Table:
        """The intact records as rows."""
        return _intact(self._pieces)[0]

    def same_as(self, other: ReplicaCopies) -> npt.NDArray[np.bool_]:
        """Whether both hold the same bytes, for each id that both have, in order."""
        common = common_ids(self.ids, other.ids)
        equal = np.ones(len(common), dtype=bool)
        if same_bytes(self._stretches, other._stretches):  # the bytes include the ids; the usual case
            return equal
        left, right = self.table.select(_COMPARED), other.table.select(_COMPARED)
        if len(common) != len(self.ids):
            left = left.take(self.ids.searchsorted(common))
        if len(common) != len(other.ids):
            right = right.take(other.ids.searchsorted(common))
        if left.equals(right):
            return equal
        import pyarrow.compute as pc

        for name in _COMPARED:  # compare id by id
            one, two = left[name].combine_chunks(), right[name].combine_chunks()
            pairs = zip(one.flatten(), two.flatten(), strict=True) if name == "request_id" else ((one, two),)
            for a, b in pairs:
                equal &= pc.equal(a, b).to_numpy(zero_copy_only=False).astype(bool)
        return equal

    def known(self) -> KnownRecords | None:
        """The records, for the scan of another replica: it need not check them again where it reads the same bytes."""
        return KnownRecords([one.records for one in self._scanned]) if self._scanned else None

    @property
    def _stretches(self) -> list[npt.NDArray[np.uint8]]:
        """The bytes of all records as on disk, in order; empty where they are not known."""
        return [one.records.record_stretch(0, len(one.records)) for one in self._scanned]


def _intact(pieces: Sequence[pa.RecordBatch | ScannedRows]) -> tuple[pa.Table, list[tuple[int, int]]]:
    """Rows of the intact records, and the damaged ranges of ids."""
    import pyarrow.compute as pc

    made = [one.made() if isinstance(one, ScannedRows) else one for one in pieces]
    rows = pa.Table.from_batches(made, schema=COPY)
    damaged: list[tuple[int, int]] = []
    intact = pc.and_(pc.is_null(rows["finding"]), pc.is_valid(rows["data_length"]))
    if rows.num_rows and not pc.all(intact).as_py():
        bad = rows.filter(pc.invert(intact)).select(["transaction_id", "missing"]).to_pylist()
        damaged = [
            (one["transaction_id"], one["transaction_id"] + max(1, one["missing"] or 1))
            for one in bad
            if one["transaction_id"] is not None
        ]
        rows = rows.filter(intact)
    ids = rows["transaction_id"].to_numpy()
    if not _rises(ids):  # overlapping segments have some ids twice: the first record counts
        rows = rows.take(np.unique(ids, return_index=True)[1])
    return rows, damaged


def _rises(ids: _Ids) -> bool:
    return not (ids[1:] <= ids[:-1]).any()


def same_bytes(left: Sequence[npt.NDArray[np.uint8]], right: Sequence[npt.NDArray[np.uint8]]) -> bool:
    """Whether both sequences have the same bytes when joined, wherever they are divided; False where one is empty."""
    ends = [np.cumsum([len(one) for one in side], dtype=np.int64) for side in (left, right)]
    if not left or not right or ends[0][-1] != ends[1][-1]:
        return False
    begin = 0
    for end in np.unique(np.concatenate(ends)).tolist():
        pieces: list[pa.Buffer] = []
        for side, side_ends in zip((left, right), ends, strict=True):
            place = int(side_ends.searchsorted(end))
            before = int(side_ends[place]) - len(side[place])
            pieces.append(pa.py_buffer(side[place][begin - before : end - before]))
        if not pieces[0].equals(pieces[1]):
            return False
        begin = end
    return True
