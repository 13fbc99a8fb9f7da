"""How many reads of a connection are under way at a time, and what becomes of its read slots."""

from __future__ import annotations

import pytest

from waltzctl.engine.net.budget import Budget
from waltzctl.engine.net.read_window import ReadWindow


def never() -> None:
    pytest.fail("no slot was waited for")


def begun(window: ReadWindow) -> int:
    """How many reads can be begun until the window is full."""
    count = 0
    while window.begin(never):
        count += 1
    return count


@pytest.mark.parametrize(
    ("ahead", "most"),
    [
        ([], 1),
        ([0], 1),
        ([1], 2),
        ([9], 2),
        ([9, 9], 4),
        ([9, 9, 2], 3),
        ([9, 9, 0], 1),
        ([99] * 5, 32),
        ([99] * 6, 64),
        ([99] * 7, 64),
    ],
)
def test_a_window_doubles_as_far_as_the_peer_has_room(ahead: list[int], most: int) -> None:
    slots = Budget(1000)
    window = ReadWindow(slots)
    for one in ahead:
        window.widen(one)
    assert begun(window) == slots.used == most
    assert slots.waiting == 0, "who has a full window waits for no slot"
    window.end()
    assert slots.used == most - 1
    assert begun(window) == 1
    for _ in range(most):
        window.end()
    assert slots.used == 0


@pytest.fixture
def full() -> Budget:
    """The slots of a port that others use."""
    slots = Budget(1)
    assert slots.reserve("others", 1, never)
    return slots


@pytest.mark.parametrize("used", [True, False])
def test_a_slot_that_was_not_free_is_waited_for_once_and_is_used_or_returned(full: Budget, *, used: bool) -> None:
    window, granted = ReadWindow(full), list[bool]()
    window.widen(9)
    for _ in range(2):
        assert not window.begin(lambda: granted.append(True))
    assert (full.waiting, granted) == (1, [])
    full.release(1)
    assert (full.waiting, full.used, granted) == (0, 1, [True])
    if used:
        assert window.begin(never)
        window.return_unused()
        assert full.used == 1, "it is used"
        window.end()
    else:
        window.return_unused()
        window.return_unused()
    assert full.used == 0
    assert window.begin(never)
    assert full.used == 1
    assert not window.begin(lambda: granted.append(True)), "the next one has to be asked for"
    assert full.waiting == 1


@pytest.mark.parametrize("when", ["waiting", "granted", "under way"])
def test_who_is_gone_keeps_no_slot(full: Budget, when: str) -> None:
    window = ReadWindow(full)
    assert not window.begin(lambda: None)
    if when != "waiting":
        full.release(1)
    if when == "under way":
        assert window.begin(never)
    window.leave()
    assert (full.waiting, full.used) == (0, 0 if when == "granted" else 1)
    if when == "under way":
        window.end()
    elif when == "waiting":
        full.release(1)
    assert full.used == 0
    assert window.begin(never), "and waits for nothing"
