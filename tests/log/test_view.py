"""What lies in a directory, told by names and lengths alone, and what a path on the command line names."""

from __future__ import annotations

import os
from pathlib import Path, PurePath

import pytest

from tests.builders import build_directory, make_records, segment_header, write_segment
from waltzctl.engine.errors import DiskReadError, InvalidRequestError, NotWaltzError
from waltzctl.engine.log import view
from waltzctl.engine.log.partition_directories import partition_directories, partition_number
from waltzctl.engine.log.places import open_source
from waltzctl.engine.log.target import Target, TargetKind, resolve
from waltzctl.engine.log.view import (
    FileState,
    PartitionView,
    SegmentView,
    StraySegment,
    beyond,
    check_partitions,
    index_path_of,
    read_control,
    read_header_of,
    read_segment_header,
    view_partition,
    view_storage,
)
from waltzctl.formats.control import Layout, decode_control
from waltzctl.formats.segment import HEADER_SIZE, index_name, segment_name


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return build_directory(tmp_path / "s", {0: 25, 2: 5}, per_segment=10, num_partitions=3)


def test_a_control_file_of_the_most_partitions_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "MAX_PARTITIONS", 5)
    for layout in Layout:
        path = build_directory(tmp_path / layout, {0: 1}, num_partitions=5, layout=layout)
        control = read_control(path / "waltz-storage.ctl")
        assert control is not None
        assert (control.size_fits, len(control.partitions)) == (True, 5)
        with (path / "waltz-storage.ctl").open("ab") as file:
            file.write(b"x")
        control = read_control(path / "waltz-storage.ctl")
        assert control is not None
        assert not control.size_fits


def test_partitions_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "s", dict.fromkeys((10, 2, 9), 1), num_partitions=11)
    assert list(view_storage(path).partitions) == partition_directories(path) == [2, 9, 10]


def test_a_control_file_that_the_disk_does_not_give_is_an_error(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not told as one that is missing."""

    def fails(path: Path, *_: object) -> bytes:
        raise DiskReadError(path, 0, OSError(5, "no"))

    monkeypatch.setattr(view.places, "read_range", fails)
    with pytest.raises(DiskReadError):
        view_storage(storage)


def test_a_partition_of_everything_that_can_lie_there(storage: Path) -> None:
    path = storage / "0"
    header = segment_header(0, 0).encode()
    for name in (
        "20.seg",
        "20.idx",
        "lone.seg",
        "other.idx",
        "a.seg.b.seg",
        "a.idx.b.idx",
        "notes.txt",
        "x.waltzctl-tmp",
    ):
        (path / name).write_bytes(header)
    (path / segment_name(10)).unlink()
    (path / index_name(20)).unlink()
    (path / segment_name(40)).mkdir()
    (path / index_name(50)).mkdir()
    (path / "pipe.seg").mkdir()
    (path / "sub").mkdir()
    (path / "gone").symlink_to(path / "nowhere")
    (path / segment_name(60)).symlink_to(path / "nowhere")
    view = view_partition(path, 0)
    assert [(one.first_transaction_id, one.data is None, one.index is None) for one in view.segments] == [
        (0, False, False),
        (10, True, False),
        (20, False, True),
    ]
    assert [one.first_transaction_id for one in view.data_segments] == [0, 20]
    assert view.data_segments is view.data_segments, "it is asked for of each of tens of thousands of segments"
    assert [one.name for one in view.temporary] == ["x.waltzctl-tmp"]
    strays = {one.data.path.name: None if one.index is None else one.index.path.name for one in view.strays}
    assert strays == {"20.seg": "20.idx", "lone.seg": None, "a.seg.b.seg": "a.idx.b.idx"}
    assert sorted(one.name for one in view.special) == sorted(
        [segment_name(40), index_name(50), "pipe.seg", segment_name(60)]
    )
    assert sorted(one.name for one in view.unknown) == ["gone", "notes.txt", "other.idx", "sub"]
    assert (view.partition, view.path) == (0, path)


def test_a_segment_knows_its_paths_and_its_entries(tmp_path: Path) -> None:
    path = tmp_path / index_name(7)
    for size, entries in ((0, 0), (127, 0), (128, 0), (135, 0), (136, 1), (151, 2), (152, 3)):
        path.write_bytes(bytes(size))
        view = SegmentView(0, 7, None, FileState.of(path))
        assert view.entries == entries
        assert (view.data_path, view.index_path) == (tmp_path / segment_name(7), path)
    data = FileState(tmp_path / segment_name(7), 9, 1, 1)
    assert SegmentView(0, 7, data, None).entries == 0
    assert SegmentView(0, 7, data, None).index_path == path
    assert index_path_of(tmp_path / "x.seg") == tmp_path / "x.idx"
    assert StraySegment(data, None).index_path == path
    assert FileState.of(tmp_path / "nowhere") is None
    assert FileState.of(tmp_path) is None
    stat = os.stat(path)
    assert FileState.of(path) == FileState(path, 152, stat.st_mtime_ns, stat.st_ino)


@pytest.mark.parametrize("size", [0, 127, 128, 129])
def test_a_header_is_read_where_there_is_a_whole_one(tmp_path: Path, size: int) -> None:
    path = tmp_path / segment_name(3)
    path.write_bytes((segment_header(0, 3).encode() + b"x")[:size])
    state = FileState.of(path)
    assert read_segment_header(state) == (segment_header(0, 3) if size >= HEADER_SIZE else None)
    assert read_segment_header(None) is None
    assert state is not None
    with open_source(path) as source:
        assert read_header_of(source, size) == read_segment_header(state)
        assert read_header_of(source, 127) is None, "as long as it was when it was looked at"
    path.write_bytes(bytes(50))
    with open_source(path) as source:
        assert read_header_of(source, size) is None, "it shrank meanwhile"
    assert read_segment_header(state) is None, "it shrank meanwhile"
    path.unlink()
    assert read_segment_header(state) is None, "it went meanwhile"


@pytest.mark.parametrize(
    "name", ["", "00", "07", "-1", "+1", "1_0", " 1", "1\n", "\u0663", "1\u0663", str(2**31), "9" * 200, "x"]
)
def test_a_name_that_no_partition_s_directory_has(name: str) -> None:
    assert partition_number(name) is None


def test_the_name_of_a_partition_s_directory() -> None:
    assert [partition_number(str(one)) for one in (0, 7, 10**9, 2**31 - 1)] == [0, 7, 10**9, 2**31 - 1]


def test_a_storage_directory_of_everything_that_can_lie_there(storage: Path) -> None:
    for name in ("00", "01", "x", str(2**31), str(2**31 - 1), ".waltzctl"):
        (storage / name).mkdir()
    for name in ("5", "z.waltzctl-tmp", "notes"):
        (storage / name).write_bytes(b"")
    view = view_storage(storage)
    assert list(view.partitions) == [0, 2, 2**31 - 1]
    assert [one.name for one in view.temporary] == ["z.waltzctl-tmp"]
    assert sorted(one.name for one in view.unknown) == sorted(["00", "01", "x", str(2**31), "5", "notes"])
    assert view.control == decode_control((storage / "waltz-storage.ctl").read_bytes())
    assert view.control_path == storage / "waltz-storage.ctl"
    assert view.control_state == FileState.of(view.control_path)
    assert partition_directories(storage) == [0, 2, 2**31 - 1], "the same as the view's"
    assert view.control is not None
    assert [one.partition for one in beyond(view.partitions, view.control)] == [2**31 - 1]
    only = view_storage(storage, [2])
    assert list(only.partitions) == [2]
    assert str(2**31 - 1) not in {one.name for one in only.unknown}


def test_one_partition_more_than_the_control_file_has_is_beyond_it(storage: Path) -> None:
    (storage / "3").mkdir()
    view = view_storage(storage)
    assert view.control is not None
    assert [one.partition for one in beyond(view.partitions, view.control)] == [3]


def test_what_is_no_storage_directory(storage: Path) -> None:
    control = storage / "waltz-storage.ctl"
    control.unlink()
    assert view_storage(storage).control is None
    assert view_storage(storage).control_state is None
    with pytest.raises(NotWaltzError, match=r"s: not a Waltz storage directory: there is no waltz-storage\.ctl$"):
        view_storage(storage, [1])
    control.symlink_to("nowhere")
    assert view_storage(storage, [1]).control is None
    control.unlink()
    control.mkdir()
    assert view_storage(storage).control is None
    with pytest.raises(NotWaltzError, match=r"nowhere: no such directory$"):
        view_storage(storage / "nowhere")
    with pytest.raises(NotWaltzError, match=r"\.seg: not a directory$"):
        view_partition(storage / "0" / segment_name(0), 0)
    with pytest.raises(NotWaltzError, match=r"no such directory$"):
        view_partition(storage / "7", 7)


@pytest.mark.parametrize("size", [0, 127, 128, 129])
def test_a_control_file_of_less_than_its_header_is_none(storage: Path, size: int) -> None:
    path = storage / "waltz-storage.ctl"
    os.truncate(path, size)
    found = read_control(path)
    assert (found is None) == (size < 128)
    assert view_storage(storage).control == found
    assert view_storage(storage).control_state is not None
    path.unlink()
    assert read_control(path) is None


class TestNamed:
    """A path on the command line."""

    def test_each_kind(self, storage: Path) -> None:
        data, index = storage / "2" / segment_name(0), storage / "2" / index_name(0)
        control, other = storage / "waltz-storage.ctl", storage / "copy.ctl"
        other.write_bytes(control.read_bytes())
        for path, kind, where, number in (
            (storage, TargetKind.STORAGE, storage, None),
            (storage / "2", TargetKind.PARTITION, storage, 2),
            (data, TargetKind.SEGMENT, storage, 2),
            (index, TargetKind.INDEX, storage, 2),
            (control, TargetKind.CONTROL, storage, None),
            (other, TargetKind.CONTROL, None, None),
        ):
            assert resolve(path) == Target(kind, path, where, number)
        (storage / segment_name(0)).write_bytes(data.read_bytes())
        assert resolve(storage) == Target(TargetKind.STORAGE, storage, storage, None), (
            "whatever lies beside the control file"
        )

    def test_on_its_own(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A partition's directory, or a file, outside of any storage directory."""
        alone = tmp_path / "copy"
        alone.mkdir()
        write_segment(alone, make_records(3))
        assert resolve(alone) == Target(TargetKind.PARTITION, alone, None, None)
        assert resolve(alone / segment_name(0)) == Target(TargetKind.SEGMENT, alone / segment_name(0), None, None)
        monkeypatch.chdir(tmp_path.parent)
        relative = Path(tmp_path.name, "copy")
        assert resolve(relative) == Target(TargetKind.PARTITION, relative, None, None)
        odd = alone / "odd.seg"
        odd.write_bytes(b"")
        assert resolve(odd) == Target(TargetKind.SEGMENT, odd, None, None)
        numbered = tmp_path / "7"
        numbered.mkdir()
        with pytest.raises(NotWaltzError, match="7: not a Waltz storage directory"):
            resolve(numbered)
        write_segment(numbered, make_records(3))
        assert resolve(numbered) == Target(TargetKind.PARTITION, numbered, None, 7)

    def test_an_empty_partition_of_a_storage_directory(self, storage: Path) -> None:
        (storage / "1").mkdir()
        assert resolve(storage / "1") == Target(TargetKind.PARTITION, storage / "1", storage, 1)
        (storage / "x").mkdir()
        with pytest.raises(NotWaltzError, match="x: not a Waltz storage directory"):
            resolve(storage / "x")

    def test_without_its_control_file(self, storage: Path) -> None:
        (storage / "waltz-storage.ctl").unlink()
        assert resolve(storage) == Target(TargetKind.STORAGE, storage, storage, None)
        assert resolve(storage / "2") == Target(TargetKind.PARTITION, storage / "2", None, 2)

    def test_without_its_control_file_and_with_a_partition_that_cannot_be_listed(
        self, storage: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        listed = view.view_partition

        def fails(path: Path, number: int) -> PartitionView:
            if number == 0:
                raise DiskReadError(path, None, OSError(5, "no"))
            return listed(path, number)

        (storage / "waltz-storage.ctl").unlink()
        monkeypatch.setattr(view, "view_partition", fails)
        assert resolve(storage).kind is TargetKind.STORAGE

    def test_what_is_nothing_of_waltz(self, storage: Path) -> None:
        (storage / "notes.txt").write_bytes(b"")
        os.mkfifo(storage / "pipe.seg")
        for name, why in (
            ("nowhere", "nowhere: no such file or directory"),
            ("notes.txt", r"notes\.txt: not a storage directory, partition directory, \.ctl, \.seg or \.idx file"),
            ("pipe.seg", r"pipe\.seg: it is a .*, neither a file nor a directory"),
        ):
            with pytest.raises(NotWaltzError, match=f"{why}$"):
                resolve(storage / name)

    def test_the_storage_directory_as_it_was_typed(self, storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Beside what was typed, where that tells it; an absolute path where it does not."""
        monkeypatch.chdir(storage)
        assert resolve(Path("2")).storage == storage
        assert resolve(Path("2", segment_name(0))) == Target(TargetKind.SEGMENT, Path("2", segment_name(0)), storage, 2)
        monkeypatch.chdir(storage.parent)
        assert resolve(Path("s/2")) == Target(TargetKind.PARTITION, Path("s/2"), Path("s"), 2)
        assert resolve(Path("s/2", index_name(0))).storage == Path("s")
        assert resolve(Path("s/waltz-storage.ctl")).storage == Path("s")
        assert resolve(storage / "0" / ".." / "2").storage == storage
        assert resolve(Path("s/0/../2")).storage == Path("s/0/..")

    def test_partitions_that_were_chosen_beside_it(self) -> None:
        path = PurePath("s")
        whole, one = Target(TargetKind.STORAGE, path, path, None), Target(TargetKind.PARTITION, path, path, 2)
        assert (whole.selected(None), whole.selected([1, 2]), one.selected(None)) == (None, [1, 2], frozenset({2}))
        assert one.selected([2, 1]) == frozenset({2})
        with pytest.raises(
            InvalidRequestError,
            match=r"^s: lies in partition 2, and partition 1,3 was asked for; leave one of the two out",
        ):
            one.selected([3, 1])
        with pytest.raises(InvalidRequestError):
            one.selected(())


def test_partitions_that_a_directory_cannot_have(storage: Path) -> None:
    control = read_control(storage / "waltz-storage.ctl")
    assert control is not None
    check_partitions(control, [0, 1, 2])
    check_partitions(control, [])
    with pytest.raises(InvalidRequestError, match=r"^partition -1,3: the control file has partitions 0 to 2$"):
        check_partitions(control, [3, 0, -1])


def test_what_a_view_has_when_nobody_says_otherwise() -> None:
    view = PartitionView(0, PurePath("0"), ())
    assert (view.temporary, view.unknown, view.strays, view.special, view.data_segments) == ((), (), (), (), ())
