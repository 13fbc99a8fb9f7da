"""pipeline: the log as tables, by Spark Declarative Pipelines."""

from __future__ import annotations

from types import ModuleType

from waltzctl.commands.pipeline import init, run_tables
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual, ManualSection

ACTIONS: tuple[ModuleType, ...] = (init, run_tables)
"""One file each, in the order in which ``--help`` lists them."""

MANUAL = Manual(
    name="pipeline",
    summary="Keep the log as tables, by Spark Declarative Pipelines",
    description=(
        (
            "init writes a small project: a specification, transformations, and a decoder for you to adapt. run"
            " updates its tables: the records of every replica, the transactions that the replicas agree on, the last"
            " value for each key, and what is damaged or missing, with its remedy."
        ),
        (
            "run can be repeated at any time, and killed at any moment: the next run continues, and nothing is doubled"
            " or lost. Sources are only read. It needs the extra: pip install 'waltzctl[spark]'."
        ),
    ),
    examples=(
        Example("waltzctl pipeline init /lake/waltz --source /data/node-1 --source /data/node-2", "A new project."),
        Example("waltzctl pipeline run /lake/waltz", "Update its tables."),
        Example("waltzctl pipeline run /lake/waltz --require complete", "Also report whether anything is missing."),
    ),
    statuses=(
        ExitStatus.CLEAN,
        ExitStatus.USAGE,
        ExitStatus.REPAIRABLE,
        ExitStatus.DAMAGED,
        ExitStatus.NOT_WALTZ,
        ExitStatus.LOCKED,
        ExitStatus.MISMATCH,
        ExitStatus.REFUSED,
        ExitStatus.IO_ERROR,
        ExitStatus.INTERRUPTED,
    ),
    objects=("pipeline-created", "pipeline-run", "pipeline-gap"),
    sections=(
        ManualSection(
            "TABLES",
            (
                (
                    "records: every record of every replica, once, and a row for each place that is damaged or"
                    " missing. quarantine: what is wrong, where, and the remedy. transactions: one row for each"
                    " partition and id on which the replicas agree, up to the highest low-water mark that one of them"
                    " knows or, with --metadata, up to what a quorum of the open session holds, with the result of"
                    " decode() in decoder.py. state: the last value for each key; state_history: all values."
                    " completeness: what each replica has of each partition. activity: number and rate of"
                    " transactions."
                ),
                (
                    "Each table is in a directory of its own name below the project, as Parquet unless waltz.format"
                    " says otherwise; checkpoints and the catalog are in storage/. catalog and database of"
                    " spark-pipeline.yml are used."
                ),
            ),
        ),
        ManualSection(
            "CHANGES OF THE SOURCES",
            (
                (
                    "A replica that is added to waltz.sources is read from its beginning; a removed replica continues at"
                    " its place if it is added again. Copies that arrive late change no transaction. A log that was"
                    " truncated below what was read, or rewritten, ends the run (13), and so does another cluster's log"
                    " (12): the message names the table. --full-refresh TABLE reads this table and all tables derived from"
                    " it again."
                ),
            ),
        ),
    ),
)


def run() -> None:
    """Nothing: the action does it all."""
