"""Where the pages of a vault lie, while others may write to it, move pages and give room back.

A reader goes by the log as it was when it looked.  What it does not find whole there may have been moved since: it looks at
the log once more, and only what is not whole by then either is damaged.
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

    `findings`: what was wrong with the log that was looked at.  `directory` is replaced where the log is looked at once more.
    """

    def __init__(self, directory: PageDirectory, path: Path, findings: tuple[Finding, ...] = ()) -> None:
        self.directory = directory
        self.path = path
        self.findings = findings
        self._state: StoreState | None = None
        self._looking = threading.Lock()

    @classmethod
    def look_at(cls, path: Path) -> VaultPages:
        """Of a vault that others may have open.  Raises NotWaltzError, DiskReadError."""
        state = store_state(path)  # whoever writes from here on is noticed
        view = view_store(path)
        pages = cls(view.directory, path, view.findings)
        pages._state = state
        return pages

    @classmethod
    def over(cls, store: PageStorage) -> VaultPages:
        """Of a store that this process has open: `directory` is what it holds, at any moment."""
        return cls(store.directory, store.path)

    def settled(self, page: PageId, read: Callable[[PageDirectory], _Read]) -> _Read:
        """What `read` gives by the directory; where that raises DamageError of `page`, by what the directory is by then.

        Raises DamageError where the page is damaged.
        """
        directory = self.directory
        while True:
            try:
                return read(directory)
            except DamageError:
                newer = self._looked_at_anew(directory, page)
                if newer is None:
                    raise
                directory = newer

    def _looked_at_anew(self, before: PageDirectory, page: PageId) -> PageDirectory | None:
        """A directory in which the page may lie elsewhere; None where it is known to lie where it lay before."""
        with self._looking:
            if self.directory is not before:  # somebody else looked meanwhile
                return self.directory
            if self._state is None or not _may_have_moved(self._state, state := store_state(self.path)):
                return None
            view = view_store(self.path)
            self._state = state
            # nobody opens such a log for writing, so that nothing was moved; and what lost its end tells of less than is known
            if _is_damaged(view) or view.directory.sequence < before.sequence:
                return None
            self.directory = view.directory
            return None if view.directory.locate(page) == before.locate(page) else view.directory


def _may_have_moved(before: StoreState, after: StoreState) -> bool:
    """Whether pages may lie elsewhere: what moves them writes the log, and only then gives room back."""
    log = [
        {name: one for name, one in state.items() if name.startswith(f"{WAL_DIRECTORY}/")} for state in (before, after)
    ]
    return log[0] != log[1] or bool(before.keys() - after.keys())


def _is_damaged(view: StoreView) -> bool:
    return any(one.severity is Severity.DAMAGE for one in view.findings)
