"""Reading a range of transactions from all replicas side by side, and comparing the records byte for byte.

All replicas are read by the same scanner, so every compared record has a right record checksum.  Batches are compared as a whole;
only batches that differ are compared record by record.  Memory: one batch per replica (half a mebibyte, or the largest record).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from waltzctl.engine.compare.replica_reading import Broken, PartitionReplica, Piece, RangeReading, Records, Torn
from waltzctl.engine.findings import BadData, Finding
from waltzctl.engine.log.assess import Stretch
from waltzctl.engine.quorum.vote import ABSENT, DAMAGED, Run
from waltzctl.engine.scan import kernels
from waltzctl.engine.scan.columns import RecordBatch
from waltzctl.formats.checksums import crc32
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import RECORD_OVERHEAD

MOST_BYTES = 64 << 10
"""Most bytes of record data that are kept, for the first difference of a range only."""
MOST_DIFFERENCES = 100
"""Most differences of a range for which the records' headers are kept."""
MOST_RUNS = 20_000
"""Most runs of a range.  Beyond, neighbouring runs are merged, as if each difference applied to the whole merged run."""


@dataclass(frozen=True, slots=True)
class RangeTask:
    """Transactions `low` to `high` - 1 (None: to the end) of the replicas of one partition."""

    partition: int
    low: int
    high: int | None
    replicas: tuple[PartitionReplica | None, ...]


@dataclass(frozen=True, slots=True)
class Side:
    """One replica's record of a transaction.

    `replica`: the replica's number.  `segment`: first id of the segment.  `offset` and `size`: bytes in the segment's data file.
    Checksums are as stored.  `data`: the first MOST_BYTES bytes, None when not kept.
    """

    replica: int
    transaction_id: int
    segment: int
    offset: int
    size: int
    request_id: RequestId
    header: int
    data_length: int
    data_checksum: int
    record_checksum: int
    data_ok: bool
    data: bytes | None


@dataclass(frozen=True, slots=True)
class Difference:
    """A transaction with different records; one side for each version, that of the lowest replica number."""

    transaction_id: int
    sides: tuple[Side, ...]


@dataclass(frozen=True, slots=True)
class RangeResult:
    """The result of comparing a range.  Replicas are given by number.

    ===========  ====================================================================================================
    `runs`       consecutive ranges of ids under which the versions do not change
    `open_ends`  replicas that may have held more than was found at their end
    `records`    number of intact records read, over all replicas
    `bytes`      their bytes
    `coarse`     runs were merged, as there were more than MOST_RUNS
    `stretches`  (replica, extent of one of its segments)
    `rivals`     (replica, id of which it holds two different records)
    ===========  ====================================================================================================
    """

    partition: int
    runs: tuple[Run, ...]
    differences: tuple[Difference, ...]
    findings: tuple[Finding, ...]
    open_ends: tuple[int, ...]
    records: int
    bytes: int
    coarse: bool
    stretches: tuple[tuple[int, Stretch], ...] = ()
    rivals: tuple[tuple[int, int], ...] = ()


def compare_range(task: RangeTask) -> RangeResult:
    """Read a range of all replicas and compare them.  Damage becomes findings, never an error."""
    kernels.choose(sum(one.size for replica in task.replicas if replica is not None for one in replica.segments))
    return _SideBySide(task).run()


@dataclass(slots=True)
class _ReplicaCursor:
    """The read position in one replica; `piece`: the current piece, None after the last one."""

    number: int
    reading: RangeReading | None
    pieces: Iterator[Piece]
    piece: Piece | None = None

    def reach(self, position: int) -> None:
        """Advance to the piece that holds id `position`, or follows it."""
        while self.piece is not None and self.piece.stop <= position:
            self.piece = next(self.pieces, None)


@dataclass(slots=True)
class _SideBySide:
    task: RangeTask
    runs: list[Run] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    bad_data: list[Finding] = field(default_factory=list)
    records: int = 0
    coarse: bool = False

    def run(self) -> RangeResult:
        """Compare up to the end of the range."""
        task = self.task
        cursors = [self.cursor(number, replica) for number, replica in enumerate(task.replicas)]
        position = task.low
        while True:
            for cursor in cursors:
                cursor.reach(position)
            standing = [cursor.piece for cursor in cursors]
            stops = [one.stop if one.first <= position else one.first for one in standing if one is not None]
            if not stops:
                break
            stop = min(stops)
            self.step(position, stop, standing)
            position = stop
        readings = [cursor.reading for cursor in cursors if cursor.reading is not None]
        return RangeResult(
            task.partition,
            tuple(self.runs),
            tuple(self.differences),
            (*(finding for reading in readings for finding in reading.findings), *self.bad_data),
            tuple(reading.replica.number for reading in readings if reading.open_end),
            self.records,
            sum(reading.bytes for reading in readings),
            self.coarse,
            tuple((reading.replica.number, one) for reading in readings for one in reading.stretches),
            tuple((reading.replica.number, one) for reading in readings for one in sorted(reading.rivals)),
        )

    def cursor(self, number: int, replica: PartitionReplica | None) -> _ReplicaCursor:
        if replica is None:
            return _ReplicaCursor(number, None, iter(()))
        reading = RangeReading(replica, self.task.low, self.task.high)
        pieces = reading.pieces()
        return _ReplicaCursor(number, reading, pieces, next(pieces, None))

    def step(self, first: int, stop: int, standing: Sequence[Piece | None]) -> None:
        """Compare ids `first` to `stop` - 1, within which every replica stays in one piece."""
        here = [one if one is not None and one.first <= first else None for one in standing]
        intact = {number: one for number, one in enumerate(here) if isinstance(one, Records)}
        base = [DAMAGED if isinstance(one, Broken) else ABSENT for one in here]
        for number, torn in enumerate(here):
            if isinstance(torn, Torn) and any(_size(one, first) == torn.length for one in intact.values()):
                base[number] = DAMAGED  # the record has its full length, so it is damaged, not torn
        self.records += len(intact) * (stop - first)
        if not intact:
            self.add(Run(first, stop, tuple(base)))
        elif self.all_equal(first, stop, intact):
            lowest = min(intact)
            self.add(Run(first, stop, tuple(lowest if number in intact else one for number, one in enumerate(base))))
        else:
            for number in range(first, stop):
                self.one_by_one(number, intact, base)

    @staticmethod
    def all_equal(first: int, stop: int, intact: dict[int, Records]) -> bool:
        """Whether all replicas hold the same bytes, including data that does not match its checksum on any of them."""
        reference = None
        for one in intact.values():
            data = _bytes(one, first, stop)
            if reference is None:
                reference = data
            elif not np.array_equal(data, reference):
                return False
        return True

    def one_by_one(self, number: int, intact: dict[int, Records], base: Sequence[int]) -> None:
        """Compare the records of one transaction.

        A record whose data does not match its data checksum is damaged if another replica has one that matches; if none has, the
        client sent it that way.
        """
        versions = list(base)
        some_right = any(one.batch.data_ok[one.row + number - one.first] for one in intact.values())
        found: dict[bytes, int] = {}
        for replica, one in intact.items():
            row = one.row + number - one.first
            if some_right and not one.batch.data_ok[row]:
                versions[replica] = DAMAGED
                self.add_bad_data(replica, one, row)
            else:
                versions[replica] = found.setdefault(bytes(one.batch.record_bytes(row)), replica)
        self.add(Run(number, number + 1, tuple(versions)))
        if len(found) > 1 and len(self.differences) < MOST_DIFFERENCES:
            keep = not self.differences
            sides = tuple(_side(replica, intact[replica], number, keep_data=keep) for replica in found.values())
            self.differences.append(Difference(number, sides))

    def add_bad_data(self, replica: int, one: Records, row: int) -> None:
        """Add a finding for a record whose data does not match its data checksum."""
        known, batch = self.task.replicas[replica], one.batch
        assert known is not None
        (segment,) = (segment for segment in known.segments if segment.first == one.segment)
        checksums = int(batch.data_checksum[row]), crc32(batch.data_bytes(row))
        bad = BadData(
            int(batch.transaction_id[row]),
            int(batch.offset[row]),
            RECORD_OVERHEAD + int(batch.data_length[row]),
            checksums,
        )
        self.bad_data.append(bad.finding(known.job(segment).files))

    def add(self, run: Run) -> None:
        """Add a run; it is joined with the previous run if the versions are equal."""
        if self.runs and self.runs[-1].versions == run.versions:
            self.runs[-1] = Run(self.runs[-1].first, run.stop, run.versions)
        elif len(self.runs) >= MOST_RUNS and _same_absences(self.runs[-1], run):
            self.coarse = True
            self.runs[-1] = Run(self.runs[-1].first, run.stop, _merged_versions(self.runs[-1].versions, run.versions))
        else:
            self.runs.append(run)


def _rows(one: Records, first: int, stop: int) -> slice:
    begin = one.row + first - one.first
    return slice(begin, begin + stop - first)


def _bytes(one: Records, first: int, stop: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    rows = _rows(one, first, stop)
    return one.batch.record_stretch(rows.start, rows.stop)


def _size(one: Records, number: int) -> int:
    return RECORD_OVERHEAD + int(one.batch.data_length[one.row + number - one.first])


def _side(replica: int, one: Records, number: int, *, keep_data: bool) -> Side:
    row, batch = one.row + number - one.first, one.batch
    length = int(batch.data_length[row])
    return Side(
        replica,
        number,
        one.segment,
        int(batch.offset[row]),
        RECORD_OVERHEAD + length,
        RequestId.from_words(int(batch.request_id_high[row]), int(batch.request_id_low[row])),
        int(batch.header[row]),
        length,
        int(batch.data_checksum[row]),
        int(batch.record_checksum[row]),
        bool(batch.data_ok[row]),
        _data(batch, row) if keep_data else None,
    )


def _data(batch: RecordBatch, row: int) -> bytes:
    return bytes(batch.data_bytes(row)[:MOST_BYTES])


def _same_absences(before: Run, behind: Run) -> bool:
    return [one == ABSENT for one in before.versions] == [one == ABSENT for one in behind.versions]


def _merged_versions(before: Sequence[int], behind: Sequence[int]) -> tuple[int, ...]:
    """The versions of two merged runs: two replicas are equal only if they are in both runs; damaged if damaged in either."""
    found: dict[tuple[int, int], int] = {}
    merged: list[int] = []
    for number, pair in enumerate(zip(before, behind, strict=True)):
        if ABSENT in pair:
            merged.append(ABSENT)
        elif DAMAGED in pair:
            merged.append(DAMAGED)
        else:
            merged.append(found.setdefault(pair, number))
    return tuple(merged)
