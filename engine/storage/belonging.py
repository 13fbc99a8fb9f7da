"""Whether a segment with the right header holds another partition's records, by their request ids.

The header names the partition of a segment.  When the header was overwritten, or another file's records were copied behind it,
only the records tell.  The request id that the client gives each record contains a partition number; released clients, servers
and `append` write the partition's own number there.  A program may write any number, so request ids alone prove nothing.  The
records of a segment are taken for another partition's when all of them name that one, and one of these *witnesses* confirms it:

- the *neighbouring segments*: more of them name this partition than another one;
- the *other partition's directory*: it has the same record under the same transaction id;
- the segment's own *index*: its entries do not point to where these records begin.

Verify and the opening of a partition check every segment; a repair checks each segment before it changes it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import PurePath

import numpy as np

from waltzctl.engine.errors import DiskReadError, NotWaltzError
from waltzctl.engine.log.places import open_source
from waltzctl.engine.log.view import SegmentView, read_segment_header, view_partition
from waltzctl.engine.scan.byte_source import ByteSource, read_bytes
from waltzctl.engine.scan.columns import Damage, RecordView
from waltzctl.engine.scan.scanner import read_record_at, scan_records
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import ENTRY_SIZE, FORMAT_VERSION, HEADER_SIZE, INDEX_ENTRY, entry_position

_SAMPLE = 4
"""Records at the beginning of a segment that are read first."""
_MAX_SAMPLED = 1 << 20
"""Most bytes of data of a record that is sampled."""
_CONFIRMED = 16 << 20
"""Bytes at the beginning of a segment in which every record has to name the same partition."""
NEIGHBOURS = 8
"""Most neighbouring segments whose first request id is read."""


def stranger(
    segment: SegmentView,
    source: ByteSource,
    partition: int,
    cluster_key: uuid.UUID | None,
    segments: Sequence[SegmentView] = (),
) -> str | None:
    """Why a segment's records are taken for another partition's, in words; None when they are not.

    `source`: the bytes of the segment's data file.  `segments`: the segments of the partition; when none are given, its directory
    is listed, but only once the sampled records name another partition.  Raises DiskReadError for the segment's own files.
    """
    head = list(_head(source, partition))
    other = _other(head, partition)
    if other is None:
        return None
    directory = segment.data_path.parent
    witnesses = []
    own, strange = beside(
        segments or _segments(directory, partition), segment.first_transaction_id, partition, cluster_key
    )
    if own > strange:
        witnesses.append("those of the segments beside it name this one")
    if _stands_in(directory.parent / str(other), other, head[0]):
        witnesses.append(f"transaction {head[0].transaction_id} of that partition is the same record")
    if _not_indexed(segment, partition, head):
        witnesses.append("the entries of its index are not where these records begin")
    # the neighbours alone: a program may have changed what it writes, and then later records differ
    alone = own > strange and len(witnesses) == 1
    if not witnesses or (alone and not _all_name(source, head[0].transaction_id, other)):
        return None
    return f"the request ids of its records name partition {other}, and {' and '.join(witnesses)}"


def named_instead(source: ByteSource, partition: int) -> int | None:
    """The other partition that all request ids of a data file name; None when there is none.  It proves nothing by itself.

    Raises DiskReadError.
    """
    head = list(_head(source, partition))
    other = _other(head, partition)
    return other if other is not None and _all_name(source, head[0].transaction_id, other) else None


def _other(head: Sequence[RecordView], partition: int) -> int | None:
    """The other partition that every record of `head` names; None when there is none."""
    named = {_named(one) for one in head}
    other = named.pop() if len(named) == 1 else partition
    return other if other != partition and other >= 0 else None


def beside(
    segments: Sequence[SegmentView], first: int, partition: int, cluster_key: uuid.UUID | None
) -> tuple[int, int]:
    """How many segments beside the one with first id `first` name the partition in their first request id, and how many do not.

    Segments with a wrong header, and segments that cannot be read, are left out.
    """
    own = strange = 0
    near = sorted(segments, key=lambda one: abs(one.first_transaction_id - first))
    for other in near:
        if other.first_transaction_id == first:
            continue
        if own + strange == NEIGHBOURS:
            break
        try:
            record = _first(other, partition, cluster_key)
        except (DiskReadError, FileNotFoundError):
            continue
        if record is not None:
            own, strange = (own + 1, strange) if _named(record) == partition else (own, strange + 1)
    return own, strange


def _first(segment: SegmentView, partition: int, cluster_key: uuid.UUID | None) -> RecordView | None:
    """The first record of a segment whose header is right."""
    header = read_segment_header(segment.data)
    if header is None or header.partition != partition or cluster_key not in (None, header.cluster_key):
        return None
    with open_source(segment.data_path) as source:
        return _record(source, HEADER_SIZE)


def _head(source: ByteSource, partition: int) -> Iterator[RecordView]:
    """The first records of a segment, up to `_SAMPLE`; ends early at one that names the partition."""
    offset = HEADER_SIZE
    for _ in range(_SAMPLE):
        found = _record(source, offset)
        if found is None:
            return
        yield found
        if _named(found) == partition:
            return
        offset = found.end


def _record(source: ByteSource, offset: int, number: int | None = None) -> RecordView | None:
    found = read_record_at(source, offset, expected_id=number, max_record=_MAX_SAMPLED)
    return found if isinstance(found, RecordView) else None


def _named(record: RecordView) -> int:
    """The partition in a record's request id."""
    return RequestId.from_words(record.request_id_high, record.request_id_low).partition


def _all_name(source: ByteSource, first: int, other: int) -> bool:
    """Whether every intact record in the first `_CONFIRMED` bytes names the other partition."""
    stop = min(source.size(), _CONFIRMED)
    for item in scan_records(source, first_transaction_id=first, stop=stop, max_record=_CONFIRMED):
        if not isinstance(item, Damage) and np.any(item.request_id_low >> 32 != other):
            return False
    return True


def _segments(directory: PurePath, partition: int) -> tuple[SegmentView, ...]:
    try:
        return view_partition(directory, partition).segments
    except (DiskReadError, NotWaltzError):
        return ()


def _stands_in(directory: PurePath, partition: int, record: RecordView) -> bool:
    """Whether another partition's directory has the same record under the same transaction id."""
    number = record.transaction_id
    holding = [one for one in _segments(directory, partition) if one.first_transaction_id <= number and one.data]
    if not holding:
        return False
    segment = holding[-1]
    try:
        header = read_segment_header(segment.data)
        if header is None or header.partition != partition:
            return False
        (offset,) = _entries(segment, number, 1) or [HEADER_SIZE]
        with open_source(segment.data_path) as source:
            found = _record(source, offset, number) if offset >= HEADER_SIZE else None
    except (DiskReadError, FileNotFoundError):
        return False
    return found is not None and found.record == record.record


def _not_indexed(segment: SegmentView, partition: int, head: Sequence[RecordView]) -> bool:
    """Whether the index belongs to other records: its header is right, its entries rise, and most of them point elsewhere.

    The first entry is not compared, because it is the same in every index.  An index whose entries do not rise is damaged, and
    no witness.
    """
    try:
        header = read_segment_header(segment.index)
        if header is None or (header.version, header.partition, header.first_transaction_id) != (
            FORMAT_VERSION,
            partition,
            segment.first_transaction_id,
        ):
            return False
        entries = _entries(segment, segment.first_transaction_id, len(head))
    except (DiskReadError, FileNotFoundError):
        return False
    if entries[:1] != [HEADER_SIZE] or any(behind <= one for one, behind in pairwise(entries)):
        return False
    differ = [one.offset != entry for one, entry in zip(head, entries, strict=False)][1:]
    return sum(differ) * 2 > len(differ)


def _entries(segment: SegmentView, number: int, count: int) -> list[int]:
    """Up to `count` index entries of a segment from transaction `number` on; none where there is no index."""
    if segment.index is None:
        return []
    with open_source(segment.index_path) as source:
        raw = read_bytes(source, entry_position(number, segment.first_transaction_id), count * ENTRY_SIZE)
    return [entry for (entry,) in INDEX_ENTRY.struct.iter_unpack(raw[: len(raw) // ENTRY_SIZE * ENTRY_SIZE])]
