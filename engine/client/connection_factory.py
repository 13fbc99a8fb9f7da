"""How nodes are reached: with or without TLS, which certificates are accepted, and the timeout.

The release accepts every certificate unless it is given a trust store, and never compares host names (weakness S5).  Here a node
must have a certificate that a trust store vouches for.  There are two exceptions: on this machine's loopback, where a man in the
middle would already have to be on the machine, and when the caller sets `insecure`.
"""

from __future__ import annotations

import ssl
import uuid
from collections.abc import Callable
from dataclasses import replace

from waltzctl.engine.client.admin_client import AdminClient
from waltzctl.engine.client.client_connection import DEFAULT_TIMEOUT
from waltzctl.engine.client.log_connection import PORT, LogConnection
from waltzctl.engine.client.server_client import ServerClient
from waltzctl.engine.client.storage_client import StorageClient
from waltzctl.engine.errors import RefusedError
from waltzctl.engine.net.addresses import Address
from waltzctl.engine.net.tls_options import TlsOptions


def _ignore_note(text: str) -> None:
    pass


class ConnectionFactory:
    """Opens connections to nodes.  `on_note` is called once for each host whose certificate is accepted without verification."""

    def __init__(
        self,
        tls: TlsOptions = TlsOptions(),  # noqa: B008  # frozen
        *,
        plaintext: bool = False,
        insecure: bool = False,
        timeout: float = DEFAULT_TIMEOUT,
        on_note: Callable[[str], None] = _ignore_note,
    ) -> None:
        """`insecure`: off the loopback too, accept any certificate and host name, and plain text.  `timeout`: in seconds."""
        self.timeout = timeout
        self._tls = replace(tls, verify_names=tls.verify_names and not insecure)
        self._plaintext = plaintext
        self._insecure = insecure
        self._on_note = on_note
        self._contexts: dict[bool, ssl.SSLContext] = {}
        self._noted: set[str] = set()

    def context(self, address: Address) -> ssl.SSLContext | None:
        """The TLS context for connections to `address`; None: no TLS.

        Raises RefusedError for plain text off the loopback, InvalidRequestError and DiskReadError for unusable stores.
        """
        here = address.is_loopback
        if self._plaintext:
            if not here and not self._insecure:
                raise RefusedError(
                    f"{address}: not on this machine's loopback: without TLS everybody on the way can change what is sent",
                    advice="leave --plaintext out, or add --insecure if the network is trusted",
                )
            return None
        believe = self._tls.trust_store is None and (here or self._insecure)
        if believe and address.host not in self._noted:
            self._noted.add(address.host)
            self._on_note(f"{address.host}: its certificate is taken on trust; --trust-store would check it")
        if believe not in self._contexts:
            from waltzctl.engine.net.tls import client_context

            self._contexts[believe] = client_context(self._tls, trust_all=believe)
        return self._contexts[believe]

    async def admin(
        self, address: Address, *, cluster_key: uuid.UUID | None = None, num_partitions: int | None = None
    ) -> AdminClient:
        """A connection to an admin port; raises as `AdminClient.connect` and `context`."""
        return await AdminClient.connect(
            address.host,
            address.port,
            ssl_context=self.context(address),
            cluster_key=cluster_key,
            num_partitions=num_partitions,
            timeout=self.timeout,
        )

    async def server(self, address: Address) -> ServerClient:
        """A connection to a log server; raises as `ServerClient.connect` and `context`."""
        return await ServerClient.connect(
            address.host, address.port, ssl_context=self.context(address), timeout=self.timeout
        )

    async def log(self, address: Address) -> LogConnection:
        """A connection to a log server for feeds and appends; raises as `LogConnection.connect` and `context`."""
        return await LogConnection.connect(PORT, address, ssl_context=self.context(address), timeout=self.timeout)

    async def storage(
        self, address: Address, *, cluster_key: uuid.UUID | None = None, num_partitions: int | None = None
    ) -> StorageClient:
        """A connection to a data port; raises as `StorageClient.connect` and `context`."""
        return await StorageClient.connect(
            address.host,
            address.port,
            ssl_context=self.context(address),
            cluster_key=cluster_key,
            num_partitions=num_partitions,
            timeout=self.timeout,
        )
