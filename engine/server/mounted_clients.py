"""The clients that have mounted a partition, each with the connection through which it did so last."""

from __future__ import annotations

from typing import Protocol


class Mounted(Protocol):
    """A connection through which clients mount."""

    def close(self) -> None:
        """Close the connection; its clients have to mount through another one."""


class MountedClients:
    """The mounts of one partition: at most one connection for each client id.

    A client that reconnects mounts again.  Its mounts are ordered by (generation of the partition, sequence number of the
    connection); requests that still arrive through the connection of an earlier mount have to be ignored.
    """

    def __init__(self) -> None:
        self._mounts: dict[int, tuple[int, int, Mounted]] = {}  # by client id: generation, sequence number, connection

    def register(self, client: int, generation: int, sequence: int, connection: Mounted) -> bool:
        """Note that a client mounts through a connection, unless a later mount of this client is known, which stays.

        Returns whether its mount that counts is through this connection now.
        """
        known = self._mounts.get(client)
        if known is None or (generation, sequence) >= known[:2]:
            self._mounts[client] = generation, sequence, connection
        return self.is_registered(client, connection)

    def is_registered(self, client: int, connection: Mounted) -> bool:
        """Whether the client's latest mount was made through this connection."""
        known = self._mounts.get(client)
        return known is not None and known[2] is connection

    def forget(self, client: int, connection: Mounted) -> None:
        """Remove a client's mount if it was made through this connection: it has ended."""
        if self.is_registered(client, connection):
            del self._mounts[client]

    def close(self) -> None:
        """Remove all mounts and close their connections, so that every client mounts again."""
        connections = dict.fromkeys(connection for _, _, connection in self._mounts.values())
        self._mounts.clear()
        for connection in connections:
            connection.close()
