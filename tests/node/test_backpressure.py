"""Bounds of the data port: a peer feels them, nobody else does, and nothing ever stands still for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.node.serving import LOOPS, SESSION, WAYS, Peer, Serving, appends, serving, success
from waltzctl.engine.net.connection import OVERHEAD
from waltzctl.engine.net.output_budget import Share
from waltzctl.engine.net.peer_limits import PortLimits
from waltzctl.engine.node.hosted_storage import ServiceOptions
from waltzctl.engine.node.partition_service import PartitionService
from waltzctl.formats.wire import storage

MAX_ID = storage.MaxTransactionIdRequest(SESSION, 1, 0)


def service_of(served: Serving, partition: int) -> PartitionService:
    service = served.hosted.service(partition)
    assert service is not None
    return service


def wait(served: Serving, condition: Callable[[], bool]) -> None:
    """Return when a condition holds in the ports' loop."""
    while not served.call(condition):
        served.settle()


class Pusher:
    """Sends from a thread of its own, because the node makes it wait."""

    def __init__(self, peer: Peer, data: bytes) -> None:
        self._peer, self._data = peer, data
        self._failure: OSError | None = None
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        try:
            self._peer.send(self._data)
        except OSError as error:
            self._failure = error

    def join(self) -> None:
        """Wait until everything was sent."""
        self.join_broken()
        assert self._failure is None, self._failure

    def join_broken(self) -> None:
        """Wait until everything was sent or the connection is gone."""
        self._thread.join()


@pytest.mark.parametrize("way", WAYS)
def test_a_full_partition_stops_its_sender_at_the_bounds_and_no_other_connection(
    tmp_path: Path, way: tuple[str, bool]
) -> None:
    loop, tls = way
    limits = PortLimits(connection_requests=500, connection_bytes=1 << 20)
    service = ServiceOptions(queue_requests=100, queue_bytes=1 << 20)
    with serving(tmp_path / "d", loop=loop, tls=tls, limits=limits, service=service) as served:
        held = service_of(served, 0)
        held.hold()
        frames = appends(0, 4_000, size=400)
        with served.connect() as peer, served.connect() as other:
            pusher = Pusher(peer, b"".join(frames))
            wait(served, lambda: any(one.paused for one in served.data.connections))
            for _ in range(3):
                answer = other.ask(storage.MaxTransactionIdRequest(SESSION, 1, 1))
                assert answer == storage.MaxTransactionIdResponse(SESSION, 1, 1, -1)
            under_way = served.call(lambda: max(one.requests for one in served.data.connections))
            assert 500 <= under_way < 500 + served.data.chunk // len(frames[0]) + 1
            held.resume()
            assert [peer.receive() for _ in range(4_000)] == [success(n) for n in range(4_000)]
            pusher.join()


def test_a_full_partition_does_not_stop_the_others_of_its_connection(tmp_path: Path) -> None:
    service = ServiceOptions(queue_requests=4)
    with serving(tmp_path / "d", service=service) as served, served.connect() as peer:
        held = service_of(served, 0)
        held.hold()
        for first in range(0, 60, 3):  # far more than the queue of partition 0 takes
            peer.send(*appends(first, 3), *appends(first, 3, partition=1))
            assert [peer.receive() for _ in range(3)] == [success(first + n, 1) for n in range(3)]
        held.resume()
        assert [peer.receive() for _ in range(60)] == [success(n) for n in range(60)]


def test_a_partition_that_stands_still_is_busy_and_the_others_go_on(tmp_path: Path) -> None:
    service = ServiceOptions(queue_requests=4, stall_seconds=0.1)
    limits = PortLimits(keep_alive_seconds=0.2)  # so that the port looks often
    with serving(tmp_path / "d", service=service, limits=limits) as served, served.connect() as peer:
        held = service_of(served, 0)
        held.hold()
        for number in range(12):  # each in a segment of its own: what arrives together is taken together
            peer.send(*appends(number, 1))
            served.settle()
        busy = [peer.receive() for _ in range(8)]
        assert [answer.sequence for answer in busy] == list(range(4, 12))
        assert {answer.failure.code for answer in busy} == {"busy"}
        peer.send(*appends(0, 1, partition=1))
        assert peer.receive() == success(0, 1)
        held.resume()
        assert [peer.receive() for _ in range(4)] == [success(n) for n in range(4)]


TINY = PortLimits(
    max_body=20_000,
    max_admin_body=1000,
    big_frame=500,
    memory=20_000,
    connection_bytes=3000,
    connection_requests=7,
    output=3000,
    connection_output=200,
    max_list_bytes=2000,
    reads=2,
)
STEP = st.tuples(
    st.sampled_from(["append", "append", "big", "huge", "max", "record", "list", "headers", "unassigned"]),
    st.integers(0, 1),
    st.integers(1, 30),
)


def frames_of(steps: list[tuple[str, int, int]], following: dict[int, int]) -> tuple[list[bytes], int]:
    """Frames for a plan, and how many answers they get."""
    frames: list[bytes] = []
    for sequence, (kind, partition, count) in enumerate(steps):
        sizes = {"append": 20, "big": 2000, "huge": 9000}
        match kind:
            case "append" | "big" | "huge":
                number = count if kind == "append" else 2
                frames += appends(following[partition], number, partition=partition, size=sizes[kind])
                following[partition] += number
            case "max":
                frames += [storage.encode(storage.MaxTransactionIdRequest(SESSION, sequence, partition))] * count
            case "record":
                frames += [storage.encode(storage.RecordRequest(SESSION, sequence, partition, 3))] * count
            case "list":
                frames += [storage.encode(storage.RecordListRequest(SESSION, sequence, partition, 0, count))] * count
            case "headers":
                frames += [storage.encode(storage.RecordHeaderListRequest(SESSION, sequence, partition, 0, 9))] * count
            case _:
                frames += [storage.encode(storage.MaxTransactionIdRequest(SESSION, sequence, 2))] * count
    return frames, len(frames)


@pytest.mark.turns(8)
@pytest.mark.parametrize("loop", LOOPS)
@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(plans=st.lists(st.lists(STEP, min_size=1, max_size=12), min_size=1, max_size=3))
def test_tiny_limits_never_stop_anything_for_good(
    tmp_path_factory: pytest.TempPathFactory, loop: str, plans: list[list[tuple[str, int, int]]]
) -> None:
    service = ServiceOptions(queue_requests=3, queue_bytes=2000, commit_bytes=1000)
    path = tmp_path_factory.mktemp("tiny") / "d"
    TINY.check()
    with serving(path, partitions=2, records=10, size=300, loop=loop, limits=TINY, service=service) as served:
        answers: list[list[Any]] = [[] for _ in plans]
        threads = []
        following = {0: 10, 1: 10}
        for plan, found in zip(plans, answers, strict=True):
            frames, count = frames_of(plan, following)
            peer = served.connect()

            def work(
                peer: Peer = peer, frames: list[bytes] = frames, count: int = count, found: list[Any] = found
            ) -> None:
                with peer:
                    pusher = Pusher(peer, b"".join(frames))
                    found += [peer.receive() for _ in range(count)]
                    pusher.join()

            threads.append(threading.Thread(target=work))
        for thread in threads:
            thread.start()
        for plan, found, thread in zip(plans, answers, threads, strict=True):
            thread.join()
            assert len(found) == frames_of(plan, {0: 0, 1: 0})[1]
        if len(plans) == 1:  # then nobody was out of order either
            for number in (0, 1):
                assert served.hosted.service(number).partition.next_transaction_id == following[number]  # type: ignore[union-attr]


@pytest.mark.turns(8)
@pytest.mark.parametrize("way", WAYS)
def test_a_peer_that_never_reads_is_bounded_and_ended_and_others_are_served(
    tmp_path: Path, way: tuple[str, bool]
) -> None:
    loop, tls = way
    limits = PortLimits(unread_seconds=0.5, output=1 << 20, connection_output=1 << 18, max_list_bytes=1 << 19)
    with serving(tmp_path / "d", records=500, size=4000, loop=loop, tls=tls, limits=limits) as served:
        ask = storage.encode(storage.RecordListRequest(SESSION, 5, 0, 0, 1000))
        peers = [served.connect() for _ in range(3)]
        pushers = [Pusher(peer, ask * 2000) for peer in peers]
        largest = 0
        with served.connect() as other:
            while served.call(lambda: len(served.data.connections)) > 1:
                assert other.ask(MAX_ID).transaction_id == 499
                largest = max(largest, served.call(lambda: served.data.output_budget.queued))
        for pusher, peer in zip(pushers, peers, strict=True):
            peer.wait_until_reset()
            pusher.join_broken()
            peer.close()
        assert largest <= limits.output + 3 * 2 * limits.connection_output  # its water mark, and what was read ahead


def test_lists_shrink_to_what_there_is_room_for_and_have_one_record_at_least(tmp_path: Path) -> None:
    limits = PortLimits(max_list_bytes=3000)
    with serving(tmp_path / "d", records=20, size=1000, limits=limits) as served, served.connect() as peer:
        assert len(peer.ask(storage.RecordListRequest(SESSION, 5, 0, 0, 20)).records) == 2
        other = Share(served.data.output_budget)
        other.queue(limits.output)
        assert len(peer.ask(storage.RecordListRequest(SESSION, 5, 0, 0, 20)).records) == 1
        other.queue(0)


def test_pipelined_reads_start_one_at_a_time_and_are_all_answered(tmp_path: Path) -> None:
    with serving(tmp_path / "d", records=50, size=100) as served, served.connect() as peer:
        held = service_of(served, 0)
        held.hold()
        peer.send(*(storage.encode(storage.RecordRequest(SESSION, n, 0, n % 50)) for n in range(500)))
        wait(served, lambda: served.data.reads.used > 0)
        served.settle()
        assert held.queue_size == 1
        held.resume()
        answers = [peer.receive() for _ in range(500)]
        assert [answer.sequence for answer in answers] == list(range(500))
        assert [answer.record.transaction_id for answer in answers] == [n % 50 for n in range(500)]
        assert served.call(lambda: served.data.reads.used) == 0


def test_reads_of_a_peer_that_is_gone_give_their_turns_back(tmp_path: Path) -> None:
    with serving(tmp_path / "d", records=50, limits=PortLimits(reads=2)) as served:
        held = service_of(served, 0)
        held.hold()
        ask = storage.encode(storage.RecordRequest(SESSION, 1, 0, 1))
        gone = [served.connect() for _ in range(5)]
        for peer in gone:
            peer.send(ask * 100)
        wait(served, lambda: served.data.reads.waiting == 3)
        for peer in gone:
            peer.close()
        wait(served, lambda: not served.data.connections)
        assert served.call(lambda: served.data.reads.waiting) == 0
        held.resume()
        with served.connect() as peer:
            peer.send(ask * 10)
            assert all(peer.receive().record.transaction_id == 1 for _ in range(10))
        wait(served, lambda: served.data.reads.used == 0)


@pytest.mark.turns(8)
@pytest.mark.parametrize("loop", LOOPS)
def test_big_frames_wait_for_memory_in_order_and_a_stalled_one_makes_room(tmp_path: Path, loop: str) -> None:
    limits = PortLimits(max_body=800_000, memory=1_000_000, stall_seconds=0.5)
    with serving(tmp_path / "d", partitions=4, loop=loop, limits=limits) as served:
        frames = [appends(0, 1, partition=n, size=700_000)[0] for n in range(3)]
        peers = [served.connect() for _ in range(3)]
        for waiting, (peer, frame) in enumerate(zip(peers, frames, strict=True)):
            peer.send(frame[:1000])
            wait(served, lambda: served.data.budget.used >= 700_000 and served.data.budget.waiting == waiting)  # noqa: B023
        pushers = [Pusher(peer, frame[1000:]) for peer, frame in zip(peers[1:], frames[1:], strict=True)]
        assert peers[0].rest() == b"", "the frame that has the memory does not arrive, so its connection ends"
        assert peers[1].receive() == success(0, 1)
        assert peers[2].receive() == success(0, 2)
        for pusher in pushers:
            pusher.join()
        for peer in peers:
            peer.close()


def test_small_requests_wait_while_the_memory_is_used_up_and_then_go_on(tmp_path: Path) -> None:
    limits = PortLimits(max_body=100_000, memory=200_000)
    with serving(tmp_path / "d", limits=limits) as served:
        held = service_of(served, 0)
        held.hold()
        with served.connect() as greedy, served.connect() as other:
            greedy.send(*appends(0, 600, size=200))
            wait(served, lambda: served.data.budget.crowded and any(one.paused for one in served.data.connections))
            other.send(*appends(0, 1, partition=1), *appends(1, 1, partition=1))
            held.resume()
            assert [other.receive() for _ in range(2)] == [success(n, 1) for n in range(2)]
            assert [greedy.receive() for _ in range(600)] == [success(n) for n in range(600)]
            served.settle()
            assert served.call(lambda: served.data.budget.used) == 0


def test_requests_under_way_are_counted_with_what_they_cost(tmp_path: Path) -> None:
    with serving(tmp_path / "d") as served, served.connect() as peer:
        held = service_of(served, 0)
        held.hold()
        frames = appends(0, 10, size=50)
        peer.send(*frames)
        wait(served, lambda: served.data.connections[0].requests == 10)
        size = sum(len(frame) - 7 for frame in frames)
        info = served.call(lambda: served.data.connections[0])
        assert (info.size, info.greeting) == (size, "Waltz Storage Client")
        assert served.call(lambda: served.data.budget.used) == size + 10 * OVERHEAD
        held.resume()
        for _ in range(10):
            peer.receive()
