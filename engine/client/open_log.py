"""Open a client of a cluster's log, given the location of the cluster's metadata."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator

from waltzctl.engine.client.client_options import ClientOptions
from waltzctl.engine.client.connection_factory import ConnectionFactory
from waltzctl.engine.client.log_client import LogClient
from waltzctl.engine.client.reader_ids import ReaderIdsOfProcess
from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.metadata.metadata_location import MetadataLocation
from waltzctl.engine.metadata.server_directory import ServerDirectory
from waltzctl.engine.net.tls_options import TlsOptions

_LOG = logging.getLogger("waltzctl.client")


@contextlib.asynccontextmanager
async def open_log_client(
    where: MetadataLocation | str,
    reach: ConnectionFactory | None = None,
    *,
    tls: TlsOptions | None = None,
    plaintext: bool = False,
    insecure: bool = False,
    log: logging.Logger = _LOG,
    options: ClientOptions | None = None,
    reader_ids: ReaderIdsOfProcess | None = None,
) -> AsyncIterator[LogClient]:
    """A client of the cluster whose metadata is at `where` (in the form of the option ``--metadata``).

    ===========  =====================================================================================================
    parameter    how log servers are reached
    ===========  =====================================================================================================
    `tls`        with TLS and these key and trust stores (the default: TLS without stores)
    `plaintext`  without TLS
    `insecure`   accept plain text, and certificates that no trust store vouches for, also off this machine's loopback
    `reach`      all of this at once, in place of the other three
    ===========  =====================================================================================================

    `reader_ids`: where clients that are opened one after the other share the client ids of their feeds.

    Raises NotWaltzError when there is no cluster at `where`, PeerError, InvalidRequestError.
    """
    if reach is not None and (tls is not None or plaintext or insecure):
        raise InvalidRequestError("how servers are reached is said twice", advice="leave out reach, or all the others")
    if plaintext and tls is not None:
        raise InvalidRequestError("tls: there are no certificates in plain text", advice="leave out tls or plaintext")
    if tls is not None:
        tls.check()
    location = MetadataLocation.parse(where) if isinstance(where, str) else where
    connections = reach or ConnectionFactory(tls or TlsOptions(), plaintext=plaintext, insecure=insecure)
    async with location.open() as store:
        servers = await ServerDirectory.open(store, log=log)
        shared = None if reader_ids is None else reader_ids.of(servers.where, servers.cluster_key)
        async with LogClient(servers, connections.log, log=log, options=options, reader_ids=shared) as client:
            yield client
