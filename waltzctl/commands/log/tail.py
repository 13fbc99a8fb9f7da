"""log tail: committed transactions of partitions, in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from waltzctl.commands.log.log_target import STATUSES, options_of
from waltzctl.console import Console, on_terminal
from waltzctl.engine.amounts import chosen_partitions
from waltzctl.exit_status import ExitStatus
from waltzctl.log_session import use_log
from waltzctl.manual import Example, Manual, ManualSection
from waltzctl.metadata_option import ClusterTarget
from waltzctl.options import (
    DataForm,
    Format,
    FormatOption,
    PartitionsOption,
    QuietOption,
    VerboseOption,
    partitions_of,
    transaction_range,
)
from waltzctl.values import counted

if TYPE_CHECKING:
    from waltzctl.engine.client.log_client import LogClient
    from waltzctl.engine.client.log_transaction import Transaction

MANUAL = Manual(
    name="tail",
    page="log",
    summary="Show committed transactions, starting at any id",
    description=(
        (
            "The transactions of each partition are shown in order, without gaps or repeats, also when servers are"
            " replaced. Without --follow it ends at the last transaction that was committed when it began, and fails"
            " (14) when no answer comes for --timeout. With --follow it waits for a cluster that does not answer."
        ),
    ),
    examples=(
        Example(
            "waltzctl log tail --metadata /data/waltz.meta --follow --format ndjson",
            ("All partitions, including new transactions."),
        ),
        Example(
            "waltzctl log tail --metadata /data/waltz.meta --partition 2 --from 1000 --limit 10 --data utf8",
            "Ten transactions.",
        ),
    ),
    statuses=STATUSES,
    objects=("log-record",),
    sections=(
        ManualSection(
            "DATA",
            (
                (
                    "Data is requested for several transactions at a time; with --data none it is not requested, which is"
                    " much faster."
                ),
            ),
        ),
    ),
)

T = TypeVar("T")
AT_ONCE = 64
"""Transactions whose data is asked for at the same time."""
_LOOK_FOR_READER = 1.0
"""Seconds for which a tail that follows waits, at most, until it looks whether anybody reads it: nothing else would tell it."""

DataOption = Annotated[
    DataForm | None,
    typer.Option("--data", help="Form of the data; default base64, text in a table."),
]


def run(
    ctx: typer.Context,
    partition: PartitionsOption = None,
    first: Annotated[int, typer.Option("--from", metavar="T", min=0, help="First transaction.")] = 0,
    last: Annotated[int | None, typer.Option("--to", metavar="T", min=0, help="Last transaction.")] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="At most this many transactions.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Wait for transactions that are committed later.")
    ] = False,
    data: DataOption = None,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Read and show."""
    target = ClusterTarget.of(ctx)
    wanted = partitions_of(partition)
    transaction_range(first, last)
    with Console(output_format, quiet=quiet, verbose=verbose) as console:
        shower = RecordShower(console, data, follow=follow)

        async def work(client: LogClient) -> None:
            numbers = chosen_partitions(wanted, client.num_partitions)
            ask = client.awaited_high_water_mark if follow else client.high_water_mark
            marks = dict(zip(numbers, await shower.while_read(asyncio.gather(*map(ask, numbers))), strict=True))
            there = [number for number in numbers if follow or first <= marks[number]]
            ends = {number: _end(marks[number], last, follow=follow) for number in there}
            feed = client.feed(
                {number: min(first - 1, marks[number]) for number in there},  # nobody can begin behind the end of a log
                until=None if follow and last is None else ends.__getitem__,
                timeout=None if follow else client.options.timeout,
            )
            async with aclosing(feed):
                await shower.show_all(client, feed, first=first, limit=limit)

        use_log(target, console, work, options_of(target))
        console.success(f"{counted(shower.count, 'transaction')}.")
    return ExitStatus.CLEAN


def _end(mark: int, last: int | None, *, follow: bool) -> int | None:
    if follow:
        return last
    return mark if last is None else min(last, mark)


class RecordShower:
    """Shows transactions with their data, in the order in which they come.

    `follow`: each as soon as it is there, and a cluster that does not answer is waited for.
    """

    def __init__(self, console: Console, data: DataForm | None, *, follow: bool) -> None:
        self._console, self._follow = console, follow
        self._form = DataForm.BASE64 if data is None and console.format is not Format.TABLE else data
        self._preview = 60 if on_terminal(console.stream) else None
        self.count = 0

    async def while_read(self, answer: Awaitable[T]) -> T:
        """An answer; one that follows waits for it only as long as anybody reads.  Raises ReaderGoneError, and its errors."""
        waiting = asyncio.ensure_future(answer)
        try:
            while self._follow and not (await asyncio.wait({waiting}, timeout=_LOOK_FOR_READER))[0]:
                self._console.check_reader()
            return await waiting
        finally:
            waiting.cancel()

    async def show_all(
        self, client: LogClient, feed: AsyncGenerator[Transaction, None], *, first: int = 0, limit: int | None = None
    ) -> None:
        """Show what a feed gives, from `first` on."""
        waiting: deque[tuple[Transaction, asyncio.Task[bytes] | None]] = deque()
        upcoming: asyncio.Task[Transaction] | None = None
        taken = 0
        try:
            while True:
                wanted = limit is None or taken < limit
                if upcoming is None and wanted and len(waiting) < AT_ONCE:
                    upcoming = asyncio.ensure_future(anext(feed))
                oldest = waiting[0][1] if waiting else None
                if waiting and (oldest is None or oldest.done()):
                    self._show(*waiting.popleft())
                    continue
                if upcoming is None and not waiting:
                    return
                if self._follow:
                    self._console.hand_over()  # a table would hold its rows back
                either = {one for one in (upcoming, oldest) if one is not None}
                patience = _LOOK_FOR_READER if self._follow else None
                await asyncio.wait(either, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                if self._follow:  # also where one came: those in front of `first` are not written
                    self._console.check_reader()
                if upcoming is not None and upcoming.done():
                    try:
                        found = upcoming.result()
                    except StopAsyncIteration:
                        limit, upcoming = taken, None
                        continue
                    upcoming = None
                    if found.transaction_id >= first:
                        taken += 1
                        waiting.append((found, self._ask(client, found, len(waiting))))
        finally:
            unfinished = [one for one in (upcoming, *(task for _, task in waiting)) if one is not None]
            for task in unfinished:
                task.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)

    def _ask(self, client: LogClient, one: Transaction, ahead: int) -> asyncio.Task[bytes] | None:
        """`ahead`: how many are to come before this one, each of which may take as long as the first."""
        if self._form is DataForm.NONE:
            return None
        if self._follow:
            return asyncio.ensure_future(client.awaited_data(one))
        timeout = (ahead + 1) * client.options.timeout
        return asyncio.ensure_future(client.data(one.partition, one.transaction_id, timeout=timeout))

    def _show(self, one: Transaction, data: asyncio.Task[bytes] | None) -> None:
        from waltzctl.objects.log_objects import LOG_RECORD
        from waltzctl.render.dumped import data_keys

        shown = LOG_RECORD.keys(one)
        if data is not None:
            shown |= data_keys(data.result(), self._form, self._preview)
        self._console.emit(LOG_RECORD.named(shown), flush=self._follow)
        self.count += 1
