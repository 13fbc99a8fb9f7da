"""The failure response of a storage node, on both ports: a text and the stack trace of the release's Java exception.

The text is the exception's class name, followed by ``: `` and its message if it has one.  Programs of the release compare the
text or its end, which is not a stable interface (weakness S7).  Therefore our node adds a stable code, as the first element of
the stack trace: class ``waltzctl``, method the code, no file, line -1.  A released program prints it like any other element.

Source: release 0.13.2; the design documents do not describe it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from construct import Int32sb, Struct

from waltzctl.formats.wire.primitives import ListOf, NullableText, Text, ValueOf

CODE_CLASS = "waltzctl"
"""Class name of the stack element that carries our code."""
CODE_LINE = -1

STORAGE_EXCEPTION = "com.wepay.waltz.storage.exception.StorageException"
CONCURRENT_UPDATE_EXCEPTION = "com.wepay.waltz.storage.exception.ConcurrentUpdateException"
PLAIN_EXCEPTION = "java.lang.Exception"
ILLEGAL_STATE_EXCEPTION = "java.lang.IllegalStateException"
IO_EXCEPTION = "java.io.IOException"
OUT_OF_MEMORY_ERROR = "java.lang.OutOfMemoryError"
RUNTIME_EXCEPTION = "java.lang.RuntimeException"
"""Exception classes in the texts of the release's failures."""


class FailureCode(StrEnum):
    """The stable code of a failure; our nodes put it into the first stack element of every failure."""

    NOT_ASSIGNED = "not-assigned"
    NOT_AVAILABLE = "not-available"
    ONLINE = "online"
    SESSION_CHANGED = "session-changed"
    OUT_OF_ORDER = "out-of-order"
    MARK_WOULD_FALL = "mark-would-fall"
    BELOW_LOW_WATER_MARK = "below-low-water-mark"
    DATA_CHECKSUM = "data-checksum"
    TOO_LONG = "too-long"
    INVALID_REQUEST = "invalid-request"
    UNKNOWN_TYPE = "unknown-type"
    BUSY = "busy"
    CLOSED = "closed"
    REFUSED = "refused"
    MISMATCH = "mismatch"
    CORRUPT_RECORD = "corrupt-record"
    QUARANTINED = "quarantined"
    DAMAGED = "damaged"
    DISK_FULL = "disk-full"
    SYNC_FAILED = "sync-failed"
    IO_ERROR = "io-error"
    OUT_OF_MEMORY = "out-of-memory"
    INTERNAL = "internal"

    @property
    def status(self) -> str:
        """The name of the exit status with which a client's command ends."""
        return _STATUS.get(self, "refused")


_STATUS = {
    FailureCode.INVALID_REQUEST: "usage",
    FailureCode.UNKNOWN_TYPE: "usage",
    FailureCode.MISMATCH: "mismatch",
    FailureCode.CORRUPT_RECORD: "damaged",
    FailureCode.QUARANTINED: "damaged",
    FailureCode.DAMAGED: "damaged",
    FailureCode.DATA_CHECKSUM: "damaged",
    FailureCode.DISK_FULL: "io-error",
    FailureCode.SYNC_FAILED: "io-error",
    FailureCode.IO_ERROR: "io-error",
    FailureCode.OUT_OF_MEMORY: "io-error",
    FailureCode.INTERNAL: "internal",
}


DAMAGED_RECORD = frozenset({FailureCode.CORRUPT_RECORD, FailureCode.DAMAGED, FailureCode.DATA_CHECKSUM})
"""Codes with which a node refuses to return a damaged record."""


@dataclass(frozen=True, slots=True)
class StackElement:
    """One line of a stack trace.  `line` is negative where there is none (-2: a native method)."""

    class_name: str
    method: str
    file: str | None
    line: int


STACK_ELEMENT_SCHEMA = Struct("class_name" / Text, "method" / Text, "file" / NullableText, "line" / Int32sb)
_SMALLEST_ELEMENT = 16  # three counts and the line


@dataclass(frozen=True, slots=True)
class Failure:
    """Text and stack trace, innermost call first."""

    message: str
    stack: tuple[StackElement, ...] = ()

    @classmethod
    def with_code(cls, message: str, code: str, stack: tuple[StackElement, ...] = ()) -> Failure:
        """A failure that carries one of our codes in front of the trace."""
        return cls(message, (StackElement(CODE_CLASS, code, None, CODE_LINE), *stack))

    @property
    def code(self) -> str | None:
        """Our stable code; None where the peer is no node of ours."""
        if not self.stack:
            return None
        first = self.stack[0]
        marked = first.class_name == CODE_CLASS and first.file is None and first.line == CODE_LINE
        return first.method if marked else None


FAILURE_SCHEMA = Struct(
    "message" / Text,
    "stack" / ListOf("stack trace", ValueOf(StackElement, STACK_ELEMENT_SCHEMA), _SMALLEST_ELEMENT),
)
FailureValue: Any = ValueOf(Failure, FAILURE_SCHEMA)
"""A failure inside a message."""
