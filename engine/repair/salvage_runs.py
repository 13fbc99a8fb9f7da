"""Finding runs of records, and the headers between them, in arbitrary bytes.

A run is a sequence of records back to back with consecutive ids, each with a right record checksum.  Headers are searched only
between runs, since everything inside an intact record is client data.  A header has no checksum, so it is recognised by its
shape (128 bytes: version 0, key, partition, first id, zeros) and by what follows it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from waltzctl.engine.repair.salvage_control import carve_control
from waltzctl.engine.repair.salvage_headers import FoundHeader, HeaderKind
from waltzctl.engine.scan.byte_source import ByteSource, read_bytes
from waltzctl.engine.scan.carve import carve_records
from waltzctl.engine.scan.columns import RecordBatch
from waltzctl.formats.control import MAX_PARTITIONS
from waltzctl.formats.segment import (
    FORMAT_VERSION,
    HEADER_SIZE,
    INDEX_ENTRY,
    RECORD_HEADER,
    RECORD_OVERHEAD,
    SEGMENT_HEADER,
    SegmentHeader,
)

WINDOW = 1 << 20
_RESERVED = bytes(SEGMENT_HEADER.size_of("reserved"))
_NOT_ZERO = re.compile(rb"[^\0]")
_FRONT = struct.Struct(">iq")
_PLAUSIBLE_TIMES = range(1_000_000_000_000, 5_000_000_000_000)
"""Milliseconds: 2001 to 2128."""


@dataclass(frozen=True, slots=True, eq=False)
class SalvageRun:
    """Records back to back with consecutive ids.  `start` and `end`: byte offsets in source number `source`."""

    source: int
    start: int
    end: int
    first: int
    sizes: npt.NDArray[np.uint32]
    """Bytes of each record."""
    request_partition: int | None
    """The partition in the request ids; None when they differ."""
    data_damaged: tuple[int, ...] = ()
    """Ids of the records whose data does not match the data checksum."""

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def last(self) -> int:
        """Id of the last record."""
        return self.first + len(self.sizes) - 1

    def offsets(self) -> npt.NDArray[np.int64]:
        """Byte offset of each record, followed by the run's end."""
        result = np.empty(len(self.sizes) + 1, np.int64)
        result[0] = self.start
        np.cumsum(self.sizes, out=result[1:])
        result[1:] += self.start
        return result


class _Builder:
    """Builds a run from consecutive batches."""

    def __init__(self, source: int, batch: RecordBatch) -> None:
        self.source = source
        self.start, self.first = int(batch.offset[0]), int(batch.transaction_id[0])
        self.end, self.next = self.start, self.first
        self._sizes: list[npt.NDArray[np.uint32]] = []
        self._damaged: list[int] = []
        self._partition: int | None = int(batch.request_id_low[0]) >> 32
        self.add(batch)

    def continues(self, batch: RecordBatch) -> bool:
        return int(batch.offset[0]) == self.end and int(batch.transaction_id[0]) == self.next

    def add(self, batch: RecordBatch) -> None:
        self._sizes.append((batch.data_length + RECORD_OVERHEAD).astype(np.uint32))
        self._damaged += batch.transaction_id[~batch.data_ok].tolist()
        if self._partition is not None and not (batch.request_id_low >> 32 == self._partition).all():
            self._partition = None
        self.end, self.next = batch.end, int(batch.transaction_id[-1]) + 1

    def run(self) -> SalvageRun:
        sizes = np.concatenate(self._sizes)
        return SalvageRun(self.source, self.start, self.end, self.first, sizes, self._partition, tuple(self._damaged))


def find_runs(source: ByteSource, number: int) -> Iterator[SalvageRun]:
    """The runs of a source, in file order.  Raises DiskReadError."""
    current: _Builder | None = None
    for batch in carve_records(source):
        if current is not None and current.continues(batch):
            current.add(batch)
            continue
        if current is not None:
            yield current.run()
        current = _Builder(number, batch)
    if current is not None:
        yield current.run()


def find_headers(source: ByteSource, number: int, runs: Iterable[SalvageRun]) -> Iterator[FoundHeader]:
    """The headers between the runs of a source, in file order.  Raises DiskReadError."""
    position = 0
    for run in runs:
        yield from _between(source, number, position, run.start, run)
        position = run.end
    yield from _between(source, number, position, source.size(), None)


def _between(source: ByteSource, number: int, start: int, stop: int, run: SalvageRun | None) -> Iterator[FoundHeader]:
    """Headers in bytes ``[start, stop)``; `run`, if any, begins at `stop`."""
    own = _own_header(source, number, start, run) if run is not None else None
    seen = start
    for offset in _candidates(source, start, stop if own is None else own.offset):
        found = _judge(source, number, offset) if offset >= seen else None
        if found is not None:
            seen = found.end
            yield found
    if own is not None:
        yield own


def _own_header(source: ByteSource, number: int, start: int, run: SalvageRun) -> FoundHeader | None:
    """The header right in front of a run, not before `start`."""
    offset = run.start - HEADER_SIZE
    if offset < start:
        return None
    header = SegmentHeader.decode(read_bytes(source, offset, HEADER_SIZE))
    if not _right_in_front(header, run):
        return None
    return FoundHeader(
        number, offset, HeaderKind.SEGMENT, header.cluster_key, header.partition, header.first_transaction_id
    )


def _right_in_front(header: SegmentHeader, run: SalvageRun) -> bool:
    """Whether the 128 bytes before a run are its header; one damaged field other than key and partition is tolerated."""
    oddities = (
        header.version != FORMAT_VERSION,
        header.created not in _PLAUSIBLE_TIMES,
        header.first_transaction_id != run.first,
        header.reserved.count(0) < len(_RESERVED),
    )
    return sum(oddities) <= 1 and header.cluster_key.int != 0 and 0 <= header.partition < MAX_PARTITIONS


def _candidates(source: ByteSource, start: int, stop: int) -> Iterator[int]:
    """Offsets in ``[start, stop - 128]`` where version, time and reserved bytes are those of a header."""
    base = start
    while True:
        window = bytes(read_bytes(source, base, min(WINDOW, stop - base)))
        if len(window) < HEADER_SIZE:
            return
        position = 0
        while (zeros := window.find(_RESERVED, position)) >= 0:
            behind = _NOT_ZERO.search(window, zeros + len(_RESERVED))
            end = behind.start() if behind else len(window)
            # the header's last nonzero byte is the one in front of the zeros, and one of its first 40 bytes
            for place in range(max(zeros - SEGMENT_HEADER.offset_of("reserved"), 0), min(zeros, end - HEADER_SIZE + 1)):
                version, created = _FRONT.unpack_from(window, place)
                if version == FORMAT_VERSION and created in _PLAUSIBLE_TIMES:
                    yield base + place
            position = end
        if len(window) < WINDOW:
            return
        base += len(window) - HEADER_SIZE + 1


def _judge(source: ByteSource, number: int, offset: int) -> FoundHeader | None:
    """The header that the 128 bytes at `offset` are, given that its reserved bytes are zero; None when they are none."""
    raw = bytes(read_bytes(source, offset, HEADER_SIZE + RECORD_HEADER.size))
    header, behind = SegmentHeader.decode(raw), raw[HEADER_SIZE:]
    turned = header.partition < 0  # inverted number of partitions: a control file marked as having a commit journal
    partition = ~header.partition if turned else header.partition
    if header.cluster_key.int == 0 or not 0 <= partition <= MAX_PARTITIONS or header.first_transaction_id < 0:
        return None
    control = header.first_transaction_id == 0 and carve_control(source, offset) is not None
    if turned and not control:
        return None
    kind = HeaderKind.CONTROL if control else _kind(header, behind)
    return FoundHeader(number, offset, kind, header.cluster_key, partition, header.first_transaction_id)


def _kind(header: SegmentHeader, behind: bytes) -> HeaderKind:
    if len(behind) >= RECORD_HEADER.size:
        number, *_, length, _ = RECORD_HEADER.struct.unpack_from(behind)
        if number == header.first_transaction_id and length >= 0:
            return HeaderKind.SEGMENT
    if len(behind) >= INDEX_ENTRY.size and INDEX_ENTRY.struct.unpack_from(behind)[0] == HEADER_SIZE:
        return HeaderKind.INDEX
    return HeaderKind.ALONE
