"""The present outage of one served partition: begun by the failure of a request, ended when its cause is gone.

See `engine.node.outages` for what an outage is.  There are two kinds:

- a *standing* outage is the partition's own condition (`engine.storage.partition_condition`) and takes precedence;
- a *noted* outage was found while serving, and is kept here.
"""

from __future__ import annotations

import logging
import threading
import time

from waltzctl.engine.errors import WaltzError
from waltzctl.engine.node.failure_responses import denial_of
from waltzctl.engine.node.outages import Outage, Return, Room, outage_of, reads_again, standing_outage
from waltzctl.engine.node.permissions import Denial
from waltzctl.engine.storage.partition import Partition


class PartitionOutage:
    """The present outage of a partition, if it has one.  Thread-safe."""

    def __init__(self, partition: Partition, room: Room, log: logging.Logger) -> None:
        self._partition, self._room, self._log = partition, room, log
        self._outage: Outage | None = None  # the noted one
        self._out_since = 0.0  # `time.monotonic` when it was noted
        self._announced: Outage | None = None  # the outage that the log tells
        self._announcing = threading.Lock()
        self._announce()

    @property
    def now(self) -> Outage | None:
        """The present outage; None: the partition takes part in sessions."""
        return standing_outage(self._partition) or self._outage

    @property
    def known(self) -> bool:
        """Whether there is an outage; does not check whether its cause is gone."""
        return not self._partition.condition.writable or self._outage is not None

    def note_failure(self, error: BaseException, transaction_id: int | None = None) -> None:
        """A request failed with `error`: begin an outage if the partition can serve no session any more.

        `transaction_id`: of the record that the request had to read, if any.
        """
        if self.now is None:
            self._outage, self._out_since = outage_of(error, self._partition, transaction_id), time.monotonic()
        self._announce()

    def note_space(self, age: float) -> None:
        """A disk check that began at most `age` seconds ago found enough space: end a *disk-full* outage that is older.

        A younger one may have begun after the check, and stays.
        """
        outage = self._outage
        if outage is None or outage.returns is not Return.SPACE or time.monotonic() - self._out_since < age:
            return
        if self._room.at(self._partition.path):
            self._outage = None
            self._announce()

    def denial(self, offline: bool) -> Denial | None:
        """The denial for a request of a session; None: it can be served.  Ends an outage whose cause is gone."""
        outage = standing_outage(self._partition) or self._still_out(offline)
        if outage is not None:  # logged when it began
            return outage.denial(self._partition.number)
        try:
            self._partition.check_writable()
        except WaltzError as error:
            return denial_of(error)
        return None

    def _still_out(self, offline: bool) -> Outage | None:
        """The noted outage, after a check whether its cause is gone."""
        outage = self._outage
        if outage is None:
            return None
        if outage.returns is Return.RECORD:
            assert outage.transaction_id is not None
            if offline:  # offline recovery may be about to replace that record
                return None
            over = reads_again(self._partition, outage.transaction_id)
        else:
            over = outage.returns is Return.SPACE and self._room.at(self._partition.path) and self._room.there()
        if not over:
            return outage
        self._outage = None
        self._announce()
        return None

    def opened_again(self, partition: Partition) -> None:
        """The partition was opened again: ends every noted outage except one of a record."""
        self._partition = partition
        if self._outage is not None and self._outage.returns is not Return.RECORD:
            self._outage = None
        self._announce()

    def _announce(self) -> None:
        """Log the beginning and the end of an outage, once each."""
        number = self._partition.number
        with self._announcing:
            before, self._announced = self._announced, self.now
            now = self._announced
        if now is not None and (before is None or before.code is not now.code):
            self._log.error("%s", now.sentence(number))
        elif now is None and before is not None:
            self._log.warning("partition %d takes part in sessions again", number)
