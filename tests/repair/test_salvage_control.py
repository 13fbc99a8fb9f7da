"""Salvage of control files: found anywhere, believed for what their checksums prove, chosen only where that is clear."""

from __future__ import annotations

import os
import random
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import CREATED, KEY, build_directory, digest, make_records
from tests.golden import GOLDEN, needs_golden
from tests.repair.salvage_cases import OTHER, assert_adds_up, data_file, records_in
from tests.repair.scenes import codes, flip, status
from waltzctl.engine.errors import InvalidRequestError, NotWaltzError, RefusedError
from waltzctl.engine.repair.salvage import IdRange, SalvageReport, salvage
from waltzctl.engine.repair.salvage_control import assigned_by
from waltzctl.engine.repair.salvage_control_file import SalvagedControl, _info, salvage_control_file
from waltzctl.engine.repair.store_kinds import is_page_store
from waltzctl.formats.control import (
    FLAG_ASSIGNED,
    ControlFile,
    Layout,
    PartitionInfo,
    PartitionStruct,
    choose_current,
    decode_control,
    initial_control,
)
from waltzctl.formats.pages.names import WAL_DIRECTORY

CTL = "waltz-storage.ctl"
both_layouts = pytest.mark.parametrize("layout", Layout)


def current(info: PartitionInfo) -> PartitionStruct:
    assert info.current_struct is not None
    return info.current_struct


def control_of(storage: Path) -> ControlFile:
    return decode_control((storage / CTL).read_bytes())


def marks_in(storage: Path) -> list[tuple[int, int, int] | None]:
    structs = [info.current_struct for info in control_of(storage).partitions]
    return [None if one is None else one.marks for one in structs]


def made(
    layout: Layout,
    marks: Sequence[tuple[int, int, int]],
    *,
    created: int = CREATED,
    key: uuid.UUID = KEY,
    updates: int = 1,
) -> ControlFile:
    """A control file whose partitions have these sessions and marks, written so many times over."""
    control = initial_control(layout, key, len(marks), created)
    infos = []
    for info, (session, low, local) in zip(control.partitions, marks, strict=True):
        written = info
        for _ in range(updates):
            number, struct = written.updated(session_id=session, low_water_mark=low, local_low_water_mark=local)
            written = written.with_struct(number, struct)
        infos.append(written)
    return replace(control, partitions=tuple(infos))


def bare(path: Path, partitions: dict[int, int], layout: Layout, **more: int) -> tuple[Path, bytes]:
    """A directory whose control file is gone, and the bytes that it had."""
    storage = build_directory(path, partitions, layout=layout, local_low_water_mark=2, **more)
    whole = (storage / CTL).read_bytes()
    (storage / CTL).unlink()
    return storage, whole


def image(path: Path, *parts: bytes, shift: int = 0) -> Path:
    """An image with these parts in it, bytes of something else around them."""
    noise = random.Random(5)
    path.write_bytes(b"".join([noise.randbytes(4096 + shift), *(part + noise.randbytes(4096) for part in parts)]))
    return path


def used(report: SalvageReport | SalvagedControl) -> list[bool]:
    return [one.used for one in report.controls]


class TestTheFileAlone:
    """``--control``: the partitions are there, their control file is not."""

    @both_layouts
    @pytest.mark.parametrize("shift", [0, 1, 511, 4095])
    @pytest.mark.parametrize("count", [1, 3, 200])
    def test_it_comes_back_byte_for_byte(self, tmp_path: Path, layout: Layout, shift: int, count: int) -> None:
        storage, whole = bare(tmp_path / "s", {0: 20}, layout, num_partitions=count)
        before = digest(storage)
        disk = image(tmp_path / "disk", whole, shift=shift)
        read = disk.read_bytes()
        result = salvage_control_file([disk], to=storage)
        assert (storage / CTL).read_bytes() == whole
        assert digest(storage).items() >= before.items()
        assert disk.read_bytes() == read
        assert (result.exit_status_name, result.num_partitions, result.layout) == ("clean", count, layout)
        (one,) = result.controls
        assert (one.path, one.offset, one.used, one.structs) == (disk, 4096 + shift, True, 2 * count)
        assert status(storage) == "clean"

    def test_one_that_a_release_extended_comes_back_as_it_was_before(self, tmp_path: Path) -> None:
        storage, whole = bare(tmp_path / "s", {0: 20, 1: 3}, Layout.DOCUMENTED)
        disk = image(tmp_path / "disk", whole.ljust(Layout.RELEASED.file_size(2), b"\0"))
        assert salvage_control_file([disk], to=storage).exit_status_name == "clean"
        assert (storage / CTL).read_bytes() == whole

    @pytest.mark.turns(8)
    @both_layouts
    @settings(max_examples=25)
    @given(st.data())
    def test_no_struct_with_a_wrong_checksum_is_ever_taken(
        self, tmp_path_factory, layout: Layout, data: st.DataObject
    ) -> None:  # type: ignore[no-untyped-def]
        """Any bytes of the infos damaged: what is written was in the file, or is known to be lost."""
        directory = tmp_path_factory.mktemp("flips")
        storage = directory / "s"
        storage.mkdir()
        marks = [(4, 10 * p, 10 * p + 1) for p in range(3)]
        control = made(layout, marks)
        whole = bytearray(control.encode())
        for place in data.draw(st.lists(st.integers(128, len(whole) - 1), min_size=1, max_size=9)):
            whole[place] ^= data.draw(st.integers(1, 255))
        disk = image(directory / "disk", bytes(whole))
        usable = []
        for info in control.partitions:
            read = PartitionInfo.decode(layout, info.partition, whole, layout.info_offset(info.partition))
            kept = [
                one
                for one, old in zip(read.structs, info.structs, strict=True)
                if one.encode() == old.encode() and one.valid
            ]
            right = read.stored_partition == info.partition
            usable.append(current(read).marks if right and kept and read.current_struct in info.structs else None)
        if usable == [None] * 3:
            with pytest.raises(NotWaltzError):
                salvage_control_file([disk], to=storage)
            assert list(storage.iterdir()) == []
            return
        result = salvage_control_file([disk], to=storage)
        assert marks_in(storage) == usable
        assert result.marks_unknown == tuple(p for p, one in enumerate(usable) if one is None)
        assert control_of(storage).header == control.header
        for info in control_of(storage).partitions:
            assert info.stored_partition == info.partition

    @both_layouts
    def test_a_pair_that_is_lost_stays_lost_and_named(self, tmp_path: Path, layout: Layout) -> None:
        """Also the first one, by which the file would be known most easily."""
        storage, whole = bare(tmp_path / "s", {0: 20, 1: 20}, layout)
        disk = image(tmp_path / "disk", whole)
        for number in (1, 2):
            flip(disk, 4096 + layout.struct_offset(0, number) + 3)
        result = salvage_control_file([disk], to=storage)
        assert (result.marks_unknown, result.exit_status_name) == ((0,), "damage-remains")
        assert {(one.code.value, one.partition) for one in result.findings} >= {("control-pair-checksum", 0)}
        assert marks_in(storage)[1] == (3, 2, 2)

    def test_the_end_of_the_image_may_cut_it(self, tmp_path: Path) -> None:
        storage, whole = bare(tmp_path / "s", {0: 20, 3: 20}, Layout.RELEASED)
        (tmp_path / "disk").write_bytes(whole[: Layout.RELEASED.info_offset(2) + 5])
        result = salvage_control_file([tmp_path / "disk"], to=storage)
        assert result.marks_unknown == (2, 3)
        assert (storage / CTL).stat().st_size == len(whole)
        assert (storage / CTL).read_bytes()[: Layout.RELEASED.info_offset(2)] == whole[: Layout.RELEASED.info_offset(2)]

    def test_marks_that_promise_more_than_is_there_are_a_finding_and_stay(self, tmp_path: Path) -> None:
        storage, _ = bare(tmp_path / "s", {0: 20}, Layout.RELEASED)
        control = made(Layout.RELEASED, [(7, 30, 25)])
        infos = [info.with_struct(*info.updated(flags=5)) for info in control.partitions]
        disk = image(tmp_path / "disk", replace(control, partitions=tuple(infos)).encode())
        result = salvage_control_file([disk], to=storage)
        assert [one.code.value for one in result.findings] == ["acknowledged-missing"]
        assert (result.exit_status_name, marks_in(storage)) == ("damage-remains", [(7, 30, 25)])

    def test_one_that_is_there_is_never_overwritten(self, tmp_path: Path) -> None:
        storage = build_directory(tmp_path / "s", {0: 5})
        disk = image(tmp_path / "disk", made(Layout.RELEASED, [(9, 9, 9)]).encode())
        for content in ((storage / CTL).read_bytes(), b""):
            (storage / CTL).write_bytes(content)
            with pytest.raises(RefusedError, match="never overwritten"):
                salvage_control_file([disk], to=storage)
            assert (storage / CTL).read_bytes() == content

    def test_what_the_partitions_cannot_be_of_is_refused(self, tmp_path: Path) -> None:
        storage, _ = bare(tmp_path / "s", {0: 5, 4: 5}, Layout.RELEASED)
        few = image(tmp_path / "few", made(Layout.RELEASED, [(1, 1, 1)] * 4).encode())
        foreign = image(tmp_path / "foreign", made(Layout.RELEASED, [(1, 1, 1)] * 5, key=OTHER).encode())
        before = digest(storage)
        with pytest.raises(RefusedError, match="has partitions 0 to 3"):
            salvage_control_file([few], to=storage)
        with pytest.raises(InvalidRequestError, match=f"no control file of cluster {KEY} was found, but of {OTHER}"):
            salvage_control_file([foreign], to=storage)
        with pytest.raises(RefusedError, match=f"holds segments of cluster {KEY}"):
            salvage_control_file([foreign], to=storage, cluster_key=OTHER)
        assert digest(storage) == before

    def test_nothing_found_and_nothing_to_write_to(self, tmp_path: Path) -> None:
        storage, whole = bare(tmp_path / "s", {0: 5}, Layout.RELEASED)
        disk = image(tmp_path / "disk", whole[:128] + bytes(76))
        with pytest.raises(NotWaltzError, match="no control file found"):
            salvage_control_file([disk], to=storage)
        with pytest.raises(InvalidRequestError, match="not a directory"):
            salvage_control_file([disk], to=tmp_path / "missing")

    def test_clusters_that_nothing_tells_apart(self, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        parts = [made(Layout.RELEASED, [(1, 1, 1)], key=key).encode() for key in (KEY, OTHER)]
        disk = image(tmp_path / "disk", *parts)
        with pytest.raises(InvalidRequestError, match="of several clusters"):
            salvage_control_file([disk], to=tmp_path / "empty")
        salvage_control_file([disk], to=tmp_path / "empty", cluster_key=OTHER)
        assert (tmp_path / "empty" / CTL).read_bytes() == parts[1]


@both_layouts
@pytest.mark.parametrize("structs", ["both", "one", "none", "two that nothing tells apart"])
@pytest.mark.parametrize("stored", [1, 2])
def test_what_is_written_of_an_info(layout: Layout, structs: str, stored: int) -> None:
    """What is proven, whole again; two things as they are, so that both are told; otherwise a pair of zeros in its place."""
    info = made(layout, [(3, 9, 9)] * 2, updates=2).partitions[1]
    first, second = info.structs
    if structs == "one":
        pair = (replace(first, valid=False), second)
    elif structs == "none":
        pair = (replace(first, valid=False), replace(second, valid=False))
    elif structs == "both":
        pair = (first, second)
    else:
        higher = replace(first, low_water_mark=10, local_low_water_mark=8).sealed()
        pair = (higher, replace(second, sequence=first.sequence).sealed())
    current, choice = choose_current(*pair)
    found = replace(info, structs=pair, current=current, choice=choice, stored_partition=stored)
    nothing = (1).to_bytes(4) + bytes(layout.info_schema.size - 4)
    told = found if current is None else found.renewed()
    wanted = nothing if stored != 1 or structs == "none" else told.encode()
    assert (_info(layout, 1, found), _info(layout, 1, None)) == (wanted, nothing)


@pytest.mark.parametrize(
    ("number", "data", "refused"), [(1, True, False), (2, True, True), (2, False, False), (3, True, True)]
)
def test_a_control_file_without_a_place_for_a_partition_with_files_is_of_another_directory(
    tmp_path: Path, number: int, data: bool, refused: bool
) -> None:
    storage, _ = bare(tmp_path / "s", {0: 5, number: 5}, Layout.RELEASED)
    if not data:
        for path in (storage / f"{number}").iterdir():
            path.unlink()
    disk = image(tmp_path / "disk", made(Layout.RELEASED, [(4, 2, 2)] * 2).encode())
    if refused:
        with pytest.raises(RefusedError, match="has partitions 0 to 1"):
            salvage_control_file([disk], to=storage)
        assert not (storage / CTL).exists()
    else:
        assert salvage_control_file([disk], to=storage).num_partitions == 2


def test_a_listener_hears_how_much_is_looked_through_for_a_control_file(tmp_path: Path) -> None:
    class Listener:
        def __init__(self) -> None:
            self.heard: list[list[object]] = []

        def start(self, what: str, total: int) -> None:
            self.heard.append([what, total, 0])

        def advance(self, amount: int) -> None:
            self.heard[-1][2] += amount  # type: ignore[operator]

    (tmp_path / "s").mkdir()
    disk = image(tmp_path / "disk", made(Layout.RELEASED, [(4, 10, 10)]).encode())
    listener, held = Listener(), len(os.listdir("/proc/self/fd"))
    result = salvage_control_file([disk], to=tmp_path / "s", progress=listener)
    assert listener.heard == [["looking for control files", result.bytes, result.bytes]]
    assert len(os.listdir("/proc/self/fd")) == held


class TestSeveralOfOneCluster:
    """States of one file: the newest.  Files of several nodes, or states that contradict each other: a person decides."""

    def chosen(self, tmp_path: Path, *controls: ControlFile, **more: object) -> SalvagedControl:
        (tmp_path / "s").mkdir(exist_ok=True)
        disk = image(tmp_path / "disk", *(control.encode() for control in controls))
        return salvage_control_file([disk], to=tmp_path / "s", **more)  # type: ignore[arg-type]

    @both_layouts
    @pytest.mark.parametrize("newer", [0, 1, 2])
    def test_the_newest_state_counts_wherever_it_lies(self, tmp_path: Path, layout: Layout, newer: int) -> None:
        states = [made(layout, [(4, 10, 10), (-1, -1, -1)]), made(layout, [(4, 10, 10), (2, 5, 5)], updates=2)]
        states.insert(newer, made(layout, [(5, 10, 12), (2, 6, 5)], updates=3))
        result = self.chosen(tmp_path, *states)
        assert used(result) == [place == newer for place in range(3)]
        assert (tmp_path / "s" / CTL).read_bytes() == states[newer].encode()
        assert "newest" in result.controls[newer].reason

    def test_sequence_numbers_tell_where_a_mark_was_lowered(self, tmp_path: Path) -> None:
        states = [made(Layout.RELEASED, [(4, 30, 30)]), made(Layout.RELEASED, [(4, 30, 12)], updates=2)]
        assert used(self.chosen(tmp_path, *states)) == [False, True]

    @both_layouts
    def test_copies_are_one_and_the_most_complete_counts(self, tmp_path: Path, layout: Layout) -> None:
        whole = made(layout, [(4, 10, 10), (3, 3, 3)])
        torn = bytearray(whole.encode())
        for number in (1, 2):
            torn[layout.struct_offset(1, number)] ^= 1
        (tmp_path / "s").mkdir()
        disk = image(tmp_path / "disk", bytes(torn), whole.encode(), whole.encode())
        result = salvage_control_file([disk], to=tmp_path / "s")
        assert used(result) == [False, True, False]
        assert (tmp_path / "s" / CTL).read_bytes() == whole.encode()

    @both_layouts
    @pytest.mark.parametrize(
        "others",
        [
            [{"created": CREATED + 1}],
            [{"marks": [(4, 10, 10), (2, 5, 5), (1, 1, 1)]}],
            [{"marks": [(5, 11, 11), (1, 5, 5)]}],
        ],
        ids=["another time of creation", "another number of partitions", "one partition newer, one older"],
    )
    def test_a_person_decides_about_others(self, tmp_path: Path, layout: Layout, others) -> None:  # type: ignore[no-untyped-def]
        first = made(layout, [(4, 10, 10), (2, 5, 5)])
        states = [first, *(made(layout, **{"marks": [(4, 10, 10), (2, 5, 5)], **one}) for one in others)]
        with pytest.raises(InvalidRequestError, match="--control-at") as refused:
            self.chosen(tmp_path, *states)
        assert not (tmp_path / "s" / CTL).exists()
        for place, state in enumerate(states):
            at = f"{tmp_path / 'disk'}:{(tmp_path / 'disk').read_bytes().index(state.encode())}"
            assert at in str(refused.value)
            result = self.chosen(tmp_path, *states, control_at=at)
            assert used(result) == [number == place for number in range(len(states))]
            assert (tmp_path / "s" / CTL).read_bytes() == state.encode()
            (tmp_path / "s" / CTL).unlink()

    def test_session_against_sequence_is_a_contradiction(self, tmp_path: Path) -> None:
        states = [made(Layout.RELEASED, [(9, 10, 10)]), made(Layout.RELEASED, [(4, 10, 10)], updates=2)]
        with pytest.raises(InvalidRequestError, match="contradict"):
            self.chosen(tmp_path, *states)

    def test_the_number_of_partitions_that_is_given_wins(self, tmp_path: Path) -> None:
        states = [made(Layout.RELEASED, [(4, 10, 10)] * 2), made(Layout.RELEASED, [(4, 10, 10)] * 3)]
        result = self.chosen(tmp_path, *states, num_partitions=3)
        assert [one.reason for one in result.controls if not one.used] == ["it is for 2 partitions, 3 were asked for"]
        (tmp_path / "s" / CTL).unlink()
        with pytest.raises(InvalidRequestError, match="it is for 2 partitions, 9 were asked for"):
            self.chosen(tmp_path, *states, num_partitions=9)
        with pytest.raises(InvalidRequestError, match="2 partitions, 3 were asked for; leave one of the two out"):
            self.chosen(tmp_path, *states, num_partitions=3, control_at=f"{tmp_path / 'disk'}:4096")
        with pytest.raises(InvalidRequestError, match="no control file of this cluster begins there"):
            self.chosen(tmp_path, *states, control_at=f"{tmp_path / 'disk'}:4097")


class TestWithRecords:
    """A new directory: sessions and marks come from the control file beside the records."""

    @both_layouts
    @pytest.mark.parametrize("target", [None, *Layout])
    def test_marks_layout_and_number_are_those_of_the_file(
        self, tmp_path: Path, layout: Layout, target: Layout | None
    ) -> None:
        source = build_directory(tmp_path / "s", {0: 20, 2: 9}, num_partitions=4, layout=layout)
        parts = [path.read_bytes() for path in sorted(source.rglob("*")) if path.suffix in (".ctl", ".seg")]
        report = salvage([image(tmp_path / "disk", *parts)], to=tmp_path / "to", layout=target)
        assert (report.exit_status_name, report.layout, report.num_partitions) == ("clean", target or layout, 4)
        assert marks_in(report.path) == marks_in(source)
        assert [one.marks for one in report.partitions] == [(3, 9, 9), (3, 4, 4)]
        assert used(report) == [True]
        assert records_in(report.path) == records_in(source)
        assert status(report.path) == "clean"
        assert_adds_up(report)

    @both_layouts
    @pytest.mark.parametrize(("mark", "lost"), [(19, None), (20, IdRange(20, 20)), (25, IdRange(20, 25))])
    def test_marks_that_promise_more_than_was_found_are_losses(
        self, tmp_path: Path, layout: Layout, mark: int, lost: IdRange | None
    ) -> None:
        """One step to each side; the mark is written as it is, so that verify goes on to say it."""
        source = build_directory(tmp_path / "s", {0: 20}, layout=layout, local_low_water_mark=mark)
        report = salvage([source], to=tmp_path / "to")
        (partition,) = report.partitions
        assert (partition.acknowledged_missing, partition.marks) == (lost, (3, mark, mark))
        assert report.acknowledged_missing == (0 if lost is None else lost.last - lost.first + 1)
        assert report.exit_status_name == ("clean" if lost is None else "damage-remains")
        assert marks_in(report.path) == [(3, mark, mark)]
        assert codes(report.path) == (set() if lost is None else {"acknowledged-missing"})

    @both_layouts
    def test_a_partition_of_which_nothing_was_found_is_a_loss(self, tmp_path: Path, layout: Layout) -> None:
        source = build_directory(tmp_path / "s", {0: 20, 1: 20}, layout=layout)
        shutil.rmtree(source / "1")
        report = salvage([source], to=tmp_path / "to")
        assert [(one.partition, one.records, one.acknowledged_missing) for one in report.partitions] == [
            (0, 20, None), (1, 0, IdRange(0, 9))
        ]  # fmt: skip
        assert (report.exit_status_name, report.missing, report.acknowledged_missing) == ("damage-remains", 0, 10)
        assert codes(report.path) == {"acknowledged-missing"}
        assert_adds_up(report)

    def test_an_assigned_partition_without_records_is_written_empty(self, tmp_path: Path) -> None:
        source = build_directory(tmp_path / "s", {0: 20, 1: 0}, num_partitions=3)
        report = salvage([source], to=tmp_path / "to")
        assert [(one.partition, one.records) for one in report.partitions] == [(0, 20), (1, 0)]
        assert (report.exit_status_name, status(report.path)) == ("clean", "clean")
        assert [current(info).assigned for info in control_of(report.path).partitions] == [True, True, False]

    def test_only_the_partition_that_was_asked_for(self, tmp_path: Path) -> None:
        source = build_directory(tmp_path / "s", {0: 20, 1: 20, 2: 0})
        report = salvage([source], to=tmp_path / "to", partition=1)
        assert [one.partition for one in report.partitions] == [1]
        assert marks_in(report.path) == [(-1, -1, -1), (3, 9, 9), (-1, -1, -1)]

    @both_layouts
    def test_a_lost_pair_leaves_that_partition_without_marks_and_says_so(self, tmp_path: Path, layout: Layout) -> None:
        source = build_directory(tmp_path / "s", {0: 20, 1: 20}, layout=layout)
        for number in (1, 2):
            flip(source / CTL, layout.struct_offset(0, number) + 3)
        report = salvage([source], to=tmp_path / "to")
        assert (report.marks_unknown, report.exit_status_name) == ((0,), "damage-remains")
        assert marks_in(report.path) == [(-1, -1, -1), (3, 9, 9)]

    def test_control_files_of_several_nodes_tell_no_marks_until_one_is_named(self, tmp_path: Path) -> None:
        source = build_directory(tmp_path / "s", {0: 20})
        other = tmp_path / "other.ctl"
        other.write_bytes(made(Layout.RELEASED, [(8, 12, 12)], created=CREATED + 5).encode())
        report = salvage([source, other], to=tmp_path / "to")
        assert (used(report), report.marks_known, report.exit_status_name) == ([False, False], False, "clean")
        assert all("several nodes" in one.reason for one in report.controls)
        assert marks_in(report.path) == [(-1, -1, -1)]
        report = salvage([source, other], to=tmp_path / "named", control_at=f"{source / CTL}:0")
        assert marks_in(report.path) == [(3, 9, 9)]

    @pytest.mark.parametrize("lower", [False, True])
    def test_one_that_has_no_room_for_the_records_is_not_used(self, tmp_path: Path, lower: bool) -> None:
        control = made(Layout.RELEASED, [(8, 3, 3)] * 2)
        parts = [control.encode(), data_file(make_records(9, partition=2), partition=2)]
        if lower:
            parts.append(data_file(make_records(4, partition=1), partition=1))
        report = salvage([image(tmp_path / "disk", *parts)], to=tmp_path / "to")
        assert (used(report), report.num_partitions) == ([False], 3)
        assert "records of partition 2" in report.controls[0].reason

    def test_the_number_of_partitions_that_is_given_wins_and_the_report_says_so(self, tmp_path: Path) -> None:
        source = build_directory(tmp_path / "s", {0: 20})
        report = salvage([source], to=tmp_path / "to", num_partitions=6)
        assert (report.num_partitions, used(report)) == (6, [False])
        assert report.controls[0].reason == "it is for 1 partitions, 6 were asked for"
        assert marks_in(report.path) == [(-1, -1, -1)] * 6


@needs_golden
@pytest.mark.parametrize("node", [1, 2, 3])
def test_control_files_of_the_release_are_found_in_an_image(tmp_path: Path, node: int) -> None:
    assert GOLDEN is not None
    source = GOLDEN / "cluster-a" / f"storage-{node}"
    storage = shutil.copytree(source, tmp_path / "s", copy_function=shutil.copyfile)
    (storage / CTL).unlink()
    disk = image(tmp_path / "disk", (source / CTL).read_bytes(), shift=17)
    assert salvage_control_file([disk], to=storage).exit_status_name == "clean"
    assert (storage / CTL).read_bytes() == (source / CTL).read_bytes()


@pytest.mark.parametrize("key", [KEY, OTHER])
def test_partitions_of_two_clusters_do_not_say_which_control_file_is_theirs(tmp_path: Path, key: uuid.UUID) -> None:
    """The one that was found does."""
    storage = build_directory(tmp_path / "s", {0: 3, 1: 3})
    (storage / CTL).unlink()
    for path in (storage / "1").iterdir():
        data = path.read_bytes()
        path.write_bytes(data[:12] + OTHER.bytes + data[28:])
    (tmp_path / "source").write_bytes(made(Layout.RELEASED, [(1, 2, 2), (1, 2, 2)], key=key).encode())
    assert salvage_control_file([tmp_path / "source"], to=storage).cluster_key == key


def test_a_key_with_damaged_bits_is_written_as_the_partitions_have_it(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 3})
    (storage / CTL).unlink()
    near = uuid.UUID(int=KEY.int ^ (0b11 << 40))
    (tmp_path / "source").write_bytes(made(Layout.RELEASED, [(1, 2, 2)], key=near).encode())
    assert salvage_control_file([tmp_path / "source"], to=storage).cluster_key == KEY
    assert control_of(storage).header.cluster_key == KEY


@pytest.mark.parametrize(
    ("marks", "assigned", "layout", "there"),
    [
        ((1, 2, 2), True, Layout.RELEASED, True),
        ((1, 2, 2), False, Layout.RELEASED, False),
        ((-1, -1, -1), True, Layout.RELEASED, True),
        ((-1, -1, -1), False, Layout.RELEASED, False),
        ((0, -1, -1), None, Layout.DOCUMENTED, True),
        ((-1, -1, -1), None, Layout.DOCUMENTED, False),
    ],
)
def test_which_partitions_a_control_file_shows_to_have_been_there(
    marks: tuple[int, int, int], assigned: bool | None, layout: Layout, there: bool
) -> None:
    """By the flag where there are flags, whatever the marks; else by a session."""
    control = made(layout, [marks])
    (info,) = control.partitions
    if assigned is not None:
        info = info.with_struct(*info.updated(flags=FLAG_ASSIGNED if assigned else 0))
    assert assigned_by(replace(control, partitions=(info,))) == (frozenset({0}) if there else frozenset())


def test_a_storage_directory_is_no_page_store_whatever_else_lies_in_it(tmp_path: Path) -> None:
    (tmp_path / WAL_DIRECTORY).mkdir()
    assert is_page_store(tmp_path)
    (tmp_path / CTL).write_bytes(b"")
    assert not is_page_store(tmp_path)
    (tmp_path / CTL).unlink()
    (tmp_path / WAL_DIRECTORY).rmdir()
    assert not is_page_store(tmp_path)
