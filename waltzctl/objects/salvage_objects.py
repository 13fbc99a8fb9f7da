"""The objects of salvage: what it found and wrote."""

from __future__ import annotations

from operator import attrgetter, itemgetter
from typing import Any

from waltzctl.engine.columns.column import Column, Columns, ObjectType, listed, or_null, struct
from waltzctl.engine.columns.column_kinds import (
    BOOLEAN,
    COUNT,
    COUNT32,
    INT64,
    KEY,
    LAYOUT,
    OFFSET,
    PATH,
    SIZE,
    TEXT,
    TIME,
    WORD,
    one_of,
)
from waltzctl.engine.columns.finding_columns import FINDING
from waltzctl.objects.command_kinds import EXIT_STATUS
from waltzctl.objects.verify_objects import label


def _created(found: Any) -> Any:
    from waltzctl.formats.adapters import format_time

    return format_time(found.control.header.created)


def _first(one: Any) -> Any:
    return one.first_transaction_id if one.records else None


def _last(one: Any) -> Any:
    return one.last_transaction_id if one.records else None


def _witnesses(one: Any) -> Any:
    return one.by_witness.items()


def _acknowledged(one: Any) -> Any:
    return () if one.acknowledged_missing is None else (one.acknowledged_missing,)


def _mark(place: int) -> Any:
    def read(one: Any) -> Any:
        return one.marks[place]

    return read


PLACE = Columns(
    (
        Column("path", PATH, "the file"),
        Column("offset", OFFSET, "where in it"),
        Column("size", SIZE, "how many bytes"),
    )
)
GAP = Columns((Column("first", COUNT, "the first id"), Column("last", COUNT, "the last one, inclusive")))
_WITNESS = Columns(
    (
        Column("witness", WORD, "what says that they are the partition's", read=itemgetter(0)),
        Column("records", COUNT, "of how many", read=itemgetter(1)),
    )
)
FOUND_CONTROL = Columns(
    (
        Column("path", PATH, "where it was found"),
        Column("offset", OFFSET, "where in that file"),
        Column("layout", LAYOUT, "documented or released", read=attrgetter("control.layout")),
        Column("created", or_null(TIME), "when it was made", read=_created),
        Column(
            "num_partitions",
            COUNT,
            "how many partitions the cluster has",
            read=attrgetter("control.header.num_partitions"),
        ),
        Column("structs", COUNT.described("Structs with a right checksum."), "structs with a right checksum"),
        Column("used", BOOLEAN, "whether it was the one that is used"),
        Column("reason", TEXT, "why, in words (not stable)"),
    )
)
_PARTITION = Columns(
    (
        Column("partition", COUNT32, "the partition"),
        Column(
            "first_transaction_id",
            or_null(COUNT).described("Null where nothing was found of it."),
            "its first transaction",
            read=_first,
        ),
        Column("last_transaction_id", or_null(COUNT), "its last one", read=_last),
        Column("records", COUNT, "records that were written"),
        Column("segments", COUNT, "segments that they are in"),
        Column("bytes", SIZE, "what they take"),
        Column("missing", listed(struct(GAP)), "ids that were not found, between those that were"),
        Column("witnesses", listed(struct(_WITNESS)), "what says that they are its records", read=_witnesses),
        Column("session_id", INT64, "the session that was written", read=_mark(0)),
        Column("low_water_mark", INT64, "the low-water mark that was written", read=_mark(1)),
        Column("local_low_water_mark", INT64, "the local low-water mark that was written", read=_mark(2)),
        Column(
            "acknowledged_missing",
            listed(struct(GAP)).described(
                "Behind the last one written: what the local low-water mark says was durable here."
            ),
            "what was durable here and was not found",
            read=_acknowledged,
        ),
    )
)
_CONFLICT = Columns(
    (
        Column("partition", COUNT32, "the partition"),
        Column("transaction_id", COUNT, "the id of which there are differing copies"),
        Column("kept", struct(PLACE), "the one that was written"),
        Column("others", listed(struct(PLACE)), "the others"),
        Column("reason", TEXT, "why, in words (not stable)"),
    )
)
_DOUBTFUL = Columns(
    (
        Column("path", PATH, "the file"),
        Column("offset", OFFSET, "where in it"),
        Column("length", SIZE, "how many bytes"),
        Column("first_transaction_id", COUNT, "the first id that stands there"),
        Column("last_transaction_id", COUNT, "the last one"),
        Column("records", COUNT, "how many records"),
        Column("reason", TEXT, "why they were not written (not stable)"),
    )
)
_UNREADABLE = Columns(
    (
        Column("path", PATH, "the file"),
        Column("offset", OFFSET, "where in it"),
        Column("length", SIZE, "how many bytes"),
    )
)
_UNREAD = Columns(
    (
        Column("path", PATH, "the file or directory"),
        Column("message", TEXT, "why, in words (not stable)"),
    )
)

SALVAGE_REPORT = ObjectType(
    name="salvage-report",
    meaning="What salvage found, wrote and left out: found = written + duplicates + superseded + doubtful_records + elsewhere.",
    columns=(
        Column("path", PATH, "the directory that was written"),
        Column("cluster_key", KEY, "the cluster's key"),
        Column("num_partitions", COUNT, "how many partitions the cluster has"),
        Column(
            "num_partitions_from",
            one_of("given", "control-file", "records").described(
                "What it goes by: --partitions, a control file that was found, or the highest partition found."
            ),
            "what that goes by",
        ),
        Column("layout", LAYOUT, "documented or released"),
        Column("exit_status", EXIT_STATUS, "the exit status", read=label),
        Column("sources", COUNT, "files that were read"),
        Column("bytes", SIZE, "what was read of them"),
        Column("headers", COUNT, "headers that were found"),
        Column("found", COUNT, "records that were found"),
        Column("written", COUNT, "of these: written"),
        Column("duplicates", COUNT, "of these: copies of others"),
        Column("superseded", COUNT, "of these: replaced by later ones"),
        Column("doubtful_records", COUNT, "of these: not believed"),
        Column("elsewhere", COUNT, "of these: another cluster's or partition's"),
        Column("missing", COUNT, "ids that were not found"),
        Column("partitions", listed(struct(_PARTITION)), "each partition"),
        Column("conflicts", listed(struct(_CONFLICT)), "differing copies of a record"),
        Column("doubtful", listed(struct(_DOUBTFUL)), "records that were not written"),
        Column("unreadable", listed(struct(_UNREADABLE)), "what could not be read"),
        Column("findings", listed(struct(FINDING)), "what verify says of the directory then"),
        Column("acknowledged_missing", COUNT, "ids that were durable here and were not found"),
        Column(
            "marks_unknown",
            listed(COUNT).described("Partitions whose marks the control file used does not tell."),
            "partitions whose marks are lost",
        ),
        Column("controls", listed(struct(FOUND_CONTROL)), "control files that were found"),
        Column(
            "unread",
            listed(struct(_UNREAD)).described("Files and directories that could not be listed, examined or opened."),
            "what was not read at all",
        ),
    ),
)

SALVAGED_CONTROL = ObjectType(
    name="salvaged-control",
    meaning="The control file that salvage --control found and wrote.",
    columns=(
        Column("path", PATH, "the control file that was written"),
        Column("cluster_key", KEY, "the cluster's key"),
        Column("num_partitions", COUNT, "how many partitions the cluster has"),
        Column("layout", LAYOUT, "documented or released"),
        Column("exit_status", EXIT_STATUS, "the exit status", read=label),
        Column("sources", COUNT, "files that were read"),
        Column("bytes", SIZE, "what was read of them"),
        Column(
            "marks_unknown",
            listed(COUNT).described("Partitions whose pair was lost; it stays invalid."),
            "partitions whose marks are lost",
        ),
        Column("controls", listed(struct(FOUND_CONTROL)), "control files that were found"),
        Column("findings", listed(struct(FINDING)), "what verify says of the directory then, without notes"),
    ),
)
