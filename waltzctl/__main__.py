"""Entry point of ``waltzctl`` and of ``python -m waltzctl``.

It stays small so that ``--help`` and a mistyped command answer at once; what needs NumPy or a compiler is imported by the
command that uses it.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
from collections.abc import Sequence

_YOUNG_OBJECTS = 20_000
"""New objects among which Python looks for cycles, instead of 700: requests under way are thousands without one, and to look at
them over and over took a quarter of a log server's time.
"""


def _open_missing_streams() -> None:
    """Give a stream to whoever started us with one closed, so that nothing written can land in a file opened later.

    None can be read: a command that was to get its records there would take it for an input without any.
    """
    for descriptor, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_WRONLY)
            if opened != descriptor:
                os.dup2(opened, descriptor, inheritable=True)
                os.close(opened)
            mode = "r" if descriptor == 0 else "w"
            setattr(sys, name, os.fdopen(descriptor, mode, closefd=False))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its status; `arguments` are those of the process unless given."""
    _open_missing_streams()
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # both are text files here
        from waltzctl.app import app

        app(args=arguments, prog_name="waltzctl")
    except KeyboardInterrupt:  # before a command began; afterwards the command tree deals with it
        from waltzctl.exit_status import ExitStatus

        sys.exit(ExitStatus.INTERRUPTED)


def process() -> None:
    """The whole life of a process: `main`, and an end that does what the interpreter's does, but for taking modules apart.

    That is a sixth of a short command's time, and the system takes the memory back anyway.  Who traces or profiles the process,
    or runs it in Python's development mode, gets the interpreter's own end.
    """
    gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])  # of our own process: who calls `main` has one of theirs
    try:
        main()
    except SystemExit as end:
        status = 0 if end.code is None else end.code
        if not isinstance(status, int) or sys.getprofile() or sys.gettrace() or sys.flags.dev_mode:
            raise
    else:
        return
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except (OSError, KeyboardInterrupt):
        sys.exit(status)
    os._exit(status & 0xFF)


if __name__ == "__main__":
    process()
