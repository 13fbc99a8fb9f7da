"""What a connection of a client has to know of a port: its messages, versions and texts, as `NodePort`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from waltzctl.formats.wire.frame import Magic
from waltzctl.formats.wire.primitives import Limits

LIMITS = Limits(max_data=256 << 20, max_string=256 << 20)
"""Bounds within which messages are decoded.  A node's metrics are one string, of 25 KB for each partition that is busy."""


class CorrelatedMessage(Protocol):
    """What the messages of all ports have in common."""

    @property
    def sequence(self) -> int:
        """The request's sequence number; in a response, that of the request it answers."""


M = TypeVar("M", bound=CorrelatedMessage)
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class NodePort(Generic[M]):
    """The protocol of a port, from the client's side.

    `versions`: the codec versions that this client speaks.  `client`, `server`: the texts of the two Hello frames.  `decode`
    takes a body and the agreed version.  `failure`: the class of responses that carry a failure, in an attribute of that name.
    """

    magic: Magic
    versions: tuple[int, ...]
    client: str
    server: str
    decode: Callable[[memoryview, int], M]
    failure: type[M]
