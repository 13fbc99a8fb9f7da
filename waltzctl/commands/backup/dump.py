"""backup dump: what is in the files of a backup."""

from __future__ import annotations

from waltzctl.console import refusals
from waltzctl.dump_options import Dumping, with_dumping
from waltzctl.exit_status import INSPECTING, ExitStatus
from waltzctl.manual import Example, Manual
from waltzctl.options import PartitionsOption, QuietOption, VerboseOption, partitions_of
from waltzctl.vault_options import BackupArgument, PasswordOption, VaultArgument, password_of, vault_of

MANUAL = Manual(
    name="dump",
    page="backup",
    summary="Show the records, segments, indexes or the control file of a backup",
    description=(
        (
            "Works as waltzctl dump vault:VAULT::ID, with --password-file as for the other actions: records unless"
            " --what says otherwise, in the formats and forms of data that waltzctl-dump(1) explains. Damage that was"
            " backed up, and records lost with a damaged page of the vault, appear as findings at their place."
        ),
        "waltzctl pages dump VAULT shows the pages of the vault.",
    ),
    examples=(
        Example("waltzctl backup dump /backup/waltz latest --partition 3 --reverse --limit 1", "The last record."),
        Example(
            "waltzctl backup dump /backup/waltz 3f20 --what control", "Sessions and marks at the time of the backup."
        ),
        Example(
            "waltzctl backup dump /backup/waltz latest --format ndjson --data utf8 -o records.ndjson",
            "Everything, as text, into a file.",
        ),
    ),
    statuses=(*INSPECTING[:-1], ExitStatus.REFUSED, ExitStatus.INTERRUPTED),
    objects=("record", "finding", "control", "partition-info", "segment", "index-entry"),
)


@with_dumping
def run(
    vault: VaultArgument,
    backup: BackupArgument,
    dumping: Dumping = Dumping(),  # noqa: B008  # frozen
    partition: PartitionsOption = None,
    password_file: PasswordOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Show it."""
    directory, partitions = vault_of(vault), partitions_of(partition)
    dumping.check()

    from waltzctl.engine.vault.vault_access import VAULTS
    from waltzctl.engine.vault.vault_path import VaultPath
    from waltzctl.storage_dump import dump

    path = VaultPath.of(directory, backup)
    with refusals(dumping.output_format):
        VAULTS.unlock(directory, password_of(password_file))
        VAULTS.files(path)  # told in the words of a vault, where it cannot be opened
    return dump(dumping.request(path, partitions, quiet=quiet, verbose=verbose))
