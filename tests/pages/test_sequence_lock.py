"""A look without the lock sees nothing that is half changed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from waltzctl.engine.pages.sequence_lock import SequenceLock


def test_a_look_takes_no_lock() -> None:
    lock = SequenceLock()
    assert lock.read(lambda: lock._lock.locked()) is False
    assert lock.read(lambda one, *, other: one + other, 1, other=2) == 3


def test_while_somebody_has_it_a_look_waits() -> None:
    lock, found = SequenceLock(), list[int]()
    value = [0]
    reader = threading.Thread(target=lambda: found.append(lock.read(lambda: value[0])))
    with lock:
        value[0] = 1
        reader.start()
        reader.join(0.05)
        assert found == []
        value[0] = 2
    reader.join()
    assert found == [2]


def test_what_was_seen_while_it_was_taken_is_looked_at_again() -> None:
    lock, value, looks = SequenceLock(), [1], list[bool]()

    def read() -> int:
        seen = value[0]
        looks.append(lock._lock.locked())
        if len(looks) == 1:
            with lock:
                value[0] = 2
        return seen

    assert lock.read(read) == 2
    assert looks == [False, True]


def test_a_failure_over_something_half_changed_is_none() -> None:
    lock, looks = SequenceLock(), list[int]()

    def read() -> str:
        looks.append(1)
        if len(looks) == 1:
            with lock:
                raise IndexError
        return "whole"

    assert lock.read(read) == "whole"


def test_a_failure_over_what_nobody_changes_is_one() -> None:
    def read() -> str:
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        SequenceLock().read(read)


@pytest.fixture
def _often_switched() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_often_switched")
def test_nobody_sees_a_half() -> None:
    lock, both, stop = SequenceLock(), [0, 0], threading.Event()
    torn: list[tuple[int, int]] = []

    def change() -> None:
        for number in range(1, 3000):
            with lock:
                both[0] = number
                for _ in range(5):
                    pass
                both[1] = number
        stop.set()

    def read() -> tuple[int, int]:
        first = both[0]
        for _ in range(5):
            pass
        return first, both[1]

    def watch() -> None:
        while not stop.is_set():
            first, second = lock.read(read)
            if first != second:
                torn.append((first, second))

    threads = [threading.Thread(target=work) for work in (change, watch, watch)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert torn == []
