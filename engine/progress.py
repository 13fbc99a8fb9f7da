"""Progress of long-running work, in bytes, reported to a listener."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """A listener.  Calls may come from several threads."""

    def start(self, what: str, total: int) -> None:
        """A piece of work of `total` bytes begins; `what` names it in a few words."""

    def advance(self, amount: int) -> None:
        """`amount` more bytes are done."""


class Silent:
    """The listener that does nothing."""

    def start(self, what: str, total: int) -> None:
        """Ignore."""

    def advance(self, amount: int) -> None:
        """Ignore."""


SILENT = Silent()
