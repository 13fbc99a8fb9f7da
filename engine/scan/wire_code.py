"""Which form of the wire loops runs: interpreted or compiled.

A process that asks for no form in particular gets the compiled one when its code lies in the cache (a few hundredths of a
second); else the interpreted one, until `prepare` has compiled it, which takes seconds and happens once on a machine.  Whoever
holds a splitter or an encoder by then uses the compiled loops from the next call on.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Protocol

from waltzctl.engine.scan.kernels import INTERPRETED_WAY, WAY_VARIABLE
from waltzctl.engine.scan.wire_loops import INTERPRETED, State, Table


class Loops(Protocol):
    """A form of the loops.  Thread-safe."""

    name: str
    """What runs, for people."""

    def split(self, state: State, buffer: Any, table: Table) -> int:
        """Run `engine.scan.wire_loops.split`; `table` has ROWS rows.  Returns a SplitStatus."""

    def encode(self, state: State, buffer: Any, table: Table, offsets: Table, out: Any) -> int:
        """Run `engine.scan.wire_loops.encode`.  Returns a Verdict."""

    def encode_groups(self, state: State, buffer: Any, table: Table, groups: Table, offsets: Table, out: Any) -> None:
        """Run `engine.scan.wire_loops.encode_groups`; `groups` has GROUPS rows, and what became of each is told there."""

    def to_list(self, state: State, buffer: Any, out: Any, *, brief: bool) -> int:
        """Run `engine.scan.wire_loops.to_list`.  Returns a Verdict."""

    def answer_lists(
        self, state: State, buffer: Any, table: Table, segment: State, heads: bytes, scratch: Any, out: Any
    ) -> int:
        """Run `engine.scan.list_loops.answer_lists`.  Returns a ListStop."""

    def take_appends(
        self, state: State, buffer: Any, runs: Table, places: Table, held: Table, locks: Table, out: Any
    ) -> None:
        """Run `engine.scan.client_loops.take_appends`; `runs` and `held` have ROWS rows, `places` one word more."""

    def number_records(self, state: State, records: bytearray, feed: bytes, out: bytearray) -> int:
        """Run `engine.scan.client_loops.number_records`.  Returns a Verdict."""

    def admit_appends(
        self, state: State, written: State, in_flight: State, appends: State, locks: State, verdicts: State
    ) -> int:
        """Run `engine.scan.lock_loops.admit_appends`; `verdicts` has a word for each append.  Returns a Verdict."""

    def settle_appends(self, state: State, written: State, in_flight: State, appends: State, locks: State) -> int:
        """Run `engine.scan.lock_loops.settle_appends`.  Returns a Verdict."""


_ready: Loops = INTERPRETED
_looked = False
_lock = threading.Lock()


def _look(*, compile_now: bool) -> Loops:
    """The best loops that can be had; without `compile_now` only from the cache."""
    global _looked, _ready
    with _lock:
        if _ready is INTERPRETED and (compile_now or not _looked):
            _looked = True
            named = os.environ.get(WAY_VARIABLE)
            if named != INTERPRETED_WAY:
                try:
                    from waltzctl.engine.scan import wire_compiled
                except ImportError:
                    return _ready
                _ready = wire_compiled.best(named, compile_now=compile_now) or INTERPRETED
        return _ready


def prepare() -> str:
    """Have the compiled loops ready, compiled now if need be; returns the name of what runs from now on.

    Call it from a thread that may be busy for some seconds.  Where there is nothing to compile with, the interpreted loops stay.
    """
    return _look(compile_now=True).name


def chooser(compiled: bool | None) -> Callable[[], Loops]:
    """A function that tells, at each call, which loops to use; see the module."""
    if compiled is False:
        return lambda: INTERPRETED
    _look(compile_now=bool(compiled))
    return lambda: _ready
