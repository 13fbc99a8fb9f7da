"""Vaults and sources for tests."""

import os
from pathlib import Path

from tests.builders import digest
from waltzctl.engine.backup.backup_creation import create_backup, create_vault
from waltzctl.engine.backup.backup_restore import RestoreOptions, restore_backup
from waltzctl.engine.backup.backup_verification import verify_vault
from waltzctl.engine.findings import Finding
from waltzctl.formats.segment import HEADER_SIZE, RECORD_HEADER, RECORD_OVERHEAD, Record
from waltzctl.formats.vault import BackupHead

PIECE = 4000
"""Bytes of a piece in tests: many to a segment."""
LONG_AGO = 1_600_000_000
WHOLE = RestoreOptions()


def vault(path: Path, password: bytes | None = None) -> Path:
    create_vault(path / "vault", password=password, scrypt_cost=16)
    return path / "vault"


def settle(source: Path, seconds: int = LONG_AGO) -> Path:
    """Let all files have changed long ago, so that they count as settled."""
    for one in source.rglob("*"):
        os.utime(one, (seconds, seconds))
    return source


def backup(vault: Path, source: Path, password: bytes | None = None, **given: object) -> BackupHead:
    return create_backup(vault, source, password=password, piece_limit=PIECE, **given)  # type: ignore[arg-type]


def restored(
    vault: Path, name: str, target: Path, options: RestoreOptions = WHOLE, password: bytes | None = None
) -> dict[str, str]:
    """What the files of a restored backup are."""
    restore_backup(vault, name, target, options=options, password=password)
    return digest(target)


def findings(vault: Path, **given: object) -> list[Finding]:
    return [one for one in verify_vault(vault, **given) if isinstance(one, Finding)]  # type: ignore[arg-type]


def records_of(path: Path) -> list[Record]:
    """The records at the beginning of a data file, as far as their lengths lead, read with the schema alone."""
    data, at, found = path.read_bytes(), HEADER_SIZE, []
    while at + RECORD_HEADER.size <= len(data):
        length = RECORD_HEADER.struct.unpack_from(data, at)[-2]
        if not 0 <= length <= len(data) - at - RECORD_OVERHEAD:
            break
        found.append(Record.decode(data[at : at + RECORD_OVERHEAD + length]))
        at += RECORD_OVERHEAD + length
    return found


def codes(found: list[Finding]) -> set[str]:
    return {str(one.code) for one in found}
