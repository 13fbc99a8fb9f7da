"""backup: backups of storage directories, in a vault."""

from __future__ import annotations

from types import ModuleType

from waltzctl.commands.backup import (
    create,
    diff,
    dump,
    forget,
    init,
    list_backups,
    prune,
    repair,
    restore,
    show,
    verify,
)
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual, ManualSection

ACTIONS: tuple[ModuleType, ...] = (
    init, create, list_backups, show, dump, verify, restore, diff, forget, prune, repair,
)  # fmt: skip
"""One file each, in the order in which ``--help`` lists them."""

MANUAL = Manual(
    name="backup",
    summary="Back up storage directories into a vault, and restore them",
    description=(
        (
            "A vault is a directory with any number of backups of any number of storage directories. Content that the"
            " vault already has is not written again: records are cut into pieces at transaction ids, so the same"
            " transactions in another replica, or in other segments, give the same pieces. A file that did not change"
            " since the last backup of the same directory is not read again."
        ),
        (
            "list, show, dump, verify, restore and diff only read the vault, take no lock, and work while a backup is"
            " being made. Commands that only read storage directories, and recover --from, read a backup without"
            " restoring it: vault:VAULT::ID."
        ),
    ),
    examples=(
        Example("waltzctl backup init /backup/waltz --encrypt --password-file /etc/waltz/vault", "A new vault."),
        Example("waltzctl backup create /backup/waltz /var/lib/waltz --tag nightly", "Also while a node runs on it."),
        Example("waltzctl backup list /backup/waltz", "List the backups."),
        Example(
            "waltzctl backup restore /backup/waltz latest --to /var/lib/waltz-new",
            ("Restore the latest backup, byte for byte."),
        ),
        Example(
            "waltzctl backup forget /backup/waltz --keep-daily 7 --keep-weekly 5 --prune --yes",
            ("Keep the newest of each of 7 days and 5 weeks; remove the rest."),
        ),
    ),
    statuses=tuple(sorted({*ExitStatus} - {ExitStatus.INTERNAL})),
    objects=(
        "vault-created",
        "backup",
        "finding",
        "verify-summary",
        "record",
        "control",
        "partition-info",
        "segment",
        "index-entry",
        "restored",
        "backup-difference",
        "plan",
        "result",
        "vault-pruned",
        "vault-repaired",
    ),
    sections=(
        ManualSection(
            "VAULTS",
            (
                (
                    "A backup is complete or absent: a backup that was killed leaves only space that the next one"
                    " reuses. Only one process at a time can write to a vault (11); the lock ends with the process. A"
                    " vault is a page store: waltzctl pages shows its content."
                ),
                (
                    "The password of an encrypted vault is the first line of the file that --password-file or"
                    " WALTZCTL_VAULT_PASSWORD_FILE names; vault:VAULT::ID uses the variable. A file that is not text"
                    " is a key as a whole, 16 to 4096 bytes (head -c 32 /dev/urandom). Pages are encrypted with"
                    " AES-256-GCM under a random key, which scrypt and the password protect. The number of pages and"
                    " their sizes are not hidden."
                ),
                (
                    "If pages of a vault are damaged, only their content is lost: backup verify names them, restore of"
                    " a backup that needs them reports it (4), and backup repair replaces them from a directory that"
                    " has their content. Heads of backups and lists of files are stored twice."
                ),
            ),
        ),
    ),
)


def run() -> None:
    """Nothing: the action does it all."""
