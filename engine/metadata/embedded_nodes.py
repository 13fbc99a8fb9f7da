"""Nodes in embedded metadata: their table, and what it means to read and to change a node.

The table::

    znode     path (primary key), data, version, cversion, sequence (number of the next sequential child),
              session (id of the session that an ephemeral node belongs to, else NULL)

The nodes of a session that is over count as deleted, whoever looks; `EmbeddedNodes.end_sessions` removes them.

Every method here runs within the caller's transaction.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence

from waltzctl.engine.metadata import embedded_sessions
from waltzctl.engine.metadata.metadata_store import (
    ANY_VERSION,
    Change,
    Check,
    Create,
    Delete,
    NodeExistsError,
    NodeMissingError,
    NodeNotEmptyError,
    NodeVersionError,
    Set,
    ZnodeState,
)

TABLE = """CREATE TABLE znode (
        path TEXT PRIMARY KEY, data BLOB NOT NULL, version INTEGER NOT NULL DEFAULT 0, cversion INTEGER NOT NULL DEFAULT 0,
        sequence INTEGER NOT NULL DEFAULT 0, session INTEGER
    ) WITHOUT ROWID"""


class EmbeddedNodes:
    """The nodes in an open file.

    `database`: the connection to it, which its owner may replace by another one to the same file.  `where`: the file, for errors.
    `gone_elsewhere`: sessions of other machines that are known to be over, which this machine's clock cannot tell.
    """

    def __init__(self, database: sqlite3.Connection, where: str) -> None:
        self.database, self.where = database, where
        self.gone_elsewhere: frozenset[int] = frozenset()

    # ---- reading -------------------------------------------------------------------------------------------------------

    def node(self, path: str) -> tuple[bytes, ZnodeState]:
        """A node's data and state.  Raises NodeMissingError; TypeError for data of another type, which SQLite would keep."""
        row = self.database.execute(
            "SELECT data, version, cversion, session FROM znode WHERE path = ?", (path,)
        ).fetchone()
        over = self._over()
        if row is None or row[3] in over:
            raise NodeMissingError(self.where, path)
        if not isinstance(row[0], bytes):  # of a number bytes() would make as many zeros
            raise TypeError(f"the data of node {path or 'of the root'} is no BLOB")
        gone = len(self._ephemeral_children(path, over)) if over else 0  # each deletion will increment cversion
        return row[0], ZnodeState(row[1], row[2] + gone, row[3] is not None)

    def state(self, path: str) -> ZnodeState | None:
        """A node's state; None where there is no such node.  Raises TypeError as `node`."""
        with contextlib.suppress(NodeMissingError):
            return self.node(path)[1]
        return None

    def children(self, path: str) -> tuple[str, ...]:
        """The names of a node's children, sorted; none where there is no such node."""
        below = f"{path}/" if path else ""
        rows = self.database.execute(
            "SELECT path FROM znode WHERE path > ? AND path < ? AND path != ''", (below, _after(below))
        )
        gone = {*self._ephemeral_children(path, over)} if (over := self._over()) else ()
        return tuple(sorted(name for (one,) in rows if one not in gone and "/" not in (name := one[len(below) :])))

    def _ephemeral_children(self, path: str, sessions: Sequence[int]) -> list[str]:
        """The paths of a node's children that belong to one of these sessions."""
        marks = ", ".join("?" * len(sessions))
        rows = self.database.execute(f"SELECT path FROM znode WHERE session IN ({marks})", sessions)
        return [one for (one,) in rows if one.rpartition("/")[0] == path]

    def _over(self) -> tuple[int, ...]:
        return embedded_sessions.over(self.database, self.gone_elsewhere)

    # ---- changing ------------------------------------------------------------------------------------------------------

    def create(self, path: str, data: bytes, *, session: int | None = None, sequence: bool = False) -> str:
        """Create a node and return its path.  `session`: that it belongs to; None: it is not ephemeral.

        `sequence`: append a number to the path that its parent has given no other child.  Raises NodeMissingError for the parent,
        NodeExistsError.
        """
        above = path.rpartition("/")[0]
        self.node(above)
        if sequence:
            (number,) = self.database.execute("SELECT sequence FROM znode WHERE path = ?", (above,)).fetchone()
            path = f"{path}{number:010d}"
        if self.state(path) is not None:
            raise NodeExistsError(self.where, path)
        self.database.execute(
            "INSERT INTO znode (path, data, session) VALUES (?, ?, ?)",
            (path, data, session),
        )
        self.database.execute(
            "UPDATE znode SET cversion = cversion + 1, sequence = sequence + 1 WHERE path = ?", (above,)
        )
        return path

    def create_root(self) -> bool:
        """Create the root without data; False if there is one."""
        if self.state("") is not None:
            return False
        self.database.execute("INSERT INTO znode (path, data) VALUES ('', x'')")
        return True

    def check(self, path: str, version: int) -> ZnodeState:
        """A node's state.  Raises NodeMissingError, NodeVersionError unless it has this version."""
        _, state = self.node(path)
        if version not in (ANY_VERSION, state.version):
            raise NodeVersionError(self.where, path)
        return state

    def set(self, path: str, data: bytes, version: int) -> ZnodeState:
        """Replace a node's data; its new state.  Raises as `check`."""
        state = self.check(path, version)
        self.database.execute("UPDATE znode SET data = ?, version = version + 1 WHERE path = ?", (data, path))
        return ZnodeState(state.version + 1, state.cversion, state.ephemeral)

    def delete(self, path: str, version: int) -> None:
        """Delete a node.  Raises as `check`, and NodeNotEmptyError."""
        self.check(path, version)
        if self.children(path):
            raise NodeNotEmptyError(self.where, path)
        self._remove(path)

    def apply(self, changes: Sequence[Change]) -> None:
        """Make several changes in their order.  Raises as each of them; the caller's transaction is to be rolled back then."""
        for change in changes:
            match change:
                case Create(path, data):
                    self.create(path, data)
                case Set(path, data, version):
                    self.set(path, data, version)
                case Delete(path, version):
                    self.delete(path, version)
                case Check(path, version):
                    self.check(path, version)

    def _remove(self, path: str) -> None:
        self.database.execute("DELETE FROM znode WHERE path = ?", (path,))
        if path:
            above = path.rpartition("/")[0]
            self.database.execute("UPDATE znode SET cversion = cversion + 1 WHERE path = ?", (above,))

    # ---- sessions ------------------------------------------------------------------------------------------------------

    def begin_session(self, seconds: float) -> int | None:
        """Begin a session of this process, over after `seconds`; None where a process of another machine may have one."""
        if embedded_sessions.elsewhere(self.database).keys() - self.gone_elsewhere:
            return None
        return embedded_sessions.begin(self.database, seconds)

    def end_sessions(self, also: int | None = None) -> None:
        """Delete the sessions that are over, and session `also`, with their nodes."""
        for number in {*self._over(), *(() if also is None else (also,))}:
            for (path,) in self.database.execute("SELECT path FROM znode WHERE session = ?", (number,)).fetchall():
                self._remove(path)
            embedded_sessions.forget(self.database, number)


def _after(below: str) -> str:
    """The least string that is greater than every string with the prefix `below`."""
    return f"{below[:-1]}{chr(ord(below[-1]) + 1)}" if below else chr(0x10FFFF)
