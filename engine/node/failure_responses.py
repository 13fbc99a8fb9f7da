"""Mapping of errors to failures on the wire: the release's exception classes and texts, and a stable code of waltzctl's.

========================= ==========================================================================================
part of a failure         content
========================= ==========================================================================================
message                   a Java exception as text: class name, colon, text.  Where the release fails in the same case,
                          exactly the release's; otherwise the class that it uses for that kind of error, and a text of
                          waltzctl's
first stack element       no place in a program but the code (class ``waltzctl``, method the code, line -1); a released
                          client shows it as one line of a stack trace
========================= ==========================================================================================
"""

from __future__ import annotations

from waltzctl.engine import errors
from waltzctl.engine.node.permissions import Denial, DeniedError, OtherClusterError, out_of_order
from waltzctl.formats.wire.failure import (
    CONCURRENT_UPDATE_EXCEPTION,
    IO_EXCEPTION,
    OUT_OF_MEMORY_ERROR,
    PLAIN_EXCEPTION,
    RUNTIME_EXCEPTION,
    STORAGE_EXCEPTION,
    Failure,
    FailureCode,
)

_KINDS: tuple[tuple[type[BaseException], FailureCode, str], ...] = (
    # the first match counts: subclasses stand in front of their base classes
    (errors.CorruptRecordError, FailureCode.CORRUPT_RECORD, STORAGE_EXCEPTION),
    (errors.PartitionQuarantinedError, FailureCode.QUARANTINED, STORAGE_EXCEPTION),
    (errors.ChecksumMismatchError, FailureCode.DATA_CHECKSUM, STORAGE_EXCEPTION),
    (errors.DamageError, FailureCode.DAMAGED, STORAGE_EXCEPTION),
    (errors.ConcurrentUpdateError, FailureCode.SESSION_CHANGED, CONCURRENT_UPDATE_EXCEPTION),
    (errors.MarkWouldFallError, FailureCode.MARK_WOULD_FALL, STORAGE_EXCEPTION),
    (errors.BelowLowWaterMarkError, FailureCode.BELOW_LOW_WATER_MARK, STORAGE_EXCEPTION),
    (errors.NotAssignedError, FailureCode.NOT_ASSIGNED, PLAIN_EXCEPTION),
    (errors.NotAvailableError, FailureCode.NOT_AVAILABLE, STORAGE_EXCEPTION),
    (errors.RefusedError, FailureCode.REFUSED, STORAGE_EXCEPTION),
    (errors.MismatchError, FailureCode.MISMATCH, STORAGE_EXCEPTION),
    (errors.InvalidRequestError, FailureCode.INVALID_REQUEST, STORAGE_EXCEPTION),
    (errors.DiskFullError, FailureCode.DISK_FULL, IO_EXCEPTION),
    (errors.SyncFailedError, FailureCode.SYNC_FAILED, IO_EXCEPTION),
    (errors.DiskError, FailureCode.IO_ERROR, IO_EXCEPTION),
    (MemoryError, FailureCode.OUT_OF_MEMORY, OUT_OF_MEMORY_ERROR),
)


def denial_of(error: BaseException) -> Denial:
    """The denial that a peer is sent for an error.  Raises nothing."""
    if isinstance(error, (DeniedError, OtherClusterError)):
        return error.denial
    if isinstance(error, errors.OutOfOrderError):
        return out_of_order()
    for kind, code, exception in _KINDS:
        if isinstance(error, kind):
            return Denial(code, exception, str(error) or "the node ran out of memory")
    return Denial(FailureCode.INTERNAL, RUNTIME_EXCEPTION, f"internal error: {type(error).__name__}: {error}")


def failure(denial: Denial) -> Failure:
    """A denial as a failure on the wire."""
    return Failure.with_code(denial.message, denial.code.value)


def failure_of(error: BaseException) -> Failure:
    """An error as a failure on the wire."""
    return failure(denial_of(error))
