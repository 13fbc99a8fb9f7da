"""The result values of a comparison: per replica, per partition, and the summary."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

from waltzctl.engine.compare.side_by_side import Difference
from waltzctl.engine.quorum.vote import Decision, LastSession, Run, Verdict

MOST_IDS = 10_000
"""Most damaged transactions that are listed one by one."""

Range = tuple[int, int]
"""Transaction ids: the first one, and the one after the last."""


class ReplicaStanding(enum.StrEnum):
    """How a replica compares with what recovery keeps; the gravest condition that holds."""

    MISSING = "missing"
    """The partition's directory is missing."""
    DIVERGED = "diverged"
    """It holds another version of a kept record, or of one that is undecided."""
    DAMAGED = "damaged"
    """It has lost records that are kept, or may have lost its end; they are to be copied from another replica.  Or its partition
    directory is there, and cannot be read."""
    AHEAD = "ahead"
    """It holds more transactions than are kept."""
    BEHIND = "behind"
    """It holds fewer transactions than are kept."""
    EQUAL = "equal"


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """The options of a comparison.

    ===============  ==============================================================================================
    `partitions`     compare only these; None: all
    `last_replicas`  number of replicas in the last replica set; None: the number of replicas given
    `last_sessions`  by partition, the last session as the cluster's metadata has it; replaces `last_replicas`
    `cluster`        key and number of partitions in the metadata, which the directories must have; None: not checked
    ===============  ==============================================================================================
    """

    partitions: Collection[int] | None = None
    last_replicas: int | None = None
    last_sessions: Mapping[int, LastSession] = field(default_factory=dict)
    cluster: tuple[uuid.UUID, int] | None = None


@dataclass(frozen=True, slots=True)
class RestoreSource:
    """Transactions `first` to `stop` - 1, which a replica lacks, and the storage directory of one that provably holds them.

    `path` None: no replica does.
    """

    first: int
    stop: int
    path: PurePath | None


@dataclass(frozen=True, slots=True)
class ReplicaComparison:
    """One replica of a partition.

    =====================  ========================================================================================
    `path`                 storage directory
    session id, marks      as in the control file; None when unknown
    `last_transaction_id`  last intact transaction; None when there is none
    `cut_after`            recovery cuts the replica after this transaction; None: it is not cut
    `damaged`              ranges of ids, up to the last kept one, that it has lost
    `outvoted`             ranges of ids under which it holds another version than the kept one
    `sources`              for ranges of `damaged` and `outvoted`: the replica to restore them from
    `votes`                it takes part in the vote
    `open_end`             it may have held, and acknowledged, more transactions than were found
    `unread`               its partition directory cannot be read, so that nobody knows what it holds
    `files`                how many files of segments were listed in it
    =====================  ========================================================================================
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
    unread: bool = False
    files: int = 0

    @property
    def damaged_records(self) -> int:
        """Number of damaged ids."""
        return sum(stop - first for first, stop in self.damaged)

    def damaged_ids(self) -> list[int]:
        """The first MOST_IDS damaged ids."""
        found: list[int] = []
        for first, stop in self.damaged:
            found += range(first, min(stop, first + MOST_IDS - len(found)))
        return found

    @property
    def restore_from(self) -> PurePath | None:
        """The replica from which the first restorable damaged range can be restored; None when none can."""
        wanted = [one for one in self.sources if any(first <= one.first < stop for first, stop in self.damaged)]
        return next((one.path for one in wanted if one.path is not None), None)


@dataclass(frozen=True, slots=True)
class PartitionComparison:
    """The comparison of one partition.

    `first_divergence`: the first id with different records, None when there is none.  `runs`: consecutive ranges of ids; within
    one, the pattern of equal, different, damaged and missing records (by place in `replicas`) does not change.  `differences`:
    the first transactions with different records.  `complete`: False when there were too many differences to tell them apart.
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
        """The verdict of the vote."""
        return self.decision.verdict

    @property
    def clean_to(self) -> int | None:
        """The last transaction that recovery keeps, None when it keeps none."""
        return None if self.decision.clean_to < 0 else self.decision.clean_to

    @property
    def divergence(self) -> Difference | None:
        """The different records of `first_divergence`; None when it was not described."""
        return next((one for one in self.differences if one.transaction_id == self.first_divergence), None)


@dataclass(frozen=True, slots=True)
class CompareSummary:
    """The summary over all partitions.

    `status`: the gravest verdict.  `partitions`: number of partitions by verdict.  `replicas`: the storage directories.
    `records`, `bytes`: intact records read, over all replicas.  `findings`: number of findings, without notes.  `unassigned`:
    partitions of which none of the given directories is a replica.  `held`: directories that a process has locked.
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
STATUS_NAMES = {
    Verdict.EQUAL: "clean",
    Verdict.RECOVERABLE: "repairable",
    Verdict.UNDECIDABLE: "damaged",
    Verdict.LOST: "damaged",
}
"""The name of a verdict's exit status."""
