"""backup init: make a vault."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Annotated

import typer

from waltzctl.console import Console
from waltzctl.engine.shell_words import shell_quote
from waltzctl.manual import Example, Manual
from waltzctl.options import FormatOption, QuietOption, VerboseOption, parsed
from waltzctl.vault_options import WRITING, PasswordOption, VaultArgument, password_of, password_was_named, vault_of

MANUAL = Manual(
    name="init",
    page="backup",
    summary="Create a vault",
    description=(
        (
            "The directory must be empty or must not exist. --compression is zstd, with an optional level from 1 to 22"
            " after a colon (default 3), or none. With --encrypt everything in the vault except its configuration is"
            " encrypted; without the password the backups are lost."
        ),
    ),
    examples=(
        Example("waltzctl backup init /backup/waltz", "Compressed, not encrypted."),
        Example("waltzctl backup init /backup/waltz --encrypt --password-file /etc/waltz/vault", "Encrypted as well."),
    ),
    statuses=WRITING,
    objects=("vault-created",),
)


def run(
    vault: VaultArgument,
    encrypt: Annotated[bool, typer.Option("--encrypt", help="Encrypt the vault; needs --password-file.")] = False,
    compression: Annotated[
        str, typer.Option("--compression", metavar="zstd[:LEVEL]|none", help="How pages are compressed.")
    ] = "zstd",
    password_file: PasswordOption = None,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Make it, and say so."""
    directory, level = vault_of(vault), parsed("--compression", compression, _level)
    if encrypt and password_file is None:
        raise typer.BadParameter("an encrypted vault takes --password-file", param_hint="'--encrypt'")
    if not encrypt and password_was_named(password_file):
        raise typer.BadParameter("a vault with a password is made with --encrypt", param_hint="'--password-file'")

    from waltzctl.engine.backup.backup_creation import create_vault
    from waltzctl.objects.backup_objects import VAULT_CREATED

    with Console(output_format, quiet=quiet, verbose=verbose, single=True, must_finish=True) as console:
        password = password_of(password_file) if encrypt else None
        made = create_vault(directory, password=password, level=level)
        shown = None if level is None else f"zstd:{level}"
        console.emit_result(
            VAULT_CREATED.shown(
                SimpleNamespace(path=directory, vault_id=made.vault_id, compression=shown, encrypted=encrypt)
            ),
        )
        console.success(
            f"CREATED  {directory} takes backups now: waltzctl backup create {shell_quote(str(directory))} DIR"
        )


def _level(text: str) -> int | None:
    """Raises ValueError."""
    if text == "none":
        return None
    kind, colon, level = text.partition(":")
    if kind != "zstd" or (colon and not (level.isascii() and level.isdigit() and 1 <= int(level) <= 22)):
        raise ValueError(f"{text!r} is none of zstd, zstd:1 to zstd:22, none")
    return int(level) if colon else 3
