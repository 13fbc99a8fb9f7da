"""The objects of compare: the comparison of a partition's replicas, and the summary."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from waltzctl.engine.columns.column import Column, Columns, Object, ObjectType, listed, or_null, struct
from waltzctl.engine.columns.column_kinds import (
    BASE64,
    BOOLEAN,
    CHECKSUM,
    COUNT,
    COUNT32,
    INT64,
    PATH,
    SIZE,
    TEXT,
    columns_named,
    one_of,
)
from waltzctl.engine.columns.record_columns import RECORD
from waltzctl.objects.command_kinds import EXIT_STATUS, SECONDS, UNMODIFIED
from waltzctl.objects.verify_objects import elapsed, label, nothing_modified

if TYPE_CHECKING:
    from waltzctl.engine.compare.comparison import CompareSummary, PartitionComparison
    from waltzctl.engine.repair.plan import Plan

VERDICT = one_of("equal", "recoverable", "undecidable", "lost")


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A plan for a replica, and the file that it was written to."""

    replica: PurePath
    file: PurePath
    plan: Plan


def _first(span: Any) -> Any:
    return span[0]


def _last(span: Any) -> Any:
    return span[1] - 1


def _source_last(source: Any) -> Any:
    return source.stop - 1


def _damaged_ids(one: Any) -> Any:
    return one.damaged_ids()


RANGE = Columns(
    (
        Column("first_transaction_id", COUNT, "the first one", read=_first),
        Column("last_transaction_id", COUNT, "the last one, inclusive", read=_last),
    )
)
_SOURCE = Columns(
    (
        Column("first_transaction_id", COUNT, "the first one", read=attrgetter("first")),
        Column("last_transaction_id", COUNT, "the last one, inclusive", read=_source_last),
        Column("from", or_null(PATH), "the replica that has them; null: none", read=attrgetter("path")),
    )
)
REPLICA = Columns(
    (
        Column("path", PATH, "the replica"),
        Column("session_id", or_null(INT64), "the last session that wrote"),
        Column("low_water_mark", or_null(INT64), "its low-water mark"),
        Column("local_low_water_mark", or_null(INT64), "its local low-water mark"),
        Column("last_transaction_id", or_null(COUNT.described("The last intact one.")), "its last intact transaction"),
        Column(
            "state", one_of("equal", "behind", "ahead", "diverged", "damaged", "missing"), "how it stands to the others"
        ),
        Column("cut_after", or_null(INT64.described("-1: everything is cut.")), "what stands behind it goes"),
        Column(
            "damaged",
            listed(COUNT).described("The first 10000 of damaged_records."),
            "ids that are damaged or missing here",
            read=_damaged_ids,
        ),
        Column("restore_from", or_null(PATH), "the replica that has them"),
        Column("damaged_records", COUNT, "how many are damaged or missing here"),
        Column("votes", BOOLEAN, "whether it takes part in the vote"),
        Column(
            "outvoted",
            listed(struct(RANGE)).described("Where other records are kept than those here."),
            "where other records are kept than those here",
        ),
        Column(
            "restore", listed(struct(_SOURCE)), "what is to be restored, and from where", read=attrgetter("sources")
        ),
        Column("unread", BOOLEAN, "whether its directory cannot be listed, so that nobody knows what it holds"),
    )
)
_OF_A_RECORD = ("transaction_id", "segment", "offset", "size", "request_id", "header", "data_length", "data_checksum")


def _of_a_side() -> tuple[Column, ...]:
    """The columns of a side, a record in a file: its place is always known."""
    known = {"transaction_id": COUNT, "segment": COUNT, "offset": SIZE, "record_checksum": CHECKSUM}
    first, *others = (
        replace(one, kind=known.get(one.name, one.kind))
        for one in columns_named(RECORD.printed, (*_OF_A_RECORD, "record_checksum"))
    )
    return (
        first,
        Column(
            "paths",
            listed(PATH).described("The replicas that hold these very bytes."),
            "the replicas that hold it",
            given=True,
        ),
        *others,
    )


SIDE = Columns(
    (
        *_of_a_side(),
        Column(
            "data_b64",
            or_null(BASE64.described("The first 64 KiB of the data.")),
            "the first 64 KiB of the data",
            read=attrgetter("data"),
        ),
    )
)


def _divergence(one: PartitionComparison) -> list[Object]:
    """A record for each version of the first transaction that differs."""
    found = one.divergence
    if found is None:
        return []
    versions = next(run.versions for run in one.runs if run.first <= found.transaction_id < run.stop)
    paths = [replica.path for replica in one.replicas]
    return [SIDE.keys(side, paths=_holders(paths, versions, side.replica)) for side in found.sides]


def _holders(paths: Sequence[PurePath], versions: Iterable[int], version: int) -> tuple[str, ...]:
    return tuple(os.fspath(path) for path, its in zip(paths, versions, strict=True) if its == version)


PARTITION_COMPARISON = ObjectType(
    name="partition-comparison",
    meaning="How the replicas of a partition stand to each other, and what recovery would keep (compare).",
    columns=(
        Column("partition", COUNT32, "the partition"),
        Column("verdict", VERDICT, "equal, recoverable, undecidable or lost"),
        Column(
            "clean_to",
            or_null(COUNT.described("The highest transaction that is kept; more may be, where that is undecidable.")),
            "the highest transaction that recovery would keep",
        ),
        Column("first_divergence", or_null(COUNT), "the first transaction that is not the same everywhere"),
        Column("replicas", listed(struct(REPLICA)), "each replica"),
        Column("reason", TEXT, "why, in words (not stable)", read=attrgetter("decision.reason")),
        Column("last_replicas", COUNT, "how many hold the last one", read=attrgetter("decision.last_replicas")),
        Column("quorum", COUNT, "how many a quorum is", read=attrgetter("decision.quorum")),
        Column(
            "caught_up",
            BOOLEAN.described("Something is kept that no quorum holds yet."),
            "whether something is kept that no quorum holds yet",
            read=attrgetter("decision.caught_up"),
        ),
        Column("undecided", listed(struct(RANGE)), "what cannot be decided", read=attrgetter("decision.undecided")),
        Column("lost", listed(struct(RANGE)), "what no replica has", read=attrgetter("decision.lost")),
        Column(
            "divergence",
            listed(struct(SIDE)).described("The versions of first_divergence."),
            "the versions of first_divergence",
            given=True,
        ),
        Column("complete", BOOLEAN, "false when it was cut short"),
    ),
)


def comparison_object(one: PartitionComparison) -> Object:
    """**partition-comparison**."""
    return PARTITION_COMPARISON.shown(one, divergence=_divergence(one))


def _steps(file: Any) -> Any:
    return len(file.plan.steps)


def _undecided(file: Any) -> Any:
    return len(file.plan.undecided)


_PLAN_FILE = Columns(
    (
        Column("path", PATH, "the replica", read=attrgetter("replica")),
        Column("file", PATH, "what its plan was written to"),
        Column("hash", TEXT, "the plan's", read=attrgetter("plan.hash")),
        Column("steps", COUNT, "how many", read=_steps),
        Column("loses_data", BOOLEAN, "whether a step gives something up", read=attrgetter("plan.loses_data")),
        Column("undecided", COUNT, "findings that are left for a person to decide", read=_undecided),
    )
)


def _verdicts(name: str) -> Any:
    def read(summary: Any) -> Any:
        return next(count for verdict, count in summary.partitions.items() if verdict.value == name)

    return read


def _partitions(summary: Any) -> Any:
    return sum(summary.partitions.values())


COMPARE_SUMMARY = ObjectType(
    name="compare-summary",
    meaning="The last object of compare; the verdicts count partitions.",
    columns=(
        Column("status", VERDICT, "the worst verdict"),
        Column("exit_status", EXIT_STATUS, "the exit status", read=label),
        *(
            Column(name, COUNT, "partitions of this verdict", read=_verdicts(name))
            for name in ("equal", "recoverable", "undecidable", "lost")
        ),
        Column("partitions", COUNT, "partitions that were compared", read=_partitions),
        Column("replicas", listed(PATH), "the replicas"),
        Column(
            "unassigned",
            listed(COUNT).described("Partitions that none of the directories has."),
            "partitions that none of the directories has",
        ),
        Column("records", COUNT, "records that were compared"),
        Column("bytes", SIZE, "what was read of them"),
        Column("findings", COUNT, "findings in front of it"),
        Column("elapsed_seconds", SECONDS, "how long it took", read=elapsed),
        Column("modified", UNMODIFIED, "whether anything was changed", read=nothing_modified),
        Column("complete", BOOLEAN, "false when it was cut short"),
        Column("plans", listed(struct(_PLAN_FILE)), "plans that were written beside", given=True),
        Column("differences", or_null(PATH), "the table of differences that was written beside", given=True),
        Column("in_use", listed(PATH), "replicas that a process has open", read=attrgetter("held")),
    ),
)


def summary_object(summary: CompareSummary, plans: Sequence[PlanFile], differences: PurePath | None) -> Object:
    """**compare-summary**.  `plans`, `differences`: the files that were written."""
    said = None if differences is None else os.fspath(differences)
    return COMPARE_SUMMARY.shown(summary, plans=[_PLAN_FILE.keys(one) for one in plans], differences=said)
