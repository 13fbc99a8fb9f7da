"""append: records from stdin into one partition, as a new session."""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waltzctl.console import Console
from waltzctl.engine.shell_words import shell_quote
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual, ManualSection
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
    from waltzctl.engine.storage.append import AppendResult, PendingRecord
    from waltzctl.intake import Entry


class InputFormat(enum.StrEnum):
    """How a line of the input becomes a record."""

    LINES = "lines"
    NDJSON = "ndjson"


MANUAL = Manual(
    name="append",
    summary="Append records from standard input to a partition",
    description=(
        (
            "Reads one record per line and appends the records to the partition as a new session. Each batch is one"
            " write, and is durable before the next batch is read; ids follow the order of the lines."
        ),
        (
            "Only that partition is opened. Nothing in it is changed before the first batch has been read and is"
            " valid. Then what a crash left there (a torn tail, an index that lags) is repaired, as a node does at its"
            " start; this is reported on stderr, and removed bytes are kept in the quarantine."
        ),
        (
            "An invalid line ends the run: complete batches before it are durable, and nothing of its own batch is"
            " written. The error names the line, append-result gives the last durable transaction, and the same input"
            " can be continued from there."
        ),
    ),
    examples=(
        Example("seq 100000 | waltzctl append /data/waltz --partition 0", "A hundred thousand small records."),
        Example(
            "waltzctl dump n1 --partition 2 --format ndjson | waltzctl append n2 --partition 2 --input-format ndjson",
            "Copy a partition's records; data, headers and request ids are preserved.",
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
        ExitStatus.MISMATCH,
        ExitStatus.REFUSED,
        ExitStatus.IO_ERROR,
        ExitStatus.INTERRUPTED,
    ),
    objects=("append-result",),
    sections=(
        ManualSection(
            "INPUT",
            (
                (
                    "lines: the bytes of the line without its line end are the data; an empty line is a record without"
                    " data. The header is 0; request ids are numbered through the session."
                ),
                (
                    "ndjson: one object per line with data (a string is taken as UTF-8 text, any other value as"
                    " compact JSON with its numbers as they were written), data_b64 or data_hex, and optionally header"
                    " (signed 32 bits) and request_id (client, generation, partition, sequence). Other keys of a"
                    " dumped record are accepted and ignored, but a data_checksum must match the data. Unknown keys"
                    " are refused."
                ),
            ),
        ),
        ManualSection(
            "INTERRUPTION",
            (
                (
                    "Ctrl-C finishes the current batch, prints append-result and exits 130. After a kill or a power"
                    " loss every batch whose id was printed is durable, and an incomplete batch is not mistaken for"
                    " records."
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
        bool, typer.Option("--sync", help="Make each batch durable: the default; cannot be turned off.")
    ] = True,
    segment_size: Annotated[
        str | None,
        typer.Option(
            "--segment-size",
            metavar="SIZE",
            help="Begin a new segment beyond this size, for instance 256MiB; default 1GB.",
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
    named = path_of(path)
    threshold = parsed("--segment-size", segment_size, parse_size)
    with Console(output_format, quiet=quiet, verbose=verbose, single=True, must_finish=True) as console:
        try:
            return _append(console, named, partition, input_format, batch, threshold, progress_ids=progress_ids)
        except KeyboardInterrupt:
            if not console.answered:
                _say_nothing_appended(console, partition)
            return ExitStatus.INTERRUPTED


def _append(
    console: Console,
    named: Path,
    partition: int,
    input_format: InputFormat,
    batch: int,
    threshold: int | None,
    *,
    progress_ids: bool,
) -> ExitStatus:
    from waltzctl.engine.storage.append import AppendSession, grouped, storage_to_append_to
    from waltzctl.engine.storage.directory import StorageDirectory
    from waltzctl.engine.storage.storage_options import StorageOptions
    from waltzctl.intake import bare_entries, json_entries
    from waltzctl.interrupt import finishing
    from waltzctl.objects.repair_objects import APPEND_RESULT
    from waltzctl.outcome import say_taken_back

    storage_path = storage_to_append_to(named, partition)
    options = StorageOptions() if threshold is None else StorageOptions(segment_size_threshold=threshold)
    entries = (json_entries if input_format is InputFormat.NDJSON else bare_entries)(sys.stdin.buffer)
    status = ExitStatus.CLEAN
    with StorageDirectory.open(storage_path, partitions=(), options=options) as storage:
        say_taken_back(storage.taken_back)
        session = AppendSession(storage, partition)
        ended_early = True
        try:
            for group in grouped(_pending(entries), batch):
                with finishing("the batch", "it is then kept whole or not at all") as interrupt:
                    session.append(group)
                console.detail(f"transaction {session.last_transaction_id} and all before it are durable")
                if progress_ids:
                    console.line(str(session.last_transaction_id))
                    console.flush()
                if interrupt.wanted:
                    raise KeyboardInterrupt
            ended_early = False
        except KeyboardInterrupt:
            status = ExitStatus.INTERRUPTED
        finally:
            result = session.result
            _say_mended(named, result)
            if ended_early or not (console.quiet and console.for_people):
                console.emit_done(APPEND_RESULT.shown(result))
            if ended_early:
                say(f"waltzctl: {'interrupted: ' if status else ''}{_durable(result)}")
        if status is ExitStatus.CLEAN:
            size = human_bytes(result.bytes)
            console.success(f"APPENDED  {counted(result.records, 'record')} ({size}) to partition {partition}.")
    return status


def _say_nothing_appended(console: Console, partition: int) -> None:
    """Show the result of an append that was interrupted before its session: the same object, with no records."""
    from waltzctl.engine.storage.append import AppendResult
    from waltzctl.objects.repair_objects import APPEND_RESULT

    result = AppendResult(partition, None, None, 0, 0)
    console.emit(APPEND_RESULT.shown(result), flush=True)
    say(f"waltzctl: interrupted: {_durable(result)}")


def _pending(entries: Iterator[Entry]) -> Iterator[PendingRecord]:
    from waltzctl.engine.storage.append import PendingRecord
    from waltzctl.formats.request_id import RequestId

    for entry in entries:
        yield PendingRecord(entry.data, entry.header, RequestId(*entry.request_id) if entry.request_id else None)


def _say_mended(path: Path, result: AppendResult) -> None:
    """Announce, even with ``-q``, a change that the user did not ask for."""
    for finding in result.mended:
        say(f"waltzctl: mended first: {finding.code}: {finding.message}")
    for undo_id in result.undo_ids:
        how = f"waltzctl undo {shell_quote(str(path))} --list"
        say(f"waltzctl: what was taken away is kept in the quarantine: {undo_id} ({how})")


def _durable(result: AppendResult) -> str:
    if not result.records:
        return "nothing was appended"
    durable, last = counted(result.records, "record"), result.last_transaction_id
    return f"{durable} durable, the last one is transaction {last}; the rest was not appended"
