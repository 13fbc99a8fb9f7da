"""What the clients of both ports have in common: how a connection begins, is checked, and ends."""

from __future__ import annotations

import asyncio
import ssl
import uuid
from abc import abstractmethod
from types import TracebackType
from typing import Any, ClassVar, Generic, Self

from waltzctl.engine.client.client_connection import (
    DEFAULT_TIMEOUT,
    KEEP_ALIVE_SECONDS,
    M,
    NodePort,
    NodePortConnection,
)
from waltzctl.engine.errors import InvalidRequestError, PeerError
from waltzctl.engine.net.addresses import Address


class NodeClient(Generic[M]):
    """A connection to the port of a node that `_port` says.

    Every call raises RemoteError (the node refused), DeadlineError, PeerUnreachableError or ProtocolError; calls may be made
    while others wait.
    """

    _port: ClassVar[NodePort[Any]]

    def __init__(self, connection: NodePortConnection[M]) -> None:
        """From a connection that stands: see `connect`."""
        self._connection = connection

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        *,
        ssl_context: ssl.SSLContext | None,
        cluster_key: uuid.UUID | None = None,
        num_partitions: int | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        keep_alive_seconds: float = KEEP_ALIVE_SECONDS,
    ) -> Self:
        """Connect, and with a cluster key let the node check it (RemoteError of status mismatch where it is another).

        `timeout`: seconds for connecting and for each call.  At a data port nodes do not insist on the check.
        """
        client = cls(
            await NodePortConnection.connect(
                cls._port,
                Address(host, port),
                ssl_context=ssl_context,
                timeout=timeout,
                keep_alive_seconds=keep_alive_seconds,
            )
        )
        if cluster_key is not None:
            try:
                await client.open(cluster_key, num_partitions)
            except BaseException:
                await client.close()
                raise
        return client

    @property
    def address(self) -> Address:
        """Whom it is connected to."""
        return self._connection.address

    @property
    def closed(self) -> bool:
        """Whether nothing can be asked any more."""
        return self._connection.closed

    @property
    def ended(self) -> asyncio.Future[PeerError]:
        """Done with the reason once nothing can be asked any more, also where nothing is asked."""
        return self._connection.ended

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; calls under way fail."""
        await self._connection.close()

    async def open(self, cluster_key: uuid.UUID, num_partitions: int | None) -> None:
        """Let the node compare cluster key and number of partitions with its own."""
        if num_partitions is None:
            raise InvalidRequestError("the number of partitions is needed where a cluster key is given")
        await self._open(cluster_key, num_partitions)

    @abstractmethod
    async def _open(self, cluster_key: uuid.UUID, num_partitions: int) -> None:
        """Ask for the comparison in the words of the port."""
