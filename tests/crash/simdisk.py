"""A disk that can lose power: what was written, what was synced, and every state that a crash may leave.

The disk starts from a `Tree` that is wholly durable and takes the changes
(`engine.durable.disk.Change`) of a workload one by one.  It keeps,
for each file, the bytes as of its last sync and the writes and cuts since; and, for each directory, the names as of its last
sync and the creations, renames and removals since.  Data and names are independent, as POSIX allows: syncing a new file does
not make its name durable, and syncing a directory does not make the bytes of its files durable.

What is assumed of the hardware stands in ``docs/crash-safety.md``: a sector of 512 bytes is written whole or not at all, a
rename within a directory is atomic, and what a sync has returned for stays, of one directory at a time.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from waltzctl.engine.durable.disk import Change

SECTOR = 512
"""Bytes that a disk writes whole or not at all."""

FAILED_SYNC = "failed-sync"
"""Kind of the change that a sync makes which fails (`tests.crash.failing`); the engine tells of none."""

LONG_AGO = 1_700_000_000
"""Seconds since 1970: when the machine crashed."""


def _content(path: str) -> bytes:
    """A whole file; thousands of small ones are read for each crash."""
    with open(path, "rb", buffering=0) as file:
        return file.read()


@dataclass(frozen=True, slots=True)
class Tree:
    """Files and directories below a root, by relative name with slashes.  The root itself is not listed."""

    files: Mapping[str, bytes]
    directories: frozenset[str]

    @classmethod
    def read(cls, root: Path, ignored: Iterable[str] = ()) -> Tree:
        """What is on the real disk; names in `ignored` (relative to any storage directory below) are left out."""
        files: dict[str, bytes] = {}
        directories: set[str] = set()
        waiting = [(os.fspath(root), "")]
        while waiting:
            place, prefix = waiting.pop()
            with os.scandir(place) as entries:
                for entry in entries:
                    name = prefix + entry.name
                    if entry.is_dir(follow_symlinks=False):
                        directories.add(name)
                        waiting.append((entry.path, name + "/"))
                    elif not any(name == tail or name.endswith("/" + tail) for tail in ignored):
                        files[name] = _content(entry.path)
        return cls(files, frozenset(directories))

    def write(self, root: Path) -> None:
        """Lay the tree out below `root`, which must be an empty directory."""
        for name in sorted(self.directories):
            os.mkdir(os.path.join(root, name))
        for name, data in self.files.items():
            descriptor = os.open(os.path.join(root, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(descriptor, view) :]
                os.utime(descriptor, (LONG_AGO, LONG_AGO))  # or verify would wait whether somebody still writes
            finally:
                os.close(descriptor)

    def digest(self) -> bytes:
        """Equal for equal trees, and for no others."""
        total = hashlib.blake2b(digest_size=20)
        for name in sorted(self.directories):
            total.update(b"d%s\0" % name.encode())
        for name in sorted(self.files):
            data = self.files[name]
            total.update(b"f%s\0%d\0" % (name.encode(), len(data)))
            total.update(data)
        return total.digest()

    def below(self, directory: str) -> Tree:
        """The part under one directory, with names relative to it."""
        start = directory + "/"
        return Tree(
            {name[len(start) :]: data for name, data in self.files.items() if name.startswith(start)},
            frozenset(name[len(start) :] for name in self.directories if name.startswith(start)),
        )

    def differences(self, other: Tree) -> list[str]:
        """One line for each name that is not the same in both; empty when they are equal."""
        lines = [f"{name}: directory only in the first" for name in sorted(self.directories - other.directories)]
        lines += [f"{name}: directory only in the second" for name in sorted(other.directories - self.directories)]
        for name in sorted(self.files.keys() | other.files.keys()):
            mine, theirs = self.files.get(name), other.files.get(name)
            if mine is None or theirs is None:
                lines.append(f"{name}: only in the {'second' if mine is None else 'first'}")
            elif mine != theirs:
                shared = min(len(mine), len(theirs))
                place = next((i for i in range(shared) if mine[i] != theirs[i]), shared)
                lines.append(f"{name}: {len(mine)} and {len(theirs)} bytes, first difference at {place}")
        return lines


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of an un-synced change of a file: bytes at an offset that do not cross a sector, or a cut (`data` is None)."""

    offset: int
    data: bytes | None

    def apply(self, content: bytearray) -> None:
        if self.data is None:
            del content[self.offset :]
            return
        if len(content) < self.offset:
            content.extend(bytes(self.offset - len(content)))
        content[self.offset : self.offset + len(self.data)] = self.data


def sector_boundaries(offset: int, length: int) -> list[int]:
    """File offsets strictly inside a write at which one sector ends and the next begins."""
    return list(range((offset // SECTOR + 1) * SECTOR, offset + length, SECTOR))


def split_by_sector(offset: int, data: bytes) -> list[Piece]:
    """A write as the pieces that reach the disk independently."""
    edges = [offset, *sector_boundaries(offset, len(data)), offset + len(data)]
    return [Piece(a, data[a - offset : b - offset]) for a, b in itertools.pairwise(edges)]


@dataclass(eq=False, slots=True)
class FileNode:
    """A file: its bytes as of the last sync, and the writes and cuts since, oldest first."""

    durable: bytes = b""
    pending: list[Piece] = field(default_factory=list)  # whole writes: not yet split
    volatile: bytes = b""
    given_up: bool = False  # something of it can be read that no sync will make durable

    def change(self, piece: Piece) -> None:
        content = bytearray(self.volatile)
        piece.apply(content)
        self.volatile = bytes(content)
        self.pending.append(piece)

    def sync(self) -> None:
        self.durable, self.pending = self.after(self.pending) if self.given_up else self.volatile, []

    def give_up(self) -> None:
        """A sync failed: the system takes what it could not write for written, until somebody writes it again."""
        self.given_up = True
        self.pending = [piece for piece in self.pending if piece.data is None]

    def after(self, pieces: Iterable[Piece]) -> bytes:
        """The durable bytes with some pieces on top."""
        content = bytearray(self.durable)
        for piece in pieces:
            piece.apply(content)
        return bytes(content)

    def zeroed(self) -> bytes:
        """Length as if everything had been kept; new bytes are zero, overwritten ones are the old ones."""
        content = bytearray(self.durable)
        for piece in self.pending:
            if piece.data is None:
                piece.apply(content)
            else:
                content.extend(bytes(max(0, piece.offset + len(piece.data) - len(content))))
        return bytes(content)

    def torn(self, boundary: int) -> bytes:
        """Everything kept, but of the last write only what lies before `boundary`."""
        last = self.pending[-1]
        assert last.data is not None
        return self.after([*self.pending[:-1], Piece(last.offset, last.data[: boundary - last.offset])])

    def shuffled(self, rng: random.Random) -> bytes:
        """A random subset of the sectors and cuts."""
        keep = rng.choice((0.1, 0.5, 0.9))
        pieces: list[Piece] = []
        for change in self.pending:
            pieces += [change] if change.data is None else split_by_sector(change.offset, change.data)
        return self.after(piece for piece in pieces if rng.random() < keep)


@dataclass(eq=False, slots=True)
class DirectoryNode:
    """A directory; its names stand in the disk's tables."""


Node = FileNode | DirectoryNode
Names = dict[DirectoryNode, dict[str, Node]]


@dataclass(eq=False, slots=True)
class NameChange:
    """One change of names: a creation, a removal, or a rename within a directory, which is atomic.

    Durable once its directory, the only one in `unsynced`, was synced after it.  A rename into another directory is two changes,
    each of which is durable with the sync of its own directory.  As long as neither was synced the second, by which the old name
    goes, `needs` the first: the file may have both names, but not none.  The sync of the directory that it left makes the second
    durable without the first, and then it may have none.  A directory cannot have two names (`whole`): the old one goes
    when the new one is there.
    """

    removed: tuple[DirectoryNode, str] | None
    added: tuple[DirectoryNode, str, Node] | None
    unsynced: set[DirectoryNode]
    needs: NameChange | None = None
    whole: bool = False

    def apply(self, names: Names) -> None:
        if self.removed is not None:
            names.setdefault(self.removed[0], {}).pop(self.removed[1], None)
        if self.added is not None:
            names.setdefault(self.added[0], {})[self.added[1]] = self.added[2]


class SimulatedDisk:
    """A tree of files below `root` whose un-synced changes can be lost.  Raises ValueError for a change that cannot be."""

    def __init__(self, root: Path, tree: Tree) -> None:
        self.root = root
        self._top = DirectoryNode()
        self._durable: Names = {self._top: {}}
        nodes: dict[str, DirectoryNode] = {"": self._top}
        for name in sorted(tree.directories):
            parent, _, last = name.rpartition("/")
            nodes[name] = DirectoryNode()
            self._durable[nodes[name]] = {}
            self._durable[nodes[parent]][last] = nodes[name]
        for name, data in tree.files.items():
            parent, _, last = name.rpartition("/")
            self._durable[nodes[parent]][last] = FileNode(data, [], data)
        self._volatile: Names = {node: dict(entries) for node, entries in self._durable.items()}
        self._log: list[NameChange] = []
        self._opened: dict[str, FileNode] = {}  # a descriptor follows its file when the name moves

    # What a workload does

    def apply(self, change: Change) -> None:
        """Take one change."""
        kind, name = change.kind, self._relative(change.path)
        if kind == "write":
            self._file(name).change(Piece(change.offset, change.data))
        elif kind == "truncate":
            file = self._file(name)
            if change.size > len(file.volatile):
                raise ValueError(f"{name}: a cut to {change.size} bytes of a file of {len(file.volatile)}")
            file.change(Piece(change.size, None))
        elif kind == "sync":
            self._file(name).sync()
        elif kind == FAILED_SYNC:
            self._file(name).give_up()
        elif kind == "sync-directory":
            self._sync_directory(name)
        elif kind == "create":
            self._opened[name] = FileNode()
            self._add(name, self._opened[name])
        elif kind == "mkdir":
            self._add(name, DirectoryNode())
        elif kind in ("unlink", "rmdir"):
            self._remove(name)
        elif kind == "rename":
            assert change.target is not None
            self._rename(name, self._relative(change.target))
        elif kind != "times":
            raise ValueError(f"unknown kind of change: {kind}")

    def _relative(self, path: Path) -> str:
        relative = os.path.relpath(path, self.root)
        if relative.startswith(".."):
            raise ValueError(f"{path}: outside {self.root}")
        return "" if relative == "." else relative

    def _lookup(self, name: str) -> Node | None:
        node: Node = self._top
        for part in name.split("/") if name else []:
            found = self._volatile.get(node, {}).get(part) if isinstance(node, DirectoryNode) else None
            if found is None:
                return None
            node = found
        return node

    def _file(self, name: str) -> FileNode:
        node = self._lookup(name) or self._opened.get(name)
        if not isinstance(node, FileNode):
            raise ValueError(f"{name}: no such file")
        self._opened[name] = node
        return node

    def _place(self, name: str) -> tuple[DirectoryNode, str]:
        parent, _, last = name.rpartition("/")
        node = self._lookup(parent)
        if not isinstance(node, DirectoryNode):
            raise ValueError(f"{name}: no directory {parent}")
        return node, last

    def _log_names(self, change: NameChange) -> None:
        change.apply(self._volatile)
        self._log.append(change)

    def _add(self, name: str, node: Node) -> None:
        directory, last = self._place(name)
        if last in self._volatile.get(directory, {}):
            raise ValueError(f"{name}: exists")
        self._log_names(NameChange(None, (directory, last, node), {directory}))

    def _remove(self, name: str) -> None:
        directory, last = self._place(name)
        node = self._lookup(name)
        if node is None:
            raise ValueError(f"{name}: no such file or directory")
        if isinstance(node, FileNode):
            self._opened[name] = node
        self._log_names(NameChange((directory, last), None, {directory}))

    def _rename(self, source: str, target: str) -> None:
        node = self._lookup(source)
        if node is None:
            raise ValueError(f"{source}: no such file or directory")
        if isinstance(node, FileNode):
            self._opened[source] = node
        old, new = self._place(source), self._place(target)
        if old[0] is new[0]:
            self._log_names(NameChange(old, (*new, node), {old[0]}))
        else:
            arrival = NameChange(None, (*new, node), {new[0]})
            self._log_names(arrival)
            self._log_names(NameChange(old, None, {old[0]}, arrival, isinstance(node, DirectoryNode)))

    def _sync_directory(self, name: str) -> None:
        directory = self._lookup(name)
        if not isinstance(directory, DirectoryNode):
            raise ValueError(f"{name}: no such directory")
        for change in self._log:
            change.unsynced.discard(directory)
        durable = [change for change in self._log if not change.unsynced]
        for change in self._log:
            if change.whole and change.needs in durable:
                change.unsynced.clear()
        while self._log and not self._log[0].unsynced:
            self._log.pop(0).apply(self._durable)

    # What a crash leaves

    def _tree(self, keep_name: Callable[[NameChange], bool], content: Callable[[FileNode], bytes]) -> Tree:
        names: Names = {node: dict(entries) for node, entries in self._durable.items()}
        lost: list[NameChange] = []
        for change in self._log:
            if not change.unsynced or (change.needs not in lost and (change.whole or keep_name(change))):
                change.apply(names)
            else:
                lost.append(change)
        files: dict[str, bytes] = {}
        directories: set[str] = set()
        waiting: list[tuple[str, DirectoryNode]] = [("", self._top)]
        while waiting:
            prefix, directory = waiting.pop()
            for name, node in names.get(directory, {}).items():
                if isinstance(node, DirectoryNode):
                    directories.add(prefix + name)
                    waiting.append((prefix + name + "/", node))
                else:
                    files[prefix + name] = content(node)
        return Tree(files, frozenset(directories))

    @property
    def settled(self) -> bool:
        """Whether nothing is left that a crash could lose."""
        return not any(change.unsynced for change in self._log) and not self._unsynced()

    def _unsynced(self) -> list[tuple[str, FileNode]]:
        found: dict[int, tuple[str, FileNode]] = {}
        waiting: list[tuple[str, DirectoryNode]] = [("", self._top)]
        while waiting:
            prefix, directory = waiting.pop()
            for name, node in self._volatile.get(directory, {}).items():
                if isinstance(node, DirectoryNode):
                    waiting.append((prefix + name + "/", node))
                elif node.pending:
                    found[id(node)] = (prefix + name, node)
        return sorted(found.values(), key=lambda item: item[0])

    def kept(self) -> Tree:
        """(a) Everything kept: the process died, the machine did not."""
        return self._tree(lambda _: True, lambda file: file.volatile)

    def dropped(self) -> Tree:
        """(b) Everything un-synced is lost, data and names."""
        return self._tree(lambda _: False, lambda file: file.durable)

    def crashes(self, loss: Loss, rng: random.Random) -> Iterator[tuple[str, Tree]]:
        """Every state that the loss models give at this moment, each with the name of its model."""
        yield "kept", self.kept()
        if self.settled:
            return
        yield "dropped", self.dropped()
        yield "dropped data", self._tree(lambda _: True, lambda file: file.durable)
        yield "dropped names", self._tree(lambda _: False, lambda file: file.volatile)
        yield "zeroed", self._tree(lambda _: True, FileNode.zeroed)
        yield from self._torn(loss)
        for _ in range(loss.random_states):
            yield "shuffled", self._shuffled(rng)

    def _torn(self, loss: Loss) -> Iterator[tuple[str, Tree]]:
        """(c) The last write of one file torn: the rest of it missing, or zero; other files as they are, or dropped."""
        for _, torn in self._unsynced():
            last = torn.pending[-1]
            if last.data is None:
                continue
            for boundary in loss.select(sector_boundaries(last.offset, len(last.data))):
                part = torn.torn(boundary)
                zero = part + bytes(len(torn.volatile) - len(part)) if len(part) < len(torn.volatile) else part
                for label, content in (("torn", part), ("torn, rest zero", zero)):
                    yield label, self._tree(lambda _: True, _one(torn, content, lambda file: file.volatile))
                yield "torn, others dropped", self._tree(lambda _: True, _one(torn, part, lambda file: file.durable))

    def _shuffled(self, rng: random.Random) -> Tree:
        """(e) Some un-synced sectors and names reached the disk, in no order."""
        keep = rng.choice((0.0, 0.5, 1.0))
        contents: dict[int, bytes] = {}

        def content(file: FileNode) -> bytes:
            if not file.pending:
                return file.volatile
            if id(file) not in contents:
                contents[id(file)] = file.shuffled(rng)
            return contents[id(file)]

        return self._tree(lambda _: rng.random() < keep, content)


def _one(torn: FileNode, content: bytes, others: Callable[[FileNode], bytes]) -> Callable[[FileNode], bytes]:
    return lambda file: content if file is torn else others(file)


@dataclass(frozen=True, slots=True)
class Loss:
    """How many states to look at: torn positions of one write (0: all) and random subsets for each moment.

    `turn`: how far on from the first and the last position, around in a circle.
    """

    torn_positions: int = 4
    random_states: int = 3
    turn: int = 0

    def select(self, boundaries: list[int]) -> list[int]:
        """First, last and evenly spread ones, each moved on by `turn`."""
        count = len(boundaries)
        if self.torn_positions == 0 or count <= self.torn_positions:
            return boundaries
        step = (count - 1) / max(1, self.torn_positions - 1)
        return sorted({boundaries[(round(i * step) + self.turn) % count] for i in range(self.torn_positions)})
