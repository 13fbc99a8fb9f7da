"""Wire to disk and back: interpreted, compiled in every way, and an independent oracle tell the same about any bytes."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.scan.wire_oracle import (
    MAGIC,
    append_streams,
    changed,
    disk_form,
    expected_encode,
    wire_records,
)
from tests.scan.wire_support import WAYS, in_every_form, use
from waltzctl.engine.scan.frames import FrameColumn, FrameSplitter
from waltzctl.engine.scan.transcode import (
    AppendEncoder,
    EncodedAppends,
    FrameVerdict,
    TranscodeError,
    headers_to_wire,
    list_form,
    room_for,
    to_wire,
)
from waltzctl.engine.scan.wire_layout import APPEND_LEAST, COLUMNS
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import RecordHeader
from waltzctl.formats.wire.primitives import Limits, MessageError
from waltzctl.formats.wire.records import WireRecord, pack_record_headers, pack_records
from waltzctl.formats.wire.storage import AppendRequest, decode, encode

properties = settings(
    max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
_WORD = st.one_of(st.integers(-3, 300), st.integers(-(2**63), 2**63 - 1), st.sampled_from([2**31, 2**32, 2**62]))


@pytest.fixture(params=WAYS, scope="module")
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        use(patch, request.param)
        yield request.param


def table_of(raw: bytes) -> np.ndarray:
    return FrameSplitter(magic=MAGIC, max_body=1 << 24).split(raw, 0, len(raw), 0).table


def told(found: EncodedAppends) -> tuple[object, ...]:
    block = found.block
    assert len(block.offsets) == block.records + 1
    parts = [bytes(block.data[a:b]) for a, b in zip(block.offsets[:-1], block.offsets[1:], strict=True)]
    assert b"".join(parts) == bytes(block.data)
    return found.frames, found.verdict, found.found_transaction_id, parts


@pytest.mark.turns(10)
@given(st.data())
@properties
def test_right_appends_become_the_records_that_formats_makes(data: st.DataObject) -> None:
    raw, first, records = data.draw(append_streams())
    table = table_of(raw)

    def check() -> None:
        found = AppendEncoder(max_data_length=70000).encode(raw, table, first)
        assert told(found) == (len(table), FrameVerdict.DONE, -1, [disk_form(record) for record in records])
        assert found.block.first_transaction_id == first
        assert found.block.next_transaction_id == first + len(records)

    in_every_form(check)


@pytest.mark.turns(10)
@given(st.data())
@properties
def test_changed_appends_are_judged_as_the_oracle_judges_them(data: st.DataObject) -> None:
    raw, first, _ = data.draw(append_streams())
    raw = data.draw(changed(raw))
    table = table_of(raw)
    table = table[table[:, FrameColumn.TYPE] == AppendRequest.TYPE]
    first += data.draw(st.sampled_from([0, 0, 0, 1, -1]))
    bound = data.draw(st.sampled_from([70000, 4096, 100, 0]))
    wanted = expected_encode(raw, table.tolist(), first, bound)

    def check() -> None:
        found = AppendEncoder(max_data_length=bound).encode(raw, table, first)
        assert told(found) == (wanted.frames, wanted.verdict, wanted.found, wanted.records)

    in_every_form(check)


@pytest.mark.turns(10)
@given(st.data())
@properties
def test_malformed_means_what_the_codec_calls_corrupted(data: st.DataObject) -> None:
    """Every frame alone: the codec of the protocol refuses a body exactly when the encoder calls it malformed."""
    raw, _, _ = data.draw(append_streams())
    raw = data.draw(changed(raw))
    limits = Limits(max_records=2**31, max_data=2**31)

    def check() -> None:
        encoder = AppendEncoder(max_data_length=70000)
        for row in table_of(raw):
            if row[FrameColumn.TYPE] != AppendRequest.TYPE:
                continue
            body = raw[row[FrameColumn.BODY] : row[FrameColumn.BODY] + row[FrameColumn.LENGTH]]
            try:
                decode(body, limits=limits)
                refused = False
            except MessageError:
                refused = True
            assert (encoder.encode(raw, row[None, :], 0).verdict is FrameVerdict.MALFORMED) == refused

    in_every_form(check)


@pytest.mark.turns(10)
@given(st.data())
@properties
def test_a_hostile_table_reaches_nothing_outside_the_buffer(data: st.DataObject) -> None:
    """A table may say anything; what it says of another buffer is malformed, and nothing is read there."""
    raw, first, _ = data.draw(append_streams())
    table = table_of(raw).copy()
    for _ in range(data.draw(st.integers(1, 3))):
        if table.size:
            column = data.draw(st.sampled_from([FrameColumn.BODY, FrameColumn.LENGTH, FrameColumn.RECORDS]))
            table[data.draw(st.integers(0, len(table) - 1)), column] = data.draw(_WORD)
    wanted = expected_encode(raw, table.tolist(), first, 70000)

    def check() -> None:
        found = AppendEncoder(max_data_length=70000).encode(raw, table, first)
        assert told(found) == (wanted.frames, wanted.verdict, wanted.found, wanted.records)

    in_every_form(check)


def test_room_is_made_for_what_lengths_allow_and_not_for_what_counts_say(way: str) -> None:
    """A thousand requests of 26 bytes that claim 2^31 - 1 records each take no memory."""
    raw = encode(AppendRequest(7, 0, 3, ()))
    raw = (raw[: 7 + 21] + b"\x7f\xff\xff\xff" + raw[-1:]) * 1000
    table = FrameSplitter(magic=MAGIC, max_body=100).split(raw, 0, len(raw), 0).table
    assert (table[:, FrameColumn.RECORDS] == 2**31 - 1).all()
    for part in (table, table[:3]):
        found = AppendEncoder(max_data_length=10).encode(raw, part, 0)
        assert (found.frames, found.verdict) == (0, FrameVerdict.MALFORMED)
        assert found.block.data.nbytes == 0
        assert found.block.offsets.nbytes == 8


def test_a_table_of_another_shape_is_refused(way: str) -> None:
    encoder = AppendEncoder(max_data_length=10)
    for table in (np.zeros((1, 7), np.int64), np.zeros((1, COLUMNS), np.int32), np.zeros(COLUMNS, np.int64)):
        with pytest.raises(ValueError, match="a table has"):
            encoder.encode(b"", table, 0)
    for bound in (0, 2**31 - 1):
        assert AppendEncoder(max_data_length=bound).encode(b"", np.zeros((0, COLUMNS), np.int64), 0).frames == 0
    for bound in (-1, 2**31):
        with pytest.raises(ValueError, match="the longest data"):
            AppendEncoder(max_data_length=bound)


def test_a_table_of_every_other_row_will_do(way: str) -> None:
    made = [WireRecord.make(number, RequestId(1, 2, 3, 4), 5, b"abc") for number in (0, 9, 1, 9)]
    raw = b"".join(encode(AppendRequest(7, 0, 3, (one,))) for one in made)
    found = AppendEncoder(max_data_length=10).encode(raw, table_of(raw)[::2], 0)
    assert told(found) == (2, FrameVerdict.DONE, -1, [disk_form(made[0]), disk_form(made[2])])


@given(st.data())
@properties
def test_records_on_disk_become_those_of_a_list(data: st.DataObject) -> None:
    first = data.draw(st.sampled_from([0, 5, 2**63 - 20]))
    records = data.draw(wire_records(first))
    disk = b"".join(map(disk_form, records))

    def check() -> None:
        assert to_wire(disk, first, len(records)) == pack_records(records)
        headers = pack_record_headers(RecordHeader(r.transaction_id, r.request_id, r.header) for r in records)
        assert headers_to_wire(disk, first, len(records)) == headers
        most = data.draw(st.integers(0, len(records)))
        found = list_form(disk, first, most)
        assert (found.records, bytes(found.data), found.verdict) == (
            most,
            pack_records(records[:most]),
            FrameVerdict.DONE,
        )
        assert found.disk_bytes == sum(len(disk_form(record)) for record in records[:most])

    in_every_form(check)


@given(st.data())
@properties
def test_no_record_with_a_changed_bit_is_ever_listed(data: st.DataObject) -> None:
    """One bit of one record: what is in front of it is listed, and it is not; headers are as careful as records."""
    records = data.draw(wire_records(3).filter(len))
    parts = [disk_form(record) for record in records]
    bad = data.draw(st.integers(0, len(parts) - 1))
    bit = data.draw(st.integers(0, len(parts[bad]) * 8 - 1))
    raw = bytearray(parts[bad])
    raw[bit // 8] ^= 1 << bit % 8
    disk = b"".join([*parts[:bad], bytes(raw), *parts[bad + 1 :]])

    def check() -> None:
        for headers in (False, True):
            found = list_form(disk, 3, len(records), headers=headers)
            assert found.records == bad
            assert found.verdict is not FrameVerdict.DONE
            assert found.disk_bytes == sum(map(len, parts[:bad]))
            if not headers:
                assert bytes(found.data) == pack_records(records[:bad])
            with pytest.raises(TranscodeError) as caught:
                (headers_to_wire if headers else to_wire)(disk, 3, len(records))
            assert caught.value.transaction_id == 3 + bad

    in_every_form(check)


def test_what_is_wrong_with_a_record_is_told(way: str) -> None:
    record = WireRecord.make(5, RequestId(1, 2, 3, 4), 6, b"data")
    disk = disk_form(record)
    stale = disk_form(WireRecord(5, RequestId(1, 2, 3, 4), 6, b"data", 0))
    assert disk == stale
    wrong_data = bytearray(disk)
    wrong_data[32] ^= 1  # the data's own checksum, with a record checksum that agrees
    wrong_data[-4:] = _crc(bytes(wrong_data[:-4]))
    for raw, first, verdict in (
        (disk, 4, FrameVerdict.ORDER),
        (disk[:-1], 5, FrameVerdict.MALFORMED),
        (disk[:28] + b"\xff" * 4 + disk[32:], 5, FrameVerdict.MALFORMED),
        (disk[:-1] + b"\0", 5, FrameVerdict.RECORD_CHECKSUM),
        (bytes(wrong_data), 5, FrameVerdict.DATA_CHECKSUM),
        (b"", 5, FrameVerdict.MALFORMED),
    ):
        assert list_form(raw, first, 1).verdict is verdict
    assert list_form(disk, 5, 1, max_data_length=3).verdict is FrameVerdict.TOO_LONG
    assert list_form(disk, 5, 1, max_data_length=4).verdict is FrameVerdict.DONE
    with pytest.raises(TranscodeError, match="transaction 6: malformed"):
        to_wire(disk + b"\0", 5, 1)
    with pytest.raises(ValueError, match="-1 records"):
        list_form(disk, 5, -1)


def _crc(data: bytes) -> bytes:
    import zlib

    return zlib.crc32(data).to_bytes(4)


def test_one_encoder_serves_many_threads_at_once(way: str) -> None:
    """Each call has its own state and its own memory."""
    encoder = AppendEncoder(max_data_length=5000)
    failures: list[object] = []

    def work(seed: int) -> None:
        records = tuple(WireRecord.make(n, RequestId(seed, n, 3, 4), n, bytes([seed]) * (n % 4000)) for n in range(40))
        raw = encode(AppendRequest(seed, 0, 3, records))
        wanted = b"".join(map(disk_form, records))
        for _ in range(20 if way == "interpreted" else 200):
            found = encoder.encode(raw, table_of(raw), 0)
            if bytes(found.block.data) != wanted:
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@properties
@given(st.lists(st.tuples(st.integers(-5, 300), st.integers(-2, 12)), max_size=40), st.integers(0, 250))
def test_room_is_made_for_no_more_than_the_lengths_allow(rows: list[tuple[int, int]], size: int) -> None:
    table = np.zeros((len(rows), COLUMNS), np.int64)
    for row, (length, records) in zip(table, rows, strict=True):
        row[FrameColumn.LENGTH], row[FrameColumn.RECORDS] = length, records
    lefts = [min(max(length - APPEND_LEAST, 0), size) for length, _ in rows]
    records = sum(max(min(most, left // 36), 0) for left, (_, most) in zip(lefts, rows, strict=True))
    assert room_for(table, size) == (records, sum(lefts) + records * 4)


def test_a_record_whose_head_is_not_all_there_is_not_looked_at(way: str) -> None:
    """The first record's data reaches to the end of the request, and another one is announced."""
    record = WireRecord.make(0, RequestId(1, 2, 3, 4), 5, bytes(60))
    raw = bytearray(encode(AppendRequest(7, 1, 3, (record, record), False)))
    for cut in range(1, 89):
        short = bytearray(raw[: len(raw) - cut])
        table = table_of(bytes(raw)).copy()
        table[0, FrameColumn.LENGTH] -= cut
        found = AppendEncoder(max_data_length=100).encode(bytes(short), table, 0)
        assert told(found) == (0, FrameVerdict.MALFORMED, -1, []), cut


@pytest.mark.parametrize("length", [-1, -2, -35, -36, -37, -100])
def test_a_record_of_negative_length_is_malformed_where_another_one_makes_up_for_it(way: str, length: int) -> None:
    """The lengths of both lead to the very end of the request."""
    records = [WireRecord.make(number, RequestId(1, 2, 3, 4), 5, bytes(200)) for number in (0, 1)]
    raw = bytearray(encode(AppendRequest(7, 1, 3, tuple(records), False)))
    table = table_of(bytes(raw))
    first = int(table[0, FrameColumn.BODY]) + 25
    raw[first + 28 : first + 32] = length.to_bytes(4, signed=True)
    second = first + 36 + length
    rest = len(raw) - 1 - second - 36
    raw[second + 28 : second + 32] = rest.to_bytes(4)
    found = AppendEncoder(max_data_length=1000).encode(bytes(raw), table, 0)
    assert told(found) == (0, FrameVerdict.MALFORMED, -1, [])


@pytest.mark.parametrize("count", [-(2**31), -2, -1, 1, 2**31 - 1])
def test_an_append_without_records_claims_none(way: str, count: int) -> None:
    """Neither in front of others nor behind them."""
    right = encode(AppendRequest(7, 1, 3, (), True))
    one = encode(AppendRequest(7, 1, 3, (WireRecord.make(0, RequestId(1, 2, 3, 4), 5, b"abc"),)))
    wrong = right[:28] + count.to_bytes(4, signed=True) + right[32:]
    encoder = AppendEncoder(max_data_length=100)
    for raw, frames in ((wrong, 0), (wrong + one, 0), (one + wrong, 1), (one + right + wrong + one, 2)):
        found = encoder.encode(raw, table_of(raw), 0)
        assert (found.frames, found.verdict, found.block.records) == (frames, FrameVerdict.MALFORMED, min(frames, 1))
    assert encoder.encode(right + one + right, table_of(right + one + right), 0).frames == 3
