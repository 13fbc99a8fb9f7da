"""Overlaps: two segments that hold the same ids.

An overlap remains after a truncation whose deletions did not reach the disk, or after files were brought back beside newer ones.
The two runs of records are compared byte for byte.  If they are equal, the redundant one is removed and nothing is lost.  If they
differ, these witnesses decide which run is kept, provided that they agree:

- each *replica* that holds one of the two runs;
- the *next segment*, which begins where the right run ends;
- at the end of the partition, the local low-water *mark*, which the right run reaches.

Even then a run is kept only if the other one has no ids beyond it that are nowhere else.  In all other cases the operator
decides.  ``--allow-data-loss`` keeps the run that reaches further, and of two equally long ones the later segment, which a node
reads.  A later segment without records is removed, whatever is damaged in the earlier one; and one whose records all stand in the
earlier one, too, where the end of one of them is torn: if a replica holds them and the next one of the earlier segment, or with
leave, unless a replica has other records there.

Without leave, none is removed whose index alone proves that there were transactions which are in neither run
(`engine.log.evidence`): nothing would tell of them any more.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from waltzctl.engine.durable.edits import Remove
from waltzctl.engine.log.evidence import Evidence
from waltzctl.engine.losses import Overlap
from waltzctl.engine.repair.content import Content
from waltzctl.engine.repair.repaired_segments import RepairContext, RepairedSegment, offsets
from waltzctl.engine.repair.replicas import ReplicaSegments
from waltzctl.formats.segment import HEADER_SIZE


class Outcome(enum.Enum):
    """What became of an overlap."""

    LEFT = "both stay"
    CUT = "the earlier segment ends where the later one begins"
    REMOVED = "the later segment goes"


@dataclass(frozen=True, slots=True)
class Behind:
    """What follows the later one of two overlapping segments.

    `first`: first id of the next segment, None when unknown.  `reach`: the id after the last record that the next segment and
    those that join it hold without a loss.  `end`: there is no next segment.
    """

    first: int | None = None
    reach: int = 0
    end: bool = False


@dataclass(slots=True)
class OverlapPlanner:
    """Decides about overlaps of one partition; `mark` None: the local low-water mark is not known.

    `proven`: up to where transactions were here.
    """

    context: RepairContext
    replicas: Sequence[ReplicaSegments]
    mark: int | None
    proven: Evidence

    def mend(self, earlier: RepairedSegment, later: RepairedSegment, behind: Behind) -> Outcome:
        """Decide about two segments, of which the earlier one ends after the first id of the later one.

        Raises DiskReadError.
        """
        assert earlier.survey is not None
        assert later.survey is not None
        first, ends = later.first, (earlier.survey.next_id, later.survey.next_id)
        tail = earlier.survey.tail
        if _holds_nothing(later):  # whatever is damaged in the earlier one
            return self._remove(
                earlier, later, "it holds no record, and the segment in front of it goes on", ids_lost=False
            )
        if self._redundant(earlier, later):
            goes_on = "the segment in front of it holds the same records, and goes on"
            return self._remove(earlier, later, goes_on, ids_lost=False)
        open_end = tail is not None and (tail.unread or tail.doubtful or tail.out_of_order or ends[1] < ends[0])
        if earlier.survey.inner or later.survey.inner or open_end:
            return self._leave(earlier, later, ["one of them is damaged: once that is mended, they can be compared"])
        if later.survey.tail is not None and ends[1] < ends[0]:
            return self._leave(earlier, later, ["the later one is torn"])
        runs = self._run(earlier, first, min(ends)), self._run(later, first, min(ends))
        if runs[0].equals(runs[1]):
            if ends[1] <= ends[0] and earlier.survey.tail is None and later.survey.tail is None:
                return self._remove(earlier, later, "the segment in front of it holds the same records", ids_lost=False)
            return self._cut(earlier, later, "the next segment holds the same records", ids_lost=False)
        votes = self._votes(runs, first, min(ends), ends, behind)
        if tail is not None:
            votes[0].clear()  # a torn run cannot be the right one
        chosen = [place for place in (0, 1) if votes[place]]
        if len(chosen) == 1:
            (kept,) = chosen
            joined = behind.reach if behind.first == ends[kept] else 0
            if max(ends[kept], joined) >= ends[1 - kept]:
                why = "; ".join(votes[kept])
                return self._keep(kept, earlier, later, why, ids_lost=False)
        if self.context.allow_data_loss:
            kept = int(ends[0] <= ends[1])
            further = "it reaches further" if ends[0] != ends[1] else "it is the later one, which a node reads"
            outcome = self._keep(
                kept, earlier, later, f"both runs differ and nothing tells which is right; {further}", ids_lost=True
            )
            if outcome is not Outcome.LEFT:
                named = f"{earlier.data_path.name} and {later.data_path.name}"
                self.context.dispute(first, min(ends), f"{named} held other records under these ids")
            return outcome
        said = [
            f"for {part.data_path.name}: {'; '.join(votes[place]) or 'nothing'}"
            for place, part in enumerate((earlier, later))
        ]
        if len(chosen) == 1:
            said.append("but what the other one holds beyond stands nowhere else")
        return self._leave(earlier, later, said)

    def _redundant(self, earlier: RepairedSegment, later: RepairedSegment) -> bool:
        """Whether a torn pair is no riddle: the later one ends first, and what is intact of it stands in the earlier one, too.

        Where one of them is torn that alone does not suffice: a replica has to hold these records, or leave to be given.  It has
        to hold the one with which the earlier segment goes on, too: the later one may have ended in another one, of which nothing
        intact is left.  A replica that has other records forbids what leave would allow.
        """
        assert earlier.survey is not None
        assert later.survey is not None
        tails = [one for one in (earlier.survey.tail, later.survey.tail) if one is not None]
        unclear = any(one.kept or one.doubtful or one.out_of_order for one in tails)
        if not tails or unclear or earlier.survey.inner or later.survey.inner:
            return False
        first, stop = later.first, later.survey.next_id
        if stop >= earlier.survey.next_id or not (self.context.allow_data_loss or self.replicas):
            return False
        if not self._run(later, first, stop).equals(self._run(earlier, first, stop)):
            return False
        told = [self._told(earlier, *ids) for ids in ((first, stop), (stop, stop + 1)) if ids[0] < ids[1]]
        return False not in told and (self.context.allow_data_loss or None not in told)

    def _told(self, part: RepairedSegment, first: int, stop: int) -> bool | None:
        """Whether the replicas that hold transactions `first` to `stop` - 1 have the records of a segment; None: none does."""
        found = None
        for replica in self.replicas:
            held = replica.runs(self.context.partition, first, stop)
            if held is None:
                continue
            self.context.draft.sources |= {one.span.path for one in held}
            if not self._run(part, first, stop).equals(Content("", tuple(one.span for one in held))):
                return False
            found = True
        return found

    def _proves_more(self, earlier: RepairedSegment, later: RepairedSegment) -> bool:
        """Whether the later one's index alone proves a transaction behind both, which is not given up."""
        assert earlier.survey is not None
        assert later.survey is not None
        proven, reached = self.proven, max(earlier.survey.next_id, later.survey.next_id)
        if self.context.allow_data_loss or proven.index_with_data != later.first:
            return False
        return proven.with_data > max(reached, proven.mark, proven.names)

    @staticmethod
    def _run(part: RepairedSegment, first: int, stop: int) -> Content:
        """The records `first` to `stop` - 1 of a segment."""
        assert part.original is not None
        places = offsets(part, (first, stop))
        start = places.get(first, part.original.size())
        return Content(part.original.name, part.original.part(start, places.get(stop, start)))

    def _votes(
        self, runs: tuple[Content, Content], first: int, stop: int, ends: tuple[int, int], behind: Behind
    ) -> tuple[list[str], list[str]]:
        """The witnesses' reasons, in words, for the earlier and for the later run."""
        votes: tuple[list[str], list[str]] = ([], [])
        for replica in self.replicas:
            held = replica.runs(self.context.partition, first, stop)
            if held is None:
                continue
            self.context.draft.sources |= {run.span.path for run in held}
            theirs = Content("", tuple(run.span for run in held))
            for place in (0, 1):
                if runs[place].equals(theirs):
                    votes[place].append(f"{replica.path} holds the same records")
        joins = [votes[place] for place in (0, 1) if ends[place] == behind.first]
        if len(joins) == 1:
            joins.pop().append(f"the next segment begins with {behind.first}, where it ends")
        if behind.end and self.mark is not None:
            reach = [votes[place] for place in (0, 1) if ends[place] > self.mark]
            if len(reach) == 1:
                reach.pop().append(f"it alone reaches the local low-water mark {self.mark}")
        return votes

    def _keep(
        self, kept: int, earlier: RepairedSegment, later: RepairedSegment, why: str, *, ids_lost: bool
    ) -> Outcome:
        if kept == 0:
            return self._remove(earlier, later, f"{earlier.data_path.name} is kept: {why}", ids_lost=ids_lost)
        return self._cut(earlier, later, f"{later.data_path.name} is kept: {why}", ids_lost=ids_lost)

    def _cut(self, earlier: RepairedSegment, later: RepairedSegment, why: str, *, ids_lost: bool) -> Outcome:
        last = later.first - 1
        stop = earlier.survey.next_id if earlier.survey is not None else later.first
        if not earlier.cut_behind(last):
            return self._leave(earlier, later, ["its place in the earlier one is not to be found"])
        assert earlier.content is not None
        assert earlier.data is not None  # restored segments do not overlap
        size = earlier.data.size
        self.context.draft.step(
            "cut-segment", earlier.data_path, self.context.partition, f"transaction {last} becomes its last one: {why}",
            ids=(later.first, stop - 1), offset=earlier.content.size(), length=size - earlier.content.size(),
            loses_data=ids_lost,
        )  # fmt: skip
        return Outcome.CUT

    def _remove(self, earlier: RepairedSegment, part: RepairedSegment, why: str, *, ids_lost: bool) -> Outcome:
        context = self.context
        assert part.survey is not None
        if self._proves_more(earlier, part):
            return self._leave(earlier, part, [f"{self.proven.said_by()}: it goes once that is restored"])
        for action, state in (("remove-segment", part.data), ("remove-index", part.index)):
            if state is not None:
                context.draft.step(
                    action, state.path, context.partition, why,
                    ids=part.ids, offset=0, length=state.size,
                    loses_data=ids_lost and state is part.data,
                )  # fmt: skip
                context.draft.edits.append(Remove(state.path))
        context.remove(part)
        return Outcome.REMOVED

    def _leave(self, earlier: RepairedSegment, later: RepairedSegment, said: Sequence[str]) -> Outcome:
        assert earlier.survey is not None
        assert later.survey is not None
        later.keeps_index |= self._proves_more(earlier, later)
        stop = min(earlier.survey.next_id, later.survey.next_id)
        many = (
            f"transaction {later.first} stands"
            if stop == later.first + 1
            else f"transactions {later.first} to {stop - 1} stand"
        )
        both = (
            f"{many} twice: in {earlier.data_path.name}, which goes on to {earlier.survey.next_id - 1}, and here, up to"
            f" {later.survey.next_id - 1}"
        )
        self.context.leave(Overlap(later.first, earlier.survey.next_id, later.first), "; ".join((both, *said)))
        return Outcome.LEFT


def _holds_nothing(part: RepairedSegment) -> bool:
    """Whether a segment is a header alone."""
    assert part.content is not None
    return part.content.size() == HEADER_SIZE
