"""pages gc: give back what nobody sees any more."""

from __future__ import annotations

from waltzctl.commands.pages.verify import StoreArgument
from waltzctl.console import Console
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual
from waltzctl.options import FormatOption, QuietOption, VerboseOption, path_of
from waltzctl.values import counted, human_bytes

MANUAL = Manual(
    name="gc",
    page="pages",
    summary="Release the space of superseded versions",
    description=(
        (
            "Opens the store, which no other process may have open; writes a checkpoint of its log; drops superseded"
            " versions; moves pages out of files that are mostly empty, checking each page; and cuts and removes files"
            " until nothing is left to do. A torn tail of the log is moved to the quarantine. No page changes, and a"
            " crash at any moment loses nothing."
        ),
        "A page whose checksum is wrong, or that the disk cannot read, stays where it is and is named.",
    ),
    examples=(Example("waltzctl pages gc /data/vault", "Until nothing is left to release."),),
    statuses=(
        ExitStatus.CLEAN,
        ExitStatus.USAGE,
        ExitStatus.DAMAGED,
        ExitStatus.DAMAGE_REMAINS,
        ExitStatus.NOT_WALTZ,
        ExitStatus.LOCKED,
        ExitStatus.IO_ERROR,
        ExitStatus.INTERRUPTED,
    ),
    objects=("page-gc-result",),
)


def run(
    path: StoreArgument,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Open, collect, report."""
    directory = path_of(path, name="DIR")

    from waltzctl.engine.pages.page_gc import collect_until_done
    from waltzctl.engine.pages.page_storage import PageStorage
    from waltzctl.objects.pages_objects import PAGE_GC_RESULT

    with Console(output_format, quiet=quiet, verbose=verbose, single=True, must_finish=True) as console:
        with PageStorage.open(directory) as store:
            before = store.blob_size()
            report, rounds = collect_until_done(store)
            after = store.blob_size()
        status = ExitStatus.DAMAGE_REMAINS if report.findings else ExitStatus.CLEAN
        shown = PAGE_GC_RESULT.shown(
            report,
            path=str(directory),
            exit_status=int(status),
            rounds=rounds,
            blob_bytes_before=before,
            blob_bytes=after,
        )
        console.emit_result(shown, status)
        moved = f"{counted(report.pages_moved, 'page')} moved, {counted(report.versions, 'version')} let go"
        console.success(f"COLLECTED  {human_bytes(before)} of blob files became {human_bytes(after)}; {moved}.")
    return status
