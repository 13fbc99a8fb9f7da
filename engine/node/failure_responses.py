"""Errors as failures on the wire: the release's class names and texts, and a stable code for whoever reads more.

A failure's message is a Java exception as text: the class name, a colon, and what happened.  Where the release fails in the
same case the text is its own, to the letter; in every other case the class is the one that the release uses for that kind of
trouble and the text is ours.  The first stack element is no place in a program but our code (class ``waltzctl``, method the
code, line -1): a released client shows it as one line of a trace.
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
    # the first that fits counts, so that the narrow ones stand first
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
    """What a peer is told about an error.  Never fails, whatever the error is."""
    if isinstance(error, (DeniedError, OtherClusterError)):
        return error.denial
    if isinstance(error, errors.OutOfOrderError):
        return out_of_order()
    for kind, code, exception in _KINDS:
        if isinstance(error, kind):
            return Denial(code, exception, str(error) or "the node ran out of memory")
    return Denial(FailureCode.INTERNAL, RUNTIME_EXCEPTION, f"internal error: {type(error).__name__}: {error}")


def failure(denial: Denial) -> Failure:
    """A denial as it stands on the wire."""
    return Failure.with_code(denial.message, denial.code.value)


def failure_of(error: BaseException) -> Failure:
    """The failure that a peer is sent for an error."""
    return failure(denial_of(error))
