"""A small storage directory with a replica, ways to damage it, and the whole way through a repair."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.builders import build_directory, make_records
from tests.inspect.helpers import age
from tests.repair.trees import Snapshot, snapshot
from waltzctl.engine.inspect.verification import VerifyOptions, VerifySummary
from waltzctl.engine.inspect.verify import verify
from waltzctl.engine.repair.apply import RepairResult, apply
from waltzctl.engine.repair.plan import Repair
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.engine.repair.undoing import undo
from waltzctl.formats.control import Layout, decode_control
from waltzctl.formats.segment import Record, encode_records, index_name, segment_name

SEGMENTS = (0, 50, 100)
COUNT = 130
MARK = 110


@dataclass(frozen=True)
class Scene:
    """Partition 0: 130 records in three segments, local low-water mark 110; partition 1: 20 records."""

    root: Path
    replica: Path
    other: Path
    records: tuple[Record, ...]
    clean: Snapshot

    def seg(self, first: int, partition: int = 0) -> Path:
        return self.root / str(partition) / segment_name(first)

    def idx(self, first: int, partition: int = 0) -> Path:
        return self.root / str(partition) / index_name(first)

    @property
    def control(self) -> Path:
        return self.root / "waltz-storage.ctl"

    def offset(self, transaction_id: int) -> int:
        """Where a record of partition 0 begins in its segment."""
        first = max(one for one in SEGMENTS if one <= transaction_id)
        return 128 + sum(record.size for record in self.records[first:transaction_id])

    def home(self, transaction_id: int) -> Path:
        return self.seg(max(one for one in SEGMENTS if one <= transaction_id))

    def flip(self, transaction_id: int, place: int = 9) -> None:
        """Flip a bit of a record (by default in its request id)."""
        flip(self.home(transaction_id), self.offset(transaction_id) + place)

    def intact_ids(self) -> list[int]:
        """Ids of every record of partition 0 that can be read with both checksums right, by the format alone."""
        return [record.transaction_id for path in sorted((self.root / "0").glob("*.seg")) for record in read_all(path)]


def make_scene(path: Path, layout: Layout = Layout.RELEASED) -> Scene:
    records = make_records(COUNT, size=None, seed=4)
    segments = [records[0:50], records[50:100], records[100:]]
    for name in ("root", "replica", "other"):
        build_directory(path / name, {0: segments, 1: 20}, layout=layout, local_low_water_mark=MARK)
        control = (path / name / "waltz-storage.ctl").read_bytes()
        assert decode_control(control).size_fits
    for name, shift in (("replica", 7), ("other", 9)):  # replicas are created a moment apart
        for file in (path / name).rglob("0*.*"):
            data = bytearray(file.read_bytes())
            data[11] ^= shift
            file.write_bytes(data)
    # partition 1 has 20 records; its mark must not lie above them
    for name in ("root", "replica", "other"):
        rewrite_mark(path / name, 1, 10)
    return Scene(path / "root", path / "replica", path / "other", tuple(records), snapshot(path / "root"))


def rewrite_mark(root: Path, partition: int, mark: int) -> None:
    """Set both marks of a partition in both structs, lower ones allowed."""
    from dataclasses import replace

    path = root / "waltz-storage.ctl"
    control = decode_control(path.read_bytes())
    infos = list(control.partitions)
    pair = [replace(one, low_water_mark=mark, local_low_water_mark=mark).sealed() for one in infos[partition].structs]
    infos[partition] = replace(infos[partition], structs=(pair[0], pair[1]))
    path.write_bytes(replace(control, partitions=tuple(infos)).encode())


def flip(path: Path, offset: int, bit: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= bit
    path.write_bytes(data)


def read_all(path: Path) -> list[Record]:
    """Records of a data file up to the first that is not whole and right."""
    data = path.read_bytes()[128:]
    found: list[Record] = []
    while len(data) >= 40:
        length = int.from_bytes(data[28:32], "big", signed=True)
        if not 0 <= length <= len(data) - 40:
            break
        record = Record.decode(data[: 40 + length])
        if not (record.record_ok and record.data_ok):
            break
        found.append(record)
        data = data[40 + length :]
    return found


def codes(root: Path, partitions: Sequence[int] | None = None) -> set[str]:
    """Codes of what verify finds, without notes."""
    return {
        one.code.value
        for one in verify((root,), VerifyOptions(partitions=partitions, exclusive=True))
        if not isinstance(one, VerifySummary) and one.severity != "note"
    }


def status(root: Path) -> str:
    (summary,) = [one for one in verify((root,), VerifyOptions(exclusive=True)) if isinstance(one, VerifySummary)]
    return summary.status


def recover(scene: Scene, *replicas: Path, loss: bool = False) -> tuple[Repair, RepairResult]:
    """Plan (which must change nothing), apply, and prove that undo brings everything back; then apply again."""
    for path in (scene.root, *replicas):
        age(path)
    before = snapshot(scene.root)
    repair = plan_recover(scene.root, replicas=replicas, allow_data_loss=loss)
    assert snapshot(scene.root) == before, "planning changes nothing"
    again = plan_recover(scene.root, replicas=replicas, allow_data_loss=loss)
    assert again.plan == repair.plan, "the same files give the same plan"
    result = apply(repair, arguments=["recover", str(scene.root)])
    assert result.applied == bool(repair.edits)
    if result.applied:
        after = snapshot(scene.root)
        undo(scene.root, result.undo_id)
        assert snapshot(scene.root) == before, "undo brings back bytes and times"
        result = apply(plan_recover(scene.root, replicas=replicas, allow_data_loss=loss), arguments=[])
        assert {name: one[:2] for name, one in snapshot(scene.root).items()} == {n: one[:2] for n, one in after.items()}
    assert (result.exit_status_name == "clean") == (status(scene.root) == "clean")
    rest = plan_recover(scene.root, replicas=replicas, allow_data_loss=loss)
    assert rest.plan.steps == (), "a second recovery has nothing to do"
    return repair, result


def actions(repair: Repair) -> list[str]:
    return [step.action for step in repair.plan.steps]


def undecided(repair: Repair) -> list[str]:
    return [finding.code.value for finding in repair.plan.undecided]


def copy(scene: Scene, target: Path) -> Scene:
    shutil.copytree(scene.root, target, copy_function=shutil.copy2)
    return Scene(target, scene.replica, scene.other, scene.records, snapshot(target))


def same_bytes(scene: Scene) -> bool:
    """Whether everything is byte for byte as before the damage (times aside)."""
    return {n: one[:2] for n, one in snapshot(scene.root).items()} == {n: one[:2] for n, one in scene.clean.items()}


def body(records: Sequence[Record]) -> bytes:
    return encode_records(records)[0]


def recovered(path: Path, *replicas: Path, loss: bool = False) -> tuple[Repair, RepairResult]:
    """Recover, and prove that undo gives every byte back, that verify says the same, and that nothing more is to be done."""
    for one in (path, *replicas):
        age(one)
    before = snapshot(path)
    repair = plan_recover(path, replicas=replicas, allow_data_loss=loss)
    result = apply(repair, arguments=["recover"])
    if result.applied:
        undo(path, result.undo_id)
        assert snapshot(path) == before
        result = apply(plan_recover(path, replicas=replicas, allow_data_loss=loss), arguments=["recover"])
    assert result.status == status(path)
    assert plan_recover(path, replicas=replicas, allow_data_loss=loss).plan.steps == ()
    return repair, result
