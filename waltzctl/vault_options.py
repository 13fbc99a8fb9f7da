"""The common part of the actions of ``backup``: the vault, its password, their exit statuses."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from waltzctl.exit_status import ExitStatus
from waltzctl.options import path_of

_VARIABLE = "WALTZCTL_VAULT_PASSWORD_FILE"
VaultArgument = Annotated[str, typer.Argument(metavar="VAULT", help="The vault's directory.", show_default=False)]
BackupArgument = Annotated[
    str,
    typer.Argument(metavar="ID", help="A backup: a unique prefix of its id, or latest.", show_default=False),
]
PasswordOption = Annotated[
    str | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        envvar=_VARIABLE,
        show_envvar=False,
        help="File with an encrypted vault's password in the first line, or with random bytes as its key.",
    ),
]

LOOKING = (
    ExitStatus.CLEAN,
    ExitStatus.USAGE,
    ExitStatus.DAMAGED,
    ExitStatus.NOT_WALTZ,
    ExitStatus.REFUSED,
    ExitStatus.IO_ERROR,
    ExitStatus.INTERRUPTED,
)
"""The exit statuses of an action that only reads a vault."""
WRITING = tuple(sorted({*LOOKING, ExitStatus.LOCKED, ExitStatus.DAMAGE_REMAINS}))
"""The exit statuses of an action that writes to a vault."""


def vault_of(text: str) -> Path:
    """The absolute path of the vault's directory.  Raises typer.BadParameter."""
    return Path(os.path.abspath(path_of(text, name="VAULT")))


def password_was_named(file: str | None) -> bool:
    """Whether ``--password-file`` was given on the command line, and not only in the environment."""
    return file is not None and file != os.environ.get(_VARIABLE)


def password_of(file: str | None) -> bytes | None:
    """The password in a file's first line, or a key file's key; None without a file.

    Raises InvalidRequestError, DiskReadError.
    """
    if file is None:
        return None
    from waltzctl.engine.net.small_file import read_password_or_key

    return read_password_or_key(path_of(file, name="--password-file"), "--password-file")
