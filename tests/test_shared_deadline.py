"""How long there is left until a moment that another process was told."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from waltzctl.engine import shared_deadline
from waltzctl.engine.shared_deadline import SharedDeadline


class Clocks:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monotonic, self.time = 50.0, 1e9
        monkeypatch.setattr(time, "monotonic", lambda: self.monotonic)
        monkeypatch.setattr(time, "time", lambda: self.time)


def test_on_the_same_machine_nobody_sets_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks(monkeypatch)
    moment = SharedDeadline.after(10)
    assert moment.left() == 10
    clocks.monotonic, clocks.time = 57.0, 0.0
    assert moment.left() == 3
    clocks.monotonic = 61.0
    assert moment.left() == 0


def test_on_another_machine_the_time_of_day_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks(monkeypatch)
    moment = replace(SharedDeadline.after(10), booted="elsewhere")
    clocks.monotonic, clocks.time = 3.0, 1e9 + 7
    assert moment.left() == 3
    clocks.time = 1e9 - 3600
    assert moment.left() == 10, "no more than there was"
    clocks.time = 1e9 + 11
    assert moment.left() == 0


def test_where_it_is_not_known_which_machine_this_is(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks(monkeypatch)

    def unknown() -> str:
        raise FileNotFoundError(Path("/proc"))

    monkeypatch.setattr(shared_deadline, "boot", unknown)
    moment = SharedDeadline.after(10)
    assert moment.booted is None
    clocks.time += 4
    assert moment.left() == 6
