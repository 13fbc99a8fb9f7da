"""pages verify: whether the log is whole, and every page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from waltzctl.console import Console
from waltzctl.exit_status import INSPECTING, ExitStatus
from waltzctl.manual import Example, Manual
from waltzctl.options import FormatOption, QuietOption, VerboseOption, path_of
from waltzctl.values import counted, human_bytes, human_duration, verdict

if TYPE_CHECKING:
    from waltzctl.engine.pages.inspection import PageVerification

StoreArgument = Annotated[str, typer.Argument(metavar="DIR", help="A page store.", show_default=False)]

MANUAL = Manual(
    name="verify",
    page="pages",
    summary="Read the log and every page, and name what is damaged",
    description=(
        (
            "Checks every record of the log, every page's data against its checksum, that no two pages claim the same"
            " bytes, and that every file exists. Nothing is locked or changed. In a store that is being written, a"
            " finding is reported only if a second check confirms it."
        ),
    ),
    examples=(Example("waltzctl pages verify /data/vault", "Read everything."),),
    statuses=INSPECTING,
    objects=("finding", "page-verify-summary"),
)


def run(
    path: StoreArgument,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Look and report."""
    store = path_of(path, name="DIR")

    from waltzctl.engine.columns.finding_columns import FINDING
    from waltzctl.engine.pages.inspection import verify_store
    from waltzctl.objects.pages_objects import PAGE_VERIFY_SUMMARY

    with Console(output_format, quiet=quiet, verbose=verbose) as console:
        found = verify_store(store)
        console.known = status = ExitStatus.from_label(found.status)
        silent = quiet and console.for_people
        for finding in found.findings:
            if not (silent and finding.severity == "note"):
                console.emit(FINDING.shown(finding))
        if not (silent and status is ExitStatus.CLEAN):
            console.emit(PAGE_VERIFY_SUMMARY.shown(found), flush=True)
            console.sentence(_conclusion(found))
    return status


def _conclusion(found: PageVerification) -> str:
    remedies = dict.fromkeys(one.remedy for one in found.findings if one.remedy is not None)
    lines = ["What mends it:", *(f"  {remedy}" for remedy in remedies)] if remedies else []
    many = counted(len(found.findings), "finding") if found.findings else "no findings"
    read = f"{counted(found.pages, 'page')} and {counted(found.log_records, 'log record')}"
    took = f"{human_bytes(found.bytes)}, {human_duration(found.elapsed_seconds)}"
    return "\n".join([*lines, f"{verdict(found.status)}  {many} in {read} ({took}). Nothing was modified."])
