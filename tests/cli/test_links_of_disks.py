"""A link in the place of a partition's directory whose disk is not mounted, where nothing else tells of the partition."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.backup.vaults import settle
from tests.builders import build_directory, digest
from tests.cli.running import invoke
from tests.cli.test_convert_of_disks import built
from tests.cli.test_disks_of_partitions import PARTITIONS
from waltzctl.formats.control import Layout

COMMANDS = {
    "verify": 14,
    "status": 14,
    "stats": 14,
    "dump": 14,
    "recover": 14,
    "rebuild-index": 14,
    "compare": 14,
}
"""Each with its exit status."""


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """In the documented layout; partition 1 was in no session, and lies on another disk."""
    found = built(tmp_path / "a", Layout.DOCUMENTED, -1)
    (found / "1").rename(tmp_path / "disk")
    (found / "1").symlink_to(tmp_path / "disk")
    return settle(found)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_partition_that_was_in_no_session_is_told(storage: Path, tmp_path: Path, command: str) -> None:
    """Its link told that it is this node's, and it passed for one that was never here: everything was clean."""
    others = [Path(shutil.copytree(storage, tmp_path / name)) for name in ("b", "c") if command == "compare"]
    assert invoke(command, storage, *others).status == 0
    (tmp_path / "disk").rename(tmp_path / "away")
    before = digest(storage)
    answer = invoke(command, storage, *others)
    assert answer.status == COMMANDS[command]
    assert f"{storage / '1'}: cannot list: its link leads nowhere; mount what it leads to" in answer.out + answer.err
    assert "unknown-file" not in answer.out
    assert digest(storage) == before
    if command != "compare":
        assert invoke(command, storage, "--partition", 0).status == 0
        assert invoke(command, storage, "--partition", 1).status == COMMANDS[command]
    (storage / "1").unlink()  # as it is advised where the partition is given up
    assert invoke(command, storage, *others).status == 0


@pytest.mark.parametrize("session", [3, -1])
def test_what_tells_of_it_already_tells_it_alone(tmp_path: Path, session: int) -> None:
    """The released layout has a flag; a partition that was in a session is lost, and recovered from a replica."""
    layout = Layout.DOCUMENTED if session > 0 else Layout.RELEASED
    found = built(tmp_path / "a", layout, session)
    shutil.rmtree(found / "1")
    (found / "1").symlink_to(tmp_path / "nowhere")
    answer = invoke("verify", found, "--format", "ndjson")
    codes = {one["code"] for one in answer.only("finding")}
    assert (answer.status, codes) == (4, {"unknown-file", "partition-directory-missing"})


def test_a_link_of_a_number_that_no_partition_has_stays_a_note(tmp_path: Path) -> None:
    found = settle(build_directory(tmp_path / "a", dict.fromkeys(PARTITIONS, 60), layout=Layout.DOCUMENTED))
    (found / str(len(PARTITIONS))).symlink_to(tmp_path / "nowhere")
    answer = invoke("verify", found, "--format", "ndjson")
    assert (answer.status, [one["code"] for one in answer.only("finding")]) == (0, ["unknown-file"])


@pytest.mark.parametrize("command", ["verify", "status", "stats", "dump"])
def test_a_backup_that_lacks_it_tells_so_where_it_is_read(storage: Path, tmp_path: Path, command: str) -> None:
    """It named the partition in the list of backups alone."""
    vault = tmp_path / "vault"
    assert invoke("backup", "init", vault).status == 0
    assert invoke("backup", "create", vault, storage).status == 0
    assert invoke(command, f"vault:{vault}::latest").status == 0
    (tmp_path / "disk").rename(tmp_path / "away")
    made = invoke("backup", "create", vault, storage, "--format", "ndjson")
    assert made.status == 14
    named = f"vault:{vault}::{made.only('backup')[0]['id']}"
    answer = invoke(command, named)
    assert (answer.status, "the backup lacks it, as it could not be read then" in answer.out + answer.err) == (14, True)
    assert invoke(command, named, "--partition", 0).status == 0
