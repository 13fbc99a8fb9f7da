"""Requests as the data port submits them to a partition, and `Sender`, the interface by which they are answered.

Append requests come as *runs*: the frames stay in the buffer they were received in, and a table of NumPy columns (rows of
`engine.scan.frames.FrameColumn`) describes them.  No Python object is made per request on the way to the disk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from waltzctl.formats.wire.storage import StorageMessage


class Sender(Protocol):
    """The peer that sent requests and waits for their answers: a connection of the data port.

    `post` and `break_off` may be called from any thread.  Their parameters `requests` and `size` (requests, and bytes of their
    frame bodies) are no longer under way then, so that the connection may read on.
    """

    @property
    def closed(self) -> bool:
        """Whether answers can no longer reach the peer; true at the latest when `break_off` has returned."""
        ...

    def post(self, answer: bytes | list[bytes], requests: int, size: int) -> None:
        """Send complete answer frames for `requests` requests of `size` body bytes in total."""
        ...

    def break_off(self, reason: str, requests: int, size: int) -> None:
        """Close the connection, as the release does for a malformed message; answers posted before are still sent."""
        ...

    def later(self, call: Callable[..., object], *arguments: object) -> None:
        """Call `call` after the next posted answer was handed to the transport.

        May be called from any thread; `call` runs in any thread, or never if the connection closes.
        """
        ...

    def room_for_answer(self) -> int:
        """Bytes that an answer to this peer may have now; bounds the lists it is sent."""
        ...


class AppendRun(NamedTuple):
    """Consecutive append frames of one partition and one sender, not decoded.

    `table`: a row per frame, in their order (int64 columns `engine.scan.frames.FrameColumn`); its BODY column holds offsets into
    `buffer`.  `size`: the sum of its LENGTH column, bytes.  `received`: `time.monotonic` when the last frame had arrived.
    """

    sender: Sender
    buffer: bytes | bytearray
    table: npt.NDArray[np.int64]
    size: int
    received: float


@dataclass(frozen=True, slots=True)
class Request:
    """Any other request to a partition.  `size`: bytes of its frame body; `received` as in `AppendRun`."""

    sender: Sender
    message: StorageMessage
    size: int
    received: float


Item = AppendRun | Request
