"""A finding: one place where something is wrong, with the catalogue's severity and remedy, and the sentence that tells it.

What a log lacks comes as a value (`engine.losses`); here alone it becomes a code, a severity and a sentence, so that whoever
finds it says the same.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Protocol

from waltzctl.engine.catalogue import CATALOGUE, Code, FindingKind, Severity
from waltzctl.engine.losses import (
    BelowMark,
    BelowProof,
    DataGone,
    DirectoryGone,
    Gap,
    GivenUp,
    Ids,
    Loss,
    NoSegment,
    Overlap,
    ShortHeader,
    count,
)
from waltzctl.formats.segment import HEADER_SIZE, RECORD_OVERHEAD, index_name, segment_name

__all__ = [
    "CATALOGUE",
    "BadData",
    "Code",
    "Finding",
    "FindingKind",
    "MendedInCopy",
    "Ran",
    "SegmentFiles",
    "Severity",
    "Tail",
    "Where",
    "damage_finding",
    "left_by",
    "loss_finding",
    "make_finding",
    "remedy_for",
    "tail_finding",
    "worst",
]


@dataclass(frozen=True, slots=True)
class Ran:
    """A command that was run, with its options by name, so that what is left is not told to run it again."""

    command: str
    options: frozenset[str] = frozenset()

    def covers(self, remedy: str) -> bool:
        """Whether it did all that a remedy would."""
        command, *rest = remedy.split()
        return command == self.command and {word for word in rest if word.startswith("--")} <= self.options


@dataclass(frozen=True, slots=True)
class Finding:
    """One place where something is wrong.

    `path` is the file or directory, or the URL of a node; `segment` the first transaction id in the file's name; `offset` and
    `length` are in bytes in the file; `remedy` is a command line, or None where there is none.  `missing`: how many transactions,
    from `transaction_id` on, are not there, beyond those that another finding counts; None where nobody knows, or none is.
    What does not apply is None.
    """

    code: Code
    severity: Severity
    path: PurePath | str
    message: str
    partition: int | None = None
    segment: int | None = None
    transaction_id: int | None = None
    offset: int | None = None
    length: int | None = None
    remedy: str | None = None
    missing: int | None = None


class MendedInCopy:
    """A name of a storage directory that is read and never written: a copy shows the same findings, and is what gets mended."""

    __slots__ = ()

    @property
    def remedy(self) -> str | None:
        """The command line that makes the copy, in DIR; None where no command of ours does."""
        return None


def remedy_for(
    code: Code,
    storage_directory: PurePath | None,
    partition: int | None,
    severity: Severity | None = None,
    ran: Ran | None = None,
) -> str | None:
    """The command line that is the next step for a finding, or None where a person must decide or the directory is unknown.

    `ran`: what was run already, and left the finding.
    """
    kind = CATALOGUE[code]
    steps = kind.remedies(severity or kind.severity)
    done = max((place for place, one in enumerate(steps, 1) if ran is not None and ran.covers(one)), default=0)
    step = next(iter(steps[done:]), None)
    if step is None or storage_directory is None:
        return None
    said = step.split()
    names = list(itertools.takewhile(lambda word: not word.startswith("--"), said))  # a command, and perhaps its action
    command, options = names[0], said[len(names) :]
    if isinstance(storage_directory, MendedInCopy):
        return storage_directory.remedy
    words = ["waltzctl", *names, str(storage_directory)]
    if partition is not None and command in ("recover", "rebuild-index"):
        words += ["--partition", str(partition)]
    return shlex.join(words + options)


def left_by(finding: Finding, storage_directory: PurePath, ran: Ran, mended: Collection[int | None] = ()) -> Finding:
    """A finding that is left after a command was run, with the step that comes next; `mended`: partitions that it changed."""
    if CATALOGUE[finding.code].again and finding.partition in mended:
        return finding
    remedy = remedy_for(finding.code, storage_directory, finding.partition, finding.severity, ran)
    return finding if finding.remedy is None else replace(finding, remedy=remedy)


def make_finding(
    code: Code,
    path: PurePath | str,
    message: str,
    *,
    severity: Severity | None = None,
    storage_directory: PurePath | None = None,
    partition: int | None = None,
    segment: int | None = None,
    transaction_id: int | None = None,
    offset: int | None = None,
    length: int | None = None,
    ran: Ran | None = None,
    missing: int | None = None,
) -> Finding:
    """A finding with the catalogue's severity (unless told otherwise) and remedy; `ran` is the command that leaves it."""
    severity = severity or CATALOGUE[code].severity
    return Finding(
        code,
        severity,
        path,
        message,
        partition,
        segment,
        transaction_id,
        offset,
        length,
        remedy_for(code, storage_directory, partition, severity, ran),
        missing,
    )


def worst(findings: Iterable[Finding]) -> Severity | None:
    """The gravest severity, None when there is no finding."""
    order = (Severity.DAMAGE, Severity.REPAIRABLE, Severity.NOTE)
    present = {finding.severity for finding in findings}
    return next((severity for severity in order if severity in present), None)


def status_of(severity: Severity | None) -> str:
    """``clean``, ``repairable`` or ``damaged``: what a summary says where this is the gravest severity.  Notes say nothing."""
    return {Severity.DAMAGE: "damaged", Severity.REPAIRABLE: "repairable"}.get(severity or Severity.NOTE, "clean")


# ---- losses of a partition as a whole ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Where:
    """The partition directory of which something is told; `storage` is the directory that remedies name."""

    storage: PurePath | None
    partition: int | None
    directory: PurePath


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """The two files of a segment of which something is told; `segment` is the first transaction id in their names."""

    where: Where
    segment: int
    data_path: PurePath
    index_path: PurePath

    def finding(
        self,
        code: Code,
        message: str,
        *,
        index: bool = False,
        severity: Severity | None = None,
        transaction_id: int | None = None,
        offset: int | None = None,
        length: int | None = None,
        missing: int | None = None,
    ) -> Finding:
        """A finding in the data file, or in the index."""
        return make_finding(
            code,
            self.index_path if index else self.data_path,
            message,
            severity=severity,
            storage_directory=self.where.storage,
            partition=self.where.partition,
            segment=self.segment,
            transaction_id=transaction_id,
            offset=offset,
            length=length,
            missing=missing,
        )


def loss_finding(loss: Loss, where: Where, *, elsewhere: int = 0) -> Finding:
    """A loss as a finding.  `elsewhere`: how many of its transactions another finding counts already."""
    segment: int | None = getattr(loss, "segment", None)
    path, severity = where.directory, None
    if isinstance(loss, DataGone):
        severity = Severity.DAMAGE if loss.lost else Severity.REPAIRABLE
    elif isinstance(loss, NoSegment):
        severity = Severity.NOTE if loss.began is None else Severity.DAMAGE
    elif isinstance(loss, ShortHeader):
        severity = Severity.REPAIRABLE if loss.harmless else Severity.DAMAGE
    if segment is not None and (isinstance(loss, DataGone) or (isinstance(loss, BelowProof) and loss.by_index)):
        path = path / index_name(segment)
    elif segment is not None and not isinstance(loss, BelowProof):
        path = path / segment_name(segment)
    short = isinstance(loss, ShortHeader)
    first = loss.begins if isinstance(loss, Overlap) else loss.ids[0][0] if loss.ids else None if short else segment
    return make_finding(
        _CODES[type(loss)],
        path,
        _sentence(loss, where),
        severity=severity,
        storage_directory=where.storage,
        partition=where.partition,
        segment=segment,
        transaction_id=first,
        offset=0 if short else None,
        length=loss.size if isinstance(loss, (DataGone, ShortHeader)) else None,
        missing=count(loss.ids) - elsewhere if loss.ids else None,
    )


_CODES: dict[type[Loss], Code] = {
    Gap: Code.SEGMENT_GAP,
    Overlap: Code.SEGMENT_OVERLAP,
    BelowMark: Code.ACKNOWLEDGED_MISSING,
    BelowProof: Code.DURABLE_MISSING,
    DataGone: Code.INDEX_ORPHAN,
    GivenUp: Code.LOSS_ACCEPTED,
    DirectoryGone: Code.PARTITION_DIRECTORY_MISSING,
    NoSegment: Code.PARTITION_EMPTY,
    ShortHeader: Code.SEGMENT_HEADER_SHORT,
}


def _sentence(loss: Loss, where: Where) -> str:
    match loss:
        case Gap():
            said = f"the partition's first segment begins at {loss.stop}"
            if loss.before is not None:
                known = ", though its index lists more" if loss.listed else ""
                said = f"segment {segment_name(loss.before)} ends before{known}, and this one begins at {loss.stop}"
            return f"{_many((loss.first, loss.stop))} missing: {said}"
        case Overlap():
            twice = loss.stop - loss.begins
            before = f"the one in front of it ends at {loss.stop - 1}"
            return f"the segment begins at transaction {loss.begins}, {before}: {twice} transactions may stand in both"
        case BelowMark():
            ends = f"the last transaction is {loss.first - 1}" if loss.first > 0 else "there is no transaction"
            lost = _many((loss.first, loss.mark + 1), "was", "were")
            return f"{ends}, but the local low-water mark is {loss.mark}: {lost} durable here once"
        case BelowProof():
            ids = loss.first, loss.stop
            why = f"a file of the partition is called after transaction {loss.stop}"
            if loss.by_index:
                last = loss.stop - 1
                why = f"the index has entries behind {last}, which are only written once everything up to there is durable"
            return f"{_many(ids)} missing at the end, and {_many(ids, 'was', 'were')} durable here once: {why}"
        case DataGone():
            return f"the index has no data file; it has {_listed_by(loss)}"
        case GivenUp():
            given = _many((loss.first, loss.stop), "was", "were")
            return f"{given} given up on {loss.time} ({loss.reason}); {_still(loss)}"
        case DirectoryGone():
            return f"partition {where.partition} belongs to this node, but its directory does not exist{_known(loss)}"
        case ShortHeader():
            return f"the file has {loss.size} bytes, a header has {HEADER_SIZE}; {_held(loss)}"
        case NoSegment():
            began = f", though session {loss.began} began in it"
            return f"there is no segment{': it never held anything' if loss.began is None else began}"


def _held(loss: ShortHeader) -> str:
    if loss.harmless:
        return "nothing was ever written to it"
    if loss.entries:
        return f"its index has {loss.entries} entries, so that records were in it"
    return "it is not the last segment, so that records were in it"


def _still(loss: GivenUp) -> str:
    if loss.disputed:
        return "other records bore these ids, too, and only an intact replica tells which are right"
    if loss.missing == ((loss.first, loss.stop),):
        return "still missing"
    parts = ", ".join(str(first) if stop - first == 1 else f"{first} to {stop - 1}" for first, stop in loss.missing)
    return f"{parts} still missing, the others are here again"


def _listed_by(loss: DataGone) -> str:
    if not loss.entries:
        return "no entries"
    if loss.unlike:
        return f"{loss.entries} entries, and what other segments hold under these ids is not what it lists"
    if not loss.lost:
        return f"{loss.entries} entries, and other segments hold these transactions"
    lost = loss.lost[0][0], loss.lost[-1][1]
    return f"{loss.entries} entries: {_many(lost, 'was', 'were')} in it and nowhere else"


def _known(loss: DirectoryGone) -> str:
    if loss.ids:
        return f"; transactions up to {loss.mark} were durable in it"
    return f"; session {loss.session} began in it" if loss.session is not None and loss.session >= 0 else ""


def _many(ids: Ids, one: str = "is", many: str = "are") -> str:
    first, stop = ids
    return f"transaction {first} {one}" if stop - first == 1 else f"transactions {first} to {stop - 1} {many}"


# ---- records that cannot be believed -------------------------------------------------------------------------------------


class Unreadable(Protocol):
    """A place in a data file where the expected record is not: what a scan says of it (`engine.scan.columns.Damage`)."""

    @property
    def cause(self) -> str: ...
    @property
    def transaction_id(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def next_transaction_id(self) -> int | None: ...
    @property
    def found_transaction_id(self) -> int | None: ...
    @property
    def found_length(self) -> int | None: ...
    @property
    def stored_checksum(self) -> int | None: ...
    @property
    def computed_checksum(self) -> int | None: ...
    @property
    def proof(self) -> str: ...
    @property
    def holds_records(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Tail:
    """Where a torn tail stands.

    `last`: in the last segment.  `mark`: the local low-water mark, None where nothing tells it; `durable_to`: the last
    transaction that is proven to have been durable.  `following`: the id with which the next segment begins, None where
    that is not known.  `listed`: so many entries of the index are of records that were lost in it, 0 where none tells of them.
    """

    last: bool
    mark: int | None
    durable_to: int = -1
    following: int | None = None
    listed: int = 0

    def harmless(self, expected: int) -> bool:
        """Whether a crash leaves that of a write that nobody was told had succeeded; `expected` is the id that was torn."""
        return self.last and self.mark is not None and expected > max(self.mark, self.durable_to)

    def lost(self, expected: int) -> int | None:
        """How many transactions it cost, one at least; None where perhaps none is missing.

        The end of the log is counted from behind these on.
        """
        if self.harmless(expected) or (self.last and self.mark is None):
            return None
        if self.following is not None:
            return max(0, self.following - expected)
        return max(1, self.listed)

    def why(self, expected: int) -> str:
        """What makes it harmless or not, as a part of a sentence."""
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
    """Damage in front of valid records of a segment."""
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
    """A torn tail of a segment."""
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
    return files.finding(
        Code.TORN_TAIL,
        f"transaction {expected}: {stands}; {follows}; {left}",
        severity=Severity.REPAIRABLE if harmless and not damage.holds_records else Severity.DAMAGE,
        transaction_id=expected,
        offset=damage.offset,
        length=damage.length,
        missing=tail.lost(expected),
    )


@dataclass(frozen=True, slots=True)
class BadData:
    """An intact record whose data does not agree with the data checksum.

    `length`, of the record in bytes, and `checksums`, stored and computed, are None for a very large one.
    """

    transaction_id: int
    offset: int
    length: int | None = None
    checksums: tuple[int, int] | None = None

    def finding(self, files: SegmentFiles) -> Finding:
        """As a finding about these files."""
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
