"""Which requests a served partition admits: by their session, by its switches for reads and writes, and by its outage.

Sessions.  A request of a newer session fences the older ones.  It does so only after it passed all checks, and the new session is
durable in the node's file of fences (`engine.storage.fences`) before the request is answered; so a restarted node admits no older
session either.  Release 0.13.2 raises the session for any message that arrives, in memory only.

Outages.  A partition that cannot take part in a session refuses the session's first request, LastSessionInfo
(`engine.node.outages`); reads go on.

The checks themselves are pure functions (`engine.node.permissions`); here is the state that they are made of.
"""

from __future__ import annotations

import logging

from waltzctl.engine.node import permissions
from waltzctl.engine.node.outages import Outage, Room, outage_of
from waltzctl.engine.node.partition_outage import PartitionOutage
from waltzctl.engine.node.permissions import Denial, RequiredAccess, ServiceState
from waltzctl.engine.storage.availability_marks import Availability
from waltzctl.engine.storage.fences import SessionFences
from waltzctl.engine.storage.partition import Partition


class AccessControl:
    """What decides whether a request to one partition is admitted.

    `availability`: whether the partition may be read and written; whoever sets it has made the change durable before.

    The session in force is the highest that was admitted.  It only rises, is never below the control file's, and is durable,
    there or in the file of fences, before anybody is answered under it.

    `check` and `let_in` belong to the one worker or pass that executes the partition at present.
    """

    def __init__(
        self,
        partition: Partition,
        availability: Availability,
        *,
        fences: SessionFences,
        room: Room,
        log: logging.Logger,
    ) -> None:
        """Raises DamageError, DiskReadError when the partition's fence cannot be read."""
        self.availability = availability
        self._partition, self._fences = partition, fences
        self._session = max(partition.session_id, fences.get(partition.number))
        self._outage = PartitionOutage(partition, room, log)

    @property
    def session_id(self) -> int:
        """The highest session that was admitted."""
        return self._session

    @property
    def _state(self) -> ServiceState:
        return ServiceState(
            number=self._partition.number,
            assigned=True,  # the service of an unassigned partition executes nothing
            readable=self.availability.readable,
            writable=self.availability.writable,
            persisted_session=self._partition.session_id,
            session=self._session,
        )

    def open_session(self) -> int | None:
        """The session whose online appends are admitted without `check`; None: every append has to be checked."""
        if self._outage.known:
            return None
        return self._session if self.availability.writable else None

    def read_session(self) -> int | None:
        """The session whose reads are admitted without `check`; None: the partition may not be read.

        Any other session has to pass `check` and `let_in`.
        """
        return self._session if self.availability.readable else None

    def check(self, session_id: int, offline: bool, access: RequiredAccess = RequiredAccess.WRITE) -> Denial | None:
        """Check a request; None: it is admitted.

        Changes nothing, except that an outage ends if its cause is found to be gone.
        """
        denial = permissions.check(self._state, session_id=session_id, offline=offline, access=access)
        if denial is None and access is not RequiredAccess.READ:
            denial = self._outage.denial(offline)
        if denial is None and access is RequiredAccess.SESSION and (failed := self._partition.marks_failed) is not None:
            # also for the present session, which comes back: its server sets the mark again, and the others' recovery would end
            outage = outage_of(failed, self._partition, None)
            return None if outage is None else outage.denial(self._partition.number)
        return denial

    def let_in(self, session_id: int, offline: bool) -> None:
        """Admit a checked request: its session, if it is a newer one, is durable on return.  Raises DiskError.

        One that could not set its low-water mark is not admitted: its server would end the recovery of all replicas for that.
        """
        if permissions.raises_session(self._state, session_id=session_id, offline=offline):
            if (failed := self._partition.marks_failed) is not None:
                raise failed.with_traceback(None)  # else the traceback grows with every session that asks
            self._fences.raise_to(self._partition.number, session_id)
            self._session = session_id

    # --- outages ------------------------------------------------------------------------------------------------------

    @property
    def outage(self) -> Outage | None:
        """Why the partition takes no part in sessions at present; None when it does.  Thread-safe."""
        return self._outage.now

    def note_failure(self, error: BaseException, transaction_id: int | None = None) -> None:
        """A request failed with `error`: begin an outage if the partition can serve no session any more.

        `transaction_id`: of the record that the request had to read, if any.
        """
        self._outage.note_failure(error, transaction_id)

    def note_space(self, age: float) -> None:
        """A disk check that began at most `age` seconds ago found enough space.  Thread-safe."""
        self._outage.note_space(age)

    def opened_again(self, partition: Partition) -> None:
        """The partition was opened again, while nothing was executed."""
        self._partition = partition
        self._outage.opened_again(partition)
