"""Scanning a segment's data file for repair: how far its records reach, and where records are lost or doubtful."""

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
"""With more damaged places than this nothing is planned for a segment."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Ids `first` to `stop` - 1 have no valid record in bytes ``[offset, end)``.

    ===========  ===================================================================================================
    `stop`       None: no valid record follows, up to the end of the file
    `before`     offset of the intact record `first` - 1 that ends at `offset`; None when there is none
    `unread`     the scan gave the place up before its end, as too expensive to search
    `record_ok`  the record's own checksum is right; only its data does not match the data checksum
    `doubtful`   looks like a record cut off by the end of the file, but records lie inside: they may be its data, or its
                 length may be damaged
    `either`     records with right checksums; either their ids are wrong or what stands in front of them, and nothing tells
                 which
    `seen`       the damage as the scan found its beginning; None for an intact record
    ===========  ===================================================================================================
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

    def as_finding(self, files: SegmentFiles, tail: Tail | None = None) -> Finding | None:
        """The finding, worded as every command words it; None for a loss that no scan has found.

        `tail`: the surroundings of a torn tail; None for a loss that is reported as damage.
        """
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
        """Whether it must not be cut, as it may hold usable records."""
        return self.unread or self.either

    @property
    def length(self) -> int:
        """Bytes without a valid record."""
        return self.end - self.offset

    @property
    def out_of_order(self) -> bool:
        """Whether it consists of records with right checksums and unexpected ids."""
        return self.cause is Code.RECORD_ORDER


@dataclass(frozen=True, slots=True)
class Survey:
    """A data file's records: ids `begins` to `next_id` - 1, except the lost ones; they end at byte `end`.

    `size`: bytes of the file.  `records`: number of intact records.  `last`: offset of the last record when it is intact and
    ends at `end`, else None.
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
        """The loss that reaches to the end of the file, None when there is none."""
        return self.losses[-1] if self.losses and self.losses[-1].stop is None else None

    @property
    def reached(self) -> int:
        """The id after the last record in order, as far as that is decided: of a torn tail nothing is."""
        return self.next_id if self.tail is None else self.tail.first

    @property
    def doubtful(self) -> bool:
        """Whether it is uncertain where the records end."""
        return any(loss.doubtful or (loss.stop is None and loss.out_of_order) for loss in self.losses)

    @property
    def inner(self) -> tuple[Loss, ...]:
        """The losses in front of intact records."""
        return tuple(loss for loss in self.losses if loss.stop is not None)


def open_hint(path: PurePath) -> FileSource | None:
    """An index file as a hint for the scanner; None when it does not exist or is not a regular file."""
    try:
        return FileSource(path)
    except (FileNotFoundError, SpecialFileError):
        return None


@contextmanager
def hint_of(path: PurePath | None) -> Iterator[FileSource | None]:
    """`open_hint` as a context manager; None for None."""
    found = None if path is None else open_hint(path)
    try:
        yield found
    finally:
        if found is not None:
            found.close()


def begins_at(content: Content, named: int, header_first: int) -> int:
    """Id of the first record: that of the file name, unless the first record proves that only the header's is right."""
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

    `ceiling`: first id of the next segment, None for the last one.  Raises DiskReadError; DamageError for more than MAX_PLACES
    damaged places, and for a jump of ids that no loss explains.
    """
    found = _scan(content, begins, hint, start, ceiling)
    tail = found.tail
    if tail is None or tail.unread or tail.out_of_order:
        return found
    seen = tail.seen
    if seen is not None and seen.cause is DamageCause.TORN_TAIL:
        doubtful = seen.holds_records
    else:  # the tail begins with damage of another kind
        doubtful = holds_records(content, tail.offset, tail.end, tail.first, ceiling)
    return replace(found, losses=(*found.losses[:-1], replace(tail, doubtful=doubtful)))


def by_ids(content: Content, found: Survey, ceiling: int | None) -> Survey | None:
    """The survey on the assumption that the out-of-order ids at the end are right, so that ids in front of them are missing.

    The index is not consulted.  None when the tail is in order, or does not go on as a sequence.  Raises as `survey`.
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
    """The survey on the assumption that the ids after the last loss are wrong up to the end of the file.

    The other reading is that ids in front of them are missing, or that one record is repeated.  The last record may be torn.
    None when the ids are in order.
    """
    torn = found.tail
    inner = found.losses if torn is None else found.losses[:-1]
    loss = inner[-1] if inner else None
    if loss is None or not loss.out_of_order:
        return None
    assert loss.stop is not None  # it is not the torn tail
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
    """Whether no valid record stands between a loss and the damage after it."""
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
    """Raises DamageError when more ids are missing than a file of `size` bytes can have lost."""
    if not 0 <= stop - first <= size // RECORD_OVERHEAD + SKIPPED_ALLOWANCE:
        raise _too_much(name, f"transaction {stop} follows where {first} is expected; this is no loss of records")


def _check_count(name: str, losses: list[Loss]) -> None:
    if len(losses) > MAX_PLACES:
        raise _too_much(name, f"it is damaged in more than {MAX_PLACES} places")


def _too_much(name: str, why: str) -> DamageError:
    finding = make_finding(Code.RECORD_ORDER, Path(name), f"{name}: {why}")
    return DamageError(f"{name}: {why}", (finding,), advice="salvage its records into a new directory")
