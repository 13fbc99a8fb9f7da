"""Records with right checksums whose ids are not the next: what the records behind them, the next segment and the index tell."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from tests.builders import make_records, segment_header
from waltzctl.engine.scan.byte_source import BytesSource
from waltzctl.engine.scan.columns import Damage, DamageCause, RecordBatch
from waltzctl.engine.scan.scanner import scan_records
from waltzctl.formats.segment import Record

RECORDS = make_records(12)


def renumbered(ids: Sequence[int]) -> list[bytes]:
    """Twelve records, the ones at these places under these ids, with right checksums."""
    return [
        Record.make(number, one.request_id, one.header, one.data).encode()
        for number, one in zip(ids, RECORDS, strict=True)
    ]


def judged(
    records: Sequence[bytes], *, ceiling: int | None = None, indexed: bool = False
) -> list[tuple[int, int, int]]:
    """Where the sequence breaks: the id that is expected, the bytes that yield none, and the id behind them (-1: none).

    `indexed`: with an index that has an entry for each record, in the order of the file.
    """
    header = segment_header(0, 0).encode()
    entries, place = [], len(header)
    for one in records:
        entries.append(place)
        place += len(one)
    index = BytesSource(header + struct.pack(f">{len(entries)}q", *entries)) if indexed else None
    source = BytesSource(header + b"".join(records))
    found = []
    for item in scan_records(source, first_transaction_id=0, ceiling=ceiling, index=index):
        if isinstance(item, Damage):
            assert item.cause is DamageCause.RECORD_ORDER
            behind = -1 if item.next_transaction_id is None else item.next_transaction_id
            found.append((item.transaction_id, item.length, behind))
        else:
            assert isinstance(item, RecordBatch)
    return found


def test_behind_damage_no_id_of_the_next_segment_is_believed_that_the_damage_has_no_room_for() -> None:
    records = renumbered([*range(11), 111])
    content = bytearray(segment_header(0, 0).encode() + b"".join(records))
    for place in (30, 12, 33):  # of its length, and so that nothing proves where it ends
        content[128 + size(0, 9) + place] ^= 0x40
    content[128 + size(0, 10) + 12] ^= 0x40
    for ceiling, behind in ((12, None), (None, 111)):
        found = list(scan_records(BytesSource(bytes(content)), first_transaction_id=0, ceiling=ceiling))
        (damage,) = [one for one in found if isinstance(one, Damage)]
        assert (damage.transaction_id, damage.next_transaction_id) == (9, behind)


@pytest.mark.parametrize("wrong", [1, 2])
@pytest.mark.parametrize("indexed", [False, True])
def test_larger_ids_that_leave_none_for_the_damaged_record_behind_them_are_wrong(wrong: int, *, indexed: bool) -> None:
    """Were they right, the damaged record would have none."""
    records = renumbered([n + 1 if 4 <= n < 4 + wrong else n for n in range(12)])
    records[4 + wrong] = bytes([records[4 + wrong][0]]) + b"\1" + records[4 + wrong][2:]
    stop = 5 + wrong
    assert judged(records, indexed=indexed) == [(4, size(4, stop), stop)]


def size(first: int, stop: int) -> int:
    return sum(one.size for one in RECORDS[first:stop])


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_row_that_is_shifted_down_ends_where_the_sequence_has_what_follows(step: int, *, indexed: bool) -> None:
    """It reads like a repeat and a gap, which make up for one another to the record."""
    ids = [n - step if 4 <= n < 9 else n for n in range(12)]
    assert judged(renumbered(ids), indexed=indexed) == [(4, size(4, 9), 9)]


@pytest.mark.parametrize("step", [-2, -1, 1, 2])
def test_a_row_that_is_shifted_up_to_the_end_is_told_by_the_next_segment(step: int) -> None:
    ids = [n + step if n >= 7 else n for n in range(12)]
    assert judged(renumbered(ids), ceiling=12) == [(7, size(7, 12), -1)]


@pytest.mark.parametrize("lost", [1, 2])
def test_ids_that_lead_to_the_next_segment_by_themselves_are_right(lost: int) -> None:
    ids = [n + lost if n >= 7 else n for n in range(12)]
    assert judged(renumbered(ids), ceiling=12 + lost) == [(7, 0, 7 + lost)]
    lower = [n - lost if n >= 7 else n for n in range(12)]
    assert judged(renumbered(lower), ceiling=12 - lost) == [(7, size(7, 7 + lost), 7)]


def test_a_piece_that_is_byte_for_byte_the_one_in_front_of_it_is_a_repeat() -> None:
    records = renumbered(range(12))
    assert judged([*records[:7], *records[4:]], indexed=True) == [(7, size(4, 7), 7)]
    repeated_and_lost = [*records[:7], *records[6:9], *records[10:]]
    assert judged(repeated_and_lost) == [(7, size(6, 7), 7), (9, 0, 10)]


def test_an_index_made_from_what_stands_there_leaves_it_open_at_the_end() -> None:
    """Another form of record 8, or all ids from there on are wrong: nothing in this file tells."""
    ids = [n - 1 if n >= 9 else n for n in range(12)]
    assert judged(renumbered(ids), indexed=True) == [(9, size(9, 12), -1)]
    assert judged(renumbered(ids)) == [(9, size(9, 10), 9)]
    assert judged(renumbered(ids), indexed=True, ceiling=11) == [(9, size(9, 10), 9)]


@pytest.mark.parametrize("indexed", [False, True])
def test_larger_ids_are_right_that_lead_by_themselves_to_a_record_in_its_place(*, indexed: bool) -> None:
    """The one that is missing in front of them and the one too many behind them had five good ones named as lost."""
    records = renumbered([0, 3, 1, 2, 4, 5, 6, 9, 7, 8, 10, 11])
    found = judged(records, indexed=indexed)
    assert [(expected, behind) for expected, _, behind in found] == [(1, 1), (3, 4), (7, 7), (9, 10)]
    assert sum(length for _, length, _ in found) == len(records[1]) + len(records[7])


@pytest.mark.parametrize("indexed", [False, True])
def test_a_record_that_stands_alone_behind_larger_ids_takes_none_of_them_with_it(*, indexed: bool) -> None:
    """Fewer than sixteen of them were named as not belonging there, more were not."""
    records = renumbered([0, 2, 3, 4, 5, 1, 6, 7, 8, 9, 10, 11])
    found = judged(records, indexed=indexed)
    assert [(expected, behind) for expected, _, behind in found] == [(1, 2), (6, 6)]
    assert sum(length for _, length, _ in found) == len(records[5])


def test_two_larger_ids_do_not_belong_where_the_sequence_goes_on_behind_them() -> None:
    records = renumbered([0, 7, 8, 1, 11, 2, 3, 4, 5, 6, 7, 8])
    found = judged(records)
    assert [(expected, behind) for expected, _, behind in found] == [(1, 1), (2, 2)]
