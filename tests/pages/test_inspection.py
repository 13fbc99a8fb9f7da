"""Looking at a store without opening it, and salvaging what is whole."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.crash.simdisk import Tree
from tests.pages.model import TIGHT, Model, expected, shown_by, step
from tests.pages.stores import crash, data, delete, disk_full_after, put, ref, sector_lost
from waltzctl.engine.durable import disk
from waltzctl.engine.durable.disk import TEMPORARY_SUFFIX
from waltzctl.engine.errors import (
    DamageError,
    DirectoryLockedError,
    DiskFullError,
    DiskWriteError,
    InvalidRequestError,
    NotWaltzError,
)
from waltzctl.engine.findings import Finding
from waltzctl.engine.pages import inspection
from waltzctl.engine.pages.checkpoint import checkpoint_of
from waltzctl.engine.pages.inspection import (
    StoreView,
    dump_free,
    dump_log,
    dump_versions,
    store_status,
    verify_store,
    view_store,
)
from waltzctl.engine.pages.page_batch import WriteBatch
from waltzctl.engine.pages.page_gc import collect_garbage, collect_until_done
from waltzctl.engine.pages.page_salvage import salvage_store
from waltzctl.engine.pages.page_storage import PageStorage
from waltzctl.engine.pages.recovery_mode import RecoveryMode
from waltzctl.engine.pages.wal_reader import edits_of
from waltzctl.formats.checksums import crc32c
from waltzctl.formats.pages.write_batch import Edit, EditType, PageEntry, PageId, Version, encode_batch


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Pages 1 to 4, a reference 5 to 2, whose page is gone, and an external page 6."""
    store = PageStorage.create(tmp_path / "s")
    store.write(WriteBatch().put_page(1, b"one").put_page(2, [b"t", b"wo"], tag=22).put_page(3, b"three"))
    store.write(WriteBatch().put_ref(5, 2).put_external(6))
    delete(store, 2)
    put(store, 4, b"four", namespace=9)
    put(store, 1, b"again")
    crash(store)
    return tmp_path / "s"


def codes(path: Path) -> list[str]:
    return [str(one.code) for one in verify_store(path).findings]


def flip(path: Path, offset: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 4
    path.write_bytes(raw)


def test_a_whole_store_is_clean_and_left_as_it_was(path: Path) -> None:
    before = Tree.read(path)
    found = verify_store(path)
    assert (found.status, found.pages, found.references, found.log_records, found.blob_files) == ("clean", 5, 1, 5, 1)
    status = store_status(path)
    assert (status.pages, status.references, status.external_pages, status.namespaces) == (5, 1, 1, 2)
    assert (status.valid_size, status.blob_size, status.sequence, status.locked_by) == (17, 20, 5, None)
    assert status.space_amplification == 20 / 17
    assert Tree.read(path).differences(before) == []


def test_what_is_no_store_is_said(tmp_path: Path) -> None:
    for act in (verify_store, store_status, view_store):
        with pytest.raises(NotWaltzError):
            act(tmp_path)


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"left")


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda path: flip(path / "blob" / "blobfile_1", 4), ["page-checksum"]),  # held by a reference only
        (lambda path: flip(path / "blob" / "blobfile_1", 0), []),  # nobody sees it any more
        (lambda path: (path / "blob" / "blobfile_1").unlink(), ["page-missing"] * 4),
        (lambda path: flip(path / "wal" / "log_1_0", 20), ["log-record-checksum"]),
        (lambda path: flip(path / "wal" / "log_1_0", (path / "wal" / "log_1_0").stat().st_size - 1), ["log-torn-tail"]),
        (lambda path: grow(path / "blob" / "blobfile_1"), ["space-leaked"]),
        (lambda path: (path / "blob" / "blobfile_7").write_bytes(b"left"), ["space-leaked"]),
        (lambda path: (path / "blob" / "notes").write_bytes(b"left"), ["unknown-file"]),
        (lambda path: (path / "wal" / f"log_3_1{TEMPORARY_SUFFIX}").write_bytes(b""), ["temporary-file"]),
        (lambda path: shutil.copy(path / "wal" / "log_1_0", path / "wal" / "log_3_0"), ["log-missing"]),
    ],
)  # fmt: skip
def test_damage_is_named(path: Path, damage: Callable[[Path], object], expected: list[str]) -> None:
    damage(path)
    found = [code for code in codes(path) if code != "space-leaked" or expected == ["space-leaked"]]
    if "log-missing" in expected:
        assert "log-missing" in found
    else:
        assert found == expected


def test_a_store_in_use_is_verified(tmp_path: Path) -> None:
    store = PageStorage.create(tmp_path / "s")
    put(store, 1, b"x" * 100)
    put(store, 2, b"y" * 100)
    delete(store, 2)
    assert verify_store(tmp_path / "s").status == "clean"
    status = store_status(tmp_path / "s")
    assert status.locked_by is not None
    store.close()


def test_what_a_writer_did_who_is_gone_by_now_is_no_damage(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are moved, and their files removed, between the look at the log and the reading."""
    with PageStorage.open(path) as store:
        put(store, 7, b"x" * 1000)
        put(store, 8, b"behind it")
        delete(store, 7)
    find, looks = inspection._findings, []

    def behind_a_round(view: StoreView) -> tuple[list[Finding], int]:
        looks.append(view)
        if len(looks) == 1:
            with PageStorage.open(path) as store:
                assert collect_until_done(store)[0].pages_moved
        return find(view)

    monkeypatch.setattr(inspection, "_findings", behind_a_round)
    assert verify_store(path).findings == ()
    assert len(looks) == 2


def test_dumps(path: Path) -> None:
    view = view_store(path, every_version=True)
    versions = [(one.page, one.version.sequence, one.kind, one.latest) for one in dump_versions(view)]
    assert versions == [
        (PageId(0, 1), 5, "data", True), (PageId(0, 1), 1, "data", False),
        (PageId(0, 2), 3, "delete", True), (PageId(0, 2), 1, "data", False),
        (PageId(0, 3), 1, "data", True), (PageId(0, 5), 2, "reference", True), (PageId(0, 6), 2, "external", True),
        (PageId(9, 4), 4, "data", True),
    ]  # fmt: skip
    logged = list(dump_log(view))
    assert [one.edit.type for one in logged][:5] == [EditType.PUT] * 3 + [EditType.REF, EditType.PUT_EXTERNAL]
    assert [one.place for one in logged][:5] == [0, 1, 2, 0, 1]
    assert [(one.file_id, one.offset, one.size) for one in dump_free(view_store(path))] == [(1, 0, 3)]


def test_salvage_of_a_whole_store_is_the_same_store(path: Path, tmp_path: Path) -> None:
    done = salvage_store(path, tmp_path / "to")
    assert (done.exit_status_name, done.pages, done.references, done.external_pages, done.lost) == (
        "clean",
        3,
        1,
        1,
        (),
    )
    with PageStorage.open(tmp_path / "to") as store:
        page = store.read(5)
        assert (page.data, page.tag, [bytes(part) for part in page.fields]) == (b"two", 22, [b"t", b"wo"])
        assert [data(store, number) for number in (1, 2, 3)] == [b"again", None, b"three"]
        assert store.read(4, namespace=9).data == b"four"
        assert store.get_entry(6) is not None
        assert store.max_id() == 6


def test_salvage_names_what_is_lost_and_takes_the_rest(path: Path, tmp_path: Path) -> None:
    flip(path / "blob" / "blobfile_1", 4)
    done = salvage_store(path, tmp_path / "to")
    assert (done.exit_status_name, done.lost) == ("damage-remains", (PageId(0, 5),))
    assert [str(one.code) for one in done.findings] == ["page-checksum"]
    with PageStorage.open(tmp_path / "to") as store:
        assert [data(store, number) for number in (1, 3, 5)] == [b"again", b"three", None]


def test_a_page_that_the_disk_cannot_read_is_named_and_the_rest_is_taken(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sector_lost(monkeypatch, path / "blob" / "blobfile_1", 4)
    (finding,) = verify_store(path).findings
    assert str(finding.code) == "page-checksum"
    assert "cannot be read" in finding.message
    saved = salvage_store(path, tmp_path / "new")
    assert [one.message for one in saved.findings] == [finding.message]
    assert saved.lost == (PageId(0, 5),)
    with PageStorage.open(tmp_path / "new") as new:
        assert [data(new, page) for page in (1, 3, 5)] == [b"again", b"three", None]


def test_salvage_of_a_damaged_log(path: Path, tmp_path: Path) -> None:
    """The third record, a delete, is lost: its page comes back, and the finding says that something is missing."""
    third = view_store(path).contents.files[0].records[2]
    flip(path / "wal" / "log_1_0", third.offset + 16)
    done = salvage_store(path, tmp_path / "to")
    assert done.exit_status_name == "damage-remains"
    with PageStorage.open(tmp_path / "to") as store:
        assert [data(store, number) for number in (1, 2, 3, 5)] == [b"again", b"two", b"three", b"two"]
        assert store.normal_page_id(5) == 2


def test_salvage_into_what_is_not_empty_or_inside_is_refused(path: Path, tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "x").write_bytes(b"")
    for target in (tmp_path / "to", path, path / "to"):
        with pytest.raises(InvalidRequestError):
            salvage_store(path, target)


def test_a_salvage_whose_name_cannot_be_made_durable_leaves_nothing(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command again was refused for what it had left."""
    target, sync = tmp_path / "there" / "to", disk.sync_directory
    target.parent.mkdir()

    def fails(directory: Path, *more: Any) -> None:
        if directory == target.parent and target.exists():
            raise DiskWriteError(directory, None, OSError(errno.EIO, os.strerror(errno.EIO)))
        sync(directory, *more)

    with monkeypatch.context() as patched:
        patched.setattr(disk, "sync_directory", fails)
        with pytest.raises(DiskWriteError):
            salvage_store(path, target)
    assert [*target.parent.iterdir()] == []
    assert salvage_store(path, target).exit_status_name == "clean"


def test_a_salvage_that_does_not_come_to_its_end_leaves_nothing(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of a store could not be told from a whole one; and the next salvage of the same name does it all."""
    target = tmp_path / "there" / "to"
    target.mkdir(parents=True)
    disk_full_after(monkeypatch, 100)
    with pytest.raises(DiskFullError):
        salvage_store(path, target)
    monkeypatch.undo()
    assert [*target.parent.rglob("*")] == [target]
    PageStorage.create(tmp_path / "there" / f"to{TEMPORARY_SUFFIX}").close()  # one that was killed
    assert salvage_store(path, target).exit_status_name == "clean"
    assert [*target.parent.iterdir()] == [target]
    assert verify_store(target).status == "clean"


def test_a_salvage_gives_its_name_to_nothing_of_another_one(path: Path, tmp_path: Path) -> None:
    target, beside = tmp_path / "to", tmp_path / f"to{TEMPORARY_SUFFIX}"
    with PageStorage.create(beside) as under_way:
        put(under_way, 1, b"a part")
        with pytest.raises(DirectoryLockedError):
            salvage_store(path, target)
        assert (data(under_way, 1), target.exists(), verify_store(beside).status) == (b"a part", False, "clean")
    assert salvage_store(path, target).exit_status_name == "clean"
    target.rename(beside)
    with pytest.raises(InvalidRequestError, match="lies in the store that is salvaged"):
        salvage_store(beside, target)
    assert verify_store(beside).status == "clean"


def test_salvage_into_the_place_of_a_mounted_disk_is_refused_before_anything_is_written(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was built on the disk beside, all of it, and then could not have its name."""
    (tmp_path / "to").mkdir()
    monkeypatch.setattr("os.path.ismount", (tmp_path / "to").__eq__)
    with pytest.raises(InvalidRequestError, match="a disk is mounted there"):
        salvage_store(path, tmp_path / "to")
    assert salvage_store(path, tmp_path / "to" / "s").exit_status_name == "clean"


def test_salvage_into_the_store_itself_is_seen_through_links(path: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(path)
    before = sorted(path.rglob("*"))
    for source, target in (
        (path, tmp_path / "link" / "to"),
        (tmp_path / "link", path / "to"),
        (tmp_path / "link", path / "wal" / "to"),
    ):
        with pytest.raises(InvalidRequestError, match="lies in the store that is salvaged"):
            salvage_store(source, target)
    assert sorted(path.rglob("*")) == before


def test_a_page_that_became_a_reference_and_is_held_by_another(tmp_path: Path) -> None:
    store = PageStorage.create(tmp_path / "s")
    put(store, 1, b"old")
    put(store, 2, b"two")
    ref(store, 3, 1)
    ref(store, 4, 2)
    delete(store, 1, 2)
    ref(store, 1, 4)
    ref(store, 2, 3)
    collect_garbage(store, checkpoint=True)
    store.close()
    salvage_store(tmp_path / "s", tmp_path / "to")
    for place in ("s", "to"):
        with PageStorage.open(tmp_path / place) as again:
            assert [data(again, number) for number in (1, 2, 3, 4)] == [b"two", b"old", b"old", b"two"]


@pytest.mark.parametrize("live", [False, True], ids=["gone", "there again"])
def test_versions_of_one_page_that_only_references_show(tmp_path: Path, *, live: bool) -> None:
    last = 2**64 - 1
    with PageStorage.create(tmp_path / "s") as store:
        put(store, last, b"last")  # behind which no id is free
        for referring, content in ((2, b"a"), (3, b"b"), (4, b"c")):
            put(store, 0, content)
            ref(store, referring, 0)
            delete(store, 0)
        if live:
            put(store, 0, b"now")
    done = salvage_store(tmp_path / "s", tmp_path / "to")
    assert (done.exit_status_name, done.pages, done.references) == ("clean", 1 + live, 3)
    for place in ("s", "to"):
        with PageStorage.open(tmp_path / place) as again:
            shown = [data(again, number) for number in (0, 1, 2, 3, 4, last)]
            assert shown == [b"now" if live else None, None, b"a", b"b", b"c", b"last"]
    assert verify_store(tmp_path / "to").findings == ()


@pytest.mark.parametrize("seed", range(3))
def test_random_stores_are_verified_and_salvaged(tmp_path: Path, seed: int) -> None:
    rng, model = random.Random(seed), Model()
    store = PageStorage.create(tmp_path / "s", TIGHT)
    for _ in range(80):
        step(rng, store, model, {})
    crash(store)
    assert verify_store(tmp_path / "s").status in ("clean", "repairable")
    assert salvage_store(tmp_path / "s", tmp_path / "to").exit_status_name == "clean"
    assert verify_store(tmp_path / "to").status == "clean"
    with PageStorage.open(tmp_path / "to") as again:

        def bare(shown: dict[tuple[int, int], tuple[object, ...]]) -> dict[tuple[int, int], tuple[object, ...]]:
            return {page: one[:4] for page, one in shown.items()}

        assert bare(shown_by(again)) == bare(expected(model.pages))


@pytest.mark.turns(10)
def test_every_97th_byte_flipped_is_found_or_nobody_needs_it(tmp_path: Path) -> None:
    """In the log, in a checkpoint and in data: verify names the place, and what is served is what was written."""
    store = PageStorage.create(tmp_path / "s")
    contents = {number: bytes([number]) * 700 for number in range(20)}
    for number, content in contents.items():
        put(store, number, content)
    collect_garbage(store, checkpoint=True)
    for number in range(20, 30):
        contents[number] = bytes([number]) * 300
        put(store, number, contents[number])
    store.close()
    tree = Tree.read(tmp_path / "s", (".waltzctl/lock",))
    flips = 0
    for name, raw in tree.files.items():
        for offset in range(0, len(raw), 97):
            flip(tmp_path / "s" / name, offset)
            (finding,) = verify_store(tmp_path / "s").findings
            assert (str(finding.path), finding.offset is not None) == (str(tmp_path / "s" / name), True)
            assert finding.offset is not None
            assert finding.length is not None
            assert finding.offset <= offset < finding.offset + finding.length
            (tmp_path / "s" / name).write_bytes(raw)
            flips += 1
    assert flips > 150
    whole = dict.fromkeys(tree.files, 0)
    assert set(whole) == {"blob/blobfile_1", "wal/log_1_1", "wal/log_2_0"}


def logged(path: Path, *edits: Edit) -> None:
    """A record of the log that no engine would write, with a right checksum."""
    store = PageStorage.open(path)
    store.wal.append(encode_batch(edits))
    crash(store)


def test_two_pages_that_claim_the_same_bytes(path: Path, tmp_path: Path) -> None:
    entry = PageEntry(1, 5, 4, crc32c(b"ohre"))
    logged(path, Edit(EditType.PUT, PageId(0, 50), Version(6), entry))
    found = verify_store(path)
    assert [str(one.code) for one in found.findings] == ["space-overlap"] * 2 + ["page-checksum"]
    done = salvage_store(path, tmp_path / "to")
    assert done.lost == (PageId(0, 50),)
    with PageStorage.open(tmp_path / "to") as store:
        assert [data(store, number) for number in (1, 3, 5)] == [b"again", b"three", b"two"]


def test_a_log_that_contradicts_itself_is_refused_and_looked_at(path: Path, tmp_path: Path) -> None:
    logged(path, Edit(EditType.REF, PageId(0, 60), Version(6), origin=PageId(0, 77)))
    with pytest.raises(DamageError, match="refers to page 0:77, which is not there"):
        PageStorage.open(path)
    found = verify_store(path)
    assert (found.status, found.pages) == ("damaged", 5)
    assert "contradicts itself" in found.findings[0].message
    assert salvage_store(path, tmp_path / "to").exit_status_name == "damage-remains"


def test_a_record_that_is_no_write_batch_is_damage(path: Path, tmp_path: Path) -> None:
    store = PageStorage.open(path)
    store.wal.append(b"\1\0\1\0\x63")
    put(store, 70, b"later")
    crash(store)
    (finding,) = verify_store(path).findings
    assert (str(finding.code), "edit of type 99" in finding.message) == ("log-record-checksum", True)
    with pytest.raises(DamageError):
        PageStorage.open(path)
    view = view_store(path)
    assert view.directory.locate(PageId(0, 70)) is not None
    assert len(list(dump_log(view))) == 9
    assert [edit.page.id for edit in edits_of(view.contents, RecoveryMode.POINT_IN_TIME)][-1] == 1
    salvage_store(path, tmp_path / "to")
    with PageStorage.open(tmp_path / "to") as saved:
        assert data(saved, 70) == b"later"


def test_a_page_that_stands_twice_in_a_checkpoint(tmp_path: Path) -> None:
    """As damage to a program may write it: the last one counts, and both are not pages."""
    store = PageStorage.create(tmp_path / "s")
    put(store, 1, b"one")
    put(store, 2, b"two")
    number = store.wal.roll()
    table = checkpoint_of(store.directory).plain
    raw = encode_batch(()) + table.tobytes() + table[:1].tobytes()
    store.wal.finish_checkpoint(number, [raw])
    crash(store)
    with PageStorage.open(tmp_path / "s") as again:
        assert [data(again, number) for number in (1, 2)] == [b"one", b"two"]
        assert again.directory.size.rows == 2
        assert again.status().blobs[0].valid == 6


def test_room_that_is_not_collected_yet_is_not_leaked(tmp_path: Path) -> None:
    """Of pages that were deleted or superseded since the last checkpoint; what no page ever had is leaked."""
    store = PageStorage.create(tmp_path / "s")
    for number in range(5):
        put(store, number, b"x" * 100)
    collect_garbage(store, checkpoint=True)
    delete(store, 3, 4)
    assert codes(tmp_path / "s") == []
    put(store, 5, b"y" * 100)
    delete(store, 5)
    crash(store)
    assert codes(tmp_path / "s") == []
    grow(tmp_path / "s" / "blob" / "blobfile_1")
    (finding,) = verify_store(tmp_path / "s").findings
    assert (str(finding.code), finding.offset, finding.length) == ("space-leaked", 600, 4)
