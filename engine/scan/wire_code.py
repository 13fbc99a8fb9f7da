"""Choice of the wire loops: interpreted or compiled.

By default a process gets the compiled loops if their code is in the cache (loading takes a few hundredths of a second), else the
interpreted ones until `prepare` has compiled the others, which takes seconds, once on a machine.  Splitters and encoders that
exist already use the compiled loops from their next call on.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Protocol

from waltzctl.engine.scan.kernels import INTERPRETED_WAY, WAY_VARIABLE
from waltzctl.engine.scan.wire_loops import INTERPRETED, State, Table


class Loops(Protocol):
    """One implementation of the loops.  Thread-safe."""

    name: str
    """For people."""

    def split(self, state: State, buffer: Any, table: Table) -> int:
        """Run `engine.scan.wire_loops.split`; `table` has ROWS rows.  Returns a SplitStatus."""

    def encode(self, state: State, buffer: Any, table: Table, offsets: Table, out: Any) -> int:
        """Run `engine.scan.wire_loops.encode`.  Returns a FrameVerdict."""

    def encode_groups(self, state: State, buffer: Any, table: Table, groups: Table, offsets: Table, out: Any) -> None:
        """Run `engine.scan.wire_loops.encode_groups`; `groups` has GROUPS rows, which receive the results."""

    def to_list(self, state: State, buffer: Any, out: Any, *, brief: bool) -> int:
        """Run `engine.scan.list_loops.to_list`.  Returns a FrameVerdict."""

    def answer_lists(
        self, state: State, buffer: Any, table: Table, segment: State, heads: bytes, scratch: Any, out: Any
    ) -> int:
        """Run `engine.scan.list_loops.answer_lists`.  Returns a ListStop."""

    def take_appends(
        self, state: State, buffer: Any, runs: Table, places: Table, held: Table, locks: Table, out: Any
    ) -> None:
        """Run `engine.scan.client_loops.take_appends`; `runs` and `held` have ROWS rows, `places` one word more."""

    def number_records(self, state: State, records: bytearray, feed: bytes, out: bytearray) -> int:
        """Run `engine.scan.client_loops.number_records`.  Returns a FrameVerdict."""

    def admit_appends(
        self, state: State, written: State, in_flight: State, appends: State, locks: State, verdicts: State
    ) -> int:
        """Run `engine.scan.lock_loops.admit_appends`; `verdicts` has a word for each append.  Returns a FrameVerdict."""

    def settle_appends(self, state: State, written: State, in_flight: State, appends: State, locks: State) -> int:
        """Run `engine.scan.lock_loops.settle_appends`.  Returns a FrameVerdict."""


_ready: Loops = INTERPRETED
_looked = False
_lock = threading.Lock()


def _look(*, compile_now: bool) -> Loops:
    """The best available loops; without `compile_now` compiled ones only from the cache."""
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
    """Load the compiled loops, and compile them if necessary; returns the name of the loops in use from now on.

    It may take some seconds.  Without a compiler the interpreted loops remain in use.
    """
    return _look(compile_now=True).name


def chooser(compiled: bool | None) -> Callable[[], Loops]:
    """A function that returns the loops to use at each call; see the module.

    `compiled`: False for the interpreted loops; None for the best that are ready; True to wait for the compiled ones.
    """
    if compiled is False:
        return lambda: INTERPRETED
    _look(compile_now=bool(compiled))
    return lambda: _ready
