"""Which kernel runs: interpreted for small inputs, compiled for large ones.

Loading compiled code takes longer than a small input takes interpreted, and compiling it for the first time on a machine
takes far longer; so the size decides, and whether the code is in the cache.  A process that is asked again and again, as a
worker of Spark is, has a large input in pieces: once it was asked for as much as is worth compiling code, it does so.
"""

from __future__ import annotations

import contextlib
import os

from waltzctl.engine.scan.kernel import INTERPRETED, Kernel

LOAD_FROM = 8 << 20
"""Bytes from which code that is in the cache is worth loading."""
COMPILE_FROM = 96 << 20
"""Bytes from which code is worth compiling, of one input or of all that a process was asked for and went without."""
WAY_VARIABLE = "WALTZCTL_KERNEL"
"""Environment variable that names the only way to use: one of `engine.scan.compiled.WAYS`, or ``interpreted``."""

INTERPRETED_WAY = "interpreted"

_in_use: Kernel | None = None
_without: int = 0
"""Bytes for which this process took the interpreted kernel as there was no code, of inputs that are worth loading some."""


def choose(size: int, compiled: bool | None = None) -> Kernel:
    """The kernel for `size` bytes; `compiled` overrides the choice, where a compiled one can be had at all."""
    global _in_use, _without
    if compiled is False:
        return INTERPRETED
    if _in_use is not None:
        return _in_use
    if (compiled is None and size < LOAD_FROM) or os.environ.get(WAY_VARIABLE) == INTERPRETED_WAY:
        return INTERPRETED
    with contextlib.suppress(ImportError, OSError):
        from waltzctl.engine.scan import compiled as machine

        ways = (os.environ[WAY_VARIABLE],) if WAY_VARIABLE in os.environ else machine.available_ways()
        if compiled is None and not machine.cached(ways[0]):
            _without += size
            if _without < COMPILE_FROM:
                return INTERPRETED
            _without = 0  # where it cannot be compiled that is found out again after as much, not at each piece
        for way in ways:
            with contextlib.suppress(machine.CodeUnavailableError):
                _in_use = machine.load(way)
                return _in_use
    return INTERPRETED
