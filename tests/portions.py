"""Who runs what where tests run in several processes: groups that stay together, and portions of what stands side by side.

pytest-xdist hands out one test at a time, and each time counts everything that it has handed out so far: with 20,000 tests the
process that prints is busy with that for fifteen seconds, while the others wait for their next one.
"""

from __future__ import annotations

from functools import cached_property

from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController

LARGEST = 24
"""Tests of a portion.  Neighbours share what their module sets up, and the costly ones come early: the last are small again."""
ROUNDS = 40
"""How many portions of what is left each process could still get: they become smaller, so that all end at the same time."""


class Portions(LoadGroupScheduling):
    """Groups whole and first, as ever; then portions.  Of a process it keeps only what that has still to do."""

    @cached_property
    def _places(self) -> dict[str, int]:
        """The number of each test, by name: the same in every process."""
        assert self.collection is not None
        return {name: place for place, name in enumerate(self.collection)}

    def _assign_work_unit(self, node: WorkerController) -> None:
        work = self.assigned_work[node]
        least = 1 if work else 2  # for a process begins a test when it knows the next one
        wanted = max(least, min(LARGEST, len(self.workqueue) // (ROUNDS * len(self.nodes))))
        places: list[int] = []
        while self.workqueue and len(places) < wanted:
            scope, tests = next(iter(self.workqueue.items()))
            if places and len(tests) > 1:
                break
            work[scope] = self.workqueue.pop(scope)
            places += [self._places[name] for name in tests]
            if len(tests) > 1:
                break  # a group is a portion of its own
        node.send_runtest_some(places)

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Forget the test, and see whether its process should get more."""
        name = self.registered_collections[node][item_index]
        work, scope = self.assigned_work[node], self._split_scope(name)
        del work[scope][name]
        if not work[scope]:
            del work[scope]
        self._reschedule(node)

    def remove_node(self, node: WorkerController) -> str | None:
        """What a process that died had left goes to the others, but for the test in which it died: that has failed."""
        work = self.assigned_work.pop(node)
        if not work:
            return None
        tests = next(iter(work.values()))
        died_in = next(iter(tests))
        del tests[died_in]
        self.workqueue.update({name: left for name, left in work.items() if left})
        for other in (
            self.registered_collections.keys() & self.assigned_work.keys()
        ):  # one that is new has still to collect
            self._reschedule(other)
        return died_in

    def _pending_of(self, workload: dict[str, dict[str, bool]]) -> int:
        return sum(map(len, workload.values()))
