"""Rebuilding indexes from the data files: the same bytes as the release writes.  Only indexes that differ are replaced.

==========================  ============================================================================================
part of an index            its content
==========================  ============================================================================================
header                      the present one if version, cluster key, partition and first id are right, since only it has
                            the index's creation time (a moment off the data file's); else made from the data file's header
entry of a valid record     the record's byte offset
entries after the last      those of the present index that tell how many records began in a torn tail, or that records
valid record                went on up to the next segment; kept until the tail is cut, as nothing else tells this
entries of lost records     entries are addressed by position, so each needs one.  The first lost record of a damaged span:
                            the start of the span.  Each other one: its present entry, if it lies inside the span and
                            rises; else the span's last byte.  A reader finds no record of the id at such an offset
entries of skipped ids      (between two intact records) the offset of the record after them, which has another id
==========================  ============================================================================================

Two kinds of index are left as they are, because they are the only evidence of a loss:

- the last segment's index, when it proves that its data file has lost records (`engine.log.evidence`); recover handles it;
- an index whose entry for the first record after damage points inside the damage: the record found there may be another
  record's data (`engine.repair.embedded`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

import numpy as np

from waltzctl.engine.durable.edits import Replace
from waltzctl.engine.errors import DamageError, DiskReadError, RefusedError
from waltzctl.engine.findings import Code, Finding, SegmentFiles, Where, loss_finding
from waltzctl.engine.findings.directory_contents import special_finding
from waltzctl.engine.findings.headers import not_surely_own
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.segment_job import SegmentJob
from waltzctl.engine.inspect.segment_reach import SegmentReach
from waltzctl.engine.log import places
from waltzctl.engine.log.assess import begun
from waltzctl.engine.log.evidence import Evidence, evidence
from waltzctl.engine.log.index import IndexReader
from waltzctl.engine.log.index_comparison import explained_by_tail
from waltzctl.engine.log.places import local
from waltzctl.engine.log.target import TargetKind, resolve
from waltzctl.engine.log.view import (
    FileState,
    SegmentView,
    beyond,
    check_partitions,
    next_data_file,
    read_segment_header,
    view_storage,
)
from waltzctl.engine.losses import BelowProof, ShortHeader
from waltzctl.engine.repair.arguments import Arguments
from waltzctl.engine.repair.content import Content
from waltzctl.engine.repair.embedded import EmbeddedRecordError, entry_inside
from waltzctl.engine.repair.plan import PlanDraft, Repair
from waltzctl.engine.repair.provenance import SegmentSurroundings, foreign
from waltzctl.engine.repair.survey import begins_at, check_jump, hint_of
from waltzctl.engine.scan.byte_source import ByteSource, read_bytes
from waltzctl.engine.scan.columns import Damage, DamageCause
from waltzctl.engine.scan.scanner import summarise_records
from waltzctl.engine.task_executor import LocalExecutor, TaskExecutor
from waltzctl.formats.control import ControlFile
from waltzctl.formats.segment import (
    ENTRY_SIZE,
    FORMAT_VERSION,
    HEADER_SIZE,
    RECORD_OVERHEAD,
    SegmentHeader,
    decode_entries,
    encode_entries,
    encode_offsets,
    entry_position,
)

COMMAND = "rebuild-index"
_CHUNK = 16384


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """The index that should be at `path`: `header` bytes, then the entries from scanning `content`, whose first id is `begins`.

    `hint`: path of the present index, for the scanner and for entries inside damaged spans.  `ceiling`: first id of the next
    segment.  `keeps_end`: keep the present index's entries of a lost tail.  `doubts`: raise EmbeddedRecordError for a record
    that may be embedded in the damage in front of it.
    """

    path: PurePath
    content: Content
    begins: int
    header: bytes
    hint: PurePath | None
    ceiling: int | None = None
    keeps_end: bool = False
    doubts: bool = False

    def chunks(self) -> Iterator[bytes]:
        """The bytes of the index.

        Raises DiskReadError; DamageError when the scan gave up a part of the data unread, or when the data file ends with
        records out of order; EmbeddedRecordError.
        """
        yield self.header
        with hint_of(self.hint) as source:
            yield from self._entries(source)

    def _entries(self, hint: ByteSource | None) -> Iterator[bytes]:
        following, span, damaged_from = self.begins, None, 0
        name, size = self.content.name, self.content.size()
        for item in summarise_records(
            self.content,
            first_transaction_id=self.begins,
            index=hint,
            ceiling=self.ceiling,
        ):
            if isinstance(item, Damage):
                if item.unread:
                    raise DamageError(f"{name}: what follows offset {item.offset} was given up unread")
                if span is None:
                    damaged_from = item.offset
                span = item
                continue
            lost = item.first_transaction_id - following
            if lost and span is not None:
                check_jump(name, following, item.first_transaction_id, size)
                if self.doubts and span.cause is not DamageCause.RECORD_ORDER and hint is not None:
                    self._check_embedded(hint, item.first_transaction_id, damaged_from, span)
                yield from self._lost(span, following, lost, hint)
            yield encode_offsets(item.offset)
            following, span = item.first_transaction_id + len(item), None
        if self.keeps_end and hint is not None:
            yield from self._lost_end(hint, following, span)
        if span is not None and span.cause is DamageCause.RECORD_ORDER:  # wrong ids up to the end: not a gap of ids
            raise DamageError(
                f"{name}: records with other ids stand where transaction {span.transaction_id} is expected, up to the end; the"
                " present index may tell which they are, so it stays"
            )

    def _check_embedded(self, hint: ByteSource, transaction_id: int, damaged_from: int, span: Damage) -> None:
        entry = entry_inside(hint, self.begins, transaction_id, damaged_from, span.end)
        if entry is not None:
            raise EmbeddedRecordError(
                f"{self.content.name}: the index has transaction {transaction_id} at byte {entry}, inside the damage at"
                f" {damaged_from} to {span.end}: the record that bears this id behind the damage may be a lost one's data, and"
                " only this index tells, so it stays until a replica decides",
                Code(span.cause),
            )

    def _lost_end(self, hint: ByteSource, following: int, span: Damage | None) -> Iterator[bytes]:
        """The present entries after the last record that a torn tail explains, or that reach exactly to the next segment.

        Verify does not report these entries as surplus.
        """
        listed = IndexReader(hint, self.begins)
        torn = span if span is not None and span.cause is DamageCause.TORN_TAIL else None
        many = explained_by_tail(listed, torn, self.content.size(), following)
        if self.ceiling is not None and self.begins + listed.count() == self.ceiling:
            many = max(0, self.ceiling - following)
        for at in range(0, many, _CHUNK):
            yield encode_entries(listed.entries(following + at, min(_CHUNK, many - at)).tolist())

    def _lost(self, span: Damage, first: int, count: int, hint: ByteSource | None) -> Iterator[bytes]:
        """Entries for the `count` records from id `first` on that are lost in a damaged span."""
        before = span.offset
        for at in range(0, count, _CHUNK):
            wanted = min(_CHUNK, count - at)
            known: list[int] = []
            if hint is not None:
                raw = read_bytes(hint, entry_position(first + at, self.begins), wanted * ENTRY_SIZE)
                known = decode_entries(raw).tolist()
            entries = []
            for place in range(wanted):
                entry = span.offset
                if at + place:
                    old = known[place] if place < len(known) else -1
                    entry = old if before < old < span.end else max(span.offset, span.end - 1)
                before = entry
                entries.append(entry)
            yield encode_entries(entries)

    def differs(self, index: FileState | None) -> str | None:
        """How the present index differs, in words; None when it does not.  Scans the whole data file.  Raises as `chunks`."""
        present = Content(str(self.path), ()) if index is None else Content.of_file(index.path, index.size)
        position, wrong, first, header = 0, 0, None, None
        for part in self.chunks():
            found = present.read(position, len(part))
            if position == 0 and found != part:
                header = "the index header is wrong" if len(found) == len(part) else "the index header is short"
            if position and found != part[: len(found)]:
                stored = decode_entries(found)
                differ = stored != decode_entries(part)[: len(stored)]
                if first is None and differ.any():
                    first = self.begins + (position - HEADER_SIZE) // ENTRY_SIZE + int(np.argmax(differ))
                wrong += int(differ.sum())
            position += len(part)
        if index is None:
            return "the index is missing"
        if header is not None:
            return header
        if wrong:
            return f"{wrong} entries from transaction {first} on are wrong"
        if index.size < position:
            return f"{-(-(position - index.size) // ENTRY_SIZE)} entries are missing"
        if index.size > position:
            return f"{index.size - position} bytes are there beyond the last record"
        return None

    def stop(self) -> int:
        """The id after the last entry.  Scans the whole data file.  Raises as `chunks`."""
        return self.begins + (sum(map(len, self.chunks())) - HEADER_SIZE) // ENTRY_SIZE

    def replacement(self) -> Replace:
        """The edit that puts this index in place."""
        most = HEADER_SIZE + ENTRY_SIZE * (self.content.size() // RECORD_OVERHEAD)
        return Replace(self.path, self.chunks, most)


def index_header(
    data: SegmentHeader, index: SegmentHeader | None, control: ControlFile | None, partition: int, begins: int
) -> bytes:
    """The header that an index should have: the present one if it is right, else one made from the data file's header."""
    key = data.cluster_key if control is None else control.header.cluster_key
    right = (FORMAT_VERSION, key, partition, begins)
    if index is not None and (index.version, index.cluster_key, index.partition, index.first_transaction_id) == right:
        return index.encode()
    return SegmentHeader(FORMAT_VERSION, data.created, key, partition, begins).encode()


@dataclass(frozen=True, slots=True)
class _SegmentTask:
    """A segment whose index is checked.  `everything`: it is rebuilt even if it is right.

    `segments`: all segments of the partition.  `proven`: up to where transactions were there, as files and marks prove.
    """

    storage: PurePath
    partition: int
    segment: SegmentView
    control: ControlFile | None
    everything: bool
    segments: tuple[SegmentView, ...]
    proven: Evidence

    @property
    def files(self) -> SegmentFiles:
        """The segment's files, for findings."""
        view = self.segment
        where = Where(self.storage, self.partition, view.data_path.parent)
        return SegmentFiles(where, view.first_transaction_id, view.data_path, view.index_path)

    def reach(self) -> SegmentReach:
        """How far the segments of the partition go."""
        key = None if self.control is None else self.control.header.cluster_key
        job = SegmentJob(
            self.segment.data_path.parent,
            self.segment.first_transaction_id,
            self.partition,
            storage=self.storage,
            cluster_key=key,
        )
        return SegmentReach(job, ReadLimits())

    def around(self, control: ControlFile) -> SegmentSurroundings:
        """What the segment's provenance is judged by."""
        return SegmentSurroundings(control, self.partition, self.segments)


@dataclass(frozen=True, slots=True)
class _SegmentPlan:
    """The outcome of a task: an index to write (`wanted`), a finding left to the operator (`undecided`), or neither; and why."""

    partition: int
    wanted: IndexPlan | None = None
    why: str | None = None
    undecided: Finding | None = None


def plan_rebuild_index(
    path: PurePath,
    *,
    partitions: Collection[int] | None = None,
    everything: bool = False,
    executor: TaskExecutor | None = None,
) -> Repair:
    """Plan to rebuild the indexes of a storage directory, of one of its partitions or of one segment.

    Only indexes that differ from the data are replaced, or all with `everything`.  Segments that cannot be read are left, with a
    finding in `undecided`.  Read-only.  The segments are read by `executor`, by default in the calling thread.

    Raises NotWaltzError, RefusedError outside of a storage directory or when a repair was interrupted, InvalidRequestError
    for an impossible partition, DiskReadError.
    """
    target = resolve(path)
    if target.storage is None or target.kind is TargetKind.CONTROL:
        raise RefusedError(
            f"{path}: not in a storage directory", advice="indexes are rebuilt inside one: its lock protects the files"
        )
    partitions = target.selected(partitions)
    only = Path(path).stem if target.kind in (TargetKind.SEGMENT, TargetKind.INDEX) else None
    draft = PlanDraft(COMMAND, path, local(target.storage), Arguments.of(partitions, everything=everything))
    view = view_storage(target.storage, partitions, each_alone=True)
    if partitions is not None and view.control is not None:
        check_partitions(view.control, partitions)
    draft.refuse_unsettled()
    draft.leave_unlisted(view, view.control)
    tasks: list[_SegmentTask] = []
    strays = () if view.control is None else beyond(view.partitions, view.control)
    for number, partition in view.partitions.items():
        if partition in strays:
            continue  # the number is beyond the cluster's partitions: verify notes it
        draft.partitions.add(number)
        proven = evidence(partition, None)
        tasks += [
            _SegmentTask(target.storage, number, segment, view.control, everything, partition.segments, proven)
            for segment in partition.data_segments
            if (only is None or segment.data_path.stem == only) and segment.index_path not in partition.special
        ]
        where = Where(target.storage, number, partition.path)
        for path in partition.special:
            kind = places.still_special(path)
            if kind is not None:
                draft.leave(special_finding(path, kind, where), "nothing is written there")
    for noted in draft.seen.listings.keys() - {None, *view.partitions, *view.unlisted}:
        if noted is not None and (view.control is None or noted < len(view.control.partitions)):
            draft.partitions.add(noted)  # it went away since, and may be back when it is verified again
            draft.sees(noted, None)
    weights = [task.segment.data.size for task in tasks if task.segment.data is not None]
    reaches = {task.partition: task.reach() for task in tasks}  # each lists its directory when it is first asked
    for found in (executor or LocalExecutor(1)).map(_plan_segment, tasks, weights=weights, what="rebuild-index"):
        if found.undecided is not None:
            draft.leave(reaches[found.partition].without_held(found.undecided), found.why)
        elif found.wanted is not None and found.why is not None:
            draft.step("rebuild-index", found.wanted.path, found.partition, found.why)
            draft.edits.append(found.wanted.replacement())
    return draft.finish()


def _plan_segment(task: _SegmentTask) -> _SegmentPlan:
    partition, segment, control, files = task.partition, task.segment, task.control, task.files
    name = segment.first_transaction_id
    try:
        header = read_segment_header(segment.data)
        assert segment.data is not None  # tasks are made of segments with a data file
        if header is None:
            following = next_data_file(task.segments, name)
            loss = loss_finding(ShortHeader(name, segment.data.size, segment.entries, following), files.where)
            return _SegmentPlan(partition, None, "nothing tells what its index should be", loss)
        content = Content.of_file(segment.data.path, segment.data.size)
        begins = begins_at(content, name, header.first_transaction_id)
        if (why := _foreign(task, header, begins)) is not None:
            found = not_surely_own(why, _placed(task.control, partition, name, header), files)
            return _SegmentPlan(partition, None, "the index may be what tells whose it is, and stays", found)
        head = index_header(header, read_segment_header(segment.index), control, partition, begins)
        following = next_data_file(task.segments, name)
        path = segment.index_path
        wanted = IndexPlan(path, content, begins, head, path, following, keeps_end=True, doubts=True)
        why = wanted.differs(segment.index)
        if task.proven.index_with_data == name and wanted.stop() < task.proven.with_data:
            loss = _forgotten(task, begins, wanted.stop())
            return _SegmentPlan(partition, None, "built from the data, the index would forget them", loss)
    except DiskReadError as error:
        return _SegmentPlan(partition, undecided=files.finding(Code.READ_ERROR, str(error)))
    except EmbeddedRecordError as error:
        return _SegmentPlan(partition, undecided=files.finding(error.code, str(error)))
    except DamageError as error:
        return _SegmentPlan(partition, undecided=files.finding(Code.RECORD_ORDER, str(error)))
    if why is None and task.everything:
        why = "it is as it should be; rebuilt because all are"
    return _SegmentPlan(partition, wanted, why)


def _forgotten(task: _SegmentTask, begins: int, stop: int) -> Finding:
    """The finding that the index lists transactions from `stop` on which the data lost, without those that one in front holds."""
    name, listed = task.segment.first_transaction_id, task.proven.with_data
    reached = task.reach().in_front(begun(name, begins), stop)
    first = max(stop, reached) if reached < listed else stop
    return loss_finding(BelowProof(first, listed, name, True), task.files.where, elsewhere=[(0, reached)])


def _foreign(task: _SegmentTask, header: SegmentHeader, begins: int) -> str | None:
    """Why a data file is not proven to be the partition's own; without a control file its header must match its path."""
    if task.control is not None:
        return foreign(task.segment, task.around(task.control))
    if (header.version, header.partition, header.first_transaction_id) != (FORMAT_VERSION, task.partition, begins):
        return "there is no control file to tell, and the header stands against its place"
    return None


def _placed(control: ControlFile | None, partition: int, name: int, header: SegmentHeader) -> Code:
    """The code for a header that contradicts its path, or for foreign records behind a right header."""
    if control is not None and header.cluster_key != control.header.cluster_key:
        return Code.SEGMENT_KEY
    renamed = header.partition == partition and header.first_transaction_id != name
    return Code.SEGMENT_NAME if renamed else Code.SEGMENT_PARTITION
