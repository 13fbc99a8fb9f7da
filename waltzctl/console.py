"""Where a command's answer goes: objects through the writer of the chosen format, everything else to stderr."""

from __future__ import annotations

import io
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TextIO

from waltzctl.engine.errors import WaltzError
from waltzctl.exit_status import ExitStatus
from waltzctl.options import Format
from waltzctl.outcome import drop_output, name_stdout, say
from waltzctl.values import human_duration, printable

if TYPE_CHECKING:
    from waltzctl.engine.columns.column import Object


class Writer(Protocol):
    """One output format."""

    def write(self, shown: Object) -> None:
        """Show one object."""

    def close(self) -> None:
        """Show what is still held back; a second call does nothing."""


def on_terminal(stream: TextIO) -> bool:
    """Whether a person looks at a stream."""
    return bool(stream.isatty())


def wants_colour(stream: TextIO) -> bool:
    """Whether colours may be used there (https://no-color.org)."""
    return on_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Console:
    """The output of one command.

    `single`: the command answers with exactly one object, which is then the whole JSON document; otherwise a JSON document
    is an array.  `must_finish`: the command changes something, so a reader that goes away must not stop it half-way.
    `stream`: where the objects go instead of stdout.
    """

    def __init__(
        self,
        chosen: Format | None,
        *,
        quiet: bool = False,
        verbose: int = 0,
        single: bool = False,
        must_finish: bool = False,
        stream: TextIO | None = None,
    ) -> None:
        self.stream = stream or sys.stdout
        self.format = chosen or (Format.TABLE if on_terminal(self.stream) else Format.PLAIN)
        self.quiet = quiet
        self.verbose = verbose
        self._must_finish = must_finish
        self._single = single
        self._answered = False
        self._gone = False
        self._done: list[Object] = []  # and perhaps not shown as yet
        self._began = time.monotonic()
        self._writer = self._open()

    @property
    def for_people(self) -> bool:
        """Whether sentences may stand between the objects (table and plain)."""
        return self.format in (Format.TABLE, Format.PLAIN)

    @property
    def answered(self) -> bool:
        """Whether an object was shown."""
        return self._answered

    def _open(self) -> Writer:
        if self.format is Format.NDJSON:
            from waltzctl.render.ndjson import NdjsonWriter

            return NdjsonWriter(self.stream)
        if self.format is Format.JSON:
            from waltzctl.render.json import JsonWriter

            return JsonWriter(self.stream, single=self._single)
        if self.format is Format.PLAIN:
            from waltzctl.render.plain import PlainWriter

            return PlainWriter(self.stream)
        from waltzctl.render.table import TableWriter

        width = shutil.get_terminal_size().columns if on_terminal(self.stream) else None
        return TableWriter(self.stream, width=width, colour=wants_colour(self.stream))

    def __enter__(self) -> Console:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, BrokenPipeError):
            if isinstance(error, WaltzError):
                self._show_error(error)
            self._guarded(self._writer.close)
            if self._done:
                self.flush()
        self.detail(f"{'ended early' if error else 'done'} after {human_duration(time.monotonic() - self._began)}")

    def _show_error(self, error: WaltzError) -> None:
        """Tell a program why there is no answer, where the document has room: a single object may be there already.

        People read it on stderr.
        """
        if not self.for_people and not (self._single and self._answered and self.format is Format.JSON):
            from waltzctl.objects.error_objects import ERROR

            self.emit(ERROR.shown(error), flush=True)

    def emit(self, shown: Object, *, flush: bool = False) -> None:
        """Show an object.  `flush`: it must reach the reader now."""
        self._answered = True
        self._guarded(lambda: self._writer.write(shown))
        if flush:
            self.flush()

    def emit_result(self, shown: Object, status: ExitStatus = ExitStatus.CLEAN) -> None:
        """Show what a command has done, which ``-q`` leaves out where people read it and all is well."""
        if status is not ExitStatus.CLEAN or not (self.quiet and self.for_people):
            self.emit_done(shown)

    def emit_done(self, shown: Object) -> None:
        """Show what a command has done.  Where stdout takes nothing it stands on stderr, so that nobody does it once more."""
        self._done.append(shown)
        self.emit(shown, flush=True)
        if self.format is not Format.TABLE:  # which holds rows back, and leaves some of it to the sentence behind them
            self._done.clear()

    def _tell_done(self) -> None:
        """On stderr, each object once: as a table shows it, or by its values where tables leave it to a sentence."""
        from waltzctl.render.plain import cell, rows
        from waltzctl.render.table import TableWriter

        done, self._done = self._done, []
        if done:
            self.trouble("what was done, and could not be written to standard output:")
        for shown in done:
            told = io.StringIO()
            table = TableWriter(told)
            table.write(shown)
            table.close()
            values = rows(shown["type"], shown) if not told.getvalue() else ()
            say(told.getvalue())
            for kind, row in values:
                say(f"{kind}: {', '.join(f'{name} {cell(value)}' for name, value in row.items())}")

    def flush(self) -> None:
        """Hand over what was shown so far."""
        self._guarded(self.stream.flush)

    def hand_over(self) -> None:
        """Hand over the rows of a table that it would still hold back, too: nothing more may come for long."""
        if self.format is Format.TABLE:
            from waltzctl.render.table import TableWriter

            assert isinstance(self._writer, TableWriter)
            self._guarded(self._writer.show_rows)
        self.flush()

    def sentence(self, text: str) -> None:
        """A conclusion or heading between the objects; only table and plain have room for it.  May be several lines."""
        if not self.for_people:
            return
        self._guarded(self._writer.close)
        mark = "" if self.format is Format.TABLE else "# "
        for line in text.splitlines():
            self.line(mark + printable(line) if line else mark.strip())

    def line(self, text: str) -> None:
        """A line as it stands."""
        self._guarded(lambda: print(text, file=self.stream))

    def success(self, text: str) -> None:
        """A sentence that ``-q`` leaves out."""
        if not self.quiet:
            self.sentence(text)

    def note(self, text: str) -> None:
        """A message on stderr that ``-q`` leaves out."""
        if not self.quiet:
            say(f"waltzctl: {text}")

    def trouble(self, text: str) -> None:
        """A message on stderr about what failed; it always stands there."""
        say(f"waltzctl: {text}")

    def detail(self, text: str) -> None:
        """A message on stderr for ``-v``."""
        if self.verbose:
            say(f"waltzctl: {text}")

    def _guarded(self, act: object) -> None:
        assert callable(act)
        if self._gone:
            return
        try:
            act()
        except BrokenPipeError:
            if not self._must_finish:
                self._tell_done()
                raise
            self._gone = True
            drop_output()
        except OSError as error:
            if self.stream is sys.stdout:
                name_stdout(error)
            self._tell_done()
            raise


@contextmanager
def refusals(chosen: str | None, *, single: bool = False) -> Iterator[None]:
    """Show an error of the block as a Console would, for what has to be known before one can be opened."""
    try:
        yield
    except WaltzError:
        if chosen in (Format.JSON, Format.NDJSON):
            with Console(Format(chosen), single=single):
                raise
        raise
