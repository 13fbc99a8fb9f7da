"""Evidence of durability: up to which id a partition is proven to have held transactions, and so which id may be assigned next.

There are five sources of evidence; the highest one counts:

================================  ===================================================================================
local low-water mark              everything up to it was durable here when the session began
a segment's name                  a segment is created only when everything below it is durable, so a data or index file with N
                                  as the first transaction id in its name proves those up to N - 1
an index without data             it has an entry for each record that its data file had; the data file is missing, or ends
                                  inside its header
an index with data                its entries up to the last checkpoint: a record after a checkpoint is written only once index
                                  and data up to the checkpoint are durable.  Entries after it prove nothing: a crash may leave
                                  more of the index than of the data
ledger of accepted losses         a loss that was accepted had been here
================================  ===================================================================================

Verify, recover, append and the opening of a storage directory compare this evidence with the records that can be read.  A proven
transaction that cannot be read is lost: its id is never assigned again, and the index that proves it is not truncated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.log import places
from waltzctl.engine.log.places import open_source
from waltzctl.engine.log.view import PartitionView, SegmentView, read_segment_header
from waltzctl.engine.scan.byte_source import read_bytes
from waltzctl.engine.scan.columns import RecordView
from waltzctl.engine.scan.scanner import read_record_at
from waltzctl.formats.accepted_losses import AcceptedLoss
from waltzctl.formats.segment import (
    CHECKPOINT_INTERVAL,
    ENTRY_SIZE,
    HEADER_SIZE,
    INDEX_ENTRY,
    RECORD_OVERHEAD,
    entry_position,
)

MOMENT_MS = 60_000
"""Milliseconds by which the creation times of a data file and its index may be apart."""
_CHUNK = 8192
"""Entries read per call where the last entry of an index is zero."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Up to which id transactions are proven, by source of evidence: the id after the last proven one, 0 where there is none.

    ====================== =====================================================================================
    `mark`                 by the local low-water mark
    `names`                by the names of data and index files
    `without_data`         by an index without a data file, that of the segment `index_without_data` (first id)
    `with_data`            by an index with its data file, that of the segment `index_with_data`
    `accepted`             by the ledger of accepted losses
    `listed`               the id after the last entry of the index of `index_with_data`; entries after the last
                           checkpoint prove nothing
    ====================== =====================================================================================
    """

    mark: int = 0
    names: int = 0
    without_data: int = 0
    with_data: int = 0
    accepted: int = 0
    index_without_data: int | None = None
    index_with_data: int | None = None
    listed: int = 0

    @property
    def next_id(self) -> int:
        """Every transaction below this id was here once, accepted losses included; it is the next id that may be assigned."""
        return max(self.required, self.accepted)

    @property
    def required(self) -> int:
        """Every transaction below this id must be here; a missing one is a loss, accepted or not."""
        return max(self.mark, self.files)

    @property
    def files(self) -> int:
        """The id after the last one that the partition's files prove, without mark and ledger."""
        return max(self.names, self.without_data, self.with_data)

    def said_by(self) -> str:
        """The source of evidence for `required`, as a part of a sentence."""
        if self.mark >= self.files:
            return f"the local low-water mark is {self.mark - 1}"
        if self.with_data == self.required:
            return f"segment {self.index_with_data}'s index leads behind the checkpoint of transaction {self.with_data - 1}"
        if self.without_data == self.required:
            return f"the index of segment {self.index_without_data}, whose data file is gone, ends with {self.without_data - 1}"
        return f"a file is called after transaction {self.names}, which was only begun behind {self.names - 1}"


def checkpointed(first: int, entries: int) -> int:
    """The id after the last transaction that an index with data proves; the index has `entries` entries from id `first` on.

    It is the last checkpoint before the last entry, because the record of the last entry may never have reached the disk.
    """
    return max(first, (first + entries - 1) // CHECKPOINT_INTERVAL * CHECKPOINT_INTERVAL)


def evidence(
    view: PartitionView | None, local_low_water_mark: int | None, accepted: Iterable[AcceptedLoss] = ()
) -> Evidence:
    """The evidence in a partition's files, its mark and the ledger.  Reads at most the ends of a few index files.

    `view`: None where there is no directory.  `local_low_water_mark`: None where it is not known.  `accepted`: the accepted
    losses of this partition.  An index that cannot be read counts by its length if it has no data file, else not at all.
    """
    segments = () if view is None else view.segments
    mark = 0 if local_low_water_mark is None else max(0, local_low_water_mark + 1)
    names = max((segment.first_transaction_id for segment in segments), default=0)
    given_up = max((loss.last + 1 for loss in accepted), default=0)
    without_data, with_data, listed = 0, 0, 0
    orphan: int | None = None
    sibling: int | None = None
    for segment in reversed(segments):
        first = segment.first_transaction_id
        if _without_data(segment):
            if segment.entries and first + segment.entries > without_data:
                proven = first + written_entries(segment)
                if proven > max(without_data, first):
                    without_data, orphan = proven, first
        elif checkpointed(first, segment.entries) > max(names, with_data) and _own(segment):
            entries = written_entries(segment)
            if checkpointed(first, entries) > max(with_data, first):
                with_data, sibling, listed = checkpointed(first, entries), first, first + entries
    return Evidence(mark, names, without_data, with_data, given_up, orphan, sibling, listed)


def _without_data(segment: SegmentView) -> bool:
    return segment.data is None or segment.data.size < HEADER_SIZE


def _own(segment: SegmentView) -> bool:
    """Whether an index belongs to this segment of this partition.

    Its header decides.  Where one field of the header is wrong, the index still belongs here if it was created at the time of the
    data file and its entries lead to records of this segment.
    """
    try:
        header = read_segment_header(segment.index)
        if header is None:
            return False
        partition = header.partition if segment.partition is None else segment.partition
        wrong = (header.partition != partition) + (header.first_transaction_id != segment.first_transaction_id)
        if wrong != 1:
            return not wrong
        data = read_segment_header(segment.data)
        return data is not None and abs(header.created - data.created) <= MOMENT_MS and _leads_here(segment)
    except (DiskReadError, FileNotFoundError):
        return False


def _leads_here(segment: SegmentView) -> bool:
    """Whether the middle and the last of the entries inside the data file lead to records with their ids.

    False if all records are equally long: the entries of any such index would.  Raises DiskReadError, FileNotFoundError.
    """
    first, low, high = segment.first_transaction_id, 0, segment.entries
    size = 0 if segment.data is None else segment.data.size
    with open_source(segment.index_path) as index, open_source(segment.data_path) as data:

        def entry(place: int) -> int:
            raw = read_bytes(index, entry_position(place, 0), ENTRY_SIZE)
            return int(INDEX_ENTRY.struct.unpack(raw)[0]) if len(raw) == ENTRY_SIZE else -1

        while low < high:  # number of entries whose offset is inside the file
            middle = (low + high) // 2
            low, high = (middle + 1, high) if 0 <= entry(middle) <= size - RECORD_OVERHEAD else (low, middle)
        if low < 3:
            return False  # too few to know whether records differ in length
        step = entry(1) - HEADER_SIZE
        if all(entry(place) == HEADER_SIZE + place * step for place in (low // 2, low - 1)):
            return False
        for place in (low // 2, low - 1):
            offset = entry(place)
            if offset < HEADER_SIZE:
                return False
            found = read_record_at(data, offset, expected_id=first + place)
            if not isinstance(found, RecordView):
                return False
    return True


def written_entries(segment: SegmentView) -> int:
    """Number of entries up to the last that is not zero: after a crash the file may end with zeros, allocated but not written.

    The number by the file's length where the file cannot be read.
    """
    count, index, chunk = segment.entries, segment.index, 1  # nearly always the last entry is not zero
    while index is not None and count:
        start = max(0, count - chunk)
        try:
            data = places.read_range(index.path, HEADER_SIZE + start * ENTRY_SIZE, (count - start) * ENTRY_SIZE)
        except (DiskReadError, FileNotFoundError):
            return segment.entries
        if rest := data.rstrip(b"\0"):
            return start + -(-len(rest) // ENTRY_SIZE)
        count, chunk = start, _CHUNK
    return count
