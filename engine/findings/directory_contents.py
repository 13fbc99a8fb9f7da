"""What lies in a storage directory or in a partition's, and should not, or not there: facts and the sentences that tell them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import PurePath

from waltzctl.engine.findings import Code, Finding, SegmentFiles, Severity, Where, make_finding
from waltzctl.formats.segment import parse_name

Inclusive = tuple[int, int]
"""First and last transaction id of a range."""


@dataclass(frozen=True, slots=True)
class Stray:
    """A data file of `size` bytes under a name that no node gives.

    `first`: the id that its header tells, None where it is not the partition's own.  `refusal`: why release 0.13.2 does not
    start with it, None where it takes it for a segment.  `unseen`: what stands only in it; `held`: it holds records.
    """

    path: PurePath
    size: int
    first: int | None
    refusal: str | None
    unseen: tuple[Inclusive, ...]
    held: bool


def stray_finding(stray: Stray, where: Where, *, opened: bool = True) -> Finding:
    """`opened`: a release opens the partition, as it is assigned."""
    said = []
    if stray.unseen:
        said.append(
            f"{spelled(stray.unseen)} stand only here, where nobody who goes by the names of segments sees them"
        )
    elif stray.held:
        said.append("what it holds stands under the right names too")
    if opened and stray.refusal is not None:
        said.append(f"release 0.13.2 does not start with it: {stray.refusal}")
    elif opened:
        said.append("release 0.13.2 takes it for a segment")
    elif stray.refusal is not None:
        said.append(stray.refusal)
    severity = Severity.DAMAGE
    if not stray.unseen and (stray.refusal is None or not opened):
        severity = Severity.REPAIRABLE if opened else Severity.NOTE
    found = make_finding(
        Code.SEGMENT_STRAY,
        stray.path,
        f"no segment has this name; {'; '.join(said)}",
        severity=severity,
        storage_directory=where.storage,
        partition=where.partition,
        segment=stray.first,
        transaction_id=stray.unseen[0][0] if stray.unseen else None,
        length=stray.size,
    )
    return found if stray.first is not None else replace(found, remedy=None)  # nothing could prove what it is


def spelled(ids: Iterable[Inclusive]) -> str:
    """Ranges for a sentence: "transaction 7", "transactions 3 to 5, 9"."""
    every = list(ids)
    words = ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in every)
    return f"transaction {words}" if len(every) == 1 and every[0][0] == every[0][1] else f"transactions {words}"


def special_finding(path: PurePath, kind: str, where: Where) -> Finding:
    """No regular file (but a `kind`: a directory, a FIFO, ...) has a name that is opened as a data or index file."""
    parsed = parse_name(path.name)
    return make_finding(
        Code.SPECIAL_FILE,
        path,
        f"it is {kind}, not a regular file; a released node does not start with it",
        storage_directory=where.storage,
        partition=where.partition,
        segment=None if parsed is None else parsed[0],
    )


def special_index(kind: str, files: SegmentFiles) -> Finding:
    """The same in the place of the index of a segment that has its data file."""
    message = f"it is {kind}, not a regular file"
    return files.finding(Code.SPECIAL_FILE, message, index=True, severity=Severity.REPAIRABLE)


def not_assigned(segments: int, where: Where) -> Finding:
    """A partition that does not belong here has a directory with so many segments."""
    return make_finding(
        Code.PARTITION_NOT_ASSIGNED,
        where.directory,
        f"partition {where.partition} is not assigned to this node; its {segments} segments were kept",
        storage_directory=where.storage,
        partition=where.partition,
    )


def state_file_damaged(path: PurePath, said: str, storage: PurePath, partition: int | None = None) -> Finding:
    """A file of our own, without which a node does not open the directory or this partition, cannot be understood."""
    return make_finding(Code.STATE_FILE_DAMAGED, path, said, storage_directory=storage, partition=partition)


def ledger_damaged(path: PurePath, fault: str, storage: PurePath) -> Finding:
    """The ledger of accepted losses cannot be read in full."""
    message = f"the ledger of accepted losses cannot be read in full: {fault}"
    return make_finding(Code.ACCEPTED_LOSSES_DAMAGED, path, message, storage_directory=storage)
