"""A partition's requests where small appends go through passes: what a pass takes, what it leaves, and who is asked next."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.node.service_support import PATIENCE, Peer, appended, created, run_of, serving
from tests.node.test_partition_service import SESSION, STALL, Alone, Partition, Pool
from waltzctl.engine.errors import SyncFailedError
from waltzctl.engine.node import partition_service
from waltzctl.engine.node.commit import UnsyncedCommit
from waltzctl.engine.node.node_settings import ServiceOptions
from waltzctl.engine.node.partition_service import Admission, PartitionService
from waltzctl.engine.node.permissions import not_loaded
from waltzctl.formats.wire.storage import MaxTransactionIdRequest, SuccessResponse, encode

MOST = partition_service.PASS_BYTES


class Written:
    """Records that are not synced yet."""

    def __init__(self, records: int) -> None:
        self.records, self.file = records, object()


class TwoHalves(Partition):
    """As `Partition`, and appends in two halves; with `whole` each needs more than one sync."""

    whole = False

    def write_blocks(self, blocks: Sequence[Any]) -> Written | None:
        return None if self.whole else Written(sum(block.records for block in blocks))

    def finish_append(self, append: Written, error: SyncFailedError | None) -> None:
        if error is not None:
            raise error
        self.done.append(append.records)
        self.next_transaction_id += append.records


class InPasses(Alone):
    """A service with passes; the line of each is `pool.line` and `passes.line`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        super().__init__(monkeypatch, **options)
        self.partition = TwoHalves()
        self.service.partition = self.service.commit.target = self.partition  # type: ignore[assignment]
        self.passes = Pool()
        self.service._passes = self.passes  # type: ignore[assignment]

    def append(self, *firsts: int, size: int = 1) -> None:
        """One run, a request for each."""
        frames = [encode(appended(n, sequence=n, session=SESSION, partition=3, data=bytes(size))) for n in firsts]
        self.service.submit(run_of(self.peer, frames))

    def begin(self) -> UnsyncedCommit | None:
        assert self.passes.line.pop(0) is self.service
        runs = self.service.take()
        return self.service.begin(runs) if runs else None

    @property
    def lines(self) -> tuple[int, int]:
        """How often it stands in line for a pass, and for a thread of its own."""
        return len(self.passes.line), len(self.pool.line)

    def sequences(self) -> list[int]:
        found = [answer.sequence for answer in self.peer.answers]
        self.peer.answers.clear()
        return found


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> InPasses:
    return InPasses(monkeypatch)


def test_an_append_is_answered_when_its_sync_is_done(alone: InPasses) -> None:
    alone.append(0, 1)
    alone.append(2)
    assert alone.lines == (1, 0)
    commit = alone.begin()
    assert commit is not None
    assert (alone.sequences(), alone.partition.next_transaction_id, alone.service.queue_size) == ([], 0, 3)
    alone.service.finish(commit, None)
    assert (alone.sequences(), alone.partition.done, alone.service.queue_size) == ([0, 1, 2], [3], 0)
    assert alone.lines == (0, 0)
    alone.service.go_on()
    assert alone.lines == (0, 0)
    assert alone.service.hold(0.0)


def test_what_a_pass_took_makes_room_in_the_queue_for_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = InPasses(monkeypatch, queue_bytes=400, queue_requests=4)
    for first in range(0, 12, 3):
        for number in range(first, first + 3):
            alone.append(number)
        assert alone.service.queue_size == 3
        commit = alone.begin()
        assert commit is not None
        alone.service.finish(commit, None)
        alone.service.go_on()
    assert alone.sequences() == list(range(12))


def test_a_sync_that_failed_is_told_to_everybody_in_the_commit(alone: InPasses) -> None:
    alone.append(0, 1)
    commit = alone.begin()
    assert commit is not None
    alone.service.finish(commit, SyncFailedError(Path("/d/3/0.seg"), None, OSError("EIO"), doing="sync"))
    assert alone.codes() == ["sync-failed"] * 2
    assert alone.service.access.outage is not None
    alone.service.go_on()
    assert alone.service.queue_size == 0


def test_what_needs_more_than_one_sync_is_done_at_once(alone: InPasses) -> None:
    alone.partition.whole = True
    alone.append(0, 1)
    assert alone.begin() is None
    assert (alone.sequences(), alone.partition.done) == ([0, 1], [2])


def test_what_is_refused_needs_no_sync(alone: InPasses) -> None:
    alone.append(7)
    assert alone.begin() is None
    assert alone.codes() == ["out-of-order"]


@pytest.mark.parametrize("limit", [MOST, 500])
@pytest.mark.parametrize(("more", "in_pass"), [(-1, True), (0, True), (1, False)])
def test_long_runs_get_a_thread_of_their_own(
    monkeypatch: pytest.MonkeyPatch, limit: int, more: int, in_pass: bool
) -> None:
    """What a pass takes of a partition ends with its own bound, and with that of a commit."""
    alone = InPasses(monkeypatch, commit_bytes=min(limit, 8 << 20))
    run = run_of(alone.peer, [appended(0, session=SESSION, partition=3)])._replace(size=limit + more)
    alone.service.submit(run)
    assert alone.lines == ((1, 0) if in_pass else (0, 1))


def test_while_nothing_else_is_under_way_there_is_no_pass(alone: InPasses) -> None:
    alone.pool.at_rest = True
    alone.append(0)
    assert alone.lines == (0, 1)
    alone.append(1)
    assert alone.work() is False
    assert alone.sequences() == [0, 1]
    alone.pool.at_rest = False
    alone.append(2)
    assert alone.lines == (1, 0)


def test_anything_but_an_append_gets_a_thread_of_its_own(alone: InPasses) -> None:
    alone.submit()
    assert alone.lines == (0, 1)
    assert alone.work() is False
    assert alone.codes() == [""]


@pytest.mark.parametrize(("sizes", "taken"), [([30, 40, 30], 3), ([30, 40, 31], 2), ([100, 1], 1), ([1, 100], 1)])
def test_a_pass_takes_what_fits_and_comes_back_for_the_rest(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], taken: int
) -> None:
    monkeypatch.setattr(partition_service, "PASS_BYTES", 100)
    alone = InPasses(monkeypatch)
    for number, size in enumerate(sizes):
        run = run_of(alone.peer, [appended(number, sequence=number, session=SESSION, partition=3)])
        alone.service.submit(run._replace(size=size))
    commit = alone.begin()
    assert commit is not None
    assert alone.service.queue_size == len(sizes)
    alone.service.finish(commit, None)
    assert alone.sequences() == list(range(taken))
    assert alone.service.queue_size == len(sizes) - taken
    alone.service.go_on()
    assert alone.lines == (int(taken < len(sizes)), 0)


def test_a_request_behind_appends_follows_them_in_a_thread_of_its_own(alone: InPasses) -> None:
    alone.append(0)
    alone.submit(sequence=50)
    alone.append(1)
    commit = alone.begin()
    assert commit is not None
    alone.service.finish(commit, None)
    alone.service.go_on()
    assert alone.lines == (0, 1)
    alone.work()
    assert alone.sequences() == [0, 50, 1]


def test_what_comes_during_a_flush_is_for_the_next_pass(alone: InPasses) -> None:
    alone.append(0)
    commit = alone.begin()
    assert commit is not None
    alone.append(1)
    assert alone.lines == (0, 0)
    alone.service.finish(commit, None)
    assert alone.sequences() == [0]
    alone.service.go_on()
    assert alone.lines == (1, 0)


def test_while_it_is_held_a_pass_takes_nothing(alone: InPasses) -> None:
    alone.append(0)
    alone.service._held = True
    assert alone.begin() is None
    alone.service.go_on()
    assert alone.lines == (0, 0)
    assert alone.sequences() == []
    alone.service.resume()
    assert alone.lines == (1, 0)


def test_a_pass_takes_nothing_of_what_it_finds_too_long_or_answered(alone: InPasses) -> None:
    """What commits may have in them was lowered since; or somebody gave the partition up."""
    alone.append(0, size=100)
    alone.service.options = ServiceOptions(commit_bytes=100)
    assert alone.begin() is None
    assert alone.service.queue_size == 1
    alone.service.go_on()
    assert alone.lines == (0, 1)
    alone.service.options = ServiceOptions()
    alone.service.go_on()
    alone.service.end(not_loaded(3))
    assert (alone.begin(), alone.sequences()) == (None, [0])


def test_who_was_told_that_the_queue_is_full_hears_when_a_pass_took_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = InPasses(monkeypatch, queue_requests=1)
    alone.append(0)
    told: list[str] = []
    alone.service.on_room(lambda: told.append("room"))
    alone.begin()
    assert told == ["room"]


def test_what_a_pass_begins_and_ends_is_progress(alone: InPasses) -> None:
    alone.append(0)
    alone.append(1)
    alone.now += 9
    assert alone.service.stalled_seconds == 9
    commit = alone.begin()
    assert commit is not None
    assert alone.service.stalled_seconds == 0
    alone.now += 5
    assert alone.service.stalled_seconds == 5
    alone.append(2)
    alone.service.finish(commit, None)
    alone.service.go_on()
    assert (alone.service.stalled_seconds, alone.service.queue_size) == (0, 1)


def test_an_empty_queue_forgets_whose_frames_were_broken(alone: InPasses) -> None:
    alone.service.commit.broken.append(alone.peer)
    alone.append(0)
    assert alone.begin() is None
    assert alone.peer.reasons
    alone.service.go_on()
    assert alone.service.commit.broken == []


# ---- several partitions together ----------------------------------------------------------------------------------------


class Together(Pool):
    """Passes that note who was scheduled by one call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[list[Any]] = []

    def schedule(self, *jobs: Any) -> None:
        self.calls.append([*jobs])
        for job in jobs:
            super().schedule(job)


class Several:
    """Two services with passes, and what the caller of `submit` was given to start."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.both = [InPasses(monkeypatch, **options) for _ in range(2)]
        self.passes, self.noted = Together(), list[PartitionService]()
        for one in self.both:
            one.passes = one.service._passes = self.passes  # type: ignore[assignment]

    def append(self, which: int, *firsts: int, size: int | None = None) -> Admission:
        one = self.both[which]
        run = run_of(one.peer, [appended(n, sequence=n, session=SESSION, partition=3) for n in firsts])
        return one.service.submit(run if size is None else run._replace(size=size), self.noted)

    def start(self) -> None:
        PartitionService.start_together(self.noted)

    def execute(self) -> None:
        """One pass over whoever is scheduled."""
        members, self.passes.line = self.passes.line, []
        for service in members:
            if (runs := service.take()) and (commit := service.begin(runs)) is not None:
                service.finish(commit, None)
            service.go_on()

    @property
    def services(self) -> list[PartitionService]:
        return [one.service for one in self.both]


@pytest.fixture
def several(monkeypatch: pytest.MonkeyPatch) -> Several:
    return Several(monkeypatch)


def test_appends_of_several_partitions_are_scheduled_by_one_call_and_not_before(several: Several) -> None:
    """Though nothing is under way: they have each other to share a pass with."""
    for one in several.both:
        one.pool.at_rest = True
    several.append(0, 0, 1)
    several.append(1, 0)
    several.append(0, 2)
    assert several.noted == several.services, "each once"
    assert (several.passes.calls, [one.lines for one in several.both]) == ([], [(0, 0)] * 2)
    several.start()
    assert several.passes.calls == [several.services]
    several.execute()
    assert [one.sequences() for one in several.both] == [[0, 1, 2], [0]]
    assert [one.lines for one in several.both] == [(0, 0)] * 2


@pytest.mark.parametrize(
    ("at_rest", "company", "lines"),
    [(True, False, (0, 1)), (True, True, (1, 0)), (False, False, (1, 0)), (False, True, (1, 0))],
)
def test_a_single_one_is_executed_as_if_it_had_come_alone(
    several: Several, at_rest: bool, company: bool, lines: tuple[int, int]
) -> None:
    """Where others came a moment ago it is not alone for long."""
    only = several.both[0]
    only.pool.at_rest, only.passes.expects_company = at_rest, company
    several.append(0, 0)
    several.start()
    assert only.lines == lines
    if lines == (0, 1):
        only.work()
    else:
        several.execute()
    assert only.sequences() == [0]


def test_nobody_is_nothing(several: Several) -> None:
    several.start()
    assert several.passes.calls == []


@pytest.mark.parametrize(("size", "lines"), [(MOST, (0, 0)), (MOST + 1, (0, 1))])
def test_a_long_append_does_not_wait_for_the_others_of_its_block(
    several: Several, size: int, lines: tuple[int, int]
) -> None:
    several.append(0, 0, size=size)
    assert several.both[0].lines == lines
    assert several.noted == ([several.both[0].service] if lines == (0, 0) else [])


def test_whoever_cannot_take_part_in_a_pass_is_not_noted(several: Several) -> None:
    """A request that is no append; one of a service without passes; one that is under way already, is held or was given up."""
    first, second = several.both
    first.service.submit(first.item(), several.noted)
    assert (several.noted, first.lines) == ([], (0, 1))
    several.append(0, 0)
    assert (several.noted, first.lines) == ([], (0, 1)), "it follows what is scheduled"
    second.service._passes = None
    several.append(1, 0)
    assert (several.noted, second.lines) == ([], (0, 1))
    second.work()
    second.service._passes = several.passes  # type: ignore[assignment]
    second.service._held = True
    several.append(1, 1)
    assert (several.noted, second.lines) == ([], (0, 0))
    second.service.refuse(not_loaded(3))
    several.append(1, 2)
    assert several.noted == []
    assert second.codes() == ["", "not-assigned"]


def test_who_has_no_room_for_an_append_is_not_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    several = Several(monkeypatch, queue_requests=1)
    assert several.append(0, 0) is Admission.ACCEPTED
    several.noted.clear()
    assert several.append(0, 1) is Admission.FULL
    several.both[1].now += STALL + 1  # whose clock is everybody's
    assert several.append(0, 1) is Admission.STALLED
    assert several.noted == []


@pytest.mark.parametrize("others", [0, 1])
def test_a_partition_that_is_ended_before_it_is_started_has_answered_and_comes_to_rest(
    several: Several, others: int
) -> None:
    ended, other = several.both
    several.append(0, 0, 1)
    for number in range(others):
        several.append(1, number)
    ended.service.end(not_loaded(3))
    assert ended.codes() == ["not-assigned"] * 2
    several.start()
    several.execute()
    assert (ended.peer.answers, ended.partition.done, ended.lines) == ([], [], (0, 0))
    assert ended.service.hold(0.0), "nobody waits for it for ever"
    assert other.sequences() == list(range(others))


@pytest.mark.parametrize("others", [0, 1])
def test_who_holds_a_partition_waits_until_it_is_started_and_then_it_waits(several: Several, others: int) -> None:
    held, other = several.both
    several.append(0, 0)
    for number in range(others):
        several.append(1, number)
    assert not held.service.hold(0.0), "it counts as under way"
    held_at_last: list[bool] = []
    holding = threading.Thread(target=lambda: held_at_last.append(held.service.hold(PATIENCE)))
    holding.start()
    until = time.monotonic() + PATIENCE
    while not held.service._held and time.monotonic() < until:
        time.sleep(0.001)
    several.start()
    several.execute()
    holding.join(PATIENCE)
    assert held_at_last == [True]
    assert (held.peer.answers, held.service.queue_size) == ([], 1)
    assert other.sequences() == list(range(others))
    held.service.resume()
    several.execute()
    assert held.sequences() == [0]


# ---- on a disk ----------------------------------------------------------------------------------------------------------


def test_many_partitions_at_once_on_a_disk(tmp_path: Path) -> None:
    """Each partition's appends come in their order and are there when the directory is opened again."""
    created(tmp_path / "s", 6)
    with serving(tmp_path / "s") as served:
        peers = [Peer() for _ in range(6)]
        for first in range(60):
            for number, peer in enumerate(peers):
                data = f"{first} of {number}".encode()
                served.submit(peer, appended(first, sequence=first, partition=number, data=data), partition=number)
        for number, peer in enumerate(peers):
            answers = peer.wait(60)
            assert answers == [SuccessResponse(1, n, number) for n in range(60)]
    with serving(tmp_path / "s") as served:
        for number in range(6):
            service = served.hosted.service(number)
            assert service is not None
            assert service.partition.findings == ()
            assert service.partition.max_transaction_id == 59
            assert served.one(MaxTransactionIdRequest(1, 1, number)).transaction_id == 59  # type: ignore[union-attr]
