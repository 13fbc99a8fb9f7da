"""The objects of stats: partitions, clients, size classes, header values, buckets of both axes, gaps, and the summary."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from waltzctl.engine.columns.column import Object
from waltzctl.exit_status import ExitStatus
from waltzctl.formats.adapters import format_time
from waltzctl.render.objects import named, path_text

if TYPE_CHECKING:
    from waltzctl.engine.stats.axes import Interval
    from waltzctl.engine.stats.report import (
        ClientStats,
        Gap,
        HeaderStats,
        IdBucket,
        PartitionStats,
        SizeClassStats,
        StatsReport,
        TimeBucket,
        Untimed,
    )


def stats_objects(report: StatsReport) -> Iterator[Object]:
    """Everything but the findings, in the order in which it is printed."""
    places = {one.place: one for one in report.partitions}
    classes = {one.number: one for one in report.size_classes}
    yield from map(partition_object, report.partitions)
    yield from map(size_class_object, report.size_classes)
    yield from map(client_object, report.clients)
    yield from map(header_object, report.headers)
    for bucket in report.time_buckets:
        yield time_bucket_object(bucket, report.width, places, classes)
    for one in report.id_buckets:
        yield id_bucket_object(one, places[one.place])
    for gap in report.gaps:
        yield gap_object(gap, places[gap.place])
    for untimed in report.untimed:
        yield untimed_object(untimed, places[untimed.place])
    yield summary_object(report)


def _rate(amount: float | None) -> float | None:
    return None if amount is None else round(amount, 3)


def _times(interval: Interval | None) -> Object:
    if interval is None:
        return {"from": None, "to": None}
    return {"from": format_time(interval.start), "to": format_time(interval.end)}


def partition_object(one: PartitionStats) -> Object:
    """**stats-partition**."""
    return named(
        "stats-partition",
        {
            "path": path_text(one.path),
            "partition": one.partition,
            "segments": one.segments,
            "records": one.records,
            "bytes": one.bytes,
            "first_transaction_id": one.first_transaction_id,
            "last_transaction_id": one.last_transaction_id,
            "gaps": one.gaps,
            "missing": one.missing,
            "repeated": one.repeated,
            **_times(one.interval),
            "timed_records": one.timed_records,
            "timed_bytes": one.timed_bytes,
            "timed_seconds": round(one.seconds, 3),
            "records_per_second": _rate(one.records_per_second),
            "bytes_per_second": _rate(one.bytes_per_second),
        },
    )


def client_object(one: ClientStats) -> Object:
    """**stats-client**."""
    return named(
        "stats-client",
        {
            "client": one.client,
            "records": one.records,
            "bytes": one.bytes,
            "partitions": one.partitions,
            "lowest_generation": one.lowest_generation,
            "highest_generation": one.highest_generation,
        },
    )


def size_class_object(one: SizeClassStats) -> Object:
    """**stats-size-class**."""
    return named(
        "stats-size-class",
        {"lowest": one.lowest, "highest": one.highest, "records": one.records, "bytes": one.bytes},
    )


def header_object(one: HeaderStats) -> Object:
    """**stats-header**."""
    return named("stats-header", {"header": one.header, "records": one.records, "bytes": one.bytes})


def time_bucket_object(
    one: TimeBucket, width: int, places: dict[int, PartitionStats], classes: dict[int, SizeClassStats]
) -> Object:
    """**stats-bucket** of the time axis."""
    partition = places[one.which] if one.by == "partition" else None
    return named(
        "stats-bucket",
        {
            "axis": "time",
            "by": one.by,
            "path": None if partition is None else path_text(partition.path),
            "partition": None if partition is None else partition.partition,
            "client": one.which if one.by == "client" else None,
            "lowest": classes[one.which].lowest if one.by == "size-class" else None,
            "highest": classes[one.which].highest if one.by == "size-class" else None,
            "from": format_time(one.start),
            "to": format_time(one.start + width),
            "first_transaction_id": None,
            "last_transaction_id": None,
            "records": one.records,
            "bytes": one.bytes,
            "records_per_second": _rate(one.records / width * 1000),
            "bytes_per_second": _rate(one.bytes / width * 1000),
        },
    )


def id_bucket_object(one: IdBucket, partition: PartitionStats) -> Object:
    """**stats-bucket** of the axis of transaction ids."""
    return named(
        "stats-bucket",
        {
            "axis": "transaction",
            "by": "partition",
            "path": path_text(partition.path),
            "partition": partition.partition,
            "client": None,
            "lowest": None,
            "highest": None,
            "from": None,
            "to": None,
            "first_transaction_id": one.first,
            "last_transaction_id": one.last,
            "records": one.records,
            "bytes": one.bytes,
            "records_per_second": None,
            "bytes_per_second": None,
        },
    )


def gap_object(one: Gap, partition: PartitionStats) -> Object:
    """**stats-gap**."""
    return named(
        "stats-gap",
        {
            "path": path_text(partition.path),
            "partition": partition.partition,
            "first_transaction_id": one.first,
            "last_transaction_id": one.last,
            "transactions": one.transactions,
            "cause": one.cause,
        },
    )


def untimed_object(one: Untimed, partition: PartitionStats) -> Object:
    """**stats-untimed**."""
    return named(
        "stats-untimed",
        {
            "path": path_text(one.path),
            "partition": partition.partition,
            "segment": one.segment,
            "records": one.records,
            "bytes": one.bytes,
            "reason": one.reason,
        },
    )


def summary_object(report: StatsReport) -> Object:
    """**stats-summary**."""
    severities = [str(finding.severity) for finding in report.findings]
    clients, headers = report.client_ranking, report.header_ranking
    return named(
        "stats-summary",
        {
            "status": report.status,
            "exit_status": int(ExitStatus.from_label(report.exit_status_name)),
            "partitions": len(report.partitions),
            "segments": report.segments,
            "records": report.records,
            "bytes": report.bytes,
            **_times(report.extent),
            "bucket_seconds": report.width / 1000,
            "untimed_segments": len(report.untimed),
            "untimed_records": report.untimed_records,
            "clients": clients.known,
            "clients_exact": clients.exact,
            "clients_missed_records": clients.missed_records,
            "clients_missed_bytes": clients.missed_bytes,
            "client_series_missed_records": report.client_series.missed_records,
            "headers": headers.known,
            "headers_exact": headers.exact,
            "headers_missed_records": headers.missed_records,
            "headers_missed_bytes": headers.missed_bytes,
            "gaps": sum(one.gaps for one in report.partitions),
            "missing": sum(one.missing for one in report.partitions),
            "damage": severities.count("damage"),
            "repairable": severities.count("repairable"),
            "notes": severities.count("note"),
            "elapsed_seconds": round(report.elapsed_seconds, 6),
            "modified": False,
        },
    )
