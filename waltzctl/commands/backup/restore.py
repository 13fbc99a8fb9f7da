"""backup restore: a backup becomes a storage directory again."""

from __future__ import annotations

from collections import Counter
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
    parsed,
    partitions_of,
    path_of,
)
from waltzctl.render.progress_bar import progress
from waltzctl.values import counted, format_ranges, human_bytes
from waltzctl.vault_options import WRITING, BackupArgument, PasswordOption, VaultArgument, password_of, vault_of

MANUAL = Manual(
    name="restore",
    page="backup",
    summary="Restore a backup into a storage directory",
    description=(
        (
            "The directory must be empty or must not exist. It appears only when it is complete, and is verified"
            " before it is reported as restored. Without further options it is byte for byte the directory that was"
            " backed up, including file times."
        ),
        (
            "With --until P:T partition P ends with transaction T: later records are left out, indexes end there, and"
            " marks in the control file are no higher. With --for-rejoin every partition ends with the low-water mark"
            " of its last session, up to which all replicas agree, and gets an earlier session, which tells log"
            " servers that it was restored: used in place of a lost node's directory, it is completed by recovery."
            " With --partition all other partitions are left out and not assigned. If the backup holds only some"
            " partitions, standard error says so."
        ),
    ),
    examples=(
        Example("waltzctl backup restore /backup/waltz latest --to /var/lib/waltz", "Restore the latest backup."),
        Example(
            "waltzctl backup restore /backup/waltz latest --to /var/lib/waltz --for-rejoin",
            "Replace a lost node's directory.",
        ),
        Example(
            "waltzctl backup restore /backup/waltz 3f --to /tmp/then --until 2:41000",
            ("Restore partition 2 up to an earlier transaction."),
        ),
    ),
    statuses=WRITING,
    objects=("restored", "finding"),
)


def run(
    vault: VaultArgument,
    backup: BackupArgument,
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="The directory to make.", show_default=False)],
    until: Annotated[
        list[str] | None,
        typer.Option("--until", metavar="P:T", help="Partition P ends with transaction T (repeatable)."),
    ] = None,
    for_rejoin: Annotated[
        bool, typer.Option("--for-rejoin", help="End every partition where all replicas agree.")
    ] = False,
    partition: PartitionsOption = None,
    password_file: PasswordOption = None,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Write, verify, report."""
    directory, target, wanted = vault_of(vault), path_of(to, name="--to"), partitions_of(partition)
    pairs = [pair for text in until or () if (pair := parsed("--until", text, _end)) is not None]
    ends = dict(pairs)
    if twice := [number for number, count in Counter(number for number, _ in pairs).items() if count > 1]:
        raise typer.BadParameter(f"partition {twice[0]} is named twice", param_hint="'--until'")

    from waltzctl.engine.backup.backup_restore import RestoreOptions, restore_backup
    from waltzctl.engine.columns.finding_columns import FINDING
    from waltzctl.engine.errors import WaltzError
    from waltzctl.engine.findings import Finding
    from waltzctl.engine.inspect.verify import verify
    from waltzctl.engine.shell_words import shell_quote
    from waltzctl.objects.backup_objects import restored_object

    options = RestoreOptions(wanted, ends, for_rejoin)
    with Console(output_format, quiet=quiet, verbose=verbose, must_finish=True) as console:
        with progress(quiet=quiet, verbose=verbose) as listener:
            made = restore_backup(
                directory, backup, target, password=password_of(password_file), options=options, progress=listener
            )
            try:
                *findings, summary = verify([made.path], progress=listener)
            except (WaltzError, OSError):  # restored again it would be refused: the directory is not empty
                console.trouble(
                    f"{made.path} is restored, and could not be verified; waltzctl verify {shell_quote(str(made.path))} does that"
                )
                raise
        assert not isinstance(summary, Finding)
        lacks = made.head.unread if wanted is None else ()
        status = ExitStatus.CLEAN if summary.status == "clean" and not lacks else ExitStatus.DAMAGE_REMAINS
        for one in findings:
            if isinstance(one, Finding):
                console.emit_result(FINDING.shown(one), status)
        console.emit_result(restored_object(made, int(status)), status)
        if made.head.partial and wanted is None and not lacks:  # nobody asked for less than all
            held = format_ranges([one.partition for one in made.head.partitions])
            console.trouble(
                f"backup {made.head.name} is one of partitions {held} alone, and no other one is assigned in {made.path};"
                " waltzctl backup list shows which are in each backup"
            )
        if lacks:
            console.trouble(
                f"partition {format_ranges(lacks)} could not be read when backup {made.head.name} was made, and is not in"
                f" {made.path}; waltzctl backup list shows which are in each backup"
            )
        said = f"{made.path}: {counted(made.files, 'file')}, {human_bytes(made.size)} of backup {made.head.name}"
        if status is ExitStatus.CLEAN:
            console.success(f"RESTORED  {said}; verify is clean.")
        elif summary.status == "clean":
            console.sentence(f"RESTORED IN PART  {said}; verify is clean.")
        else:
            console.sentence(f"RESTORED WITH DAMAGE  {said}; it is damaged as its source was, see the findings.")
    return status


def _end(text: str) -> tuple[int, int]:
    """Raises ValueError."""
    partition, colon, transaction = text.partition(":")
    try:
        pair = int(partition), int(transaction)
    except ValueError:
        pair = -1, -1
    if not colon or pair[0] < 0 or not -1 <= pair[1] < 2**63:
        raise ValueError(f"{text!r} is no partition and transaction: P:T")
    return pair
