"""Permission checks of requests to a partition, as pure functions, with the release's order and texts.

Order and texts are those of release 0.13.2: first the permission check of the partition, then the checks of each request.  Two
differences:

- *readable* and *writable* are separate; the release has one flag, *available*, for both;
- a request of a newer session raises the partition's session only after it passed every check; the release raises it for any
  message, even for one that it then refuses.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from waltzctl.engine.errors import MismatchError, NotAssignedError, RefusedError
from waltzctl.formats.wire.failure import (
    CONCURRENT_UPDATE_EXCEPTION,
    ILLEGAL_STATE_EXCEPTION,
    PLAIN_EXCEPTION,
    STORAGE_EXCEPTION,
    FailureCode,
)


class RequiredAccess(Enum):
    """The access that a request needs: read, write, or (to begin a session) both."""

    READ = "read"
    WRITE = "write"
    SESSION = "session"


@dataclass(frozen=True, slots=True)
class Denial:
    """Why a request is refused: waltzctl's code, the Java exception class that the release names, and its text."""

    code: FailureCode
    exception: str
    text: str

    @property
    def message(self) -> str:
        """The message of the failure on the wire."""
        return f"{self.exception}: {self.text}"


class DeniedError(RefusedError):
    """A request that is refused; `denial` is what its peer is sent."""

    def __init__(self, denial: Denial) -> None:
        super().__init__(denial.text)
        self.denial = denial


class NotLoadedError(DeniedError, NotAssignedError):
    """A request for a partition that is not assigned to this node."""

    def __init__(self, partition: int) -> None:
        super().__init__(not_loaded(partition))


class OtherClusterError(MismatchError):
    """An open request whose cluster key or number of partitions differs from the control file's."""

    def __init__(self, denial: Denial) -> None:
        super().__init__(denial.text)
        self.denial = denial


@dataclass(frozen=True, slots=True)
class ServiceState:
    """The state of a partition that the permission check needs.

    `persisted_session`: the session of the last set-low-water-mark request.  `session`: the highest session that was admitted; it
    is durable in the node's file of fences, and never below `persisted_session`.
    """

    number: int
    assigned: bool
    readable: bool
    writable: bool
    persisted_session: int
    session: int


def not_loaded(partition: int) -> Denial:
    """The partition is not assigned to this node; the release finds that before it queues a request."""
    return Denial(FailureCode.NOT_ASSIGNED, PLAIN_EXCEPTION, f"Partition:{partition} is not assigned.")


def check(state: ServiceState, *, session_id: int, offline: bool, access: RequiredAccess) -> Denial | None:
    """The release's permission checks, in its order; None: the request is admitted.

    ======================= ================================================================================
    request                 checks
    ======================= ================================================================================
    any                     the partition is assigned
    offline (recovery)      the partition is not writable, and the session is the persisted one
    online                  the required access is on, and the session is not below the admitted one
    ======================= ================================================================================

    An online request of a session above the admitted one passes; see `raises_session`.
    """
    if not state.assigned:
        return _denied(FailureCode.NOT_ASSIGNED, f"partition {state.number} is not assigned to storage node.")
    if offline:
        if state.writable:
            return _denied(FailureCode.ONLINE, "cannot run offline recovery while partition is online")
        if session_id != state.persisted_session:
            return _denied(
                FailureCode.SESSION_CHANGED,
                f"partition last session id has changed to {state.persisted_session}, but request context contains"
                f" {session_id}",
            )
        return None
    readable, writable = access is not RequiredAccess.WRITE, access is not RequiredAccess.READ
    if (readable and not state.readable) or (writable and not state.writable):
        return _denied(
            FailureCode.NOT_AVAILABLE, f"read and write for partition={state.number} have been disabled on storage node"
        )
    if session_id < state.session:
        return Denial(
            FailureCode.SESSION_CHANGED,
            CONCURRENT_UPDATE_EXCEPTION,
            f"session id has changed to {state.session}, but request context contains {session_id}",
        )
    return None


def raises_session(state: ServiceState, *, session_id: int, offline: bool) -> bool:
    """Whether a request that passed `check` raises the admitted session.  Offline requests never do."""
    return not offline and session_id > state.session


def check_low_water_mark(
    *, session_id: int, low_water_mark: int, max_transaction_id: int, persisted: tuple[int, int, int]
) -> Denial | None:
    """The release's checks of set-low-water-mark; None: it is admitted.

    `max_transaction_id`: of the partition, and so its new local low-water mark.  `persisted`: the present session, low-water mark
    and local low-water mark.
    """
    persisted_session, present, present_local = persisted
    if max_transaction_id > low_water_mark:
        return _denied(FailureCode.MARK_WOULD_FALL, "low-water mark is lower than the max transaction id")
    if session_id < persisted_session:
        return Denial(
            FailureCode.SESSION_CHANGED,
            CONCURRENT_UPDATE_EXCEPTION,
            f"session id has changed to {persisted_session}, but low watermark request contains session id {session_id}",
        )
    for name, new, old in (
        ("low watermark", low_water_mark, present),
        ("local low watermark", max_transaction_id, present_local),
    ):
        if new < old:
            return _denied(
                FailureCode.MARK_WOULD_FALL,
                f"unable to set {name} to value {new} because it's less than current {name} {old}",
            )
    return None


def out_of_order() -> Denial:
    """An append that does not continue the partition's sequence."""
    return _denied(FailureCode.OUT_OF_ORDER, "transaction out of order")


def out_of_range(partition: int, after: int, local_low_water_mark: int) -> Denial:
    """A truncation below the local low-water mark; the release's text, and the marks concerned."""
    return _denied(
        FailureCode.BELOW_LOW_WATER_MARK,
        f"transaction id out of range: truncating partition {partition} after {after} would lose acknowledged transactions,"
        f" the local low-water mark is {local_low_water_mark}",
    )


def wrong_cluster_key() -> Denial:
    """An open request with another cluster key."""
    return _denied(FailureCode.MISMATCH, "Provided cluster key is inconsistent with key in control file.")


def wrong_number_of_partitions() -> Denial:
    """An open request with another number of partitions."""
    return _denied(
        FailureCode.MISMATCH,
        "Provided number of partitions is inconsistent with the total number of partitions in control file.",
    )


def busy(partition: int, seconds: float) -> Denial:
    """A partition whose disk does not respond for `seconds`; in the release requests wait without limit."""
    return _denied(
        FailureCode.BUSY,
        f"partition {partition} is busy: it has made no progress for more than {seconds:g} seconds; nothing of the request"
        " was done",
    )


def closed() -> Denial:
    """The node is closing."""
    return _denied(FailureCode.CLOSED, "Control file is already closed.")


def unknown_type(message_type: int) -> Denial:
    """A message that is no request."""
    return Denial(FailureCode.UNKNOWN_TYPE, ILLEGAL_STATE_EXCEPTION, f"unknown message type: {message_type}")


def _denied(code: FailureCode, text: str) -> Denial:
    return Denial(code, STORAGE_EXCEPTION, text)
