"""Backups measured beside restic and borg, on the same directory, in the same run, in turn.

    python benchmarks/backup.py [--size MIB] [--record BYTES] [--rounds N] [--encrypt] [--json] [--directory DIR]

Rows: the first backup, one of the unchanged directory, one after it grew by a hundredth, one of a second replica with the same
transactions in other segments, a restore, the same until it is on the disk (ours is then, and verified; the others leave that
to the system), a verification of everything, forgetting all but the last with giving room back, and what the repository takes
after the second replica (MiB).  Who begins changes from row to row, and what was written before is on the disk before each.
Seconds, medians of the rounds; `ratio`: of the faster (smaller) of the other two to ours, above 1 where ours is ahead.  Data is
text of hexadecimal digits, which compresses to about half.

restic and borg are used as they come (compression "auto" and zstd,3; both encrypt, restic cannot do otherwise).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from generated import CREATED, KEY, workplace

from waltzctl.formats.checksums import crc32
from waltzctl.formats.control import CONTROL_FILE_NAME, FLAG_ASSIGNED, FLAG_AVAILABLE, Layout, initial_control
from waltzctl.formats.segment import (
    CHECKSUM,
    HEADER_SIZE,
    RECORD_HEADER,
    SegmentHeader,
    encode_offsets,
    index_name,
    segment_name,
)

ROWS = (
    "first",
    "unchanged",
    "grown by 1 %",
    "second replica",
    "restore",
    "restore, on disk",
    "verify",
    "forget and prune",
    "size MiB",
)


def write_log(path: Path, count: int, length: int, per_segment: int) -> None:
    """A storage directory of one partition; the same `count` records whatever `per_segment` is."""
    (path / "0").mkdir(parents=True)
    control = initial_control(Layout.RELEASED, KEY, 1, CREATED)
    info = control.partitions[0]
    info = info.with_struct(*info.updated(flags=FLAG_AVAILABLE | FLAG_ASSIGNED))
    (path / CONTROL_FILE_NAME).write_bytes(replace(control, partitions=(info,)).encode())
    for first in range(0, count, per_segment):
        write_segment(path / "0", first, min(per_segment, count - first), length)


def write_segment(directory: Path, first: int, count: int, length: int) -> None:
    """Records whose data depends on their ids alone."""
    import numpy as np

    header = SegmentHeader(0, CREATED, KEY, 0, first).encode()
    pack, seal = RECORD_HEADER.struct.pack, CHECKSUM.struct.pack
    offsets, at = [], HEADER_SIZE
    with (directory / segment_name(first)).open("wb", buffering=4 << 20) as out:
        out.write(header)
        for number in range(first, first + count):
            data = random.Random(number).randbytes(length // 2).hex().encode()
            head = pack(number, 7, 1, 0, number & 0x7FFFFFFF, number & 0xFF, len(data), crc32(data))
            out.write(head)
            out.write(data)
            out.write(seal(crc32(data, crc32(head))))
            offsets.append(at)
            at += len(head) + len(data) + CHECKSUM.size
    (directory / index_name(first)).write_bytes(header + encode_offsets(np.array(offsets, np.int64)))


class Tool:
    """Something that makes backups, as commands: each is one process or several in a row."""

    name = ""

    def __init__(self, place: Path, *, encrypt: bool) -> None:
        self.place, self.encrypt = place, encrypt
        self.environment = {**os.environ}

    def run(self, *words: str | Path, cwd: Path | None = None) -> None:
        subprocess.run(
            [str(word) for word in words], env=self.environment, cwd=cwd, check=True, stdout=subprocess.DEVNULL
        )

    def init(self) -> None: ...
    def create(self, source: Path) -> None: ...
    def restore(self, target: Path) -> None: ...
    def verify(self) -> None: ...
    def prune(self) -> None: ...


class Ours(Tool):
    name = "waltzctl"

    def _do(self, *words: str | Path) -> None:
        self.run(sys.executable, "-m", "waltzctl", "backup", words[0], self.place, *words[1:])

    def init(self) -> None:
        more: list[str | Path] = []
        if self.encrypt:
            password = self.place.with_suffix(".password")
            password.write_text("secret\n")
            self.environment["WALTZCTL_VAULT_PASSWORD_FILE"] = str(password)
            more = ["--encrypt"]
        self._do("init", *more)

    def create(self, source: Path) -> None:
        self._do("create", source)

    def restore(self, target: Path) -> None:
        self._do("restore", "latest", "--to", target)

    def verify(self) -> None:
        self._do("verify")

    def prune(self) -> None:
        self._do("forget", "--keep-last", "1", "--prune", "--yes")


class Restic(Tool):
    name = "restic"

    def _do(self, *words: str | Path) -> None:
        self.run("restic", "--no-cache", "-q", "-r", self.place, *words)

    def init(self) -> None:
        self.environment["RESTIC_PASSWORD"] = "secret"
        self._do("init")

    def create(self, source: Path) -> None:
        self._do("backup", source)

    def restore(self, target: Path) -> None:
        self._do("restore", "latest", "--target", target)

    def verify(self) -> None:
        self._do("check", "--read-data")

    def prune(self) -> None:
        self._do("forget", "--keep-last", "1", "--group-by", "", "--prune")


class Borg(Tool):
    name = "borg"

    def init(self) -> None:
        self.environment |= {
            "BORG_PASSPHRASE": "secret", "BORG_BASE_DIR": str(self.place.with_suffix(".home")),
            "BORG_RELOCATED_REPO_ACCESS_IS_OK": "yes",
        }  # fmt: skip
        self.run("borg", "init", "--encryption", "repokey-blake2" if self.encrypt else "none", self.place)
        self._number = 0

    def create(self, source: Path) -> None:
        self._number += 1
        self.run("borg", "create", "--compression", "zstd,3", f"{self.place}::b{self._number}", source)

    def restore(self, target: Path) -> None:
        target.mkdir()
        self.run("borg", "extract", f"{self.place}::b{self._number}", cwd=target)

    def verify(self) -> None:
        self.run("borg", "check", "--verify-data", self.place)

    def prune(self) -> None:
        self.run("borg", "prune", "--keep-last", "1", self.place)
        self.run("borg", "compact", self.place)


def timed(act: Callable[[], None]) -> float:
    """Seconds."""
    os.sync()
    began = time.monotonic()
    act()
    return time.monotonic() - began


def one_round(
    place: Path, tools: list[type[Tool]], count: int, length: int, *, number: int, encrypt: bool
) -> dict[str, dict[str, float]]:
    """Every row with every tool, one tool after the other within a row: another one is the first in each row and round."""
    segment = max(1, (64 << 20) // (length + 40))
    source, replica = place / "source", place / "replica"
    write_log(source, count, length, segment)
    write_log(replica, count + count // 100, length, segment * 3 // 4)
    for path in (*source.rglob("*"), *replica.rglob("*")):
        os.utime(path, (CREATED / 1000, CREATED / 1000))
    used = [kind(place / kind.name, encrypt=encrypt) for kind in tools]
    for one in used:
        one.init()
    found: dict[str, dict[str, float]] = {row: {} for row in ROWS}

    def row(name: str, act: Callable[[Tool], None]) -> None:
        first = (ROWS.index(name) + number) % len(used)
        for one in (*used[first:], *used[:first]):
            found[name][one.name] = timed(lambda one=one: act(one))  # type: ignore[misc]

    row("first", lambda one: one.create(source))
    row("unchanged", lambda one: one.create(source))
    last = (count - 1) // segment * segment
    write_segment(source / "0", last, count + count // 100 - last, length)
    row("grown by 1 %", lambda one: one.create(source))
    row("second replica", lambda one: one.create(replica))
    for one in used:
        sizes = [path.stat().st_size for path in one.place.rglob("*") if path.is_file()]
        found["size MiB"][one.name] = sum(sizes) / (1 << 20)
    row("restore", lambda one: one.restore(place / f"restored-{one.name}"))
    for one in used:
        shutil.rmtree(place / f"restored-{one.name}")

    def restore_and_sync(one: Tool) -> None:
        one.restore(place / f"restored-{one.name}")
        os.sync()

    row("restore, on disk", restore_and_sync)
    row("verify", lambda one: one.verify())
    row("forget and prune", lambda one: one.prune())
    shutil.rmtree(place)
    place.mkdir()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=2048, metavar="MIB")
    parser.add_argument("--record", type=int, default=1000, metavar="BYTES")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--encrypt", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--directory", type=Path)
    given = parser.parse_args()
    tools = [Ours, *(kind for kind in (Restic, Borg) if shutil.which(kind.name))]
    count = (given.size << 20) // (given.record + 40)
    with workplace(given.directory, (given.size << 20) * 8) as place:
        rounds = [
            one_round(place / "round", tools, count, given.record, number=number, encrypt=given.encrypt)
            for number in range(given.rounds)
            if (place / "round").mkdir(exist_ok=True) is None
        ]
    names = [kind.name for kind in tools]
    table = {}
    for row in ROWS:
        table[row] = {name: statistics.median(one[row][name] for one in rounds) for name in names}
        others = [table[row][name] for name in names[1:]]
        if others:
            table[row]["ratio"] = min(others) / table[row]["waltzctl"]
    if given.json:
        print(json.dumps(table))
        return
    columns = [*names, *(["ratio"] if len(names) > 1 else [])]
    print(f"{'':<18}" + "".join(f"{name:>10}" for name in columns))
    for row, values in table.items():
        print(f"{row:<18}" + "".join(f"{values[name]:>10.2f}" for name in columns))


if __name__ == "__main__":
    main()
