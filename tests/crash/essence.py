"""What a storage directory comes to for whoever opens it, inspects it or appends to it, and what was found of the same before.

Most states that a recovery leaves differ in copies alone: what was kept of a torn end, and the journal's lines.  Of a repair
that is over nobody reads those again (but its undo, which is tried on each state), so one look serves for all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tests.crash.recorder import LOCK
from tests.crash.simdisk import Tree
from waltzctl.engine.durable import disk
from waltzctl.engine.errors import WaltzError
from waltzctl.engine.storage.store import list_entries

T = TypeVar("T")
_COPIES = tuple(f"{disk.STATE_DIRECTORY}/{name}" for name in ("journal.jsonl", disk.QUARANTINE))


def essence(storage: Path, tree: Tree | None = None) -> bytes:
    """Equal where all names are, all bytes but those of journal and quarantine, and what the quarantine's entries are.

    `tree`: the directory as it was read, if it was.
    """
    tree = Tree.read(storage, (LOCK,)) if tree is None else tree
    files = {name: b"" if name.startswith(_COPIES) else data for name, data in tree.files.items()}
    try:
        entries = repr([(one.id, one.number, one.command, one.created, one.state) for one in list_entries(storage)])
    except WaltzError as error:
        entries = str(error)
    return hashlib.blake2b(Tree(files, tree.directories).digest() + entries.encode(), digest_size=20).digest()


class Memory:
    """What one checker found; kept as long as that is, which is as long as one test."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, bytes], list[tuple[object, object]]] = {}

    def recall(self, what: str, where: bytes, beside: object, look: Callable[[], T]) -> T:
        """What `look` gave where directory and circumstances were equal, or gives now."""
        known = self._known.setdefault((what, where), [])
        for before, found in known:
            if before == beside:
                return found  # type: ignore[return-value]
        found = look()
        known.append((beside, found))
        return found
