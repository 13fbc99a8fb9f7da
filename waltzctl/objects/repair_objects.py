"""The objects of changes: the result, a repair that can be undone, the result of append, a new cluster."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from pathlib import PurePath
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from waltzctl.engine.columns.column import ABSENT, Column, Columns, Object, ObjectType, listed, or_null, struct
from waltzctl.engine.columns.column_kinds import BOOLEAN, COUNT, COUNT32, INT64, KEY, LAYOUT, PATH, SIZE, TEXT, one_of
from waltzctl.engine.columns.finding_columns import FINDING
from waltzctl.exit_status import ExitStatus
from waltzctl.objects.command_kinds import EXIT_STATUS, RFC3339
from waltzctl.values import printable

if TYPE_CHECKING:
    from waltzctl.engine.findings import Finding

RESULT = ObjectType(
    name="result",
    meaning="What a repair, an undo or undo --prune did; findings are those that remain.",
    columns=(
        Column("plan_hash", TEXT, "the plan that was carried out"),
        Column("applied", BOOLEAN, "whether anything was done"),
        Column("undo_id", or_null(TEXT), "by which it can be undone"),
        Column("quarantine", or_null(PATH), "where the bytes are kept"),
        Column("status", TEXT, "what verify says afterwards"),
        Column("exit_status", EXIT_STATUS, "the exit status"),
        Column("findings", listed(struct(FINDING)), "what is still wrong"),
        Column(
            "bytes_freed",
            SIZE.described("What undo --prune gave up; left out otherwise."),
            "what undo --prune gave up",
            optional=True,
        ),
    ),
)


def result_object(
    *,
    plan_hash: str,
    applied: bool,
    undo_id: str | None,
    quarantine: PurePath | None,
    status: str,
    exit_status: ExitStatus,
    findings: Iterable[Finding] = (),
    bytes_freed: int | None = None,
) -> Object:
    """**result**.  `findings`: those that remain; `bytes_freed`: by pruning, None otherwise."""
    said = SimpleNamespace(
        plan_hash=plan_hash,
        applied=applied,
        undo_id=undo_id,
        quarantine=quarantine,
        status=status,
        exit_status=exit_status,
        findings=findings,
        bytes_freed=ABSENT if bytes_freed is None else bytes_freed,
    )
    return RESULT.shown(said)


def _kept_files(entry: Any) -> tuple[str, ...]:
    return (*(file.path for file in entry.files), *(move.path for move in entry.moves))


def _said(shown: Object) -> str:
    return printable(" ".join(shown["arguments"]) or shown["command"])


def _how_many(shown: Object) -> str:
    return str(len(shown["files"]))


UNDO_ENTRY = ObjectType(
    name="undo-entry",
    meaning="A repair whose bytes are kept (undo --list).",
    columns=(
        Column("id", TEXT, "by which it can be undone", title="ID"),
        Column("command", TEXT, "the command"),
        Column("arguments", listed(TEXT), "how it was called", title="COMMAND", cell=_said, right=False),
        Column("created", RFC3339, "when"),
        Column(
            "state",
            one_of("preparing", "prepared", "applied", "rolling-back", "undoing", "undone", "rolled-back", "pruned"),
            "how far it came",
            title="STATE",
        ),
        Column("plan_hash", TEXT, "the plan that was carried out"),
        Column("quarantine", PATH, "where the bytes are kept", read=attrgetter("path")),
        Column(
            "files", listed(TEXT), "files that it touched", read=_kept_files, title="FILES", cell=_how_many, right=True
        ),
    ),
    leading=("id", "state"),
)

APPEND_RESULT = ObjectType(
    name="append-result",
    meaning="What append made durable.",
    columns=(
        Column("partition", COUNT32, "the partition"),
        Column("first_transaction_id", or_null(INT64), "the first one; null where there was nothing to append"),
        Column("last_transaction_id", or_null(INT64), "the last one"),
        Column("records", COUNT, "how many"),
        Column("bytes", SIZE, "what they take on disk"),
        Column("mended", listed(struct(FINDING)), "what was put right before the first one"),
        Column("undo_ids", listed(TEXT), "by which that can be undone"),
        Column("taken_back", listed(TEXT), "interrupted repairs that were taken back before"),
    ),
)

_DIRECTORY = Columns((Column("path", PATH, "the directory"), Column("assigned", listed(COUNT), "its partitions")))

CLUSTER = ObjectType(
    name="cluster",
    meaning="What create-cluster made.",
    columns=(
        Column("cluster_key", KEY, "the cluster's key"),
        Column("num_partitions", COUNT32, "how many partitions it has"),
        Column("layout", LAYOUT, "documented or released"),
        Column("directories", listed(struct(_DIRECTORY)), "what was made"),
        Column(
            "opened_by",
            listed(TEXT).described("Programs that can open directories of this layout."),
            "programs that can open them",
            read=attrgetter("layout.opened_by"),
        ),
    ),
)
