"""The state of a node or a log server for people: that it is ready, and the live view."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from waltzctl.engine.columns.column import Object
from waltzctl.engine.shell_words import shell_quote
from waltzctl.values import format_ranges, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from waltzctl.engine.node.node import NodeReadyInfo
    from waltzctl.engine.node.node_settings import NodeOptions
    from waltzctl.engine.server.server_settings import ServerOptions


def screen(ready: Object, info: NodeReadyInfo, options: NodeOptions, *, version: str) -> list[str]:
    """The lines that announce a ready node."""
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
        lines.append(f"  findings     {info.findings}; waltzctl verify {shell_quote(ready['directory'])} names them")
    lines.append("Ctrl-C stops, after what was asked for is answered; a second one at once.")
    return [printable(line) for line in lines]


def server_screen(ready: Object, options: ServerOptions, *, version: str) -> list[str]:
    """The lines that announce a ready log server."""
    host = ready["host"]
    place = f"[{host}]" if ":" in host else host
    http = ready["http_port"]
    lines = [
        f"waltzctl {version} serves as log server {ready['server_id']}   (process {ready['pid']})",
        f"  metadata     {ready['metadata']}",
        f"  cluster key  {ready['cluster_key']}   ({ready['num_partitions']} partitions)",
        f"  client port  {place}:{ready['port']}   {_protection(options)}",
        "  HTTP port    off" if http is None else f"  HTTP port    http://{place}:{http}/health, /metrics, /ping",
        "Ctrl-C stops; its partitions go to the other servers at once. A second one ends the process.",
    ]
    return [printable(line) for line in lines]


def _protection(options: NodeOptions | ServerOptions) -> str:
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
    """A stream whose lines are written above a live view, not into it."""

    def __init__(self, drawn: Console) -> None:
        self._drawn = drawn

    def write(self, text: str, /) -> None:
        """Show whole lines."""
        from rich.text import Text

        self._drawn.print(Text(text.rstrip("\n")), soft_wrap=True)

    def flush(self) -> None:
        """Nothing to do: nothing is buffered."""
