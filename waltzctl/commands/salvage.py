"""salvage: carve records out of anything that holds them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from waltzctl.commands.create_cluster import cluster_key_of
from waltzctl.console import Console
from waltzctl.engines import ENGINE, Computing, with_engine
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual, Section
from waltzctl.options import FormatOption, LayoutName, QuietOption, VerboseOption, parsed, path_of
from waltzctl.render.progress import progress
from waltzctl.values import counted

if TYPE_CHECKING:
    from engine.repair.salvage import SalvageReport

MANUAL = Manual(
    name="salvage",
    summary="Carve records out of anything that holds them",
    description=(
        (
            "Reads each SOURCE (a damaged segment, a concatenation of files, a directory tree, a raw disk image), finds every"
            " intact record in it with no help from indexes, headers or file names, and writes a clean storage directory to"
            " DIR. Sources are only read; DIR must be new or empty, and appears once it is whole and has been read back."
        ),
        "The report tells what was found, written, found more than once, doubtful and missing. Nothing is dropped silently.",
    ),
    examples=(
        Example("waltzctl salvage /mnt/old/waltz --to /data/salvaged", "Everything that a damaged node still holds."),
        Example(
            "waltzctl salvage disk.img --to /data/salvaged --key 01234567-89ab-cdef-0123-456789abcdef",
            "One cluster's records out of a raw disk image.",
        ),
        Example(
            "waltzctl salvage broken.seg --to /data/salvaged --partition 3 --partitions 8",
            "A single file; which partition, and how many there are, is known from elsewhere.",
        ),
    ),
    statuses=(
        ExitStatus.CLEAN,
        ExitStatus.USAGE,
        ExitStatus.DAMAGED,
        ExitStatus.DAMAGE_REMAINS,
        ExitStatus.NOT_WALTZ,
        ExitStatus.IO_ERROR,
        ExitStatus.INTERRUPTED,
    ),
    objects=("salvage-report",),
    sections=(
        ENGINE,
        Section(
            "TRUST",
            (
                (
                    "A record is believed when its checksum is right. Which partition it belongs to is told by the segment"
                    " header in front of it, by records beside it, or by its request id. Where nothing tells, or something"
                    " speaks against it, the records are counted as doubtful and left out; --key and --partition settle it."
                ),
                (
                    "Where differing copies of one transaction are intact, one is written and the report says why that one, and"
                    " where the others are."
                ),
            ),
        ),
    ),
)


@with_engine
def run(
    sources: Annotated[
        list[str], typer.Argument(metavar="SOURCE", help="Files, devices or directories.", show_default=False)
    ],
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="The directory to write.", show_default=False)],
    key: Annotated[
        str | None, typer.Option("--key", metavar="UUID", help="Cluster key; needed where several are found.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", metavar="P", min=0, help="Only this partition.")
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", metavar="N", min=1, max=1_000_000, help="Partitions of the cluster; else told from SOURCE."
        ),
    ] = None,
    layout: Annotated[LayoutName, typer.Option("--layout", help="Layout of the control file.")] = LayoutName.DOCUMENTED,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
    computing: Computing = Computing(),  # noqa: B008  # frozen
) -> ExitStatus:
    """Carve, write and report."""
    wanted = [path_of(text, name="SOURCE") for text in sources]
    target = path_of(to, name="--to")
    cluster_key = parsed("--key", key, cluster_key_of)

    from engine.repair.salvage import salvage
    from formats.control import Layout
    from waltzctl.render.objects import salvage_report_object

    with Console(output_format, quiet=quiet, verbose=verbose, single=True, must_finish=True) as console:
        with (
            progress(quiet=quiet, verbose=verbose) as listener,
            computing.crew((), listener, quiet=quiet) as crew,  # auto: here, since an image has no names to plan from
        ):
            report = salvage(
                wanted,
                to=target,
                cluster_key=cluster_key,
                partition=partition,
                num_partitions=partitions,
                layout=Layout(layout.value),
                progress=listener,
                crew=crew,
            )
        status = ExitStatus.from_label(report.exit_status_name)
        if not (quiet and console.for_people and status is ExitStatus.CLEAN):
            console.emit(salvage_report_object(report), flush=True)
        words = f"{counted(report.written, 'record')} written to {report.path}; {_left_out(report)}"
        if status is ExitStatus.CLEAN:
            console.success(f"SALVAGED  {words}")
        else:
            console.sentence(f"SALVAGED IN PART  {words}")
    return status


def _left_out(report: SalvageReport) -> str:
    parts = [
        (report.missing, "missing"),
        (report.doubtful_records, "doubtful"),
        (report.superseded, "in conflict"),
        (report.elsewhere, "of another cluster or partition"),
        (sum(one.length for one in report.unreadable), "bytes unreadable"),
    ]
    told = [f"{number} {what}" for number, what in parts if number]
    return (", ".join(told) if told else "nothing missing or doubtful") + ". The sources were not modified."
