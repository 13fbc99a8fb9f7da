"""Why a run of Spark's program failed, from what it said: the table, the cause in one line, and what to do."""

from __future__ import annotations

import re
import shlex
from itertools import takewhile

from waltzctl.engine import errors
from waltzctl.engine.errors import ClusterError, InvalidRequestError, PipelineError, WaltzError
from waltzctl.engine.pipeline.project import Project

EVENT = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d: (.*)$")
"""A line of the program that tells how far it is; what is between two of them belongs to the first."""
_OURS = re.compile(r"waltzctl\.engine\.errors\.(\w+): (.+)")
_NOTHING_TO_STREAM = "lastOffsetForTriggerAvailableNow"
"""In what Iceberg (1.12) ends with where it should say that there is nothing."""
_OTHER_TYPES = "CANNOT_MERGE_INCOMPATIBLE_DATA_TYPE"
"""In what Spark ends with where a table that there is has other types than what is to come into it."""
_FAILED = re.compile(r"Flow '?([\w.`]+?)'? has FAILED")
_QUERY, _PLAN = "=== Streaming Query ===", "Logical Plan:"
"""Between these, and on to an empty line, Spark describes the query that failed: pages of offsets and columns."""


def run_failure(project: Project, lines: list[str]) -> WaltzError:
    """What went wrong, from what Spark's program said: the table, our own words where they are among them, and what to do."""
    table = next(
        (found[1].replace("`", "").rpartition(".")[2] for line in lines if (found := _FAILED.search(line))), None
    )
    ours = next((found for line in lines if (found := _OURS.search(line))), None)
    where = str(project.directory) if table is None else f"{project.directory}, table {table}"
    command = f"waltzctl pipeline run {shlex.quote(str(project.directory))}"
    if ours is not None:
        kind = getattr(errors, ours[1], WaltzError)
        status = getattr(kind, "status", "internal")
        again = f"; then {command} --full-refresh {table}" if table and status in ("refused", "mismatch") else ""
        return PipelineError(
            f"{where}: {ours[2]}",
            status=status,
            advice=f"mend what is named{again or ' and run it again: it goes on where it was'}",
        )
    text = _said(lines)
    if _NOTHING_TO_STREAM in text:
        return PipelineError(
            f"{where}: Iceberg's stream cannot begin with a table without rows, and none of the transactions is known as"
            " committed yet",
            status=ClusterError.status,
            advice="run it again when a later session has begun in the partitions (waltzctl status shows their low-water marks)",
        )
    if _OTHER_TYPES in text:
        return PipelineError(
            f"{where}: {text[:2000]}",
            status=InvalidRequestError.status,
            advice=f"after a change of decoder.py: {command} --full-refresh transactions",
        )
    return PipelineError(
        f"{where}: {text[:2000]}", status=ClusterError.status, advice="waltzctl pipeline run -v shows what Spark said"
    )


def _without_query(lines: list[str]) -> list[str]:
    """What was said of one failure, without the description of the query that stands between it and what caused it."""
    block = list(takewhile(lambda line: not EVENT.match(line), lines))
    if _QUERY in block and _PLAN in block:
        plan = block.index(_PLAN)
        behind = next((place for place in range(plan, len(block)) if not block[place].strip()), len(block))
        return block[: block.index(_QUERY)] + block[behind:]
    return block


def _said(lines: list[str]) -> str:
    """Spark's own reason: that of the first flow that failed, else what its program ended with, with the lines that belong to
    it.
    """
    for begins in ("Error: ", "pyspark.errors"):
        at = next((place for place, line in enumerate(lines) if line.startswith(begins)), None)
        if at is not None:
            told = [
                line.strip()
                for line in _without_query(lines[at:])[:12]
                if line.strip() and not line.startswith(("\tat ", "  File "))
            ]
            return " ".join(told)
    return next((line for line in reversed(lines) if line.strip()), "it ended without a word")
