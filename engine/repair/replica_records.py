"""What the replicas of a partition have in the place of a loss: under its ids, or in as many bytes as are here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from waltzctl.engine.repair.content import Content
from waltzctl.engine.repair.repaired_segments import RepairContext, RepairedSegment
from waltzctl.engine.repair.replicas import Neighbours, Proven, Refusal, ReplicaSegments, find_proven
from waltzctl.engine.repair.survey import Loss
from waltzctl.engine.repair.witnesses import Witnesses, record_at, records_in_a_row
from waltzctl.engine.scan.order import ORDER_WINDOW


@dataclass(slots=True)
class ReplicaRecords:
    """All replicas together, asked by their records."""

    context: RepairContext
    replicas: Sequence[ReplicaSegments]
    witnesses: Witnesses

    def prove(self, first: int, stop: int, neighbours: Neighbours) -> Proven | Refusal:
        """Transactions `first` to `stop` - 1 from a replica that proves them, or why none does.

        What proves them is a source of the plan.
        """
        found = find_proven(self.replicas, self.context.partition, first, stop, neighbours)
        if isinstance(found, Proven):
            self.context.draft.sources |= {run.span.path for run in found.runs}
        return found

    def hold(self, part: RepairedSegment, loss: Loss) -> bool:
        """Whether a replica has the record behind a loss, under its id."""
        if loss.stop is None:
            return False
        record = record_at(part, loss.end)
        return any(
            record is not None and one.record(self.context.partition, loss.stop) == record for one in self.replicas
        )

    def hold_another(self, part: RepairedSegment, loss: Loss) -> bool:
        """Whether a replica has another record than the one behind a loss, under its id, and none has that one."""
        assert loss.stop is not None
        there = any(one.record(self.context.partition, loss.stop) for one in self.replicas)
        return there and not self.hold(part, loss)

    def whole_tail(self, part: RepairedSegment, tail: Loss) -> Proven | None:
        """The last record or records from a replica, when they were written here and only their bits changed.

        In full; but behind several whose ids are wrong one may be torn: it comes back where what is left of it is how the
        replica's begins, and is cut like any torn end where it is not.
        """
        neighbours = Neighbours(self.witnesses.before(part, tail.first), None)
        if not self.replicas or neighbours.before is None:
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

    @staticmethod
    def _begins_alike(part: RepairedSegment, tail: Loss, found: Proven, start: int) -> bool:
        """Whether an end, from `start` bytes behind its beginning on, holds the bytes that a replica's records have there."""
        assert part.original is not None
        theirs = Content("", tuple(run.span for run in found.runs))
        length = tail.end - tail.offset - start
        return theirs.read(start, length) == part.original.read(tail.offset + start, length)

    def _stands_alike(self, part: RepairedSegment, tail: Loss, whole: Proven) -> bool:
        """Whether intact records, whatever their ids, end where a replica's do, and only a torn one is behind them."""
        assert part.original is not None
        ends = [one.end for one in records_in_a_row(part.original, tail.offset, tail.end)]
        return ends[-1:] == [tail.offset + len(whole)]
