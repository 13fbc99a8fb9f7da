"""Records found behind a damaged place that may be no records of the log, but the data of one that is damaged.

What a client stored may look like a record, with right checksums and the id that would follow.  Behind damage the search meets it
first.  The index knows better: its entry for that id lies *inside* the damaged place, where the record that bears the id began.
"""

from __future__ import annotations

from dataclasses import replace

from waltzctl.engine.repair.recover_parts import Part
from waltzctl.engine.repair.survey import Loss, Survey, open_hint
from waltzctl.engine.scan.source import read_bytes
from waltzctl.formats.segment import ENTRY_SIZE, INDEX_ENTRY, entry_position


def may_be_data(part: Part, loss: Loss) -> bool:
    """Whether the index has the record that was found behind a damaged place in the middle of it.  Raises DiskReadError."""
    if loss.stop is None or loss.out_of_order or loss.record_ok or loss.unread or loss.stop - loss.first < 1:
        return False
    hint = open_hint(part.index_path)
    if hint is None:
        return False
    with hint:
        raw = read_bytes(hint, entry_position(loss.stop, part.first), ENTRY_SIZE)
    if len(raw) < ENTRY_SIZE:
        return False
    (entry,) = INDEX_ENTRY.struct.unpack(raw)
    return bool(loss.offset < entry < loss.end)


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
