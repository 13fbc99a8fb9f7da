"""What a survey is taken for, before anything is decided about its losses: wrong ids or missing records, records or data.

The same bytes can often be read in two ways.  A replica tells which is right, or the next segment does; where nobody does, what
is doubtful stays marked as that.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

from waltzctl.engine.repair.embedded import may_be_data, taken_in
from waltzctl.engine.repair.repaired_segments import RepairContext, RepairedSegment, offsets
from waltzctl.engine.repair.replica_proofs import ReplicaProofs
from waltzctl.engine.repair.replicas import Neighbours, Proven, Refusal
from waltzctl.engine.repair.survey import Survey, by_ids, by_places
from waltzctl.engine.repair.witnesses import record_at
from waltzctl.formats.segment import HEADER_SIZE


@dataclass(slots=True)
class SurveySettlement:
    """Settles the surveys of a partition, each by itself.  Its functions raise DiskReadError.

    `doubted`: segment (first id) and offset of losses behind which a record's data may stand, not records.
    """

    context: RepairContext
    proofs: ReplicaProofs
    doubted: set[tuple[int, int]] = field(default_factory=set)

    def settle(self, part: RepairedSegment) -> None:
        """Where ids at the end of a segment are out of order, settle whether they are wrong or others are missing in front.

        The records themselves do not tell, and an index may have been made from either.  A replica tells: by the same record
        under the same id, or by records of the same lengths under those that are expected.  Where none does, data loss that is
        allowed is that of the ids in front: the records stay.
        """
        found, content = part.survey, part.original
        if found is None:
            return
        assert content is not None  # which was surveyed
        found = self._without_data(part, found)
        rest, tail = by_ids(content, found, part.ceiling), found.tail
        if rest is not None:
            assert tail is not None  # it is what the ids are asked about
            head = rest.losses[len(found.losses) - 1]
            here = Neighbours(self.proofs.witnesses.before(part, tail.first), None)
            if self.proofs.held(part, head):
                part.survey = rest
            elif head.stop == head.first:  # a repeat in front of right ids, or the wrong ids up to the end
                part.survey = replace(found, losses=(*found.losses[:-1], replace(tail, either=True)))
            elif self.context.allow_data_loss and isinstance(
                self.proofs.prove(tail.first, tail.first + 1, here), Refusal
            ):
                part.survey = rest
            return
        if (
            tail is not None
            and self.context.allow_data_loss
            and (twice := self._goes_on_behind(part, found)) is not None
        ):
            part.survey, part.ceiling = twice, None
            return
        if self.proofs.replicas:
            found = self._shifted(part, found)
        other = by_places(found) if self.proofs.replicas else None
        if other is None or self.proofs.held(part, found.losses[-1]):
            return
        part.survey = other
        assert other.tail is not None
        if self.proofs.whole_tail(part, other.tail) is None:
            part.survey = found

    def _goes_on_behind(self, part: RepairedSegment, found: Survey) -> Survey | None:
        """The survey with the ids of an end that is out of order as right ones, where the next segment bears them out.

        It begins with the very record that stands here under the same id: the two overlap, and their ids are right.  None
        where it does not.
        """
        assert part.original is not None  # it was surveyed
        following = next((one for one in self.context.segments if one.first == part.ceiling), None)
        rest = by_ids(part.original, found, None)
        if following is None:
            return None
        here = offsets(replace(part, ceiling=None), (following.first,)).get(following.first)
        same = record_at(part, here)
        return rest if same is not None and same == record_at(following, HEADER_SIZE) else None

    def _without_data(self, part: RepairedSegment, found: Survey) -> Survey:
        """Where the index says that what was found behind damage may be a record's data, nothing is made of it.

        A replica with another record under its id proves that it is data.  `doubted`: segment and offset of what stays open.
        """
        place = 0
        while place < len(found.losses):
            loss = found.losses[place]
            if may_be_data(part.index_path, part.first, loss):
                assert loss.stop is not None
                whole = taken_in(found, place) if self.proofs.replicas and not self.proofs.held(part, loss) else None
                if whole is not None and any(
                    one.record(self.context.partition, loss.stop) for one in self.proofs.replicas
                ):
                    part.survey = found = whole
                    continue
                self.doubted.add((part.first, loss.offset))
                if found.tail is not None:  # the rest of the record whose data it may be
                    part.survey = found = replace(
                        found, losses=(*found.losses[:-1], replace(found.tail, doubtful=True))
                    )
            place += 1
        return found

    def _shifted(self, part: RepairedSegment, found: Survey) -> Survey:
        """Records that are shifted against their ids read like one that stands twice, and another that is missing further on.

        They are the loss of all of them where a replica proves others between the same neighbours, in as many bytes.
        """
        for one, other in pairwise(found.losses):
            if not one.out_of_order or one.stop != one.first or other.length:
                continue
            assert other.stop is not None  # what ends a file has a length
            whole = replace(one, end=other.end, stop=other.stop)
            around = self.proofs.witnesses.around(part, whole)
            if None in (around.before, around.after):
                continue
            proven = self.proofs.prove(whole.first, other.stop, around)
            if isinstance(proven, Proven) and len(proven) == whole.length:
                kept = (whole if loss is one else loss for loss in found.losses if loss is not other)
                part.survey = found = replace(found, losses=tuple(kept))
        return found
