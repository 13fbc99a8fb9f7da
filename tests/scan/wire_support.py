"""Every form of the wire loops that this machine has."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from waltzctl.engine.scan import compiled, wire_code, wire_compiled
from waltzctl.engine.scan.wire_loops import INTERPRETED

WAYS = ("interpreted", *wire_compiled.WAYS)


def loops_of(way: str) -> wire_code.Loops:
    """Skips the test where there is no such way here; one that is here and answers wrongly is an error."""
    if way == "interpreted":
        return INTERPRETED
    skip_unless_here(way)
    return wire_compiled.load(way)


def skip_unless_here(way: str) -> None:
    """What this machine cannot run is no failure."""
    try:
        here = compiled.available_ways()
    except ImportError as error:
        pytest.skip(f"nothing is compiled here: {error}")
    if way not in here:
        pytest.skip(f"not on this machine: {way}")


def use(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Let every splitter and encoder made from now on use one form."""
    loops = loops_of(way)
    chosen: Callable[[bool | None], Callable[[], wire_code.Loops]] = lambda _: lambda: loops  # noqa: E731
    monkeypatch.setattr(wire_code, "chooser", chosen)
