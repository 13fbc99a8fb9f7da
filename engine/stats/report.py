"""The report of stats, and its computation from the aggregate of all records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np

from waltzctl.engine.findings import Code, Finding
from waltzctl.engine.stats.aggregate import Aggregate, shifts_of
from waltzctl.engine.stats.axes import Interval
from waltzctl.engine.stats.sum_tables import Ints, Ranked, Table, grouped

GAPS_LISTED = 10_000
"""Most gaps that are listed one by one; all of them are counted."""


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """A partition of one of the paths.

    ===============  ==============================================================================================
    `place`          identifies the partition in the report
    `partition`      its number, None when unknown
    `bytes`          bytes of the records on disk: 40 + data, each
    `gaps`           number of gaps in the ids
    `missing`        ids in these gaps: between the first and the last record; if the whole partition was requested, also
                     before the first record, and after the last one as far as they are known to have been here
    `repeated`       number of records beyond the first one of each id
    `interval`       time that covers all segments whose times are known
    `seconds`        sum of the durations of these segments
    `timed_records`  number of records in these segments
    `timed_bytes`    bytes of these records
    ===============  ==============================================================================================
    """

    place: int
    path: PurePath
    partition: int | None
    segments: int
    records: int
    bytes: int
    first_transaction_id: int | None
    last_transaction_id: int | None
    gaps: int
    missing: int
    repeated: int
    interval: Interval | None
    seconds: float
    timed_records: int
    timed_bytes: int

    @property
    def records_per_second(self) -> float | None:
        """Mean rate; None where no time is known."""
        return self.timed_records / self.seconds if self.seconds else None

    @property
    def bytes_per_second(self) -> float | None:
        """Mean rate; None where no time is known."""
        return self.timed_bytes / self.seconds if self.seconds else None


@dataclass(frozen=True, slots=True)
class ClientStats:
    """A client, identified by its id.  Generations: those of the partition assignments under which it wrote."""

    client: int
    records: int
    bytes: int
    partitions: int
    lowest_generation: int
    highest_generation: int


@dataclass(frozen=True, slots=True)
class HeaderStats:
    """A value of the 4-byte header that applications give their transactions."""

    header: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SizeClassStats:
    """Records with data of `lowest` to `highest` bytes, both inclusive."""

    number: int
    records: int
    bytes: int

    @property
    def lowest(self) -> int:
        """Smallest data length."""
        return 0 if self.number == 0 else 1 << (self.number - 1)

    @property
    def highest(self) -> int:
        """Largest data length."""
        return (1 << self.number) - 1


@dataclass(frozen=True, slots=True)
class TimeBucket:
    """Records of `which` in the bucket of time that begins at `start` (milliseconds since 1970-01-01 UTC).  An estimate.

    `by` is ``partition``, ``client`` or ``size-class``; `which` the partition's place, the client id, or the class number.
    """

    by: str
    which: int
    start: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class IdBucket:
    """Records of a partition with ids from `first` to `last`, both inclusive.  Exact."""

    place: int
    first: int
    last: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class MissingIds:
    """Ids from `first` to `last` (both inclusive) that no record has; `cause`: code of the finding there, None for none."""

    place: int
    first: int
    last: int
    cause: str | None

    @property
    def transactions(self) -> int:
        """Number of missing ids."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Untimed:
    """A segment whose records are in no bucket of time, and why."""

    place: int
    path: PurePath
    segment: int
    records: int
    bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Ranking:
    """The number of distinct clients or header values that were counted, and the error of their counts.

    `known`: number of distinct ones; when `exact`, all of them.  Otherwise each one, listed or not, may have up to
    `missed_records` records and `missed_bytes` bytes more than were counted for it.
    """

    known: int
    exact: bool
    missed_records: int
    missed_bytes: int


@dataclass(frozen=True, slots=True)
class StatsReport:
    """The whole report.

    `status` and `exit_status_name`: as verify derives them from findings.  `extent`: time from the first to the last known time.
    `width`: width of a bucket of time, in milliseconds.  `client_series`: error of the clients' series over time.  `gaps`: the
    first GAPS_LISTED gaps; the counts in `partitions` include all.  `untimed`: segments whose times are unknown.
    """

    status: str
    exit_status_name: str
    segments: int
    records: int
    bytes: int
    elapsed_seconds: float
    extent: Interval | None
    width: int
    partitions: tuple[PartitionStats, ...]
    clients: tuple[ClientStats, ...]
    client_ranking: Ranking
    client_series: Ranking
    headers: tuple[HeaderStats, ...]
    header_ranking: Ranking
    size_classes: tuple[SizeClassStats, ...]
    time_buckets: tuple[TimeBucket, ...]
    id_buckets: tuple[IdBucket, ...]
    gaps: tuple[MissingIds, ...]
    untimed: tuple[Untimed, ...]
    findings: tuple[Finding, ...]

    @property
    def untimed_records(self) -> int:
        """Number of records that are in no bucket of time."""
        return sum(one.records for one in self.untimed)


def clients_of(total: Aggregate, numbers: Mapping[int, int], top: int) -> tuple[tuple[ClientStats, ...], Ranking]:
    """The clients with the most records.  `numbers`: partition number by place; replicas of a partition count once."""
    table = total.clients.table
    places, clients = table.keys
    sums = grouped(clients[np.newaxis], table.values, total.clients.how)
    partitions = np.array([numbers[place] for place in places.tolist()], np.int64)
    pairs = grouped(np.array([clients, partitions]), np.zeros((0, len(table)), np.int64), ())
    number_of = np.bincount(np.searchsorted(sums.keys[0], pairs.keys[0]), minlength=len(sums))
    best = _best(sums, top)
    rows = zip(sums.keys[0, best], sums.values[:, best].T, number_of[best], strict=True)
    named = tuple(
        ClientStats(int(client), int(records), int(size), int(many), int(low), int(high))
        for client, (records, size, low, high), many in rows
    )
    return named, _ranking(total.clients, len(sums))


def headers_of(total: Aggregate, top: int) -> tuple[tuple[HeaderStats, ...], Ranking]:
    """The header values with the most records."""
    table = total.headers.table
    best = _best(table, top)
    named = tuple(
        HeaderStats(int(header), int(records), int(size))
        for header, (records, size) in zip(table.keys[0, best], table.values[:, best].T, strict=True)
    )
    return named, _ranking(total.headers, len(table))


def _best(table: Table, top: int) -> Ints:
    """Row numbers, ordered by most records, then most bytes, then smallest key."""
    return np.lexsort((table.keys[0], -table.values[1], -table.values[0]))[:top]


def client_series_of(total: Aggregate) -> Ranking:
    """The error of the clients' series over time."""
    return _ranking(total.time_clients, len(np.unique(total.time_clients.table.keys[1])))


def _ranking(ranked: Ranked, known: int) -> Ranking:
    return Ranking(known, ranked.exact, ranked.missed_records, ranked.missed_bytes)


def size_classes_of(total: Aggregate) -> tuple[SizeClassStats, ...]:
    """The size classes that have records, in ascending order."""
    sums = grouped(total.classes.keys[1:], total.classes.values)
    return tuple(SizeClassStats(int(number), int(r), int(b)) for number, (r, b) in _rows(sums.keys[0], sums))


def time_buckets_of(total: Aggregate, clients: Sequence[ClientStats]) -> Iterator[TimeBucket]:
    """The series over time of every partition, of the given clients and of every size class; each in ascending order."""
    named = {one.client: rank for rank, one in enumerate(clients)}
    by_client = total.time_clients.table
    wanted = np.isin(by_client.keys[1], np.array(sorted(named), np.int64))
    by_client = Table(by_client.keys[:, wanted], by_client.values[:, wanted])
    for by, table in (("partition", total.time_places), ("client", by_client), ("size-class", total.time_classes)):
        rows = [
            TimeBucket(by, which, bucket * total.width, records, size)
            for (bucket, which), (records, size) in zip(table.keys.T.tolist(), table.values.T.tolist(), strict=True)
        ]
        rows.sort(key=lambda one: (named[one.which] if one.by == "client" else one.which, one.start))
        yield from rows


def id_buckets_of(total: Aggregate) -> Iterator[IdBucket]:
    """The series over transaction ids of every partition, in ascending order."""
    shifts = shifts_of(total.id_extents)
    for (place, bucket), (records, size) in zip(total.ids.keys.T.tolist(), total.ids.values.T.tolist(), strict=True):
        shift = shifts[place]
        yield IdBucket(place, bucket << shift, ((bucket + 1) << shift) - 1, records, size)


def _rows(keys: Ints, table: Table) -> Iterator[tuple[int, tuple[int, int]]]:
    yield from zip(keys.tolist(), table.values.T.tolist(), strict=True)


def gaps_of(total: Aggregate, place: int, findings: Sequence[Finding], *, whole: bool) -> list[MissingIds]:
    """The gaps in a partition's ids.  `whole`: the whole partition was read, so it should begin with transaction 0."""
    causes: dict[int, str] = {}
    for finding in findings:
        if finding.transaction_id is not None and finding.code is not Code.DATA_CHECKSUM:
            causes.setdefault(finding.transaction_id, finding.code.value)
    gaps: list[MissingIds] = []
    expected: int | None = 0 if whole else None
    for first, last in total.runs.of(place):
        if expected is not None and expected < first:
            cause = Code.SEGMENT_GAP.value if expected == 0 else None
            gaps.append(MissingIds(place, expected, first - 1, causes.get(expected, cause)))
        expected = last + 1
    behind = expected or 0
    for finding in findings:  # ids missing after the last record, as far as they are known
        told = finding.transaction_id
        if told is not None and finding.missing and told >= (expected or 0):
            begin = max(told, behind)  # ids below are counted by an earlier finding
            behind = begin + finding.missing
            gaps.append(MissingIds(place, begin, behind - 1, finding.code.value))
    return gaps


def repeated_in(total: Aggregate, place: int, records: int) -> int:
    """Number of a partition's records beyond the first one of each id."""
    return records - sum(last - first + 1 for first, last in total.runs.of(place))
