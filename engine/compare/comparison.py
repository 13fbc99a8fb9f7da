"""What a comparison says: of each partition and replica, and of all in the end."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

from waltzctl.engine.compare.side_by_side import Difference
from waltzctl.engine.quorum.vote import Decision, LastSession, Run, Verdict

MOST_IDS = 10_000
"""Damaged transactions that are named one by one."""

Range = tuple[int, int]
"""Ids: the first, and the one behind the last."""


class ReplicaStanding(enum.StrEnum):
    """How a replica stands to what recovery keeps; the gravest that is true."""

    MISSING = "missing"
    """Nothing of the partition can be read there."""
    DIVERGED = "diverged"
    """It holds another version of what is kept."""
    DAMAGED = "damaged"
    """It has lost records, and a copy of them is needed."""
    AHEAD = "ahead"
    """It holds more than what is kept."""
    BEHIND = "behind"
    """It holds less."""
    EQUAL = "equal"


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """`partitions`: only these.  `last_replicas`: how many replicas the last replica set has; None: those that were given.

    `last_sessions`: what the cluster's metadata says of partitions, instead; `cluster`: key and number of partitions that the
    directories must have, as it says.
    """

    partitions: Collection[int] | None = None
    last_replicas: int | None = None
    last_sessions: Mapping[int, LastSession] = field(default_factory=dict)
    cluster: tuple[uuid.UUID, int] | None = None


@dataclass(frozen=True, slots=True)
class RestoreSource:
    """Transactions that a replica lacks, and the replica that holds them, proven; None where none does."""

    first: int
    stop: int
    path: PurePath | None


@dataclass(frozen=True, slots=True)
class ReplicaComparison:
    """One replica of a partition.

    `path` is its storage directory.  Marks are None where nothing tells them, `last_transaction_id` where there is none.
    `cut_after`: recovery cuts what stands behind.  `damaged`: ids (first, behind the last) that it held, up to what is kept.
    `outvoted`: ids under which it holds another version than the one that is kept.  `sources`: from whom each of both can be
    restored.  `votes`: whether it has a vote.  `open_end`: it may have held, and acknowledged, more than can be seen.
    """

    path: PurePath
    session_id: int | None
    low_water_mark: int | None
    local_low_water_mark: int | None
    last_transaction_id: int | None
    state: ReplicaStanding
    cut_after: int | None
    damaged: tuple[Range, ...]
    outvoted: tuple[Range, ...]
    sources: tuple[RestoreSource, ...]
    votes: bool
    open_end: bool

    @property
    def damaged_records(self) -> int:
        """How many ids are damaged."""
        return sum(stop - first for first, stop in self.damaged)

    def damaged_ids(self) -> list[int]:
        """The first of them."""
        found: list[int] = []
        for first, stop in self.damaged:
            found += range(first, min(stop, first + MOST_IDS - len(found)))
        return found

    @property
    def restore_from(self) -> PurePath | None:
        """The replica that everything damaged can be restored from, or the first part of it."""
        wanted = [one for one in self.sources if any(first <= one.first < stop for first, stop in self.damaged)]
        return next((one.path for one in wanted if one.path is not None), None)


@dataclass(frozen=True, slots=True)
class PartitionComparison:
    """One partition.  `clean_to` and `first_divergence` are None for none.

    `runs`: every range of ids under which the replicas (by their place in `replicas`) stand alike.  `complete` is False where
    there were too many differences to tell them all apart.
    """

    partition: int
    decision: Decision
    first_divergence: int | None
    replicas: tuple[ReplicaComparison, ...]
    runs: tuple[Run, ...]
    differences: tuple[Difference, ...]
    complete: bool

    @property
    def verdict(self) -> Verdict:
        """What it comes to."""
        return self.decision.verdict

    @property
    def clean_to(self) -> int | None:
        """The highest transaction that recovery keeps."""
        return None if self.decision.clean_to < 0 else self.decision.clean_to

    @property
    def divergence(self) -> Difference | None:
        """Both sides of the first difference."""
        return next((one for one in self.differences if one.transaction_id == self.first_divergence), None)


@dataclass(frozen=True, slots=True)
class CompareSummary:
    """All partitions.  `status` is the gravest verdict; `partitions` counts them by verdict.

    `unassigned`: partitions of which no directory that was given is a replica.  `held`: directories that a process holds.
    """

    status: Verdict
    exit_status_name: str
    partitions: dict[Verdict, int]
    replicas: tuple[PurePath, ...]
    records: int
    bytes: int
    findings: int
    unassigned: tuple[int, ...]
    held: tuple[PurePath, ...]
    elapsed_seconds: float
    complete: bool


ORDER = (Verdict.EQUAL, Verdict.RECOVERABLE, Verdict.UNDECIDABLE, Verdict.LOST)
"""From harmless to grave."""
