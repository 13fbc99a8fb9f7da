"""stats: how many records, how large, whose and when."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from waltzctl.console import Console, on_terminal, wants_colour
from waltzctl.engines import ENGINE, Computing, with_engine
from waltzctl.exit_status import INSPECTING, ExitStatus
from waltzctl.manual import Example, Manual, ManualSection
from waltzctl.options import (
    Format,
    FormatOption,
    PartitionsOption,
    QuietOption,
    VerboseOption,
    parsed,
    partitions_of,
    path_of,
    place_of,
)
from waltzctl.render.progress_bar import progress
from waltzctl.values import parse_duration

if TYPE_CHECKING:
    from waltzctl.engine.stats.report import StatsReport
    from waltzctl.render.stats_terminal import Look

MANUAL = Manual(
    name="stats",
    summary="Count records by partition, client, size, time and id",
    description=(
        (
            "PATH is a storage directory, a partition directory, or one .seg or .idx file; several may be given. Counts every"
            " intact record: transactions and bytes of each partition, client, size class and header value, over time and over"
            " transaction ids, and what is missing. Nothing is locked or changed."
        ),
        (
            "A damaged place is a finding, as in dump, and a gap, and never ends the counting; the exit status tells that"
            " there was one."
        ),
        (
            "Records carry no time. Each was written between the creation of its segment and that of the next one, and the"
            " series over time are estimates from that; see TIME in the manual page. Series over transaction ids are exact."
        ),
    ),
    examples=(
        Example("waltzctl stats /data/waltz", "Everything, as text with histograms."),
        Example("waltzctl stats /data/waltz --html stats.html", "The same as one page with plots."),
        Example("waltzctl stats /data/waltz --partition 0-3 --top 50 --bucket 1h", "Four partitions, hour by hour."),
        Example(
            "waltzctl stats /data/waltz --format ndjson | jq -c 'select(.type==\"stats-gap\")'", "What is missing."
        ),
    ),
    statuses=(*INSPECTING[:-1], ExitStatus.REFUSED, ExitStatus.INTERRUPTED),
    objects=(
        "stats-partition",
        "stats-size-class",
        "stats-client",
        "stats-header",
        "stats-bucket",
        "stats-gap",
        "stats-untimed",
        "stats-summary",
        "finding",
    ),
    sections=(
        ManualSection(
            "TIME",
            (
                (
                    "A segment's header says when the segment was created, and nodes create the next one when the first record"
                    " comes that no longer goes here. So a record was written between the creation of its segment and that of"
                    " the next one; for the last segment the later moment is the last change of the file, which copying a file"
                    " may set. Inside that interval a record is placed by where it stands in the file, as if bytes had arrived"
                    " evenly: what happened at rest or in a burst within one segment cannot be seen. Where a segment is"
                    " missing, the one in front of it seems to have taken longer."
                ),
                (
                    "Where these times cannot be true (a creation time that is none, a next segment that is older, a damaged"
                    " header) the segment's records are in no series over time; they are listed with the reason and count"
                    " everywhere else. Rates of a partition are those of the segments whose times are known."
                ),
                (
                    "Buckets of time are aligned to the calendar of UTC; --bucket auto takes the narrowest of a fixed row of"
                    " widths that needs at most 100. A width of your own that would need more than 10,000 is made ten times as"
                    " wide, and again; the summary says which was used."
                ),
            ),
        ),
        ManualSection(
            "EXACTNESS",
            (
                (
                    "Counts of records, bytes, ids and gaps are exact. Bytes are those that records take on disk, 40 and the"
                    " data each. A gap is a range of ids that no record has between two that are there, or of a whole partition"
                    " in front of the first one or behind the last one, as far as they are known to have been here; it"
                    " names the finding that it comes from. Several paths add up, also when"
                    " they are replicas of each other; the same file counts once."
                ),
                (
                    "Clients are told apart exactly while there are up to 1,048,576 pairs of client and partition (for their"
                    " series over time: of client and bucket), header values up to 65,536. Beyond that those with the fewest"
                    " records and bytes are let go as counting goes"
                    " on; the output then says how much any one may have more than it shows."
                ),
            ),
        ),
        ENGINE,
    ),
)


@with_engine
def run(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH...", help="Storage or partition directories, or files.", show_default=False),
    ],
    top: Annotated[int, typer.Option("--top", metavar="N", min=1, max=10_000, help="Name so many clients.")] = 10,
    bucket: Annotated[
        str, typer.Option("--bucket", metavar="TIME", help="Width of a bucket of time, for instance 1h; or auto.")
    ] = "auto",
    html: Annotated[
        str | None,
        typer.Option("--html", metavar="FILE", help="Write a page with plots there; FILE appears once it is whole."),
    ] = None,
    partition: PartitionsOption = None,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
    computing: Computing = Computing(),  # noqa: B008  # frozen
) -> ExitStatus:
    """Count and show."""
    partitions = partitions_of(partition)
    seconds = None if bucket.strip().lower() == "auto" else parsed("--bucket", bucket, parse_duration)
    wanted = [place_of(text) for text in paths]
    target = None if html is None else path_of(html, name="--html")
    from waltzctl.engine.stats.stats import stats
    from waltzctl.engine.stats.stats_options import StatsOptions
    from waltzctl.engine.task_executor import LocalExecutor

    if target is not None:
        _check_target(target, wanted)
    options = StatsOptions(partitions=partitions, top=top, bucket=seconds)
    with (
        Console(output_format, quiet=quiet, verbose=verbose) as console,
        progress(quiet=quiet, verbose=verbose) as listener,
        computing.executor(wanted, listener, quiet=quiet) as executor,
    ):
        report = stats(wanted, options, executor or LocalExecutor(progress=listener))
        listener.close()
        if target is not None:
            _write_page(report, target, wanted)
            console.note(f"{target}: written")
        _show(report, console)
    return ExitStatus.from_label(report.exit_status_name)


def _check_target(target: Path, paths: list[PurePath]) -> None:
    """Refuse a page inside a storage that is only inspected.  Raises RefusedError, NotWaltzError."""
    from waltzctl.engine.log.view import resolve
    from waltzctl.output_file import check_outside

    for path in paths:
        check_outside(target, resolve(path).storage or path)


def _write_page(report: StatsReport, target: Path, paths: list[PurePath]) -> None:
    from waltzctl.output_file import replacing_text
    from waltzctl.render.stats_html import page

    with replacing_text(target) as file:
        file.writelines(page(report, paths))


def _show(report: StatsReport, console: Console) -> None:
    from waltzctl.engine.columns.finding_columns import FINDING
    from waltzctl.objects.stats_objects import stats_objects
    from waltzctl.render.stats_terminal import conclusion, stats_lines

    for finding in report.findings:
        console.emit(FINDING.shown(finding))
    if console.format is Format.TABLE:
        for line in ("", *stats_lines(report, _look(console.stream)), ""):
            console.line(line)
    else:
        for shown in stats_objects(report):
            console.emit(shown)
    console.success(conclusion(report))


def _look(stream: TextIO) -> Look:
    """How lines may look there."""
    import os
    import shutil

    from waltzctl.render.stats_terminal import Look

    terminal = on_terminal(stream)
    unicode = (stream.encoding or "").lower().startswith("utf")
    width = shutil.get_terminal_size().columns if terminal else None
    return Look(width, wants_colour(stream), terminal and unicode and os.environ.get("TERM") != "dumb")
