"""verify: check everything, change nothing."""

from __future__ import annotations

import enum
from collections.abc import Generator
from typing import TYPE_CHECKING, Annotated

import typer

from waltzctl import __version__
from waltzctl.connection_options import (
    SECURITY,
    Connecting,
    nodes_of,
    refuse_with_node,
    refuse_without_node,
    with_connection,
)
from waltzctl.console import Console
from waltzctl.engines import ENGINE, Computing, with_engine
from waltzctl.exit_status import INSPECTING, ExitStatus
from waltzctl.manual import Example, Manual, ManualSection
from waltzctl.options import (
    FormatOption,
    PartitionsOption,
    QuietOption,
    VerboseOption,
    parsed,
    partitions_of,
    path_of,
    place_of,
)
from waltzctl.render.progress_bar import NoProgress, TerminalProgress, progress
from waltzctl.values import parse_duration, parse_percent, parse_rate
from waltzctl.verify_report import VerifyReport

if TYPE_CHECKING:
    from waltzctl.engine.findings import Finding
    from waltzctl.engine.inspect.verification import ManifestRequest, VerifySummary
    from waltzctl.engine.net.addresses import Address


class Release(enum.StrEnum):
    """Programs that a directory can be judged for."""

    RELEASED = "released"


MANUAL = Manual(
    name="verify",
    summary="Check storage directories or files, and change nothing",
    description=(
        (
            "PATH is a storage directory, a partition directory, or one .ctl, .seg or .idx file; several may be given."
            " Checks every header, both checksums of every record, and whether control file, segments and indexes"
            " agree. Opens read-only, takes no lock, and works on a directory that a running node is writing: a"
            " growing tail is not damage."
        ),
        (
            "waltz://HOST:PORT, the address of a node's admin port, reads every record of the node's partitions"
            " through the port. It checks data checksums, the sequence of ids, and marks, but not files, indexes and"
            " record checksums."
        ),
        (
            "Each finding has a stable code, a severity (damage: data is lost or doubtful; repairable: nothing is"
            " lost; note), its place, one sentence and, if there is one, the command that repairs it. The exit status"
            " is that of the worst finding."
        ),
    ),
    examples=(
        Example("waltzctl verify /data/waltz", "Check everything that a node holds."),
        Example("waltzctl verify /data/waltz --partition 0-3 --limit-rate 100MiB", "Four partitions, gently."),
        Example("waltzctl verify /data/waltz/3/0000000000000081237.seg", "One segment and its index."),
        Example(
            "waltzctl verify /data/waltz --max-duration 2h --resume /var/tmp/waltz.resume",
            "A part each night; completed segments are remembered.",
        ),
        Example(
            "waltzctl verify /data/waltz --manifest waltz.manifest --manifest-key key.pem",
            "Write a signed manifest of all files.",
        ),
        Example(
            "waltzctl verify /mnt/copy --manifest waltz.manifest --manifest-key key.pub",
            "Is a copy identical?",
        ),
        Example("waltzctl verify /data/waltz --format ndjson | jq -r '.code // empty'", "For scripts."),
        Example(
            "waltzctl verify s3://backup/node-1 --engine spark --master spark://head:7077", "Terabytes, on a cluster."
        ),
        Example(
            "waltzctl verify /data/waltz --for released", "Would release 0.13.2 start on it, and what would it drop?"
        ),
        Example(
            "waltzctl verify waltz://127.0.0.1:55281 --limit-rate 20MiB",
            ("A running node, through its port, at a limited rate."),
        ),
    ),
    statuses=(*INSPECTING[:-1], ExitStatus.MISMATCH, ExitStatus.REFUSED, ExitStatus.INTERRUPTED),
    objects=("finding", "verify-summary", "manifest"),
    sections=(
        ManualSection(
            "COST",
            (
                (
                    "Every byte is read once, as fast as the disk allows, in bounded memory, with all processors."
                    " --quick reads headers and indexes and both ends of each segment. --sample 10% reads a tenth of"
                    " the data, a different tenth each time. --limit-rate limits the bytes that are read per second."
                ),
                (
                    "When --max-duration is over or Ctrl-C is pressed, the summary of what was checked so far is shown"
                    " with complete = false, and INCOMPLETE instead of OK. With --resume FILE the next run skips"
                    " segments that were completed and have not changed since, and continues an interrupted sample."
                    " A segment that was not completed is read from its beginning again: a run needs time for at least"
                    " one of each thread."
                    " FILE must not lie inside PATH."
                ),
            ),
        ),
        ManualSection(
            "MANIFEST",
            (
                (
                    "A manifest names every file of one storage directory with its size and SHA-256, and each"
                    " partition's first and last transaction and marks. If FILE does not exist, it is written after"
                    " the directory was found clean. If it exists, the directory, which may be a copy elsewhere, is"
                    " compared with it. FILE is never overwritten: to make a new manifest, name another FILE. FILE"
                    " must not lie inside PATH. Data files are hashed while they are checked; indexes and the control"
                    " file are read once more. --quick, --sample, --partition and --resume skip data, so they are"
                    " refused with it. A directory that a process has locked gets no manifest (13); it can be compared"
                    " with one."
                ),
                (
                    "Files that are missing, changed or not in the manifest are damage (4). A directory with later"
                    " appends still matches if every file begins with the bytes that the manifest names: the last"
                    " segment of a partition may be longer, later segments may exist, and marks may be higher. This is"
                    " the note manifest-grown; the manifest does not cover what was appended later."
                ),
                (
                    "--manifest-key signs the manifest with an Ed25519 private key, or checks its signature with the"
                    " public key; the key is in PEM form (openssl genpkey -algorithm ed25519). Without a valid"
                    " signature the manifest proves nothing: this is damage, and nothing is compared. Of .waltzctl the"
                    " manifest names only the unassigned partitions."
                ),
            ),
        ),
        ManualSection(
            "FOR A RELEASE",
            (
                (
                    "--for released simulates a start of release 0.13.2 on the directory, because a real start changes"
                    " files. released-refuses names what prevents the start, released-loses what the start would cut"
                    " off silently, released-blocks what would stop appends later. The result is released_starts in"
                    " the summary."
                ),
            ),
        ),
        ManualSection(
            "FINDINGS",
            ("Every code is explained in waltzctl-findings(7).",),
        ),
        ENGINE,
        SECURITY,
    ),
)


@with_engine
@with_connection
def run(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...", help="Storage or partition directories, files, or waltz://HOST:PORT.", show_default=False
        ),
    ],
    quick: Annotated[
        bool, typer.Option("--quick", help="Check structure and indexes without reading the data.")
    ] = False,
    sample: Annotated[
        str | None, typer.Option("--sample", metavar="P%", help="Read only this share of the data.")
    ] = None,
    max_duration: Annotated[
        str | None, typer.Option("--max-duration", metavar="TIME", help="Stop after this time, for instance 30s or 2h.")
    ] = None,
    limit_rate: Annotated[
        str | None, typer.Option("--limit-rate", metavar="RATE", help="Bytes per second at most, for instance 100MiB.")
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option("--resume", metavar="FILE", help="Remember completed segments in FILE, and skip them."),
    ] = None,
    manifest: Annotated[
        str | None,
        typer.Option(
            "--manifest",
            metavar="FILE",
            help="Compare with the hashes in FILE, or write them to FILE if it does not exist.",
        ),
    ] = None,
    manifest_key: Annotated[
        str | None,
        typer.Option(
            "--manifest-key", metavar="FILE", help="Sign the manifest, or check its signature: an Ed25519 key, PEM."
        ),
    ] = None,
    release: Annotated[
        Release | None, typer.Option("--for", help="Also check whether this release would start on the directory.")
    ] = None,
    partition: PartitionsOption = None,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
    connection: Connecting = Connecting(),  # noqa: B008  # frozen
    computing: Computing = Computing(),  # noqa: B008  # frozen
) -> ExitStatus:
    """Verify and report."""
    partitions = partitions_of(partition)
    share = parsed("--sample", sample, parse_percent)
    seconds = parsed("--max-duration", max_duration, parse_duration)
    rate = parsed("--limit-rate", limit_rate, parse_rate)

    nodes = nodes_of(paths, name="PATH")
    if nodes is not None:
        refuse_with_node(
            quick=quick,
            sample=share,
            resume=resume,
            manifest=manifest,
            manifest_key=manifest_key,
            **{"for": release},
            **computing.given,
        )
        with (
            Console(output_format, quiet=quiet, verbose=verbose) as console,
            progress(quiet=quiet, verbose=verbose, noun="records") as listener,
        ):
            return _verify_nodes(console, listener, nodes, connection, partitions, seconds, rate)
    refuse_without_node(connection)
    if release is not None and partitions is not None:
        raise typer.BadParameter("a node opens all partitions; leave --partition out", param_hint="'--for'")
    wanted = [place_of(text) for text in paths]

    from waltzctl.engine.inspect.verification import VerifyOptions
    from waltzctl.engine.inspect.verify import verify
    from waltzctl.interrupt import showing

    options = VerifyOptions(
        partitions=partitions,
        quick=quick,
        sample=share,
        max_duration=seconds,
        limit_rate=rate,
        resume=path_of(resume, name="--resume") if resume is not None else None,
        manifest=_manifest(manifest, manifest_key),
        for_released=release is not None,
    )
    with (
        Console(output_format, quiet=quiet, verbose=verbose, must_finish=manifest is not None) as console,
        progress(quiet=quiet, verbose=verbose) as listener,
        computing.executor(wanted, listener, quiet=quiet) as executor,
    ):
        report = VerifyReport(console)
        stream = verify(wanted, options, listener, executor)
        try:
            for seen in stream:
                with showing() as interrupt, listener.paused():
                    report.show(seen)
                if interrupt.wanted:
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            assert isinstance(stream, Generator)
            listener.close()
            report.show(stream.throw(KeyboardInterrupt()))  # the summary of what was checked so far
    return report.status


def _manifest(text: str | None, key: str | None) -> ManifestRequest | None:
    """What ``--manifest`` and ``--manifest-key`` ask for."""
    from waltzctl.engine.inspect.verification import ManifestRequest

    if text is None:
        if key is not None:
            raise typer.BadParameter("there is no --manifest to sign or to believe", param_hint="'--manifest-key'")
        return None
    key_path = None if key is None else path_of(key, name="--manifest-key")
    return ManifestRequest(path_of(text, name="--manifest"), key_path, f"waltzctl {__version__}")


def _verify_nodes(
    console: Console,
    listener: TerminalProgress | NoProgress,
    nodes: list[Address],
    connection: Connecting,
    partitions: frozenset[int] | None,
    seconds: float | None,
    rate: int | None,
) -> ExitStatus:
    from waltzctl.engine.client.inspect import NodeVerifyOptions
    from waltzctl.engine.inspect.verification import VerifySummary
    from waltzctl.interrupt import showing
    from waltzctl.node_inspection import verify_nodes

    report = VerifyReport(console, from_outside=True)

    def show(seen: Finding | VerifySummary) -> None:
        if isinstance(seen, VerifySummary):
            listener.close()
        with showing() as interrupt, listener.paused():
            report.show(seen)
        if interrupt.wanted:
            raise KeyboardInterrupt

    options = NodeVerifyOptions(partitions=partitions, max_duration=seconds, limit_rate=rate)
    verify_nodes(nodes, connection.reach(console), options, listener, show)
    return report.status
