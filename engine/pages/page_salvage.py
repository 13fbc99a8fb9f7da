"""Salvage: every page that is whole goes into a new store, and every one that is not is named.

The log is read with everything that proves itself, whatever is missing between; a page counts when its bytes agree with their
checksum.  Where a part of the log is lost, a page may come back that was deleted there, or in an older version: nothing can tell.
References stay references, and nothing is copied twice.

The store is built beside the directory that is asked for, and gets its name at the end: it is there whole or not at all.  A part
of one could not be told from a whole one later on.  What a killed salvage left is removed by the next one of the same name.
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
from waltzctl.engine.errors import DiskError, InvalidRequestError
from waltzctl.engine.findings import Finding, Severity
from waltzctl.engine.pages.blob_stats import BlobSpan
from waltzctl.engine.pages.inspection import StoreView, view_store
from waltzctl.engine.pages.page_batch import LAST_ID, WriteBatch
from waltzctl.engine.pages.page_data import is_whole, page_finding, read_page
from waltzctl.engine.pages.page_directory import Located
from waltzctl.engine.pages.page_options import PageOptions
from waltzctl.engine.pages.page_storage import PageStorage
from waltzctl.formats.pages.write_batch import PageEntry, PageId, Version

_BATCH = 8 << 20
"""Bytes of pages that are written at once."""


@dataclass(frozen=True, slots=True)
class PageSalvage:
    """What was written, and what was not: `lost` are pages whose data is damaged, with all that refer to them."""

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
        """``clean`` where nothing was lost that anybody was promised, as far as the log can tell."""
        return "damage-remains" if any(one.severity is Severity.DAMAGE for one in self.findings) else "clean"


@dataclass(frozen=True, slots=True)
class _Shown:
    """An entry or external page, and the pages that show it, of which its own may be one."""

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
    """Write what is whole of the store at `source` into a new one at `target`.

    Raises InvalidRequestError where `target` is not empty or inside `source`, DirectoryLockedError where another one writes it,
    NotWaltzError, DiskError; nothing of this one has the name `target` then.
    """
    target = Path(os.path.abspath(target))
    place = target.with_name(target.name + disk.TEMPORARY_SUFFIX)
    if any(one.resolve().is_relative_to(source.resolve()) for one in (target, place)):
        raise InvalidRequestError(f"{target}: lies in the store that is salvaged", advice="name another directory")
    check_new(target, renamed=True, taken=InvalidRequestError)
    view = view_store(source)
    shown = _shown(view)
    findings = list(view.findings)
    kept: list[_Shown] = []
    lost: list[PageId] = []
    if place.exists():
        with DirectoryLock.acquire(place, None):  # or another one is at it
            disk.remove_tree(place)  # of a salvage that did not come to its end
    with PageStorage.create(place, PageOptions(records_twice=view.contents.written_twice)) as store:
        try:
            between: list[BlobSpan] = []
            for batch in _batches(view, shown, findings, kept, lost):
                if batch.data:  # of what is kept twice the other copy may be in the batch before
                    between += store.place([bytes(store.blobs.between_copies)])
                store.write(batch)
            store.give_back(between)
            for namespace, highest in view.directory.highest_ids.items():
                if highest > store.max_id(namespace=namespace):
                    store.write(WriteBatch(namespace).put_external(highest))
                    store.write(WriteBatch(namespace).delete(highest))
            disk.rename(place, target)  # as long as it is locked
            disk.sync_directory(target.parent)
        except BaseException:
            with contextlib.suppress(DiskError):
                disk.remove_tree(place)
            raise
    return PageSalvage(
        source, target, sum(one.entry is not None and not one.held for one in kept),
        sum(len(one.references) for one in kept), sum(one.entry is None and not one.held for one in kept),
        sum(one.entry.size for one in kept if one.entry is not None), tuple(sorted(lost)), tuple(findings),
    )  # fmt: skip


def _shown(view: StoreView) -> list[_Shown]:
    """By namespace, and older versions of a page in front of its last one."""
    found: dict[tuple[PageId, Version], list[Located]] = {}
    for one in view.pages():
        found.setdefault((one.origin, one.version), []).append(one)
    shown = [_Shown(*key, pages[0].entry, tuple(pages)) for key, pages in found.items()]
    return sorted(shown, key=lambda one: (one.origin.namespace, one.version, one.origin))


def _batches(
    view: StoreView, shown: list[_Shown], findings: list[Finding], kept: list[_Shown], lost: list[PageId]
) -> Iterator[WriteBatch]:
    """What an entry is shown by goes into one batch.  An entry that only references show is written and deleted in it."""
    live = {located.page for one in shown for located in one.pages}
    taken = live | {one.origin for one in shown}
    free = {each: _free_ids(each, highest, taken) for each, highest in view.directory.highest_ids.items()}
    batch, size = WriteBatch(), 0
    written: set[int] = set()
    for one in shown:
        origin = one.origin
        number = origin.id
        if one.held and origin in live:  # the page shows something else by now
            number = next(free[origin.namespace])
        if batch.namespace != origin.namespace or size > _BATCH or number in written:
            yield batch
            batch, size, written = WriteBatch(origin.namespace), 0, set()
        if one.entry is None:
            batch.put_external(number)
        else:
            data = read_page(view.path, one.entry)
            if not is_whole(one.entry, data):
                findings.append(page_finding(view.path, origin, one.entry, one.entry.offset, one.entry.size, len(data)))
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
    """Ids of a namespace that no page has, behind the highest one as long as there are any; each once."""
    ids = itertools.chain(range(highest + 1, LAST_ID + 1), range(highest))
    return (one for one in ids if PageId(namespace, one) not in taken)


def _field_sizes(entry: PageEntry) -> list[int]:
    ends = [*(one.offset for one in entry.fields[1:]), entry.size]
    return [end - one.offset for one, end in zip(entry.fields, ends, strict=False)]
