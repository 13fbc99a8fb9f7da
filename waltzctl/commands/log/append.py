"""log append: transactions from stdin into a partition of a cluster."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from waltzctl.commands.append import InputFormat
from waltzctl.commands.log.log_target import STATUSES, options_of
from waltzctl.console import Console
from waltzctl.engine.amounts import chosen_partitions
from waltzctl.exit_status import ExitStatus
from waltzctl.log_session import use_log
from waltzctl.manual import Example, Manual, ManualSection
from waltzctl.metadata_option import ClusterTarget
from waltzctl.options import FormatOption, OnePartitionOption, QuietOption, VerboseOption
from waltzctl.outcome import say
from waltzctl.values import counted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from waltzctl.engine.client.log_client import LogClient

MANUAL = Manual(
    name="append",
    page="log",
    summary="Append transactions from standard input",
    description=(
        (
            "Reads one transaction per line and appends them in the order of the lines, several in flight at a time. A"
            " transaction is committed when a quorum of the partition's storage nodes has made it durable. If a log"
            " server dies, its successor resolves the transactions in flight; these may then be placed after later"
            " lines. Nothing is appended twice."
        ),
        (
            "An invalid line ends the run: the transactions before it are committed. append-result gives the last"
            " committed id; if other clients append as well, their ids may lie in between. Servers do not accept a"
            " transaction of more than 128 MiB."
        ),
    ),
    examples=(
        Example("seq 1000 | waltzctl log append --metadata /data/waltz.meta --partition 0", "A thousand transactions."),
        Example(
            """jq -c '{data: ., write_locks: [["account", .account]]}' moves.json | waltzctl log append --metadata"""
            " /data/waltz.meta --partition 0 --input-format ndjson",
            "Under optimistic locks.",
        ),
        Example(
            "producer | waltzctl log append --metadata /data/waltz.meta --partition 0 --progress-ids",
            "Print the highest committed id whenever it rises.",
        ),
    ),
    statuses=STATUSES,
    objects=("append-result",),
    sections=(
        ManualSection(
            "INPUT",
            (
                (
                    "As for waltzctl append: lines, or ndjson with data, data_b64 or data_hex, and header."
                    " write_locks, read_locks and append_locks are lists of [name, id]. If one of a transaction's"
                    " write or read locks was written by another transaction meanwhile, the transaction is built again"
                    " on the newer state, and queued again. A request_id is accepted and ignored, because the client"
                    " numbers its own requests."
                ),
            ),
        ),
    ),
)


def run(
    ctx: typer.Context,
    partition: OnePartitionOption,
    input_format: Annotated[InputFormat, typer.Option("--input-format", help="Form of the input.")] = InputFormat.LINES,
    in_flight: Annotated[
        int, typer.Option("--in-flight", metavar="N", min=1, max=100_000, help="Transactions in flight at a time.")
    ] = 64,
    progress_ids: Annotated[
        bool, typer.Option("--progress-ids", help="Print the highest committed id whenever it rises.")
    ] = False,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Append until the input ends."""
    target = ClusterTarget.of(ctx)
    with Console(output_format, quiet=quiet, verbose=verbose, single=True, must_finish=True) as console:
        progress = _Progress(console, partition, show_ids=progress_ids)
        ended_early = True
        try:
            use_log(
                target,
                console,
                lambda client: _append(client, partition, input_format, progress),
                options_of(target, in_flight),
            )
            ended_early = False
        except KeyboardInterrupt:
            return ExitStatus.INTERRUPTED
        finally:
            progress.show(ended_early=ended_early)
        console.success(f"APPENDED  {counted(progress.committed, 'transaction')} to partition {partition}.")
    return ExitStatus.CLEAN


class _Progress:
    """What is committed so far."""

    def __init__(self, console: Console, partition: int, *, show_ids: bool) -> None:
        self._console, self._partition, self._show_ids = console, partition, show_ids
        self.committed = self._bytes = 0
        self.begun = False
        self._first: int | None = None
        self._last: int | None = None

    def note(self, transaction_id: int, size: int) -> None:
        """One more."""
        self.committed += 1
        self._bytes += size
        self._first = transaction_id if self._first is None else min(self._first, transaction_id)
        if self._last is None or transaction_id > self._last:
            self._last = transaction_id
            if self._show_ids:
                self._console.line(str(transaction_id))
                self._console.flush()

    def show(self, *, ended_early: bool) -> None:
        """The result."""
        from waltzctl.engine.storage.append import AppendResult
        from waltzctl.objects.repair_objects import APPEND_RESULT

        result = AppendResult(self._partition, self._first, self._last, self.committed, self._bytes)
        if ended_early or not (self._console.quiet and self._console.for_people):
            self._console.emit_done(APPEND_RESULT.shown(result))
        if ended_early:
            last = "" if self._last is None else f", the last one is transaction {self._last}"
            under_way = "; what was under way may be, too" if self.begun else "; none was sent"
            say(f"waltzctl: {counted(self.committed, 'transaction')} committed{last}{under_way}")


async def _append(client: LogClient, partition: int, input_format: InputFormat, progress: _Progress) -> None:
    from waltzctl.engine.client.append_bounds import OversizedAppendError
    from waltzctl.engine.client.log_transaction import Draft
    from waltzctl.formats.segment import RECORD_OVERHEAD
    from waltzctl.intake import BadLineError, EntryStream, bare_entries, json_entries

    chosen_partitions({partition}, client.num_partitions)
    source = sys.stdin.buffer
    entries = json_entries(source, locks=True) if input_format is InputFormat.NDJSON else bare_entries(source)
    under_way: dict[int, tuple[int, int]] = {}  # line and size of each

    def on_commit(place: int, transaction_id: int) -> None:
        progress.note(transaction_id, under_way.pop(place)[1])

    async def drafts(stream: EntryStream) -> AsyncIterator[Draft]:
        place = 0
        async for entry in stream:
            progress.begun = True
            under_way[place] = entry.line, RECORD_OVERHEAD + len(entry.data)
            yield Draft(entry.data, entry.header, entry.write_locks, entry.read_locks, entry.append_locks)
            place += 1

    async with EntryStream(entries) as stream:
        try:
            await client.append_all(partition, drafts(stream), on_commit=on_commit)
        except OversizedAppendError as error:
            raise BadLineError(under_way[error.place][0], error.message) from None
