"""Append requests as a partition queues them: records that arrived together, and the connection to report their outcome to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from waltzctl.engine.scan.client_appends import HeldLocks
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire.records import PackedRecords


class Appender(Protocol):
    """The connection that appends came through."""

    def refused(self, refusals: Sequence[tuple[RequestId, int]]) -> None:
        """Appends are refused, each with the transaction unknown to its client that wrote under its locks, or a later one."""

    def over(self, count: int, size: int) -> None:
        """`count` appends of `size` bytes in all (`Append.size`) are done: committed, refused, or given up."""


@dataclass(slots=True)
class Append:
    """Appends of one client that arrived together.

    `records`: without transaction ids; the checksums of the data are verified.  `locks`: None if no append has any.  `arrived`:
    in the loop's time, seconds.  `lost`: the number of sessions in which they were sent and not written.
    """

    records: PackedRecords
    client: Appender
    locks: HeldLocks | None = None
    arrived: float = 0.0
    lost: int = 0

    @property
    def size(self) -> int:
        """Memory in bytes of the records and their locks."""
        return len(self.records.data) + (self.locks.size if self.locks is not None else 0)

    def part(self, first: int, stop: int) -> Append:
        """The appends with numbers from `first` up to, and without, `stop`, counted from 0."""
        locks = self.locks.part(first, stop) if self.locks is not None else None
        return replace(self, records=self.records.part(first, stop), locks=locks)

    def over(self) -> None:
        """Report all of them as done."""
        self.client.over(len(self.records), self.size)
