"""The entries of an index as stored, with a finding in front of each entry that is not the offset of its record."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import PurePath

from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.findings import Code, Finding
from waltzctl.engine.inspect.dump_chunks import ChunkReader
from waltzctl.engine.inspect.dump_records import at_most, settled
from waltzctl.engine.inspect.partition_runs import runs
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.segment_checks import FilesChangedError, unreadable
from waltzctl.engine.inspect.targets import Scope, look_around, plan
from waltzctl.engine.log.index import IndexReader
from waltzctl.engine.log.index_comparison import CHUNK
from waltzctl.engine.losses import Ids
from waltzctl.engine.scan.byte_source import read_bytes
from waltzctl.formats.segment import ENTRY_SIZE, HEADER_SIZE, RECORD_HEADER, entry_position


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """An index entry: `offset` is the stored offset of the record `transaction_id` in the data file.

    `position`: the offset of the entry itself in the index file.  Both are in bytes.
    """

    partition: int | None
    segment: int
    transaction_id: int
    offset: int
    position: int


def dump_index(
    path: PurePath,
    *,
    partitions: Collection[int] | None = None,
    first: int | None = None,
    last: int | None = None,
    limit: int | None = None,
    reverse: bool = False,
) -> Iterator[IndexEntry | Finding]:
    """Entries of ids from `first` to `last` (inclusive) of everything that `path` names, at most `limit` of them.

    An entry has a finding in front of it if there is no record header with its id at its offset; checksums are not compared
    (verify does).  Raises NotWaltzError, InvalidRequestError, DiskReadError, before the first item.
    """
    (scope,) = plan([path], partitions)
    return at_most(limit, _dump(scope, partitions, first, last, reverse))


def _dump(
    scope: Scope, partitions: Collection[int] | None, first: int | None, last: int | None, reverse: bool
) -> Iterator[IndexEntry | Finding]:
    limits = ReadLimits()
    around = look_around(scope, partitions)
    for run in runs(scope, around, limits, partitions):
        yield from run.begin()
        jobs, held = list(run.jobs), list[Ids]()
        for job in reversed(jobs) if reverse else jobs:
            try:
                with ChunkReader(job, limits, data=False) as reader:
                    yield from (one for one in reader.header_findings if one.path == job.index_path)
                    if reader.reader is None:
                        yield from reader.index_problem()
                    else:
                        held.append((reader.reader.begins, reader.reader.begins + reader.reader.count()))
                        yield from _entries(reader, reader.reader, first, last, reverse)
            except FilesChangedError:
                continue  # truncated or removed since it was listed
            except DiskReadError as error:
                yield from unreadable(job, error).findings
        yield from run.moved()
        yield from run.orphans(held)


def _entries(
    segment: ChunkReader, index: IndexReader, first: int | None, last: int | None, reverse: bool
) -> Iterator[IndexEntry | Finding]:
    begin = index.begins if first is None else max(first, index.begins)
    end = index.begins + index.count() if last is None else min(last + 1, index.begins + index.count())
    starts = range(begin, end, CHUNK)
    for start in reversed(starts) if reverse else starts:
        entries = index.entries(start, min(CHUNK, end - start)).tolist()
        places = range(len(entries))
        for place in reversed(places) if reverse else places:
            number, offset = start + place, int(entries[place])
            yield from entry_findings(segment, number, offset)
            position = entry_position(number, index.begins)
            yield IndexEntry(segment.job.partition, segment.job.first, number, offset, position)


def entry_findings(segment: ChunkReader, number: int, offset: int) -> Iterator[Finding]:
    """A finding if there is no record header of transaction `number` at `offset`, which is its index entry."""
    job = segment.job
    beyond = offset >= segment.size
    if not beyond and offset >= HEADER_SIZE:
        raw = read_bytes(segment.data, offset, RECORD_HEADER.size_of("transaction_id"))
        if int.from_bytes(raw, signed=True) == number and len(raw) == RECORD_HEADER.size_of("transaction_id"):
            return
    if not settled(segment):
        return
    why = "beyond the end of the data file" if beyond else "where no record of this id begins"
    yield job.files.finding(
        Code.INDEX_LONG if beyond else Code.INDEX_ENTRY,
        f"the entry of transaction {number} says offset {offset}, {why}",
        index=True,
        transaction_id=number,
        offset=entry_position(number, segment.begins),
        length=ENTRY_SIZE,
    )
