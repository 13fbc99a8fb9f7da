"""Pauses between attempts."""

from __future__ import annotations

import pytest

from waltzctl.engine.net.retries import pause_after


@pytest.mark.parametrize(
    ("first", "longest", "pauses"),
    [
        (0.1, 1.0, [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]),
        (0.0, 1.0, [0.0, 0.0, 0.0]),
        (1.0, 1.0, [1.0, 1.0]),
        (5.0, 1.0, [1.0, 1.0]),
    ],
)
def test_pauses_double_up_to_the_longest(first: float, longest: float, pauses: list[float]) -> None:
    found, pause = [], 0.0
    for _ in pauses:
        pause = pause_after(pause, first=first, longest=longest)
        found.append(pause)
    assert found == pytest.approx(pauses)
