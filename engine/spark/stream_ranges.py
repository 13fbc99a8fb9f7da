"""The records of a range of one segment, in order, with a finding in each place that has none.

A range is planned from the listing of a partition (`engine.spark.stream_places`), and read later, by a worker: where the file is
no longer what it was planned from, reading it is an error.  Ids that the segment lacks may be in a segment in front of it, which
is then read for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from waltzctl.engine.errors import StalePlanError
from waltzctl.engine.findings import Finding, loss_finding, without_held
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.record_checks import damage_finding, tail_finding
from waltzctl.engine.inspect.segment_checks import FilesChangedError, SegmentCheck
from waltzctl.engine.inspect.segment_job import SegmentJob
from waltzctl.engine.inspect.segment_reach import SegmentReach
from waltzctl.engine.log.assess import begun
from waltzctl.engine.losses import Gap, Overlap
from waltzctl.engine.scan.columns import Damage, DamageCause, RecordBatch
from waltzctl.engine.scan.known_records import KnownRecords
from waltzctl.engine.spark.offsets import BEGINNING, Anchor
from waltzctl.engine.spark.record_arrays import rows_of
from waltzctl.engine.spark.stream_places import SegmentRange, anchor_of_row, from_proven, open_segment
from waltzctl.formats.segment import HEADER_SIZE


@dataclass(frozen=True, slots=True)
class HeldInFront:
    """Records that a segment in front of a range's own one holds, by the id in that segment's name."""

    segment: int
    records: RecordBatch


Read = RecordBatch | HeldInFront | Finding


def read_range(
    part: SegmentRange,
    reach: Callable[[SegmentJob], SegmentReach] = lambda job: SegmentReach(job, ReadLimits()),
    *,
    data: bool,
    known: KnownRecords | None = None,
    borrowed: bool = False,
) -> Iterator[Read]:
    """The intact records of a range in order, and a finding in each place without any.

    `reach`: tells how far the segments of a partition go; asked where a range lacks records that one in front may hold.

    Raises StalePlanError when the file has changed since the range was planned, DiskReadError.
    """
    if part.before:
        yield loss_finding(Gap(part.first, part.last + 1, part.segment), part.job.where)
        return
    try:
        with open_segment(part.job) as opened:
            yield from _RangeScan(part, opened, reach, data, known, borrowed).run()
    except FilesChangedError:
        raise _changed(part, "its file is gone") from None


def _changed(part: SegmentRange, what: str) -> StalePlanError:
    return StalePlanError(
        f"{part.job.data_path}: transactions {part.first} to {part.last} were to be read, and {what}: it was truncated or"
        " replaced meanwhile",
        advice="Spark tries again; if it stays so, see what happened to the partition (waltzctl verify)",
    )


class _RangeScan:
    """One scan of a range.  `_next`: the id that is expected next; `_last`: the last record; `_tail`: the torn tail's finding.

    `_in_front`: whether a segment in front of it was read for its ids.
    """

    def __init__(
        self,
        part: SegmentRange,
        opened: SegmentCheck,
        reach: Callable[[SegmentJob], SegmentReach],
        data: bool,
        known: KnownRecords | None,
        borrowed: bool,
    ) -> None:
        self._part = part
        self._opened = opened
        self._reach = reach
        self._data, self._known, self._borrowed = data, known, borrowed
        self._next = part.start_id
        self._last: Anchor = BEGINNING
        self._tail: Finding | None = None
        self._in_front = False

    def run(self) -> Iterator[Read]:
        part, opened = self._part, self._opened
        job = part.job
        if part.first == part.segment:
            yield from opened.data_header_findings
        if opened.short:
            self._next = part.first
            yield from self._held_in_front()
            self._check_end("its file is shorter than a header")
            entries = 0 if opened.reader is None else opened.reader.count()
            found = job.short_header(opened.size, entries)
            if found.missing is not None:  # only the lost ids that belong to this range
                own = replace(found, transaction_id=part.first, missing=part.last + 1 - part.first)
                found = without_held(own, self._next)
            yield found
            return
        if part.stop is not None and part.stop > opened.size:
            raise _changed(part, f"its file has {opened.size} bytes, and had {part.stop}")
        items = opened.scan(
            part.start_id, part.start, stop=part.stop, data=self._data, known=self._known, borrowed=self._borrowed
        )
        torn = explained = False  # whether a torn tail, or damage up to the end, is the reason why the records end
        for item in items:
            if isinstance(item, RecordBatch):
                yield from self._records(item)
            else:
                yield from self._damage(item)
                torn = torn or item.cause is DamageCause.TORN_TAIL
                explained = explained or item.next_transaction_id is None
            if self._next > part.last and part.following is None:
                break
            if part.following is not None and self._next > part.following:
                break
        yield from self._end(torn, explained)

    def _records(self, batch: RecordBatch) -> Iterator[RecordBatch]:
        part = self._part
        begin = int(batch.transaction_id.searchsorted(part.first))
        end = int(batch.transaction_id.searchsorted(part.last, side="right"))
        self._next = int(batch.transaction_id[-1]) + 1
        if begin < end:
            self._last = anchor_of_row(batch, end - 1, part.segment)
            found = rows_of(batch, begin, end)
            assert found is not None
            yield found

    def _damage(self, damage: Damage) -> Iterator[Finding]:
        part = self._part
        if damage.next_transaction_id is not None:
            self._next = damage.next_transaction_id
        damage = self._within_range(damage)
        if not part.first <= damage.transaction_id <= part.last:
            return
        if damage.cause is not DamageCause.TORN_TAIL:
            yield damage_finding(part.job, damage)
        elif part.stop is None:
            self._tail = tail_finding(part.job, damage)

    def _within_range(self, damage: Damage) -> Damage:
        """Damage that begins before the range and reaches into it is reported from the range's first id on: a new query may start
        there.
        """
        first, behind = self._part.first, damage.next_transaction_id
        if damage.transaction_id >= first or (behind is not None and behind <= first):
            return damage
        if behind is None:
            self._next = max(self._next, first)
        return replace(damage, transaction_id=first)

    def _end(self, torn: bool, explained: bool) -> Iterator[Read]:
        """After the scan: check the last record, and the join with the next segment."""
        part, following = self._part, self._part.following
        yield from self._held_in_front()
        if self._tail is not None and (
            following is not None or self._next <= part.last
        ):  # else the next range tells it
            yield without_held(self._tail, self._next)
        self._check_end(f"transaction {part.last} is another one, or is not there")
        if following is not None and not torn and self._next != following:
            yield loss_finding(self._join_failure(following), part.job.where)
        elif self._next <= part.last and not explained and following is None:
            raise _changed(part, f"the records end with {self._next - 1}")

    def _check_end(self, what: str) -> None:
        """Raise StalePlanError unless the last record is the planned one.

        Where that stands in front of this segment, in one of another name as after an exchange, it is not read here: the name is
        told, and what is missing by the names.
        """
        part = self._part
        if part.ends_at is None or (part.ends_at.segment != part.segment and not self._in_front):
            return
        if not self._last.is_record(part.ends_at):
            raise _changed(part, what)

    def _held_in_front(self) -> Iterator[Read]:
        """What segments in front of this one hold of the range behind its last record, and findings between these records."""
        part = self._part
        if not part.others:
            return
        first = max(self._next, part.first)
        for held in self._reach(part.job).held(begun(part.segment, part.segment), first, part.last + 1):
            self._in_front = True
            job, last = held.segment, held.stop - 1
            own = replace(
                part, segment=job.first, first=held.first, last=last, start=HEADER_SIZE, start_id=job.first, stop=None,
                following=None, ends_at=None, others=False,
            )  # fmt: skip
            with open_segment(own.job) as opened:
                scan = _RangeScan(
                    from_proven(own, opened), opened, self._reach, self._data, self._known, self._borrowed
                )
                for item in scan.run():
                    yield HeldInFront(job.first, item) if isinstance(item, RecordBatch) else item
            if scan._last.transaction_id > self._last.transaction_id:
                self._last = scan._last
            self._next = held.stop

    def _join_failure(self, following: int) -> Gap | Overlap:
        """The gap or overlap between this segment, read up to `_next` - 1, and the next one, which begins at `following`."""
        if following < self._next:
            return Overlap(following, self._next, following)
        index = self._opened.reader
        listed = index is not None and index.begins + index.count() == following
        # ids before the range are not part of the query
        return Gap(max(self._next, self._part.first), following, following, self._part.segment, listed)
