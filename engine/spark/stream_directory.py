"""The stream of a storage directory, whether a node writes to it or not.

=====================================  ====================================================================================
in a segment                           in the stream
=====================================  ====================================================================================
an intact record                       a row
a torn tail                            nothing: the record is being written
damage before an intact record         one row with its finding, in the batch with the first id that it cost
lost transactions after the last       one row with their finding, where evidence (`stream_losses`) proves that they were
record                                 written
a last data file that is none (a dead  one row with its finding, and nothing of what it may hold counts as lost: it is read
link, a FIFO)                          when the file is there
a file that cannot be examined (EIO)   the query stops
=====================================  ====================================================================================
"""

from __future__ import annotations

import errno
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeVar

from waltzctl.engine.durable.regular import NotRegularError
from waltzctl.engine.errors import DiskReadError, NotWaltzError, SpecialFileError, StalePlanError
from waltzctl.engine.findings import Finding, Where
from waltzctl.engine.findings.directory_contents import special_finding
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.segment_checks import FilesChangedError
from waltzctl.engine.inspect.segment_job import SegmentJob
from waltzctl.engine.inspect.segment_reach import SegmentReach
from waltzctl.engine.log import places
from waltzctl.engine.log.partition_directories import partition_number
from waltzctl.engine.log.view import (
    FileState,
    PartitionView,
    check_partitions,
    read_control,
    view_partition,
    view_storage,
)
from waltzctl.engine.scan.known_records import KnownRecords
from waltzctl.engine.spark.data_loss import Losses
from waltzctl.engine.spark.offsets import BEGINNING, Anchor, behind_loss, history_changed
from waltzctl.engine.spark.read_options import storage_options
from waltzctl.engine.spark.record_arrays import Constants
from waltzctl.engine.spark.stream_losses import LostRange, Promised
from waltzctl.engine.spark.stream_places import PartitionPlaces, SegmentRange
from waltzctl.engine.spark.stream_ranges import HeldInFront, read_range
from waltzctl.engine.spark.stream_reader import LOW_WATER_MARK, Standing, WaltzStreamReader, path_of, stream_options
from waltzctl.engine.spark.stream_rows import RowMaker, ScannedRows
from waltzctl.engine.storage.assignment import assigned_here
from waltzctl.formats.control import CONTROL_FILE_NAME, ControlFile, struct_in_force
from waltzctl.formats.segment import HEADER_SIZE

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

T = TypeVar("T")
_SETTLED = 2.0
"""Seconds after which another change of a directory changes its modification time, on every file system."""
_TRIES = 8
"""Attempts to read a partition while its files are truncated or removed."""


def directory_stream(options: Mapping[str, str], schema: StructType) -> WaltzStreamReader:
    """The stream of a storage directory; `schema` says which columns.  Raises InvalidRequestError for the options."""
    path = places.place(path_of(options), storage_options(options))
    return WaltzStreamReader(DirectoryHistory(path, RowMaker(schema)), stream_options(options))


@dataclass(frozen=True, slots=True)
class _Listed:
    """The listing of a partition's files."""

    view: PartitionView
    modified_ns: int | None
    """The directory's modification time, ns since 1970."""
    since: float
    """When it was found first, by the monotonic clock."""
    settled: bool
    """Whether that was more than `_SETTLED` before this listing: then an unchanged time means an unchanged directory.

    Not by the time itself: where a file server's clock is behind, or this machine's was set forward, it is old at once.
    """


def _with_last_segment_as_now(view: PartitionView) -> PartitionView | None:
    """None where one of its files is gone, which only a new listing explains: a link's target may go and leave the name."""
    if not view.segments:
        return view
    last = view.segments[-1]
    now = replace(last, data=FileState.of(last.data_path), index=FileState.of(last.index_path))
    if (last.data is not None and now.data is None) or (last.index is not None and now.index is None):
        return None
    return replace(view, segments=(*view.segments[:-1], now))


class DirectoryHistory:
    """See `engine.spark.stream_reader.History`."""

    def __init__(self, path: PurePath, rows: RowMaker) -> None:
        self._path = path
        self._rows = rows
        self._control: ControlFile | None = None
        self._listed: dict[int, _Listed] = {}
        self._places: dict[int, PartitionPlaces] = {}
        self._unlisted: dict[int, DiskReadError] = {}
        """Why partitions cannot be listed; raised only where one of them is read: a query may leave it out."""
        self._seen: dict[int, tuple[tuple[FileState | None, ...], Anchor]] = {}
        """The last record of each partition, and the states of the last segment's files when it was found."""
        self._reach: SegmentReach | None = None
        """How far the segments go of the partition that is being read, once a range has asked."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_reach": None}

    @property
    def place(self) -> str:
        """The directory."""
        return str(self._path)

    def refresh(self) -> uuid.UUID | None:
        """See `History.refresh`.  Raises NotWaltzError; DiskReadError for the directory, not for partitions (`_check_listed`)."""
        try:
            named = (partition_number(name) for name in places.names(self._path))
            found = [number for number in named if number is not None]
        except OSError as error:
            raise NotWaltzError(f"{self._path}: no storage directory: {error.strerror}") from error
        self._control = read_control(self._path / CONTROL_FILE_NAME)
        if self._control is None:
            view_storage(self._path)  # raises NotWaltzError unless partitions lie there without a control file
        # a complete control file has the number of partitions; directories with higher numbers are not of this cluster
        if self._control is not None and self._control.size_fits:
            found = [number for number in found if number < self._control.header.num_partitions]
        listed: dict[int, _Listed] = {}
        self._unlisted = {}
        for number in sorted(found):
            try:
                one = self._list(number)
            except DiskReadError as error:
                self._unlisted[number] = error
            else:
                listed.update({} if one is None else {number: one})
        self._listed, before, self._reach = listed, self._places, None
        self._places = {number: PartitionPlaces(one.view, before.get(number)) for number, one in listed.items()}
        for info in () if self._control is None else self._control.partitions:
            number = info.partition
            if number in self._places or number in self._unlisted:
                continue
            if assigned_here(self._path, self._control, number, directory=False):
                self._places[number] = PartitionPlaces(PartitionView(number, self._path / str(number), ()))
        return None if self._control is None else self._control.header.cluster_key

    def _list(self, number: int) -> _Listed | None:
        """List a partition's files; None without a directory.

        Where the directory did not change since the last listing, only the last segment's files are looked at.
        """
        path = self._path / str(number)
        modified, before = places.directory_modified_ns(path), self._listed.get(number)
        if before is not None and before.settled and before.modified_ns == modified:
            found = _with_last_segment_as_now(before.view)
            if found is not None:
                return replace(before, view=found)
        now = time.monotonic()
        since = before.since if before is not None and before.modified_ns == modified else now
        settled = modified is not None and now - since > _SETTLED
        try:
            view = self._view(number)
        except NotWaltzError:
            return None
        # what is no file may become one without a change of the directory: a link's target
        return _Listed(view, modified, since, settled and not view.special)

    def _view(self, number: int) -> PartitionView:
        """List a partition's files.  Raises NotWaltzError; DiskReadError also for a data file that cannot be examined: what it
        holds is not missing, and would be left out ever after if it were told as lost.
        """
        view = view_partition(self._path / str(number), number)
        for path in view.special_data.values():
            places.file_numbers(path)
        return view

    def _check_listed(self, partitions: Collection[int] | None) -> None:
        """Raise DiskReadError where one of these partitions (None: of all) cannot be listed."""
        for number, error in self._unlisted.items():
            if partitions is None or number in partitions:
                raise error.with_traceback(None)

    def _retrying(self, partition: int, work: Callable[[PartitionPlaces], T]) -> T:
        """Call `work`; when a truncation has removed a file, list the partition and call it again, up to `_TRIES` times."""
        self._check_listed((partition,))
        for _ in range(_TRIES):
            try:
                return work(self._places[partition])
            except FilesChangedError:
                view = self._view(partition)
                self._listed[partition] = _Listed(view, None, time.monotonic(), settled=False)
                self._places[partition] = PartitionPlaces(view)
        raise StalePlanError(
            f"{self._path}, partition {partition}: its files change faster than they can be read",
            advice="is it being truncated again and again? start the query when that is over",
        )

    def latest(self, partitions: Collection[int] | None, known: Mapping[int, Anchor], up_to: str) -> dict[int, Anchor]:
        """See `History.latest`.  Raises InvalidRequestError for partitions that the directory cannot have."""
        if partitions is not None and self._control is not None and self._control.size_fits:
            check_partitions(self._control, partitions)
        self._check_listed(partitions)
        found = {}
        for number in self._places:
            if partitions is not None and number not in partitions:
                continue
            last, lost = self._end(number, known)
            special, before = self._special_end(number) is not None, known.get(number, BEGINNING)
            if special and before.lost:  # what was told as lost may be in that file, and is not given up
                lost = max(lost, before.transaction_id)
            if up_to == LOW_WATER_MARK:
                mark = self._mark(number)
                lost = min(lost, mark)
                special = special and mark > last.transaction_id
                # damage up to the mark becomes a row when the records after it are read
                if mark < last.transaction_id:
                    last = self.at_or_before(number, mark, known.get(number, BEGINNING))
                    lost = last.transaction_id
            found[number] = behind_loss(lost) if special or lost > last.transaction_id else last
        return found

    def _special_end(self, number: int) -> PurePath | None:
        """The last data file of a partition, as of the last listing, if it is none: what is behind the others is not known."""
        listed = self._listed.get(number)
        return None if listed is None else listed.view.special_end

    def _promised(self, number: int) -> Promised:
        """The evidence of a partition's transactions other than its records, as of the last listing."""
        listed, current = self._listed.get(number), struct_in_force(self._control, number)
        mark, session = (None, None) if current is None else (current.local_low_water_mark, current.session_id)
        nothing = PartitionView(number, self._path / str(number), ())
        return Promised(nothing if listed is None else listed.view, listed is not None, mark, session)

    def _end(self, number: int, known: Mapping[int, Anchor]) -> tuple[Anchor, int]:
        """The last record, and the last transaction that is proven to have been written (the record's id where none is lost).

        A loss is confirmed by a second listing, since a truncation may have come between the first one and the reading.
        """
        last = self._retrying(number, lambda places: self._last(places, known))
        if self._special_end(number) is not None:  # what is proven may be in that file
            return last, last.transaction_id
        if self._promised(number).proven.required - 1 <= last.transaction_id:
            return last, last.transaction_id
        self._control = read_control(self._path / CONTROL_FILE_NAME)
        self._listed.pop(number, None)
        if (listed := self._list(number)) is not None:
            self._listed[number] = listed
            self._places[number] = PartitionPlaces(listed.view)
        last = self._retrying(number, lambda places: self._last(places, known))
        if self._special_end(number) is not None:
            return last, last.transaction_id
        return last, max(last.transaction_id, self._promised(number).proven.required - 1)

    def _last(self, places: PartitionPlaces, known: Mapping[int, Anchor]) -> Anchor:
        number, states = places.partition, places.last_states
        before, anchor = self._seen.get(number, ((), BEGINNING))
        if not states or before != states:
            earlier = max(anchor, known.get(number, BEGINNING), key=lambda one: one.transaction_id)
            anchor = places.at_or_before(None, earlier) or BEGINNING
            self._seen[number] = states, anchor
        return anchor

    def _mark(self, partition: int) -> int:
        """The id up to which no recovery removes a transaction: the lower of the two low-water marks; -1: unknown."""
        current = struct_in_force(self._control, partition)
        return -1 if current is None else min(current.low_water_mark, current.local_low_water_mark)

    def standings(self, partitions: Collection[int] | None, known: Mapping[int, Anchor]) -> dict[int, Standing]:
        """See `History.standings`."""
        self._check_listed(partitions)
        found = {}
        for info in () if self._control is None else self._control.partitions:
            number, current = info.partition, info.current_struct
            if current is None or number not in self._places or (partitions is not None and number not in partitions):
                continue
            found[number] = Standing(current.session_id, self._end(number, known)[0].transaction_id)
        return found

    def at_or_before(self, partition: int, transaction_id: int, known: Anchor) -> Anchor:
        """See `History.at_or_before`."""
        if transaction_id < 0:
            return BEGINNING
        return self._retrying(partition, lambda places: places.at_or_before(transaction_id, known)) or BEGINNING

    def record_now(self, partition: int, anchor: Anchor) -> Anchor | None:
        """See `History.record_now`."""
        self._check_listed((partition,))
        if partition not in self._places:
            return None
        found = self._retrying(partition, lambda places: places.record_now(anchor))
        if found is None and (special := self._special_end(partition)) is not None:
            raise self._not_readable(special)
        return found

    @staticmethod
    def _not_readable(special: PurePath) -> SpecialFileError:
        said = f"it is {places.still_special(special) or 'gone'}, not a regular file"
        return SpecialFileError(special, None, NotRegularError(errno.EINVAL, said), doing="read")

    def parts(self, partition: int, start: Anchor, end: Anchor) -> Iterator[SegmentRange | LostRange]:
        """See `History.parts`.

        An `end` that names no record: the ids after the last record, up to this one, are lost; none of them: the data file behind
        it is none.
        """
        self._check_listed((partition,))
        if not end.identified:
            last = self.at_or_before(partition, end.transaction_id, start)
            if last.transaction_id > start.transaction_id:
                yield from self._ranges(partition, start, last)
            first = max(start.transaction_id, last.transaction_id) + 1
            where = Where(self._path, partition, self._path / str(partition))
            special = self._special_end(partition)
            if first <= end.transaction_id:
                if special is not None and end.lost:  # the batch may end at records that are in that file
                    raise self._not_readable(special)
                yield self._promised(partition).lost(first, end.transaction_id + 1, where)
            elif special is not None and (kind := places.still_special(special)) is not None:
                yield LostRange(replace(special_finding(special, kind, where), transaction_id=first))
        else:
            yield from self._ranges(partition, start, end)

    def _ranges(self, partition: int, start: Anchor, end: Anchor) -> Iterator[SegmentRange]:
        """The ranges between two anchors; `end` names a record."""
        control, current = self._control, struct_in_force(self._control, partition)
        template = SegmentRange(
            node=str(self._path),
            directory=self._path / str(partition),
            partition=partition,
            segment=0,
            first=0,
            last=-1,
            start=HEADER_SIZE,
            start_id=0,
            cluster_key=None if control is None else control.header.cluster_key,
            local_low_water_mark=None if current is None else current.local_low_water_mark,
            storage=self._path,
        )
        confirmed = self._places[partition]

        def planned(places: PartitionPlaces) -> list[SegmentRange]:
            if places is not confirmed and ((found := places.record_now(end)) is None or not found.is_record(end)):
                raise history_changed(
                    self.place, partition, end, found, None
                )  # gone since the batch's end was looked at
            return list(places.ranges(start, end, template))

        yield from self._retrying(partition, planned)

    def read(self, part: SegmentRange | LostRange, losses: Losses) -> Iterator[pa.RecordBatch]:
        """See `History.read`.  Raises StalePlanError when the part's file has changed since it was planned."""
        for piece in self.scan(part, losses, borrowed=True):
            yield piece.made() if isinstance(piece, ScannedRows) else piece

    def scan(
        self,
        part: SegmentRange | LostRange,
        losses: Losses,
        known: KnownRecords | None = None,
        *,
        borrowed: bool = False,
    ) -> Iterator[pa.RecordBatch | ScannedRows]:
        """See `History.scan`.  `borrowed`: the data of yielded records is valid only until the next ones are asked for.

        Raises StalePlanError when the part's file has changed since it was planned.
        """
        if isinstance(part, LostRange):
            losses.see([part.finding])
            yield self._rows.finding(part.finding, str(self._path))
            return
        constants = Constants(part.node, part.partition, part.segment)
        for item in read_range(part, self._reach_of, data=self._rows.data, known=known, borrowed=borrowed):
            if isinstance(item, Finding):
                losses.see([item])
                yield self._rows.finding(item, part.node)
            elif isinstance(item, HeldInFront):
                yield ScannedRows(item.records, Constants(part.node, part.partition, item.segment), self._rows)
            else:
                yield ScannedRows(item, constants, self._rows)

    def _reach_of(self, job: SegmentJob) -> SegmentReach:
        """How far the segments of a segment's partition go, as of the first time that a part of it asks."""
        if self._reach is None or self._reach.directory != job.directory:
            self._reach = SegmentReach(job, ReadLimits())
        return self._reach

    def close(self) -> None:
        """See `History.close`."""
        self._places = {}
