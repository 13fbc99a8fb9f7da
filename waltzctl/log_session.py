"""The way from a command to a cluster's log and back."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from waltzctl.connection_options import run_async
from waltzctl.metadata_option import ClusterTarget

if TYPE_CHECKING:
    from waltzctl.console import Console
    from waltzctl.engine.client.log_client import ClientOptions, LogClient

Result = TypeVar("Result")


class _Said(logging.Handler):
    """What the client has to say goes where the command's own details go."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """A line for ``-v``."""
        self._console.detail(record.getMessage())


def use_log(
    target: ClusterTarget,
    console: Console,
    work: Callable[[LogClient], Awaitable[Result]],
    options: ClientOptions | None = None,
) -> Result:
    """Do something with a client of the cluster."""
    from waltzctl.engine.client.open_log import open_log_client

    location = target.location
    reach = target.connecting.reach(console)
    log = logging.Logger("waltzctl.client", logging.WARNING)
    log.addHandler(_Said(console))

    async def whole() -> Result:
        async with open_log_client(location, reach, log=log, options=options) as client:
            return await work(client)

    return run_async(whole())


def client_options(timeout: float | None = None, in_flight: int | None = None) -> ClientOptions:
    """Options of a client; None leaves a thing as it is."""
    from waltzctl.engine.client.log_client import ClientOptions

    given = ClientOptions()
    return ClientOptions(
        timeout=given.timeout if timeout is None else timeout,
        in_flight=given.in_flight if in_flight is None else in_flight,
    )
