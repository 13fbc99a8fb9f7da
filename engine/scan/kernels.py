"""Choice of the kernel: interpreted for small inputs, compiled for large ones.

Loading compiled code takes longer than interpreting a small input, and compiling it takes far longer; so the choice depends on
the size of the input, and on whether the code is in the cache.  A worker of Spark gets a large input in pieces; therefore a
process compiles the code once its inputs together are large enough.
"""

from __future__ import annotations

import contextlib
import os

from waltzctl.engine.scan.kernel import INTERPRETED, Kernel

LOAD_FROM = 8 << 20
"""Size of an input, in bytes, from which code in the cache is loaded."""
COMPILE_FROM = 96 << 20
"""Bytes from which code is compiled: of one input, or of all inputs for which a process took the interpreted kernel instead."""
WAY_VARIABLE = "WALTZCTL_KERNEL"
"""Environment variable that names the only way to use: one of `engine.scan.compiled.WAYS`, or ``interpreted``."""

INTERPRETED_WAY = "interpreted"

_in_use: Kernel | None = None
_interpreted_bytes: int = 0
"""Bytes of inputs of at least LOAD_FROM for which this process took the interpreted kernel, as the cache had no code."""


def choose(size: int, compiled: bool | None = None) -> Kernel:
    """The kernel for `size` bytes.  `compiled`: False for the interpreted one; True for a compiled one, if there is one."""
    global _in_use, _interpreted_bytes
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
            _interpreted_bytes += size
            if _interpreted_bytes < COMPILE_FROM:
                return INTERPRETED
            _interpreted_bytes = 0  # if compiling fails, try again only after COMPILE_FROM more bytes
        for way in ways:
            with contextlib.suppress(machine.CodeUnavailableError):
                _in_use = machine.load(way)
                return _in_use
    return INTERPRETED
