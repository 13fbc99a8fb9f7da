"""What recovery plans where the replicas of a cluster agreed on what is kept: what is cut, replaced, or left to a person.

The local low-water mark is 9.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.repair.twelve import SIZE, Damage, Twelve, planned, ways
from waltzctl.engine.repair.arguments import Agreed


def sound(d: Twelve) -> None:
    """Nothing is wrong with it."""


CASES: dict[str, tuple[Damage, Agreed, str]] = {
    "the end, as it is": (
        sound,
        Agreed(0, 11, 11),
        """
        unasked, loss, replica, loss replica:
        """,
    ),
    "the last one goes": (
        sound,
        Agreed(0, 10, 10),
        """
        unasked, loss, replica, loss replica: cut-segment 8.seg 11..11 [308+60] loses; rebuild-index 8.idx; = cut
          8.seg to 308; = make 8.idx of 152
        """,
    ),
    "the last two go": (
        sound,
        Agreed(0, 9, 9),
        """
        unasked, loss, replica, loss replica: cut-segment 8.seg 10..11 [248+120] loses; rebuild-index 8.idx; = cut
          8.seg to 248; = make 8.idx of 144
        """,
    ),
    "one at the mark would go": (
        sound,
        Agreed(0, 8, 8),
        """
        unasked, replica: ? replica-differs 9 in None
        loss: cut-segment 8.seg 9..11 [188+180] loses; lower-local-low-water-mark control [132+36] loses;
          rebuild-index 8.idx; accept-loss ledger 9..9 loses; = write control [132+36]; = cut 8.seg to 188; = make
          8.idx of 136; = make ledger
        loss replica: cut-segment 8.seg 9..11 [188+180] loses; restore-record 8.seg 9..9 [188+60]; rebuild-index
          8.idx; = write 8.seg [188+60]; = cut 8.seg to 248; = make 8.idx of 144
        """,
    ),
    "the last segment would go": (
        sound,
        Agreed(0, 7, 7),
        """
        unasked, replica: ? replica-differs 8 in None
        loss: cut-segment 8.seg 8..11 [128+240] loses; lower-local-low-water-mark control [132+36] loses;
          rebuild-index 8.idx; accept-loss ledger 8..9 loses; = write control [132+36]; = cut 8.seg to 128; = make
          8.idx of 128; = make ledger
        loss replica: cut-segment 8.seg 8..11 [128+240] loses; restore-record 8.seg 8..9 [128+120]; rebuild-index
          8.idx; = write 8.seg [128+120]; = cut 8.seg to 248; = make 8.idx of 144
        """,
    ),
    "two segments would go": (
        sound,
        Agreed(0, 3, 3),
        """
        unasked, replica: ? replica-differs 4 in None
        loss: cut-segment 4.seg 4..7 [128+240] loses; lower-local-low-water-mark control [132+36] loses; rebuild-index
          4.idx; remove-segment 8.seg 8..11 [0+368] loses; remove-index 8.idx 8..11 [0+160]; accept-loss ledger 4..9
          loses; = write control [132+36]; = cut 4.seg to 128; = make 4.idx of 128; = remove 8.seg; = remove 8.idx; =
          make ledger
        loss replica: cut-segment 4.seg 4..7 [128+240] loses; restore-record 4.seg 4..7 [128+240]; restore-segment
          8.seg 8..9 [128+120]; rebuild-index 8.idx; = write 4.seg [128+240]; = write 8.seg [0+248]; = cut 8.seg to
          248; = make 8.idx of 144
        """,
    ),
    "an empty segment goes": (
        lambda d: (d.cut(8, 128), d.list(8, 0), d.mark(5)),
        Agreed(0, 6, 6),
        """
        unasked, loss, replica, loss replica: cut-segment 4.seg 7..7 [308+60] loses; rebuild-index 4.idx;
          remove-segment 8.seg 8..8 [0+128]; remove-index 8.idx 8..8 [0+128]; = cut 4.seg to 308; = make 4.idx of 152;
          = remove 8.seg; = remove 8.idx
        """,
    ),
    "all would go": (
        sound,
        Agreed(0, -1, -1),
        """
        unasked, replica: ? replica-differs 0 in None
        loss: cut-segment 0.seg 0..3 [128+240] loses; lower-local-low-water-mark control [132+36] loses; rebuild-index
          0.idx; remove-segment 8.seg 8..11 [0+368] loses; remove-index 8.idx 8..11 [0+160]; remove-segment 4.seg 4..7
          [0+368] loses; remove-index 4.idx 4..7 [0+160]; accept-loss ledger 0..9 loses; = write control [132+36]; =
          cut 0.seg to 128; = make 0.idx of 128; = remove 8.seg; = remove 8.idx; = remove 4.seg; = remove 4.idx; =
          make ledger
        loss replica: cut-segment 0.seg 0..3 [128+240] loses; restore-record 0.seg 0..3 [128+240]; restore-segment
          4.seg 4..7 [128+240]; restore-segment 8.seg 8..9 [128+120]; rebuild-index 8.idx; = write 0.seg [128+240]; =
          write 4.seg [0+368]; = write 8.seg [0+248]; = cut 8.seg to 248; = make 8.idx of 144
        """,
    ),
    "all go": (
        lambda d: d.mark(-1),
        Agreed(0, -1, -1),
        """
        unasked, loss, replica, loss replica: cut-segment 0.seg 0..3 [128+240] loses; rebuild-index 0.idx;
          remove-segment 8.seg 8..11 [0+368] loses; remove-index 8.idx 8..11 [0+160]; remove-segment 4.seg 4..7 [0+368]
          loses; remove-index 4.idx 4..7 [0+160]; = cut 0.seg to 128; = make 0.idx of 128; = remove 8.seg; = remove
          8.idx; = remove 4.seg; = remove 4.idx
        """,
    ),
    "the last segment goes, and what is kept is longer": (
        lambda d: d.mark(7),
        Agreed(0, 9, 7),
        """
        unasked, loss, replica, loss replica: cut-segment 8.seg 8..11 [128+240] loses; rebuild-index 8.idx; = cut
          8.seg to 128; = make 8.idx of 128
        """,
    ),
    "two segments go, and all comes back": (
        lambda d: d.mark(3),
        Agreed(0, 9, 3, (), True),
        """
        unasked: cut-segment 4.seg 4..7 [128+240] loses; rebuild-index 4.idx; remove-segment 8.seg 8..11 [0+368] loses;
          remove-index 8.idx 8..11 [0+160]; = cut 4.seg to 128; = make 4.idx of 128; = remove 8.seg; = remove 8.idx; ?
          durable-missing 4 x4 in 4
        loss: cut-segment 4.seg 4..7 [128+240] loses; rebuild-index 4.idx; remove-segment 8.seg 8..11 [0+368] loses;
          remove-index 8.idx 8..11 [0+160]; accept-loss ledger 4..7 loses; = cut 4.seg to 128; = make 4.idx of 128; =
          remove 8.seg; = remove 8.idx; = make ledger
        replica, loss replica: cut-segment 4.seg 4..7 [128+240] loses; restore-record 4.seg 4..7 [128+240];
          restore-segment 8.seg 8..9 [128+120]; rebuild-index 8.idx; = write 4.seg [128+240]; = write 8.seg [0+248]; =
          cut 8.seg to 248; = make 8.idx of 144
        """,
    ),
    "what goes comes back in other segments than it was in": (
        lambda d: d.mark(2),
        Agreed(0, 11, 2, (), True),
        """
        longer replica: cut-segment 0.seg 3..3 [308+60] loses; restore-record 0.seg 3..7 [308+300];
          restore-segment 8.seg 8..11 [128+240]; rebuild-index 0.idx; remove-segment 4.seg 4..7 [0+368] loses;
          remove-index 4.idx 4..7 [0+160]; = write 0.seg [308+300]; = make 0.idx of 192; = write 8.seg [0+368];
          = remove 4.seg; = remove 4.idx
        """,
    ),
    "a part goes, and comes back": (
        lambda d: d.mark(4),
        Agreed(0, 9, 5, (), True),
        """
        unasked: cut-segment 4.seg 6..7 [248+120] loses; rebuild-index 4.idx; remove-segment 8.seg 8..11 [0+368] loses;
          remove-index 8.idx 8..11 [0+160]; = cut 4.seg to 248; = make 4.idx of 144; = remove 8.seg; = remove 8.idx; ?
          durable-missing 6 x2 in 4
        loss: cut-segment 4.seg 6..7 [248+120] loses; rebuild-index 4.idx; remove-segment 8.seg 8..11 [0+368] loses;
          remove-index 8.idx 8..11 [0+160]; accept-loss ledger 6..7 loses; = cut 4.seg to 248; = make 4.idx of 144; =
          remove 8.seg; = remove 8.idx; = make ledger
        replica, loss replica: cut-segment 4.seg 6..7 [248+120] loses; restore-record 4.seg 6..7 [248+120];
          restore-segment 8.seg 8..9 [128+120]; rebuild-index 8.idx; = write 4.seg [248+120]; = write 8.seg [0+248]; =
          cut 8.seg to 248; = make 8.idx of 144
        """,
    ),
    "a part goes, and only what was promised comes back": (
        lambda d: d.mark(6),
        Agreed(0, 9, 5),
        """
        unasked, replica: ? replica-differs 6 in None
        loss: cut-segment 4.seg 6..7 [248+120] loses; lower-local-low-water-mark control [132+36] loses; rebuild-index
          4.idx; remove-segment 8.seg 8..11 [0+368] loses; remove-index 8.idx 8..11 [0+160]; accept-loss ledger 6..7
          loses; = write control [132+36]; = cut 4.seg to 248; = make 4.idx of 144; = remove 8.seg; = remove 8.idx; =
          make ledger
        loss replica: cut-segment 4.seg 6..7 [248+120] loses; restore-record 4.seg 6..7 [248+120]; remove-segment
          8.seg 8..11 [0+368] loses; remove-index 8.idx 8..11 [0+160]; = write 4.seg [248+120]; = remove 8.seg; = remove
          8.idx
        """,
    ),
    "the last segment goes without an index": (
        lambda d: (d.mark(7), d.drop(8, data=False)),
        Agreed(0, 7, 7),
        """
        unasked, loss, replica, loss replica: cut-segment 8.seg 8..11 [128+240] loses; rebuild-index 8.idx; = cut
          8.seg to 128; = make 8.idx of 128
        """,
    ),
    "an index alone goes": (
        lambda d: (d.mark(7), d.drop(8, index=False)),
        Agreed(0, 7, 7),
        """
        unasked, loss, replica, loss replica: remove-orphan-index 8.idx [0+160]; = remove 8.idx
        """,
    ),
    "behind a damaged record": (
        lambda d: (d.mark(3), d.spoil(5)),
        Agreed(0, 6, 6),
        """
        unasked: cut-segment 4.seg 7..7 [308+60] loses; rebuild-index 4.idx; remove-segment 8.seg 8..11 [0+368] loses;
          remove-index 8.idx 8..11 [0+160]; = cut 4.seg to 308; = make 4.idx of 152; = remove 8.seg; = remove 8.idx; ?
          record-checksum 5 x1 in 4 [188+60]
        loss: cut-segment 4.seg 7..7 [308+60] loses; split-segment 4.seg 5..5 [188+60] loses; rebuild-index 4.idx;
          rebuild-index 6.idx; remove-segment 8.seg 8..11 [0+368] loses; remove-index 8.idx 8..11 [0+160]; accept-loss
          ledger 5..5 loses; = cut 4.seg to 188; = make 4.idx of 136; = make 6.seg of 188; = make 6.idx of 136; =
          remove 8.seg; = remove 8.idx; = make ledger
        replica, loss replica: cut-segment 4.seg 7..7 [308+60] loses; restore-record 4.seg 5..5 [188+60];
          rebuild-index 4.idx; remove-segment 8.seg 8..11 [0+368] loses; remove-index 8.idx 8..11 [0+160]; = write 4.seg
          [188+60]; = cut 4.seg to 308; = make 4.idx of 152; = remove 8.seg; = remove 8.idx
        """,
    ),
    "at a damaged record": (
        lambda d: (d.mark(3), d.spoil(5)),
        Agreed(0, 4, 4),
        """
        unasked, loss, replica, loss replica: cut-segment 4.seg 5..7 [188+180] loses; rebuild-index 4.idx;
          remove-segment 8.seg 8..11 [0+368] loses; remove-index 8.idx 8..11 [0+160]; = cut 4.seg to 188; = make 4.idx
          of 136; = remove 8.seg; = remove 8.idx
        """,
    ),
    "inside damage": (
        lambda d: (d.mark(3), d.spoil(5, 6)),
        Agreed(0, 5, 5),
        """
        unasked: ? replica-differs 6 in 4; ? record-checksum 5 x2 in 4 [188+120]
        loss: split-segment 4.seg 5..6 [188+120] loses; rebuild-index 4.idx; rebuild-index 7.idx; accept-loss ledger
          5..6 loses; = cut 4.seg to 188; = make 4.idx of 136; = make 7.seg of 188; = make 7.idx of 136; = make
          ledger; ? replica-differs 6 in 4
        replica, loss replica: restore-record 4.seg 5..6 [188+120]; = write 4.seg [188+120]; ? replica-differs 6 in 4
        """,
    ),
    "a torn end goes": (
        lambda d: d.cut(8, 128 + 4 * SIZE - 5),
        Agreed(0, 10, 10),
        """
        unasked, loss, replica, loss replica: cut-segment 8.seg 11..11 [308+55]; rebuild-index 8.idx; = cut 8.seg to
          308; = make 8.idx of 152
        """,
    ),
    "a torn end further on": (
        lambda d: d.cut(8, 128 + 4 * SIZE - 5),
        Agreed(0, 11, 11),
        """
        unasked, loss, replica, loss replica: cut-torn-tail 8.seg 11..11 [308+55]; rebuild-index 8.idx; = cut 8.seg to
          308; = make 8.idx of 152
        """,
    ),
    "the mark is unknown": (
        lambda d: d.forget_marks(),
        Agreed(0, 10, 10),
        """
        unasked, replica: ? control-pair-checksum in None [132+72]; ? replica-differs 11 in None
        loss, loss replica: reset-control-pair control [128+76] loses; cut-segment 8.seg 11..11 [308+60] loses;
          rebuild-index 8.idx; = write control [128+76]; = cut 8.seg to 308; = make 8.idx of 152
        """,
    ),
    "a record that is not theirs": (
        lambda d: d.put(8, range(8, 12), other=[10]),
        Agreed(0, 11, None, ((10, 10),)),
        """
        unasked, loss: ? replica-differs 10 in 8 [248+60]
        replica, loss replica: restore-record 8.seg 10..10 [248+60] loses; = write 8.seg [248+60]
        """,
    ),
    "one at the mark that is not theirs": (
        lambda d: d.put(8, range(8, 12), other=[9]),
        Agreed(0, 11, None, ((9, 9),)),
        """
        unasked, replica: ? replica-differs 9 in None
        loss: ? replica-differs 9 in 8 [188+60]
        loss replica: restore-record 8.seg 9..9 [188+60] loses; = write 8.seg [188+60]
        """,
    ),
    "some that are not theirs": (
        lambda d: (d.mark(3), d.put(4, range(4, 8), other=[5, 6])),
        Agreed(0, 11, None, ((5, 6),)),
        """
        unasked, loss: ? replica-differs 5 in 4 [188+120]
        replica, loss replica: restore-record 4.seg 5..6 [188+120] loses; = write 4.seg [188+120]
        """,
    ),
    "two rows that are not theirs": (
        lambda d: (d.mark(3), d.put(4, range(4, 8), other=[4, 7])),
        Agreed(0, 11, None, ((4, 4), (7, 7))),
        """
        unasked, loss: ? replica-differs 7 in 4 [308+60]; ? replica-differs 4 in 4 [128+60]
        replica, loss replica: restore-record 4.seg 7..7 [308+60] loses; restore-record 4.seg 4..4 [128+60] loses; =
          write 4.seg [128+60]; = write 4.seg [308+60]
        """,
    ),
    "some over the end of a segment": (
        lambda d: (d.mark(3), d.put(4, range(4, 8), other=[7]), d.put(8, range(8, 12), other=[8])),
        Agreed(0, 11, None, ((7, 8),)),
        """
        unasked, loss: ? replica-differs 7 in 4 [308+60]; ? replica-differs 8 in 8 [128+60]
        replica, loss replica: restore-record 4.seg 7..7 [308+60] loses; restore-record 8.seg 8..8 [128+60] loses; =
          write 4.seg [308+60]; = write 8.seg [128+60]
        """,
    ),
    "one beside a damaged one": (
        lambda d: (d.mark(3), d.put(4, range(4, 8), other=[5]), d.spoil(6)),
        Agreed(0, 11, None, ((5, 5),)),
        """
        unasked: ? replica-differs 5 in 4 [188+120]
        loss: split-segment 4.seg 5..6 [188+120] loses; rebuild-index 4.idx; rebuild-index 7.idx; accept-loss ledger
          5..6 loses; = cut 4.seg to 188; = make 4.idx of 136; = make 7.seg of 188; = make 7.idx of 136; = make ledger
        replica, loss replica: restore-record 4.seg 5..6 [188+120] loses; = write 4.seg [188+120]
        """,
    ),
    "one inside damage": (
        lambda d: (d.mark(3), d.spoil(5, 6)),
        Agreed(0, 11, None, ((6, 6),)),
        """
        unasked: ? replica-differs 6 in 4; ? record-checksum 5 x2 in 4 [188+120]
        loss: split-segment 4.seg 5..6 [188+120] loses; rebuild-index 4.idx; rebuild-index 7.idx; accept-loss ledger
          5..6 loses; = cut 4.seg to 188; = make 4.idx of 136; = make 7.seg of 188; = make 7.idx of 136; = make
          ledger; ? replica-differs 6 in 4
        replica, loss replica: restore-record 4.seg 5..6 [188+120]; = write 4.seg [188+120]; ? replica-differs 6 in 4
        """,
    ),
    "a lost end up to the mark": (
        lambda d: d.drop(8),
        Agreed(0, 9),
        """
        unasked: ? acknowledged-missing 8 x2 in 4
        loss: lower-local-low-water-mark control [132+36] loses; accept-loss ledger 8..9 loses; = write control
          [132+36]; = make ledger
        replica, loss replica: restore-segment 8.seg 8..9 [128+120]; rebuild-index 8.idx; = make 8.seg of 248; = make
          8.idx of 144
        """,
    ),
    "a lost end, and less is kept": (
        lambda d: d.drop(8),
        Agreed(0, 8),
        """
        unasked: ? acknowledged-missing 8 x2 in 4
        loss: lower-local-low-water-mark control [132+36] loses; accept-loss ledger 8..9 loses; = write control
          [132+36]; = make ledger
        replica, loss replica: restore-segment 8.seg 8..9 [128+120]; rebuild-index 8.idx; = make 8.seg of 248; = make
          8.idx of 144
        """,
    ),
    "a lost end above the mark": (
        lambda d: (d.mark(7), d.drop(8)),
        Agreed(0, 11),
        """
        unasked, loss, replica, loss replica:
        """,
    ),
    "a lost end above the mark, all of which is kept": (
        lambda d: (d.mark(7), d.drop(8)),
        Agreed(0, 11, None, (), True),
        """
        unasked, loss:
        replica, loss replica: restore-segment 8.seg 8..11 [128+240]; rebuild-index 8.idx; = make 8.seg of 368; = make
          8.idx of 160
        """,
    ),
    "a lost end, its index left": (
        lambda d: (d.mark(7), d.drop(8, index=False)),
        Agreed(0, 8),
        """
        unasked: ? index-orphan 8 x1 in 8
        loss: remove-orphan-index 8.idx [0+160] loses; accept-loss ledger 8..8 loses; = remove 8.idx; = make ledger
        replica, loss replica: restore-segment 8.seg 8..8 [128+60]; rebuild-index 8.idx; = make 8.seg of 188; = make
          8.idx of 136
        """,
    ),
    "a lost end, its index left, and nothing of it is kept": (
        lambda d: (d.mark(7), d.drop(8, index=False)),
        Agreed(0, 7),
        """
        unasked, loss, replica, loss replica: remove-orphan-index 8.idx [0+160]; = remove 8.idx
        """,
    ),
    "more than any replica has": (
        lambda d: (d.mark(7), d.drop(8)),
        Agreed(0, 13, None, (), True),
        """
        unasked, loss, replica:
        loss replica: restore-segment 8.seg 8..11 [128+240]; rebuild-index 8.idx; = make 8.seg of 368; = make 8.idx of
          160
        """,
    ),
    "a whole segment that is gone": (
        lambda d: d.drop(4),
        Agreed(0, 11),
        """
        unasked, loss: ? segment-gap 4 x4 in 8
        replica, loss replica: restore-segment 4.seg 4..7 [128+240]; rebuild-index 4.idx; = make 4.seg of 368; = make
          4.idx of 160
        """,
    ),
}


@pytest.mark.turns(10)
@pytest.mark.parametrize("name", CASES)
def test_what_is_planned_by_agreement(tmp_path: Path, name: str) -> None:
    """Unasked, with leave to lose, and with a sound replica, whose first segment may be longer."""

    def plan(way: str) -> list[str]:
        def longer(d: Twelve) -> None:
            d.put(0, range(8))
            d.drop(4)

        replica = longer if "longer" in way else sound
        return planned(tmp_path / way, damage, way, replica=replica, agreed=[agreed])

    damage, agreed, expected = CASES[name]
    wanted = ways(expected)
    assert {way: plan(way) for way in wanted} == wanted


@pytest.mark.parametrize("after", [3, 5])
def test_a_file_that_is_not_the_partition_s_own_is_not_cut_away_with_what_is_behind(tmp_path: Path, after: int) -> None:
    lines = planned(tmp_path / "d", lambda d: d.strange(8), "loss", agreed=[Agreed(0, after, after)])
    assert [one for one in lines if "4.seg" in one and one.startswith("=")]
    assert not [one for one in lines if " 8." in one and one.startswith("=")]
