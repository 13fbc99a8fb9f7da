"""An index without its data file, where the segment in front goes on under the same ids: the same records, or others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders import build_directory, digest, make_records
from tests.repair.scenes import Scene, actions, codes, recover, undecided
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect.verification import VerifyOptions
from waltzctl.engine.inspect.verify import verify
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.engine.scan.byte_source import ByteSource
from waltzctl.engine.scan.columns import Damage, RecordRun
from waltzctl.engine.scan.scanner import summarise_records
from waltzctl.engine.storage import orphans
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.formats.segment import Record, segment_name


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


def test_an_index_is_compared_only_with_data_files_that_reach_its_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where many data files are lost, a plan read all others for each of their indexes."""
    records = make_records(80)
    segments = [records[place : place + 2] for place in range(0, 80, 2)]
    root = build_directory(tmp_path / "s", {0: segments}, local_low_water_mark=-1)
    for first in range(2, 80, 4):
        (root / "0" / segment_name(first)).unlink()
    scanned: list[int] = []

    def counted(source: ByteSource, *, first_transaction_id: int) -> Iterator[RecordRun | Damage]:
        scanned.append(first_transaction_id)
        return summarise_records(source, first_transaction_id=first_transaction_id)

    monkeypatch.setattr(orphans, "summarise_records", counted)
    repair = plan_recover(root)
    assert set(undecided(repair)) >= {"index-orphan"}
    assert scanned == []
