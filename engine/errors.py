"""Every error that the engine raises, and the name of the exit status that each one means.

::

    WaltzError                      internal
    ├── InvalidRequestError         usage       an argument that cannot be meant
    │   └── InvalidOptionsError                 options that cannot be meant, or not together
    ├── NotWaltzError               not-waltz   nothing of Waltz at this path
    ├── DirectoryLockedError        locked      another process holds the storage directory
    ├── MismatchError               mismatch    cluster key, number of partitions or version differ
    ├── RefusedError                refused     unconfirmed, or would lose what must not be lost
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
    │   └── ChecksumMismatchError               a record handed in with a wrong checksum
    ├── UnavailableError            usage       something optional that was asked for is not installed
    ├── PageStoreFailedError        io-error    a write to a page store's log failed; it has to be opened again
    ├── ClusterError                io-error    a Spark cluster cannot be reached, or gave a job up
    ├── PipelineError               by its cause    a table of a pipeline could not be brought up to date
    ├── ListenError                 io-error    an address that cannot be listened at
    ├── RemoteError                 refused     a node said no; mismatch, damaged, ... where its code says so
    ├── PeerError                   io-error    carries the peer's address
    │   ├── PeerUnreachableError                no connection, or it was lost
    │   ├── DeadlineError                       no answer in time
    │   └── ProtocolError                       the peer sent what is no Waltz message, or no answer to what was asked
    └── DiskError                   io-error    carries path, offset and the system's error
        ├── DiskReadError
        │   └── SpecialFileError                no regular file stands where one belongs
        └── DiskWriteError
            ├── DiskFullError
            └── SyncFailedError                 the file stays read-only until it is opened again

The numbers of the exit statuses stand in ``waltzctl/exit_status.py`` and nowhere else.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import PurePath

    from waltzctl.engine.findings import Finding


class WaltzError(Exception):
    """Root of the tree.  `advice` says what to do next, where there is something to do.

    `taken_back`: ids of interrupted repairs of the storage directory that were taken back before what failed.
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
        """Errors cross processes; their constructors take other things than what they keep."""
        return _restored, (type(self), self.args, self.__dict__)


def unforeseen(error: Exception) -> Exception | None:
    """The error, to be logged with where it happened, where it is none of ours, which say in words what is wrong."""
    return None if isinstance(error, WaltzError) else error


def _restored(kind: type[WaltzError], arguments: tuple[object, ...], state: dict[str, object]) -> WaltzError:
    error = kind.__new__(kind)
    error.args = arguments
    error.__dict__.update(state)
    return error


@contextlib.contextmanager
def told_with(taken_back: Iterable[str]) -> Iterator[None]:
    """What fails in here names the interrupted repairs that were taken back before: nobody else would say that they were."""
    try:
        yield
    except WaltzError as error:
        error.taken_back = tuple(taken_back)
        raise


class InvalidRequestError(WaltzError):
    """An argument that cannot be meant (a negative limit, a partition beyond the number of partitions)."""

    status = "usage"


class InvalidOptionsError(InvalidRequestError):
    """Options that cannot be meant, or not together: `fields` of `owner`, which is a dataclass."""

    def __init__(self, message: str, owner: object, *fields: str, advice: str | None = None) -> None:
        super().__init__(message, advice=advice)
        self.owner = owner
        self.fields = fields


class NotWaltzError(WaltzError):
    """The path holds nothing that Waltz wrote."""

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
    """Nothing was changed: the change was not confirmed, or would lose what must not be lost."""

    status = "refused"


class StalePlanError(RefusedError):
    """The files are no longer those that the plan was made for."""


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
    """A write to the log of a page store failed before: it can be read, and takes writes when it is opened again."""

    status = "io-error"


class DamageError(WaltzError):
    """Damage stands in the way.  `findings` names it."""

    status = "damaged"

    def __init__(self, message: str, findings: Sequence[Finding] = (), *, advice: str | None = None) -> None:
        super().__init__(message, advice=advice)
        self.findings = tuple(findings)


class PartitionQuarantinedError(DamageError):
    """The partition accepts no writes: damage was found at or below the local low-water mark or before valid records."""


class CorruptRecordError(DamageError):
    """A record fails one of its checksums, or stands where another should be."""


class ChecksumMismatchError(DamageError):
    """A record handed in for appending does not agree with its own checksum."""


class UnavailableError(WaltzError):
    """Something optional that was asked for is not installed."""

    status = "usage"


class ClusterError(WaltzError):
    """A Spark cluster cannot be reached, its workers are not fit for the work, or it gave a job up."""

    status = "io-error"


class PipelineError(WaltzError):
    """A table of a pipeline could not be brought up to date; `status` is that of what stopped it."""

    def __init__(self, message: str, *, status: str, advice: str | None = None) -> None:
        super().__init__(message, advice=advice)
        self.status = status


class ListenError(WaltzError):
    """An address at which the system does not let us listen."""

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

    `code` is the stable name of what happened (``engine.node.permissions.FailureCode``), None where neither the node nor its
    words tell; the exit status follows from it.
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
    """No connection could be made, or it was lost; what was asked for may or may not have been done."""


class DeadlineError(PeerError):
    """No answer came in time; what was asked for may or may not have been done."""


class ProtocolError(PeerError):
    """The peer sent what is no message of the protocol, or no answer to what was asked; the connection is closed."""


class StoreSessionClosedError(WaltzError):
    """A store session is closed; what was not committed in it may or may not have been written."""

    status = "io-error"


def copy_anew(partition: int) -> str:
    """What makes a running cluster fill a replica from the others: the node forgets it, and is given it again."""
    where = f"--partition {partition}"
    return (
        "waltzctl node, with the admin port of that node,"
        f" remove-partition {where} --delete-storage-files, then add-partition {where}"
    )


class DivergedReplicaError(PeerError):
    """A replica holds another transaction than a replica of a later session; it cannot be cut, and takes no part."""

    status = "damaged"

    def __init__(self, peer: str, partition: int, transaction_id: int, other: str) -> None:
        what = (
            f"partition {partition}: transaction {transaction_id} is another one than that of {other}, although the node's"
            f" low-water mark says that it was resolved; this replica takes no part"
        )
        super().__init__(peer, what, advice=f"to have it copied anew: {copy_anew(partition)}")


class DiskError(WaltzError):
    """The system refused a read or a write."""

    status = "io-error"

    def __init__(self, path: PurePath | str, offset: int | None, cause: OSError, *, doing: str = "access") -> None:
        place = f" at offset {offset}" if offset is not None else ""
        super().__init__(f"{path}: cannot {doing}{place}: {cause.strerror or cause}")
        self.path = path
        self.offset = offset
        self.errno = cause.errno


class DiskReadError(DiskError):
    """A read failed."""

    def __init__(self, path: PurePath | str, offset: int | None, cause: OSError, *, doing: str = "read") -> None:
        super().__init__(path, offset, cause, doing=doing)


class SpecialFileError(DiskReadError):
    """A FIFO, socket, device or directory stands where a file belongs; it was not opened."""


class DiskWriteError(DiskError):
    """A write, rename, unlink or truncate failed."""

    def __init__(self, path: PurePath | str, offset: int | None, cause: OSError, *, doing: str = "write") -> None:
        super().__init__(path, offset, cause, doing=doing)


class DiskFullError(DiskWriteError):
    """No space, or a quota, is left."""


class SyncFailedError(DiskWriteError):
    """An fsync failed: what was written since the last one may be lost, and a second fsync could not tell."""


def write_error(path: PurePath | str, offset: int | None, cause: OSError, *, doing: str = "write") -> DiskWriteError:
    """The right error for a failed write: a full disk is told apart."""
    kind = DiskFullError if cause.errno in (errno.ENOSPC, errno.EDQUOT) else DiskWriteError
    return kind(path, offset, cause, doing=doing)
