"""A segment's flush fails behind a journal, which writes the segment anew: its partition goes on, and believes no failed flush.

As on Linux a failure is told once to every descriptor that was open then (`tests.crash.failing`): to the partition's own one as
well, though nothing is missing any more.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePath

import pytest

from tests.blocks import encoded_block
from tests.crash.failing import FOREVER, Failing, failing
from tests.storage.power_loss import BEFORE, Journaled, segment
from waltzctl.engine.durable.disk import WritableFile
from waltzctl.engine.errors import DiskError, DiskReadError, DiskWriteError, SyncFailedError
from waltzctl.formats.journal_file import WriteTo


@pytest.fixture
def fails() -> Iterator[Failing]:
    with failing() as found:
        yield found


@pytest.fixture
def journaled(fails: Failing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Journaled]:
    made = Journaled(tmp_path, monkeypatch)
    yield made
    monkeypatch.undo()
    made.close()


def fail_behind(made: Journaled, fails: Failing) -> None:
    """An area is full, and the flush of partition 0's segment fails once."""
    while made.journal._full_area is None:
        made.commit({0: 1, 1: 1})
    fails.syncs_of(segment(made.path, 0))
    assert made.journal.work()
    assert made.journal.fault is None


def append_alone(made: Journaled) -> None:
    made.append(0, 1)


def begin_session(made: Journaled) -> None:
    partition = made.storage.partition(0)
    partition.set_low_water_mark(7, partition.max_transaction_id)


def cut(made: Journaled) -> None:
    made.truncate(0, BEFORE)


def close_and_open(made: Journaled) -> None:
    made.storage.reopen(0)


def leave(made: Journaled) -> None:
    made.storage.unassign(0, delete_files=False)
    made.storage.assign(0)


def flush_in_a_pass(made: Journaled) -> None:
    """One that the journal has no room for."""
    while made.commit({0: 1, 1: 1}):
        pass


@pytest.mark.parametrize(
    "work", [append_alone, begin_session, cut, close_and_open, leave, flush_in_a_pass, Journaled.close]
)
def test_a_partition_goes_on(
    journaled: Journaled, fails: Failing, tmp_path: Path, work: Callable[[Journaled], None]
) -> None:
    fail_behind(journaled, fails)
    work(journaled)
    if work is Journaled.close:
        assert journaled.held(journaled.path) == journaled.acknowledged
        return
    assert journaled.storage.partition(0).failed is None
    assert journaled.held() == journaled.acknowledged
    assert journaled.held(journaled.after_power_loss(tmp_path)) == journaled.acknowledged


def test_a_segment_that_was_written_anew_keeps_no_descriptor(
    journaled: Journaled, fails: Failing, tmp_path: Path
) -> None:
    """Each failure kept one until the process ended, unless its partition went on to append to that segment."""
    journal = journaled.journal
    for _ in range(2):
        assert journaled.commit({0: 1})
        while journal._full_area is None:
            assert journaled.commit({1: 1})
        fails.syncs_of(segment(journaled.path, 0))
        assert journal.work()
        assert journal.fault is None
        assert {one.partition for one in journal._segments.values()} == {1}
        journaled.append(0, 1)
    assert not journal.doubts(0)
    assert journaled.held() == journaled.acknowledged
    assert journaled.held(journaled.after_power_loss(tmp_path)) == journaled.acknowledged


def test_segments_of_a_commit_that_cannot_be_journaled_keep_no_descriptor(
    journaled: Journaled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one of the same pass cannot be opened: no entry names them, and no flush behind closes them."""
    real, lacking = WritableFile.open, segment(journaled.path, 1)

    def opened(path: PurePath) -> WritableFile:
        if path == lacking:
            raise DiskReadError(path, None, OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(WritableFile, "open", opened)
        assert not journaled.commit({0: 1, 1: 1})
    assert not journaled.journal._segments
    assert journaled.commit({0: 1, 1: 1})
    assert len(journaled.journal._segments) == 2
    assert journaled.held() == journaled.acknowledged


def test_a_later_failure_is_one(journaled: Journaled, fails: Failing) -> None:
    fail_behind(journaled, fails)
    journaled.append(0, 1)
    fails.syncs_of(segment(journaled.path, 0))
    with pytest.raises(SyncFailedError):
        journaled.append(0, 1)


def test_what_was_under_way_when_the_flush_failed_is_not_believed(journaled: Journaled, fails: Failing) -> None:
    """It was written before, and nobody knows whether it was lost: its own flush says so."""
    while journaled.journal._full_area is None:
        journaled.commit({0: 1, 1: 1})
    partition = journaled.storage.partition(0)
    append = partition.write_blocks([encoded_block(journaled.records(0, 1))])
    assert append is not None
    fails.syncs_of(segment(journaled.path, 0))
    assert journaled.journal.work()
    with pytest.raises(SyncFailedError) as told:
        append.file.sync()
    with pytest.raises(SyncFailedError):
        partition.finish_append(append, told.value)
    journaled.storage.reopen(0)
    assert journaled.held() == journaled.acknowledged
    journaled.append(0, 1)


def test_what_was_under_way_is_written_anew_as_well(
    journaled: Journaled, fails: Failing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands in the segment, the flush behind fails, and then the journal makes it durable: the partition goes on."""
    while journaled.journal._full_area is None:
        journaled.commit({0: 1, 1: 1})
    fails.syncs_of(segment(journaled.path, 0))
    commit = journaled.journal.commit

    def late(writes: Sequence[WriteTo]) -> bool:
        journaled.journal.work()
        return commit(writes)

    with monkeypatch.context() as patch:
        patch.setattr(journaled.journal, "commit", late)
        assert journaled.commit({0: 1})
    path, lost = segment(journaled.path, 0), journaled.records(0, 1)[0].size
    path.write_bytes(path.read_bytes()[:-lost] + bytes(lost))  # the system lets go of what it could not write
    journaled.append(0, 1)
    assert journaled.held() == journaled.acknowledged
    assert journaled.held(journaled.after_power_loss(tmp_path)) == journaled.acknowledged


def test_what_cannot_be_written_anew_fails_the_partition(journaled: Journaled, fails: Failing) -> None:
    fail_behind(journaled, fails)
    fails.syncs_of(segment(journaled.path, 0), FOREVER)
    with pytest.raises(DiskWriteError):
        journaled.append(0, 1)
    assert journaled.storage.partition(0).failed is not None
    assert journaled.held() == journaled.acknowledged
    fails.syncs_of(segment(journaled.path, 0), 0)
    journaled.storage.reopen(0)
    assert journaled.held() == journaled.acknowledged
    journaled.append(0, 1)


def test_a_journal_that_could_not_be_put_away_puts_nothing_right_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: Failing
) -> None:
    made = Journaled(tmp_path, monkeypatch)
    fail_behind(made, fails)
    fails.syncs_of(segment(made.path, 1), FOREVER)
    with pytest.raises(DiskError):
        made.close()
    assert made.marked
    fails.syncs_of(segment(made.path, 1), 0)
    assert made.held(made.path) == made.acknowledged
