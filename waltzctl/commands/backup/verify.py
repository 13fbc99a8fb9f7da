"""backup verify: whether backups can be restored."""

from __future__ import annotations

from typing import Annotated

import typer

from waltzctl.console import Console
from waltzctl.exit_status import INSPECTING, ExitStatus
from waltzctl.manual import Example, Manual
from waltzctl.options import FormatOption, QuietOption, VerboseOption, parsed
from waltzctl.render.progress_bar import progress
from waltzctl.values import parse_percent
from waltzctl.vault_options import PasswordOption, VaultArgument, password_of, vault_of
from waltzctl.verify_report import VerifyReport

MANUAL = Manual(
    name="verify",
    page="backup",
    summary="Check whether backups can be restored, and change nothing",
    description=(
        (
            "Reads the vault's log and every page that a backup needs, and compares each page with its digest. A"
            " damaged page is named once; what is lost with it is named for each backup and partition. waltzctl verify"
            " vault:VAULT::ID tells whether the backed-up directory itself was clean."
        ),
    ),
    examples=(
        Example("waltzctl backup verify /backup/waltz", "Everything."),
        Example("waltzctl backup verify /backup/waltz latest --sample 5%", "A sample of the newest backup."),
    ),
    statuses=tuple(sorted({*INSPECTING, ExitStatus.REFUSED})),
    objects=("finding", "verify-summary"),
)


def run(
    vault: VaultArgument,
    backup: Annotated[str | None, typer.Argument(metavar="[ID]", help="Only this backup.", show_default=False)] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Check that pages exist, without reading them.")] = False,
    sample: Annotated[
        str | None,
        typer.Option("--sample", metavar="P%", help="Read only this share of the pages, different ones each time."),
    ] = None,
    password_file: PasswordOption = None,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Look and report."""
    directory, share = vault_of(vault), parsed("--sample", sample, parse_percent)
    if quick and share is not None:
        raise typer.BadParameter("--quick reads no page at all", param_hint="'--sample'")

    from waltzctl.engine.backup.backup_verification import VaultVerifyOptions, verify_vault

    options = VaultVerifyOptions(backup, quick, share)
    with (
        Console(output_format, quiet=quiet, verbose=verbose) as console,
        progress(quiet=quiet, verbose=verbose) as listener,
    ):
        report = VerifyReport(console)
        for seen in verify_vault(directory, options, password=password_of(password_file), progress=listener):
            with listener.paused():
                report.show(seen)
    return report.status
