"""Every form of the wire loops that this machine has."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from waltzctl.engine.scan import wire_code, wire_compiled
from waltzctl.engine.scan.object_code import UnavailableError
from waltzctl.engine.scan.wire_loops import INTERPRETED

WAYS = ("interpreted", *wire_compiled.WAYS)


def loops_of(way: str) -> wire_code.Loops:
    """Skips the test where there is no such way here."""
    if way == "interpreted":
        return INTERPRETED
    try:
        return wire_compiled.load(way)
    except UnavailableError as error:
        pytest.skip(f"not on this machine: {error}")


def use(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Let every splitter and encoder made from now on use one form."""
    loops = loops_of(way)
    chosen: Callable[[bool | None], Callable[[], wire_code.Loops]] = lambda _: lambda: loops  # noqa: E731
    monkeypatch.setattr(wire_code, "chooser", chosen)
