"""compare: compare the replicas of a cluster partition by partition, offline.

1. `directories`: open the storage directories and find which ones are replicas of which partition.
2. `ranges`: cut each partition into ranges of transactions.
3. `side_by_side`: read each range of all replicas and compare them; one executor task per range (`engine.task_executor`).
4. `engine.quorum.vote`: decide, from the results of all ranges of a partition, what recovery keeps.
5. `states`: derive what that means for each replica.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from waltzctl.engine.compare.comparison import (
    ORDER,
    STATUS_NAMES,
    CompareOptions,
    CompareSummary,
    PartitionComparison,
)
from waltzctl.engine.compare.directories import Directories, Member, open_directories
from waltzctl.engine.compare.ranges import ranges
from waltzctl.engine.compare.side_by_side import Difference, RangeResult, RangeTask, compare_range
from waltzctl.engine.compare.states import replicas_of
from waltzctl.engine.errors import InvalidRequestError, MismatchError
from waltzctl.engine.findings import Code, Finding, Severity, Where, counts_beyond_end, loss_finding
from waltzctl.engine.inspect.partition_runs import PartitionRun
from waltzctl.engine.inspect.unread_losses import losses_behind
from waltzctl.engine.log.assess import IndexExcess, Stretch, joints
from waltzctl.engine.quorum.vote import ABSENT, DAMAGED, Ballot, LastSession, Run, Verdict, decide
from waltzctl.engine.task_executor import TaskExecutor

Compared = Finding | PartitionComparison | CompareSummary

_MOST_DIFFERENCES = 1000
"""Most differences of a partition whose records are described."""


def compare(paths: Sequence[PurePath], options: CompareOptions, executor: TaskExecutor) -> Iterator[Compared]:
    """Yield findings and one `PartitionComparison` per partition, in order, and a `CompareSummary` as the last item.

    `paths`: storage directories, one for each node.  Nothing is written or locked.

    Raises InvalidRequestError, NotWaltzError, MismatchError and DiskReadError before the first item; later what the executor
    raises.
    """
    directories = open_directories(paths, options.partitions)
    found = directories.cluster_key, directories.num_partitions
    if options.cluster is not None and options.cluster != found:
        raise MismatchError(
            f"{paths[0]} and the others: cluster key {found[0]}, {found[1]} partitions; the metadata says {options.cluster[0]},"
            f" {options.cluster[1]} partitions",
            advice="name the metadata of the cluster that these directories belong to",
        )
    return _Comparison(directories, options, executor).run()


@dataclass(slots=True)
class _PartitionResults:
    """The accumulated results of the ranges of one partition.

    =============  =================================================================================================
    `members`      the replicas; "replica number" below is the place in this tuple
    `runs`         ranges of ids under which the replicas' versions do not change
    `differences`  transactions with different records, at most _MOST_DIFFERENCES
    `open_ends`    numbers of the replicas that may have held more than was found at their end
    `stretches`    extent of each segment that was read, by replica number and first id
    `rivals`       (replica number, id): the replica has two different records of this id
    `contested`    numbers of the replicas with rivals where versions differ; filled by `all_runs`
    `complete`     False when differences were merged because there were too many (`RangeResult.coarse`)
    =============  =================================================================================================
    """

    members: tuple[Member, ...]
    runs: list[Run] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    open_ends: set[int] = field(default_factory=set)
    stretches: dict[tuple[int, int], Stretch] = field(default_factory=dict)
    rivals: set[tuple[int, int]] = field(default_factory=set)
    contested: set[int] = field(default_factory=set)
    complete: bool = True

    def add(self, result: RangeResult) -> None:
        """Add the result of the next range."""
        for run in result.runs:
            if self.runs and self.runs[-1].versions == run.versions:
                self.runs[-1] = Run(self.runs[-1].first, run.stop, run.versions)
            else:
                self.runs.append(run)
        for one in result.differences[: _MOST_DIFFERENCES - len(self.differences)]:
            self.differences.append(one if not self.differences else _without_data(one))
        self.open_ends |= set(result.open_ends)
        self.rivals |= set(result.rivals)
        for number, stretch in result.stretches:  # of a segment in two ranges, one range read the end: keep that
            if stretch.known or (number, stretch.segment) not in self.stretches:
                self.stretches[number, stretch.segment] = stretch
        self.complete = self.complete and not result.coarse

    def joined(self, number: int, where: Where) -> Iterator[Finding]:
        """Findings where the segments of replica `number` do not join."""
        own = (one for (replica, _), one in self.stretches.items() if replica == number)
        for one in joints(sorted(own, key=lambda one: one.begins), 0):
            if not isinstance(one, IndexExcess):
                yield loss_finding(one, where)

    def ballots(self, last: LastSession | None = None) -> tuple[Ballot, ...]:
        """The replicas' ballots, with what their records say about their ends.

        `last`: the partition's last session as the cluster's metadata has it, None when unknown.
        """
        found: list[Ballot] = []
        began = any(one.ballot.session_id is not None and one.ballot.session_id >= 0 for one in self.members)
        lost = last is not None and last.have_lost(one.ballot for one in self.members)
        for number, member in enumerate(self.members):
            ballot, end = member.ballot, self.end_of(number)
            missing = member.open_end or (member.held_to is not None and end <= member.held_to)
            blank = (lost and last.is_older(ballot)) if last else (began and end == 0 and ballot.session_id == -1)
            blank = blank and ballot.present  # else it counts as absent already
            found.append(replace(ballot, open_end=missing or number in self.open_ends, blank=blank))
        return tuple(found)

    def all_runs(self) -> tuple[Run, ...]:
        """All runs, in which ids that are missing although a replica is proven to have held them count as damaged."""
        marks = [one.held_to if one.replica is not None else None for one in self.members]
        end = self.runs[-1].stop if self.runs else 0
        highest = max([end, *(mark + 1 for mark in marks if mark is not None)])
        runs = [*self.runs]
        if highest > end:
            runs.append(Run(end, highest, (ABSENT,) * len(self.members)))
        marks_of_all = (one.ballot.low_water_mark for one in self.members)
        borders = sorted({mark + 1 for mark in (*marks, *marks_of_all) if mark is not None})
        rivals = sorted((one, number) for number, one in self.rivals)
        runs = [piece for run in runs for piece in self._contested_in(run, rivals)]
        return tuple(_lost_as_damaged(piece, marks) for run in runs for piece in run.cut(borders))

    def _contested_in(self, run: Run, rivals: Sequence[tuple[int, int]]) -> Iterator[Run]:
        """Cut a run at rivals: where versions differ, a replica with two records of an id counts as damaged for this id.

        `rivals`: (id, replica number), sorted.
        """
        low, high = (bisect_left(rivals, (end, 0)) for end in (run.first, run.stop))
        here = set(rivals[low:high]) if run.differs else set()
        self.contested |= {number for _, number in here}
        for piece in run.cut(sorted({one + more for one, _ in here for more in (0, 1)})):
            versions = (
                DAMAGED if (piece.first, number) in here else version for number, version in enumerate(piece.versions)
            )
            yield replace(piece, versions=tuple(versions)) if here else piece

    def end_of(self, number: int) -> int:
        """The id after the last one that a replica has in any form, damaged ones included."""
        return max((run.stop for run in self.runs if run.versions[number] != ABSENT), default=0)


class _Comparison:
    def __init__(self, directories: Directories, options: CompareOptions, executor: TaskExecutor) -> None:
        self._directories = directories
        self._options = options
        self._executor = executor
        self._began = time.monotonic()
        wanted = range(directories.num_partitions) if options.partitions is None else sorted(options.partitions)
        members = {number: directories.members(number) for number in wanted}
        self._members = {number: found for number, found in members.items() if found}
        self._unassigned = tuple(number for number, found in members.items() if not found)
        last = options.last_replicas
        if last is not None and (more := [len(found) for found in members.values() if len(found) > last]):
            raise InvalidRequestError(
                f"{last} replicas: {max(more)} of the directories that were given are replicas of one partition"
            )
        for number, found in self._members.items():
            named = options.last_sessions.get(number)
            if named is not None and len(found) > named.replicas:
                raise InvalidRequestError(
                    f"partition {number}: the metadata names {named.replicas} replicas of its last session,"
                    f" {len(found)} of the directories have it",
                    advice="leave out those that were added since; a log server fills them",
                )
        self._seen: set[tuple[str, str, int | None, int | None]] = set()
        self._findings = self._read_errors = self._records = self._bytes = 0
        self._complete = True
        self._verdicts: Counter[Verdict] = Counter()

    def run(self) -> Iterator[Compared]:
        """Yield the findings, the comparisons and the summary."""
        yield from self._counted(self._directories.findings(self._members))
        runs = self._directories.runs(self._members)
        of_view = dict(zip((view.path for view in self._directories.views), runs, strict=True))
        for number, members in self._members.items():
            for member in members:
                if (run := of_view[member.path].get(number)) is not None:
                    yield from self._counted(run.begin())
        tasks: list[RangeTask] = []
        weights: list[int] = []
        for number, members in self._members.items():
            for task, weight in ranges(number, members):
                tasks.append(task)
                weights.append(weight)
        current: _PartitionResults | None = None
        results = self._executor.map(compare_range, tasks, weights=weights, what="compare")
        for task, result in zip(tasks, results, strict=True):
            if current is None:
                current = _PartitionResults(self._members[task.partition])
            current.add(result)
            self._records += result.records
            self._bytes += result.bytes
            beside = [of_view[member.path].get(task.partition) for member in current.members]
            of_place = {run.context.path: run for run in beside if run is not None}
            yield from self._unrepeated([_without_held(one, of_place) for one in result.findings])
            if task.high is None:
                for number, member in enumerate(current.members):
                    if (run := of_view[member.path].get(task.partition)) is not None:
                        yield from self._counted(run.stray_segments_by_ends())
                        yield from self._counted(current.joined(number, run.context.where))
                        yield from self._counted(losses_behind(run, (None, None)))
                yield self._conclude(task.partition, current)
                current = None
        yield self._summary()

    def _unrepeated(self, findings: Iterator[Finding] | Sequence[Finding]) -> Iterator[Finding]:
        """Count and yield findings that are new: two neighbouring ranges may both report the damage between them."""
        for one in findings:
            key = one.code.value, str(one.path), one.partition, one.offset
            if key in self._seen:
                continue
            self._seen.add(key)
            yield from self._counted((one,))

    def _counted(self, findings: Iterable[Finding]) -> Iterator[Finding]:
        """Count and yield findings that cannot repeat."""
        for one in findings:
            self._findings += one.severity is not Severity.NOTE
            self._read_errors += one.code is Code.READ_ERROR
            yield one

    def _conclude(self, partition: int, gathered: _PartitionResults) -> PartitionComparison:
        last = self._options.last_sessions.get(partition)
        ballots = gathered.ballots(last)
        runs = gathered.all_runs()
        replicas = self._options.last_replicas or len(ballots) if last is None else last.replicas
        decision = decide(runs, ballots, replicas, last)
        self._verdicts[decision.verdict] += 1
        self._complete = self._complete and gathered.complete
        members = gathered.members
        compared = replicas_of(runs, decision, ballots, [one.path for one in members], gathered.contested)
        return PartitionComparison(
            partition,
            decision,
            next((run.first for run in runs if run.differs), None),
            tuple(replace(own, files=member.files) for own, member in zip(compared, members, strict=True)),
            runs,
            tuple(gathered.differences),
            gathered.complete,
        )

    def _summary(self) -> CompareSummary:
        status = max((one for one in ORDER if self._verdicts[one]), key=ORDER.index, default=Verdict.EQUAL)
        name = STATUS_NAMES[status]
        if status is Verdict.EQUAL and self._findings:  # the records are equal, but other files are damaged
            name = "repairable"
        if self._read_errors and name != "damaged":  # not everything was compared
            name = "io-error"
        views, held = self._directories.views, self._directories.held
        return CompareSummary(
            status,
            name,
            {one: self._verdicts[one] for one in ORDER},
            tuple(view.path for view in views),
            self._records,
            self._bytes,
            self._findings,
            self._unassigned,
            tuple(view.path for view, one in zip(views, held, strict=True) if one),
            time.monotonic() - self._began,
            self._complete,
        )


def _without_held(finding: Finding, runs: Mapping[PurePath, PartitionRun]) -> Finding:
    """A finding of a segment without the ids that other segments hold; `runs`: those of the replicas, by directory."""
    run = runs.get(PurePath(finding.path).parent) if counts_beyond_end(finding) else None
    return finding if run is None else run.without_held(finding)


def _lost_as_damaged(run: Run, marks: Sequence[int | None]) -> Run:
    lost = [
        version == ABSENT and mark is not None and run.first <= mark
        for version, mark in zip(run.versions, marks, strict=True)
    ]
    versions = (DAMAGED if gone else version for gone, version in zip(lost, run.versions, strict=True))
    return replace(run, versions=tuple(versions)) if any(lost) else run


def _without_data(difference: Difference) -> Difference:
    return Difference(difference.transaction_id, tuple(replace(side, data=None) for side in difference.sides))
