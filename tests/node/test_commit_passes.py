"""Passes alone: who is in one, in which order it goes, and what becomes of those whom a slow disk would keep waiting."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.node.service_support import PATIENCE
from waltzctl.engine.durable.flusher import Flusher
from waltzctl.engine.errors import SyncFailedError
from waltzctl.engine.net.executor import Executor
from waltzctl.engine.node.commit_passes import (
    IN_VAIN,
    MOMENT,
    MOST_COMPANY,
    RETRIED,
    CommitPasses,
    PassMember,
    _Pass,
)
from waltzctl.engine.node.shared_commit import SharedCommits
from waltzctl.engine.scan.transcode import AppendEncoder


class Commit:
    """Its own unsynced append, whose file is its name."""

    def __init__(self, name: str) -> None:
        self.written, self.file = self, name


class Partition:
    """Notes what is done with it."""

    def __init__(
        self, name: str, done: list[str], *, waits: bool = True, writes: bool = True, leaves: str = ""
    ) -> None:
        self.name, self.done, self.waits, self.writes, self.leaves = name, done, waits, writes, leaves
        self.commit = SimpleNamespace(usual_session=None)
        self.errors: list[object] = []

    def take(self) -> list[str]:
        return [self.name] if self.waits else []

    def begin(self, runs: list[str]) -> Commit | None:
        assert runs == [self.name]
        self.done.append(f"begin {self.name}")
        if self.leaves == "begin":
            raise SystemExit
        return Commit(self.name) if self.writes else None

    def finish(self, commit: Commit, error: SyncFailedError | None) -> None:
        assert commit.file == self.name
        self.done.append(f"finish {self.name}")
        self.errors.append(error)
        if self.leaves == "finish":
            raise SystemExit

    def go_on(self) -> None:
        self.done.append(f"go on {self.name}")

    def run(self) -> bool:
        raise AssertionError("for the pool")


class Pool:
    """Where jobs stand in line."""

    def __init__(self) -> None:
        self.line: list[Any] = []
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.others_wait, self.has_threads = False, True

    def schedule(self, job: Any) -> None:
        self.line.append(job)

    def time(self) -> float:
        return time.monotonic()

    def call_later(self, seconds: float, call: Callable[[], None]) -> bool:
        if self.has_threads:
            self.later.append((seconds, call))
        return self.has_threads

    def run(self) -> bool:
        return bool(self.line.pop(0).run())


class Flushes:
    """Notes each flush; files in `bad` fail."""

    def __init__(self, done: list[str]) -> None:
        self.done, self.bad = done, set[str]()

    def flush(self, files: list[str]) -> list[SyncFailedError | None]:
        self.done.append(f"sync {' '.join(files)}")
        bad = [SyncFailedError(Path(file), None, OSError("EIO"), doing="sync") for file in files]
        return [error if file in self.bad else None for file, error in zip(files, bad, strict=True)]


class Passes:
    """Passes and everything around them."""

    def __init__(self, at_a_time: int = 1, company_seconds: float = 0.0) -> None:
        self.done: list[str] = []
        self.pool, self.flushes, self.now = Pool(), Flushes(self.done), 100.0
        self.passes = CommitPasses(
            cast("Executor", self.pool),
            cast("Flusher", self.flushes),
            shared=SharedCommits(AppendEncoder(max_data_length=1000), logging.getLogger("test")),
            at_a_time=at_a_time,
            company_seconds=company_seconds,
            clock=lambda: self.now,
        )
        self.waits: list[int] = []
        self.comes: Callable[[], object] = lambda: None
        wait = self.passes._arrival.wait

        def noted(seconds: float) -> bool:
            """Who comes meanwhile comes at once; the clock does not move."""
            self.waits.append(self.passes._awaited_length)
            lock = self.passes._lock
            lock.release()
            try:
                self.comes()
            finally:
                lock.acquire()
            return not self.passes._awaited_length or wait(0.0)

        self.passes._arrival.wait = noted  # type: ignore[method-assign]

    def schedule(self, name: str, **given: Any) -> Partition:
        member = Partition(name, self.done, **given)
        self.passes.schedule(cast("PassMember", member))
        return member


def test_a_pass_takes_the_whole_line_and_flushes_once() -> None:
    one = Passes()
    for name in "abc":
        one.schedule(name)
    assert len(one.pool.line) == 1
    assert one.pool.run() is False
    assert one.done == [
        *("begin a", "begin b", "begin c", "sync a b c", "finish a", "finish b", "finish c"),
        *("go on a", "go on b", "go on c"),
    ]
    one.schedule("d")
    assert len(one.pool.line) == 1
    one.pool.run()
    assert one.done[-4:] == ["begin d", "sync d", "finish d", "go on d"]


@pytest.mark.parametrize("leaves", ["begin", "finish"])
def test_an_exit_in_one_partition_keeps_no_other_from_its_answer(leaves: str) -> None:
    one = Passes()
    one.schedule("a", leaves=leaves)
    for name in "bc":
        one.schedule(name)
    with pytest.raises(SystemExit):
        one.pool.run()
    for name in "bc":
        assert one.done.index(f"finish {name}") < one.done.index(f"go on {name}")
    assert one.done.count("go on a") == 1


def test_what_comes_during_a_pass_is_in_the_next_one() -> None:
    one = Passes()
    first = one.schedule("a")
    real = first.finish

    def finish(commit: Commit, error: SyncFailedError | None) -> None:
        real(commit, error)
        one.schedule("b")
        one.schedule("c")

    first.finish = finish  # type: ignore[method-assign]
    one.pool.run()
    assert one.pool.line == []
    assert [step for step in one.done if step.startswith("sync")] == ["sync a", "sync b c"]


def test_who_has_nothing_to_sync_goes_on_at_once() -> None:
    one = Passes()
    for name in "abc":
        one.schedule(name, writes=name != "b")
    one.pool.run()
    assert one.done[:5] == ["begin a", "begin b", "go on b", "begin c", "sync a c"]
    assert one.done.count("go on b") == 1


def test_a_sync_for_which_there_is_no_memory_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Passes()
    members = [one.schedule(name) for name in "ab"]

    class File(str):
        path = Path("a")

    def flush(files: object) -> None:
        raise MemoryError

    monkeypatch.setattr(one.flushes, "flush", flush)
    for member in members:
        monkeypatch.setattr(member, "begin", lambda runs: Commit(File(runs[0])))
    one.pool.run()
    assert [[type(error) for error in member.errors] for member in members] == [[SyncFailedError]] * 2
    assert one.done == ["finish a", "finish b", "go on a", "go on b"]


def test_a_sync_that_fails_is_told_to_its_own_partition() -> None:
    one = Passes()
    members = [one.schedule(name) for name in "abc"]
    one.flushes.bad = {"b"}
    one.pool.run()
    assert [[error is not None for error in member.errors] for member in members] == [[False], [True], [False]]


@pytest.mark.parametrize("where", ["begin", "finish"])
def test_an_exit_of_the_interpreter_waits_until_everything_is_answered(where: str) -> None:
    one = Passes()
    for name in "abc":
        one.schedule(name, leaves=where if name == "a" else "")
    job = one.pool.line[0]
    with pytest.raises(SystemExit):
        one.pool.run()
    assert one.done[-3:] == (
        ["go on a", "go on b", "go on c"] if where == "finish" else ["finish c", "go on b", "go on c"]
    )
    assert {f"go on {name}" for name in "abc"} <= set(one.done)
    one.schedule("d")  # the pool has another thread go on with the pass
    assert one.pool.line == []
    assert job.run() is False
    assert "finish d" in one.done


def test_so_many_are_under_way_at_a_time() -> None:
    one = Passes(2)
    for name in "abcd":
        one.schedule(name)
        one.now += 0.01
    assert len(one.pool.line) == 2
    one.pool.run()
    assert [step for step in one.done if step.startswith("sync")] == ["sync a b c d"]
    one.pool.run()
    assert len(one.done) == 4 * 3 + 1


@pytest.mark.parametrize(("waited", "beside"), [(0.0, False), (0.002, False), (0.0021, True)])
def test_another_pass_begins_beside_one_that_waits_for_the_disk(waited: float, beside: bool) -> None:
    """Before that whoever comes waits for its end, and shares the next one."""
    one = Passes(2)
    one.now = 0.0
    one.schedule("a")
    one.now += waited
    one.schedule("b")
    assert len(one.pool.line) == 1 + beside
    assert len(one.pool.later) == (not beside), "nobody may come, and the pass may hang"


def test_who_waits_behind_passes_is_looked_at_once_in_a_while_and_nobody_else() -> None:
    one = Passes(2)
    one.now = 0.0
    one.schedule("a")
    for name in "bc":
        one.schedule(name)
    ((seconds, look),) = one.pool.later
    assert seconds == pytest.approx(0.05)
    one.now += seconds
    one.pool.later.clear()
    look()
    assert (len(one.pool.line), one.pool.later) == (2, []), "a second pass took them"
    one.schedule("d")
    one.now += 0.02
    ((_, look),) = one.pool.later
    one.pool.later.clear()
    look()
    assert (len(one.pool.line), len(one.pool.later)) == (2, 1), "that has not been under way for long"
    one.now += 0.04
    one.pool.later.pop()[1]()
    assert [getattr(job, "name", "") for job in one.pool.line[2:]] == ["a", "b", "c", "d"], "both seem to hang"
    one.schedule("e")
    assert [getattr(job, "name", "") for job in one.pool.line[6:]] == ["e"]
    assert one.pool.later == []


def test_a_look_at_an_empty_line_is_the_last_one() -> None:
    one = Passes()
    one.now = 0.0
    one.schedule("a")
    one.schedule("b")
    one.pool.run()
    ((_, look),) = one.pool.later
    one.pool.later.clear()
    look()
    assert (one.pool.line, one.pool.later) == ([], []), "and no pass begins for nobody"
    one.schedule("c")
    one.schedule("d")
    assert len(one.pool.later) == 1, "and there is one again where it is needed"


def test_a_look_that_could_not_be_had_is_asked_for_again() -> None:
    """Otherwise a system that had no thread for a moment would leave the last one waiting behind a disk that hangs, for ever."""
    one = Passes()
    one.now = 0.0
    one.schedule("a")
    one.pool.has_threads = False
    one.schedule("b")
    one.pool.has_threads = True
    one.schedule("c")
    ((_, look),) = one.pool.later
    one.pool.later.clear()
    one.pool.has_threads = False
    look()
    one.pool.has_threads = True
    one.schedule("d")
    assert len(one.pool.later) == 1


def test_a_pass_lets_others_have_its_thread() -> None:
    one = Passes()
    first = one.schedule("a")
    first.go_on = lambda: one.schedule("b") and None  # type: ignore[method-assign]
    one.pool.others_wait = True
    job = one.pool.line[0]
    assert one.pool.run() is True
    assert "begin b" not in one.done
    one.pool.others_wait = False
    assert job.run() is False
    assert "finish b" in one.done


@pytest.mark.parametrize(("waited", "alone"), [(0.0, False), (0.05, False), (0.06, True)])
def test_behind_a_disk_that_hangs_each_partition_is_executed_by_itself(waited: float, alone: bool) -> None:
    one = Passes(2)
    one.now = -7.0
    one.schedule("a")
    one.now += 7
    one.schedule("b")  # the pass that began last counts
    one.schedule("c")
    jobs = list(one.pool.line)
    one.now += waited
    late = one.schedule("d")
    started = one.pool.line[len(jobs) :]
    assert [getattr(job, "name", "") for job in started] == (["a", "b", "c", "d"] if alone else [])
    assert (late in started) is alone
    for job in jobs:
        job.run()
    assert ("begin d" in one.done) is not alone


def test_a_pass_that_goes_on_is_not_taken_for_one_that_hangs() -> None:
    """Its time counts from the line that it took last."""
    one = Passes()
    first = one.schedule("a")

    def later(name: str) -> Partition:
        one.now += 0.04
        return one.schedule(name)

    def go_on() -> None:
        second = later("b")
        second.go_on = lambda: later("c") and None  # type: ignore[method-assign]

    first.go_on = go_on  # type: ignore[method-assign]
    one.pool.run()
    assert one.pool.line == []
    assert [step for step in one.done if step.startswith("sync")] == ["sync a", "sync b", "sync c"]


# ---- company -------------------------------------------------------------------------------------------------------------


def syncs(one: Passes) -> list[str]:
    """Who shared a flush since the last time."""
    found = [said.removeprefix("sync ") for said in one.done if said.startswith("sync")]
    one.done.clear()
    return found


def members(one: Passes, names: str) -> list[Partition]:
    return [Partition(name, one.done) for name in names]


def come(one: Passes, *parts: Partition) -> None:
    for part in parts:
        one.passes.schedule(cast("PassMember", part))


def test_a_pass_waits_for_those_who_came_a_moment_ago() -> None:
    """Until all of them are there; somebody new is no reason to wait, and one that is alone waits for nobody."""
    one = Passes()
    a, b, c = members(one, "abc")
    come(one, a)
    assert not one.passes.expects_company
    one.pool.run()
    assert (syncs(one), one.waits) == (["a"], [])
    come(one, b, c)
    assert one.passes.expects_company
    one.comes = lambda: come(one, a)
    one.pool.run()
    assert (syncs(one), one.waits) == (["b c a"], [3])
    assert one.passes._awaited_length == 0


@pytest.mark.parametrize(("later", "waits"), [(MOMENT - 0.0001, [2]), (MOMENT + 0.0001, [])])
def test_a_moment_is_over_after_a_while(later: float, waits: list[int]) -> None:
    one = Passes()
    a, b = members(one, "ab")
    come(one, a)
    one.pool.run()
    one.now += later
    come(one, b)
    one.pool.run()
    assert one.waits == waits
    assert one.passes.expects_company == bool(waits)


@pytest.mark.parametrize(("there", "waits"), [(MOST_COMPANY - 1, [MOST_COMPANY]), (MOST_COMPANY, [])])
def test_many_wait_for_nobody(there: int, waits: list[int]) -> None:
    one = Passes()
    parts = [Partition(str(number), one.done) for number in range(there + 5)]
    come(one, *parts)
    one.pool.run()
    assert one.waits == []
    come(one, *parts[:there])
    one.pool.run()
    assert one.waits == waits


def test_those_in_another_pass_are_not_waited_for() -> None:
    one = Passes(at_a_time=2)
    a, b = members(one, "ab")
    come(one, a)
    first = one.pool.line.pop()
    one.passes.next_line(first)  # it is under way with a
    one.now += 0.003
    come(one, b)
    second = one.pool.line.pop()
    assert (one.passes.next_line(second), one.waits) == ([b], [])
    one.passes.next_line(first)  # a is answered
    come(one, a)
    one.pool.line.clear()
    assert one.passes.next_line(first) == [a]
    assert one.waits == [], "b is in the other pass"
    one.passes.next_line(second)
    one.passes.next_line(first)
    come(one, a)
    assert one.passes.next_line(first) == [a]
    assert one.waits == [2], "b is in none any more"


def test_a_line_for_which_a_pass_waits_is_that_pass_s() -> None:
    one = Passes(at_a_time=2)
    a, b = members(one, "ab")
    come(one, a, b)
    one.pool.run()
    syncs(one)
    come(one, a)
    first = one.pool.line.pop()
    taken: list[object] = []
    one.comes = lambda: taken.append(one.passes.next_line(_Pass(one.passes)))
    one.passes._started_at[first] = one.now
    one.passes._started_at = OrderedBegun(one.passes._started_at)
    assert one.passes.next_line(first) == [a]
    assert taken == [[]], "the other one finds nothing to take"


class OrderedBegun(dict[Any, float]):
    """Passes that are under way; one that nobody began may end as well."""

    def __delitem__(self, key: Any) -> None:
        self.pop(key, None)


def test_where_nobody_comes_it_is_tried_more_seldom() -> None:
    """Until somebody does."""
    one = Passes()
    a, b = members(one, "ab")
    tried = []
    for _ in range(IN_VAIN + 3 * RETRIED):
        come(one, b)
        one.passes._last_arrival[cast("PassMember", a)] = one.now
        one.waits.clear()
        one.pool.run()
        tried.append(bool(one.waits))
    after = [*([False] * (RETRIED - 1)), True]
    assert tried == [*([True] * IN_VAIN), *after, *after, *after]
    one.passes._futile_waits = 0
    for comes in (True, False, True):
        come(one, b)
        one.passes._last_arrival[cast("PassMember", a)] = one.now
        one.comes = (lambda: come(one, a)) if comes else lambda: None
        one.waits.clear()
        one.pool.run()
        assert one.waits == [2]
        assert one.passes._futile_waits == (0 if comes else 1)


def test_a_partition_that_the_node_has_no_more_is_forgotten_however_many_there_are() -> None:
    """It is not waited for, and a node of months whose passes are all large keeps nothing of those that came and went."""
    one = Passes()
    stay = members(one, [f"s{number}" for number in range(MOST_COMPANY)])
    for number in range(100):
        gone = members(one, [f"g{number}"])
        come(one, *stay, *gone)
        while one.pool.line:
            one.pool.run()
        one.passes.forget(cast("PassMember", gone[0]))
        one.passes.forget(cast("PassMember", gone[0]))
    assert {*one.passes._last_arrival} == {*stay}


def test_a_wait_ends_when_all_are_there_or_its_time_is_over() -> None:
    """With a real clock and real threads."""
    one = Passes(company_seconds=1000.0)
    del one.passes._arrival.wait  # the condition's own again
    a, b = members(one, "ab")
    come(one, a, b)
    one.pool.run()
    syncs(one)
    come(one, a)
    waiting = threading.Thread(target=one.pool.run, daemon=True)
    waiting.start()
    while not one.passes._awaited_length:
        time.sleep(0.001)
    assert one.done == []
    come(one, b)
    waiting.join(PATIENCE / 6)
    assert syncs(one) == ["a b"]
    one.passes._company_seconds = 0.01
    come(one, a)
    one.pool.run()
    assert syncs(one) == ["a"]
