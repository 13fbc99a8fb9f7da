"""The layout of a commit journal: what counts, what does not, and what proves that something was damaged."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waltzctl.formats.journal_file import (
    AREA_HEADER,
    AREA_HEADER_SCHEMA,
    BLOCK,
    ENTRY_HEADER,
    ENTRY_HEADER_SCHEMA,
    PART,
    PART_SCHEMA,
    AreaHeader,
    PartKind,
    WriteTo,
    decode_area_header,
    encode_area_header,
    encode_entry,
    entry_size,
    header_offset,
    padded,
    read_area,
    read_areas,
)

ID, OTHER, OWNER = uuid.UUID(int=7), uuid.UUID(int=8), uuid.UUID(int=9)
SIZE = 32 * BLOCK
LONG = bytes(range(256)) * 20  # an entry of two blocks


def area(epoch: int, *entries: bytes, preceding: int = 0, journal_id: uuid.UUID = ID, size: int = SIZE) -> bytearray:
    """An area with one header and these entries behind each other."""
    made = bytearray(size)
    head = encode_area_header(AreaHeader(journal_id, OWNER, size, epoch, preceding))
    made[header_offset(epoch) : header_offset(epoch) + len(head)] = head
    position = BLOCK
    for entry in entries:
        made[position : position + len(entry)] = entry
        position += len(entry)
    return made


def write(partition: int, offset: int, data: bytes = b"abc") -> WriteTo:
    return WriteTo(partition, 0, offset, [data])


def entry(sequence: int, *, epoch: int = 1, durable: int | None = None, data: bytes = b"abc") -> bytes:
    place = epoch, sequence, sequence if durable is None else durable
    return encode_entry(ID, place, [write(sequence, 128, data)])


def sequences(read: object) -> list[int]:
    return [one.sequence for one in read.entries]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("schema", "compiled"),
    [(AREA_HEADER_SCHEMA, AREA_HEADER), (ENTRY_HEADER_SCHEMA, ENTRY_HEADER), (PART_SCHEMA, PART)],
)
def test_the_fast_form_has_the_schemas_bytes(schema: object, compiled: object) -> None:
    assert schema.sizeof() == compiled.size  # type: ignore[attr-defined]


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 2**40), st.integers(0, 2**40), st.binary(max_size=6000)), max_size=6
    ),
    st.lists(st.integers(0, 9), max_size=3),
)
@settings(max_examples=60)
def test_what_is_encoded_is_read(writes: list[tuple[int, int, int, bytes]], forgotten: list[int]) -> None:
    cut = [WriteTo(p, s, o, [data[: len(data) // 2], memoryview(data)[len(data) // 2 :]]) for p, s, o, data in writes]
    raw = encode_entry(ID, (1, 0, 0), cut, forgotten)
    assert len(raw) % BLOCK == 0
    if not forgotten:
        assert len(raw) == padded(entry_size(cut))
    read = read_area(ID, area(1, raw))
    assert read.damage is None
    (only,) = read.entries
    assert [one.partition for one in only.parts if one.kind is PartKind.FORGET] == forgotten
    assert [one[1:] for one in only.parts if one.kind is PartKind.WRITE] == writes
    assert only.size == len(raw)


@pytest.mark.parametrize("epoch", [0, 1, 2, 3, 4, 5, 6, 7])
def test_a_header_is_written_over_the_one_before_the_last(epoch: int) -> None:
    made = area(epoch)
    head = encode_area_header(AreaHeader(ID, OWNER, SIZE, epoch + 2))
    place = header_offset(epoch + 2)
    made[place : place + len(head)] = head
    assert decode_area_header(made) == AreaHeader(ID, OWNER, SIZE, epoch + 2)
    made[place + 5] ^= 1  # half written: the one before stands
    assert decode_area_header(made) == AreaHeader(ID, OWNER, SIZE, epoch)
    made[header_offset(epoch) + 5] ^= 1
    assert decode_area_header(made) is None
    assert read_area(ID, made).damage is not None


@pytest.mark.parametrize("place", range(AREA_HEADER.size))
def test_every_byte_of_a_header_is_covered(place: int) -> None:
    made = area(1)
    made[place] ^= 0x10
    assert decode_area_header(made) is None


def test_a_header_ends_where_the_block_does() -> None:
    made = area(1)
    assert decode_area_header(made[: AREA_HEADER.size]) is not None
    assert decode_area_header(made[: AREA_HEADER.size - 1]) is None


def test_another_journal_is_not_read() -> None:
    assert read_area(OTHER, area(1, entry(0))).damage is not None
    assert read_area(ID, area(1, encode_entry(OTHER, (1, 0, 0), [write(0, 0)]))).entries == []


@pytest.mark.parametrize("place", [*range(ENTRY_HEADER.size), ENTRY_HEADER.size + 3, ENTRY_HEADER.size + PART.size + 1])
def test_every_byte_of_the_last_entry_is_covered_and_none_is_missed(place: int) -> None:
    made = area(1, entry(0), entry(1, durable=1))
    made[2 * BLOCK + place] ^= 0x04
    read = read_area(ID, made)
    assert (sequences(read), read.damage) == ([0], None)  # it may never have been durable


@pytest.mark.parametrize("data", [b"abc", LONG])
@pytest.mark.parametrize(("durable", "damaged"), [(1, False), (2, True), (3, True)])
def test_an_entry_behind_tells_of_a_damaged_one_that_was_durable(data: bytes, durable: int, damaged: bool) -> None:
    first = entry(0)
    made = area(1, first, entry(1, durable=1, data=data), entry(2, durable=durable))
    made[BLOCK + len(first) + ENTRY_HEADER.size + 1] ^= 1
    read = read_area(ID, made)
    assert sequences(read) == [0]
    assert (read.damage is not None) == damaged


def test_what_is_left_of_an_earlier_epoch_says_nothing() -> None:
    """The area was begun anew; its old entries stand behind the new ones, and in front of none."""
    old = [entry(number, epoch=1) for number in range(5)]
    made = area(3, entry(0, epoch=3), entry(1, epoch=3), *old[2:])
    read = read_area(ID, made)
    assert (read.epoch, sequences(read), read.damage) == (3, [0, 1], None)
    made = area(3, *old)
    assert (read_area(ID, made).entries, read_area(ID, made).damage) == ([], None)


@pytest.mark.parametrize(("durable", "damaged"), [(0, False), (1, True)])
def test_a_lost_first_entry_of_a_new_epoch(durable: int, damaged: bool) -> None:
    """Header and first entry are lost: a second one that was written at the same time proves nothing, a later one does."""
    made = area(1, entry(0, epoch=3), entry(1, epoch=3, durable=durable))
    made[BLOCK + 3] ^= 1
    assert (read_area(ID, made).damage is not None) == damaged


def test_a_first_entry_whose_header_was_lost_counts() -> None:
    read = read_area(ID, area(1, entry(0, epoch=3), entry(1, epoch=3), entry(2, epoch=1)))
    assert (read.epoch, sequences(read), read.damage) == (3, [0, 1], None)
    # one that is not the first, or of an earlier epoch, does not begin anything
    assert read_area(ID, area(1, entry(1, epoch=3, durable=0))).epoch == 1
    assert read_area(ID, area(3, entry(0, epoch=1))).epoch == 3


@pytest.mark.parametrize(("preceding", "damaged"), [(1, False), (2, False), (3, True)])
@pytest.mark.parametrize("turned", [False, True])
def test_the_next_area_tells_how_many_entries_there_were(preceding: int, damaged: bool, turned: bool) -> None:
    areas = [area(3, entry(0, epoch=3), entry(1, epoch=3)), area(4, entry(0, epoch=4), preceding=preceding)]
    earlier, later = read_areas(ID, areas[::-1] if turned else areas)
    assert (earlier.epoch, later.epoch, later.damage) == (3, 4, None)
    assert (earlier.damage is not None) == damaged


def test_an_area_of_two_epochs_before_is_not_counted() -> None:
    earlier, _ = read_areas(ID, [area(3), area(6, preceding=3)])
    assert earlier.damage is None


@pytest.mark.parametrize("blocks", [0, 1])
def test_an_entry_may_end_with_the_area(blocks: int) -> None:
    raw = entry(0)
    made = area(1, raw, size=(2 + blocks) * BLOCK)
    assert sequences(read_area(ID, made)) == [0]
    assert sequences(read_area(ID, made[: BLOCK + entry_size([write(0, 128)])])) == [0]
    assert read_area(ID, made[: BLOCK + entry_size([write(0, 128)]) - 1]).entries == []


@pytest.mark.parametrize("count", [0, 1, 4095, 4096, 4097])
def test_padding(count: int) -> None:
    assert padded(count) % BLOCK == 0
    assert 0 <= padded(count) - count < BLOCK
