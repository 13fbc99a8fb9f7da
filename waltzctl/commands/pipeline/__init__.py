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
            "init writes a small project: a specification, transformations, a decoder that you change. run brings its tables up"
            " to date: records of every replica, transactions that the replicas agree on, the last value for each key, what is"
            " damaged or missing and what to do about it."
        ),
        (
            "It is run again at any time, and may be killed at any moment: the next run goes on, and nothing is doubled or lost."
            " Sources are only read. It needs the extra: pip install 'waltzctl[spark]'."
        ),
    ),
    examples=(
        Example("waltzctl pipeline init /lake/waltz --source /data/node-1 --source /data/node-2", "A new project."),
        Example("waltzctl pipeline run /lake/waltz", "Bring its tables up to date."),
        Example("waltzctl pipeline run /lake/waltz --require complete", "And say whether anything is missing."),
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
                    "records: every record of every replica, once, and a row for each place that is damaged or missing."
                    " quarantine: what is wrong where, and what to do. transactions: one row for each partition and id, agreed"
                    " by the replicas that were read, up to the highest low-water mark that one of them knows or, with"
                    " --metadata, up to what a quorum of the open session holds, with what decode() in decoder.py makes of"
                    " it. state: the last value for each key; state_history: all of them."
                    " completeness: what each replica has of each partition. activity: how much, and how fast."
                ),
                (
                    "Each lies in a directory of its own name below the project, Parquet unless waltz.format says otherwise;"
                    " checkpoints and the catalog lie in storage/. What spark-pipeline.yml says of catalog and database holds."
                ),
            ),
        ),
        ManualSection(
            "CHANGES OF THE SOURCES",
            (
                (
                    "A replica that is added to waltz.sources is read from its beginning; one that is taken out keeps its"
                    " place. Copies that come late change no transaction. A log that was truncated below what was read or"
                    " written anew ends the run (13), another cluster's as well (12): the message names the table."
                    " --full-refresh TABLE reads it anew, and with it the tables that are made of it."
                ),
            ),
        ),
    ),
)


def run() -> None:
    """Nothing: the action does it all."""
