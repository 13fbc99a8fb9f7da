"""status: what an operator wants to know first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from waltzctl.connection_options import (
    SECURITY,
    Connecting,
    nodes_of,
    refuse_with_node,
    refuse_without_node,
    with_connection,
)
from waltzctl.console import Console
from waltzctl.engine.shell_words import shell_quote
from waltzctl.engines import ENGINE, Computing, with_engine
from waltzctl.exit_status import INSPECTING, ExitStatus
from waltzctl.manual import Example, Manual, ManualSection
from waltzctl.options import FormatOption, PartitionsOption, QuietOption, VerboseOption, partitions_of, place_of
from waltzctl.render.progress_bar import progress
from waltzctl.values import counted, human_bytes, verdict

if TYPE_CHECKING:
    from waltzctl.engine.inspect.status import StorageStatus

MANUAL = Manual(
    name="status",
    summary="Show the content and health of a storage directory",
    description=(
        (
            "Cluster key, layout and lock, then one line for each partition: health, whether it is readable and writable,"
            " session, low-water marks, segments, bytes, transactions, time of the last write."
        ),
        (
            "waltz://HOST:PORT, the address of a node's admin port, shows what the node reports; unknown values,"
            " including health, are null or a minus sign."
        ),
        (
            "Health is judged from structure: control file, headers, indexes and the ends of segments. It is fast"
            " because it reads little; only verify reads every record. Nothing is locked or changed, and a node may be"
            " running."
        ),
    ),
    examples=(
        Example("waltzctl status /data/waltz", "The whole directory."),
        Example("waltzctl status /data/waltz --partition 0-3", "Four partitions."),
        Example(
            "waltzctl status /data/waltz --format json | jq '.partitions[] | select(.health != \"ok\")'",
            "Which partitions need attention?",
        ),
        Example("waltzctl status waltz://127.0.0.1:55281", "A running node, from outside."),
    ),
    statuses=(*INSPECTING[:-1], ExitStatus.REFUSED, ExitStatus.INTERRUPTED),
    objects=("status",),
    sections=(
        ManualSection(
            "MARKS",
            (
                (
                    "MARK is the low-water mark: the partition's high-water mark when the session was started. LOCAL"
                    " is the local low-water mark: the last transaction of this node at that time; everything up to it"
                    " is acknowledged. -1 is the format's own value for none."
                ),
            ),
        ),
        ENGINE,
        SECURITY,
    ),
)


@with_engine
@with_connection
def run(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="A storage directory, or waltz://HOST:PORT.", show_default=False)
    ],
    partition: PartitionsOption = None,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
    connection: Connecting = Connecting(),  # noqa: B008  # frozen
    computing: Computing = Computing(),  # noqa: B008  # frozen
) -> ExitStatus:
    """Look and report."""
    partitions = partitions_of(partition)
    nodes = nodes_of([path], name="PATH")
    if nodes is None:
        refuse_without_node(connection)
    else:
        refuse_with_node(**computing.given)

    from waltzctl.engine.inspect.status import storage_status
    from waltzctl.objects.status_objects import STORAGE_STATUS

    with Console(output_format, quiet=quiet, verbose=verbose, single=True) as console:
        if nodes is None:
            with (
                progress(quiet=quiet, verbose=verbose) as listener,
                computing.executor((), listener, quiet=quiet) as executor,  # both ends of each segment: never a minute
            ):
                found = storage_status(place_of(path), partitions, executor)
        else:
            from waltzctl.node_inspection import status_of_node

            found = status_of_node(nodes[0], connection.reach(console), partitions)
        console.known = _judged(found)
        console.emit(STORAGE_STATUS.shown(found))
        _conclude(console, found, from_outside=nodes is not None)
    return console.known


def _judged(found: StorageStatus) -> ExitStatus:
    from waltzctl.engine.inspect.verification import Tally

    tally = Tally()
    for finding in found.findings:
        tally.add(finding)
    for one in found.partitions:
        for finding in one.findings:  # those of partitions that are not assigned as well, as they are for verify
            tally.add(finding)
    return ExitStatus.from_label(tally.exit_status_name)


def _conclude(console: Console, found: StorageStatus, *, from_outside: bool) -> None:
    from waltzctl.engine.catalogue.finding_kinds import Severity

    segments = sum(one.segments or 0 for one in found.partitions)
    held = human_bytes(sum(one.bytes or 0 for one in found.partitions))
    what = f"{counted(segments, 'segment')}, {held}"
    if from_outside:
        what = f"{counted(sum(one.assigned is True for one in found.partitions), 'partition')} as the node tells it"
    if console.known is ExitStatus.CLEAN:
        console.success(f"OK  {what}. Nothing was modified.")
    else:
        bad = sum(any(finding.severity is not Severity.NOTE for finding in one.findings) for one in found.partitions)
        verify = f"waltzctl verify {shell_quote(str(found.path))}"
        console.sentence(f"{verdict(console.known.label)}  {counted(bad, 'partition')} of {len(found.partitions)}; {what}."
                         f" {verify} names what is wrong. Nothing was modified.")  # fmt: skip
