"""The simulated disk itself: hand-written workloads over ``engine.durable.disk`` and what a crash may leave of them."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.crash.recorder import Recorder, observing
from tests.crash.simdisk import SECTOR, Loss, SimulatedDisk, Tree, sector_boundaries, split_by_sector
from waltzctl.engine.durable import disk
from waltzctl.engine.durable.disk import Change, WritableFile

EMPTY = Tree({}, frozenset())


def replay(root: Path, before: Tree, work: Callable[[], None]) -> SimulatedDisk:
    simulated = SimulatedDisk(root, before)
    with observing(simulated.apply):
        work()
    return simulated


def labelled(simulated: SimulatedDisk, loss: Loss | None = None) -> dict[str, list[Tree]]:
    states: dict[str, list[Tree]] = {}
    for label, tree in simulated.crashes(loss or Loss(torn_positions=0), random.Random(1)):
        states.setdefault(label, []).append(tree)
    return states


def test_a_new_file_without_any_sync_may_be_there_whole_empty_zeroed_or_not_at_all(tmp_path: Path) -> None:
    def work() -> None:
        with WritableFile.create(tmp_path / "a") as file:
            file.write_at(0, b"x" * 100)

    states = labelled(replay(tmp_path, EMPTY, work))
    assert [tree.files for tree in states["kept"]] == [{"a": b"x" * 100}]
    assert [tree.files for tree in states["dropped"]] == [{}]
    assert [tree.files for tree in states["dropped data"]] == [{"a": b""}]
    assert [tree.files for tree in states["dropped names"]] == [{}]
    assert [tree.files for tree in states["zeroed"]] == [{"a": bytes(100)}]


def test_syncing_a_file_keeps_its_bytes_but_not_its_name(tmp_path: Path) -> None:
    def work() -> None:
        with WritableFile.create(tmp_path / "a") as file:
            file.write_at(0, b"x")
            file.sync()

    states = labelled(replay(tmp_path, EMPTY, work))
    assert states["dropped"][0].files == {}
    assert states["dropped data"][0].files == {"a": b"x"}


def test_syncing_a_directory_keeps_names_but_not_bytes(tmp_path: Path) -> None:
    def work() -> None:
        with WritableFile.create(tmp_path / "a") as file:
            file.write_at(0, b"x")
        disk.sync_directory(tmp_path)

    assert labelled(replay(tmp_path, EMPTY, work))["dropped"][0].files == {"a": b""}


def test_a_file_in_a_directory_whose_own_name_was_lost_is_lost(tmp_path: Path) -> None:
    def work() -> None:
        disk.make_directory(tmp_path / "d")
        with WritableFile.create(tmp_path / "d" / "a") as file:
            file.sync()
        disk.sync_directory(tmp_path / "d")

    simulated = replay(tmp_path, EMPTY, work)
    assert simulated.dropped() == EMPTY
    simulated.apply(Change("sync-directory", tmp_path))
    assert simulated.dropped() == Tree({"d/a": b""}, frozenset({"d"}))


def test_a_replacement_leaves_the_old_bytes_or_the_new_ones_in_every_state(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old" * 1000)
    recorder: Recorder[None] = Recorder(tmp_path)
    with recorder.listening():
        recorder.promise(None, settled=False)
        disk.write_whole(tmp_path / "a", b"new" * 2000)
    simulated = SimulatedDisk(tmp_path, recorder.recording.before)
    seen = set()
    for moment in recorder.recording.moments(simulated):
        for _, tree in simulated.crashes(Loss(torn_positions=0, random_states=20), random.Random(moment.number)):
            seen.add(tree.files["a"])
    assert seen == {b"old" * 1000, b"new" * 2000}
    assert simulated.dropped().files == {"a": b"new" * 2000}


def test_a_replacement_without_syncing_the_new_file_leaves_an_empty_one_in_some_state(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")

    def work() -> None:
        with WritableFile.create(tmp_path / "b") as file:
            file.write_at(0, b"new")
        disk.rename(tmp_path / "b", tmp_path / "a")
        disk.sync_directory(tmp_path)

    simulated = replay(tmp_path, Tree({"a": b"old"}, frozenset()), work)
    assert simulated.dropped().files == {"a": b""}


def test_an_unlink_without_directory_sync_may_bring_the_file_back(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    simulated = replay(tmp_path, Tree({"a": b"x"}, frozenset()), lambda: disk.unlink(tmp_path / "a"))
    assert simulated.kept().files == {}
    assert simulated.dropped().files == {"a": b"x"}
    simulated.apply(Change("sync-directory", tmp_path))
    assert simulated.dropped().files == {}


def test_a_write_is_torn_at_each_sector_of_the_file_not_of_the_write(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"o" * 700)

    def work() -> None:
        with WritableFile.open(tmp_path / "a") as file:
            file.write_at(500, b"n" * 1000)

    states = labelled(replay(tmp_path, Tree({"a": b"o" * 700}, frozenset()), work))
    assert [tree.files["a"] for tree in states["torn"]] == [
        b"o" * 500 + b"n" * 12 + b"o" * 188,
        b"o" * 500 + b"n" * 524,
    ]
    assert states["torn, rest zero"][1].files["a"] == b"o" * 500 + b"n" * 524 + bytes(476)


def test_a_cut_that_was_not_synced_may_not_have_happened(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abcdef")

    def work() -> None:
        with WritableFile.open(tmp_path / "a") as file:
            file.truncate(2)
            file.write_at(2, b"XY")

    simulated = replay(tmp_path, Tree({"a": b"abcdef"}, frozenset()), work)
    found = {simulated._shuffled(random.Random(seed)).files["a"] for seed in range(200)}
    assert found == {b"abcdef", b"ab", b"abXY", b"abXYef"}
    assert labelled(simulated)["zeroed"][0].files["a"] == b"ab\0\0"


def test_zeroing_spares_bytes_that_were_there_before(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")

    def work() -> None:
        with WritableFile.open(tmp_path / "a") as file:
            file.write_at(1, b"NEWER")

    assert labelled(replay(tmp_path, Tree({"a": b"old"}, frozenset()), work))["zeroed"][0].files["a"] == b"old\0\0\0"


def test_shuffling_gives_single_sectors_of_one_write_out_of_order(tmp_path: Path) -> None:
    def work() -> None:
        with WritableFile.create(tmp_path / "a") as file:
            file.write_at(0, b"1" * SECTOR + b"2" * SECTOR)
        disk.sync_directory(tmp_path)

    simulated = replay(tmp_path, EMPTY, work)
    found = {simulated._shuffled(random.Random(seed)).files["a"] for seed in range(100)}
    assert bytes(SECTOR) + b"2" * SECTOR in found
    assert found == {
        b"",
        b"1" * SECTOR,
        bytes(SECTOR) + b"2" * SECTOR,
        b"1" * SECTOR + b"2" * SECTOR,
    }


@pytest.mark.parametrize("positions", [1, 2, 4])
def test_what_is_picked_of_many_torn_positions_is_first_and_last_moved_on_by_turns_over_all(positions: int) -> None:
    boundaries = [SECTOR * number for number in range(1, 10)]
    picked = [Loss(positions, turn=turn).select(boundaries) for turn in range(20)]
    assert picked[0] == picked[9] == {1: [512], 2: [512, 4608], 4: [512, 2048, 3072, 4608]}[positions]
    assert {len(one) for one in picked} == {positions}
    assert set().union(*picked) == set(boundaries)
    assert Loss(positions, turn=5).select(boundaries[:1]) == boundaries[:1]


def states_of(simulated: SimulatedDisk) -> set[bytes]:
    return {simulated._shuffled(random.Random(seed)).digest() for seed in range(100)} | {
        tree.digest() for _, tree in simulated.crashes(Loss(torn_positions=0), random.Random(1))
    }


def two_directories(root: Path) -> None:
    for name in ("from", "to"):
        (root / name).mkdir()


def move(root: Path, before: Tree) -> SimulatedDisk:
    """``from/a`` renamed to ``to/a``, as the simulated disk sees it; on the real one it is back then."""
    simulated = replay(root, before, lambda: disk.rename(root / "from" / "a", root / "to" / "a"))
    disk.rename(root / "to" / "a", root / "from" / "a")
    return simulated


def test_a_file_renamed_into_another_directory_is_lost_where_only_the_one_it_left_is_synced(tmp_path: Path) -> None:
    two_directories(tmp_path)
    (tmp_path / "from" / "a").write_bytes(b"x")
    before = Tree.read(tmp_path)
    moved = Tree({"to/a": b"x"}, before.directories)
    both = Tree({"from/a": b"x", "to/a": b"x"}, before.directories)
    neither = Tree({}, before.directories)
    for first, second in (("to", "from"), ("from", "to")):
        simulated = move(tmp_path, before)
        assert states_of(simulated) == {before.digest(), both.digest(), moved.digest()}
        simulated.apply(Change("sync-directory", tmp_path / first))
        left = both if first == "to" else neither
        assert simulated.dropped() == left
        assert states_of(simulated) == {left.digest(), moved.digest()}
        simulated.apply(Change("sync-directory", tmp_path / second))
        assert simulated.dropped() == moved
        assert simulated.settled


def test_a_directory_renamed_into_another_one_never_has_two_names_and_may_have_none_in_the_same_way(
    tmp_path: Path,
) -> None:
    two_directories(tmp_path)
    (tmp_path / "from" / "a").mkdir()
    (tmp_path / "from" / "a" / "file").write_bytes(b"x")
    before = Tree.read(tmp_path)
    moved = Tree({"to/a/file": b"x"}, frozenset({"from", "to", "to/a"}))
    neither = Tree({}, frozenset({"from", "to"}))
    for first, second in (("to", "from"), ("from", "to")):
        simulated = move(tmp_path, before)
        assert states_of(simulated) == {before.digest(), moved.digest()}
        simulated.apply(Change("sync-directory", tmp_path / first))
        left = moved if first == "to" else neither
        assert simulated.dropped() == left
        assert states_of(simulated) == {left.digest(), moved.digest()}
        simulated.apply(Change("sync-directory", tmp_path / second))
        assert simulated.dropped() == moved
        assert simulated.settled


def test_a_descriptor_follows_its_file_through_a_rename(tmp_path: Path) -> None:
    def work() -> None:
        with WritableFile.create(tmp_path / "a") as file:
            disk.rename(tmp_path / "a", tmp_path / "b")
            disk.sync_directory(tmp_path)
            file.write_at(0, b"late")
            file.sync()

    assert replay(tmp_path, EMPTY, work).dropped().files == {"b": b"late"}


def test_the_recorder_notices_a_change_that_went_past_the_observer(tmp_path: Path) -> None:
    recorder: Recorder[None] = Recorder(tmp_path)

    def work(unseen: bool) -> None:
        with recorder.listening():
            disk.make_directory(tmp_path / f"seen {unseen}")
            if unseen:
                (tmp_path / "unseen").write_bytes(b"x")

    work(unseen=False)
    with pytest.raises(AssertionError, match="unseen: only in the second"):
        work(unseen=True)


def test_changes_that_cannot_be_are_refused(tmp_path: Path) -> None:
    simulated = SimulatedDisk(tmp_path, Tree({"a": b"abc"}, frozenset()))
    impossible = [
        Change("write", tmp_path / "missing", data=b"x"),
        Change("truncate", tmp_path / "a", size=4),
        Change("create", tmp_path / "a"),
        Change("unlink", tmp_path / "missing"),
        Change("rename", tmp_path / "missing", target=tmp_path / "b"),
        Change("sync-directory", tmp_path / "a"),
        Change("create", tmp_path / "missing" / "a"),
        Change("write", tmp_path.parent / "elsewhere", data=b"x"),
        Change("melt", tmp_path / "a"),
    ]
    for change in impossible:
        with pytest.raises(ValueError, match=r".+"):
            simulated.apply(change)


@given(st.integers(0, 3000), st.binary(min_size=1, max_size=4000))
def test_the_pieces_of_a_write_are_the_write_and_none_crosses_a_sector(offset: int, data: bytes) -> None:
    pieces = split_by_sector(offset, data)
    assert b"".join(piece.data or b"" for piece in pieces) == data
    assert len(pieces) == len(sector_boundaries(offset, len(data))) + 1
    for piece in pieces:
        assert piece.data
        assert piece.offset // SECTOR == (piece.offset + len(piece.data) - 1) // SECTOR


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["create", "write", "truncate", "sync", "rename", "unlink", "mkdir", "sync-directory"]),
        st.integers(0, 5),
        st.integers(0, 5),
        st.binary(min_size=1, max_size=1500),
    ),
    max_size=25,
)
PLACES = ["a", "b", "c", "d/a", "d/b", "e/a"]


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, seed=st.integers(0, 2**32))
def test_random_work_keeps_equals_the_real_disk_and_after_all_syncs_nothing_can_be_lost(
    steps: list[tuple[str, int, int, bytes]], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("random")
    recorder: Recorder[int] = Recorder(root)
    with recorder.listening():  # proves: all changes together are the real disk
        recorder.promise(0, settled=False)
        for kind, first, second, data in steps:
            _step(root, kind, root / PLACES[first], root / PLACES[second], data)
    simulated = SimulatedDisk(root, recorder.recording.before)
    for _ in recorder.recording.moments(simulated):
        kept, dropped = simulated.kept(), simulated.dropped()
        for label, tree in simulated.crashes(Loss(2, 2), random.Random(seed)):
            if simulated.settled:
                assert tree == kept == dropped, label
    for place, _, names in os.walk(root):
        for name in names:
            simulated.apply(Change("sync", Path(place) / name))
        simulated.apply(Change("sync-directory", Path(place)))
    assert simulated.settled
    assert simulated.dropped() == Tree.read(root)


def _step(root: Path, kind: str, path: Path, other: Path, data: bytes) -> None:
    if kind == "mkdir" and not path.parent.exists():
        disk.make_directory(path.parent)
    elif kind == "sync-directory" and path.parent.exists():
        disk.sync_directory(path.parent)
    elif kind == "create" and path.parent.exists() and not path.exists():
        WritableFile.create(path).close()
    elif path.is_file():
        if kind == "rename" and other.parent.exists():
            disk.rename(path, other)
        elif kind == "unlink":
            disk.unlink(path)
        elif kind in ("write", "truncate", "sync"):
            with WritableFile.open(path) as file:
                if kind == "write":
                    file.write_at(len(data) % (file.size() + 1), data)
                elif kind == "truncate":
                    file.truncate(len(data) % (file.size() + 1))
                else:
                    file.sync()
