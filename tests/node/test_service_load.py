"""The service under load: bounds, slow partitions, partitions that are taken away, errors of the program, the end."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.node.service_support import (
    LOG,
    PATIENCE,
    Peer,
    Served,
    appended,
    created,
    request_of,
    run_of,
    serving,
)
from waltzctl.engine.errors import RefusedError
from waltzctl.engine.net.executor import Executor
from waltzctl.engine.node.failure_responses import failure_of
from waltzctl.engine.node.hosted_storage import ServiceOptions
from waltzctl.engine.node.partition_service import Admission, PartitionService
from waltzctl.engine.node.permissions import DeniedError
from waltzctl.formats.wire.frame import FrameReader, Magic
from waltzctl.formats.wire.storage import (
    AppendRequest,
    FailureResponse,
    MaxTransactionIdRequest,
    MaxTransactionIdResponse,
    RecordRequest,
    StorageMessage,
    SuccessResponse,
    TruncateRequest,
    decode,
    encode,
)


class StuckDisk:
    """Flushes of chosen partitions wait until they are let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *partitions: int) -> None:
        self.entered = threading.Event()
        self.go = threading.Event()
        real = os.fdatasync
        places = tuple(f"/{partition}/" for partition in partitions)

        def waiting(descriptor: int) -> None:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            if path.endswith(".seg") and any(place in path for place in places):
                self.entered.set()
                assert self.go.wait(PATIENCE)
            real(descriptor)

        monkeypatch.setattr(os, "fdatasync", waiting)


@contextmanager
def stuck(*partitions: int) -> Iterator[StuckDisk]:
    with pytest.MonkeyPatch.context() as patch:
        disk = StuckDisk(patch, *partitions)
        try:
            yield disk
        finally:
            disk.go.set()


def service_of(served: Served, partition: int = 0) -> PartitionService:
    found = served.hosted.service(partition)
    assert found is not None
    return found


def codes(answers: list[StorageMessage]) -> list[str]:
    return [str(a.failure.code) if isinstance(a, FailureResponse) else "" for a in answers]


def parsed(frames: bytes) -> list[StorageMessage]:
    reader = FrameReader(max_body=1 << 30)
    reader.feed(frames)
    found = []
    while (body := reader.next(Magic.STORAGE, 0)) is not None:
        found.append(decode(bytes(body)))
    return found


def test_a_stuck_partition_holds_nobody_else_up(tmp_path: Path) -> None:
    created(tmp_path / "s", 6)
    with serving(tmp_path / "s") as served, stuck(0, 1) as disk:
        slow = [Peer(), Peer()]
        for number, peer in enumerate(slow):
            served.submit(peer, appended(0, partition=number), partition=number)
        assert disk.entered.wait(PATIENCE)
        for number in range(2, 6):
            served.succeed(*(appended(first, partition=number) for first in range(20)))
        assert not any(peer.answers for peer in slow)
        assert service_of(served).queue_size == 1
        disk.go.set()
        for peer in slow:
            assert codes(peer.wait(1)) == [""]


class Witness(Peer):
    """A peer that notes how many requests its partition has when it is answered."""

    service: PartitionService

    def __init__(self) -> None:
        super().__init__()
        self.queued: list[int] = []

    def post(self, answer: bytes | list[bytes], requests: int, size: int) -> None:
        self.queued.append(self.service.queue_size)
        super().post(answer, requests, size)

    def break_off(self, reason: str, requests: int, size: int) -> None:
        self.queued.append(self.service.queue_size)
        super().break_off(reason, requests, size)


def test_what_is_answered_is_not_under_way_any_more(tmp_path: Path) -> None:
    """Whoever asks for the gauges behind its last answer finds an empty queue."""
    created(tmp_path / "s")
    broken = bytearray(encode(appended(0, 1, sequence=3)))
    broken[28:32] = (1 << 30).to_bytes(4, "big")  # more records than the frame can have
    last = MaxTransactionIdRequest(1, 0, 0)
    with serving(tmp_path / "s") as served:
        peer, service = Witness(), service_of(served)
        peer.service = service
        service.hold()
        served.submit(peer, appended(0), appended(1), last, appended(2), last, appended(7), RecordRequest(0, 1, 0, 0))
        served.submit(peer, appended(3, session=2))  # session 1 is shut out
        served.submit(peer, last, TruncateRequest(2, 1, 0, -7))
        assert service.submit(run_of(peer, [bytes(broken)])) is Admission.ACCEPTED
        assert service.submit(request_of(peer, last)) is Admission.ACCEPTED
        assert service.queue_size == 12
        service.resume()
        peer.wait(12)
        assert peer.queued == [10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]


@pytest.mark.parametrize("fails", ["append_blocks", "truncate"])
def test_nor_is_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    created(tmp_path / "s")
    with serving(tmp_path / "s") as served:
        peer, service = Witness(), service_of(served)
        peer.service = service

        def failing(*_: object) -> None:
            assert service.queue_size == 2
            raise ZeroDivisionError

        monkeypatch.setattr(type(service.partition), fails, failing)
        service.hold()
        served.submit(peer, *([appended(0)] * 2 if fails == "append_blocks" else [TruncateRequest(1, 1, 0, -1)]))
        service.resume()
        peer.wait(2 if fails == "append_blocks" else 1)
        assert peer.queued == [0]


def test_what_arrives_during_a_flush_shares_the_next_one(tmp_path: Path) -> None:
    created(tmp_path / "s")
    with serving(tmp_path / "s") as served:
        service = service_of(served)
        with stuck(0) as disk:
            peer = Peer()
            served.submit(peer, appended(0))
            assert disk.entered.wait(PATIENCE)
            for first in range(1, 300):
                served.submit(peer, appended(first, sequence=first))
            disk.go.set()
            assert codes(peer.wait(300)) == [""] * 300
        # the metrics of a flush are told after its answers: the next request comes behind them
        served.one(MaxTransactionIdRequest(1, 0, 0))
        assert service.metrics.flush_requests.count == 2
        assert service.metrics.append.rates().count == 300


@pytest.mark.parametrize("options", [ServiceOptions(queue_requests=10), ServiceOptions(queue_bytes=700)])
def test_a_full_queue_takes_nothing_and_tells_when_there_is_room(tmp_path: Path, options: ServiceOptions) -> None:
    created(tmp_path / "s")
    with serving(tmp_path / "s", options=options) as served, stuck(0) as disk:
        peer, room = Peer(), threading.Event()
        service = service_of(served)
        served.submit(peer, appended(0))
        assert disk.entered.wait(PATIENCE)
        following = 1
        while following < 100 and service.submit(run_of(peer, [appended(following)])) is Admission.ACCEPTED:
            following += 1
        assert 1 < following <= 12
        service.on_room(room.set)
        assert not room.is_set()
        big = run_of(peer, [appended(following, 100)])
        assert service.submit(big) is Admission.FULL
        disk.go.set()
        assert room.wait(PATIENCE)
        peer.wait(following)
        assert service.submit(big) is Admission.ACCEPTED  # however big, an empty queue takes it
        assert codes(peer.wait(following + 1)) == [""] * (following + 1)
        again = threading.Event()
        service.on_room(again.set)
        assert again.is_set()


def test_a_partition_without_progress_is_stalled_and_the_answer_is_busy(tmp_path: Path) -> None:
    created(tmp_path / "s")
    options = ServiceOptions(queue_requests=2, stall_seconds=1e-9)
    with serving(tmp_path / "s", options=options) as served, stuck(0) as disk:
        peer = Peer()
        service = service_of(served)
        served.submit(peer, appended(0))
        assert disk.entered.wait(PATIENCE)
        assert service.submit(run_of(peer, [appended(1), appended(2)])) is Admission.ACCEPTED
        refused = run_of(peer, [appended(3, sequence=3), appended(4, sequence=4)])
        assert service.submit(refused) is Admission.STALLED
        assert service.stalled_seconds > 0
        answers = parsed(service.busy_answer(refused))
        assert [answer.sequence for answer in answers] == [3, 4]
        assert codes(answers) == ["busy", "busy"]
        (one,) = parsed(service.busy_answer(request_of(peer, MaxTransactionIdRequest(1, 9, 0))))
        assert (one.sequence, codes([one])) == (9, ["busy"])
        disk.go.set()
        assert codes(peer.wait(3)) == ["", "", ""]


class Pusher:
    """A thread that sends appends as fast as they are taken, until it is told to stop."""

    def __init__(self, served: Served, session: int) -> None:
        self.peer, self.sent, self.missed = Peer(), 0, 0
        self._served, self._session = served, session
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            service = self._served.hosted.service(0)
            if service is None:
                self.missed += 1
                continue
            run = run_of(self.peer, [appended(0, sequence=self.sent, session=self._session)])
            admission = service.submit(run)
            if admission is Admission.ACCEPTED:
                self.sent += 1
                continue
            room = threading.Event()
            service.on_room(room.set)
            assert room.wait(PATIENCE)

    def stop(self) -> list[StorageMessage]:
        self._stop.set()
        self._thread.join()
        return self.peer.wait(self.sent)


@pytest.mark.turns(8)
@pytest.mark.parametrize("delete_files", [True, False])
def test_s2_a_partition_taken_away_under_load_leaves_no_request_without_an_answer(
    tmp_path: Path, delete_files: bool
) -> None:
    created(tmp_path / "s")
    with serving(tmp_path / "s", options=ServiceOptions(queue_requests=50)) as served:
        pushers = [Pusher(served, session=1) for _ in range(3)]
        for _ in range(5):
            served.hosted.unassign([0], delete_files=delete_files)
            served.hosted.assign([0])
        for pusher in pushers:
            answers = pusher.stop()
            assert [answer.sequence for answer in answers] == list(range(pusher.sent))
            assert pusher.peer.requests == pusher.sent
            assert set(codes(answers)) <= {"", "out-of-order", "not-assigned"}


def test_a_partition_that_cannot_be_taken_away_goes_on(tmp_path: Path) -> None:
    created(tmp_path / "s")
    with serving(tmp_path / "s") as served:
        served.succeed(appended(0))
        unknown = tmp_path / "s" / "0" / "notes.txt"
        unknown.write_text("mine")
        with pytest.raises(RefusedError):
            served.hosted.unassign([0], delete_files=True)
        served.succeed(appended(1))
        unknown.unlink()
        served.hosted.unassign([0], delete_files=True)
        assert served.hosted.service(0) is None


def test_a_partition_whose_disk_hangs_cannot_be_taken_away_and_holds_no_administrator_up(tmp_path: Path) -> None:
    created(tmp_path / "s")
    with serving(tmp_path / "s", options=ServiceOptions(stall_seconds=0.01)) as served, stuck(0) as disk:
        peer = Peer()
        served.submit(peer, appended(0))
        assert disk.entered.wait(PATIENCE)
        for change in (lambda: served.hosted.unassign([0], delete_files=True), lambda: served.hosted.reopen(0)):
            with pytest.raises(DeniedError) as caught:
                change()
            assert failure_of(caught.value).code == "busy"
        served.hosted.unassign([1], delete_files=False)
        served.hosted.set_availability([0], writable=False)
        served.hosted.set_availability([0], writable=True)
        disk.go.set()
        assert codes(peer.wait(1)) == [""]
        served.succeed(appended(1))


def test_a_request_for_a_service_that_ended_meanwhile_is_answered(tmp_path: Path) -> None:
    created(tmp_path / "s")
    with serving(tmp_path / "s") as served:
        service, peer = service_of(served), Peer()
        served.hosted.unassign([0], delete_files=False)
        assert service.submit(run_of(peer, [appended(0), appended(1)])) is Admission.ACCEPTED
        assert service.submit(request_of(peer, MaxTransactionIdRequest(1, 0, 0))) is Admission.ACCEPTED
        answers = peer.wait(3)
        assert codes(answers) == ["not-assigned"] * 3
        assert isinstance(answers[0], FailureResponse)
        assert answers[0].failure.message == "java.lang.Exception: Partition:0 is not assigned."


def test_closing_executes_what_is_queued_and_refuses_the_rest(tmp_path: Path) -> None:
    created(tmp_path / "s")
    with serving(tmp_path / "s") as served:
        peer, service = Peer(), service_of(served)
        with stuck(0) as disk:
            served.submit(peer, appended(0))
            assert disk.entered.wait(PATIENCE)
            served.submit(peer, appended(1))
            closing = threading.Thread(target=served.hosted.close)
            closing.start()
            late: list[StorageMessage] = []
            while not late or codes(late) == [""]:  # until the closing thread has come so far
                other = Peer()
                assert service.submit(request_of(other, MaxTransactionIdRequest(1, 0, 0))) is Admission.ACCEPTED
                if other.requests:
                    late = other.wait(1)
            assert codes(late) == ["closed"]
            disk.go.set()
            closing.join()
        assert codes(peer.wait(2)) == ["", ""]
        with pytest.raises(RefusedError):
            served.hosted.assign([1])
        with pytest.raises(RefusedError):
            served.hosted.check_open(served.hosted.storage.cluster_key, 2)
    with serving(tmp_path / "s") as served:
        assert served.one(MaxTransactionIdRequest(1, 0, 0)) == MaxTransactionIdResponse(1, 0, 0, 1)


def test_closing_does_not_wait_for_ever_for_a_stuck_disk(tmp_path: Path) -> None:
    created(tmp_path / "s")
    with serving(tmp_path / "s") as served, stuck(0) as disk:
        peer = Peer()
        served.submit(peer, appended(0))
        assert disk.entered.wait(PATIENCE)
        served.submit(peer, MaxTransactionIdRequest(1, 7, 0))
        assert served.hosted.close(0.0) is False
        (answer,) = peer.wait(1)
        assert (answer.sequence, codes([answer])) == (7, ["closed"])
        disk.go.set()
        peer.wait(2)
        assert served.hosted.close() is True


# --- errors of the program -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [MemoryError(), ZeroDivisionError("oops"), RecursionError("deep")])
@pytest.mark.parametrize("where", ["append_blocks", "truncate"])
def test_s13_whatever_goes_wrong_is_answered_and_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, where: str
) -> None:
    created(tmp_path / "s")
    with serving(tmp_path / "s") as served:
        served.succeed(appended(0, 2))

        def failing(*_: object, **__: object) -> None:
            raise error

        service = service_of(served)
        request: Callable[[int], StorageMessage] = lambda n: (  # noqa: E731
            appended(2, sequence=n) if where == "append_blocks" else TruncateRequest(1, n, 0, 0)
        )
        with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
            patch.setattr(service.partition, where, failing)
            answers = served.ask(request(1), request(2))
        expected = "out-of-memory" if isinstance(error, MemoryError) else "internal"
        assert [(a.sequence, c) for a, c in zip(answers, codes(answers), strict=True)] == [(1, expected), (2, expected)]
        assert any(entry.exc_info for entry in caplog.records)
        served.succeed(appended(2))


@pytest.mark.parametrize("leave", [SystemExit, KeyboardInterrupt])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_exit_ends_its_thread_after_every_request_was_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leave: type[BaseException]
) -> None:
    created(tmp_path / "s")
    with serving(tmp_path / "s") as served:
        service = service_of(served)
        real = service.partition.append_blocks
        threads: list[threading.Thread] = []

        def once(blocks: object) -> object:
            threads.append(threading.current_thread())
            if len(threads) == 1:
                raise leave
            return real(blocks)  # type: ignore[arg-type]

        monkeypatch.setattr(service.partition, "append_blocks", once)
        service.hold()
        peer = Peer()
        served.submit(peer, appended(0, sequence=1), MaxTransactionIdRequest(1, 2, 0), appended(0, sequence=3))
        service.resume()
        assert codes(peer.wait(3)) == ["internal", "", ""]
        served.succeed(appended(1))
        threads[0].join(PATIENCE)  # it tells of its end while this test is the one to hear of it
        assert not threads[0].is_alive()


def test_a_connection_in_trouble_harms_only_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Peer):
        def post(self, answer: bytes | list[bytes], requests: int, size: int) -> None:
            raise RuntimeError("the loop is gone")

    created(tmp_path / "s")
    with serving(tmp_path / "s") as served:
        broken, good = Broken(), Peer()
        service = service_of(served)
        service.hold()
        served.submit(broken, appended(0))
        served.submit(good, appended(1))
        service.resume()
        assert codes(good.wait(1)) == [""]
        assert any("could not be handed" in entry.message for entry in caplog.records)


# --- workers ---------------------------------------------------------------------------------------------------------


def test_a_pool_makes_no_more_threads_than_are_busy_at_once() -> None:
    pool = Executor(3, log=LOG)
    go, ran = threading.Event(), threading.Semaphore(0)

    class Waiting:
        def run(self) -> bool:
            ran.release()
            assert go.wait(PATIENCE)
            return False

    for expected in (1, 2, 3, 3, 3):
        pool.schedule(Waiting())
        assert pool.threads == expected
    for _ in range(3):
        assert ran.acquire(timeout=PATIENCE)
    assert pool.others_wait
    go.set()
    for _ in range(2):
        assert ran.acquire(timeout=PATIENCE)
    pool.close()
    assert pool.threads == 0


def test_a_job_that_asks_for_it_stands_in_line_again_behind_the_others() -> None:
    pool = Executor(1, log=LOG)
    order: list[str] = []
    done = threading.Event()
    begin = threading.Event()

    class Job:
        def __init__(self, name: str, turns: int) -> None:
            self.name, self.turns = name, turns

        def run(self) -> bool:
            assert begin.wait(PATIENCE)
            order.append(self.name)
            self.turns -= 1
            if len(order) == 5:
                done.set()
            return self.turns > 0

    for job in (Job("a", 3), Job("b", 2)):
        pool.schedule(job)
    begin.set()
    assert done.wait(PATIENCE)
    pool.close()
    assert order == ["a", "b", "a", "b", "a"]


def test_more_partitions_than_workers_all_make_progress(tmp_path: Path) -> None:
    created(tmp_path / "s", 12)
    with serving(tmp_path / "s", options=ServiceOptions(workers=2)) as served:
        peers = [Peer() for _ in range(12)]
        for first in range(30):
            for number, peer in enumerate(peers):
                message: AppendRequest = appended(first, partition=number, sequence=first)
                served.submit(peer, message, partition=number)
        for peer in peers:
            answers = peer.wait(30)
            assert [answer.sequence for answer in answers] == list(range(30))
            assert all(isinstance(answer, SuccessResponse) for answer in answers)
