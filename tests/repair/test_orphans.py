"""An index without its data file, where the segment in front goes on under the same ids: the same records, or others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import digest
from tests.repair.scenes import Scene, actions, codes, recover, undecided
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect.verification import VerifyOptions
from waltzctl.engine.inspect.verify import verify
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.formats.segment import Record


def reach_over(scene: Scene, *, same: bool) -> None:
    """The middle segment goes on with the records of the last one, or others, whose data file is then lost."""
    last = scene.records[100:]
    if not same:
        last = [Record.make(one.transaction_id, one.request_id, 0, one.data + b"cut away") for one in last]
    with scene.seg(50).open("ab") as file:
        file.write(b"".join(one.encode() for one in last))
    with scene.idx(50).open("ab") as file:
        size = scene.seg(50).stat().st_size - sum(one.size for one in last)
        for one in last:
            file.write(size.to_bytes(8))
            size += one.size
    scene.seg(100).unlink()


def severity(root: Path) -> list[str]:
    found = [one for one in verify((root,), VerifyOptions(exclusive=True)) if isinstance(one, Finding)]
    return [one.severity for one in found if one.code == "index-orphan"]


def test_a_second_copy_makes_it_a_left_over(scene: Scene) -> None:
    reach_over(scene, same=True)
    assert severity(scene.root) == ["repairable"]
    _, result = recover(scene)
    assert result.exit_status_name == "clean"
    assert scene.intact_ids() == list(range(130))


@pytest.mark.parametrize("loss", [False, True])
def test_other_records_under_the_same_ids_are_no_copy(scene: Scene, *, loss: bool) -> None:
    """The true ones are lost, and which of both was meant to be cut only a person knows."""
    reach_over(scene, same=False)
    assert severity(scene.root) == ["damage"]
    before = digest(scene.root)
    repair, _ = recover(scene, loss=loss)
    assert (actions(repair), undecided(repair)) == ([], ["index-orphan"])
    with StorageDirectory.open(scene.root) as storage:
        assert storage.partitions[0].quarantined
    assert {name: one for name, one in digest(scene.root).items() if not name.startswith(".")} == before
    assert "index-orphan" in codes(scene.root)
