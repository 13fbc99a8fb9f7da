"""Records found behind a damaged place that may be no records of the log, but the data of one that is damaged.

What a client stored may look like a record, with right checksums and the id that would follow.  Behind damage the search meets it
first.  The index knows better: its entry for that id lies *inside* the damaged place, where the record that bears the id began.
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
    """An index has the record that was found behind damage inside of it.  `code` says how the damage shows."""

    def __init__(self, message: str, code: Code) -> None:
        super().__init__(message)
        self.code = code


def entry_inside(index: ByteSource, begins: int, transaction_id: int, offset: int, end: int) -> int | None:
    """The index entry of a transaction, if it is behind byte `offset` and in front of byte `end` of the data file.

    `begins`: the id of the first entry.  None where the entry is elsewhere or not there.  Raises DiskReadError.
    """
    raw = read_bytes(index, entry_position(transaction_id, begins), ENTRY_SIZE)
    if len(raw) < ENTRY_SIZE:
        return None
    (entry,) = INDEX_ENTRY.struct.unpack(raw)
    return int(entry) if offset < entry < end else None


def may_be_data(index: PurePath, begins: int, loss: Loss) -> bool:
    """Whether the index of the segment that begins with id `begins` has the record behind a damaged place inside it.

    Raises DiskReadError.
    """
    if loss.stop is None or loss.out_of_order or loss.record_ok or loss.unread or loss.stop - loss.first < 1:
        return False
    hint = open_hint(index)
    if hint is None:
        return False
    with hint:
        return entry_inside(hint, begins, loss.stop, loss.offset, loss.end) is not None


def taken_in(found: Survey, place: int) -> Survey | None:
    """The survey where the records between a loss and the next one are a part of both; None where no other loss follows."""
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
