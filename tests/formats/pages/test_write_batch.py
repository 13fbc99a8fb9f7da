"""Write batches: the layout byte for byte, the round trip of every edit, and bytes that are none."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.settings import properties
from waltzctl.formats.pages.write_batch import (
    BATCH_VERSION,
    DELETE_EDIT,
    ENTRY_SCHEMA,
    EXTERNAL,
    EXTERNAL_EDIT,
    PUT_EDIT,
    REF_EDIT,
    WITH_ENTRY,
    WITH_ORIGIN,
    BatchError,
    Edit,
    EditType,
    FieldEntry,
    PageEntry,
    PageId,
    Version,
    decode_batch,
    encode_batch,
    encode_edit,
)

LONG = st.integers(0, 2**64 - 1)
IDS = st.builds(PageId, LONG, LONG)
VERSIONS = st.builds(Version, LONG, LONG)
FIELDS = st.lists(st.builds(FieldEntry, LONG, LONG), max_size=4).map(tuple)
ENTRIES = st.builds(PageEntry, st.integers(0, 2**32 - 1), LONG, LONG, LONG, LONG, FIELDS)


@st.composite
def edits(draw: st.DrawFn) -> Edit:
    kind = draw(st.sampled_from(EditType))
    entry = draw(ENTRIES) if kind in WITH_ENTRY else None
    origin = draw(IDS) if kind in WITH_ORIGIN else None
    counted = kind in WITH_ENTRY | EXTERNAL
    references = draw(st.integers(-(2**63), 2**63 - 1)) if counted else 1
    return Edit(kind, draw(IDS), draw(VERSIONS), entry, origin, references)


def test_sizes_are_those_of_the_document_read_soundly() -> None:
    assert (PUT_EDIT.size, ENTRY_SCHEMA.sizeof(), REF_EDIT.size) == (42 + 44, 44, 49)
    assert (EXTERNAL_EDIT.size, DELETE_EDIT.size) == (41, 33)
    assert PUT_EDIT.offset_of("entry") == 336 // 8
    assert REF_EDIT.offset_of("origin") * 8 == 136
    assert REF_EDIT.offset_of("version") * 8 == 264
    assert EXTERNAL_EDIT.offset_of("references") * 8 == 264


def test_the_bytes_of_each_edit() -> None:
    page, version = PageId(7, 5), Version(9, 2)
    where = struct.pack("<QQQQ", 5, 7, 9, 2)
    entry = PageEntry(3, 10, 20, 30, 40, (FieldEntry(0, 50), FieldEntry(8, 60)))
    fields = struct.pack("<QQQQ", 0, 50, 8, 60)
    assert encode_edit(Edit(EditType.PUT, page, version, entry)) == (
        b"\0\0" + where + struct.pack("<qIQQQQQ", 1, 3, 10, 20, 30, 40, 2) + fields
    )
    origin = struct.pack("<QQ", 1, 2)
    ref = Edit(EditType.REF, page, version, origin=PageId(2, 1))
    assert encode_edit(ref) == b"\2" + where[:16] + origin + where[16:]
    assert encode_edit(Edit(EditType.PUT_EXTERNAL, page, version)) == b"\1" + where + struct.pack("<q", 1)
    assert encode_edit(Edit(EditType.DELETE, page, version)) == b"\3" + where
    assert encode_batch([]) == struct.pack("<I", BATCH_VERSION) == b"\1\0\1\0"


@pytest.mark.turns(10)
@properties
@given(st.lists(edits(), max_size=6))
def test_round_trip_of_every_edit(batch: list[Edit]) -> None:
    assert decode_batch(encode_batch(batch)) == batch


@properties
@given(st.lists(edits(), min_size=1, max_size=3), st.data())
def test_a_cut_batch_is_refused_or_shorter_by_whole_edits(batch: list[Edit], data: st.DataObject) -> None:
    raw = encode_batch(batch)
    size = data.draw(st.integers(0, len(raw) - 1))
    try:
        assert decode_batch(raw[:size]) == batch[: len(decode_batch(raw[:size]))]
    except BatchError:
        return
    assert size in {len(encode_batch(batch[:n])) for n in range(len(batch))}


@properties
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for raw in (data, struct.pack("<I", BATCH_VERSION) + data):
        try:
            decode_batch(raw)
        except BatchError:
            continue


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"\1\0", "no version"),
        (struct.pack("<I", 1), "version 1, which released programs write"),
        (struct.pack("<I", 2), "version 2, which released programs write"),
        (struct.pack("<I", 7 << 16), "only 0x10001 is known"),
        (struct.pack("<I", BATCH_VERSION) + b"\x0a", "type 10 at byte 4"),
        (struct.pack("<I", BATCH_VERSION) + b"\x03", "needs 33 bytes, 1 are left"),
        (
            encode_batch([Edit(EditType.PUT, PageId(0, 1), Version(1), PageEntry(1, 0, 1, 1))])[:-8] + b"\xff" * 8,
            "more than the write batch has bytes",
        ),
    ],
)
def test_what_is_no_batch_is_said(raw: bytes, why: str) -> None:
    with pytest.raises(BatchError, match=why):
        decode_batch(raw)
