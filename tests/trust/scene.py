"""A small storage directory in memory, whose history is known, and what is needed to damage it.

A tree is a mapping from relative name to bytes, or to a `Special` for what is no regular file; a directory is listed when it is
empty or named by itself.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tests.trust import layout
from tests.trust.layout import ASSIGNED, AVAILABLE, DOCUMENTED, RELEASED, Pair, Transaction

OURS = ".waltzctl"


@dataclass(frozen=True)
class Special:
    """What is no regular file: a directory, fifo, socket, or link to `target`."""

    kind: str
    target: str = ""


Node = bytes | Special
Tree = dict[str, Node]


class NotHereError(Exception):
    """An injury that this scene has no place for; another one is drawn."""


def plant(tree: Mapping[str, Node], root: Path) -> Path:
    """Write a tree to a new directory."""
    root.mkdir(parents=True)
    for name, node in sorted(tree.items()):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(node, bytes):
            path.write_bytes(node)
        elif node.kind == "directory":
            path.mkdir(exist_ok=True)
        elif node.kind == "fifo":
            os.mkfifo(path)
        elif node.kind == "link":
            path.symlink_to(node.target)
        else:
            _socket(path)
    return root


def _socket(path: Path) -> None:
    """A socket's name may have no more than 107 bytes: it is made by a short one."""
    here = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(f"/proc/self/fd/{here}/{path.name}")
    finally:
        os.close(here)


def read_tree(root: Path, *, ours: bool = False) -> Tree:
    """What lies below a directory, without our own state unless `ours`."""
    found: Tree = {}
    waiting = [""]
    while waiting:
        prefix = waiting.pop()
        for entry in os.scandir(root / prefix):
            name = prefix + entry.name
            mode = entry.stat(follow_symlinks=False).st_mode
            if name == OURS and not ours:
                continue
            if stat.S_ISREG(mode):
                found[name] = Path(entry.path).read_bytes()
            elif stat.S_ISDIR(mode):
                found[name] = Special("directory")
                waiting.append(name + "/")
            elif stat.S_ISLNK(mode):
                found[name] = Special("link", os.readlink(entry.path))
            else:
                found[name] = Special("fifo" if stat.S_ISFIFO(mode) else "socket")
    return found


def differences(first: Mapping[str, Node], second: Mapping[str, Node]) -> list[str]:
    """Names that are not the same in both trees, with what stands there."""
    return [
        f"{name}: {_shown(first.get(name))}, then {_shown(second.get(name))}"
        for name in sorted({*first, *second})
        if first.get(name) != second.get(name)
    ]


def _shown(node: Node | None) -> str:
    return "nothing" if node is None else node.kind if isinstance(node, Special) else f"{len(node)} bytes"


@dataclass(frozen=True)
class Log:
    """A partition's true history: its encoded records by id, where its segments begin, and its place in the control file."""

    number: int
    records: tuple[bytes, ...]
    firsts: tuple[int, ...]
    pair: Pair
    kept: bool = True  # whether it has a directory

    def end(self, first: int) -> int:
        """The id behind a segment's last one."""
        place = self.firsts.index(first)
        return self.firsts[place + 1] if place + 1 < len(self.firsts) else len(self.records)

    @property
    def mark(self) -> int:
        """Its local low-water mark."""
        return self.pair.structs[self.pair.current].local

    @property
    def session(self) -> int:
        """Its last session, -1 before the first."""
        return self.pair.structs[self.pair.current].session


@dataclass(frozen=True)
class Cluster:
    """A sound storage directory of one node."""

    layout: str
    key: bytes
    logs: tuple[Log, ...]
    created: int = layout.CREATED

    def files(self) -> Tree:
        """Its tree."""
        tree: Tree = {layout.CONTROL: layout.control(self.layout, self.key, [log.pair for log in self.logs])}
        for log in self.logs:
            if not log.kept:
                continue
            for first in log.firsts:
                part = log.records[first : log.end(first)]
                data, index = layout.segment(self.key, log.number, first, part, self.created)
                tree[layout.name(log.number, first)] = data
                tree[layout.name(log.number, first, ".idx")] = index
        return tree


@dataclass(frozen=True)
class Segment:
    """A sound segment of the scene: ids `first` to `end` - 1; `offsets` of its records and of what is behind them."""

    partition: int
    first: int
    end: int
    last: bool
    data: str
    index: str
    offsets: tuple[int, ...]

    @property
    def count(self) -> int:
        return self.end - self.first


@dataclass
class Scene:
    """A directory that is being damaged.

    `files` is its tree, with our own state; `truth` every record that was ever acknowledged or written in a partition; `given_up`
    ids that an operator has given up with --allow-data-loss.  `undone`: what taking everything back may give beside `files`,
    where a repair was killed.  `focus` is where the injury before struck: the next one often strikes there too.
    """

    rng: random.Random
    cluster: Cluster
    sister: Cluster
    replica: Cluster
    files: Tree
    truth: dict[int, dict[int, bytes]]
    given_up: dict[int, set[int]] = field(default_factory=dict)
    undone: Tree | None = None
    special: bool = False
    focus: tuple[int, int] | None = None
    told: list[str] = field(default_factory=list)

    @cached_property
    def sound(self) -> Tree:
        """The directory before the first injury."""
        return self.cluster.files()

    def segments(self) -> list[Segment]:
        """Of the partitions that have a directory."""
        return self._segments

    @cached_property
    def _segments(self) -> list[Segment]:
        found = []
        for log in self.cluster.logs:
            for first in log.firsts if log.kept else ():
                end = log.end(first)
                records = log.records[first:end]
                places = layout.offsets(records)
                places.append(layout.HEADER_SIZE + sum(map(len, records)))
                names = layout.name(log.number, first), layout.name(log.number, first, ".idx")
                found.append(Segment(log.number, first, end, first == log.firsts[-1], *names, tuple(places)))
        return found

    def segment(self, suits: Callable[[Segment], bool] = lambda _: True, *, records: int = 0) -> Segment:
        """One whose data file is there in its full length, with at least so many records; often that of the injury before."""
        sound = self.sound
        found = [
            one
            for one in self.segments()
            if one.count >= records
            and isinstance(data := self.files.get(one.data), bytes)
            and len(data) == len(sound[one.data])  # type: ignore[arg-type]  # a sound tree has bytes only
            and suits(one)
        ]
        return self._chosen(found)

    def any_segment(self, suits: Callable[[Segment], bool] = lambda _: True) -> Segment:
        """One whose data or index file is there in some form."""
        return self._chosen(
            [one for one in self.segments() if (one.data in self.files or one.index in self.files) and suits(one)]
        )

    def _chosen(self, found: Sequence[Segment]) -> Segment:
        if not found:
            raise NotHereError
        near = [one for one in found if (one.partition, one.first) == self.focus]
        beside = [one for one in found if self.focus is not None and one.partition == self.focus[0]]
        roll = self.rng.random()
        pool = near if near and roll < 0.4 else beside if beside and roll < 0.7 else found
        one = self.rng.choice(pool)
        self.focus = one.partition, one.first
        return one

    def record(self, segment: Segment, *, inner: bool = False) -> int:
        """An id of a segment; `inner`: with records in front of it and behind it."""
        low, high = (segment.first + 1, segment.end - 2) if inner else (segment.first, segment.end - 1)
        if high < low:
            raise NotHereError
        return self.rng.randint(low, high)

    def span(self, segment: Segment, number: int) -> tuple[int, int]:
        """First byte of a record, and the one behind it."""
        return segment.offsets[number - segment.first], segment.offsets[number - segment.first + 1]

    def log(self, partition: int) -> Log:
        return self.cluster.logs[partition]

    def read(self, name: str) -> bytes:
        """A regular file of the scene."""
        node = self.files.get(name)
        if not isinstance(node, bytes):
            raise NotHereError
        return node

    def patch(self, name: str, offset: int, data: bytes) -> None:
        """Overwrite bytes of a file; never extends it."""
        old = self.read(name)
        if offset + len(data) > len(old):
            raise NotHereError
        self.files[name] = old[:offset] + data + old[offset + len(data) :]

    def flip(self, name: str, offset: int) -> None:
        """Flip one bit of the byte at an offset."""
        old = self.read(name)
        if offset >= len(old):
            raise NotHereError
        self.patch(name, offset, bytes([old[offset] ^ (1 << self.rng.randrange(8))]))

    def remove(self, *names: str) -> None:
        """Remove files that are there."""
        for one in names:
            if one not in self.files:
                raise NotHereError
            del self.files[one]

    def remove_directory(self, partition: int) -> None:
        """Remove a partition with all that is in it."""
        inside = [one for one in self.files if one.split("/")[0] == str(partition)]
        if not inside:
            raise NotHereError
        for one in inside:
            del self.files[one]


def _data(rng: random.Random, partition: int, number: int) -> bytes:
    size = rng.choice((0, 1, 7, 20, 20, 60, 60, 200))
    if rng.random() < 0.02:
        size = rng.randrange(400, 5000)
    return rng.randbytes(size)


def _log(rng: random.Random, style: str, number: int, *, crafted: bool, kept: bool = True) -> Log:
    roll = rng.random()
    count = 0 if roll < 0.06 else rng.randrange(1, 4) if roll < 0.15 else rng.randrange(4, 45)
    long = rng.random() < 0.05
    if long:
        count = rng.choice((995, 1000, 1001, 1010, 1200))
    records = []
    for place in range(count):
        data = b"%d" % place if long else _data(rng, number, place)
        if crafted and rng.random() < 0.1:  # a record whose data is a record: the search behind damage will meet it
            inner = Transaction(place + rng.randrange(3), (8, 1, number, place), 0, b"a record within a record")
            data = inner.encode() + data
        request = (rng.randrange(1, 9), rng.randrange(1, 4), number, place)
        records.append(Transaction(place, request, rng.randrange(-(2**31), 2**31), data).encode())
    cuts = sorted(rng.sample(range(1, count), min(count - 1, rng.randrange(0, 5)))) if count > 1 else []
    firsts = [0, *cuts]
    if count and rng.random() < 0.08:
        firsts.append(count)  # an empty segment at the end: rolled over, nothing written yet
    pair = Pair()
    if style == RELEASED and kept:
        pair = pair.updated(flags=AVAILABLE | ASSIGNED)
    last = count - 1
    near = [first - 1 for first in firsts] + [last, last, max(last - 1, -1), last // 2]
    marks = sorted(rng.choice(near) for _ in range(rng.randrange(0, 3))) if kept else []
    session = 0
    for mark in marks:
        session += rng.randrange(1, 4)
        pair = pair.updated(session=session, low=mark, local=mark)
    return Log(number, tuple(records), tuple(firsts), pair, kept)


def resegmented(rng: random.Random, cluster: Cluster) -> Cluster:
    """The same records and marks on another node: other segments, other times."""
    logs = []
    for log in cluster.logs:
        count = len(log.records)
        cuts = sorted(rng.sample(range(1, count), min(count - 1, rng.randrange(0, 4)))) if count > 1 else []
        firsts = log.firsts if rng.random() < 0.4 else (0, *cuts)
        logs.append(Log(log.number, log.records, firsts, log.pair, log.kept))
    return Cluster(cluster.layout, cluster.key, tuple(logs), cluster.created + 777)


def draw_scene(rng: random.Random) -> Scene:
    """A sound directory, a replica of it, and the directory of another cluster."""
    style = rng.choice((RELEASED, DOCUMENTED))
    count = rng.randrange(2, 5)
    crafted = rng.random() < 0.1
    absent = rng.randrange(count) if rng.random() < 0.12 else None
    logs = tuple(_log(rng, style, number, crafted=crafted, kept=number != absent) for number in range(count))
    cluster = Cluster(style, rng.randbytes(16), logs)
    others = []
    for log in logs:  # the other cluster has segments of the same names, filled with other records
        records = tuple(
            Transaction(place, (99, 1, log.number, place), 0, rng.randbytes(rng.randrange(30))).encode()
            for place in range(len(log.records))
        )
        others.append(Log(log.number, records, log.firsts, log.pair, log.kept))
    sister = Cluster(style, rng.randbytes(16), tuple(others), cluster.created + 5)
    truth = {log.number: dict(enumerate(log.records)) if log.kept else {} for log in logs}
    scene = Scene(rng, cluster, sister, resegmented(rng, cluster), {}, truth)
    scene.files = dict(scene.sound)
    return scene


def clear(path: Path) -> None:
    """Remove what `plant` made."""
    shutil.rmtree(path, ignore_errors=True)
