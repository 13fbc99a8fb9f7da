"""status: what an operator wants to know first."""

from __future__ import annotations

from waltzctl.console import Console
from waltzctl.exit_status import INSPECTING, ExitStatus
from waltzctl.manual import Example, Manual, Section
from waltzctl.options import (
    FormatOption,
    PartitionsOption,
    QuietOption,
    StorageArgument,
    VerboseOption,
    partitions_of,
    path_of,
)
from waltzctl.values import counted, human_bytes

MANUAL = Manual(
    name="status",
    summary="Show what a storage directory holds and how it is",
    description=(
        (
            "Cluster key, layout and lock, then one line for each partition: health, whether it is readable and writable,"
            " session, low-water marks, segments, bytes, transactions, time of the last write."
        ),
        (
            "Health is told from structure: control file, headers, indexes and the ends of segments. It is quick because it"
            " reads little; only verify reads every record. Nothing is locked or changed, and a running node does not matter."
        ),
    ),
    examples=(
        Example("waltzctl status /data/waltz", "The whole directory."),
        Example("waltzctl status /data/waltz --partition 0-3", "Four partitions of it."),
        Example(
            "waltzctl status /data/waltz --format json | jq '.partitions[] | select(.health != \"ok\")'",
            "Which partitions need attention?",
        ),
    ),
    statuses=INSPECTING,
    objects=("status",),
    sections=(
        Section(
            "MARKS",
            (
                (
                    "MARK is the low-water mark: the partition's high-water mark when the session was started. LOCAL is the"
                    " local low-water mark: the last transaction of this node at that time; everything up to it is"
                    " acknowledged. -1 is the format's own value for none."
                ),
            ),
        ),
    ),
)


def run(
    path: StorageArgument,
    partition: PartitionsOption = None,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Look and report."""
    storage = path_of(path)
    partitions = partitions_of(partition)

    from engine.inspect.outcome import Tally
    from engine.inspect.status import storage_status
    from waltzctl.render.objects import status_object

    with Console(output_format, quiet=quiet, verbose=verbose, single=True) as console:
        found = storage_status(storage, partitions)
        shown = status_object(found)
        console.emit(shown)
        tally = Tally()
        for finding in found.findings:
            tally.add(finding)
        for one in found.partitions:
            for finding in one.findings if one.health != "unassigned" else ():
                tally.add(finding)
        status = ExitStatus.from_label(tally.exit_status_name)
        healths = [one.health for one in found.partitions]
        segments = sum(one.segments for one in found.partitions)
        held = human_bytes(sum(one.bytes for one in found.partitions))
        what = f"{counted(segments, 'segment')}, {held}"
        if status is ExitStatus.CLEAN:
            console.success(f"OK  {what}. Nothing was modified.")
        else:
            word = "REPAIRABLE" if status is ExitStatus.REPAIRABLE else "FAILED"
            bad = sum(health in ("damaged", "repairable") for health in healths)
            console.sentence(f"{word}  {counted(bad, 'partition')} of {len(healths)}; {what}."
                             f" waltzctl verify {storage} names what is wrong. Nothing was modified.")  # fmt: skip
    return status
