"""Turn a node's failure response into a RemoteError.

A failure of our node carries a stable code.  A failure of a released node carries only the text of a Java exception; the tables
below are the only place that knows those texts (release 0.13.2: its storage manager, partition, control file and segments).
"""

from __future__ import annotations

import re

from waltzctl.engine.errors import RemoteError
from waltzctl.formats.wire.failure import Failure, FailureCode

_CLASS = re.compile(r"(?:[A-Za-z_$][\w$]*\.)+[A-Z][\w$]*(?:: )?")
"""The exception's class name, which precedes the text."""

_TEXTS: tuple[tuple[str, FailureCode], ...] = (
    ("is not assigned", FailureCode.NOT_ASSIGNED),
    ("read and write for partition=", FailureCode.NOT_AVAILABLE),
    ("cannot run offline recovery while partition is online", FailureCode.ONLINE),
    ("session id has changed", FailureCode.SESSION_CHANGED),
    ("transaction out of order", FailureCode.OUT_OF_ORDER),
    ("low-water mark is lower than the max transaction id", FailureCode.MARK_WOULD_FALL),
    ("unable to set low watermark", FailureCode.MARK_WOULD_FALL),
    ("unable to set local low watermark", FailureCode.MARK_WOULD_FALL),
    ("transaction id out of range", FailureCode.BELOW_LOW_WATER_MARK),
    ("Provided cluster key is inconsistent", FailureCode.MISMATCH),
    ("Provided number of partitions is inconsistent", FailureCode.MISMATCH),
    ("wrong key format", FailureCode.MISMATCH),
    ("is already closed", FailureCode.CLOSED),
    ("No space left on device", FailureCode.DISK_FULL),
    ("unknown message type", FailureCode.UNKNOWN_TYPE),
    ("checksum", FailureCode.CORRUPT_RECORD),
    ("corrupted", FailureCode.CORRUPT_RECORD),
)
"""A part of a released node's text, and its code; the first match counts."""

_CLASSES: tuple[tuple[str, FailureCode], ...] = (
    (".ConcurrentUpdateException", FailureCode.SESSION_CHANGED),
    ("java.io.IOException", FailureCode.IO_ERROR),
    ("java.io.FileNotFoundException", FailureCode.IO_ERROR),
    ("java.nio.", FailureCode.IO_ERROR),
    ("java.lang.OutOfMemoryError", FailureCode.OUT_OF_MEMORY),
)
"""A part of the exception's class name, and its code; used when no text matches."""

_ADVICE = {
    FailureCode.NOT_ASSIGNED: "assign it first: waltzctl node HOST:PORT add-partition",
    FailureCode.NOT_AVAILABLE: "it was switched off: waltzctl node HOST:PORT availability",
    FailureCode.ONLINE: "switch it off first: waltzctl node HOST:PORT availability --partition N --online false",
    FailureCode.SESSION_CHANGED: "another program uses the partition in a newer session",
    FailureCode.MISMATCH: "this node belongs to another cluster, or the key or the number of partitions is wrong",
    FailureCode.DISK_FULL: "free some space on the node",
    FailureCode.BUSY: "try again later",
}


def code_of(failure: Failure) -> str | None:
    """The failure's stable code: the node's own, else the one that the tables give; None for an unknown failure."""
    if failure.code is not None:
        return failure.code
    for text, code in _TEXTS:
        if text in failure.message:
            return code.value
    for name, code in _CLASSES:
        if failure.message.partition(":")[0].find(name) >= 0:
            return code.value
    return None


def remote_error(peer: str, failure: Failure) -> RemoteError:
    """The error for a failure.  The exception's class name is left out of the text: it is of no use to a person."""
    code = code_of(failure)
    try:
        known = None if code is None else FailureCode(code)
    except ValueError:
        known = None  # a code of a newer node
    return RemoteError(
        peer,
        _CLASS.sub("", failure.message, count=1) or failure.message or "a failure without a text",
        code=code,
        status="refused" if known is None else known.status,
        advice=None if known is None else _ADVICE.get(known),
    )
