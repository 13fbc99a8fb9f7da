"""A backup is read like a directory: by verify, dump, status, stats, compare, recover --from and Spark."""

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backup.vaults import backup, settle, vault
from tests.builders import build_directory
from tests.cli.running import invoke
from waltzctl.engine.backup.backup_removal import forget, plan_forgetting, prune_vault
from waltzctl.engine.durable.file_status import FileNumbers
from waltzctl.engine.errors import DiskReadError, InvalidRequestError
from waltzctl.engine.log import places
from waltzctl.engine.log.access import PlaceKind
from waltzctl.engine.vault import vault_access
from waltzctl.engine.vault.vault_access import PASSWORD_VARIABLE, VAULTS
from waltzctl.engine.vault.vault_path import VaultPath, is_vault_path
from waltzctl.engine.vault.vault_reader import ForgottenBackupError, VaultReader
from waltzctl.formats.segment import index_name, segment_name
from waltzctl.formats.vault import Namespace


@pytest.fixture(autouse=True)
def looked_at_anew() -> Iterator[None]:
    yield
    VAULTS.close()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return settle(build_directory(tmp_path / "source", {0: 120, 1: 30}, size=50))


@pytest.fixture
def place(tmp_path: Path, source: Path) -> VaultPath:
    kept = vault(tmp_path)
    backup(kept, source)
    found = places.place(f"vault:{kept}::latest")
    assert isinstance(found, VaultPath)
    return found


def test_names() -> None:
    path = VaultPath("vault:/backup/a::b::3f/0/1.seg")
    assert (str(path.vault), path.backup, path.inside) == ("/backup/a::b", "3f", "0/1.seg")
    assert str(VaultPath("vault:v::latest") / "0" / "x") == "vault:v::latest/0/x"
    assert VaultPath("vault:v::latest").inside == ""
    assert VaultPath("vault:/v::latest").is_absolute()
    assert not VaultPath("vault:v::latest").is_absolute()
    assert pickle.loads(pickle.dumps(path)) == path
    for text in ("vault:/v::1", "vault:v::latest/0"):
        assert is_vault_path(text)
    for text in ("vault:/v", "vault:::1", "vault:v::", "/v::1", "vault", ""):
        assert not is_vault_path(text), text


def test_every_file_reads_as_it_was(place: VaultPath, source: Path) -> None:
    for path in sorted(source.rglob("*")):
        name = place / str(path.relative_to(source))
        if path.is_dir():
            assert places.access(name).kind(name) is PlaceKind.DIRECTORY
            assert places.names(name) == sorted(one.name for one in path.iterdir())
            continue
        data, state = path.read_bytes(), path.stat()
        assert places.access(name).kind(name) is PlaceKind.FILE
        assert places.file_numbers(name) == FileNumbers(len(data), state.st_mtime_ns, state.st_ino)
        for offset in (0, 1, 127, 128, 129, len(data) // 2, len(data) - 1, len(data), len(data) + 5):
            for length in (0, 1, 130, 5000, len(data)):
                assert places.read_range(name, offset, length) == data[offset : offset + length]


def test_files_are_read_while_pages_move(tmp_path: Path, source: Path) -> None:
    """A process that has the backup open reads where its pages lie by now."""
    other = build_directory(tmp_path / "other", {0: 200}, size=300)
    (tmp_path / "second").mkdir()
    kept = vault(tmp_path / "second")
    large, head = backup(kept, other), backup(kept, source)
    opened = places.place(f"vault:{kept}::{head.name}")
    assert places.names(opened / "0") == sorted(one.name for one in (source / "0").iterdir())
    forget(plan_forgetting(kept, [large.name], None))
    assert prune_vault(kept).pages_moved
    for path in sorted(one for one in source.rglob("*") if one.is_file()):
        name, data = opened / str(path.relative_to(source)), path.read_bytes()
        assert places.read_range(name, 0, len(data)) == data


def test_a_backup_that_is_forgotten_while_it_is_open(tmp_path: Path, source: Path) -> None:
    """It is not damaged: nobody is told to mend it."""
    (tmp_path / "second").mkdir()
    kept = vault(tmp_path / "second")
    head = backup(kept, source)
    opened = places.place(f"vault:{kept}::{head.name}")
    assert places.access(opened).kind(opened) is PlaceKind.DIRECTORY
    forget(plan_forgetting(kept, [head.name], None))
    prune_vault(kept)
    with pytest.raises(ForgottenBackupError, match=f"backup {head.name} was forgotten meanwhile"):
        places.names(opened / "0")


def test_a_process_that_reads_many_backups_knows_their_vault_once(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kept the whole log's directory of pages and 64 MiB of content, as long as the process ran."""
    kept = vault(tmp_path)
    heads = [backup(kept, source) for _ in range(4)]
    opened: list[Path] = []
    original = VaultReader.open

    def counted(path: Path, password: bytes | None = None) -> VaultReader:
        opened.append(path)
        return original(path, password)

    monkeypatch.setattr(VaultReader, "open", counted)
    there = (source / "0" / segment_name(0)).read_bytes()
    for head in heads:
        name = VaultPath.of(kept, head.name) / "0" / segment_name(0)
        assert places.read_range(name, 0, len(there) + 1) == there
    assert len(opened) == 1
    later = backup(kept, source)
    assert places.names(VaultPath.of(kept, later.name)) == places.names(VaultPath.of(kept, heads[0].name))
    assert VAULTS.files(VaultPath.of(kept, "latest")).head == later
    newest = backup(kept, source)
    assert VAULTS.files(VaultPath.of(kept, "latest")).head == later, "as when it was first asked for"
    assert VAULTS.files(VaultPath.of(kept, newest.name)).head == newest
    with pytest.raises(InvalidRequestError, match="no backup has an id that begins so"):
        VAULTS.files(VaultPath.of(kept, "x"))


@pytest.mark.turns(10)
def test_a_process_that_reads_every_new_backup_holds_few_of_them(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that follows a vault, say: each backup kept the log as it was read for it, with content and sections."""
    monkeypatch.setattr(vault_access, "MOST_BACKUPS", 3)
    kept, there = vault(tmp_path), (source / "0" / segment_name(0)).read_bytes()
    latest, heads = VaultPath.of(kept, "latest"), []
    for _ in range(6):
        heads.append(backup(kept, source))
        for place in (VaultPath.of(kept, heads[-1].name), latest):
            assert places.read_range(place / "0" / segment_name(0), 0, len(there)) == there
    files = [*VAULTS._opened.values()]
    assert [one.head.name for one in files] == [heads[4].name, heads[5].name, heads[0].name]
    assert len({id(one.reader) for one in files}) == 1 == len(VAULTS._readers)
    assert {head for head, _ in files[0].reader._sections} <= {one.head.id for one in files}
    assert places.names(VaultPath.of(kept, heads[1].name)) == places.names(latest)
    for head in heads[2:5]:
        VAULTS.files(VaultPath.of(kept, head.name))
    assert VAULTS.files(latest).head == heads[0], "as when it was first asked for"
    for number in range(3):
        (above := tmp_path / f"{number}").mkdir()
        backup(other := vault(above), source)
        VAULTS.files(VaultPath.of(other, "latest"))
    assert len(VAULTS._readers) == 3


def test_what_is_not_there(place: VaultPath) -> None:
    for name in ("x", "0/x", "7", "0/0", segment_name(0)):
        missing = place / name
        assert places.access(missing).kind(missing) is None
        assert places.file_numbers(missing) is None
        with pytest.raises(FileNotFoundError):
            places.open_source(missing)
        with pytest.raises(FileNotFoundError):
            places.names(missing)
    with pytest.raises(NotADirectoryError):
        places.names(place / "0" / segment_name(0))
    with pytest.raises(InvalidRequestError):
        places.names(VaultPath(f"vault:{place.vault}::zz"))
    with pytest.raises(InvalidRequestError, match="never written"):
        places.local(place)


def test_commands_that_read(place: VaultPath, source: Path) -> None:
    for command in (["verify"], ["dump"], ["dump", "--what", "index"], ["stats"], ["status"]):
        kept = invoke(*command, place, "--format", "ndjson")
        here = invoke(*command, source, "--format", "ndjson")
        assert (kept.status, here.status) == (0, 0)
        assert kept.out.count("\n") == here.out.count("\n")
    assert invoke("compare", place, source).status == 0
    path = source / "0" / segment_name(50)
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(data)
    assert invoke("verify", source).status == 4
    assert invoke("compare", place, source).status in (3, 4)
    assert invoke("recover", source, "--from", place, "--yes").status == 0
    assert invoke("verify", source).status == 0
    assert invoke("compare", place, source).status == 0


def test_a_backup_that_has_not_the_partition_is_named(tmp_path: Path, source: Path) -> None:
    """An earlier one has what --allow-data-loss was offered for."""
    kept = vault(tmp_path)
    whole = backup(kept, source)
    backup(kept, source, partitions=frozenset([1]))
    path = source / "0" / segment_name(50)
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(data)
    told = "a backup of partitions 1 alone"
    for options, said in (((), True), (("--partition", "0"), True), (("--partition", "1"), False)):
        answer = invoke("recover", source, "--from", f"vault:{kept}::latest", "--dry-run", *options)
        assert (told in answer.err) == said, answer.err
    answer = invoke("recover", source, "--from", f"vault:{kept}::{whole.name}", "--yes")
    assert (answer.status, told in answer.err) == (0, False)


@pytest.mark.turns(8)
def test_commands_that_write(place: VaultPath) -> None:
    for command in (
        ["recover", place], ["truncate", place, "--partition", "0", "--after", "3"], ["rebuild-index", place],
        ["undo", place, "--list"], ["serve", place],
    ):  # fmt: skip
        answer = invoke(*command)
        assert answer.status == 2
        assert "backup" in answer.err


def test_an_encrypted_one(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "second").mkdir()
    kept = vault(tmp_path / "second", b"secret")
    backup(kept, source, b"secret")
    assert invoke("verify", f"vault:{kept}::latest").status == 2
    (tmp_path / "password").write_text("secret\n")
    monkeypatch.setenv(PASSWORD_VARIABLE, str(tmp_path / "password"))
    assert invoke("verify", f"vault:{kept}::latest").status == 0
    (tmp_path / "password").write_text("other\n")
    VAULTS.close()
    assert invoke("verify", f"vault:{kept}::latest").status == 13


def test_a_damaged_page_is_a_place_that_cannot_be_read(place: VaultPath) -> None:
    blob = next((place.vault / "blob").iterdir())
    data = bytearray(blob.read_bytes())
    head = VAULTS.files(place).head
    reader = VAULTS.files(place).reader
    section = next(one for one in head.partitions if one.partition == 0)
    found = reader.entry(Namespace.DATA, head.first_page + section.first_piece)
    assert found is not None
    data[found.offset + 12] ^= 1
    blob.write_bytes(data)
    VAULTS.close()
    with pytest.raises(DiskReadError):
        places.read_range(place / "0" / segment_name(0), 128, 100)
    with pytest.raises(DiskReadError):
        places.read_range(place / "0" / index_name(0), 128, 8)
    assert places.read_range(place / "1" / segment_name(0), 128, 100)
    answer = invoke("verify", place, "--format", "ndjson")
    assert answer.status in (4, 14)
    assert any(one.get("code") == "read-error" and one["partition"] == 0 for one in answer.objects)
