"""Drives an open storage directory and writes down beside every change what was promised."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tests.blocks import encoded_block
from tests.builders import build_directory, make_records
from tests.crash.recorder import Recorder, Recording
from tests.crash.truth import PartitionTruth, Truth
from waltzctl.engine.durable import disk
from waltzctl.engine.durable.flusher import Flusher
from waltzctl.engine.errors import DiskWriteError, SyncFailedError
from waltzctl.engine.node.commit_passes import CommitPasses
from waltzctl.engine.storage import commit_journal, journal_creation
from waltzctl.engine.storage.directory import StorageDirectory, StorageOptions
from waltzctl.engine.storage.fences import SessionFences
from waltzctl.engine.storage.partition import UnsyncedAppend
from waltzctl.formats.control import Layout
from waltzctl.formats.segment import Record

_LOG = logging.getLogger("waltzctl.test")
STRADDLING = {Layout.DOCUMENTED: 6, Layout.RELEASED: 11}
"""A partition one of whose structs crosses a sector of the control file, so that an update of it can tear."""
_AREA_SIZE = 8 * commit_journal.BLOCK
JOURNAL = f"{disk.STATE_DIRECTORY}/commit-journal"


@contextmanager
def small_journals() -> Iterator[None]:
    """Commit journals whose areas are full after five small passes, and which are the same in every run.

    The owner is as well, for a crash state is laid out under another path than the one where it was recorded.
    """
    made = 0

    def next_id() -> uuid.UUID:
        nonlocal made
        made += 1
        return uuid.UUID(int=made)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit_journal, "RESERVE", 2 * commit_journal.BLOCK)
        patch.setattr(commit_journal, "_FORGET_TIMEOUT", 0.0)
        for module in (commit_journal, journal_creation):
            patch.setattr(module, "owner_of", lambda storage: uuid.UUID(int=77))
        patch.setattr(journal_creation.uuid, "uuid4", next_id)
        yield


def begin_small_journal(storage: StorageDirectory, place: str = JOURNAL) -> commit_journal.CommitJournal:
    """Within `small_journals`: a journal without a thread, at a place inside the directory, or at an absolute one."""
    return storage.begin_journal(storage.path / place, log=_LOG, area_size=_AREA_SIZE, threaded=False)


def make_durable(
    journal: commit_journal.CommitJournal | None, appends: list[UnsyncedAppend]
) -> list[SyncFailedError | None]:
    """As a pass of a node does."""
    none = cast("Any", None)
    return CommitPasses(none, Flusher(log=_LOG, threads=0), shared=none, journal=journal)._make_durable(appends)


def built(
    path: Path, layout: Layout, records: int, *, per_segment: int = 10, size: int | None = None, mark: int | None = None
) -> tuple[Path, Truth]:
    """A directory with `records` in the partition that straddles a sector, and what is true of it.

    Without a `mark` (the low-water marks; the middle of the records unless given) there is an empty partition 0 as well.
    """
    number = STRADDLING[layout]
    partitions = {number: records} if mark is not None else {0: 0, number: records}
    build_directory(
        path, partitions, layout=layout, per_segment=per_segment, size=size, session=3, local_low_water_mark=mark
    )
    if mark is None:
        mark = (records - 1) // 2 if records > 1 else records - 1
    full = PartitionTruth(marks=frozenset({(3, mark, mark)})).holding(
        make_records(records, partition=number, size=size)
    )
    truths = {number: full}
    if 0 in partitions:
        truths[0] = PartitionTruth(marks=frozenset({(3, -1, -1)}))
    return path, Truth(truths)


class Driver:
    """An open storage directory whose every operation promises before, and again when it returns."""

    def __init__(self, recorder: Recorder[Truth], path: Path, options: StorageOptions, truth: Truth) -> None:
        self._recorder = recorder
        self._path, self._options = path, options
        self.truth = truth
        self.storage = StorageDirectory.open(path, options=options)
        self.fences = SessionFences.open(path, self.storage.num_partitions)

    def close(self) -> None:
        """Close everything."""
        self.fences.close()
        self.storage.close()

    def reopen(self) -> None:
        """Close and open again: nothing new is promised."""
        self.close()
        self.storage = StorageDirectory.open(self._path, options=self._options)
        self.fences = SessionFences.open(self._path, self.storage.num_partitions)

    def reopen_partition(self, number: int) -> None:
        """Close one partition and open it again, as a failed sync asks for: nothing new is promised."""
        self.storage.partition(number)._failed = SyncFailedError(self._path, None, OSError("as if"), doing="sync")
        self.storage.reopen(number)

    def _under_way(self, number: int, truth: PartitionTruth) -> None:
        self._recorder.promise(self.truth.with_partition(number, truth), settled=False)

    def _done(self, number: int, truth: PartitionTruth) -> None:
        self.truth = self.truth.with_partition(number, truth)
        self._recorder.promise(self.truth, settled=True)

    def next_records(self, number: int, count: int, size: int | None = None) -> list[Record]:
        """New records for the end of a partition."""
        first = len(self.truth.partitions[number].possible)
        return make_records(count, first=first, partition=number, size=size, seed=7)

    def append(self, number: int, count: int, size: int | None = None) -> None:
        records = self.next_records(number, count, size)
        before = self.truth.partitions[number]
        after = (*before.possible, *records)
        self._under_way(number, replace(before, possible=after))
        self.storage.partition(number).append(records)
        self._done(number, before.holding(after))

    def append_blocks(self, number: int, sizes: Sequence[int | None], frames: int = 1) -> None:
        """A group commit: blocks of records as a node's encoder makes them, `frames` requests in each, all written at once.

        Nothing of the group is acknowledged before the call returns.
        """
        before = self.truth.partitions[number]
        after, blocks = list(before.possible), []
        for size in sizes:
            wanted = len(after)
            records = make_records(3 * frames, first=wanted, partition=number, size=size, seed=7)
            blocks.append(encoded_block(records, frames))
            after += records
        self._under_way(number, replace(before, possible=tuple(after)))
        self.storage.partition(number).append_blocks(blocks)
        self._done(number, before.holding(after))

    def begin_journal(self, place: str = JOURNAL) -> None:
        """Within `small_journals`: passes are made durable by a commit journal from now on."""
        begin_small_journal(self.storage, place)

    def work(self) -> bool:
        """What the journal's thread would do."""
        assert self.storage.journal is not None
        return self.storage.journal.work()

    def append_in_a_pass(self, sizes: Mapping[int, Sequence[int | None]]) -> bool:
        """Blocks of several partitions, by number: all are written, then all made durable, then all is acknowledged.

        Whether a commit journal did it.  Raises the first error of a sync; of the partitions that have one nothing new is
        promised.
        """
        written = []
        for number, wanted in sizes.items():
            before = self.truth.partitions[number]
            after, blocks = list(before.possible), []
            for size in wanted:
                records = make_records(3, first=len(after), partition=number, size=size, seed=7)
                blocks.append(encoded_block(records, 1))
                after += records
            self.truth = self.truth.with_partition(number, replace(before, possible=tuple(after)))
            self._recorder.promise(self.truth, settled=False)
            partition = self.storage.partition(number)
            append = partition.write_blocks(blocks)
            if append is None:
                partition.append_blocks(blocks)
                self._done(number, before.holding(tuple(after)))
            else:
                written.append((number, partition, append, before.holding(tuple(after))))
        appends = [append for _, _, append, _ in written]
        journal = self.storage.journal
        entries = None if journal is None else (journal._epoch, journal._sequence)
        errors = make_durable(journal, appends)
        for (number, partition, append, truth), error in zip(written, errors, strict=True):
            try:
                partition.finish_append(append, error)
            except SyncFailedError:
                continue
            self._done(number, truth)
        for error in errors:
            if error is not None:
                raise error
        return journal is not None and entries != (journal._epoch, journal._sequence) and journal.fault is None

    def append_that_fails(self, number: int, count: int, size: int | None = None) -> None:
        """The partition writes no more; `reopen_failed` is next."""
        before = self.truth.partitions[number]
        records = self.next_records(number, count, size)
        self.truth = self.truth.with_partition(number, replace(before, possible=(*before.possible, *records)))
        self._recorder.promise(self.truth, settled=False)
        with pytest.raises(DiskWriteError):
            self.storage.partition(number).append(records)
        assert self.storage.partition(number).failed is not None

    def reopen_failed(self, number: int) -> None:
        """After a sync that failed: what was acknowledged is left, and nothing else."""
        before = self.truth.partitions[number]
        self._under_way(number, replace(before, cutting=True))
        self.storage.reopen(number)
        self._done(number, before.holding(before.possible[: before.least]))

    def raise_fence(self, number: int, session: int) -> None:
        """Let a session in: from then on lower ones stay out, whatever happens."""
        before = self.truth.partitions[number]
        (now,) = before.fences
        wanted = frozenset({max(now, session)})
        self._under_way(number, replace(before, fences=before.fences | wanted))
        self.fences.raise_to(number, session)
        self._done(number, replace(before, fences=wanted))

    def truncate(self, number: int, after: int, *, allow_data_loss: bool = False) -> None:
        """Keep `after` and below; ids begin with 0.  With permission also below the local low-water mark, which then falls."""
        before = self.truth.partitions[number]
        ((session, mark, local),) = before.marks
        marks = frozenset({(session, mark, min(local, after) if allow_data_loss else local)})
        self._under_way(number, replace(before, least=after + 1, marks=before.marks | marks, cutting=True))
        self.storage.partition(number).truncate(after, allow_data_loss=allow_data_loss)
        self._done(number, replace(before, marks=marks).holding(before.possible[: after + 1]))

    def set_low_water_mark(self, number: int, session: int, mark: int) -> None:
        before = self.truth.partitions[number]
        wanted = frozenset({(session, mark, len(before.possible) - 1)})
        self._under_way(number, replace(before, marks=before.marks | wanted))
        self.storage.partition(number).set_low_water_mark(session, mark)
        self._done(number, replace(before, marks=wanted))

    def assign(self, number: int) -> None:
        before = self.truth.partitions.get(number, PartitionTruth(assigned=frozenset({False})))
        self._under_way(number, replace(before, assigned=frozenset({True, False})))
        self.storage.assign(number)
        self._done(number, replace(before, assigned=frozenset({True})))

    def unassign(self, number: int, *, delete_files: bool) -> None:
        before = self.truth.partitions[number]
        gone = PartitionTruth(assigned=frozenset({False}))
        self._under_way(number, replace(before, assigned=frozenset({True, False})))
        self.storage.unassign(number, delete_files=delete_files)
        self._done(number, gone if delete_files else replace(before, assigned=frozenset({False})))

    def set_availability(self, number: int, *, readable: bool | None = None, writable: bool | None = None) -> None:
        before = self.truth.partitions[number]
        (now,) = before.switches
        wanted = (now[0] if readable is None else readable, now[1] if writable is None else writable)
        self._under_way(number, replace(before, switches=before.switches | {wanted}))
        self.storage.set_availability(number, readable=readable, writable=writable)
        self._done(number, replace(before, switches=frozenset({wanted})))


@contextmanager
def recorded(
    path: Path, truth: Truth, options: StorageOptions, *, below: Path | None = None
) -> Iterator[tuple[Driver, Recording[Truth]]]:
    """Open a directory, record what is done with it until the end of the block, and close it, which is recorded as well.

    `below`: the directory that a crash leaves, where it is not the opened one alone.
    """
    recorder: Recorder[Truth] = Recorder(below or path)
    with recorder.listening():
        recorder.promise(truth, settled=True)
        driver = Driver(recorder, path, options, truth)
        try:
            yield driver, recorder.recording
        finally:
            driver.close()
