"""The results of compare, for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from waltzctl.engine.columns.column import Object
from waltzctl.engine.shell_words import shell_join
from waltzctl.values import counted, human_bytes, human_duration, printable

if TYPE_CHECKING:
    from waltzctl.engine.compare.comparison import CompareSummary
    from waltzctl.objects.compare_objects import PlanFile
    from waltzctl.render.layout import TableLayout

_STATE_STYLE = {
    "equal": "green",
    "behind": "yellow",
    "ahead": "yellow",
    "damaged": "yellow",
    "missing": "red",
    "diverged": "red",
}
_VERDICT_STYLE = {"equal": "green", "recoverable": "yellow", "undecidable": "red", "lost": "red"}
_PREVIEW = 32
"""Bytes of a differing record's data that are shown, at most."""


def comparison_view(writer: TableLayout, shown: Object) -> None:
    """A partition: one line where all replicas agree, otherwise a line for each replica, and the verdict."""
    verdict = shown["verdict"]
    label = writer.paint(_VERDICT_STYLE[verdict], verdict.upper())
    where = writer.paint("bold", f"partition {shown['partition']}")
    last = "no transaction" if shown["clean_to"] is None else f"transactions up to {shown['clean_to']}"
    if verdict == "equal":
        writer.line(f"{where}  {label}  {len(shown['replicas'])} replicas hold {last}")
        return
    writer.line(f"{where}  {label}")
    writer.wrapped(f"kept: {last}. {shown['reason'][:1].upper()}{shown['reason'][1:]}.", "  ")
    width = max(len(printable(one["path"])) for one in shown["replicas"])
    for one in shown["replicas"]:
        state = writer.paint(_STATE_STYLE[one["state"]], one["state"].upper().ljust(8))
        end = "empty" if one["last_transaction_id"] is None else f"to {one['last_transaction_id']}"
        end = "cannot be listed" if one["unread"] else end
        marks = "/".join("?" if one[key] is None else str(one[key]) for key in _MARKS)
        vote = "" if one["votes"] or one["state"] == "missing" else ", no vote"
        writer.line(f"  {state}  {printable(one['path']).ljust(width)}  {end}  (session/marks {marks}{vote})")
        for text in _needs(one):
            writer.wrapped(text, " " * 12)
    for side in shown["divergence"]:
        _show_side(writer, side)


_MARKS = ("session_id", "low_water_mark", "local_low_water_mark")


def _needs(one: Object) -> Iterable[str]:
    if one["cut_after"] is not None:
        yield f"cut after {one['cut_after']}" if one["cut_after"] >= 0 else "cut everything"
    if one["outvoted"]:
        yield f"other records than those kept: {_words(one['outvoted'])}"
    if one["damaged_records"]:
        spans = _words(source for source in one["restore"] if not _within(source, one["outvoted"]))
        yield f"{counted(one['damaged_records'], 'record')} damaged or missing: {spans}"
    froms = dict.fromkeys(printable(source["from"]) for source in one["restore"] if source["from"] is not None)
    if froms:
        yield f"restore from {', '.join(froms)}"
    lost = [source for source in one["restore"] if source["from"] is None]
    if lost:
        yield f"no replica holds {_words(lost)}"


def _within(source: Object, ranges: Iterable[Object]) -> bool:
    first = source["first_transaction_id"]
    return any(one["first_transaction_id"] <= first <= one["last_transaction_id"] for one in ranges)


def _words(ranges: Iterable[Object], most: int = 5) -> str:
    joined: list[list[int]] = []
    for one in ranges:
        first, last = one["first_transaction_id"], one["last_transaction_id"]
        if joined and joined[-1][1] + 1 == first:
            joined[-1][1] = last
        else:
            joined.append([first, last])
    parts = [str(first) if first == last else f"{first}..{last}" for first, last in joined[:most]]
    return ", ".join(parts) + (f" and {len(joined) - most} more places" if len(joined) > most else "")


def _show_side(writer: TableLayout, side: Object) -> None:
    import base64

    request = ".".join(str(part) for part in side["request_id"].values())
    paths = ", ".join(printable(path) for path in side["paths"])
    writer.wrapped(
        f"transaction {side['transaction_id']} in {paths}: request {request}, header {side['header']},"
        f" {side['data_length']} bytes, sums {side['data_checksum']} {side['record_checksum']},"
        f" offset {side['offset']} of segment {side['segment']}", "  ",
    )  # fmt: skip
    data = base64.b64decode(side["data_b64"] or "")[:_PREVIEW]
    if data:
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in data)
        writer.line(f"    {data.hex()}  {text}")


def conclusion(summary: CompareSummary, plans: Sequence[PlanFile], *, assumed: bool, plans_wanted: bool) -> str:
    """The conclusion.  `assumed`: the number of replicas was not given."""
    lines: list[str] = []
    if any(one.plan.steps for one in plans):
        lines.append("What brings each replica there (add --dry-run to see it first):")
    for one in plans:
        left = counted(len(one.plan.undecided), "finding")
        if one.plan.steps:
            again = ("--allow-data-loss",) if one.plan.arguments.allow_data_loss and one.plan.loses_data else ()
            lines.append("  " + shell_join(("waltzctl", "recover", str(one.replica), "--plan", str(one.file), *again)))
            if one.plan.undecided:
                lines.append(f"    leaves {left} for a person to decide")
        else:
            lines.append(f"  {one.replica}: nothing can be done without a person; {left} in {one.file}")
    if plans_wanted and not plans:
        lines.append("No replica needs a plan, or nothing could be decided.")
    lines += [f"{path} is in use: its end may have moved while it was read." for path in summary.held]
    if assumed and summary.status != "equal":
        lines.append(
            "Assumed: the directories given are all replicas of their partitions. If there are more, say so: --replicas N."
        )
    counts = [f"{count} {verdict.value}" for verdict, count in summary.partitions.items() if count]
    if summary.unassigned:
        counts.append(f"{len(summary.unassigned)} not held by any of them")
    word = {"equal": "EQUAL", "recoverable": "RECOVERABLE"}.get(summary.status, "FAILED")
    seen = counted(summary.findings, "finding")
    read = (
        f"{counted(summary.records, 'record')}, {human_bytes(summary.bytes)}, {human_duration(summary.elapsed_seconds)}"
    )
    partly = "" if summary.complete else " There are more differences than were told apart."
    partly += " Not everything could be read." if summary.exit_status_name == "io-error" else ""
    lines.append(
        f"{word}  {counted(len(summary.replicas), 'directory', 'directories')}; partitions: {', '.join(counts) or 'none'};"
        f" {seen} ({read}).{partly} Nothing was modified."
    )
    return "\n".join(lines)
