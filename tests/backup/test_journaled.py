"""Backups of a directory with a commit journal in force: what is restored is a directory like any other, with every record."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backup.vaults import backup, findings, vault
from tests.builders import build_directory, make_records
from tests.cli.running import invoke
from tests.journals import COUNT, JOURNALED, SIZE, append_journaled, crashed, journaling
from waltzctl.engine.backup.backup_restore import RestoreOptions, restore_backup
from waltzctl.engine.errors import RefusedError
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect.verify import verify
from waltzctl.engine.log.view import read_control
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.formats.control import Layout, decode_control

ALL = COUNT + JOURNALED


def told(root: Path) -> list[str]:
    return [str(one.code) for one in verify([root]) if isinstance(one, Finding)]


def marked(root: Path) -> bool:
    control = read_control(root / "waltz-storage.ctl")
    assert control is not None
    return control.header.journaled


def names(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


@pytest.mark.turns(8)
@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("inside", [None, "journal", ".waltzctl/a.journal", ".waltzctl/device/journal"])
def test_a_running_node(tmp_path: Path, layout: Layout, inside: str | None) -> None:
    root = build_directory(tmp_path / "s", {0: COUNT, 1: COUNT}, layout=layout, per_segment=COUNT, size=SIZE)
    (root / ".waltzctl" / "device").mkdir(parents=True)
    place = vault(tmp_path)
    journal = tmp_path / "journal" if inside is None else root / inside
    with journaling(root, journal) as storage:
        append_journaled(storage, 0, make_records(JOURNALED, first=COUNT, size=SIZE))
        head = backup(place, root)
        assert head.live
        assert (head.num_partitions, head.partitions[0].last_transaction_id, head.damaged) == (2, ALL - 1, 0)
        assert marked(root), "the node's own stays as it is"
    back = tmp_path / "back"
    restore_backup(place, head.name, back)
    assert not marked(back)
    assert told(back) == []
    left_out = {".waltzctl/lock", ".waltzctl/commit-journal.json", *(() if inside is None else (inside,))}
    assert names(back) & left_out == set()
    with StorageDirectory.open(back) as storage:
        assert storage.written_back is None
        assert len(storage.partition(0).read_range(0, 100)) == ALL
    restore_backup(place, head.name, tmp_path / "rejoining", options=RestoreOptions(for_rejoin=True))
    assert not marked(tmp_path / "rejoining")
    assert told(tmp_path / "rejoining") == []
    assert findings(place) == []
    assert invoke("verify", f"vault:{place}::{head.name}").status == 0
    assert "journal-pending" not in invoke("verify", f"vault:{place}::{head.name}").out


def test_a_control_file_that_does_not_stand_in_the_section_itself(tmp_path: Path) -> None:
    """A large one is made of pieces."""
    root = build_directory(tmp_path / "s", {0: 3}, num_partitions=1200)
    plain = (root / "waltz-storage.ctl").read_bytes()
    assert len(plain) > 64 << 10
    place = vault(tmp_path)
    with journaling(root, tmp_path / "journal"):
        first, second = backup(place, root), backup(place, root)
    third = backup(place, root)
    for number, head in enumerate((first, second, third)):
        restore_backup(place, head.name, tmp_path / f"back-{number}")
        assert (tmp_path / f"back-{number}" / "waltz-storage.ctl").read_bytes() == plain
    assert decode_control(plain).header.journaled is False
    assert third.new_pages == 0 or third.pages == first.pages


def test_what_a_crash_left_is_not_backed_up_before_it_was_written_back(tmp_path: Path) -> None:
    """The segments may lack what the journal holds, and the backup would be called whole."""
    here = crashed(tmp_path, power=True)
    place = vault(tmp_path)
    with pytest.raises(RefusedError, match="may stand in the commit journal"):
        backup(place, here.root)
    answer = invoke("backup", "create", place, here.root)
    assert (answer.status, "start the node" in answer.err) == (13, True)
    assert here.ids() == list(range(ALL))
    head = backup(place, here.root)
    assert head.partitions[0].last_transaction_id == ALL - 1


def test_what_an_earlier_journal_left_is_a_file_like_others(tmp_path: Path) -> None:
    root = build_directory(tmp_path / "s", {0: 3})
    (root / ".waltzctl").mkdir()
    (root / ".waltzctl" / "commit-journal.json").write_text("{}")
    place = vault(tmp_path)
    restore_backup(place, backup(place, root).name, tmp_path / "back")
    assert (tmp_path / "back" / ".waltzctl" / "commit-journal.json").read_text() == "{}"
    with StorageDirectory.open(tmp_path / "back"):
        pass
    assert not (tmp_path / "back" / ".waltzctl" / "commit-journal.json").exists()
