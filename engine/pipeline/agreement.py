"""What the replicas of a partition agree on, transaction by transaction.  Values in, values out; the vote is `engine.quorum`'s.

A transaction is decided once, in the first batch in which a replica has an intact copy of it at or below the committed mark.
There every transaction was acknowledged, so the vote chooses the version that a quorum holds, or the only version.  Copies that
are read in later batches (of a replica that was behind, or was added) do not change the decision: a copy with the same bytes is
ignored, any other one is reported as `Differs`.  So a batch is a function of two offsets, and no transaction is returned twice.

===============================================  ====================================================================
copies of the ids                                outcome
===============================================  ====================================================================
one version, or one that a quorum holds          `AgreedTransactions`; `Differs` for each other copy
several versions, none with a quorum             `Differs` for each copy
no intact copy                                   `Nowhere`, once for the run of ids
an intact copy was read in an earlier batch      `Differs` for each new copy with other bytes
===============================================  ====================================================================

A replica that was read in an earlier batch may no longer be a source (removed, or its directory renamed).  What it held is then
unknown, and the transactions up to where it was read may have been agreed already: none of them is returned as agreed.
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
    """The last ids up to which the copies of one replica were read: `before` by earlier batches, `now` including this one."""

    before: int
    now: int


@dataclass(frozen=True, slots=True)
class AgreedTransactions:
    """Replica `version` holds the agreed bytes of transactions `first` to `stop` - 1, as do `replicas` in all."""

    first: int
    stop: int
    version: int
    replicas: int


@dataclass(frozen=True, slots=True)
class Differs:
    """A copy that differs from the agreed version.  Replicas are given by their index."""

    transaction_id: int
    replica: int
    """The replica with the differing copy."""
    agreed: int | None
    """A replica that holds the agreed version; None where there is none."""
    votes: int
    """How many replicas hold the agreed version; without one: the largest number that hold the same version."""
    of: int
    """How many replicas were read."""
    quorum: int
    """How many replicas make a quorum."""


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

    `ids`: the ids of each replica's intact records, rising.  ``same(i, j)``, for j < i: for each id that both replicas have, in
    order, whether i holds the same bytes as j; called only where i may differ from the earlier replicas.  `damaged`: for each
    replica the half-open ranges of ids whose records are damaged.
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
    """The columns of rising ids; for consecutive ids a slice, which takes a tenth of the time."""
    if len(ids) and ids[-1] - ids[0] + 1 == len(ids):
        return slice(int(ids[0]) - first, int(ids[-1]) + 1 - first)
    return ids - first


def common_ids(one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
    """The ids that both have; each array rises."""
    if np.array_equal(one, other):  # the usual case
        return one
    return np.intersect1d(one, other, assume_unique=True)


def outcomes(
    first: int, versions: NDArray[np.int64], seen: Sequence[Seen], decided: int, gone: int = -1
) -> Iterator[Outcome]:
    """The outcomes of the ids from `first` on, by the table above.

    `decided`: the last id that earlier batches decided.  `gone`: the last id up to which earlier batches read a replica that is
    not among these any more.
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


def outcome_of_hole(first: int, stop: int, decided: int) -> Nowhere | None:
    """The outcome of ids `first` to `stop` - 1 of which no replica has a copy; None where earlier batches decided all of them."""
    return Nowhere(max(first, decided + 1), stop) if stop > decided + 1 else None


def _of_run(run: Run, seen: Sequence[Seen], *, new: bool, gone: bool) -> Iterator[Outcome]:
    earlier = [number for number, one in enumerate(seen) if one.before >= run.first]
    intact_earlier = [run.versions[number] for number in earlier if run.versions[number] >= 0]
    fresh = [number for number in range(len(seen)) if number not in earlier and run.versions[number] >= 0]
    of, quorum = len(seen), quorum_of(len(seen))
    if intact_earlier:  # an earlier batch decided these ids
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
    """Of acknowledged transactions the version that a quorum of replicas holds, or the only one; None where there is neither."""
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
