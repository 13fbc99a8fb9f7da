"""The outage of one partition while it is served: noted when a request fails, over by itself when what it waits for is there.

Why there are outages, and which, is told in `outages`.  What the partition knows by itself (quarantined, or failed) comes first;
here is kept what was found since.
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
    """Why a partition takes no part in sessions at present, if it does not.  Thread-safe."""

    def __init__(self, partition: Partition, room: Room, log: logging.Logger) -> None:
        self._partition, self._room, self._log = partition, room, log
        self._outage: Outage | None = None  # what was found while serving; the partition knows of the rest
        self._out_since = 0.0
        self._announced: Outage | None = None
        self._announcing = threading.Lock()
        self._announce()

    @property
    def now(self) -> Outage | None:
        """Why the partition takes no part; None when it does."""
        return standing_outage(self._partition) or self._outage

    @property
    def known(self) -> bool:
        """Whether anything keeps it out, as far as was noted; nothing is looked at again."""
        partition = self._partition
        return partition.quarantined or partition.failed is not None or self._outage is not None

    def note_failure(self, error: BaseException, transaction_id: int | None = None) -> None:
        """A request failed: keep the partition out of sessions if none can be served any more.

        `transaction_id`: the record that the request had to read, if any.
        """
        if self.now is None:
            self._outage, self._out_since = outage_of(error, self._partition, transaction_id), time.monotonic()
        self._announce()

    def note_space(self, age: float) -> None:
        """The disk was found to have space, by a look that began at most `age` seconds ago.

        What was found full since then stays full.
        """
        outage = self._outage
        if outage is None or outage.returns is not Return.SPACE or time.monotonic() - self._out_since < age:
            return
        if self._room.at(self._partition.path):
            self._outage = None
            self._announce()

    def denial(self, offline: bool) -> Denial | None:
        """What a request of a session is refused with; None when it can be served, perhaps again."""
        outage = standing_outage(self._partition) or self._still_out(offline)
        if outage is not None:  # what made it so was logged when it happened
            return outage.denial(self._partition.number)
        try:
            self._partition.check_writable()
        except WaltzError as error:
            return denial_of(error)
        return None

    def _still_out(self, offline: bool) -> Outage | None:
        outage = self._outage
        if outage is None:
            return None
        if outage.returns is Return.RECORD:
            assert outage.transaction_id is not None
            if offline:  # what a tool writes anew may be that record
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
        """The partition's files were opened anew."""
        self._partition = partition
        if self._outage is not None and self._outage.returns is not Return.RECORD:
            self._outage = None
        self._announce()

    def _announce(self) -> None:
        """One line in the log when the partition goes out, one when it is back."""
        number = self._partition.number
        with self._announcing:
            before, self._announced = self._announced, self.now
            now = self._announced
        if now is not None and (before is None or before.code is not now.code):
            self._log.error("%s", now.sentence(number))
        elif now is None and before is not None:
            self._log.warning("partition %d takes part in sessions again", number)
