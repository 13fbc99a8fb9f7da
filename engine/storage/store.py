"""The quarantine of storage directories: `engine.durable.quarantine` with what it has to know of this kind of directory.

That is: which files in ``.waltzctl`` a repair may change, and the state in which a repair left the partitions that it touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from waltzctl.engine.durable import disk, quarantine
from waltzctl.engine.durable.edits import Edit
from waltzctl.engine.durable.manifest import KeptFile, Marks, PartitionLeft, QuarantineEntry, partitions_of
from waltzctl.engine.errors import NotWaltzError
from waltzctl.engine.log.view import PartitionView, read_control, read_infos, view_partition
from waltzctl.engine.storage.availability_marks import AVAILABILITY_FILE_NAME
from waltzctl.engine.storage.journal_state import STATE_NAME as JOURNAL_STATE_NAME
from waltzctl.engine.storage.loss_ledger import LEDGER_NAME
from waltzctl.formats.control import CONTROL_FILE_NAME, CONTROL_HEADER, ControlFile, PartitionInfo, struct_in_force
from waltzctl.formats.fence import FENCE_FILE_NAME


def concerned(entry: QuarantineEntry) -> frozenset[int]:
    """The partitions whose files, or whose infos in the control file, an entry touches.  Raises DiskReadError."""
    if entry.partitions is not None:
        return frozenset(state.partition for state in entry.partitions)
    found = set(partitions_of(entry))
    for file in entry.files:
        control = read_control(entry.storage / CONTROL_FILE_NAME) if file.path == CONTROL_FILE_NAME else None
        if control is not None:
            found.update(_infos_touched(file, control))
    return frozenset(found)


def _infos_touched(file: KeptFile, control: ControlFile) -> Iterator[int]:
    """The partitions whose infos an edit of the control file touches; all, when it replaces the file or changes its header."""
    count, size = len(control.partitions), control.layout.info_schema.size
    start = CONTROL_HEADER.size
    spans = [(one.offset, one.offset + max(one.length, one.written)) for one in file.ranges] or [(0, start)]
    for begin, end in spans:
        if begin < start:
            yield from range(count)
        else:
            yield from range((begin - start) // size, min(count, -(-(end - start) // size)))


def partition_states(entry: QuarantineEntry) -> tuple[PartitionLeft, ...]:
    """The present state of the partitions that an entry touches.  Raises DiskReadError."""
    numbers = sorted(concerned(entry))
    # only theirs: a node that mends thousands of partitions asks for each of them
    infos = read_infos(entry.storage / CONTROL_FILE_NAME, numbers)
    return tuple(
        PartitionLeft(number, _marks(infos.get(number)), tuple(sorted(file_sizes(entry.storage, number).items())))
        for number in numbers
    )


def marks_of(control: ControlFile | None, partition: int) -> Marks | None:
    """Session and marks in force; None where there are none."""
    current = struct_in_force(control, partition)
    return None if current is None else current.marks


def _marks(info: PartitionInfo | None) -> Marks | None:
    current = None if info is None else info.current_struct
    return None if current is None else current.marks


def view_or_empty(storage: Path, partition: int) -> PartitionView:
    """A partition's files; none where it has no directory."""
    try:
        return view_partition(storage / str(partition), partition)
    except NotWaltzError:
        return PartitionView(partition, storage / str(partition), ())


def file_sizes(storage: Path, partition: int) -> dict[str, int]:
    """Name and size of every data and index file of a partition."""
    states = (
        state
        for one in view_or_empty(storage, partition).segments
        for state in (one.data, one.index)
        if state is not None
    )
    return {state.path.name: state.size for state in states}


STATE_FILES = frozenset(
    {
        f"{disk.STATE_DIRECTORY}/{AVAILABILITY_FILE_NAME}",
        f"{disk.STATE_DIRECTORY}/{FENCE_FILE_NAME}",
        f"{disk.STATE_DIRECTORY}/{JOURNAL_STATE_NAME}",
        LEDGER_NAME,
    }
)
"""Files in ``.waltzctl`` that a repair may change: those with data of partitions, as the control file has."""
STORE = quarantine.Store(STATE_FILES, partition_states, CONTROL_FILE_NAME)


def list_entries(storage: Path) -> tuple[QuarantineEntry, ...]:
    """See `engine.durable.quarantine.list_entries`."""
    return quarantine.list_entries(storage, STORE)


def interrupted(storage: Path) -> tuple[QuarantineEntry, ...]:
    """See `engine.durable.quarantine.interrupted`."""
    return quarantine.interrupted(storage, STORE)


def roll_back_interrupted(storage: Path) -> tuple[QuarantineEntry, ...]:
    """See `engine.durable.quarantine.roll_back_interrupted`."""
    return quarantine.roll_back_interrupted(storage, STORE)


def apply_edits(
    storage: Path,
    edits: Sequence[Edit],
    *,
    command: str,
    arguments: Sequence[str],
    plan_hash: str,
    check_built: Callable[[], None] = lambda: None,
) -> QuarantineEntry:
    """See `engine.durable.quarantine.apply_edits`."""
    return quarantine.apply_edits(
        storage, edits, STORE, command=command, arguments=arguments, plan_hash=plan_hash, check_built=check_built
    )
