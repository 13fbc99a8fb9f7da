"""Replica records for a loss: those under the lost ids, or those that fill the same number of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from waltzctl.engine.repair.content import Content
from waltzctl.engine.repair.repaired_segments import RepairContext, RepairedSegment
from waltzctl.engine.repair.replicas import (
    Neighbours,
    Proven,
    Refusal,
    ReplicaSegments,
    find_proven,
    same_but_id,
    same_record,
)
from waltzctl.engine.repair.survey import Loss
from waltzctl.engine.repair.witnesses import Witnesses, record_at, records_in_a_row
from waltzctl.engine.scan.carve import carve_records
from waltzctl.engine.scan.order import ORDER_WINDOW


@dataclass(slots=True)
class ReplicaRecords:
    """Queries about records across all replicas of the partition."""

    context: RepairContext
    replicas: Sequence[ReplicaSegments]
    witnesses: Witnesses

    def prove(self, first: int, stop: int, neighbours: Neighbours) -> Proven | Refusal:
        """Transactions `first` to `stop` - 1 from a replica that proves them, or why none does.

        The files of the proof are added to the plan's sources.  Raises DiskReadError for a replica that cannot be read where the
        records would be given up for that.
        """
        found = find_proven(self.replicas, self.context.partition, first, stop, neighbours)
        if isinstance(found, Proven):
            self.context.draft.sources |= {run.span.path for run in found.runs}
        elif found.unread is not None:
            if self.context.allow_data_loss:
                found.unread.advice = (
                    "nothing was given up: it may hold the records; name another replica, or leave this one out"
                )
                raise found.unread
            self.context.draft.unread = True
        return found

    def hold(self, part: RepairedSegment, loss: Loss) -> bool:
        """Whether a replica has the record that follows a loss here, under the same id."""
        if loss.stop is None:
            return False
        record = record_at(part, loss.end)
        return any(
            record is not None and one.record(self.context.partition, loss.stop) == record for one in self.replicas
        )

    def hold_another(self, part: RepairedSegment, loss: Loss) -> bool:
        """Whether a replica has another record under the id that follows a loss here, and no replica has the same one."""
        assert loss.stop is not None
        there = any(one.record(self.context.partition, loss.stop) for one in self.replicas)
        return there and not self.hold(part, loss)

    def join_around(self, part: RepairedSegment, loss: Loss) -> bool:
        """Whether a damaged place where no id is missing holds no record of its own: a replica has those on both sides of it.

        And, under their ids, all intact records inside it.
        """
        unclear = loss.out_of_order or loss.unread or loss.record_ok
        if loss.stop != loss.first or unclear or not loss.length or not self.hold(part, loss):
            return False
        assert part.original is not None  # the loss is of its survey
        before = self.witnesses.around(part, loss).before
        if before is not None:
            theirs = [one.record(self.context.partition, before.transaction_id) for one in self.replicas]
            if not all(one is None or same_record(before.record, one) for one in theirs):
                return False
        return all(
            self._held(number, record_at(part, offset))
            for batch in carve_records(part.original, start=loss.offset, stop=loss.end)
            for number, offset in zip(batch.transaction_id.tolist(), batch.offset.tolist(), strict=True)
        )

    def _held(self, number: int, record: bytes | None) -> bool:
        """Whether a replica has this record under this id."""
        return record is not None and any(one.record(self.context.partition, number) == record for one in self.replicas)

    def whole_tail(self, part: RepairedSegment, tail: Loss) -> Proven | None:
        """The tail's records from a replica, if they were written here in full and only bits of them changed; else None.

        After several records with wrong ids the last one may be torn.  It is restored when its remaining bytes equal the
        beginning of the replica's record; otherwise the result ends before it, and it is cut like any torn tail.

        Where no intact record stands in front of them, the first of them has to be the replica's, all but the id.
        """
        neighbours = Neighbours(self.witnesses.before(part, tail.first), None)
        if not self.replicas or (neighbours.before is None and not self._moved(part, tail)):
            return None
        length, whole = tail.end - tail.offset, None
        for count in range(1, 1 + (ORDER_WINDOW if tail.out_of_order else 1)):
            found = self.prove(tail.first, tail.first + count, neighbours)
            if isinstance(found, Refusal):
                return None
            if len(found) < length:
                whole = found
            elif len(found) == length or (whole is not None and self._begins_alike(part, tail, found, len(whole))):
                return found
            else:
                return whole if whole is not None and self._stands_alike(part, tail, whole) else None
        return None

    def _moved(self, part: RepairedSegment, tail: Loss) -> bool:
        """Whether the first record of a tail is a replica's record of the expected id, under another id."""
        here = record_at(part, tail.offset) if tail.out_of_order else None
        there = (one.record(self.context.partition, tail.first) for one in self.replicas)
        return here is not None and any(one is not None and same_but_id(here, one) for one in there)

    @staticmethod
    def _begins_alike(part: RepairedSegment, tail: Loss, found: Proven, start: int) -> bool:
        """Whether the tail's bytes from `start` on (relative to its beginning) equal those of the replica's records."""
        assert part.original is not None
        theirs = Content("", tuple(run.span for run in found.runs))
        length = tail.end - tail.offset - start
        return theirs.read(start, length) == part.original.read(tail.offset + start, length)

    def _stands_alike(self, part: RepairedSegment, tail: Loss, whole: Proven) -> bool:
        """Whether the tail's intact records, of any ids, end where the replica's end, so that only a torn record follows."""
        assert part.original is not None
        ends = [one.end for one in records_in_a_row(part.original, tail.offset, tail.end)]
        return ends[-1:] == [tail.offset + len(whole)]
