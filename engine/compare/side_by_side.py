"""All replicas of a range of transactions, read side by side and compared byte for byte.

Each replica is scanned by the one scanner, so that every record that is compared has a right checksum.  Where all say the same
the bytes of whole batches are compared at once; only where they do not is it done record by record.  The memory is one batch
for each replica (half a mebibyte, or the largest record).
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
"""Bytes of a record's data that are kept of the first difference of a range."""
MOST_DIFFERENCES = 100
"""Differences of a range of which the records' headers are kept."""
MOST_RUNS = 20_000
"""Places of a range that are told apart; beyond, neighbours are taken together as if all of their differences were everywhere."""


@dataclass(frozen=True, slots=True)
class RangeTask:
    """Transactions `low` to `high` - 1 (None: to the end) of the replicas of one partition."""

    partition: int
    low: int
    high: int | None
    replicas: tuple[PartitionReplica | None, ...]


@dataclass(frozen=True, slots=True)
class Side:
    """One replica's record under an id: where it stands and what tells it apart.  `data` is None where it was not kept.

    `offset` and `size` in bytes of the segment's data file; checksums as stored.
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
    """A transaction of which replicas hold different records; one side for each version, the lowest replica's."""

    transaction_id: int
    sides: tuple[Side, ...]


@dataclass(frozen=True, slots=True)
class RangeResult:
    """What came out of a range.  `open_ends`: replicas that may have held more than what was found at their end.

    `stretches`: replicas, and how far the records of one of their segments go.  `rivals`: a replica, and an id
    that two different records of it bear.
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
    """Read and compare.  What is damaged becomes findings, never an error."""
    kernels.choose(sum(one.size for replica in task.replicas if replica is not None for one in replica.segments))
    return _SideBySide(task).run()


@dataclass(slots=True)
class _Lane:
    """One replica on its way; `piece` is where it stands, None behind its end."""

    number: int
    reading: RangeReading | None
    pieces: Iterator[Piece]
    piece: Piece | None = None

    def reach(self, position: int) -> None:
        """Go on to the piece that holds an id."""
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
        """To the end of the range."""
        task = self.task
        lanes = [self.lane(number, replica) for number, replica in enumerate(task.replicas)]
        position = task.low
        while True:
            for lane in lanes:
                lane.reach(position)
            standing = [lane.piece for lane in lanes]
            stops = [one.stop if one.first <= position else one.first for one in standing if one is not None]
            if not stops:
                break
            stop = min(stops)
            self.step(position, stop, standing)
            position = stop
        readings = [lane.reading for lane in lanes if lane.reading is not None]
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

    def lane(self, number: int, replica: PartitionReplica | None) -> _Lane:
        if replica is None:
            return _Lane(number, None, iter(()))
        reading = RangeReading(replica, self.task.low, self.task.high)
        pieces = reading.pieces()
        return _Lane(number, reading, pieces, next(pieces, None))

    def step(self, first: int, stop: int, standing: Sequence[Piece | None]) -> None:
        """Ids `first` to `stop` - 1, in which no replica goes from one piece to another."""
        here = [one if one is not None and one.first <= first else None for one in standing]
        intact = {number: one for number, one in enumerate(here) if isinstance(one, Records)}
        base = [DAMAGED if isinstance(one, Broken) else ABSENT for one in here]
        for number, torn in enumerate(here):
            if isinstance(torn, Torn) and any(_size(one, first) == torn.length for one in intact.values()):
                base[number] = DAMAGED  # it was written in full, and its bits have changed
        self.records += len(intact) * (stop - first)
        if not intact:
            self.add(Run(first, stop, tuple(base)))
        elif self.alike(first, stop, intact):
            lowest = min(intact)
            self.add(Run(first, stop, tuple(lowest if number in intact else one for number, one in enumerate(base))))
        else:
            for number in range(first, stop):
                self.one_by_one(number, intact, base)

    @staticmethod
    def alike(first: int, stop: int, intact: dict[int, Records]) -> bool:
        """Whether all hold the same bytes; data that differs from its own checksum then does so everywhere."""
        reference = None
        for one in intact.values():
            data = _bytes(one, first, stop)
            if reference is None:
                reference = data
            elif not np.array_equal(data, reference):
                return False
        return True

    def one_by_one(self, number: int, intact: dict[int, Records], base: Sequence[int]) -> None:
        """One transaction whose versions are told apart.

        A record whose data does not agree with the data's own checksum is damaged where another replica has one that does;
        where none has, it is what the client sent.
        """
        versions = list(base)
        some_right = any(one.batch.data_ok[one.row + number - one.first] for one in intact.values())
        found: dict[bytes, int] = {}
        for replica, one in intact.items():
            row = one.row + number - one.first
            if some_right and not one.batch.data_ok[row]:
                versions[replica] = DAMAGED
                self.name(replica, one, row)
            else:
                versions[replica] = found.setdefault(bytes(one.batch.record_bytes(row)), replica)
        self.add(Run(number, number + 1, tuple(versions)))
        if len(found) > 1 and len(self.differences) < MOST_DIFFERENCES:
            keep = not self.differences
            sides = tuple(_side(replica, intact[replica], number, keep_data=keep) for replica in found.values())
            self.differences.append(Difference(number, sides))

    def name(self, replica: int, one: Records, row: int) -> None:
        """Name a record whose data is not what came with it."""
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
        """Another run, joined with the one in front of it where both are alike."""
        if self.runs and self.runs[-1].versions == run.versions:
            self.runs[-1] = Run(self.runs[-1].first, run.stop, run.versions)
        elif len(self.runs) >= MOST_RUNS and _same_ends(self.runs[-1], run):
            self.coarse = True
            self.runs[-1] = Run(self.runs[-1].first, run.stop, _both(self.runs[-1].versions, run.versions))
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


def _same_ends(before: Run, behind: Run) -> bool:
    return [one == ABSENT for one in before.versions] == [one == ABSENT for one in behind.versions]


def _both(before: Sequence[int], behind: Sequence[int]) -> tuple[int, ...]:
    """Versions that differ wherever either differs, damaged where either is."""
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
