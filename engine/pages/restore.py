"""Restoring: from the edits of a log to the directory of pages, and to the room that they use."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath

from waltzctl.engine.errors import DamageError, DiskReadError, NotWaltzError
from waltzctl.engine.findings import Code, Finding, make_finding
from waltzctl.engine.pages.blob_stats import BlobStats
from waltzctl.engine.pages.page_directory import PageDirectory
from waltzctl.formats.pages.names import BLOB_DIRECTORY, blob_name, parse_blob_name
from waltzctl.formats.pages.write_batch import Edit, PageEntry, PageId


def directory_of(edits: Iterable[Edit], *, lenient: bool = False, every_version: bool = False) -> PageDirectory:
    """What the edits of a log come to: no version is left that only a snapshot could have seen.

    `lenient`: edits that cannot be made are left out, as where a part of the log is lost.  `every_version`: superseded ones stay.
    Raises DamageError for edits that cannot follow each other.
    """
    directory = PageDirectory()
    for edit in edits:
        try:
            directory.apply(edit)
        except ValueError as error:
            if lenient:
                continue
            raise DamageError(
                f"the log contradicts itself: {error}", advice="salvage what is whole into a new directory"
            ) from error
    directory.end_checkpoint()
    if not every_version:
        directory.collect_all(())
    directory.take_freed()
    return directory


def blob_files(store: Path) -> list[int]:
    """Ids of the blob files of a store, rising.  Raises NotWaltzError where there is no directory for them, DiskReadError."""
    directory = store / BLOB_DIRECTORY
    try:
        return sorted(filter(None, map(parse_blob_name, os.listdir(directory))))
    except (FileNotFoundError, NotADirectoryError):
        raise NotWaltzError(f"{store}: no page store", advice=f"one has the directory {BLOB_DIRECTORY}") from None
    except OSError as error:
        raise DiskReadError(directory, None, error, doing="list") from error


def mark_space(directory: PageDirectory, stats: BlobStats, present: Mapping[int, Path], store: Path) -> None:
    """Mark what pages use in the blob files that are there.

    Raises DamageError where two pages claim the same bytes: neither could be moved or given back.  A page whose file is not
    there is no reason to refuse the others.
    """
    ends: dict[int, int] = {}
    table = directory.spans().tolist()
    for file_id, offset, size in table:
        ends[file_id] = max(ends.get(file_id, 0), offset + size)
    for file_id in sorted({*present, *ends}):
        stats.add(file_id, ends.get(file_id, 0))
    by_id = {stat.file_id: stat for stat in stats.all()}
    for file_id, offset, size in table:
        if not by_id[file_id].mark_used(offset, size):
            finding = overlap_finding(store, file_id, offset, size)
            raise DamageError(f"{finding.path}: {finding.message}", [finding], advice="salvage into a new directory")
    for file_id in sorted(ends.keys() - present.keys()):  # nothing is written into a file that should be there
        by_id[file_id].read_only = True


def overlap_finding(store: PurePath, file_id: int, offset: int, size: int) -> Finding:
    """Two pages claim bytes of one file."""
    path = store / BLOB_DIRECTORY / blob_name(file_id)
    said = f"bytes {offset} to {offset + size} belong to a page, and a part of them to another one"
    return make_finding(Code.SPACE_OVERLAP, path, said, storage_directory=store, offset=offset, length=size)


def page_finding(
    store: PurePath, page: PageId, entry: PageEntry, offset: int, size: int, found: int, what: str = "it"
) -> Finding:
    """A page, or a field of it, whose bytes are not those that were written; `found`: how many there are."""
    path = store / BLOB_DIRECTORY / blob_name(entry.file_id)
    if found < size:
        said = f"page {page}: {what} has {size} bytes, and the file has {found} of them"
        return make_finding(Code.PAGE_MISSING, path, said, storage_directory=store, offset=offset, length=size)
    said = f"page {page}: the checksum of {'its data' if what == 'it' else what} is wrong"
    return make_finding(Code.PAGE_CHECKSUM, path, said, storage_directory=store, offset=offset, length=size)
