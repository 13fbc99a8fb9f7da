"""Path of a backup, or of a file in it: ``vault:VAULT::ID/0/0000000000000000000.seg``."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from waltzctl.engine.findings import MendedInCopy
from waltzctl.engine.shell_words import shell_join

SCHEME = "vault:"
_SEPARATOR = "::"


class VaultPath(MendedInCopy, PurePosixPath):
    """A pure path: no file is accessed.  It can be pickled."""

    @classmethod
    def of(cls, vault: Path, backup: str) -> VaultPath:
        """The storage directory that a backup holds; `backup`: an id, a prefix of one, or ``latest``."""
        return cls(f"{SCHEME}{vault}{_SEPARATOR}{backup}")

    @property
    def _parts_of_name(self) -> tuple[str, str]:
        vault, _, rest = str(self).removeprefix(SCHEME).rpartition(_SEPARATOR)
        return vault, rest

    @property
    def vault(self) -> Path:
        """The directory of the vault."""
        return Path(self._parts_of_name[0])

    @property
    def backup(self) -> str:
        """The backup as it was given: an id, a prefix of one, or ``latest``."""
        return self._parts_of_name[1].partition("/")[0]

    @property
    def inside(self) -> str:
        """The name relative to the storage directory; empty for the directory itself."""
        return self._parts_of_name[1].partition("/")[2]

    @property
    def remedy(self) -> str:
        """Command that restores the backup, which comes before any repair."""
        return shell_join(("waltzctl", "backup", "restore", str(self.vault), self.backup, "--to", "DIR"))

    def is_absolute(self) -> bool:
        """Whether the vault's path is absolute."""
        return self.vault.is_absolute()


def is_vault_path(text: str) -> bool:
    """Whether a text names a backup in a vault."""
    vault, separator, rest = text.removeprefix(SCHEME).rpartition(_SEPARATOR)
    return text.startswith(SCHEME) and bool(vault and separator and rest)
