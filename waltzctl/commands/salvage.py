"""salvage: carve records out of anything that holds them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from waltzctl.commands.create_cluster import cluster_key_of
from waltzctl.console import Console
from waltzctl.engines import ENGINE, Computing, with_engine
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual, ManualSection
from waltzctl.options import FormatOption, LayoutName, QuietOption, VerboseOption, parsed, path_of
from waltzctl.render.progress_bar import progress
from waltzctl.values import counted

if TYPE_CHECKING:
    from pathlib import Path
    from uuid import UUID

    from waltzctl.engine.repair.salvage import SalvageReport

MANUAL = Manual(
    name="salvage",
    summary="Extract intact records from any files or devices",
    description=(
        (
            "Reads each SOURCE (a damaged segment, a concatenation of files, a directory tree, a raw disk image),"
            " finds every intact record in it without using indexes, headers or file names, and writes a clean storage"
            " directory to DIR. Sources are only read. DIR must be new or empty; it appears when it is complete and"
            " has been read back."
        ),
        (
            "Control files are searched as well, in either layout: the one that is found supplies sessions, marks and"
            " the number of partitions. --control writes only the control file into DIR, next to partitions that"
            " survived without one."
        ),
        (
            "The report lists records that were found, written, found more than once, doubtful and missing, and what below"
            " a SOURCE could not be listed or opened. Nothing is dropped silently."
        ),
    ),
    examples=(
        Example("waltzctl salvage /mnt/old/waltz --to /data/salvaged", "Everything that a damaged node still holds."),
        Example(
            "waltzctl salvage disk.img --to /data/salvaged --key 01234567-89ab-cdef-0123-456789abcdef",
            "One cluster's records out of a raw disk image.",
        ),
        Example(
            "waltzctl salvage broken.seg --to /data/salvaged --partition 3 --partitions 8",
            "A single file; its partition and the number of partitions are known from elsewhere.",
        ),
        Example(
            "waltzctl salvage disk.img --control --to /data/waltz",
            "Only the control file of /data/waltz is lost: search for it in the image.",
        ),
    ),
    statuses=(
        ExitStatus.CLEAN,
        ExitStatus.USAGE,
        ExitStatus.DAMAGED,
        ExitStatus.DAMAGE_REMAINS,
        ExitStatus.NOT_WALTZ,
        ExitStatus.REFUSED,
        ExitStatus.IO_ERROR,
        ExitStatus.INTERRUPTED,
    ),
    objects=("salvage-report", "salvaged-control"),
    sections=(
        ENGINE,
        ManualSection(
            "TRUST",
            (
                (
                    "A record is accepted if its checksum is right. Its partition is taken from the segment header"
                    " before it, from neighbouring records, or from its request id. If there is no evidence, or"
                    " evidence against it, the record is counted as doubtful and left out; --key and --partition"
                    " settle such cases."
                ),
                (
                    "If several intact copies of one transaction differ, one is written; the report gives the reason,"
                    " and the places of the other copies."
                ),
            ),
        ),
        ManualSection(
            "CONTROL FILES",
            (
                (
                    "A control file is accepted if its header is plausible and, after it, the id of a partition and"
                    " the checksum of a struct are right. A struct with a wrong checksum is never used. If several"
                    " states of one node's file are found, the newest is used: by sequence number and session, or by"
                    " session and marks. If files of several nodes are found (different creation times or numbers of"
                    " partitions), or states that contradict each other, all are reported and none is used, until"
                    " --control-at selects one."
                ),
                (
                    "If no control file is used, every partition gets the initial marks: a Waltz server treats such a"
                    " replica as empty, and truncates it. If one is used, and a mark is above the records that were"
                    " found, this is a loss: the report and verify name the transactions, and the mark stays."
                ),
                (
                    "With --control DIR must have no control file, and only this file is written, in the layout in"
                    " which it was found. A pair whose structs are both lost stays invalid. To revert it, remove the"
                    " file."
                ),
            ),
        ),
    ),
)


@with_engine
def run(
    sources: Annotated[
        list[str], typer.Argument(metavar="SOURCE...", help="Files, devices or directories.", show_default=False)
    ],
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="The directory to write.", show_default=False)],
    key: Annotated[
        str | None, typer.Option("--key", metavar="UUID", help="Cluster key; needed if several are found.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", metavar="P", min=0, help="Only this partition.")
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", metavar="N", min=1, max=1_000_000, help="Number of partitions; default: as found in SOURCE."
        ),
    ] = None,
    layout: Annotated[
        LayoutName | None,
        typer.Option("--layout", help="Layout of the control file; default: as found, or documented."),
    ] = None,
    control: Annotated[
        bool, typer.Option("--control", help="Write only the control file, into a DIR that has none.")
    ] = False,
    control_at: Annotated[
        str | None,
        typer.Option("--control-at", metavar="FILE:OFFSET", help="The control file to use, if several are found."),
    ] = None,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
    computing: Computing = Computing(),  # noqa: B008  # frozen
) -> ExitStatus:
    """Carve, write and report."""
    wanted = [path_of(text, name="SOURCE") for text in sources]
    target = path_of(to, name="--to")
    cluster_key = parsed("--key", key, cluster_key_of)

    if control:
        for name, given in (("--partition", partition), ("--layout", layout)):
            if given is not None:
                reason = "--control writes the control file of all partitions, in the layout in which it is found"
                raise typer.BadParameter(reason, param_hint=f"'{name}'")
        for name, chosen in computing.given.items():
            if chosen is not None:
                raise typer.BadParameter("--control reads here, and no records", param_hint=f"'--{name}'")
        return _control(
            Console(output_format, quiet=quiet, verbose=verbose, single=True, must_finish=True),
            wanted, target, cluster_key, partitions, control_at, verbose,
        )  # fmt: skip

    from waltzctl.engine.repair.salvage import salvage
    from waltzctl.formats.control import Layout
    from waltzctl.objects.salvage_objects import SALVAGE_REPORT

    with Console(output_format, quiet=quiet, verbose=verbose, single=True, must_finish=True) as console:
        with (
            progress(quiet=quiet, verbose=verbose) as listener,
            computing.executor(
                (), listener, quiet=quiet
            ) as executor,  # auto: here, since an image has no names to plan from
        ):
            report = salvage(
                wanted,
                to=target,
                cluster_key=cluster_key,
                partition=partition,
                num_partitions=partitions,
                layout=None if layout is None else Layout(layout.value),
                control_at=control_at,
                progress=listener,
                executor=executor,
            )
        status = ExitStatus.from_label(report.exit_status_name)
        console.emit_result(SALVAGE_REPORT.shown(report), status)
        if report.num_partitions_from == "records":
            console.note(_assumed(report))
        if not report.marks_known:
            console.note(_no_marks(report))
        words = f"{counted(report.written, 'record')} written to {report.path}; {_left_out(report)}"
        if status is ExitStatus.CLEAN:
            console.success(f"SALVAGED  {words}")
        else:
            console.sentence(f"SALVAGED IN PART  {words}")
    return status


def _control(
    console: Console,
    sources: list[Path],
    target: Path,
    cluster_key: UUID | None,
    partitions: int | None,
    control_at: str | None,
    verbose: int,
) -> ExitStatus:
    """Find, write and report a control file alone."""
    from waltzctl.engine.repair.salvage_control_file import salvage_control_file
    from waltzctl.objects.salvage_objects import SALVAGED_CONTROL

    with console, progress(quiet=console.quiet, verbose=verbose) as listener:
        found = salvage_control_file(
            sources,
            to=target,
            cluster_key=cluster_key,
            num_partitions=partitions,
            control_at=control_at,
            progress=listener,
        )
        status = ExitStatus.from_label(found.exit_status_name)
        console.emit_result(SALVAGED_CONTROL.shown(found), status)
        words = f"the control file of {counted(found.num_partitions, 'partition')} written to {found.path}"
        if status is ExitStatus.CLEAN:
            console.success(f"SALVAGED  {words}; verify finds nothing wrong. The sources were not modified.")
        else:
            console.sentence(
                f"SALVAGED IN PART  {words}; {counted(len(found.findings), 'finding')} of verify. The sources were not modified."
            )
    return status


def _assumed(report: SalvageReport) -> str:
    """That nothing told how many partitions the cluster has."""
    many = counted(report.num_partitions, "partition")
    return (
        f"{many} assumed: {report.num_partitions - 1} is the highest that records were found of, and no control file tells;"
        " a node refuses a directory of another number than its cluster's: if it has more, salvage again with --partitions N"
    )


def _no_marks(report: SalvageReport) -> str:
    """Why every partition has the initial marks."""
    if not report.controls:
        why = "no control file was found"
    else:
        why = "; ".join(dict.fromkeys(f"control file not used: {one.reason}" for one in report.controls))
    return f"{why}; every partition has the initial marks, and a Waltz server would truncate it"


def _left_out(report: SalvageReport) -> str:
    parts = [
        (report.missing, "missing"),
        (report.acknowledged_missing, "acknowledged and missing at the end"),
        (len(report.marks_unknown), "partitions without marks"),
        (report.doubtful_records, "doubtful"),
        (report.superseded, "in conflict"),
        (report.elsewhere, "of another cluster or partition"),
        (sum(one.length for one in report.unreadable), "bytes unreadable"),
        (len(report.unread), "files or directories not read"),
        (len(report.findings), "findings of verify"),
    ]
    told = [f"{number} {what}" for number, what in parts if number]
    return (", ".join(told) if told else "nothing missing or doubtful") + ". The sources were not modified."
