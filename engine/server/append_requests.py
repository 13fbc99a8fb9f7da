"""Append requests as a partition queues them: records that arrived together, and the connection to report their outcome to.

What the lock table says of them divides them into parts (`CheckedAppends`); `refuse` answers those that are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple, Protocol

from waltzctl.engine.scan.client_appends import HeldLocks
from waltzctl.engine.scan.wire_layout import ADMITTED, CONTENDED
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


Refused = tuple[Append, Sequence[int]]
"""Refused appends, with a transaction for each that conflicts with it."""


def _verdict(word: int) -> int:
    """ADMITTED, CONTENDED, or the same number for all transaction ids: refused."""
    return min(word, CONTENDED + 1)


class CheckedAppends(NamedTuple):
    """What the lock table says of the first `taken` appends of a run, in parts of adjacent ones with the same verdict.

    `contended`: with each part, how many of the run are admitted in front of it.
    """

    taken: int
    admitted: Sequence[Append]
    refused: Sequence[Refused] = ()
    contended: Sequence[tuple[int, Append]] = ()

    @classmethod
    def all_admitted(cls, item: Append) -> CheckedAppends:
        """Nothing is in the way of any of them."""
        return cls(len(item.records), (item,))

    @classmethod
    def of(cls, item: Append, verdicts: Sequence[int]) -> CheckedAppends:
        """`verdicts`: of the first appends in `item`, as `engine.server.locks.LockTable.admit` returns them."""
        if verdicts.count(ADMITTED) == len(item.records):
            return cls.all_admitted(item)
        admitted, refused, contended = list[Append](), list[Refused](), list[tuple[int, Append]]()
        begun, in_front = 0, 0
        for verdict, group in groupby(verdicts, _verdict):
            stop = begun + len(conflicts := [*group])
            part = item.part(begun, stop)
            if verdict == ADMITTED:
                admitted.append(part)
                in_front += stop - begun
            elif verdict == CONTENDED:
                contended.append((in_front, part))
            else:
                refused.append((part, conflicts))
            begun = stop
        return cls(len(verdicts), admitted, refused, contended)


def refuse(refused: Sequence[Refused]) -> None:
    """Tell the clients, in one write for adjacent ones of a client: a write for each took most of a server's time."""
    for client, parts in groupby(refused, lambda one: one[0].client):
        client.refused(
            [
                (item.records.request_id(place), transaction_id)
                for item, conflicts in parts
                for place, transaction_id in enumerate(conflicts)
            ]
        )
    for item, _ in refused:
        item.over()
