"""backup create: back a storage directory up."""

from __future__ import annotations

from typing import Annotated

import typer

from waltzctl.console import Console
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual
from waltzctl.options import (
    FormatOption,
    PartitionsOption,
    QuietOption,
    VerboseOption,
    partitions_of,
    path_of,
    place_of,
)
from waltzctl.render.progress_bar import progress
from waltzctl.values import counted, human_bytes, human_duration
from waltzctl.vault_options import WRITING, PasswordOption, VaultArgument, password_of, vault_of

MANUAL = Manual(
    name="create",
    page="backup",
    summary="Back a storage directory up",
    description=(
        (
            "SOURCE is a storage directory, or the URL of one in an object store. A node may be running on it: of each partition"
            " what is durable at one moment is backed up, and no mark in the backup is above what the backup holds. Everything in"
            " the directory is taken but the lock, damage included; where there is some, status 5 and a sentence say so."
        ),
    ),
    examples=(
        Example("waltzctl backup create /backup/waltz /var/lib/waltz --tag nightly", "All partitions."),
        Example("waltzctl backup create /backup/waltz /var/lib/waltz --partition 0-3", "Some of them."),
    ),
    statuses=WRITING,
    objects=("backup",),
)


def run(
    vault: VaultArgument,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="What is backed up.", show_default=False)],
    tag: Annotated[str | None, typer.Option("--tag", metavar="T", help="A word to know it by.")] = None,
    partition: PartitionsOption = None,
    prometheus: Annotated[
        str | None,
        typer.Option("--prometheus", metavar="FILE", help="Write figures for Prometheus' textfile collector."),
    ] = None,
    password_file: PasswordOption = None,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Read, keep, report."""
    directory, place, wanted = vault_of(vault), place_of(source, name="SOURCE"), partitions_of(partition)
    figures = None if prometheus is None else path_of(prometheus, name="--prometheus")

    from waltzctl.engine.backup.backup_creation import create_backup
    from waltzctl.objects.backup import BACKUP

    with Console(output_format, quiet=quiet, verbose=verbose, single=True, must_finish=True) as console:
        with progress(quiet=quiet, verbose=verbose) as listener:
            made = create_backup(
                directory, place, password=password_of(password_file), tag=tag, partitions=wanted, progress=listener
            )
        if figures is not None:
            from waltzctl.engine.backup.backup_metrics import write_metrics

            write_metrics(figures, directory, made)
        console.emit(BACKUP.shown(made), flush=True)
        new = f"{counted(made.new_pages, 'piece')} of {made.pages} new, the vault grew by {human_bytes(made.new_bytes)}"
        said = (
            f"{made.name}  {human_bytes(made.size)} of {made.source}; {new} ({human_duration(made.elapsed_seconds)})."
        )
        if made.damaged:
            console.sentence(
                f"BACKED UP WITH DAMAGE  {said} The source is damaged in {counted(made.damaged, 'place')}:"
                f" waltzctl verify {made.source}"
            )
            return ExitStatus.DAMAGE_REMAINS
        console.success(f"BACKED UP  {said}")
    return ExitStatus.CLEAN
