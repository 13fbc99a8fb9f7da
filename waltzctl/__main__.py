"""Entry point of ``waltzctl`` and of ``python -m waltzctl``.

It is small, so that ``--help`` and a mistyped command respond at once; modules that need NumPy or a compiler are imported by the
commands that use them.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import sys
import threading
from collections.abc import Sequence

_YOUNG_OBJECTS = 20_000
"""The garbage collector's first threshold, instead of 700 new objects.  Requests under way are thousands of objects without
cycles; collecting among them took a quarter of a log server's CPU time.
"""

_NO_BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "1")
"""No command computes with matrices.  NumPy's library for them starts a thread for each processor when it is imported, and where
the system has none left it sends the process SIGINT: each command said that it was interrupted.
"""


def _open_missing_streams() -> None:
    """Open a replacement for each standard stream that is closed at the start, so that no output goes to a file opened later.

    The replacements cannot be read: a command that reads records from stdin must fail, and not find an empty input.
    """
    for descriptor, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_WRONLY)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            # for Spark's processes, whose files are to get none of the three numbers, either
            os.set_inheritable(descriptor, True)
            mode = "r" if descriptor == 0 else "w"
            setattr(sys, name, os.fdopen(descriptor, mode, closefd=False))


def _undo_inherited_signals() -> None:
    """Take back what a parent left of its own handling of signals, which a program keeps across its start.

    Where SIGCHLD is ignored the system forgets how a child ended, and Python takes that for success: a pipeline's run that failed
    was one that went well.  Where a signal to stop is blocked, neither a server nor a repair hears of it.  A signal that is
    ignored stays so, as for the jobs in a script's background.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(
        signal.SIG_UNBLOCK,
        (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP, signal.SIGCHLD),
    )


def _end_as_first_process() -> None:
    """Let signals end the first process of a container as they end any other one.

    The kernel keeps from it every signal for which it has no handler: ``docker stop`` waited for ``log tail --follow`` or
    ``backup create`` until it killed it.  The status is the one that a shell has for a process that such a signal ended.
    """
    if os.getpid() == 1:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, lambda number, _: os._exit(128 + number))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its status; `arguments` are those of the process unless given."""
    _open_missing_streams()
    try:
        if arguments is None:  # the process is our own
            _undo_inherited_signals()
            _end_as_first_process()
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # both are text streams here
        from waltzctl.app import app

        app(args=arguments, prog_name="waltzctl")
    except KeyboardInterrupt:  # before a command runs; later the command tree handles it
        from waltzctl.exit_status import ExitStatus

        sys.exit(ExitStatus.INTERRUPTED)


def process() -> None:
    """Run `main`, and exit as the interpreter does, but without destroying modules.

    That would take a sixth of a short command's time, and the system frees the memory anyway.  With a tracer, a profiler or
    Python's development mode the process exits in the usual way.
    """
    gc.set_threshold(
        _YOUNG_OBJECTS, *gc.get_threshold()[1:]
    )  # not in `main`, whose callers may have their own threshold
    os.environ.setdefault(*_NO_BLAS_THREADS)
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
        sys.stdout.flush()
    except (OSError, KeyboardInterrupt):
        sys.exit(status)
    with contextlib.suppress(OSError, KeyboardInterrupt):  # the interpreter would make a status of its own of it
        sys.stderr.flush()
    os._exit(status & 0xFF)


if __name__ == "__main__":
    process()
