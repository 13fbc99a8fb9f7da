"""Opening a vault for writing, and what to do where its disk is full.

A killed backup leaves its data behind the last page of a blob file.  On a full disk that is the room that forgetting needs: a
record of the log takes a few bytes, and pruning, which would give the room back, comes after it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from waltzctl.engine.durable import disk
from waltzctl.engine.errors import DiskFullError
from waltzctl.engine.pages.page_storage import PageStorage
from waltzctl.engine.vault.vault_reader import VAULT_OPTIONS, check_vault

FORGETTING = 32 << 20
"""Bytes of log that forgetting may take: twice a record of `backup_removal.DELETED_AT_ONCE` deletes."""
_ADVICE = "make room on its file system, or remove backups: waltzctl backup forget --prune"


def open_vault(path: Path) -> PageStorage:
    """Open the page store of a vault.  Raises NotWaltzError where there is no vault, otherwise as `PageStorage.open`."""
    check_vault(path)
    return PageStorage.open(path, VAULT_OPTIONS)


def make_room(store: PageStorage) -> None:
    """On a file system that is nearly full, cut what a killed backup left.  Raises DiskWriteError.

    Elsewhere it stays: pages that were forgotten by mistake may be in it, and an older state of the log still finds them there.
    """
    if disk.free_bytes(store.path) < FORGETTING:
        store.blobs.cut_tails()


@contextlib.contextmanager
def advising_room() -> Iterator[None]:
    """A full disk of the vault is reported with what helps."""
    try:
        yield
    except DiskFullError as error:
        error.advice = error.advice or _ADVICE
        raise
