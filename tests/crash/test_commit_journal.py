"""The commit journal: whatever happens between its entries and the segments, a crash loses nothing and brings nothing back."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.blocks import encoded_block
from tests.builders import make_records
from tests.crash.conftest import CrashTest
from tests.crash.driver import (
    JOURNAL,
    STRADDLING,
    Driver,
    begin_small_journal,
    built,
    make_durable,
    recorded,
    small_journals,
)
from tests.crash.failing import FOREVER, Failing, failing
from tests.crash.harness import DEATHS, Effort
from tests.crash.layouts import EACH_DAY, LAYOUTS
from tests.crash.recorder import Recorder
from tests.crash.simdisk import Loss, Piece
from tests.crash.storages import SMALL_SEGMENTS, StorageChecker, segments
from tests.crash.test_random_work import one_operation
from tests.crash.truth import Seen, Truth
from waltzctl.engine.durable import disk
from waltzctl.engine.errors import DiskError, DiskWriteError, SyncFailedError, WaltzError
from waltzctl.engine.storage.directory import StorageDirectory, StorageOptions
from waltzctl.engine.storage.journal_recovery import _areas_of, in_force
from waltzctl.engine.storage.journal_state import read_state, state_path
from waltzctl.engine.storage.partition import UnsyncedAppend
from waltzctl.formats.control import CONTROL_FILE_NAME, Layout, decode_control
from waltzctl.formats.journal_file import WriteTo
from waltzctl.formats.segment import segment_name

ONE_SEGMENT = StorageOptions()
NUMBER = STRADDLING[Layout.RELEASED]
OUTSIDE = "device/journal"


def on(place: int) -> pytest.MarkDecorator:
    """The first case on every fourth of 24 days.  With these places all days take about as long, by the seconds of each case."""
    return pytest.mark.turns(24, place=4 * place)


class JournalChecker(StorageChecker):
    """Opens a directory that may be marked: afterwards it is not, and the next journal can begin."""

    def recover(self, root: Path) -> Seen:
        """As ever, and no journal is in force any more."""
        seen = StorageChecker.recover(self, root)
        path = root / self.name
        if seen.error is not None:
            return seen
        left = []
        if decode_control((path / CONTROL_FILE_NAME).read_bytes()).header.journaled:
            left.append("the control file is still marked")
        if Path(state_path(path)).exists():
            left.append("the journal's state is still there")
        return replace(seen, complaints=(*seen.complaints, *left))

    def _kept_of(self, path: Path) -> Mapping[int, Mapping[str, bytes]]:
        """With what the journal holds: that is written back before anything is judged."""
        kept = {number: dict(files) for number, files in segments(path).items()}
        with suppress(WaltzError, FileNotFoundError, KeyError):  # the opening says it
            marked = decode_control((path / CONTROL_FILE_NAME).read_bytes()).header.journaled
            state = read_state(path) if marked else None
            found = {} if state is None else in_force(state, list(_areas_of(state)))
            for number, part in ((number, part) for number, parts in found.items() for part in parts):
                content = bytearray(kept[number][segment_name(part.segment)])
                Piece(part.offset, part.data).apply(content)
                kept[number][segment_name(part.segment)] = bytes(content)
        return kept

    def _go_on(self, path: Path, seen: Seen, complaints: list[str]) -> None:
        StorageChecker._go_on(self, path, seen, complaints)
        usable = [n for n, one in seen.partitions.items() if not one.quarantined and all(one.switches)]
        with small_journals():
            with StorageDirectory.open(path, options=self.options) as storage:
                journal = begin_small_journal(storage)
                appends = [found for number in usable if (found := _written(storage, number)) is not None]
                expected = {one.partition: storage.partition(one.partition).next_transaction_id for one in appends}
                for append, error in zip(appends, make_durable(journal, appends), strict=True):
                    storage.partition(append.partition).finish_append(append, error)
            with StorageDirectory.open(path, options=self.options) as storage:
                for number, last in expected.items():
                    if storage.partition(number).max_transaction_id != last:
                        complaints.append(f"partition {number}: a record journaled after the recovery is not there")


def _written(storage: StorageDirectory, number: int) -> UnsyncedAppend | None:
    partition = storage.partition(number)
    return partition.write_blocks(
        [encoded_block(make_records(1, first=partition.next_transaction_id, partition=number))]
    )


class OutsideChecker(JournalChecker):
    """The journal stands beside the directory, at `OUTSIDE`.  A crash state is laid out elsewhere than it was recorded."""

    def recover(self, root: Path) -> Seen:
        """As ever, with the state's absolute path led to where the journal stands now."""
        state = Path(state_path(root / self.name))
        with suppress(FileNotFoundError, ValueError):  # a torn one names no journal
            document = json.loads(state.read_bytes())
            state.write_text(json.dumps({**document, "path": str(root / OUTSIDE)}, indent=2) + "\n")
        return JournalChecker.recover(self, root)


class FailureChecker(JournalChecker):
    """Of what was not acknowledged nothing is held: a sync of it failed, and an opening cannot know that."""

    def narrowed(self, truth: Truth, seen: Seen) -> Truth:
        """What was acknowledged."""
        held = StorageChecker.narrowed(self, truth, seen)
        for number, one in truth.partitions.items():
            held = held.with_partition(number, replace(held.partitions[number], least=one.least))
        return held


@EACH_DAY
def test_passes(layout: Layout, tmp_path: Path, survive: CrashTest) -> None:
    """The journal begins, in a directory of its own, passes are made durable by it, and it ends."""
    path, truth = built(tmp_path / "s", layout, 7)
    (path / "device").mkdir()
    with small_journals(), recorded(path, truth, ONE_SEGMENT) as (driver, recording):
        number = STRADDLING[layout]
        driver.begin_journal("device/journal")
        assert driver.append_in_a_pass({number: [10], 0: [30, 700]})
        assert driver.append_in_a_pass({number: [400]})
        driver.append(number, 2, 20)
        assert driver.append_in_a_pass({0: [10], number: [None, 0]})
    survive(f"commit journal, {layout}", recording, JournalChecker(ONE_SEGMENT))


@EACH_DAY
def test_a_journal_on_another_device(layout: Layout, tmp_path: Path, survive: CrashTest) -> None:
    """It is made, filled, left and taken away outside of the directory whose records it has."""
    root = tmp_path / "machine"
    (root / "device").mkdir(parents=True)
    path, truth = built(root / "s", layout, 7)
    with small_journals(), recorded(path, truth, ONE_SEGMENT, below=root) as (driver, recording):
        number = STRADDLING[layout]
        driver.begin_journal(str(root / OUTSIDE))
        assert driver.append_in_a_pass({number: [10], 0: [30, 700]})
        assert driver.append_in_a_pass({number: [400]})
        driver.truncate(number, 9)
        assert driver.append_in_a_pass({number: [10]})
        driver.unassign(0, delete_files=True)
        assert driver.append_in_a_pass({number: [20]})
    survive(f"commit journal, outside, {layout}", recording, OutsideChecker(ONE_SEGMENT, "s"))


@on(3)
@LAYOUTS
def test_areas_become_full(layout: Layout, tmp_path: Path, survive: CrashTest) -> None:
    """Each area is begun several times; the work behind is done early, late, and too late for a pass."""
    path, truth = built(tmp_path / "s", layout, 3)
    with small_journals(), recorded(path, truth, ONE_SEGMENT) as (driver, recording):
        number = STRADDLING[layout]
        driver.begin_journal()
        by_journal = []
        for turn in range(26):
            by_journal.append(driver.append_in_a_pass({number: [600 if turn % 4 == 0 else 20], 0: [turn]}))
            if turn in (4, 6, 12, 21, 22):
                driver.work()
        assert not all(by_journal)
        assert all(by_journal[:11])
        assert by_journal[-1]
    survive(f"commit journal, areas, {layout}", recording, JournalChecker(ONE_SEGMENT))


@on(5)
@LAYOUTS
def test_areas_are_begun_anew(layout: Layout, tmp_path: Path, survive: CrashTest) -> None:
    """Two long entries fill an area, so that a torn one destroys an entry of the epoch before and leaves another one."""
    path, truth = built(tmp_path / "s", layout, 3)
    with small_journals(), recorded(path, truth, ONE_SEGMENT) as (driver, recording):
        driver.begin_journal()
        for _ in range(14):
            assert driver.append_in_a_pass({STRADDLING[layout]: [1700]})
            driver.work()
    survive(f"commit journal, begun anew, {layout}", recording, JournalChecker(ONE_SEGMENT))


@on(2)
@LAYOUTS
def test_the_journal_is_left(layout: Layout, tmp_path: Path, survive: CrashTest) -> None:
    """What is journaled of a partition becomes untrue: it is cut, its log goes on in other segments, a session begins."""
    path, truth = built(tmp_path / "s", layout, 13, mark=4)
    with small_journals(), recorded(path, truth, SMALL_SEGMENTS) as (driver, recording):
        number = STRADDLING[layout]
        driver.begin_journal()
        driver.append_in_a_pass({number: [10]})
        driver.truncate(number, 13)
        driver.append_in_a_pass({number: [200]})
        driver.append_in_a_pass({number: [10]})
        driver.append_blocks(number, [300, 1700, 10])
        driver.append_in_a_pass({number: [40]})
        driver.truncate(number, 15)
        driver.append_in_a_pass({number: [10]})
        driver.set_low_water_mark(number, 4, len(driver.truth.partitions[number].possible) - 1)
        driver.append_in_a_pass({number: [20]})
        driver.reopen_partition(number)
        driver.append_in_a_pass({number: [20]})
        driver.truncate(number, 20, allow_data_loss=True)
        driver.reopen()
        driver.append_in_a_pass({number: [10]})
        driver.begin_journal()
        driver.append_in_a_pass({number: [30]})
    survive(f"commit journal, left, {layout}", recording, JournalChecker(SMALL_SEGMENTS))


@on(0)
@LAYOUTS
def test_a_checkpoint(layout: Layout, tmp_path: Path, survive: CrashTest) -> None:
    """A batch reaches transaction 1000 behind records that only the journal has."""
    path, truth = built(tmp_path / "s", layout, 988, per_segment=2000, size=10)
    with small_journals(), recorded(path, truth, ONE_SEGMENT) as (driver, recording):
        number = STRADDLING[layout]
        driver.begin_journal()
        for _ in range(3):
            assert driver.append_in_a_pass({number: [10], 0: [5]})
        assert not driver.append_in_a_pass({number: [10, 10]})
        assert driver.append_in_a_pass({number: [10]})
        driver.truncate(number, 1001)
        assert driver.append_in_a_pass({number: [10]})
    survive(f"commit journal, checkpoint, {layout}", recording, JournalChecker(ONE_SEGMENT))


@on(2)
@LAYOUTS
def test_partitions_come_and_go(layout: Layout, tmp_path: Path, survive: CrashTest) -> None:
    """What left takes its records along; a partition that comes back empty gets nothing of the one before it."""
    path, truth = built(tmp_path / "s", layout, 3)
    with small_journals(), recorded(path, truth, SMALL_SEGMENTS) as (driver, recording):
        number = STRADDLING[layout]
        driver.begin_journal()
        driver.append_in_a_pass({number: [10], 0: [30]})
        driver.unassign(number, delete_files=False)
        driver.append_in_a_pass({0: [300]})
        driver.assign(number)
        driver.append_in_a_pass({number: [20], 0: [10]})
        driver.unassign(number, delete_files=True)
        driver.assign(number)
        driver.append_in_a_pass({number: [700], 0: [10]})
        driver.work()
        driver.unassign(0, delete_files=True)
        driver.append_in_a_pass({number: [10]})
    survive(f"commit journal, assignment, {layout}", recording, JournalChecker(SMALL_SEGMENTS))


EVERY_RECOVERY = Effort(Loss(torn_positions=1, random_states=0), None, Loss(torn_positions=1, random_states=1))


@on(5)
@pytest.mark.parametrize("effort", [pytest.param(EVERY_RECOVERY, id="power"), pytest.param(DEATHS, id="deaths")])
def test_what_is_written_back_is_crashed_again(effort: Effort, tmp_path: Path, survive: CrashTest) -> None:
    """Every opening that puts such a directory right is crashed at each of its changes, after a power loss or a death."""
    path, truth = built(tmp_path / "s", Layout.RELEASED, 3)
    with small_journals(), recorded(path, truth, ONE_SEGMENT) as (driver, recording):
        driver.begin_journal()
        assert driver.append_in_a_pass({NUMBER: [10], 0: [300]})
        assert driver.append_in_a_pass({NUMBER: [700]})
        driver.truncate(0, 1)
    survive("commit journal, written back", recording, JournalChecker(ONE_SEGMENT), effort)


def journaled_operation(driver: Driver, rng: random.Random, numbers: list[int]) -> None:
    """A pass, more often than not, or whatever else a node does."""
    assigned = [n for n in numbers if n in driver.truth.partitions and True in driver.truth.partitions[n].assigned]
    kind = rng.random()
    if driver.storage.journal is None and kind < 0.7:
        driver.begin_journal()
    elif assigned and kind < 0.6:
        chosen = rng.sample(assigned, rng.randint(1, len(assigned)))
        driver.append_in_a_pass({n: rng.choices([None, 0, 40, 600], k=rng.choice([1, 1, 2])) for n in chosen})
    elif driver.storage.journal is not None and kind < 0.7:
        driver.work()
    else:
        one_operation(driver, rng, numbers)


DEFAULT_SEEDS, LONG_SEEDS = 1, 12


@pytest.mark.turns(24, place=14)
@LAYOUTS
@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=() if seed < DEFAULT_SEEDS else pytest.mark.long) for seed in range(LONG_SEEDS)],
)
def test_random_work(seed: int, layout: Layout, tmp_path: Path, survive: CrashTest) -> None:
    rng = random.Random(seed)
    path, truth = built(tmp_path / "s", layout, rng.choice([0, 3, 21]))
    with small_journals(), recorded(path, truth, SMALL_SEGMENTS) as (driver, recording):
        for _ in range(14):
            journaled_operation(driver, rng, [0, 1, STRADDLING[layout]])
    survive(f"commit journal, random work, {layout}", recording, JournalChecker(SMALL_SEGMENTS))


Failure = Callable[[Driver, Failing, Path], None]


def _segment(path: Path) -> Path:
    return path / str(NUMBER) / segment_name(0)


def _turn(driver: Driver, times: int, *numbers: int) -> None:
    """Passes that fill areas one after the other, with the work behind."""
    for turn in range(5 * times):
        driver.append_in_a_pass({number: [20] for number in numbers})
        if turn % 5 == 2:
            driver.work()


def the_journal_cannot_be_synced(driver: Driver, fails: Failing, path: Path) -> None:
    driver.append_in_a_pass({NUMBER: [10], 0: [10]})
    fails.syncs_of(path / JOURNAL)
    assert not driver.append_in_a_pass({NUMBER: [700], 0: [10]})
    assert not driver.append_in_a_pass({NUMBER: [10]})
    with pytest.raises(DiskWriteError):
        driver.storage.partition(0).truncate(0)
    assert not driver.work()
    assert not driver.append_in_a_pass({NUMBER: [10]})
    driver.truncate(NUMBER, 8)
    assert not driver.append_in_a_pass({NUMBER: [10]})


def the_journal_cannot_be_written(driver: Driver, fails: Failing, path: Path) -> None:
    driver.append_in_a_pass({NUMBER: [10], 0: [10]})
    fails.writes_to(path / JOURNAL)
    assert not driver.append_in_a_pass({NUMBER: [700], 0: [10]})
    assert not driver.append_in_a_pass({NUMBER: [10]})
    driver.append(NUMBER, 1)
    assert not driver.work()
    driver.truncate(NUMBER, 8)
    driver.append(NUMBER, 1)


def an_area_cannot_be_begun(driver: Driver, fails: Failing, path: Path) -> None:
    for _ in range(5):
        driver.append_in_a_pass({NUMBER: [10]})
    fails.syncs_of(path / JOURNAL)
    assert not driver.append_in_a_pass({NUMBER: [700], 0: [10]})
    assert not driver.work()
    driver.truncate(NUMBER, 8)
    driver.append(NUMBER, 1)


def a_segment_cannot_be_synced_behind(driver: Driver, fails: Failing, path: Path) -> None:
    """Once: it is written anew, and the partition goes on."""
    for _ in range(6):
        driver.append_in_a_pass({NUMBER: [10], 0: [10]})
    fails.syncs_of(_segment(path))
    assert driver.work()
    driver.append(NUMBER, 1)
    _turn(driver, 3, NUMBER, 0)
    assert driver.append_in_a_pass({NUMBER: [10]})


def a_segment_can_never_be_synced_behind(driver: Driver, fails: Failing, path: Path) -> None:
    """The journal is kept for it, and the next opening goes on."""
    for _ in range(6):
        driver.append_in_a_pass({NUMBER: [10], 0: [10]})
    fails.syncs_of(_segment(path), FOREVER)
    assert driver.work()
    assert not driver.work()
    assert not driver.append_in_a_pass({0: [10]})
    with pytest.raises(SyncFailedError):
        driver.append_in_a_pass({NUMBER: [10]})
    driver.append(0, 2)
    with pytest.raises(DiskError):
        driver.close()


def a_partition_fails_and_the_journal_goes_on(driver: Driver, fails: Failing, path: Path) -> None:
    """What it has in the journal is not made durable by the next sync of its segment."""
    for _ in range(2):
        driver.append_in_a_pass({NUMBER: [10], 0: [10]})
    fails.syncs_of(_segment(path))
    driver.append_that_fails(NUMBER, 2)
    _turn(driver, 3, 0)


def a_partition_fails_and_is_opened_again(driver: Driver, fails: Failing, path: Path) -> None:
    for _ in range(2):
        driver.append_in_a_pass({NUMBER: [10], 0: [10]})
    fails.syncs_of(_segment(path))
    driver.append_that_fails(NUMBER, 2)
    driver.append_in_a_pass({0: [10]})
    driver.reopen_failed(NUMBER)
    _turn(driver, 3, 0, NUMBER)
    driver.truncate(NUMBER, 3)


def a_partition_fails_and_the_directory_is_closed(driver: Driver, fails: Failing, path: Path) -> None:
    for _ in range(2):
        driver.append_in_a_pass({NUMBER: [10], 0: [10]})
    fails.syncs_of(_segment(path))
    driver.append_that_fails(NUMBER, 2)


def a_partition_and_the_journal_fail(driver: Driver, fails: Failing, path: Path) -> None:
    """The cut is refused until the journal is retired."""
    for _ in range(2):
        driver.append_in_a_pass({NUMBER: [10], 0: [10]})
    fails.syncs_of(_segment(path))
    driver.append_that_fails(NUMBER, 2)
    fails.syncs_of(path / JOURNAL)
    assert not driver.append_in_a_pass({0: [10]})
    for _ in range(2):
        with pytest.raises(DiskWriteError):
            driver.storage.reopen(NUMBER)
    assert not driver.work()
    driver.reopen_failed(NUMBER)
    driver.append(NUMBER, 1)


def a_pass_fails_in_the_journal_and_in_a_segment(driver: Driver, fails: Failing, path: Path) -> None:
    """What nobody was promised stands in the journal, and is written back with the rest when that is retired."""
    driver.append_in_a_pass({NUMBER: [10], 0: [10]})
    fails.syncs_of(path / JOURNAL)
    fails.syncs_of(_segment(path))
    with pytest.raises(SyncFailedError):
        driver.append_in_a_pass({NUMBER: [10], 0: [10]})
    with pytest.raises(DiskWriteError):
        driver.storage.reopen(NUMBER)
    assert not driver.work()
    driver.reopen_failed(NUMBER)
    driver.append(NUMBER, 1)


def a_partition_fails_and_leaves(driver: Driver, fails: Failing, path: Path) -> None:
    for _ in range(2):
        driver.append_in_a_pass({NUMBER: [10], 0: [10]})
    fails.syncs_of(_segment(path))
    driver.append_that_fails(NUMBER, 2)
    driver.unassign(NUMBER, delete_files=True)
    driver.assign(NUMBER)
    driver.append_in_a_pass({0: [10], NUMBER: [400]})


def a_segment_fails_behind_while_a_pass_is_under_way(driver: Driver, fails: Failing, path: Path) -> None:
    """What was written already, and is journaled after the failure, is lost in the segment as well."""
    for _ in range(6):
        driver.append_in_a_pass({NUMBER: [10], 0: [10]})
    journal = driver.storage.journal
    assert journal is not None
    fails.syncs_of(_segment(path))
    commit = journal.commit

    def late(writes: Sequence[WriteTo]) -> bool:
        driver.work()
        return commit(writes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "commit", late)
        assert driver.append_in_a_pass({NUMBER: [10]})
    _turn(driver, 3, 0)
    driver.set_low_water_mark(NUMBER, 4, len(driver.truth.partitions[NUMBER].possible) - 1)


FAILURES: list[Failure] = [
    the_journal_cannot_be_synced,
    the_journal_cannot_be_written,
    an_area_cannot_be_begun,
    a_segment_cannot_be_synced_behind,
    a_segment_can_never_be_synced_behind,
    a_partition_fails_and_the_journal_goes_on,
    a_partition_fails_and_is_opened_again,
    a_partition_fails_and_the_directory_is_closed,
    a_partition_and_the_journal_fail,
    a_pass_fails_in_the_journal_and_in_a_segment,
    a_partition_fails_and_leaves,
    a_segment_fails_behind_while_a_pass_is_under_way,
]


@on(1)
@pytest.mark.parametrize("failure", FAILURES)
def test_a_disk_that_fails(failure: Failure, tmp_path: Path, survive: CrashTest) -> None:
    """A write or a sync fails, and then the power: what was acknowledged by then is there."""
    path, truth = built(tmp_path / "s", Layout.RELEASED, 3)
    with small_journals(), failing() as fails, recorded(path, truth, ONE_SEGMENT) as (driver, recording):
        driver.begin_journal()
        failure(driver, fails, path)
    survive(f"commit journal, {failure.__name__}", recording, FailureChecker(ONE_SEGMENT))


def left_marked(place: Path) -> tuple[Path, Truth]:
    """A directory whose machine lost power: what was acknowledged in two partitions stands in the journal only."""
    held, truth = built(place / "held", Layout.RELEASED, 3)
    path = place / "s"
    with small_journals(), recorded(held, truth, ONE_SEGMENT) as (driver, _):
        driver.begin_journal()
        sizes = {name: name.stat().st_size for name in held.glob("*/*.seg")}
        assert driver.append_in_a_pass({NUMBER: [10], 0: [300]})
        assert driver.append_in_a_pass({NUMBER: [700]})
        shutil.copytree(held, path)
        truth = driver.truth
    for name, size in sizes.items():
        os.truncate(path / name.relative_to(held), size)
    return path, truth


def a_segment_fails(fails: Failing, path: Path) -> None:
    fails.syncs_of(_segment(path))


def every_segment_fails(fails: Failing, path: Path) -> None:
    fails.syncs_of(_segment(path))
    fails.syncs_of(path / "0" / segment_name(0))


def what_is_left_cannot_be_said(fails: Failing, path: Path) -> None:
    fails.syncs_of(_segment(path))
    fails.syncs_of(Path(f"{state_path(path)}{disk.TEMPORARY_SUFFIX}"))


def the_mark_cannot_be_taken_away(fails: Failing, path: Path) -> None:
    fails.syncs_of(path / CONTROL_FILE_NAME, behind=1)


FAULTS = [a_segment_fails, every_segment_fails, what_is_left_cannot_be_said, the_mark_cannot_be_taken_away]


@pytest.mark.turns(8)
@pytest.mark.parametrize("failure", FAULTS)
def test_writing_back_fails(failure: Callable[[Failing, Path], None], tmp_path: Path, survive: CrashTest) -> None:
    """A sync fails while a directory is put right: a partition waits for the next opening, or the opening is refused."""
    path, truth = left_marked(tmp_path)
    with small_journals(), failing() as fails:
        recorder: Recorder[Truth] = Recorder(path)
        with recorder.listening():
            recorder.promise(truth, settled=True)
            failure(fails, path)
            failed = []
            try:
                with StorageDirectory.open(path, options=ONE_SEGMENT) as storage:
                    assert storage.written_back is not None
                    failed = list(storage.written_back.failed)
                    assert [n for n, one in storage.partitions.items() if one.quarantined] == failed
            except DiskError:
                assert failure in (what_is_left_cannot_be_said, the_mark_cannot_be_taken_away)
            else:
                assert failed == ([NUMBER] if failure is a_segment_fails else [0, NUMBER])
            driver = Driver(recorder, path, ONE_SEGMENT, truth)
            assert not any(one.quarantined for one in driver.storage.partitions.values())
            driver.truncate(0, 1)
            driver.append(NUMBER, 1)
            driver.close()
    survive(f"commit journal, {failure.__name__} in writing back", recorder.recording, JournalChecker(ONE_SEGMENT))
