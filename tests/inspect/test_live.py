"""A directory that somebody is writing: a growing tail is not damage, and damage is damage all the same."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from typing import Any

import pytest

from tests.builders import build_directory, make_records, segment_header
from tests.cli.running import invoke
from tests.inspect.helpers import age, codes, cut, flip, idx, patch, run, seg
from waltzctl.engine.durable.directory_lock import DirectoryLock
from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.inspect import partition_runs, targets
from waltzctl.engine.inspect.dump import DumpedRecord, dump_index, dump_records
from waltzctl.engine.inspect.partition_runs import PartitionRun, runs
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.segment_checks import check_segment
from waltzctl.engine.inspect.status import storage_status
from waltzctl.engine.inspect.targets import ScopeSurroundings, look_around, plan
from waltzctl.engine.inspect.verify import VerifyOptions, verify
from waltzctl.engine.log.view import PartitionView, StorageView
from waltzctl.engine.repair.apply import apply
from waltzctl.engine.repair.truncate import plan_truncate
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.engine.storage.store import list_entries
from waltzctl.formats.control import CONTROL_FILE_NAME, ControlFile, Layout
from waltzctl.formats.segment import HEADER_SIZE, encode_entries, encode_records, index_name, segment_name

WRITER = Path(__file__).with_name("live_writer.py")


@contextlib.contextmanager
def writing(storage: Path, mode: str) -> Iterator[subprocess.Popen[str]]:
    """A process that appends to partitions 0 and 1 until the block ends."""
    command = [sys.executable, str(WRITER), str(storage), "2", mode]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        try:
            yield process
            assert process.poll() is None, "the writer died"
        finally:
            assert process.stdin is not None
            process.stdin.close()
    assert process.returncode == 0


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    """A writer in memory is so fast that a reader is hardly ever done with a file before it has changed."""
    return disk_path


def build(path: Path) -> Path:
    return age(build_directory(path, {0: 60, 1: 60}, per_segment=20, size=30, session=1, local_low_water_mark=10))


def rounds(request: pytest.FixtureRequest, few: int, many: int) -> int:
    return many if request.config.getoption("--long") else few


def check_never_false(storage: Path, mode: str, times: int) -> None:
    false: list[str] = []
    records = set()
    with writing(storage, mode):
        for number in range(100 * times):  # a disk may keep the writer waiting
            if number >= times and len(records) > times // 10:
                break
            findings, summary = run(storage, quick=number % 10 == 9)
            false += [f"run {number}: {one}" for one in findings]
            records.add(summary.records)
    assert false == []
    assert len(records) > times // 10, "the writer did not write"
    print(f"{times} verifications of a directory being written ({mode}): {len(false)} false findings")


@pytest.mark.turns(10)
def test_a_directory_that_a_node_writes_is_never_called_damaged(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Small unsynchronised writes in the release's order, roll-overs, truncations, control file updates; lock held."""
    storage = build(tmp_path / "s")
    check_never_false(storage, "hold", rounds(request, 40, 1000))
    assert run(age(storage))[0] == []


@pytest.mark.turns(10)
def test_a_writer_that_takes_no_lock_is_noticed_by_what_it_writes(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """On another host, or in another container, a lock may not be visible."""
    check_never_false(build(tmp_path / "s"), "free", rounds(request, 30, 1000))


@pytest.mark.turns(10)
def test_a_writer_of_batches_is_never_called_damaged(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Data first, index after it."""
    check_never_false(build(tmp_path / "s"), "batches", rounds(request, 30, 1000))


@pytest.mark.turns(8)
def test_our_own_engine_at_work_is_never_called_damaged(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Its roll-overs go through temporary files and renames; truncations and low-water marks as well."""
    storage = build(tmp_path / "s")
    check_never_false(storage, "engine", rounds(request, 30, 300))
    assert run(storage)[0] == []


@pytest.mark.parametrize("mode", ["hold", "free", "batches"])
def test_real_damage_in_a_directory_that_is_written_is_found_every_time(
    tmp_path: Path, request: pytest.FixtureRequest, mode: str
) -> None:
    """A flipped bit in a sealed segment, and one in a control struct that nobody rewrites."""
    storage = build(tmp_path / "s")
    flip(seg(storage, 0, 20), 128 + 70 * 3 + 50)
    flip(seg(storage, 1, 0), 12)
    with writing(storage, mode):
        for number in range(rounds(request, 10, 300)):
            findings, summary = run(storage, quick=False)
            assert codes(findings) == ["record-checksum", "segment-key"], f"run {number}: {findings}"
            assert findings[0].transaction_id == 23
            assert summary.status == "damaged"


def test_damage_in_the_segment_that_is_being_written_is_found(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Behind the damaged record the writer goes on; it is no tail."""
    storage = age(build_directory(tmp_path / "s", {0: 10, 1: 10}, size=30, session=1, local_low_water_mark=3))
    flip(seg(storage, 0, 0), 128 + 70 * 5 + 50)
    with writing(storage, "hold"):
        for _ in range(rounds(request, 10, 300)):
            findings, _ = run(storage)
            assert [(one.code, one.transaction_id) for one in findings] == [("record-checksum", 5)]


@pytest.mark.turns(10)
def test_a_torn_tail_of_a_directory_that_nobody_writes_is_reported_though_it_is_new(tmp_path: Path) -> None:
    """A crash a moment ago: after a short wait it is certain that nobody goes on."""
    storage = build_directory(tmp_path / "s", {0: 10}, size=30, session=1, local_low_water_mark=3)
    path = seg(storage, 0, 0)
    path.write_bytes(path.read_bytes()[:-7])
    assert codes(run(storage)[0]) == ["torn-tail"]


def test_an_old_torn_tail_is_reported_though_a_process_holds_the_directory(tmp_path: Path) -> None:
    """A tail that nobody touched for long is not being written."""
    storage = build_directory(tmp_path / "s", {0: 10}, size=30, session=1, local_low_water_mark=3)
    path = seg(storage, 0, 0)
    path.write_bytes(path.read_bytes()[:-7])
    with DirectoryLock.acquire(storage, storage / "waltz-storage.ctl"):
        assert codes(run(storage)[0]) == []
        assert codes(run(storage, exclusive=True)[0]) == ["torn-tail"], (
            "whoever holds the lock knows that nobody writes"
        )
        age(storage)
        assert codes(run(storage)[0]) == ["torn-tail"]


@pytest.mark.turns(10)
def test_dump_and_status_of_a_directory_that_is_written_show_no_damage(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Whole records only, in order, and health ok."""
    storage = build(tmp_path / "s")
    with writing(storage, "hold"):
        for number in range(rounds(request, 10, 300)):
            items = list(dump_records(storage, reverse=number % 2 == 1))
            assert [one for one in items if not isinstance(one, DumpedRecord)] == []
            assert all(not hasattr(one, "code") for one in dump_index(storage))
            status = storage_status(storage)
            assert [one.health for one in status.partitions] == ["ok", "ok"]
            assert status.locked_by


def test_an_index_whose_data_file_was_just_removed_is_a_truncation_at_work(tmp_path: Path) -> None:
    """A node removes the data file, then the index, and may be stopped in between: only the directory's time tells."""
    storage = build(tmp_path / "s")
    with DirectoryLock.acquire(storage, storage / "waltz-storage.ctl"):
        seg(storage, 0, 40).unlink()
        assert codes(run(storage)[0]) == []
        age(storage)
        assert codes(run(storage)[0]) == ["index-orphan"]


@pytest.mark.turns(10)
@pytest.mark.parametrize("held", [True, False])
def test_a_segment_that_is_cut_and_written_anew_while_it_is_read_is_not_damaged(tmp_path: Path, held: bool) -> None:
    """Longer than before, with other records: what the reader is in the middle of no longer fits what it has read."""
    storage = age(build_directory(tmp_path / "s", {0: [make_records(3000, size=700)]}, local_low_water_mark=-1))
    path = seg(storage, 0, 0)
    kept = make_records(10, size=700)
    others = [*kept, *make_records(3000, first=10, size=777, seed=1)]
    body, offsets = encode_records(others)

    class Rewriter:
        calls = 0

        def start(self, what: str, total: int) -> None:
            assert total > 1 << 20

        def advance(self, amount: int) -> None:
            self.calls += 1
            if self.calls == 1:
                cut(idx(storage, 0, 0), HEADER_SIZE + 80)
                cut(path, HEADER_SIZE + 10 * 740)
                patch(idx(storage, 0, 0), HEADER_SIZE, encode_entries([HEADER_SIZE + one for one in offsets]))
                patch(path, HEADER_SIZE, body)

    with contextlib.ExitStack() as stack:
        if held:
            stack.enter_context(DirectoryLock.acquire(storage, storage / "waltz-storage.ctl"))
        rewriter = Rewriter()
        *findings, _ = verify([storage], VerifyOptions(threads=1), rewriter)
        assert rewriter.calls > 1
        assert findings == []
        items = dump_records(storage)
        dumped = [next(items)]
        cut(path, HEADER_SIZE + 10 * 740)
        again, _ = encode_records([*kept, *make_records(4000, first=10, size=690, seed=2)])
        patch(path, HEADER_SIZE, again)
        dumped += items
        assert [one for one in dumped if not isinstance(one, DumpedRecord)] == []


class Once:
    """Progress that does something at its first call: after the names of the directory were read, before any file is."""

    def __init__(self, action: Callable[[], None]) -> None:
        self.action: Callable[[], None] | None = action

    def start(self, what: str, total: int) -> None:
        action, self.action = self.action, None
        if action is not None:
            action()

    def advance(self, amount: int) -> None:
        pass


def begun(storage: Path) -> Path:
    """Partition 0 with transactions 0 to 39 and the index of the segment to come, whose data file is not made yet."""
    index = idx(storage, 0, 40)
    index.write_bytes(segment_header(0, 40).encode())
    return age(storage)


def truncate(storage: Path, left: int) -> None:
    """As the release does it: the later index goes, then index and data file of the last segment are cut."""
    idx(storage, 0, 40).unlink(missing_ok=True)
    cut(idx(storage, 0, 20), HEADER_SIZE + 8 * (left - 20))
    cut(seg(storage, 0, 20), HEADER_SIZE + 70 * (left - 20))


@pytest.mark.parametrize("held", [True, False])
def test_a_name_that_went_with_a_truncation_proves_nothing(tmp_path: Path, held: bool) -> None:
    """Between the look at the names and the reading of the segment in front of the last name the partition was cut."""
    storage = begun(build_directory(tmp_path / "s", {0: 40}, per_segment=20, size=30, local_low_water_mark=10))
    with contextlib.ExitStack() as stack:
        if held:
            stack.enter_context(DirectoryLock.acquire(storage, storage / "waltz-storage.ctl"))
        once = Once(lambda: truncate(storage, 35))
        *findings, _ = verify([storage], VerifyOptions(threads=1), once)
        assert once.action is None
        assert findings == []


def test_a_segment_that_was_cut_and_filled_again_in_front_of_a_later_name_is_read_again(tmp_path: Path) -> None:
    """The name is there at both looks, and the segment was short only when it was read."""
    storage = begun(build_directory(tmp_path / "s", {0: 40}, per_segment=20, size=30, local_low_water_mark=10))
    whole = seg(storage, 0, 20).read_bytes(), idx(storage, 0, 20).read_bytes()
    (scope,), limits = plan([storage], None), ReadLimits()
    (run_of_0,) = runs(scope, look_around(scope, None), limits, None)
    truncate(storage, 35)
    age(storage)
    for job in run_of_0.jobs:
        assert list(run_of_0.add(check_segment(job, VerifyOptions(), limits))) == []
    seg(storage, 0, 20).write_bytes(whole[0])
    idx(storage, 0, 20).write_bytes(whole[1])
    begun(storage)
    found = run_of_0.finish(lambda job: check_segment(job, VerifyOptions(), limits))
    assert [one.code for one in found] == ["index-orphan"], "the roll-over that was aged, and no loss"


def test_a_later_name_proves_a_loss_in_a_directory_that_is_held(tmp_path: Path) -> None:
    storage = begun(build_directory(tmp_path / "s", {0: 40}, per_segment=20, size=30, local_low_water_mark=10))
    cut(idx(storage, 0, 20), HEADER_SIZE + 8 * 19)
    cut(seg(storage, 0, 20), HEADER_SIZE + 70 * 19)
    age(storage)
    with DirectoryLock.acquire(storage, storage / "waltz-storage.ctl"):
        *findings, _ = verify([storage], VerifyOptions(threads=1))
    assert [(one.code, one.transaction_id) for one in findings if one.code != "index-orphan"] == [
        ("durable-missing", 39)
    ]


def grow(storage: Path, mark: int) -> None:
    """As a node does it: the segment of transactions 40 to 49 is begun, and the mark rises into it."""
    later = build_directory(storage.parent / "later", {0: 50}, per_segment=20, size=30, local_low_water_mark=mark)
    for file in (seg, idx):
        file(storage, 0, 40).write_bytes(file(later, 0, 40).read_bytes())
    (storage / "waltz-storage.ctl").write_bytes((later / "waltz-storage.ctl").read_bytes())


@pytest.mark.parametrize(
    ("left", "mark", "expected"),
    [
        (40, 39, []),
        (40, 40, []),
        (40, 49, []),
        (39, 38, []),
        (39, 39, ["acknowledged-missing"]),
        (39, 49, ["acknowledged-missing"]),
    ],
)
def test_a_mark_that_rose_after_the_names_were_read_asks_the_segments_of_then_for_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int, mark: int, expected: list[str]
) -> None:
    """They reach up to the first transaction of the segment that was begun since; one record less is a loss."""
    storage = build_directory(tmp_path / "s", {0: left}, per_segment=20, size=30, local_low_water_mark=10)

    def later(*arguments: Any, **named: Any) -> ScopeSurroundings:
        grow(storage, mark)
        return look_around(*arguments, **named)

    monkeypatch.setattr("waltzctl.engine.inspect.verify.look_around", later)
    *findings, _ = verify([storage], VerifyOptions(threads=1))
    assert [one.code for one in findings] == expected


@pytest.mark.parametrize("command", ["verify", "status", "dump", "stats"])
def test_a_mark_that_a_repair_lowers_meanwhile_promises_nothing_any_more(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control file is read first; what was given up behind that is no loss."""
    storage = build_directory(tmp_path / "s", {0: 60}, per_segment=20, local_low_water_mark=9)
    begun = PartitionRun.__init__

    def begun_and_truncated(run: PartitionRun, *given: Any) -> None:
        begun(run, *given)
        if not list_entries(storage):
            apply(plan_truncate(storage, partition=0, after=5, allow_data_loss=True), arguments=[])

    monkeypatch.setattr(PartitionRun, "__init__", begun_and_truncated)
    answer = invoke(command, storage)
    assert list_entries(storage)
    assert "acknowledged-missing" not in answer.out
    assert answer.status == 0


@pytest.mark.parametrize("comes", [False, True], ids=["goes", "comes"])
def test_a_disk_that_goes_or_comes_while_the_partitions_are_listed_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comes: bool
) -> None:
    """Nothing else tells of the partition: it was in no session, and assigned because its directory exists."""
    storage = build_directory(
        tmp_path / "s", {0: 5, 1: 5}, layout=Layout.DOCUMENTED, session=-1, local_low_water_mark=-1
    )
    disk, away = tmp_path / "disk", tmp_path / "away"
    (storage / "1").rename(away if comes else disk)
    (storage / "1").symlink_to(disk)
    viewed = targets.view_storage

    def viewed_before(path: PurePath, *given: Any, **named: Any) -> StorageView:
        found = viewed(path, *given, **named)
        away.rename(disk) if comes else disk.rename(away)
        return found

    monkeypatch.setattr(targets, "view_storage", viewed_before)
    (scope,) = plan([storage], None)
    assert [(one.number, one.error is None) for one in scope.partitions.values()] == [(0, True), (1, comes)]
    assert scope.unknown == ()


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("command", ["verify", "status", "dump", "dump --what index", "dump --what segments", "stats"])
def test_a_directory_that_is_moved_while_it_is_read_was_not_examined(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch, *, replaced: bool
) -> None:
    """Unmounted, or renamed: nothing is found where it was, which is no reason to call all well."""
    storage = build_directory(tmp_path / "s", {0: 60, 1: 20}, per_segment=20)
    other = build_directory(tmp_path / "other", {0: 10, 1: 2})
    begun = PartitionRun.__init__

    def begun_and_moved(run: PartitionRun, *given: Any) -> None:
        begun(run, *given)
        if not (tmp_path / "moved").exists():
            storage.rename(tmp_path / "moved")
            if replaced:
                other.rename(storage)

    monkeypatch.setattr(PartitionRun, "__init__", begun_and_moved)
    answer = invoke(*command.split(), storage, "--format", "ndjson")
    assert answer.status == 14
    assert answer.out.count("the directory was moved or replaced while it was read") == 1


@pytest.mark.parametrize("command", ["verify", "dump", "dump --what index", "dump --what segments", "stats"])
@pytest.mark.parametrize("named", [".", "0000000000000000020.seg"])
def test_a_partition_outside_of_a_storage_directory_that_is_moved_while_it_is_read_was_not_examined(
    tmp_path: Path, command: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = build_directory(tmp_path / "s", {0: 60}, per_segment=20)
    alone = tmp_path / "alone"
    (storage / "0").rename(alone)
    begun = PartitionRun.__init__

    def begun_and_moved(run: PartitionRun, *given: Any) -> None:
        begun(run, *given)
        if alone.exists():
            alone.rename(tmp_path / "moved")

    monkeypatch.setattr(PartitionRun, "__init__", begun_and_moved)
    answer = invoke(*command.split(), alone / named, "--format", "ndjson")
    assert answer.status == 14
    assert answer.out.count("the directory was moved or replaced while it was read") == 1


@pytest.mark.parametrize("command", ["verify", "status", "dump", "stats"])
def test_a_partition_that_is_emptied_while_it_is_read_has_lost_what_was_acknowledged(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk was unmounted, and the mount point is empty: no segment is there any more that could have a finding."""
    storage = build_directory(tmp_path / "s", {0: 60}, per_segment=20, local_low_water_mark=29)
    begun = PartitionRun.__init__

    def begun_and_unmounted(run: PartitionRun, *given: Any) -> None:
        begun(run, *given)
        if not (tmp_path / "moved").exists():
            (storage / "0").rename(tmp_path / "moved")
            (storage / "0").mkdir()

    monkeypatch.setattr(PartitionRun, "__init__", begun_and_unmounted)
    answer = invoke(command, storage, "--format", "ndjson")
    assert answer.status == 4
    assert answer.out.count("transactions 0 to 29 were durable here once") == 1


@pytest.mark.parametrize("command", ["verify", "status", "dump", "stats"])
@pytest.mark.parametrize("layout", [*Layout])
@pytest.mark.parametrize("how", ["moved", "unassign", "delete"])
def test_a_partition_whose_directory_goes_while_it_is_read_is_missing_unless_a_node_took_it_away(
    tmp_path: Path, command: str, layout: Layout, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a link to a disk that is unmounted, for example: nothing of it was read, and nothing was found."""
    storage = build_directory(tmp_path / "s", {0: 60}, per_segment=20, local_low_water_mark=29, layout=layout)
    begun, done = PartitionRun.__init__, list[str]()

    def begun_and_gone(run: PartitionRun, *given: Any) -> None:
        begun(run, *given)
        if not done:
            done.append(how)
            if how == "moved":
                (storage / "0").rename(tmp_path / "moved")
            else:
                with StorageDirectory.open(storage) as directory:
                    directory.unassign(0, delete_files=how == "delete")
                    if layout is Layout.RELEASED and how == "unassign":
                        (storage / "0").rename(tmp_path / "moved")

    monkeypatch.setattr(PartitionRun, "__init__", begun_and_gone)
    answer = invoke(command, storage, "--format", "ndjson")
    assert done
    assert answer.status == (4 if how == "moved" else 0)
    assert answer.out.count('"code":"partition-directory-missing","severity"') == (how == "moved")


@pytest.mark.parametrize("command", ["verify", "status", "dump", "stats"])
@pytest.mark.parametrize("how", ["removed", "unreadable"])
def test_a_partition_that_goes_with_the_control_file_while_it_is_read_is_not_passed_over(
    tmp_path: Path, command: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody removes what is in the storage directory: nothing of it was read, and nothing was found."""
    storage = build_directory(tmp_path / "s", {0: 60}, per_segment=20, local_low_water_mark=29)
    begun, read, done = PartitionRun.__init__, partition_runs.read_control, list[str]()

    def begun_and_gone(run: PartitionRun, *given: Any) -> None:
        begun(run, *given)
        if not done:
            done.append(how)
            shutil.rmtree(storage / "0")
            if how == "removed":
                (storage / CONTROL_FILE_NAME).unlink()

    def reads(path: PurePath) -> ControlFile | None:
        if how == "unreadable":
            raise DiskReadError(path, None, OSError(errno.EIO, os.strerror(errno.EIO)))
        return read(path)

    monkeypatch.setattr(PartitionRun, "__init__", begun_and_gone)
    monkeypatch.setattr(partition_runs, "read_control", reads)
    answer = invoke(command, storage, "--format", "ndjson")
    assert done
    assert answer.status == 14
    assert answer.out.count("nobody knows whether a node took it away") == 1


@pytest.mark.parametrize("command", ["verify", "status", "dump", "stats"])
def test_a_loss_in_a_directory_that_is_moved_when_it_is_found_is_not_passed_over(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a loss still is one is asked of the directory as it is now; that it is not there is no answer."""
    storage = build_directory(tmp_path / "s", {0: 60}, per_segment=20, local_low_water_mark=70)
    ends = PartitionRun.ends

    def told_and_moved(*given: Any) -> Iterator[Any]:
        yield from ends(*given)
        if storage.exists():
            storage.rename(tmp_path / "moved")

    monkeypatch.setattr(PartitionRun, "ends", staticmethod(told_and_moved))
    answer = invoke(command, storage, "--format", "ndjson")
    assert answer.status == 14
    assert answer.out.count("the directory was moved or replaced while it was read") == 1


@pytest.mark.parametrize("command", ["verify", "status", "dump", "stats"])
def test_a_loss_in_a_partition_that_cannot_be_listed_any_more_is_not_passed_over(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = build_directory(tmp_path / "s", {0: 60}, per_segment=20, local_low_water_mark=70)

    def failing(path: Path, number: int | None) -> PartitionView:
        raise DiskReadError(path, None, OSError(errno.EIO, "the disk fails"), doing="list")

    monkeypatch.setattr(partition_runs, "view_partition", failing)
    answer = invoke(command, storage, "--format", "ndjson")
    assert answer.status == 14
    assert "the disk fails" in answer.out


@pytest.mark.parametrize("first", [20, 40])
def test_a_file_on_a_disk_that_is_unmounted_while_it_is_verified_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """Its name is there and leads nowhere: it was not removed, and what it holds was not looked at."""
    storage = build_directory(tmp_path / "s", {0: 60}, per_segment=20, local_low_water_mark=19)
    files = [storage / "0" / name for name in (segment_name(first), index_name(first))]
    disk = tmp_path / "disk"
    disk.mkdir()
    for file in files:
        file.rename(disk / file.name)
        file.symlink_to(disk / file.name)
    begun = PartitionRun.__init__

    def begun_and_unmounted(run: PartitionRun, *given: Any) -> None:
        begun(run, *given)
        if disk.exists():
            disk.rename(tmp_path / "moved")

    monkeypatch.setattr(PartitionRun, "__init__", begun_and_unmounted)
    answer = invoke("verify", storage, "--format", "ndjson")
    assert answer.status == 4
    told = [one["path"] for one in answer.only("finding") if one["code"] == "special-file"]
    assert told == [str(file) for file in sorted(files)]
