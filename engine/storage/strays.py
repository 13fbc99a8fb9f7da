"""*Stray* data files: files with the suffix ``.seg`` whose name is not one that a node gives a segment.

A released node opens every file with the suffix ``.seg``, and with it the index of the same name with the suffix ``.idx``.  It
does not start when one of the two is missing, ends inside its header, or belongs to another cluster or partition.  Otherwise it
takes the stray for a segment, and orders segments by the first id in their headers.  A program that goes by the names of
segments, as this one does, never reads a stray: its records are hidden.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from waltzctl.engine.log.view import StraySegment, read_segment_header
from waltzctl.engine.losses import covered, without
from waltzctl.engine.scan.byte_source import FileSource
from waltzctl.engine.scan.columns import RecordRun
from waltzctl.engine.scan.scanner import summarise_records
from waltzctl.formats.segment import FORMAT_VERSION, HEADER_SIZE, SegmentHeader

Ids = tuple[int, int]
"""First and last transaction id of a range."""


@dataclass(frozen=True, slots=True)
class StrayVerdict:
    """Verdict on a stray data file by its header and its index's header.

    `refusal`: why a released node does not start with the stray, in words; None when it does.  `own`: the headers are those of a
    segment of this partition.
    """

    stray: StraySegment
    header: SegmentHeader | None
    refusal: str | None
    own: bool

    @property
    def first(self) -> int | None:
        """First transaction id in the header; None when the file is not the partition's own."""
        return self.header.first_transaction_id if self.own and self.header is not None else None


def judge_stray(stray: StraySegment, cluster_key: uuid.UUID | None, partition: int | None) -> StrayVerdict:
    """Judge a stray by its headers, as a released node would.  A key or partition of None is not compared.

    Raises DiskReadError.
    """
    header, index = read_segment_header(stray.data), read_segment_header(stray.index)
    refusal = _refusal("it", header, cluster_key, partition)
    if refusal is None and stray.index is None:
        refusal = f"there is no index {stray.index_path.name}"
    if refusal is None:
        refusal = _refusal(f"its index {stray.index_path.name}", index, cluster_key, partition)
    own = (
        header is not None
        and _refusal("it", header, cluster_key, partition) is None
        and header.version == FORMAT_VERSION
        and header.first_transaction_id >= 0
        and (index is None or _same(header, index))
    )
    return StrayVerdict(stray, header, refusal, own)


def _refusal(
    what: str, header: SegmentHeader | None, cluster_key: uuid.UUID | None, partition: int | None
) -> str | None:
    if header is None:
        return f"{what} ends inside its header"
    if cluster_key is not None and header.cluster_key != cluster_key:
        return f"{what} belongs to the cluster {header.cluster_key}"
    if partition is not None and header.partition != partition:
        return f"{what} belongs to partition {header.partition}"
    return None


def _same(one: SegmentHeader, other: SegmentHeader) -> bool:
    return (one.cluster_key, one.partition, one.first_transaction_id) == (
        other.cluster_key,
        other.partition,
        other.first_transaction_id,
    )


def ids_of(verdict: StrayVerdict) -> tuple[Ids, ...]:
    """The ids of the intact records in a stray that is the partition's own; reads the whole file.  Raises DiskReadError."""
    first = verdict.first
    if first is None:
        return ()
    try:
        with FileSource(verdict.stray.data.path) as source:
            items = summarise_records(source, first_transaction_id=first, start=HEADER_SIZE)
            runs = (item for item in items if isinstance(item, RecordRun))
            return joined((run.first_transaction_id, run.first_transaction_id + len(run) - 1) for run in runs)
    except FileNotFoundError:
        return ()


def joined(ranges: Iterable[Ids]) -> tuple[Ids, ...]:
    """The ranges in order, with touching and overlapping ones merged."""
    found: list[Ids] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return tuple(found)


def hidden(ids: Iterable[Ids], known: Iterable[Ids]) -> tuple[Ids, ...]:
    """The parts of `ids` that are not in `known`."""
    held = covered((low, high + 1) for low, high in known)
    return tuple((low, stop - 1) for first, last in joined(ids) for low, stop in without((first, last + 1), held))
