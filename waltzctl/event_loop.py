"""The way from a command into asyncio and back."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import asyncio

Result = TypeVar("Result")
_LOOKUP_THREADS = 4
"""Threads in which uvloop looks up names, unless UV_THREADPOOL_SIZE says how many."""
_MOST_LOOKUP_THREADS = 1024


def loop_factory(wanted: bool) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The factory of uvloop's event loop, if it is installed and `wanted`; None for asyncio's own loop."""
    if not wanted:
        return None
    try:
        import uvloop
    except ImportError:
        return None

    def made() -> asyncio.AbstractEventLoop:
        import asyncio
        import socket

        if not _can_start(_lookup_threads()):
            return asyncio.new_event_loop()
        loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        loop.run_until_complete(loop.getnameinfo(("127.0.0.1", 0), socket.NI_NUMERICHOST | socket.NI_NUMERICSERV))
        return loop

    return made


def _lookup_threads() -> int:
    """How many threads uvloop starts; libuv reads the variable as atoi does, and takes its bounds for what is beyond them."""
    said = os.environ.get("UV_THREADPOOL_SIZE")
    if said is None:
        return _LOOKUP_THREADS
    number = re.match(r"\s*\+?(\d{1,9})", said, re.ASCII)
    return min(max(1, int(number[1]) if number else 1), _MOST_LOOKUP_THREADS)


def _can_start(threads: int) -> bool:
    """Whether that many further threads can be started.

    uvloop starts its own at the first look-up of a name or an address, all of them, and where one cannot be started it aborts the
    process, without a message.  So they are started with the loop, once it is known that they can be.
    """
    ended, begun = threading.Event(), []
    try:
        for _ in range(threads):
            thread = threading.Thread(target=ended.wait, name="room for a thread", daemon=True)
            thread.start()
            begun.append(thread)
    except RuntimeError:
        return False
    finally:
        ended.set()
        for thread in begun:
            thread.join()
    for thread in begun:  # a thread that was joined counts for a moment more
        for _ in range(100):
            if not os.path.exists(f"/proc/self/task/{thread.native_id}"):
                break
            time.sleep(0.001)
    return True


def run_async(work: Coroutine[Any, Any, Result], *, with_uvloop: bool = False) -> Result:
    """Run a coroutine to its end.  Ctrl-C cancels it; connections are closed before KeyboardInterrupt is raised.

    `with_uvloop`: use uvloop where it is installed, for work that justifies the 20 ms of loading it.
    """
    import asyncio  # here, because --help needs none of it

    with asyncio.Runner(loop_factory=loop_factory(with_uvloop)) as runner:
        return runner.run(work)
