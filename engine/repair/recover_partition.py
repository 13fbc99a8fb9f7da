"""Planning the recovery of one partition: segment by segment, in the order of their ids."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path, PurePath

from waltzctl.engine.durable.edits import Remove
from waltzctl.engine.errors import DiskReadError, copy_anew
from waltzctl.engine.findings import loss_finding
from waltzctl.engine.findings.directory_contents import special_finding
from waltzctl.engine.log import places
from waltzctl.engine.log.assess import data_gone
from waltzctl.engine.log.evidence import Evidence, evidence
from waltzctl.engine.log.view import PartitionView, SegmentView
from waltzctl.engine.losses import Covered, DirectoryGone, Ids, NoSegment, ShortHeader, covered, without
from waltzctl.engine.repair.arguments import Agreed
from waltzctl.engine.repair.plan import PlanDraft
from waltzctl.engine.repair.provenance import SegmentSurroundings
from waltzctl.engine.repair.reconcile import Reconciliation
from waltzctl.engine.repair.recover_ledger import restored_by, settle_ledger
from waltzctl.engine.repair.recover_losses import LossPlanner
from waltzctl.engine.repair.recover_names import with_own_names
from waltzctl.engine.repair.recover_orphans import restore_listed
from waltzctl.engine.repair.recover_overlaps import Behind, Outcome, OverlapPlanner
from waltzctl.engine.repair.recover_strays import plan_strays
from waltzctl.engine.repair.repaired_segments import RepairContext, RepairedSegment, open_part, plan_files
from waltzctl.engine.repair.replicas import ReplicaSegments
from waltzctl.engine.repair.survey import Survey
from waltzctl.engine.storage.loss_ledger import still_lost
from waltzctl.engine.storage.orphans import listed_in
from waltzctl.formats.accepted_losses import AcceptedLoss
from waltzctl.formats.control import ControlFile, PartitionStruct
from waltzctl.formats.segment import HEADER_SIZE


def plan_partition(
    draft: PlanDraft,
    control: ControlFile,
    view: PartitionView | None,
    partition: int,
    *,
    assigned: bool,
    replicas: Sequence[ReplicaSegments],
    allow_data_loss: bool,
    agreed: Agreed | None = None,
    accepted: Sequence[AcceptedLoss] = (),
) -> None:
    """Add the recovery of a partition to the plan.  `view` None: its directory is missing.  Raises DiskReadError.

    `agreed`: what a comparison of all replicas decided.  `accepted`: the partition's losses in the ledger.
    """
    directory = draft.storage / str(partition) if view is None else view.path
    if view is not None:
        view = with_own_names(draft, control, view, partition, replicas, allow_data_loss=allow_data_loss)
    around = SegmentSurroundings(control, partition, () if view is None else view.segments, replicas)
    context = RepairContext(draft, control, partition, directory, allow_data_loss, around)
    draft.partitions.add(partition)
    if view is None and not assigned:
        return
    if view is None and places.still_named(directory):
        kind = places.special(directory) or "a file"
        said = f"nothing is planned for the partition while {kind} stands in its place; move that away by hand"
        context.leave(_directory_gone(control, partition), said)
        return
    if view is not None and view.special:
        for path in view.special:
            said = "nothing is planned for the partition while no regular file stands there"
            draft.leave(special_finding(path, places.special(path) or "gone", context.where), said)
        return
    before, steps = len(draft.undecided), len(draft.steps)
    context.segments = [open_part(context, one) for one in around.segments]
    if view is not None:
        plan_strays(context, view.strays, assigned=assigned)
    if agreed is None:
        restore_listed(context, replicas)
    mark = _mark(control, partition)
    reconciliation = None if agreed is None else Reconciliation(context, agreed, mark, [])
    if reconciliation is not None:
        reconciliation.prepare()
    end = None if agreed is None else agreed.clean_to + 1
    whole = agreed is not None and agreed.restore_end
    proven = evidence(view, mark, [loss for loss in accepted if still_lost(loss, (), mark)])
    walk = _Walk(
        context, LossPlanner(context, replicas, mark, proven.required - 1), mark, end, proven, accepted, whole=whole
    )
    walk.run()
    if assigned and all(map(_has_no_data, context.segments)):
        _plan_no_segment(context)
    if view is None and len(context.segments) == 0:
        del draft.undecided[before:]
        context.leave(_directory_gone(control, partition), "no replica gives its records")
    for part in sorted(context.segments, key=lambda part: part.first):
        plan_files(context, part)
    told_to = max(proven.mark, proven.names, proven.with_data)
    _plan_leftovers(context, walk.expected, end, told_to, restored_by(draft.steps[steps:]))
    if reconciliation is not None:
        reconciliation.finish()
    settle_ledger(context, accepted, mark, steps)


def _has_no_data(part: RepairedSegment) -> bool:
    """Whether a segment has no data: its files are removed unless restored records take their place."""
    return part.content is None and (part.data is None or part.short)


def _plan_no_segment(context: RepairContext) -> None:
    """Handle a partition of which no segment will be left, although a session began in it: a node would not repair that.

    Nor does it where its directory is gone, also before the first session.
    """
    current = _current(context.control, context.partition)
    if current is None or (current.session_id < 0 and Path(context.directory).is_dir()):
        return
    if context.allow_data_loss:
        part = context.new_part(0, context.control.header.created)
        context.draft.step(
            "create-segment", part.data_path, context.partition, "nothing is left: the log begins anew with transaction 0",
            offset=0, length=HEADER_SIZE, loses_data=True,
        )  # fmt: skip
    elif not context.segments and Path(context.directory).is_dir() and current.local_low_water_mark < 0:
        why = f"nothing tells what it held; a running cluster copies it anew: {copy_anew(context.partition)}"
        context.leave(NoSegment(current.session_id), why)


def _current(control: ControlFile, partition: int) -> PartitionStruct | None:
    """The partition's struct in force in the control file; None when there is none."""
    return control.partitions[partition].current_struct


def _directory_gone(control: ControlFile, partition: int) -> DirectoryGone:
    """The loss of the directory of an assigned partition."""
    known = _current(control, partition)
    assert known is not None  # the struct is what says that the partition is assigned
    return DirectoryGone(known.local_low_water_mark, known.session_id)


def _mark(control: ControlFile, partition: int) -> int | None:
    """The partition's local low-water mark; None when neither struct is in force."""
    current = _current(control, partition)
    return None if current is None else current.local_low_water_mark


class _Walk:
    """Walks the segments in order.

    ==========  ====================================================================================================
    `expected`  the id that should come next; None behind a segment that is left untouched, which hides it
    `end`       the id after the last one that the replicas agreed to keep, None when unknown; nothing is restored from it on
    `whole`     everything up to `end` is restored, or nothing
    `proven`    up to where transactions were here
    ==========  ====================================================================================================
    """

    def __init__(
        self,
        context: RepairContext,
        losses: LossPlanner,
        mark: int | None,
        end: int | None,
        proven: Evidence,
        accepted: Sequence[AcceptedLoss],
        *,
        whole: bool = False,
    ) -> None:
        self.context = context
        self.losses = losses
        self.overlaps = OverlapPlanner(context, losses.replicas, mark, proven)
        self.mark = mark
        self.end = end
        self.proven = proven
        self.accepted = accepted
        self.whole = whole
        self.expected: int | None = 0

    def run(self) -> None:
        parts = sorted(self.context.segments, key=lambda part: part.first)
        before: RepairedSegment | None = None
        there = [part for part in parts if (part.data is not None or part.content is not None) and not part.short]
        for part in there:
            self.losses.settle(part)
        self.losses.rivals.settle(self.accepted)
        for part in there:
            self.losses.rivals.choose(part)
        for place, part in enumerate(there):
            if part.survey is None:
                self.expected, before = None, None
                continue
            if before is not None and self.expected is not None and part.first < self.expected:
                behind = _behind(there[place + 1 :])
                outcome = self.overlaps.mend(before, part, behind) if _goes_into(before, part) else None
                if outcome is Outcome.REMOVED:
                    continue
                if outcome is Outcome.CUT:
                    self.expected = part.first
                if outcome is Outcome.LEFT:
                    self.losses.mend_tails(before, part)
                if outcome is Outcome.LEFT and _whole_end(before) > _whole_end(part):
                    continue  # `before` reaches further, so the next segment is compared with it
            self._join(before, part)
            before = part
        self._end(before)
        for part in sorted(self.context.segments, key=lambda part: part.first):
            if part.survey is not None:
                for loss in reversed(part.survey.inner):
                    self.losses.inner(part, loss)

    def _join(self, before: RepairedSegment | None, part: RepairedSegment) -> None:
        """Handle what lies between the end of `before` and the beginning of `part`: a gap, an overlap or surplus bytes."""
        assert part.survey is not None
        tail = None if before is None else before.tail
        if self.expected is not None and part.first > self.expected:
            self.losses.gap(before, self.expected, part)
        elif self.expected is not None and part.first < self.expected:
            pass  # an overlap that was left to the operator
        elif tail is not None:
            assert before is not None  # it has the tail
            self._surplus_bytes(before)
        found = part.survey
        self.expected = max(self.expected or 0, found.reached)

    def _surplus_bytes(self, before: RepairedSegment) -> None:
        """Surplus bytes after the last record of a segment.  The next segment begins with the next id: nothing is missing."""
        assert before.survey is not None
        tail = before.survey.tail
        assert tail is not None
        assert before.content is not None
        context = self.context
        if tail.out_of_order and self.losses.rivals.superfluous(before, tail):
            self.losses.cut_tail(
                before, tail, "the next segment holds what belongs behind it", loses=bool(self.losses.replicas)
            )
            return
        if tail.kept:
            return
        if tail.out_of_order or tail.doubtful:
            if context.allow_data_loss:
                self.losses.cut_tail(before, tail, "the next segment holds what belongs behind it", loses=True)
            else:
                said = "the next segment holds what belongs there"
                self.losses.leave_tail(before, tail, said, following=self.expected)
            return
        if not self._stands_behind(tail.first):
            if context.allow_data_loss:
                self.losses.cut_tail(before, tail, "the next segment has lost what belongs behind it", loses=True)
            else:
                said = "the next segment has lost what belongs there"
                self.losses.leave_tail(before, tail, said, following=self.expected, begun=False)
            return
        context.draft.step(
            "cut-torn-tail", before.data_path, context.partition, "the next segment holds what belongs behind it",
            offset=tail.offset, length=tail.end - tail.offset,
        )  # fmt: skip
        before.content = before.content.spliced(tail.offset, before.content.size(), ())

    def _stands_behind(self, number: int) -> bool:
        """Whether the segment that is named after a transaction begins with it, or will; or it was never acknowledged."""
        behind = next((one for one in self.context.segments if one.first == number), None)
        if behind is None or behind.survey is None or _begins_whole(behind.survey):
            return True
        if self.mark is not None and number > max(self.mark, self.losses.durable_to):
            return True
        return self.losses.gives_back_first(behind)

    def _end(self, last: RepairedSegment | None) -> None:
        if self.expected is not None:
            self.expected = self.losses.end(
                last, self.expected, self.mark, self.proven, limit=self.end, whole=self.whole
            )


def _begins_whole(found: Survey) -> bool:
    """Whether the first record of a segment is intact, or nothing is in it."""
    lost = found.losses[:1]
    return not lost or lost[0].offset > HEADER_SIZE or lost[0].record_ok


def _goes_into(before: RepairedSegment, part: RepairedSegment) -> bool:
    """Whether a segment goes on behind the first id of the next; in front of both may be one that goes further, and was left."""
    assert before.survey is not None
    return part.first < before.survey.next_id


def _whole_end(part: RepairedSegment) -> int:
    """The id after the last record of a segment; 0 when its tail is torn, which has to be mended first."""
    assert part.survey is not None
    return part.survey.next_id if part.survey.tail is None else 0


def _behind(parts: Sequence[RepairedSegment]) -> Behind:
    """What the segments after a segment say about where it ends."""
    if not parts:
        return Behind(end=True)
    if parts[0].survey is None:
        return Behind()
    return Behind(parts[0].first, _reach(parts))


def _reach(parts: Sequence[RepairedSegment]) -> int:
    """The id after the last record that is reached from the first of `parts` through joining segments without a loss."""
    following = parts[0].first
    for part in parts:
        if part.survey is None or part.first != following or part.survey.inner:
            break
        following = part.survey.reached
        if part.survey.tail is not None:
            break
    return following


def _plan_leftovers(
    context: RepairContext, expected: int | None, end: int | None, told_to: int, restored: Sequence[Ids] = ()
) -> None:
    """Handle indexes without a data file, and data files shorter than their header, unless restored records replaced them.

    `expected`: the id after the last record of the partition, None when unknown.  `end`: index entries for ids from `end` on
    (None: unknown) are no loss, as no replica keeps these.  `told_to`: missing ids below it have been reported by the walk.
    `restored`: the ids that a replica gives back.
    """
    others, back, lacking = _Others.of(context), covered(restored), covered(context.lacking)
    for part in context.segments:
        if part.content is not None or (part.data is not None and not part.short):
            continue
        entries = part.index_entries if end is None else max(0, min(part.index_entries, end - part.first))
        if entries:
            ids = part.first, part.first + entries
            reached = expected is not None and expected >= ids[1]
            harmless = part.data is None and (reached or others.cover(*ids))
            # a single entry tells no length: that a replica proves the record is all that can be known
            alike = harmless and ((entries == 1 and not without(ids, back)) or others.hold_listed(part))
            if harmless and not alike and context.allow_data_loss:
                elsewhere = without(ids, lacking)
                for one in elsewhere:
                    said = f"{part.index_path.name}, whose data file is lost, lists other records under these ids"
                    context.dispute(*one, said)
                for one in without(ids, covered(elsewhere)):
                    context.give_up(*one, "the data file is lost, its index was left")
                _remove(context, part, loses=True)
                continue
            if harmless and not alike:
                _leave_orphan(context, others, part, entries, "truncate in front of them, or bring the data file back")
                continue
        else:
            harmless = (
                expected is not None
                and expected >= part.first
                and (part.data is None or others.following(part) is None)
            )
        if harmless or context.allow_data_loss:
            if not harmless:
                context.give_up(part.first, part.first + entries, "the data file is lost, its index was left")
            _remove(context, part, loses=not harmless)
        elif part.data is None:
            said = "" if entries else f"transactions in front of {part.first} are missing"
            _leave_orphan(context, others, part, entries, said)
        else:
            assert part.data is not None
            following = others.following(part)
            told = told_to if following is None else following  # a gap was reported up to the next segment
            short = ShortHeader(part.first, part.data.size, entries, following, told)
            context.leave_end(
                loss_finding(short, context.where), part, "what it held, or what was in front of it, is lost"
            )


@dataclass(frozen=True, slots=True)
class _Others:
    """What the partition's segments will hold, arranged once: each of tens of thousands of lost data files asks for it.

    `held`: the ids of all of them.  `files`: the ids in the names of data files.  `whole`: segments that were read to their ends
    and stay as they are; none of the first n + 1 of them holds an id from `ends[n]` on.  `read`: the others that will hold
    records.  All are in the order of their ids.
    """

    partition: int
    held: Covered
    files: tuple[int, ...]
    whole: tuple[RepairedSegment, ...]
    ends: tuple[int, ...]
    read: tuple[RepairedSegment, ...]

    @classmethod
    def of(cls, context: RepairContext) -> _Others:
        """Those of a partition as it is planned."""
        parts = context.segments
        whole = tuple(part for part in parts if part.content is not None and _stays(part))
        return cls(
            context.partition,
            covered((part.survey.begins, part.survey.next_id) for part in parts if part.survey is not None),
            tuple(part.first for part in parts if part.data is not None),
            whole,
            tuple(accumulate((part.survey.next_id for part in whole if part.survey is not None), max)),
            tuple(part for part in parts if part.content is not None and not _stays(part)),
        )

    def cover(self, first: int, stop: int) -> bool:
        """Whether ids `first` to `stop` - 1 are in segments, intact or as reported losses."""
        return not without((first, stop), self.held)

    def following(self, part: RepairedSegment) -> int | None:
        """The id in the name of the next data file."""
        place = bisect_right(self.files, part.first)
        return self.files[place] if place < len(self.files) else None

    def hold_listed(self, part: RepairedSegment) -> bool:
        """Whether the segments will hold the records that an index without data lists, found or restored from a replica."""
        orphan = SegmentView(self.partition, part.first, None, part.index)
        # those that end in front of it, or begin behind its last record, are not read again for each such index
        stop = bisect_right(self.whole, part.first + part.index_entries, key=lambda one: one.first)
        chosen = [*self.whole[bisect_right(self.ends, part.first, hi=stop) : stop], *self.read]
        planned = [(one.first, one.content) for one in chosen if one.content is not None]
        try:
            return listed_in(orphan, planned)
        except (DiskReadError, FileNotFoundError):
            return False


def _stays(part: RepairedSegment) -> bool:
    """Whether a segment was read to its end, and stays as it is."""
    return part.survey is not None and not part.survey.losses and part.content is part.original


def _leave_orphan(context: RepairContext, others: _Others, part: RepairedSegment, entries: int, why: str) -> None:
    """Leave an index without a data file to the operator."""
    assert part.index is not None
    gone = data_gone(part.first, entries, part.index.size, others.held, lambda: others.hold_listed(part))
    context.leave(gone, why or None)


def _remove(context: RepairContext, part: RepairedSegment, *, loses: bool) -> None:
    files: list[tuple[str, PurePath, int, str]] = []
    if part.data is not None:
        why = "shorter than its header; it holds no record"
        files.append(("remove-empty-segment", part.data.path, part.data.size, why))
    if part.index is not None:
        why = "an index without a data file" if part.data is None else "belongs to the data file"
        files.append(("remove-orphan-index", part.index.path, part.index.size, why))
    for action, path, size, why in files:
        context.draft.step(action, path, context.partition, why, offset=0, length=size, loses_data=loses)
        context.draft.edits.append(Remove(path))
