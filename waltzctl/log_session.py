"""Access to a cluster's log from a command."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from waltzctl.event_loop import run_async
from waltzctl.metadata_option import ClusterTarget

if TYPE_CHECKING:
    from waltzctl.console import Console
    from waltzctl.engine.client.client_options import ClientOptions
    from waltzctl.engine.client.log_client import LogClient

Result = TypeVar("Result")


class _Said(logging.Handler):
    """Prints on stderr what the client waits for: a feed without a deadline would otherwise just seem to hang."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print a line, unless ``-q``."""
        self._console.note(record.getMessage())


def use_log(
    target: ClusterTarget,
    console: Console,
    work: Callable[[LogClient], Awaitable[Result]],
    options: ClientOptions,
) -> Result:
    """Run `work` with a client of the cluster."""

    async def first(clients: list[LogClient]) -> Result:
        return await work(clients[0])

    return use_logs(target, console, first, options, clients=1)


def use_logs(
    target: ClusterTarget,
    console: Console,
    work: Callable[[list[LogClient]], Awaitable[Result]],
    options: ClientOptions,
    *,
    clients: int,
) -> Result:
    """Run `work` with several clients of the cluster (`clients`)."""
    from waltzctl.engine.client.open_log import open_log_client

    location = target.location
    reach = target.connecting.reach(console)
    log = logging.Logger("waltzctl.client", logging.WARNING)
    log.addHandler(_Said(console))

    async def whole() -> Result:
        async with contextlib.AsyncExitStack() as stack:
            opened = [
                await stack.enter_async_context(open_log_client(location, reach, log=log, options=options))
                for _ in range(clients)
            ]
            return await work(opened)

    return run_async(whole(), with_uvloop=True)
