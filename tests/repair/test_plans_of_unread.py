"""What recovery plans where damage is so expensive to search that it is given up unread: nothing of it is ever cut.

Not even where a replica brings back what was promised: records above the mark may stand behind it.  Here every search is given up
at once.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.repair.twelve import Damage, Twelve, at, planned, ways
from waltzctl.engine.errors import WaltzError
from waltzctl.engine.repair.rebuild_index import plan_rebuild_index
from waltzctl.engine.repair.truncate import plan_truncate
from waltzctl.engine.scan import scanner


@pytest.fixture(autouse=True)
def _poor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanner, "BUDGET_BASE", 0)
    monkeypatch.setattr(scanner, "BUDGET_PER_BYTE", 0)


CASES: dict[str, tuple[Damage, str]] = {
    "in the middle": (
        lambda d: d.spoil(5),
        """
        unasked, loss, replica: ? record-checksum 5 in 4 [188+180]; ? record-order in 4
        """,
    ),
    "in the middle, without an index": (
        lambda d: (d.spoil(5), d.idx(4).unlink()),
        """
        unasked, loss, replica: ? record-checksum 5 in 4 [188+180]; ? record-order in 4
        """,
    ),
    "at the end, above the mark": (
        lambda d: d.spoil(10),
        """
        unasked, loss, replica: ? record-checksum 10 in 8 [248+120]; ? record-order in 8
        """,
    ),
    "at the end, at the mark": (
        lambda d: d.spoil(9),
        """
        unasked, loss, replica: ? record-checksum 9 in 8 [188+180]; ? record-order in 8
        """,
    ),
    "at the end, and no mark is known": (
        lambda d: (d.spoil(9), d.forget_marks()),
        """
        unasked, replica: ? control-pair-checksum in None [132+72]; ? record-checksum 9 in 8 [188+180]; ? record-order
          in 8
        loss: reset-control-pair control [128+76] loses; = write control [128+76]; ? record-checksum 9 in 8 [188+180];
          ? record-order in 8
        """,
    ),
    "at the beginning": (
        lambda d: d.spoil(0),
        """
        unasked, loss, replica: ? record-checksum 0 in 0 [128+240]; ? record-order in 0
        """,
    ),
    "a torn end": (
        lambda d: d.cut(8, at(11) + 5),
        """
        unasked, loss, replica: cut-torn-tail 8.seg 11..11 [308+5]; rebuild-index 8.idx; = cut 8.seg to 308; = make
          8.idx of 152
        """,
    ),
    "in an overlap": (
        lambda d: (d.put(4, range(4, 10)), d.flip(d.seg(4), at(5) + 9)),
        """
        unasked, loss, replica: ? record-checksum 5 in 4 [188+300]; ? record-order in 4
        """,
    ),
    "in front of junk": (
        lambda d: d.seg(4).write_bytes(d.seg(4).read_bytes() + bytes(50)),
        """
        unasked, loss, replica: ? record-order in 4
        """,
    ),
    "out of order": (
        lambda d: d.put(4, [4, 55, 6, 7]),
        """
        unasked, loss, replica: ? record-order 5 in 4 [188+180]; ? segment-gap 5 x3 in 8
        """,
    ),
    "out of order at the end": (
        lambda d: d.put(8, [8, 9, 10, 55]),
        """
        unasked, loss: ? record-order 11 in 8 [308+60]
        replica: restore-record 8.seg 11..11 [308+60]; = write 8.seg [308+60]
        """,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_planned_for_what_was_given_up(tmp_path: Path, name: str) -> None:
    damage, expected = CASES[name]
    wanted = ways(expected)
    assert {way: planned(tmp_path / way, damage, way) for way in wanted} == wanted


def test_neither_a_cut_nor_an_index_goes_by_what_was_not_read(tmp_path: Path) -> None:
    d = Twelve(tmp_path / "d")
    d.mark(-1)
    d.spoil(5)
    d.idx(4).unlink()
    (left,) = plan_rebuild_index(d.root).plan.undecided
    assert (left.code, left.message) == (
        "record-order", f"{d.seg(4)}: what follows offset {at(5)} was given up unread",
    )  # fmt: skip
    with pytest.raises(WaltzError, match="transaction 6 is in a damaged place"):
        plan_truncate(d.root, partition=0, after=6)
    assert plan_truncate(d.root, partition=0, after=4).plan.steps[-1].offset == at(5)
