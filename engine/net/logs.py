"""The log of a node: lines on one stream, as text or JSON, written without blocking the node.

Queue.  Logging a line only puts it into a bounded queue; one thread writes the stream.  If the stream's reader stalls, lines are
dropped, and their number is logged later; the node goes on.

Rate limit.  Lines of one template are limited to `BURST` in `WINDOW` seconds, so that a peer's invalid data cannot fill a disk;
the number of those left out is logged.

======== ==========================================================================================================
format   line
======== ==========================================================================================================
human    ``2026-11-21T09:08:07.123Z WARNING message  key=value``
journal  ``<4>message  key=value``: for systemd's journal, which adds the time, a priority instead of time and severity
json     an object, ``waltzctl.log/1``; the record's `extra` is in its `fields`
======== ==========================================================================================================
"""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import IO, Any, Protocol

from waltzctl.engine.net.monitoring_options import LogFormat, LogLevel
from waltzctl.formats.adapters import format_time

LOGGER = "waltzctl.node"
"""Name of the logger that a node uses."""

QUEUED = 8192
"""Lines that may wait to be written."""
BURST = 20
WINDOW = 10.0
"""Seconds; at most `BURST` lines of one template are written in that time."""
CLOSING = 2.0
"""Seconds that closing waits for the queued lines to be written."""


_LEVELS = {
    LogLevel.DEBUG: logging.DEBUG,
    LogLevel.INFO: logging.INFO,
    LogLevel.WARNING: logging.WARNING,
    LogLevel.ERROR: logging.ERROR,
}
_PRIORITIES = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (logging.DEBUG, 7))
_OWN_ATTRIBUTES = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_TEMPLATES = 1000
"""Templates that are tracked at a time; lines of further ones are not limited."""


class LineStream(Protocol):
    """The stream that lines are written to."""

    def write(self, text: str, /) -> object:
        """Write text."""

    def flush(self) -> None:
        """Flush the stream's buffer."""


@dataclass(slots=True)
class _TemplateWindow:
    """The lines of one template since `began` (`time.monotonic`); `example`: the last one left out."""

    began: float
    lines: int = 0
    left_out: int = 0
    example: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A line before it is formatted.  `time`: milliseconds since 1970-01-01 UTC.  `trace`: of an exception, or None."""

    time: int
    level: int
    logger: str
    message: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    trace: str | None = None


class Throttle:
    """The rate limit.  Not thread-safe: used by the writer thread only."""

    def __init__(self, burst: int = BURST, window: float = WINDOW) -> None:
        self._burst, self._window = burst, window
        self._windows: dict[tuple[str, int, str], _TemplateWindow] = {}

    def admit(self, key: tuple[str, int, str], message: str, now: float) -> bool:
        """Whether a line may be written; `key` is its logger, level and template."""
        window = self._windows.get(key)
        if window is None:
            if len(self._windows) >= _TEMPLATES:
                return True  # so many templates are no repetition
            window = self._windows[key] = _TemplateWindow(now)
        window.lines += 1
        if window.lines <= self._burst:
            return True
        window.left_out += 1
        window.example = message
        return False

    def expired(self, now: float, *, all_of_them: bool = False) -> list[tuple[tuple[str, int, str], int, str]]:
        """End windows that are over (or all).  Of each that left out lines: its key, their number, and the last of them."""
        over = [key for key, one in self._windows.items() if all_of_them or now - one.began >= self._window]
        found = [(key, self._windows.pop(key)) for key in over]
        return [(key, window.left_out, window.example) for key, window in found if window.left_out]


def human_line(line: Line) -> str:
    """A line of text; several with a stack trace."""
    return f"{format_time(line.time)} {logging.getLevelName(line.level):<7} {_text_of(line)}"


def journal_line(line: Line) -> str:
    """A line for systemd's journal, with its priority; each line of a stack trace has it as well."""
    priority = next((number for level, number in _PRIORITIES if line.level >= level), 7)
    return "\n".join(f"<{priority}>{text}" for text in _text_of(line).splitlines())


def json_line(line: Line) -> str:
    """A line as a JSON object."""
    shown = {
        "schema": "waltzctl.log/1",
        "type": "log",
        "time": format_time(line.time),
        "level": logging.getLevelName(line.level).lower(),
        "logger": line.logger,
        "message": line.message,
        "fields": dict(line.fields),
        "trace": line.trace,
    }
    return json.dumps(shown, default=str)


def _text_of(line: Line) -> str:
    fields = "".join(f" {key}={_escaped(str(value))}" for key, value in line.fields.items())
    trace = "".join(f"\n    {_escaped(text)}" for text in (line.trace or "").splitlines())
    return f"{_escaped(line.message)}{fields and ' '}{fields}{trace}"


def _escaped(text: str) -> str:
    """Text with control characters escaped, so that it cannot break a line or control a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


_FORMATTERS = {LogFormat.HUMAN: human_line, LogFormat.JSON: json_line}


class NodeLog(logging.Handler):
    """A log handler that writes to a stream.  A context manager: in its block it is the handler of the root logger.

    `logger`: for the node.  Other loggers are written from level warning on.  `journal`: the stream is systemd's journal.
    """

    def __init__(
        self,
        stream: LineStream,
        *,
        form: LogFormat = LogFormat.HUMAN,
        level: LogLevel = LogLevel.INFO,
        journal: bool = False,
        throttle: Throttle | None = None,
    ) -> None:
        super().__init__()
        self.logger = logging.getLogger(LOGGER)
        self._stream = stream
        self._form = journal_line if journal and form is LogFormat.HUMAN else _FORMATTERS[form]
        self._throttle = throttle or Throttle()
        self._waiting: queue.Queue[tuple[tuple[str, int, str], Line] | None] = queue.Queue(QUEUED)
        self._dropped = 0
        self._dropping = threading.Lock()
        self._writer = threading.Thread(target=self._write_all, name="log", daemon=True)
        self._previous = logging.WARNING
        self.set_level(level)
        self._writer.start()

    def set_level(self, level: LogLevel) -> None:
        """Set the lowest level of the node's lines."""
        self.logger.setLevel(_LEVELS[level])

    def __enter__(self) -> NodeLog:
        root = logging.getLogger()
        self._previous = root.level
        root.addHandler(self)
        root.setLevel(logging.WARNING)
        logging.captureWarnings(True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Write the queued lines, for at most `CLOSING` seconds, and remove the handler.  A second call does nothing."""
        root = logging.getLogger()
        if self in root.handlers:
            root.removeHandler(self)
            root.setLevel(self._previous)
            logging.captureWarnings(False)
        if self._writer.is_alive():
            try:
                self._waiting.put(None, timeout=CLOSING)
            except queue.Full:
                return
            self._writer.join(CLOSING)
        super().close()

    @property
    def stuck(self) -> bool:
        """After `close`: whether a line is still being written, because the stream's reader takes nothing."""
        return self._writer.is_alive()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record; called by `logging`, from any thread."""
        try:
            line = _line_of(record)
        except Exception:  # arguments that do not fit the template: a defect, which must not stop a node
            self.handleError(record)
            return
        try:
            self._waiting.put_nowait(((record.name, record.levelno, str(record.msg)), line))
        except queue.Full:
            with self._dropping:
                self._dropped += 1

    # --- the writer's thread -----------------------------------------------------------------------------------------

    def _write_all(self) -> None:
        ended = False
        while not ended:
            try:
                found = self._waiting.get(timeout=1.0)
                ended = found is None
                if found is not None:
                    key, line = found
                    if self._throttle.admit(key, line.message, time.monotonic()):
                        self._write(line)
            except queue.Empty:
                pass
            with self._dropping:
                dropped, self._dropped = self._dropped, 0
            if dropped:
                self._write(
                    _own_line(logging.WARNING, LOGGER, f"{dropped} lines were left out: the log was not read in time")
                )
            for (logger, level, _), count, example in self._throttle.expired(time.monotonic(), all_of_them=ended):
                self._write(_own_line(level, logger, f"{count} more lines like this were left out: {example}"))

    def _write(self, line: Line) -> None:
        try:
            self._stream.write(self._form(line) + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            return  # the stream's reader is gone, or the stream is closed; there is no other place to report that


def _line_of(record: logging.LogRecord) -> Line:
    fields = {key: value for key, value in record.__dict__.items() if key not in _OWN_ATTRIBUTES}
    trace = "".join(traceback.format_exception(*record.exc_info)).rstrip() if record.exc_info else None
    return Line(int(record.created * 1000), record.levelno, record.name, record.getMessage(), fields, trace)


def _own_line(level: int, logger: str, message: str) -> Line:
    return Line(time.time_ns() // 1_000_000, level, logger, message)


def goes_to_journal(stream: IO[str], environment: Mapping[str, str]) -> bool:
    """Whether a stream is connected to systemd's journal: ``JOURNAL_STREAM`` holds its device and inode."""
    device, _, inode = environment.get("JOURNAL_STREAM", "").partition(":")
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return (device, inode) == (str(found.st_dev), str(found.st_ino))
