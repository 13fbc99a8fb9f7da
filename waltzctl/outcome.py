"""From what a command body returns or raises to an exit status, and what is said about it on stderr.

The one place where errors are rendered.  A closed pipe on the reading side (``| head``) is no error.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Collection
from typing import Any, TextIO

import typer

from waltzctl.engine.errors import DamageError, WaltzError
from waltzctl.exit_status import ExitStatus
from waltzctl.values import printable

_OF_TYPER: tuple[type[Exception], ...] = (
    typer.Exit,
    typer.Abort,
    *(kind for kind in typer.BadParameter.__mro__ if issubclass(kind, Exception) and kind is not Exception),
)
"""What the argument parser raises and renders itself: usage errors and early exits."""

_LISTED = 20
"""So many findings are listed under an error; verify lists all."""


def say(text: str) -> None:
    """One message on stderr, each line escaped.

    Where nobody can be told (a full disk or a closed pipe behind stderr) nothing is said: the exit status and what stands on
    stdout do not depend on it.
    """
    try:
        for line in text.splitlines():
            print(printable(line), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        _drop(sys.stderr)


def say_taken_back(entries: Collection[str]) -> None:
    """Say on stderr, whatever else is quiet, which interrupted repairs a command took back before its own work."""
    for entry in entries:
        say(f"waltzctl: the repair {entry} was interrupted; it was taken back first, byte for byte")


def name_stdout(error: OSError) -> None:
    """Say in an error that it is standard output which failed: that of a full disk would seem to be about the data's disk."""
    if error.filename is None:
        error.filename = "standard output"


def drop_output() -> None:
    """Nobody reads stdout any more: let what is still buffered go nowhere instead of failing at the end."""
    _drop(sys.stdout)


def _drop(stream: TextIO) -> None:
    with contextlib.suppress(OSError, ValueError):
        descriptor = stream.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, descriptor)
        os.close(nowhere)


def _flush_stdout() -> None:
    try:
        sys.stdout.flush()
    except OSError as error:
        name_stdout(error)
        raise


def conclude(body: Callable[[], Any]) -> ExitStatus:
    """Run a command body and give its exit status.

    A body returns its status (None: clean).  What the argument parser raises passes through.
    """
    answer = None
    try:
        answer = body()
        _flush_stdout()
    except _OF_TYPER:
        raise
    except BrokenPipeError:
        drop_output()  # whoever read it has seen enough; a status that was known by then holds all the same
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
    except Exception:  # the last resort: a mistake of ours, shown with everything that helps to find it
        import traceback

        say(traceback.format_exc())
        say("waltzctl: internal error: this is a mistake in waltzctl, not in your data; please report the lines above")
        return ExitStatus.INTERNAL
    return answer if isinstance(answer, ExitStatus) else ExitStatus.CLEAN


def system_failed(error: OSError) -> ExitStatus:
    """Say what the system refused to do, and give up what is still to be written."""
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
