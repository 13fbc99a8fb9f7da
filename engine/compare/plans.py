"""From a comparison to a plan for each replica that needs something: ``recover`` with what all replicas have agreed on.

A plan cuts what recovery would cut, restores damaged records from replicas that prove them, and rebuilds indexes.  What a
replica lacks at its end is left to the cluster, which brings it up to date.  But a replica that has lost its end may have
acknowledged all that is kept: it gets all of it back, as its vote may be the one that keeps it.

Partitions in which anything is undecidable are left out.  Sources are replicas that need no plan themselves where there are
such: carrying out a plan changes a replica, and makes plans stale that read from it.  Where there are none, `plan_anew` makes
those again that are still to be carried out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from waltzctl.engine.compare.comparison import PartitionComparison, ReplicaComparison, ReplicaStanding
from waltzctl.engine.compare.states import replaced_ranges
from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.log import places
from waltzctl.engine.log.view import read_control
from waltzctl.engine.repair.arguments import Agreed
from waltzctl.engine.repair.plan import Repair
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.formats.control import CONTROL_FILE_NAME


def plans(
    comparisons: Sequence[PartitionComparison], directories: Sequence[PurePath], *, allow_data_loss: bool
) -> list[Repair]:
    """The plans that have something to do, or something to decide, in the order of `directories`.  Read-only.

    `directories` are those that were compared.  `allow_data_loss`: plans may cut and replace what is at or below a local
    low-water mark, and give up what cannot be restored.

    Raises InvalidRequestError for a URL, NotWaltzError for a directory that went away, DiskReadError.
    """
    for path in directories:
        if not places.on_this_machine(path):
            raise InvalidRequestError(
                f"{path}: plans are made for files of this machine",
                advice="copy the storage directory here, or mount it",
            )
    found: list[Repair] = []
    for path in directories:
        repair = _plan(path, _decided(comparisons), directories, allow_data_loss=allow_data_loss)
        if repair is not None and (repair.plan.steps or repair.plan.undecided):
            found.append(repair)
    return found


def plan_anew(
    repair: Repair,
    comparisons: Sequence[PartitionComparison],
    directories: Sequence[PurePath],
    *,
    allow_data_loss: bool,
) -> Repair:
    """One of the plans for what was compared, made again because another one that was carried out changed what it reads.

    What the replicas have agreed on is as before; raises as `plans`.
    """
    path = next(one for one in directories if places.absolute(one) == repair.plan.path)
    anew = _plan(path, _decided(comparisons), directories, allow_data_loss=allow_data_loss)
    assert anew is not None, "it had something to agree on before"
    return anew


def _decided(comparisons: Sequence[PartitionComparison]) -> list[PartitionComparison]:
    return [one for one in comparisons if not one.decision.undecided]


def _plan(
    path: PurePath, decided: Sequence[PartitionComparison], directories: Sequence[PurePath], *, allow_data_loss: bool
) -> Repair | None:
    agreed: list[Agreed] = []
    wrong: set[PurePath] = set()
    for one in decided:
        for own in one.replicas:
            if own.path == path:
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
    )


def _not_to_be_trusted(one: PartitionComparison, own: ReplicaComparison) -> set[PurePath]:
    """Replicas that hold another version of something that this one has to restore."""
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
    """Whether a directory can prove which cluster it belongs to."""
    return read_control(path / CONTROL_FILE_NAME) is not None
