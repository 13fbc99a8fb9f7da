"""The options of a load, and the state of a partition before the load."""

from __future__ import annotations

from dataclasses import dataclass

from waltzctl.engine.errors import InvalidRequestError, RefusedError
from waltzctl.formats.ids import LAST_SESSION_ID

MAX_BATCH = 100_000
MAX_DATA_SIZE = 64 << 20
MAX_REQUEST = 256 << 20
"""Bytes of data in one append request, at most: more would be too much memory for a node."""
MAX_IN_FLIGHT = 100_000


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What a load sends.

    ===============  ===============================================================================================
    `batch`          records in a request
    `data_size`      bytes of data in a record
    `in_flight`      requests in flight for each partition
    `seconds`        measured time
    `warm_up`        seconds before that, which are not measured
    `read`           read instead of append
    `session_id`     None: for appends the current session + 1, for reads the current session
    `connections`    number of connections, among which the partitions are divided
    `timeout`        seconds without any response after which the load fails
    ===============  ===============================================================================================
    """

    batch: int = 1
    data_size: int = 100
    in_flight: int = 10
    seconds: float = 5.0
    warm_up: float = 1.0
    read: bool = False
    session_id: int | None = None
    connections: int = 1
    timeout: float = 30.0

    def check(self) -> None:
        """Raise InvalidRequestError for a value out of range."""
        for name, value, least, most in (
            ("batch", self.batch, 1, MAX_BATCH),
            ("data size", self.data_size, 0, MAX_DATA_SIZE),
            ("requests in flight", self.in_flight, 1, MAX_IN_FLIGHT),
            ("connections", self.connections, 1, 1000),
        ):
            if not least <= value <= most:
                raise InvalidRequestError(f"{name}: {value} is not between {least} and {most}")
        if not self.read and self.batch * self.data_size > MAX_REQUEST:
            raise InvalidRequestError(
                f"a request of {self.batch} records of {self.data_size} bytes is above {MAX_REQUEST}"
            )
        if self.seconds <= 0 or self.warm_up < 0:
            raise InvalidRequestError("the duration must be above 0 and the warm-up not below")
        if self.session_id is not None and not 0 <= self.session_id < LAST_SESSION_ID:
            raise InvalidRequestError(f"session {self.session_id} does not exist")

    def session_of(self, found: SurveyedPartition) -> int:
        """The session id to use for a partition.  Raises RefusedError when the current session is the last possible one."""
        if self.session_id is not None:
            return self.session_id
        if self.read:
            return found.session_id
        if found.session_id == LAST_SESSION_ID:
            raise RefusedError(f"partition {found.partition}: session {found.session_id} is the last that there can be")
        return found.session_id + 1


@dataclass(frozen=True, slots=True)
class SurveyedPartition:
    """A partition before the load.

    `session_id`: the current session, which may be above the persisted one; -1: the partition was never used.
    `last_transaction_id`: -1 when the partition is empty.
    """

    partition: int
    session_id: int
    last_transaction_id: int

    @property
    def is_fresh(self) -> bool:
        """Whether the partition was never used."""
        return self.session_id < 0 and self.last_transaction_id < 0
