"""Small trees of files, random edits of them, and what a tree looks like, for the tests of the quarantine."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from waltzctl.engine.durable import disk
from waltzctl.engine.durable.disk import Change
from waltzctl.engine.durable.edits import Cut, Edit, Overwrite, Remove, Replace
from waltzctl.formats.control import CONTROL_HEADER

Snapshot = dict[str, tuple[int, str, int]]


def snapshot(root: Path) -> Snapshot:
    """Size, SHA-256 and mtime of every file outside our own state, and the directories (size -1)."""
    found: Snapshot = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if name.split("/")[0] == disk.STATE_DIRECTORY:
            continue
        if path.is_dir():
            found[name] = (-1, "", 0)
        else:
            data = path.read_bytes()
            found[name] = (len(data), hashlib.sha256(data).hexdigest(), path.stat().st_mtime_ns)
    return found


def contents(root: Path) -> dict[str, tuple[int, str]]:
    return {name: (size, digest) for name, (size, digest, _) in snapshot(root).items()}


def make_tree(root: Path, source: random.Random) -> Path:
    root.mkdir()
    control, place = bytearray(source.randbytes(280)), CONTROL_HEADER.offset_of("num_partitions")
    control[place : place + 4] = (7).to_bytes(4, "big")  # or by chance it says that a commit journal is in force
    (root / "waltz-storage.ctl").write_bytes(control)
    for partition in range(2):
        (root / str(partition)).mkdir()
        for name in range(source.randrange(1, 5)):
            path = root / str(partition) / f"{name}.seg"
            path.write_bytes(source.randbytes(source.choice([0, 1, 128, 700, 5000])))
            disk.set_times(path, source.randrange(10**18, 2 * 10**18))
    return root


def random_edits(root: Path, source: random.Random) -> list[Edit]:
    """Edits of a random choice of files: in place (several of one file), replaced, removed, created."""
    edits: list[Edit] = []
    for path in sorted(root.rglob("*.seg")):
        size = path.stat().st_size
        kind = source.choice(["none", "cut", "overwrite", "extend", "both", "replace", "remove"])
        if kind == "cut":
            edits.append(Cut(path, source.randint(0, size)))
        elif kind == "overwrite" and size > 4:
            half = size // 2
            edits.append(Overwrite(path, half, source.randbytes(source.randint(1, size - half))))
            edits.append(Overwrite(path, 0, source.randbytes(source.randint(1, half))))
        elif kind == "extend":
            edits.append(Overwrite(path, source.randint(0, size), source.randbytes(source.randint(1, 900))))
        elif kind == "both" and size > 4:
            edits.append(Cut(path, size - 2))
            edits.append(Overwrite(path, 1, source.randbytes(source.randint(1, size - 3))))
        elif kind == "replace":
            edits.append(Replace(path, _parts(source.randbytes(source.randrange(900)))))
        elif kind == "remove":
            edits.append(Remove(path))
    if source.random() < 0.7:
        edits.append(Replace(root / "0" / "created.seg", _parts(source.randbytes(300))))
    if source.random() < 0.5:
        edits.append(Replace(root / "7" / "created.seg", _parts(source.randbytes(300))))
    source.shuffle(edits)
    return edits or [Replace(root / "0" / "created.seg", _parts(b"x"))]


class _Parts:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def __call__(self) -> list[bytes]:
        return [self.data[:100], self.data[100:]]


_parts = _Parts


def expected(before: dict[str, bytes], root: Path, edits: list[Edit]) -> dict[str, bytes]:
    """What the edits make of the files, computed the plain way."""
    files = {name: bytearray(data) for name, data in before.items()}
    for edit in sorted(edits, key=lambda edit: isinstance(edit, Cut)):
        name = edit.path.relative_to(root).as_posix()
        if isinstance(edit, Cut):
            del files[name][edit.size :]
        elif isinstance(edit, Overwrite):
            files[name][edit.offset : edit.offset + len(edit.data)] = edit.data
        elif isinstance(edit, Replace):
            files[name] = bytearray(b"".join(edit.parts()))
        else:
            del files[name]
    return {name: bytes(data) for name, data in files.items()}


def plain(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and disk.STATE_DIRECTORY not in path.parts
    }


class Crash(BaseException):
    """The process ends here; no handler of the engine may take it for an error it can mend."""


@contextmanager
def crashing_at(change: int) -> Iterator[list[Change]]:
    """Let the `change`-th change of the disk be the last (0: the first one); the list collects them."""
    seen: list[Change] = []

    def observe(one: Change) -> None:
        seen.append(one)
        if len(seen) > change:
            raise Crash

    disk.observer = observe
    try:
        yield seen
    finally:
        disk.observer = None


@contextmanager
def crashing_when(last: Callable[[Change], bool]) -> Iterator[None]:
    """Let the first change of which `last` is true be the last one."""

    def observe(one: Change) -> None:
        if last(one):
            disk.observer = crashed
            raise Crash

    def crashed(_: Change) -> None:
        raise Crash

    disk.observer = observe
    try:
        yield
    finally:
        disk.observer = None


@contextmanager
def recording() -> Iterator[list[Change]]:
    with crashing_at(10**9) as seen:
        yield seen
