"""Why a run of Spark's program failed, from its output: the table, the cause in one line, and what to do."""

from __future__ import annotations

import re
from itertools import takewhile

from waltzctl.engine import errors
from waltzctl.engine.errors import ClusterError, InvalidRequestError, PipelineError, WaltzError
from waltzctl.engine.pipeline.project import Project
from waltzctl.engine.shell_words import shell_quote

EVENT = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d: (.*)$")
"""A line that reports progress, or a failure; the lines up to the next such line belong to it."""
_OUR_ERROR = re.compile(r"waltzctl\.engine\.errors\.(\w+): (.+)")
_LISTED = re.compile(r" {2}\S")
"""An entry of a list in our own message."""
_OF_STREAMS = re.compile(r"; what (?:was handed on may differ|gets their ids would) .* startingTransactions .*")
"""The advice of `engine.spark.offsets` for a stream of one's own: a pipeline's table begins anew by a full refresh."""
_NOTHING_TO_STREAM = "lastOffsetForTriggerAvailableNow"
"""Part of Iceberg's error (1.12) for a stream from an empty table."""
_INCOMPATIBLE_TYPES = "CANNOT_MERGE_INCOMPATIBLE_DATA_TYPE"
"""Part of Spark's error where an existing table has other column types than the rows to be written."""
_FAILED_FLOW = re.compile(r"Flow '?([\w.`]+?)'? has FAILED")
_QUERY_HEADING, _PLAN_HEADING = "=== Streaming Query ===", "Logical Plan:"
"""Headings of the failed query's description, pages of offsets and columns; it ends with an empty line after the second."""


def run_failure(project: Project, lines: list[str]) -> WaltzError:
    """The error of a failed run: the table, the message of our own error where the output has one, else Spark's, and advice.

    `lines`: the last lines of the program's output.
    """
    table = next(
        (found[1].replace("`", "").rpartition(".")[2] for line in lines if (found := _FAILED_FLOW.search(line))), None
    )
    ours = _our_error(lines)
    where = str(project.directory) if table is None else f"{project.directory}, table {table}"
    command = f"waltzctl pipeline run {shell_quote(str(project.directory))}"
    if ours is not None:
        kind = getattr(errors, ours[0], WaltzError)
        status = getattr(kind, "status", "internal")
        again = f"; then {command} --full-refresh {table}" if table and status in ("refused", "mismatch") else ""
        return PipelineError(
            f"{where}: {_OF_STREAMS.sub('', ours[1])}",
            status=status,
            advice=f"mend what is named{again or ' and run it again: it goes on where it was'}",
        )
    text = _spark_message(lines)
    if _NOTHING_TO_STREAM in text:
        return PipelineError(
            f"{where}: Iceberg's stream cannot begin with a table without rows, and none of the transactions is known as"
            " committed yet",
            status=ClusterError.status,
            advice="run it again when a later session has begun in the partitions (waltzctl status shows their low-water marks)",
        )
    if _INCOMPATIBLE_TYPES in text:
        return PipelineError(
            f"{where}: {text[:2000]}",
            status=InvalidRequestError.status,
            advice=f"after a change of decoder.py: {command} --full-refresh transactions",
        )
    return PipelineError(
        f"{where}: {text[:2000]}", status=ClusterError.status, advice="waltzctl pipeline run -v shows what Spark said"
    )


def _our_error(lines: list[str]) -> tuple[str, str] | None:
    """The type and the message of our first error in the output; the indented lines behind it, a list, belong to its message."""
    for place, line in enumerate(lines):
        if (found := _OUR_ERROR.search(line)) is not None:
            return found[1], "\n".join((found[2], *takewhile(_LISTED.match, lines[place + 1 :])))
    return None


def _failure_lines(lines: list[str]) -> list[str]:
    """The lines of one failure, without the description of the query, which is between the error and its cause."""
    block = list(takewhile(lambda line: not EVENT.match(line), lines))
    if _QUERY_HEADING in block and _PLAN_HEADING in block:
        plan = block.index(_PLAN_HEADING)
        behind = next((place for place in range(plan, len(block)) if not block[place].strip()), len(block))
        return block[: block.index(_QUERY_HEADING)] + block[behind:]
    return block


def _spark_message(lines: list[str]) -> str:
    """Spark's message for the first flow that failed, else the last line of its output."""
    for begins in ("Error: ", "pyspark.errors"):
        at = next((place for place, line in enumerate(lines) if line.startswith(begins)), None)
        if at is not None:
            told = [
                line.strip()
                for line in _failure_lines(lines[at:])[:12]
                if line.strip() and not line.startswith(("\tat ", "  File "))
            ]
            return " ".join(told)
    return next((line for line in reversed(lines) if line.strip()), "it ended without a word")
