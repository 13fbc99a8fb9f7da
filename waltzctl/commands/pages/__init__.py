"""pages: look at page stores, give their room back, and recover or save damaged ones."""

from __future__ import annotations

from types import ModuleType

from waltzctl.commands.pages import dump, gc, recover, salvage, status, verify
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual, ManualSection

ACTIONS: tuple[ModuleType, ...] = (verify, status, dump, gc, recover, salvage)
"""One file each, in the order in which ``--help`` lists them."""

MANUAL = Manual(
    name="pages",
    summary="Inspect page stores, release their space, recover damaged ones",
    description=(
        (
            "A page store is a directory with numbered pages of data in namespaces: wal/ has its log, blob/ the data."
            " verify, status and dump only read, take no lock and work while a process has the store open. gc and"
            " recover change the store; salvage writes to another directory."
        ),
    ),
    examples=(
        Example("waltzctl pages verify /data/vault", "Read the log and every page."),
        Example("waltzctl pages status /data/vault", "Number of pages, and how full the files are."),
        Example("waltzctl pages dump /data/vault --what log --format ndjson", "The log, edit by edit."),
        Example("waltzctl pages gc /data/vault", "Release space of superseded versions."),
        Example("waltzctl pages recover /data/vault --mode skip-damaged --dry-run", "What would be given up?"),
        Example("waltzctl pages salvage /data/vault --to /data/saved", "Write every intact page into a new store."),
    ),
    statuses=(
        ExitStatus.CLEAN,
        ExitStatus.USAGE,
        ExitStatus.REPAIRABLE,
        ExitStatus.DAMAGED,
        ExitStatus.DAMAGE_REMAINS,
        ExitStatus.NOT_WALTZ,
        ExitStatus.LOCKED,
        ExitStatus.REFUSED,
        ExitStatus.IO_ERROR,
        ExitStatus.INTERRUPTED,
    ),
    objects=(
        "finding",
        "page-verify-summary",
        "page-store-status",
        "page-version",
        "page-log-edit",
        "page-free-range",
        "page-gc-result",
        "page-salvage-report",
        "plan",
        "result",
    ),
    sections=(
        ManualSection(
            "THE LOG",
            (
                (
                    "A write puts its data into a blob file and syncs it, then appends one record to the log and syncs"
                    " the log; only then is it complete. An interrupted write leaves bytes at the end of the last log"
                    " file that no record follows: a torn tail, which loses nothing and is cut when the store is"
                    " opened. Any other invalid place in the log is damage, and the store is not opened: confirmed"
                    " records may be lost there, and new writes would hide that."
                ),
                (
                    "A checkpoint, log_N_1, replaces all logs up to N. Every log except the last one ends with an"
                    " empty record, so a log that was cut short is detected. Log numbers have no gaps."
                ),
            ),
        ),
    ),
)


def run() -> None:
    """Nothing: the action does it all."""
