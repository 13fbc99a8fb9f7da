"""Forgetting backups, and freeing the space that no backup needs any more.

The heads go in one batch of the page store, however many backups it removes, with the first of their pages; the rest of the pages
follows in further batches, so that memory does not grow with them.  What is left of them after a crash belongs to no backup, and
`prune_vault` deletes it.  Pages that other backups refer to stay; the space of the others is freed by `prune_vault`, which runs
the page store's garbage collection.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from waltzctl.engine.backup.retention import Retention, kept
from waltzctl.engine.backup.writable_vault import advising_room, make_room, open_vault
from waltzctl.engine.errors import DiskFullError, InvalidRequestError, StalePlanError
from waltzctl.engine.findings import Finding
from waltzctl.engine.pages.page_batch import UNWRITTEN
from waltzctl.engine.pages.page_gc import GcReport, collect_until_done
from waltzctl.engine.pages.page_storage import PageStorage
from waltzctl.engine.vault.vault_path import SCHEME
from waltzctl.engine.vault.vault_reader import UnreadableBackup, VaultReader
from waltzctl.formats.adapters import format_time
from waltzctl.formats.pages.write_batch import Edit, EditType, PageId
from waltzctl.formats.vault import BackupHead, Namespace

DELETED_AT_ONCE = 200_000
"""Pages of a batch; each takes a third of a kilobyte of memory."""


@dataclass(frozen=True, slots=True)
class ForgetStep:
    """A backup to forget; `path`: its vault path."""

    path: str
    reason: str
    action: str = "forget"
    partition: int | None = None
    loses_data: bool = True


@dataclass(frozen=True, slots=True)
class ForgetPlan:
    """The backups to forget.

    - `unreadable`: ids of those among them whose heads cannot be read.
    - `kept`: how many backups stay.
    - `keeping`: with retention rules, the ids of those that stay; if one of them is gone, the plan is stale.
    """

    vault: Path
    forgotten: tuple[BackupHead, ...]
    unreadable: tuple[int, ...]
    kept: int
    keeping: tuple[int, ...] = ()

    @property
    def steps(self) -> tuple[ForgetStep, ...]:
        """One step per backup."""
        return (
            *(ForgetStep(f"{SCHEME}{self.vault}::{one.name}", _reason(one)) for one in self.forgotten),
            *(ForgetStep(f"{SCHEME}{self.vault}::{one:016x}", "its head cannot be read") for one in self.unreadable),
        )

    @property
    def hash(self) -> str:
        """Differs between plans that forget different backups."""
        names = [*(one.id for one in self.forgotten), *self.unreadable]
        return hashlib.sha256(repr((str(self.vault), names, self.kept)).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Pruned:
    """Result.  `orphans`: pages that belonged to no backup; `before`, `after`: size of all blob files in bytes."""

    orphans: int
    before: int
    after: int
    pages_moved: int
    findings: tuple[Finding, ...]


def plan_forgetting(
    vault: Path, ids: Sequence[str], retention: Retention | None, *, password: bytes | None = None
) -> ForgetPlan:
    """Which backups to forget: those named by `ids`, or those that no rule of `retention` keeps.

    Raises what `VaultReader.open` and `VaultReader.find` raise, InvalidRequestError if neither or both are given.
    """
    if bool(ids) == (retention is not None and retention.keeps_something):
        raise InvalidRequestError(
            "say which backups are to go", advice="give their ids, or rules such as --keep-last 7, and not both"
        )
    reader = VaultReader.open(vault, password)
    there = list(reader.heads())
    heads = [one for one in there if isinstance(one, BackupHead)]
    unreadable = [one.id for one in there if isinstance(one, UnreadableBackup)]
    if retention is not None and retention.keeps_something:
        staying = kept(heads, retention)
        if heads and not staying:  # an unknown tag must not forget everything: that requires explicit ids
            tags = ", ".join(sorted(retention.tags))
            raise InvalidRequestError(
                f"{vault}: no backup has the tag {tags}: every one would go",
                advice="backup list shows the tags; to forget them all, give their ids",
            )
        return ForgetPlan(
            vault,
            tuple(one for one in heads if one.id not in staying),
            (),
            len(staying) + len(unreadable),
            tuple(staying),
        )
    gone: dict[int, BackupHead | None] = {}
    broken = {f"{one:016x}": one for one in unreadable}
    names = reader.ids()  # once: it goes through all pages of the vault, and a script may name every backup
    for text in ids:
        if (lost := broken.get(text.lower())) is not None:
            gone[lost] = None
        else:
            head = reader.find(text, names)
            gone[head.id] = head
    return ForgetPlan(
        vault,
        tuple(one for one in gone.values() if one is not None),
        tuple(name for name, one in gone.items() if one is None),
        len(there) - len(gone),
    )


def forget(plan: ForgetPlan, *, password: bytes | None = None) -> None:
    """Carry out a plan.

    Raises StalePlanError if one of its backups, to be forgotten or kept, is gone already; what `PageStorage.open` and
    `PageStorage.commit` raise.
    """
    with advising_room(), open_vault(plan.vault) as store:
        there = set(VaultReader.over(store, password).ids())
        gone = [*(one.id for one in plan.forgotten), *plan.unreadable]
        if missing := [one for one in gone if one not in there]:
            raise StalePlanError(
                f"{plan.vault}: backup {missing[0]:016x} is gone already; nothing was done", advice="look at it again"
            )
        if missing := [one for one in plan.keeping if one not in there]:
            raise StalePlanError(
                f"{plan.vault}: backup {missing[0]:016x}, which was to be kept, is gone; nothing was done",
                advice="look at it again",
            )
        if plan.kept and there.issubset(gone):  # somebody else has forgotten what this plan keeps
            raise StalePlanError(
                f"{plan.vault}: of the backups that were to be kept none is left; nothing was done",
                advice="look at it again",
            )
        heads = [PageId(name, one) for one in gone for name in (Namespace.BACKUPS, Namespace.BACKUP_COPIES)]
        pages = (
            PageId(Namespace.DATA, head.first_page + number)
            for head in plan.forgotten
            for number in range(head.num_pages)
        )
        make_room(store)
        store.commit(_deletes([*heads, *islice(pages, DELETED_AT_ONCE)]))
        # behind the first batch the backups are forgotten: pruning finds what is left of their pages
        with contextlib.suppress(DiskFullError):
            _delete(store, pages)


def prune_vault(vault: Path, *, password: bytes | None = None) -> Pruned:
    """Free space until nothing is left to free.

    Pages that belong to no backup are deleted first, if the heads of all backups can be read.  Raises what `PageStorage.open` and
    `collect_until_done` raise.
    """
    with advising_room(), open_vault(vault) as store:
        before = store.blob_size()
        make_room(store)
        orphans = _orphans(VaultReader.over(store, password))
        _delete(store, iter(orphans))
        report: GcReport
        report, _ = collect_until_done(store)
        return Pruned(len(orphans), before, store.blob_size(), report.pages_moved, tuple(report.findings))


def _reason(one: BackupHead) -> str:
    return f"the backup of {one.source} of {format_time(one.created_ms)} is not to be kept"


def _orphans(reader: VaultReader) -> list[PageId]:
    heads = list(reader.heads())
    if any(isinstance(one, UnreadableBackup) for one in heads):
        return []
    owned = sorted((one.first_page, one.first_page + one.num_pages) for one in heads if isinstance(one, BackupHead))
    found, reached, place = [], 0, 0
    for page in reader.pages(Namespace.DATA):  # ascending
        while place < len(owned) and owned[place][0] <= page:
            reached, place = max(reached, owned[place][1]), place + 1
        if page >= reached:
            found.append(PageId(Namespace.DATA, page))
    return found


def _delete(store: PageStorage, pages: Iterator[PageId]) -> None:
    """Delete pages in as many batches as they take.  Raises DiskWriteError."""
    while part := [*islice(pages, DELETED_AT_ONCE)]:
        store.commit(_deletes(part))


def _deletes(pages: Iterable[PageId]) -> list[Edit]:
    return [Edit(EditType.DELETE, page, UNWRITTEN) for page in pages]
