"""Salvage: carve the records out of anything that holds them and write a clean storage directory.

No index, header or file name is needed: a damaged segment, a concatenation of files, the raw image of a disk or a whole tree
will do.  A record is believed when its record checksum is right.  The steps, each in a module of its own:

1. `salvage_sources`: list and open what is read, for reading only; read around places that fail.
2. `salvage_runs`: rows of records back to back, and the headers between them.
3. `salvage_attribution`: whose each run is, and which cannot be trusted.
4. `salvage_selection`: each transaction once, the best copy of it.
5. `salvage_fragments`: records that a file system has split are put together.
6. `salvage_output`: the directory, built beside its name, read back, renamed.

Memory: four bytes for each record found, and the offsets of the runs at hand; never data.  Nothing is lost silently: ``found``
is the sum of what is written, duplicate, superseded, doubtful and of another cluster or partition.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from waltzctl.engine.durable import disk
from waltzctl.engine.durable.new_directory import check_new
from waltzctl.engine.errors import InvalidRequestError, NotWaltzError
from waltzctl.engine.findings import Code, Finding, SegmentFiles, Where, make_finding
from waltzctl.engine.findings.headers import strange_finding
from waltzctl.engine.log.places import open_source
from waltzctl.engine.log.view import view_partition
from waltzctl.engine.progress import SILENT, Progress
from waltzctl.engine.repair.salvage_attribution import (
    Attributed,
    Doubt,
    Question,
    attribute,
    find_chains,
    join_keys,
    request_ids_agree,
)
from waltzctl.engine.repair.salvage_control import (
    NEVER,
    FoundControls,
    assigned_by,
    choose_control,
    of_cluster,
    read_controls,
    salvaged_infos,
)
from waltzctl.engine.repair.salvage_fragments import as_run, join_fragments
from waltzctl.engine.repair.salvage_headers import FoundHeader, HeaderKind
from waltzctl.engine.repair.salvage_output import (
    SEGMENT_SIZE_THRESHOLD,
    Description,
    WrittenSegment,
    write_directory,
)
from waltzctl.engine.repair.salvage_report import (
    DoubtfulRun,
    IdRange,
    PartitionCountSource,
    SalvagedPartition,
    SalvageReport,
)
from waltzctl.engine.repair.salvage_runs import SalvageRun, find_headers, find_runs
from waltzctl.engine.repair.salvage_selection import RecordPiece, offsets_of, select
from waltzctl.engine.repair.salvage_sources import OpenFiles, SalvageSource, UnreadableRange, list_sources
from waltzctl.engine.scan.byte_source import ByteSource, BytesSource
from waltzctl.engine.scan.probe import Probe, SearchBudget
from waltzctl.engine.storage.belonging import stranger
from waltzctl.engine.task_executor import TaskExecutor
from waltzctl.formats.control import CONTROL_FILE_NAME, MAX_PARTITIONS, Layout, PartitionInfo
from waltzctl.formats.segment import HEADER_SIZE, MAX_DATA_LENGTH, RECORD_OVERHEAD, segment_name

__all__ = ["DoubtfulRun", "IdRange", "SalvageReport", "SalvagedPartition", "salvage"]

UNLIMITED = 2**63


class _Probes:
    """Evidence from the sources' bytes about damaged records."""

    def __init__(self, sources: Sequence[SalvageSource]) -> None:
        self._sources = sources
        self._probes: dict[int, Probe] = {}

    def _probe(self, number: int) -> Probe:
        if number not in self._probes:
            self._probes.clear()  # sources are asked about one after the other
            source = self._sources[number]
            self._probes[number] = Probe(source, source.size(), MAX_DATA_LENGTH, SearchBudget(UNLIMITED))
        return self._probes[number]

    def claim(self, source: int, offset: int, transaction_id: int) -> int | None:
        """See `salvage_attribution.Evidence`."""
        header = self._probe(source).header(offset)
        if header is None or header.transaction_id != transaction_id:
            return None
        return offset + RECORD_OVERHEAD + header.data_length if 0 <= header.data_length <= MAX_DATA_LENGTH else None

    def closes(self, source: int, offset: int, transaction_id: int, end: int) -> bool:
        """See `salvage_attribution.Evidence`."""
        return self._probe(source).closes(offset, transaction_id, end)


def salvage(
    sources: Sequence[Path],
    *,
    to: Path,
    cluster_key: UUID | None = None,
    partition: int | None = None,
    num_partitions: int | None = None,
    layout: Layout | None = None,
    control_at: str | None = None,
    progress: Progress = SILENT,
    segment_size_threshold: int = SEGMENT_SIZE_THRESHOLD,
    executor: TaskExecutor | None = None,
) -> SalvageReport:
    """Carve the records of one cluster, of one partition or of all, out of `sources` and write them to `to`.

    `cluster_key` may be left out when the sources hold headers of a single cluster; `num_partitions` when a control file
    tells it, or when the highest partition found will do; `layout` when it is to be that of the control file whose marks are
    used, or the documented one.  `control_at`: that control file, ``PATH:OFFSET``, where several were found.

    `to` must not exist, or be empty; it is written whole or not at all.  Sources are opened for reading only; with an `executor`
    its workers look for the records in them.

    Raises InvalidRequestError (several clusters and none named, no key at all, `to` not usable or inside a source),
    NotWaltzError (no record found), DiskReadError, DiskFullError, DiskWriteError, DamageError (what was written does not
    read back).
    """
    _check_arguments(partition, num_partitions)
    to = Path(os.path.abspath(to))  # that of the working directory has no name
    paths = list_sources(sources, to)
    check_new(to, renamed=True, not_beside=CONTROL_FILE_NAME, taken=InvalidRequestError)
    with contextlib.ExitStack() as stack:
        files = OpenFiles()
        opened = [SalvageSource(path, files, progress) for path in paths]
        for source in opened:
            stack.callback(source.close)
        stack.callback(offsets_of.cache_clear)
        if executor is None:
            progress.start("carving records", sum(source.size() for source in opened))
            runs, headers = _read(opened)
        else:
            runs, headers = _read_by(executor, opened)
        outcome = _attribute(opened, runs, headers, cluster_key, partition)
        wanted = outcome.wanted
        controls = _controls(outcome, opened, paths, headers, num_partitions, control_at)
        number, counted_by = _count_partitions(outcome, controls, num_partitions)
        holding: dict[int, list[Attributed]] = {}
        for one in wanted:
            holding.setdefault(one.partition, []).append(one)
        known = controls.used.control if controls.used else None
        there = holding.keys() | (
            assigned_by(known) & ({partition} if partition is not None else set(range(number))) if known else set()
        )
        selections = {p: select(p, holding.get(p, []), opened, paths) for p in sorted(there)}
        layout = layout or (known.layout if known else Layout.DOCUMENTED)
        infos = salvaged_infos(known, layout, there) if known else {}
        described = Description(outcome.cluster_key, number, layout, disk.now_ms(), infos)
        readable: list[ByteSource] = [*opened]
        pieces = {p: _with_fragments(selection.pieces, readable) for p, selection in selections.items()}
        joined = len(readable) - len(opened)
        progress.start("writing records", sum(_size(piece) for each in pieces.values() for piece in each))
        for source in opened:
            source.strict = True  # a copy must not have zeros put into it
        written = write_directory(
            to, described, pieces, readable, threshold=segment_size_threshold, copied=progress.advance
        )
        partitions = tuple(_partition(p, written[p], holding.get(p, []), infos.get(p)) for p in written)
        found = sum(map(len, runs)) + joined
        doubtful = tuple(_doubtful(doubt, paths) for doubt in outcome.doubts)
        counts = Counter(written=sum(one.records for one in partitions), doubtful=sum(d.records for d in doubtful))
        counts["duplicates"] = sum(selection.duplicates for selection in selections.values())
        counts["superseded"] = sum(selection.superseded for selection in selections.values())
        return SalvageReport(
            path=to,
            cluster_key=described.cluster_key,
            num_partitions=number,
            num_partitions_from=counted_by,
            layout=layout,
            sources=len(paths),
            bytes=sum(source.size() for source in opened),
            headers=len(headers),
            found=found,
            joined=joined,
            written=counts["written"],
            duplicates=counts["duplicates"],
            superseded=counts["superseded"],
            doubtful_records=counts["doubtful"],
            elsewhere=found - counts.total(),
            partitions=partitions,
            conflicts=tuple(itertools.chain.from_iterable(s.conflicts for s in selections.values())),
            doubtful=doubtful,
            unreadable=tuple(
                UnreadableRange(source.path, offset, length)
                for source in opened
                for offset, length in sorted(source.unreadable.items())
            ),
            findings=(*_data_findings(to, pieces, written), *_strange_findings(to, written, described.cluster_key)),
            controls=controls.found,
            marks_unknown=tuple(sorted(there - infos.keys())) if known else (),
        )


def _check_arguments(partition: int | None, num_partitions: int | None) -> None:
    if num_partitions is not None and not 0 < num_partitions <= MAX_PARTITIONS:
        raise InvalidRequestError(f"the number of partitions must be 1 to {MAX_PARTITIONS}, not {num_partitions}")
    if partition is not None and not 0 <= partition < (num_partitions or MAX_PARTITIONS):
        highest = (num_partitions or MAX_PARTITIONS) - 1
        raise InvalidRequestError(f"partition {partition}: there are partitions 0 to {highest}")


def _read(opened: Sequence[SalvageSource]) -> tuple[list[SalvageRun], list[FoundHeader]]:
    """Every run and every header of every source."""
    runs: list[SalvageRun] = []
    headers: list[FoundHeader] = []
    for number, source in enumerate(opened):
        found = list(find_runs(source, number))
        runs += found
        headers += find_headers(source, number, found)
    return runs, headers


@dataclass(frozen=True, slots=True)
class _Carved:
    """What a worker found in a source, and the places that it could not read, by offset."""

    runs: tuple[SalvageRun, ...]
    headers: tuple[FoundHeader, ...]
    unreadable: dict[int, int]


def _carve(task: tuple[Path, int]) -> _Carved:
    path, number = task
    with contextlib.closing(SalvageSource(path, OpenFiles(), SILENT)) as source:
        runs = tuple(find_runs(source, number))
        return _Carved(runs, tuple(find_headers(source, number, runs)), source.unreadable)


def _read_by(executor: TaskExecutor, opened: Sequence[SalvageSource]) -> tuple[list[SalvageRun], list[FoundHeader]]:
    """As `_read`, each source by a worker of an executor."""
    runs: list[SalvageRun] = []
    headers: list[FoundHeader] = []
    tasks = [(source.path, number) for number, source in enumerate(opened)]
    found = executor.map(_carve, tasks, weights=[source.size() for source in opened], what="carving records")
    for source, carved in zip(opened, found, strict=True):
        runs += carved.runs
        headers += carved.headers
        source.unreadable.update(carved.unreadable)
    return runs, headers


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Whose records they are."""

    cluster_key: UUID
    wanted: list[Attributed]
    doubts: list[Doubt]
    keys: Mapping[UUID, UUID]
    """For each key that was found, the one that it is when a few damaged bits are forgiven."""


def _attribute(
    opened: Sequence[SalvageSource],
    runs: Sequence[SalvageRun],
    headers: Sequence[FoundHeader],
    cluster_key: UUID | None,
    partition: int | None,
) -> _Outcome:
    """What belongs to the cluster and partition that were asked for, and what is doubtful."""
    if not runs:
        raise NotWaltzError(
            f"no record found in {len(opened)} files, {sum(source.size() for source in opened)} bytes",
            advice="a record is found by its checksum alone, so there is none; look for another copy",
        )
    trusted = request_ids_agree(headers, runs)
    sizes = [source.size() for source in opened]
    chains, doubts = find_chains(headers, runs, sizes, bool(trusted), _Probes(opened))
    keys = join_keys([header.cluster_key for header in headers], cluster_key)
    settled, unsettled = attribute(chains, Question(keys, cluster_key, partition, trusted))
    counts: Counter[UUID] = Counter()
    for key in dict.fromkeys(keys.values()):
        counts[key] = sum(len(one.run) for one in settled if one.cluster_key == key)
    key = _choose(cluster_key, counts)
    mine = [one for one in settled if one.cluster_key in (key, None)]
    wanted = [one for one in mine if partition in (None, one.partition)]
    if not wanted:
        raise NotWaltzError(_nothing(key, partition, counts, mine, [*doubts, *unsettled]))
    return _Outcome(key, wanted, [*doubts, *unsettled], keys)


def _controls(
    outcome: _Outcome,
    opened: Sequence[SalvageSource],
    paths: Sequence[Path],
    headers: Sequence[FoundHeader],
    num_partitions: int | None,
    at: str | None,
) -> FoundControls:
    """The control files of the cluster, and the one whose marks are used.  Raises InvalidRequestError, DiskReadError."""
    found = read_controls(opened, paths, [one for one in headers if one.kind is HeaderKind.CONTROL])
    chosen = choose_control(of_cluster(found, outcome.keys, outcome.cluster_key), num_partitions=num_partitions, at=at)
    highest = max(one.partition for one in outcome.wanted)
    if chosen.used is not None and highest >= chosen.used.control.header.num_partitions:
        return chosen.unused(f"records of partition {highest} were found, and it has no room for them")
    return chosen


def _choose(named: UUID | None, counts: Mapping[UUID, int]) -> UUID:
    """The cluster to salvage.  Raises InvalidRequestError when it is not clear which."""
    if named is not None:
        return named
    holding = [key for key, records in counts.items() if records] or list(counts)
    if len(holding) == 1:
        return holding[0]
    if not holding:
        raise InvalidRequestError(
            "records were found, but no header that tells their cluster", advice="name the cluster with --key"
        )
    listed = ", ".join(f"{key} ({counts[key]} records)" for key in sorted(holding, key=lambda key: -counts[key]))
    raise InvalidRequestError(f"records of several clusters were found: {listed}", advice="name one with --key")


def _nothing(
    key: UUID, partition: int | None, counts: Mapping[UUID, int], mine: Sequence[Attributed], doubts: Sequence[Doubt]
) -> str:
    """Why nothing is left to write although records were found."""
    asked = f"cluster {key}" + (f", partition {partition}" if partition is not None else "")
    seen = [f"{records} of cluster {other}" for other, records in counts.items() if records and other != key]
    for number, records in sorted(_records_by_partition(mine).items()):
        seen.append(f"{records} of partition {number}")
    doubtful = sum(len(doubt.run) for doubt in doubts)
    if doubtful:
        seen.append(f"{doubtful} of which nothing tells whose they are (--partition says so)")
    return f"no record of {asked} was found; records found: {', '.join(seen) or 'none'}"


def _records_by_partition(runs: Iterable[Attributed]) -> Counter[int]:
    counts: Counter[int] = Counter()
    for one in runs:
        counts[one.partition] += len(one.run)
    return counts


def _count_partitions(
    outcome: _Outcome, controls: FoundControls, named: int | None
) -> tuple[int, PartitionCountSource]:
    """The number of partitions for the control file, and what it goes by.

    Raises InvalidRequestError when the one given is too small.
    """
    if controls.used is not None:
        return controls.used.control.header.num_partitions, PartitionCountSource.CONTROL_FILE
    needed = max(one.partition for one in outcome.wanted) + 1
    if named is not None and named < needed:
        raise InvalidRequestError(
            f"records of partition {needed - 1} were found, so there are at least {needed} partitions, not {named}",
            advice="give the cluster's number of partitions with --partitions, or one partition with --partition",
        )
    if named is not None:
        return named, PartitionCountSource.GIVEN
    told = max((one.control.header.num_partitions for one in controls.found), default=0)
    if told >= needed:
        return told, PartitionCountSource.CONTROL_FILE
    return needed, PartitionCountSource.RECORDS


def _with_fragments(pieces: Sequence[RecordPiece], sources: list[ByteSource]) -> list[RecordPiece]:
    """The pieces with the records between them that could be put together; each becomes a source of its own."""
    result = list(pieces)
    for place, record in sorted(join_fragments(pieces, sources), key=lambda joined: -joined[0]):
        run = as_run(record, len(sources))
        sources.append(BytesSource(record.encode(), "put together"))
        result.insert(place, RecordPiece(run, run.first, run.last))
    return result


def _size(piece: RecordPiece) -> int:
    offsets = piece.offsets()
    return int(offsets[-1] - offsets[0])


def _partition(
    number: int, segments: Sequence[WrittenSegment], found: Sequence[Attributed], info: PartitionInfo | None
) -> SalvagedPartition:
    missing: list[IdRange] = []
    expected = 0
    for segment in segments:
        if segment.first > expected:
            missing.append(IdRange(expected, segment.first - 1))
        expected = segment.last + 1
    witnesses: Counter[str] = Counter()
    for one in found:
        witnesses[one.witness.value] += len(one.run)
    return SalvagedPartition(
        partition=number,
        first_transaction_id=segments[0].first,
        last_transaction_id=segments[-1].last,
        records=sum(segment.records for segment in segments),
        segments=len(segments),
        bytes=sum(segment.size for segment in segments),
        missing=tuple(missing),
        marks=info.current_struct.marks if info and info.current_struct else NEVER,
        by_witness=dict(witnesses),
        contradicted=sum(len(one.run) for one in found if one.run.request_partition not in (None, number)),
    )


def _doubtful(doubt: Doubt, paths: Sequence[Path]) -> DoubtfulRun:
    run = doubt.run
    return DoubtfulRun(paths[run.source], run.start, run.end - run.start, run.first, run.last, len(run), doubt.reason)


def _data_findings(
    to: Path, selected: Mapping[int, Sequence[RecordPiece]], written: Mapping[int, Sequence[WrittenSegment]]
) -> Iterable[Finding]:
    """A finding for each record that was written although its data disagrees with its own checksum."""
    for number, pieces in selected.items():
        for piece in pieces:
            for damaged in piece.run.data_damaged:
                if piece.first <= damaged <= piece.last:
                    yield _data_finding(to, number, damaged, pieces, written[number])


def _strange_findings(to: Path, written: Iterable[int], cluster_key: UUID) -> Iterable[Finding]:
    """A finding for each segment whose records are another partition's, though the header in front of them said otherwise.

    Verify says so of what was written: a copy of another partition's records behind a header is no record more.
    """
    for number in written:
        directory = to / str(number)
        view = view_partition(directory, number)
        for segment in view.segments:
            with open_source(segment.data_path) as source:
                why = stranger(segment, source, number, cluster_key, view.segments)
            if why is not None:
                where = Where(to, number, directory)
                files = SegmentFiles(where, segment.first_transaction_id, segment.data_path, segment.index_path)
                yield strange_finding(why, files)


def _data_finding(
    to: Path, partition: int, damaged: int, pieces: Sequence[RecordPiece], segments: Sequence[WrittenSegment]
) -> Finding:
    segment = next(one for one in segments if one.first <= damaged <= one.last)
    offset, length = HEADER_SIZE, 0
    for piece in pieces:
        low, high = max(piece.first, segment.first), min(piece.last, damaged)
        if low <= high:
            offsets = piece.offsets()
            offset += int(offsets[high - piece.first] - offsets[low - piece.first])
            length = int(offsets[high - piece.first + 1] - offsets[high - piece.first])
            offset += length if high < damaged else 0
    return make_finding(
        Code.DATA_CHECKSUM,
        to / str(partition) / segment_name(segment.first),
        f"the data of transaction {damaged} does not agree with its own checksum; the record as a whole is intact",
        storage_directory=to,
        partition=partition,
        segment=segment.first,
        transaction_id=damaged,
        offset=offset,
        length=length,
    )
