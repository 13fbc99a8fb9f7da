"""Random damage: whatever happens to a segment, a scan ends, covers every byte once, and delivers nothing but right records."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scan.oracle import Segment, assert_tiles, parse, rows_of, segment_of, split
from waltzctl.engine.scan.byte_source import BytesSource
from waltzctl.engine.scan.carve import carve_records
from waltzctl.engine.scan.scanner import scan_records, summarise_records
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import HEADER_SIZE, Record

MUTATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("change"), st.integers(0, 2**20), st.binary(min_size=1, max_size=60)),
        st.tuples(st.just("insert"), st.integers(0, 2**20), st.binary(min_size=1, max_size=60)),
        st.tuples(st.just("cut"), st.integers(0, 2**20), st.integers(1, 500)),
        st.tuples(st.just("truncate"), st.integers(0, 2**20), st.none()),
        st.tuples(st.just("zero"), st.integers(0, 2**20), st.sampled_from([1, 8, 64, 512])),
        st.tuples(st.just("copy"), st.integers(0, 2**20), st.integers(0, 2**20)),
        st.tuples(st.just("length"), st.integers(0, 2**20), st.integers(-(2**31), 2**31 - 1) | st.integers(-50, 500)),
    ),
    min_size=1,
    max_size=4,
)

SEGMENTS = st.builds(
    lambda sizes, first, seed: make(sizes, first, seed),
    st.lists(st.sampled_from([0, 1, 3, 30, 100, 400]), min_size=1, max_size=25),
    st.sampled_from([0, 1, 1000, 2**40]),
    st.integers(0, 100),
)


def make(sizes: list[int], first: int, seed: int) -> Segment:
    source = random.Random(seed)
    contents = [source.randbytes(size) if seed % 2 else bytes(size) for size in sizes]
    return segment_of([Record.make(first + n, RequestId(1, 2, 3, n), n, content) for n, content in enumerate(contents)])


def mutate(made: Segment, mutations: list[tuple[str, int, object]]) -> bytes:
    data = bytearray(made.data)
    for kind, where, what in mutations:
        place = HEADER_SIZE + where % max(len(data) - HEADER_SIZE, 1)
        if kind == "change" and isinstance(what, bytes):
            data[place : place + len(what)] = what[: len(data) - place]
        elif kind == "insert" and isinstance(what, bytes):
            data[place:place] = what
        elif kind == "cut" and isinstance(what, int):
            del data[place : place + what]
        elif kind == "truncate":
            del data[place:]
        elif kind == "zero" and isinstance(what, int):
            data[place : place + what] = bytes(len(data[place : place + what]))
        elif kind == "copy" and isinstance(what, int):
            source = HEADER_SIZE + what % max(len(data) - HEADER_SIZE, 1)
            piece = bytes(data[source : source + 200])
            data[place : place + len(piece)] = piece[: len(data) - place]
        elif kind == "length" and isinstance(what, int):
            start = made.offsets[where % len(made.offsets)] + 28
            if start + 4 <= len(data):
                data[start : start + 4] = what.to_bytes(4, signed=True)
    return bytes(data)


@pytest.mark.turns(10)
@settings(max_examples=120)
@given(made=SEGMENTS, mutations=MUTATIONS, with_index=st.booleans(), compiled=st.booleans())
def test_random_damage(
    made: Segment, mutations: list[tuple[str, int, object]], with_index: bool, compiled: bool
) -> None:
    data = mutate(made, mutations)
    index = BytesSource(made.index) if with_index else None
    items = list(
        scan_records(BytesSource(data), first_transaction_id=made.first, index=index, data=True, compiled=compiled)
    )
    assert_tiles(items, HEADER_SIZE, max(len(data), HEADER_SIZE))
    rows, damages = split(items)
    for row in rows:
        assert row == parse(data, row[0])
    assert [row[1] for row in rows] == sorted({row[1] for row in rows})
    runs = list(
        summarise_records(BytesSource(data), first_transaction_id=made.first, index=index, compiled=not compiled)
    )
    assert [item for item in runs if item in damages] == damages


@settings(max_examples=120)
@given(
    made=SEGMENTS,
    changes=st.lists(st.tuples(st.integers(0, 2**20), st.binary(min_size=1, max_size=8)), min_size=1, max_size=3),
    with_index=st.booleans(),
)
def test_changed_bytes_cost_only_what_they_touch(
    made: Segment, changes: list[tuple[int, bytes]], with_index: bool
) -> None:
    """Bytes changed in place: every record that no change touched is delivered, and no other is.

    The exception: a record that looks torn, with more damage behind it, so that neither its checksums nor a chain to the
    end can prove that it is not.
    """
    data = mutate(made, [("change", place, content) for place, content in changes])
    index = BytesSource(made.index) if with_index else None
    rows, _ = split(scan_records(BytesSource(data), first_transaction_id=made.first, index=index))
    spans = [made.span(number) for number in range(len(made.records))]
    intact = [number for number, span in enumerate(spans) if data[slice(*span)] == made.data[slice(*span)]]
    found = [row[1] - made.first for row in rows]
    if found != intact:
        assert not with_index
        torn = next(number for number in range(len(spans)) if number not in found)
        start = spans[torn][0]
        length = int.from_bytes(data[start + 28 : start + 32], signed=True)
        assert data[start : start + 8] == made.data[start : start + 8]
        assert start + 40 + length > len(data)
        assert len(made.records) - 1 not in intact
        assert found == [number for number in intact if number < torn]


@settings(max_examples=60)
@given(data=st.binary(max_size=2000), first=st.integers(-(2**63), 2**63 - 1))
def test_bytes_of_any_kind(data: bytes, first: int) -> None:
    for start in (0, 128):
        items = list(scan_records(BytesSource(data), first_transaction_id=first, start=start, index=BytesSource(data)))
        assert_tiles(items, start, max(len(data), start))


@settings(max_examples=60)
@given(made=SEGMENTS, mutations=MUTATIONS)
def test_carving_finds_every_record_that_a_scan_finds(made: Segment, mutations: list[tuple[str, int, object]]) -> None:
    data = mutate(made, mutations)
    found = {row for batch in carve_records(BytesSource(data)) for row in rows_of(batch)}
    for row in found:
        assert row == parse(data, row[0])
    covered = [(row[0], row[0] + 40 + row[5]) for row in sorted(found)]
    assert all(before[1] <= behind[0] for before, behind in pairwise(covered))
    rows, _ = split(scan_records(BytesSource(data), first_transaction_id=made.first))
    for row in rows:
        assert row in found or any(start < row[0] < end for start, end in covered)
