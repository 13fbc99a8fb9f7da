"""A client of a cluster's log, from nothing but where its metadata is."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator

from waltzctl.engine.client.connection_factory import ConnectionFactory
from waltzctl.engine.client.log_client import ClientOptions, LogClient
from waltzctl.engine.metadata.metadata_location import MetadataLocation
from waltzctl.engine.metadata.server_directory import ServerDirectory

_LOG = logging.getLogger("waltzctl.client")


@contextlib.asynccontextmanager
async def open_log_client(
    where: MetadataLocation | str,
    reach: ConnectionFactory | None = None,
    *,
    log: logging.Logger = _LOG,
    options: ClientOptions | None = None,
) -> AsyncIterator[LogClient]:
    """A client of the cluster whose metadata is at `where`, as ``--metadata`` takes it.

    `reach`: how log servers are reached; without one with TLS, believed on this machine's loopback only.  Raises NotWaltzError
    where there is no cluster, PeerError, InvalidRequestError.
    """
    location = MetadataLocation.parse(where) if isinstance(where, str) else where
    connections = reach or ConnectionFactory()
    async with location.open() as store:
        servers = await ServerDirectory.open(store, log=log)
        async with LogClient(servers, connections.log, log=log, options=options) as client:
            yield client
