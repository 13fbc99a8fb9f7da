"""table: what a person reads on a terminal.

Rows of one kind are held back in blocks, so that columns line up while a million records still stream.  Other objects are
shown by a view of their own.  Nothing but a record's data is shortened, and that only on a terminal, whose width is known.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from waltzctl.engine.columns.column import Form, Object, ObjectType
from waltzctl.engine.columns.control import PARTITION_INFO
from waltzctl.engine.columns.record import RECORD
from waltzctl.engine.columns.segment import INDEX_ENTRY, SEGMENT, ids
from waltzctl.render.cells import cell_of
from waltzctl.values import format_ranges, human_bytes, printable

BLOCK = 500
"""Rows that are laid out together."""

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
SEVERITY_STYLE = {"damage": "red", "repairable": "yellow", "note": "cyan"}
HEALTH_STYLE = {"ok": "green", "repairable": "yellow", "damaged": "red", "unassigned": "dim"}


@dataclass(frozen=True, slots=True)
class Column:
    """A heading, how the cell is made from the object, the side it leans to, and whether the terminal's edge cuts it."""

    title: str
    cell: Callable[[Object], str]
    right: bool = True
    cut: bool = False


def _described(shown: ObjectType) -> tuple[Column, ...]:
    """The columns that an object's own table names."""
    return tuple(
        Column(
            one.title,
            cell_of(one),
            one.kind.right if one.right is None else one.right,
            cut=one.cell is Form.PAYLOAD,
        )
        for one in shown.headed
    )


def _plain(key: str) -> Callable[[Object], str]:
    def cell(shown: Object) -> str:
        value = shown[key]
        return "-" if value is None else printable(str(value))

    return cell


def _time(shown: Object, key: str) -> str:
    value = shown[key]
    return "-" if value is None else value[:19].replace("T", " ")


def _switches(shown: Object) -> str:
    letters = ((shown["readable"], "r"), (shown["writable"], "w"))
    return "".join("?" if on is None else letter if on else "-" for on, letter in letters)


def _online(shown: Object) -> str:
    if not shown["assigned"]:
        return "not assigned"
    return {None: "?", True: "yes", False: "no"}[shown["available"]]


def _amount(shown: Object) -> str:
    value = shown["count"] if shown["value"] is None else shown["value"]
    if isinstance(value, list):
        return printable(",".join(map(str, value)))
    return "-" if value is None else printable(str(value))


def _figure(key: str) -> Callable[[Object], str]:
    def cell(shown: Object) -> str:
        value = shown[key]
        return "-" if value is None else f"{value:.4g}"

    return cell


def _size(shown: Object) -> str:
    return "-" if shown["bytes"] is None else human_bytes(shown["bytes"])


COLUMNS: dict[str, tuple[Column, ...]] = {
    **{one.name: _described(one) for one in (RECORD, INDEX_ENTRY, SEGMENT, PARTITION_INFO)},
    "partition-status": (
        Column("P", _plain("partition")),
        Column("HEALTH", _plain("health"), right=False),
        Column("RW", _switches, right=False),
        Column("SESSION", _plain("session_id")),
        Column("MARK", _plain("low_water_mark")),
        Column("LOCAL", _plain("local_low_water_mark")),
        Column("SEGS", _plain("segments")),
        Column("BYTES", _size),
        Column("TXNS", ids),
        Column("LAST WRITTEN", lambda shown: _time(shown, "last_written")[:16], right=False),
    ),
    "setting": (
        Column("KEY", _plain("key"), right=False),
        Column("VALUE", _plain("value"), right=False),
        Column("SOURCE", _plain("source"), right=False),
    ),
    "node-partition": (
        Column("P", _plain("partition")),
        Column("ONLINE", _online, right=False),
        Column("SESSION", _plain("session_id")),
        Column("MARK", _plain("low_water_mark")),
        Column("LOCAL", _plain("local_low_water_mark")),
        Column("LAST", _plain("last_transaction_id")),
        Column("QUEUED", _plain("queued_requests")),
        Column("OUT", _plain("out_of_service"), right=False),
    ),
    "node-session": (
        Column("P", _plain("partition")),
        Column("SESSION", _plain("session_id")),
        Column("MARK", _plain("low_water_mark")),
        Column("LOCAL", _plain("local_low_water_mark")),
    ),
    "max-transaction-id": (
        Column("P", _plain("partition")),
        Column("SESSION", _plain("session_id")),
        Column("LAST", _plain("max_transaction_id")),
    ),
    "node-metric": (
        Column("P", _plain("partition")),
        Column("NAME", _plain("name"), right=False),
        Column("KIND", _plain("kind"), right=False),
        Column("VALUE", _amount),
        Column("1/S", _figure("m1_rate")),
        Column("P50", _figure("p50")),
        Column("P99", _figure("p99")),
        Column("MAX", _figure("max")),
    ),
    "node-port": (
        Column("PORT", _plain("port"), right=False),
        Column("ADDRESS", _plain("node"), right=False),
        Column("OK", lambda shown: "yes" if shown["ok"] else "NO", right=False),
        Column("WHY NOT", _plain("message"), right=False),
    ),
    "undo-entry": (
        Column("ID", _plain("id"), right=False),
        Column("STATE", _plain("state"), right=False),
        Column("COMMAND", lambda s: printable(" ".join(s["arguments"]) or s["command"]), right=False),
        Column("FILES", lambda s: str(len(s["files"]))),
    ),
}


class TableWriter:
    """Tables and views.  `width`: columns of the terminal, None where there is none."""

    def __init__(self, stream: TextIO, *, width: int | None = None, colour: bool = False) -> None:
        self._stream = stream
        self._width = width
        self._colour = colour
        self._kind = ""
        self._held: list[Sequence[str]] = []
        self._widths: list[int] = []
        self._group: tuple[Any, Any] | None = None

    def write(self, shown: Object) -> None:
        """Show one object."""
        kind = shown["type"]
        if kind in COLUMNS:
            self.row(kind, shown)
            return
        self.close()
        if kind != "finding":
            self._group = None
        view = _VIEWS.get(kind)
        if view is not None:
            view(self, shown)

    def row(self, kind: str, shown: Object) -> None:
        """A row of the table of its kind."""
        if kind != self._kind:
            self.close()
            self._kind, self._group = kind, None
        self._held.append([column.cell(shown) for column in COLUMNS[kind]])
        if len(self._held) >= BLOCK:
            self._show_rows()

    def close(self) -> None:
        """Show what is held back; the next row gets a heading again."""
        self._show_rows()
        self._kind, self._widths = "", []

    def _show_rows(self) -> None:
        if not self._held:
            return
        columns = COLUMNS[self._kind]
        titled = not self._widths
        widths = self._widths or [len(column.title) for column in columns]
        self._widths = [max(width, *(len(row[n]) for row in self._held)) for n, width in enumerate(widths)]
        if titled:
            self.line(self.paint("bold", self._laid_out([column.title for column in columns], columns)))
        for row in self._held:
            self.line(self._painted(self._laid_out(row, columns), row))
        self._held = []

    def _laid_out(self, cells: Sequence[str], columns: Sequence[Column]) -> str:
        last = len(cells) - 1
        parts: list[str] = []
        for n, (text, column) in enumerate(zip(cells, columns, strict=True)):
            if n == last and not column.right:
                room = None if self._width is None or not column.cut else self._width - len("  ".join(parts)) - 2
                parts.append(text if room is None or len(text) <= max(room, 8) else text[: max(room, 8) - 1] + "…")
            else:
                parts.append(text.rjust(self._widths[n]) if column.right else text.ljust(self._widths[n]))
        return "  ".join(parts).rstrip()

    def _painted(self, text: str, row: Sequence[str]) -> str:
        style = HEALTH_STYLE.get(row[1]) if self._kind == "partition-status" else None
        return self.paint(style, text) if style in ("red", "yellow", "dim") else text

    def paint(self, style: str | None, text: str) -> str:
        """The text in a style, where colours may be used."""
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self._colour and style else text

    def line(self, text: str = "") -> None:
        """One line."""
        self._stream.write(text + "\n")

    def wrapped(self, text: str, indent: str) -> None:
        """A sentence, broken at the terminal's edge only."""
        text = printable(text)
        if self._width is None:
            self.line(indent + text)
            return
        width = max(self._width, len(indent) + 20)
        for line in textwrap.wrap(
            text, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        ):
            self.line(line)

    def pairs(self, *pairs: tuple[str, Any]) -> None:
        """Names and values below each other."""
        width = max(len(name) for name, _ in pairs)
        for name, value in pairs:
            self.line(f"{name.ljust(width)}  {'-' if value is None else printable(str(value))}")

    def finding(self, shown: Object, indent: str = "") -> None:
        """A finding under a heading that names its place; neighbours share the heading."""
        group = (shown["partition"], shown["path"])
        if group != self._group:
            self._group = group
            where = "" if shown["partition"] is None else f"partition {shown['partition']}  "
            self.line(indent + self.paint("bold", f"{where}{printable(shown['path'])}"))
        place = []
        if shown["transaction_id"] is not None:
            place.append(f"transaction {shown['transaction_id']}")
        if shown["offset"] is not None:
            place.append(f"at offset {shown['offset']}")
        if shown["length"] is not None:
            place.append(f"{shown['length']} bytes")
        label = self.paint(SEVERITY_STYLE.get(shown["severity"]), shown["severity"].upper().ljust(10))
        self.line(f"{indent}  {label}  {shown['code']}  {' '.join(place[:2])}{', ' if len(place) > 2 else ''}"
                  f"{' '.join(place[2:])}".rstrip())  # fmt: skip
        self.wrapped(shown["message"], indent + " " * 14)


def _status(writer: TableWriter, shown: Object) -> None:
    holder = shown["locked_by"]
    lock = "not locked" if holder is None else "locked" if holder == 0 else f"locked by process {holder}"
    if shown["num_partitions"] is None and shown["layout"] is None:  # a node, which tells none of it
        writer.pairs(("storage", shown["path"]))
    else:
        writer.pairs(
            ("storage", shown["path"]),
            ("cluster key", shown["cluster_key"]),
            ("layout", f"{shown['layout'] or 'unknown'}, {shown['num_partitions']} partitions, {lock}"),
        )
    writer.line()
    unassigned = [p["partition"] for p in shown["partitions"] if p["health"] == "unassigned" and not p["segments"]]
    for partition in shown["partitions"]:
        if partition["partition"] not in unassigned:
            writer.row("partition-status", partition)
    writer.close()
    if unassigned:
        writer.line(writer.paint("dim", f"not assigned here: {format_ranges(unassigned)}"))
    for finding in shown["findings"]:
        writer.finding(finding)


def _control(writer: TableWriter, shown: Object) -> None:
    writer.pairs(
        ("control file", shown["path"]),
        ("cluster key", shown["cluster_key"]),
        ("layout", f"{shown['layout']}, {shown['size']} bytes"),
        ("version", shown["version"]),
        ("created", shown["created"]),
        ("partitions", shown["num_partitions"]),
    )
    writer.line()


def _plan(writer: TableWriter, shown: Object) -> None:
    writer.line(writer.paint("bold", f"Plan of {shown['command']} for {printable(shown['path'])}"))
    if not shown["steps"]:
        writer.line("  nothing to change")
    for number, step in enumerate(shown["steps"], 1):
        place = "" if step["partition"] is None else f"partition {step['partition']}  "
        writer.line(f"  {number}. {place}{step['action']} {printable(step['path'])}{_extent(step)}")
        if step["loses_data"]:
            writer.line("     " + writer.paint("red", "LOSES DATA"))
        writer.wrapped(step["reason"], "     ")
    if shown["undecided"]:
        writer.line(writer.paint("bold", "For a person to decide:"))
        for finding in shown["undecided"]:
            writer.finding(finding, "  ")
    writer.line(f"plan hash {shown['hash']}")


def _extent(step: Object) -> str:
    parts = []
    if step["from_transaction_id"] is not None:
        last = step["to_transaction_id"]
        same = last is None or last == step["from_transaction_id"]
        parts.append(f"transaction {step['from_transaction_id']}" + ("" if same else f" to {last}"))
    if step["offset"] is not None:
        parts.append(f"offset {step['offset']}" + ("" if step["length"] is None else f", {step['length']} bytes"))
    return f" ({'; '.join(parts)})" if parts else ""


def _result(writer: TableWriter, shown: Object) -> None:
    for finding in shown["findings"]:
        writer.finding(finding)
    if shown["undo_id"] is not None:
        writer.pairs(("undo id", shown["undo_id"]), ("quarantine", shown["quarantine"]))


def _cluster(writer: TableWriter, shown: Object) -> None:
    writer.pairs(
        ("cluster key", shown["cluster_key"]),
        ("layout", f"{shown['layout']}, {shown['num_partitions']} partitions"),
        ("opened by", ", ".join(shown["opened_by"])),
    )
    for directory in shown["directories"]:
        assigned = format_ranges(directory["assigned"]) or "none"
        writer.line(f"  {printable(directory['path'])}  partitions assigned: {assigned}")


def _append_result(writer: TableWriter, shown: Object) -> None:
    writer.pairs(
        ("partition", shown["partition"]),
        ("transactions", ids(shown)),
        ("records", shown["records"]),
        ("bytes", shown["bytes"]),
    )


def _salvage_report(writer: TableWriter, shown: Object) -> None:
    writer.pairs(
        ("written to", shown["path"]),
        ("cluster key", shown["cluster_key"]),
        ("layout", f"{shown['layout']}, {shown['num_partitions']} partitions"),
        ("read", f"{shown['sources']} files, {human_bytes(shown['bytes'])}, {shown['headers']} headers"),
        ("found", (f"{shown['found']} records: {shown['written']} written, {shown['duplicates']} duplicates,"
                  f" {shown['superseded']} superseded, {shown['doubtful_records']} doubtful, {shown['elsewhere']} elsewhere")),
    )  # fmt: skip
    _control_files(writer, shown)
    for partition in shown["partitions"]:
        missing = ", ".join(str(gap["first"]) if gap["first"] == gap["last"] else f"{gap['first']}..{gap['last']}"
                            for gap in partition["missing"])  # fmt: skip
        writer.line(
            f"  partition {partition['partition']}: transactions {ids(partition)}, {partition['records']} records"
        )
        if missing:
            writer.wrapped(f"missing: {missing}", "    ")
        for gap in partition["acknowledged_missing"]:
            writer.wrapped(
                f"missing, though acknowledged: {gap['first']}..{gap['last']} (local low-water mark"
                f" {partition['local_low_water_mark']})", "    "
            )  # fmt: skip
    for conflict in shown["conflicts"]:
        writer.wrapped(
            f"partition {conflict['partition']}, transaction {conflict['transaction_id']}: differing copies; written is that"
            f" of {conflict['kept']['path']} at offset {conflict['kept']['offset']}, because {conflict['reason']}", "  "
        )  # fmt: skip
    for run in shown["doubtful"]:
        writer.wrapped(
            f"doubtful: {run['records']} records at offset {run['offset']} of {run['path']}: {run['reason']}", "  "
        )
    for place in shown["unreadable"]:
        writer.wrapped(f"unreadable: {place['length']} bytes at offset {place['offset']} of {place['path']}", "  ")
    for finding in shown["findings"]:
        writer.finding(finding)


def _control_files(writer: TableWriter, shown: Object) -> None:
    """The control files that salvage found, and what is not known."""
    for one in shown["controls"]:
        writer.wrapped(
            f"control file {'used' if one['used'] else 'not used'}: offset {one['offset']} of {one['path']}, {one['layout']},"
            f" {one['num_partitions']} partitions, created {one['created'] or 'unknown'}: {one['reason']}", "  "
        )  # fmt: skip
    if shown["marks_unknown"]:
        writer.wrapped(f"session and marks lost: partitions {format_ranges(shown['marks_unknown'])}", "  ")


def _salvaged_control(writer: TableWriter, shown: Object) -> None:
    writer.pairs(
        ("written to", shown["path"]),
        ("cluster key", shown["cluster_key"]),
        ("layout", f"{shown['layout']}, {shown['num_partitions']} partitions"),
        ("read", f"{shown['sources']} files, {human_bytes(shown['bytes'])}"),
    )
    _control_files(writer, shown)
    for finding in shown["findings"]:
        writer.finding(finding)


def _bench_result(writer: TableWriter, shown: Object) -> None:
    from waltzctl.render.bench import bench_view

    bench_view(writer, shown)


def _partition_comparison(writer: TableWriter, shown: Object) -> None:
    from waltzctl.render.compared import comparison_view

    comparison_view(writer, shown)


_VIEWS: dict[str, Callable[[TableWriter, Object], None]] = {
    "finding": TableWriter.finding,
    "status": _status,
    "control": _control,
    "plan": _plan,
    "result": _result,
    "cluster": _cluster,
    "append-result": _append_result,
    "salvage-report": _salvage_report,
    "salvaged-control": _salvaged_control,
    "bench-result": _bench_result,
    "partition-comparison": _partition_comparison,
}
"""Everything that is no row; a verify-summary or compare-summary is told by the sentence that follows it."""
