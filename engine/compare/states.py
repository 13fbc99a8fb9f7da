"""What a decision means for each replica: its standing, where it is cut, and from which replica it is restored.  Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import PurePath

from waltzctl.engine.compare.comparison import Range, ReplicaComparison, ReplicaStanding, RestoreSource
from waltzctl.engine.quorum.vote import ABSENT, DAMAGED, Ballot, Decision, Kept, Run, joined

MOST_REPLACED = 1000
"""Most outvoted ranges that are replaced one by one; a replica with more of them is cut before the first one."""


def replicas_of(
    runs: Sequence[Run],
    decision: Decision,
    ballots: Sequence[Ballot],
    paths: Sequence[PurePath],
    contested: Container[int] = (),
) -> tuple[ReplicaComparison, ...]:
    """The comparison of every replica of a partition.

    `contested`: numbers of the replicas that hold two different records of an id whose versions differ across replicas.
    """
    return tuple(
        _Replica(number, runs, decision, paths, contested=number in contested).compare(ballot, voter)
        for number, (ballot, voter) in enumerate(zip(ballots, decision.voters, strict=True))
    )


def replaced_ranges(replica: ReplicaComparison) -> tuple[Range, ...]:
    """The outvoted ranges that are replaced: all of them, except those after the replica's cut."""
    cut = replica.cut_after
    return tuple(one for one in replica.outvoted if cut is None or one[1] - 1 <= cut)


class _Replica:
    def __init__(
        self,
        number: int,
        runs: Sequence[Run],
        decision: Decision,
        paths: Sequence[PurePath],
        *,
        contested: bool = False,
    ) -> None:
        self.contested = contested
        self.number = number
        self.runs = runs
        self.decision = decision
        self.paths = paths
        self.diverging = {
            n for one in decision.kept for n, version in enumerate(one.run.versions) if 0 <= version != one.version
        }
        self.held = [run for run in runs if run.versions[number] != ABSENT]
        self.end = self.held[-1].stop if self.held else 0
        self.outvoted = joined(one.run for one in decision.kept if self.differs(one))
        self.damaged = joined(one.run for one in decision.kept if one.run.versions[number] == DAMAGED)

    def differs(self, one: Kept) -> bool:
        """Whether this replica holds another version than the kept one, or one of several versions that are undecided."""
        mine = one.run.versions[self.number]
        return mine >= 0 and (mine != one.version if one.version is not None else one.run.differs)

    def compare(self, ballot: Ballot, voter: bool) -> ReplicaComparison:
        """The comparison of this replica."""
        replaced, cut = self.mended()
        return ReplicaComparison(
            self.paths[self.number],
            ballot.session_id,
            ballot.low_water_mark,
            ballot.local_low_water_mark,
            self.last(),
            self.state(ballot),
            cut,
            self.damaged,
            self.outvoted,
            tuple(self.sources(joined(Run(*one, ()) for one in sorted([*self.damaged, *replaced])))),
            voter,
            ballot.open_end or not ballot.present,
            ballot.unread,
        )

    def last(self) -> int | None:
        """The last transaction that the replica holds intact, None when there is none."""
        intact = [run.stop for run in self.held if run.versions[self.number] != DAMAGED]
        return intact[-1] - 1 if intact else None

    def state(self, ballot: Ballot) -> ReplicaStanding:
        """The gravest condition that holds for the replica."""
        kept = self.decision.clean_to + 1
        beyond = [one for one in self.held if one.first >= kept]
        between = any(one.differs and self.is_undecided(one.first) for one in beyond)
        if not ballot.present:
            return ReplicaStanding.DAMAGED if ballot.unread else ReplicaStanding.MISSING
        if self.outvoted or between:
            return ReplicaStanding.DIVERGED
        if self.damaged or ballot.open_end:
            return ReplicaStanding.DAMAGED
        if self.end > kept:
            return ReplicaStanding.AHEAD
        return ReplicaStanding.BEHIND if self.end < kept else ReplicaStanding.EQUAL

    def is_undecided(self, number: int) -> bool:
        """Whether no version of an id can be chosen."""
        undecided = self.decision.undecided
        place = bisect_right(undecided, number, key=lambda one: one[0])
        return place > 0 and number < undecided[place - 1][1]

    def mended(self) -> tuple[tuple[Range, ...], int | None]:
        """The ranges that are replaced by the kept version, and the transaction after which the replica is cut (None: no cut).

        An outvoted range is replaced when the replica agrees with the kept version again after it.  The last outvoted range, if
        it does not, is a fork: the replica is cut before it.
        """
        decision = self.decision
        if decision.undecided:
            return (), None
        kept = decision.clean_to + 1
        beyond = decision.clean_to if self.end > kept else None
        if self.contested:  # the right one of two rivals may be after the kept end: they are settled before any cut
            beyond = None
        if not self.outvoted:
            return (), beyond
        agreed = [one.run for one in decision.kept if one.run.versions[self.number] == one.version]
        fork = not agreed or agreed[-1].first < self.outvoted[-1][0]
        replaced = self.outvoted[:-1] if fork else self.outvoted
        if len(replaced) > MOST_REPLACED:
            return (), self.outvoted[0][0] - 1
        return replaced, self.outvoted[-1][0] - 1 if fork else beyond

    def sources(self, ranges: Iterable[Range]) -> Iterator[RestoreSource]:
        """The replica from which each range can be restored: it holds the kept version, and this replica's neighbour records.

        Replicas that never differ from the kept version are preferred.
        """
        kept = self.decision.kept
        for first, stop in ranges:
            begin = max(bisect_right(kept, first, key=lambda one: one.run.first) - 1, 0)
            for place in range(begin, len(kept)):
                one = kept[place]
                if one.run.first >= stop:
                    break
                low, high = max(first, one.run.first), min(stop, one.run.stop)
                if low < high:
                    holders = [n for n, version in enumerate(one.run.versions) if version == one.version]
                    proven = [n for n in holders if self.same(n, first - 1) and self.same(n, stop)]
                    best = min(proven, key=lambda n: (n in self.diverging, n), default=None)
                    yield RestoreSource(low, high, None if best is None else self.paths[best])

    def same(self, other: int, number: int) -> bool:
        """Whether another replica holds this replica's record of an id; True when this replica has no intact one."""
        run = self.runs[bisect_right(self.runs, number, key=lambda run: run.first) - 1]
        if not run.first <= number < run.stop:  # before the first run, or after the last
            return True
        mine = run.versions[self.number]
        return mine < 0 or mine == run.versions[other]
