"""Simulation of the start of release 0.13.2 on a storage directory: does it start, and what would it drop silently.

A released node opens its control file and then, one after another, every partition that is assigned to it.  The first failure
ends the start of the whole node.  Opening a segment repairs it: the release scans from an offset that the index gives, and
truncates the data file at the first bad record, whatever follows.  This module performs the same steps without writing.

The release allocates memory for a record's data before it compares the length with the size of the file.  A length that exceeds
the largest Java array ends the start.  Whether a smaller wrong length does depends on the node's heap; it counts as a bad record.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.findings import Code, Finding, MendedInCopy, Severity, make_finding
from waltzctl.engine.findings.directory_contents import spelled
from waltzctl.engine.log import places
from waltzctl.engine.log.index import MOST_HELD
from waltzctl.engine.log.places import open_source
from waltzctl.engine.log.view import FileState, PartitionView, index_path_of, read_segment_header, view_partition
from waltzctl.engine.scan.byte_source import ByteSource
from waltzctl.engine.scan.carve import carve_records
from waltzctl.engine.scan.columns import Damage, DamageCause, RecordRun, RecordView
from waltzctl.engine.scan.probe import BudgetExhaustedError, Probe, SearchBudget
from waltzctl.engine.scan.scanner import BUDGET_BASE, BUDGET_PER_BYTE, read_record_at, summarise_records
from waltzctl.engine.shell_words import shell_join
from waltzctl.engine.storage.strays import Ids, hidden
from waltzctl.formats.control import (
    CONTROL_FILE_NAME,
    CONTROL_HEADER,
    MAX_PARTITIONS,
    ControlFile,
    Layout,
    PartitionInfo,
)
from waltzctl.formats.segment import (
    ENTRY_SIZE,
    HEADER_SIZE,
    INDEX_ENTRY,
    MAX_DATA_LENGTH,
    SegmentHeader,
    parse_name,
    segment_name,
)

BY_HAND = "by hand"
"""In place of a command line: a person can repair it without loss."""
CHECKPOINT = 1000
"""Records between two fsyncs of an index; a constant of the release."""
LARGEST_ARRAY = 2**31 - 3
"""Bytes of the largest array that a Java virtual machine can allocate."""


@dataclass(frozen=True, slots=True)
class ReleasedStart:
    """`starts`: whether release 0.13.2 starts on the directory; `findings`: why not, and what it would drop or block."""

    starts: bool
    findings: tuple[Finding, ...]


def released_start(storage: PurePath, control: ControlFile | None) -> ReleasedStart:
    """Simulate a start of the release on a storage directory.  `control`: its control file, as decoded.

    Reads the control file, the headers, and the part of each segment that the release would scan.  A read error is a finding.
    """
    start = _Start(storage, control)
    try:
        start.run()
    except DiskReadError as error:
        start.refuse(Path(error.path), str(error))
    return ReleasedStart(start.starts, tuple(start.findings))


class _Refused(Exception):  # noqa: N818  # ends the simulated opening of a segment
    """Why the release cannot open a segment.  `command` repairs it without loss; None where no command does."""

    def __init__(self, path: PurePath, why: str, command: str | None = None) -> None:
        self.path, self.why, self.command = path, why, command


@dataclass(frozen=True, slots=True)
class _Opened:
    """A segment as the release leaves it.

    `next_id`: the id after its last record.  `dropped`: the ids of valid records that the release cuts off.
    `damaged_acknowledged`: the record `next_id` is damaged, and at or below the local low-water mark.
    """

    first: int
    next_id: int
    dropped: tuple[Ids, ...]
    damaged_acknowledged: bool


class _Start:
    def __init__(self, storage: PurePath, control: ControlFile | None) -> None:
        self.storage = storage
        self.control = control
        self.control_path = storage / CONTROL_FILE_NAME
        self.starts = True
        self.findings: list[Finding] = []

    def _find(
        self,
        code: Code,
        path: PurePath,
        message: str,
        *,
        command: str | None = None,
        partition: int | None = None,
        segment: int | None = None,
        transaction_id: int | None = None,
    ) -> None:
        severity = Severity.DAMAGE if command is None else Severity.REPAIRABLE
        found = make_finding(
            code, path, message, severity=severity, partition=partition, segment=segment, transaction_id=transaction_id
        )
        self.findings.append(replace(found, remedy=self._remedy(command, partition)))

    def _remedy(self, command: str | None, partition: int | None) -> str | None:
        if command is None or command == BY_HAND:
            return None
        if isinstance(self.storage, MendedInCopy):
            return self.storage.remedy
        name, *options = command.split()
        words = ["waltzctl", name, str(self.storage), *options]
        return shell_join(words if partition is None else [*words, "--partition", str(partition)])

    def refuse(
        self,
        path: PurePath,
        why: str,
        *,
        command: str | None = None,
        partition: int | None = None,
        segment: int | None = None,
    ) -> None:
        """Record that the node does not start, for the reason `why`."""
        self.starts = False
        message = f"release 0.13.2 does not start: {why}"
        self._find(Code.RELEASED_REFUSES, path, message, command=command, partition=partition, segment=segment)

    def run(self) -> None:
        """Control file, then partitions.  Raises DiskReadError."""
        for number, mark, key in self._assigned():
            directory = self.storage / str(number)
            if places.is_directory(directory):
                _PartitionStart(self, number, mark, key, view_partition(directory, number)).run()
            elif places.still_named(directory):
                self.refuse(directory, "it is no directory", partition=number)

    def _assigned(self) -> Iterator[tuple[int, int, uuid.UUID]]:
        """Partitions that the release opens, with their local low-water marks and the cluster key."""
        kind = places.special(self.control_path)
        if kind is not None:
            self.refuse(self.control_path, f"the control file is {kind}")
            return
        state = FileState.of(self.control_path)
        if state is not None and state.size >= CONTROL_HEADER.size and self.control is None:
            self.refuse(self.control_path, "the control file cannot be read")
            return
        if self.control is None:
            self._find(
                Code.RELEASED_LOSES,
                self.control_path,
                "release 0.13.2 writes a new control file here and forgets every partition: sessions, marks, assignment",
            )
            return
        header = self.control.header
        if header.journaled:
            self._refuse_journaled()
        if self.control.layout is Layout.DOCUMENTED:
            if header.num_partitions:
                said = "the control file has the documented layout, in which it finds no valid struct; trying extends the file"
                self.refuse(self.control_path, said, command="convert --layout released")
            return
        if header.journaled:
            return  # the contents of the segments are not known before the journal is written back
        if not 0 <= header.num_partitions <= MAX_PARTITIONS:
            self.refuse(self.control_path, f"the control file's header says {header.num_partitions} partitions")
            return
        size = Layout.RELEASED.file_size(header.num_partitions)
        data = places.read_range(self.control_path, 0, size).ljust(size, b"\0")  # mapping a short file extends it
        for number in range(header.num_partitions):
            info = PartitionInfo.decode(Layout.RELEASED, number, data, Layout.RELEASED.info_offset(number))
            yield from self._in_force(info, header.cluster_key)

    def _refuse_journaled(self) -> None:
        from waltzctl.engine.storage.journal_state import look_at_journal

        said = (
            "acknowledged records may stand in a commit journal, and the control file's number of partitions, turned round for"
            " that, is not the cluster's; stop the node, or start it and stop it: it writes them back, and the number"
        )
        self.refuse(self.control_path, said, command=BY_HAND if look_at_journal(self.storage).fault is None else None)

    def _in_force(self, info: PartitionInfo, key: uuid.UUID) -> Iterator[tuple[int, int, uuid.UUID]]:
        valid = [one for one in info.structs if one.valid]
        if not valid:
            said = f"neither struct of partition {info.partition} is valid"
            self.refuse(self.control_path, said, partition=info.partition)
        elif len(valid) == 2 and valid[0].sequence == valid[1].sequence:
            said = f"both structs of partition {info.partition} have sequence {valid[0].sequence}"
            self.refuse(self.control_path, said, partition=info.partition)
        else:
            current = max(valid, key=lambda one: one.sequence or 0)
            if current.assigned:
                yield info.partition, current.local_low_water_mark, key


class _PartitionStart:
    """The opening of one partition."""

    def __init__(self, start: _Start, number: int, mark: int, key: uuid.UUID, view: PartitionView) -> None:
        self.start = start
        self.number = number
        self.mark = mark
        self.key = key
        self.view = view

    def run(self) -> None:
        """Open every file whose name ends in .seg, then look for indexes that block later segments.  Raises DiskReadError."""
        view = self.view
        special = [path for path in view.special if not path.name.endswith(".idx")]
        for path in special:
            self._refuse(_Refused(path, f"{path.name} is {places.still_special(path) or 'gone'}"))
        states = [one.data for one in view.data_segments if one.data is not None] + [one.data for one in view.strays]
        opened: dict[PurePath, _Opened] = {}
        for state in states:
            try:
                opened[state.path] = self._open(state)
            except _Refused as refusal:
                self._refuse(refusal)
        held = [(one.first, one.next_id - 1) for one in opened.values()]
        for path, found in opened.items():
            # what a failed write left in front of the next segment is cut, and that transaction stands there
            cut = found.damaged_acknowledged and bool(hidden([(found.next_id, found.next_id)], held))
            self._report_dropped(path, replace(found, damaged_acknowledged=cut))
        last = max(opened.values(), key=lambda one: one.first, default=None)
        if not states and not special:
            self._create_first_segment()
        elif last is not None:
            self._orphans(last.next_id)

    def _refuse(self, refusal: _Refused) -> None:
        parsed = parse_name(refusal.path.name)
        segment = None if parsed is None else parsed[0]
        self.start.refuse(refusal.path, refusal.why, command=refusal.command, partition=self.number, segment=segment)

    def _report_dropped(self, path: PurePath, opened: _Opened) -> None:
        if opened.dropped:
            said = (
                f"release 0.13.2 cuts this file in front of transaction {opened.next_id} without a word:"
                f" {spelled(opened.dropped)} behind it are good and would be gone"
            )
        elif opened.damaged_acknowledged:
            said = (
                f"release 0.13.2 cuts transaction {opened.next_id} off without a word, though the local low-water mark"
                f" {self.mark} says that it is acknowledged"
            )
        else:
            return
        named = parse_name(path.name)
        self.start._find(
            Code.RELEASED_LOSES,
            path,
            said,
            partition=self.number,
            segment=opened.first if named is None else named[0],
            transaction_id=opened.next_id,
        )

    def _create_first_segment(self) -> None:
        """Without any data file the release creates the first segment, beginning with its index file."""
        path = index_path_of(self.view.path / segment_name(0))
        state = FileState.of(path)
        if places.special(path) is not None:
            self._refuse(_Refused(path, f"{path.name} is {places.special(path)}"))
        elif state is not None and state.size:
            said = "there is no data file, and the index of the first one, which it would make, is not empty"
            self._refuse(_Refused(path, said, "recover" if state.size < HEADER_SIZE + ENTRY_SIZE else None))

    def _orphans(self, next_id: int) -> None:
        """Report indexes without a data file at which a later roll-over fails for ever; `next_id` is the log's next id."""
        for segment in self.view.segments:
            if segment.data is None and segment.index is not None and segment.index.size:
                first = segment.first_transaction_id
                if first >= next_id and segment.data_path not in self.view.special:
                    self.start._find(
                        Code.RELEASED_BLOCKS,
                        segment.index.path,
                        f"release 0.13.2 starts, but a segment that would begin with transaction {first} fails for ever:"
                        " its index is there already",
                        command=None if segment.entries else "recover",
                        partition=self.number,
                        segment=first,
                    )

    # --- one segment --------------------------------------------------------------------------------------------------

    def _open(self, data: FileState) -> _Opened:
        """Simulate the opening of a segment.  Raises _Refused, DiskReadError."""
        path, index_path = data.path, index_path_of(data.path)
        index = FileState.of(index_path)
        named = parse_name(path.name)
        stray = BY_HAND if named is None else None
        header = read_segment_header(data)
        if header is None:
            empty = index is None or index.size <= HEADER_SIZE
            last = all(one.data is None or one.data.path <= path for one in self.view.segments)
            raise _Refused(
                path, f"{path.name} ends inside its header", stray or ("recover" if empty and last else None)
            )
        self._compare(path, header, stray)
        if (kind := places.special(index_path)) is not None:
            raise _Refused(index_path, f"{index_path.name} is {kind}")
        rebuild: str | None = stray or "rebuild-index"
        if named is not None and header.first_transaction_id != named[0]:  # no index is built while the header is wrong
            rebuild = "recover" if self._begins_with(path, named[0]) else None
        if index is None:
            raise _Refused(path, f"{path.name} has no index", rebuild)
        index_header = read_segment_header(index)
        if index_header is None:
            raise _Refused(index_path, f"{index_path.name} ends inside its header", rebuild)
        self._compare(index_path, index_header, rebuild)
        with open_source(path) as source, open_source(index_path) as entries:
            return self._recover(data, header, index, index_header, source, entries, rebuild)

    @staticmethod
    def _begins_with(path: PurePath, first: int) -> bool:
        """Whether the first record of a data file is a good one of this id."""
        with open_source(path) as source:
            found = read_record_at(source, HEADER_SIZE, expected_id=first, max_record=MOST_HELD)
        return isinstance(found, RecordView)

    def _compare(self, path: PurePath, header: SegmentHeader, command: str | None) -> None:
        if header.cluster_key != self.key:
            raise _Refused(path, f"{path.name} says that it belongs to the cluster {header.cluster_key}", command)
        if header.partition != self.number:
            raise _Refused(path, f"{path.name} says that it belongs to partition {header.partition}", command)

    def _recover(
        self,
        data: FileState,
        header: SegmentHeader,
        index: FileState,
        index_header: SegmentHeader,
        source: ByteSource,
        entries: ByteSource,
        rebuild: str | None,
    ) -> _Opened:
        first, begins = header.first_transaction_id, index_header.first_transaction_id
        highest = _wrapped(begins + (index.size - HEADER_SIZE) // ENTRY_SIZE - 1)
        number = highest
        if highest > self.mark:
            number = max(_last_checkpoint(highest), self.mark)
        offset = HEADER_SIZE
        if number <= first:
            number = first
        else:
            offset = self._entry(index.path, entries, begins, number, rebuild)
            size = self._size_of_good(data.path, source, offset, number)
            if size is None:
                said = (
                    f"the record of transaction {number}, where its scan of {data.path.name} begins, is bad; the index is cut"
                    " there all the same, and a second start may open it and drop what follows"
                )
                mendable = rebuild == "recover" or self._good_at_all(source, first, number)
                raise _Refused(data.path, said, rebuild if mendable else None)
            number, offset = number + 1, offset + size
        return self._scan(data, source, first, number, offset, begins, rebuild)

    def _good_at_all(self, source: ByteSource, first: int, number: int) -> bool:
        """Whether a scan from the beginning of the segment reaches the record, so that only the index is wrong."""
        for item in summarise_records(source, first_transaction_id=first):
            if isinstance(item, Damage):
                return False
            if item.first_transaction_id + len(item) > number:
                return True
        return False

    @staticmethod
    def _entry(path: PurePath, entries: ByteSource, begins: int, number: int, rebuild: str | None) -> int:
        position = _position(number, begins)
        raw = bytearray(ENTRY_SIZE)
        if position < HEADER_SIZE or entries.read_into(position, memoryview(raw)) < ENTRY_SIZE:
            raise _Refused(path, f"{path.name} has no entry of transaction {number}, where its scan begins", rebuild)
        (offset,) = INDEX_ENTRY.struct.unpack(raw)
        if offset < 0:
            raise _Refused(path, f"the entry of transaction {number} in {path.name} is negative", rebuild)
        return int(offset)

    def _size_of_good(self, path: PurePath, source: ByteSource, offset: int, number: int) -> int | None:
        """Bytes of the record at `offset`; None if it is bad.  Raises _Refused for a length that ends the start."""
        self._check_length(path, source, offset, number)
        for item in summarise_records(source, first_transaction_id=number, start=offset):
            if isinstance(item, RecordRun):
                ends = int(item.offset[1]) if len(item) > 1 else item.end
                return ends - offset
            break
        return None

    def _check_length(self, path: PurePath, source: ByteSource, offset: int, number: int) -> None:
        header = Probe(source, source.size(), MAX_DATA_LENGTH, SearchBudget(2**63)).header(offset)
        if header is not None and header.transaction_id == number and not 0 <= header.data_length <= LARGEST_ARRAY:
            said = f"transaction {number} in {path.name} says that its data has {header.data_length} bytes"
            raise _Refused(path, said)

    def _scan(
        self,
        data: FileState,
        source: ByteSource,
        first: int,
        number: int,
        offset: int,
        begins: int,
        rebuild: str | None,
    ) -> _Opened:
        """Scan from `offset`, where the record `number` is expected, to the first bad record, and the valid records after it."""
        following, stopped = number, offset
        dropped: list[Ids] = []
        bad = False
        for item in summarise_records(source, first_transaction_id=number, start=offset):
            if isinstance(item, Damage):
                bad = True
                if item.cause is DamageCause.RECORD_ORDER:
                    dropped += _out_of_order(source, item)
            elif bad:
                dropped.append((item.first_transaction_id, item.first_transaction_id + len(item) - 1))
            else:
                following, stopped = item.first_transaction_id + len(item), item.end
        if _position(number, begins) < 0:  # of the first entry that it writes, or of the index's end
            raise _Refused(index_path_of(data.path), "the index would be written in front of its beginning", rebuild)
        self._check_length(data.path, source, stopped, following)
        acknowledged = bad and following <= self.mark
        kept = [(first, following - 1)] if following > first else []  # a record that stands twice is not gone
        return _Opened(first, following, hidden(dropped, kept), acknowledged)


def _out_of_order(source: ByteSource, damage: Damage) -> Iterator[Ids]:
    """The ids of the good records in a span that begins with one of another id than the expected one.

    All of a segment's records are such a span where the first id in the header of its data file is wrong.
    """
    budget = SearchBudget(BUDGET_BASE + BUDGET_PER_BYTE * damage.length)
    with contextlib.suppress(BudgetExhaustedError):
        for batch in carve_records(source, start=damage.offset, stop=damage.end, budget=budget):
            yield int(batch.transaction_id[0]), int(batch.transaction_id[-1])


def _wrapped(number: int) -> int:
    """A number as the 64 bits hold it with which the release computes."""
    return (number + 2**63) % 2**64 - 2**63


def _last_checkpoint(highest: int) -> int:
    """The multiple of `CHECKPOINT` in front of an id; of a negative one that towards 0, as Java divides."""
    before = _wrapped(highest - 1)
    return before - before % CHECKPOINT if before >= 0 else before + -before % CHECKPOINT


def _position(number: int, begins: int) -> int:
    """Where the release looks for the entry of a transaction, in an index whose header says that it begins with `begins`."""
    return _wrapped(HEADER_SIZE + ENTRY_SIZE * (number - begins))
