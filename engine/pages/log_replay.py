"""Replaying a log: its edits build the page directory, and mark the space that pages use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from waltzctl.engine.durable.file_status import names_in
from waltzctl.engine.errors import DamageError, NotWaltzError
from waltzctl.engine.findings import Code, Finding, make_finding
from waltzctl.engine.pages.blob_stats import BlobStats
from waltzctl.engine.pages.checkpoint import Checkpoint, load_entries
from waltzctl.engine.pages.page_directory import PageDirectory
from waltzctl.engine.pages.recovery_mode import RecoveryMode
from waltzctl.engine.pages.wal_reader import WAYS_ON, WalContents, payloads_of
from waltzctl.formats.pages.names import BLOB_DIRECTORY, blob_name, parse_blob_name
from waltzctl.formats.pages.write_batch import BatchError, Edit, decode_batch, plain_entries


def restore(
    contents: WalContents,
    mode: RecoveryMode,
    *,
    lenient: bool = False,
    every_version: bool = False,
    left_out: list[Edit] | None = None,
) -> PageDirectory:
    """Replay a log.  Versions that only a snapshot could have seen are dropped, unless `every_version`.

    `lenient`: skip edits that cannot be applied, which occur if part of the log is lost; they are appended to `left_out`.

    Raises DamageError for faults that `mode` does not tolerate, and without `lenient` for edits that cannot be applied.
    """
    directory = PageDirectory()
    plain: list[np.ndarray[Any, Any]] = []
    for file, payload in payloads_of(contents, mode):
        table = plain_entries(payload) if file.name.is_checkpoint else None
        if table is not None:
            plain.append(table)
            continue
        if plain and not file.name.is_checkpoint:
            _load(directory, plain, lenient=lenient, left_out=left_out)
        try:
            _apply(directory, decode_batch(payload), lenient=lenient, left_out=left_out)
        except BatchError:  # `payloads_of` refused it unless the mode tolerates it
            if mode is RecoveryMode.POINT_IN_TIME:
                break
    _load(directory, plain, lenient=lenient, left_out=left_out)
    return _restored(directory, every_version=every_version)


def directory_of(edits: Iterable[Edit]) -> PageDirectory:
    """Build a directory from edits.  Raises DamageError for edits that cannot be applied."""
    directory = PageDirectory()
    _apply(directory, edits, lenient=False)
    return _restored(directory, every_version=False)


def _restored(directory: PageDirectory, *, every_version: bool) -> PageDirectory:
    directory.end_checkpoint()
    if not every_version:
        directory.collect_all(())
    directory.take_freed()
    return directory


def _load(
    directory: PageDirectory,
    plain: list[np.ndarray[Any, Any]],
    *,
    lenient: bool,
    left_out: list[Edit] | None = None,
) -> None:
    """Load the entries of a checkpoint in bulk; one by one if a page occurs twice, which only damage causes."""
    if not plain:
        return
    table = np.concatenate(plain)
    plain.clear()
    if not load_entries(directory, table):
        _apply(directory, Checkpoint((), table).all_edits, lenient=lenient, left_out=left_out)


def _apply(
    directory: PageDirectory, edits: Iterable[Edit], *, lenient: bool, left_out: list[Edit] | None = None
) -> None:
    for edit in edits:
        try:
            directory.apply(edit)
        except ValueError as error:
            if not lenient:
                raise DamageError(f"the log contradicts itself: {error}", advice=WAYS_ON) from error
            if left_out is not None:
                left_out.append(edit)


def blob_files(store: Path) -> list[int]:
    """Ids of the blob files of a store, ascending.  Raises NotWaltzError if their directory does not exist, DiskReadError."""
    directory = store / BLOB_DIRECTORY
    found = names_in(directory)
    if found is None:
        raise NotWaltzError(f"{store}: no page store", advice=f"one has the directory {BLOB_DIRECTORY}")
    return sorted(filter(None, map(parse_blob_name, found)))


def mark_space(directory: PageDirectory, stats: BlobStats, present: Mapping[int, Path], store: Path) -> None:
    """Mark the space that pages use in the blob files.

    Raises DamageError if two pages claim the same bytes: neither could be moved or freed.  A missing file is no error, so that
    the other pages stay readable; its `BlobStat` is read-only.
    """
    table = directory.spans()
    files, offsets, sizes = table[:, 0], table[:, 1], table[:, 2]
    overlapping = np.flatnonzero((files[1:] == files[:-1]) & (offsets[1:] < (offsets + sizes)[:-1]))
    if overlapping.size:
        finding = overlap_finding(store, *table[overlapping[0] + 1].tolist())
        raise DamageError(f"{finding.path}: {finding.message}", [finding], advice=WAYS_ON)
    ids = files[np.flatnonzero(np.diff(files, prepend=-1))].tolist()
    bounds = {file_id: slice(*np.searchsorted(files, (file_id, file_id + 1))) for file_id in ids}
    for file_id in sorted({*present, *bounds}):
        own = bounds.get(file_id, slice(0))
        stat = stats.add(file_id, offsets[own].tolist(), sizes[own].tolist())
        stat.read_only = file_id not in present  # a missing file takes no writes


def overlap_finding(store: PurePath, file_id: int, offset: int, size: int) -> Finding:
    """The finding for two pages that claim the same bytes of a file."""
    path = store / BLOB_DIRECTORY / blob_name(file_id)
    said = f"bytes {offset} to {offset + size} belong to a page, and a part of them to another one"
    return make_finding(Code.SPACE_OVERLAP, path, said, storage_directory=store, offset=offset, length=size)
