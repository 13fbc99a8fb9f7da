"""The objects of stats: partitions, clients, size classes, header values, buckets of both axes, gaps, and the summary."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from waltzctl.engine.columns.column import Column, Object, ObjectType, or_null
from waltzctl.engine.columns.column_kinds import (
    BOOLEAN,
    COUNT,
    INT32,
    INT64,
    INTEGER,
    PARTITION,
    PATH,
    SIZE,
    TEXT,
    TIME,
    one_of,
)
from waltzctl.objects.command_kinds import BYTE_RATE, EXIT_STATUS, RATE, SECONDS, STATUS, UNMODIFIED
from waltzctl.objects.verify_objects import elapsed, label, nothing_modified

if TYPE_CHECKING:
    from waltzctl.engine.stats.report import IdBucket, PartitionStats, SizeClassStats, StatsReport, TimeBucket


def stats_objects(report: StatsReport) -> Iterator[Object]:
    """All objects except findings, in the order of their output."""
    places = {one.place: one for one in report.partitions}
    classes = {one.number: one for one in report.size_classes}
    yield from map(STATS_PARTITION.shown, report.partitions)
    yield from map(STATS_SIZE_CLASS.shown, report.size_classes)
    yield from map(STATS_CLIENT.shown, report.clients)
    yield from map(STATS_HEADER.shown, report.headers)
    for bucket in report.time_buckets:
        yield time_bucket_object(bucket, report.width, places, classes)
    for one in report.id_buckets:
        yield id_bucket_object(one, places[one.place])
    for gap in report.gaps:
        place = places[gap.place]
        yield STATS_GAP.shown(gap, **_place(place))
    for untimed in report.untimed:
        yield STATS_UNTIMED.shown(untimed, partition=places[untimed.place].partition)
    yield STATS_SUMMARY.shown(report)


def _rate(amount: float | None) -> float | None:
    return None if amount is None else round(amount, 3)


def _rounded(name: str) -> Callable[[Any], Any]:
    def read(one: Any) -> Any:
        return _rate(getattr(one, name))

    return read


def _time(interval: str, end: str) -> Callable[[Any], Any]:
    def read(one: Any) -> Any:
        from waltzctl.formats.adapters import format_time

        found = getattr(one, interval)
        return None if found is None else format_time(getattr(found, end))

    return read


def _place(partition: PartitionStats) -> Object:
    """The keys of the partition that an object is about."""
    return {name: STATS_PARTITION.keys(partition)[name] for name in ("path", "partition")}


_PATH = Column("path", PATH, "the storage")
_PARTITION = Column("partition", or_null(PARTITION), "the partition, by its directory")

STATS_PARTITION = ObjectType(
    name="stats-partition",
    meaning="A partition's numbers (stats). Rates are means over the segments whose times are known.",
    columns=(
        _PATH,
        _PARTITION,
        Column("segments", COUNT, "how many segments"),
        Column("records", COUNT, "how many records"),
        Column("bytes", SIZE.described("On disk: 40 and the data of each record."), "what they take on disk"),
        Column("first_transaction_id", or_null(INT64), "the first one"),
        Column("last_transaction_id", or_null(INT64), "the last one"),
        Column("gaps", COUNT, "runs of ids that no record has"),
        Column("missing", COUNT.described("Ids that no record has."), "ids that no record has"),
        Column(
            "repeated",
            COUNT.described("Records with an id that another one has as well."),
            "records with an id that another one has as well",
        ),
        Column("from", or_null(TIME), "when the first was written", read=_time("interval", "start")),
        Column("to", or_null(TIME), "when the last was written", read=_time("interval", "end")),
        Column(
            "timed_records",
            COUNT.described("Records of the segments whose times are known."),
            "records of the segments whose times are known",
        ),
        Column("timed_bytes", SIZE, "what these take"),
        Column(
            "timed_seconds",
            SECONDS.described("How long these segments took."),
            "how long these took",
            read=_rounded("seconds"),
        ),
        Column("records_per_second", or_null(RATE), "records a second", read=_rounded("records_per_second")),
        Column("bytes_per_second", or_null(BYTE_RATE), "bytes a second", read=_rounded("bytes_per_second")),
    ),
)
STATS_SIZE_CLASS = ObjectType(
    name="stats-size-class",
    meaning="Records by the length of their data (stats).",
    columns=(
        Column("lowest", SIZE, "the smallest length of the class"),
        Column("highest", SIZE, "the largest one, inclusive"),
        Column("records", COUNT, "how many records"),
        Column("bytes", SIZE, "what they take on disk"),
    ),
)
STATS_CLIENT = ObjectType(
    name="stats-client",
    meaning="A client among those with most records (stats).",
    columns=(
        Column("client", INT32, "the client's id"),
        Column("records", COUNT, "how many records"),
        Column("bytes", SIZE, "what they take on disk"),
        Column("partitions", COUNT, "in how many partitions"),
        Column("lowest_generation", INT32, "the lowest generation of its ids"),
        Column("highest_generation", INT32, "the highest one"),
    ),
)
STATS_HEADER = ObjectType(
    name="stats-header",
    meaning="A header value among those that most records have (stats).",
    columns=(
        Column("header", INT32, "the value"),
        Column("records", COUNT, "how many records"),
        Column("bytes", SIZE, "what they take on disk"),
    ),
)
STATS_BUCKET = ObjectType(
    name="stats-bucket",
    meaning="A piece of a series (stats): over time, which is estimated, or over transaction ids, which is exact.",
    columns=(
        Column("axis", one_of("time", "transaction"), "over what the series is", given=True),
        Column(
            "by",
            one_of("partition", "client", "size-class").described("What the series is about."),
            "what the series is about",
            given=True,
        ),
        Column("path", or_null(PATH), "the storage", given=True),
        Column("partition", or_null(PARTITION), "the partition, by its directory", given=True),
        Column("client", or_null(INT32), "the client's id", given=True),
        Column(
            "lowest",
            or_null(SIZE.described("Smallest data length of the size class.")),
            "the smallest length of the size class",
            given=True,
        ),
        Column("highest", or_null(SIZE), "the largest one, inclusive", given=True),
        Column("from", or_null(TIME), "when the piece begins", given=True),
        Column("to", or_null(TIME.described("Exclusive.")), "when it ends, exclusive", given=True),
        Column("first_transaction_id", or_null(INT64), "the id with which it begins", given=True),
        Column("last_transaction_id", or_null(INT64.described("Inclusive.")), "the last one, inclusive", given=True),
        Column("records", COUNT, "how many records"),
        Column("bytes", SIZE, "what they take on disk"),
        Column("records_per_second", or_null(RATE), "records a second", given=True),
        Column("bytes_per_second", or_null(BYTE_RATE), "bytes a second", given=True),
    ),
)
_NOTHING = {one.name: None for one in STATS_BUCKET.columns if one.given}
"""The null values of a bucket's keys that do not apply to its series."""


def time_bucket_object(
    one: TimeBucket, width: int, places: dict[int, PartitionStats], classes: dict[int, SizeClassStats]
) -> Object:
    """**stats-bucket** of the time axis."""
    from waltzctl.formats.adapters import format_time

    about: Object = {}
    if one.by == "partition":
        about = _place(places[one.which])
    elif one.by == "client":
        about = {"client": one.which}
    elif one.by == "size-class":
        about = {"lowest": classes[one.which].lowest, "highest": classes[one.which].highest}
    rates = {
        "records_per_second": _rate(one.records / width * 1000),
        "bytes_per_second": _rate(one.bytes / width * 1000),
    }
    times = {"from": format_time(one.start), "to": format_time(one.start + width)}
    return STATS_BUCKET.shown(one, **{**_NOTHING, "axis": "time", "by": one.by, **about, **times, **rates})


def id_bucket_object(one: IdBucket, partition: PartitionStats) -> Object:
    """**stats-bucket** of the axis of transaction ids."""
    ids = {"first_transaction_id": one.first, "last_transaction_id": one.last}
    about = {"axis": "transaction", "by": "partition", **_place(partition)}
    return STATS_BUCKET.shown(one, **{**_NOTHING, **about, **ids})


STATS_GAP = ObjectType(
    name="stats-gap",
    meaning="Transaction ids that no record has (stats).",
    columns=(
        Column("path", PATH, "the storage", given=True),
        Column("partition", or_null(PARTITION), "the partition, by its directory", given=True),
        Column("first_transaction_id", INT64, "the first of them", read=attrgetter("first")),
        Column("last_transaction_id", INT64, "the last one, inclusive", read=attrgetter("last")),
        Column("transactions", COUNT, "how many"),
        Column(
            "cause",
            or_null(TEXT.described("Code of the finding at the first of them.")),
            "code of the finding at the first of them",
        ),
    ),
)
STATS_UNTIMED = ObjectType(
    name="stats-untimed",
    meaning="A segment whose records are in no series over time (stats).",
    columns=(
        Column("path", PATH, "the data file"),
        Column("partition", or_null(PARTITION), "the partition, by its directory", given=True),
        Column("segment", INTEGER, "first transaction id in the name of the data file"),
        Column("records", COUNT, "how many records"),
        Column("bytes", SIZE, "what they take on disk"),
        Column("reason", TEXT, "why, in words (not stable)"),
    ),
)


def _how_many(name: str) -> Callable[[Any], int]:
    def read(report: Any) -> int:
        return len(getattr(report, name))

    return read


def _sum(name: str) -> Callable[[Any], int]:
    def read(report: Any) -> int:
        return sum(getattr(one, name) for one in report.partitions)

    return read


def _severe(severity: str) -> Callable[[Any], int]:
    def read(report: Any) -> int:
        return sum(str(finding.severity) == severity for finding in report.findings)

    return read


def _bucket_seconds(report: Any) -> float:
    return float(report.width / 1000)


STATS_SUMMARY = ObjectType(
    name="stats-summary",
    meaning="The last object of stats.",
    columns=(
        Column("status", STATUS, "the verdict"),
        Column("exit_status", EXIT_STATUS, "the exit status", read=label),
        Column("partitions", COUNT, "partitions that were read", read=_how_many("partitions")),
        Column("segments", COUNT, "segments among them"),
        Column("records", COUNT, "how many records"),
        Column("bytes", SIZE, "what they take on disk"),
        Column("from", or_null(TIME), "when the first was written", read=_time("extent", "start")),
        Column("to", or_null(TIME), "when the last was written", read=_time("extent", "end")),
        Column("bucket_seconds", SECONDS, "how long a piece of a series is", read=_bucket_seconds),
        Column("untimed_segments", COUNT, "segments whose times are not known", read=_how_many("untimed")),
        Column("untimed_records", COUNT, "records in these"),
        Column(
            "clients",
            COUNT.described("Told apart; all of them when clients_exact."),
            "clients that were told apart",
            read=attrgetter("client_ranking.known"),
        ),
        Column("clients_exact", BOOLEAN, "whether these are all", read=attrgetter("client_ranking.exact")),
        Column(
            "clients_missed_records",
            COUNT.described("Any one client may have so many more than is said."),
            "any one may have so many more",
            read=attrgetter("client_ranking.missed_records"),
        ),
        Column(
            "clients_missed_bytes",
            SIZE,
            "any one may have so much more",
            read=attrgetter("client_ranking.missed_bytes"),
        ),
        Column(
            "client_series_missed_records",
            COUNT.described("And so many more in its series over time."),
            "and so many more in its series",
            read=attrgetter("client_series.missed_records"),
        ),
        Column("headers", COUNT, "header values that were told apart", read=attrgetter("header_ranking.known")),
        Column("headers_exact", BOOLEAN, "whether these are all", read=attrgetter("header_ranking.exact")),
        Column(
            "headers_missed_records",
            COUNT,
            "any one may have so many more",
            read=attrgetter("header_ranking.missed_records"),
        ),
        Column(
            "headers_missed_bytes",
            SIZE,
            "any one may have so much more",
            read=attrgetter("header_ranking.missed_bytes"),
        ),
        Column("gaps", COUNT, "runs of ids that no record has", read=_sum("gaps")),
        Column("missing", COUNT, "ids that no record has", read=_sum("missing")),
        Column("damage", COUNT, "findings of this severity", read=_severe("damage")),
        Column("repairable", COUNT, "findings of this severity", read=_severe("repairable")),
        Column("notes", COUNT, "findings of this severity", read=_severe("note")),
        Column("elapsed_seconds", SECONDS, "how long it took", read=elapsed),
        Column("modified", UNMODIFIED, "whether anything was changed", read=nothing_modified),
    ),
)
