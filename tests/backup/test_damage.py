"""A vault that is damaged: what is named, what can still be restored, and what a replica mends."""

import gc
import hashlib
import hmac
import random
import shutil
import tracemalloc
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from tests.backup.vaults import backup, codes, findings, restored, settle, vault
from tests.builders import build_directory, digest, make_records, write_segment
from tests.pages.stores import sector_lost
from waltzctl.engine.backup import backup_creation, backup_repair, distinct_pieces, source_files, writable_vault
from waltzctl.engine.backup.backup_creation import create_backup, create_vault
from waltzctl.engine.backup.backup_removal import forget, plan_forgetting, prune_vault
from waltzctl.engine.backup.backup_repair import read_records, repair_vault
from waltzctl.engine.backup.backup_restore import RestoreOptions
from waltzctl.engine.backup.backup_verification import VaultPieces, VaultVerifyOptions, verify_vault
from waltzctl.engine.backup.distinct_pieces import DistinctPieces, NeededPiece
from waltzctl.engine.durable.file_status import FileNumbers
from waltzctl.engine.errors import DamageError, InvalidRequestError, NotWaltzError, WaltzError
from waltzctl.engine.inspect.verification import VerifySummary
from waltzctl.engine.pages.inspection import view_store
from waltzctl.engine.pages.page_batch import WriteBatch
from waltzctl.engine.pages.page_recovery import apply_recovery, plan_recovery
from waltzctl.engine.pages.page_salvage import salvage_store
from waltzctl.engine.pages.page_storage import PageOptions, PageStorage
from waltzctl.engine.pages.recovery_mode import RecoveryMode
from waltzctl.engine.pages.wal_reader import read_wal
from waltzctl.engine.vault.sealing import Sealer, VaultKeys, WrongPasswordError
from waltzctl.engine.vault.vault_reader import UnreadableBackup, VaultReader
from waltzctl.formats.pages.write_batch import PageId
from waltzctl.formats.vault import (
    CONFIGURATION_PAGES,
    SECTION_COPIES,
    BackedPartition,
    BackupHead,
    Namespace,
    Piece,
    Section,
    VaultConfiguration,
)

PASSWORDS = pytest.mark.parametrize("password", [None, b"secret"], ids=["plain", "encrypted"])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return settle(build_directory(tmp_path / "source", {0: 230, 1: 40}, size=60))


@pytest.fixture
def replica(tmp_path: Path) -> Path:
    """The same transactions in other segments."""
    return build_directory(tmp_path / "replica", {0: 230, 1: 40}, per_segment=33, size=60)


def flip(vault: Path, page: PageId, at: int = 20) -> None:
    """Change a bit of a page's data."""
    found = view_store(vault).directory.locate(page)
    assert found is not None
    assert found.entry is not None
    path = vault / "blob" / f"blobfile_{found.entry.file_id}"
    data = bytearray(path.read_bytes())
    data[found.entry.offset + min(at, found.entry.size - 1)] ^= 1
    path.write_bytes(data)


def pages_of(head: BackupHead) -> list[PageId]:
    return [PageId(Namespace.DATA, head.first_page + number) for number in range(head.num_pages)]


@pytest.mark.turns(10)
@PASSWORDS
def test_every_page_that_is_damaged_is_named_and_mended(
    tmp_path: Path, source: Path, replica: Path, password: bytes | None
) -> None:
    place = vault(tmp_path, password)
    head = backup(place, source, password)
    heads = [PageId(name, head.id) for name in (Namespace.BACKUPS, Namespace.BACKUP_COPIES)]
    for page in (*pages_of(head), *heads):
        flip(place, page)
        found = findings(place, password=password)
        assert f"page {page}" in found[0].message
        pieces = [one for one in found if str(one.code) == "backup-incomplete"]
        copied = page in heads or any(
            page.id - head.first_page in range(one.section, one.section + SECTION_COPIES) for one in head.sections
        )
        assert len(pieces) == (not copied), "of what is there twice, one may be lost"
        done = repair_vault(place, replica, password=password)
        assert (done.damaged, done.mended) == (1, 1)
        assert findings(place, password=password) == []
    assert restored(place, "latest", tmp_path / "back", password=password) == digest(source)


@pytest.mark.parametrize("backups", [0, 1])
def test_a_vault_that_was_begun_with_each_record_once_has_them_twice_behind_its_next_backup(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, backups: int
) -> None:
    """As earlier versions wrote it: one damaged byte of the log cost the configuration, and with it every backup.

    Of a vault without a backup, the one record in its log is the last one.
    """
    with monkeypatch.context() as earlier:
        for module in (backup_creation, writable_vault):
            earlier.setattr(module, "VAULT_OPTIONS", PageOptions())
        path = vault(tmp_path)
        before = [backup(path, source) for _ in range(backups)]
    assert not read_wal(path).written_twice
    head = backup(path, source)
    assert not read_wal(path).lacks_copies
    assert any(file.name.is_checkpoint for file in read_wal(path).files)
    (checkpoint, *_) = sorted((path / "wal").iterdir())
    raw = bytearray(checkpoint.read_bytes())
    raw[60] ^= 1
    checkpoint.write_bytes(raw)
    assert {one.id for one in VaultReader.open(path).heads()} == {one.id for one in (*before, head)}


@pytest.mark.turns(10)
def test_who_verifies_keeps_each_piece_once_however_many_backups_need_it(tmp_path: Path, source: Path) -> None:
    """Of 30 backups of a terabyte they are 30 million pieces, and half a kilobyte for each of them."""
    place = vault(tmp_path)
    heads = [backup(place, source) for _ in range(5)]
    kept: list[tuple[int, int]] = []

    def note() -> None:
        alive = [type(one) for one in gc.get_objects()]
        kept.append((alive.count(NeededPiece), alive.count(Section)))

    class Counting:
        """A progress that counts when the reading begins."""

        def start(self, what: str, total: int) -> None:
            note()

        def advance(self, amount: int) -> None:
            """Nothing."""

    gc.collect()
    note()  # what other tests have left
    *found, summary = verify_vault(place, progress=Counting())
    assert found == []
    assert isinstance(summary, VerifySummary)
    assert (summary.partitions, summary.records) == (10, 5 * 270)
    (others, sections), (alive, read) = kept
    assert alive - others <= heads[0].pages + 1, "and the one that was looked at last"
    assert read - sections <= len(heads[0].sections)


@pytest.mark.turns(10)
def test_a_piece_takes_less_than_a_hundred_bytes_while_a_vault_is_verified(tmp_path: Path) -> None:
    """Each was six hundred bytes of objects: of a vault of a hundred terabytes they took more memory than there is."""
    source = build_directory(tmp_path / "source", {0: 5000}, size=60)
    create_vault(tmp_path / "vault")
    head = create_backup(tmp_path / "vault", source, piece_limit=100)
    create_backup(tmp_path / "vault", source, piece_limit=100)
    reader = VaultReader.open(tmp_path / "vault", None)
    pieces = VaultPieces(reader, reader.heads())
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        found = pieces.once()
        assert len(found) > 4900
        assert tracemalloc.get_traced_memory()[0] - before < 100 * len(found)
    finally:
        tracemalloc.stop()
    assert {one.needed.head.id for one in found.in_order()} == {head.id}


@pytest.mark.parametrize("fewest", [1, 10**6])
def test_of_equal_pieces_the_first_one_counts(monkeypatch: pytest.MonkeyPatch, fewest: int) -> None:
    """Whatever is sorted in when; and a digest may end with zeros."""
    monkeypatch.setattr(distinct_pieces, "_FEWEST_WAITING", fewest)
    heads = [cast("BackupHead", f"head {number}") for number in range(3)]
    section = BackedPartition(0, None, None, 0, 0, 0, 0)
    digests = [bytes([3]) * 32, bytes([1]) * 31 + b"\0", bytes([1]) * 30 + b"\0\0", bytes(32)]
    places = [(2, 5, 9), (0, 7, 9), None]
    drawn, found, expected = random.Random(1), DistinctPieces(), {}
    for head in heads:
        for _ in range(4):
            needed = [
                NeededPiece(
                    head, section, number, Piece(drawn.choice(digests), drawn.choice([7, 8]), 9), drawn.choice(places)
                )
                for number in range(drawn.randrange(5))
            ]
            found.add(head, section, needed)
            for one in needed:
                expected.setdefault(one.key, one)
    kept = [one.needed for one in found.in_order()]
    assert [(one.key, one.head, one.number, one.piece.size) for one in kept] == [
        (one.key, one.head, one.number, one.piece.size) for one in expected.values()
    ]
    assert len(found) == len(kept) > 8
    by_place = [one.needed.place or (-1, 0, 0) for one in found.at(np.arange(len(found)))]
    assert by_place == sorted(by_place)
    assert found.bytes == sum(size for _, size in {(one.place, one.piece.size) for one in kept})


def test_who_repairs_keeps_one_piece_of_all_that_are_damaged(
    tmp_path: Path, source: Path, replica: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a file of pages is gone they are more than the memory holds."""
    place = vault(tmp_path)
    head = backup(place, source)
    backup(place, source)
    for one in head.partitions:
        for number in range(one.pieces):
            flip(place, PageId(Namespace.DATA, head.first_page + one.first_piece + number))
    steps: list[str] = []

    def noted(name: str) -> None:
        original = getattr(backup_repair, name)
        monkeypatch.setattr(backup_repair, name, lambda *given: (steps.append(name), original(*given))[1])

    noted("read_records")
    noted("_replace")
    done = repair_vault(place, replica)
    assert done.damaged == done.mended == steps.count("_replace") > 2
    of_records = steps[steps.index("read_records") :]
    assert "read_records,read_records" not in ",".join(of_records)
    assert findings(place) == []
    assert restored(place, "latest", tmp_path / "back") == digest(source)


def test_damage_costs_only_what_it_hits(tmp_path: Path, source: Path) -> None:
    place = vault(tmp_path)
    head = backup(place, source)
    second = backup(place, source, tag="again")
    section = next(one for one in head.partitions if one.partition == 0)
    flip(place, PageId(Namespace.DATA, head.first_page + section.first_piece))
    found = findings(place)
    assert [(str(one.code), one.partition) for one in found] == [
        ("page-checksum", None), ("backup-incomplete", 0), ("backup-incomplete", 0),
    ]  # fmt: skip
    assert {one.message.split(":")[0] for one in found[1:]} == {f"backup {head.name}", f"backup {second.name}"}
    assert "of the transactions 0 to" in found[1].message
    whole = {name: value for name, value in digest(source).items() if name.startswith("1/")}
    part = restored(place, "latest", tmp_path / "part", RestoreOptions(partitions=frozenset({1})))
    assert {name: value for name, value in part.items() if name.startswith("1/")} == whole
    for options in (VaultVerifyOptions(quick=True), VaultVerifyOptions(sample=1e-9)):
        *_, summary = verify_vault(place, options)
        assert isinstance(summary, VerifySummary)
        assert (summary.status, summary.complete) == ("clean", False), "what was not read is not judged"
    assert codes(findings(place, options=VaultVerifyOptions(backup=second.name))) == {
        "page-checksum",
        "backup-incomplete",
    }


def each_sector_lost(path: Path) -> Iterator[int]:
    """One sector of the file after the other is zeros; at the end the file is as it was."""
    data = path.read_bytes()
    for start in range(0, len(data), 4096):
        path.write_bytes(data[:start] + bytes(len(data[start : start + 4096])) + data[start + 4096 :])
        yield start
    path.write_bytes(data)


def read_all_sections(reader: VaultReader, heads: Sequence[BackupHead]) -> None:
    for head in heads:
        for one in head.sections:
            reader.section(head, one)


@pytest.mark.turns(10)
@PASSWORDS
def test_no_sector_costs_a_backup(tmp_path: Path, source: Path, password: bytes | None) -> None:
    """A disk loses sectors, not bytes: configuration, heads and lists are in two of them, also after they were moved."""
    place = vault(tmp_path, password)
    heads = [backup(place, source, password)]
    aside = backup(place, build_directory(tmp_path / "aside", {0: 3000}, size=60), password)
    for number in range(3):
        write_segment(source / "0", make_records(5, first=230 + 5 * number, size=60), first=230 + 5 * number)
        heads.append(backup(place, source, password))
    for moved in (False, True):
        if moved:
            forget(plan_forgetting(place, [aside.name], None, password=password), password=password)
            assert prune_vault(place, password=password).pages_moved
        for path in sorted((place / "blob").iterdir()):
            for _ in each_sector_lost(path):
                reader = VaultReader.open(place, password)
                assert [one for one in reader.heads() if one != aside] == heads
                read_all_sections(reader, heads)


def test_a_sector_that_cannot_be_read_costs_no_more_than_one_of_zeros(
    tmp_path: Path, source: Path, replica: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second copy counts, the other partition is restored, and a repair writes anew what the disk has lost."""
    place = vault(tmp_path)
    head = backup(place, source)
    first, piece = [
        found.entry
        for page in (
            PageId(Namespace.BACKUPS, head.id),
            PageId(Namespace.DATA, head.first_page + head.sections[1].first_piece),
        )
        if (found := view_store(place).directory.locate(page)) is not None and found.entry is not None
    ]
    for entry in (first, piece):
        sector_lost(monkeypatch, place / "blob" / f"blobfile_{entry.file_id}", entry.offset)
    assert VaultReader.open(place).head(head.id) == head
    assert codes(findings(place)) == {"page-checksum", "backup-incomplete"}
    repair_vault(place, replica)
    assert findings(place) == []


def test_no_sector_costs_what_a_repair_has_mended(tmp_path: Path, source: Path, replica: Path) -> None:
    """The copy that is written anew does not come to lie beside the one that was left."""
    place = vault(tmp_path)
    head = backup(place, source)
    kept_twice = [
        [PageId(Namespace.CONFIGURATION, page) for page in CONFIGURATION_PAGES],
        [PageId(name, head.id) for name in (Namespace.BACKUPS, Namespace.BACKUP_COPIES)],
        *([PageId(Namespace.DATA, head.first_page + one.section + copy) for copy in (0, 1)] for one in head.sections),
    ]
    for number in range(2):
        for copies in kept_twice:
            flip(place, copies[number])
            done = repair_vault(place, replica)
            assert (done.damaged, done.mended) == (1, 1)
            directory = view_store(place).directory
            found = [located.entry for page in copies if (located := directory.locate(page)) is not None]
            first, second = sorted(one.offset for one in found if one is not None)
            assert second - first >= 4096
    assert restored(place, "latest", tmp_path / "back") == digest(source)


def test_both_copies_lost(tmp_path: Path, source: Path) -> None:
    place = vault(tmp_path)
    whole = backup(place, source)
    head = backup(place, source)
    for name in (Namespace.BACKUPS, Namespace.BACKUP_COPIES):
        flip(place, PageId(name, head.id))
    reader = VaultReader.open(place)
    found = list(reader.heads())
    assert isinstance(found[1], UnreadableBackup)
    assert found[1].id == head.id
    with pytest.raises(DamageError):
        reader.find(head.name)
    with pytest.raises(DamageError, match=f"backup {head.name}, which was written later, cannot be read") as told:
        reader.find("latest")
    assert whole.name in (told.value.advice or ""), "an older one is not taken for it"
    assert codes(findings(place)) == {"page-checksum", "backup-incomplete"}
    assert prune_vault(place).orphans == 0, "whose pages it had, nobody knows; so they stay"
    after = backup(place, source)
    assert restored(place, after.name, tmp_path / "back") == digest(source)
    done = repair_vault(place, source)
    assert (done.damaged, done.mended) == (2, 0), "nothing else says which files it had"


def test_the_latest_of_backups_that_cannot_be_read_is_damage_and_not_none(tmp_path: Path, source: Path) -> None:
    place = vault(tmp_path)
    with pytest.raises(InvalidRequestError, match="no backup is in the vault"):
        VaultReader.open(place).find("latest")
    heads = [backup(place, source), backup(place, source)]
    for head in heads:
        for name in (Namespace.BACKUPS, Namespace.BACKUP_COPIES):
            flip(place, PageId(name, head.id))
    with pytest.raises(DamageError, match="'latest': of 2 backups in the vault no head can be read") as told:
        VaultReader.open(place).find("latest")
    assert [one.code for one in told.value.findings] == ["page-checksum"] * 2


def test_no_sector_costs_a_backup_of_a_salvaged_vault(tmp_path: Path, source: Path) -> None:
    """The two copies of a head are in two namespaces, which are written one after the other."""
    place, salvaged = vault(tmp_path), tmp_path / "salvaged"
    heads = [backup(place, source) for _ in range(2)]
    salvage_store(place, salvaged)
    (path,) = (salvaged / "blob").iterdir()
    for _ in each_sector_lost(path):
        reader = VaultReader.open(salvaged)
        assert [*reader.heads()] == heads
        read_all_sections(reader, heads)


def test_the_latest_is_found_where_an_earlier_one_cannot_be_read(tmp_path: Path, source: Path) -> None:
    place = vault(tmp_path)
    heads = [backup(place, source) for _ in range(2)]
    for name in (Namespace.BACKUPS, Namespace.BACKUP_COPIES):
        flip(place, PageId(name, heads[0].id))
    flip(place, PageId(Namespace.BACKUPS, heads[1].id))
    repair_vault(place, source)
    assert VaultReader.open(place).find("latest") == heads[1]


@pytest.mark.parametrize("how", ["repair", "salvage"])
def test_the_latest_is_no_earlier_one_whose_head_was_written_anew(
    tmp_path: Path, source: Path, replica: Path, how: str
) -> None:
    place = vault(tmp_path)
    heads = [backup(place, source) for _ in range(3)]
    if how == "repair":
        for name in (Namespace.BACKUPS, Namespace.BACKUP_COPIES):
            flip(place, PageId(name, heads[1].id))
            assert repair_vault(place, replica).mended == 1
    else:
        salvage_store(place, tmp_path / "salvaged")
        place = tmp_path / "salvaged"
    assert VaultReader.open(place).find("latest") == heads[2]
    for name in (Namespace.BACKUPS, Namespace.BACKUP_COPIES):
        flip(place, PageId(name, heads[2].id))
    with pytest.raises(DamageError, match=f"backup {heads[2].name}, which was written later, cannot be read"):
        VaultReader.open(place).find("latest")


def test_the_latest_of_a_log_that_lost_records_may_be_another(tmp_path: Path, source: Path) -> None:
    place = vault(tmp_path)
    heads = [backup(place, source) for _ in range(2)]
    (log, *_) = sorted((place / "wal").iterdir())
    data = bytearray(log.read_bytes())
    data[40] ^= 1
    log.write_bytes(data)
    with pytest.raises(DamageError, match="records of the vault's log are lost") as told:
        VaultReader.open(place).find("latest")
    assert heads[1].name in (told.value.advice or "")


def test_a_vault_without_its_configuration_is_no_place_for_a_new_one(tmp_path: Path, source: Path) -> None:
    place = vault(tmp_path)
    backup(place, source)
    with PageStorage.open(place) as store:
        store.write(WriteBatch(Namespace.CONFIGURATION).delete(1).delete(2))
    with pytest.raises(DamageError, match="the vault's configuration is lost, and pages of backups are there"):
        VaultReader.open(place)
    PageStorage.create(tmp_path / "other").close()
    with pytest.raises(NotWaltzError, match="a page store, and no backup vault"):
        VaultReader.open(tmp_path / "other")


def test_every_97th_byte_of_a_vault(tmp_path: Path, source: Path) -> None:
    place = vault(tmp_path)
    backup(place, source)
    for path in sorted((place / "blob").iterdir()):
        data = bytearray(path.read_bytes())
        for at in range(0, len(data), 97):
            data[at] ^= 0xFF
        path.write_bytes(data)
    with pytest.raises(DamageError):
        VaultReader.open(place)
    shutil.rmtree(place)
    place = vault(tmp_path)
    head = backup(place, source)
    for page in pages_of(head)[::2]:
        flip(place, page)
    found = findings(place)
    assert codes(found) == {"page-checksum", "backup-incomplete"}
    with pytest.raises(DamageError):
        restored(place, "latest", tmp_path / "back")
    repair_vault(place, source)
    assert restored(place, "latest", tmp_path / "back") == digest(source)


def test_a_log_that_is_damaged_is_not_written_to(tmp_path: Path, source: Path) -> None:
    place = vault(tmp_path)
    backup(place, source)
    backup(place, source)
    (log, *_) = sorted((place / "wal").iterdir())
    data = bytearray(log.read_bytes())
    data[40] ^= 1
    log.write_bytes(data)
    for act in (lambda: backup(place, source), lambda: repair_vault(place, source)):
        with pytest.raises(DamageError):
            act()


def test_a_blob_file_that_is_gone(tmp_path: Path, source: Path) -> None:
    place = vault(tmp_path)
    head = backup(place, source)
    entry = VaultReader.open(place).entry(Namespace.DATA, head.first_page)
    assert entry is not None
    path = place / "blob" / f"blobfile_{entry.file_id}"
    data = path.read_bytes()
    path.write_bytes(data[: entry.offset + entry.size - 1])
    found = findings(place, options=VaultVerifyOptions(quick=True))
    assert {"page-missing", "backup-incomplete"} <= codes(found)
    path.write_bytes(data[: entry.offset + entry.size])
    missing = [
        one for one in findings(place, options=VaultVerifyOptions(quick=True)) if f":{head.first_page}:" in one.message
    ]
    assert missing == [], "one byte more, and the page is there"


# ---- passwords -------------------------------------------------------------------------------------------------------


def test_an_encrypted_vault_tells_nothing_without_its_password(tmp_path: Path, source: Path) -> None:
    place = vault(tmp_path, b"secret")
    (source / "0" / "note").write_bytes(b"a word that nobody may read" * 3)
    backup(place, source, b"secret")
    for path in place.rglob("*"):
        if path.is_file():
            assert b"nobody may read" not in path.read_bytes()
            assert b"waltz-storage" not in path.read_bytes()
    for act in (lambda: backup(place, source), lambda: findings(place)):
        with pytest.raises(InvalidRequestError, match="encrypted"):
            act()
    with pytest.raises(WrongPasswordError):
        backup(place, source, b"secre")
    with pytest.raises(WrongPasswordError):
        VaultReader.open(place, b"")
    assert restored(place, "latest", tmp_path / "back", password=b"secret") == digest(source)


def test_an_encrypted_page_opens_only_in_its_own_place(tmp_path: Path, source: Path) -> None:
    place = vault(tmp_path, b"secret")
    head = backup(place, source, b"secret")
    reader = VaultReader.open(place, b"secret")
    section = reader.section(head, head.partitions[0])
    first, second = section.pieces[0], section.pieces[1]
    page = reader.page(Namespace.DATA, head.first_page + head.partitions[0].first_piece)
    assert len(reader.sealer.open(page, first.digest)) == first.size
    with pytest.raises(ValueError, match="another one's"):
        reader.sealer.open(page, second.digest)
    for name in ("other", "plain"):
        (tmp_path / name).mkdir()
    other = vault(tmp_path / "other", b"secret")
    with pytest.raises(ValueError, match="does not decrypt"):
        VaultReader.open(other, b"secret").sealer.open(page, first.digest)
    with pytest.raises(ValueError, match="not encrypted, in a vault that is"):
        reader.sealer.open(VaultReader.open(vault(tmp_path / "plain")).sealer.seal(b"x", first.digest), first.digest)


def test_a_page_that_holds_something_else_is_not_taken(tmp_path: Path) -> None:
    sealer = VaultReader.open(vault(tmp_path)).sealer
    page = sealer.seal(b"one thing", sealer.digest(b"one thing"))
    assert sealer.open(page, sealer.digest(b"one thing")) == b"one thing"
    with pytest.raises(ValueError, match="something else"):
        sealer.open(page, sealer.digest(b"another"))


def test_pages_of_no_backup_are_given_back(tmp_path: Path, source: Path) -> None:
    place = vault(tmp_path)
    head = backup(place, source)
    with PageStorage.open(place) as store:
        for name in (Namespace.BACKUPS, Namespace.BACKUP_COPIES):
            store.write(WriteBatch(name).delete(head.id))
    assert prune_vault(place).orphans == head.num_pages
    assert {one.page.namespace for one in view_store(place).pages()} == {Namespace.CONFIGURATION}


def test_digests_are_those_of_the_standards(tmp_path: Path) -> None:
    configuration = VaultConfiguration(uuid.UUID(int=1), None, None)
    keys = VaultKeys(b"k" * 32, b"d" * 32)
    for content in (b"", b"x", bytes(100_000)):
        assert Sealer(configuration, None).digest(content) == hashlib.sha256(content).digest()
        assert Sealer(configuration, keys).digest(content) == hmac.digest(keys.digest, content, "sha256")


# ---- records by id -----------------------------------------------------------------------------------------------------


def test_records_are_found_whatever_segments_hold_them(source: Path, replica: Path) -> None:
    for first, count in ((0, 1), (0, 230), (32, 2), (33, 33), (49, 2), (229, 1), (100, 130)):
        content = read_records(source / "0", first, count)
        assert content is not None
        assert content == read_records(replica / "0", first, count)
    assert read_records(source / "0", 229, 2) is None
    assert read_records(source / "0", 230, 1) is None
    path = source / "0" / f"{50:019}.seg"
    data = bytearray(path.read_bytes())
    data[150] ^= 1
    path.write_bytes(data)
    assert read_records(source / "0", 0, 50) is not None
    assert read_records(source / "0", 0, 51) is None


def test_errors_are_ours(tmp_path: Path, source: Path) -> None:
    place = vault(tmp_path)
    backup(place, source)
    with pytest.raises(WaltzError):
        repair_vault(place, tmp_path)


@pytest.mark.parametrize("always", [False, True], ids=["once", "always"])
def test_files_that_go_while_a_vault_is_mended(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, *, always: bool
) -> None:
    """A file of a running node goes between its listing and its reading: what lies elsewhere mends all the same."""
    note = source / "note"
    (source / "kept").write_bytes(b"k" * 3000)
    place = vault(tmp_path)
    head = backup(place, source)
    records = next(one for one in head.partitions if one.partition == 1)
    flip(place, PageId(Namespace.DATA, head.first_page + head.storage.first_piece))
    flip(place, PageId(Namespace.DATA, head.first_page + records.first_piece))
    note.write_bytes(b"n" * 100)
    listing = source_files.places.listing
    listings = []

    def gone_behind(path: Path) -> object:
        found = listing(path)
        if path == source:
            listings.append(path)
            note.unlink(missing_ok=True)
            if always:
                found[note.name] = FileNumbers(100, 0, 1)
        return found

    monkeypatch.setattr(source_files.places, "lock_holder", lambda *_: 77)
    monkeypatch.setattr(source_files.places, "listing", gone_behind)
    monkeypatch.setattr(backup_repair, "_PAUSE", 0)
    done = repair_vault(place, source)
    assert (done.damaged, done.mended) == (2, 1 if always else 2)
    assert len(listings) == (backup_repair._TRIES if always else 2)
    assert len({one.partition for one in findings(place) if str(one.code) == "backup-incomplete"}) == always


def test_a_partition_that_goes_while_a_vault_is_mended(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = vault(tmp_path)
    head = backup(place, source)
    for one in head.partitions:
        flip(place, PageId(Namespace.DATA, head.first_page + one.first_piece))
    look_at = backup_repair.look_at

    def gone_behind(path: Path) -> object:
        looked = look_at(path)
        shutil.rmtree(source / "0")
        return looked

    monkeypatch.setattr(backup_repair, "look_at", gone_behind)
    monkeypatch.setattr(backup_repair, "_PAUSE", 0)
    done = repair_vault(place, source)
    assert (done.damaged, done.mended) == (2, 1)


def test_a_vault_whose_log_is_damaged_is_recovered_in_place_and_mended(tmp_path: Path) -> None:
    """What is lost with both copies of a record is one backup, and what others refer to in it; a replica has that."""
    source = settle(build_directory(tmp_path / "source", {0: 300}))
    place = vault(tmp_path)
    first = backup(place, source)
    write_segment(source / "0", make_records(100, first=300))
    second = backup(place, source)
    assert second.new_pages < second.pages
    log = place / "wal" / "log_2_0"
    content = bytearray(log.read_bytes())
    for quarter in (1, 3):
        content[quarter * len(content) // 4] ^= 1
    log.write_bytes(content)
    with pytest.raises(DamageError, match="unless it stands whole beside this, where each record is twice"):
        backup(place, source)
    plan = plan_recovery(place, RecoveryMode.SKIP_DAMAGED)
    assert plan.loses_data
    apply_recovery(plan, arguments=())
    assert [one.name for one in _heads(place)] == [second.name], "the first one was in the records that are lost"
    assert codes(findings(place)) >= {"backup-incomplete", "page-missing"}
    done = repair_vault(place, source)
    assert done.damaged == done.mended > 0
    assert findings(place) == []
    assert restored(place, second.name, tmp_path / "back") == digest(source)
    assert backup(place, source).new_pages == 0
    assert first.name != second.name


@pytest.mark.parametrize("directory", ["source", "copy"])
def test_a_backup_writes_anew_what_a_recovery_gave_up(tmp_path: Path, source: Path, directory: str) -> None:
    """Lists of earlier backups still name it, as that of a directory that did not change does."""
    place = vault(tmp_path)
    first = backup(place, source)
    section = next(one for one in first.partitions if one.partition == 0)
    lost = first.first_page + section.first_piece + 1
    with PageStorage.open(place) as store:
        store.write(WriteBatch(Namespace.DATA).delete(lost))
    assert codes(findings(place)) == {"page-missing", "backup-incomplete"}
    shutil.copytree(source, tmp_path / "copy")
    second = backup(place, tmp_path / directory)
    assert second.new_pages == 1
    assert restored(place, second.name, tmp_path / "back") == digest(source)
    assert {one.message.split(":")[0] for one in findings(place) if str(one.code) == "backup-incomplete"} == {
        f"backup {first.name}"
    }
    assert backup(place, tmp_path / directory).new_pages == 0, "one of the two that list it has it"
    assert repair_vault(place, source).mended == 1
    assert findings(place) == []


def _heads(place: Path) -> list[BackupHead]:
    return [one for one in VaultReader.open(place).heads() if isinstance(one, BackupHead)]
