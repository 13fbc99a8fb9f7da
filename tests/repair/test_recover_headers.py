"""A segment's header is restored where other witnesses prove what it was, and left alone where they do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import segment_header
from tests.inspect.helpers import age
from tests.repair.scenes import Scene, actions, flip, make_scene, recover, same_bytes, undecided
from tests.repair.trees import snapshot
from waltzctl.engine.errors import StalePlanError
from waltzctl.engine.findings import Code, Finding, Severity
from waltzctl.engine.inspect.verify import verify
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.engine.storage.directory import open_storage

FIELDS = {"version": 3, "key": 15, "partition": 31, "first": 39}


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """In one layout of the control file, which has no part in this."""
    return make_scene(tmp_path / "scene")


@pytest.mark.turns(8)
@pytest.mark.parametrize("first", [0, 50, 100])
@pytest.mark.parametrize("field", FIELDS)
def test_one_damaged_field_is_restored(scene: Scene, field: str, first: int) -> None:
    flip(scene.seg(first), FIELDS[field], 4)
    repair, result = recover(scene)
    assert actions(repair) == ["write-segment-header"]
    assert result.exit_status_name == "clean"
    assert same_bytes(scene)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("same", [True, False])
def test_a_torn_tail_in_front_of_a_damaged_header_waits_for_it(scene: Scene, field: str, *, same: bool) -> None:
    """It named a replica, although recover cuts it once the header is right, as the next record stands behind that, intact."""
    flip(scene.seg(50), FIELDS[field], 4)
    with scene.seg(0).open("ab") as data:
        data.write(scene.records[50 if same else 70].encode()[:30])
    tail, header = (one for one in verify([age(scene.root)]) if isinstance(one, Finding))
    assert (tail.code, tail.severity, tail.missing) == (Code.TORN_TAIL, Severity.DAMAGE, 0)
    assert (tail.remedy, tail.waits_for) == (header.remedy, header.code)
    assert tail.remedy == f"waltzctl recover {scene.root} --partition 0"
    with open_storage(scene.root) as storage:
        assert tail in storage.partition(0).findings
        assert storage.partition(0).quarantined
    repair, result = recover(scene)
    assert sorted(actions(repair)) == ["cut-torn-tail", "write-segment-header"]
    assert result.exit_status_name == "clean"
    assert same_bytes(scene)


@pytest.mark.parametrize("place", [0, 36])
def test_a_torn_tail_in_front_of_a_damaged_header_and_record_needs_a_replica(scene: Scene, place: int) -> None:
    """All that is left of the record may be in the tail."""
    flip(scene.seg(50), FIELDS["key"], 4)
    scene.flip(50, place)
    with scene.seg(0).open("ab") as data:
        data.write(scene.records[50].encode()[:30])
    tail = next(one for one in verify([age(scene.root)]) if isinstance(one, Finding) and one.segment == 0)
    assert (tail.severity, tail.waits_for) == (Severity.DAMAGE, None)
    assert tail.remedy == f"waltzctl recover {scene.root} --partition 0 --from REPLICA"


@pytest.mark.parametrize("field", ["version", "first"])
def test_these_are_proven_without_an_index_as_well(scene: Scene, field: str) -> None:
    flip(scene.seg(50), FIELDS[field], 4)
    scene.idx(50).unlink()
    repair, result = recover(scene)
    assert actions(repair) == ["write-segment-header", "rebuild-index"]
    assert result.exit_status_name == "clean"


def test_the_version_of_both_files_is_proven_by_any_record(scene: Scene) -> None:
    """The first one is damaged, too."""
    for path in (scene.seg(50), scene.idx(50)):
        flip(path, FIELDS["version"], 1)
    scene.flip(50)
    repair, _ = recover(scene)
    assert actions(repair)[0] == "write-segment-header"
    _, result = recover(scene, scene.replica)
    assert result.exit_status_name == "clean"


@pytest.mark.parametrize(("field", "code"), [("key", "segment-key"), ("partition", "segment-partition")])
def test_without_an_index_nothing_tells_damage_from_a_misplaced_file(scene: Scene, field: str, code: str) -> None:
    flip(scene.seg(50), FIELDS[field], 4)
    scene.idx(50).unlink()
    before = snapshot(age(scene.root))
    repair, result = recover(scene, loss=True)
    assert (actions(repair), undecided(repair)) == ([], [code])
    assert result.exit_status_name == "damaged"
    assert snapshot(scene.root) == before
    _, result = recover(scene, scene.replica)
    assert result.exit_status_name == "clean", "a replica that holds the same records tells"


def test_a_foreign_segment_is_not_adopted(scene: Scene) -> None:
    """Data file and index of another partition, lying here under a fitting name."""
    for source, target in ((scene.seg(0, 1), scene.seg(130)), (scene.idx(0, 1), scene.idx(130))):
        data = bytearray(source.read_bytes())
        data[32:40] = (130).to_bytes(8, "big")
        target.write_bytes(data)
    repair, _ = recover(scene, loss=True)
    assert actions(repair) == []
    assert undecided(repair) == ["segment-partition"]


def test_a_renamed_segment_that_is_damaged_is_left_to_a_person(scene: Scene) -> None:
    """A whole one gets its name back: `tests.repair.test_recover_names`."""
    flip(scene.seg(100), 128 + 9)
    scene.seg(100).rename(scene.seg(101))
    scene.idx(100).rename(scene.idx(101))
    repair, _ = recover(scene)
    assert actions(repair) == []
    assert undecided(repair) == ["segment-name"]


def test_a_header_that_is_gone_altogether_comes_from_the_index(scene: Scene) -> None:
    data = scene.seg(50).read_bytes()
    scene.seg(50).write_bytes(bytes(128) + data[128:])
    repair, result = recover(scene)
    assert actions(repair) == ["write-segment-header"]
    assert result.exit_status_name == "clean"
    assert same_bytes(scene)


@pytest.mark.parametrize("field", FIELDS)
def test_a_damaged_index_header_is_no_reason_to_touch_the_data(scene: Scene, field: str) -> None:
    flip(scene.idx(50), FIELDS[field], 4)
    repair, result = recover(scene)
    assert actions(repair) == ["rebuild-index"]
    assert result.exit_status_name == "clean"
    assert scene.idx(50).read_bytes()[:128] == segment_header(0, 50).encode()


def test_header_and_records_damaged_at_once_are_both_restored(scene: Scene) -> None:
    flip(scene.seg(50), FIELDS["first"], 4)
    scene.flip(50)
    scene.flip(70)
    _, result = recover(scene, scene.replica)
    assert result.exit_status_name == "clean"
    assert same_bytes(scene)


def test_a_creation_time_is_nobodys_business(scene: Scene) -> None:
    flip(scene.seg(50), 9)
    assert plan_recover(scene.root).plan.steps == ()


def test_a_header_that_a_replica_proves_holds_only_as_long_as_the_replica_is_as_it_was(scene: Scene) -> None:
    flip(scene.seg(50), FIELDS["partition"], 4)
    scene.idx(50).unlink()
    repair = plan_recover(scene.root, replicas=[scene.replica])
    assert "write-segment-header" in actions(repair)
    flip(scene.replica / "0" / scene.seg(50).name, 200)
    with pytest.raises(StalePlanError):
        repair.check_current()
