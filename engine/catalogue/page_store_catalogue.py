"""Kinds of findings about a page store, and about backups in one."""

from __future__ import annotations

from collections.abc import Iterable

from waltzctl.engine.catalogue.finding_kinds import Code, FindingKind, Severity


def page_store_kinds() -> Iterable[FindingKind]:
    """The kinds, in the order of the manual page."""
    damage, repairable = Severity.DAMAGE, Severity.REPAIRABLE
    yield FindingKind(
        Code.PAGE_CHECKSUM, damage,
        "In a page store, the data of a page or of a field of it does not agree with its checksum.",
        "The page is never served. Write it anew from where its data came from; the other pages are not concerned.",
    )  # fmt: skip
    yield FindingKind(
        Code.PAGE_MISSING, damage,
        "In a page store, a page's data lies in a blob file that is not there, or behind its end.",
        "Bring the blob file back from a copy, or write the page anew from where its data came from.",
    )  # fmt: skip
    yield FindingKind(
        Code.LOG_RECORD_CHECKSUM, damage,
        "A part of a page store's log is damaged, and records follow that were written later: edits that somebody was promised"
        " may be lost. The store is not opened.",
        "Bring the file back from a copy, salvage what is whole into a new directory, or recover in place (pages recover).",
        "pages salvage --to DIR",
    )  # fmt: skip
    yield FindingKind(
        Code.LOG_TORN_TAIL, repairable,
        "The last write to a page store's log was interrupted: bytes at the end of the last file make no record, and none begins"
        " behind them. Nobody was told that it had succeeded.",
        "Whoever opens the store for writing puts it into the quarantine and cuts it.", "pages gc",
    )  # fmt: skip
    yield FindingKind(
        Code.LOG_MISSING, damage,
        "A file of a page store's log is not there though later ones are, and no checkpoint holds what it said; or none is there,"
        " and blob files hold data.",
        "Bring the file back from a copy, salvage what the others hold into a new directory, or recover in place.",
        "pages salvage --to DIR",
    )  # fmt: skip
    yield FindingKind(
        Code.SPACE_OVERLAP, damage,
        "In a page store, two pages claim the same bytes of a blob file. At most one of them can be right.",
        "The checksums tell which page is whole: salvage takes that one into a new directory, pages recover in place.",
        "pages salvage --to DIR",
    )  # fmt: skip
    yield FindingKind(
        Code.SPACE_LEAKED, repairable,
        "In a page store, a blob file reaches beyond the last page that the log knows of, as a crash leaves it between data and"
        " log. Room of pages that were deleted and not yet collected is none.",
        "pages gc cuts the file.", "pages gc",
    )  # fmt: skip
    yield FindingKind(
        Code.BACKUP_INCOMPLETE, damage,
        "In a backup vault, a part of a backup cannot be read: its pages are damaged or gone. The rest of it can be restored.",
        "backup repair takes damaged pages anew from a directory that still holds what was in them, such as another replica.",
    )  # fmt: skip
