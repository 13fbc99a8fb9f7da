"""What no server takes of an append, and is refused before it is sent: a message that is too long, too many locks."""

from __future__ import annotations

from collections.abc import Collection

from waltzctl.engine.client.log_transaction import Lock
from waltzctl.engine.errors import InvalidRequestError
from waltzctl.formats.lock_id import lock_id
from waltzctl.formats.wire.primitives import DEFAULT_LIMITS


class OversizedAppendError(InvalidRequestError):
    """An append that is longer, or has more locks, than a server accepts.  `place`: the draft's index in its call, from 0.

    A server would close the connection, with everything in flight on it, each time that the append is sent.
    """

    def __init__(self, place: int, message: str, advice: str) -> None:
        super().__init__(message, advice=advice)
        self.place = place


def lock_ids(locks: Collection[Lock], place: int) -> tuple[int, ...]:
    """The ids of a draft's locks of one kind.  Raises OversizedAppendError."""
    if not locks:
        return ()
    if len(locks) > DEFAULT_LIMITS.max_list:
        raise OversizedAppendError(
            place,
            f"an append with {len(locks)} locks of one kind; the most that a server takes are {DEFAULT_LIMITS.max_list}",
            "make one lock stand for several of them, or append several transactions",
        )
    return tuple([lock_id(*lock) for lock in locks])
