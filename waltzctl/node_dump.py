"""The implementation of dump for a node, and of node records."""

from __future__ import annotations

import sys
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TextIO

from waltzctl.connection_options import Connecting
from waltzctl.console import Console, on_terminal
from waltzctl.engine.client.connection_factory import ConnectionFactory
from waltzctl.engine.client.inspect import NodeRecord, read_records
from waltzctl.engine.columns.finding_columns import FINDING
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect.verification import Tally
from waltzctl.engine.net.addresses import Address
from waltzctl.event_loop import run_async
from waltzctl.exit_status import ExitStatus
from waltzctl.options import DataForm, DumpFormat, Format
from waltzctl.outcome import say
from waltzctl.output_file import replacing_binary, replacing_text
from waltzctl.render.dumped import PREVIEW, record_object
from waltzctl.storage_dump import writing
from waltzctl.values import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


@dataclass(frozen=True, slots=True)
class NodeDump:
    """The options; None where one was not given.  `address`: of the admin port."""

    address: Address
    connecting: Connecting
    partitions: Collection[int] | None
    first: int | None
    last: int | None
    limit: int | None
    data: DataForm | None
    format: DumpFormat | None
    output: Path | None
    quiet: bool
    verbose: int


def dump_node(request: NodeDump) -> ExitStatus:
    """Show the records of a node.  Raises what `engine.client.inspect.read_records` raises."""
    tally = Tally()
    usual = DumpFormat.TABLE if request.output is None and on_terminal(sys.stdout) else DumpFormat.PLAIN
    shown = request.format or usual
    with writing(tally), ExitStack() as stack:
        if shown is DumpFormat.RAW:
            binary: BinaryIO = sys.stdout.buffer
            if request.output is not None:
                binary = stack.enter_context(replacing_binary(request.output))
            count = _raw(request, binary, tally)
        else:
            text: TextIO = sys.stdout
            if request.output is not None:
                text = stack.enter_context(replacing_text(request.output))
            count = _objects(request, Format(shown.value), text, tally)
    if request.output is not None and not request.quiet:
        say(f"waltzctl: {request.output}: {_counts(count, tally)}")
    return ExitStatus.from_label(tally.exit_status_name)


def _objects(request: NodeDump, chosen: Format, stream: TextIO, tally: Tally) -> int:
    form = request.data
    if form is None and chosen is not Format.TABLE:
        form = DataForm.BASE64
    preview = PREVIEW if on_terminal(stream) else None
    with Console(chosen, quiet=request.quiet, verbose=request.verbose, stream=stream) as console:

        def show(item: NodeRecord | Finding) -> None:
            if isinstance(item, Finding):
                tally.add(item)
                console.emit(FINDING.shown(item))
            else:
                console.emit(record_object(item, form, preview))

        count = run_async(_read(request, request.connecting.reach(console), show))
        if request.output is None:
            console.success(f"{_counts(count, tally)} Nothing was modified.")
    return count


def _raw(request: NodeDump, stream: BinaryIO, tally: Tally) -> int:
    def show(item: NodeRecord | Finding) -> None:
        if isinstance(item, Finding):
            tally.add(item)
            say(f"waltzctl: {item.severity}: {item.path}: {item.code}: {item.message}")
        else:
            stream.write(item.record.data)

    count = run_async(_read(request, request.connecting.reach(), show))
    stream.flush()
    return count


async def _read(request: NodeDump, reach: ConnectionFactory, show: Callable[[NodeRecord | Finding], None]) -> int:
    """Show all items; returns the number of records."""
    count = 0
    async with await reach.admin(request.address) as client:
        items = read_records(client, request.partitions, first=request.first, last=request.last, limit=request.limit)
        async with aclosing(items):
            async for item in items:
                show(item)
                count += isinstance(item, NodeRecord)
    return count


def _counts(count: int, tally: Tally) -> str:
    found = tally.damage + tally.repairable
    return f"{counted(count, 'record')}, {counted(found, 'finding')}." if found else f"{counted(count, 'record')}."
