"""Every form of the wire loops that this machine has."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import ModuleType

import pytest

from waltzctl.engine.scan import compiled, object_code, wire_code, wire_compiled
from waltzctl.engine.scan.frames import FrameSplitter
from waltzctl.engine.scan.wire_loops import INTERPRETED, Table
from waltzctl.formats.wire.frame import Magic

WAYS = ("interpreted", *wire_compiled.WAYS)


def in_every_form(check: Callable[[], None]) -> None:
    """Run a check with the interpreted loops, and with each kind of compiled ones that is here."""
    for way in _forms():
        with pytest.MonkeyPatch.context() as patch:
            use(patch, way)
            check()


@cache
def _forms() -> tuple[str, ...]:
    """One way of each kind: of those that call a function, the fastest."""
    try:
        here = compiled.available_ways()
    except ImportError:
        here = ()
    kinds = {wire_compiled._kind(way): way for way in reversed(wire_compiled.WAYS) if way in here}
    return "interpreted", *kinds.values()


def table_of(frames: bytes) -> Table:
    """The table of whole frames of the storage protocol, back to back."""
    split = FrameSplitter(magic=Magic.STORAGE, max_body=1 << 20, compiled=False).split(frames, 0, len(frames), 0)
    assert split.consumed == len(frames)
    return split.table


def kept_object(module: ModuleType, way: str) -> bytes:
    """The object file that `compiled` or `wire_compiled` makes for a way: from the user's cache, as in any other run."""
    name = module._code_name(way) if module is compiled else module._name(way)
    return object_code.cached_object(name, lambda: module._compile(way))


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
