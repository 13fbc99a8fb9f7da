"""What a load on a node measured: the object, and its view with the distribution of latencies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from waltzctl.engine.columns.column import Object
from waltzctl.render.objects import named
from waltzctl.values import human_bytes

if TYPE_CHECKING:
    from waltzctl.engine.client.addresses import Address
    from waltzctl.engine.client.load import LoadOptions, LoadResult
    from waltzctl.engine.client.load_frames import Place
    from waltzctl.render.table import TableWriter

BAR = 40
"""Characters of the longest bar."""


def bench_result_object(
    node: Address,
    places: Sequence[Place],
    options: LoadOptions,
    result: LoadResult,
    *,
    tls: bool,
    truncated: bool,
) -> Object:
    """**bench-result**.  `truncated`: what was appended was taken away again."""
    latency = result.latency.summary()
    return named(
        "bench-result",
        {
            "node": str(node),
            "tls": tls,
            "operation": "read" if options.read else "append",
            "batch": options.batch,
            "data_size": None if options.read else options.data_size,
            "in_flight": options.in_flight,
            "connections": options.connections,
            "warm_up_seconds": options.warm_up,
            "elapsed_seconds": round(result.seconds, 6),
            "requests": result.requests,
            "transactions": result.transactions,
            "data_bytes": result.data_bytes,
            "requests_per_second": round(result.requests / result.seconds, 3),
            "transactions_per_second": round(result.transactions / result.seconds, 3),
            "data_bytes_per_second": round(result.data_bytes / result.seconds, 3),
            "latency_seconds": {
                "min": latency.minimum,
                "mean": latency.mean,
                "p50": latency.p50,
                "p90": latency.p90,
                "p99": latency.p99,
                "p999": latency.p999,
                "max": latency.maximum,
            },
            "truncated": truncated,
            "partitions": [
                {
                    "partition": place.partition,
                    "session_id": place.session_id,
                    "last_transaction_id_before": _id_or_none(place.last_transaction_id),
                    "last_transaction_id_after": _id_or_none(last),
                }
                for place, last in zip(places, result.last_transaction_ids, strict=True)
            ],
            "histogram": [{"up_to_seconds": row.up_to, "requests": row.requests} for row in result.latency.rows()],
        },
    )


def _id_or_none(transaction_id: int) -> int | None:
    return None if transaction_id < 0 else transaction_id


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.3f} ms"


def bench_view(writer: TableWriter, shown: Object) -> None:
    """Rates, percentiles, and a bar for each row of the distribution."""
    reading = shown["operation"] == "read"
    records = "records read" if reading else "transactions"
    latency = shown["latency_seconds"]
    writer.pairs(
        ("node", f"{shown['node']}, {'TLS' if shown['tls'] else 'no TLS'}"),
        ("measured", f"{shown['elapsed_seconds']:.1f} s after {shown['warm_up_seconds']:g} s of warm-up"),
        ("requests", f"{shown['requests']:,}, {shown['requests_per_second']:,.0f} a second"),
        (records, f"{shown['transactions']:,}, {shown['transactions_per_second']:,.0f} a second"),
        ("data", f"{human_bytes(shown['data_bytes'])}, {human_bytes(int(shown['data_bytes_per_second']))} a second"),
        (
            "latency",
            (
                f"least {_milliseconds(latency['min'])}, mean {_milliseconds(latency['mean'])},"
                f" most {_milliseconds(latency['max'])}"
            ),
        ),
        ("50 %", _milliseconds(latency["p50"])),
        ("90 %", _milliseconds(latency["p90"])),
        ("99 %", _milliseconds(latency["p99"])),
        ("99.9 %", _milliseconds(latency["p999"])),
    )
    rows = shown["histogram"]
    if not rows:
        return
    writer.line()
    most = max(row["requests"] for row in rows)
    width = len(f"{most:,}")
    for row in rows:
        bar = "#" * max(round(BAR * row["requests"] / most), 1 if row["requests"] else 0)
        writer.line(f"up to {row['up_to_seconds'] * 1000:>10.6g} ms  {row['requests']:>{width},}  {bar}".rstrip())
