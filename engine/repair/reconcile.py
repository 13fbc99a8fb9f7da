"""Applying the decision of a comparison of all replicas (`engine.compare`) to the recovery of one replica.

Recovery alone sees one replica, and takes lost records from others.  The comparison adds three facts (`Agreed`): the last
transaction that is kept, the transaction after which this replica has records that no quorum held, and intact records here
that differ from the quorum's.  They become cuts and losses before anything else is planned.  Recovery then restores what was
cut, as far as it was acknowledged here, like any other loss.

What happens to an intact record here that the replicas do not keep:

==================================== ============================ ===============================================
where it stands                      without --allow-data-loss    with it
==================================== ============================ ===============================================
at or below the local low-water mark stays; a finding says so     goes
above it                             goes                         goes
the mark is unknown                  stays; a finding says so     goes
==================================== ============================ ===============================================

A record above the mark was never acknowledged, provided that all replicas took part in the comparison.  The planner cannot
check that, so every step that removes intact records is marked as losing data.
"""

from __future__ import annotations

from dataclasses import dataclass

from waltzctl.engine.durable.edits import Remove
from waltzctl.engine.findings import Code
from waltzctl.engine.repair.arguments import Agreed
from waltzctl.engine.repair.repaired_segments import RepairContext, RepairedSegment, offsets
from waltzctl.engine.repair.rivals import outvote
from waltzctl.formats.segment import HEADER_SIZE


@dataclass(slots=True)
class Reconciliation:
    """Applies the agreement to the segments of one partition.

    `removed`: segments that are removed unless restored records take their place.
    """

    context: RepairContext
    agreed: Agreed
    mark: int | None
    removed: list[RepairedSegment]

    def prepare(self) -> None:
        """Cut the partition and turn outvoted records into losses, where allowed.  Raises DiskReadError."""
        if self.agreed.cut_after is not None and self.allowed(self.agreed.cut_after + 1, None):
            self.cut(self.agreed.cut_after)
        for first, last in self.agreed.outvoted:
            if self.allowed(first, last):
                self.outvote(first, last)

    def allowed(self, first: int, last: int | None) -> bool:
        """Whether intact records `first` to `last` (None: to the end) may be removed; adds a finding when not."""
        context, mark = self.context, self.mark
        if context.allow_data_loss or (mark is not None and first > mark):
            return True
        what = f"transaction {first}" if last == first else f"transactions from {first} on"
        why = "the local low-water mark is unknown" if mark is None else f"at or below the local low-water mark {mark}"
        context.find(
            Code.REPLICA_DIFFERS, context.directory,
            f"{what}: the records here are not those that the other replicas keep; {why}, so they are only replaced or cut with"
            " --allow-data-loss", transaction_id=first,
        )  # fmt: skip
        return False

    def cut(self, after: int) -> None:
        """Cut everything after a transaction."""
        context = self.context
        parts = sorted(context.segments, key=lambda part: part.first)
        staying = [part for part in parts if part.first <= after + 1]
        last = next((part for part in reversed(staying) if part.data is not None and not part.short), None)
        if last is not None and not self._cut_inside(last, after):
            context.find(
                Code.REPLICA_DIFFERS, last.data_path,
                f"transaction {after} is in a damaged place, so that nothing tells where what follows it begins",
                segment=last.first, transaction_id=after + 1,
            )  # fmt: skip
            return
        behind = parts[len(staying) :]
        self.removed += [part for part in behind if not part.untouchable]
        context.segments = [*staying, *(part for part in behind if part.untouchable)]

    def _cut_inside(self, part: RepairedSegment, after: int) -> bool:
        found, content = part.survey, part.original
        if found is None:
            return False
        assert content is not None  # it was surveyed
        tail = found.tail
        if after + 1 >= found.next_id and (tail is None or tail.first <= after):
            return True
        places = offsets(part, (after, after + 1))
        offset = places.get(after + 1)
        if offset is None:
            return False
        self.context.draft.step(
            "cut-segment", part.data_path, self.context.partition,
            f"transaction {after} becomes the last one: no quorum of the replicas holds what follows it here",
            ids=(after + 1, max(after + 1, found.next_id - 1)), offset=offset, length=content.size() - offset,
            loses_data=found.next_id > after + 1,
        )  # fmt: skip
        part.cut_behind(after)
        return True

    def outvote(self, first: int, last: int) -> None:
        """Turn intact records `first` to `last` (inclusive), which are to be replaced, into losses."""
        parts = sorted((part for part in self.context.segments if part.survey is not None), key=lambda part: part.first)
        for part, behind in zip(parts, [*parts[1:], None], strict=False):
            low = max(first, part.first)
            high = last + 1 if behind is None else min(last + 1, behind.first)
            if low < high and not outvote(part, low, high):
                self.context.find(
                    Code.REPLICA_DIFFERS, part.data_path, "the place of the records that are to be replaced is damaged",
                    segment=part.first, transaction_id=low,
                )  # fmt: skip

    def finish(self) -> None:
        """Remove the segments after the cut, except those that restored records have replaced."""
        context = self.context
        restored = {part.first for part in context.segments if part.content is not None}
        for part in reversed(self.removed):
            if part.first in restored:
                continue
            for action, state in (("remove-segment", part.data), ("remove-index", part.index)):
                if state is not None:
                    data = state is part.data and state.size > HEADER_SIZE
                    context.draft.step(
                        action, state.path, context.partition, f"begins behind transaction {self.agreed.cut_after}",
                        ids=part.ids, offset=0, length=state.size,
                        loses_data=data,
                    )  # fmt: skip
                    context.draft.edits.append(Remove(state.path))
