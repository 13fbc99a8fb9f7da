"""The output of a command: objects to stdout in the chosen format, messages to stderr."""

from __future__ import annotations

import contextlib
import io
import os
import select
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
from waltzctl.outcome import ReaderGoneError, drop_output, leave_stream, name_stdout, say
from waltzctl.values import human_duration, printable

if TYPE_CHECKING:
    from waltzctl.engine.columns.column import Object


class Writer(Protocol):
    """One output format."""

    def write(self, shown: Object) -> None:
        """Show one object."""

    def close(self) -> None:
        """Write buffered output; a second call does nothing."""


def on_terminal(stream: TextIO) -> bool:
    """Whether a stream is a terminal."""
    return bool(stream.isatty())


def wants_colour(stream: TextIO) -> bool:
    """Whether colours may be used there (https://no-color.org)."""
    return on_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Console:
    """The output of one command.

    `single`: the command has exactly one object, which is then the whole JSON document; otherwise the document is an array.
    `must_finish`: the command changes something, so that a closed pipe on stdout must not stop it half-way.  `stream`: used for
    the objects instead of stdout.  `known`: the exit status for what the command has found so far, which is its status if the
    reader of its output goes away.
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
        self.known = ExitStatus.CLEAN
        self._must_finish = must_finish
        self._single = single
        self._answered = False
        self._gone = False
        self._done: list[Object] = []  # results that stdout may not have shown
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
            try:
                if isinstance(error, WaltzError):
                    self._show_error(error)
                self._guarded(self._writer.close)
                if self._done:
                    self.flush()
            except ReaderGoneError:
                if error is None:
                    raise
                drop_output()  # why the command ends is the error, for which stderr and the exit status are left
            except OSError as failed:
                if not isinstance(error, WaltzError):
                    raise
                self.trouble(f"{failed.filename}: {failed.strerror}")
                drop_output()  # as above
        elif not isinstance(error, ReaderGoneError):  # of another output, a FIFO: what was shown here is to be whole
            self._guarded(self._writer.close)
            self.flush()
            raise ReaderGoneError(self.known) from error
        self.detail(f"{'ended early' if error else 'done'} after {human_duration(time.monotonic() - self._began)}")

    def _show_error(self, error: WaltzError) -> None:
        """Show the error as an object for programs, unless the single object of the document was shown already.

        For people it is on stderr.
        """
        if not self.for_people and not (self._single and self._answered and self.format is Format.JSON):
            from waltzctl.objects.error_objects import ERROR

            self.emit(ERROR.shown(error), flush=True)

    def emit(self, shown: Object, *, flush: bool = False) -> None:
        """Show an object.  `flush`: at once, without buffering."""
        self._answered = True
        self._guarded(lambda: self._writer.write(shown))
        if flush:
            self.flush()

    def emit_result(self, shown: Object, status: ExitStatus = ExitStatus.CLEAN) -> None:
        """Show the result of a command.  With ``-q`` a clean result is not shown to people, only to programs."""
        if status is not ExitStatus.CLEAN or not (self.quiet and self.for_people):
            self.emit_done(shown)

    def emit_done(self, shown: Object) -> None:
        """Show a change that was made; on stderr where stdout fails, so that the user does not repeat the change."""
        self._done.append(shown)
        self.emit(shown, flush=True)
        if self.format is not Format.TABLE:  # a table buffers rows, and leaves some values to the sentence after it
            self._done.clear()

    def _print_unshown(self) -> None:
        """Print the objects of `_done` on stderr: as a table, or by their values where the table leaves them to a sentence."""
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
        """Flush the stream."""
        self._guarded(self.stream.flush)

    def check_reader(self) -> None:
        """Raise ReaderGoneError where nobody reads a pipe or socket any more: for output that may pause for ever."""
        poll, found = select.poll(), []
        with contextlib.suppress(OSError, ValueError):  # there is no file behind it
            poll.register(self.stream.fileno(), 0)
            found = poll.poll(0)
        if any(events & (select.POLLERR | select.POLLHUP) for _, events in found):
            raise ReaderGoneError(self.known)

    def give_up(self) -> None:
        """Write nothing more to stdout: another thread waits there for a reader that takes nothing."""
        self._gone = True
        leave_stream("stdout")

    def hand_over(self) -> None:
        """Flush the stream, and a table's buffered rows, too: for output that may pause for a long time."""
        if self.format is Format.TABLE:
            from waltzctl.render.table import TableWriter

            assert isinstance(self._writer, TableWriter)
            self._guarded(self._writer.show_rows)
        self.flush()

    def sentence(self, text: str) -> None:
        """Show a conclusion or heading between the objects, in the formats table and plain.  May have several lines."""
        if not self.for_people:
            return
        self._guarded(self._writer.close)
        mark = "" if self.format is Format.TABLE else "# "
        for line in text.splitlines():
            self.line(mark + printable(line) if line else mark.strip())

    def line(self, text: str) -> None:
        """Show a line, without wrapping."""
        self._guarded(lambda: print(text, file=self.stream))

    def success(self, text: str) -> None:
        """Show a sentence, unless ``-q``."""
        if not self.quiet:
            self.sentence(text)

    def note(self, text: str) -> None:
        """Print a message on stderr, unless ``-q``."""
        if not self.quiet:
            say(f"waltzctl: {text}")

    def trouble(self, text: str) -> None:
        """Print a message about a failure on stderr, even with ``-q``."""
        say(f"waltzctl: {text}")

    def detail(self, text: str) -> None:
        """Print a message on stderr if ``-v``."""
        if self.verbose:
            say(f"waltzctl: {text}")

    def _guarded(self, act: object) -> None:
        assert callable(act)
        if self._gone:
            return
        try:
            act()
        except BrokenPipeError as error:
            if not self._must_finish:
                self._print_unshown()
                raise ReaderGoneError(self.known) from error
            self._gone = True
            drop_output()
        except OSError as error:
            if self.stream is sys.stdout:
                name_stdout(error)
            self._print_unshown()
            raise


@contextmanager
def refusals(chosen: str | None, *, single: bool = False) -> Iterator[None]:
    """Show an error of the block as a Console would, for code that runs before a Console can be created."""
    try:
        yield
    except WaltzError:
        if chosen in (Format.JSON, Format.NDJSON):
            with Console(Format(chosen), single=single):
                raise
        raise
