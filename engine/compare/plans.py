"""Repair plans from a comparison: for each replica that needs one, a ``recover`` plan with the comparison's decision.

A plan cuts what recovery would cut, restores damaged records from replicas that prove them, and rebuilds indexes.  Transactions
that a replica is merely behind are not restored; the running cluster copies them.  A replica that has lost its end, however, may
have acknowledged all kept transactions.  It gets all of them back, since a quorum may depend on its vote.

Partitions with anything undecidable are left out.  Replicas that need no plan themselves are preferred as sources: carrying out a
plan changes its replica, which makes plans stale that read from it.  When there is no such replica, `plan_anew` makes the
remaining plans again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath

from waltzctl.engine.amounts import format_ranges
from waltzctl.engine.compare.comparison import PartitionComparison, ReplicaComparison, ReplicaStanding
from waltzctl.engine.compare.states import replaced_ranges
from waltzctl.engine.errors import InvalidRequestError, StalePlanError, WaltzError
from waltzctl.engine.log import places
from waltzctl.engine.log.view import partition_directories, read_control
from waltzctl.engine.repair.arguments import Agreed
from waltzctl.engine.repair.plan import NotedFiles, Repair, note
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.formats.control import CONTROL_FILE_NAME

_NOTHING_SEEN: Mapping[PurePath, NotedFiles] = {}


def look_at(directories: Sequence[PurePath], partitions: Collection[int] | None) -> dict[PurePath, NotedFiles]:
    """Note what is in the directories, before they are compared: `plans` is bound to that.

    One that is not on this machine is left out: `plans` tells why.  A plan for one that cannot be listed now, and can be when it
    is compared, is stale.
    """
    found: dict[PurePath, NotedFiles] = {}
    for path in directories:
        if places.on_this_machine(path):
            found[path] = NotedFiles({None: [("", -1, -1)]})  # as no listing is
            with contextlib.suppress(WaltzError, OSError):
                stood = _stood(path, partitions)
                found[path] = replace(note(places.local(places.absolute(path)), partitions), stood=stood)
    return found


def _stood(path: PurePath, partitions: Collection[int] | None) -> dict[PurePath, places.Standing]:
    """The `places.standing` of a directory and of those of its partitions, each of which may be on a disk of its own."""
    numbers = partition_directories(path) if partitions is None else sorted(partitions)
    asked = ((one, places.standing(one)) for one in (path, *(path / str(number) for number in numbers)))
    return {one: place for one, place in asked if place is not None}


def unmoved(
    comparisons: Sequence[PartitionComparison], seen: Mapping[PurePath, NotedFiles]
) -> tuple[list[PartitionComparison], StalePlanError | None]:
    """The comparisons of the partitions whose directories are all where they were seen, and the error for the other ones.

    What is planned for a partition rests on the votes of all replicas in this partition, and on no other partition.
    """
    moved: dict[int, PurePath] = {}
    for one in comparisons:
        for path, noted in seen.items():
            if not _stays(path / str(one.partition), noted):
                moved[one.partition] = path / str(one.partition)
    if not moved:
        return list(comparisons), None
    error = StalePlanError(
        f"{next(iter(moved.values()))}: {places.moved_while('compared')}; nothing is planned for partition"
        f" {format_ranges(moved)} in any replica",
        advice="compare again",
    )
    return [one for one in comparisons if one.partition not in moved], error


def _stays(path: PurePath, noted: NotedFiles) -> bool:
    """Whether a directory is where it was noted; True where it was not."""
    place = noted.stood.get(path)
    return place is None or places.standing(path) == place


def plans(
    comparisons: Sequence[PartitionComparison],
    directories: Sequence[PurePath],
    *,
    allow_data_loss: bool,
    seen: Mapping[PurePath, NotedFiles] = _NOTHING_SEEN,
) -> list[Repair]:
    """The plans with steps or undecided findings, in the order of `directories`.  Read-only.

    `directories`: those that were compared.  `seen`: what was in them before (`look_at`); a plan for one that was written since
    is stale, as the comparison may not know what it would cut.  `allow_data_loss`: plans may cut and replace records at or below
    a local low-water mark, and give up what cannot be restored.

    Raises InvalidRequestError for a URL, StalePlanError for a directory that is no longer where it was seen, as each plan rests
    on the votes of all of them; the partitions of which that is so are left out before (`unmoved`).  Also raises NotWaltzError
    for a directory that went away, DiskReadError.
    """
    for path in directories:
        if not places.on_this_machine(path):
            raise InvalidRequestError(
                f"{path}: plans are made for files of this machine",
                advice="copy the storage directory here, or mount it",
            )
    for path, noted in seen.items():
        if not _stays(path, noted):
            raise StalePlanError(
                f"{path}: {places.moved_while('compared')}; nothing was modified",
                advice="bring it back, and compare again",
            )
    found: list[Repair] = []
    for path in directories:
        repair = _plan(path, _decided(comparisons), directories, seen, allow_data_loss=allow_data_loss)
        if repair is not None and (repair.plan.steps or repair.plan.undecided):
            found.append(repair)
    return found


def plan_anew(
    repair: Repair,
    comparisons: Sequence[PartitionComparison],
    directories: Sequence[PurePath],
    *,
    allow_data_loss: bool,
    seen: Mapping[PurePath, NotedFiles] = _NOTHING_SEEN,
) -> Repair:
    """Make one of the plans again, after another plan was carried out and changed a replica that it reads.

    The decision of the comparison is the same as before.  Raises as `plans`.
    """
    path = next(one for one in directories if places.absolute(one) == repair.plan.path)
    anew = _plan(path, _decided(comparisons), directories, seen, allow_data_loss=allow_data_loss)
    assert anew is not None, "it had something to agree on before"
    return anew


def _decided(comparisons: Sequence[PartitionComparison]) -> list[PartitionComparison]:
    return [one for one in comparisons if not one.decision.undecided]


def _plan(
    path: PurePath,
    decided: Sequence[PartitionComparison],
    directories: Sequence[PurePath],
    seen: Mapping[PurePath, NotedFiles],
    *,
    allow_data_loss: bool,
) -> Repair | None:
    agreed: list[Agreed] = []
    wrong: set[PurePath] = set()
    for one in decided:
        for own in one.replicas:
            if own.path == path and not own.unread:
                ranges = tuple((first, stop - 1) for first, stop in replaced_ranges(own))
                agreed.append(Agreed(one.partition, one.decision.clean_to, own.cut_after, ranges, own.open_end))
                wrong |= _not_to_be_trusted(one, own)
    if not agreed:
        return None
    troubled = {
        own.path
        for one in decided
        for own in one.replicas
        if own.state not in (ReplicaStanding.EQUAL, ReplicaStanding.BEHIND)
    }
    sources = [one for one in directories if one != path and one not in wrong]
    sources.sort(key=lambda one: one in troubled)
    return plan_recover(
        places.absolute(path),
        partitions=[one.partition for one in agreed],
        replicas=[places.absolute(one) for one in sources if _usable(one)],
        allow_data_loss=allow_data_loss,
        agreed=agreed,
        seen=seen.get(path),
    )


def _not_to_be_trusted(one: PartitionComparison, own: ReplicaComparison) -> set[PurePath]:
    """Replicas that hold another version of a record that the replica `own` has to restore."""
    needs = [*own.damaged, *replaced_ranges(own)]
    if own.open_end or own.cut_after is not None:
        begin = 0 if own.last_transaction_id is None else own.last_transaction_id + 1
        needs.append((min(begin, begin if own.cut_after is None else own.cut_after + 1), one.decision.clean_to + 1))
    return {
        other.path
        for other in one.replicas
        if other.path != own.path
        and any(low < stop and first < high for low, high in other.outvoted for first, stop in needs)
    }


def _usable(path: PurePath) -> bool:
    """Whether a directory has a readable control file, which proves its cluster."""
    return read_control(path / CONTROL_FILE_NAME) is not None
