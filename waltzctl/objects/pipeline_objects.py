"""The objects of commands on a pipeline."""

from __future__ import annotations

from waltzctl.engine.columns.column import Column, ObjectType, listed, or_null
from waltzctl.engine.columns.column_kinds import BOOLEAN, COUNT32, INT64, PATH, TEXT, one_of
from waltzctl.objects.command_kinds import EXIT_STATUS, SECONDS, STATUS

PIPELINE_CREATED = ObjectType(
    name="pipeline-created",
    meaning="A new project (pipeline init).",
    columns=(
        Column("path", PATH, "its directory"),
        Column("table_format", one_of("parquet", "delta", "iceberg"), "of its tables", read=lambda one: one.format),
        Column("sources", listed(TEXT), "the replicas that it reads", read=lambda one: list(one.sources)),
        Column("metadata", or_null(TEXT), "the cluster's metadata, where it was told"),
        Column("files", listed(TEXT), "what was written, below the directory", read=lambda one: list(one.files)),
    ),
)

PIPELINE_GAP = ObjectType(
    name="pipeline-gap",
    meaning="Transactions that a replica lacks (pipeline run --require complete).",
    columns=(
        Column("node", or_null(TEXT), "the replica, as it was named; null: all that were read", title="NODE"),
        Column("partition", COUNT32, "the partition", title="P"),
        Column(
            "kind",
            one_of("missing", "damaged", "behind", "undecided", "nowhere"),
            "what became of them; behind: the end of the partition; undecided: replicas disagree",
            title="IS",
        ),
        Column("first_transaction_id", or_null(INT64), "the first of them", title="FROM"),
        Column("last_transaction_id", or_null(INT64), "the last one; null where nobody knows", title="TO"),
        Column("finding", or_null(TEXT), "the code of the finding; null where there is none", title="FINDING"),
        Column("remedy", or_null(TEXT), "what to do"),
        Column("elsewhere", BOOLEAN, "whether another replica that was read has all of them"),
    ),
)

PIPELINE_RUN = ObjectType(
    name="pipeline-run",
    meaning="A run of a pipeline that came to its end (pipeline run).",
    columns=(
        Column("path", PATH, "the project"),
        Column("dry_run", BOOLEAN, "whether the tables were only looked at", given=True),
        Column("refreshed", listed(TEXT), "tables that began anew", read=lambda one: list(one.refreshed)),
        Column("complete", or_null(BOOLEAN), "whether no gap was found; null: nobody asked", given=True),
        Column("status", STATUS, "clean, repairable (every gap is intact elsewhere) or damaged", given=True),
        Column("exit_status", EXIT_STATUS, "the exit status", given=True),
        Column("elapsed_seconds", SECONDS, "how long it took", read=lambda one: round(one.elapsed, 3)),
    ),
)
