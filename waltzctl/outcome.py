"""The exit status of a command, from its return value or exception, and the message on stderr.

Errors are rendered only here.  A pipe that its reader has closed (``| head``) is no error; what was found by then still counts.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Collection
from typing import Any, Literal, TextIO

import typer

from waltzctl.engine.errors import DamageError, WaltzError
from waltzctl.exit_status import ExitStatus
from waltzctl.values import printable

_OF_TYPER: tuple[type[Exception], ...] = (
    typer.Exit,
    typer.Abort,
    *(kind for kind in typer.BadParameter.__mro__ if issubclass(kind, Exception) and kind is not Exception),
)
"""Exceptions that the argument parser raises and renders itself: usage errors and early exits."""

_NO_THREAD = "can't start new thread"
"""How Python words that no thread can be started: it has no class of error for it, and no number of the system's."""
_LISTED = 20
"""Findings that are listed under an error, at most; verify lists all."""


class ReaderGoneError(BrokenPipeError):
    """Nobody reads the output any more.  `status`: the exit status for what the command knows by now."""

    def __init__(self, status: ExitStatus) -> None:
        super().__init__()
        self.status = status


def say(text: str) -> None:
    """Print a message on stderr, each line escaped.

    An error of stderr (a full disk, a closed pipe) is ignored: it changes neither the exit status nor the output on stdout.
    """
    try:
        for line in text.splitlines():
            print(printable(line), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        _drop(sys.stderr)


def say_taken_back(entries: Collection[str]) -> None:
    """Print on stderr, even with ``-q``, which interrupted repairs a command rolled back before its own work."""
    for entry in entries:
        say(f"waltzctl: the repair {entry} was interrupted; it was taken back first, byte for byte")


def name_stdout(error: OSError) -> None:
    """Name standard output in an error: that of a full disk would otherwise seem to be about the disk with the data."""
    if error.filename is None:
        error.filename = "standard output"


def drop_output() -> None:
    """Discard buffered output of a stdout that its reader has closed, which would otherwise fail at exit."""
    _drop(sys.stdout)


def _drop(stream: TextIO) -> None:
    with contextlib.suppress(OSError, ValueError):
        descriptor = stream.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, descriptor)
        os.close(nowhere)


def leave_stream(name: Literal["stdout", "stderr"]) -> None:
    """Put a stream that leads nowhere in the place of one in which another thread waits for a reader that takes nothing.

    Whatever is done with that one, flushing it at the end included, waits as well, and for ever.
    """
    setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # open until the process ends


def _flush_stdout() -> None:
    try:
        sys.stdout.flush()
    except OSError as error:
        name_stdout(error)
        raise


def _empty_stdout() -> None:
    """Write what is buffered behind an error, or discard it: failing at exit, it would give a status of the interpreter's own."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError, KeyboardInterrupt):
        drop_output()


def conclude(body: Callable[[], Any]) -> ExitStatus:
    """Run a command body and return its exit status.

    A body returns its status (None: clean).  Exceptions of the argument parser are raised.
    """
    answer = None
    try:
        answer = body()
        _flush_stdout()
    except _OF_TYPER:
        raise
    except BrokenPipeError as error:
        drop_output()  # the reader needs no more; an exit status that is known by then is kept
        answer = error.status if isinstance(error, ReaderGoneError) else answer
    except KeyboardInterrupt:
        say("waltzctl: interrupted")
        return ExitStatus.INTERRUPTED
    except WaltzError as error:
        _explain(error)
        return ExitStatus.from_label(error.status)
    except OSError as error:
        return system_failed(error)
    except MemoryError:
        say("waltzctl: error: out of memory")
        return ExitStatus.INTERNAL
    except Exception as error:
        if isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
            say("waltzctl: error: the system lets this process start no further thread")
            say("  allow more (ulimit -u; TasksMax= of a systemd unit; the limit of processes of a container)")
            return ExitStatus.IO_ERROR
        import traceback  # a defect of this program

        say(traceback.format_exc())
        say("waltzctl: internal error: this is a mistake in waltzctl, not in your data; please report the lines above")
        return ExitStatus.INTERNAL
    finally:
        _empty_stdout()
    return answer if isinstance(answer, ExitStatus) else ExitStatus.CLEAN


def system_failed(error: OSError) -> ExitStatus:
    """Print the system's error, and discard the remaining output."""
    place = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, (str, bytes)) else ""
    say(f"waltzctl: error: {place}{error.strerror or error}")
    drop_output()
    return ExitStatus.IO_ERROR


def _explain(error: WaltzError) -> None:
    say_taken_back(error.taken_back)
    say(f"waltzctl: {error.status if error.status == 'refused' else 'error'}: {error.message}")
    if isinstance(error, DamageError):
        for finding in error.findings[:_LISTED]:
            say(f"  {finding.severity}  {finding.code}: {finding.message}")
        if len(error.findings) > _LISTED:
            say(f"  and {len(error.findings) - _LISTED} more; run verify to see them")
    if error.advice:
        say(f"  {error.advice}")
