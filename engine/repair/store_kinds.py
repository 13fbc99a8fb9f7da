"""Which kind of directory a quarantine belongs to: a storage directory, or a page store."""

from __future__ import annotations

from pathlib import Path

from waltzctl.engine.durable.quarantine import Store
from waltzctl.engine.pages import torn_tail
from waltzctl.engine.pages.wal_reader import is_page_store
from waltzctl.engine.storage import store


def store_of(path: Path) -> Store:
    """What a directory's quarantine has to know of it."""
    return torn_tail.STORE if is_page_store(path) else store.STORE
