"""Which kind of directory a quarantine belongs to: a storage directory, or a page store."""

from __future__ import annotations

import os
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from waltzctl.engine.durable.file_status import is_named
from waltzctl.formats.control import CONTROL_FILE_NAME
from waltzctl.formats.pages.names import WAL_DIRECTORY

if TYPE_CHECKING:
    from waltzctl.engine.durable.quarantine import Store


def is_page_store(path: PurePath) -> bool:
    """Whether a directory is a page store and not a storage directory."""
    return os.path.isdir(path / WAL_DIRECTORY) and not is_named(path / CONTROL_FILE_NAME)


def store_of(path: Path) -> Store:
    """The quarantine's interface to a directory of this kind."""
    if is_page_store(path):
        from waltzctl.engine.pages import torn_tail

        return torn_tail.STORE
    from waltzctl.engine.storage import store

    return store.STORE
