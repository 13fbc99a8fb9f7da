"""Every backup of a directory's history can be restored as it was, whatever came and went meanwhile."""

import errno
import os
import random
import shutil
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePath

import pytest

from tests.backup.vaults import PIECE, backup, findings, records_of, restored, settle, vault
from tests.builders import build_directory, digest, make_records, write_segment
from tests.pages.stores import disk_full_after
from tests.storage.support import put_aside_behind_a_link
from waltzctl.engine.backup import backup_creation, backup_removal, section_planner
from waltzctl.engine.backup.backup_creation import create_backup, create_vault
from waltzctl.engine.backup.backup_difference import SectionDifference, differences
from waltzctl.engine.backup.backup_removal import forget, plan_forgetting, prune_vault
from waltzctl.engine.backup.backup_repair import repair_vault
from waltzctl.engine.backup.backup_restore import RestoreOptions
from waltzctl.engine.backup.backup_writer import BackupWriter, ReadPiece
from waltzctl.engine.backup.retention import Retention
from waltzctl.engine.backup.writable_vault import FORGETTING
from waltzctl.engine.durable import disk
from waltzctl.engine.errors import (
    DamageError,
    DirectoryLockedError,
    DiskFullError,
    DiskWriteError,
    InvalidRequestError,
    NotWaltzError,
    RefusedError,
    StalePlanError,
)
from waltzctl.engine.findings import Code, Finding
from waltzctl.engine.inspect.status import storage_status
from waltzctl.engine.inspect.verification import VerifySummary
from waltzctl.engine.inspect.verify import verify
from waltzctl.engine.pages.blob_stats import BlobSpan
from waltzctl.engine.pages.blob_store import BlobStore
from waltzctl.engine.pages.inspection import view_store
from waltzctl.engine.pages.page_storage import PageStorage
from waltzctl.engine.pages.wal_store import WalStore
from waltzctl.engine.vault.vault_path import VaultPath
from waltzctl.engine.vault.vault_reader import VAULT_OPTIONS, VaultReader
from waltzctl.formats.control import Layout, decode_control
from waltzctl.formats.pages.write_batch import Edit
from waltzctl.formats.segment import HEADER_SIZE, RECORD_OVERHEAD
from waltzctl.formats.vault import BackedPartition, BackupHead, Namespace, Piece, Section


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return settle(build_directory(tmp_path / "source", {0: 230, 2: 40}, num_partitions=4))


def test_a_backup_is_restored_byte_for_byte(tmp_path: Path, source: Path) -> None:
    (source / "notes.txt").write_text("x" * 5000)
    (source / "0" / "stray").write_bytes(b"")
    (source / ".waltzctl").mkdir()
    (source / ".waltzctl" / "lock").write_text("77")
    (source / ".waltzctl" / "fences").write_bytes(b"fence")
    (source / "3").mkdir()
    place = vault(tmp_path)
    head = backup(place, source, tag="first")
    expected = digest(source)
    del expected[".waltzctl/lock"]
    assert restored(place, head.name, tmp_path / "back") == expected
    assert (tmp_path / "back" / "3").is_dir()
    for name in expected:
        assert (tmp_path / "back" / name).stat().st_mtime_ns == (source / name).stat().st_mtime_ns
    assert (head.tag, head.num_partitions, head.live, head.damaged) == ("first", 4, False, 0)
    assert [(one.partition, one.first_transaction_id, one.last_transaction_id) for one in head.partitions] == [
        (0, 0, 229), (2, 0, 39), (3, None, None),
    ]  # fmt: skip
    assert head.size == sum((source / name).stat().st_size for name in expected)
    assert findings(place) == []


def test_a_directory_beyond_all_partitions_is_backed_up_as_something_else(tmp_path: Path, source: Path) -> None:
    shutil.copytree(source / "2", source / str(2**31))
    place = vault(tmp_path)
    head = backup(place, source)
    assert [one.partition for one in head.partitions] == [0, 2]
    assert restored(place, head.name, tmp_path / "back") == digest(source)


def test_who_makes_a_vault_last_does_not_take_another_ones_place(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "vault"
    PageStorage.create(place).close()
    look = backup_creation._is_begun

    def slow(path: Path) -> bool:
        """Who looks, and is held up; meanwhile another one makes the vault and a backup."""
        found = look(path)
        monkeypatch.setattr(backup_creation, "_is_begun", look)
        create_vault(path)
        backup(path, source)
        return found

    monkeypatch.setattr(backup_creation, "_is_begun", slow)
    with pytest.raises(InvalidRequestError, match="a vault was made here meanwhile"):
        create_vault(place, password=b"another", scrypt_cost=16)
    assert restored(place, "latest", tmp_path / "back") == digest(source)


def test_the_place_of_a_mounted_disk_is_refused_before_anything_is_written(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, target = vault(tmp_path), tmp_path / "disk"
    backup(place, source)
    target.mkdir()
    monkeypatch.setattr("os.path.ismount", target.__eq__)
    with pytest.raises(RefusedError, match="a disk is mounted there"):
        restored(place, "latest", target)
    assert restored(place, "latest", target / "back") == digest(source)


def test_nothing_is_written_twice(tmp_path: Path, source: Path) -> None:
    place = vault(tmp_path)
    first = backup(place, source)
    assert first.new_pages == first.pages > 10
    assert backup(place, source).new_pages == 0
    replica = build_directory(tmp_path / "replica", {0: 230, 2: 40}, num_partitions=4, per_segment=37)
    again = backup(place, replica)
    assert (again.new_pages, again.pages) == (0, first.pages), "the same transactions in other segments"
    assert restored(place, again.name, tmp_path / "back") == digest(replica)


def test_a_log_that_grows_costs_what_came(tmp_path: Path) -> None:
    records = make_records(400, size=100)
    segments = [records[at : at + 50] for at in range(0, 400, 50)]
    grown = build_directory(tmp_path / "grown", {0: segments})
    source = build_directory(tmp_path / "source", {0: [*segments[:6], segments[6][:20]]})
    place = vault(tmp_path)
    backup(place, source)
    shutil.rmtree(source)
    shutil.copytree(grown, source)
    head = backup(place, source)
    assert head.new_pages <= 5 < head.pages / 2
    assert restored(place, "latest", tmp_path / "back") == digest(grown)


def test_what_did_not_change_is_not_read(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = vault(tmp_path)
    backup(place, source)
    opened: list[str] = []
    original = section_planner.places.open_source
    monkeypatch.setattr(
        section_planner.places, "open_source", lambda path: (opened.append(path.name), original(path))[1]
    )
    backup(place, source)
    assert {name for name in opened if name.endswith(".idx")} == set()
    assert {name for name in opened if name.endswith(".seg")} == {f"{200:019}.seg", f"{0:019}.seg"}, "the last pieces"
    opened.clear()
    path = source / "0" / f"{100:019}.seg"
    path.write_bytes(path.read_bytes())  # of now: it may have changed once more within the tick of the clock
    backup(place, source)
    assert f"{100:019}.seg" in opened
    assert f"{50:019}.seg" in opened, "the piece at the border is cut again"
    assert f"{0:019}.idx" not in opened


@pytest.mark.parametrize("size", [0, 1, 127, 128, 129])
def test_a_data_file_that_ends_around_its_header(tmp_path: Path, source: Path, size: int) -> None:
    place = vault(tmp_path)
    for name in (f"{200:019}.seg", f"{0:019}.seg", f"{100:019}.idx"):
        path = source / "0" / name
        path.write_bytes(path.read_bytes()[:size])
    for number in range(2):
        settle(source)
        head = backup(place, source)
        assert restored(place, head.name, tmp_path / f"back-{number}") == digest(source)


def test_a_file_that_changed_within_the_last_tick_is_read_again(tmp_path: Path, source: Path) -> None:
    place = vault(tmp_path)
    now = 1_600_000_001_999
    backup(place, source, now_ms=lambda: now)
    path = source / "2" / f"{0:019}.seg"
    changed = bytearray(path.read_bytes())
    changed[200] ^= 1
    path.write_bytes(changed)
    settle(source)  # as if it had been written in the same tick
    assert backup(place, source, now_ms=lambda: now + 5000).damaged == 1
    assert restored(place, "latest", tmp_path / "back") == digest(source)


STEPS = ("grow", "grow", "cut", "damage", "drop", "index", "stray", "segment")


def _change(chance: random.Random, directory: Path) -> None:
    """Something that happens to a partition."""
    segments = sorted(directory.glob("*.seg"))
    step = chance.choice(STEPS)
    one = chance.choice(segments) if segments else None
    if step == "segment" or one is None:
        first = chance.randrange(10_000)
        write_segment(directory, make_records(chance.randrange(1, 60), first=first))
    elif step == "grow":
        last = segments[-1]
        there = records_of(last)
        came = make_records(30, first=there[-1].transaction_id + 1 if there else int(last.stem))
        write_segment(directory, [*there, *came], first=int(last.stem))
    elif step == "cut":
        data = one.read_bytes()
        one.write_bytes(data[: chance.randrange(len(data))])
    elif step == "damage":
        data = bytearray(one.read_bytes())
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        one.write_bytes(data)
    elif step == "drop":
        one.unlink()
    elif step == "index":
        index = one.with_suffix(".idx")
        chance.choice([lambda: index.write_bytes(b"junk"), lambda: index.unlink(missing_ok=True)])()
    else:
        (directory / f"stray-{chance.randrange(3)}").write_bytes(chance.randbytes(chance.choice([0, 10, 9000])))


@pytest.mark.turns(12)
@pytest.mark.parametrize("seed", range(12))
def test_every_backup_of_a_history_is_as_it_was(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    source = build_directory(tmp_path / "source", {0: 120, 1: 60})
    password = b"secret" if seed % 4 == 0 else None
    place = vault(tmp_path, password)
    then: dict[str, dict[str, str]] = {}
    for step in range(8):
        for _ in range(chance.randrange(3)):
            _change(chance, source / chance.choice("01"))
        _stamp(source)
        head = backup(place, source, password)
        then[head.name] = digest(source)
        if step % 3 == 2:
            gone = chance.choice([*then])
            forget(plan_forgetting(place, [gone], None, password=password), password=password)
            del then[gone]
            prune_vault(place, password=password)
    assert findings(place, password=password) == []
    for number, (name, expected) in enumerate(then.items()):
        assert restored(place, name, tmp_path / f"back-{number}", password=password) == expected


def _stamp(source: Path) -> None:
    """Files get a time that their content says: what is the same has the same time, what is another has another."""
    for path in source.rglob("*"):
        if path.is_file():
            seconds = 1_500_000_000 + zlib.crc32(path.read_bytes()) % 10_000_000
            os.utime(path, (seconds, seconds))


def test_until_and_rejoin_end_where_they_should(tmp_path: Path) -> None:
    source = build_directory(tmp_path / "source", {0: 230, 1: 40})
    place = vault(tmp_path)
    backup(place, source)

    def ends(name: str, options: RestoreOptions) -> dict[int, int]:
        target = tmp_path / name
        restored(place, "latest", target, options)
        assert [one for one in verify([target]) if isinstance(one, Finding)] == []
        marks = decode_control((target / "waltz-storage.ctl").read_bytes()).partitions
        last = {}
        for number in (0, 1):
            files = sorted((target / str(number)).glob("*.seg"))
            records = records_of(files[-1])
            last[number] = records[-1].transaction_id if records else int(files[-1].stem) - 1
            current = marks[number].current_struct
            assert current is not None
            assert current.local_low_water_mark <= last[number]
            assert current.low_water_mark <= last[number]
            assert current.session_id == (2 if options.for_rejoin else 3), "servers see that it was restored"
        return last

    for until in (-1, 0, 49, 50, 51, 100, 228, 229):
        assert ends(f"until{until}", RestoreOptions(until={0: until})) == {0: until, 1: 39}
    assert ends("rejoin", RestoreOptions(for_rejoin=True)) == {0: 114, 1: 19}
    assert ends("both", RestoreOptions(for_rejoin=True, until={0: 200})) == {0: 200, 1: 19}
    for wrong in ({0: 230}, {0: -2}, {7: 1}):
        with pytest.raises(InvalidRequestError):
            restored(place, "latest", tmp_path / "wrong", RestoreOptions(until=wrong))
        assert not (tmp_path / "wrong").exists()
    with pytest.raises(InvalidRequestError, match="partition 0 is to end early, and is not among those"):
        restored(place, "latest", tmp_path / "one", RestoreOptions(partitions=frozenset({1}), until={0: 9}))
    restored(place, "latest", tmp_path / "one", RestoreOptions(partitions=frozenset({1})))
    assert [one for one in verify([tmp_path / "one"]) if isinstance(one, Finding)] == []
    assert not (tmp_path / "one" / "0").exists()


@pytest.mark.turns(8)
@pytest.mark.parametrize("end", [9, 10, 11, 30, 49, 60])
def test_until_a_transaction_behind_damage(tmp_path: Path, end: int) -> None:
    """A damaged record costs itself: what is intact behind it is there up to the end, and the index agrees."""
    source = build_directory(tmp_path / "source", {0: 100}, size=100)
    segment = source / "0" / f"{0:019}.seg"
    data = bytearray(segment.read_bytes())
    data[HEADER_SIZE + 10 * (RECORD_OVERHEAD + 100) + 70] ^= 1
    segment.write_bytes(data)
    place = vault(tmp_path)
    head = backup(place, source)
    restored(place, head.name, tmp_path / "back", RestoreOptions(until={0: end}))
    *found, summary = verify([tmp_path / "back"])
    assert isinstance(summary, VerifySummary)
    code = "torn-tail" if end == 10 else "record-checksum"  # with nothing behind it
    assert [str(one.code) for one in found if isinstance(one, Finding)] == [code] * (end > 9)
    assert summary.records == end + 1 - (end > 9)


@pytest.mark.parametrize("layout", Layout)
def test_partitions_that_are_left_out_are_not_assigned(tmp_path: Path, layout: Layout) -> None:
    source = build_directory(tmp_path / "source", {0: 60, 1: 40}, num_partitions=3, layout=layout)
    place = vault(tmp_path)
    backup(place, source)
    restored(place, "latest", tmp_path / "one", RestoreOptions(partitions=frozenset({1})))
    assert [one for one in verify([tmp_path / "one"]) if isinstance(one, Finding)] == []
    assert [one.assigned for one in storage_status(tmp_path / "one").partitions] == [False, True, False]
    kept, there = (decode_control((path / "waltz-storage.ctl").read_bytes()) for path in (tmp_path / "one", source))
    assert kept.partitions[1:] == there.partitions[1:]


@pytest.mark.parametrize("size", [0, 1, 127, 128, 150])
def test_a_control_file_that_is_cut_off_comes_back_as_it_was(tmp_path: Path, size: int) -> None:
    """It is taken as it is, so that it has to be given back, whatever of the rest is asked for."""
    source = build_directory(tmp_path / "source", {0: 30, 1: 10})
    os.truncate(source / "waltz-storage.ctl", size)
    head = backup(vault(tmp_path), settle(source))
    assert restored(tmp_path / "vault", head.name, tmp_path / "whole") == digest(source)
    some = RestoreOptions(frozenset({1}), until={1: 4})
    assert "1/0000000000000000000.seg" in restored(tmp_path / "vault", head.name, tmp_path / "some", some)
    assert (tmp_path / "some" / "waltz-storage.ctl").stat().st_size == size
    with pytest.raises(InvalidRequestError, match="how far"):
        restored(tmp_path / "vault", head.name, tmp_path / "rejoin", RestoreOptions(for_rejoin=True))


@pytest.mark.parametrize("layout", list(Layout))
def test_a_backup_of_some_partitions_is_read_and_restored_as_such(tmp_path: Path, layout: Layout) -> None:
    """The others are left out and not taken for lost; of a directory that lost one they are."""
    source = build_directory(tmp_path / "source", {0: 60, 1: 40}, num_partitions=3, layout=layout)
    place = vault(tmp_path)
    head = create_backup(place, source, partitions=frozenset({1}))
    restored(place, "latest", tmp_path / "one")
    for path in (tmp_path / "one", VaultPath.of(place, head.name)):
        assert (head.partial, [one for one in verify([path]) if isinstance(one, Finding)]) == (True, []), path
        assert [one.records or 0 for one in storage_status(path).partitions] == [0, 40, 0]
    shutil.rmtree(source / "0")
    head = create_backup(place, source)
    for path in (source, VaultPath.of(place, head.name)):
        assert [one.code for one in verify([path]) if isinstance(one, Finding)] == [Code.PARTITION_DIRECTORY_MISSING]
    assert (head.partial, restored(place, "latest", tmp_path / "whole")) == (False, digest(source))
    older = head.encode().replace(b'"partial":false,', b"")
    assert b"partial" not in older
    assert BackupHead.decode(older) == head


def test_a_partition_that_was_asked_for_and_is_lost_is_not_left_out(tmp_path: Path, source: Path) -> None:
    """The backup of the others ended well, and was one in which the lost one is not assigned: verify found it clean."""
    place = vault(tmp_path)
    shutil.rmtree(source / "2")
    for asked in ({0, 2}, {2}, {0, 1}):
        with pytest.raises(InvalidRequestError, match=f"partition {max(asked)} has no directory"):
            create_backup(place, source, partitions=frozenset(asked))
    assert list(VaultReader.open(place).heads()) == []
    assert [one.partition for one in create_backup(place, source, partitions=frozenset({0})).partitions] == [0]


def test_a_partition_that_was_put_aside_on_another_disk_is_backed_up(tmp_path: Path) -> None:
    """It was left out, as one that has no file; and where its disk is not mounted, the backup says that it lacks something."""
    source = build_directory(tmp_path / "s", {0: 5, 1: 40}, layout=Layout.DOCUMENTED)
    put_aside_behind_a_link(source, tmp_path / "disk", 1)
    files = digest(tmp_path / "disk" / "1")
    kept = vault(tmp_path)
    assert backup(kept, source).damaged == 0
    back = restored(kept, "latest", tmp_path / "restored")
    aside = ".waltzctl/unassigned/1/"
    assert {name.removeprefix(aside): each for name, each in back.items() if name.startswith(aside)} == files
    *_, summary = verify([tmp_path / "restored"])
    assert isinstance(summary, VerifySummary)
    assert summary.status == "clean"
    (tmp_path / "disk").rename(tmp_path / "away")
    assert backup(kept, source).damaged == 1
    (tmp_path / "away").rename(tmp_path / "disk")
    assert backup(kept, source).damaged == 0
    assert restored(kept, "latest", tmp_path / "again") == back
    (data,) = (tmp_path / "disk" / "1").glob("*.seg")
    data.unlink()
    data.symlink_to(tmp_path / "unmounted")
    assert backup(kept, source).damaged == 1


def test_a_vault_does_not_back_itself_up(tmp_path: Path, source: Path) -> None:
    inside = source / "vault"
    vault(tmp_path).rename(inside)
    (tmp_path / "link").symlink_to(source)
    for named in (source, tmp_path / "link"):
        with pytest.raises(InvalidRequestError, match="would back itself up"):
            create_backup(inside, named)


def test_where_a_backup_cannot_go(tmp_path: Path, source: Path) -> None:
    place = vault(tmp_path)
    backup(place, source)
    with pytest.raises(RefusedError):
        restored(place, "latest", source)
    (tmp_path / "file").write_text("")
    with pytest.raises(RefusedError):
        restored(place, "latest", tmp_path / "file")
    with pytest.raises(InvalidRequestError):
        restored(place, "latest", tmp_path / "no" / "where")
    (tmp_path / "link").symlink_to(place)
    for inside in (place / "back", place / "wal" / "back", tmp_path / "link" / "back"):
        with pytest.raises(InvalidRequestError, match="lies in the vault"):
            restored(place, "latest", inside)
    (tmp_path / "empty").mkdir()
    restored(place, "latest", tmp_path / "empty")
    (tmp_path / ".late.restoring").mkdir()
    (tmp_path / ".late.restoring" / "half").write_text("of a restore that was killed")
    restored(place, "latest", tmp_path / "late")
    assert not (tmp_path / ".late.restoring").exists()
    assert not (tmp_path / "late" / "half").exists()
    (tmp_path / ".last.restoring").symlink_to(source)
    before = digest(source)
    with pytest.raises(DiskWriteError, match=r"last\.restoring: cannot remove directory"):
        restored(place, "latest", tmp_path / "last")
    assert digest(source) == before


def test_room_that_a_killed_restore_takes_is_there_for_the_next_one(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lies in a hidden directory; whoever was told that the disk is full would never have been rid of it."""
    place = vault(tmp_path)
    head = backup(place, source)
    left = tmp_path / ".back.restoring"
    left.mkdir()
    (left / "half").write_bytes(bytes(head.size // 2))

    def free_bytes(_: PurePath) -> int:
        return head.size - sum(one.stat().st_size for one in left.rglob("*") if one.is_file())

    monkeypatch.setattr(disk, "free_bytes", free_bytes)
    assert restored(place, "latest", tmp_path / "back") == digest(source)
    monkeypatch.setattr(disk, "free_bytes", lambda _: head.size - 1)
    with pytest.raises(DiskFullError, match=f"{head.size - 1} are free"):
        restored(place, "latest", tmp_path / "more")
    assert not (tmp_path / "more").exists()
    assert not (tmp_path / ".more.restoring").exists()


def vault_with_more_to_come(tmp_path: Path, source: Path) -> tuple[Path, list[Path], list[int]]:
    """A vault with a backup of a storage that has grown since by 900 KB; its blob files, and how long they are."""
    place = vault(tmp_path)
    backup(place, source)
    blobs = sorted((place / "blob").iterdir())
    write_segment(source / "0", make_records(100, first=230, size=9000), first=230)
    return place, blobs, [one.stat().st_size for one in blobs]


def test_a_backup_that_meets_a_full_disk_leaves_its_room(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, blobs, sizes = vault_with_more_to_come(tmp_path, source)
    disk_full_after(monkeypatch, 100_000)
    with pytest.raises(DiskFullError):
        backup(place, source)
    monkeypatch.undo()
    assert [one.stat().st_size for one in blobs] == sizes
    backup(place, source)
    assert restored(place, "latest", tmp_path / "back") == digest(source)


@pytest.mark.parametrize("torn", [0, 40])
def test_what_a_backup_left_that_met_a_full_disk_in_the_log_is_cut_by_whoever_opens_the_vault(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, torn: int
) -> None:
    """Nobody else can cut it: the disk stayed full of it, as opening needs a few bytes of log."""
    place, blobs, sizes = vault_with_more_to_come(tmp_path, source)
    append, cut = WalStore.append, BlobStore.cut_tails
    with monkeypatch.context() as patch:

        def met_full(log: WalStore, payload: bytes, *_: object, **__: object) -> None:
            disk_full_after(patch, torn)
            append(log, payload)

        patch.setattr(WalStore, "append", met_full)
        with pytest.raises(DiskFullError):
            backup(place, source)
    assert sum(one.stat().st_size for one in blobs) > sum(sizes) + 100_000

    def cut_and_free(store: BlobStore, named: Iterable[BlobSpan] = ()) -> int:
        given = cut(store, named)
        if given:
            monkeypatch.undo()  # there is room again
        return given

    monkeypatch.setattr(BlobStore, "cut_tails", cut_and_free)
    disk_full_after(monkeypatch, LOCKED)
    prune_vault(place)
    assert [one.stat().st_size for one in blobs] == sizes
    assert findings(place) == []
    backup(place, source)
    assert restored(place, "latest", tmp_path / "back") == digest(source)


def fill_by_a_killed_backup(place: Path, patch: pytest.MonkeyPatch, free: int, *, room: int) -> None:
    """A backup died and left 120,000 bytes; from here on `room` bytes can be written until they are cut."""
    with PageStorage.open(place, VAULT_OPTIONS) as store:
        store.place([b"killed" * 20_000])
    cut_tails = BlobStore.cut_tails

    def cut_and_free(store: BlobStore, named: Iterable[BlobSpan] = ()) -> int:
        given = cut_tails(store, named)
        patch.undo()  # there is room again
        return given

    patch.setattr(BlobStore, "cut_tails", cut_and_free)
    patch.setattr(disk, "free_bytes", lambda _: free)
    disk_full_after(patch, room)


LOCKED = len(f"{os.getpid()}\n")
"""Bytes that say who holds the lock; they are in their place already."""


@pytest.mark.parametrize(("free", "cut"), [(FORGETTING - 1, True), (FORGETTING, False)])
def test_backups_can_be_forgotten_on_a_disk_that_a_killed_backup_filled(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, free: int, cut: bool
) -> None:
    """Pruning would cut what it left, and comes after the record that forgets, for which there is no room."""
    place = vault(tmp_path)
    head = backup(place, source)
    (blob,) = (place / "blob").iterdir()
    size = blob.stat().st_size
    plan = plan_forgetting(place, [head.name], None)
    fill_by_a_killed_backup(place, monkeypatch, free, room=LOCKED if cut else 1 << 20)
    forget(plan)
    assert blob.stat().st_size == size + (0 if cut else 120_000)
    assert list(VaultReader.open(place).heads()) == []


def test_a_prune_of_a_full_disk_cuts_before_it_deletes_what_no_backup_needs(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = vault(tmp_path)
    head = backup(place, source)
    with monkeypatch.context() as patch:  # it was killed behind its first batch
        patch.setattr(backup_removal, "DELETED_AT_ONCE", 1)
        patch.setattr(backup_removal, "_delete", lambda *_: None)
        forget(plan_forgetting(place, [head.name], None))
    fill_by_a_killed_backup(place, monkeypatch, 0, room=LOCKED)
    assert prune_vault(place).orphans == head.num_pages - 1
    assert findings(place) == []


def test_a_full_disk_of_a_vault_is_told_with_what_helps(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, _, _ = vault_with_more_to_come(tmp_path, source)
    disk_full_after(monkeypatch, 100_000)
    with pytest.raises(DiskFullError) as caught:
        backup(place, source)
    assert "backup forget --prune" in str(caught.value.advice)


def test_who_backs_up_keeps_one_section_of_all_backups_in_memory(tmp_path: Path, source: Path) -> None:
    """Of 30 backups of a terabyte they are 30 million pieces, and a quarter of a kilobyte for each of them."""
    place = vault(tmp_path)
    heads = [backup(place, source) for _ in range(5)]
    with PageStorage.open(place, VAULT_OPTIONS) as store:
        reader = VaultReader.over(store)
        writer = BackupWriter(store, reader, str(source), lambda: 0)
        assert len(writer.heads) == len(heads)
        assert set(writer.previous()) == {0, 2, None}
        assert {backup for backup, _ in reader._sections} == {heads[-1].id}


def test_one_writes_at_a_time(tmp_path: Path, source: Path) -> None:
    place = vault(tmp_path)
    with PageStorage.open(place), pytest.raises(DirectoryLockedError):
        backup(place, source)
    backup(place, source)


@pytest.mark.parametrize("room", [0, 15, 150, 400])
def test_a_vault_that_was_begun_on_a_full_disk_is_made_there_later(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    place = tmp_path / "vault"
    disk_full_after(monkeypatch, room)
    with pytest.raises(DiskFullError):
        create_vault(place)
    monkeypatch.undo()
    create_vault(place)
    backup(place, source)
    assert findings(place) == []
    with pytest.raises(InvalidRequestError, match="not empty"):
        create_vault(place)


def test_what_is_no_vault_and_no_source(tmp_path: Path, source: Path) -> None:
    place = vault(tmp_path)
    with pytest.raises(NotWaltzError):
        create_backup(place, tmp_path)
    for write in (
        lambda: create_backup(source, source),
        lambda: prune_vault(source),
        lambda: repair_vault(source, source),
    ):
        with pytest.raises(NotWaltzError, match="no backup vault"):
            write()
    with pytest.raises(NotWaltzError):
        VaultReader.open(tmp_path)
    with PageStorage.create(tmp_path / "plain"):
        pass
    with pytest.raises(NotWaltzError, match="no backup vault"):
        VaultReader.open(tmp_path / "plain")
    with pytest.raises(InvalidRequestError):
        backup(place, source, partitions=frozenset({3}))
    assert list(VaultReader.open(place).heads()) == []
    with pytest.raises(InvalidRequestError, match="no backup is in the vault"):
        VaultReader.open(place).find("latest")


def test_a_prefix_names_one_backup_or_none(tmp_path: Path, source: Path) -> None:
    place = vault(tmp_path)
    heads = [backup(place, source) for _ in range(17)]
    reader = VaultReader.open(place)
    for one in heads:
        assert reader.find(one.name) == one
        assert reader.find(one.name.upper()) == one
    firsts = [one.name[0] for one in heads]
    twice = next(letter for letter in firsts if firsts.count(letter) > 1)
    with pytest.raises(InvalidRequestError, match="backups have ids"):
        reader.find(twice)
    with pytest.raises(InvalidRequestError):
        reader.find("")
    assert reader.find("latest").created_ms == max(one.created_ms for one in heads)


def test_the_latest_is_the_one_made_last_where_the_clock_was_put_back(tmp_path: Path, source: Path) -> None:
    place = vault(tmp_path)
    fast = backup(place, source, now_ms=lambda: 1_800_000_000_000)
    write_segment(source / "0", make_records(30, first=230), first=230)
    last = backup(place, source, now_ms=lambda: 1_799_990_000_000)
    reader = VaultReader.open(place)
    assert [one.id for one in reader.heads() if isinstance(one, BackupHead)] == [fast.id, last.id]
    assert reader.find("latest").id == last.id
    assert [one.id for one in plan_forgetting(place, [], Retention(last=1)).forgotten] == [fast.id]
    assert restored(place, "latest", tmp_path / "back") == digest(source)


def test_sections_of_earlier_backups_are_read_for_what_they_added(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each backup read every section of all that were there: with 3,000 it took ten seconds."""
    place, section = vault(tmp_path), VaultReader.section
    read: list[int] = []

    def counted(reader: VaultReader, head: BackupHead, one: BackedPartition, *, keep: bool = True) -> Section:
        read.append(head.id)
        return section(reader, head, one, keep=keep)

    monkeypatch.setattr(VaultReader, "section", counted)
    heads, needed = [backup(place, source)], []
    for _ in range(5):
        read.clear()
        heads.append(backup(place, source))
        needed.append(len(read))
    assert needed == [needed[0]] * 5
    assert all(one.new_pages == 0 for one in heads[1:])
    forget(plan_forgetting(place, [one.name for one in heads[:3]], None))
    prune_vault(place)
    for one in (source / "0").iterdir():
        os.utime(one)  # so that it is read again
    write_segment(source / "2", make_records(30, first=40, partition=2), partition=2, first=40)
    added = backup(place, source)
    assert 0 < added.new_pages < heads[0].new_pages / 2
    assert backup(place, source).new_pages == 0
    assert restored(place, "latest", tmp_path / "back") == digest(source)


def test_few_long_records_are_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eighteen pieces of 128 MiB were in memory, twice, on a machine with eight processors."""
    source = settle(build_directory(tmp_path / "source", {0: 40}, size=20_000, per_segment=40))
    held, most, lock = [0], [0], threading.Lock()
    read, take = BackupWriter.read, BackupWriter.take

    def heard(writer: BackupWriter, content: bytes, *given: int) -> ReadPiece:
        with lock:
            held[0] += len(content)
            most[0] = max(most[0], held[0])
        return read(writer, content, *given)

    def slowly(writer: BackupWriter, piece: ReadPiece, page: int | None = None) -> Piece:
        time.sleep(0.005)
        with lock:
            held[0] -= piece.piece.size
        return take(writer, piece, page)

    monkeypatch.setattr(BackupWriter, "read", heard)
    monkeypatch.setattr(BackupWriter, "take", slowly)
    monkeypatch.setattr(backup_creation, "WORKERS", 8)
    place = vault(tmp_path)
    backup(place, source)
    assert 20_000 < most[0] <= 18 * PIECE + 21_000
    monkeypatch.undo()
    assert restored(place, "latest", tmp_path / "back") == digest(source)


@pytest.mark.parametrize("full", [False, True])
def test_the_pages_of_what_is_forgotten_go_in_batches(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, *, full: bool
) -> None:
    """All of them were in memory together, a third of a kilobyte each: four times what the open vault takes."""
    place = vault(tmp_path)
    heads = [backup(place, source) for _ in range(3)]
    batches: list[int] = []
    commit = PageStorage.commit

    def heard(store: PageStorage, edits: list[Edit], judged: int | None = None) -> int:
        if full and batches:
            raise DiskFullError(place, None, OSError(errno.ENOSPC, "no space"))
        batches.append(len(edits))
        return commit(store, edits, judged)

    monkeypatch.setattr(backup_removal, "DELETED_AT_ONCE", 7)
    plan = plan_forgetting(place, [one.name for one in heads[:2]], None)
    with monkeypatch.context() as patched:
        patched.setattr(PageStorage, "commit", heard)
        forget(plan)
    pages = sum(one.num_pages for one in heads[:2])
    assert batches == ([11] if full else [11, *[7] * ((pages - 7) // 7), *([rest] if (rest := pages % 7) else [])])
    assert [one.id for one in VaultReader.open(place).heads()] == [heads[2].id]
    assert findings(place) == []
    assert prune_vault(place).orphans == (pages - 7 if full else 0)
    assert restored(place, "latest", tmp_path / "back") == digest(source)


def test_forgetting_many_by_name_goes_through_the_vault_once(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It went through all pages of the vault for each: 300 of 3,000 backups took 45 seconds."""
    place = vault(tmp_path)
    names = [backup(place, source).name for _ in range(6)]
    passes, pages = [], VaultReader.pages

    def counted(reader: VaultReader, namespace: Namespace) -> Iterator[int]:
        passes.append(namespace)
        return pages(reader, namespace)

    monkeypatch.setattr(VaultReader, "pages", counted)
    needed = []
    for asked in (names[:1], names[1:]):
        passes.clear()
        plan = plan_forgetting(place, asked, None)
        assert ([one.name for one in plan.forgotten], plan.kept) == (asked, 6 - len(asked))
        needed.append(len(passes))
    assert needed[0] == needed[1]


def test_forgetting_by_rule_and_pruning(tmp_path: Path, source: Path) -> None:
    place = vault(tmp_path)
    day = 86_400_000
    heads = [backup(place, source, now_ms=lambda at=at: 1_700_000_000_000 + at * day) for at in range(5)]
    plan = plan_forgetting(place, [], Retention(daily=2))
    assert [one.id for one in plan.forgotten] == [one.id for one in heads[:3]]
    assert plan.kept == 2
    forget(plan)
    with pytest.raises(StalePlanError):
        forget(plan)
    prune_vault(place)
    assert [one.id for one in VaultReader.open(place).heads()] == [one.id for one in heads[3:]]
    assert restored(place, "latest", tmp_path / "back") == digest(source)
    for ids, rule in (([], None), ([], Retention()), ([heads[4].name], Retention(last=1))):
        with pytest.raises(InvalidRequestError):
            plan_forgetting(place, ids, rule)
    forget(plan_forgetting(place, ["latest", heads[3].name], None))
    prune_vault(place)
    assert {one.page.namespace for one in view_store(place).pages()} == {Namespace.CONFIGURATION}


def test_a_rule_is_not_followed_once_what_it_keeps_is_gone(tmp_path: Path, source: Path) -> None:
    """Somebody may forget that while a person thinks about the plan."""
    place = vault(tmp_path)
    first, last = backup(place, source), backup(place, source)
    plan = plan_forgetting(place, [], Retention(last=1))
    assert [one.id for one in plan.forgotten] == [first.id]
    forget(plan_forgetting(place, [last.name], None))
    with pytest.raises(StalePlanError, match=f"{last.name}, which was to be kept"):
        forget(plan)
    assert VaultReader.open(place).ids() == [first.id]
    later = backup(place, source)
    plan = plan_forgetting(place, [], Retention(last=1))
    newest = backup(place, source)  # nothing that is to be kept is gone
    forget(plan)
    assert set(VaultReader.open(place).ids()) == {later.id, newest.id}


def test_two_that_forget_what_the_other_one_keeps_leave_one_backup(tmp_path: Path, source: Path) -> None:
    """Each was told that one backup is kept."""
    place = vault(tmp_path)
    first, last = backup(place, source), backup(place, source)
    plans = [plan_forgetting(place, [one.name], None) for one in (first, last)]
    forget(plans[0])
    with pytest.raises(StalePlanError, match="of the backups that were to be kept none is left; nothing was done"):
        forget(plans[1])
    assert VaultReader.open(place).ids() == [last.id]
    forget(plan_forgetting(place, [last.name], None))  # whoever sees that it is the last one
    assert VaultReader.open(place).ids() == []


@pytest.mark.parametrize("where", ["the log begins anew", "the threads end"])
def test_a_backup_that_is_interrupted_when_it_is_in_the_log_is_whole(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Its pages were given back and cut off the file that they lie in, and its head as well: `latest` was refused for good."""
    place = vault(tmp_path)
    ended = ThreadPoolExecutor.shutdown

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    def interrupted_there(pool: ThreadPoolExecutor, *given: bool, **named: bool) -> None:
        ended(pool, *given, **named)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if where == "the threads end":
            patch.setattr(ThreadPoolExecutor, "shutdown", interrupted_there)
        else:
            patch.setattr(WalStore, "roll_when_full", interrupted)
        with pytest.raises(KeyboardInterrupt):
            backup(place, source)
    assert len(VaultReader.open(place).ids()) == 1
    assert findings(place) == []
    assert restored(place, "latest", tmp_path / "back") == digest(source)
    assert backup(place, source).new_pages == 0


def test_differences(tmp_path: Path, source: Path) -> None:
    place = vault(tmp_path)
    first = backup(place, source)
    write_segment(source / "2", make_records(10, first=40, partition=2))
    shutil.rmtree(source / "0")
    (source / "1").mkdir()
    second = backup(place, source)
    reader = VaultReader.open(place)
    found = {one.partition: one for one in differences(reader, first, second)}
    assert {number: one.difference for number, one in found.items()} == {
        None: SectionDifference.SAME, 0: SectionDifference.REMOVED, 1: SectionDifference.ADDED, 2: SectionDifference.CHANGED,
    }  # fmt: skip
    assert (found[2].first, found[2].second) == ((0, 39), (0, 49))
    assert found[2].files == (f"2/{40:019}.idx", f"2/{40:019}.seg")
    assert all(one.difference is SectionDifference.SAME for one in differences(reader, first, first))


def test_a_piece_that_is_damaged_stops_the_restore_that_needs_it(tmp_path: Path, source: Path) -> None:
    place = vault(tmp_path)
    head = backup(place, source)
    reader = VaultReader.open(place)
    entry = reader.entry(Namespace.DATA, head.first_page)
    assert entry is not None
    blob = place / "blob" / f"blobfile_{entry.file_id}"
    data = bytearray(blob.read_bytes())
    data[entry.offset + 30] ^= 4
    blob.write_bytes(data)
    with pytest.raises(DamageError):
        restored(place, "latest", tmp_path / "back")
    assert not (tmp_path / "back").exists()
    assert not (tmp_path / ".back.restoring").exists()
