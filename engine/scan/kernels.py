"""Which kernel runs: interpreted for small inputs, compiled for large ones.

Loading compiled code takes longer than a small input takes interpreted, and compiling it for the first time on a machine
takes far longer; so the size decides, and whether the code is in the cache.
"""

from __future__ import annotations

import contextlib
import os

from waltzctl.engine.scan.kernel import INTERPRETED, Kernel

LOAD_FROM = 8 << 20
"""Bytes from which code that is in the cache is worth loading."""
COMPILE_FROM = 96 << 20
"""Bytes from which code is worth compiling."""
WAY_VARIABLE = "WALTZCTL_KERNEL"
"""Environment variable that names the only way to use: one of `engine.scan.compiled.WAYS`, or ``interpreted``."""

INTERPRETED_WAY = "interpreted"

_in_use: Kernel | None = None


def choose(size: int, compiled: bool | None = None) -> Kernel:
    """The kernel for `size` bytes; `compiled` overrides the choice, where a compiled one can be had at all."""
    global _in_use
    if compiled is False or os.environ.get(WAY_VARIABLE) == INTERPRETED_WAY:
        return INTERPRETED
    if _in_use is not None:
        return _in_use
    if compiled is None and size < LOAD_FROM:
        return INTERPRETED
    with contextlib.suppress(ImportError, OSError):
        from waltzctl.engine.scan import compiled as machine

        ways = (os.environ[WAY_VARIABLE],) if WAY_VARIABLE in os.environ else machine.available_ways()
        if compiled is None and size < COMPILE_FROM and not machine.cached(ways[0]):
            return INTERPRETED
        for way in ways:
            with contextlib.suppress(machine.CodeUnavailableError):
                _in_use = machine.load(way)
                return _in_use
    return INTERPRETED
