"""Headers against what they have to say, field by field, and the record whose data is not what came with it."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import PurePath

import pytest

from tests.builders import KEY, segment_header
from waltzctl.engine.findings import BadData, Code, SegmentFiles, Where
from waltzctl.engine.findings.headers import FieldSource, HeaderFault, OtherVersion, ReservedByte, WrongField
from waltzctl.engine.log import bad_data as bad_data_room
from waltzctl.engine.log import header_judgement
from waltzctl.engine.log.bad_data import bad_data
from waltzctl.engine.log.header_judgement import Expected, HeaderVerdict, judge_headers
from waltzctl.engine.scan.byte_source import BytesSource
from waltzctl.formats.checksums import crc32
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import HEADER_SIZE, Record, SegmentHeader

OTHER = uuid.UUID(int=7)
RIGHT = segment_header(3, 100)
WANTED = Expected(100, 3, KEY)
FILES = SegmentFiles(Where(PurePath("/s"), 3, PurePath("/s/3")), 100, PurePath("data"), PurePath("index"))


def record(number: int, data: bytes = b"data") -> bytes:
    return Record.make(number, RequestId(1, 2, 3, 4), 0, data).encode()


def judged(
    data: SegmentHeader, index: SegmentHeader | None = None, *, expected: Expected = WANTED, first: bytes = b""
) -> HeaderVerdict:
    return judge_headers(expected, data, index, BytesSource(data.encode() + first))


@pytest.mark.parametrize(
    ("changes", "met"),
    [
        ({}, True),
        ({"created": 1, "reserved": b"\1" * 88}, True),
        ({"version": 1}, False),
        ({"version": -1}, False),
        ({"cluster_key": OTHER}, False),
        ({"partition": 4}, False),
        ({"first_transaction_id": 101}, False),
    ],
)
def test_a_header_is_met_by_every_field_that_is_known(changes: dict[str, object], met: bool) -> None:
    header = replace(RIGHT, **changes)
    assert WANTED.met_by(header) is met
    assert not WANTED.met_by(None)
    for unknown in ("cluster_key", "partition"):
        assert replace(WANTED, **{unknown: None}).met_by(header) is (met or unknown in changes)


KEY_OF_DATA = WrongField("cluster_key", OTHER, KEY, FieldSource.CONTROL_FILE)
PARTITION_OF_DATA = WrongField("partition", 4, 3, FieldSource.DIRECTORY)
FIRST_OF_DATA = WrongField("first_transaction_id", 101, 100, FieldSource.NAME)


@pytest.mark.parametrize(
    ("changes", "fault", "right"),
    [
        ({"cluster_key": OTHER}, KEY_OF_DATA, KEY),
        ({"partition": 4}, PARTITION_OF_DATA, 3),
        ({"first_transaction_id": 101}, FIRST_OF_DATA, 100),
    ],
)
def test_a_wrong_field_of_either_header_is_told_once(
    changes: dict[str, object], fault: WrongField, right: object
) -> None:
    wrong = replace(RIGHT, **changes)
    assert judged(wrong) == HeaderVerdict((fault,), (), 100)
    assert judged(wrong, RIGHT) == HeaderVerdict((replace(fault, twin=right),), (), 100)
    assert judged(wrong, wrong) == HeaderVerdict((replace(fault, twin=fault.stored),), (), 100)
    assert judged(RIGHT, wrong) == HeaderVerdict((), (fault,), 100)
    assert judged(RIGHT, RIGHT) == judged(RIGHT) == HeaderVerdict((), (), 100)


def test_two_headers_that_are_wrong_in_their_own_ways_are_both_told() -> None:
    verdict = judged(replace(RIGHT, partition=4), replace(RIGHT, partition=5))
    assert verdict.data == (WrongField("partition", 4, 3, FieldSource.DIRECTORY, 5),)
    assert verdict.index == (WrongField("partition", 5, 3, FieldSource.DIRECTORY),)
    assert verdict.data_wrong


@pytest.mark.parametrize(
    ("unknown", "changes", "fault"),
    [
        ("cluster_key", {"cluster_key": OTHER}, WrongField("cluster_key", OTHER, KEY, FieldSource.DATA_FILE)),
        ("partition", {"partition": 0}, WrongField("partition", 0, 3, FieldSource.DATA_FILE)),
    ],
)
def test_where_nothing_tells_a_field_the_index_has_to_agree_with_the_data_file(
    unknown: str, changes: dict[str, object], fault: WrongField
) -> None:
    expected, other = replace(WANTED, **{unknown: None}), replace(RIGHT, **changes)
    assert judged(RIGHT, other, expected=expected) == HeaderVerdict((), (fault,), 100)
    assert judged(other, other, expected=expected) == judged(other, expected=expected) == HeaderVerdict((), (), 100)


@pytest.mark.parametrize(
    ("first", "begins"),
    [
        (record(101), 101),
        (record(100), 100),
        (record(102), 100),
        (record(101)[:-1], 100),
        (record(101)[:-1] + b"?", 100),
        (b"", 100),
    ],
)
def test_a_file_that_was_renamed_begins_with_the_record_that_its_header_names(first: bytes, begins: int) -> None:
    renamed = replace(RIGHT, first_transaction_id=101)
    verdict = judged(renamed, renamed, first=first)
    source = FieldSource.NAME_ALONE if begins == 101 else FieldSource.NAME
    assert verdict == HeaderVerdict((replace(FIRST_OF_DATA, source=source, twin=101),), (), begins)


def test_a_header_that_names_no_transaction_is_no_name_for_a_record_that_is_not_there() -> None:
    assert judged(replace(RIGHT, first_transaction_id=-1)).begins == 100


def test_a_first_record_that_is_too_large_tells_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    renamed = replace(RIGHT, first_transaction_id=101)
    assert header_judgement.MOST_HELD == bad_data_room.MOST_HELD == 64 << 20
    for most, begins in ((4, 101), (3, 100)):
        monkeypatch.setattr(header_judgement, "MOST_HELD", most)
        assert judged(renamed, first=record(101)).begins == begins


@pytest.mark.parametrize("place", [0, 1, 87])
def test_versions_and_reserved_bytes_are_told_of_each_header(place: int) -> None:
    strange = replace(RIGHT, version=2, reserved=bytes(place) + b"\5" + bytes(87 - place))
    faults: tuple[HeaderFault, ...] = (OtherVersion(2), ReservedByte(place, 5))
    assert judged(strange) == HeaderVerdict(faults, (), 100)
    assert judged(RIGHT, strange) == HeaderVerdict((), faults, 100)
    assert judged(strange).data_wrong
    assert not judged(RIGHT, strange).data_wrong
    assert not judged(replace(strange, version=0)).data_wrong
    both = judged(replace(strange, version=0), replace(RIGHT, version=2))
    assert [(one.code, one.path.name) for one in both.findings(FILES)] == [
        (Code.RESERVED_NOT_ZERO, "data"),
        (Code.UNKNOWN_VERSION, "index"),
    ]


# --- data that differs ------------------------------------------------------------------------------------------------


def test_data_that_is_not_what_came_with_it_is_told_with_both_checksums(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = bytearray(record(7, b"other"))
    raw[32:36] = (1).to_bytes(4, "big")
    raw[-4:] = crc32(raw[:-4]).to_bytes(4, "big")
    source = BytesSource(bytes(HEADER_SIZE) + raw)
    whole = BadData(7, HEADER_SIZE, 45, (1, crc32(b"other")))
    assert bad_data(source, 7, HEADER_SIZE) == whole
    for number, offset in ((8, HEADER_SIZE), (7, HEADER_SIZE + 1)):
        assert bad_data(source, number, offset) == BadData(number, offset)
    for most, told in ((5, whole), (4, BadData(7, HEADER_SIZE))):
        monkeypatch.setattr(bad_data_room, "MOST_HELD", most)
        assert bad_data(source, 7, HEADER_SIZE) == told
