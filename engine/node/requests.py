"""What the data port hands to a partition, and what a partition knows of the peer that it answers.

Append requests come as *runs*: the frames stay where they were received, and a table of NumPy columns (rows of
`engine.scan.frames.FrameColumn`) says where each one begins.  Nothing is made per request on the way to the disk.
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

    `post` and `break_off` may be called from any thread; both say of how many requests, and of how many bytes of frame
    bodies, the receiver is rid, so that it may read on.
    """

    @property
    def closed(self) -> bool:
        """Whether nobody listens any more; true at the latest when `break_off` has returned."""
        ...

    def post(self, answer: bytes | list[bytes], requests: int, size: int) -> None:
        """Send whole answer frames; `requests` requests of together `size` body bytes are done with."""
        ...

    def break_off(self, reason: str, requests: int, size: int) -> None:
        """Close the connection, as the release does for a message that it cannot decode; what was posted before is sent."""
        ...

    def later(self, call: Callable[..., object], *arguments: object) -> None:
        """Call back when what is posted next is on its way to the peer; from any thread, in any thread, and perhaps never."""
        ...

    def room_for_answer(self) -> int:
        """Bytes that may be queued to this peer now; bounds the lists it is sent."""
        ...


class AppendRun(NamedTuple):
    """Consecutive append frames of one partition and one sender, not decoded.

    `table` has a row per frame in their order (int64 columns `engine.scan.frames.FrameColumn`), its BODY column counts from the
    start of `buffer`; `size` is the sum of its LENGTH column.  `received`: `time.monotonic` when the last of them had arrived.
    """

    sender: Sender
    buffer: bytes | bytearray
    table: npt.NDArray[np.int64]
    size: int
    received: float


@dataclass(frozen=True, slots=True)
class Request:
    """Any other message of a partition.  `size`: bytes of its frame body; `received` as in `AppendRun`."""

    sender: Sender
    message: StorageMessage
    size: int
    received: float


Item = AppendRun | Request
