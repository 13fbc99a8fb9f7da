"""The segments of a partition during planning: the present files, and their contents after the repair."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import PurePath

from waltzctl.engine.durable.edits import Remove
from waltzctl.engine.errors import DamageError, DiskReadError
from waltzctl.engine.findings import (
    Code,
    Finding,
    SegmentFiles,
    Severity,
    Where,
    counts_beyond_end,
    loss_finding,
    make_finding,
)
from waltzctl.engine.findings.headers import strange_finding
from waltzctl.engine.log.header_judgement import Expected, judge_headers
from waltzctl.engine.log.view import FileState, SegmentView, read_segment_header
from waltzctl.engine.losses import Loss
from waltzctl.engine.repair.content import Content, LiteralBytes
from waltzctl.engine.repair.marks import lower_mark
from waltzctl.engine.repair.plan import PlanDraft
from waltzctl.engine.repair.provenance import ProvenanceVerdict, SegmentSurroundings, judge
from waltzctl.engine.repair.rebuild_index import IndexPlan, index_header
from waltzctl.engine.repair.survey import Loss as DamagedPlace
from waltzctl.engine.repair.survey import Survey, hint_of, survey
from waltzctl.engine.scan.columns import Damage
from waltzctl.engine.scan.scanner import summarise_records
from waltzctl.engine.storage.orphans import without_held_records
from waltzctl.formats.control import CONTROL_FILE_NAME, ControlFile
from waltzctl.formats.segment import ENTRY_SIZE, HEADER_SIZE, SegmentHeader, index_name, segment_name


@dataclass(slots=True)
class RepairedSegment:
    """One segment.

    =============  =================================================================================================
    `original`     present content of the data file, with its header mended
    `content`      content of the data file after the repair
    `survey`       scan of `original`; None: the segment is left untouched, for the operator to decide
    `shifted`      records will change their offsets, so that the present index is no hint
    `keeps_index`  the index proves a loss, and is left as it is
    `ceiling`      first id of the next data file, None for the last one
    =============  =================================================================================================
    """

    first: int
    data_path: PurePath
    index_path: PurePath
    data: FileState | None
    index: FileState | None
    header: SegmentHeader | None = None
    original: Content | None = None
    content: Content | None = None
    survey: Survey | None = None
    shifted: bool = False
    keeps_index: bool = False
    ceiling: int | None = None

    @property
    def short(self) -> bool:
        """Whether the data file is shorter than its header."""
        return self.data is not None and self.data.size < HEADER_SIZE

    @property
    def ids(self) -> tuple[int, int]:
        """First and last transaction that go with the whole segment; the first one twice where no record of it can be read."""
        return self.first, self.first if self.survey is None else max(self.first, self.survey.next_id - 1)

    @property
    def untouchable(self) -> bool:
        """Whether the data file is left as it is: it is not the partition's own, or cannot be read."""
        return self.data is not None and not self.short and self.survey is None

    @property
    def index_entries(self) -> int:
        """Whole entries of the present index."""
        return 0 if self.index is None else max(0, (self.index.size - HEADER_SIZE) // ENTRY_SIZE)

    @property
    def tail(self) -> DamagedPlace | None:
        """The loss that reaches to the end of the data file, None when there is none."""
        return None if self.survey is None else self.survey.tail

    @property
    def has_records(self) -> bool:
        """Whether the data file will hold anything behind its header."""
        return self.content is not None and self.content.size() > HEADER_SIZE

    def cut_behind(self, after: int) -> bool:
        """Make `after` the segment's last transaction; `first` - 1 leaves the segment empty.

        Returns False when damage hides the offset to cut at.  Raises DiskReadError.
        """
        found, content = self.survey, self.original
        if found is None or content is None:
            return False
        places = offsets(self, (after, after + 1))
        offset = HEADER_SIZE if after + 1 == self.first else places.get(after + 1)
        if offset is None:
            return False
        losses = tuple(loss for loss in found.losses if loss.offset < offset)
        ends_damaged = bool(losses) and losses[-1].end == offset
        last = None if ends_damaged else places.get(after)
        self.survey = replace(found, next_id=after + 1, end=offset, size=offset, losses=losses, last=last)
        self.original = self.content = content.spliced(offset, content.size(), ())
        return True


@dataclass(slots=True)
class RepairContext:
    """The state shared by the planners of one partition's recovery.

    Ranges of ids are (first, stop); stop is the id after the last one.

    `_by_first` and `_firsts` are `segments`, found by first id: a segment may be split in 100,000 places, and a partition have as
    many segments.

    ============  ==================================================================================================
    `draft`       the plan under construction
    `around`      what each data file's provenance is judged by
    `given_up`    ranges that the plan gives up, and why they are lost
    `disputed`    ranges with two records per id, of which one is removed without proof which is right; and why
    `confirmed`   ranges whose records here equal a replica's
    `lacking`     ranges that are missing in front of a segment, and are not restored
    `lowered_to`  value to which the plan lowers the local low-water mark, None when it does not
    ============  ==================================================================================================
    """

    draft: PlanDraft
    control: ControlFile
    partition: int
    directory: PurePath
    allow_data_loss: bool
    around: SegmentSurroundings
    given_up: list[tuple[int, int, str]] = field(default_factory=list)
    disputed: list[tuple[int, int, str]] = field(default_factory=list)
    confirmed: list[tuple[int, int]] = field(default_factory=list)
    lacking: list[tuple[int, int]] = field(default_factory=list)
    lowered_to: int | None = None
    _by_first: dict[int, RepairedSegment] = field(default_factory=dict)
    _firsts: list[int] = field(default_factory=list)
    _reached: dict[int, int] | None = None

    @property
    def segments(self) -> list[RepairedSegment]:
        """All segments, by their first ids, which differ."""
        return [self._by_first[first] for first in self._firsts]

    @segments.setter
    def segments(self, parts: Iterable[RepairedSegment]) -> None:
        self._by_first = {part.first: part for part in parts}
        self._firsts = sorted(self._by_first)

    def give_up(self, first: int, stop: int, why: str) -> None:
        """Transactions `first` to `stop` - 1 are accepted as lost; they will be entered into the ledger."""
        if stop > first:
            self.given_up.append((first, stop, why))

    def dispute(self, first: int, stop: int, why: str) -> None:
        """Of two records for each id `first` to `stop` - 1 one is removed unproven; the ids will be entered into the ledger."""
        self.disputed.append((first, stop, why))

    def lower_mark(self, after: int) -> None:
        """Lower the local low-water mark to `after`, if it is higher."""
        lower_mark(self.draft, self.draft.storage / CONTROL_FILE_NAME, self.control.partitions[self.partition], after)
        self.lowered_to = after

    def find(self, code: Code, path: PurePath, message: str, **place: int | Severity | None) -> Finding:
        """Add a finding that is left to the operator."""
        finding = make_finding(
            code,
            path,
            message,
            storage_directory=self.draft.storage,
            partition=self.partition,
            ran=self.draft.ran,
            **place,  # type: ignore[arg-type]  # the values' types follow from the keys
        )
        self.draft.undecided.append(finding)
        return finding

    @property
    def where(self) -> Where:
        """The partition's location, for findings."""
        return Where(self.draft.storage, self.partition, self.directory)

    def files(self, part: RepairedSegment) -> SegmentFiles:
        """A segment's files, for findings."""
        return SegmentFiles(self.where, part.first, part.data_path, part.index_path)

    def leave(self, loss: Loss, why: str | None = None) -> None:
        """Leave a loss to the operator; `why` says why the plan does nothing about it."""
        self.draft.leave(loss_finding(loss, self.where), why)

    def leave_end(self, finding: Finding, part: RepairedSegment, why: str) -> None:
        """Leave a finding about the end of a segment, without the ids that segments in front of it hold, as they were read."""
        if counts_beyond_end(finding):
            self._reached = self._reached or self._reached_in_front()
            finding = without_held_records(finding, self._reached.get(part.first, 0), self.around.segments)
        self.draft.leave(finding, why)

    def _reached_in_front(self) -> dict[int, int]:
        """Of each segment, by its first id, the id after the last record of those in front of it; 0 where there is none."""
        parts = self.segments
        ends = (0 if part.survey is None else part.survey.reached for part in parts)
        return dict(zip((part.first for part in parts), accumulate(ends, max, initial=0), strict=False))

    def surveyed(self, first: int, *, behind: bool) -> Iterator[RepairedSegment]:
        """The surveyed segments that begin below `first`, or above it (`behind`), the nearest first."""
        firsts = self._firsts
        places = (
            range(bisect_right(firsts, first), len(firsts)) if behind else range(bisect_left(firsts, first) - 1, -1, -1)
        )
        for place in places:
            if (one := self._by_first[firsts[place]]).survey is not None:
                yield one

    def following(self, part: RepairedSegment) -> int | None:
        """The first id of the next segment that has a data file, or will have one; None when there is none."""
        for place in range(bisect_right(self._firsts, part.first), len(self._firsts)):
            if self.taken(first := self._firsts[place]):
                return first
        return None

    def new_part(self, first: int, created: int) -> RepairedSegment:
        """Add a segment that holds only a header: a new one, or one in place of a file that held no record."""
        data_path, index_path = self.directory / segment_name(first), self.directory / index_name(first)
        data, index = FileState.of(data_path), FileState.of(index_path)
        gone = (Remove(data_path), Remove(index_path))
        if data is not None and gone[0] in self.draft.edits:  # it leaves for its own name, and is replaced as a whole
            self.draft.edits[:] = [edit for edit in self.draft.edits if edit not in gone]
            data = None
        found = None if index is None else read_segment_header(index)
        header = SegmentHeader(0, created, self.control.header.cluster_key, self.partition, first)
        if found is not None and found.first_transaction_id == first and found.cluster_key == header.cluster_key:
            header = SegmentHeader(0, found.created, header.cluster_key, self.partition, first)
        part = RepairedSegment(first, data_path, index_path, data, index, header)
        part.content = Content(str(data_path), (LiteralBytes(header.encode()),))
        part.shifted = True
        self.put(part)
        return part

    def put(self, part: RepairedSegment) -> None:
        """Add a segment; it replaces one of the same first id, which held no record."""
        if part.first not in self._by_first:
            insort(self._firsts, part.first)
        self._by_first[part.first] = part

    def remove(self, part: RepairedSegment) -> None:
        """Take a segment out."""
        del self._by_first[part.first]
        del self._firsts[bisect_left(self._firsts, part.first)]

    def taken(self, first: int) -> bool:
        """Whether there is, or will be, a data file that begins with this id."""
        one = self._by_first.get(first)
        return one is not None and (one.data or one.content) is not None


def open_part(context: RepairContext, view: SegmentView) -> RepairedSegment:
    """Open a segment: mend its header if that is provable, and scan it.  What cannot be repaired becomes a finding."""
    part = RepairedSegment(view.first_transaction_id, view.data_path, view.index_path, view.data, view.index)
    if view.data is None or part.short:
        return part
    try:
        _open(context, part, view)
    except DiskReadError as error:
        context.find(Code.READ_ERROR, part.data_path, str(error), segment=part.first, offset=error.offset)
    except DamageError as error:
        context.find(Code.RECORD_ORDER, part.data_path, error.message, segment=part.first)
    return part


def _open(context: RepairContext, part: RepairedSegment, view: SegmentView) -> None:
    assert part.data is not None
    content = Content.of_file(part.data.path, part.data.size)
    verdict = judge(view, content, context.around)
    context.draft.sources |= verdict.sources
    if verdict.header is None:
        said = "nothing proves what the header was: damaged, misplaced or renamed"
        if verdict.behind:
            said = ""
        elif verdict.why:
            said = f"its records speak against this place as well: {verdict.why}"
        by_hand = "if it is not this partition's, move it away by hand, then recover with --from what belongs here"
        for finding in _header_findings(context, part, view, verdict, content):
            context.draft.leave(finding, "; ".join(filter(None, (said, by_hand))))
        return
    part.header = verdict.header
    if verdict.codes:
        content = content.spliced(0, HEADER_SIZE, (LiteralBytes(verdict.header.encode()),))
    part.ceiling = context.around.following(part.first)
    with hint_of(part.index_path) as hint:
        part.survey = survey(content, part.first, hint, ceiling=part.ceiling)
    if verdict.codes:  # told behind the survey: of a file that cannot be surveyed nothing is written
        named = ", ".join(verdict.codes)
        context.draft.step(
            "write-segment-header", part.data_path, context.partition, f"{named}: {verdict.why}",
            offset=0, length=HEADER_SIZE,
        )  # fmt: skip
    part.original = part.content = content


def _header_findings(
    context: RepairContext, part: RepairedSegment, view: SegmentView, verdict: ProvenanceVerdict, content: Content
) -> list[Finding]:
    """The findings about a data file whose header cannot be mended."""
    files = context.files(part)
    if verdict.behind:
        return [strange_finding(verdict.why, files)]
    header = read_segment_header(view.data)
    assert header is not None
    expected = Expected(part.first, context.partition, context.control.header.cluster_key)
    judged = judge_headers(expected, header, read_segment_header(view.index), content)
    own = (one for one in judged.findings(files) if one.path == part.data_path)
    return [one for one in own if one.code in verdict.codes]


def plan_files(context: RepairContext, part: RepairedSegment) -> None:
    """Turn a segment's planned content into edits: data file first, then its index."""
    content, header = part.content, part.header
    if content is None:
        return
    assert header is not None  # a segment with content has a header
    draft = context.draft
    draft.edits += content.edits(part.data_path, None if part.data is None else part.data.size)
    if part.keeps_index:
        return
    if content is part.original and part.survey is not None and part.survey.doubtful:
        return  # the operator decides where the records end, and with it what the index should hold
    present = read_segment_header(part.index)
    head = index_header(header, present, context.control, context.partition, header.first_transaction_id)
    hint = None if part.shifted else part.index_path
    following = context.following(part)
    untouched = content is part.original
    wanted = IndexPlan(
        part.index_path, content, header.first_transaction_id, head, hint, following, keeps_end=untouched
    )
    try:
        why = wanted.differs(part.index)
    except DamageError as error:
        context.find(Code.RECORD_ORDER, part.data_path, error.message, segment=part.first)
        return
    if why is not None:
        draft.step("rebuild-index", part.index_path, context.partition, why)
        draft.edits.append(wanted.replacement())


def offsets(part: RepairedSegment, ids: Iterable[int]) -> dict[int, int]:
    """The byte offset of each id's record in a segment; of the next id, the offset where its record would begin.

    Ids inside damaged places are left out.  Raises DiskReadError.
    """
    assert part.original is not None
    wanted = set(ids)
    found: dict[int, int] = {}
    with hint_of(part.index_path) as hint:
        for item in summarise_records(
            part.original,
            first_transaction_id=part.first,
            index=hint,
            ceiling=part.ceiling,
        ):
            if isinstance(item, Damage):
                found.setdefault(item.transaction_id, item.offset)
            else:
                for number in wanted:
                    place = number - item.first_transaction_id
                    if 0 <= place < len(item):
                        found[number] = int(item.offset[place])
                    elif place == len(item):
                        found[number] = item.end
    return {number: found[number] for number in wanted if number in found}
