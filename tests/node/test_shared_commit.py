"""Appends of many partitions over one table: whatever comes together, each partition and each peer sees what it would alone."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.node.service_support import LOG, Peer, created, record, run_of
from waltzctl.engine.durable.disk import WritableFile
from waltzctl.engine.durable.flusher import Flusher
from waltzctl.engine.errors import DiskFullError, SyncFailedError
from waltzctl.engine.net.executor import Job
from waltzctl.engine.node import shared_commit
from waltzctl.engine.node.hosted_storage import HostedStorage
from waltzctl.engine.node.node_metrics import NodeMetrics
from waltzctl.engine.node.node_settings import ServiceOptions
from waltzctl.engine.node.shared_commit import FEWEST, SharedCommit
from waltzctl.engine.scan.transcode import AppendEncoder
from waltzctl.engine.storage.directory import StorageDirectory, StorageOptions
from waltzctl.engine.storage.partition import Partition
from waltzctl.formats.wire.storage import AppendRequest, FailureResponse, encode

PARTITIONS = 6
LONGEST = 200
SESSION = 5


def request(
    partition: int,
    first: int,
    count: int = 1,
    *,
    session: int = SESSION,
    sequence: int = 0,
    data: bytes = b"data",
    **more: Any,
) -> AppendRequest:
    """An append of consecutive records, with request ids of their partition."""
    records = tuple(record(number, data, partition=partition) for number in range(first, first + count))
    return AppendRequest(session, sequence, partition, records, more.get("offline", False))


class Line:
    """Jobs that are executed when the test says so (`engine.net.executor.JobExecutor`)."""

    at_rest = False
    """So that small appends go through passes."""
    others_wait = False

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def schedule(self, job: Job) -> None:
        self.jobs.append(job)

    def time(self) -> float:
        return time.monotonic()

    def call_later(self, seconds: float, call: Callable[[], None]) -> bool:
        """Nothing hangs here."""
        return True

    def close(self) -> None:
        """It has no thread."""

    def work(self) -> None:
        while self.jobs:
            if (job := self.jobs.pop(0)).run():
                self.jobs.append(job)


class Flushes:
    """Syncs nothing, and fails for the paths in `bad`."""

    def __init__(self) -> None:
        self.bad: set[str] = set()
        self.counts: list[int] = []
        self.watched: list[Peer] = []

    def flush(self, files: Sequence[WritableFile]) -> list[SyncFailedError | None]:
        self.counts.append(len(files))
        assert not any(peer.answers for peer in self.watched), "an answer before its records are durable"
        failed = [SyncFailedError(file.path, None, OSError(errno.EIO, "no"), doing="sync") for file in files]
        return [error if error.path.parent.name in self.bad else None for error in failed]

    def close(self) -> None:
        """There is nothing to end."""


class Node:
    """A hosted storage whose passes are run by hand, its peers, and how many partitions were committed over one table."""

    def __init__(self, path: Path, *, partitions: int = PARTITIONS, segment_size: int = 1 << 20) -> None:
        self.line, self.flushes, self.shared = Line(), Flushes(), list[int]()
        self.hosted = HostedStorage(
            StorageDirectory.open(
                path, options=StorageOptions(max_data_length=LONGEST, segment_size_threshold=segment_size)
            ),
            options=ServiceOptions(),
            metrics=NodeMetrics(),
            log=LOG,
            executor=self.line,
            flusher=cast("Flusher", self.flushes),
        )
        # however long it takes to submit: a pass begins beside another one that is under way for a while
        self.hosted._passes._clock = lambda: 0.0
        self.partitions = partitions

    def partition(self, number: int) -> Partition:
        service = self.hosted.service(number)
        assert service is not None
        return service.partition

    def submit(self, peer: Peer, *requests: AppendRequest | bytes, partition: int) -> None:
        """One run."""
        service = self.hosted.service(partition)
        assert service is not None
        service.submit(run_of(peer, requests))

    def open_session(self, session: int = SESSION) -> None:
        """Let a session in everywhere, and append the first record."""
        for number in range(self.partitions):
            self.submit(Peer(), request(number, 0, session=session), partition=number)
        self.line.work()
        self.flushes.counts.clear()

    def logs(self) -> list[list[bytes]]:
        """The records of every partition, as they stand on disk."""
        found = []
        for number in range(self.partitions):
            partition = self.partition(number)
            found.append([one.encode() for one in partition.read_range(0, partition.next_transaction_id)])
        return found


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many partitions each pass committed over one table."""
    found: list[int] = []
    real = SharedCommit.finish

    def finish(self: SharedCommit, errors: Sequence[SyncFailedError | None]) -> None:
        found.append(len(self.shares))
        real(self, errors)

    monkeypatch.setattr(SharedCommit, "finish", finish)
    return found


@contextmanager
def node(path: Path, *, partitions: int = PARTITIONS, segment_size: int = 1 << 20) -> Iterator[Node]:
    created(path, partitions)
    opened = Node(path, partitions=partitions, segment_size=segment_size)
    try:
        yield opened
    finally:
        opened.line.work()
        assert opened.hosted.close()


def told(peer: Peer) -> list[tuple[int, int, str]]:
    """What a peer was answered: partition, sequence, and the failure's code or nothing; in the order of each partition."""
    answers = [
        (one.partition, one.sequence, str(one.failure.code) if isinstance(one, FailureResponse) else "")
        for one in peer.answers
    ]
    return sorted(answers, key=lambda one: one[0])


# --- as usual --------------------------------------------------------------------------------------------------------


def test_what_every_partition_has_is_written_over_one_table_and_flushed_once(
    tmp_path: Path, together: list[int]
) -> None:
    with node(tmp_path) as one:
        one.open_session()
        together.clear()
        peers = [Peer(), Peer()]
        for number in range(PARTITIONS):
            for peer, first in zip(peers, (1, 3), strict=True):
                requests = [request(number, at, sequence=at) for at in (first, first + 1)]
                one.submit(peer, *requests, partition=number)
        one.flushes.watched = peers
        one.line.work()
        assert (together, one.flushes.counts) == ([PARTITIONS], [PARTITIONS])
        for peer, first in zip(peers, (1, 3), strict=True):
            assert told(peer) == [(number, at, "") for number in range(PARTITIONS) for at in (first, first + 1)]
            assert peer.requests == 2 * PARTITIONS
        for number in range(PARTITIONS):
            service = one.hosted.service(number)
            assert service is not None
            assert (service.queue_size, service.hold(0.0)) == (0, True)
            service.resume()
            metrics = service.metrics
            assert (metrics.append.count, metrics.append_latency.count, metrics.flush_latency.count) == (5, 5, 2)
            assert (metrics.flush_requests.count, metrics.flush_requests.sum) == (2, 5.0)
        whole = one.logs()
    with StorageDirectory.open(tmp_path, options=StorageOptions()) as again:
        for number, records in enumerate(whole):
            assert [r.encode() for r in again.partition(number).read_range(0, 100)] == records
            assert [r.transaction_id for r in again.partition(number).read_range(0, 100)] == [0, 1, 2, 3, 4]


def test_who_is_answered_finds_nothing_under_way(tmp_path: Path) -> None:
    """The gauges are right before the peer can know."""
    sizes: list[int] = []

    class Looking(Peer):
        def post(self, answer: bytes | list[bytes], requests: int, size: int) -> None:
            sizes.extend(service.queue_size for service in one.hosted.services)
            super().post(answer, requests, size)

    with node(tmp_path) as one:
        one.open_session()
        peer = Looking()
        for number in range(PARTITIONS):
            one.submit(peer, request(number, 1), partition=number)
        assert [service.queue_size for service in one.hosted.services] == [1] * PARTITIONS
        one.line.work()
    assert sizes == [0] * PARTITIONS


@pytest.mark.parametrize(("partitions", "shared"), [(FEWEST - 1, 0), (FEWEST, FEWEST)])
def test_few_partitions_are_committed_by_themselves(
    tmp_path: Path, together: list[int], partitions: int, shared: int
) -> None:
    with node(tmp_path, partitions=partitions) as one:
        one.open_session()
        together.clear()
        peer = Peer()
        for number in range(partitions):
            one.submit(peer, request(number, 1), partition=number)
        one.line.work()
        assert (together, one.flushes.counts) == ([shared], [partitions])
        assert told(peer) == [(number, 0, "") for number in range(partitions)]


@pytest.mark.parametrize(("missing", "shared"), [(0, PARTITIONS), (1, PARTITIONS - 1)])
def test_so_many_bytes_are_copied_together(
    tmp_path: Path, together: list[int], monkeypatch: pytest.MonkeyPatch, missing: int, shared: int
) -> None:
    """Who has more is committed by itself, and those behind it may still have room."""
    requests = [request(number, 1, data=bytes(100)) for number in range(PARTITIONS)]
    monkeypatch.setattr(shared_commit, "MOST_BYTES", sum(len(encode(one)) for one in requests) - missing)
    with node(tmp_path) as one:
        one.open_session()
        together.clear()
        peer = Peer()
        for number, each in enumerate(requests):
            one.submit(peer, each, partition=number)
        one.line.work()
        assert together == [shared]
        assert told(peer) == [(number, 0, "") for number in range(PARTITIONS)]


@pytest.mark.parametrize("place", ["checkpoint", "segment"])
def test_who_needs_more_than_one_sync_is_committed_by_itself(tmp_path: Path, together: list[int], place: str) -> None:
    size = 64 << 10
    with node(tmp_path, segment_size=size) as one:
        one.open_session()
        ahead = 998 if place == "checkpoint" else 1 + (size - 128) // (LONGEST + 40)
        peer, first = Peer(), 1
        while first <= ahead:
            count = min(200, ahead + 1 - first)
            data = bytes(1 if place == "checkpoint" else LONGEST)
            one.submit(peer, request(2, first, count, data=data), partition=2)
            one.line.work()
            first += count
        together.clear()
        peer = Peer()
        for number in range(PARTITIONS):
            following = one.partition(number).next_transaction_id
            each = request(number, following, 2, data=bytes(LONGEST))
            one.submit(peer, each, partition=number)
        one.line.work()
        assert together == [PARTITIONS - 1]
        assert told(peer) == [(number, 0, "") for number in range(PARTITIONS)]
        assert [len(one.partition(number).segments) for number in (1, 2)] == [1, 1 + (place == "segment")]
        assert [one.partition(number).next_transaction_id for number in range(PARTITIONS)] == [
            ahead + 3 if number == 2 else 3 for number in range(PARTITIONS)
        ]


# --- not as usual ----------------------------------------------------------------------------------------------------

STRANGE: dict[str, Callable[[int, int], AppendRequest | bytes]] = {
    "fine": lambda partition, following: request(partition, following, sequence=1),
    "several": lambda partition, following: request(partition, following, 3, sequence=2),
    "none": lambda partition, _: request(partition, 0, 0, sequence=3),
    "order": lambda partition, following: request(partition, following + 1, sequence=4),
    "older": lambda partition, following: request(partition, following, session=SESSION - 1, sequence=5),
    "newer": lambda partition, following: request(partition, following, session=SESSION + 1, sequence=6),
    "offline": lambda partition, following: request(partition, following, sequence=7, offline=True),
    "checksum": lambda partition, following: AppendRequest(
        SESSION, 8, partition, (record(following, b"other", checksum=1, partition=partition),), False
    ),
    "long": lambda partition, following: request(partition, following, sequence=9, data=bytes(LONGEST + 1)),
    "malformed": lambda partition, following: _spoilt(encode(request(partition, following, sequence=10))),
}
"""Requests by what is strange about them, of a partition whose next id is given."""


def _spoilt(frame: bytes) -> bytes:
    """A frame whose number of records is one too large."""
    place = 7 + 1 + 8 + 8 + 4 + 3
    return frame[:place] + bytes([frame[place] + 1]) + frame[place + 1 :]


def _outcome(path: Path, story: Sequence[tuple[int, int, str]], *, shared: bool) -> Any:
    """What peers are told, and what the logs hold, when a story of (partition, peer, kind) comes in one pass."""
    with node(path) as one:
        one.open_session()
        if not shared:
            one.hosted._passes._shared._encoder = cast("AppendEncoder", None)  # so that each is committed by itself
        peers = [Peer(), Peer(), Peer()]
        for partition, peer, kind in story:
            one.submit(peers[peer], STRANGE[kind](partition, 1), partition=partition)
        one.line.work()
        # whoever was right goes on
        late = Peer()
        for number in range(PARTITIONS):
            following = one.partition(number).next_transaction_id
            one.submit(late, request(number, following, session=SESSION + 1), partition=number)
        one.line.work()
        metrics = [one.hosted._metrics.partition(number) for number in range(PARTITIONS)]
        return (
            [(told(peer), peer.closed, peer.requests, peer.size) for peer in (*peers, late)],
            one.logs(),
            [(m.append.count, m.append_latency.count, m.flush_latency.count, m.flush_requests.sum) for m in metrics],
        )


@pytest.mark.turns(16)
@settings(max_examples=60)
@given(
    story=st.lists(
        st.tuples(st.integers(0, PARTITIONS - 1), st.integers(0, 2), st.sampled_from(["fine", "fine", *STRANGE])),
        min_size=FEWEST,
        max_size=14,
    )
)
def test_whatever_comes_together_has_the_outcome_that_it_has_alone(
    tmp_path_factory: pytest.TempPathFactory, story: list[tuple[int, int, str]]
) -> None:
    path = tmp_path_factory.mktemp("pass")
    assert _outcome(path / "shared", story, shared=True) == _outcome(path / "alone", story, shared=False)


@pytest.mark.parametrize("kind", [kind for kind in STRANGE if kind not in ("fine", "several")])
def test_one_that_is_not_as_usual_is_judged_by_itself_and_the_others_go_on(
    tmp_path: Path, together: list[int], kind: str
) -> None:
    with node(tmp_path) as one:
        one.open_session()
        together.clear()
        peer, strange = Peer(), Peer()
        for number in range(PARTITIONS):
            each = STRANGE[kind if number == 3 else "fine"](number, 1)
            one.submit(strange if number == 3 else peer, each, partition=number)
        one.line.work()
        assert together == [PARTITIONS - 1]
        assert told(peer) == [(number, 1, "") for number in range(PARTITIONS) if number != 3]
        assert strange.requests == 1


def test_who_sent_a_frame_that_cannot_be_decoded_is_not_heard_behind_it(tmp_path: Path, together: list[int]) -> None:
    """Also when what comes behind it would be as usual."""
    with node(tmp_path) as one:
        one.open_session()
        together.clear()
        peer, broken = Peer(), Peer()
        service = one.hosted.service(3)
        assert service is not None
        service.commit.broken.append(broken)
        for number in range(PARTITIONS):
            one.submit(broken if number == 3 else peer, STRANGE["fine"](number, 1), partition=number)
        one.line.work()
        assert together == [PARTITIONS - 1]
        assert (broken.closed, broken.answers, one.partition(3).next_transaction_id) == (True, [], 1)
        assert len(peer.answers) == PARTITIONS - 1


# --- what fails ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_write_that_fails_is_told_to_its_own_partition_and_leaves_nothing(
    tmp_path: Path, together: list[int], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    real = WritableFile.write_pieces_at

    def write(self: WritableFile, offset: int, pieces: Sequence[bytes | memoryview]) -> None:
        if self.path.parent.name == "3":
            real(self, offset, [memoryview(pieces[0])[:20]])
            raise DiskFullError(self.path, offset, OSError(code, "no"))
        real(self, offset, pieces)

    with node(tmp_path) as one:
        one.open_session()
        together.clear()
        with monkeypatch.context() as patched:
            patched.setattr(WritableFile, "write_pieces_at", write)
            peer = Peer()
            for number in range(PARTITIONS):
                one.submit(peer, STRANGE["fine"](number, 1), partition=number)
            one.line.work()
        assert together == [PARTITIONS - 1]
        assert told(peer) == [(number, 1, "disk-full" if number == 3 else "") for number in range(PARTITIONS)]
        assert one.partition(3).next_transaction_id == 1
        service = one.hosted.service(3)
        assert service is not None
        assert (service.queue_size, service.hold(0.0), service.access.outage is not None) == (0, True, True)
        service.resume()
        assert sum(len(log) for log in one.logs()) == 2 * PARTITIONS - 1


def test_a_sync_that_fails_is_told_to_its_own_partition_which_writes_no_more(
    tmp_path: Path, together: list[int]
) -> None:
    with node(tmp_path) as one:
        one.open_session()
        together.clear()
        one.flushes.bad = {"3"}
        peer = Peer()
        for number in range(PARTITIONS):
            one.submit(peer, STRANGE["fine"](number, 1), partition=number)
        one.line.work()
        assert together == [PARTITIONS]
        assert told(peer) == [(number, 1, "sync-failed" if number == 3 else "") for number in range(PARTITIONS)]
        assert [one.partition(number).failed is not None for number in range(PARTITIONS)] == [
            number == 3 for number in range(PARTITIONS)
        ]
        one.flushes.bad = set()
        for number in range(PARTITIONS):
            following = one.partition(number).next_transaction_id
            one.submit(peer, request(number, following, sequence=2), partition=number)
        one.line.work()
        assert [code for _, sequence, code in told(peer) if sequence == 2] == [
            "sync-failed" if number == 3 else "" for number in range(PARTITIONS)
        ]


def test_without_memory_for_all_of_it_each_is_committed_by_itself(
    tmp_path: Path, together: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with node(tmp_path) as one:
        one.open_session()
        together.clear()

        def no_memory(*_: object) -> None:
            raise MemoryError

        monkeypatch.setattr(AppendEncoder, "encode_groups", no_memory)
        peer = Peer()
        for number in range(PARTITIONS):
            one.submit(peer, STRANGE["fine"](number, 1), partition=number)
        one.line.work()
        assert together == [0]
        assert told(peer) == [(number, 1, "") for number in range(PARTITIONS)]


def test_without_memory_for_the_answers_every_request_fails_and_none_is_left_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with node(tmp_path) as one:
        one.open_session()

        def no_memory(_: object) -> bytes:
            raise MemoryError

        with monkeypatch.context() as patched:
            patched.setattr(shared_commit, "successes", no_memory)
            peer = Peer()
            for number in range(PARTITIONS):
                one.submit(peer, STRANGE["fine"](number, 1), partition=number)
            one.line.work()
        assert told(peer) == [(number, 1, "out-of-memory") for number in range(PARTITIONS)]
        assert [service.queue_size for service in one.hosted.services] == [0] * PARTITIONS


@pytest.mark.parametrize("where", ["write_blocks", "finish_append"])
@pytest.mark.parametrize("leave", [SystemExit, KeyboardInterrupt])
def test_an_exit_of_the_interpreter_waits_until_every_partition_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, leave: type[BaseException]
) -> None:
    with node(tmp_path) as one:
        one.open_session()
        real = getattr(Partition, where)

        def leaves(self: Partition, *arguments: Any) -> Any:
            done = real(self, *arguments)
            if self.number == 3:
                if where == "write_blocks":
                    self._write_lock.release()
                raise leave
            return done

        with monkeypatch.context() as patched:
            patched.setattr(Partition, where, leaves)
            peer = Peer()
            for number in range(PARTITIONS):
                one.submit(peer, STRANGE["fine"](number, 1), partition=number)
            (job,) = one.line.jobs
            one.line.jobs.clear()
            with pytest.raises(leave):
                job.run()
        assert [number for number, _, code in told(peer) if code] == [3]
        assert len(peer.answers) == PARTITIONS
        assert [service.queue_size for service in one.hosted.services] == [0] * PARTITIONS
        assert job.run() is False, "the pass can go on"


def test_a_peer_that_cannot_be_answered_is_nobody_else_s_trouble(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Gone(Peer):
        def post(self, answer: bytes | list[bytes], requests: int, size: int) -> None:
            raise RuntimeError("gone")

        def later(self, call: Callable[..., object], *arguments: object) -> None:
            raise RuntimeError("gone")

    with node(tmp_path) as one, caplog.at_level(logging.ERROR):
        one.open_session()
        peer, gone = Peer(), Gone()
        for number in range(PARTITIONS):
            one.submit(gone if number == 0 else peer, STRANGE["fine"](number, 1), partition=number)
        one.line.work()
        assert told(peer) == [(number, 1, "") for number in range(1, PARTITIONS)]
        assert "an answer could not be handed to its connection" in caplog.text
        assert [one.partition(number).next_transaction_id for number in range(PARTITIONS)] == [2] * PARTITIONS
