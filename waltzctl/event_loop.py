"""The way from a command into asyncio and back."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import asyncio

Result = TypeVar("Result")


def loop_factory(wanted: bool) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The factory of uvloop's event loop, if it is installed and `wanted`; None for asyncio's own loop."""
    if not wanted:
        return None
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def run_async(work: Coroutine[Any, Any, Result], *, with_uvloop: bool = False) -> Result:
    """Run a coroutine to its end.  Ctrl-C cancels it; connections are closed before KeyboardInterrupt is raised.

    `with_uvloop`: use uvloop where it is installed, for work that justifies the 20 ms of loading it.
    """
    import asyncio  # here, because --help needs none of it

    with asyncio.Runner(loop_factory=loop_factory(with_uvloop)) as runner:
        return runner.run(work)
