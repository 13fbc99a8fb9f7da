"""The common base of the clients of all ports: connecting, checking the cluster key, closing."""

from __future__ import annotations

import asyncio
import ssl
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, ClassVar, Generic, Self

from waltzctl.engine.client.client_connection import DEFAULT_TIMEOUT, KEEP_ALIVE_SECONDS, NodePortConnection
from waltzctl.engine.client.port_protocol import M, NodePort
from waltzctl.engine.errors import InvalidRequestError, PeerError
from waltzctl.engine.net.addresses import Address


def in_parts(partitions: Sequence[int], most: int) -> Iterator[tuple[int, ...]]:
    """The partitions of each request, at most `most`; one request without any where there are none."""
    for first in range(0, max(len(partitions), 1), most):
        yield tuple(partitions[first : first + most])


class NodeClient(Generic[M]):
    """A connection to a port of a node; `_port` is the port's protocol.

    Every call may raise RemoteError (the node responded with a failure), DeadlineError, PeerUnreachableError or ProtocolError,
    and InvalidRequestError for a number that has no room in its field: then nothing was sent.  Several calls may be in flight.
    """

    _port: ClassVar[NodePort[Any]]

    def __init__(self, connection: NodePortConnection[M]) -> None:
        """Use an established connection; see `connect`."""
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
        """Connect and, when a cluster key is given, let the node compare it with its own.

        `timeout`: seconds for connecting and for each call.  A node's data port also serves clients that do not ask for the
        comparison.  Raises RemoteError with status mismatch when the cluster key or the number of partitions differs.
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

    def _encoded(self, what: str, encode: Callable[..., bytes], *request: object) -> bytes:
        """The frame of a call's request.  Raises InvalidRequestError."""
        try:
            return encode(*request)
        except ValueError as error:
            raise InvalidRequestError(f"{self.address}: {what}: a field does not fit its place: {error}") from error

    @property
    def address(self) -> Address:
        """The peer's address."""
        return self._connection.address

    @property
    def closed(self) -> bool:
        """Whether the connection has ended, so that no call can be made."""
        return self._connection.closed

    @property
    def ended(self) -> asyncio.Future[PeerError]:
        """Done with the reason once the connection has ended, whether or not a call is in flight."""
        return self._connection.ended

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; calls in flight fail."""
        await self._connection.close()

    async def open(self, cluster_key: uuid.UUID, num_partitions: int | None) -> None:
        """Let the node compare cluster key and number of partitions with its own."""
        if num_partitions is None:
            raise InvalidRequestError("the number of partitions is needed where a cluster key is given")
        await self._open(cluster_key, num_partitions)

    @abstractmethod
    async def _open(self, cluster_key: uuid.UUID, num_partitions: int) -> None:
        """Send the port's open request, which asks for the comparison."""
