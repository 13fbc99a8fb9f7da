"""Salvage: copy every intact page into a new store, and report the damaged ones.

Every record of the log with a right checksum is used, whatever is missing between records; a page is intact if its bytes match
their checksum.  If part of the log is lost, a page deleted there may reappear, or an older version of a page: this cannot be
detected.  References stay references; no data is copied twice.

The new store is built under a temporary name and renamed at the end, so the target is complete or absent: a partial copy could
not be told from a complete one later.  What a killed salvage left is removed by the next one with the same target.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from waltzctl.engine.durable import disk
from waltzctl.engine.durable.directory_lock import DirectoryLock
from waltzctl.engine.durable.new_directory import check_new
from waltzctl.engine.durable.work_directory import renamed
from waltzctl.engine.errors import DiskError, InvalidRequestError
from waltzctl.engine.findings import Finding, Severity
from waltzctl.engine.pages.blob_stats import BlobSpan
from waltzctl.engine.pages.inspection import StoreView, view_store
from waltzctl.engine.pages.page_batch import LAST_ID, WriteBatch
from waltzctl.engine.pages.page_data import read_checked
from waltzctl.engine.pages.page_directory import Located
from waltzctl.engine.pages.page_options import PageOptions
from waltzctl.engine.pages.page_storage import PageStorage
from waltzctl.formats.pages.write_batch import PageEntry, PageId, Version

_BATCH = 8 << 20
"""Bytes of pages per write."""


@dataclass(frozen=True, slots=True)
class PageSalvage:
    """What was copied.  `lost`: pages that were not, because their data is damaged, including references to it."""

    source: Path
    path: Path
    pages: int
    references: int
    external_pages: int
    bytes: int
    lost: tuple[PageId, ...]
    findings: tuple[Finding, ...]

    @property
    def exit_status_name(self) -> str:
        """``clean`` if nothing acknowledged was lost, as far as the log can tell; otherwise ``damage-remains``."""
        return "damage-remains" if any(one.severity is Severity.DAMAGE for one in self.findings) else "clean"


@dataclass(frozen=True, slots=True)
class _VisibleVersion:
    """An entry or external page, and the pages that show it: its own page, references to it, or both."""

    origin: PageId
    version: Version
    entry: PageEntry | None
    pages: tuple[Located, ...]

    @property
    def references(self) -> list[PageId]:
        """Pages that show it by reference."""
        return [one.page for one in self.pages if one.is_reference]

    @property
    def held(self) -> bool:
        """Whether only references show it."""
        return len(self.references) == len(self.pages)


def salvage_store(source: Path, target: Path) -> PageSalvage:
    """Copy what is intact in the store at `source` into a new store at `target`.

    Raises InvalidRequestError if `target` is not empty or lies inside `source`, DirectoryLockedError if another process is
    salvaging to `target`, NotWaltzError, DiskError; `target` does not exist then, unless another process made it.
    """
    target = Path(os.path.abspath(target))
    work = target.with_name(target.name + disk.TEMPORARY_SUFFIX)
    if any(one.resolve().is_relative_to(source.resolve()) for one in (target, work)):
        raise InvalidRequestError(f"{target}: lies in the store that is salvaged", advice="name another directory")
    check_new(target, renamed=True, taken=InvalidRequestError)
    view = view_store(source)
    shown = _visible_versions(view)
    findings = list(view.findings)
    kept: list[_VisibleVersion] = []
    lost: list[PageId] = []
    if work.exists():
        with DirectoryLock.acquire(work, None):  # otherwise another process is writing it
            disk.remove_tree(work)  # left by an interrupted salvage
    with PageStorage.create(work, PageOptions(records_twice=view.contents.written_twice)) as store:
        try:
            gaps: list[BlobSpan] = []
            for batch in _batches(view, shown, findings, kept, lost):
                if batch.data:  # a gap: the copy of a page may be in the previous batch
                    gaps += store.place([bytes(store.blobs.between_copies)])
                store.write(batch)
            store.give_back(gaps)
            for namespace, highest in view.directory.highest_ids.items():
                if highest > store.max_id(namespace=namespace):
                    store.write(WriteBatch(namespace).put_external(highest))
                    store.write(WriteBatch(namespace).delete(highest))
            with renamed(work, target):  # while it is locked
                disk.sync_directory(target.parent)
        except BaseException:
            with contextlib.suppress(DiskError):
                disk.remove_tree(work)
            raise
    return PageSalvage(
        source, target, sum(one.entry is not None and not one.held for one in kept),
        sum(len(one.references) for one in kept), sum(one.entry is None and not one.held for one in kept),
        sum(one.entry.size for one in kept if one.entry is not None), tuple(sorted(lost)), tuple(findings),
    )  # fmt: skip


def _visible_versions(view: StoreView) -> list[_VisibleVersion]:
    """All visible versions, ordered by namespace and version: older versions of a page come before its last one."""
    found: dict[tuple[PageId, Version], list[Located]] = {}
    for one in view.pages():
        found.setdefault((one.origin, one.version), []).append(one)
    shown = [_VisibleVersion(*key, pages[0].entry, tuple(pages)) for key, pages in found.items()]
    return sorted(shown, key=lambda one: (one.origin.namespace, one.version, one.origin))


def _batches(
    view: StoreView,
    shown: list[_VisibleVersion],
    findings: list[Finding],
    kept: list[_VisibleVersion],
    lost: list[PageId],
) -> Iterator[WriteBatch]:
    """Batches of the new store.  A version and all pages that show it are in one batch.

    A version that only references show is written and deleted in the same batch.  Pages whose data is damaged are added to `lost`
    and `findings`, the others to `kept`.
    """
    live = {located.page for one in shown for located in one.pages}
    taken = live | {one.origin for one in shown}
    free = {each: _free_ids(each, highest, taken) for each, highest in view.directory.highest_ids.items()}
    batch, size = WriteBatch(), 0
    written: set[int] = set()
    for one in shown:
        origin = one.origin
        number = origin.id
        if one.held and origin in live:  # the page has a newer version of its own
            number = next(free[origin.namespace])
        if batch.namespace != origin.namespace or size > _BATCH or number in written:
            yield batch
            batch, size, written = WriteBatch(origin.namespace), 0, set()
        if one.entry is None:
            batch.put_external(number)
        else:
            data, fault = read_checked(view.path, origin, one.entry)
            if fault is not None:
                findings.append(fault)
                lost += [located.page for located in one.pages]
                continue
            batch.put_page(number, data, tag=one.entry.tag, field_sizes=_field_sizes(one.entry))
            size += one.entry.size
        kept.append(one)
        written.add(number)
        for page in one.references:
            batch.put_ref(page.id, number)
        if one.held:
            batch.delete(number)
    yield batch


def _free_ids(namespace: int, highest: int, taken: set[PageId]) -> Iterator[int]:
    """Unused ids of a namespace, each once: first those above the highest id, then lower ones."""
    ids = itertools.chain(range(highest + 1, LAST_ID + 1), range(highest))
    return (one for one in ids if PageId(namespace, one) not in taken)


def _field_sizes(entry: PageEntry) -> list[int]:
    ends = [*(one.offset for one in entry.fields[1:]), entry.size]
    return [end - one.offset for one, end in zip(entry.fields, ends, strict=False)]
