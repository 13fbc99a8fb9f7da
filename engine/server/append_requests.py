"""Appends as a partition is asked for them: records that came together, and whom to tell what became of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from waltzctl.engine.scan.client_appends import HeldLocks
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire.records import PackedRecords


class Appender(Protocol):
    """Who appends."""

    def refused(self, request_id: RequestId, transaction_id: int) -> None:
        """A lock is in an append's way: this transaction, or an earlier one, wrote under it."""

    def over(self, count: int, size: int) -> None:
        """So many appends, of together `size` bytes (`Append.size`), are committed, refused, or will not be decided here."""


@dataclass(slots=True)
class Append:
    """Appends that came together, their data's checksums verified, as records without ids; `locks`: unless they have none.

    `arrived`: when they came, in the loop's time.  `lost`: in how many sessions they were sent and are not in the log.
    """

    records: PackedRecords
    client: Appender
    locks: HeldLocks | None = None
    arrived: float = 0.0
    lost: int = 0

    @property
    def size(self) -> int:
        """Bytes of the records, and of what is known of their locks."""
        return len(self.records.data) + (self.locks.size if self.locks is not None else 0)

    def part(self, first: int, stop: int) -> Append:
        """Some of them, counted from 0."""
        locks = self.locks.part(first, stop) if self.locks is not None else None
        return replace(self, records=self.records.part(first, stop), locks=locks)

    def over(self) -> None:
        """Nothing more will become of them here."""
        self.client.over(len(self.records), self.size)
