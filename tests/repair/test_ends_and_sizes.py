"""A control file whose length and header disagree, and what stands behind the last record of a segment that is not the last."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fixtures.building import SEGMENTS, clean, put_segment, record, segment
from tests.builders import build_directory
from tests.repair.scenes import actions, undecided
from tests.repair.test_wrong_ids import WHOLE, stored, write
from waltzctl.engine.repair.apply import apply
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.formats.control import CONTROL_HEADER, Layout, decode_control
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import Record

LAYOUTS = pytest.mark.parametrize("layout", list(Layout))


def directory(path: Path, layout: Layout, stated: int, *, broken: tuple[int, ...] = (), more: bytes = b"") -> Path:
    """Partitions 0 and 1; the header says `stated`, both structs of some infos are damaged, and something stands behind."""
    root = build_directory(path / "s", {0: 3, 1: 3}, layout=layout, local_low_water_mark=1)
    control = root / "waltz-storage.ctl"
    data = bytearray(control.read_bytes())
    assert len(decode_control(bytes(data)).partitions) == 2
    at = CONTROL_HEADER.offset_of("num_partitions")
    data[at : at + 4] = stated.to_bytes(4, signed=True)
    for partition in broken:
        for number in (1, 2):
            offset = layout.struct_offset(partition, number)
            data[offset] ^= 0x55
    control.write_bytes(bytes(data) + more)
    return root


@LAYOUTS
@pytest.mark.parametrize(
    ("stated", "broken", "mended"),
    [
        (6, (), True),
        (3, (), True),
        (0, (), True),
        (-1, (), True),
        (6, (0,), False),
        (6, (1,), False),
        (6, (0, 1), False),
        (5, (), False),  # more than one bit: infos may be missing at the end
        (1 << 30, (), True),
    ],
)
def test_the_number_of_partitions_is_that_of_the_infos_where_all_are_sound(
    tmp_path: Path, layout: Layout, stated: int, broken: tuple[int, ...], mended: bool
) -> None:
    root = directory(tmp_path, layout, stated, broken=broken)
    repair = plan_recover(root)
    assert ("write-num-partitions" in actions(repair)) == mended
    assert ("control-file-size" in undecided(repair)) != mended
    if mended:
        apply(repair, arguments=[])
        assert decode_control((root / "waltz-storage.ctl").read_bytes()).header.num_partitions == 2


@LAYOUTS
def test_a_directory_of_a_later_partition_says_that_infos_are_missing(tmp_path: Path, layout: Layout) -> None:
    root = directory(tmp_path, layout, 3)
    (root / "2").mkdir()
    repair = plan_recover(root)
    assert "write-num-partitions" not in actions(repair)
    assert "control-file-size" in undecided(repair)


@LAYOUTS
@pytest.mark.parametrize("more", [1, 3, 127])
def test_bytes_behind_sound_infos_are_cut(tmp_path: Path, layout: Layout, more: int) -> None:
    root = directory(tmp_path, layout, 2, more=b"\xee" * min(more, layout.info_schema.size - 1))
    repair = plan_recover(root)
    assert "cut-control-file" in actions(repair)
    apply(repair, arguments=[])
    assert (root / "waltz-storage.ctl").stat().st_size == layout.file_size(2)
    other = directory(tmp_path / "other", layout, 2, broken=(1,), more=b"\xee")
    repair = plan_recover(other)
    assert "cut-control-file" not in actions(repair)
    assert "control-file-size" in undecided(repair)


@LAYOUTS
@pytest.mark.parametrize(
    ("stated", "broken", "left"),
    [
        (1, (1,), None),
        (1, (), None),
        (1, (0, 1), None),
        (2, (), 2),
        (2, (0,), None),
        (0, (0, 1), None),
        (-1, (0, 1), None),
    ],
)
def test_infos_behind_the_stated_ones_are_cut_where_none_of_them_is_valid(
    tmp_path: Path, layout: Layout, stated: int, broken: tuple[int, ...], left: int | None
) -> None:
    root = directory(tmp_path, layout, stated, broken=broken, more=b"\xee")
    repair = plan_recover(root)
    cuts = [one for one in repair.plan.steps if one.action == "cut-control-file"]
    assert [one.offset for one in cuts] == ([] if left is None else [layout.file_size(left)])


@LAYOUTS
@pytest.mark.parametrize(
    ("stored", "there", "cut"), [(1, True, False), (1, False, False), (0, True, False), (0, False, True)]
)
def test_no_info_is_cut_that_may_be_a_partitions(
    tmp_path: Path, layout: Layout, stored: int, there: bool, cut: bool
) -> None:
    """Its directory is there, or the number of its place is stored in it: then the number in the header is wrong, not the length.

    Without it the partition is none of the cluster's any more, and no command says a word about its records.
    """
    root = directory(tmp_path, layout, 1, broken=(1,))
    control = root / "waltz-storage.ctl"
    data = bytearray(control.read_bytes())
    data[layout.info_offset(1) : layout.info_offset(1) + 4] = stored.to_bytes(4)
    control.write_bytes(bytes(data))
    if not there:
        shutil.rmtree(root / "1")
    repair = plan_recover(root)
    assert actions(repair) == (["cut-control-file"] if cut else [])
    assert undecided(repair) == ([] if cut else ["control-file-size"])


@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize("ids", [(3,), (3, 4), (10**6,), (2, 1)])
def test_what_is_out_of_order_in_front_of_the_next_segment_goes_by_explicit_wish_only(
    tmp_path: Path, ids: tuple[int, ...], allowed: bool
) -> None:
    files = clean()
    strangers = [Record.make(number, RequestId(9, 9, 0, number), 1, b"of another") for number in ids]
    records = [*(record(0, number) for number in range(SEGMENTS[1])), *strangers]
    put_segment(files, 0, 0, segment(0, 0, len(records), records=records))
    storage = write(tmp_path / "d", files)
    repair = plan_recover(storage, allow_data_loss=allowed)
    assert ("cut-torn-tail" in actions(repair)) == allowed
    assert ("record-order" in undecided(repair)) != allowed
    apply(repair, arguments=[])
    assert stored(storage).keys() == (WHOLE if allowed else WHOLE | {one.encode() for one in strangers})


@pytest.mark.parametrize("more", [1, 20, 60])
def test_torn_bytes_in_front_of_the_next_segment_are_junk(tmp_path: Path, more: int) -> None:
    files = clean()
    name = f"0/{0:019d}.seg"
    files[name] += b"\xee" * more
    storage = write(tmp_path / "d", files)
    repair = plan_recover(storage)
    (step,) = [one for one in repair.plan.steps if one.action == "cut-torn-tail"]
    assert (step.length, step.loses_data) == (more, False)
    apply(repair, arguments=[])
    assert stored(storage) == dict.fromkeys(WHOLE, 1)
