"""What recovery plans for a control file, as a whole: three partitions, in both layouts, with nothing beside the file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import CREATED, KEY, with_marks
from tests.repair.twelve import told, ways
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.formats.control import Layout, initial_control

HEAD = 128
Change = Callable[[bytearray, int, int], object]
"""Changes the bytes of a control file, of which an info has so many bytes, and a struct so many."""


def control(layout: Layout) -> bytes:
    """Partition 0 in its third session, 1 in its first, 2 in none."""
    made = initial_control(layout, KEY, 3, CREATED)
    infos = list(made.partitions)
    for number, marks in ((0, (0, 3, 5)), (1, (7,))):
        for session, mark in enumerate(marks):
            infos[number] = with_marks(
                infos[number], session_id=session, low_water_mark=mark, local_low_water_mark=mark
            )
    return replace(made, partitions=tuple(infos)).encode()


def plan(place: Path, change: Change, way: str) -> list[str]:
    """The plan, but for directories that are not there; `way`: ``r`` or ``d`` for the layout, with ``!`` losses are allowed."""
    layout = Layout.RELEASED if way[0] == "r" else Layout.DOCUMENTED
    place.mkdir()
    data = bytearray(control(layout))
    change(data, layout.info_schema.size, layout.struct_schema.size)
    for name in [one for one in (b"1", b"2", b"3") if data.endswith(b"/" + one)]:
        (place / name.decode()).mkdir()
        del data[-2:]
    (place / "waltz-storage.ctl").write_bytes(data)
    lines = told(plan_recover(place, allow_data_loss=way.endswith("!")))
    return [line for line in lines if "directory-missing" not in line]


def flip(data: bytearray, *places: int) -> None:
    for place in places:
        data[place] ^= 1


def count(data: bytearray, number: int) -> None:
    """Another number of partitions in the header."""
    data[28:32] = number.to_bytes(4, signed=True)


CASES: dict[str, tuple[Change, str]] = {
    "nothing": (
        lambda data, info, struct: None,
        """
        r, r!, d:
        """,
    ),
    "the first struct": (
        lambda data, info, struct: flip(data, HEAD + 4),
        """
        r, r!: write-control-struct control [132+36]; = write control [132+36]
        d: write-control-struct control [132+28]; = write control [132+28]
        """,
    ),
    "the second struct": (
        lambda data, info, struct: flip(data, HEAD + 4 + struct),
        """
        r, r!: write-control-struct control [168+36]; = write control [168+36]
        d: write-control-struct control [160+28]; = write control [160+28]
        """,
    ),
    "the first struct of the last": (
        lambda data, info, struct: flip(data, HEAD + 2 * info + 4),
        """
        r, r!: write-control-struct control [284+36]; = write control [284+36]
        d: write-control-struct control [252+28]; = write control [252+28]
        """,
    ),
    "a checksum": (
        lambda data, info, struct: flip(data, HEAD + 3 + struct),
        """
        r, r!: write-control-struct control [132+36]; = write control [132+36]
        d: write-control-struct control [132+28]; = write control [132+28]
        """,
    ),
    "both structs": (
        lambda data, info, struct: flip(data, HEAD + info + 4, HEAD + info + 4 + struct),
        """
        r: ? control-pair-checksum in None [208+72]
        r!: reset-control-pair control [204+76] loses; = write control [204+76]
        d: ? control-pair-checksum in None [192+56]
        """,
    ),
    "an id": (
        lambda data, info, struct: flip(data, HEAD + info + 3),
        """
        r, r!: write-partition-id control [204+4]; = write control [204+4]
        d: write-partition-id control [188+4]; = write control [188+4]
        """,
    ),
    "an id and a struct": (
        lambda data, info, struct: flip(data, HEAD + info + 3, HEAD + info + 4),
        """
        r, r!: write-control-struct control [208+36]; write-partition-id control [204+4]; = write control [208+36]; =
          write control [204+4]
        d: write-control-struct control [192+28]; write-partition-id control [188+4]; = write control [192+28]; =
          write control [188+4]
        """,
    ),
    "an id and both structs": (
        lambda data, info, struct: flip(data, HEAD + 3, HEAD + 4, HEAD + 4 + struct),
        """
        r: ? control-pair-checksum in None [132+72]
        r!: reset-control-pair control [128+76] loses; = write control [128+76]
        d: ? control-pair-checksum in None [132+56]
        """,
    ),
    "the version": (
        lambda data, info, struct: flip(data, 3),
        """
        r, r!, d: write-version control [0+4]; = write control [0+4]
        """,
    ),
    "the version and all structs": (
        lambda data, info, struct: (
            flip(data, 3),
            flip(data, *(HEAD + n * info + 4 + m * struct for n in range(3) for m in range(2))),
        ),
        """
        r: ? unknown-version in None [0+4]; ? control-pair-checksum in None [132+72]; ? control-pair-checksum in None
          [208+72]; ? control-pair-checksum in None [284+72]
        r!: reset-control-pair control [128+76] loses; reset-control-pair control [204+76] loses; reset-control-pair
          control [280+76] loses; = write control [128+76]; = write control [204+76]; = write control [280+76]; ?
          unknown-version in None [0+4]
        d: ? unknown-version in None [0+4]; ? control-pair-checksum in None [132+56]; ? control-pair-checksum in None
          [192+56]; ? control-pair-checksum in None [252+56]
        """,
    ),
    "one partition too many": (
        lambda data, info, struct: count(data, 4),
        """
        r, r!, d: ? control-file-size in None [28+4]
        """,
    ),
    "one bit too many": (
        lambda data, info, struct: count(data, 3 | 64),
        """
        r, r!, d: write-num-partitions control [28+4]; = write control [28+4]
        """,
    ),
    "one partition too few": (
        lambda data, info, struct: count(data, 2),
        """
        r, r!, d: write-num-partitions control [28+4]; = write control [28+4]
        """,
    ),
    "no partition": (
        lambda data, info, struct: count(data, 0),
        """
        r, r!, d: write-num-partitions control [28+4]; = write control [28+4]
        """,
    ),
    "less than no partition": (
        lambda data, info, struct: count(data, -1),
        """
        r, r!, d: write-num-partitions control [28+4]; = write control [28+4]
        """,
    ),
    "more than there can be": (
        lambda data, info, struct: count(data, 2**30),
        """
        r, r!, d: write-num-partitions control [28+4]; = write control [28+4]
        """,
    ),
    "too few and a struct": (
        lambda data, info, struct: (count(data, 2), flip(data, HEAD + 4)),
        """
        r, r!: write-num-partitions control [28+4]; write-control-struct control [132+36]; = write control [28+4]; =
          write control [132+36]
        d: write-num-partitions control [28+4]; write-control-struct control [132+28]; = write control [28+4]; = write
          control [132+28]
        """,
    ),
    "too few and a pair": (
        lambda data, info, struct: (count(data, 2), flip(data, HEAD + 4, HEAD + 4 + struct)),
        """
        r, r!, d: ? control-file-size in None [28+4]
        """,
    ),
    "too few and the pair behind them": (
        lambda data, info, struct: (count(data, 2), flip(data, HEAD + 2 * info + 4, HEAD + 2 * info + 4 + struct)),
        """
        r, r!, d: ? control-file-size in None [28+4]
        """,
    ),
    "too few and all of the info behind them": (
        lambda data, info, struct: (
            count(data, 2),
            flip(data, HEAD + 2 * info + 3, HEAD + 2 * info + 4, HEAD + 2 * info + 4 + struct),
        ),
        """
        r, r!: cut-control-file control [280+76]; = cut control to 280
        d: cut-control-file control [248+60]; = cut control to 248
        """,
    ),
    "too few and an id": (
        lambda data, info, struct: (count(data, 2), flip(data, HEAD + 3)),
        """
        r, r!, d: ? control-file-size in None [28+4]
        """,
    ),
    "too few and the id behind them": (
        lambda data, info, struct: (count(data, 2), flip(data, HEAD + 2 * info + 3)),
        """
        r, r!, d: ? control-file-size in None [28+4]
        """,
    ),
    "a byte too many": (
        lambda data, info, struct: data.extend(b"x"),
        """
        r, r!: cut-control-file control [356+1]; = cut control to 356
        d: cut-control-file control [308+1]; = cut control to 308
        """,
    ),
    "zeros behind": (
        lambda data, info, struct: data.extend(bytes(40)),
        """
        r, r!: cut-control-file control [356+40]; = cut control to 356
        d: cut-control-file control [308+40]; = cut control to 308
        """,
    ),
    "an info too many of zeros": (
        lambda data, info, struct: data.extend(bytes(info)),
        """
        r, r!: cut-control-file control [356+76]; = cut control to 356
        d: cut-control-file control [308+60]; = cut control to 308
        """,
    ),
    "a byte too few": (
        lambda data, info, struct: data.__delitem__(slice(-1, None)),
        """
        r, r!, d: ? control-file-size in None [28+4]
        """,
    ),
    "an info too few": (
        lambda data, info, struct: data.__delitem__(slice(-info, None)),
        """
        r, r!, d: write-num-partitions control [28+4]; = write control [28+4]
        """,
    ),
    "an info too few, and a byte": (
        lambda data, info, struct: data.__delitem__(slice(-info - 1, None)),
        """
        r, r!, d: ? control-file-size in None [28+4]
        """,
    ),
    "two infos too few": (
        lambda data, info, struct: data.__delitem__(slice(-2 * info, None)),
        """
        r, r!, d: write-num-partitions control [28+4]; = write control [28+4]
        """,
    ),
    "no infos": (
        lambda data, info, struct: data.__delitem__(slice(HEAD, None)),
        """
        r, r!, d: ? control-file-size in None [28+4]
        """,
    ),
    "no infos, of one": (
        lambda data, info, struct: (data.__delitem__(slice(HEAD, None)), count(data, 1)),
        """
        r, r!, d: ? control-file-size in None [28+4]
        """,
    ),
    "part of a header": (
        lambda data, info, struct: data.__delitem__(slice(HEAD - 1, None)),
        """
        r, r!, d: ? control-file-size in None [127+None]
        """,
    ),
    "nothing in it": (
        lambda data, info, struct: data.__delitem__(slice(0, None)),
        """
        r, r!, d: ? control-file-size in None [0+None]
        """,
    ),
    "too many, and a directory": (
        lambda data, info, struct: (count(data, 1), data.extend(b"/2")),
        """
        r, r!, d: write-num-partitions control [28+4]; = write control [28+4]
        """,
    ),
    "too many, and the directory behind": (
        lambda data, info, struct: (count(data, 1), data.extend(b"/3")),
        """
        r, r!, d: ? control-file-size in None [28+4]
        """,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_planned_for_a_control_file(tmp_path: Path, name: str) -> None:
    change, expected = CASES[name]
    wanted = ways(expected)
    assert {way: plan(tmp_path / way, change, way) for way in wanted} == wanted


@pytest.mark.parametrize(
    ("marks", "kept"), [((6, 4, 2), 1), ((5, 6, 2), 1), ((5, 5, 4), 1), ((4, 6, 4), 2), ((5, 4, 4), 2), ((5, 5, 2), 2)]
)
def test_of_two_structs_that_nothing_tells_apart_the_one_with_higher_marks_stays(
    tmp_path: Path, marks: tuple[int, int, int], kept: int
) -> None:
    """The second one has session 3 and marks 5 and 5; a local mark counts first, then the cluster's, then the session."""
    made = initial_control(Layout.RELEASED, KEY, 1, CREATED)
    local, low, session = marks
    one = replace(made.partitions[0].structs[0], session_id=session, low_water_mark=low, local_low_water_mark=local)
    other = replace(one, session_id=3, low_water_mark=5, local_low_water_mark=5)
    pair = one.sealed(), replace(other, sequence=one.sequence).sealed()
    path = tmp_path / "waltz-storage.ctl"
    path.write_bytes(replace(made, partitions=(replace(made.partitions[0], structs=pair),)).encode())
    plain = told(plan_recover(tmp_path))
    assert [line.split()[1] for line in plain] == ["control-pair-tie"]
    size = Layout.RELEASED.struct_schema.size
    place = 132 + size * (2 - kept)
    assert told(plan_recover(tmp_path, allow_data_loss=True)) == [
        f"decide-control-tie control [{place}+{size}] loses",
        f"= write control [{place}+{size}]",
    ]
