"""A progress bar on stderr, only on a terminal, and only after a second of work."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from waltzctl.outcome import say
from waltzctl.values import human_bytes

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

PATIENCE = 1.0
"""Seconds before the bar appears."""


class TerminalProgress:
    """A progress listener that draws a bar; thread-safe."""

    def __init__(self, noun: str | None = None) -> None:
        """`noun`: what is counted; None: bytes."""
        self._noun = noun
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._what = ""
        self._total = 0
        self._done = 0
        self._bars: Bars | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> TerminalProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, what: str, total: int) -> None:
        """A piece of work of `total` bytes begins."""
        with self._lock:
            self._what, self._total, self._done = what, total, 0
            if self._bars is not None and self._task is not None:
                self._bars.reset(self._task, description=what, total=total)

    def advance(self, amount: int) -> None:
        """`amount` more bytes are done."""
        with self._lock:
            self._done += amount
            if self._bars is not None and self._task is not None:
                self._bars.update(self._task, completed=self._done)
            elif time.monotonic() - self._began > PATIENCE:
                self._show()

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            ProgressColumn,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
        from rich.progress import Progress as Bars

        amount: tuple[ProgressColumn, ...] = (DownloadColumn(binary_units=True), TransferSpeedColumn())
        if self._noun is not None:
            amount = (MofNCompleteColumn(), TextColumn(self._noun, markup=False))
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            *amount,
            TimeRemainingColumn(),
        )
        # without redirection of the streams: results must reach stdout while a bar is drawn
        console = Console(file=sys.stderr)
        self._bars = Bars(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
        self._task = self._bars.add_task(self._what, total=self._total, completed=self._done)
        self._draw(self._bars)

    def _draw(self, bars: Bars) -> None:
        """Show the bar, with the cursor: hidden, it would stay so in the shell behind Ctrl-Z, SIGTERM or a kill."""
        bars.start()
        bars.console.show_cursor(True)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hide the bar while something else is written to the terminal."""
        with self._lock:
            if self._bars is not None:
                self._bars.stop()
            try:
                yield
            finally:
                if self._bars is not None:
                    self._draw(self._bars)

    def close(self) -> None:
        """Remove the bar."""
        with self._lock:
            if self._bars is not None:
                self._bars.stop()
                self._bars = None


class NoProgress:
    """A listener that shows nothing, without a terminal."""

    def __enter__(self) -> NoProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def start(self, what: str, total: int) -> None:
        """Nothing is shown."""

    def advance(self, amount: int) -> None:
        """Nothing is shown."""

    @contextmanager
    def paused(self) -> Iterator[None]:
        """There is nothing to take away."""
        yield

    def close(self) -> None:
        """There is nothing to take away."""


class TellingProgress(NoProgress):
    """A listener for ``-v`` without a terminal: a line on stderr for each piece of work."""

    def __init__(self, noun: str | None = None) -> None:
        self._noun = noun

    def start(self, what: str, total: int) -> None:
        """A piece of work of `total` bytes begins."""
        amount = human_bytes(total) if self._noun is None else f"{total} {self._noun}"
        say(f"waltzctl: {what}: {amount} to go through")


def progress(*, quiet: bool, verbose: int = 0, noun: str | None = None) -> TerminalProgress | NoProgress:
    """The listener for this stderr.  `noun`: what is counted, in the plural; None: bytes."""
    if not quiet and sys.stderr.isatty():
        return TerminalProgress(noun)
    return TellingProgress(noun) if verbose else NoProgress()
