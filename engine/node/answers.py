"""Answers of a partition: encoding many success or failure frames at once, and posting them to the sender's connection."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from waltzctl.engine.node.failure_responses import denial_of, failure
from waltzctl.engine.node.permissions import Denial
from waltzctl.engine.node.requests import AppendRun, Item, Sender
from waltzctl.engine.scan.frames import FrameColumn
from waltzctl.formats.wire.failure import FailureCode
from waltzctl.formats.wire.frame import FRAME_HEADER, Magic, frame_header
from waltzctl.formats.wire.storage import (
    PREFIX,
    STORAGE_VERSION,
    FailureResponse,
    SuccessResponse,
    encode,
    success_frames,
)

Table = npt.NDArray[np.int64]

SUCCESS_SIZE = FRAME_HEADER.size + PREFIX.size
"""Bytes of a success frame, header included."""
MALFORMED_REASON = "a request that cannot be decoded"
NO_MEMORY_REASON = "no memory is left for an answer"

_SESSION, _SEQUENCE, _PARTITION = int(FrameColumn.SESSION), int(FrameColumn.SEQUENCE), int(FrameColumn.PARTITION)
_REPLACED_FIELDS = (
    (FRAME_HEADER.size + PREFIX.offset_of("session_id"), _SESSION),
    (FRAME_HEADER.size + PREFIX.offset_of("sequence"), _SEQUENCE),
)
_SUCCESS_HEADER = frame_header(Magic.STORAGE, STORAGE_VERSION, PREFIX.size)


def successes(table: Table) -> bytes:
    """Concatenated success frames, one for each request of a table (rows of `FrameColumn`)."""
    if len(table) == 1:  # one request: faster without NumPy
        row = table[0].tolist()
        prefix = PREFIX.struct.pack(SuccessResponse.TYPE, row[_SESSION], row[_SEQUENCE], row[_PARTITION])
        return _SUCCESS_HEADER + prefix
    return success_frames(table[:, _SESSION], table[:, _SEQUENCE], table[:, _PARTITION])


def failure_frames(denial: Denial, table: Table) -> bytes:
    """Concatenated frames of the same failure, one for each request of a table of one partition."""
    first = table[0].tolist()
    frame = encode(FailureResponse(first[_SESSION], first[_SEQUENCE], first[_PARTITION], failure(denial)))
    count = len(table)
    if count == 1:
        return frame
    frames = np.frombuffer(bytearray(frame * count), np.uint8).reshape(count, len(frame))
    for offset, column in _REPLACED_FIELDS:
        frames[:, offset : offset + 8] = table[:, column].astype(">i8").view(np.uint8).reshape(count, 8)
    return frames.tobytes()


def failures_for(item: Item, denial: Denial) -> bytes:
    """Failure frames for every request of an item."""
    if isinstance(item, AppendRun):
        return failure_frames(denial, item.table)
    message = item.message
    return encode(FailureResponse(message.session_id, message.sequence, message.partition, failure(denial)))


def requests_of(item: Item) -> int:
    """How many requests an item has."""
    return len(item.table) if isinstance(item, AppendRun) else 1


def refuse(item: Item, denial: Denial, log: logging.Logger) -> None:
    """Answer every request of an item with a failure; if there is no memory even for that, close its connection."""
    try:
        answer = failures_for(item, denial)
    except MemoryError:
        log.error("%s: the connection is closed", NO_MEMORY_REASON)
        break_off(item.sender, NO_MEMORY_REASON, requests_of(item), item.size, log)
        return
    post(item.sender, answer, requests_of(item), item.size, log)


def post(sender: Sender, answer: bytes | list[bytes], requests: int, size: int, log: logging.Logger) -> None:
    """Post an answer to its connection.  Exceptions of the connection are logged, not raised."""
    try:
        sender.post(answer, requests, size)
    except Exception:
        log.exception("an answer could not be handed to its connection")


def later(sender: Sender, log: logging.Logger, call: Callable[..., object], *arguments: object) -> None:
    """`Sender.later`.  Exceptions of the connection are logged, not raised."""
    try:
        sender.later(call, *arguments)
    except Exception:
        log.exception("what was to be done after an answer could not be handed over")


def break_off(sender: Sender, reason: str, requests: int, size: int, log: logging.Logger) -> None:
    """Close a connection.  Exceptions of the connection are logged, not raised."""
    try:
        sender.break_off(reason, requests, size)
    except Exception:
        log.exception("a connection could not be closed")


def report(error: BaseException, log: logging.Logger, what: str) -> Denial:
    """The denial that a peer is sent for an error; also logs the error, at a level by its kind."""
    denial = denial_of(error)
    if denial.code in (FailureCode.INTERNAL, FailureCode.OUT_OF_MEMORY):
        log.error("%s failed: %s", what, denial.text, exc_info=error)
    elif denial.code.status in ("io-error", "damaged"):
        log.error("%s failed: %s", what, denial.text)
    else:
        log.debug("%s refused: %s", what, denial.text)
    return denial
