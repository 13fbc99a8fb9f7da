"""Findings about files that do not belong in a storage or partition directory, and about state files that cannot be read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import PurePath

from waltzctl.engine.findings import Code, Finding, SegmentFiles, Severity, Where, make_finding
from waltzctl.formats.accepted_losses import Ledger
from waltzctl.formats.segment import SEGMENT_SUFFIX, parse_name

Inclusive = tuple[int, int]
"""First and last transaction id of a range."""


@dataclass(frozen=True, slots=True)
class Stray:
    """A stray: a data file (``*.seg``) whose name is not a segment's.

    ========= ==================================================================================================
    `size`    in bytes
    `first`   the first transaction id in its header; None where the file is not this partition's
    `refusal` why release 0.13.2 does not start with the file; None where it takes the file for a segment
    `unseen`  ids of records that are in no segment, only in this file
    `held`    whether the file holds records at all
    ========= ==================================================================================================
    """

    path: PurePath
    size: int
    first: int | None
    refusal: str | None
    unseen: tuple[Inclusive, ...]
    held: bool


def stray_finding(stray: Stray, where: Where, *, opened: bool = True) -> Finding:
    """The finding about a stray.  `opened`: a node opens the partition, because it is assigned."""
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
    # without `first` recover cannot prove where the file belongs
    return found if stray.first is not None else replace(found, remedy=None)


def spelled(ids: Iterable[Inclusive]) -> str:
    """Ranges for a sentence: "transaction 7", "transactions 3 to 5, 9"."""
    every = list(ids)
    words = ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in every)
    return f"transaction {words}" if len(every) == 1 and every[0][0] == every[0][1] else f"transactions {words}"


def special_finding(path: PurePath, kind: str, where: Where) -> Finding:
    """Something that is not a regular file (`kind`: a directory, a FIFO, ...) has the name of a data or index file."""
    parsed = parse_name(path.name)
    opened = path.name.endswith(SEGMENT_SUFFIX)  # a release looks at no index without its data file
    return make_finding(
        Code.SPECIAL_FILE,
        path,
        f"it is {kind}, not a regular file{'; a released node does not start with it' if opened else ''}",
        storage_directory=where.storage,
        partition=where.partition,
        segment=None if parsed is None else parsed[0],
    )


def special_index(kind: str, files: SegmentFiles) -> Finding:
    """Something that is not a regular file has the name of the index of a segment whose data file is there."""
    message = f"it is {kind}, not a regular file"
    return files.finding(Code.SPECIAL_FILE, message, index=True, severity=Severity.REPAIRABLE)


def not_assigned(segments: int, where: Where) -> Finding:
    """A partition that is not assigned to this node has a directory, with `segments` segments in it."""
    return make_finding(
        Code.PARTITION_NOT_ASSIGNED,
        where.directory,
        f"partition {where.partition} is not assigned to this node; its {segments} segments were kept",
        storage_directory=where.storage,
        partition=where.partition,
    )


def state_file_damaged(path: PurePath, said: str, storage: PurePath, partition: int | None = None) -> Finding:
    """A state file in ``.waltzctl`` cannot be decoded; our node does not open the directory, or `partition`, without it."""
    return make_finding(Code.STATE_FILE_DAMAGED, path, said, storage_directory=storage, partition=partition)


def ledger_damaged(path: PurePath, ledger: Ledger, storage: PurePath) -> Finding:
    """The ledger of accepted losses cannot be read in full."""
    message = f"the ledger of accepted losses cannot be read in full: {ledger.fault}"
    found = make_finding(Code.ACCEPTED_LOSSES_DAMAGED, path, message, storage_directory=storage)
    # set aside, an intact one would protect the lost ids no longer
    return replace(found, remedy=None) if ledger.other_version else found
