"""Backups of a directory with a partition on a disk of its own that cannot be read: the others are in it, and it says so.

Such a backup counts as one of some partitions: rules never forget a whole one for it.
"""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.backup.vaults import settle
from tests.builders import build_directory, digest
from tests.cli.damage import damage_record, segment_of
from tests.cli.running import Answer, invoke
from tests.cli.test_disks_of_partitions import (
    CALLS,
    PARTITIONS,
    fail,
    leave_and_return,
    of_partition,
    others_than,
    ranges,
)
from waltzctl.engine.backup import backup_creation
from waltzctl.engine.durable.directory_lock import DirectoryLock
from waltzctl.engine.vault.vault_reader import VaultReader
from waltzctl.formats.control import CONTROL_FILE_NAME, Layout

RECORDS = 60


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return settle(build_directory(tmp_path / "a", dict.fromkeys(PARTITIONS, RECORDS), local_low_water_mark=9))


@pytest.fixture
def vault(tmp_path: Path) -> Path:
    assert invoke("backup", "init", tmp_path / "vault").status == 0
    return tmp_path / "vault"


def create(vault: Path, storage: Path, *words: object) -> Answer:
    return invoke("backup", "create", vault, storage, "--format", "ndjson", *words)


def partitions_of(shown: dict[str, Any]) -> list[int]:
    return [one["partition"] for one in shown["partitions"]]


def heads(vault: Path) -> list[dict[str, Any]]:
    return invoke("backup", "list", vault, "--format", "ndjson").only("backup")


@pytest.mark.turns(10)
@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
@pytest.mark.parametrize("calls", CALLS)
@pytest.mark.parametrize("dead", PARTITIONS)
def test_the_others_are_backed_up_and_what_was_not_read_is_told(
    storage: Path, vault: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dead: int, calls: str, number: int
) -> None:
    before = digest(storage)
    with monkeypatch.context() as patch:
        fail(patch, storage / str(dead), CALLS[calls], number=number)
        answer = create(vault, storage)
        people = invoke("backup", "create", vault, storage)
        others = create(vault, storage, "--partition", ranges(others_than(dead)))
    assert answer.status == 14, answer
    (made,) = answer.only("backup")
    assert (partitions_of(made), made["unread"], made["damaged"]) == (others_than(dead), [dead], 1)
    assert f"{storage / str(dead)}" in answer.err
    assert f"Partition {dead} could not be read, and is not in it" in people.out
    assert "BACKED UP IN PART" in people.out
    assert (others.status, others.err) == (0, ""), "asked for them alone"
    assert [one["unread"] for one in heads(vault)] == [[dead], [dead], []]

    restored = invoke("backup", "restore", vault, made["id"], "--to", tmp_path / "back")
    assert (restored.status, "RESTORED WITH DAMAGE" in restored.out) == (5, True)
    assert "partition-directory-missing" in restored.out
    assert f"partition {dead} could not be read when backup {made['id']} was made" in restored.err
    assert invoke("verify", f"vault:{vault}::{made['id']}").status == 4
    assert invoke("verify", f"vault:{vault}::{others.only('backup')[0]['id']}").status == 0
    after = digest(tmp_path / "back")
    for one in PARTITIONS:
        assert of_partition(after, one) == ({} if one == dead else of_partition(before, one))
    (state,) = invoke("status", tmp_path / "back", "--format", "ndjson").objects
    assert [one["partition"] for one in state["partitions"] if one["assigned"]] == [*PARTITIONS]
    asked = invoke(
        "backup", "restore", vault, made["id"], "--to", tmp_path / "one", "--partition", others_than(dead)[0]
    )
    assert asked.status == 0
    asked = invoke("backup", "restore", vault, made["id"], "--to", tmp_path / "none", "--partition", dead)
    assert (asked.status, f"has no partition {dead}" in asked.err) == (2, True)
    assert invoke("backup", "verify", vault).status == 0

    again = create(vault, storage)  # the disk answers
    assert (again.status, partitions_of(again.only("backup")[0])) == (0, [*PARTITIONS])
    assert invoke("backup", "restore", vault, "latest", "--to", tmp_path / "whole").status == 0
    assert digest(tmp_path / "whole") == before


def test_no_rule_forgets_the_last_whole_backup_for_one_without_a_partition(
    storage: Path, vault: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole,) = create(vault, storage).only("backup")
    before = digest(storage)
    fail(monkeypatch, storage / "1")
    for _ in range(3):
        assert create(vault, storage).status == 14
    assert invoke("backup", "forget", vault, "--keep-last", 1, "--prune", "--yes").status == 0
    assert [one["unread"] for one in heads(vault)] == [[], [1]]
    monkeypatch.undo()
    assert invoke("backup", "restore", vault, whole["id"], "--to", tmp_path / "back").status == 0
    assert digest(tmp_path / "back") == before


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("session", [3, -1])
def test_a_disk_that_is_not_mounted_is_told(
    vault: Path, tmp_path: Path, layout: Layout, session: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the documented layout nothing else tells of a partition that was in no session: the backup passed for a whole one."""
    mark = 9 if session > 0 else -1
    storage = build_directory(
        tmp_path / "a", dict.fromkeys(PARTITIONS, RECORDS), local_low_water_mark=mark, session=session, layout=layout
    )
    (storage / "1").rename(tmp_path / "disk")
    (storage / "1").symlink_to(tmp_path / "disk")
    settle(storage)
    assert create(vault, storage).status == 0
    (tmp_path / "disk").rename(tmp_path / "away")
    answer = create(vault, storage)
    (made,) = answer.only("backup")
    lacks = layout.has_flags or session > 0
    assert (answer.status, made["unread"], made["damaged"]) == (5 if lacks else 14, [1], 1 + lacks)
    assert f"{storage / '1'}: cannot list: its link leads nowhere" in answer.err
    restored = invoke("backup", "restore", vault, made["id"], "--to", tmp_path / "back")
    assert (restored.status, "RESTORED WITH DAMAGE" in restored.out, "RESTORED IN PART" in restored.out) == (
        5,
        lacks,
        not lacks,
    )
    assert invoke("backup", "forget", vault, "--keep-last", 1, "--yes").status == 0
    assert len(heads(vault)) == 2
    refused = create(vault, storage, "--partition", 1)
    assert (refused.status, "partition 1 has no directory" in refused.err) == (2, True)


def test_where_no_partition_is_left_there_is_no_backup(
    storage: Path, vault: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fail(patch, storage / "1")
        answer = create(vault, storage, "--partition", 1)
        assert (answer.status, f"{storage / '1'}: cannot" in answer.err) == (14, True)
        assert "nothing was written to the vault" in answer.err
        fail(patch, storage / "0")
        fail(patch, storage / "2")
        assert create(vault, storage).status == 14
    assert heads(vault) == []


def test_damage_of_another_partition_counts_for_more(
    storage: Path, vault: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage_record(segment_of(storage, 0), 5)
    fail(monkeypatch, storage / "1")
    answer = invoke("backup", "create", vault, storage)
    assert (answer.status, "records, in 1 place" in answer.out) == (5, True)
    assert "Partition 1 could not be read" in answer.out


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_what_this_process_lacks_is_no_fault_of_the_disk(
    storage: Path, vault: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    fail(monkeypatch, storage / "1", CALLS["open"], number=number)
    assert create(vault, storage).status == 14
    assert heads(vault) == []


@pytest.mark.turns(10)
@pytest.mark.parametrize("calls", CALLS)
@pytest.mark.parametrize("times", [1, 1 << 30])
def test_wherever_a_disk_begins_to_fail_a_backup_is_whole_or_says_what_it_lacks(
    storage: Path, vault: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: str, times: int
) -> None:
    before = digest(storage)
    count, first = [1], 0
    while first < count[0] and first < 40:
        made = Path(shutil.copytree(vault, tmp_path / f"vault-{first}"))
        with monkeypatch.context() as patch:
            count = fail(patch, storage / "1", CALLS[calls], first=first, times=times)
            answer = create(made, storage)
        assert answer.status in (0, 5, 14), answer
        for one in answer.only("backup"):
            missing = set(PARTITIONS) - {*partitions_of(one)}
            assert missing == {*one["unread"]}
            assert (answer.status == 0) == (one["damaged"] == 0)
            assert invoke("backup", "verify", made).status == 0
            target = tmp_path / "back"
            back = invoke("backup", "restore", made, "latest", "--to", target)
            assert (back.status == 0) == (not missing)
            after = digest(target)
            assert all(of_partition(after, n) == of_partition(before, n) for n in partitions_of(one))
            shutil.rmtree(target)
        again = create(made, storage)
        assert (again.status, len(again.only("backup")[0]["partitions"])) == (0, 3)
        shutil.rmtree(made)
        first += 1 if first < 12 else 5


def test_an_older_head_has_no_unread_partition(storage: Path, vault: Path) -> None:
    create(vault, storage)
    head = VaultReader.open(vault, None).find("latest")
    assert "unread" not in json.loads(head.encode())
    assert type(head).decode(head.encode()) == head


@pytest.mark.turns(10)
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("session", [3, -1])
def test_a_directory_that_is_gone_as_it_begins_and_back_at_once_is_not_left_out(
    vault: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: Layout, session: int
) -> None:
    """It was listed without the partition, and what looked for losses behind that found the directory again."""
    mark = 9 if session > 0 else -1
    built = build_directory(
        tmp_path / "of", dict.fromkeys(PARTITIONS, RECORDS), local_low_water_mark=mark, session=session, layout=layout
    )
    settle(built)
    statuses = set()
    for number, last in enumerate(range(1, 40, 2)):
        copy = Path(shutil.copytree(built, tmp_path / f"copy-{number}" / "a"))
        made = Path(shutil.copytree(vault, tmp_path / f"copy-{number}" / "vault"))
        with monkeypatch.context() as patch:
            leave_and_return(patch, copy / "1", 1, last)
            answer = create(made, copy)
        statuses.add(answer.status)
        for one in answer.only("backup"):
            assert (answer.status == 0) == (partitions_of(one) == [*PARTITIONS])
        if answer.status == 2:
            assert f"{copy / '1'}: changed while it was read: its directory was not there when this began" in answer.err
        assert answer.status in (0, 2, 5)
    assert 2 in statuses


def test_what_is_back_only_at_the_end_lacks_in_the_backup_of_a_running_node(
    storage: Path, vault: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came as it was looked at lacks nothing when it is looked at again, but it is not in the backup."""
    lacks, looks = backup_creation.lacks, []

    def looking(*given: Any) -> Any:
        looks.append(given)
        if len(looks) == 2:
            (tmp_path / "away").rename(storage / "1")
        return lacks(*given)

    monkeypatch.setattr(backup_creation, "lacks", looking)
    with DirectoryLock.acquire(storage, storage / CONTROL_FILE_NAME):
        (storage / "1").rename(tmp_path / "away")
        answer = create(vault, storage)
    (made,) = answer.only("backup")
    assert (answer.status, made["live"], made["damaged"], partitions_of(made)) == (5, True, 1, [0, 2])
    assert len(looks) == 2
