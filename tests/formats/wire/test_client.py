"""Messages between client and log server: the documented frames, the recorded ones, and there and back in every version."""

from __future__ import annotations

import re
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.fed import fed
from tests.formats.settings import few
from tests.formats.wire.recordings import client_fields_of, recorded_frames
from tests.formats.wire.strategies import i32, i64, request_ids, text
from tests.golden import GOLDEN, needs_golden
from waltzctl.formats.checksums import crc32
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import RecordHeader
from waltzctl.formats.wire import client
from waltzctl.formats.wire.append_frames import append_writer
from waltzctl.formats.wire.client import CLIENT_VERSIONS, CODECS, ClientMessage, MountState
from waltzctl.formats.wire.feed_frames import FEED_FRAME, feed_frames, feed_frames_as, feed_prefix, feed_rows
from waltzctl.formats.wire.frame import FrameReader, Magic, decode_frame_header, keep_alive
from waltzctl.formats.wire.hello import Hello
from waltzctl.formats.wire.primitives import Limits, MessageError

FRAMES = recorded_frames(GOLDEN, "server") if GOLDEN else []
KINDS: tuple[Any, ...] = get_args(ClientMessage)
ID = RequestId(1, 2, 3, 4)
R = "00000001 00000002 00000003 00000004"
APPEND = {"client_high_water_mark": 9, "header": 5, "data": b"abc", "checksum": 0x352441C2}
DATA = client.TransactionData(b"abc", 0x352441C2)
DOCUMENTED: list[tuple[int, Any, str]] = [
    (4, client.MountRequest(ID, -1, 0), f"4c 0004 00000021 00 {R} ffffffffffffffff 0000000000000000"),
    (4, client.MountResponse(ID, MountState.READY), f"4c 0004 00000015 01 {R} 00000000"),
    (4, client.MountResponse(ID, MountState.NOT_READY), f"4c 0004 00000015 01 {R} 00000001"),
    (4, client.MountResponse(ID, MountState.CLIENT_AHEAD), f"4c 0004 00000015 01 {R} 00000002"),
    (0, client.MountResponse(ID, MountState.READY), f"4c 0000 00000012 01 {R} 01"),
    (2, client.MountResponse(ID, MountState.NOT_READY), f"4c 0002 00000012 01 {R} 00"),
    (
        0,
        client.AppendRequest(ID, **APPEND, write_locks=(10,)),
        f"4c 0000 00000030 02 {R} 0000000000000009 00000001 0000000a 00000005 00000003 616263 352441c2",
    ),
    (
        1,
        client.AppendRequest(ID, **APPEND, write_locks=(10,), read_locks=(11, 12)),
        (
            f"4c 0001 0000003c 02 {R} 0000000000000009 00000001 0000000a 00000002 0000000b 0000000c"
            "00000005 00000003 616263 352441c2"
        ),
    ),
    (
        4,
        client.AppendRequest(ID, **APPEND, write_locks=(10,), read_locks=(11, 12), append_locks=(13,)),
        (
            f"4c 0004 00000044 02 {R} 0000000000000009 00000001 0000000a 00000002 0000000b 0000000c 00000001 0000000d"
            "00000005 00000003 616263 352441c2"
        ),
    ),
    (4, client.FeedRequest(ID, -1), f"4c 0004 00000019 03 {R} ffffffffffffffff"),
    (4, client.FeedData(ID, 0, 5), f"4c 0004 0000001d 04 {R} 0000000000000000 00000005"),
    (4, client.FeedSuspended(ID), f"4c 0004 00000011 05 {R}"),
    (4, client.TransactionDataRequest(ID, 0), f"4c 0004 00000019 06 {R} 0000000000000000"),
    (
        4,
        client.TransactionDataResponse(ID, 0, DATA),
        f"4c 0004 00000025 07 {R} 0000000000000000 01 00000003 616263 352441c2",
    ),
    (
        4,
        client.TransactionDataResponse(ID, 0, client.TransactionRefused("x")),
        f"4c 0004 0000001f 07 {R} 0000000000000000 00 00000001 78",
    ),
    (
        4,
        client.TransactionDataResponse(ID, 0, client.TransactionRefused(None)),
        f"4c 0004 0000001e 07 {R} 0000000000000000 00 ffffffff",
    ),
    (4, client.FlushRequest(ID), f"4c 0004 00000011 08 {R}"),
    (4, client.FlushResponse(ID, 8), f"4c 0004 00000019 09 {R} 0000000000000008"),
    (4, client.LockFailure(ID, 8), f"4c 0004 00000019 0a {R} 0000000000000008"),
    (4, client.HighWaterMarkRequest(ID), f"4c 0004 00000011 0b {R}"),
    (4, client.HighWaterMarkResponse(ID, 8), f"4c 0004 00000019 0c {R} 0000000000000008"),
    (4, client.CheckStorageConnectivityRequest(ID), f"4c 0004 00000011 0d {R}"),
    (
        4,
        client.CheckStorageConnectivityResponse(ID, (("h:1", True),)),
        f"4c 0004 0000001d 0e {R} 00000001 00000003 683a31 01",
    ),
    (4, client.ServerPartitionsAssignmentRequest(ID), f"4c 0004 00000011 0f {R}"),
    (
        4,
        client.ServerPartitionsAssignmentResponse(ID, (0, 2)),
        f"4c 0004 0000001d 10 {R} 00000002 00000000 00000002",
    ),
    (4, client.AddPreferredPartitionRequest(ID, (1,)), f"4c 0004 00000019 11 {R} 00000001 00000001"),
    (4, client.AddPreferredPartitionResponse(ID, done=True), f"4c 0004 00000012 12 {R} 01"),
    (4, client.RemovePreferredPartitionRequest(ID, (1,)), f"4c 0004 00000019 13 {R} 00000001 00000001"),
    (4, client.RemovePreferredPartitionResponse(ID, done=True), f"4c 0004 00000012 14 {R} 01"),
    (4, client.ServerPartitionsHealthRequest(ID), f"4c 0004 00000011 15 {R}"),
    (
        4,
        client.ServerPartitionsHealthResponse(ID, ((0, True), (1, False))),
        f"4c 0004 0000001f 16 {R} 00000002 00000000 01 00000001 00",
    ),
]


@pytest.mark.parametrize(
    ("version", "message", "data"), DOCUMENTED, ids=lambda one: type(one).__name__ if not isinstance(one, str) else ""
)
def test_documented_frames(version: int, message: Any, data: str) -> None:
    whole = bytes.fromhex(data)
    assert client.encode(message, version) == whole
    assert CODECS[version].encode_by_schema(message) == whole
    assert client.decode(whole[7:], version) == message
    assert CODECS[version].decode_by_schema(whole[7:]) == message


def test_the_documented_frames_are_of_every_kind() -> None:
    assert {type(message) for _, message, _ in DOCUMENTED} == set(KINDS)


@needs_golden
def test_every_recorded_frame_is_read_to_its_fields_and_written_to_its_bytes() -> None:
    seen = set()
    for recorded in FRAMES:
        header, body = decode_frame_header(recorded.data), recorded.data[7:]
        if header.magic == Magic.HELLO:
            assert Hello.decode(body).encode() == recorded.data
            continue
        message = client.decode(body, header.version)
        assert client.encode(message, header.version) == recorded.data, recorded
        if recorded.fields is None:  # the release's decoder looks at the checksum as well
            assert "checksum error" in recorded.name
            assert isinstance(message, client.AppendRequest)
            assert not message.data_ok
            continue
        ours = client_fields_of(message, header.version)
        assert {name: ours.get(name) for name in recorded.fields} == {
            name: _ours(value, header.version) if name == "partitionState" else value
            for name, value in recorded.fields.items()
        }, recorded
        assert type(message).__name__ == recorded.name.replace("HealthStat", "Health")
        seen.add((header.version, type(message)))
    assert len(seen) > 60


def _ours(state: int, version: int) -> int:
    """What versions 0 to 2 can say of a state."""
    return state if version >= 3 else min(state, 1)


_BY_NAME: dict[str, st.SearchStrategy[Any]] = {
    "request_id": request_ids,
    "header": i32,
    "checksum": st.integers(0, 2**32 - 1),
    "data": st.binary(max_size=40),
    "done": st.booleans(),
    "outcome": st.builds(client.TransactionData, st.binary(max_size=40), st.integers(0, 2**32 - 1))
    | st.builds(client.TransactionRefused, text),
    "nodes": st.lists(st.tuples(text, st.booleans()), max_size=4).map(tuple),
}
_LOCKS = {"write_locks": 0, "read_locks": 1, "append_locks": 2}


def _messages(kind: Any, version: int) -> st.SearchStrategy[Any]:
    drawn: dict[str, st.SearchStrategy[Any]] = {}
    for name in get_type_hints(kind, vars(client)):
        if name in ("TYPE", "FIELDS"):
            continue
        drawn[name] = _BY_NAME.get(name, i64)
        if name in _LOCKS:
            drawn[name] = st.lists(i32, max_size=3 if version >= _LOCKS[name] else 0).map(tuple)
        elif name == "state":
            drawn[name] = st.sampled_from(
                [MountState.READY, MountState.NOT_READY, MountState.CLIENT_AHEAD][: 2 + (version > 2)]
            )
        elif name == "partitions":
            of = st.tuples(i32, st.booleans()) if kind is client.ServerPartitionsHealthResponse else i32
            drawn[name] = st.lists(of, max_size=4).map(tuple)
    return st.builds(kind, **drawn)


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
@few
@given(data=st.data())
def test_messages_come_back_equal_and_both_forms_agree(version: int, data: st.DataObject) -> None:
    codec = CODECS[version]
    message = data.draw(
        st.sampled_from(sorted(codec.schemas, key=lambda kind: kind.TYPE)).flatmap(
            lambda kind: _messages(kind, version)
        )
    )
    frame = codec.encode(message)
    header, body = decode_frame_header(frame), frame[7:]
    assert (header.magic, header.version, header.length) == (Magic.CLIENT, version, len(body))
    assert codec.encode_by_schema(message) == frame
    assert codec.decode(body) == codec.decode_by_schema(body) == message
    for cut in (body[:-1], body + b"\0"):
        with pytest.raises(MessageError):
            codec.decode(cut)


def test_each_version_knows_its_types_and_no_others() -> None:
    known = [sorted(codec.by_type) for codec in CODECS]
    assert known == [list(range(end)) for end in (13, 15, 21, 21, 23)]
    with pytest.raises(MessageError, match="type 21 is unknown in version 3"):
        client.decode(bytes.fromhex(f"15 {R}"), 3)
    with pytest.raises(ValueError, match="HealthRequest does not exist in version 3"):
        client.encode(client.ServerPartitionsHealthRequest(ID), 3)


@pytest.mark.parametrize(
    ("version", "locks", "lacks"), [(0, "read_locks", "read locks"), (1, "append_locks", "append locks")]
)
def test_locks_that_a_version_lacks_are_refused_and_not_left_out(version: int, locks: str, lacks: str) -> None:
    message = client.AppendRequest(ID, **APPEND, **{locks: (1,)})
    for encode in (CODECS[version].encode, CODECS[version].encode_by_schema):
        with pytest.raises(ValueError, match=f"version {version} of this protocol has no {lacks}"):
            encode(message)
    assert client.decode(client.encode(message, version + 1)[7:], version + 1) == message


def test_before_version_3_a_client_that_is_ahead_is_told_not_ready() -> None:
    told = client.encode(client.MountResponse(ID, MountState.CLIENT_AHEAD), 2)
    assert client.decode(told[7:], 2) == client.MountResponse(ID, MountState.NOT_READY)


@pytest.mark.parametrize("state", [-1, 3])
def test_a_state_that_is_none(state: int) -> None:
    with pytest.raises(MessageError, match=f"^MountResponse: {state} is no state of a mount"):
        client.decode(bytes.fromhex(f"01 {R}") + state.to_bytes(4, "big", signed=True))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (f"02 {R} 0000000000000009 7fffffff", "list of locks: the count 2147483647 cannot be"),
        (f"02 {R} 0000000000000009 ffffffff", "list of locks: the count -1 is negative"),
        (f"02 {R} 0000000000000009 00000000 00000000 00000000 00000005 00000009 616263", "byte array: the count 9"),
        (f"11 {R} 00000003 00000001 00000002", "list of partitions: the count 3 cannot be"),
        (f"0e {R} 00000002 00000000 01", "list of nodes: the count 2 cannot be"),
        (f"16 {R} 00000001 00000001", "list of partitions: the count 1 cannot be"),
    ],
)
def test_nothing_is_believed_that_cannot_be(body: str, message: str) -> None:
    with pytest.raises(MessageError, match=message):
        client.decode(bytes.fromhex(body))


def test_what_is_accepted_in_one_message_is_bounded() -> None:
    body = client.encode(client.AppendRequest(ID, **APPEND, write_locks=(1, 2, 3)))[7:]
    with pytest.raises(MessageError, match="above the 2"):
        client.decode(body, limits=Limits(max_list=2))
    assert client.decode(body, limits=Limits(max_list=3, max_data=3))
    with pytest.raises(MessageError, match="above the 2"):
        client.decode(body, limits=Limits(max_data=2))


@pytest.mark.parametrize("data", [b"", b"abc"])
def test_data_agrees_with_its_checksum_or_not(data: bytes) -> None:
    right = crc32(data)
    for checksum, ok in ((right, True), (right ^ 1, False)):
        assert client.TransactionData(data, checksum).data_ok is ok
        assert client.AppendRequest(ID, 0, 0, data, checksum).data_ok is ok


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_many_transactions_of_a_feed_at_once_are_the_same_bytes(version: int) -> None:
    headers = [RecordHeader(number, RequestId(number, 2, 3, -number), number % 5) for number in range(3)]
    single = [
        client.encode(client.FeedData(one.request_id, one.transaction_id, one.header), version) for one in headers
    ]
    frames = feed_frames(headers)
    assert feed_frames_as(frames, version) == b"".join(single)
    assert len(frames) == 3 * FEED_FRAME
    assert fed(frames) == tuple(headers)
    assert feed_frames_as(feed_frames([]), version) == b""


MIXED = (
    *[client.FeedData(RequestId(n, n + 1, n + 2, -n), 5 * n, -n) for n in range(3)],
    client.FeedSuspended(ID),
    client.LockFailure(ID, 7),
    None,
)
"""Transactions of a feed, others of their length and shorter, and a keep-alive (None)."""


@few
@given(
    picks=st.lists(st.integers(0, len(MIXED) - 1), max_size=40),
    cuts=st.lists(st.integers(1, 100), max_size=60),
    version=st.sampled_from(CLIENT_VERSIONS),
)
def test_transactions_of_a_feed_come_out_in_runs_and_in_their_place(
    picks: list[int], cuts: list[int], version: int
) -> None:
    messages = [MIXED[pick] for pick in picks]
    empty = keep_alive(Magic.CLIENT, version)
    stream = b"".join(empty if one is None else client.encode(one, version) for one in messages)
    reader, found, position = FrameReader(), list[object](), 0
    for size in [*cuts, len(stream)]:
        reader.feed(stream[position : position + size])
        position += size
        while True:
            frames = reader.run(feed_prefix(version), FEED_FRAME, empty)
            for one, generation, partition, sequence, transaction_id, header in feed_rows(frames):
                found.append(client.FeedData(RequestId(one, generation, partition, sequence), transaction_id, header))
            body = reader.next(Magic.CLIENT, version)
            if body is None:
                break
            message = client.decode(body, version)
            assert not isinstance(message, client.FeedData), "a transaction that was left for `next`"
            found.append(message)
    assert found == [one for one in messages if one is not None]
    assert reader.pending == 0


def test_a_frame_of_a_feed_that_is_of_another_length_or_version_is_no_run() -> None:
    whole = client.encode(MIXED[0], 4)
    for wrong in (whole[:6] + b"\x1e" + whole[7:] + b"x", client.encode(MIXED[0], 3), whole[:7] + b"\x0a" + whole[8:]):
        reader = FrameReader()
        reader.feed(whole + wrong + whole)
        assert reader.run(feed_prefix(4), FEED_FRAME, keep_alive(Magic.CLIENT, 4)) == whole
        assert reader.run(feed_prefix(4), FEED_FRAME, keep_alive(Magic.CLIENT, 4)) == b""
        assert reader.pending == len(wrong + whole)


def _locks() -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3).map(tuple)


@few
@given(
    numbers=st.tuples(*[st.integers(-(2**31), 2**31 - 1)] * 4),
    mark=st.integers(-(2**63), 2**63 - 1),
    header=st.integers(-(2**31), 2**31 - 1),
    data=st.binary(max_size=300),
    locks=st.one_of(st.just(((), (), ())), st.tuples(_locks(), _locks(), _locks())),
    version=st.sampled_from(CLIENT_VERSIONS),
)
@example(numbers=(1, 2, 3, 4), mark=0, header=0, data=b"", locks=((5,), (), ()), version=4)
@example(numbers=(1, 2, 3, 4), mark=0, header=0, data=b"", locks=((), (5,), ()), version=4)
@example(numbers=(1, 2, 3, 4), mark=0, header=0, data=b"", locks=((), (), (5,)), version=4)
def test_an_append_without_a_message_is_the_same_frame(
    numbers: tuple[int, int, int, int],
    mark: int,
    header: int,
    data: bytes,
    locks: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
    version: int,
) -> None:
    message = client.AppendRequest(RequestId(*numbers), mark, header, data, crc32(data), *locks)
    try:
        expected = client.encode(message, version)
    except ValueError as error:
        with pytest.raises(ValueError, match=re.escape(str(error))):
            append_writer(version)(*numbers, mark, header, data, *locks)
        return
    assert append_writer(version)(*numbers, mark, header, data, *locks) == expected


@pytest.mark.parametrize("place", range(6))
def test_an_append_with_what_does_not_fit_is_refused(place: int) -> None:
    numbers = [2**31 - 1] * 4 + [2**63 - 1, 2**31 - 1]
    append_writer(4)(*numbers, b"", (), (), ())  # type: ignore[call-arg]
    numbers[place] += 1
    with pytest.raises(ValueError, match="AppendRequest"):
        append_writer(4)(*numbers, b"", (), (), ())  # type: ignore[call-arg]
