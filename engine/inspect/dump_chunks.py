"""Reads one segment forwards from any id, or backwards from its end, in chunks of bounded size."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace

from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.segment_checks import SegmentCheck
from waltzctl.engine.inspect.segment_job import SegmentJob
from waltzctl.engine.log.assess import Stretch, begun
from waltzctl.engine.log.index import RecordPlace, prove, prove_at_or_before
from waltzctl.engine.scan.columns import Damage, RecordBatch
from waltzctl.engine.scan.scanner import summarise_records
from waltzctl.formats.segment import HEADER_SIZE

CHUNK = 1 << 20
"""Bytes per chunk when reading backwards."""

Item = RecordBatch | Damage


class ChunkReader(SegmentCheck):
    """Reads the records of a segment.  `next_id`: the id after the last record; None until the end of the file was read."""

    def __init__(self, job: SegmentJob, limits: ReadLimits, *, data: bool) -> None:
        super().__init__(job, limits)
        self.next_id: int | None = None
        self._keep_data = data
        self._seen_again: frozenset[tuple[str, int, int]] | None = None

    @property
    def stretch(self) -> Stretch:
        """The range of ids of this segment; its end is known only after the end of the file was read.  Raises DiskReadError."""
        listed = None if self.reader is None else self.begins + self.reader.count()
        if self.next_id is None:
            return replace(begun(self.job.first, self.begins), listed=listed)
        excess = listed is not None and listed > self.next_id
        return Stretch(self.job.first, self.begins, self.next_id, self.next_id - 1, listed=listed, excess=excess)

    def confirmed(self, damage: Damage) -> bool:
        """Whether damage is real.

        True while the files are unchanged since they were opened.  If they changed, a node may have truncated the segment and
        written other records; then the whole segment is scanned again, once, and must show the same damage.
        """
        if self._seen_again is None:
            if not self.watch().changed():
                return True
            again = self.whole()
            again.advance(self.data.size())
            self._seen_again = again.suspicions()
        return (damage.cause.value, damage.offset, damage.transaction_id) in self._seen_again

    def forwards(self, first: int | None, last: int | None) -> Iterator[Item]:
        """Records and damage from the record `first`, or somewhat before it, to the record `last`, or somewhat after it."""
        place = self.at_or_before(first)
        ended = yield from self._scan(place, self.size, last)
        if not ended:
            self.next_id = None

    def backwards(self, first: int | None, last: int | None) -> Iterator[Item]:
        """As `forwards`, with the items in reverse order; the rows inside a batch still rise."""
        stop = self.size
        if last is not None and self.reader is not None:
            behind = prove(self.data, self.reader, last + 1, self.size)
            stop = self.size if behind is None else behind.offset
        while stop > HEADER_SIZE:
            start = self._chunk_before(stop)
            for place, end in reversed(self._subdivide(start, stop)):
                yield from reversed(list(self._piece(place, end)))
            stop = start.offset
            if first is not None and start.transaction_id <= first:
                return

    def _piece(self, place: RecordPlace, stop: int) -> Iterator[Item]:
        """Items that begin before the offset `stop`, and damage of length 0 at `stop`.

        Damage of length 0 means that ids are missing in front of the record at `stop`; a scan that begins with that record does
        not report it.
        """
        for item in self._scan(place, stop, None):
            if isinstance(item, Damage):
                if item.offset < stop or not item.length:
                    yield item
            elif item.end <= stop:
                yield item
            elif rows := int(item.offset.searchsorted(stop)):
                yield item.first(rows)

    def _scan(self, place: RecordPlace, stop: int, last: int | None) -> Generator[Item, None, bool]:
        """Scan from `place` until `stop` or the id `last` is passed.  Returns whether the end of the file was read."""
        next_id: int | None = place.transaction_id
        scan = self.scan(place.transaction_id, place.offset, stop=self.size, data=self._keep_data)
        end = place.offset
        for item in scan:
            yield item
            end = item.end
            next_id = item.reached if isinstance(item, Damage) else int(item.transaction_id[-1]) + 1
            if end > stop or (last is not None and next_id is not None and next_id > last):
                break
        ended = end >= self.size
        if ended:
            self.next_id = next_id
        return ended

    def at_or_before(self, first: int | None) -> RecordPlace:
        """The place of the record `first` if the index proves it, else of an earlier record that the index proves."""
        return self._proven(self.begins if first is None else first, self.size)

    def _proven(self, wanted: int, stop: int) -> RecordPlace:
        found = prove_at_or_before(self.data, self.reader, wanted, stop, above=self.begins)
        if found is None or found.offset == HEADER_SIZE:  # from `begins`: ids may be missing before the first record
            return RecordPlace(HEADER_SIZE, self.begins)
        return RecordPlace(found.offset, found.transaction_id)

    def _chunk_before(self, stop: int) -> RecordPlace:
        """A proven place about CHUNK bytes before `stop`; the segment's beginning where there is none."""
        reader, wanted = self.reader, stop - CHUNK
        if reader is None or wanted <= HEADER_SIZE:
            return RecordPlace(HEADER_SIZE, self.begins)
        return self._proven(reader.first_from(wanted + 1) - 1, stop)

    def _subdivide(self, start: RecordPlace, stop: int) -> list[tuple[RecordPlace, int]]:
        """Divide the records from `start` to the offset `stop` into pieces of about CHUNK bytes: each one's place, and its end.

        Up to 4 chunks are one piece; otherwise a scan finds where the pieces begin.
        """
        places = [start]
        if stop - start.offset > 4 * CHUNK:
            index = None if self.reader is None else self.reader.source
            scan = summarise_records(
                self.data,
                first_transaction_id=start.transaction_id,
                start=start.offset,
                stop=self.size,
                index=index,
                ceiling=self.job.following,
            )
            for run in scan:
                if isinstance(run, Damage):
                    if run.offset >= stop:
                        break
                    continue
                if run.start >= stop:
                    break
                while (number := int(run.offset.searchsorted(places[-1].offset + CHUNK))) < len(run):
                    if run.offset[number] >= stop:
                        break
                    places.append(RecordPlace(int(run.offset[number]), run.first_transaction_id + number))
        ends = [place.offset for place in places[1:]] + [stop]
        return list(zip(places, ends, strict=True))
