"""A cluster's metadata and state, for people."""

from __future__ import annotations

from collections.abc import Iterator

from waltzctl.engine.columns.column import Object
from waltzctl.values import counted, format_ranges, printable


def cluster_lines(shown: Object, where: str) -> Iterator[str]:
    """A page."""
    yield printable(f"{shown['name']}   {where}")
    yield f"  cluster key  {shown['cluster_key']}"
    yield f"  partitions   {shown['num_partitions']}"
    yield ""
    yield "Storage nodes" if shown["nodes"] else "Storage nodes: none; waltzctl cluster add-node names one"
    yield from _table(
        ("NODE", "ADMIN", "GROUP", "PARTITIONS"),
        [
            (one["node"], _or_dash(one["admin_port"]), _or_dash(one["group"]), _ranges(one["partitions"]))
            for one in shown["nodes"]
        ],
    )
    yield ""
    yield "Log servers" if shown["servers"] else "Log servers: none is at work"
    yield from _table(
        ("ID", "ENDPOINT", "PREFERS", "PARTITIONS"),
        [
            (
                str(one["server_id"]),
                one["endpoint"],
                _ranges(one["preferred"]),
                _ranges([held["partition"] for held in one["partitions"]]),
            )
            for one in shown["servers"]
        ],
    )
    served = [one for one in shown["partitions"] if one["session_id"] >= 0]
    yield ""
    fresh = len(shown["partitions"]) - len(served)
    yield "Partitions" + (f"   ({counted(fresh, 'partition')} never had a session)" if fresh else "")
    yield from _table(
        ("P", "GENERATION", "SESSION", "REPLICAS"),
        [(str(one["partition"]), str(one["generation"]), str(one["session_id"]), _replicas(one)) for one in served],
    )


def _replicas(partition: Object) -> str:
    def said(replica: Object) -> str:
        mark = replica["closing_high_water_mark"]
        if mark is None and replica["session_id"] == partition["session_id"]:
            return str(replica["node"])
        return (
            f"{replica['node']} (session {replica['session_id']}" + ("" if mark is None else f", right to {mark}") + ")"
        )

    return ", ".join(map(said, partition["replicas"])) or "none yet"


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)


def _ranges(numbers: list[int]) -> str:
    return format_ranges(numbers) or "-"


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    if not rows:
        return
    widths = [max(len(row[place]) for row in (heads, *rows)) for place in range(len(heads))]
    for row in (heads, *rows):
        yield printable("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def top_lines(shown: Object) -> Iterator[str]:
    """The state of a cluster at one time, for ``cluster top``."""
    answering = f"{shown['nodes_answering']} of {shown['nodes']} storage nodes, {shown['servers_answering']} of"
    rates = [one["transactions_per_second"] for one in shown["partitions"]]
    known = [one for one in rates if one is not None]
    rate = f"   {sum(known):,.0f} transactions a second" if known else ""  # unknown at the first time
    yield f"{shown['time'][11:19]} UTC   {answering} {shown['servers']} log servers answer{rate}"
    for one in shown["unheard"]:
        yield printable(f"{one['address']} does not answer: {one['why']}")
    yield ""
    yield from _table(
        ("P", "SERVER", "GENERATION", "SESSION", "MARK", "TX/S", "BEHIND", "WAITS FOR"),
        [
            (
                str(one["partition"]),
                _or_dash(one["server_id"]),
                str(one["generation"]),
                str(one["session_id"]),
                _or_dash(one["high_water_mark"]),
                "-" if one["transactions_per_second"] is None else f"{one['transactions_per_second']:,.0f}",
                _behind(one),
                ", ".join(one["waits_for"]) or ("" if one["healthy"] else "its server"),
            )
            for one in shown["partitions"]
        ],
    )


def _behind(partition: Object) -> str:
    """The replicas that lack transactions, are not in the session, or do not answer."""
    said = [
        f"{one['node']} {one['why_absent'] or 'does not answer' if one['last_transaction_id'] is None else one['behind']}"
        for one in partition["replicas"]
        if one["behind"] or one["last_transaction_id"] is None
    ]
    return ", ".join(said) or "-"
