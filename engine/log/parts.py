"""Division of a segment into parts that can be scanned in parallel; each begins at a record that the index proves."""

from __future__ import annotations

from dataclasses import dataclass

from waltzctl.engine.log.index import IndexReader, RecordPlace, prove
from waltzctl.engine.scan.byte_source import ByteSource
from waltzctl.formats.segment import HEADER_SIZE


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes ``[start, stop)`` of a data file; the record at `start` has the id `first`."""

    first: int
    start: int
    stop: int


def share(first: int, stop: int, number: int, parts: int) -> int | None:
    """The id with which part `number` (from 0) begins, when the ids ``[first, stop)`` are divided evenly into `parts` parts.

    None where there are fewer ids than parts.
    """
    return first + (stop - first) * number // parts if stop - first >= parts else None


def cut(
    data: ByteSource, index: IndexReader | None, begin: RecordPlace, ids: tuple[int, int], stop: int, parts: int
) -> list[Part]:
    """Up to `parts` parts that cover the data from `begin` to the offset `stop`, which holds the records ``[ids[0], ids[1])``.

    Fewer where the index does not prove a record at an even share, or there are fewer ids.  Raises DiskReadError.
    """
    first, behind = ids
    bounds = [begin]
    parts = 1 if index is None else min(parts, behind - first)
    for number in range(1, parts):
        wanted = share(first, behind, number, parts)
        assert index is not None
        assert wanted is not None, "there are as many ids as parts"
        found = prove(data, index, wanted, stop)
        if found is not None and found.offset > bounds[-1].offset and found.transaction_id > bounds[-1].transaction_id:
            bounds.append(RecordPlace(found.offset, found.transaction_id))
    stops = [bound.offset for bound in bounds[1:]] + [stop]
    return [Part(bound.transaction_id, bound.offset, end) for bound, end in zip(bounds, stops, strict=True)]


def cut_segment(data: ByteSource, index: IndexReader | None, begins: int, size: int, part: int) -> list[Part]:
    """Parts of about `part` bytes of a whole data file of `size` bytes; `begins` is the id of its first record.

    Raises DiskReadError.
    """
    behind = begins if index is None else begins + index.count()
    return cut(data, index, RecordPlace(HEADER_SIZE, begins), (begins, behind), size, -(-size // part))
