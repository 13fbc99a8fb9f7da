"""The objects of ``serve`` and ``log-server``: ready, live view, settings, and lines of the log."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from waltzctl.engine.columns.column import (
    ABSENT,
    Column,
    ColumnKind,
    Columns,
    Object,
    ObjectType,
    listed,
    or_null,
    struct,
)
from waltzctl.engine.columns.column_kinds import BOOLEAN, COUNT, COUNT32, INT64, KEY, PATH, TEXT, TIME, one_of
from waltzctl.objects.command_kinds import MILLISECONDS, PORT, RATE

if TYPE_CHECKING:
    from waltzctl.engine.node.readings import NodePartitionReading, NodeReading

_MILLISECONDS = 1000


def _process(_info: Any) -> int:
    return os.getpid()


def _of_one(path: str) -> Callable[[Any], Any]:
    """Reads a value that only a node has, or only a log server."""

    def read(info: Any) -> Any:
        found = info
        for name in path.split("."):
            found = getattr(found, name, ABSENT)
        return found

    return read


READY = ObjectType(
    name="ready",
    meaning="A node or a log server that answers at all its ports (serve, log-server; also what --ready-file holds).",
    columns=(
        Column("pid", COUNT, "the process", read=_process),
        Column(
            "host",
            TEXT.described("The address that was bound."),
            "the address that was bound",
            read=attrgetter("addresses.host"),
        ),
        Column(
            "port", PORT, "the data port of a node, the client port of a log server", read=attrgetter("addresses.port")
        ),
        Column("admin_port", PORT, "the admin port of a node", read=_of_one("addresses.admin_port"), optional=True),
        Column("http_port", or_null(PORT), "the HTTP port; null when off", read=attrgetter("addresses.http_port")),
        Column("tls", BOOLEAN, "whether the ports, but for HTTP, speak TLS"),
        Column("cluster_key", KEY, "the cluster's key"),
        Column("num_partitions", COUNT32, "how many partitions the cluster has"),
        Column("directory", PATH, "the storage directory of a node", read=_of_one("directory"), optional=True),
        Column("server_id", COUNT, "a log server's id in its cluster", read=_of_one("server_id"), optional=True),
        Column("metadata", TEXT, "where a log server's metadata is", read=_of_one("metadata"), optional=True),
    ),
)

_CONNECTIONS = Columns(
    (
        Column("data", COUNT, "at the data port"),
        Column("admin", COUNT, "at the admin port"),
        Column("http", COUNT, "at the HTTP port, where it is on", optional=True),
    )
)
_LIVE_PARTITION = Columns(
    (
        Column("partition", COUNT32, "the partition"),
        Column("available", BOOLEAN, "whether reads and writes are on"),
        Column("session_id", INT64, "the last session; -1: none"),
        Column("low_water_mark", INT64, "its low-water mark"),
        Column("local_low_water_mark", INT64, "its local low-water mark"),
        Column("last_transaction_id", or_null(COUNT), "its last transaction"),
        Column("appends_per_second", RATE, "appends since the object before"),
        Column("queued", COUNT, "requests that wait"),
        Column("latency_p50_ms", or_null(MILLISECONDS), "median latency of appends in the last minutes"),
        Column("latency_p99_ms", or_null(MILLISECONDS), "99th percentile of it"),
    )
)

LIVE = ObjectType(
    name="live",
    meaning="How a node does (serve --live); rates since the object before, latencies of appends in the last minutes.",
    columns=(
        Column("time", TIME, "now"),
        Column("connections", struct(_CONNECTIONS), "open connections", given=True),
        Column("partitions", listed(struct(_LIVE_PARTITION)), "each partition", given=True),
    ),
)


def live_object(
    reading: NodeReading, connections: Sequence[tuple[str, int]], before: Mapping[int, int], seconds: float
) -> Object:
    """**live**.  `before`: the appends of each partition `seconds` ago."""
    from waltzctl.formats.adapters import format_time

    return LIVE.shown(
        SimpleNamespace(time=format_time(time.time_ns() // 1_000_000)),
        connections=dict(connections),
        partitions=[_live_partition(one, before.get(one.partition), seconds) for one in reading.partitions],
    )


def _live_partition(one: NodePartitionReading, before: int | None, seconds: float) -> Object:
    appended = one.metrics.append.count
    rate = (appended - before) / seconds if before is not None and seconds > 0 else 0.0
    known = one.metrics.append_latency.count > 0
    sample = one.metrics.append_latency.sample() if known else None
    last = one.gauges.max_transaction_id
    return _LIVE_PARTITION.keys(
        one.gauges,
        partition=one.partition,
        last_transaction_id=last if last >= 0 else None,
        appends_per_second=round(max(rate, 0.0), 1),
        queued=one.gauges.process_queue_size,
        latency_p50_ms=None if sample is None else round(sample.quantile(0.5) * _MILLISECONDS, 3),
        latency_p99_ms=None if sample is None else round(sample.quantile(0.99) * _MILLISECONDS, 3),
    )


SETTING = ObjectType(
    name="setting",
    meaning="A setting of a node and the value that holds (serve --show-config); a secret's value is hidden.",
    columns=(
        Column(
            "key",
            TEXT.described("Its key in the configuration file."),
            "its key in the configuration file",
            read=attrgetter("setting.key"),
            title="KEY",
        ),
        Column(
            "value",
            ColumnKind("any of several", {"type": ["string", "number", "boolean", "null"]}, right=False),
            "the value that holds",
            read=attrgetter("shown"),
            title="VALUE",
        ),
        Column(
            "source",
            TEXT.described("Who says so: an option, a variable, FILE:LINE, or default."),
            "who says so",
            title="SOURCE",
        ),
        Column(
            "variable",
            ColumnKind("text", {"type": "string", "pattern": "^WALTZCTL_[A-Z0-9_]+$"}),
            "the environment variable that sets it",
            read=attrgetter("setting.variable"),
        ),
        Column("meaning", TEXT, "what it does", read=attrgetter("setting.meaning")),
    ),
)

LOG = ObjectType(
    name="log",
    meaning="A line of a node's log on stderr (serve --log-format json).",
    columns=(
        Column("time", TIME, "when"),
        Column("level", one_of("debug", "info", "warning", "error", "critical"), "how grave"),
        Column("logger", TEXT, "who says it"),
        Column("message", TEXT, "what happened (not stable)"),
        Column(
            "fields",
            ColumnKind("object", {"type": "object", "description": "What belongs to the message, by name."}),
            "what belongs to the message, by name",
        ),
        Column("trace", or_null(TEXT.described("Where an error came from.")), "where an error came from"),
    ),
)
"""Written by engine/net/logs.py."""
