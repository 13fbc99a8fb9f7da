"""Salvage: carve records out of arbitrary bytes and write a clean storage directory.

No index, header or file name is needed: the source may be a damaged segment, a concatenation of files, a raw disk image or a
directory tree.  A record is accepted when its record checksum is right.  The steps, each in a module of its own:

1. `salvage_sources`: list and open the sources, read-only; read around places that fail.
2. `salvage_runs`: find runs (records back to back with consecutive ids) and the headers between them; `salvage_carving` does
   that for all sources.
3. `salvage_attribution`: find the cluster and partition of each run, and the runs that cannot be trusted.
4. `salvage_selection`: choose the best copy of each transaction.
5. `salvage_fragments`: join records that a file system has split.
6. `salvage_output`: build the directory under a temporary name, read it back, rename it.
7. `salvage_findings`: findings about the written records.

Memory: four bytes for each record found and the offsets of the runs in use; never record data.  Every record is accounted for:
``found`` is the sum of records written, duplicate, superseded, doubtful, and of another cluster or partition.
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
from waltzctl.engine.errors import DiskReadError, InvalidRequestError, NotWaltzError
from waltzctl.engine.log.cluster_keys import join_keys
from waltzctl.engine.progress import SILENT, Progress
from waltzctl.engine.repair.salvage_attribution import (
    Attributed,
    Doubt,
    Question,
    attribute,
    find_chains,
    request_ids_agree,
)
from waltzctl.engine.repair.salvage_carving import carve, carve_by
from waltzctl.engine.repair.salvage_control import (
    FoundControls,
    assigned_by,
    choose_control,
    of_cluster,
    read_controls,
    salvaged_infos,
)
from waltzctl.engine.repair.salvage_findings import data_findings, foreign_findings
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
from waltzctl.engine.repair.salvage_runs import SalvageRun
from waltzctl.engine.repair.salvage_selection import RecordPiece, offsets_of, select
from waltzctl.engine.repair.salvage_sources import (
    OpenFiles,
    SalvageSource,
    UnreadableRange,
    UnreadPlace,
    list_sources,
    open_sources,
)
from waltzctl.engine.scan.byte_source import ByteSource, BytesSource
from waltzctl.engine.scan.probe import Probe, SearchBudget
from waltzctl.engine.task_executor import TaskExecutor
from waltzctl.formats.control import CONTROL_FILE_NAME, MAX_PARTITIONS, NEVER, Layout, PartitionInfo
from waltzctl.formats.segment import MAX_DATA_LENGTH, RECORD_OVERHEAD

__all__ = ["DoubtfulRun", "IdRange", "SalvageReport", "SalvagedPartition", "salvage"]

UNLIMITED = 2**63


class _Probes:
    """Evidence about damaged records from the bytes of the sources: the `SourceEvidence` of an attribution."""

    def __init__(self, sources: Sequence[SalvageSource]) -> None:
        self._sources = sources
        self._probes: dict[int, Probe] = {}

    def _probe(self, number: int) -> Probe:
        if number not in self._probes:
            self._probes.clear()  # sources are queried one after the other, so one probe is enough
            source = self._sources[number]
            self._probes[number] = Probe(source, source.size(), MAX_DATA_LENGTH, SearchBudget(UNLIMITED))
        return self._probes[number]

    def claim(self, source: int, offset: int, transaction_id: int) -> int | None:
        """See `salvage_attribution.SourceEvidence`."""
        header = self._probe(source).header(offset)
        if header is None or header.transaction_id != transaction_id:
            return None
        return offset + RECORD_OVERHEAD + header.data_length if 0 <= header.data_length <= MAX_DATA_LENGTH else None

    def closes(self, source: int, offset: int, transaction_id: int, end: int) -> bool:
        """See `salvage_attribution.SourceEvidence`."""
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
    """Carve the records of one cluster out of `sources` and write them to the directory `to`.

    ================  ==============================================================================================
    argument          default
    ================  ==============================================================================================
    `cluster_key`     the only cluster of which headers are found
    `partition`       all partitions
    `num_partitions`  that of the control files found; else the highest partition found, plus one
    `layout`          that of the control file whose marks are used; else the documented layout
    `control_at`      (``PATH:OFFSET``) the newest control file found, if it is clear which that is
    `executor`        none: the sources are carved in the calling thread
    ================  ==============================================================================================

    `to` must not exist, or be empty; it is written as a whole or not at all.  Sources are opened read-only.

    Raises InvalidRequestError (several clusters and none named, no key found, `to` not usable or inside a source),
    NotWaltzError (no record found), DiskReadError, DiskFullError, DiskWriteError, DamageError (the written records do not
    read back).
    """
    _check_arguments(partition, num_partitions)
    to = Path(os.path.abspath(to))  # "." has no name, from which the temporary name is made
    unread: dict[Path, DiskReadError] = {}
    listed = list_sources(sources, to, unread)
    check_new(to, renamed=True, not_beside=CONTROL_FILE_NAME, taken=InvalidRequestError)
    with contextlib.ExitStack() as stack:
        files = OpenFiles()
        opened = open_sources(listed, sources, files, progress, unread)
        paths = [source.path for source in opened]
        for source in opened:
            stack.callback(source.close)
        stack.callback(offsets_of.cache_clear)
        if executor is None:
            progress.start("carving records", sum(source.size() for source in opened))
            runs, headers = carve(opened)
        else:
            runs, headers = carve_by(executor, opened)
        try:
            outcome = _attribute(opened, runs, headers, cluster_key, partition)
        except NotWaltzError:
            for failed in unread.values():  # what was looked for may be there
                raise failed from None
            raise
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
            source.strict = True  # from here on a read error must fail, not become zeros in a copied record
        written = write_directory(
            to, described, pieces, readable, threshold=segment_size_threshold, copied=progress.advance
        )
        partitions = tuple(_salvaged_partition(p, written[p], holding.get(p, []), infos.get(p)) for p in written)
        found = sum(map(len, runs)) + joined
        doubtful = tuple(_doubtful_run(doubt, paths) for doubt in outcome.doubts)
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
            findings=(*data_findings(to, pieces, written), *foreign_findings(to, written, described.cluster_key)),
            controls=controls.found,
            marks_unknown=tuple(sorted(there - infos.keys())) if known else (),
            unread=tuple(UnreadPlace(path, str(unread[path])) for path in sorted(unread)),
        )


def _check_arguments(partition: int | None, num_partitions: int | None) -> None:
    if num_partitions is not None and not 0 < num_partitions <= MAX_PARTITIONS:
        raise InvalidRequestError(f"the number of partitions must be 1 to {MAX_PARTITIONS}, not {num_partitions}")
    if partition is not None and not 0 <= partition < (num_partitions or MAX_PARTITIONS):
        highest = (num_partitions or MAX_PARTITIONS) - 1
        raise InvalidRequestError(f"partition {partition}: there are partitions 0 to {highest}")


@dataclass(frozen=True, slots=True)
class _Attribution:
    """The result of the attribution: runs of the wanted cluster and partitions, and doubtful runs."""

    cluster_key: UUID
    wanted: list[Attributed]
    doubts: list[Doubt]
    keys: Mapping[UUID, UUID]
    """For each key that was found, the key that it is taken for: a few damaged bits are tolerated (`join_keys`)."""


def _attribute(
    opened: Sequence[SalvageSource],
    runs: Sequence[SalvageRun],
    headers: Sequence[FoundHeader],
    cluster_key: UUID | None,
    partition: int | None,
) -> _Attribution:
    """The runs of the requested cluster and partition, and the doubtful runs.

    Raises NotWaltzError when no record was found, or none of them is wanted; InvalidRequestError when the cluster is not clear.
    """
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
    key = _choose_cluster(cluster_key, counts)
    mine = [one for one in settled if one.cluster_key in (key, None)]
    wanted = [one for one in mine if partition in (None, one.partition)]
    if not wanted:
        raise NotWaltzError(_why_nothing_wanted(key, partition, counts, mine, [*doubts, *unsettled]))
    return _Attribution(key, wanted, [*doubts, *unsettled], keys)


def _controls(
    outcome: _Attribution,
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


def _choose_cluster(named: UUID | None, counts: Mapping[UUID, int]) -> UUID:
    """The cluster to salvage: the named one, or the only one.  Raises InvalidRequestError when it is not clear which."""
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


def _why_nothing_wanted(
    key: UUID, partition: int | None, counts: Mapping[UUID, int], mine: Sequence[Attributed], doubts: Sequence[Doubt]
) -> str:
    """Why no record is to be written although records were found, in words."""
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
    outcome: _Attribution, controls: FoundControls, named: int | None
) -> tuple[int, PartitionCountSource]:
    """The number of partitions for the control file, and its source.

    Raises InvalidRequestError when the given number is too small.
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
    """The pieces, with records added that could be joined from fragments.  Each becomes a new source in `sources`."""
    result = list(pieces)
    for place, record in sorted(join_fragments(pieces, sources), key=lambda joined: -joined[0]):
        run = as_run(record, len(sources))
        sources.append(BytesSource(record.encode(), "put together"))
        result.insert(place, RecordPiece(run, run.first, run.last))
    return result


def _size(piece: RecordPiece) -> int:
    offsets = piece.offsets()
    return int(offsets[-1] - offsets[0])


def _salvaged_partition(
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


def _doubtful_run(doubt: Doubt, paths: Sequence[Path]) -> DoubtfulRun:
    run = doubt.run
    return DoubtfulRun(paths[run.source], run.start, run.end - run.start, run.first, run.last, len(run), doubt.reason)
