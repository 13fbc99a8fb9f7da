"""The vote: what recovery would keep, computed from what each replica holds.  Pure functions of values.

The rule is that of release 0.13.2 (recovery manager).  Of the n replicas of the last replica set, ``n // 2 + 1`` are a quorum.

===========================================================================  ============================================
a transaction that                                                           is
===========================================================================  ============================================
a quorum holds                                                               kept
fewer hold, but a quorum if replicas that cannot be asked held it as well:   kept, and copied to the others, if a quorum
it may have been acknowledged                                                of replicas is present; otherwise undecided
no quorum can have held: it was never acknowledged                           cut
===========================================================================  ============================================

The release compares the highest transaction ids and no bytes.  Here "holds" means the same bytes: two versions of a transaction
are two candidates, of which at most one can have a quorum.

=====================================================  ==================================================================
what a replica has under an id                         how it counts
=====================================================  ==================================================================
an intact record                                       for its version
a damaged record of this id                            for any version (the release votes by the highest id)
a damaged record behind a fork (see below)             held, but neither for nor against a version of the other side
nothing, behind its last record                        for no version
nothing, though acknowledged records are missing       it may have held any version, as an absent replica
nothing at all, and it was in no session, while other  the same: its disk may have been replaced
replicas were
unknown (replica not given, or not readable)           it may have held any version
=====================================================  ==================================================================

A replica whose session is older than that of a quorum does not vote: a later session has decided without it, and what it alone
holds will be cut.  It counts where it holds the same bytes as a voter, or what the voters have lost.  At or below the highest
low-water mark every transaction was acknowledged, so that a single intact copy is kept.

If the cluster's metadata is known, it tells the last session and its replicas (`LastSession`).  Replicas of earlier sessions do
not vote.  If there are more of them than the metadata says are closed, some have lost records; nothing tells which, and each may
have held any version.  If these, the voters whose end cannot be read, and the absent replicas together are a quorum, they may
have acknowledged transactions that no replica here holds.

Forks.  Two replicas are forked at an id if they hold different versions under the nearest lower id of which both have an intact
record.  A log is written in order, so that from there on they have two histories.

- A damaged record behind a fork is hardly the version that the other side holds.  It may be, since the release's recovery, which
  compares no bytes, may have continued both with the same records.  So it counts neither for nor against that version.  A version
  that has a quorum only with such records is undecided.
- Behind a transaction that is cut it is cut as well: a recovery that continued from there would have set its low-water mark, and
  nothing is cut at or below a mark.
- The fork ends where both hold the same version again.  For what follows, a damaged record that counts for the version that is
  kept is that version.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

ABSENT = -1
"""A version: the replica holds nothing under these ids."""
DAMAGED = -2
"""A version: the replica held records under these ids, and they are damaged."""


class Verdict(enum.StrEnum):
    """The result of a comparison of a partition's replicas."""

    EQUAL = "equal"
    """Every replica holds the same."""
    RECOVERABLE = "recoverable"
    """They differ, and recovery makes them equal without losing what may have been acknowledged."""
    UNDECIDABLE = "undecidable"
    """What recovery keeps depends on what cannot be seen here."""
    LOST = "lost"
    """No replica has an intact copy of something that was, or may have been, acknowledged."""


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive transactions, `first` to `stop` - 1, for which `versions` is the same.

    `versions`: for each replica the lowest number of a replica that holds the same bytes, or ABSENT, or DAMAGED.
    """

    first: int
    stop: int
    versions: tuple[int, ...]

    def __len__(self) -> int:
        return self.stop - self.first

    @property
    def differs(self) -> bool:
        """Whether intact records of two replicas differ."""
        return len({version for version in self.versions if version >= 0}) > 1

    def cut(self, borders: Iterable[int]) -> Iterator[Run]:
        """Split the run at each of `borders` (ascending) that lies inside."""
        first = self.first
        for border in borders:
            if first < border < self.stop:
                yield Run(first, border, self.versions)
                first = border
        yield Run(first, self.stop, self.versions)


@dataclass(frozen=True, slots=True)
class Ballot:
    """What is known of a replica apart from its records.

    `present`: its partition directory can be read.  Session and marks: those in force in its control file; None if unknown.
    `open_end`: records that it held may be missing behind its last one.  `blank`: it holds nothing and was in no session: it was
    added to the partition, or its disk was replaced.  `unread`: its partition directory is there and cannot be read: it is not
    present, and may come back with everything that it held.
    """

    present: bool = True
    session_id: int | None = None
    low_water_mark: int | None = None
    local_low_water_mark: int | None = None
    open_end: bool = False
    blank: bool = False
    unread: bool = False


@dataclass(frozen=True, slots=True)
class LastSession:
    """A partition's last replicas, by the cluster's metadata.

    `session_id`: the latest session that any of them was in; `replicas`: their number; `members`: how many of them were in that
    session and have an unresolved closing high-water mark.
    """

    session_id: int
    replicas: int
    members: int

    def have_lost(self, ballots: Iterable[Ballot]) -> bool:
        """Whether more replicas have an older session than the metadata explains: some were in the last one and lost records."""
        return sum(map(self.is_older, ballots)) > self.replicas - self.members

    def is_older(self, ballot: Ballot) -> bool:
        """Whether a replica's session is older than the last one."""
        return ballot.present and ballot.session_id is not None and ballot.session_id < self.session_id


@dataclass(frozen=True, slots=True)
class Kept:
    """The version that recovery keeps of a run; None if it is undecided, or if no intact copy is left."""

    run: Run
    version: int | None


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of a vote.

    Attributes:
        clean_to: the highest transaction that recovery keeps, -1 for none; if the verdict is *undecidable* it may be higher.
        kept: every run up to `clean_to`, in order.
        caught_up: something is kept that no quorum holds yet.
        undecided: ranges of ids (first, last + 1) of which no version can be chosen.
        lost: ranges of ids (first, last + 1) of which no intact copy is left.
        voters: for each replica, whether it votes.
        acknowledged: the highest low-water mark, -1 for none.
        reason: the verdict's reason, as a sentence.
    """

    verdict: Verdict
    clean_to: int
    quorum: int
    last_replicas: int
    kept: tuple[Kept, ...]
    caught_up: bool
    undecided: tuple[tuple[int, int], ...]
    lost: tuple[tuple[int, int], ...]
    voters: tuple[bool, ...]
    acknowledged: int
    reason: str


class _Outcome(enum.Enum):
    CERTAIN = enum.auto()
    """A quorum holds it, or it is known to be acknowledged."""
    POSSIBLE = enum.auto()
    """It may have been acknowledged; recovery keeps it by copying it to a quorum."""
    CUT = enum.auto()
    """It was never acknowledged."""
    OPEN = enum.auto()
    """Undecided."""
    LOST = enum.auto()
    """It was, or may have been, acknowledged, and no intact copy is left."""


@dataclass(frozen=True, slots=True)
class _Judged:
    run: Run
    outcome: _Outcome
    version: int | None = None

    @property
    def copies(self) -> int:
        """The number of replicas that hold the version kept, damaged copies included."""
        return sum(one in (self.version, DAMAGED) for one in self.run.versions)


def quorum_of(replicas: int) -> int:
    """The size of a quorum of `replicas` replicas."""
    return replicas // 2 + 1


def unheard(absent: int, lost: int, quorum: int) -> bool:
    """Whether absent replicas, with those that lost records, are a quorum: they may have acknowledged what no other holds.

    False if none is absent: waiting would bring no more information.
    """
    return absent > 0 and absent + lost >= quorum


def voters_of(ballots: Sequence[Ballot], last_replicas: int, last: LastSession | None = None) -> tuple[bool, ...]:
    """Whether each replica votes: it is present, and no quorum has a later session (release: *closing state resolved*).

    `last`: if known, its session decides instead of the quorum's.
    """
    if last is not None:
        return tuple(one.present and not last.is_older(one) for one in ballots)
    sessions = sorted((one.session_id for one in ballots if one.present and one.session_id is not None), reverse=True)
    quorum = quorum_of(last_replicas)
    least = sessions[quorum - 1] if len(sessions) >= quorum else None
    return tuple(
        one.present and (least is None or one.session_id is None or one.session_id >= least) for one in ballots
    )


def decide(
    runs: Iterable[Run], ballots: Sequence[Ballot], last_replicas: int, last: LastSession | None = None
) -> Decision:
    """Vote.  `runs`: consecutive, from transaction 0 on; `last_replicas`: at least the number of ballots."""
    return _Vote(ballots, last_replicas, last).decide(runs)


class _Forks:
    """The pairs of replicas (numbers, ascending) that are forked at the first id of the next run; see the module."""

    def __init__(self) -> None:
        self.pairs: set[tuple[int, int]] = set()

    def between(self, one: int, others: Iterable[int]) -> bool:
        """Whether a replica is forked from any of `others`."""
        return any((min(one, other), max(one, other)) in self.pairs for other in others)

    def supporters(self, run: Run, version: int) -> list[int]:
        """The replicas whose damaged copy counts for `version`: not forked from a replica that holds it, nor from each other."""
        damaged = [number for number, held in enumerate(run.versions) if held == DAMAGED]
        holders = [number for number, held in enumerate(run.versions) if held == version]
        found = [number for number in damaged if not self.between(number, holders)]
        return [number for number in found if not self.between(number, found)]

    def go_on(self, run: Run, kept: int | None) -> None:
        """Go on behind `run`, of which version `kept` is kept (None: none, or undecided)."""
        if not self.pairs and not run.differs:  # as nearly always
            return
        versions = list(run.versions)
        if kept is not None:
            for number in self.supporters(run, kept):
                versions[number] = kept
        for pair in combinations(range(len(versions)), 2):
            one, other = (versions[number] for number in pair)
            if min(one, other) < 0:
                continue
            if one == other:
                self.pairs.discard(pair)
            else:
                self.pairs.add(pair)


class _Vote:
    def __init__(self, ballots: Sequence[Ballot], last_replicas: int, last: LastSession | None) -> None:
        self.ballots = ballots
        self.last_replicas = last_replicas
        self.quorum = quorum_of(last_replicas)
        self.voters = voters_of(ballots, last_replicas, last)
        # those that may come back: replicas that were not given, or that cannot be read now
        unread = sum(one.unread for one in ballots)
        self.away = last_replicas - len(ballots) + unread
        self.unreadable = sum(not one.present for one in ballots)
        self.present = len(ballots) - self.unreadable
        self.missing = last_replicas - self.present
        lost = sum(one.blank or (one.open_end and votes) for one, votes in zip(ballots, self.voters, strict=True))
        # with too few that were given nothing is cut, and what is told is of these; one that cannot be read was asked for
        told = self.missing >= self.quorum and not unread
        self.unheard = not told and unheard(self.missing, lost, self.quorum)
        self.acknowledged = max((one.low_water_mark for one in ballots if one.low_water_mark is not None), default=-1)

    def decide(self, runs: Iterable[Run]) -> Decision:
        judged = list(self.judged(runs))
        certain = max((n for n, one in enumerate(judged) if one.outcome is _Outcome.CERTAIN), default=-1)
        kept = [
            one if one.outcome is not _Outcome.CUT else replace(one, outcome=_Outcome.OPEN)
            for one in judged[: certain + 1]
        ]
        behind = judged[certain + 1 :]
        for number, one in enumerate(behind):
            if one.outcome is not _Outcome.POSSIBLE or not self.continues(kept, one):
                rest = self.undecided_tail(behind[number:])
                break
            kept.append(one)
        else:
            rest = []
        equal = self.unreadable == 0 and all(min(one.run.versions) == max(one.run.versions) >= 0 for one in judged)
        return self.conclude(kept, rest, equal=equal)

    def pieces(self, runs: Iterable[Run]) -> Iterator[Run]:
        """The runs, split at the highest low-water mark, and one for ids up to it that no replica holds."""
        border, end = self.acknowledged + 1, 0
        for run in runs:
            end = run.stop
            yield from run.cut([border])
        if end < border:
            yield Run(end, border, (ABSENT,) * len(self.ballots))

    def judged(self, runs: Iterable[Run]) -> Iterator[_Judged]:
        """The outcome of every run by itself, except for forks before it."""
        forks = _Forks()
        for run in self.pieces(runs):
            one = self.judge(run, forks)
            forks.go_on(run, one.version)
            yield one

    def judge(self, run: Run, forks: _Forks) -> _Judged:
        """The outcome of a run, given the forks at its first id."""
        acknowledged = run.stop <= self.acknowledged + 1
        damaged = run.versions.count(DAMAGED)
        unknown = self.missing
        held: dict[int, int] = {}
        voted: set[int] = set()
        for ballot, voter, version in zip(self.ballots, self.voters, run.versions, strict=True):
            if version >= 0:
                held[version] = held.get(version, 0) + 1
                if voter or acknowledged:
                    voted.add(version)
            elif version == ABSENT and ballot.present and (ballot.open_end or ballot.blank):
                unknown += 1
        candidates = {version: count for version, count in held.items() if version in voted or (damaged and not voted)}
        if not candidates:
            return _Judged(run, self.without_intact_copy(damaged, unknown, acknowledged=acknowledged))
        supporters = {version: len(forks.supporters(run, version)) for version in candidates}
        for version, count in candidates.items():
            if count + (supporters[version] if len(candidates) == 1 else 0) >= self.quorum:
                return _Judged(run, _Outcome.CERTAIN, version)
        if acknowledged and len(candidates) == 1:
            return _Judged(run, _Outcome.CERTAIN, next(iter(candidates)))
        possible = [version for version, count in candidates.items() if count + damaged + unknown >= self.quorum]
        if not possible:
            return _Judged(run, _Outcome.OPEN if acknowledged else _Outcome.CUT)
        version = possible[0]
        # a quorum only with damaged copies behind a fork
        across_fork = candidates[version] + supporters[version] + unknown < self.quorum
        if len(possible) > 1 or across_fork or self.present < self.quorum:
            return _Judged(run, _Outcome.OPEN)
        return _Judged(run, _Outcome.CERTAIN if acknowledged else _Outcome.POSSIBLE, version)

    def without_intact_copy(self, damaged: int, unknown: int, *, acknowledged: bool) -> _Outcome:
        """The outcome of a run of which no replica that counts has an intact copy."""
        if not acknowledged and (not damaged or damaged + unknown < self.quorum):
            return _Outcome.CUT
        return _Outcome.OPEN if self.away else _Outcome.LOST

    def continues(self, kept: Sequence[_Judged], one: _Judged) -> bool:
        """Whether a replica that holds the version also holds what is kept before it: others can copy from it."""
        if not kept:
            return True
        before = kept[-1]
        return any(
            version == one.version and earlier in (before.version, DAMAGED)
            for version, earlier in zip(one.run.versions, before.run.versions, strict=True)
        )

    def undecided_tail(self, rest: list[_Judged]) -> list[_Judged]:
        """The undecided and lost runs behind the last one that is kept, up to the first that is cut.

        What is lost behind something undecided may never have been acknowledged, and is undecided as well.
        """
        found: list[_Judged] = []
        is_open = False
        for one in rest:
            if one.outcome is _Outcome.CUT:
                break
            is_open = is_open or one.outcome is not _Outcome.LOST
            doubtful = is_open and one.run.first > self.acknowledged
            found.append(replace(one, outcome=_Outcome.OPEN) if doubtful else one)
        return found

    def conclude(self, kept: list[_Judged], rest: list[_Judged], *, equal: bool) -> Decision:
        both = [*kept, *rest]
        lost = joined(one.run for one in both if one.outcome is _Outcome.LOST)
        undecided = joined(one.run for one in both if one.outcome is _Outcome.OPEN)
        clean_to = kept[-1].run.stop - 1 if kept else -1
        chosen = tuple(Kept(one.run, one.version) for one in kept)
        caught_up = any(one.outcome is _Outcome.POSSIBLE for one in kept)
        promised = bool(kept) and clean_to <= self.acknowledged and kept[-1].copies < self.quorum
        verdict = Verdict.EQUAL if equal else Verdict.RECOVERABLE
        return Decision(
            verdict=Verdict.LOST if lost else Verdict.UNDECIDABLE if undecided or self.unheard else verdict,
            clean_to=clean_to,
            quorum=self.quorum,
            last_replicas=self.last_replicas,
            kept=chosen,
            caught_up=caught_up,
            undecided=undecided,
            lost=lost,
            voters=self.voters,
            acknowledged=self.acknowledged,
            reason=self.reason(lost, undecided, clean_to, caught_up=caught_up, promised=promised),
        )

    def reason(
        self,
        lost: Sequence[tuple[int, int]],
        undecided: Sequence[tuple[int, int]],
        clean_to: int,
        *,
        caught_up: bool,
        promised: bool,
    ) -> str:
        """The reason for the verdict.  `promised`: only a low-water mark proves that the last one kept was acknowledged."""
        majority = f"{self.quorum} of {self.last_replicas} replicas are a quorum"
        if lost:
            return f"no replica has an intact copy of {in_words(lost)}; {majority}"
        if undecided:
            why = (
                f"{self.missing} of them cannot be seen"
                if self.missing
                else "damage or different versions leave it open"
            )
            return f"nothing tells what recovery would keep of {in_words(undecided)}: {majority}, {why}"
        if self.unheard:
            return (
                f"{majority}; {self.missing} cannot be seen, and together with those that have lost what they held they may have"
                f" acknowledged more than is here"
            )
        if clean_to < 0:
            return f"there is no transaction to keep; {majority}"
        how = "hold, or may have acknowledged," if caught_up else "hold, or have acknowledged," if promised else "hold"
        return f"{majority}, and {clean_to} is the highest transaction that they {how} identically"


def joined(runs: Iterable[Run]) -> tuple[tuple[int, int], ...]:
    """The ranges of ids (first, last + 1) of runs, adjacent ones merged."""
    found: list[tuple[int, int]] = []
    for run in runs:
        if found and found[-1][1] == run.first:
            found[-1] = found[-1][0], run.stop
        else:
            found.append((run.first, run.stop))
    return tuple(found)


def in_words(ranges: Sequence[tuple[int, int]], most: int = 3) -> str:
    """Ranges of transactions as part of a sentence, at most `most` of them."""
    parts = [str(first) if stop == first + 1 else f"{first} to {stop - 1}" for first, stop in ranges[:most]]
    if len(ranges) > most:
        parts.append(f"{len(ranges) - most} more places")
    one = [stop - first for first, stop in ranges] == [1]
    return f"transaction{'' if one else 's'} {', '.join(parts)}"
