"""Salvage of a lost control file for partitions that survived.

The file is searched in arbitrary bytes, for example a disk image, and written into the storage directory, which has none.
Structs with a right checksum are written as found.  If one struct of a pair is lost, it becomes a copy of the other; if both
are, the pair stays invalid, so that verify reports it.  No value is invented or lowered: a mark above the partition's last
transaction is reported as a finding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

from waltzctl.engine.durable import disk
from waltzctl.engine.errors import InvalidRequestError, NotWaltzError, RefusedError
from waltzctl.engine.findings import Finding, Severity
from waltzctl.engine.inspect.verification import VerifyOptions, VerifySummary
from waltzctl.engine.inspect.verify import verify
from waltzctl.engine.log.cluster_keys import join_keys
from waltzctl.engine.log.view import StorageView, read_segment_header, view_storage
from waltzctl.engine.progress import SILENT, Progress
from waltzctl.engine.repair.salvage_control import FoundControl, choose_control, of_cluster, proven, read_controls
from waltzctl.engine.repair.salvage_headers import HeaderKind
from waltzctl.engine.repair.salvage_runs import find_headers, find_runs
from waltzctl.engine.repair.salvage_sources import OpenFiles, SalvageSource, list_sources
from waltzctl.engine.shell_words import shell_quote
from waltzctl.formats.adapters import format_time
from waltzctl.formats.control import (
    CONTROL_FILE_NAME,
    CONTROL_VERSION,
    Choice,
    ControlFile,
    Layout,
    PartitionInfo,
)


@dataclass(frozen=True, slots=True)
class SalvagedControl:
    """The outcome of salvaging a control file into the storage directory `path`.

    `sources`: number of files read.  `bytes`: bytes examined.  `controls`: every control file of the cluster that was found.
    `marks_unknown`: partitions whose pair was lost.  `findings`: verify's findings about the directory, without notes.
    """

    path: Path
    cluster_key: UUID
    num_partitions: int
    layout: Layout
    sources: int
    bytes: int
    controls: tuple[FoundControl, ...]
    marks_unknown: tuple[int, ...]
    findings: tuple[Finding, ...]

    @property
    def exit_status_name(self) -> str:
        """``clean`` when verify finds nothing, else ``damage-remains``."""
        return "damage-remains" if self.findings else "clean"


def salvage_control_file(
    sources: Sequence[Path],
    *,
    to: Path,
    cluster_key: UUID | None = None,
    num_partitions: int | None = None,
    control_at: str | None = None,
    progress: Progress = SILENT,
) -> SalvagedControl:
    """Find the control file of a storage directory in `sources` and write it into `to`, which has none.

    `cluster_key` may be left out when the partitions in `to`, or all control files found, are of one cluster.  `num_partitions`
    and `control_at` (``PATH:OFFSET``) choose among different control files.  Sources are opened read-only.

    Raises RefusedError when `to` has a control file, or partitions that do not fit the one found; InvalidRequestError when it is
    not clear which one is meant; NotWaltzError when none is found; DiskReadError, DiskWriteError.
    """
    view = _surviving_files(to)
    paths = list_sources(sources, to)
    with contextlib.ExitStack() as stack:
        files = OpenFiles()
        opened = [SalvageSource(path, files, progress) for path in paths]
        for source in opened:
            stack.callback(source.close)
        examined = sum(source.size() for source in opened)
        progress.start("looking for control files", examined)
        headers = [
            header
            for number, source in enumerate(opened)
            for header in find_headers(source, number, list(find_runs(source, number)))
            if header.kind is HeaderKind.CONTROL
        ]
        found = read_controls(opened, paths, headers)
    if not found:
        raise NotWaltzError(
            f"no control file found in {paths[0] if len(paths) == 1 else f'{len(paths)} files'}, {examined} bytes",
            advice="one is known by its header and the checksum of a struct behind it; salvage without --control writes the"
            " records to a new directory",
        )
    named = _key_of(to, view, cluster_key)
    keys = join_keys([one.control.header.cluster_key for one in found], named)
    key = _choose_key(named, [keys[one.control.header.cluster_key] for one in found])
    controls = choose_control(of_cluster(found, keys, key), num_partitions=num_partitions, at=control_at)
    used = controls.used
    if used is None:
        raise InvalidRequestError(
            _why_undecided(key, found, controls.found), advice="name it with --control-at PATH:OFFSET"
        )
    _check_partitions(to, view, used)
    disk.write_whole(to / CONTROL_FILE_NAME, _encoded(used.control, key))
    return SalvagedControl(
        path=to,
        cluster_key=key,
        num_partitions=used.control.header.num_partitions,
        layout=used.control.layout,
        sources=len(paths),
        bytes=examined,
        controls=controls.found,
        marks_unknown=used.unknown,
        findings=tuple(_verified(to)),
    )


def _surviving_files(to: Path) -> StorageView | None:
    """The surviving files; None for a directory without partitions.

    Raises InvalidRequestError when `to` is not a directory, RefusedError when it has a control file; DiskReadError.
    """
    if not to.is_dir():
        raise InvalidRequestError(f"{to}: not a directory", advice="name the directory whose control file is gone")
    if (to / CONTROL_FILE_NAME).exists():
        raise RefusedError(
            f"{to / CONTROL_FILE_NAME}: there is a control file, which is never overwritten",
            advice=f"waltzctl verify {shell_quote(str(to))} says what is wrong with it; if nothing in it is of use, move it away",
        )
    try:
        return view_storage(to)
    except NotWaltzError:
        return None


def _key_of(to: Path, view: StorageView | None, named: UUID | None) -> UUID | None:
    """The cluster key: the named one, or that of the directory's segments; None when they differ or there are none.

    Raises RefusedError when the segments contradict the named key, DiskReadError.
    """
    keys = []
    for partition in view.partitions.values() if view else ():
        headers = (read_segment_header(segment.data) for segment in partition.segments)
        keys += [header.cluster_key for header in headers if header is not None]
    joined = set(join_keys(keys, named).values()) if keys else set()
    if named is not None:
        if joined - {named}:
            raise RefusedError(
                f"{to}: holds segments of cluster {min(joined - {named})}, not only of {named}, which was named",
                advice="leave --key out, or name another directory",
            )
        return named
    return joined.pop() if len(joined) == 1 else None


def _choose_key(named: UUID | None, keys: Sequence[UUID]) -> UUID:
    if named is not None:
        return named
    if len(set(keys)) > 1:
        said = ", ".join(map(str, dict.fromkeys(keys)))
        raise InvalidRequestError(f"control files of several clusters were found: {said}", advice="name one with --key")
    return keys[0]


def _why_undecided(key: UUID, found: Sequence[FoundControl], mine: Sequence[FoundControl]) -> str:
    if not mine:
        other = ", ".join(str(one) for one in dict.fromkeys(one.control.header.cluster_key for one in found))
        return f"no control file of cluster {key} was found, but of {other}"
    said = "; ".join(
        f"{one.place} (created {format_time(one.control.header.created)}, {one.control.header.num_partitions} partitions)"
        for one in mine
    )
    return f"{mine[0].reason}: {said}"


def _check_partitions(to: Path, view: StorageView | None, used: FoundControl) -> None:
    """Raise RefusedError for a control file with fewer partitions than the directory has."""
    header = used.control.header
    for number, partition in view.partitions.items() if view else ():
        if number >= header.num_partitions and partition.segments:
            raise RefusedError(
                f"{partition.path}: the control file at {used.place} has partitions 0 to {header.num_partitions - 1}",
                advice="it belongs to another directory, or this partition does",
            )


def _encoded(control: ControlFile, key: UUID) -> bytes:
    """The bytes to write: the header, every proven info, every info whose structs tie, and zeros for a lost pair."""
    # the commit journal is lost, so the file is not marked
    header = replace(control.header, version=CONTROL_VERSION, cluster_key=key, journaled=False)
    held = {info.partition: info for info in control.partitions}
    infos = (_info(control.layout, p, held.get(p)) for p in range(header.num_partitions))
    return header.encode() + b"".join(infos)


def _info(layout: Layout, partition: int, found: PartitionInfo | None) -> bytes:
    if found is not None and proven(found):
        return found.renewed().encode()
    if found is not None and found.stored_partition == partition and found.choice is Choice.TIE:
        return found.encode()
    schema = layout.info_schema
    return partition.to_bytes(schema.size_of("partition"), "big").ljust(schema.size, b"\0")


def _verified(to: Path) -> Sequence[Finding]:
    seen = verify((to,), VerifyOptions())
    return [one for one in seen if not isinstance(one, VerifySummary) and one.severity is not Severity.NOTE]
