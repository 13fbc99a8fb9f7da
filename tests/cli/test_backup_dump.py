"""``backup dump`` shows of a backup what ``dump`` shows of the directory that was backed up."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backup.vaults import backup, vault
from tests.builders import build_directory
from tests.cli.running import invoke
from waltzctl.engine.vault.vault_access import VAULTS


@pytest.fixture(autouse=True)
def looked_at_anew() -> Iterator[None]:
    yield
    VAULTS.close()
    VAULTS._passwords.clear()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return build_directory(tmp_path / "source", {0: 120, 1: 30}, num_partitions=3, size=50)


@pytest.fixture
def place(tmp_path: Path, source: Path) -> Path:
    kept = vault(tmp_path)
    backup(kept, source)
    return kept


@pytest.mark.parametrize(
    "more",
    [
        (),
        ("--what", "segments"),
        ("--what", "index", "--partition", "1"),
        ("--what", "control"),
        ("--partition", "0", "--from", "45", "--to", "55", "--data", "hex"),
        ("--reverse", "--limit", "3", "--data", "none"),
    ],
)
def test_the_same_as_of_the_directory(place: Path, source: Path, more: tuple[str, ...]) -> None:
    shown = invoke("backup", "dump", place, "latest", "--format", "ndjson", *more)
    assert shown.status == 0, shown.err
    expected = invoke("dump", source, "--format", "ndjson", *more).out
    assert shown.out.replace(f"vault:{place}::latest", str(source)) == expected
    assert json.loads(expected.splitlines()[0])
    through = invoke("dump", f"vault:{place}::latest", "--format", "ndjson", *more)
    assert shown.out == through.out


def test_forms(tmp_path: Path, place: Path, source: Path) -> None:
    for form in ("raw", "plain"):
        answers = [
            invoke(*words, "--format", form).out for words in (("backup", "dump", place, "latest"), ("dump", source))
        ]
        assert answers[0].replace(f"vault:{place}::latest", str(source)) == answers[1]
    for what in ("records", "segments", "index", "control"):
        words = ("--format", "hexdump", "--limit", "60", "--what", what)
        answer = invoke("backup", "dump", place, "latest", *words)
        assert answer.status == 0, answer.err
        expected = invoke("dump", source, *words).out
        assert answer.out.replace(f"vault:{place}::latest", str(source)) == expected
    assert "Nothing was modified." in invoke("backup", "dump", place, "latest", "--format", "table").out
    answer = invoke("backup", "dump", place, "latest", "--format", "ndjson", "-o", tmp_path / "records")
    assert (answer.status, answer.out) == (0, "")
    assert "150 records" in answer.err
    assert len((tmp_path / "records").read_text().splitlines()) == 150


def test_what_cannot_be_shown(tmp_path: Path, place: Path) -> None:
    for words, status in (
        ((place, "zz"), 2),
        ((place, "latest", "--from", "5", "--to", "4"), 2),
        ((place, "latest", "--what", "control", "--data", "hex"), 2),
        ((place, "latest", "--partition", "9"), 2),
        ((tmp_path / "none", "latest"), 10),
        ((tmp_path, "latest"), 10),
    ):
        answer = invoke("backup", "dump", *words, "--format", "ndjson")
        assert answer.status == status, answer.err
        if status == 10:
            assert answer.objects[-1]["type"] == "error"


def test_damage(place: Path, source: Path) -> None:
    segment = source / "0" / f"{50:019}.seg"
    data = bytearray(segment.read_bytes())
    data[200] ^= 1
    segment.write_bytes(data)
    backup(place, source)
    answer = invoke("backup", "dump", place, "latest", "--format", "ndjson", "--data", "none")
    assert answer.status == 4
    assert [one["code"] for one in answer.only("finding")] == ["record-checksum"]
    assert len(answer.only("record")) == 149
    shown = invoke("backup", "dump", place, "latest", "--format", "hexdump", "--from", "50", "--to", "51").out
    assert "!! damage record-checksum" in shown
    assert (
        shown.replace(f"vault:{place}::latest", str(source))
        == invoke("dump", source, "--format", "hexdump", "--from", "50", "--to", "51").out
    )
    for blob in (place / "blob").iterdir():
        content = bytearray(blob.read_bytes())
        for at in range(4096, len(content), 97):  # behind the first copy of the configuration
            content[at] ^= 1
        blob.write_bytes(content)
    VAULTS.close()
    answer = invoke("backup", "dump", place, "latest", "--format", "ndjson", "--data", "none")
    assert answer.status in (4, 14)
    assert "page" in answer.out + answer.err


def test_passwords(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "encrypted").mkdir()
    place, password, wrong = vault(tmp_path / "encrypted", b"secret"), tmp_path / "password", tmp_path / "wrong"
    password.write_text("secret\n")
    wrong.write_text("guess\n")
    backup(place, source, b"secret")
    words = ("backup", "dump", place, "latest", "--limit", "1")
    assert invoke(*words).status == 2
    assert invoke(*words, "--password-file", wrong).status == 13
    assert invoke(*words, "--password-file", password).status == 0
    VAULTS.close()
    VAULTS._passwords.clear()
    monkeypatch.setenv("WALTZCTL_VAULT_PASSWORD_FILE", str(password))
    assert invoke(*words).status == 0
