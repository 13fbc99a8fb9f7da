"""backup: what people and programs read, exit statuses, agreement, and what was killed."""

import errno
import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import warm_start
from tests.builders import build_directory, digest
from tests.cli.damage import damage_record, segment_of
from tests.cli.running import command_line, environment, invoke, on_full_disk
from waltzctl.engine.backup import backup_creation, backup_removal, backup_verification
from waltzctl.engine.inspect import verify
from waltzctl.engine.pages.page_storage import PageStorage
from waltzctl.engine.vault.vault_reader import VAULT_OPTIONS


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return build_directory(tmp_path / "source", {0: 120, 1: 30}, num_partitions=3, size=50)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    assert invoke("backup", "init", tmp_path / "vault").status == 0
    return tmp_path / "vault"


def created(place: Path, source: Path, *more: object) -> dict:  # type: ignore[type-arg]
    answer = invoke("backup", "create", place, source, "--format", "ndjson", *more)
    assert answer.status == 0, answer.err
    (shown,) = answer.objects
    return dict(shown)


def test_the_whole_way(tmp_path: Path, place: Path, source: Path) -> None:
    first = created(place, source, "--tag", "nightly")
    assert {name: first[name] for name in ("type", "tag", "source", "num_partitions", "live", "damaged")} == {
        "type": "backup", "tag": "nightly", "source": str(source), "num_partitions": 3, "live": False, "damaged": 0,
    }  # fmt: skip
    assert first["partitions"][1] == {
        "partition": 1, "first_transaction_id": 0, "last_transaction_id": 29,
        "bytes": sum(path.stat().st_size for path in (source / "1").iterdir()),
    }  # fmt: skip
    assert first["new_pages"] == first["pages"]
    second = created(place, source)
    assert second["new_pages"] == 0
    listed = invoke("backup", "list", place, "--format", "ndjson").objects
    assert [one["id"] for one in listed] == [first["id"], second["id"]]
    (shown,) = invoke("backup", "show", place, first["id"], "--format", "ndjson").objects
    assert shown == first
    table = invoke("backup", "list", place, "--format", "table").out
    assert first["id"] in table
    assert "nightly" in table
    assert "0-1" in table
    assert invoke("backup", "verify", place).status == 0
    assert invoke("backup", "verify", place, "latest", "--sample", "50%").status == 0
    answer = invoke("backup", "restore", place, "latest", "--to", tmp_path / "back", "--format", "ndjson")
    assert answer.status == 0
    assert answer.objects[-1]["partitions"] == [
        {"partition": 0, "last_transaction_id": 119}, {"partition": 1, "last_transaction_id": 29},
    ]  # fmt: skip
    assert digest(tmp_path / "back") == digest(source)
    assert invoke("backup", "diff", place, first["id"], "latest").status == 0


def test_what_a_verification_counts_is_what_verify_counts(place: Path, source: Path) -> None:
    """What lies beside the partitions is a section of a backup, and no partition."""
    whole, one = created(place, source)["id"], created(place, source, "--partition", "1")["id"]
    counted = ("partitions", "segments", "records")
    found = {}
    for name in (whole, one):
        (told,) = invoke("backup", "verify", place, name, "--format", "ndjson").objects
        (there,) = invoke("verify", f"vault:{place}::{name}", "--format", "ndjson").objects
        found[name] = [told[key] for key in counted]
        assert found[name] == [there[key] for key in counted]
    (told,) = invoke("backup", "verify", place, "--format", "ndjson").objects
    assert [told[key] for key in counted] == [sum(two) for two in zip(*found.values(), strict=True)]


@pytest.mark.parametrize("more", [(), ("-q",), ("--partition", 1)])
def test_a_restore_says_that_the_latest_backup_is_one_of_some_partitions(
    tmp_path: Path, place: Path, source: Path, more: tuple[object, ...]
) -> None:
    """It was called restored and clean, and served nothing of the others."""
    created(place, source)
    made = created(place, source, "--partition", 1)
    answer = invoke("backup", "restore", place, "latest", "--to", tmp_path / "back", "--format", "plain", *more)
    assert answer.status == 0
    said = f"backup {made['id']} is one of partitions 1 alone, and no other one is assigned in {tmp_path / 'back'};"
    assert (said in answer.err) is ("--partition" not in more)


@pytest.mark.turns(10)
def test_a_sample_reads_other_pages_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of eighty pieces each is read in the end."""
    source = build_directory(tmp_path / "source", {0: 4000}, size=50)
    place = tmp_path / "vault"
    backup_creation.create_vault(place)
    head = backup_creation.create_backup(place, source, piece_limit=5000)
    seen: list[int] = []
    monkeypatch.setattr(backup_verification, "_read_piece", lambda reader, one: seen.append(one.page))
    seeds = iter(range(100))
    monkeypatch.setattr(backup_verification.secrets, "randbits", lambda bits: next(seeds))
    assert invoke("backup", "verify", place).status == 0
    whole = set(seen)
    assert len(whole) > 80
    assert head.first_page <= min(whole)
    drawn = []
    for _ in range(80):
        seen.clear()
        assert invoke("backup", "verify", place, "--sample", "10%", "-q").status == 0
        drawn.append(set(seen))
    assert set().union(*drawn) == whole
    assert max(map(len, drawn)) < len(whole) / 3


def test_progress_is_told_beside_the_answer(tmp_path: Path, place: Path, source: Path) -> None:
    made = invoke("backup", "create", place, source, "--format", "json", "-v")
    assert "backing up: " in made.err
    back = invoke("backup", "restore", place, "latest", "--to", tmp_path / "back", "--format", "json", "-v")
    assert "restoring: " in back.err
    assert [one["type"] for one in (*json.loads(f"[{made.out}]"), *json.loads(back.out))] == ["backup", "restored"]


def test_a_backup_that_is_lost_with_the_log_is_not_passed_over(place: Path, source: Path) -> None:
    lost, kept = (created(place, source)["id"] for _ in range(2))
    log = place / "wal" / "log_2_0"
    content = bytearray(log.read_bytes())
    for quarter in (1, 3):  # the record is there twice
        content[quarter * len(content) // 4] ^= 1
    log.write_bytes(content)
    listed = invoke("backup", "list", place, "--format", "ndjson")
    assert [one.get("id") or one["code"] for one in listed.objects] == [kept, "log-record-checksum"]
    assert listed.status == 4
    shown = invoke("backup", "show", place, lost)
    assert (shown.status, "no backup that its log still tells of" in shown.err) == (4, True)
    assert invoke("backup", "show", place, kept).status == 0


def test_figures_for_prometheus(tmp_path: Path, place: Path, source: Path) -> None:
    shown = created(place, source, "--tag", "nightly", "--prometheus", tmp_path / "backup.prom")
    text = (tmp_path / "backup.prom").read_text()
    labels = f'{{source="{source}",tag="nightly",vault="{place}"}}'
    assert f"waltz_backup_source_bytes{labels} {float(shown['bytes'])}" in text
    assert f"waltz_backup_new_pages{labels} {float(shown['new_pages'])}" in text
    assert "waltz_backup_created_timestamp_seconds" in text
    for nowhere in (tmp_path / "no" / "where.prom", tmp_path / "backup.prom" / "x", tmp_path / ("n" * 250)):
        answer = invoke("backup", "create", place, source, "--prometheus", nowhere, "--format", "json")
        (made,) = answer.objects
        assert (answer.status, made["type"]) == (14, "backup")
        assert f"backup {made['id']} is in the vault, and its figures could not be written: {nowhere}" in answer.err


def test_figures_of_a_path_that_is_no_utf_8(tmp_path: Path, place: Path, source: Path) -> None:
    """The backup was made, and then a traceback was all that was told of it."""
    odd = tmp_path / os.fsdecode(b"a\xff\nb")
    source.rename(odd)
    created(place, odd, "--tag", os.fsdecode(b"\xfe"), "--prometheus", tmp_path / "backup.prom")
    labels = rf'{{source="{tmp_path}/a\\xff\nb",tag="\\xfe",vault="{place}"}}'
    assert f"waltz_backup_new_pages{labels} " in (tmp_path / "backup.prom").read_text()


def test_figures_are_for_whoever_collects_them(tmp_path: Path, place: Path, source: Path) -> None:
    """Another user reads them, whatever the vault's files are kept from."""
    figures = tmp_path / "backup.prom"
    before = os.umask(0o077)
    try:
        for _ in range(2):
            created(place, source, "--prometheus", figures)
            assert figures.stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(figures.name)] == [figures.name]


def test_quiet_says_nothing_on_success(tmp_path: Path, source: Path) -> None:
    vault = tmp_path / "quiet"
    for words in (
        ("init", vault),
        ("create", vault, source),
        ("prune", vault),
        ("restore", vault, "latest", "--to", tmp_path / "back"),
        ("repair", vault, "--from", source),
    ):
        for form in ("plain", "table"):
            answer = invoke("backup", *words, "--format", form, "-q")
            if (words[0], form) not in {("init", "table"), ("restore", "table")}:  # made already
                assert (answer.status, answer.out, answer.err) == (0, "", "")
    assert created(vault, source, "-q")["type"] == "backup", "a program asked for the answer"


def test_quiet_shows_what_is_not_well(tmp_path: Path, source: Path) -> None:
    vault = tmp_path / "vault"
    assert invoke("backup", "init", vault).status == 0
    damage_record(segment_of(source), 3)
    answer = invoke("backup", "create", vault, source, "-q", "--format", "plain")
    assert (answer.status, "BACKED UP WITH DAMAGE" in answer.out) == (5, True)
    assert answer.out.count("\nbackup\t") == 1
    back = invoke("backup", "restore", vault, "latest", "--to", tmp_path / "back", "-q", "--format", "plain")
    assert (back.status, back.out.count("\nrestored\t")) == (5, 1)


def test_forgetting_is_agreed_to(place: Path, source: Path) -> None:
    names = [created(place, source)["id"] for _ in range(3)]
    assert invoke("backup", "forget", place, names[0]).status == 13
    planned = invoke("backup", "forget", place, "--keep-last", "1", "--dry-run", "--format", "ndjson")
    assert planned.status == 0
    assert [step["path"] for step in planned.objects[0]["steps"]] == [f"vault:{place}::{name}" for name in names[:2]]
    assert all(step["loses_data"] for step in planned.objects[0]["steps"])
    assert len(invoke("backup", "list", place, "--format", "ndjson").objects) == 3
    assert invoke("backup", "forget", place, names[0], "--yes", "--prune").status == 0
    assert invoke("backup", "forget", place, "--keep-last", "1", "--yes").status == 0
    assert [one["id"] for one in invoke("backup", "list", place, "--format", "ndjson").objects] == names[2:]
    assert invoke("backup", "prune", place).status == 0
    assert invoke("backup", "forget", place, "--yes").status == 2
    assert invoke("backup", "forget", place, names[0], "--yes").status == 2
    assert invoke("backup", "forget", place, names[2], "--keep-last", "1", "--yes").status == 2


def test_a_tag_that_no_backup_has_forgets_nothing(place: Path, source: Path) -> None:
    created(place, source)
    answer = invoke("backup", "forget", place, "--keep-tag", "TYPO", "--yes")
    assert (answer.status, "no backup has the tag TYPO" in answer.err) == (2, True)
    assert len(invoke("backup", "list", place, "--format", "ndjson").objects) == 1
    assert invoke("backup", "forget", place, "--keep-tag", "TYPO", "--keep-last", "1", "--yes").status == 0


def test_what_was_forgotten_is_told_where_its_room_is_not_given_back(
    place: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer comes between the two: a second try would find nothing to forget, and give nothing back."""
    names = [created(place, source)["id"] for _ in range(2)]
    prune_vault = backup_removal.prune_vault

    def meanwhile(vault: Path, *, password: bytes | None = None) -> backup_removal.Pruned:
        with PageStorage.open(vault, VAULT_OPTIONS):
            return prune_vault(vault, password=password)

    monkeypatch.setattr(backup_removal, "prune_vault", meanwhile)
    answer = invoke("backup", "forget", place, "--keep-last", "1", "--prune", "--yes", "--format", "json")
    result = json.loads(answer.out)
    assert (answer.status, result["type"], result["applied"], result["exit_status"]) == (11, "result", True, 11)
    assert "are forgotten, and their room could not be given back" in answer.err
    assert [one["id"] for one in invoke("backup", "list", place, "--format", "ndjson").objects] == names[1:]


def test_what_is_damaged_says_so(tmp_path: Path, place: Path, source: Path) -> None:
    segment = source / "0" / f"{50:019}.seg"
    data = bytearray(segment.read_bytes())
    data[200] ^= 1
    segment.write_bytes(data)
    answer = invoke("backup", "create", place, source, "--format", "table")
    assert answer.status == 5
    assert "BACKED UP WITH DAMAGE" in answer.out
    answer = invoke("backup", "restore", place, "latest", "--to", tmp_path / "back", "--format", "table")
    assert answer.status == 5
    assert "record-checksum" in answer.out
    assert digest(tmp_path / "back") == digest(source), "byte for byte"


@pytest.mark.parametrize(
    "lose",
    [
        pytest.param(lambda source: shutil.rmtree(source / "0"), id="directory"),
        pytest.param(lambda source: _remove_segments(source / "0", 0), id="first segment"),
        pytest.param(lambda source: _remove_segments(source / "0", 50), id="segment between"),
        pytest.param(lambda source: _remove_segments(source / "0", 50, 100), id="acknowledged end"),
    ],
)
def test_what_the_source_has_lost_is_told(
    tmp_path: Path, place: Path, source: Path, lose: Callable[[Path], None]
) -> None:
    created(place, source)
    lose(source)
    for _ in ("whole", "incremental"):
        answer = invoke("backup", "create", place, source, "--format", "ndjson")
        assert (answer.status, answer.objects[0]["damaged"]) == (5, 1)
    answer = invoke("backup", "create", place, source, "--partition", "1", "--format", "ndjson")
    assert (answer.status, answer.objects[0]["damaged"]) == (0, 0), "nothing is missing there"


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda control, _: control.write_bytes(bytes(control.stat().st_size)), id="blank control file"),
        pytest.param(lambda control, _: os.truncate(control, 20), id="short control file"),
        pytest.param(lambda _, segment: _overwrite(segment, 20, b"another!"), id="header of a segment"),
        pytest.param(lambda _, segment: os.mkfifo(segment.parent / f"{150:019}.seg"), id="no file"),
        pytest.param(lambda control, _: _overwrite(control, 132, bytes(100)), id="info of a partition"),
        pytest.param(lambda control, _: _overwrite(control, 20, b"another!"), id="key"),
    ],
)
def test_damage_outside_of_records_is_told(place: Path, source: Path, damage: Callable[[Path, Path], None]) -> None:
    created(place, source)
    damage(source / "waltz-storage.ctl", source / "0" / f"{0:019}.seg")
    assert invoke("status", source).status == 4
    for _ in ("whole", "incremental"):
        answer = invoke("backup", "create", place, source, "--format", "ndjson")
        assert (answer.status, answer.objects[0]["damaged"] > 0) == (5, True)


def test_a_directory_of_a_partition_that_the_cluster_does_not_have_is_backed_up(
    tmp_path: Path, place: Path, source: Path
) -> None:
    """It is of another cluster, or from before: `status` has a note on it, and every nightly backup was refused."""
    build_directory(tmp_path / "other", {7: 20}, num_partitions=8)
    shutil.copytree(tmp_path / "other" / "7", source / "7")
    assert invoke("status", source).status == 0
    assert created(place, source)["damaged"] == 0
    _remove_segments(source / "0", 0)
    answer = invoke("backup", "create", place, source, "--format", "ndjson")
    assert (answer.status, answer.objects[0]["damaged"]) == (5, 1)


def _overwrite(file: Path, offset: int, data: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(offset)
        opened.write(data)


def _remove_segments(partition: Path, *firsts: int) -> None:
    for first in firsts:
        for suffix in ("seg", "idx"):
            (partition / f"{first:019}.{suffix}").unlink()


def test_a_damaged_vault_is_mended_from_a_replica(tmp_path: Path, place: Path, source: Path) -> None:
    replica = build_directory(tmp_path / "replica", {0: 120, 1: 30}, num_partitions=3, size=50, per_segment=7)
    created(place, source)
    blob = max((place / "blob").iterdir(), key=lambda path: path.stat().st_size)
    data = bytearray(blob.read_bytes())
    data[len(data) // 4] ^= 1
    blob.write_bytes(data)
    answer = invoke("backup", "verify", place, "--format", "ndjson")
    assert answer.status == 4
    assert {one["code"] for one in answer.objects if one["type"] == "finding"} == {"page-checksum", "backup-incomplete"}
    assert invoke("backup", "restore", place, "latest", "--to", tmp_path / "back").status == 4
    assert not (tmp_path / "back").exists()
    (done,) = invoke("backup", "repair", place, "--from", replica, "--format", "ndjson").objects
    assert (done["damaged"], done["mended"], done["exit_status"]) == (1, 1, 0)
    assert invoke("backup", "verify", place).status == 0
    answer = invoke("backup", "repair", place, "--from", replica, "--format", "table")
    assert (answer.status, "OK  no page is damaged." in answer.out + answer.err) == (0, True)


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("init", "{vault}"), 2),
        (("init", "{new}", "--compression", "lz4"), 2),
        (("init", "{new}", "--compression", "zstd:0"), 2),
        (("init", "{new}", "--compression", "zstd:23"), 2),
        (("init", "{new}", "--encrypt"), 2),
        (("init", "{new}", "--password-file", "{source}"), 2),
        (("create", "{vault}", "{new}"), 10),
        (("create", "{new}", "{source}"), 10),
        (("create", "{vault}", "waltz://localhost:1"), 14),
        (("create", "{vault}", "{source}", "--plaintext"), 2),
        (("create", "{vault}", "{source}", "--key", "01234567-89ab-cdef-0123-456789abcdef"), 2),
        (("create", "{vault}", "waltz://localhost:1", "--partitions", "3"), 2),
        (("show", "{vault}", "latest"), 2),
        (("verify", "{vault}", "zz"), 2),
        (("verify", "{vault}", "--quick", "--sample", "5%"), 2),
        (("restore", "{vault}", "latest", "--to", "{source}"), 13),
        (("restore", "{vault}", "latest", "--to", "{new}", "--until", "1"), 2),
        (("restore", "{vault}", "latest", "--to", "{new}", "--until", "1:-2"), 2),
        (("repair", "{vault}", "--from", "{new}"), 10),
        (("list", "{source}"), 10),
    ],
)
def test_nonsense(tmp_path: Path, place: Path, source: Path, words: tuple[str, ...], status: int) -> None:
    names = {"vault": place, "new": tmp_path / "new", "source": source}
    answer = invoke("backup", *(word.format(**names) for word in words))
    assert answer.status == status, answer.err
    assert answer.err
    assert not (tmp_path / "new").exists()


def test_a_partition_ends_once(tmp_path: Path, place: Path, source: Path) -> None:
    created(place, source)
    words = ("backup", "restore", place, "latest", "--to", tmp_path / "back", "--until", "0:5", "--until")
    answer = invoke(*words, "0:9")
    assert (answer.status, "partition 0 is named twice" in answer.err) == (2, True)
    assert not (tmp_path / "back").exists()
    assert invoke(*words, "1:9").status == 0


def test_passwords(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = {
        **backup_creation.create_vault.__kwdefaults__,
        "scrypt_cost": 16,
    }  # one try of a password costs 0.3 s else
    monkeypatch.setattr(backup_creation.create_vault, "__kwdefaults__", defaults)
    place, password, wrong = tmp_path / "vault", tmp_path / "password", tmp_path / "wrong"
    password.write_text("secret\n")
    wrong.write_text("guess\n")
    assert (
        invoke("backup", "init", place, "--encrypt", "--password-file", password, "--compression", "none").status == 0
    )
    assert invoke("backup", "create", place, source).status == 2
    assert invoke("backup", "create", place, source, "--password-file", wrong).status == 13
    created(place, source, "--password-file", password)
    monkeypatch.setenv("WALTZCTL_VAULT_PASSWORD_FILE", str(password))
    for words in (
        ("list",),
        ("verify",),
        ("dump", "latest"),
        ("show", "latest"),
        ("restore", "latest", "--to", tmp_path / "back"),
    ):
        assert invoke("backup", words[0], place, *words[1:]).status == 0
    assert digest(tmp_path / "back") == digest(source)


def test_a_key_file(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backup_creation.create_vault.__kwdefaults__, "scrypt_cost", 16)
    place, key, other = tmp_path / "vault", tmp_path / "key", tmp_path / "other"
    key.write_bytes(b"ab\n" + bytes(range(200, 229)))
    other.write_bytes(b"ab\n" + bytes(range(201, 230)))
    assert invoke("backup", "init", place, "--encrypt", "--password-file", key).status == 0
    created(place, source, "--password-file", key)
    assert invoke("backup", "list", place, "--password-file", other).status == 13
    monkeypatch.setenv("WALTZCTL_VAULT_PASSWORD_FILE", str(key))
    assert invoke("verify", f"vault:{place}::latest").status == 0


@pytest.mark.turns(12)
@pytest.mark.parametrize("what", ["create", "prune", "restore", "gc"])
def test_killed_at_any_moment(tmp_path: Path, place: Path, what: str, request: pytest.FixtureRequest) -> None:
    """Nothing that was there is lost, nothing half-done is seen, and the next one succeeds."""
    source = build_directory(tmp_path / "source", {0: 3000, 1: 500}, size=700, per_segment=500)
    other = build_directory(tmp_path / "other", {0: 2500, 1: 700}, size=699, per_segment=500)
    kept = created(place, source)["id"]
    words = {
        "create": ("backup", "create", place, other),
        "prune": ("backup", "prune", place),
        "restore": ("backup", "restore", place, kept, "--to", tmp_path / "back"),
        "gc": ("pages", "gc", place),
    }[what]
    rounds = 100 if request.config.getoption("--long") else 4
    for number in range(rounds):
        if what in ("prune", "gc"):
            gone = created(place, other)["id"]
            assert invoke("backup", "forget", place, gone, "--yes").status == 0
        with warm_start.Popen(command_line(*words), env=environment(), stdout=-3, stderr=-3) as process:
            time.sleep(0.25 + 0.35 * number / rounds)
            os.kill(process.pid, signal.SIGKILL)
        assert invoke("backup", "verify", place).status in (0, 3), "at most room that nobody uses yet"
        assert kept in {one["id"] for one in invoke("backup", "list", place, "--format", "ndjson").objects}
        if what == "restore" and (tmp_path / "back").exists():
            assert digest(tmp_path / "back") == digest(source)
            (tmp_path / "back").rename(tmp_path / f"done-{number}")
    if what in ("restore", "gc"):
        assert invoke(*words).status == 0
    created(place, other)
    assert invoke("backup", "prune", place).status == 0
    assert invoke("backup", "verify", place).status == 0
    assert invoke("backup", "restore", place, kept, "--to", tmp_path / "last").status == 0
    assert digest(tmp_path / "last") == digest(source)


def test_a_full_disk(tmp_path: Path, place: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every write may fail, wherever it is: the vault is what it was."""
    import errno

    from waltzctl.engine.durable.disk import WritableFile
    from waltzctl.engine.errors import DiskFullError

    kept = created(place, source)["id"]
    for name in ("write_pieces_at", "write_at"):
        original = getattr(WritableFile, name)
        for allowed in range(12):
            count = [0]

            def failing(self: WritableFile, *given: object, original=original, count=count, allowed=allowed) -> object:  # type: ignore[no-untyped-def]
                count[0] += 1
                if count[0] > allowed:
                    raise DiskFullError(self.path, None, OSError(errno.ENOSPC, "full"), doing="write")
                return original(self, *given)

            (source / "0" / "note").write_bytes(os.urandom(3000))
            with monkeypatch.context() as patched:
                patched.setattr(WritableFile, name, failing)
                answer = invoke("backup", "create", place, source)
            assert answer.status in (0, 14)
            assert invoke("backup", "verify", place).status in (0, 3)
            if answer.status == 0:
                break
    assert invoke("backup", "restore", place, kept, "--to", tmp_path / "back").status == 0


@pytest.mark.parametrize("shape", ["table", "plain", "ndjson"])
def test_a_full_disk_behind_stdout_does_not_hide_what_was_done(tmp_path: Path, source: Path, shape: str) -> None:
    """Also what tables leave to a sentence, and where rows are held back until the end."""
    place = tmp_path / "vault"
    for command, told in (
        (["init", place], f"path {place}, vault_id "),
        (["create", place, source], f"{source}  -    0-1"),
        (["restore", place, "latest", "--to", tmp_path / "back"], f"path {tmp_path / 'back'}, backup "),
        (["forget", place, "latest", "--yes", "--quiet"], "applied true"),
    ):
        if command[0] == "forget" and shape != "ndjson":
            continue  # its plan comes first, and nothing is done
        done = on_full_disk("backup", *command, "--format", shape)
        said = done.err.splitlines()
        assert (done.status, said[-1]) == (14, "waltzctl: error: standard output: No space left on device")
        assert said.count("waltzctl: what was done, and could not be written to standard output:") == 1
        assert any(told in one for one in said), said


def test_what_is_restored_and_cannot_be_verified_is_told_as_restored(
    tmp_path: Path, place: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command is refused behind it, for a directory that is not empty: it was taken for a restore that had failed."""
    created(place, source)

    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(tmp_path / "new"))

    with monkeypatch.context() as patched:
        patched.setattr(verify, "verify", fails)
        answer = invoke("backup", "restore", place, "latest", "--to", tmp_path / "new")
    assert answer.status == 14
    assert (
        f"{tmp_path / 'new'} is restored, and could not be verified; waltzctl verify {tmp_path / 'new'}" in answer.err
    )
    assert "Input/output error" in answer.err
    assert invoke("verify", tmp_path / "new").status == 0
