"""Files that are listed, and that the disk or a file server does not let be examined: they are there, and are not passed over."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.backup.vaults import backup, restored, settle, vault
from tests.builders import build_directory, digest
from tests.cli.damage import damage_record, index_of, records_of, segment_of
from tests.cli.running import invoke
from tests.storage.support import unexaminable
from waltzctl.engine.backup import backup_creation, writable_vault
from waltzctl.engine.durable import disk
from waltzctl.engine.durable.file_status import is_named, special_kind
from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.findings import Code
from waltzctl.engine.inspect.vouching import listing
from waltzctl.engine.log.view import read_control
from waltzctl.engine.repair import survey
from waltzctl.engine.storage.failed_syncs import note_failed_sync, sync_failed
from waltzctl.engine.storage.partition_recovery import settle_partition
from waltzctl.engine.vault.vault_reader import VAULT_OPTIONS
from waltzctl.formats.control import CONTROL_FILE_NAME


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Partition 0 ends in a segment that begins at transaction 50, above the local low-water mark."""
    return settle(build_directory(tmp_path / "storage", {0: 60, 1: 20}, local_low_water_mark=9))


def test_an_end_of_the_log_is_not_hidden(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, hidden = digest(storage), (segment_of(storage, 0, 50), index_of(storage, 0, 50))
    with monkeypatch.context() as patch:
        unexaminable(patch, *hidden)
        for command in ("verify", "status", "stats"):
            answer = invoke(command, storage, "--format", "ndjson")
            assert (answer.status, command) == (4, command)
        found = invoke("verify", storage, "--format", "ndjson").only("finding")
        assert {(one["code"], one["path"]) for one in found} == {(Code.SPECIAL_FILE, str(one)) for one in hidden}
        assert all("cannot be examined (Input/output error)" in one["message"] for one in found)
        refused = invoke("append", storage, "--partition", "0", given="x\n")
        assert (refused.status, "is quarantined" in refused.err) == (4, True)
        assert invoke("recover", storage, "--yes").status == 4
        assert invoke("rebuild-index", storage, "--all", "--dry-run").status == 4
        assert invoke("append", storage, "--partition", "1", given="").status == 0
    after = digest(storage)
    assert {name: after[name] for name in before} == before
    assert invoke("verify", storage).status == 0


@pytest.mark.turns(10)
@pytest.mark.parametrize("error", [errno.ESTALE, errno.EIO, errno.ENOMEM])
def test_a_backup_leaves_out_no_file_that_could_not_be_examined(
    storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    kept = vault(tmp_path)
    backup(kept, storage)
    hidden = segment_of(storage, 0, 50)
    for times in range(1, 20):
        with monkeypatch.context() as patch:
            unexaminable(patch, hidden, error=error, times=times)
            answer = invoke("backup", "create", kept, storage)
        assert answer.status in (0, 14)
        if answer.status:
            assert str(hidden) in answer.err
        else:
            assert restored(kept, "latest", tmp_path / f"restored-{times}") == digest(storage)


def test_a_blob_file_that_cannot_be_examined_costs_no_backup_that_is_in_others(
    storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = vault(tmp_path)
    backup(kept, storage)
    (first,) = invoke("backup", "list", kept, "--format", "ndjson").only("backup")
    with monkeypatch.context() as patch:
        for module in (backup_creation, writable_vault):
            patch.setattr(module, "VAULT_OPTIONS", replace(VAULT_OPTIONS, blob_limit=8192))
        backup(kept, settle(build_directory(tmp_path / "other", {0: 70}, local_low_water_mark=9)))
    unexaminable(monkeypatch, max((kept / "blob").iterdir()))
    assert invoke("backup", "verify", kept).status == 14
    assert len(invoke("backup", "list", kept, "--format", "ndjson").only("backup")) == 2
    assert invoke("verify", f"vault:{kept}::{first['id']}").status == 0
    assert restored(kept, first["id"], tmp_path / "restored") == digest(storage)


@pytest.mark.parametrize("name", [segment_of, index_of])
@pytest.mark.parametrize("times", [1, 1 << 30])
def test_a_segment_to_be_written_again_that_cannot_be_examined_stays_noted(
    storage: Path, monkeypatch: pytest.MonkeyPatch, name: Callable[..., Path], times: int
) -> None:
    """The one before it was written again, and what the page cache alone had of this one counted as durable then."""
    (storage / disk.STATE_DIRECTORY).mkdir(exist_ok=True)
    note_failed_sync(storage, 0)
    with monkeypatch.context() as patch:
        unexaminable(patch, name(storage, 0, 50), times=times)
        with pytest.raises(DiskReadError, match="cannot examine"):
            settle_partition(storage / "0", 0)
        assert sync_failed(storage, 0)
    settle_partition(storage / "0", 0)
    assert not sync_failed(storage, 0)


def test_a_manifest_leaves_out_no_file_that_cannot_be_examined(
    storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = set(listing(storage))
    with monkeypatch.context() as patch:
        unexaminable(patch, segment_of(storage, 0, 50), times=1)
        assert set(listing(storage)) == names
    with monkeypatch.context() as patch:
        unexaminable(patch, segment_of(storage, 0, 50))
        assert invoke("verify", storage, "--manifest", tmp_path / "manifest").status == 14
    assert not (tmp_path / "manifest").exists()


def test_what_one_glance_missed_is_seen_by_another_or_told(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure that is over when the entry is looked at again."""
    hidden, told = (segment_of(storage, 0, 50), index_of(storage, 0, 50)), 0
    for times in range(1, 12):
        with monkeypatch.context() as patch:
            unexaminable(patch, *hidden, times=times)
            answer = invoke("verify", storage, "--format", "ndjson")
        (summary,) = answer.only("verify-summary")
        assert (answer.status, summary["records"]) in ((0, 80), (4, 80), (4, 70))
        told += answer.status == 4
    assert told


def test_only_what_says_that_nothing_is_there_counts_as_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    for error, there in ((errno.ENOENT, False), (errno.ENOTDIR, False), (errno.EIO, True), (errno.EACCES, True)):
        with monkeypatch.context() as patch:
            unexaminable(patch, path, error=error)
            assert (is_named(path), special_kind(path) is not None) == (there, there)


@pytest.mark.parametrize("hidden", [0, 50])
def test_what_a_replica_may_hold_that_cannot_be_read_is_not_given_up(
    storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: int
) -> None:
    replica = Path(shutil.copytree(storage, tmp_path / "replica"))
    damage_record(segment_of(storage, 0, 0), 20)
    before, away = digest(storage), os.fspath(segment_of(replica, 0, hidden))
    call = os.open

    def failing(path: Any, *given: Any, **named: Any) -> int:
        if os.fspath(path) == away:
            raise OSError(errno.EIO, os.strerror(errno.EIO), away)
        return call(path, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", failing)
        for options in (["--dry-run"], ["--yes"]):
            left = invoke("recover", storage, "--from", replica, *options)
            assert (left.status, f"cannot be read: {away}" in left.out) == (4, True)
            assert "--partition 0 --from REPLICA" in left.out
            assert "--allow-data-loss" not in left.out
        refused = invoke("recover", storage, "--from", replica, "--allow-data-loss", "--yes")
        assert (refused.status, away in refused.out, "nothing was given up" in refused.out) == (4, True, True)
        after = digest(storage)
        assert {name: after[name] for name in before} == before
    assert invoke("recover", storage, "--from", replica, "--yes").status == 0
    assert invoke("verify", storage).status == 0


def test_a_partition_whose_records_are_not_given_up_has_no_step_that_gives_others_up(
    storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was told, and not done: or only some of it, where files of the partition had been planned for before."""
    replica = Path(shutil.copytree(storage, tmp_path / "replica"))
    damage_record(segment_of(replica, 0, 0), 20)
    damage_record(segment_of(storage, 0, 0), 20)
    damage_record(segment_of(storage, 0, 50), 5)
    index_of(storage, 1, 0).unlink()
    unexaminable(monkeypatch, segment_of(replica, 0, 50))
    arguments = ("recover", storage, "--from", replica, "--allow-data-loss", "--format", "ndjson")
    (plan,) = invoke(*arguments, "--dry-run").only("plan")
    assert {one["partition"] for one in plan["steps"]} == {1}
    assert "nothing was given up" in plan["undecided"][0]["message"]
    assert invoke(*arguments, "--yes").status == 5
    assert index_of(storage, 1, 0).exists()


@pytest.mark.parametrize("with_index", [False, True])
@pytest.mark.parametrize("how", ["unexaminable", "directory"])
def test_a_replica_whose_end_cannot_be_examined_does_not_vote_for_an_earlier_one(
    storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, with_index: bool
) -> None:
    """It acknowledged transactions 50 to 59 with the third one, which was told to cut them."""
    second, third = (Path(shutil.copytree(storage, tmp_path / name)) for name in ("second", "third"))
    files = (segment_of(second, 0, 50), index_of(second, 0, 50))
    for one in (segment_of(storage, 0, 50), index_of(storage, 0, 50)):
        one.unlink()
    if how == "directory":
        for one in files[: 2 - with_index]:
            one.unlink()
            one.mkdir()
    else:
        unexaminable(monkeypatch, *files[: 2 - with_index])
    answer = invoke("compare", storage, second, third, "--plan-dir", tmp_path / "plans", "--format", "ndjson")
    found = answer.only("partition-comparison")[0]
    assert [one["cut_after"] for one in found["replicas"]] == [None] * 3
    assert found["replicas"][1]["state"] == "damaged"
    before = digest(third)
    assert invoke("recover", third, "--replicas", storage, "--replicas", second, "--yes").status in (0, 4)
    assert digest(third) == before


def assert_nothing_is_given_up(storage: Path, replica: Path, away: Path) -> None:
    """The replica may hold what is lost, at `away`, and so it is not given up, asked for or not."""
    before = digest(storage)
    left = invoke("recover", storage, "--from", replica, "--yes")
    assert (left.status, "--allow-data-loss" in left.out) == (4, False)
    refused = invoke("recover", storage, "--from", replica, "--allow-data-loss", "--yes")
    assert (refused.status, str(away) in refused.out, "nothing was given up" in refused.out) == (4, True, True)
    after = digest(storage)
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize("how", ["unexaminable", "forbidden", "link"])
@pytest.mark.parametrize("hidden", [0, 50])
def test_what_stands_in_a_file_of_a_replica_that_cannot_be_examined_is_not_given_up(
    storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: int, how: str
) -> None:
    """What the replica's other files prove is taken."""
    replica = Path(shutil.copytree(storage, tmp_path / "replica"))
    damage_record(segment_of(storage, 0, 0), 20)
    away = segment_of(replica, 0, hidden)
    with monkeypatch.context() as patch:
        if how == "link":  # to a disk that is not mounted
            away.rename(tmp_path / "elsewhere")
            away.symlink_to(tmp_path / "unmounted" / "elsewhere")
        else:
            unexaminable(
                patch, away, index_of(replica, 0, hidden), error=errno.EIO if how == "unexaminable" else errno.EACCES
            )
        if hidden == 0:
            assert_nothing_is_given_up(storage, replica, away)
        else:
            assert invoke("recover", storage, "--from", replica, "--yes").status == 0
    if how == "link":
        away.unlink()
        (tmp_path / "elsewhere").rename(away)
    assert invoke("recover", storage, "--from", replica, "--yes").status == 0
    assert invoke("verify", storage).status == 0


def test_a_replica_whose_partition_is_not_mounted_may_hold_what_is_lost(storage: Path, tmp_path: Path) -> None:
    """Its partition is on a disk of its own: the replica counted as one that holds nothing, and the records were given up."""
    replica = Path(shutil.copytree(storage, tmp_path / "replica"))
    damage_record(segment_of(storage, 0, 0), 20)
    away = replica / "0"
    away.rename(tmp_path / "elsewhere")
    away.symlink_to(tmp_path / "unmounted" / "elsewhere")
    assert_nothing_is_given_up(storage, replica, away)
    away.unlink()
    (tmp_path / "elsewhere").rename(away)
    assert invoke("recover", storage, "--from", replica, "--yes").status == 0
    assert invoke("verify", storage).status == 0


@pytest.fixture
def without_disk(storage: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Partition 1 is on a disk of its own, which does not answer any more."""
    gone = os.fspath(storage / "1")

    def failing(call: Any) -> Any:
        def examine(path: Any = ".", *arguments: Any, **named: Any) -> Any:
            if not isinstance(path, int) and f"{os.fspath(path)}/".startswith(f"{gone}/"):
                raise OSError(errno.EIO, os.strerror(errno.EIO), os.fspath(path))
            return call(path, *arguments, **named)

        return examine

    for name in ("stat", "lstat", "listdir", "scandir", "open"):
        monkeypatch.setattr(os, name, failing(getattr(os, name)))
    return storage


@pytest.mark.parametrize("command", ["verify", "status", "stats", "dump"])
def test_a_partition_on_a_disk_that_does_not_answer_hides_no_other(without_disk: Path, command: str) -> None:
    answer = invoke(command, without_disk, "--format", "ndjson")
    alone = invoke(command, without_disk, "--partition", "0", "--format", "ndjson")
    assert (alone.status, answer.status) == (0, 14)
    assert str(without_disk / "1") in answer.err + answer.out
    shown = answer.out.replace(" ", "")
    assert ('"records":60' if command == "verify" else '"partition":0') in shown


def test_a_partition_that_is_left_takes_no_part_in_the_repair_of_the_control_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark that was to be lowered took the place of the mended struct: it fell without a step, and the loss was hidden."""
    storage = settle(build_directory(tmp_path / "storage", {0: 110}, local_low_water_mark=105))
    replica = Path(shutil.copytree(storage, tmp_path / "replica"))
    for one in (storage, replica):
        segment_of(one, 0, 100).unlink()
        index_of(one, 0, 100).unlink()
    damage_record(segment_of(storage, 0, 0), 20)
    path = storage / CONTROL_FILE_NAME
    control = read_control(path)
    assert control is not None
    current = control.partitions[0].current
    assert current is not None
    place = control.layout.struct_offset(0, 3 - current)
    raw = bytearray(path.read_bytes())
    raw[place + 4] ^= 1
    path.write_bytes(raw)
    unexaminable(monkeypatch, segment_of(replica, 0, 0))
    arguments = ("recover", storage, "--from", replica, "--allow-data-loss", "--format", "ndjson")
    (plan,) = invoke(*arguments, "--dry-run").only("plan")
    assert [one["action"] for one in plan["steps"]] == ["write-control-struct"]
    invoke(*arguments, "--yes")
    mended = read_control(path)
    assert mended is not None
    assert [one.local_low_water_mark for one in mended.partitions[0].structs if one is not None] == [105, 105]


def test_a_header_in_front_of_records_that_cannot_be_surveyed_is_not_told_as_mended(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = segment_of(storage, 0, 0)
    damage_record(path, 20)
    damage_record(path, 30)
    raw = bytearray(path.read_bytes())
    raw[0] ^= 1
    path.write_bytes(raw)
    monkeypatch.setattr(survey, "MAX_PLACES", 1)
    (plan,) = invoke("recover", storage, "--dry-run", "--format", "ndjson").only("plan")
    assert plan["steps"] == []
    assert "damaged in more than 1 places" in plan["undecided"][0]["message"]


@pytest.mark.parametrize("options", [(), ("--allow-data-loss",)])
def test_a_bad_block_of_a_replica_keeps_nothing_from_being_restored_but_what_is_in_it(
    storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    """The whole file was hashed for the plan: no partition was recovered, neither from it nor otherwise."""
    replica = Path(shutil.copytree(storage, tmp_path / "replica"))
    file = segment_of(replica, 0, 0)
    bad = records_of(file)[10][0] + 8
    for number in (10, 20):
        damage_record(segment_of(storage, 0, 0), number)
    index_of(storage, 1, 0).unlink()

    def failing(call: Any) -> Any:
        def read(descriptor: int, what: Any, offset: int) -> Any:
            length = what if isinstance(what, int) else sum(map(len, what))
            if offset <= bad < offset + length and os.readlink(f"/proc/self/fd/{descriptor}") == os.fspath(file):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return call(descriptor, what, offset)

        return read

    for name in ("pread", "preadv"):
        monkeypatch.setattr(os, name, failing(getattr(os, name)))
    answer = invoke("recover", storage, "--from", replica, *options, "--yes", "--format", "ndjson")
    monkeypatch.undo()
    assert index_of(storage, 1, 0).exists(), answer.err
    left = invoke("verify", storage, "--partition", "0", "--format", "ndjson").only("finding")
    # giving up is refused for the whole partition
    assert [one["transaction_id"] for one in left] == ([10, 20] if options else [10])
    assert invoke("recover", storage, "--from", replica, "--yes").status == 0
