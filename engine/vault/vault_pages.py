"""Where the pages of a vault are stored, while another process may write to it, move pages and free space.

A reader uses the log as it was when it read it.  A page that is damaged there may have been moved since; the log is read again,
and only a page that is still damaged in its current place is reported.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from waltzctl.engine.errors import DamageError
from waltzctl.engine.findings import Finding, Severity
from waltzctl.engine.pages.inspection import StoreState, StoreView, store_state, view_store
from waltzctl.engine.pages.page_directory import PageDirectory
from waltzctl.engine.pages.page_storage import PageStorage
from waltzctl.formats.pages.names import WAL_DIRECTORY
from waltzctl.formats.pages.write_batch import PageId

_Read = TypeVar("_Read")


class VaultPages:
    """The pages of a vault.  Thread-safe.

    `findings`: of the log, when it was first read.  `directory` is replaced whenever the log is read again.
    """

    def __init__(self, directory: PageDirectory, path: Path, findings: tuple[Finding, ...] = ()) -> None:
        self.directory = directory
        self.path = path
        self.findings = findings
        self._state: StoreState | None = None
        self._refresh_lock = threading.Lock()

    @classmethod
    def look_at(cls, path: Path) -> VaultPages:
        """The pages of a vault that other processes may have open.  Raises NotWaltzError, DiskReadError."""
        state = store_state(path)  # before the log is read, so that every later write is noticed
        view = view_store(path)
        pages = cls(view.directory, path, view.findings)
        pages._state = state
        return pages

    @classmethod
    def over(cls, store: PageStorage) -> VaultPages:
        """The pages of a store that this process has open: `directory` is the store's own, and always current."""
        return cls(store.directory, store.path)

    def settled(self, page: PageId, read: Callable[[PageDirectory], _Read]) -> _Read:
        """The result of `read` for the current directory.

        If `read` raises DamageError, the log is read again, and `read` is repeated as long as `page` has moved.  Raises
        DamageError if the page is damaged in its current place.
        """
        directory = self.directory
        while True:
            try:
                return read(directory)
            except DamageError:
                newer = self._refreshed(directory, page)
                if newer is None:
                    raise
                directory = newer

    def _refreshed(self, before: PageDirectory, page: PageId) -> PageDirectory | None:
        """The current directory, if `page` may have moved; None if it is known to be in the same place as in `before`."""
        with self._refresh_lock:
            if self.directory is not before:  # another thread refreshed it
                return self.directory
            if self._state is None or not _log_changed(self._state, state := store_state(self.path)):
                return None
            view = view_store(self.path)
            self._state = state
            # a damaged log is not opened for writing, so no page was moved; a log that lost its end is older than `before`
            if _is_damaged(view) or view.directory.sequence < before.sequence:
                return None
            self.directory = view.directory
            return None if view.directory.locate(page) == before.locate(page) else view.directory


def _log_changed(before: StoreState, after: StoreState) -> bool:
    """Whether pages may have moved: moving pages first writes the log, then frees space."""
    log = [
        {name: one for name, one in state.items() if name.startswith(f"{WAL_DIRECTORY}/")} for state in (before, after)
    ]
    return log[0] != log[1] or bool(before.keys() - after.keys())


def _is_damaged(view: StoreView) -> bool:
    return any(one.severity is Severity.DAMAGE for one in view.findings)
