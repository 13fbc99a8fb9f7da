"""The objects of commands on backup vaults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from waltzctl.engine.columns.column import (
    Column,
    ColumnKind,
    Columns,
    Form,
    Object,
    ObjectType,
    Stands,
    listed,
    or_null,
    struct,
)
from waltzctl.engine.columns.column_kinds import (
    BOOLEAN,
    COUNT,
    COUNT32,
    INT64,
    KEY,
    PATH,
    SIZE,
    TEXT,
    TIME,
    one_of,
)
from waltzctl.engine.columns.plan_columns import ARGUMENTS, PLAN, STEP
from waltzctl.formats.adapters import format_time
from waltzctl.objects.command_kinds import EXIT_STATUS, SECONDS
from waltzctl.values import format_ranges

if TYPE_CHECKING:
    from waltzctl.engine.backup.backup_removal import ForgetPlan

BACKUP_ID = ColumnKind("backup id", {"type": "string", "pattern": "^[0-9a-f]{16}$"}, right=False)


def _created(one: Any) -> str | None:
    return format_time(one.created_ms)


def _held(shown: Any) -> str:
    held = format_ranges([one["partition"] for one in shown["partitions"]]) or "none"
    return f"{held}; not read: {format_ranges(shown['unread'])}" if shown["unread"] else held


def _ids(name: str) -> Any:
    def cell(shown: Any) -> str:
        return "-" if shown[name] is None else "..".join(map(str, shown[name]))

    return cell


_PARTITION = Columns(
    (
        Column("partition", COUNT32, "the partition"),
        Column("first_transaction_id", or_null(INT64), "the first transaction; null where there is none"),
        Column("last_transaction_id", or_null(INT64), "the last one"),
        Column("bytes", SIZE, "all files of the partition", read=lambda one: one.size),
    )
)

BACKUP = ObjectType(
    name="backup",
    meaning="A backup of a storage directory (backup create, list, show).",
    columns=(
        Column(
            "id", BACKUP_ID, "its id; a prefix that only it has names it as well", read=lambda one: one.name, title="ID"
        ),
        Column("created", TIME, "when it was begun", read=_created, title="CREATED", cell=Form.SECOND),
        Column("source", PATH, "what was backed up", title="SOURCE"),
        Column("tag", or_null(TEXT), "what it was tagged with", title="TAG"),
        Column("cluster_key", or_null(KEY), "the cluster's key; null without a control file"),
        Column("num_partitions", or_null(COUNT), "the cluster's partitions; null without a control file"),
        Column("partitions", listed(struct(_PARTITION)), "those that are in it"),
        Column("held", TEXT, stands=Stands.TABLE_ONLY, title="PARTITIONS", cell=_held),
        Column("bytes", SIZE, "all files", read=lambda one: one.size, title="BYTES", cell=Form.BYTES),
        Column("pages", COUNT, "pieces that it is made of", title="PAGES"),
        Column("new_pages", COUNT, "those among them that the vault did not have", title="NEW"),
        Column("new_bytes", SIZE, "what the vault grew by", title="GREW BY", cell=Form.BYTES),
        Column("elapsed_seconds", SECONDS, "how long it took"),
        Column("live", BOOLEAN, "whether a process held the directory meanwhile"),
        Column(
            "damaged",
            COUNT,
            "places in the source that are damaged, or where records are missing; it is in the backup as it was",
        ),
        Column(
            "unread",
            listed(COUNT).described("Each of them is counted in damaged as well."),
            "partitions that could not be read, and are not in it",
        ),
    ),
)

VAULT_CREATED = ObjectType(
    name="vault-created",
    meaning="A new vault (backup init).",
    columns=(
        Column("path", PATH, "its directory"),
        Column("vault_id", KEY, "its id"),
        Column("compression", or_null(TEXT), "how pages are compressed"),
        Column("encrypted", BOOLEAN, "whether they are encrypted"),
    ),
)

_END = Columns(
    (
        Column("partition", COUNT32, "the partition"),
        Column("last_transaction_id", or_null(INT64), "where it ends now; -1 or null: it holds no record"),
    )
)

RESTORED = ObjectType(
    name="restored",
    meaning="A storage directory that was made of a backup (backup restore).",
    columns=(
        Column("path", PATH, "the directory"),
        Column("backup", BACKUP_ID, "of which backup", read=lambda one: one.head.name),
        Column("source", PATH, "what was backed up", read=lambda one: one.head.source),
        Column("files", COUNT, "files that were written"),
        Column("bytes", SIZE, "what is in them", read=lambda one: one.size),
        Column("partitions", listed(struct(_END)), "where each ends", given=True),
        Column("exit_status", EXIT_STATUS, "the exit status", given=True),
    ),
)

_FIRST_AND_LAST = listed(INT64, exactly=2)
DIFFERENCE = ObjectType(
    name="backup-difference",
    meaning="A partition in two backups (backup diff).",
    columns=(
        Column("partition", or_null(COUNT32), "the partition; null: what lies beside them", title="P"),
        Column("difference", one_of("same", "changed", "added", "removed"), "what became of it", title="IS"),
        Column(
            "before",
            or_null(_FIRST_AND_LAST),
            "transactions in the first",
            read=lambda one: one.first,
            title="BEFORE",
            cell=_ids("before"),
        ),
        Column(
            "after",
            or_null(_FIRST_AND_LAST),
            "transactions in the second",
            read=lambda one: one.second,
            title="AFTER",
            cell=_ids("after"),
        ),
        Column("bytes_added", SIZE, "content that only the second has", title="ADDED", cell=Form.BYTES),
        Column("bytes_removed", SIZE, "content that only the first has", title="REMOVED", cell=Form.BYTES),
        Column("files", listed(TEXT), "names that only one has, or with other content"),
    ),
)

PRUNED = ObjectType(
    name="vault-pruned",
    meaning="What backup prune gave back.",
    columns=(
        Column("path", PATH, "the vault", given=True),
        Column("orphans", COUNT, "pages that belonged to no backup"),
        Column("bytes_before", SIZE, "what files with data took", read=lambda one: one.before),
        Column("bytes", SIZE, "what they take now", read=lambda one: one.after),
        Column("pages_moved", COUNT, "pages that were moved for it"),
        Column("exit_status", EXIT_STATUS, "the exit status", given=True),
    ),
)

VAULT_REPAIRED = ObjectType(
    name="vault-repaired",
    meaning="What backup repair mended.",
    columns=(
        Column("path", PATH, "the vault", given=True),
        Column("damaged", COUNT, "pages that could not be read"),
        Column("mended", COUNT, "those among them that can be read now"),
        Column("bytes", SIZE, "what was written", read=lambda one: one.size),
        Column("exit_status", EXIT_STATUS, "the exit status", given=True),
    ),
)


def restored_object(restored: Any, exit_status: int) -> Object:
    """**restored**."""
    ends = [{"partition": number, "last_transaction_id": end} for number, end in sorted(restored.ends.items())]
    return RESTORED.shown(restored, partitions=ends, exit_status=exit_status)


def forget_plan_object(plan: ForgetPlan) -> Object:
    """**plan**: each step forgets a backup; its path is ``vault:VAULT::ID``."""
    from waltzctl.engine.repair.arguments import Arguments

    steps = [
        STEP.keys(step, from_transaction_id=None, to_transaction_id=None, offset=None, length=None)
        for step in plan.steps
    ]
    arguments = ARGUMENTS.keys(Arguments())
    return PLAN.shown(
        plan, path=str(plan.vault), command="backup forget", steps=steps, undecided=[], arguments=arguments
    )
