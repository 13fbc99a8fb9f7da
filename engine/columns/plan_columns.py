"""A plan, as repairs and changes of a node print it, and as ``--plan`` reads it back (engine/repair/plan.py).

Arguments that were added in later versions are omitted if they are empty, as they are in plans of earlier versions.
"""

from __future__ import annotations

from typing import Any

from waltzctl.engine.columns.column import ABSENT, Column, ColumnKind, Columns, ObjectType, listed, or_null, struct
from waltzctl.engine.columns.column_kinds import (
    BOOLEAN,
    COUNT,
    COUNT32,
    INT64,
    LAYOUT,
    OFFSET,
    PATH,
    RECOVERY_MODE,
    SIZE,
    TEXT,
    WORD,
    one_of,
)
from waltzctl.engine.columns.finding_columns import FINDING

STEP = Columns(
    (
        Column("action", WORD, "what is done, a stable word"),
        Column("path", PATH, "what it is done to"),
        Column("partition", or_null(COUNT32), "the partition"),
        Column("from_transaction_id", or_null(INT64), "the first transaction that it concerns"),
        Column("to_transaction_id", or_null(INT64), "the last one, inclusive"),
        Column("offset", or_null(OFFSET), "where in the file as it is before"),
        Column("length", or_null(SIZE), "how many bytes of it"),
        Column("reason", TEXT, "why, in words (not stable)"),
        Column("loses_data", BOOLEAN, "whether something is given up that somebody was promised"),
    )
)

AGREED = Columns(
    (
        Column("partition", COUNT32, "the partition"),
        Column("clean_to", INT64, "the last transaction that is kept; -1: none"),
        Column("cut_after", or_null(INT64), "what stands behind it here goes; null: nothing"),
        Column("outvoted", listed(listed(COUNT, exactly=2)), "first and last of the ids whose records are replaced"),
        Column("restore_end", BOOLEAN, "whether all up to clean_to is restored, or nothing"),
        Column(
            "missing",
            listed(PATH).described("Left out where no replica's directory of the partition was missing."),
            "other replicas' directories of the partition that were missing; a plan that loses data is stale once one is there",
            read=lambda one: one.missing or ABSENT,
            optional=True,
        ),
    )
)

CHOSEN = Columns(
    (
        Column(
            "name",
            one_of("session_id", "low_water_mark", "local_low_water_mark", "assigned", "available"),
            "what is set",
        ),
        Column("value", ColumnKind("integer or boolean", {"type": ["integer", "boolean"]}), "to what"),
    )
)


def _agreed(arguments: Any) -> Any:
    return arguments.agreed or ABSENT


def _settings(arguments: Any) -> Any:
    return arguments.settings or ABSENT


def _mode(arguments: Any) -> Any:
    return arguments.mode or ABSENT


ARGUMENTS = Columns(
    (
        Column("partitions", or_null(listed(COUNT)), "--partition"),
        Column("everything", BOOLEAN, "--all"),
        Column("after", or_null(INT64), "--after"),
        Column("replicas", listed(PATH), "--from, or the node that records come from"),
        Column("allow_data_loss", BOOLEAN, "--allow-data-loss"),
        Column(
            "forget_losses",
            BOOLEAN.described("Older plans do not have it, which is false."),
            "--forget-losses",
            optional=True,
        ),
        Column(
            "agreed",
            listed(struct(AGREED)).described("What compare found; left out where the plan does not come from there."),
            "what a comparison of all replicas found",
            read=_agreed,
            optional=True,
        ),
        Column("layout", or_null(LAYOUT).described("To which layout convert goes."), "--layout", optional=True),
        Column(
            "settings",
            listed(struct(CHOSEN)).described("What set-partition is to set; left out of other plans."),
            "what set-partition is to set",
            read=_settings,
            optional=True,
        ),
        Column(
            "mode",
            RECOVERY_MODE.described("What pages recover takes of the log; left out of other plans."),
            "--mode",
            read=_mode,
            optional=True,
        ),
        Column(
            "forget_journal",
            BOOLEAN.described("Older plans do not have it, which is false."),
            "--forget-journal",
            optional=True,
        ),
    )
)

PLAN = ObjectType(
    name="plan",
    meaning="What a repair, or undo --prune, would do.",
    columns=(
        Column("hash", TEXT, "by which the plan is known again: over its steps and the state of what they touch"),
        Column("command", TEXT, "the command that made it"),
        Column("path", PATH, "the storage directory or page store, or the URL of a node"),
        Column("steps", listed(struct(STEP)), "what would be done, in order"),
        Column("undecided", listed(struct(FINDING)), "what is left for a person to decide"),
        Column("arguments", struct(ARGUMENTS), "what the planner was asked for; --plan asks for it again"),
    ),
)
