"""The implementation of dump: what is read, its form, and its destination."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, BinaryIO, TextIO

import typer

from waltzctl.console import Console, on_terminal, refusals
from waltzctl.engine.columns.control_columns import CONTROL, PARTITION_INFO
from waltzctl.engine.columns.finding_columns import FINDING
from waltzctl.engine.columns.segment_columns import INDEX_ENTRY, SEGMENT
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect.dump import (
    ControlDump,
    DumpedRecord,
    IndexEntry,
    SegmentDump,
    at_most,
    dump_control,
    dump_index,
    dump_records,
    dump_segments,
)
from waltzctl.engine.inspect.verification import Tally
from waltzctl.engine.log.target import Target, TargetKind, resolve
from waltzctl.exit_status import ExitStatus
from waltzctl.formats.control import PartitionInfo
from waltzctl.options import DataForm, DumpFormat, Format, What
from waltzctl.outcome import ReaderGoneError, name_stdout, say
from waltzctl.output_file import check_outside, replacing_binary, replacing_text
from waltzctl.render import dumped
from waltzctl.values import counted

if TYPE_CHECKING:
    from collections.abc import Collection

Item = DumpedRecord | IndexEntry | SegmentDump | ControlDump | PartitionInfo | Finding

_USUAL = {TargetKind.CONTROL: What.CONTROL, TargetKind.INDEX: What.INDEX}
_NOUNS = {What.RECORDS: "record", What.SEGMENTS: "segment", What.INDEX: "entry", What.CONTROL: "partition"}


@dataclass(frozen=True, slots=True)
class DumpRequest:
    """The options of dump; None where one was not given."""

    path: PurePath
    what: What | None
    partitions: Collection[int] | None
    first: int | None
    last: int | None
    limit: int | None
    reverse: bool
    data: DataForm | None
    format: DumpFormat | None
    output: Path | None
    quiet: bool
    verbose: int


def dump(request: DumpRequest) -> ExitStatus:
    """Run dump.  Raises what the engine's dump raises, and usage errors."""
    with refusals(request.format):
        target = resolve(request.path)
    what = what_of(target, request.what)
    check_request(request, target, what)
    shown = _format(request)
    tally = Tally()
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
            if shown is DumpFormat.HEXDUMP:
                count = _hexdump(request, target, what, text, tally)
            else:
                count = _objects(request, what, Format(shown.value), text, tally)
    if request.output is not None and not request.quiet:
        say(f"waltzctl: {request.output}: {_counts(what, count, tally)}")
    return ExitStatus.from_label(tally.exit_status_name)


@contextmanager
def writing(tally: Tally) -> Iterator[None]:
    """Name standard output in an OSError of the block; errors of other files name the file already.

    Where the reader of the output goes away, what `tally` has counted by then decides about the exit status.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError as error:
        raise ReaderGoneError(ExitStatus.from_label(tally.exit_status_name)) from error
    except OSError as error:
        name_stdout(error)
        raise


def what_of(target: Target, what: What | None) -> What:
    """The value of ``--what``, or the default for the target.  Raises usage errors where the target has no such part."""
    what = what or _USUAL.get(target.kind, What.RECORDS)
    if target.kind is TargetKind.CONTROL and what is not What.CONTROL:
        raise typer.BadParameter(f"a control file holds no {what}; name the storage directory", param_hint="'--what'")
    return what


def check_request(request: DumpRequest, target: Target, what: What) -> None:
    """Raise usage errors for options that do not fit `what`, RefusedError for an output inside the inspected directory."""

    def refuse(option: str, why: str) -> None:
        raise typer.BadParameter(why, param_hint=f"'{option}'")

    if what not in (What.RECORDS, What.INDEX):
        for option, given in (("--from", request.first), ("--to", request.last)):
            if given is not None:
                refuse(option, f"picks records or index entries, not {what}")
    if what is not What.RECORDS:
        if request.reverse and what is not What.INDEX:
            refuse("--reverse", f"turns records or index entries around, not {what}")
        if request.data is not None:
            refuse("--data", f"is about records, not {what}")
        if request.format is DumpFormat.RAW:
            refuse("--format", f"raw shows the data of records, not {what}")
    if request.output is not None:
        check_outside(request.output, target.storage or request.path)


def _format(request: DumpRequest) -> DumpFormat:
    if request.format is not None:
        return request.format
    return DumpFormat.TABLE if request.output is None and on_terminal(sys.stdout) else DumpFormat.PLAIN


def _items(request: DumpRequest, what: What, tally: Tally) -> Iterator[Item]:
    """The items to show, in order; ``--limit`` counts all items except findings, which `tally` counts once they are known."""
    if what is What.CONTROL:
        control = dump_control(request.path, request.partitions)
        for finding in control.findings:
            tally.add(finding)
        yield control
        yield from at_most(request.limit, control.partitions)
        yield from control.findings
        return
    for item in _read(request, what):
        if isinstance(item, Finding):
            tally.add(item)
        yield item


def _read(request: DumpRequest, what: What) -> Iterator[Item]:
    if what in (What.RECORDS, What.INDEX):
        records: Callable[..., Iterator[Item]] = partial(dump_records, data=request.data is not DataForm.NONE)
        yield from (records if what is What.RECORDS else dump_index)(
            request.path,
            partitions=request.partitions,
            first=request.first,
            last=request.last,
            limit=request.limit,
            reverse=request.reverse,
        )
    else:
        yield from at_most(request.limit, dump_segments(request.path, request.partitions))


def _objects(request: DumpRequest, what: What, chosen: Format, stream: TextIO, tally: Tally) -> int:
    form = request.data
    if form is None and chosen is not Format.TABLE:
        form = DataForm.BASE64
    preview = dumped.PREVIEW if on_terminal(stream) else None
    count = 0
    with Console(chosen, quiet=request.quiet, verbose=request.verbose, stream=stream) as console:
        for item in _items(request, what, tally):
            if isinstance(item, DumpedRecord):
                console.emit(dumped.record_object(item, form, preview))
            elif isinstance(item, Finding):
                console.emit(FINDING.shown(item))
                continue
            elif isinstance(item, IndexEntry):
                console.emit(INDEX_ENTRY.shown(item))
            elif isinstance(item, SegmentDump):
                console.emit(SEGMENT.shown(item))
            elif isinstance(item, PartitionInfo):
                console.emit(PARTITION_INFO.shown(item))
            else:
                console.emit(CONTROL.shown(item))
                continue
            count += 1
        if request.output is None:
            console.success(f"{_counts(what, count, tally)} Nothing was modified.")
    return count


def _raw(request: DumpRequest, stream: BinaryIO, tally: Tally) -> int:
    count = 0
    for item in _items(replace(request, data=DataForm.BASE64), What.RECORDS, tally):
        if isinstance(item, Finding):
            say(f"waltzctl: {item.severity}: {item.path}: {item.code}: {item.message}")
        elif isinstance(item, DumpedRecord):
            count += 1
            stream.write(item.data or b"")
    stream.flush()
    return count


def _hexdump(request: DumpRequest, target: Target, what: What, stream: TextIO, tally: Tally) -> int:
    from waltzctl.render.hexdump import HexdumpWriter

    writer = HexdumpWriter(stream, target, with_data=request.data is not DataForm.NONE)
    count = 0
    for item in _items(replace(request, data=DataForm.NONE), what, tally):
        count += not isinstance(item, (ControlDump, Finding))
        writer.write(item)
    return count


def _counts(what: What, count: int, tally: Tally) -> str:
    found = tally.damage + tally.repairable
    noun = _NOUNS[what]
    shown = counted(count, noun, "entries" if noun == "entry" else None)
    return f"{shown}, {counted(found, 'finding')}." if found else f"{shown}."
