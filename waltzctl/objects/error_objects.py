"""The object of an error that ended a command."""

from __future__ import annotations

from typing import Any

from waltzctl.engine.columns.column import Column, ObjectType, listed, or_null, struct
from waltzctl.engine.columns.column_kinds import TEXT, one_of
from waltzctl.engine.columns.finding_columns import FINDING
from waltzctl.exit_status import ExitStatus
from waltzctl.objects.command_kinds import EXIT_STATUS


def _status(error: Any) -> str:
    return ExitStatus.from_label(error.status).label


def _findings(error: Any) -> Any:
    return getattr(error, "findings", ())


ERROR = ObjectType(
    name="error",
    meaning="Why a command ended without its answer: the same as on stderr (any command, json and ndjson).",
    columns=(
        Column(
            "error",
            one_of("damaged", "internal", "io-error", "locked", "mismatch", "not-waltz", "refused", "usage").described(
                "The name of the exit status."
            ),
            "the name of the exit status",
            read=_status,
        ),
        Column("exit_status", EXIT_STATUS, "the exit status", read=_status),
        Column("message", TEXT, "what happened, where (not stable)"),
        Column("advice", or_null(TEXT.described("What to do next.")), "what to do next"),
        Column("findings", listed(struct(FINDING)), "what it found in its way", read=_findings),
    ),
)
