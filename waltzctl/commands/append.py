"""append: records from stdin into one partition, as a new session."""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from waltzctl.console import Console
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual, Section
from waltzctl.options import (
    FormatOption,
    OnePartitionOption,
    QuietOption,
    StorageArgument,
    VerboseOption,
    parsed,
    path_of,
)
from waltzctl.outcome import say
from waltzctl.values import counted, human_bytes, parse_size

if TYPE_CHECKING:
    from engine.storage.partition import Partition
    from formats.segment import Record
    from waltzctl.intake import Entry

BATCH_BYTES = 16 << 20
"""A batch is handed over at this many bytes of data, however few records that is."""


class InputFormat(enum.StrEnum):
    """How a line of the input becomes a record."""

    LINES = "lines"
    NDJSON = "ndjson"


MANUAL = Manual(
    name="append",
    summary="Append records from standard input to a partition",
    description=(
        (
            "Reads one record a line and appends them to the partition as a new session. A batch is written with one write and"
            " made durable before the next one is read; ids are given in the order of the lines."
        ),
        (
            "A line that cannot be a record ends the run: whole batches before it are durable, the batch it belongs to is not"
            " written at all. The error names the line, append-result says how far it came, and the same input can be"
            " continued from there."
        ),
    ),
    examples=(
        Example("seq 100000 | waltzctl append /data/waltz --partition 0", "A hundred thousand small records."),
        Example(
            "waltzctl dump n1 --partition 2 --format ndjson | waltzctl append n2 --partition 2 --input-format ndjson",
            "Copy a partition's records; data, headers and request ids stay what they were.",
        ),
        Example(
            "producer | waltzctl append /data/waltz --partition 0 --batch 1 --progress-ids",
            "Print each id as soon as its record is durable.",
        ),
    ),
    statuses=(
        ExitStatus.CLEAN,
        ExitStatus.USAGE,
        ExitStatus.DAMAGED,
        ExitStatus.NOT_WALTZ,
        ExitStatus.LOCKED,
        ExitStatus.REFUSED,
        ExitStatus.IO_ERROR,
        ExitStatus.INTERRUPTED,
    ),
    objects=("append-result",),
    sections=(
        Section(
            "INPUT",
            (
                (
                    "lines: the bytes of the line without its end are the data; an empty line is a record without data. Header"
                    " 0; request ids count through the session."
                ),
                (
                    "ndjson: an object a line with data (a string is taken as UTF-8 text, any other value as compact JSON),"
                    " data_b64 or data_hex, and optionally header (signed 32 bits) and request_id (client, generation,"
                    " partition, sequence). The other keys of a dumped record are understood and not used; a data_checksum must"
                    " agree with the data. Unknown keys are refused."
                ),
            ),
        ),
        Section(
            "INTERRUPTION",
            (
                (
                    "Ctrl-C finishes the batch that is being written, prints append-result and exits 130. A kill or a power"
                    " loss leaves every batch whose id was printed, and nothing that readers could mistake for a record."
                ),
            ),
        ),
    ),
)


def run(
    path: StorageArgument,
    partition: OnePartitionOption,
    input_format: Annotated[InputFormat, typer.Option("--input-format", help="Form of the input.")] = InputFormat.LINES,
    batch: Annotated[
        int, typer.Option("--batch", metavar="N", min=1, max=1_000_000, help="Records in a batch.")
    ] = 1000,
    sync: Annotated[
        bool, typer.Option("--sync", help="Make each batch durable: the default, and the only way.")
    ] = True,
    segment_size: Annotated[
        str | None,
        typer.Option(
            "--segment-size",
            metavar="SIZE",
            help="Begin a new segment beyond this size, for instance 256MiB; else 1GB.",
        ),
    ] = None,
    progress_ids: Annotated[
        bool, typer.Option("--progress-ids", help="Print the last id of each batch, once it is durable.")
    ] = False,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Append until the input ends."""
    storage_path = path_of(path)
    threshold = parsed("--segment-size", segment_size, parse_size)

    from engine.storage.directory import StorageDirectory
    from engine.storage.options import StorageOptions
    from waltzctl.intake import bare_entries, json_entries
    from waltzctl.interrupt import finishing
    from waltzctl.render.objects import append_result_object

    options = StorageOptions() if threshold is None else StorageOptions(segment_size_threshold=threshold)
    entries = (json_entries if input_format is InputFormat.NDJSON else bare_entries)(sys.stdin.buffer)
    status = ExitStatus.CLEAN
    with (
        Console(output_format, quiet=quiet, verbose=verbose, single=True, must_finish=True) as console,
        StorageDirectory.open(storage_path, options=options) as storage,
    ):
        target = storage.partition(partition)
        run_of = _Run(target)
        ended_early = True
        try:
            for records in run_of.batches(entries, batch):
                with finishing("the batch", "it is then kept whole or not at all") as interrupt:
                    run_of.append(records)
                console.detail(f"transaction {run_of.last} and all before it are durable")
                if progress_ids:
                    console.line(str(run_of.last))
                    console.flush()
                if interrupt.wanted:
                    raise KeyboardInterrupt
            ended_early = False
        except KeyboardInterrupt:
            status = ExitStatus.INTERRUPTED
        finally:
            if ended_early or not (quiet and console.for_people):
                shown = append_result_object(partition, run_of.first, run_of.last, run_of.records, run_of.bytes)
                console.emit(shown, flush=True)
            if ended_early:
                say(f"waltzctl: {'interrupted: ' if status else ''}{_durable(run_of)}")
        if status is ExitStatus.CLEAN:
            size = human_bytes(run_of.bytes)
            console.success(f"APPENDED  {counted(run_of.records, 'record')} ({size}) to partition {partition}.")
    return status


def _durable(run_of: _Run) -> str:
    if not run_of.records:
        return "nothing was appended"
    return f"{counted(run_of.records, 'record')} durable, the last one is transaction {run_of.last}; the rest was not appended"


class _Run:
    """One run's session: what was appended so far."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._session = partition.session_id + 1
        self._sequence = 0
        self.first: int | None = None
        self.last: int | None = None
        self.records = 0
        self.bytes = 0

    def batches(self, entries: Iterator[Entry], limit: int) -> Iterator[list[Record]]:
        """The input's records, numbered, in batches; a line that is no record ends it before its batch is handed over."""
        from formats.request_id import RequestId
        from formats.segment import Record

        number = self._partition.next_transaction_id
        held: list[Record] = []
        size = 0
        for entry in entries:
            request = entry.request_id or (0, self._session & 0x7FFFFFFF, self._partition.number, self._sequence)
            self._sequence = (self._sequence + 1) & 0x7FFFFFFF
            held.append(Record.make(number, RequestId(*request), entry.header, entry.data))
            number += 1
            size += len(entry.data)
            if len(held) >= limit or size >= BATCH_BYTES:
                yield held
                held, size = [], 0
        if held:
            yield held

    def append(self, records: list[Record]) -> None:
        """Append a batch durably.  The first one begins the session: what is here by then counts as acknowledged."""
        if self.first is None:
            mark = max(self._partition.max_transaction_id, self._partition.low_water_mark)
            self._partition.set_low_water_mark(self._session, mark)
        self._partition.append(records)
        if self.first is None:
            self.first = records[0].transaction_id
        self.last = records[-1].transaction_id
        self.records += len(records)
        self.bytes += sum(record.size for record in records)
