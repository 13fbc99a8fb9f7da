"""The inspection of one partition: its directory, its segments, and how they join."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import PurePath

from waltzctl.engine.durable.file_status import moved_while
from waltzctl.engine.errors import DiskReadError, NotWaltzError
from waltzctl.engine.findings import Code, Finding
from waltzctl.engine.findings.obstacles import Obstacles
from waltzctl.engine.inspect.live import Watch, states
from waltzctl.engine.inspect.partition_checks import (
    PartitionContext,
    held_ids,
    join_findings,
    loss_findings,
    orphan_finding,
    placement_findings,
    special_findings,
    stray_files,
)
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.segment_checks import check_segment
from waltzctl.engine.inspect.segment_job import SegmentJob, SegmentReport
from waltzctl.engine.inspect.segment_order import SegmentOrder
from waltzctl.engine.inspect.segment_reach import SegmentReach
from waltzctl.engine.inspect.stray_checks import stray_findings
from waltzctl.engine.inspect.targets import PartitionScope, Scope, ScopeSurroundings
from waltzctl.engine.inspect.verification import ENDS_ONLY
from waltzctl.engine.log import places
from waltzctl.engine.log.assess import counted_elsewhere, end
from waltzctl.engine.log.evidence import Evidence, evidence
from waltzctl.engine.log.view import PartitionView, SegmentView, read_control, read_infos, view_partition
from waltzctl.engine.losses import BelowMark, BelowProof, Ids, covered
from waltzctl.engine.storage.assignment import assigned_here, is_retired
from waltzctl.engine.storage.orphans import stand_elsewhere
from waltzctl.formats.control import CONTROL_FILE_NAME, ControlFile, struct_in_force

ATTEMPTS = 3
"""How often a directory is read again that others change meanwhile."""


class PartitionRun:
    """The inspection of one partition.  Call `begin`, then `add` with the report of each of `jobs` in order, then `finish`."""

    def __init__(
        self,
        scope: Scope,
        partition: PartitionScope,
        context: PartitionContext,
        around: ScopeSurroundings,
        limits: ReadLimits,
        obstacles: Obstacles,
    ) -> None:
        """`obstacles`: those of the storage directory; what is found of the partition is noted there as well."""
        self._scope = scope
        self._partition = partition
        self._context = context
        self._around = around
        self._limits = limits
        self._reports: list[SegmentReport] = []
        self._seen: set[tuple[Code, PurePath | str, int | None]] = set()
        self.obstacles = obstacles
        self._proven: tuple[PartitionView | None, Evidence] | None = None
        self._unlisted: DiskReadError | None = None  # why the directory could not be listed when it was tried last
        self._gone = False  # whether there was none
        self._told_missing = False
        self._order: SegmentOrder | None = None
        self._reach: SegmentReach | None = None
        self._template = SegmentJob(
            partition.path,
            0,
            partition=partition.number,
            storage=context.storage,
            cluster_key=around.cluster_key,
            local_low_water_mark=context.local_low_water_mark,
            held=around.held,
            durable_to=self.proven().required - 1,
        )
        self.jobs: tuple[SegmentJob, ...] = ()
        if not self.beyond:
            self.jobs = tuple(scope.segment_jobs(partition, self._template))

    @property
    def _count(self) -> int | None:
        """The number of partitions in the control file; None where it is not known."""
        control = self._around.control
        return None if control is None or not control.size_fits else control.header.num_partitions

    @property
    def beyond(self) -> bool:
        """Whether the cluster has no partition of this number: no node opens the directory, and only a note is made of it."""
        number = self._context.number
        return self._scope.whole and self._count is not None and number is not None and number >= self._count

    @property
    def context(self) -> PartitionContext:
        """What the surroundings of the partition say about it: control file, assignment, ledger."""
        return self._context

    @property
    def view(self) -> PartitionView | None:
        """The directory as it was listed; None where there is none."""
        return self._partition.view

    @property
    def order(self) -> SegmentOrder:
        """Order and ids of `jobs`; made once for each listing of the directory."""
        if self._order is None or self._order.jobs is not self.jobs or self._order.view is not self.view:
            self._order = SegmentOrder(self._partition.path, self.view, self.jobs)
        return self._order

    @property
    def _latest(self) -> int:
        """The id in the name of the last segment in `jobs`; -1 without any."""
        return max((job.first for job in self.jobs), default=-1)

    @property
    def reports(self) -> tuple[SegmentReport, ...]:
        """The reports added so far."""
        return tuple(self._reports)

    @property
    def present(self) -> bool:
        """Whether the partition has a directory."""
        return self._partition.view is not None

    @property
    def whole(self) -> bool:
        """Whether the whole directory is inspected, and not only some of its files."""
        return self._partition.whole

    def begin(self) -> Iterator[Finding]:
        """The findings about the directory itself."""
        gone = self.view is None and self._partition.error is None
        if self.view.special if self.view is not None else gone and places.still_named(self._partition.path):
            self.obstacles.special(self._context.number)
        yield from self.obstacles.together(self._of_directory())

    def _of_directory(self) -> Iterator[Finding]:
        if self._partition.error is not None:
            error = self._partition.error
            yield self._context.finding(Code.READ_ERROR, self._partition.path, str(error))
        elif self._partition.whole:
            yield from placement_findings(self._context, self._partition.view, self._count)
        if self._partition.view is not None:
            found = special_findings(self._context, self._partition.view)
            yield from (one for one in found if self._partition.names(PurePath(one.path)))

    def add(self, report: SegmentReport) -> Iterator[Finding]:
        """Add the report of the next job; returns its findings."""
        self._reports.append(report)
        for finding in self.obstacles.together(map(self.without_held, report.findings)):
            self._seen.add((finding.code, finding.path, finding.offset))
            yield finding
        if not self._partition.whole and report.index_excess is not None:
            yield self.obstacles.behind(report.index_excess)

    def without_held(self, finding: Finding) -> Finding:
        """A finding of a segment of this partition without the ids that other segments hold (`SegmentReach.without_held`)."""
        if not self._partition.whole:
            return finding
        self._reach = self._reach or SegmentReach(self._template, self._limits)
        return self._reach.without_held(finding)

    def finish(self, check_again: Callable[[SegmentJob], SegmentReport]) -> Iterator[Finding]:
        """The findings about the partition as a whole: gaps, overlaps, losses, orphaned indexes, strays.

        If the directory changed since its segments were checked, they are checked again with `check_again`.  Raises CutShort.
        """
        yield from map(self.obstacles.behind, self._of_whole(check_again))

    def _of_whole(self, check_again: Callable[[SegmentJob], SegmentReport]) -> Iterator[Finding]:
        yield from self.moved()
        view = self._partition.view
        if (
            self.beyond
            or view is None
            or len(self._reports) < len(self.jobs)
            or not all(one.finished for one in self._reports)
        ):
            return
        yield from self.orphans(held_ids(self._reports), self.ids_counted_elsewhere(self._reports))
        if not self._partition.whole:
            return
        reports = self._reports
        found, special = list(join_findings(self._context, reports, self.proven())), set(view.special)
        for _ in range(ATTEMPTS):
            # a segment that is gone has no findings: what is there in its place has to be looked at
            if not (found or any(one.gone for one in reports)) or self.unchanged(view, reports):
                break
            again = self._view_again()
            if again is None:
                yield from self.moved()
                return
            # a link whose disk was unmounted meanwhile is no file that was removed
            fresh = tuple(path for path in again.special if path not in special)
            yield from special_findings(self._context, replace(again, special=fresh))
            special.update(fresh)
            self._partition.view = view = _up_to(again, self._latest)
            reports = [check_again(job) for job in self._scope.segment_jobs(self._partition, self._template)]
            self._reach = None
            for report in reports:
                unseen = (one for one in report.findings if (one.code, one.path, one.offset) not in self._seen)
                yield from map(self.without_held, unseen)
                self._seen |= {(one.code, one.path, one.offset) for one in report.findings}
            found = list(join_findings(self._context, reports, self.proven()))
        else:
            found = []
        if found:
            context, proven = self.promised()
            found = list(join_findings(context, reports, proven))
        yield from found
        yield from self.losses(held_ids(reports), [*self.ids_counted_elsewhere(reports), *self.listed_alone()])
        yield from self.stray_segments(check_again)
        yield from self.strays()

    def proven(self) -> Evidence:
        """The evidence in the files and the mark; read once for each listing of the directory."""
        view = self._partition.view
        if self._proven is None or self._proven[0] is not view:
            self._proven = view, evidence(view, self._context.local_low_water_mark)
        return self._proven[1]

    def promised(self) -> tuple[PartitionContext, Evidence]:
        """Context and evidence, with the local low-water mark limited to the segments that were checked.

        The directory is listed before the control file is read.  If a segment was begun in between, the mark may be inside of
        that segment; the checked segments must then reach up to its first transaction only.

        The control file is read before the segments.  A repair that gave up transactions meanwhile has lowered the mark, so it is
        read once more.
        """
        context, again = self._context, self._view_again()
        latest = self._latest
        begun = () if again is None else (one.first_transaction_id for one in again.data_segments)
        first = min((one for one in begun if one > latest), default=None)
        mark = context.local_low_water_mark
        if mark is not None:
            bounds = (mark, None if first is None else first - 1, self._mark_now())
            context = replace(context, local_low_water_mark=min(one for one in bounds if one is not None))
        return context, evidence(self._partition.view, context.local_low_water_mark)

    def _mark_now(self) -> int | None:
        """The local low-water mark in the control file as it is now; None where it is not known."""
        storage, number = self._context.storage, self._context.number
        if storage is None or number is None:
            return None
        try:
            info = read_infos(storage / CONTROL_FILE_NAME, (number,)).get(number)
        except DiskReadError:
            return None
        current = None if info is None else info.current_struct
        return None if current is None else current.local_low_water_mark

    def moved(self) -> Iterator[Finding]:
        """The finding that the root of the scope was moved or replaced, or that the partition cannot be listed any more.

        What is not found any more was not looked at.  Where the partition's directory alone is gone, and the partition was not
        taken away from the node meanwhile, it is missing.
        """
        gone, self._gone = self._gone, False
        if self._unlisted is not None:
            yield self._context.finding(Code.READ_ERROR, self._partition.path, str(self._unlisted))
            self._unlisted = None
        root = self._scope.root
        if root is not None and self._scope.moved():
            said = f"the directory {moved_while('read')}: not everything was examined"
            yield self._context.finding(Code.READ_ERROR, root, said)
        elif gone and self._scope.place is not None:  # else it is another directory that would be asked
            yield from self._missing()

    def _missing(self) -> Iterator[Finding]:
        """The finding that the partition's directory is missing by what is assigned now; none if a node took it away, or back."""
        storage, number = self._context.storage, self._context.number
        # in this order: what a node deletes is no longer among the retired ones only behind the change of the control file
        asked = self._partition.whole and not self._told_missing
        if storage is None or number is None or not asked or is_retired(storage, number):
            return
        control: ControlFile | None = None
        why = f"it is gone, and so is {CONTROL_FILE_NAME}: nobody knows whether a node took it away"
        try:
            control = read_control(storage / CONTROL_FILE_NAME)
        except DiskReadError as error:
            why = f"it is gone, and nobody knows whether a node took it away: {error}"
        if control is None and self._context.assigned:
            self._told_missing = True
            yield self._context.finding(Code.READ_ERROR, self._partition.path, why)
        assigned = assigned_here(storage, control, number, directory=False)
        if control is None or not assigned or places.is_directory(self._partition.path):
            return
        self._told_missing = True
        current = struct_in_force(control, number)
        mark, session = (None, None) if current is None else (current.local_low_water_mark, current.session_id)
        context = replace(self._context, assigned=assigned, local_low_water_mark=mark, session_id=session)
        yield from placement_findings(context, None, self._count)

    def losses(self, held: Sequence[Ids], elsewhere: Sequence[Ids] = ()) -> Iterator[Finding]:
        """Accepted losses of which transactions are still missing; none if the partition is unassigned and has no directory.

        `held`: the ids that are here; `elsewhere`: those that another finding counts as missing.
        """
        if self._context.assigned is not False or self.present:
            yield from loss_findings(self._context, held, elsewhere)

    def ids_counted_elsewhere(self, reports: Sequence[SegmentReport]) -> list[Ids]:
        """Ids that other findings count if they are missing: gaps in front of a segment, and the loss at the log's end.

        `reports`: those of the last segments, as for `ends`.
        """
        if not self._partition.whole:
            return []
        ordered = sorted(reports, key=lambda report: report.begins)
        return self.ids_counted_with(ordered, tuple(self.ends(ordered, self._context, self.proven())))

    def ids_counted_with(
        self, reports: Sequence[SegmentReport], missing: Iterable[BelowMark | BelowProof]
    ) -> list[Ids]:
        """As `ids_counted_elsewhere`, where the loss at the log's end (`missing`) is known."""
        ordered = sorted((one.stretch for one in reports), key=lambda one: one.begins)
        return counted_elsewhere(ordered, self.jobs[-1].first if self.jobs else None, missing)

    def listed_alone(self) -> list[Ids]:
        """The ids of the entries of indexes without a data file."""
        view = self._partition.view
        orphans = [] if view is None else [one for one in view.segments if one.data is None]
        return [(one.first_transaction_id, one.first_transaction_id + one.entries) for one in orphans if one.entries]

    def unchanged(self, view: PartitionView, reports: Sequence[SegmentReport]) -> bool:
        """Whether the segments are still those that were checked, and every file that is evidence is still there.

        Segments that were begun since are ignored, and so are appends to the last segment, unless a file with a later name was
        there already: its name proves where the last segment ends, so that segment must be unchanged.
        """
        again = self._view_again()
        if again is None or any(report.gone for report in reports):
            return False
        latest = self._latest
        names = [segment.first_transaction_id for segment in _up_to(again, latest).data_segments]
        if names != [segment.first_transaction_id for segment in view.data_segments]:
            return False
        later = {one.first_transaction_id for one in view.segments if one.first_transaction_id > latest}
        if not later <= {one.first_transaction_id for one in again.segments}:
            return False
        return all(
            report.states == (None, None) or states(report.job.data_path, report.job.index_path) == report.states
            for report in reports
            if later or not report.job.last
        )

    def _view_again(self) -> PartitionView | None:
        self._unlisted, self._gone = None, False
        try:
            return view_partition(self._partition.path, self._partition.number)
        except DiskReadError as error:
            self._unlisted = error
        except NotWaltzError:
            self._gone = True
        return None

    def orphans(self, held: Sequence[Ids], elsewhere: Sequence[Ids] = ()) -> Iterator[Finding]:
        """Findings about indexes without a data file.  Raises CutShort.

        `held`: the ids that are in other segments; `elsewhere`: ids that another finding counts as missing.
        """
        view = self._partition.view
        if view is None or self.beyond:
            return
        watches = [
            (segment, self._watch(segment.index_path, segment.data_path, directory=self._partition.path))
            for segment in view.segments
            if segment.data is None and segment.index is not None and self._partition.names(segment.index.path)
            if segment.data_path not in view.special  # the special file in the place of the data file is reported
        ]  # all of them at once: where each has to be watched for a while, that is the same while
        held, elsewhere = covered(held), covered(elsewhere)
        for segment, watch in watches:
            settled = self._settle_orphan(segment, watch)
            if settled is not None:
                alike = partial(stand_elsewhere, settled, view.data_segments)
                yield orphan_finding(self._context, settled, held, alike, elsewhere)

    def _watch(self, *paths: PurePath, directory: PurePath | None = None) -> Watch:
        return Watch(paths, self._around.held, self._limits, directory)

    @staticmethod
    def _settle_orphan(segment: SegmentView, watch: Watch) -> SegmentView | None:
        """An index without a data file, once nobody is writing it; None if its data file was made, or the index was removed."""
        while True:
            watch.changed()
            index, data = watch.before
            if index is None or data is not None:
                return None
            if watch.quiet():
                return SegmentView(segment.partition, segment.first_transaction_id, None, index)
            if not watch.wait():
                return None

    def stray_segments(self, check: Callable[[SegmentJob], SegmentReport]) -> Iterator[Finding]:
        """Findings about strays; `check` as for `finish`.  Raises CutShort."""
        view = self._partition.view
        if view is None or not self._partition.whole:
            return
        watches = [(one, self._watch(one.data.path)) for one in view.strays]
        strays = [one for one, watch in watches if self._settled(one.data.path, watch)]

        def known() -> Sequence[SegmentReport]:
            if len(self._reports) < len(self.jobs):  # a dump does not check segments, so there are no reports yet
                self._reports = [check(job) for job in self.jobs]
            return self._reports

        yield from stray_findings(self._context, strays, self._template, known, check)

    def stray_segments_by_ends(self) -> Iterator[Finding]:
        """As `stray_segments`, for callers that do not check segments: both ends of each file are read.  Raises CutShort."""
        yield from self.stray_segments(self.by_ends)

    @staticmethod
    def ends(
        reports: Sequence[SegmentReport], context: PartitionContext, proven: Evidence
    ) -> Iterator[BelowMark | BelowProof]:
        """What is missing at the end of the log; `reports` end with that of the last segment."""
        return end([one.stretch for one in reports], proven, context.local_low_water_mark)

    def by_ends(self, job: SegmentJob) -> SegmentReport:
        """The report on a segment of which only the first and the last records are read."""
        return check_segment(job, ENDS_ONLY, self._limits)

    def look_again(self) -> bool:
        """List the directory again, without segments that were begun since; False where it is gone, or cannot be listed."""
        again = self._view_again()
        if again is None:
            return False
        self._partition.view = _up_to(again, self._latest)
        self.jobs = tuple(self._scope.segment_jobs(self._partition, self._template))
        return True

    def strays(self) -> Iterator[Finding]:
        """Findings about temporary and unknown files, without those that a process is writing."""
        view = self._partition.view
        if view is not None:
            temporary, unknown = self._still_there(view.temporary), self._still_there(view.unknown)
            yield from stray_files(self._context, temporary, unknown)

    @staticmethod
    def _settled(path: PurePath, watch: Watch) -> bool:
        """Wait until nobody is writing a stray; returns whether it is still there then.  Raises CutShort."""
        while watch.changed() or not watch.quiet():
            if not watch.wait():
                return False
        return places.still_named(path)

    def _still_there(self, paths: Sequence[PurePath]) -> list[PurePath]:
        """Those of `paths` that still exist and that nobody is writing."""
        return [path for path in paths if places.still_named(path) and self._watch(path).quiet_now()]


def _up_to(view: PartitionView, latest: int) -> PartitionView:
    """A view without the segments after the id `latest`."""
    return replace(view, segments=tuple(one for one in view.segments if one.first_transaction_id <= latest))


def runs(
    scope: Scope, around: ScopeSurroundings, limits: ReadLimits, partitions: Collection[int] | None
) -> Iterator[PartitionRun]:
    """Every partition of a scope, by number: those with a directory, and those that are assigned without one.

    All of them have the same `obstacles`: what keeps the storage directory from being repaired, and what each of them adds.
    """
    obstacles = Obstacles()
    for finding in around.findings:
        obstacles.note(finding)
    present = {one.number: one for one in scope.partitions.values() if one.number is not None}
    unnumbered = [one for one in scope.partitions.values() if one.number is None]
    control, storage = around.control, scope.storage
    expected: set[int] = set()
    if scope.whole and control is not None:
        expected = {
            info.partition
            for info in control.partitions
            if (partitions is None or info.partition in partitions)
            and info.partition not in present
            and assigned_here(storage, control, info.partition, directory=False)
        }
    for number in sorted(expected | set(present)):
        part = present.get(number)
        if part is None:
            assert storage is not None
            part = PartitionScope(storage / str(number), number, whole=True)
        yield PartitionRun(scope, part, _context(scope, part, around), around, limits, obstacles)
    for part in unnumbered:
        yield PartitionRun(scope, part, _context(scope, part, around), around, limits, obstacles)


def _context(scope: Scope, part: PartitionScope, around: ScopeSurroundings) -> PartitionContext:
    number, control, here = part.number, around.control, part.view is not None or part.error is not None
    stray = control is not None and control.size_fits and number is not None and number >= len(control.partitions)
    return PartitionContext(
        None if stray else scope.storage,
        number,
        part.path,
        around.local_low_water_mark(number),
        None if number is None else assigned_here(scope.storage, around.control, number, directory=here),
        around.session_id(number),
        around.ledger.of_partition(number),
    )
