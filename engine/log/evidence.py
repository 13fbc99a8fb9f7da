"""What proves that transactions were in a partition: the one answer to "what is the next id that may be given away here?".

Witnesses, of which the highest counts:

================================  ===================================================================================
local low-water mark              everything up to it was durable here when the session began
a segment's name                  a segment begins only when everything in front of it is durable, so a data file or an index
                                  that is called after transaction N proves those up to N - 1
an index without data             it has an entry for each record that its data file had: the file is missing, or ends inside its
                                  header
an index with data                entries up to the last checkpoint, for a record behind a checkpoint is only written once index
                                  and data up to it are durable; what stands behind may be more than a crash left of the data
ledger of accepted losses         what somebody agreed to lose was here, too
================================  ===================================================================================

Verify, recover, append and the opening of a storage directory ask here, and compare it with what can be read.  What is proven and
not there is lost: nobody gives its ids away again, and an index that proves it is not cut to what is left.
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
"""Entries that are read together where the last one of an index is zero."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Up to where transactions are proven, by witness: each number is the id behind the last one, 0 where nothing is proven.

    `index_without_data` is the segment (first id) of the index that `without_data` comes from, and `index_with_data` that of
    `with_data`; None where there is none.  `listed`: the id behind the last entry of that index, which a crash may have left of
    records that never reached the disk.
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
        """Below this id every transaction was here once, what was given up since included."""
        return max(self.required, self.accepted)

    @property
    def required(self) -> int:
        """Below this id every transaction must be here now, unless something is lost that nobody has accepted."""
        return max(self.mark, self.files)

    @property
    def files(self) -> int:
        """What the partition's files prove, without marks and ledger."""
        return max(self.names, self.without_data, self.with_data)

    def said_by(self) -> str:
        """The witness of `required`, as a part of a sentence."""
        if self.mark >= self.files:
            return f"the local low-water mark is {self.mark - 1}"
        if self.with_data == self.required:
            return f"segment {self.index_with_data}'s index leads behind the checkpoint of transaction {self.with_data - 1}"
        if self.without_data == self.required:
            return f"the index of segment {self.index_without_data}, whose data file is gone, ends with {self.without_data - 1}"
        return f"a file is called after transaction {self.names}, which was only begun behind {self.names - 1}"


def checkpointed(first: int, entries: int) -> int:
    """The id behind the last transaction that an index with data proves: `entries` of them, from transaction `first` on.

    The last checkpoint in front of its last entry; the record of that entry itself may never have reached the disk.
    """
    return max(first, (first + entries - 1) // CHECKPOINT_INTERVAL * CHECKPOINT_INTERVAL)


def evidence(
    view: PartitionView | None, local_low_water_mark: int | None, accepted: Iterable[AcceptedLoss] = ()
) -> Evidence:
    """What a partition's files, its mark and the ledger prove.  Reads at most the ends of a few index files.

    `view` None: there is no directory.  `local_low_water_mark` None: nothing tells it.  `accepted`: losses of this partition.
    An index that cannot be read counts by its length where its data file is gone, and not at all beside one.
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

    By its header; or, where one field of that is wrong, by its time and by entries that lead to this segment's records.
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
    """Whether the middle and the last of the entries that lead into the data file lead to their records.

    Not where all records are equally long: then every index leads here.  Raises DiskReadError, FileNotFoundError.
    """
    first, low, high = segment.first_transaction_id, 0, segment.entries
    size = 0 if segment.data is None else segment.data.size
    with open_source(segment.index_path) as index, open_source(segment.data_path) as data:

        def entry(place: int) -> int:
            raw = read_bytes(index, entry_position(place, 0), ENTRY_SIZE)
            return int(INDEX_ENTRY.struct.unpack(raw)[0]) if len(raw) == ENTRY_SIZE else -1

        while low < high:  # how many lead into the file
            middle = (low + high) // 2
            low, high = (middle + 1, high) if 0 <= entry(middle) <= size - RECORD_OVERHEAD else (low, middle)
        if low < 3:
            return False  # of one length nobody knows whether others differ
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
    """Entries of an index up to the last that was written: zeros behind it are space that a crash left of a file's growth.

    By the file's length where it cannot be read.
    """
    count, index, chunk = segment.entries, segment.index, 1  # nearly always the last entry says it all
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
