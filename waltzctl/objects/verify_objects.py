"""The summary object of verify."""

from __future__ import annotations

from typing import Any

from waltzctl.engine.columns.column import Column, ObjectType, or_null
from waltzctl.engine.columns.column_kinds import BOOLEAN, COUNT, SIZE, one_of
from waltzctl.objects.command_kinds import EXIT_STATUS, SECONDS, STATUS, UNMODIFIED


def elapsed(one: Any) -> float:
    """The elapsed time, in microseconds resolution."""
    return float(round(one.elapsed_seconds, 6))


def label(one: Any) -> str:
    """The exit status, by its name."""
    return str(one.exit_status_name)


def nothing_modified(_one: Any) -> bool:
    """What only reads says so."""
    return False


VERIFY_SUMMARY = ObjectType(
    name="verify-summary",
    meaning="The last object of verify.",
    columns=(
        Column("status", STATUS, "the verdict"),
        Column("exit_status", EXIT_STATUS, "the exit status", read=label),
        Column("partitions", COUNT, "partitions that were looked at"),
        Column("segments", COUNT, "segments among them"),
        Column("records", COUNT, "records that were checked"),
        Column("bytes", SIZE, "what was read of them"),
        Column("damage", COUNT, "findings of this severity"),
        Column("repairable", COUNT, "findings of this severity"),
        Column("notes", COUNT, "findings of this severity"),
        Column("elapsed_seconds", SECONDS, "how long it took", read=elapsed),
        Column("modified", UNMODIFIED, "whether anything was changed", read=nothing_modified),
        Column("complete", BOOLEAN, "false when it was cut short"),
        Column(
            "manifest",
            one_of("written", "not-written", "matches", "differs", "not-compared", "not-believed", None).described(
                "What became of the manifest; null where none was asked for."
            ),
            "what became of the manifest",
        ),
        Column(
            "released_starts",
            or_null(BOOLEAN).described(
                "Whether release 0.13.2 would start on every directory; null where --for released was not asked."
            ),
            "whether release 0.13.2 would start on every directory",
        ),
    ),
)
