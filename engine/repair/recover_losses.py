"""What recovery does about each loss of records in a partition.

A loss is restored from a replica, cut, split off, or left to the operator.  Four kinds are handled:

========================================  ======================================================
kind                                      handled by
========================================  ======================================================
inside a segment                          `LossPlanner.inner`
end of a segment that is not the last     `LossPlanner.gap` (as the torn end of the first segment)
between two segments                      `LossPlanner.gap`
end of the partition                      `LossPlanner.end`
========================================  ======================================================

Offsets are those in the file before the repair, so the losses of one segment are handled from its end to its beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from waltzctl.engine.findings import Code, Severity, Tail
from waltzctl.engine.log.assess import Stretch, end, held_by
from waltzctl.engine.log.bad_data import bad_data
from waltzctl.engine.log.evidence import Evidence
from waltzctl.engine.log.index import IndexReader
from waltzctl.engine.log.index_comparison import explained_by_tail
from waltzctl.engine.log.view import FileState
from waltzctl.engine.losses import Gap
from waltzctl.engine.repair.content import Content, LiteralBytes, Piece
from waltzctl.engine.repair.embedded import may_be_data, taken_in
from waltzctl.engine.repair.repaired_segments import RepairContext, RepairedSegment, offsets
from waltzctl.engine.repair.replica_records import ReplicaRecords
from waltzctl.engine.repair.replicas import Neighbours, Proven, Refusal, ReplicaSegments
from waltzctl.engine.repair.rivals import Rivals
from waltzctl.engine.repair.survey import Loss, Survey, by_ids, by_places, open_hint
from waltzctl.engine.repair.witnesses import Witnesses, record_at
from waltzctl.formats.segment import HEADER_SIZE, index_name, segment_name

_REFUTED = "repeats, or a replica holds other records under their ids"
"""Why a tail goes all of whose records are refuted (`Rivals.superfluous`), in words of a plan."""


@dataclass(slots=True)
class LossPlanner:
    """Decides about losses; adds steps, findings and changed contents to the context.

    `mark`: the local low-water mark, None when unknown.  `durable_to`: the last transaction that is proven to have been durable.
    `_maybe_embedded`: (segment, offset) of each loss that a possibly embedded record follows (`engine.repair.embedded`).
    """

    context: RepairContext
    replicas: Sequence[ReplicaSegments]
    mark: int | None
    durable_to: int
    witnesses: Witnesses = field(init=False)
    records: ReplicaRecords = field(init=False)
    rivals: Rivals = field(init=False)
    _maybe_embedded: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.witnesses = Witnesses(self.context)
        self.records = ReplicaRecords(self.context, self.replicas, self.witnesses)
        self.rivals = Rivals(self.context, self.replicas)

    def settle(self, part: RepairedSegment) -> None:
        """Decide what out-of-order ids at the end of a segment mean: the ids are wrong, or records in front are missing.

        Neither the records nor the index can tell; the index may have been built from either.  The evidence, in this order:

        1. A replica has the same record under the same id: the ids are right, records in front are missing.
        2. A replica has records of the same lengths under the expected ids: the ids are wrong.
        3. No replica decides, and data loss is allowed: the records stay, the ids in front are lost.
        """
        found, content, records = part.survey, part.original, self.records
        if found is None:
            return
        assert content is not None  # a survey has content
        found = self._without_embedded(part, found)
        rest, tail = by_ids(content, found, part.ceiling), found.tail
        if rest is not None:
            assert tail is not None  # `by_ids` returned a survey of the tail
            head = rest.losses[len(found.losses) - 1]
            here = Neighbours(self.witnesses.before(part, tail.first), None)
            if records.hold(part, head):
                part.survey = rest
            elif head.stop == head.first:  # either a repeat in front of right ids, or all ids up to the end are wrong
                part.survey = replace(found, losses=(*found.losses[:-1], replace(tail, either=True)))
            elif self.context.allow_data_loss and isinstance(records.prove(tail.first, tail.first + 1, here), Refusal):
                part.survey = rest
            return
        if (
            tail is not None
            and self.context.allow_data_loss
            and (twice := self._confirmed_by_next_segment(part, found)) is not None
        ):
            part.survey, part.ceiling = twice, None
            return
        if self.replicas:
            found = self._join_shifted(part, found)
        other = by_places(found) if self.replicas else None
        if other is None or records.hold(part, found.losses[-1]):
            return
        part.survey = other
        assert other.tail is not None
        if records.whole_tail(part, other.tail) is None:
            part.survey = found

    def _confirmed_by_next_segment(self, part: RepairedSegment, found: Survey) -> Survey | None:
        """The survey that takes the out-of-order ids at the end as right, if the next segment confirms them; else None.

        The next segment confirms them when its first record is also in this segment, under the same id: the two segments
        overlap, and the ids are right.
        """
        assert part.original is not None  # it was surveyed
        following = next((one for one in self.context.segments if one.first == part.ceiling), None)
        rest = by_ids(part.original, found, None)
        if following is None:
            return None
        here = offsets(replace(part, ceiling=None), (following.first,)).get(following.first)
        same = record_at(part, here)
        return rest if same is not None and same == record_at(following, HEADER_SIZE) else None

    def _without_embedded(self, part: RepairedSegment, found: Survey) -> Survey:
        """Disregard records behind damage that may be the data of a damaged record, as the index says (`may_be_data`).

        A replica with another record under the same id proves that they are data: they become part of the loss.  Otherwise the
        loss enters `_maybe_embedded`.
        """
        place = 0
        while place < len(found.losses):
            loss = found.losses[place]
            if may_be_data(part.index_path, part.first, loss):
                assert loss.stop is not None
                whole = taken_in(found, place) if self.records.hold_another(part, loss) else None
                if whole is not None:
                    part.survey = found = whole
                    continue
                self._maybe_embedded.add((part.first, loss.offset))
                if found.tail is not None:  # the tail may be the rest of that damaged record
                    part.survey = found = replace(
                        found, losses=(*found.losses[:-1], replace(found.tail, doubtful=True))
                    )
            place += 1
        return found

    def _join_shifted(self, part: RepairedSegment, found: Survey) -> Survey:
        """Join a repeated record and a later missing id to one loss, when the records in between are shifted against their ids.

        A replica proves the shift by different records between the same neighbours, in the same number of bytes.
        """
        for one, other in pairwise(found.losses):
            if not one.out_of_order or one.stop != one.first or other.length:
                continue
            assert other.stop is not None  # a loss at the end of the file has a length
            whole = replace(one, end=other.end, stop=other.stop)
            around = self.witnesses.around(part, whole)
            if None in (around.before, around.after):
                continue
            proven = self.records.prove(whole.first, other.stop, around)
            if isinstance(proven, Proven) and len(proven) == whole.length:
                kept = (whole if loss is one else loss for loss in found.losses if loss is not other)
                part.survey = found = replace(found, losses=tuple(kept))
        return found

    def inner(self, part: RepairedSegment, loss: Loss) -> None:
        """A loss in front of intact records of the same segment."""
        assert loss.stop is not None
        assert part.content is not None
        found: Proven | Refusal
        if loss.unread:
            found = Refusal("the place was built to be expensive to search; it was given up")
        elif loss.stop == loss.first:
            found = Refusal("no transaction is missing there")
        else:
            found = self.records.prove(loss.first, loss.stop, self.witnesses.around(part, loss))
        if isinstance(found, Proven):
            self._restored(part, loss, found)
            spans: tuple[Piece, ...] = tuple(run.span for run in found.runs)
            part.shifted |= len(found) != loss.end - loss.offset
            part.content = part.content.spliced(loss.offset, loss.end, spans)
        elif (part.first, loss.offset) in self._maybe_embedded:
            part.keeps_index = True  # the index is the only evidence
            said = (
                f"the index has transaction {loss.stop} inside it, so that what stands behind it may be a record's data"
            )
            self._undecided(part, loss, f"{found.why}; {said}")
        elif self.replicas and self.rivals.superfluous(part, loss):
            self._remove_bytes(part, loss, "a repeat, or a replica holds another record under its id")
        elif self.records.join_around(part, loss):
            why = "no record; in a replica the records on both sides follow one another"
            self._remove_bytes(part, loss, why, loses=False)
        elif self.context.allow_data_loss and not loss.record_ok and not loss.unread:
            self._split(part, loss)
        else:
            self._undecided(part, loss, found.why)

    def _restored(self, part: RepairedSegment, loss: Loss, found: Proven) -> None:
        assert loss.stop is not None
        self.context.draft.step(
            "restore-record", part.data_path, self.context.partition,
            f"{loss.cause}; proven by {found.by}: key, partition, ids, checksums and neighbours agree",
            ids=(loss.first, loss.stop - 1), offset=loss.offset, length=loss.end - loss.offset,
            loses_data=loss.cause is Code.REPLICA_DIFFERS or self.rivals.only_here(part, loss, found) is not None,
        )  # fmt: skip

    def _split(self, part: RepairedSegment, loss: Loss) -> None:
        """Give the loss up: records in front of it stay in this segment, records after it move to a new segment."""
        context, content = self.context, part.content
        assert content is not None
        assert part.header is not None
        assert loss.stop is not None
        length = loss.end - loss.offset
        if loss.stop == loss.first:
            self.rivals.dispute(part, loss)
            self._remove_bytes(part, loss, "records out of order; no transaction is missing there")
            return
        path = context.directory / segment_name(loss.stop)
        if context.taken(loss.stop) or FileState.of(path) is not None:
            self._undecided(part, loss, f"the segment cannot be split: there is a {path.name}")
            return
        ids = (loss.first, loss.stop - 1)
        context.draft.step(
            "split-segment", part.data_path, context.partition,
            f"{loss.cause}: transactions {ids[0]} to {ids[1]} are lost; what follows moves to {path.name}",
            ids=ids, offset=loss.offset, length=length, loses_data=True,
        )  # fmt: skip
        context.give_up(loss.first, loss.stop, f"{loss.cause} in {part.data_path.name}")
        header = replace(part.header, first_transaction_id=loss.stop)
        index = FileState.of(context.directory / index_name(loss.stop))
        behind = RepairedSegment(loss.stop, path, context.directory / index_name(loss.stop), None, index, header)
        pieces = (LiteralBytes(header.encode()), *content.part(loss.end, content.size()))
        behind.content = Content(str(path), pieces)
        behind.shifted = True
        context.put(behind)
        part.content = content.spliced(loss.offset, content.size(), ())

    def _remove_bytes(self, part: RepairedSegment, loss: Loss, why: str, *, loses: bool = True) -> None:
        assert part.content is not None
        self.context.draft.step(
            "remove-bytes", part.data_path, self.context.partition, why,
            offset=loss.offset, length=loss.length, loses_data=loses,
        )  # fmt: skip
        part.content = part.content.spliced(loss.offset, loss.end, ())
        part.shifted = True

    def _undecided(self, part: RepairedSegment, loss: Loss, why: str) -> None:
        files = self.context.files(part)
        found = loss.as_finding(files)
        if loss.cause is Code.REPLICA_DIFFERS:
            found = files.finding(
                loss.cause,
                f"transaction {loss.first}: the record is intact, the replicas keep another one under this id",
                transaction_id=loss.first, offset=loss.offset, length=loss.length,
            )  # fmt: skip
        elif found is None:
            assert part.original is not None
            found = bad_data(part.original, loss.first, loss.offset).finding(files)
        self.context.draft.leave(found, why)

    def gap(self, part: RepairedSegment | None, first: int, following: RepairedSegment) -> None:
        """Ids `first` to `following.first` - 1 are missing in front of `following`; `part` is the segment before, None for none.

        `part` may end in a torn record; its id is one of the missing ones.
        """
        stop = following.first
        tail = None if part is None else part.tail
        neighbours = Neighbours(self.witnesses.before(part, first), self.witnesses.behind(following, stop))
        found = (
            Refusal("it was given up unread") if tail and tail.unread else self.records.prove(first, stop, neighbours)
        )
        if isinstance(found, Proven):
            self._restore_behind(part, found, f"transactions missing in front of {following.data_path.name}")
            return
        self.context.lacking.append((first, stop))
        if tail is not None and part is not None:
            if self.context.allow_data_loss and not tail.kept:
                self.cut_tail(part, tail, "the segment is not the last: acknowledged records are given up", loses=True)
                self.context.give_up(first, stop, f"the end of {part.data_path.name} was torn")
            else:
                self.leave_tail(part, tail, found.why, following=stop)
                if not tail.out_of_order:
                    return  # the tail's finding covers all ids up to `stop`
        before = None if part is None else part.first
        self.context.leave(Gap(first, stop, following.first, before), found.why)

    def end(
        self,
        part: RepairedSegment | None,
        first: int,
        mark: int | None,
        proven: Evidence,
        *,
        limit: int | None = None,
        whole: bool = False,
    ) -> int:
        """The end of the partition; returns the next id after what was restored.

        `part`: the last segment, None for none.  `first`: the id after its last record.  `mark`: the local low-water mark, None
        when unknown.  `proven`: up to where transactions were here.  `limit`: ids from `limit` on are restored only at or below
        the mark; with `whole`, ids up to `limit` are restored completely or not at all.
        """
        tail = None if part is None else part.tail
        wanted, required = proven.next_id, proven.required
        if limit is not None:
            wanted, required = limit if whole else min(wanted, limit), min(required, limit)
            wanted, required = max(wanted, proven.mark), max(required, proven.mark)
        unread = tail is not None and tail.unread  # an unread tail stays: there may be records in it
        why = "it was given up unread" if unread else ""
        if wanted > first and not unread:
            before = Neighbours(self.witnesses.before(part, first), None)
            listed = proven.listed if limit is None and proven.with_data > first else 0
            here = 0 if limit is not None or part is None or tail is None else self._whole_tail_end(part, tail)
            least = max(first + 1, required)  # a shorter restore would remove the evidence of the ids lost after it
            ends = {wanted} if whole else {one for one in (here, listed, wanted, required) if one >= least}
            for stop in sorted(ends, reverse=True):
                found = self.records.prove(first, stop, before)
                if isinstance(found, Proven):
                    said = (
                        _why_restored(proven, mark)
                        if stop <= max(wanted, listed)
                        else f"a record here has id {stop - 1}"
                    )
                    self._restore_behind(part, found, said)
                    return found.runs[-1].stop
                why = why or found.why
            if self.context.allow_data_loss and (held := self._longest_proven(first, wanted, before)) is not None:
                self._restore_behind(part, held, _why_restored(proven, mark))
                first, part, tail = held.runs[-1].stop, None, None
        if required > first or (whole and wanted > first):
            self._end_lost(part, tail, first, proven, required, why)
        elif tail is not None and part is not None:
            self._torn_tail(part, tail, mark)
        return first

    def _whole_tail_end(self, part: RepairedSegment, tail: Loss) -> int:
        """The id after a tail whose bits or ids are wrong, if a replica has its records in the same number of bytes; else 0."""
        found = self.records.whole_tail(part, tail)
        return 0 if found is None else found.runs[-1].stop

    def _longest_proven(self, first: int, stop: int, before: Neighbours) -> Proven | None:
        """The longest prefix of transactions `first` to `stop` - 1 that a replica proves; None for an empty one."""
        most: Proven | None = None
        low, high = first, stop - 1  # binary search: proven up to `low` (exclusive), not proven up to `high` + 1
        while self.replicas and low < high:
            middle = (low + high + 1) // 2
            found = self.records.prove(first, middle, before)
            if isinstance(found, Proven):
                most, low = found, middle
            else:
                high = middle - 1
        return most

    def _end_lost(
        self, part: RepairedSegment | None, tail: Loss | None, first: int, proven: Evidence, stop: int, why: str
    ) -> None:
        """Transactions `first` to `stop` - 1 were durable here, and no replica restores them: give them up or report them."""
        context = self.context
        if context.allow_data_loss and (tail is None or not tail.kept):
            if tail is not None and part is not None:
                self.cut_tail(part, tail, f"transactions up to {stop - 1} were durable here", loses=True)
            context.lower_mark(first - 1)
            context.give_up(first, stop, f"the end was lost; {proven.said_by()}")
            return
        if tail is not None and part is not None:
            self.leave_tail(part, tail, why)
        if part is not None and part.first == proven.index_with_data and proven.with_data > max(first, proven.mark):
            part.keeps_index = True  # the index is the only evidence of the lost records
        lasts = () if part is None else (self._last_stretch(part, tail, first),)
        known = replace(proven, names=min(proven.names, stop), with_data=min(proven.with_data, stop))
        for loss in end(lasts, known, proven.mark - 1 if proven.mark else None):
            context.leave(loss, why)

    def _last_stretch(self, part: RepairedSegment, tail: Loss | None, first: int) -> Stretch:
        """The extent of the last segment, with `first` as the id after its last record, and of its index."""
        torn = None if tail is None or tail.out_of_order else tail
        listed = part.first + part.index_entries
        explained = 0 if torn is None else self._listed_in_tail(part, torn)
        held = held_by(first, torn=torn is not None, explained=explained, uncertain=tail is not None and tail.unread)
        excess = listed > held.accounted + 1
        return Stretch(part.first, part.first, held.next_id, held.accounted, held.uncertain, listed, excess)

    @staticmethod
    def _listed_in_tail(part: RepairedSegment, tail: Loss) -> int:
        """How many records of a torn tail the index lists."""
        hint = open_hint(part.index_path)
        if hint is None or part.data is None:
            return 0
        with hint:
            return explained_by_tail(IndexReader(hint, part.first), tail.seen, part.data.size, tail.first)

    def restore_tail(self, part: RepairedSegment, tail: Loss) -> bool:
        """Put a replica's records in the place of a tail of which only bits or ids are wrong; False where none is proven."""
        whole = self.records.whole_tail(part, tail)
        if whole is None:
            return False
        self._restored(part, replace(tail, stop=whole.runs[-1].stop), whole)
        assert part.content is not None
        part.content = part.content.spliced(tail.offset, tail.end, tuple(run.span for run in whole.runs))
        return True

    def mend_tails(self, earlier: RepairedSegment, later: RepairedSegment) -> None:
        """Mend the tails of two segments that overlap, which keep them from being compared.

        That of the earlier one goes where all of it is refuted, or may be given up.  That of the later one is restored where the
        earlier one is whole and goes on behind it: so it is no end of the log, which nobody else looks at.
        """
        tail = earlier.tail
        if tail is not None and tail.out_of_order and not tail.kept:
            if self.rivals.superfluous(earlier, tail):
                self.cut_tail(earlier, tail, _REFUTED, loses=bool(self.replicas))
            elif self.context.allow_data_loss:
                self.cut_tail(earlier, tail, "the next segment begins in front of them", loses=True)
        inside = earlier.survey is not None and later.tail is not None and later.tail.first < earlier.survey.next_id
        if tail is None and inside and later.tail is not None:
            self.restore_tail(later, later.tail)

    def _torn_tail(self, part: RepairedSegment, tail: Loss, mark: int | None) -> None:
        """A torn tail above the mark: the remains of a write that was never acknowledged."""
        context = self.context
        if self.restore_tail(part, tail):
            return
        if self.replicas and self.rivals.superfluous(part, tail):
            self.cut_tail(part, tail, _REFUTED, loses=True)
        elif tail.unread:
            self.leave_tail(part, tail, "it was given up unread; salvage can look closer")
        elif tail.either:
            said = (
                "the ids go on one by one from a lower one: some are repeats, or all these ids are wrong; an intact replica"
                " tells, or truncate gives them up"
            )
            self.leave_tail(part, tail, said)
        elif tail.out_of_order and not context.allow_data_loss:
            said = "nothing in front of or behind these records tells that they are of no use"
            self.leave_tail(part, tail, said)
        elif tail.doubtful and not context.allow_data_loss:
            said = "an intact replica tells which"
            self.leave_tail(part, tail, said)
        elif mark is None and not context.allow_data_loss:
            self.leave_tail(part, tail, "it may be acknowledged")
        else:
            above = "local low-water mark unknown" if mark is None else f"above the local low-water mark {mark}"
            loses = mark is None or tail.doubtful or tail.out_of_order
            self.cut_tail(part, tail, above, loses=loses)
            if loses:
                stop = max(tail.first + 1, part.first + part.index_entries)
                context.give_up(tail.first, stop, f"the end of {part.data_path.name} was torn, and may have been more")

    def gives_back_first(self, part: RepairedSegment) -> bool:
        """Whether a replica gives back the record with which a segment should begin, and which is lost there.

        Where nothing intact follows it, only with all up to the next segment, or to what was durable: a shorter part is not
        restored.  A place that was given up unread is not, either.
        """
        assert part.survey is not None
        first, lost = part.first, part.survey.losses[:1]
        around = Neighbours(self.witnesses.before(part, first), None)
        stop = part.ceiling or max(first, self.durable_to) + 1
        if lost and lost[0].unread:
            return False
        if lost and lost[0].stop is not None:
            around, stop = self.witnesses.around(part, lost[0]), lost[0].stop
        return isinstance(self.records.prove(first, stop, around), Proven)

    def leave_tail(
        self, part: RepairedSegment, tail: Loss, why: str, *, following: int | None = None, begun: bool = True
    ) -> None:
        """Leave the tail of a segment to the operator; `following`: the first id of the next segment, None for the last one.

        `begun`: the next segment's first record is intact.
        """
        at_end = None
        if not (tail.out_of_order or tail.unread):
            listed = self._listed_in_tail(part, tail) if following is None else 0
            at_end = Tail(following is None, self.mark, self.durable_to, following, listed, begun)
        found = tail.as_finding(self.context.files(part), at_end)
        assert found is not None, "a scan has found it"
        self.context.leave_end(replace(found, severity=Severity.DAMAGE), part, why)

    def cut_tail(self, part: RepairedSegment, tail: Loss, why: str, *, loses: bool) -> None:
        """Cut the bytes after the last record that is in order; `loses`: acknowledged records may be among them."""
        assert part.content is not None
        what = "the end is out of order" if tail.out_of_order else "the end is torn"
        if loses and not self.rivals.superfluous(part, tail):
            self.rivals.dispute(part, tail)
        self.context.draft.step(
            "cut-torn-tail", part.data_path, self.context.partition, f"{what}; {why}",
            ids=(tail.first, tail.first), offset=tail.offset, length=tail.end - tail.offset, loses_data=loses,
        )  # fmt: skip
        part.content = part.content.spliced(tail.offset, part.content.size(), ())

    def _restore_behind(self, part: RepairedSegment | None, found: Proven, why: str) -> None:
        """Append restored records to a segment, or put them into new segments where the replica begins a segment.

        `part`: the segment in front; None: there is none.  Behind an overlap that is left, it may end in front of what is
        restored, which then gets a segment of its own: in this one it would be out of order.
        """
        if part is not None and part.survey is not None and part.survey.reached != found.runs[0].first:
            part = None
        target, loses = part, False
        if part is not None and (tail := part.tail) is not None:
            assert part.content is not None  # it was surveyed
            loses = self.rivals.only_here(part, tail, found) is not None
            part.content = part.content.spliced(tail.offset, part.content.size(), ())
        for run in found.runs:
            own = target is None or (run.first == run.begins and target.has_records)
            if own or target is None:
                target = self.context.new_part(run.first, run.created)
            assert target.content is not None
            action = "restore-segment" if own else "restore-record"
            self.context.draft.step(
                action, target.data_path, self.context.partition,
                f"{why}; proven by {found.by}: key, partition, ids, checksums and neighbours agree",
                ids=(run.first, run.stop - 1), offset=target.content.size(), length=len(run.span),
                loses_data=loses and run is found.runs[0],
            )  # fmt: skip
            target.content = target.content.spliced(target.content.size(), target.content.size(), (run.span,))


def _why_restored(proven: Evidence, mark: int | None) -> str:
    if proven.next_id > proven.required:
        return "given up before"
    return "lost tail" if mark is None else proven.said_by()
