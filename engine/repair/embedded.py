"""Embedded records: bytes after a damaged place that look like a record, but may be the data of the damaged one.

A client's data may contain a whole record with right checksums and the next id.  When the record around it is damaged, the search
for the next record finds the embedded one first.  The index shows this: its entry for that id points *inside* the damaged place,
where the real record of that id begins.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath

from waltzctl.engine.errors import DamageError
from waltzctl.engine.findings import Code
from waltzctl.engine.repair.survey import Loss, Survey, open_hint
from waltzctl.engine.scan.byte_source import ByteSource, read_bytes
from waltzctl.formats.segment import ENTRY_SIZE, INDEX_ENTRY, entry_position


class EmbeddedRecordError(DamageError):
    """The index entry of the first record after a damaged place points inside that place.  `code`: the kind of damage."""

    def __init__(self, message: str, code: Code) -> None:
        super().__init__(message)
        self.code = code


def entry_inside(index: ByteSource, begins: int, transaction_id: int, offset: int, end: int) -> int | None:
    """The index entry of a transaction, if it lies strictly between bytes `offset` and `end` of the data file.

    `begins`: id of the index's first entry.  None when the entry lies elsewhere or does not exist.  Raises DiskReadError.
    """
    raw = read_bytes(index, entry_position(transaction_id, begins), ENTRY_SIZE)
    if len(raw) < ENTRY_SIZE:
        return None
    (entry,) = INDEX_ENTRY.struct.unpack(raw)
    return int(entry) if offset < entry < end else None


def may_be_data(index: PurePath, begins: int, loss: Loss) -> bool:
    """Whether the record after a loss may be embedded: its index entry points inside the damaged place.

    `begins`: first id of the segment.  Raises DiskReadError.
    """
    if loss.stop is None or loss.out_of_order or loss.record_ok or loss.unread or loss.stop - loss.first < 1:
        return False
    hint = open_hint(index)
    if hint is None:
        return False
    with hint:
        return entry_inside(hint, begins, loss.stop, loss.offset, loss.end) is not None


def taken_in(found: Survey, place: int) -> Survey | None:
    """The survey with loss number `place`, the records after it and the next loss joined to one loss; None for the last loss."""
    if place + 1 >= len(found.losses):
        return None
    one, other = found.losses[place : place + 2]
    assert one.stop is not None
    whole = replace(one, end=other.end, stop=other.stop, doubtful=one.doubtful or other.doubtful, unread=other.unread)
    losses = (*found.losses[:place], whole, *found.losses[place + 2 :])
    records = found.records - (other.first - one.stop)
    if other.stop is None:
        return replace(found, next_id=one.first, end=one.offset, records=records, last=one.before, losses=losses)
    return replace(found, records=records, losses=losses)
