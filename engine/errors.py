"""Every error that the engine raises, and the name of the exit status that belongs to it.

::

    WaltzError                      internal
    ├── InvalidRequestError         usage       an invalid argument
    │   └── InvalidOptionsError                 invalid options, or options that exclude each other
    ├── NotWaltzError               not-waltz   nothing of Waltz at this path
    ├── DirectoryLockedError        locked      another process holds the storage directory
    ├── MismatchError               mismatch    cluster key, number of partitions or version differ
    ├── RefusedError                refused     not confirmed, or it would lose acknowledged data
    │   ├── StalePlanError                      the files changed after the plan was made
    │   ├── BelowLowWaterMarkError              would cut acknowledged transactions
    │   ├── NotAssignedError                    the partition is not assigned to this node
    │   ├── NotAvailableError                   reads or writes are switched off
    │   ├── OutOfOrderError                     a transaction id that is not the next
    │   ├── ConcurrentUpdateError               a request of an older session
    │   ├── MarkWouldFallError                  a low-water mark below the present one, or below the last transaction
    │   ├── PageConflictError                   an edit that a page's state does not allow; the batch was not written
    │   └── NoSuchPageError                     no page of that id, or none in that snapshot
    ├── DamageError                 damaged     carries the findings
    │   ├── PartitionQuarantinedError           the partition is closed to writes, every byte is kept
    │   ├── CorruptRecordError                  a record that fails a checksum; it is never served
    │   └── ChecksumMismatchError               a record to be appended has a wrong checksum
    ├── UnavailableError            usage       an optional dependency that is needed is not installed
    ├── PageStoreFailedError        io-error    a write to a page store's log failed; it has to be opened again
    ├── ClusterError                io-error    a Spark cluster cannot be reached, or aborted a job
    ├── PipelineError               by its cause    a table of a pipeline could not be brought up to date
    ├── ListenError                 io-error    an address that cannot be listened on
    ├── RemoteError                 refused     a node answered with a failure; another status where its code says so
    ├── PeerError                   io-error    carries the peer's address
    │   ├── PeerUnreachableError                no connection, or it was lost
    │   ├── DeadlineError                       no answer in time
    │   └── ProtocolError                       the peer sent an invalid message, or one that does not answer the request
    └── DiskError                   io-error    carries path, offset and the system's error
        ├── DiskReadError
        │   └── SpecialFileError                a FIFO, socket, device or directory in the place of a regular file
        └── DiskWriteError
            ├── DiskFullError
            └── SyncFailedError                 the file stays read-only until it is opened again

The numbers of the exit statuses are defined in ``waltzctl/exit_status.py`` only.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import PurePath

    from waltzctl.engine.findings import Finding


class WaltzError(Exception):
    """Root of the tree.  `advice` is the next step for the user; None where there is none.

    `taken_back`: ids of interrupted repairs of the storage directory that this command had rolled back before it failed.
    """

    status: str = "internal"
    taken_back: tuple[str, ...] = ()

    def __init__(self, message: str, *, advice: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.message}; {self.advice}" if self.advice else self.message

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled by attributes: errors are sent between processes, and their constructors take other arguments than `args`."""
        return _restored, (type(self), self.args, self.__dict__)


def unforeseen(error: Exception) -> Exception | None:
    """`error` if it is not a WaltzError, and so has to be logged with its traceback; None for a WaltzError."""
    return None if isinstance(error, WaltzError) else error


def _restored(kind: type[WaltzError], arguments: tuple[object, ...], state: dict[str, object]) -> WaltzError:
    error = kind.__new__(kind)
    error.args = arguments
    error.__dict__.update(state)
    return error


@contextlib.contextmanager
def with_roll_backs(taken_back: Iterable[str]) -> Iterator[None]:
    """Set `taken_back` of any WaltzError raised in this context, because the failed command reports nothing else."""
    try:
        yield
    except WaltzError as error:
        error.taken_back = tuple(taken_back)
        raise


class InvalidRequestError(WaltzError):
    """An invalid argument (a negative limit, a partition beyond the number of partitions)."""

    status = "usage"


class InvalidOptionsError(InvalidRequestError):
    """Options that are invalid or exclude each other: the `fields` of the dataclass `owner`."""

    def __init__(self, message: str, owner: object, *fields: str, advice: str | None = None) -> None:
        super().__init__(message, advice=advice)
        self.owner = owner
        self.fields = fields


class NotWaltzError(WaltzError):
    """There is nothing of Waltz at the path."""

    status = "not-waltz"


class DirectoryLockedError(WaltzError):
    """Another process holds the storage directory.  `pid` is None where the system does not tell."""

    status = "locked"

    def __init__(self, path: PurePath, pid: int | None) -> None:
        holder = f"process {pid}" if pid else "another process"
        super().__init__(
            f"{path}: locked by {holder}", advice="stop that process first; a held lock is never overridden"
        )
        self.path = path
        self.pid = pid


class MismatchError(WaltzError):
    """Cluster key, number of partitions or format version differ from what was expected."""

    status = "mismatch"


class RefusedError(WaltzError):
    """Nothing was changed: the change was not confirmed, or it would lose acknowledged data."""

    status = "refused"


class StalePlanError(RefusedError):
    """The files have changed since the plan was made."""


class BelowLowWaterMarkError(RefusedError):
    """The change would cut transactions at or below the local low-water mark."""


class NotAssignedError(RefusedError):
    """The partition is not assigned to this node."""


class NotAvailableError(RefusedError):
    """Reads or writes of the partition are switched off."""


class OutOfOrderError(RefusedError):
    """A transaction id that is not the next one."""


class ConcurrentUpdateError(RefusedError):
    """A request of an older session."""


class MarkWouldFallError(RefusedError):
    """A low-water mark below the present one, or below the last transaction."""


class PageConflictError(RefusedError):
    """A write batch has an edit that the state of its page does not allow; nothing of the batch was written."""


class NoSuchPageError(RefusedError):
    """There is no page of that id, or there was none when the snapshot was taken."""


class PageStoreFailedError(WaltzError):
    """A write to the log of a page store failed earlier.  The store can be read; for writes it has to be opened again."""

    status = "io-error"


class DamageError(WaltzError):
    """The operation is not possible because of damage, which `findings` describes."""

    status = "damaged"

    def __init__(self, message: str, findings: Sequence[Finding] = (), *, advice: str | None = None) -> None:
        super().__init__(message, advice=advice)
        self.findings = tuple(findings)


class PartitionQuarantinedError(DamageError):
    """The partition accepts no writes: damage was found at or below the local low-water mark or before valid records."""


class CorruptRecordError(DamageError):
    """A record fails one of its checksums, or has another id than the one that belongs in its place."""


class ChecksumMismatchError(DamageError):
    """A record that is to be appended does not agree with the checksum that came with it."""


class UnavailableError(WaltzError):
    """An optional dependency that is needed for the request is not installed."""

    status = "usage"


class ClusterError(WaltzError):
    """A Spark cluster cannot be reached, its workers cannot do the work, or it aborted a job."""

    status = "io-error"


class PipelineError(WaltzError):
    """A table of a pipeline could not be brought up to date; `status` is that of the cause."""

    def __init__(self, message: str, *, status: str, advice: str | None = None) -> None:
        super().__init__(message, advice=advice)
        self.status = status


class ListenError(WaltzError):
    """The operating system refused to listen on an address."""

    status = "io-error"

    def __init__(self, host: str, port: int, cause: OSError | ValueError) -> None:
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        super().__init__(
            f"{place}: cannot listen there: {getattr(cause, 'strerror', None) or cause}",
            advice="choose a free port and an address of this machine",
        )
        self.host, self.port = host, port
        self.errno: int | None = getattr(cause, "errno", None)


class RemoteError(WaltzError):
    """A node answered with a failure.  `peer` is its address, `text` the failure as the node worded it.

    `code` is the stable name of the failure (``engine.node.permissions.FailureCode``), from which the exit status follows; None
    where the node sent none and `text` is not a known one.
    """

    status = "refused"

    def __init__(
        self, peer: str, text: str, *, code: str | None = None, status: str = "refused", advice: str | None = None
    ) -> None:
        super().__init__(f"{peer}: the node answered: {text}", advice=advice)
        self.peer = peer
        self.text = text
        self.code = code
        self.status = status


class PeerError(WaltzError):
    """Talking to a node failed.  `peer` is its address."""

    status = "io-error"

    def __init__(self, peer: str, what: str, *, advice: str | None = None) -> None:
        super().__init__(f"{peer}: {what}", advice=advice)
        self.peer = peer


class PeerUnreachableError(PeerError):
    """No connection could be made, or it was lost; the request may or may not have been executed."""


class DeadlineError(PeerError):
    """No answer came in time; the request may or may not have been executed."""


class ProtocolError(PeerError):
    """The peer sent an invalid message, or one that does not answer the request; the connection is closed."""


class StoreSessionClosedError(WaltzError):
    """A store session is closed; appends in it that were not committed may or may not have been written."""

    status = "io-error"


def copy_anew(partition: int) -> str:
    """The command lines that make a running cluster copy a replica anew: remove the partition from the node, then add it."""
    where = f"--partition {partition}"
    return (
        "waltzctl node, with the admin port of that node,"
        f" remove-partition {where} --delete-storage-files, then add-partition {where}"
    )


class DivergedReplicaError(PeerError):
    """A replica holds another transaction than a replica of a later session.

    It cannot be truncated, as the transaction is not above its low-water mark; it is left out of the quorum.
    """

    status = "damaged"

    def __init__(self, peer: str, partition: int, transaction_id: int, other: str) -> None:
        what = (
            f"partition {partition}: transaction {transaction_id} is another one than that of {other}, although the node's"
            f" low-water mark says that it was resolved; this replica takes no part"
        )
        super().__init__(peer, what, advice=f"to have it copied anew: {copy_anew(partition)}")


OTHER_PROGRAM = "use the waltzctl that wrote it, or a later one"
"""Advice about a file of a version that this program does not know."""
DESCRIPTOR_SHORTAGE = (errno.EMFILE, errno.ENFILE)
"""Error numbers of a shortage of file descriptors, of the process or of the system."""
OWN_SHORTAGE = (*DESCRIPTOR_SHORTAGE, errno.ENOMEM)
"""Error numbers that say nothing about the file or disk that they are told of."""
_SHORTAGE_ADVICE = {
    errno.EMFILE: "allow the process more open files (ulimit -n; LimitNOFILE= of a systemd unit) and start it again",
    errno.ENFILE: "allow the system more open files (sysctl fs.file-max)",
}
"""What to do about a shortage of file descriptors, by error number."""
_INODES_ADVICE = (
    "its file system has room for bytes, but for no further file (df -i): remove files there that nobody needs, or give it more"
    " inodes"
)


class DiskError(WaltzError):
    """A system call on a file failed.  `offset` is in bytes from the start of the file; None where none applies."""

    status = "io-error"

    def __init__(self, path: PurePath | str, offset: int | None, cause: OSError, *, doing: str = "access") -> None:
        place = f" at offset {offset}" if offset is not None else ""
        what = f"{path}: cannot {doing}{place}: {cause.strerror or cause}"
        super().__init__(what, advice=_SHORTAGE_ADVICE.get(cause.errno or 0))
        self.path = path
        self.offset = offset
        self.errno = cause.errno


class DiskReadError(DiskError):
    """A read failed."""

    def __init__(self, path: PurePath | str, offset: int | None, cause: OSError, *, doing: str = "read") -> None:
        super().__init__(path, offset, cause, doing=doing)


class SpecialFileError(DiskReadError):
    """A FIFO, socket, device or directory has the name of a regular file; it was not opened."""


class DiskWriteError(DiskError):
    """A write, rename, unlink or truncate failed."""

    def __init__(self, path: PurePath | str, offset: int | None, cause: OSError, *, doing: str = "write") -> None:
        super().__init__(path, offset, cause, doing=doing)


class DiskFullError(DiskWriteError):
    """There is no space left, or the quota is used up."""


class SyncFailedError(DiskWriteError):
    """An fsync failed: writes since the last fsync may be lost, and a second fsync would not report that (fsyncgate)."""


def write_error(path: PurePath | str, offset: int | None, cause: OSError, *, doing: str = "write") -> DiskWriteError:
    """DiskFullError for ENOSPC and EDQUOT, else DiskWriteError."""
    kind = DiskFullError if cause.errno in (errno.ENOSPC, errno.EDQUOT) else DiskWriteError
    error = kind(path, offset, cause, doing=doing)
    if cause.errno == errno.ENOSPC and offset is None and lacks_inodes(os.path.dirname(path)):
        error.advice = _INODES_ADVICE
    return error


def lacks_inodes(directory: PurePath | str) -> bool:
    """Whether the file system of a directory has free bytes and no free inode; not every file system has a number of inodes."""
    with contextlib.suppress(OSError):
        found = os.statvfs(directory or ".")
        return bool(found.f_files and found.f_bavail and not found.f_favail)
    return False
