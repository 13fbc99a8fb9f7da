"""Entry point of ``waltzctl`` and of ``python -m waltzctl``.

It stays small so that ``--help`` and a mistyped command answer at once; what needs NumPy or a compiler is imported by the
command that uses it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def _open_missing_streams() -> None:
    """Give a stream to whoever started us with one closed, so that nothing written can land in a file opened later."""
    for descriptor, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDONLY if descriptor == 0 else os.O_WRONLY)
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


if __name__ == "__main__":
    main()
