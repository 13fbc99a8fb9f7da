"""append's input: what a line means, and that a bad one is named."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import pty
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzctl.formats.checksums import crc32
from waltzctl.intake import BadLineError, Entry, EntryStream, bare_entries, json_entries


def read_json(*lines: object) -> list[Entry]:
    return list(json_entries(io.BytesIO(b"".join(json.dumps(line).encode() + b"\n" for line in lines))))


@pytest.mark.turns(10)
@given(st.lists(st.binary().map(lambda data: data.replace(b"\n", b""))))
def test_every_bare_line_is_one_record(lines: list[bytes]) -> None:
    entries = list(bare_entries(io.BytesIO(b"".join(line + b"\n" for line in lines))))
    assert [entry.data for entry in entries] == lines
    assert [entry.line for entry in entries] == list(range(1, len(lines) + 1))


def test_a_last_line_without_end_counts() -> None:
    assert [entry.data for entry in bare_entries(io.BytesIO(b"a\r\n\nb"))] == [b"a\r", b"", b"b"]


def test_a_terminal_is_not_read_behind_its_end() -> None:
    """A last line without end, and Ctrl-D twice: asked once more, a terminal waits for what is typed next."""
    ours, terminal = pty.openpty()
    os.write(ours, b"a\nb\x04\x04more\n\x04")
    with open(terminal, "rb") as stream:
        assert [entry.data for entry in bare_entries(stream)] == [b"a", b"b"]
    os.close(ours)


@given(st.binary())
def test_base64_and_hex_data_arrive_as_they_were(data: bytes) -> None:
    found = read_json({"data_b64": base64.b64encode(data).decode()}, {"data_hex": data.hex()})
    assert [entry.data for entry in found] == [data, data]


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_a_string_is_utf8_text(text: str) -> None:
    assert read_json({"data": text})[0].data == text.encode()


def test_any_other_value_is_compact_json() -> None:
    assert [entry.data for entry in read_json({"data": {"a": [1, None]}}, {"data": 7})] == [b'{"a":[1,null]}', b"7"]


@pytest.mark.parametrize(
    "text",
    [
        "0.10000000000000000555",
        "-0.0",
        "1E5",
        "1.50",
        "1.7976931348623157e308",
        "-1.7976931348623158e+308",
        "1e-400",
        '{"a":[1.10,{"b":2.20}],"c":"3.30","\\u00e9":null,"d":true}',
        "[]",
        "{}",
        "[[],{}]",
        "12345678901234567890",
        "-0",
        "[-0,0,-1,-0.0]",
    ],
)
def test_numbers_arrive_digit_for_digit(text: str) -> None:
    assert [one.data for one in json_entries(io.BytesIO(b'{"data": ' + text.encode() + b"}"))] == [text.encode()]


@pytest.mark.parametrize("text", ["1e400", "-1e400", '[1, {"a": 1e309}]', "1.7976931348623159e308"])
def test_a_number_that_would_be_read_as_infinite_is_refused(text: str) -> None:
    with pytest.raises(
        BadLineError, match=r"input line 1: -?1[0-9.]*e[0-9]+ is larger than the numbers that programs read"
    ):
        list(json_entries(io.BytesIO(b'{"data": ' + text.encode() + b"}")))


@pytest.mark.parametrize(
    ("line", "key"),
    [('{"data":{"a":1,"b":[],"a":1}}', "a"), ('{"data":1,"data":2}', "data"), ('{"data":[{"":1,"":2}]}', "")],
)
def test_a_key_that_stands_twice_is_refused_since_one_value_would_be_lost(line: str, key: str) -> None:
    with pytest.raises(BadLineError, match=f"input line 1: the key '{key}' stands twice in an object"):
        list(json_entries(io.BytesIO(line.encode())))


def test_nesting_is_no_matter_of_numbers() -> None:
    for begin, end in (("[", "]"), ('{"a":', "}")):
        text = begin * 600 + "1.50" + end * 600
        assert [one.data for one in json_entries(io.BytesIO(f'{{"data":{text}}}'.encode()))] == [text.encode()]


@pytest.mark.turns(10)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ).filter(lambda value: not isinstance(value, str))
)
def test_whatever_json_is_given_arrives_compact(value: object) -> None:
    assert [one.data for one in read_json({"data": value})] == [json.dumps(value, separators=(",", ":")).encode()]


def test_header_and_request_id() -> None:
    request = {"client": -1, "generation": 2, "partition": 3, "sequence": 4}
    (entry,) = read_json({"data": "", "header": -5, "request_id": request})
    assert (entry.header, entry.request_id) == (-5, (-1, 2, 3, 4))


def test_a_dumped_record_is_understood() -> None:
    dumped = {"schema": "waltzctl.record/1", "type": "record", "partition": 1, "segment": 0, "transaction_id": 9, "offset": 128,
              "size": 43, "header": 5, "data_length": 3, "data_checksum": f"{crc32(b'abc'):08x}", "record_checksum": "00000000",
              "data_b64": "YWJj"}  # fmt: skip
    (entry,) = read_json(dumped)
    assert (entry.data, entry.header) == (b"abc", 5)


def test_blank_lines_are_passed_over_and_counted() -> None:
    entries = list(json_entries(io.BytesIO(b'\n{"data":"a"}\n  \n{"data":"b"}')))
    assert [(entry.line, entry.data) for entry in entries] == [(2, b"a"), (4, b"b")]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"\xff", "not UTF-8: byte 0"),
        (b"[" * 100_000, "not JSON"),
        (b"{}", "one of data"),
        (b'{"data":"a","data_b64":"YQ=="}', "both data and data_b64"),
        (b'{"data":NaN}', "NaN is no JSON number"),
        (b'{"data_b64":"Y"}', "data_b64"),
        (b'{"data_b64":"Y Q=="}', "data_b64"),
        (b'{"data_b64":7}', "not a string"),
        (b'{"data_hex":"abc"}', "data_hex"),
        (b'{"data":"a","header":2147483648}', "header is not a signed 32-bit"),
        (b'{"data":"a","header":true}', "header is not a signed 32-bit"),
        (b'{"data":"a","header":1.0}', "header is not a signed 32-bit"),
        (b'{"data":"a","data_checksum":1.5}', "data_checksum"),
        (b'{"data_b64":1.5}', "not a string"),
        (b'{"type":1.50,"data":"a"}', "the object is a 1.50, not a record"),
        (b'{"data":"a","request_id":{"client":1}}', "request_id"),
        (b'{"data":"a","request_id":[1,2,3,4]}', "request_id"),
        (b'{"data":"a","haeder":1}', "unknown key 'haeder'"),
        (b'{"data":"a","data_checksum":"00000000"}', "data_checksum"),
        (b'{"data":"\\ud800"}', "lone surrogate"),
        (b'{"type":"finding","data":"a"}', "'finding', not a record"),
    ],
)
def test_a_line_that_is_no_record_is_named(line: bytes, why: str) -> None:
    with pytest.raises(BadLineError, match=why) as caught:
        list(json_entries(io.BytesIO(b'{"data":""}\n' + line + b"\n")))
    assert caught.value.line == 2
    assert "input line 2" in str(caught.value)


BOUND = EntryStream._AHEAD_BYTES


@pytest.mark.parametrize(
    ("size", "ahead"),
    [(0, 4096), (BOUND // 2, 2), (BOUND // 2 + 1, 1), (BOUND, 1), (BOUND + 1, 1)],
)
def test_the_input_is_read_ahead_by_so_many_records_and_bytes(size: int, ahead: int) -> None:
    data, pulled, most = bytes(size), 0, 0

    async def read() -> list[int]:
        def entries() -> Iterator[Entry]:
            nonlocal pulled, most
            for number in range(ahead + 10):
                most = max(most, len(stream._read))
                pulled += 1
                yield Entry(number + 1, data)

        stream = EntryStream(entries())
        async with stream, asyncio.timeout(20):
            while pulled <= ahead:  # one more is in the hands of who waits for room
                await asyncio.sleep(0.001)
            return [one.line async for one in stream]

    assert asyncio.run(read()) == [*range(1, ahead + 11)]
    assert most == ahead
