"""Splitting a buffer gives the same frames interpreted, compiled in every way, and by an independent oracle."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.scan.wire_oracle import MAGIC, changed, expected_split, mixed_streams
from tests.scan.wire_support import WAYS, in_every_form, use
from waltzctl.engine.scan.frames import FrameColumn, FrameSplitter, SplitStatus
from waltzctl.formats.wire.frame import FrameError, FrameReader, keep_alive
from waltzctl.formats.wire.storage import AppendRequest, MaxTransactionIdRequest, encode

properties = settings(
    max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture(params=WAYS, scope="module")
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        use(patch, request.param)
        yield request.param


@pytest.mark.turns(10)
@given(st.data())
@properties
def test_a_buffer_is_split_as_the_oracle_splits_it(data: st.DataObject) -> None:
    raw = data.draw(mixed_streams().flatmap(changed))
    start = data.draw(st.integers(0, min(20, len(raw))))
    end = data.draw(st.integers(start, len(raw)))
    rows, max_body = data.draw(st.sampled_from([1, 2, 64])), data.draw(st.sampled_from([20, 60, 200, 1 << 20]))

    def check() -> None:
        splitter = FrameSplitter(magic=MAGIC, max_body=max_body, rows=rows)
        for begin in (0, start):
            for stop in (end, len(raw)):
                found = splitter.split(raw, begin, stop, 0)
                wanted = expected_split(raw, begin, stop, version=0, max_body=max_body, rows=rows)
                assert (found.table.tolist(), found.consumed, found.status, found.needed) == wanted

    in_every_form(check)


@pytest.mark.turns(10)
@given(st.data())
@properties
def test_bytes_behind_the_end_are_not_looked_at(data: st.DataObject) -> None:
    """Whatever stands behind what has arrived, or in front of it, changes nothing."""
    raw = data.draw(mixed_streams())
    end = data.draw(st.integers(0, len(raw)))

    def check() -> None:
        splitter = FrameSplitter(magic=MAGIC, max_body=1 << 20)
        alone = splitter.split(raw[:end], 0, end, 0)
        for rest in (b"", b"\xff" * 40, raw[end:]):
            among = splitter.split(b"\xff" * 5 + raw[:end] + rest, 5, end + 5, 0)
            table = among.table.copy()
            table[:, FrameColumn.BODY] -= 5
            assert (table.tolist(), among.consumed - 5, among.status, among.needed) == (
                alone.table.tolist(),
                alone.consumed,
                alone.status,
                alone.needed,
            )

    in_every_form(check)


@pytest.mark.turns(10)
@given(st.data())
@properties
def test_frames_are_those_of_the_careful_reader(data: st.DataObject) -> None:
    """`formats.wire.frame.FrameReader` delivers the same bodies, and refuses where the splitter stops for good."""
    raw = data.draw(mixed_streams().flatmap(changed))
    reader, bodies, refused = FrameReader(1000), [], False
    reader.feed(raw)
    try:
        while (body := reader.next(MAGIC, 0)) is not None:
            bodies.append(bytes(body))
    except FrameError:
        refused = True

    def check() -> None:
        found = FrameSplitter(magic=MAGIC, max_body=1000).split(raw, 0, len(raw), 0)
        cut = [raw[body : body + length] for body, length in found.table[:, :2].tolist()]
        if found.status is SplitStatus.SHORT:  # which the reader leaves to the decoder of the message
            assert cut == bodies[: len(cut)]
        else:
            assert cut == bodies
            assert refused == (found.status is not SplitStatus.MORE)

    in_every_form(check)


def test_what_every_column_says(way: str) -> None:
    frame = encode(AppendRequest(-2, 2**62, -7, (), True))
    other = encode(MaxTransactionIdRequest(9, 1, 3, True))
    found = FrameSplitter(magic=MAGIC, max_body=100).split(frame + other, 0, len(frame + other), 0)
    assert found.table.dtype == np.int64
    assert found.table.tolist() == [
        [7, len(frame) - 7, 6, -2, 2**62, -7, 0, 1],
        [len(frame) + 7, len(other) - 7, 13, 9, 1, 3, 0, 0],
    ]
    assert (found.consumed, found.status, found.needed) == (len(frame + other), SplitStatus.MORE, 0)


def test_the_version_and_magic_are_those_that_were_agreed_on(way: str) -> None:
    splitter = FrameSplitter(magic=0x41, max_body=100)
    assert splitter.split(keep_alive(0x41, 1), 0, 7, 1).consumed == 7
    assert splitter.split(keep_alive(0x41, 0), 0, 7, 1).status is SplitStatus.VERSION
    assert splitter.split(keep_alive(0x53, 1), 0, 7, 1).status is SplitStatus.MAGIC
    assert splitter.split(keep_alive(0x41, -3), 0, 7, -3).consumed == 7


def test_splits_do_not_share_a_table(way: str) -> None:
    frame = encode(MaxTransactionIdRequest(9, 1, 3))
    splitter = FrameSplitter(magic=MAGIC, max_body=100)
    first = splitter.split(frame, 0, len(frame), 0)
    splitter.split(encode(MaxTransactionIdRequest(10, 2, 4)), 0, len(frame), 0)
    assert first.table[0, FrameColumn.SESSION] == 9


def test_a_range_outside_the_buffer_is_refused(way: str) -> None:
    splitter = FrameSplitter(magic=MAGIC, max_body=100)
    for start, end in ((0, 8), (-1, 3), (3, 2), (8, 8)):
        with pytest.raises(ValueError, match="of a buffer of 7"):
            splitter.split(bytes(7), start, end, 0)
    for arguments in ({"max_body": -1}, {"max_body": 2**31}, {"max_body": 1, "rows": 0}):
        with pytest.raises(ValueError, match="a splitter of"):
            FrameSplitter(magic=MAGIC, **arguments)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_will_do(way: str, kind: type) -> None:
    frame = encode(MaxTransactionIdRequest(9, 1, 3))
    assert len(FrameSplitter(magic=MAGIC, max_body=100).split(kind(frame), 0, len(frame), 0).table) == 1
    assert FrameSplitter(magic=MAGIC, max_body=100).split(kind(b""), 0, 0, 0).status is SplitStatus.MORE


@pytest.mark.parametrize(
    ("rows", "max_body", "right"),
    [
        (1, 0, True),
        (0, 0, False),
        (-1, 100, False),
        (1, -1, False),
        (1, 2**31 - 1, True),
        (1, 2**31, False),
        (0, 2**31, False),
    ],
)
def test_a_splitter_has_a_row_and_takes_bodies_that_a_frame_can_have(rows: int, max_body: int, *, right: bool) -> None:
    if right:
        splitter = FrameSplitter(magic=MAGIC, max_body=max_body, rows=rows, compiled=False)
        assert splitter.split(keep_alive(MAGIC, 0), 0, 7, 0)[1:] == (7, SplitStatus.MORE, 0)
    else:
        with pytest.raises(ValueError, match=f"^a splitter of {rows} rows for bodies of up to {max_body} bytes$"):
            FrameSplitter(magic=MAGIC, max_body=max_body, rows=rows, compiled=False)


@pytest.mark.parametrize(
    ("start", "end", "right"),
    [
        (0, 0, True),
        (0, 14, True),
        (7, 14, True),
        (14, 14, True),
        (-1, 14, False),
        (8, 7, False),
        (0, 15, False),
        (15, 15, False),
    ],
)
def test_what_is_split_lies_in_the_buffer(start: int, end: int, *, right: bool) -> None:
    splitter, buffer = FrameSplitter(magic=MAGIC, max_body=9, compiled=False), keep_alive(MAGIC, 0) * 2
    if right:
        assert splitter.split(buffer, start, end, 0).consumed == end
    else:
        with pytest.raises(ValueError, match=f"^bytes {start} to {end} of a buffer of 14$"):
            splitter.split(buffer, start, end, 0)


@pytest.mark.parametrize("count", [1023, 1024, 1025])
def test_a_thousand_frames_are_split_at_a_time(count: int) -> None:
    frame = encode(MaxTransactionIdRequest(9, 1, -3, True))
    found = FrameSplitter(magic=MAGIC, max_body=100, compiled=False).split(frame * count, 0, len(frame) * count, 0)
    assert len(found.table) == min(count, 1024)
    assert found.status is (SplitStatus.MORE if count < 1024 else SplitStatus.FULL)
