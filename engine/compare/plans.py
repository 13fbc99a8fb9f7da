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
from waltzctl.engine.durable.file_status import moved_while
from waltzctl.engine.errors import InvalidRequestError, StalePlanError, WaltzError
from waltzctl.engine.log import places
from waltzctl.engine.log.partition_directories import partition_directories
from waltzctl.engine.log.view import read_control
from waltzctl.engine.repair.arguments import Agreed
from waltzctl.engine.repair.plan import NotedFiles, Repair, note
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.engine.storage.assignment import is_hosted
from waltzctl.formats.control import CONTROL_FILE_NAME, ControlFile
from waltzctl.formats.segment import parse_name

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
    moved: dict[int, str] = {}
    controls = {path: _control(path) for path in seen}
    for one in comparisons:
        for path, noted in seen.items():
            directory = path / str(one.partition)
            if not _stays(directory, noted):
                moved.setdefault(one.partition, f"{directory}: {moved_while('compared')}")
            elif _lacked_files(one, path, noted):
                why = f"{directory}: files that were in it before were not there while it was compared"
                moved.setdefault(one.partition, why)
            elif _was_missing(one, path) and _hosted_now(path, controls[path], one.partition):
                why = f"{directory}: was missing when it was compared, and is there now"
                moved.setdefault(one.partition, why)
    if not moved:
        return list(comparisons), None
    error = StalePlanError(
        f"{next(iter(moved.values()))}; nothing is planned for partition {format_ranges(moved)} in any replica",
        advice="compare again",
    )
    return [one for one in comparisons if one.partition not in moved], error


def _was_missing(one: PartitionComparison, path: PurePath) -> bool:
    """Whether a directory had no vote as the partition's was not there; or as it was no replica, which may be for that reason."""
    return all(own.path != path or own.state is ReplicaStanding.MISSING for own in one.replicas)


def _lacked_files(one: PartitionComparison, path: PurePath, noted: NotedFiles) -> bool:
    """Whether a directory had fewer files of segments when it was compared: it went away half-way, and may be back."""
    before = sum(parse_name(PurePath(name).name) is not None for name, _, _ in noted.listings.get(one.partition, ()))
    return any(
        own.path == path and own.files < before for own in one.replicas if own.state is not ReplicaStanding.MISSING
    )


def _hosted_now(path: PurePath, control: ControlFile | None, partition: int) -> bool:
    """Whether a directory is a replica of a partition whose directory is there, or may be."""
    there = places.may_be_directory(path / str(partition))
    return there and is_hosted(path, control, partition, directory=True)


def _control(path: PurePath) -> ControlFile | None:
    """The control file, None where there is none that can be used: then a partition's directory makes a replica."""
    with contextlib.suppress(WaltzError, OSError):
        return read_control(path / CONTROL_FILE_NAME)
    return None


def _stays(path: PurePath, noted: NotedFiles) -> bool:
    """Whether a directory is where it was noted; True where it was not."""
    return not places.is_moved(path, noted.stood.get(path))


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
                f"{path}: {moved_while('compared')}; nothing was modified",
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
    changed: Collection[PurePath] = (),
) -> Repair:
    """Make one of the plans again, after another plan was carried out and changed a replica that it reads, or brought back.

    The decision of the comparison is the same as before.  `changed`: the replicas of which plans were carried out; a partition's
    directory that was missing there was made by that.  Raises as `plans`.
    """
    path = next(one for one in directories if places.absolute(one) == repair.plan.path)
    decided = _decided(comparisons)
    anew = _plan(path, decided, directories, seen, allow_data_loss=allow_data_loss, changed=changed)
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
    changed: Collection[PurePath] = (),
) -> Repair | None:
    others = {one: _control(one) for one in directories if one != path and places.absolute(one) not in changed}
    agreed: list[Agreed] = []
    wrong: set[PurePath] = set()
    for one in decided:
        for own in one.replicas:
            if own.path == path and not own.unread:
                ranges = tuple((first, stop - 1) for first, stop in replaced_ranges(own))
                missing = _missing(one, others)
                agreed.append(
                    Agreed(one.partition, one.decision.clean_to, own.cut_after, ranges, own.open_end, missing)
                )
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


def _missing(one: PartitionComparison, controls: Mapping[PurePath, ControlFile | None]) -> tuple[str, ...]:
    """Where a directory of the partition was missing in the others, absolute: nothing is given up once one is there.

    `controls`: the other directories' control files.  Where the flag says that a partition is not assigned, no directory makes
    a replica.
    """
    found = []
    for path, control in controls.items():
        if _was_missing(one, path) and is_hosted(path, control, one.partition, directory=True):
            found.append(str(places.absolute(path) / str(one.partition)))
    return tuple(found)


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
