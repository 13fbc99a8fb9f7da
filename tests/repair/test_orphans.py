"""An index without its data file, where the segment in front goes on under the same ids: the same records, or others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders import build_directory, digest, make_records
from tests.repair.scenes import Scene, actions, codes, recover, recovered, undecided
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect.verification import VerifyOptions
from waltzctl.engine.inspect.verify import verify
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.engine.scan.byte_source import ByteSource
from waltzctl.engine.scan.columns import Damage, RecordRun
from waltzctl.engine.scan.scanner import summarise_records
from waltzctl.engine.storage import orphans
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.engine.storage.loss_ledger import read_ledger
from waltzctl.formats.segment import HEADER_SIZE, Record, encode_records, segment_name


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


def test_other_records_under_the_same_ids_are_no_copy(scene: Scene) -> None:
    """The true ones are lost, and which of both was meant to be cut only a person knows."""
    reach_over(scene, same=False)
    assert severity(scene.root) == ["damage"]
    before = digest(scene.root)
    repair, _ = recover(scene)
    assert (actions(repair), undecided(repair)) == ([], ["index-orphan"])
    with StorageDirectory.open(scene.root) as storage:
        assert storage.partitions[0].quarantined
    assert {name: one for name, one in digest(scene.root).items() if not name.startswith(".")} == before
    assert "index-orphan" in codes(scene.root)


def test_with_leave_their_ids_are_disputed_until_a_replica_tells(scene: Scene) -> None:
    """The command that was named for them did nothing."""
    reach_over(scene, same=False)
    repair, _ = recover(scene, loss=True)
    assert actions(repair) == ["remove-orphan-index", "accept-loss"]
    (loss,) = read_ledger(scene.root).losses
    assert (loss.first, loss.last, loss.disputed) == (100, 129, True)
    assert codes(scene.root) == {"loss-accepted"}
    _, result = recover(scene, scene.replica)
    assert result.exit_status_name == "clean"
    assert scene.intact_ids() == list(range(130))


def test_a_single_entry_is_believed_to_be_what_a_replica_gives_back(tmp_path: Path) -> None:
    """It tells no length; the segment came back, and its index was named for ever."""
    records = make_records(12)
    replica = build_directory(tmp_path / "r", {0: [records]}, local_low_water_mark=11)
    root = build_directory(tmp_path / "d", {0: [records[:4], records[4:11], records[11:]]}, local_low_water_mark=11)
    for first in (4, 11):
        (root / "0" / segment_name(first)).unlink()
    assert recovered(root, replica)[1].status == "clean"


@pytest.mark.parametrize("ends", [5, 6])
def test_an_index_in_a_gap_is_given_up_with_what_it_lists(tmp_path: Path, ends: int) -> None:
    """The command that was named for it did nothing, so that it was named again and again."""
    records = make_records(12)
    root = build_directory(tmp_path / "d", {0: [records[:ends], records[ends:8], records[8:]]}, local_low_water_mark=11)
    (root / "0" / segment_name(ends)).unlink()
    repair, _ = recovered(root, loss=True)
    assert actions(repair) == ["remove-orphan-index", "accept-loss"]
    assert [(one.first, one.last, one.disputed) for one in read_ledger(root).losses] == [(ends, 7, False)]
    assert codes(root) == {"segment-gap", "loss-accepted"}
    replica = build_directory(tmp_path / "r", {0: [records]}, local_low_water_mark=11)
    assert recovered(root, replica)[1].status == "clean"


def test_of_what_an_index_lists_only_what_is_missing_is_given_up(tmp_path: Path) -> None:
    """Others that stand under its ids were given up with the rest, and with that came back unseen what differs from a replica."""
    records = make_records(12)
    others = [Record.make(one, records[one].request_id, 0, bytes(99)) for one in (5, 6)]
    root = build_directory(tmp_path / "d", {0: [records[:5], records[5:8], records[8:]]}, local_low_water_mark=11)
    (root / "0" / segment_name(5)).unlink()
    header = (root / "0" / segment_name(0)).read_bytes()[:HEADER_SIZE]
    (root / "0" / segment_name(0)).write_bytes(header + encode_records([*records[:5], *others])[0])
    recovered(root, loss=True)
    assert [(one.first, one.last, one.disputed) for one in read_ledger(root).losses] == [(5, 6, True), (7, 7, False)]
    replica = build_directory(tmp_path / "r", {0: [[*records[:5], *others, *records[7:]]]}, local_low_water_mark=11)
    assert recovered(root, replica)[1].status == "clean"


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
