"""Kinds of findings about a page store, and about backups in one."""

from __future__ import annotations

from collections.abc import Iterable

from waltzctl.engine.catalogue.finding_kinds import Code, FindingKind, Severity


def page_store_kinds() -> Iterable[FindingKind]:
    """The kinds, in the order of the manual page."""
    damage, repairable = Severity.DAMAGE, Severity.REPAIRABLE
    yield FindingKind(
        Code.PAGE_CHECKSUM, damage,
        "In a page store, the data of a page, or of one of its fields, does not match its checksum, or the disk cannot read"
        " it.",
        "The page is never served. Write it again from its original source; other pages are not affected.",
    )  # fmt: skip
    yield FindingKind(
        Code.PAGE_MISSING, damage,
        "In a page store, a page's data lies in a missing blob file, or beyond the end of one.",
        "Restore the blob file from a copy, or write the page again from its original source.",
    )  # fmt: skip
    yield FindingKind(
        Code.LOG_RECORD_CHECKSUM, damage,
        "A part of a page store's log is damaged, and later records follow it: edits that were confirmed as written"
        " may be lost. The store is not opened.",
        "Restore the file from a copy, salvage the intact pages into a new directory, or recover in place (pages"
        " recover).",
        "pages salvage --to DIR",
    )  # fmt: skip
    yield FindingKind(
        Code.LOG_TORN_TAIL, repairable,
        "The last write to a page store's log was interrupted: the last file ends with bytes that are no record, and"
        " no record follows them. This write was never confirmed.",
        "The next process that opens the store for writing copies these bytes to the quarantine and cuts them off.", "pages gc",
    )  # fmt: skip
    yield FindingKind(
        Code.LOG_MISSING, damage,
        "A file of a page store's log is missing although later ones exist, and no checkpoint covers it; or there is"
        " no log file at all, and blob files hold data.",
        "Restore the file from a copy, salvage what the other files hold into a new directory, or recover in place.",
        "pages salvage --to DIR",
    )  # fmt: skip
    yield FindingKind(
        Code.SPACE_OVERLAP, damage,
        "In a page store, two pages claim the same bytes of a blob file. At most one of them is intact.",
        "The checksums tell which page is intact: salvage writes it into a new directory, pages recover keeps it in"
        " place.",
        "pages salvage --to DIR",
    )  # fmt: skip
    yield FindingKind(
        Code.SPACE_LEAKED, repairable,
        "In a page store, a blob file extends beyond the last page that the log names, as a crash between writing data"
        " and log leaves it. Space of deleted pages that was not collected yet is not reported.",
        "pages gc cuts the file.", "pages gc",
    )  # fmt: skip
    yield FindingKind(
        Code.BACKUP_INCOMPLETE, damage,
        "In a backup vault, a part of a backup cannot be read: its pages are damaged or missing. The rest can be"
        " restored.",
        "backup repair replaces damaged pages from a directory that still holds their content, such as another replica.",
    )  # fmt: skip
