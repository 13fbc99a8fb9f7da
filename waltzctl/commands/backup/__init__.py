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
    summary="Back storage directories up into a vault, and restore them",
    description=(
        (
            "A vault is a directory with any number of backups of any number of storage directories. What the vault has already"
            " is not written again: records are cut into pieces at transaction ids, so that the same transactions in another"
            " replica, or in other segments, are the same pieces. A file that did not change since the last backup of the same"
            " directory is not read again."
        ),
        (
            "list, show, dump, verify, restore and diff only read the vault, take no lock, and work beside a backup that is being"
            " made. Every command that only reads storage directories, and --from of recover, read a backup without restoring"
            " it: vault:VAULT::ID."
        ),
    ),
    examples=(
        Example("waltzctl backup init /backup/waltz --encrypt --password-file /etc/waltz/vault", "A new vault."),
        Example("waltzctl backup create /backup/waltz /var/lib/waltz --tag nightly", "Also under a running node."),
        Example("waltzctl backup list /backup/waltz", "What is in it?"),
        Example("waltzctl backup restore /backup/waltz latest --to /var/lib/waltz-new", "Byte for byte as it was."),
        Example(
            "waltzctl backup forget /backup/waltz --keep-daily 7 --keep-weekly 5 --prune --yes", "Keep what is needed."
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
                    "A backup is there whole or not at all: one that was killed leaves nothing, and room that the next one"
                    " uses. While something is written to a vault nobody else can write to it (11); a process that dies holds"
                    " nothing. A vault is a page store, and waltzctl pages shows what is in it."
                ),
                (
                    "An encrypted vault is opened with the first line of the file of --password-file, or of the one that"
                    " WALTZCTL_VAULT_PASSWORD_FILE names; reading vault:VAULT::ID takes the variable. A file that is no"
                    " text is a key, all of it, 16 to 4096 bytes (head -c 32 /dev/urandom). Pages are encrypted with AES-256-GCM"
                    " under a random key, which scrypt and the password protect. What a vault does not hide is how"
                    " many pages it has, and how large they are."
                ),
                (
                    "A vault that is damaged loses what the damaged pages held and nothing else: backup verify names it,"
                    " restore of a backup that needs it says so (4), and backup repair takes it anew from a directory that"
                    " has it. Heads of backups and lists of files are there twice."
                ),
            ),
        ),
    ),
)


def run() -> None:
    """Nothing: the action does it all."""
