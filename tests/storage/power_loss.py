"""A storage directory with a commit journal, what was acknowledged in it, and what of it a power loss would leave."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.blocks import encoded_block
from tests.builders import build_directory, make_records
from waltzctl.engine.durable import disk
from waltzctl.engine.storage import commit_journal
from waltzctl.engine.storage.commit_journal import CommitJournal
from waltzctl.engine.storage.directory import StorageDirectory, StorageOptions
from waltzctl.engine.storage.journal_state import STATE_NAME
from waltzctl.formats.control import CONTROL_FILE_NAME, decode_control
from waltzctl.formats.segment import Record, segment_name

LOG = logging.getLogger("tests.journals")
BEFORE = 5
"""Records of each partition before anything is journaled."""


def small_areas(monkeypatch: pytest.MonkeyPatch) -> int:
    """Areas that are full soon; their size."""
    monkeypatch.setattr(commit_journal, "RESERVE", 4 * commit_journal.BLOCK)
    return 16 * commit_journal.BLOCK


class Journaled:
    """An open storage directory with a journal that has no thread.

    `acknowledged`: what every partition has to hold.  While it is open the segments' bytes are noted whenever they are synced:
    `after_power_loss` is a copy in which each segment has nothing else.
    """

    def __init__(
        self,
        place: Path,
        monkeypatch: pytest.MonkeyPatch,
        *,
        partitions: int = 3,
        area_size: int | None = None,
        **options: Any,
    ) -> None:
        self.path, self.file = place / "storage", place / "journal"
        self.area_size = area_size or small_areas(monkeypatch)
        self.acknowledged: dict[int, list[Record]] = {}
        self.durable: dict[Path, bytes] = {}
        build_directory(self.path, dict.fromkeys(range(partitions), BEFORE))
        monkeypatch.setattr(disk, "observer", self._observe)
        self.options = StorageOptions(**options)
        self.storage = StorageDirectory.open(self.path, options=self.options)
        for number, partition in self.storage.partitions.items():
            self.acknowledged[number] = partition.read_range(0, 100)
        self._note()
        self.journal: CommitJournal = self.begin()

    def begin(self) -> CommitJournal:
        self.journal = self.storage.begin_journal(self.file, log=LOG, area_size=self.area_size, threaded=False)
        return self.journal

    def _observe(self, change: disk.Change) -> None:
        if change.path.suffix == ".seg" and change.kind in ("sync", "rename"):
            self._note(Path(change.target or change.path))

    def _note(self, *paths: Path) -> None:
        for path in paths or self.path.glob("*/*.seg"):
            if path.exists():
                self.durable[path] = path.read_bytes()

    def records(self, partition: int, count: int, size: int | None = None) -> list[Record]:
        first = len(self.acknowledged[partition])
        return make_records(count, first=first, partition=partition, size=size, seed=first)

    def commit(self, counts: Mapping[int, int], size: int | None = 30) -> bool:
        """One pass: so many records into each partition; whether it was the journal that made them durable."""
        made = {number: self.records(number, count, size) for number, count in counts.items()}
        appends = {}
        for number, records in made.items():
            append = self.storage.partition(number).write_blocks([encoded_block(records, 1)])
            assert append is not None, "a checkpoint, or the end of a segment"
            appends[number] = append
        done = self.journal.commit([append.to_journal for append in appends.values()])
        for number, append in appends.items():
            if done:
                append.journaled()
            else:
                append.file.sync()
            self.storage.partition(number).finish_append(append, None)
            self.acknowledged[number] += made[number]
        return done

    def append(self, partition: int, count: int, size: int | None = 30) -> None:
        """As a partition appends by itself."""
        records = self.records(partition, count, size)
        self.storage.partition(partition).append(records)
        self.acknowledged[partition] += records

    def truncate(self, partition: int, after: int) -> None:
        self.storage.partition(partition).truncate(after)
        del self.acknowledged[partition][after + 1 :]

    @property
    def marked(self) -> bool:
        return is_marked(self.path)

    def after_power_loss(self, place: Path) -> Path:
        """A copy as it would be found; the journal, which is durable, is where it was."""
        copy = place / "after"
        shutil.copytree(self.path, copy)
        for path in copy.glob("*/*.seg"):
            path.write_bytes(self.durable[self.path / path.relative_to(copy)])
        state = copy / disk.STATE_DIRECTORY / STATE_NAME
        journal = place / "journal-after"
        if state.exists():
            shutil.copy(self.file, journal)
            state.write_text(state.read_text().replace(str(self.file), str(journal)))
        return copy

    def held(self, path: Path | None = None) -> dict[int, list[Record]]:
        """What is in the directory, or in a copy, when it is opened."""
        if path is None:
            return {n: one.read_range(0, 10_000) for n, one in self.storage.partitions.items()}
        with StorageDirectory.open(path, options=self.options) as storage:
            assert not any(one.quarantined for one in storage.partitions.values()), storage.findings
            return {n: one.read_range(0, 10_000) for n, one in storage.partitions.items()}

    def close(self) -> None:
        self.storage.close()


def is_marked(path: Path) -> bool:
    """Whether a control file says that a journal is wanted."""
    return decode_control((path / CONTROL_FILE_NAME).read_bytes()).header.journaled


def segment(path: Path, partition: int, first: int = 0) -> Path:
    return path / str(partition) / segment_name(first)


def failing(
    monkeypatch: pytest.MonkeyPatch, name: str, path: Path, *, times: int = 10**6, code: int = errno.EIO
) -> None:
    """A system call fails for a file, so many times."""
    real, left = getattr(os, name), [times]

    def call(descriptor: int, *arguments: object) -> object:
        if left[0] and Path(f"/proc/self/fd/{descriptor}").readlink() == path:
            left[0] -= 1
            raise OSError(code, os.strerror(code))
        return real(descriptor, *arguments)

    monkeypatch.setattr(os, name, call)
