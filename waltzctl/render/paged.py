"""The state of page stores, and the results of changes to them, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waltzctl.engine.columns.column import Object
from waltzctl.values import human_bytes, printable

if TYPE_CHECKING:
    from waltzctl.render.layout import TableLayout


def store_view(writer: TableLayout, shown: Object) -> None:
    """The contents, then the blob files with a bar each, then the findings of the log."""
    holder = shown["locked_by"]
    lock = "not open" if holder is None else "open" if holder == 0 else f"open in process {holder}"
    space, write = shown["space_amplification"], shown["write_amplification"]
    times = "" if space is None else f", {space:.2f} times what is in use"
    held = "snapshots as its process knows" if shown["snapshots"] is None else f"{shown['snapshots']} snapshots"
    writer.pairs(
        ("page store", f"{printable(shown['path'])}, {lock}"),
        ("pages", (f"{shown['pages']} in {shown['namespaces']} namespaces: {shown['references']} references,"
                  f" {shown['external_pages']} external")),
        ("versions", f"{shown['versions']}, {held}"),
        ("log", f"{shown['log_files']} files, {human_bytes(shown['log_bytes'])}, sequence {shown['sequence']}"),
        ("data", f"{human_bytes(shown['valid_bytes'])} in use of {human_bytes(shown['blob_bytes'])}{times}"),
        ("written", "no page since the last checkpoint" if write is None
         else f"{write:.2f} bytes for each byte of a page since the last checkpoint"),
    )  # fmt: skip
    writer.line()
    for blob in shown["blob_files"]:
        writer.row("blob-file", blob)
    writer.close()
    for finding in shown["findings"]:
        writer.finding(finding)


def gc_view(writer: TableLayout, shown: Object) -> None:
    """The result of a garbage collection."""
    writer.pairs(
        ("page store", shown["path"]),
        ("rounds", shown["rounds"]),
        ("let go", f"{shown['versions']} versions, {human_bytes(shown['freed_bytes'])}"),
        ("moved", f"{shown['pages_moved']} pages, {human_bytes(shown['moved_bytes'])}"),
        ("given back", f"{human_bytes(shown['cut_bytes'])} cut off, {shown['files_removed']} files removed"),
    )
    for finding in shown["findings"]:
        writer.finding(finding)


def salvage_view(writer: TableLayout, shown: Object) -> None:
    """What was written, and what is lost."""
    writer.pairs(
        ("written to", shown["path"]),
        ("pages", f"{shown['pages']}, {human_bytes(shown['bytes'])}"),
        ("references", shown["references"]),
        ("external pages", shown["external_pages"]),
    )
    if shown["lost"]:
        writer.wrapped(f"lost: {', '.join(shown['lost'])}", "  ")
    for finding in shown["findings"]:
        writer.finding(finding)
