"""Rivals: two different records with the same id, both with right checksums.

One is in sequence.  The other is out of order, in a place where no id is missing: in the middle of a segment, at its end, or in
an overlapping segment (`engine.repair.recover_overlaps`).  Two records with the same bytes are a repeat, not rivals.

Which of the two stays:

=====================================================================  ================================================
all replicas that hold the id hold the same record, which is a rival   that one
no replica decides                                                     both
no replica decides, with ``--allow-data-loss``                         the one in sequence; its id is entered as disputed
=====================================================================  ================================================

A disputed id stays in the ledger until a replica confirms or replaces the record.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from waltzctl.engine.findings import Code
from waltzctl.engine.repair.content import Content
from waltzctl.engine.repair.repaired_segments import RepairContext, RepairedSegment, offsets
from waltzctl.engine.repair.replicas import Neighbours, Proven, ReplicaSegments, find_proven, same_but_id, same_record
from waltzctl.engine.repair.survey import Loss
from waltzctl.engine.repair.witnesses import record_at, records_in_a_row
from waltzctl.engine.scan.columns import RecordView
from waltzctl.engine.scan.scanner import read_record_at
from waltzctl.formats.accepted_losses import AcceptedLoss
from waltzctl.formats.segment import Record

MOST_COMPARED = 10_000
"""Most records in one place that are compared one by one; a place with more is not judged."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two rivals: `extra` is out of order, `standing` is the record in sequence in the segment `part`; both None for none."""

    transaction_id: int
    extra: bytes
    standing: bytes | None
    part: RepairedSegment | None


@dataclass(slots=True)
class Rivals:
    """Judges the rivals of a partition.  Every method raises DiskReadError.

    `_refuted`: segment (first id) and offset of each out-of-order place whose records are all repeats or contradicted by a
    replica.
    """

    context: RepairContext
    replicas: Sequence[ReplicaSegments]
    _refuted: set[tuple[int, int]] = field(default_factory=set)

    def settle(self, accepted: Iterable[AcceptedLoss]) -> None:
        """Check the disputed ids of the ledger against the replicas: a right record is confirmed, a wrong one becomes a loss."""
        for loss in accepted:
            for part in self.context.segments if loss.disputed and self.replicas else ():
                if part.survey is not None:
                    first, stop = max(loss.first, part.survey.begins), min(loss.last + 1, part.survey.next_id)
                    if first < stop:
                        self._settle(part, first, stop)

    def _settle(self, part: RepairedSegment, first: int, stop: int) -> None:
        places = offsets(part, (first, stop))
        told = find_proven(self.replicas, self.context.partition, first, stop, Neighbours(None, None))
        if not isinstance(told, Proven) or len(places) < 2:
            return
        assert part.original is not None  # it has been surveyed
        here = Content("", part.original.part(places[first], places[stop]))
        if here.equals(Content("", tuple(run.span for run in told.runs))):
            self.context.draft.sources |= {run.span.path for run in told.runs}
            self.context.confirmed.append((first, stop))
        else:
            outvote(part, first, stop)

    def choose(self, part: RepairedSegment) -> None:
        """Let the replicas choose between rivals: the wrong record is removed, even if it is the one in sequence."""
        for loss in () if part.survey is None else part.survey.losses:
            pairs = self._pairs(part, loss)
            if not pairs:
                continue
            outvoted = []
            for pair in pairs:
                told = self._right_record(pair)
                if told is None:
                    break
                if told != pair.standing:
                    outvoted.append(pair)
            else:
                self._refuted.add((part.first, loss.offset))
                for pair in outvoted:
                    assert pair.part is not None
                    outvote(pair.part, pair.transaction_id, pair.transaction_id + 1)

    def superfluous(self, part: RepairedSegment, loss: Loss) -> bool:
        """Whether every out-of-order record in a place is a repeat, or contradicted by a replica."""
        return (part.first, loss.offset) in self._refuted

    def dispute(self, part: RepairedSegment, loss: Loss) -> None:
        """Enter the ids of a place's out-of-order records as disputed: they are removed, and nothing proves them wrong.

        A record whose request id names another partition than its rival's was not this partition's: its id is not disputed.
        """
        for pair in self._pairs(part, loss) or ():
            if (
                pair.standing is not None
                and pair.standing != pair.extra
                and _request_partition(pair.standing) == _request_partition(pair.extra)
            ):
                number = pair.transaction_id
                self.context.dispute(number, number + 1, f"two records bore this id in {part.data_path.name}")

    def only_here(self, part: RepairedSegment, loss: Loss, found: Proven) -> int | None:
        """The id of an out-of-order intact record that would be lost if a replica's records replaced the place; None for none.

        A record is not lost if the replica has it in the same place under the expected id, or if some replica has it under its
        own id, and this id is or will be here.
        """
        if not loss.out_of_order:
            return None
        assert part.original is not None  # it has been surveyed
        theirs = Content("", tuple(run.span for run in found.runs))
        ends = (loss.offset + one.end for one in records_in_a_row(theirs, 0, len(found)))
        place = loss.offset
        while place < loss.end:
            here = read_record_at(part.original, place, expected_id=None)
            if not isinstance(here, RecordView) or here.end > loss.end:
                place = next((end for end in ends if end > place), loss.end)
                continue
            there = theirs.read(place - loss.offset, len(here.record))
            moved = same_but_id(bytes(here.record), there)
            if here.data_ok and not moved and not self._kept(here, found.runs[-1].stop):
                return here.transaction_id
            place = here.end
        return None

    def _kept(self, here: RecordView, stop: int) -> bool:
        """Whether a replica has the same record under the same id, and the id is below `stop`."""
        number = here.transaction_id
        return number < stop and any(
            same_record(bytes(here.record), one.record(self.context.partition, number)) for one in self.replicas
        )

    def _pairs(self, part: RepairedSegment, loss: Loss) -> list[_Pair] | None:
        """The pairs of a place that holds only out-of-order records, and where no id is missing; None for any other place."""
        if not loss.out_of_order or loss.stop not in (loss.first, None):
            return None
        assert part.original is not None  # it has been surveyed
        found = list(islice(records_in_a_row(part.original, loss.offset, loss.end), MOST_COMPARED))
        if not found or found[-1].end != loss.end:
            return None
        return [self._pair(record) for record in found]

    def _pair(self, extra: RecordView) -> _Pair:
        number = extra.transaction_id
        for part in self.context.segments:
            if part.survey is not None and part.survey.begins <= number < part.survey.next_id:
                standing = record_at(part, offsets(part, (number,)).get(number))
                if standing is not None and standing[:8] == extra.record[:8]:
                    return _Pair(number, bytes(extra.record), standing, part)
        return _Pair(number, bytes(extra.record), None, None)

    def _right_record(self, pair: _Pair) -> bytes | None:
        """The right record of a pair: both are the same, or the replicas hold one of them.  None when nothing decides."""
        if pair.standing is None or pair.standing == pair.extra:
            return pair.standing
        held = {one.record(self.context.partition, pair.transaction_id) for one in self.replicas} - {None}
        if len(held) != 1 or not held & {pair.standing, pair.extra}:
            return None
        for one in self.replicas:
            self.context.draft.sources |= {segment.path for segment in one.segments(self.context.partition)}
        return held.pop()


def _request_partition(record: bytes) -> int:
    return Record.decode(record).request_id.partition


def outvote(part: RepairedSegment, first: int, stop: int) -> bool:
    """Turn intact records that a replica's shall replace into a loss; False when damage hides their offsets.

    Raises DiskReadError.
    """
    assert part.survey is not None
    places = offsets(part, (first - 1, first, stop - 1, stop))
    last = record_at(part, places.get(stop - 1))
    # the end of the last record, if it is intact; other bytes may lie between it and the next record
    end = places.get(stop) if last is None else places[stop - 1] + len(last)
    if first not in places or end is None:
        return False
    loss = Loss(Code.REPLICA_DIFFERS, places[first], end, first, stop, places.get(first - 1), record_ok=True)
    part.survey = replace(part.survey, losses=_merged(part.survey.losses, loss))
    return True


def _merged(losses: Sequence[Loss], new: Loss) -> tuple[Loss, ...]:
    """The losses with `new` added, in order.

    Losses inside `new` become part of it; adjacent losses without an intact record between them are joined.
    """
    merged: list[Loss] = []
    rest = [one for one in losses if not _within(one, new)]
    for loss in sorted((*rest, new), key=lambda one: one.offset):
        before = merged.pop() if merged else None
        if before is None:
            merged.append(loss)
        elif (
            (before.stop, before.end) == (loss.first, loss.offset) and loss.stop and not (before.unread or loss.unread)
        ):
            merged.append(replace(before, end=loss.end, stop=loss.stop, record_ok=before.record_ok and loss.record_ok))
        else:
            merged += (before, loss)
    return tuple(merged)


def _within(one: Loss, new: Loss) -> bool:
    ids = one.stop is not None and new.stop is not None and new.first <= one.first and one.stop <= new.stop
    return ids and new.offset <= one.offset and one.end <= new.end
