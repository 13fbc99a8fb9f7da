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
            "PATH is a storage directory, a partition directory, or one .seg or .idx file; several may be given."
            " Counts every intact record: transactions and bytes by partition, client, size class and header value,"
            " over time and over transaction ids, and lists what is missing. Nothing is locked or changed."
        ),
        ("Damage is a finding, as in dump, and a gap; counting continues after it, and the exit status reports it."),
        (
            "Records carry no time. Each was written between the creation of its segment and that of the next one;"
            " series over time are estimates from these times (see TIME in the manual page). Series over transaction"
            " ids are exact."
        ),
    ),
    examples=(
        Example("waltzctl stats /data/waltz", "Everything, as text with histograms."),
        Example("waltzctl stats /data/waltz --html stats.html", "The same, as one page with plots."),
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
                    "A segment's header has the creation time of the segment, and nodes create the next segment with"
                    " the first record that does not fit. So a record was written between the creation of its segment"
                    " and that of the next one; for the last segment the end is the file's modification time, which"
                    " copying may change. Within this interval a record's time is interpolated from its offset, as if"
                    " bytes had arrived evenly: pauses and bursts within one segment are invisible. If a segment is"
                    " missing, the previous one appears to have taken longer."
                ),
                (
                    "If these times are impossible (an invalid creation time, a next segment that is older, a damaged"
                    " header), the segment's records are in no series over time; they are listed with the reason, and"
                    " count everywhere else. Rates of a partition use only the segments whose times are known."
                ),
                (
                    "Time buckets are aligned to the calendar of UTC; --bucket auto uses the narrowest of a fixed list"
                    " of widths that needs at most 100 buckets. A width that needs more than 10,000 buckets is"
                    " multiplied by ten until it fits; the summary gives the width that was used."
                ),
            ),
        ),
        ManualSection(
            "EXACTNESS",
            (
                (
                    "Counts of records, bytes, ids and gaps are exact. Bytes are the sizes of records on disk: 40 plus"
                    " the data. A gap is a range of missing ids between two records, or before the first or after the"
                    " last record of a partition if they are known to have existed; it names its finding. Several"
                    " paths are added up, even if they are replicas of each other; the same file counts once."
                ),
                (
                    "Counts per client are exact for up to 1,048,576 pairs of client and partition (in their series"
                    " over time: of client and bucket), and counts per header value for up to 65,536 values. Beyond"
                    " that the entries with the fewest records and bytes are dropped during counting; the output then"
                    " gives the maximum error of a count."
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
    top: Annotated[int, typer.Option("--top", metavar="N", min=1, max=10_000, help="Show this many clients.")] = 10,
    bucket: Annotated[
        str, typer.Option("--bucket", metavar="TIME", help="Width of a time bucket, for instance 1h; or auto.")
    ] = "auto",
    html: Annotated[
        str | None,
        typer.Option(
            "--html", metavar="FILE", help="Write a page with plots to FILE, which appears when it is complete."
        ),
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
        console.known = ExitStatus.from_label(report.exit_status_name)
        listener.close()
        if target is not None:
            _write_page(report, target, wanted)
            console.note(f"{target}: written")
        _show(report, console)
    return console.known


def _check_target(target: Path, paths: list[PurePath]) -> None:
    """Refuse a page inside a storage that is only inspected.  Raises RefusedError, NotWaltzError."""
    from waltzctl.engine.log.target import resolve
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
