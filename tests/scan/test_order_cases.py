"""Judgements of short files, one clause of the rule each: what stands at place 3, where 3 is expected, and what is behind it.

A number is the id of a record, ``=`` one with the data of the same id in front of it, ``!`` a damaged record.
"""

from __future__ import annotations

import pytest

from tests.builders import make_records, segment_header
from waltzctl.engine.scan.byte_source import BytesSource
from waltzctl.engine.scan.columns import Damage, RecordBatch
from waltzctl.engine.scan.kernel import INTERPRETED
from waltzctl.engine.scan.order import Judgement, OrderJudge
from waltzctl.engine.scan.probe import Probe, SearchBudget
from waltzctl.engine.scan.resync import IndexHint, Resynchroniser
from waltzctl.engine.scan.scanner import scan_records
from waltzctl.formats.segment import HEADER_SIZE, Record, encode_entries

SIZE = 60
REQUEST = make_records(1)[0].request_id
HEADER = segment_header(0, 0).encode()


def at(place: int) -> int:
    return HEADER_SIZE + SIZE * place


def record(place: int, word: str) -> bytes:
    """What a word stands for at a place; damaged is a byte of its id."""
    number = place if word == "!" else int(word.rstrip("="))
    data = f"{number if word.endswith('=') else place:020d}".encode()
    raw = Record.make(number, REQUEST, 0, data).encode()
    return raw[:1] + b"\1" + raw[2:] if word == "!" else raw


def index_of(kind: str, count: int) -> BytesSource | None:
    """``all``: an entry for each place; ``less``, ``more``: one less, one more; a number: the entry of that place is wrong."""
    if not kind:
        return None
    entries = [at(place) for place in range(count + (kind == "more") - (kind == "less"))]
    if kind.isdigit():
        entries[int(kind)] += 1
    return BytesSource(HEADER + encode_entries(entries))


@pytest.mark.parametrize(
    ("words", "ceiling", "index", "end", "following", "proof"),
    [
        ("0 1 2 0", 1, "all", 4, None, "end"),
        ("0 1 2 4", 1, "all", 4, None, "end"),
        ("0 1 2 4", 1, "less", 3, 4, "length"),
        ("0 1 2 4", 2, "", 3, 4, "length"),
        ("0 1 2 4", None, "more", 3, 4, "length"),
        ("0 1 2 5", 5, "", 4, None, "end"),
        ("0 1 2 0 1", 12, "all", 5, None, "end"),
        ("0 1 2 0 2", 5, "4", 4, None, "end"),
        ("0 1 2 0 8", 9, "3", 4, 8, "length"),
        ("0 1 2 2 0", 5, "", 4, None, "end"),
        ("0 1 2 2 3", 11, "all", 5, None, "end"),
        ("0 1 2 2 3", 11, "3", 4, 3, "length"),
        ("0 1 2 2 3", 12, "", 4, 3, "length"),
        ("0 1 2 2 3", None, "all", 5, None, "end"),
        ("0 1 2 2 3", None, "more", 4, 3, "length"),
        ("0 1 2 4 !", 5, "all", 3, 4, "length"),
        ("0 1 2 4 2", None, "all", 5, None, "end"),
        ("0 1 2 4 5", 1, "all", 3, 4, "length"),
        ("0 1 2 4 5", 3, "more", 5, None, "end"),
        ("0 1 2 4 5", 5, "less", 5, None, "end"),
        ("0 1 2 4 6", None, "all", 5, None, "end"),
        ("0 1 2 0 ! 1", None, "more", 5, 5, "chain"),
        ("0 1 2 0 6 7", None, "", 4, 6, "length"),
        ("0 1 2 1 2 3", 5, "all", 6, None, "end"),
        ("0 1 2 2 3 !", 6, "", 4, 3, "length"),
        ("0 1 2 2 3 2", 8, "all", 4, 3, "length"),
        ("0 1 2 2 3 4", 1, "5", 4, 3, "length"),
        ("0 1 2 2= 3", None, "all", 4, 3, "length"),
        ("0 1 2 4 ! 1", None, "less", 3, 4, "length"),
        ("0 1 2 4 ! 4", None, "3", 3, 4, "length"),
        ("0 1 2 4 5 6", 7, "", 3, 4, "length"),
        ("0 1 2 5 ! 5", 1, "4", 5, 5, "index"),
        ("0 1 2 6 ! 8", None, "", 3, 6, "length"),
        ("0 1 2 6 6 7", 8, "", 4, 6, "length"),
        ("0 1 2 1 2 3 3", None, "more", 5, 3, "length"),
        ("0 1 2 2 3 4 6", 7, "6", 6, 6, "length"),
        ("0 1 2 2 3 7 6", 5, "", 6, 6, "length"),
        ("0 1 2 4 ! 5 6", None, "less", 5, 5, "index"),
        ("0 1 2 4 6 7 8", 7, "all", 3, 4, "length"),
        ("0 1 2 4 7 ! 6", 8, "all", 6, 6, "index"),
        ("0 1 2 2= 3 4 6", 1, "all", 4, 3, "length"),
        ("0 1 2 1000000000", 1, "less", 4, None, "end"),
    ],
)
def test_what_stands_where_another_id_is_expected(
    words: str, ceiling: int | None, index: str, end: int, following: int | None, proof: str
) -> None:
    """`end`: the place at which the sequence goes on with `following`."""
    records = [record(place, word) for place, word in enumerate(words.split())]
    data = HEADER + b"".join(records)
    probe = Probe(BytesSource(data), len(data), 1 << 20, SearchBudget(2**62))
    search = Resynchroniser(probe, INTERPRETED, IndexHint(index_of(index, len(records)), 0, HEADER_SIZE), ceiling)
    assert OrderJudge(search, len(data), ceiling).judge(at(3), 3) == Judgement(at(end), following, proof)


@pytest.mark.parametrize("first", [-(2**63), -(10**6), -5000, -4097, -4096, -1, 0, 2**63 - 9])
def test_behind_what_is_no_record_the_sequence_goes_on_whatever_its_ids_are(first: int) -> None:
    records = [Record.make(first + place, REQUEST, 0, f"{place:020d}".encode()).encode() for place in range(8)]
    records[3] = b"\xee" * 57
    source = BytesSource(HEADER + b"".join(records))
    front, damage, behind = scan_records(source, first_transaction_id=first, compiled=False)
    assert isinstance(damage, Damage)
    assert (damage.transaction_id, damage.next_transaction_id, damage.length) == (first + 3, first + 4, 57)
    assert isinstance(front, RecordBatch)
    assert isinstance(behind, RecordBatch)
    assert (len(front), len(behind)) == (3, 4)
