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
    summary="Look at page stores, give their room back, recover damaged ones",
    description=(
        (
            "A page store is a directory with numbered pages of data in namespaces: wal/ has its log, blob/ the data. verify,"
            " status and dump only read, take no lock and work beside a process that has the store open; gc, recover and"
            " salvage change something, salvage in another directory."
        ),
    ),
    examples=(
        Example("waltzctl pages verify /data/vault", "Read the log and every page."),
        Example("waltzctl pages status /data/vault", "How many pages, and how full the files are."),
        Example("waltzctl pages dump /data/vault --what log --format ndjson", "What was written, edit by edit."),
        Example("waltzctl pages gc /data/vault", "Give back what nobody sees any more."),
        Example("waltzctl pages recover /data/vault --mode skip-damaged --dry-run", "What would a recovery give up?"),
        Example("waltzctl pages salvage /data/vault --to /data/saved", "Everything that is whole, into a new store."),
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
                    "A write puts its data into a blob file and flushes it, then writes one record to the log and flushes that;"
                    " only then is it done. So an interrupted write leaves bytes at the end of the last file of the log behind"
                    " which no record begins: a torn tail, which costs nothing and is cut when the store is opened. Any other"
                    " place that is not whole is damage, and the store is not opened: records that somebody was promised may be"
                    " lost there, and writing on would bury that."
                ),
                (
                    "A checkpoint, log_N_1, holds all that the logs up to N said. A log that is not the last one ends with an"
                    " empty record, so that one that was cut short is noticed, and no number is left out."
                ),
            ),
        ),
    ),
)


def run() -> None:
    """Nothing: the action does it all."""
