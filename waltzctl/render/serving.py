"""What ``serve`` shows: that the node is ready, how it does, and what it is configured to do."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waltzctl.engine.columns.column import Object
from waltzctl.render.objects import named, path_text
from waltzctl.values import format_ranges, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from waltzctl.engine.node.configuration import Effective
    from waltzctl.engine.node.node import ReadyInfo
    from waltzctl.engine.node.options import NodeOptions
    from waltzctl.engine.node.readings import NodeReading, PartitionReading

_MILLISECONDS = 1000


def ready_object(info: ReadyInfo) -> Object:
    """**ready**."""
    return named(
        "ready",
        {
            "pid": os.getpid(),
            "host": info.addresses.host,
            "port": info.addresses.port,
            "admin_port": info.addresses.admin_port,
            "http_port": info.addresses.http_port,
            "tls": info.tls,
            "cluster_key": str(info.cluster_key),
            "num_partitions": info.num_partitions,
            "directory": path_text(info.directory),
        },
    )


def live_object(
    reading: NodeReading, connections: Sequence[tuple[str, int]], before: Mapping[int, int], seconds: float
) -> Object:
    """**live**.  `before`: appends of each partition so many `seconds` ago."""
    now = datetime.now(UTC)
    return named(
        "live",
        {
            "time": f"{now:%Y-%m-%dT%H:%M:%S}.{now.microsecond // 1000:03d}Z",
            "connections": dict(connections),
            "partitions": [_live_partition(one, before.get(one.partition), seconds) for one in reading.partitions],
        },
    )


def _live_partition(one: PartitionReading, before: int | None, seconds: float) -> Object:
    appended = one.metrics.append.count
    rate = (appended - before) / seconds if before is not None and seconds > 0 else 0.0
    known = one.metrics.append_latency.count > 0
    sample = one.metrics.append_latency.sample() if known else None
    last = one.gauges.max_transaction_id
    return {
        "partition": one.partition,
        "available": one.gauges.available,
        "session_id": one.gauges.session_id,
        "low_water_mark": one.gauges.low_water_mark,
        "local_low_water_mark": one.gauges.local_low_water_mark,
        "last_transaction_id": last if last >= 0 else None,
        "appends_per_second": round(max(rate, 0.0), 1),
        "queued": one.gauges.process_queue_size,
        "latency_p50_ms": None if sample is None else round(sample.quantile(0.5) * _MILLISECONDS, 3),
        "latency_p99_ms": None if sample is None else round(sample.quantile(0.99) * _MILLISECONDS, 3),
    }


def setting_object(one: Effective) -> Object:
    """**setting**."""
    value = one.shown
    return named(
        "setting",
        {
            "key": one.setting.key,
            "value": path_text(value) if isinstance(value, Path) else value,
            "source": one.source,
            "variable": one.setting.variable,
            "meaning": one.setting.meaning,
        },
    )


def screen(ready: Object, info: ReadyInfo, options: NodeOptions, *, version: str) -> list[str]:
    """What a person reads when the node is ready."""
    host = ready["host"]
    place = f"[{host}]" if ":" in host else host
    http = ready["http_port"]
    assigned = format_ranges(info.assigned) or "none"
    if info.quarantined:
        assigned += f"; closed to writes because of damage: {format_ranges(info.quarantined)}"
    source = "" if options.zookeeper is None else f", as ZooKeeper at {options.zookeeper.connect_string} says"
    lines = [
        f"waltzctl {version} serves {ready['directory']}   (process {ready['pid']})",
        f"  cluster key  {ready['cluster_key']}{source}",
        f"  partitions   {assigned}   (of {ready['num_partitions']}, {info.layout.value} layout)",
        f"  data port    {place}:{ready['port']}   {_protection(options)}",
        f"  admin port   {place}:{ready['admin_port']}",
        "  HTTP port    off" if http is None else f"  HTTP port    http://{place}:{http}/health, /metrics, /ping",
    ]
    if info.findings:
        lines.append(f"  findings     {info.findings}; waltzctl verify {ready['directory']} names them")
    lines.append("Ctrl-C stops, after what was asked for is answered; a second one at once.")
    return [printable(line) for line in lines]


def _protection(options: NodeOptions) -> str:
    if options.plaintext:
        return "plaintext"
    tls = options.tls
    own = tls.certificate or tls.key_store
    shown = f"certificate of {own}" if own is not None else "self-signed certificate"
    return f"TLS, {shown}; " + ("clients need a certificate" if tls.trust_store is not None else "any client")


LIVE_COLUMNS = ("P", "RW", "SESSION", "MARK", "LOCAL", "LAST", "APPENDS/S", "QUEUE", "P50 ms", "P99 ms")


def live_cells(partition: Mapping[str, Any]) -> list[str]:
    """A partition's row."""

    def text(key: str) -> str:
        return "-" if partition[key] is None else str(partition[key])

    rate = f"{partition['appends_per_second']:,.0f}"
    keys = ("session_id", "low_water_mark", "local_low_water_mark", "last_transaction_id")
    latency = (
        "-" if partition[key] is None else f"{partition[key]:.2f}" for key in ("latency_p50_ms", "latency_p99_ms")
    )
    switches = "rw" if partition["available"] else "off"
    return [text("partition"), switches, *map(text, keys), rate, text("queued"), *latency]


def live_table(shown: Object) -> Table:
    """The live view."""
    from rich import box
    from rich.table import Table

    connections = ", ".join(f"{count} {name}" for name, count in shown["connections"].items())
    table = Table(
        caption=f"connections: {connections}   {shown['time'][11:19]} UTC",
        box=box.SIMPLE_HEAD,
        caption_justify="left",
        pad_edge=False,
    )
    for name in LIVE_COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for partition in shown["partitions"]:
        table.add_row(*live_cells(partition))
    return table


class AboveLive:
    """A stream whose lines appear above a live view instead of in the middle of it."""

    def __init__(self, drawn: Console) -> None:
        self._drawn = drawn

    def write(self, text: str, /) -> None:
        """Show whole lines."""
        from rich.text import Text

        self._drawn.print(Text(text.rstrip("\n")), soft_wrap=True)

    def flush(self) -> None:
        """Nothing is held back."""
