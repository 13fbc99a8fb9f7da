"""Frames of the data port: cut anywhere, many at once, mixed over partitions, and wrong ones."""

from __future__ import annotations

import logging
import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.builders import KEY
from tests.node.serving import LOOPS, SESSION, WAYS, Serving, appends, header, serving, success
from waltzctl.engine.net.peer_limits import PortLimits
from waltzctl.formats.wire import storage
from waltzctl.formats.wire.frame import Magic, frame, keep_alive

KEEP_ALIVE = keep_alive(Magic.STORAGE, 0)
UNASSIGNED = 3


@pytest.fixture(params=WAYS)
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Serving]:
    loop, tls = request.param
    with serving(tmp_path / "d", partitions=3, loop=loop, tls=tls) as found:
        yield found


def max_id(sequence: int = 1, partition: int = 0) -> bytes:
    return storage.encode(storage.MaxTransactionIdRequest(SESSION, sequence, partition))


def last(served: Serving, partition: int = 0) -> int:
    with served.connect() as peer:
        answer = peer.ask(storage.MaxTransactionIdRequest(SESSION, 1, partition))
        assert isinstance(answer, storage.MaxTransactionIdResponse)
        return answer.transaction_id


def test_a_conversation_byte_by_byte(served: Serving) -> None:
    frames = [max_id(100), *appends(0, 2, size=30), KEEP_ALIVE, max_id(101)]
    with served.connect() as peer:
        for byte in b"".join(frames):
            peer.send(bytes([byte]))
            served.settle()
        assert [peer.receive().sequence for _ in range(4)] == [100, 0, 1, 101]


def test_two_requests_cut_at_every_byte(served: Serving) -> None:
    first = 0
    with served.connect() as peer:
        for cut in range(1, sum(map(len, appends(0, 2, size=20)))):
            sent = b"".join(appends(first, 2, size=20))
            peer.send(sent[:cut])
            served.settle()
            peer.send(sent[cut:])
            assert [peer.receive(), peer.receive()] == [success(first), success(first + 1)]
            first += 2
    assert last(served) == first - 1


def test_many_frames_in_one_segment_and_keep_alives_between_them(served: Serving) -> None:
    with served.connect() as peer:
        peer.send(*(KEEP_ALIVE + one for one in appends(0, 1500, size=10)), KEEP_ALIVE)
        assert [peer.receive() for _ in range(1500)] == [success(n) for n in range(1500)]
    assert last(served) == 1499


def test_a_frame_longer_than_every_buffer_between_short_ones(served: Serving) -> None:
    long = appends(1, 1, records=3, size=700_000)
    with served.connect() as peer:
        peer.send(*appends(0, 1), *long, *appends(4, 1), max_id(9))
        answers = [peer.receive() for _ in range(4)]
    assert answers == [success(0), success(1), success(4), storage.MaxTransactionIdResponse(SESSION, 9, 0, 4)]


def test_open_is_answered_with_minus_one_and_required_by_nothing(served: Serving) -> None:
    with served.connect() as peer:
        good = storage.OpenRequest(KEY, 4)
        assert peer.ask(good) == storage.SuccessResponse(-1, -1, -1)
        for wrong, text in (
            (
                storage.OpenRequest(uuid.UUID(int=5), 4),
                "Provided cluster key is inconsistent with key in control file.",
            ),
            (
                storage.OpenRequest(KEY, 5),
                "Provided number of partitions is inconsistent with the total number of partitions in control file.",
            ),
        ):
            answer = peer.ask(wrong)
            assert (answer.session_id, answer.sequence, answer.partition) == (-1, -1, -1)
            assert answer.failure.message == f"com.wepay.waltz.storage.exception.StorageException: {text}"
        peer.send(max_id(4))
        assert peer.receive() == storage.MaxTransactionIdResponse(SESSION, 4, 0, -1)


@pytest.mark.parametrize("partition", [UNASSIGNED, 77, -1])
def test_a_partition_that_is_not_assigned_gets_the_release_s_failure(served: Serving, partition: int) -> None:
    sent = [max_id(8, partition), *appends(0, 2, partition=partition)]
    with served.connect() as peer:
        peer.send(*sent)
        answers = [peer.receive() for _ in range(3)]
    assert [answer.sequence for answer in answers] == [8, 0, 1]
    for answer in answers:
        assert answer.failure.message == f"java.lang.Exception: Partition:{partition} is not assigned."
        assert answer.failure.code == "not-assigned"
        assert (answer.session_id, answer.partition) == (SESSION, partition)


def test_a_response_sent_to_the_node_gets_a_failure(served: Serving) -> None:
    with served.connect() as peer:
        for message in (success(5), storage.MaxTransactionIdResponse(SESSION, 5, 0, 7)):
            answer = peer.ask(message)
            assert answer.sequence == 5
            assert answer.failure.message.endswith(f"unknown message type: {message.TYPE}")
        assert peer.ask(storage.MaxTransactionIdRequest(SESSION, 6, 0)).sequence == 6


def damaged_append(offset: int, value: int) -> bytes:
    raw = bytearray(appends(0, 1, size=5)[0])
    raw[offset] = value
    return bytes(raw)


WRONG = {
    "magic": header(Magic.ADMIN, 0, 21) + max_id()[7:],
    "version": header(Magic.STORAGE, 1, 21) + max_id()[7:],
    "negative length": header(Magic.STORAGE, 0, -1),
    "endless": header(Magic.STORAGE, 0, 2**31 - 1),
    "short": frame(Magic.STORAGE, 0, b"\x0d" + bytes(19)),
    "type 0": frame(Magic.STORAGE, 0, bytes(21)),
    "type 99": frame(Magic.STORAGE, 0, b"\x63" + bytes(20)),
    "type -3": frame(Magic.STORAGE, 0, b"\xfd" + bytes(20)),
    "left over": header(Magic.STORAGE, 0, 23) + max_id()[7:] + b"\0",
    "cut": header(Magic.STORAGE, 0, 21) + max_id()[7:-1],
    "long read": header(Magic.STORAGE, 0, 1 << 20) + b"\x11" + bytes(40),
    "append left over": header(Magic.STORAGE, 0, len(appends(0, 1, size=5)[0]) - 6)
    + appends(0, 1, size=5)[0][7:]
    + b"\0",
    "append count": damaged_append(7 + 21, 0x7F),
    "append negative count": damaged_append(7 + 21, 0xFF),
    "append data length": damaged_append(7 + 25 + 28, 0x7F),
}


def test_a_wrong_frame_closes_its_connection_and_no_other(served: Serving, caplog: pytest.LogCaptureFixture) -> None:
    with served.connect() as other, caplog.at_level(logging.WARNING):
        for name, sent in WRONG.items():
            caplog.clear()
            with served.connect() as peer:
                peer.send(sent)
                assert peer.rest() == b"", name
                assert other.ask(storage.MaxTransactionIdRequest(SESSION, 6, 0)).transaction_id == -1
            assert "closed" in caplog.text, name
            if not name.startswith("append"):  # that an append is corrupted is found out by its partition
                assert sent[:32].hex(" ") in caplog.text, name


def test_what_stands_before_a_corrupted_message_is_done_and_what_follows_is_not(served: Serving) -> None:
    wrong = storage.encode(storage.MaxTransactionIdRequest(SESSION, 1, 1))[7:] + b"\0"
    with served.connect() as peer:
        peer.send(*appends(0, 2), *appends(0, 1, partition=2), frame(Magic.STORAGE, 0, wrong), *appends(2, 2))
        peer.rest()
    assert (last(served, 0), last(served, 2)) == (1, 0)


def test_a_peer_that_says_good_bye_at_once_still_has_its_appends_done(served: Serving) -> None:
    peer = served.connect()
    peer.send(*appends(0, 50))
    served.settle()
    peer.close()
    served.settle()
    while served.call(lambda: served.data.budget.used):
        served.settle()
    assert last(served) == 49


@st.composite
def conversations(draw: st.DrawFn) -> tuple[list[bytes], dict[int, list[Any]], list[int]]:
    """Frames, the answers expected from each partition in order, and where the stream is cut."""
    frames: list[bytes] = []
    expected: dict[int, list[Any]] = defaultdict(list)
    following: dict[int, int] = defaultdict(int)
    steps = st.tuples(st.sampled_from(["append", "append", "append", "max", "keep"]), st.sampled_from([0, 0, 1, 2, 3]))
    for sequence, (kind, partition) in enumerate(draw(st.lists(steps, min_size=1, max_size=60))):
        if kind == "keep":
            frames.append(KEEP_ALIVE)
            continue
        if kind == "append":
            first = following[partition]
            frames += appends(first, 1, partition=partition, records=1 + sequence % 3, size=sequence % 50)
            following[partition] += 1 + sequence % 3
            expected[partition].append(success(first, partition))
        else:
            frames.append(max_id(10_000 + sequence, partition))
            largest = following[partition] - 1
            expected[partition].append(storage.MaxTransactionIdResponse(SESSION, 10_000 + sequence, partition, largest))
    total = sum(map(len, frames))
    cuts = draw(st.lists(st.integers(0, total), max_size=6))
    return frames, expected, sorted(cuts)


@pytest.mark.turns(8)
@pytest.mark.parametrize("rows", [1, 3, 1024])
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(conversation=conversations())
def test_every_partition_is_answered_in_order_however_the_stream_is_mixed_and_cut(
    tmp_path_factory: pytest.TempPathFactory,
    rows: int,
    conversation: tuple[list[bytes], dict[int, list[Any]], list[int]],
) -> None:
    frames, expected, cuts = conversation
    with serving(tmp_path_factory.mktemp("mixed") / "d", partitions=3) as served:
        splitter = type(served.data.splitter)(magic=Magic.STORAGE, max_body=1 << 20, rows=rows)
        served.data.splitter = splitter
        stream = b"".join(frames)
        with served.connect() as peer:
            for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
                peer.send(stream[start:end])
                served.settle()
            found: dict[int, list[Any]] = defaultdict(list)
            for _ in range(sum(map(len, expected.values()))):
                answer = peer.receive()
                found[answer.partition].append(answer)
    unassigned, wanted = found.pop(UNASSIGNED, []), expected.pop(UNASSIGNED, [])
    assert found == expected
    assert [answer.sequence for answer in unassigned] == [answer.sequence for answer in wanted]
    assert all(answer.failure.code == "not-assigned" for answer in unassigned)


@pytest.mark.parametrize("loop", LOOPS)
def test_keep_alives_are_sent_after_silence_of_ours(tmp_path: Path, loop: str) -> None:
    limits = PortLimits(keep_alive_seconds=0.05)
    with serving(tmp_path / "d", loop=loop, limits=limits) as served:
        with served.connect() as peer:
            assert [peer.frame() for _ in range(3)] == [(Magic.STORAGE, 0, b"")] * 3
            assert peer.ask(storage.MaxTransactionIdRequest(SESSION, 6, 0)).sequence == 6
        with served.connect_admin(versions=(0, 1)) as peer:
            assert [peer.frame() for _ in range(2)] == [(Magic.ADMIN, 1, b"")] * 2


@pytest.mark.parametrize("loop", LOOPS)
def test_a_silent_peer_is_closed_after_the_idle_time_and_keep_alives_hold_it_open(tmp_path: Path, loop: str) -> None:
    limits = PortLimits(idle_seconds=0.2)
    with serving(tmp_path / "d", loop=loop, limits=limits) as served, served.connect() as silent:
        with served.connect() as lively:
            while served.call(lambda: len(served.data.connections)) == 2:
                lively.send(KEEP_ALIVE)
                served.settle()
            assert lively.ask(storage.MaxTransactionIdRequest(SESSION, 6, 0)).sequence == 6
        assert silent.rest() == b""


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("size", [1000, 300_000])
def test_a_frame_that_stops_arriving_ends_its_connection(tmp_path: Path, loop: str, size: int) -> None:
    with (
        serving(tmp_path / "d", loop=loop, limits=PortLimits(stall_seconds=0.1)) as served,
        served.connect() as peer,
        served.connect() as other,
    ):
        peer.send(appends(0, 1, size=size)[0][:-1])
        assert peer.rest() == b""
        served.settle()
        assert served.call(lambda: served.data.budget.used) == 0
        assert other.ask(storage.MaxTransactionIdRequest(SESSION, 6, 0)).transaction_id == -1


@pytest.mark.parametrize("way", WAYS)
def test_draining_answers_what_was_read_then_closes_and_accepts_nobody(tmp_path: Path, way: tuple[str, bool]) -> None:
    loop, tls = way
    with serving(tmp_path / "d", loop=loop, tls=tls) as served, served.connect() as peer, served.connect() as idle:
        service = served.hosted.service(0)
        assert service is not None
        service.hold()
        peer.send(*appends(0, 20))
        while served.call(lambda: sum(one.requests for one in served.data.connections)) < 20:
            served.settle()
        draining = served.begin(served.data.drain(30))
        assert idle.rest() == b""  # it had asked for nothing
        idle.close()
        service.resume()
        assert [peer.receive() for _ in range(20)] == [success(n) for n in range(20)]
        assert peer.rest() == b""
        peer.close()
        draining.result(60)
        assert not served.data.listening
        with pytest.raises(ConnectionRefusedError):
            served.connect()


@pytest.mark.parametrize("loop", LOOPS)
def test_draining_gives_up_after_its_time(tmp_path: Path, loop: str) -> None:
    with serving(tmp_path / "d", loop=loop) as served, served.connect() as peer:
        service = served.hosted.service(0)
        assert service is not None
        service.hold()
        peer.send(*appends(0, 2))
        served.settle()
        served.run(served.data.drain(0.05))
        assert peer.rest() == b""
        service.resume()
        while served.call(lambda: served.data.budget.used):  # they are done all the same
            served.settle()
        assert service.partition.max_transaction_id == 1
