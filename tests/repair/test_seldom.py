"""What seldom happens to a repair: a replica that cannot be read, a partition that cannot be listed, files that change meanwhile.

Nothing is given up for what may be read again, and no plan is carried out on anything else than it was made for.
"""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Callable
from pathlib import Path, PurePath
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from tests.builders import build_directory
from tests.repair.scenes import Scene, actions, codes, make_scene, undecided
from waltzctl.engine.errors import DamageError, DiskReadError, RefusedError, StalePlanError
from waltzctl.engine.log import places
from waltzctl.engine.log.view import view_storage
from waltzctl.engine.repair import apply as apply_module
from waltzctl.engine.repair import plan as plan_module
from waltzctl.engine.repair import rebuild_index, recover_strays, repaired_segments
from waltzctl.engine.repair import replicas as replicas_module
from waltzctl.engine.repair import survey as survey_module
from waltzctl.engine.repair.apply import apply, undo_repair
from waltzctl.engine.repair.arguments import Agreed, Arguments
from waltzctl.engine.repair.content import Content
from waltzctl.engine.repair.convert import plan_convert
from waltzctl.engine.repair.plan import PlanDraft
from waltzctl.engine.repair.provenance import SegmentSurroundings, judge
from waltzctl.engine.repair.rebuild_index import plan_rebuild_index
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.engine.repair.undoing import seen_by_undo
from waltzctl.engine.scan.columns import Damage, DamageCause
from waltzctl.engine.scan.scanner import summarise_records
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.engine.storage.store import list_entries
from waltzctl.formats.control import Layout, decode_control

EIO = OSError(errno.EIO, os.strerror(errno.EIO))


def raising(error: BaseException) -> Callable[..., Any]:
    def raises(*_: object, **__: object) -> NoReturn:
        raise error

    return raises


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return make_scene(tmp_path)


def unlistable(monkeypatch: pytest.MonkeyPatch, *hidden: Path) -> None:
    real = places.listing

    def listing(path: PurePath) -> Any:
        if path in hidden:
            raise DiskReadError(path, None, EIO, doing="list")
        return real(path)

    monkeypatch.setattr(places, "listing", listing)


# --- replicas that cannot be read ------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["file", "FIFO", "link", "none", "index", "gone"])
@pytest.mark.parametrize("loss", [False, True])
def test_nothing_is_given_up_while_a_replica_that_may_hold_it_cannot_be_read(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, what: str, loss: bool
) -> None:
    """A replica without the partition, or without that segment, is another matter: it holds nothing."""
    scene.flip(60)
    there = scene.replica / "0" / scene.seg(50).name
    if what == "file":
        real = places.open_source

        def opened(path: PurePath, size: int | None = None) -> Any:
            return raising(DiskReadError(path, 0, EIO))() if path == there else real(path, size)

        monkeypatch.setattr(places, "open_source", opened)
    elif what in ("FIFO", "gone"):
        there.unlink()
        if what == "FIFO":
            os.mkfifo(there)
    elif what == "index":
        there.unlink()
        there.with_suffix(".idx").unlink()
        os.mkfifo(there.with_suffix(".idx"))
    else:
        (scene.replica / "0").rename(scene.replica.parent / "elsewhere")
        if what == "link":
            (scene.replica / "0").symlink_to("nowhere")
    unread = what in ("file", "FIFO", "link")
    repair = plan_recover(scene.root, partitions=(0,), replicas=(scene.replica,), allow_data_loss=loss)
    if not loss:
        assert (actions(repair), repair.unread) == ([], unread)
        assert undecided(repair) == ["record-checksum"]
        return
    if unread:
        assert actions(repair) == []
        (left,) = repair.plan.undecided
        assert left.code == "read-error"
        assert (
            "nothing was given up: it may hold the records; name another replica, or leave this one out" in left.message
        )
    else:
        assert "split-segment" in actions(repair)
    with_another = plan_recover(
        scene.root, partitions=(0,), replicas=(scene.replica, scene.other), allow_data_loss=loss
    )
    assert "restore-record" in actions(with_another)
    assert not with_another.plan.loses_data


def test_what_replicas_hold_together_is_not_given_up_where_one_of_them_cannot_be_read(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is damaged in another place; while they are joined, the disk of one fails."""
    for number in (60, 61):
        scene.flip(number)
    for path, number in ((scene.replica, 60), (scene.other, 61)):
        data = bytearray((path / "0" / scene.seg(50).name).read_bytes())
        data[scene.offset(number) + 9] ^= 1
        (path / "0" / scene.seg(50).name).write_bytes(data)
    both = (scene.replica, scene.other)
    assert "restore-record" in actions(plan_recover(scene.root, partitions=(0,), replicas=both))
    monkeypatch.setattr(replicas_module, "_collected", raising(DiskReadError(scene.other, 0, EIO)))
    repair = plan_recover(scene.root, partitions=(0,), replicas=both)
    assert (actions(repair), repair.unread) == ([], True)
    repair = plan_recover(scene.root, partitions=(0,), replicas=both, allow_data_loss=True)
    assert (actions(repair), undecided(repair)) == ([], ["read-error"])


# --- partitions that cannot be listed, files that change -------------------------------------------------------------


def test_a_partition_that_cannot_be_listed_keeps_no_other_from_being_repaired(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.idx(50).unlink()
    build_directory(scene.root.parent / "more", {9: 3}, num_partitions=10)
    (scene.root.parent / "more" / "9").rename(scene.root / "9")
    with monkeypatch.context() as patch:
        unlistable(patch, scene.root / "1", scene.root / "9")
        for plan in (plan_recover, plan_rebuild_index):
            repair = plan(scene.root)
            assert actions(repair) == ["rebuild-index"]
            assert repair.unlisted == (1,), "and none that the cluster does not have"
            (left,) = [one for one in repair.plan.undecided if one.code == "read-error"]
            assert left.partition == 1
            assert "nothing is planned for the partition; run " in left.message
    result = apply(repair, arguments=())
    assert (result.applied, result.status, codes(scene.root)) == (True, "clean", set())


def test_what_was_listed_and_is_gone_when_it_is_looked_at_makes_a_plan_stale(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition whose disk is mounted anew would be given up, or its index rebuilt without its data."""
    scene.idx(50).unlink()
    real = rebuild_index.view_storage

    def later(*given: Any, **named: Any) -> Any:
        (scene.root / "1").rename(scene.root.parent / "away")
        return real(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(rebuild_index, "view_storage", later)
        repair = plan_rebuild_index(scene.root)
    (scene.root.parent / "away").rename(scene.root / "1")
    assert actions(repair) == ["rebuild-index"]
    with pytest.raises(StalePlanError, match=f"{scene.root}/1: changed since the plan was made"):
        apply(repair, arguments=())


@pytest.mark.parametrize("change", ["", "grew", "came", "went", "time"])
def test_a_plan_for_anything_else_than_was_noted_is_stale(scene: Scene, change: str) -> None:
    draft = PlanDraft("recover", scene.root, scene.root, Arguments.of((0,)))
    noted = list(draft.seen.listings[0])
    if change == "grew":
        with scene.seg(100).open("ab") as file:
            file.write(b"x")
    elif change == "came":
        scene.seg(130).write_bytes(b"x")
    elif change == "went":
        scene.idx(100).unlink()
    elif change == "time":
        os.utime(scene.seg(0), ns=(1, 1))
    draft.sees(0, view_storage(scene.root, (0,)).partitions[0])
    assert draft.seen.listings[0] == ([("0", -1, -1)] if change else noted)
    draft.sees(7, None)
    assert draft.seen.listings[7] == []
    draft.partitions.add(0)
    repair = draft.finish()
    if change:
        with pytest.raises(StalePlanError):
            repair.check_current()
    else:
        repair.check_current()


def test_a_partition_that_could_not_be_listed_when_a_plan_began_makes_it_stale(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows what was written since."""
    scene.idx(50).unlink()
    real, hidden = plan_module.names_in, [scene.root / "0"]

    def names_in(path: Path) -> Any:
        return raising(DiskReadError(hidden.pop(), None, EIO, doing="list"))() if path in hidden else real(path)

    monkeypatch.setattr(plan_module, "names_in", names_in)
    repair = plan_recover(scene.root, partitions=(0,))
    assert actions(repair) == ["rebuild-index"]
    with pytest.raises(StalePlanError, match="changed since the plan was made"):
        apply(repair, arguments=())


@pytest.mark.parametrize("holds", [True, False])
@pytest.mark.parametrize("cause", list(DamageCause))
def test_whether_an_end_that_begins_with_other_damage_holds_records_is_looked_for(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, cause: DamageCause, holds: bool
) -> None:
    """A torn end tells it by itself; of any other kind nothing is cut that may hold records before somebody looked."""
    os.truncate(scene.seg(100), scene.seg(100).stat().st_size - 1)
    content = Content.of_file(scene.seg(100), scene.seg(100).stat().st_size)
    found = list(summarise_records(content, first_transaction_id=100))
    torn = found.pop()
    assert isinstance(torn, Damage)
    first = dataclasses.replace(torn, cause=cause, length=1, next_transaction_id=None)
    pieces = [*found, first, dataclasses.replace(torn, offset=torn.offset + 1, length=torn.length - 1)]
    asked: list[tuple[int, int]] = []

    def holds_records(_: object, start: int, stop: int, *__: object) -> bool:
        asked.append((start, stop))
        return holds

    monkeypatch.setattr(survey_module, "summarise_records", lambda *_, **__: iter(pieces))
    monkeypatch.setattr(survey_module, "holds_records", holds_records)
    tail = survey_module.survey(content, 100).tail
    assert tail is not None
    told = cause in (DamageCause.TORN_TAIL, DamageCause.RECORD_ORDER)
    assert asked == ([] if told else [(torn.offset, torn.end)])
    assert tail.doubtful is (holds and not told)


def test_a_replica_without_an_index_is_searched_behind_a_record_that_is_out_of_order(scene: Scene) -> None:
    """What one search came to is where the next one begins: not behind what the record out of order may hide."""
    first, place = scene.replica / "0" / scene.seg(0).name, 128 + sum(one.size for one in scene.records[:20])
    data = first.read_bytes()
    repeated = scene.records[3].encode()
    first.write_bytes(data[:place] + repeated + data[place:])
    first.with_suffix(".idx").unlink()
    control = decode_control(scene.control.read_bytes())
    (replica,) = replicas_module.open_replicas((scene.replica,), scene.root, control)
    for number in (30, 3, 19, 20, 49, 0):
        assert replica.record(0, number) == scene.records[number].encode(), number
    assert replica.runs(0, 15, 20) is not None
    assert replica.runs(0, 20, 50) is not None


@pytest.mark.parametrize("there", [False, True])
def test_what_replicas_agreed_to_give_up_without_another_stays_once_that_is_back(scene: Scene, there: bool) -> None:
    away = scene.root.parent / "away" / "0"
    agreed = Agreed(0, 119, cut_after=119, missing=(str(away),))

    def plan() -> Any:
        return plan_recover(scene.root, partitions=(0,), agreed=(agreed,), allow_data_loss=True)

    if there:
        away.mkdir(parents=True)
        with pytest.raises(StalePlanError, match=f"{away}: was missing when the replicas were compared") as raised:
            plan()
        assert raised.value.advice == "compare again"
        return
    repair = plan()
    assert (repair.missing, repair.plan.loses_data) == ((away,), True)
    repair.check_current()
    away.mkdir(parents=True)
    before = scene.intact_ids()
    with pytest.raises(StalePlanError, match=f"{away}: was missing when the replicas were compared"):
        apply(repair, arguments=())
    assert scene.intact_ids() == before
    away.rmdir()
    assert apply(repair, arguments=()).applied


def test_a_source_of_which_a_part_cannot_be_read_is_known_by_what_can_be_told(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = scene.seg(50)
    whole = plan_module._source_digest(path)
    error = DiskReadError(path, 4096, EIO)
    monkeypatch.setattr(plan_module, "stamp", raising(error))
    state = path.stat()
    assert plan_module._source_digest(path) == f"unread: {state.st_size} {state.st_mtime_ns} {state.st_ino}" != whole
    with pytest.raises(DiskReadError) as raised:
        plan_module._source_digest(scene.root / "none")
    assert raised.value is error


def test_an_undo_sets_aside_no_more_than_was_shown(scene: Scene) -> None:
    scene.idx(50).unlink()
    result = apply(plan_recover(scene.root), arguments=())
    (entry,) = list_entries(scene.root)
    shown = seen_by_undo(entry)
    with scene.seg(100).open("ab") as file:
        file.write(b"torn")
    assert result.undo_id is not None
    with pytest.raises(StalePlanError, match="changed since it was shown what the undo sets aside") as raised:
        undo_repair(scene.root, result.undo_id, shown=shown)
    assert (raised.value.advice, scene.idx(50).exists()) == ("look at it again", True)
    done = undo_repair(scene.root, result.undo_id, shown=seen_by_undo(entry))
    assert (done.done.entry.id, scene.idx(50).exists()) == (entry.id, False)


def test_files_that_a_repair_could_not_give_to_their_owner_are_told(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    for first in (0, 50):
        scene.idx(first).write_bytes(scene.idx(first).read_bytes()[:-8])
    real = apply_module.Ownership.of

    def of(path: Path) -> Any:
        found = real(path)
        return SimpleNamespace(user=7, group=found.group) if found and path == scene.idx(50) else found

    monkeypatch.setattr(apply_module, "Ownership", SimpleNamespace(of=of))
    assert apply(plan_recover(scene.root), arguments=()).others_files == (scene.idx(50),)


# --- what stays with the operator ------------------------------------------------------------------------------------


@pytest.mark.parametrize("link", [True, False])
def test_a_pair_that_is_lost_is_not_begun_anew_while_its_disk_is_not_mounted(scene: Scene, link: bool) -> None:
    """It would no longer be assigned, whatever is on the disk."""
    control = decode_control(scene.control.read_bytes())
    offset = control.layout.info_offset(1) + 4
    data = bytearray(scene.control.read_bytes())
    data[offset : control.layout.info_offset(1) + control.layout.info_schema.size] = b"\xff" * (
        control.layout.info_schema.size - 4
    )
    scene.control.write_bytes(data)
    if link:
        (scene.root / "1").rename(scene.root.parent / "away")
        (scene.root / "1").symlink_to("nowhere")
    repair = plan_recover(scene.root, partitions=(1,), allow_data_loss=True)
    assert ("reset-control-pair" in actions(repair)) is not link
    said = "session and marks are lost, and what stands in its directory's place cannot be listed"
    assert any(said in one.message for one in repair.plan.undecided) is link


@pytest.mark.parametrize(
    "error", [DiskReadError(Path("x"), 0, EIO), DamageError("x: it is damaged in too many places")]
)
def test_a_stray_that_cannot_be_surveyed_is_told_and_left(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    stray = scene.root / "0" / "copy.seg"
    scene.seg(100).rename(stray)
    scene.idx(100).unlink()
    monkeypatch.setattr(recover_strays, "survey", raising(error))
    repair = plan_recover(scene.root, partitions=(0,))
    assert "rename-segment" not in actions(repair)
    (left,) = [one for one in repair.plan.undecided if one.path == stray]
    assert ("it cannot be read" in left.message) == isinstance(error, DiskReadError)
    assert str(error).split(";")[0] in left.message
    monkeypatch.setattr(recover_strays, "judge_stray", raising(DiskReadError(stray, 0, EIO)))
    (left,) = [one for one in plan_recover(scene.root, partitions=(0,)).plan.undecided if one.path == stray]
    assert left.code == "read-error"


def test_a_segment_that_cannot_be_surveyed_is_left_with_everything_in_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.flip(60)
    monkeypatch.setattr(repaired_segments, "survey", raising(DamageError("it is damaged in more than 9 places")))
    repair = plan_recover(scene.root, partitions=(0,), replicas=(scene.replica,), allow_data_loss=True)
    assert repair.edits == ()
    assert {one.code for one in repair.plan.undecided} == {"record-order"}
    assert all("more than 9 places" in one.message for one in repair.plan.undecided)


def test_a_data_file_whose_header_went_since_it_was_listed_is_not_judged(scene: Scene) -> None:
    view = view_storage(scene.root, (0,))
    segments = view.partitions[0].segments
    assert view.control is not None
    around = SegmentSurroundings(view.control, 0, segments)
    content = Content.of_file(scene.seg(0), scene.seg(0).stat().st_size)
    assert judge(segments[0], content, around).header is not None
    os.truncate(scene.seg(0), 100)
    with pytest.raises(DiskReadError, match="the file, or its header, is gone since the directory was listed"):
        judge(segments[0], content, around)


# --- conversion ------------------------------------------------------------------------------------------------------


def test_nothing_is_converted_while_nobody_knows_what_is_assigned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = build_directory(tmp_path / "s", {0: 5, 1: 5}, num_partitions=3, layout=Layout.DOCUMENTED)
    with monkeypatch.context() as patch:
        unlistable(patch, path / "1")
        with pytest.raises(DiskReadError) as raised:
            plan_convert(path, layout=Layout.RELEASED)
        assert raised.value.advice == "a directory is converted as a whole: convert it when the disk answers again"
    (path / "2").symlink_to("nowhere")
    with pytest.raises((RefusedError, DiskReadError), match="leads nowhere"):
        plan_convert(path, layout=Layout.RELEASED)
    (path / "2").unlink()
    assert plan_convert(path, layout=Layout.RELEASED).edits


def test_a_link_that_leads_nowhere_may_lead_to_a_partition_that_is_assigned(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "s", {0: 5}, num_partitions=2, layout=Layout.RELEASED)
    (path / "1").symlink_to("nowhere")
    with pytest.raises(RefusedError, match="the link in the place of partition 1 leads nowhere"):
        plan_convert(path, layout=Layout.DOCUMENTED)
    (path / "1").unlink()
    assert plan_convert(path, layout=Layout.DOCUMENTED).edits


def test_a_link_is_not_put_aside(tmp_path: Path) -> None:
    """Moved, it would lead elsewhere, and an undo could not bring it back."""
    path = build_directory(tmp_path / "s", {0: 5, 1: 5}, layout=Layout.RELEASED)
    with StorageDirectory.open(path) as storage:
        storage.unassign(1, delete_files=False)
    (path / "1").rename(tmp_path / "disk")
    (path / "1").symlink_to("../disk")
    with pytest.raises(RefusedError, match="its directory is to be put aside, and it is a link") as raised:
        plan_convert(path, layout=Layout.DOCUMENTED)
    assert f"waltzctl set-partition {path} --partition 1 --assigned" in (raised.value.advice or "")
