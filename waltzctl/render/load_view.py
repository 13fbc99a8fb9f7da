"""The results of a load test on a node, with the distribution of latencies, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waltzctl.engine.columns.column import Object
from waltzctl.values import human_bytes

if TYPE_CHECKING:
    from waltzctl.render.layout import TableLayout

BAR = 40
"""Characters of the longest bar."""


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.3f} ms"


def bench_view(writer: TableLayout, shown: Object) -> None:
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
