"""Tests in several processes: each is run once, groups stay together, and what a process leaves undone others do."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("xdist")
from xdist.remote import Producer

from tests.portions import LARGEST, Portions

NAMES = [f"tests/test_{number // 50}.py::test_it[{number % 50}]" for number in range(12_000)]
GROUP = [f"tests/test_shared.py::test_{letter}@shared" for letter in "abcdefghij"]


class Process:
    """What the scheduler knows of one of the processes; `run_one` does what that would do."""

    def __init__(self, number: int) -> None:
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.shutting_down = False
        self.portions: list[list[int]] = []
        self.waiting: deque[int] = deque()
        self.done: list[int] = []

    def send_runtest_some(self, places: list[int]) -> None:
        self.portions.append(places)
        self.waiting += places

    def shutdown(self) -> None:
        self.shutting_down = True

    def run_one(self, scheduler: Portions) -> bool:
        """As a process does: it begins a test when it knows the next one, or that there is none."""
        if len(self.waiting) < 2 and not (self.waiting and self.shutting_down):
            return False
        self.done.append(self.waiting.popleft())
        scheduler.mark_test_complete(self, self.done[-1])  # type: ignore[arg-type]
        return True


def started(names: list[str], processes: int) -> tuple[Portions, list[Process]]:
    option = SimpleNamespace(tx=["popen"] * processes, loadscopereorder=True)
    config: Any = SimpleNamespace(option=option, getvalue=lambda name: getattr(option, name))
    scheduler = Portions(config, Producer("of a test", enabled=False))
    found = [Process(number) for number in range(processes)]
    for one in found:
        scheduler.add_node(one)  # type: ignore[arg-type]
    for one in found:
        scheduler.add_node_collection(one, names)  # type: ignore[arg-type]
    scheduler.schedule()
    return scheduler, found


def run_to_the_end(scheduler: Portions, processes: list[Process]) -> None:
    while [one for one in processes if one.run_one(scheduler)]:  # in each round each of them
        pass


@pytest.mark.parametrize("processes", [1, 2, 5])
@pytest.mark.parametrize("names", [NAMES, NAMES[:100], NAMES[:7]], ids=len)
def test_every_test_is_run_once(names: list[str], processes: int) -> None:
    names = [*names[:5], *GROUP, *names[5:]]
    scheduler, found = started(names, processes)
    run_to_the_end(scheduler, found)
    assert sorted(place for one in found for place in one.done) == list(range(len(names)))
    assert scheduler.tests_finished
    assert not scheduler.has_pending
    assert all(one.shutting_down for one in found)


def test_a_group_is_one_portion_and_comes_first() -> None:
    scheduler, found = started([*NAMES, *GROUP], 2)
    run_to_the_end(scheduler, found)
    shared = list(range(len(NAMES), len(NAMES) + len(GROUP)))
    assert [one.portions[0] for one in found] == [shared, list(range(LARGEST))]
    assert all(not set(portion) & set(shared) for one in found for portion in one.portions[1:])


def test_two_groups_are_not_in_one_portion() -> None:
    others = [name.replace("shared", "other") for name in GROUP]
    _, found = started([*NAMES, *GROUP, *others], 2)
    assert [len(one.portions[0]) for one in found] == [len(GROUP), len(GROUP)]


def test_portions_are_of_neighbours_and_become_smaller() -> None:
    scheduler, found = started(NAMES, 2)
    run_to_the_end(scheduler, found)
    sizes = [len(portion) for portion in found[0].portions]
    assert sizes == sorted(sizes, reverse=True)
    assert (sizes[0], sizes[-1]) == (LARGEST, 1)
    assert all(portion == list(range(portion[0], portion[-1] + 1)) for one in found for portion in one.portions)


def test_a_process_has_more_before_it_has_done_what_it_has() -> None:
    scheduler, (one, _) = started(NAMES, 2)
    while len(one.portions) == 1:
        one.run_one(scheduler)
    assert len(one.waiting) == 2 + LARGEST


def test_what_a_process_that_died_had_left_goes_to_the_others() -> None:
    scheduler, (one, other) = started(NAMES, 2)
    for _ in range(10):
        one.run_one(scheduler)
    died_in = one.waiting[0]
    assert scheduler.remove_node(one) == NAMES[died_in]  # type: ignore[arg-type]
    run_to_the_end(scheduler, [other])
    assert sorted([*one.done, died_in, *other.done]) == list(range(len(NAMES)))


def test_a_process_that_takes_the_place_of_one_that_died_gets_tests_once_it_has_collected_them() -> None:
    """Where another one dies meanwhile, too."""
    scheduler, (one, other) = started(NAMES, 2)
    died_in = [one.waiting[0], other.waiting[0]]
    scheduler.remove_node(one)  # type: ignore[arg-type]
    new = Process(2)
    scheduler.add_node(new)  # type: ignore[arg-type]
    scheduler.remove_node(other)  # type: ignore[arg-type]
    assert not new.portions
    scheduler.add_node_collection(new, NAMES)  # type: ignore[arg-type]
    scheduler.schedule()
    run_to_the_end(scheduler, [new])
    assert sorted([*died_in, *new.done]) == list(range(len(NAMES)))


def test_what_is_done_is_kept_nowhere() -> None:
    scheduler, found = started(NAMES, 2)
    for _ in range(1000):
        found[0].run_one(scheduler)
    assert sum(map(len, scheduler.assigned_work[found[0]].values())) == len(found[0].waiting)  # type: ignore[index]
