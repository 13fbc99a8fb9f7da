"""What the replicas of a partition agree on, transaction by transaction.  Values in, values out; the vote is `engine.quorum`'s.

A transaction is agreed upon once, at the first batch in which an intact copy of it is seen at or below the mark that is known
as committed.  There every transaction was acknowledged, so the vote chooses the version that a quorum holds, or the only one
that is there.  Copies that come later (a replica that was behind, one that was added) change nothing: the same bytes are
passed over, others are told of.  That makes a batch a function of what lies between two offsets, and nothing is agreed upon
twice.

===========================================  ========================================================================
what the copies that were seen say           what comes of it
===========================================  ========================================================================
one version, or one that a quorum holds      the transaction, and how many replicas hold it
several, and none has a quorum               no transaction; each copy is told of
none is intact                               no transaction; told of once, for all ids of the run
an intact copy was seen in an earlier batch  nothing; a copy with other bytes is told of
===========================================  ========================================================================

Of a replica that was looked at in an earlier batch and is not named any more (it was taken out, its directory has another name)
nobody can tell by now what it held.  As far as it was looked at nothing is agreed upon: it may have been, and would be twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from waltzctl.engine.quorum.vote import ABSENT, DAMAGED, Ballot, Run, decide, quorum_of

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Seen:
    """How far the copies of one replica were looked at: up to `before` in earlier batches, up to `now` with this one (ids)."""

    before: int
    now: int


@dataclass(frozen=True, slots=True)
class AgreedTransactions:
    """Transactions `first` to `stop` - 1 are those of replica `version`; so many `replicas` hold them."""

    first: int
    stop: int
    version: int
    replicas: int


@dataclass(frozen=True, slots=True)
class Differs:
    """A copy of replica `replica` that is not what was agreed upon.

    `agreed`: a replica that holds what was, None where the vote came to nothing; `votes`: how many replicas hold that version
    (where there is none: the most that hold any); `of`: how many replicas were read; `quorum`: how many would have been one.
    """

    transaction_id: int
    replica: int
    agreed: int | None
    votes: int
    of: int
    quorum: int


@dataclass(frozen=True, slots=True)
class Nowhere:
    """No replica has an intact copy of transactions `first` to `stop` - 1, which were committed."""

    first: int
    stop: int


Outcome = AgreedTransactions | Differs | Nowhere


def versions_of(
    first: int,
    stop: int,
    ids: Sequence[NDArray[np.int64]],
    same: Callable[[int, int], NDArray[np.bool_]],
    damaged: Sequence[Sequence[tuple[int, int]]],
) -> NDArray[np.int64]:
    """For each replica (rows) and id from `first` on (columns) the version, as `Run.versions` has it.

    `ids`: what each replica has intact, rising.  ``same(i, j)``, for j < i: whether replica i holds the same bytes as j, for each
    of the ids that both have, in order; it is asked only where i is not known to hold what an earlier one does.  `damaged`: ids
    (first, behind the last) that a replica held and that are not to be believed.
    """
    found = np.full((len(ids), stop - first), ABSENT, dtype=np.int64)
    for row, spans in enumerate(damaged):
        for begin, end in spans:
            found[row, max(begin - first, 0) : max(min(end, stop) - first, 0)] = DAMAGED
    for row, have in enumerate(ids):
        found[row, _columns(have, first)] = row
        for other in range(row):
            common = _columns(common_ids(have, ids[other]), first)
            mine = found[row, common]
            still = mine == row
            if still.any():
                found[row, common] = np.where(still & same(row, other), found[other, common], mine)
    return found


def _columns(ids: NDArray[np.int64], first: int) -> slice | NDArray[np.int64]:
    """Where rising ids stand; a slice, which costs a tenth, where they go on by one."""
    if len(ids) and ids[-1] - ids[0] + 1 == len(ids):
        return slice(int(ids[0]) - first, int(ids[-1]) + 1 - first)
    return ids - first


def common_ids(one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
    """The ids that stand in both, each of which rises."""
    if np.array_equal(one, other):  # as nearly always
        return one
    return np.intersect1d(one, other, assume_unique=True)


def outcomes(
    first: int, versions: NDArray[np.int64], seen: Sequence[Seen], decided: int, gone: int = -1
) -> Iterator[Outcome]:
    """What comes of the ids from `first` on; `decided`: up to which id earlier batches agreed.

    `gone`: up to which id they looked at a replica that is not among these any more.
    """
    stop = first + versions.shape[1]
    borders = {first, stop, decided + 1, gone + 1, *(one.before + 1 for one in seen), *(one.now + 1 for one in seen)}
    for row in versions:  # one by one: over the axis of replicas NumPy takes ten times as long
        borders.update((np.flatnonzero(row[1:] != row[:-1]) + 1 + first).tolist())
    cuts = sorted(one for one in borders if first <= one <= stop)
    for begin, end in itertools.pairwise(cuts):
        column = versions[:, begin - first].tolist()
        run = Run(begin, end, tuple(v if one.now >= begin else ABSENT for v, one in zip(column, seen, strict=True)))
        yield from _of_run(run, seen, new=begin > decided, gone=begin <= gone)


def _of_run(run: Run, seen: Sequence[Seen], *, new: bool, gone: bool) -> Iterator[Outcome]:
    earlier = [number for number, one in enumerate(seen) if one.before >= run.first]
    intact_earlier = [run.versions[number] for number in earlier if run.versions[number] >= 0]
    fresh = [number for number in range(len(seen)) if number not in earlier and run.versions[number] >= 0]
    of, quorum = len(seen), quorum_of(len(seen))
    if intact_earlier:  # agreed upon, or left open, in an earlier batch
        version = max(dict.fromkeys(intact_earlier), key=intact_earlier.count)
        yield from _differing(run, fresh, version, intact_earlier.count(version), of, quorum)
        return
    held = [version for version in run.versions if version >= 0]
    if not held:
        if new:
            yield Nowhere(run.first, run.stop)
        return
    agreed = _vote(run)
    if agreed is None:
        most = max(map(held.count, held))
        yield from _differing(run, fresh, None, most, of, quorum)
        return
    votes = held.count(agreed)
    if not gone:
        yield AgreedTransactions(run.first, run.stop, agreed, votes)
    yield from _differing(run, fresh, agreed, votes, of, quorum)


def _vote(run: Run) -> int | None:
    """The version that the replicas agree on, all of it being acknowledged; None where that cannot be told."""
    ballots = [Ballot(low_water_mark=run.stop - 1, open_end=True)] * len(run.versions)
    kept = decide([run], ballots, len(ballots)).kept
    return kept[0].version if kept and kept[0].run.first == run.first else None


def _differing(
    run: Run, replicas: Sequence[int], agreed: int | None, votes: int, of: int, quorum: int
) -> Iterator[Differs]:
    for replica in replicas:
        if run.versions[replica] != agreed:
            for number in range(run.first, run.stop):
                yield Differs(number, replica, agreed, votes, of, quorum)
