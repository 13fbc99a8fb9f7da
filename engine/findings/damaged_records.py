"""Findings of records that fail a check: damage between valid records, torn tails, data with a wrong data checksum."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from waltzctl.engine.catalogue import Code, Severity
from waltzctl.engine.findings.finding import Finding, SegmentFiles
from waltzctl.engine.findings.remedies import remedy_for
from waltzctl.formats.segment import RECORD_OVERHEAD


class Unreadable(Protocol):
    """A range of a data file where the expected record is not: what is needed of `engine.scan.columns.Damage`."""

    @property
    def cause(self) -> str:
        """The code of the finding."""

    @property
    def transaction_id(self) -> int:
        """The id of the expected record."""

    @property
    def offset(self) -> int:
        """Where the range begins, in bytes from the start of the file."""

    @property
    def length(self) -> int:
        """Length of the range in bytes."""

    @property
    def end(self) -> int:
        """`offset` + `length`."""

    @property
    def next_transaction_id(self) -> int | None:
        """The id of the valid record at `end`; None without one."""

    @property
    def found_transaction_id(self) -> int | None:
        """The id in the record header at `offset`; None where the header is incomplete."""

    @property
    def found_length(self) -> int | None:
        """The data length in the record header at `offset`; None where the header is incomplete."""

    @property
    def stored_checksum(self) -> int | None:
        """The record checksum as stored; None where `found_length` leads outside the file."""

    @property
    def computed_checksum(self) -> int | None:
        """The record checksum as computed; None as for `stored_checksum`."""

    @property
    def proof(self) -> str:
        """What ended the search for the next valid record; ``end`` is the end of the file."""

    @property
    def holds_records(self) -> bool:
        """Whether intact records stand inside the range."""


@dataclass(frozen=True, slots=True)
class Tail:
    """What decides whether a torn tail is harmless, and how many transactions it cost.

    ============ ====================================================================================
    `last`       whether the torn tail is in the partition's last segment
    `mark`       the local low-water mark; None where it is not known
    `durable_to` the last transaction that is proven to have been durable; -1 for none
    `following`  the first transaction id of the next segment; None where it is not known
    `listed`     number of index entries of records that were lost in the torn tail
    `begun`      whether the next segment's first record is intact, with the id of its name
    `header`     the code of what is wrong with the next segment's header, if its first record is intact and only
                 the header keeps it from being believed: then `begun` is False
    ============ ====================================================================================
    """

    last: bool
    mark: int | None
    durable_to: int = -1
    following: int | None = None
    listed: int = 0
    begun: bool = True
    header: Code | None = None

    def harmless(self, expected: int) -> bool:
        """Whether the torn record was never acknowledged, so that an ordinary crash explains it.

        `expected`: the id of the torn record.  Where the next segment begins with it, the tail is what a write left that found no
        room: release 0.13.2 leaves it in place, and goes on in the next segment.  Its name alone does not tell that, unless
        nobody was told that the record is durable: where its own first record is damaged, all that is left of it may be here.
        """
        if not self.last and self.following != expected:
            return False
        in_next = not self.last and self.begun
        return in_next or (self.mark is not None and expected > max(self.mark, self.durable_to))

    def lost(self, expected: int) -> int | None:
        """How many acknowledged transactions were lost in the torn tail; None where perhaps none was.

        What is missing at the end of the log is counted from the transaction after these.  In front of another segment nothing
        is left open: also where intact records in a tail keep it from being cut, what the next segment holds is not lost.
        """
        if self.last and (self.mark is None or self.harmless(expected)):
            return None
        if self.following is not None:
            return max(0, self.following - expected)
        return max(1, self.listed)

    def why(self, expected: int) -> str:
        """The reason for what `harmless` answers, as a part of a sentence."""
        if not self.last and self.following == expected and self.begun:
            return f"and transaction {expected} stands at the beginning of the next segment"
        if not self.last and self.following == expected and self.header is not None:
            return f"and transaction {expected} stands at the beginning of the next segment, whose header is wrong"
        if not self.last and self.following == expected:
            return f"and nothing proves that the next segment begins with transaction {expected}, intact"
        if not self.last:
            return "in a segment that is not the last"
        if self.mark is None:
            return "the local low-water mark is not known"
        if expected <= self.mark:
            return f"at or below the local low-water mark {self.mark}"
        if expected <= self.durable_to:
            return f"but transactions up to {self.durable_to} were durable here"
        return f"above the local low-water mark {self.mark}"


def damage_finding(damage: Unreadable, files: SegmentFiles) -> Finding:
    """The finding for damage that valid records of the segment follow."""
    expected, following = damage.transaction_id, damage.next_transaction_id
    if damage.cause == Code.RECORD_ORDER:
        message = f"transaction {expected} is expected, but {damage.found_transaction_id} stands there; {_next(damage)}"
    else:
        message = f"transaction {expected}: {_stands(damage)}; {_next(damage)}; {damage.length} bytes unreadable"
    return files.finding(
        Code(str(damage.cause)),
        message,
        transaction_id=expected,
        offset=damage.offset,
        length=damage.length,
        missing=None if following is None else max(0, following - expected),
    )


def tail_finding(damage: Unreadable, tail: Tail, files: SegmentFiles) -> Finding:
    """The finding for a torn tail of a segment.

    One in front of a segment of which only the header is wrong waits for that header: once it is right, the tail costs nothing.
    """
    expected, harmless = damage.transaction_id, tail.harmless(damage.transaction_id)
    stands = _stands(damage)
    if damage.stored_checksum is None and damage.found_length is not None and damage.found_length >= 0:
        stands = (
            f"its data length {damage.found_length} makes a record of {damage.found_length + RECORD_OVERHEAD} bytes"
        )
    follows = "nothing valid follows"
    if damage.holds_records:
        follows = (
            "records stand behind its beginning: they are its data, or its length is damaged and they would be lost"
        )
    left = f"{damage.length} bytes are left, {tail.why(expected)}"
    found = files.finding(
        Code.TORN_TAIL,
        f"transaction {expected}: {stands}; {follows}; {left}",
        severity=Severity.REPAIRABLE if harmless and not damage.holds_records else Severity.DAMAGE,
        transaction_id=expected,
        offset=damage.offset,
        length=damage.length,
        missing=tail.lost(expected),
    )
    if tail.header is None or harmless:
        return found
    remedy = remedy_for(tail.header, files.where.storage, files.where.partition)
    return replace(found, remedy=remedy, waits_for=tail.header)


@dataclass(frozen=True, slots=True)
class BadData:
    """A record whose record checksum is right and whose data checksum is wrong.

    `length` is that of the record in bytes; `checksums` are the stored and the computed data checksum.  Both are None for a
    record that is too large to be read for a message (`engine.log.index.MOST_HELD`).
    """

    transaction_id: int
    offset: int
    length: int | None = None
    checksums: tuple[int, int] | None = None

    def finding(self, files: SegmentFiles) -> Finding:
        """The finding about it in `files`."""
        said = "the data checksum differs"
        if self.checksums is not None:
            stored, computed = self.checksums
            said = f"data checksum stored {stored:08x}, computed {computed:08x}"
        return files.finding(
            Code.DATA_CHECKSUM,
            f"transaction {self.transaction_id}: the record is intact, but not the data that came with it: {said}",
            transaction_id=self.transaction_id,
            offset=self.offset,
            length=self.length,
        )


def _next(damage: Unreadable) -> str:
    if damage.next_transaction_id is None:
        return "nothing valid follows" if damage.proof == "end" else "what follows was not examined"
    return f"next valid record at offset {damage.end} (transaction {damage.next_transaction_id})"


def _stands(damage: Unreadable) -> str:
    if damage.stored_checksum is not None and damage.stored_checksum != damage.computed_checksum:
        return f"checksum stored {damage.stored_checksum:08x}, computed {damage.computed_checksum:08x}"
    if damage.found_length is None:
        return "not even a record's header is whole"
    if damage.found_transaction_id != damage.transaction_id and damage.stored_checksum is not None:
        return f"transaction {damage.found_transaction_id} stands there"
    return f"its data length is {damage.found_length}"
