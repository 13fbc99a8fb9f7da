"""pipeline init: write a project."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from waltzctl.console import Console
from waltzctl.engine.shell_words import shell_quote
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual
from waltzctl.metadata_option import MetadataOption, location_of
from waltzctl.options import Format, QuietOption, VerboseOption, path_of

MANUAL = Manual(
    name="init",
    page="pipeline",
    summary="Write a project",
    description=(
        (
            "The directory must be empty or must not exist; nothing is overwritten. --source is a storage directory, a"
            " backup (vault:VAULT::ID), a URL that fsspec reads (s3://BUCKET/NODE), or the admin port of a node"
            " (waltz://HOST:PORT); give it once for each replica."
        ),
        (
            "--metadata is the location of the cluster's metadata. With it, transactions are taken as soon as a quorum"
            " of a partition's replicas holds them, instead of up to the beginning of its last session; and without"
            " --source the replicas are the storage nodes that hold partitions now."
        ),
        (
            "--format is the format of the tables: parquet, delta or iceberg. --format json or ndjson, which sets the"
            " format of the command's output, may be given beside it. --decoder uses a decoder.py of your own; the"
            " default one accepts JSON objects with a key and a value."
        ),
    ),
    examples=(
        Example(
            "waltzctl pipeline init /lake/waltz --source /data/node-1 --source /data/node-2 --source /data/node-3",
            "Three replicas.",
        ),
        Example(
            "waltzctl pipeline init /lake/orders --source waltz://127.0.0.1:55281 --decoder orders.py",
            "A running node, and a decoder.",
        ),
        Example("waltzctl pipeline init /lake/live --metadata zk://zk1:2181/waltz", "A live cluster."),
    ),
    statuses=(
        ExitStatus.CLEAN,
        ExitStatus.USAGE,
        ExitStatus.NOT_WALTZ,
        ExitStatus.MISMATCH,
        ExitStatus.REFUSED,
        ExitStatus.IO_ERROR,
        ExitStatus.INTERRUPTED,
    ),
    objects=("pipeline-created",),
)


class TableFormat(enum.StrEnum):
    """Formats of tables, and those of the answer, which every command has under the same option."""

    PARQUET = "parquet"
    DELTA = "delta"
    ICEBERG = "iceberg"
    TABLE = "table"
    PLAIN = "plain"
    JSON = "json"
    NDJSON = "ndjson"


_TABLES = (TableFormat.PARQUET, TableFormat.DELTA, TableFormat.ICEBERG)


def run(
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="The project directory; new or empty.", show_default=False)
    ],
    source: Annotated[
        list[str] | None,
        typer.Option(
            "--source",
            metavar="PATH_OR_URL",
            help="A replica (repeatable); default: the storage nodes of --metadata.",
            show_default=False,
        ),
    ] = None,
    metadata: MetadataOption = None,
    table_format: Annotated[
        list[TableFormat] | None,
        typer.Option("--format", help="Format of the tables, default parquet; also of the output.", show_default=False),
    ] = None,
    decoder: Annotated[
        str | None, typer.Option("--decoder", metavar="FILE", help="A decoder.py to use instead of the sample.")
    ] = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Write it, and say so."""
    tables, answer = _formats(table_format or [])
    target = path_of(directory, name="DIR")
    given = None if decoder is None else path_of(decoder, name="--decoder")
    if metadata is not None:
        location_of(metadata)

    from waltzctl.engine.pipeline.project_creation import create_project, replicas_of
    from waltzctl.objects.pipeline_objects import PIPELINE_CREATED

    with Console(answer, quiet=quiet, verbose=verbose, single=True, must_finish=True) as console:
        sources = source or (() if metadata is None else replicas_of(metadata))
        made = create_project(target, sources, tables, given, metadata)
        console.emit(PIPELINE_CREATED.shown(made), flush=True)
        console.success(
            f"CREATED  {directory}: look at decoder.py, then waltzctl pipeline run {shell_quote(directory)}"
        )


def _formats(given: list[TableFormat]) -> tuple[str, Format | None]:
    """That of the tables and that of the answer.  Raises typer.BadParameter for two of a kind."""
    tables = [one.value for one in given if one in _TABLES]
    answers = [Format(one.value) for one in given if one not in _TABLES]
    if len(tables) > 1 or len(answers) > 1:
        raise typer.BadParameter("at most one for the tables, and one for the answer", param_hint="'--format'")
    return tables[0] if tables else TableFormat.PARQUET.value, answers[0] if answers else None
