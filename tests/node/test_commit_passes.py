"""Passes alone: who is in one, in which order it goes, and what becomes of those whom a slow disk would keep waiting."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from waltzctl.engine.durable.flusher import Flusher
from waltzctl.engine.errors import SyncFailedError
from waltzctl.engine.net.executor import Executor
from waltzctl.engine.node.commit_passes import CommitPasses, PassMember


class Commit:
    """Its own unsynced append, whose file is its name."""

    def __init__(self, name: str) -> None:
        self.written, self.file = self, name


class Partition:
    """Notes what is done with it."""

    def __init__(self, name: str, done: list[str], *, writes: bool = True, leaves: str = "") -> None:
        self.name, self.done, self.writes, self.leaves = name, done, writes, leaves
        self.errors: list[object] = []

    def begin(self) -> Commit | None:
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
        self.others_wait = False

    def schedule(self, job: Any) -> None:
        self.line.append(job)

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

    def __init__(self, at_a_time: int = 1) -> None:
        self.done: list[str] = []
        self.pool, self.flushes, self.now = Pool(), Flushes(self.done), 100.0
        self.passes = CommitPasses(
            cast("Executor", self.pool),
            cast("Flusher", self.flushes),
            at_a_time=at_a_time,
            clock=lambda: self.now,
        )

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
    assert len(one.pool.line) == 2
    one.pool.run()
    assert [step for step in one.done if step.startswith("sync")] == ["sync a b c d"]
    one.pool.run()
    assert len(one.done) == 4 * 3 + 1


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
