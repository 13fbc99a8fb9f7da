"""The way from a command into asyncio and back."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import asyncio

Result = TypeVar("Result")


def loop_factory(wanted: bool) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Uvloop's event loop, where it is there and `wanted`; None for asyncio's own."""
    if not wanted:
        return None
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def run_async(work: Coroutine[Any, Any, Result], *, with_uvloop: bool = False) -> Result:
    """Do asynchronous work to its end.  Ctrl-C cancels it; connections are closed before KeyboardInterrupt is raised.

    `with_uvloop`: for work that is worth the 20 ms until uvloop's loop is there, where it can be had.
    """
    import asyncio  # here, because --help needs none of it

    with asyncio.Runner(loop_factory=loop_factory(with_uvloop)) as runner:
        return runner.run(work)
