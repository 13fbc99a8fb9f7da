"""What stands in a segment's data file: how far its records reach, and every place where one is lost or doubtful."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

import numpy as np

from waltzctl.engine.errors import DamageError, SpecialFileError
from waltzctl.engine.findings import Code, Finding, SegmentFiles, Tail, damage_finding, make_finding, tail_finding
from waltzctl.engine.repair.content import Content
from waltzctl.engine.scan.byte_source import ByteSource, FileSource
from waltzctl.engine.scan.carve import holds_records
from waltzctl.engine.scan.columns import Damage, DamageCause, RecordView
from waltzctl.engine.scan.order import SKIPPED_ALLOWANCE
from waltzctl.engine.scan.scanner import read_record_at, summarise_records
from waltzctl.formats.segment import HEADER_SIZE, RECORD_OVERHEAD

MAX_PLACES = 100_000
"""Damaged places of one segment beyond which nothing is planned for it."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Ids `first` to `stop` - 1 have no believable record in ``[offset, end)``.

    `stop` None: nothing believable follows (the end of the file).  `before` is the offset of the intact record of `first` - 1
    that ends at `offset`.  `record_ok`: the record is intact, but its data does not agree with the data's checksum.
    `doubtful`: it looks like a record cut off by the end of the file, but there are records inside; they may be its data, or
    its length may be what is damaged.  `either`: records with right checksums whose ids, or what stands in front of them, are
    wrong; nothing tells which.  `seen`: how the scan found the beginning of it, None where the record is intact.
    """

    cause: Code
    offset: int
    end: int
    first: int
    stop: int | None
    before: int | None
    unread: bool = False
    record_ok: bool = False
    doubtful: bool = False
    either: bool = False
    seen: Damage | None = None

    def told(self, files: SegmentFiles, tail: Tail | None = None) -> Finding | None:
        """What every reader tells of it; `tail`: where it stands, if it is a torn end.  None for what no scan has found."""
        if self.seen is None:
            return None
        damage = replace(
            self.seen,
            cause=DamageCause(self.cause.value),
            length=self.length,
            transaction_id=self.first,
            next_transaction_id=self.stop,
            holds_records=self.doubtful,
        )
        return damage_finding(damage, files) if tail is None else tail_finding(damage, tail, files)

    @property
    def kept(self) -> bool:
        """Whether nothing of it may be cut, as there may be records that are of use."""
        return self.unread or self.either

    @property
    def length(self) -> int:
        """Bytes in which nothing is believable."""
        return self.end - self.offset

    @property
    def out_of_order(self) -> bool:
        """Whether what stands there are records with right checksums and wrong ids."""
        return self.cause is Code.RECORD_ORDER


@dataclass(frozen=True, slots=True)
class Survey:
    """A data file's records: ids `begins` to `next_id` - 1 as far as they are not lost; they end at byte `end`.

    `last` is the offset of the last record when it is intact and ends at `end`.
    """

    begins: int
    next_id: int
    end: int
    size: int
    records: int
    last: int | None
    losses: tuple[Loss, ...]

    @property
    def tail(self) -> Loss | None:
        """The loss that reaches to the end of the file."""
        return self.losses[-1] if self.losses and self.losses[-1].stop is None else None

    @property
    def doubtful(self) -> bool:
        """Whether it cannot be told for sure where the records end."""
        return any(loss.doubtful or (loss.stop is None and loss.out_of_order) for loss in self.losses)

    @property
    def inner(self) -> tuple[Loss, ...]:
        """The losses in front of intact records."""
        return tuple(loss for loss in self.losses if loss.stop is not None)


def open_hint(path: PurePath) -> FileSource | None:
    """An index file as a hint for the scanner; None when there is none, or none to read."""
    try:
        return FileSource(path)
    except (FileNotFoundError, SpecialFileError):
        return None


@contextmanager
def hint_of(path: PurePath | None) -> Iterator[FileSource | None]:
    """An index file as a hint for as long as it is needed; None where there is none, or none to read."""
    found = None if path is None else open_hint(path)
    try:
        yield found
    finally:
        if found is not None:
            found.close()


def begins_at(content: Content, named: int, header_first: int) -> int:
    """Id of the first record: the name's, unless the first record proves that only the header's is right."""
    if header_first != named:
        found = read_record_at(content, HEADER_SIZE, expected_id=None)
        if isinstance(found, RecordView) and found.transaction_id == header_first:
            return header_first
    return named


def survey(
    content: Content,
    begins: int,
    hint: ByteSource | None = None,
    *,
    start: int = HEADER_SIZE,
    ceiling: int | None = None,
) -> Survey:
    """Scan a data file from `start`, where the record `begins` is expected, to its end.

    `ceiling`: the id with which the next segment begins, where there is one.  Raises DiskReadError; DamageError when it is
    damaged in more places than can be handled.
    """
    found = _scan(content, begins, hint, start, ceiling)
    tail = found.tail
    if tail is None or tail.unread or tail.out_of_order:
        return found
    seen = tail.seen
    if seen is not None and seen.cause is DamageCause.TORN_TAIL:
        doubtful = seen.holds_records
    else:  # with damage in front of it
        doubtful = holds_records(content, tail.offset, tail.end, tail.first, ceiling)
    return replace(found, losses=(*found.losses[:-1], replace(tail, doubtful=doubtful)))


def by_ids(content: Content, found: Survey, ceiling: int | None) -> Survey | None:
    """The survey if the ids of the records at an end that is out of order are right, whatever the index says: then ids are
    missing in front of them.  None where no sequence goes on with them.  Raises as `survey`.
    """
    tail = found.tail
    if tail is None or tail.unread or not tail.out_of_order:
        return None
    rest = _scan(content, tail.first, None, tail.offset, ceiling)
    if not rest.records:
        return None
    losses = (*found.losses[:-1], replace(rest.losses[0], before=tail.before), *rest.losses[1:])
    return replace(
        found, next_id=rest.next_id, end=rest.end, records=found.records + rest.records, last=rest.last, losses=losses
    )  # fmt: skip


def by_places(found: Survey) -> Survey | None:
    """The survey if ids are wrong up to the end, where otherwise some are missing in front, or one stands there twice.

    The last record may be torn.  None where they are in order.
    """
    torn = found.tail
    inner = found.losses if torn is None else found.losses[:-1]
    loss = inner[-1] if inner else None
    if loss is None or not loss.out_of_order:
        return None
    assert loss.stop is not None  # or it would be the torn end
    if loss.length and loss.stop != loss.first:
        return None
    if torn is not None and (torn.kept or torn.doubtful or torn.out_of_order):
        return None
    tail = replace(loss, end=found.end if torn is None else torn.end, stop=None)
    return replace(
        found, next_id=loss.first, end=loss.offset, records=found.records - (found.next_id - loss.stop), last=loss.before,
        losses=(*inner[:-1], tail),
    )  # fmt: skip


def _scan(content: Content, begins: int, hint: ByteSource | None, start: int, ceiling: int | None = None) -> Survey:
    losses: list[Loss] = []
    next_id, end, records, last = begins, start, 0, None
    size = content.size()
    for item in summarise_records(content, first_transaction_id=begins, start=start, index=hint, ceiling=ceiling):
        if isinstance(item, Damage):
            earlier = losses[-1] if losses else None
            stop = item.next_transaction_id
            if earlier is not None and _joins(earlier, item):
                losses[-1] = replace(earlier, end=item.end, stop=stop)
            else:
                losses.append(_loss(item, last))
            if stop is not None:
                check_jump(content.name, item.transaction_id, stop, size)
                next_id, end, last = stop, item.end, None
            continue
        if losses and losses[-1].stop is None:
            losses[-1] = replace(losses[-1], stop=item.first_transaction_id)
        ends = np.append(item.offset[1:], item.end)
        previous = last
        for place in np.flatnonzero(~item.data_ok) if item.data_damaged else ():
            number = item.first_transaction_id + int(place)
            before = int(item.offset[place - 1]) if place else previous
            span = int(item.offset[place]), int(ends[place])
            losses.append(Loss(Code.DATA_CHECKSUM, *span, number, number + 1, before, record_ok=True))
        next_id, end, last = item.first_transaction_id + len(item), item.end, int(item.offset[-1])
        records += len(item)
        _check_count(content.name, losses)
    return Survey(begins, next_id, end, size, records, last, tuple(losses))


def _joins(before: Loss, damage: Damage) -> bool:
    """Whether nothing believable stands between a loss and the damage behind it."""
    if before.stop is None:
        return True
    touches = before.stop == damage.transaction_id and before.end == damage.offset
    return touches and not before.record_ok and not before.unread


def _loss(damage: Damage, before: int | None) -> Loss:
    return Loss(
        Code(damage.cause.value),
        damage.offset,
        damage.end,
        damage.transaction_id,
        damage.next_transaction_id,
        before,
        unread=damage.unread,
        seen=damage,
    )


def check_jump(name: str, first: int, stop: int, size: int) -> None:
    """Raises DamageError when more ids are missing than can have been lost."""
    if not 0 <= stop - first <= size // RECORD_OVERHEAD + SKIPPED_ALLOWANCE:
        raise _too_much(name, f"transaction {stop} follows where {first} is expected; this is no loss of records")


def _check_count(name: str, losses: list[Loss]) -> None:
    if len(losses) > MAX_PLACES:
        raise _too_much(name, f"it is damaged in more than {MAX_PLACES} places")


def _too_much(name: str, why: str) -> DamageError:
    finding = make_finding(Code.RECORD_ORDER, Path(name), f"{name}: {why}")
    return DamageError(f"{name}: {why}", (finding,), advice="salvage its records into a new directory")
