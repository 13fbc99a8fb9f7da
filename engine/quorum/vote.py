"""The vote: from what each replica holds to what recovery would keep.  Values in, values out.

The rule is that of release 0.13.2 (recovery manager): with n replicas in the last replica set, of which ``n // 2 + 1`` are a
quorum, a transaction is kept when a quorum holds it.  Where fewer do, it is kept all the same when the replicas that cannot be
asked could have made up the quorum, because it may have been acknowledged, and the others catch up with whoever holds it; but
only where a quorum of replicas is there to do so.  Otherwise it was never acknowledged, and recovery cuts it.

The release compares highest transaction ids and never a byte.  Here "holds" means the same bytes, so that two versions of one
transaction are two candidates, of which at most one can have a quorum:

==============================================  =====================================================================
what stands in a replica under an id            how it counts
==============================================  =====================================================================
a record that is intact                         for its version
a damaged place with its id                     held (the release votes by the highest id), for whichever version
the same, behind a fork (see below)             held, but neither for nor against a version of the other side
nothing, behind its last record                 for nothing
nothing, but acknowledged records are missing   it may have held any version, as if it were not there
nothing at all, and it was in no session,       the same: its disk may have been replaced
beside others that were
nothing is known (not given, not readable)      it may have held any version
==============================================  =====================================================================

A replica whose session is older than that of a quorum does not vote: a later session has decided without it, and whatever it
alone holds will be cut. Where it holds the same bytes as a voter, or what voters have lost, it counts. At or below the highest
low-water mark every transaction was acknowledged, so that a single intact copy is kept there.

Where the cluster's metadata is known it says which session was the last one, and how many replicas were in it (`LastSession`).
Replicas in earlier sessions do not vote; where there are more of them than the metadata has closed, some have lost what they
held, nothing tells which, and each of them may have held any version. Where those, voters whose end cannot be read, and the
replicas that are not here are a quorum together, they may have acknowledged what nobody here holds.

There is a fork between two replicas where, of the ids below that both have a version of, the nearest has another one in each.
What is written in order is from there on two histories, and a copy that one of them lost was not what the other one holds.  Yet
the release's recovery, which compares no byte, may have let both go on with the same records.  So a damaged copy behind a fork is
no reason to keep a version of the other side, nor to cut it: one that only such copies would make a quorum's is left open.
Behind something that is cut it goes with it: a recovery that went on from there would have set its mark, and at or below a mark
nothing is cut.  Where both have the same again, only what lies between differed, and there is no fork any more.  For what is
behind it, a damaged copy that stands for the version that is kept is that version.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

ABSENT = -1
"""The replica holds nothing under these ids."""
DAMAGED = -2
"""The replica held records under these ids, and what stands there is not to be believed."""


class Verdict(enum.StrEnum):
    """What a comparison of a partition comes to."""

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
    """Transactions `first` to `stop` - 1, under which every replica stands alike.

    `versions`: for each replica a number that tells its bytes apart from those of the others (the lowest number of a replica
    that holds the same ones), or ABSENT, or DAMAGED.
    """

    first: int
    stop: int
    versions: tuple[int, ...]

    def __len__(self) -> int:
        return self.stop - self.first

    @property
    def differs(self) -> bool:
        """Whether intact records differ."""
        return len({version for version in self.versions if version >= 0}) > 1

    def cut(self, borders: Iterable[int]) -> Iterator[Run]:
        """The same, as runs that end at each of `borders` (rising) that lies inside."""
        first = self.first
        for border in borders:
            if first < border < self.stop:
                yield Run(first, border, self.versions)
                first = border
        yield Run(first, self.stop, self.versions)


@dataclass(frozen=True, slots=True)
class Ballot:
    """What is known of a replica beside its records.

    `present`: its partition directory can be read.  The marks are those in force in its control file, None where nothing
    tells.  `open_end`: records that it held may be missing behind its last one.  `blank`: it was added since, or has lost what
    it held, as an empty disk in its place, and nothing tells which.
    """

    present: bool = True
    session_id: int | None = None
    low_water_mark: int | None = None
    local_low_water_mark: int | None = None
    open_end: bool = False
    blank: bool = False


@dataclass(frozen=True, slots=True)
class LastSession:
    """What a cluster's metadata says of a partition's last replicas.

    `session_id`: the latest session that any of them was in; `replicas`: how many there are; `members`: how many of them were in
    it and are not closed.
    """

    session_id: int
    replicas: int
    members: int

    def have_lost(self, ballots: Iterable[Ballot]) -> bool:
        """Whether some of the replicas whose session is older were in the last one."""
        return sum(map(self.is_older, ballots)) > self.replicas - self.members

    def is_older(self, ballot: Ballot) -> bool:
        """Whether a replica's session is an earlier one."""
        return ballot.present and ballot.session_id is not None and ballot.session_id < self.session_id


@dataclass(frozen=True, slots=True)
class Kept:
    """What recovery keeps under the ids of a run.  `version` None: it cannot be told, or no intact copy is left."""

    run: Run
    version: int | None


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of a vote.

    `clean_to`: the highest transaction that recovery keeps, -1 for none; where the verdict is *undecidable* it may turn out
    to be higher.  `kept`: every run up to there, in order.  `caught_up`: something is kept that no quorum holds yet.
    `undecided` and `lost`: ids (first, behind the last) of which no version can be chosen, and of which no intact copy is
    left.  `voters`: whether each replica votes.
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
    """It may have been acknowledged; recovery keeps it by catching up."""
    CUT = enum.auto()
    OPEN = enum.auto()
    """It cannot be told."""
    LOST = enum.auto()


@dataclass(frozen=True, slots=True)
class _Judged:
    run: Run
    outcome: _Outcome
    version: int | None = None

    @property
    def copies(self) -> int:
        """How many replicas hold what is kept, damaged ones as well."""
        return sum(one in (self.version, DAMAGED) for one in self.run.versions)


def quorum_of(replicas: int) -> int:
    """How many of so many replicas are a quorum."""
    return replicas // 2 + 1


def unheard(absent: int, lost: int, quorum: int) -> bool:
    """Whether replicas that cannot be asked, and others that have lost what they held, may have acknowledged more than is told.

    Where nobody is absent nobody is left who could tell.
    """
    return absent > 0 and absent + lost >= quorum


def voters_of(ballots: Sequence[Ballot], last_replicas: int, last: LastSession | None = None) -> tuple[bool, ...]:
    """Whether each replica votes: it is there, and no quorum has a later session than it (release: *closing state resolved*).

    `last`: where it is known, it has the session.
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
    """Vote.  `runs` follow one another from transaction 0 on; `last_replicas` is at least the number of ballots."""
    return _Vote(ballots, last_replicas, last).decide(runs)


class _Forks:
    """Between which replicas (pairs of numbers, rising) there is a fork in front of the run that comes next."""

    def __init__(self) -> None:
        self.pairs: set[tuple[int, int]] = set()

    def between(self, one: int, others: Iterable[int]) -> bool:
        """Whether one parts a replica from any of `others`."""
        return any((min(one, other), max(one, other)) in self.pairs for other in others)

    def standing(self, run: Run, version: int) -> list[int]:
        """The replicas whose damaged copy counts for `version`: no fork parts them from any that holds it, or counts for it."""
        damaged = [number for number, held in enumerate(run.versions) if held == DAMAGED]
        holders = [number for number, held in enumerate(run.versions) if held == version]
        found = [number for number in damaged if not self.between(number, holders)]
        return [number for number in found if not self.between(number, found)]

    def go_on(self, run: Run, kept: int | None) -> None:
        """Pass `run`, of which the version `kept` is kept (None: none is, or it cannot be told)."""
        if not self.pairs and not run.differs:  # as nearly always
            return
        versions = list(run.versions)
        if kept is not None:
            for number in self.standing(run, kept):
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
        self.unseen = last_replicas - len(ballots)
        self.gone = sum(not one.present for one in ballots)
        self.present = len(ballots) - self.gone
        self.missing = self.unseen + self.gone
        lost = sum(one.blank or (one.open_end and votes) for one, votes in zip(ballots, self.voters, strict=True))
        self.unheard = self.missing < self.quorum and unheard(self.missing, lost, self.quorum)
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
                rest = self.beyond(behind[number:])
                break
            kept.append(one)
        else:
            rest = []
        equal = self.gone == 0 and all(min(one.run.versions) == max(one.run.versions) >= 0 for one in judged)
        return self.conclude(kept, rest, equal=equal)

    def pieces(self, runs: Iterable[Run]) -> Iterator[Run]:
        """The runs, cut behind the highest low-water mark, and a last one for what should be there and is nowhere."""
        border, end = self.acknowledged + 1, 0
        for run in runs:
            end = run.stop
            yield from run.cut([border])
        if end < border:
            yield Run(end, border, (ABSENT,) * len(self.ballots))

    def judged(self, runs: Iterable[Run]) -> Iterator[_Judged]:
        """Every run on its own, but for the forks in front of it."""
        forks = _Forks()
        for run in self.pieces(runs):
            one = self.judge(run, forks)
            forks.go_on(run, one.version)
            yield one

    def judge(self, run: Run, forks: _Forks) -> _Judged:
        """A run, with the forks in front of it."""
        acknowledged = run.stop <= self.acknowledged + 1
        damaged = run.versions.count(DAMAGED)
        wild = self.missing
        held: dict[int, int] = {}
        voted: set[int] = set()
        for ballot, voter, version in zip(self.ballots, self.voters, run.versions, strict=True):
            if version >= 0:
                held[version] = held.get(version, 0) + 1
                if voter or acknowledged:
                    voted.add(version)
            elif version == ABSENT and ballot.present and (ballot.open_end or ballot.blank):
                wild += 1
        candidates = {version: count for version, count in held.items() if version in voted or (damaged and not voted)}
        if not candidates:
            return _Judged(run, self.nobody(damaged, wild, acknowledged=acknowledged))
        standing = {version: len(forks.standing(run, version)) for version in candidates}
        for version, count in candidates.items():
            if count + (standing[version] if len(candidates) == 1 else 0) >= self.quorum:
                return _Judged(run, _Outcome.CERTAIN, version)
        if acknowledged and len(candidates) == 1:
            return _Judged(run, _Outcome.CERTAIN, next(iter(candidates)))
        possible = [version for version, count in candidates.items() if count + damaged + wild >= self.quorum]
        if not possible:
            return _Judged(run, _Outcome.OPEN if acknowledged else _Outcome.CUT)
        version = possible[0]
        across = candidates[version] + standing[version] + wild < self.quorum  # a quorum only with copies behind a fork
        if len(possible) > 1 or across or self.present < self.quorum:
            return _Judged(run, _Outcome.OPEN)
        return _Judged(run, _Outcome.CERTAIN if acknowledged else _Outcome.POSSIBLE, version)

    def nobody(self, damaged: int, wild: int, *, acknowledged: bool) -> _Outcome:
        """Nobody who counts has an intact copy."""
        if not acknowledged and (not damaged or damaged + wild < self.quorum):
            return _Outcome.CUT
        return _Outcome.OPEN if self.unseen else _Outcome.LOST

    def continues(self, kept: Sequence[_Judged], one: _Judged) -> bool:
        """Whether somebody who holds a version also holds what is kept in front of it, so that others can catch up."""
        if not kept:
            return True
        before = kept[-1]
        return any(
            version == one.version and earlier in (before.version, DAMAGED)
            for version, earlier in zip(one.run.versions, before.run.versions, strict=True)
        )

    def beyond(self, rest: list[_Judged]) -> list[_Judged]:
        """What stands open behind the last transaction that is kept, up to the first that is cut.

        What is lost behind something open may never have been acknowledged, and is open as well.
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
        """Why it is so.  `promised`: for the last one that is kept a mark stands, where the copies are no quorum."""
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
    """Ranges of ids (first, behind the last), neighbours as one."""
    found: list[tuple[int, int]] = []
    for run in runs:
        if found and found[-1][1] == run.first:
            found[-1] = found[-1][0], run.stop
        else:
            found.append((run.first, run.stop))
    return tuple(found)


def in_words(ranges: Sequence[tuple[int, int]], most: int = 3) -> str:
    """Ranges of transactions as a part of a sentence."""
    parts = [str(first) if stop == first + 1 else f"{first} to {stop - 1}" for first, stop in ranges[:most]]
    if len(ranges) > most:
        parts.append(f"{len(ranges) - most} more places")
    one = [stop - first for first, stop in ranges] == [1]
    return f"transaction{'' if one else 's'} {', '.join(parts)}"
