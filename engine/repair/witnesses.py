"""The witnesses of a loss: the nearest intact records before and after it, which a replica must not contradict.

The record next to a loss may be damaged itself, stand in another segment, or be outvoted.  The witness is then the nearest
record that is neither damaged nor outvoted, under its own id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from waltzctl.engine.repair.content import Content
from waltzctl.engine.repair.repaired_segments import RepairContext, RepairedSegment, offsets
from waltzctl.engine.repair.replicas import Neighbours, WitnessRecord
from waltzctl.engine.repair.survey import Loss, Survey
from waltzctl.engine.scan.columns import RecordView
from waltzctl.engine.scan.scanner import read_record_at
from waltzctl.formats.segment import HEADER_SIZE

Row = tuple[Loss, Loss]
"""First and last of adjacent losses, without an intact record between them."""


@dataclass(slots=True)
class Witnesses:
    """Finds the witnesses of a partition's losses.  Reads records; every method raises DiskReadError."""

    context: RepairContext
    _rows: dict[int, tuple[Survey, dict[int, Row]]] = field(default_factory=dict)

    def around(self, part: RepairedSegment, loss: Loss) -> Neighbours:
        """The witnesses on both sides of a loss that intact records of the segment follow."""
        assert loss.stop is not None
        return Neighbours(self._in_front(part, loss), self._at(part, loss.end, loss.stop, loss.stop))

    def before(self, part: RepairedSegment | None, first: int) -> WitnessRecord | None:
        """The last witness in a segment, before its torn tail and with an id below `first`; else in the segments before it."""
        for one in self._onwards(part, behind=False):
            found = one.survey
            if found is None:
                continue
            loss = found.losses[-1] if found.losses and found.losses[-1].end >= found.end else None
            if loss is not None:
                begin, _ = self._rows_of(one)[loss.offset]
                if begin.offset > HEADER_SIZE:
                    return _below(_witness(one, begin.before, begin.first - 1), first)
                first = min(first, begin.first)  # nothing of the segment is intact
            elif found.next_id > found.begins:
                last = found.next_id - 1
                if part is not None and one is not part and last >= max(first, part.first):  # the two overlap
                    return _witness(one, offsets(one, (first - 1,)).get(first - 1), first - 1)
                return _below(_witness(one, found.last, last), first)
        return None

    def behind(self, part: RepairedSegment | None, stop: int) -> WitnessRecord | None:
        """The first witness in a segment with an id of at least `stop`; else in the segments after it."""
        if part is None:
            return None
        assert part.survey is not None  # callers ask about surveyed segments only
        return self._at(part, HEADER_SIZE, part.survey.begins, stop)

    def _in_front(self, part: RepairedSegment, loss: Loss) -> WitnessRecord | None:
        first, _ = self._rows_of(part)[loss.offset]
        if first.offset == HEADER_SIZE:
            return self.before(self._neighbour(part), first.first)
        return _witness(part, first.before, first.first - 1)

    def _at(self, part: RepairedSegment, offset: int, number: int, least: int) -> WitnessRecord | None:
        """The record at `offset`, where id `number` is expected, or the next witness; None for an id below `least`."""
        for one in self._onwards(part, behind=True):
            assert one.survey is not None
            if one is not part:
                offset, number = HEADER_SIZE, one.survey.begins
            row = self._rows_of(one).get(offset)
            stop = number if row is None else row[1].stop
            if row is not None:
                offset = row[1].end
            if stop is None or offset >= one.survey.end:
                least = max(least, number if stop is None else stop)
                continue
            found = _witness(one, offset, stop)
            return found if found is not None and found.transaction_id >= least else None
        return None

    def _onwards(self, part: RepairedSegment | None, *, behind: bool) -> Iterator[RepairedSegment]:
        """A segment (None: none), then the surveyed ones in one direction, the nearest first."""
        if part is None:
            return
        yield part
        yield from self.context.surveyed(part.first, behind=behind)

    def _neighbour(self, part: RepairedSegment) -> RepairedSegment | None:
        """The surveyed segment before this one."""
        return next(self.context.surveyed(part.first, behind=False), None)

    def _rows_of(self, part: RepairedSegment) -> dict[int, Row]:
        """The row of each loss of a segment, by its offset."""
        found = part.survey
        assert found is not None
        known = self._rows.get(part.first)
        if known is None or known[0] is not found:
            known = self._rows[part.first] = found, _rows(found.losses)
        return known[1]


def _rows(losses: Sequence[Loss]) -> dict[int, Row]:
    """The row of each loss, by its offset."""
    rows: dict[int, Row] = {}
    start = 0
    for place, loss in enumerate(losses):
        if place + 1 == len(losses) or loss.end != losses[place + 1].offset:
            row = losses[start], loss
            rows.update((one.offset, row) for one in losses[start : place + 1])
            start = place + 1
    return rows


def _below(found: WitnessRecord | None, first: int) -> WitnessRecord | None:
    return found if found is not None and found.transaction_id < first else None


def _witness(part: RepairedSegment, offset: int | None, number: int) -> WitnessRecord | None:
    record = record_at(part, offset)
    return None if record is None else WitnessRecord(number, record)


def record_at(part: RepairedSegment, offset: int | None) -> bytes | None:
    """The intact record at an offset of a segment before the repair; None when there is none.  Raises DiskReadError."""
    if offset is None or part.original is None:
        return None
    found = read_record_at(part.original, offset, expected_id=None)
    return bytes(found.record) if isinstance(found, RecordView) else None


def records_in_a_row(content: Content, start: int, stop: int) -> Iterator[RecordView]:
    """Intact records of any ids, back to back from byte `start`, that end at or before byte `stop`.

    Raises DiskReadError.
    """
    offset = start
    while offset < stop:
        record = read_record_at(content, offset, expected_id=None)
        if not isinstance(record, RecordView) or record.end > stop:
            return
        yield record
        offset = record.end
