"""The objects of a load test on a node."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from waltzctl.engine.columns.column import Column, Columns, Object, ObjectType, listed, or_null, struct
from waltzctl.engine.columns.column_kinds import BOOLEAN, COUNT, COUNT32, INT64, SIZE, TEXT, one_of
from waltzctl.objects.command_kinds import BYTE_RATE, POSITIVE, RATE, SECONDS

if TYPE_CHECKING:
    from waltzctl.engine.client.load import LoadOptions, LoadResult
    from waltzctl.engine.client.load_frames import LoadPartition
    from waltzctl.engine.net.addresses import Address

LATENCY = Columns(
    (
        Column("min", or_null(SECONDS), "the least", read=attrgetter("minimum")),
        Column("mean", or_null(SECONDS), "the mean"),
        Column("p50", or_null(SECONDS), "the median"),
        Column("p90", or_null(SECONDS), "the 90th percentile"),
        Column("p99", or_null(SECONDS), "the 99th percentile"),
        Column("p999", or_null(SECONDS), "the 99.9th percentile"),
        Column("max", or_null(SECONDS), "the most", read=attrgetter("maximum")),
    )
)
_PARTITION = Columns(
    (
        Column("partition", COUNT32, "the partition"),
        Column("session_id", INT64, "the session of the load"),
        Column("last_transaction_id_before", or_null(COUNT), "its last transaction before"),
        Column("last_transaction_id_after", or_null(COUNT), "its last transaction afterwards"),
    )
)


def _up_to(row: Any) -> Any:
    return row.up_to


_ROW = Columns(
    (
        Column("up_to_seconds", SECONDS, "the longest latency of the row", read=_up_to),
        Column("requests", COUNT, "how many"),
    )
)

BENCH_RESULT = ObjectType(
    name="bench-result",
    meaning="What a load on a node measured (bench).",
    columns=(
        Column("node", TEXT, "the node's data port"),
        Column("tls", BOOLEAN, "whether through TLS"),
        Column("operation", one_of("append", "read"), "append or read"),
        Column(
            "batch", POSITIVE.described("Records in a request, or asked for."), "records in a request, or asked for"
        ),
        Column(
            "data_size",
            or_null(SIZE.described("Bytes of a record's data; null when reading.")),
            "bytes of a record's data",
        ),
        Column("in_flight", POSITIVE.described("Requests of each partition."), "requests of each partition at a time"),
        Column("connections", POSITIVE, "connections to the node"),
        Column("warm_up_seconds", SECONDS, "how long before measuring"),
        Column("elapsed_seconds", SECONDS, "how long it was measured"),
        Column("requests", COUNT, "requests that were answered"),
        Column("transactions", COUNT, "transactions in them"),
        Column("data_bytes", SIZE, "their data"),
        Column("requests_per_second", RATE, "requests a second"),
        Column("transactions_per_second", RATE, "transactions a second"),
        Column("data_bytes_per_second", BYTE_RATE, "data a second"),
        Column("latency_seconds", struct(LATENCY), "how long an answer took"),
        Column(
            "truncated",
            BOOLEAN.described("Whether what was appended was removed again."),
            "whether what was appended was removed again",
        ),
        Column("partitions", listed(struct(_PARTITION)), "each partition"),
        Column("histogram", listed(struct(_ROW)), "the distribution of latencies"),
    ),
)


def bench_result_object(
    node: Address,
    places: Sequence[LoadPartition],
    options: LoadOptions,
    result: LoadResult,
    *,
    tls: bool,
    truncated: bool,
) -> Object:
    """**bench-result**.  `truncated`: the appended records were removed again."""
    latency = result.latency.summary()
    said = SimpleNamespace(
        node=str(node),
        tls=tls,
        operation="read" if options.read else "append",
        batch=options.batch,
        data_size=None if options.read else options.data_size,
        in_flight=options.in_flight,
        connections=options.connections,
        warm_up_seconds=options.warm_up,
        elapsed_seconds=round(result.seconds, 6),
        requests=result.requests,
        transactions=result.transactions,
        data_bytes=result.data_bytes,
        requests_per_second=round(result.requests / result.seconds, 3),
        transactions_per_second=round(result.transactions / result.seconds, 3),
        data_bytes_per_second=round(result.data_bytes / result.seconds, 3),
        latency_seconds=latency,
        truncated=truncated,
        partitions=[
            SimpleNamespace(
                partition=place.partition,
                session_id=place.session_id,
                last_transaction_id_before=_id_or_none(place.last_transaction_id),
                last_transaction_id_after=_id_or_none(last),
            )
            for place, last in zip(places, result.last_transaction_ids, strict=True)
        ],
        histogram=result.latency.rows(),
    )
    return BENCH_RESULT.shown(said)


def _id_or_none(transaction_id: int) -> int | None:
    return None if transaction_id < 0 else transaction_id
