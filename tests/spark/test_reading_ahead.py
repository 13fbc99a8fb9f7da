"""A task that makes its next piece while the one before is taken."""

from __future__ import annotations

import threading

import pytest

from waltzctl.engine.spark.reading_ahead import made_ahead

PATIENCE = 20.0
"""Seconds after which something that should have happened has not; nothing is measured by it."""


class Maker:
    """Makes two numbers of each; `begun`: what it was asked for, in order."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.begun: list[int] = []
        self.threads: set[str] = set()
        self.moved = threading.Condition()
        self._fails_at = fails_at

    def __call__(self, item: int) -> list[int]:
        with self.moved:
            self.begun.append(item)
            self.threads.add(threading.current_thread().name)
            self.moved.notify_all()
        if item == self._fails_at:
            raise ValueError(f"{item} is not made")
        return [item, item]

    def has_begun(self, count: int) -> bool:
        with self.moved:
            return self.moved.wait_for(lambda: len(self.begun) >= count, PATIENCE)


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_everything_comes_once_and_in_order(count: int) -> None:
    maker = Maker()
    assert list(made_ahead(range(count), maker)) == [number for number in range(count) for _ in (0, 1)]
    assert maker.begun == [*range(count)]


def test_one_piece_is_made_ahead_and_no_more() -> None:
    maker = Maker()
    taken = made_ahead(range(5), maker)
    assert maker.begun == [], "nobody has asked yet"
    assert next(taken) == 0
    assert maker.has_begun(2)
    assert next(taken) == 0
    assert maker.begun == [0, 1]
    assert next(taken) == 1
    assert maker.has_begun(3)
    taken.close()
    assert maker.begun == [0, 1, 2]
    assert threading.current_thread().name not in maker.threads
    assert not any(one.name.startswith("reading-ahead") for one in threading.enumerate()), "a thread outlives its task"


@pytest.mark.parametrize("fails_at", [0, 1, 4])
def test_what_fails_fails_in_its_place(fails_at: int) -> None:
    found: list[int] = []
    with pytest.raises(ValueError, match=f"{fails_at} is not made"):
        found.extend(made_ahead(range(5), Maker(fails_at)))
    assert found == [number for number in range(fails_at) for _ in (0, 1)], "what came before counts"
