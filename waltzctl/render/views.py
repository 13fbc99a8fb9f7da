"""The views of objects that are not rows of a table, each a page of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from waltzctl.engine.columns.column import Object
from waltzctl.engine.columns.segment_columns import ids
from waltzctl.values import format_ranges, human_bytes, printable

if TYPE_CHECKING:
    from waltzctl.render.layout import TableLayout


def _status(writer: TableLayout, shown: Object) -> None:
    holder = shown["locked_by"]
    lock = "not locked" if holder is None else "locked" if holder == 0 else f"locked by process {holder}"
    if shown["num_partitions"] is None and shown["layout"] is None:  # a node does not report these
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


def _control(writer: TableLayout, shown: Object) -> None:
    writer.pairs(
        ("control file", shown["path"]),
        ("cluster key", shown["cluster_key"]),
        ("layout", f"{shown['layout']}, {shown['size']} bytes"),
        ("version", shown["version"]),
        ("created", shown["created"]),
        ("partitions", shown["num_partitions"]),
    )
    writer.line()


def _plan(writer: TableLayout, shown: Object) -> None:
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


def _result(writer: TableLayout, shown: Object) -> None:
    for finding in shown["findings"]:
        writer.finding(finding)
    if shown["undo_id"] is not None:
        writer.pairs(("undo id", shown["undo_id"]), ("quarantine", shown["quarantine"]))


def _cluster(writer: TableLayout, shown: Object) -> None:
    writer.pairs(
        ("cluster key", shown["cluster_key"]),
        ("layout", f"{shown['layout']}, {shown['num_partitions']} partitions"),
        ("opened by", ", ".join(shown["opened_by"])),
    )
    for directory in shown["directories"]:
        assigned = format_ranges(directory["assigned"]) or "none"
        writer.line(f"  {printable(directory['path'])}  partitions assigned: {assigned}")


def _append_result(writer: TableLayout, shown: Object) -> None:
    writer.pairs(
        ("partition", shown["partition"]),
        ("transactions", ids(shown)),
        ("records", shown["records"]),
        ("bytes", shown["bytes"]),
    )


def _salvage_report(writer: TableLayout, shown: Object) -> None:
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
    for place in shown["unread"]:
        writer.wrapped(f"not read: {place['message']}", "  ")
    for finding in shown["findings"]:
        writer.finding(finding)


def _control_files(writer: TableLayout, shown: Object) -> None:
    """The control files that salvage found, and what remains unknown."""
    for one in shown["controls"]:
        writer.wrapped(
            f"control file {'used' if one['used'] else 'not used'}: offset {one['offset']} of {one['path']}, {one['layout']},"
            f" {one['num_partitions']} partitions, created {one['created'] or 'unknown'}: {one['reason']}", "  "
        )  # fmt: skip
    if shown["marks_unknown"]:
        writer.wrapped(f"session and marks lost: partitions {format_ranges(shown['marks_unknown'])}", "  ")


def _salvaged_control(writer: TableLayout, shown: Object) -> None:
    writer.pairs(
        ("written to", shown["path"]),
        ("cluster key", shown["cluster_key"]),
        ("layout", f"{shown['layout']}, {shown['num_partitions']} partitions"),
        ("read", f"{shown['sources']} files, {human_bytes(shown['bytes'])}"),
    )
    _control_files(writer, shown)
    for finding in shown["findings"]:
        writer.finding(finding)


def _bench_result(writer: TableLayout, shown: Object) -> None:
    from waltzctl.render.load_view import bench_view

    bench_view(writer, shown)


def _partition_comparison(writer: TableLayout, shown: Object) -> None:
    from waltzctl.render.compared import comparison_view

    comparison_view(writer, shown)


def _page_store_status(writer: TableLayout, shown: Object) -> None:
    from waltzctl.render.paged import store_view

    store_view(writer, shown)


def _page_gc_result(writer: TableLayout, shown: Object) -> None:
    from waltzctl.render.paged import gc_view

    gc_view(writer, shown)


def _page_salvage_report(writer: TableLayout, shown: Object) -> None:
    from waltzctl.render.paged import salvage_view

    salvage_view(writer, shown)


VIEWS: dict[str, Callable[[TableLayout, Object], None]] = {
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
    "page-store-status": _page_store_status,
    "page-gc-result": _page_gc_result,
    "page-salvage-report": _page_salvage_report,
}
"""By kind of object; verify-summary and compare-summary have none, since the sentence after them has their contents."""
