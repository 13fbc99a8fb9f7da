"""pages salvage: everything that is whole of a damaged store, into a new one."""

from __future__ import annotations

from typing import Annotated

import typer

from waltzctl.commands.pages.verify import StoreArgument
from waltzctl.console import Console
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual
from waltzctl.options import FormatOption, QuietOption, VerboseOption, path_of
from waltzctl.values import counted

MANUAL = Manual(
    name="salvage",
    page="pages",
    summary="Write every intact page into a new store",
    description=(
        (
            "Takes every valid record of the log, also after damage, and every page whose data matches its checksum."
            " Pages that are not intact are named, with the references to them. The source is not changed."
        ),
        (
            "If records of the log are lost, a page may return in an older version, or a deleted page may return; this"
            " cannot be detected. The findings of the log show that something is missing."
        ),
    ),
    examples=(Example("waltzctl pages salvage /data/vault --to /data/saved", "Save the intact pages."),),
    statuses=(
        ExitStatus.CLEAN,
        ExitStatus.USAGE,
        ExitStatus.DAMAGE_REMAINS,
        ExitStatus.NOT_WALTZ,
        ExitStatus.LOCKED,
        ExitStatus.IO_ERROR,
        ExitStatus.INTERRUPTED,
    ),
    objects=("page-salvage-report",),
)


def run(
    path: StoreArgument,
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="The directory to write.", show_default=False)],
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Read, write and report."""
    source, target = path_of(path, name="DIR"), path_of(to, name="--to")

    from waltzctl.engine.pages.page_salvage import salvage_store
    from waltzctl.objects.pages_objects import PAGE_SALVAGE_REPORT

    with Console(output_format, quiet=quiet, verbose=verbose, single=True, must_finish=True) as console:
        report = salvage_store(source, target)
        status = ExitStatus.from_label(report.exit_status_name)
        console.emit_result(PAGE_SALVAGE_REPORT.shown(report), status)
        written = report.pages + report.references + report.external_pages
        words = f"{counted(written, 'page')} written to {report.path}"
        if status is ExitStatus.CLEAN:
            console.success(f"SALVAGED  {words}; nothing is missing. The source was not modified.")
        else:
            lost = counted(len(report.lost), "page")
            console.sentence(f"SALVAGED IN PART  {words}, {lost} lost. The source was not modified.")
    return status
