"""Storage directories with a commit journal in force: held by this process, or as a crash left them."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.blocks import encoded_block
from tests.builders import build_directory, make_records
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.engine.storage.journal_state import state_path
from waltzctl.formats.control import Layout, decode_control
from waltzctl.formats.segment import Record

COUNT = 30
"""Records of partitions 0 and 1 that stand in their segments durably; partition 0 has `JOURNALED` more."""
JOURNALED = 5
SIZE = 20
RECORD = SIZE + 40


@contextlib.contextmanager
def journaling(root: Path, journal: Path) -> Iterator[StorageDirectory]:
    """A directory that this process holds, its journal in force."""
    with StorageDirectory.open(root) as storage:
        storage.begin_journal(journal, log=logging.getLogger("tests"), area_size=1 << 20, threaded=False)
        yield storage


def append_journaled(storage: StorageDirectory, partition: int, records: Sequence[Record]) -> None:
    """Records that are durable in the journal only."""
    assert storage.journal is not None
    append = storage.partition(partition).write_blocks([encoded_block(records)])
    assert append is not None
    assert storage.journal.commit([append.to_journal])
    append.journaled()
    storage.partition(partition).finish_append(append, None)


@dataclass(frozen=True)
class Marked:
    """A directory as a crash left it: nobody holds it, and five records of partition 0 were acknowledged by the journal."""

    root: Path
    journal: Path
    records: Sequence[Record]

    @property
    def control(self) -> Path:
        return self.root / "waltz-storage.ctl"

    @property
    def state(self) -> Path:
        return Path(state_path(self.root))

    @property
    def marked(self) -> bool:
        return decode_control(self.control.read_bytes()).header.journaled

    def ids(self) -> list[int]:
        """What partition 0 holds once the directory was opened."""
        with StorageDirectory.open(self.root) as storage:
            return [one.transaction_id for one in storage.partition(0).read_range(0, 100)]

    def last_segment(self, suffix: str = ".seg") -> Path:
        return sorted((self.root / "0").glob(f"*{suffix}"))[-1]


def crashed(path: Path, layout: Layout = Layout.RELEASED, *, power: bool = False) -> Marked:
    """Below `path`.  `power`: the machine lost power, and the segment lacks what only the journal was flushed for."""
    records = make_records(JOURNALED, first=COUNT, size=SIZE, seed=3)
    held = build_directory(path / "held", {0: COUNT, 1: COUNT}, layout=layout, per_segment=COUNT, size=SIZE)
    root, journal, kept = path / "s", path / "device" / "journal", path / "device" / "kept"
    journal.parent.mkdir()
    with journaling(held, journal) as storage:
        sizes = {one.name: one.stat().st_size for one in (held / "0").iterdir()}
        append_journaled(storage, 0, records)
        shutil.copytree(held, root)
        shutil.copy2(journal, kept)
    shutil.rmtree(held)
    kept.rename(journal)  # closing removes it
    if power:
        for name, size in sizes.items():
            with (root / "0" / name).open("r+b") as file:
                file.truncate(size)
    return Marked(root, journal, records)
