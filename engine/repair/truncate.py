"""Truncating a partition, offline: everything after one transaction is removed into the quarantine.

That includes bytes that are no transaction of the partition: damage, records out of order, an index whose data file is lost.
They are removed even when the given transaction is the last one.

The result is byte for byte the state in which that transaction was the last one.  Later segments are removed (the last one
first, data file before index), then the data file is cut, then its index.  A segment whose first id is the one after the last
kept transaction stays, empty, as in the release.

When acknowledged transactions are removed (``--allow-data-loss``), the local low-water mark is lowered with them
(`engine.repair.marks`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath

from waltzctl.engine.durable.edits import Cut, Remove
from waltzctl.engine.errors import (
    BelowLowWaterMarkError,
    DamageError,
    DiskReadError,
    InvalidRequestError,
    NotWaltzError,
    RefusedError,
)
from waltzctl.engine.log.places import local
from waltzctl.engine.log.target import TargetKind, resolve
from waltzctl.engine.log.view import FileState, SegmentView, check_partitions, read_segment_header, view_storage
from waltzctl.engine.repair.arguments import Arguments
from waltzctl.engine.repair.content import Content, LiteralBytes
from waltzctl.engine.repair.marks import lower_mark
from waltzctl.engine.repair.plan import PlanDraft, Repair
from waltzctl.engine.repair.provenance import SegmentSurroundings, foreign
from waltzctl.engine.repair.survey import begins_at, hint_of, survey
from waltzctl.engine.scan.columns import Damage
from waltzctl.engine.scan.scanner import summarise_records
from waltzctl.formats.control import ControlFile
from waltzctl.formats.segment import (
    FORMAT_VERSION,
    HEADER_SIZE,
    SegmentHeader,
    entry_position,
    index_name,
    segment_name,
)

COMMAND = "truncate"


def plan_truncate(path: PurePath, *, partition: int, after: int, allow_data_loss: bool = False) -> Repair:
    """Plan to keep transactions up to `after`; -1 leaves one empty segment.  No steps when nothing follows `after`.

    Read-only.  Raises InvalidRequestError for an impossible id or partition, RefusedError for an id above the last one, when
    damage hides the offset to cut at, for a data file that is not the partition's own, or when a repair was interrupted,
    BelowLowWaterMarkError when acknowledged transactions would be removed without `allow_data_loss`, NotWaltzError,
    DiskReadError.
    """
    target = resolve(path)
    if target.storage is None or target.kind not in (TargetKind.STORAGE, TargetKind.PARTITION):
        raise RefusedError(f"{path}: not in a storage directory", advice="name the storage directory")
    target.selected((partition,))
    if after < -1:
        raise InvalidRequestError(f"transaction {after}: the first one is 0; -1 removes everything")
    draft = PlanDraft(
        COMMAND, path, local(target.storage), Arguments.of((partition,), after=after, allow_data_loss=allow_data_loss)
    )
    view = view_storage(target.storage, (partition,))
    if view.control is None:
        raise RefusedError(f"{view.control_path}: no usable control file", advice="its marks must be known; run verify")
    check_partitions(view.control, (partition,))
    draft.refuse_unsettled()
    draft.partitions.add(partition)
    if partition not in view.partitions:
        raise NotWaltzError(f"{target.storage / str(partition)}: no such directory")
    if special := view.partitions[partition].special:
        raise RefusedError(f"{special[0]}: not a regular file", advice="move it away by hand; run verify")
    segments = view.partitions[partition].segments
    around = SegmentSurroundings(view.control, partition, segments)
    strangers = {one.first_transaction_id: why for one in segments if (why := _stranger(one, around)) is not None}
    data = [
        segment for segment in segments if segment.data is not None and segment.first_transaction_id not in strangers
    ]
    last = _last(data)
    _refuse_foreign(segments, strangers, after)
    if after > last:
        raise RefusedError(f"{target.storage}: partition {partition} ends at transaction {last}, before {after}")
    kept = _kept(data, after, target.storage / str(partition))
    ends = last
    for segment in reversed(segments):
        if segment.first_transaction_id > (0 if kept is None else kept.first_transaction_id):
            _remove(draft, segment, after, ends)
        if segment.data is not None:  # an index alone ends no data file: its ids may be in the one before
            ends = min(segment.first_transaction_id - 1, last)
    if kept is None and segments:
        _begin_anew(draft, view.control, partition)
    elif kept is not None:
        behind = (one.first_transaction_id for one in data if one.first_transaction_id > kept.first_transaction_id)
        _cut(draft, kept, after, last, min(behind, default=None))
    if draft.steps:
        _check_marks(draft, view.control, partition, after, last, allow_data_loss=allow_data_loss)
        lower_mark(draft, view.control_path, view.control.partitions[partition], after)
    return draft.finish()


def _stranger(segment: SegmentView, around: SegmentSurroundings) -> str | DiskReadError | None:
    """Why a data file is not proven to be the partition's own, or the error with which it, or its index, could not be read."""
    try:
        return foreign(segment, around)
    except DiskReadError as error:
        return error


def _refuse_foreign(segments: Sequence[SegmentView], strangers: Mapping[int, str | DiskReadError], after: int) -> None:
    """Raises RefusedError when the truncation would cut or remove a file that is not the partition's own.

    Raises DiskReadError where that cannot be read: the advice for a file of somebody else's would have it moved away.
    """
    reached = [one for one in segments if one.data is not None and one.first_transaction_id <= after + 1]
    cut = reached[-1].first_transaction_id if reached else 0
    for segment in segments:
        why = strangers.get(segment.first_transaction_id)
        if why is not None and segment.first_transaction_id >= cut:
            if isinstance(why, DiskReadError):
                raise why
            raise RefusedError(
                f"{segment.data_path}: not the partition's own ({why}), so that it is neither cut nor removed",
                advice="recover restores its header if that is only damaged; otherwise move the file away by hand",
            )


def _last(data: list[SegmentView]) -> int:
    """The last readable transaction, -1 when there is none."""
    behind: list[int | None] = [*(segment.first_transaction_id for segment in data[1:]), None]
    for segment, ceiling in reversed(list(zip(data, behind, strict=False))):
        header = read_segment_header(segment.data)
        if header is None or segment.data is None:
            continue
        content = Content.of_file(segment.data.path, segment.data.size)
        begins = begins_at(content, segment.first_transaction_id, header.first_transaction_id)
        with hint_of(segment.index_path) as hint:
            found = survey(content, begins, hint, ceiling=ceiling)
        if found.records:
            return found.next_id - 1
    return data[0].first_transaction_id - 1 if data else -1


def _check_marks(
    draft: PlanDraft, control: ControlFile, partition: int, after: int, last: int, *, allow_data_loss: bool
) -> None:
    if allow_data_loss:
        return
    current = control.partitions[partition].current_struct
    if current is None:
        raise BelowLowWaterMarkError(
            f"{draft.storage}: partition {partition}: neither struct of its pair is in force, so that the low-water mark is"
            " unknown",
            advice="repair the control file first, or add --allow-data-loss",
        )
    mark = current.local_low_water_mark
    if after < mark:
        until = min(mark, last) if last > after else mark
        raise BelowLowWaterMarkError(
            f"{draft.storage}: partition {partition}: transactions {after + 1} to {until} are at or below the local"
            f" low-water mark {mark}: they are acknowledged",
            advice="add --allow-data-loss to remove them all the same",
        )


def _kept(data: list[SegmentView], after: int, directory: PurePath) -> SegmentView | None:
    """The segment that becomes the last one; None when none remains (`after` is -1, and no segment begins at 0).

    A segment that begins at `after` + 1 but has neither a whole header nor an index entry, as a crash leaves it, is not kept
    after another one.
    """
    kept = [segment for segment in data if segment.first_transaction_id <= after + 1]
    if len(kept) > 1 and kept[-1].first_transaction_id == after + 1 and _is_crash_leftover(kept[-1]):
        kept.pop()
    if kept:
        return kept[-1]
    if after == -1:
        return None
    raise RefusedError(f"{directory}: begins with transaction {data[0].first_transaction_id}, so {after} is not here")


def _is_crash_leftover(segment: SegmentView) -> bool:
    assert segment.data is not None
    return segment.data.size < HEADER_SIZE and (segment.index is None or segment.index.size <= HEADER_SIZE)


def _remove(draft: PlanDraft, segment: SegmentView, after: int, last: int) -> None:
    """Remove a segment's files.  `last`: its last transaction, below its first one when it has none."""
    first = segment.first_transaction_id
    ids = (first, max(first, last))
    gone = segment.data is None or segment.data.size <= HEADER_SIZE
    for state in (segment.data, segment.index):
        if state is not None:
            action = "remove-segment" if state is segment.data else "remove-index"
            reason = f"begins behind transaction {after}"
            loses = state.size > HEADER_SIZE and (state is segment.data or gone)  # only the index proves lost records
            draft.step(
                action, state.path, segment.partition, reason, ids=ids, offset=0, length=state.size, loses_data=loses
            )  # fmt: skip
            draft.edits.append(Remove(state.path))


def _begin_anew(draft: PlanDraft, control: ControlFile, partition: int) -> None:
    """Create one empty segment at 0; an index that is there without its data file is replaced."""
    header = SegmentHeader(FORMAT_VERSION, control.header.created, control.header.cluster_key, partition, 0).encode()
    for name in (segment_name(0), index_name(0)):
        path = draft.storage / str(partition) / name
        action = "create-segment" if name == segment_name(0) else "create-index"
        reason = "a partition has at least one segment"
        if (there := FileState.of(path)) is not None:
            action, reason = "rebuild-index", f"{there.size} bytes, of a data file that is gone"
        draft.step(action, path, partition, reason, offset=0, length=HEADER_SIZE)
        draft.edits += Content(str(path), (LiteralBytes(header),)).edits(path, None)


def _cut(draft: PlanDraft, segment: SegmentView, after: int, last: int, ceiling: int | None) -> None:
    """Cut data file and index of the last kept segment.  `ceiling`: first id of the next segment, None when there is none."""
    assert segment.data is not None
    size = segment.data.size
    header = read_segment_header(segment.data)
    if header is None:
        raise RefusedError(f"{segment.data.path}: shorter than its header", advice="recover it first")
    content = Content.of_file(segment.data.path, size)
    begins = begins_at(content, segment.first_transaction_id, header.first_transaction_id)
    offset = _offset_behind(content, begins, after, segment, ceiling)
    if offset < size:
        reason = f"transaction {after} becomes the last one"
        own = last if ceiling is None else min(last, ceiling - 1)  # what is in later segments goes with these
        ids = (after + 1, own) if own > after else None  # the ids of unreadable records are unknown
        draft.step(
            "cut-segment", segment.data.path, segment.partition, reason, ids=ids, offset=offset, length=size - offset,
            loses_data=True,
        )  # fmt: skip
        draft.edits.append(Cut(segment.data.path, offset))
    end = entry_position(after + 1, begins)
    if segment.index is not None and segment.index.size > end:
        length = segment.index.size - end
        reason = "follows the data" if offset < size else "names records that are not there"
        draft.step(
            "cut-index", segment.index.path, segment.partition, reason, offset=end, length=length, loses_data=offset == size
        )  # fmt: skip
        draft.edits.append(Cut(segment.index.path, end))


def _offset_behind(content: Content, begins: int, after: int, segment: SegmentView, ceiling: int | None) -> int:
    """The byte offset after the record of transaction `after`.  Raises RefusedError when damage hides it."""
    with hint_of(segment.index_path) as hint:
        items = summarise_records(content, first_transaction_id=begins, index=hint, ceiling=ceiling)
        for item in items:
            if isinstance(item, Damage):
                if item.transaction_id == after + 1:
                    return item.offset
                continue
            place = after + 1 - item.first_transaction_id
            if 0 <= place < len(item):
                return int(item.offset[place])
            if place == len(item):
                return item.end
    if begins == after + 1:
        return HEADER_SIZE
    if content.size() == HEADER_SIZE:
        raise DamageError(f"{content.name}: transaction {after} is missing")
    raise RefusedError(
        f"{content.name}: transaction {after} is in a damaged place, so that nothing tells where the one behind it begins",
        advice="truncate after another one, or recover first",
    )
