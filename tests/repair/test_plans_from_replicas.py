"""What recovery plans from a replica that is damaged, shorter or another one itself: only what its neighbours prove is taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.repair.twelve import Damage, Twelve, at, planned, ways


def forged(*numbers: int) -> Damage:
    """Other records under some ids, of the same size."""

    def damage(d: Twelve) -> None:
        for first in {number - number % 4 for number in numbers}:
            d.put(first, range(first, first + 4), other=numbers)

    return damage


CASES: dict[str, tuple[Damage, Damage, str]] = {
    "another one in front": (
        lambda d: d.spoil(5),
        forged(4),
        """
        replica: ? record-checksum 5 x1 in 4 [188+60]
        loss replica: split-segment 4.seg 5..5 [188+60] loses; rebuild-index 4.idx; rebuild-index 6.idx; accept-loss
          ledger 5..5 loses; = cut 4.seg to 188; = make 4.idx of 136; = make 6.seg of 248; = make 6.idx of 144; = make
          ledger
        """,
    ),
    "another one behind": (
        lambda d: d.spoil(5),
        forged(6),
        """
        replica: ? record-checksum 5 x1 in 4 [188+60]
        loss replica: split-segment 4.seg 5..5 [188+60] loses; rebuild-index 4.idx; rebuild-index 6.idx; accept-loss
          ledger 5..5 loses; = cut 4.seg to 188; = make 4.idx of 136; = make 6.seg of 248; = make 6.idx of 144; = make
          ledger
        """,
    ),
    "another one further in front": (
        lambda d: d.spoil(6),
        forged(4),
        """
        replica, loss replica: restore-record 4.seg 6..6 [248+60]; = write 4.seg [248+60]
        """,
    ),
    "another one further behind": (
        lambda d: d.spoil(5),
        forged(7),
        """
        replica, loss replica: restore-record 4.seg 5..5 [188+60]; = write 4.seg [188+60]
        """,
    ),
    "another one in front, in another segment": (
        lambda d: d.spoil(4),
        forged(3),
        """
        replica: ? record-checksum 4 x1 in 4 [128+60]
        loss replica: split-segment 4.seg 4..4 [128+60] loses; rebuild-index 4.idx; rebuild-index 5.idx; accept-loss
          ledger 4..4 loses; = cut 4.seg to 128; = make 4.idx of 128; = make 5.seg of 308; = make 5.idx of 152; = make
          ledger
        """,
    ),
    "another one behind, in another segment": (
        lambda d: d.spoil(3),
        forged(4),
        """
        replica: ? torn-tail 3 x1 in 0 [308+60]
        loss replica: cut-torn-tail 0.seg 3..3 [308+60] loses; rebuild-index 0.idx; accept-loss ledger 3..3 loses; =
          cut 0.seg to 308; = make 0.idx of 152; = make ledger; ? segment-gap 3 x1 in 4
        """,
    ),
    "another one in front of a segment that is gone": (
        lambda d: d.drop(4),
        forged(3),
        """
        replica, loss replica: ? segment-gap 4 x4 in 8
        """,
    ),
    "another one behind a segment that is gone": (
        lambda d: d.drop(4),
        forged(8),
        """
        replica, loss replica: ? segment-gap 4 x4 in 8
        """,
    ),
    "another one in front of an end that is gone": (
        lambda d: d.drop(8),
        forged(7),
        """
        replica: ? acknowledged-missing 8 x2 in 4
        loss replica: lower-local-low-water-mark control [132+36] loses; accept-loss ledger 8..9 loses; = write
          control [132+36]; = make ledger
        """,
    ),
    "another one behind two that are damaged": (
        lambda d: d.spoil(5, 6),
        forged(7),
        """
        replica: ? record-checksum 5 x2 in 4 [188+120]
        loss replica: split-segment 4.seg 5..6 [188+120] loses; rebuild-index 4.idx; rebuild-index 7.idx; accept-loss
          ledger 5..6 loses; = cut 4.seg to 188; = make 4.idx of 136; = make 7.seg of 188; = make 7.idx of 136; = make
          ledger
        """,
    ),
    "another one in front of two that are damaged in two segments": (
        lambda d: d.spoil(3, 4),
        forged(2),
        """
        replica: ? torn-tail 3 x1 in 0 [308+60]; ? record-checksum 4 x1 in 4 [128+60]
        loss replica: cut-torn-tail 0.seg 3..3 [308+60] loses; split-segment 4.seg 4..4 [128+60] loses; rebuild-index
          0.idx; rebuild-index 4.idx; rebuild-index 5.idx; accept-loss ledger 3..3 loses; accept-loss ledger 4..4
          loses; = cut 0.seg to 308; = make 0.idx of 152; = cut 4.seg to 128; = make 4.idx of 128; = make 5.seg of
          308; = make 5.idx of 152; = make ledger; ? segment-gap 3 x1 in 4
        """,
    ),
    "another one behind two that are damaged in two segments": (
        lambda d: d.spoil(3, 4),
        forged(5),
        """
        replica: ? torn-tail 3 x1 in 0 [308+60]; ? record-checksum 4 x1 in 4 [128+60]
        loss replica: cut-torn-tail 0.seg 3..3 [308+60] loses; split-segment 4.seg 4..4 [128+60] loses; rebuild-index
          0.idx; rebuild-index 4.idx; rebuild-index 5.idx; accept-loss ledger 3..3 loses; accept-loss ledger 4..4
          loses; = cut 0.seg to 308; = make 0.idx of 152; = cut 4.seg to 128; = make 4.idx of 128; = make 5.seg of
          308; = make 5.idx of 152; = make ledger; ? segment-gap 3 x1 in 4
        """,
    ),
    "another one behind one whose data is wrong, in another segment": (
        lambda d: d.garble(3),
        forged(4),
        """
        replica, loss replica: ? data-checksum 3 in 0 [308+60]
        """,
    ),
    "zeros where none is missing, and one missing further on": (
        lambda d: (d.put(4, [4, 5, 7], of=[4, 5, 7]), d.insert(4, at(5), bytes(60))),
        lambda d: None,
        """
        replica, loss replica: restore-record 4.seg 6..6 [308+0]; remove-bytes 4.seg [188+60]; rebuild-index 4.idx;
          = make 4.seg of 368; = make 4.idx of 160
        """,
    ),
    "the same damage there": (
        lambda d: d.spoil(5),
        lambda d: d.spoil(5),
        """
        replica: ? record-checksum 5 x1 in 4 [188+60]
        loss replica: split-segment 4.seg 5..5 [188+60] loses; rebuild-index 4.idx; rebuild-index 6.idx; accept-loss
          ledger 5..5 loses; = cut 4.seg to 188; = make 4.idx of 136; = make 6.seg of 248; = make 6.idx of 144; = make
          ledger
        """,
    ),
    "damage beside it there": (
        lambda d: d.spoil(5),
        lambda d: d.spoil(6),
        """
        replica: ? record-checksum 5 x1 in 4 [188+60]
        loss replica: split-segment 4.seg 5..5 [188+60] loses; rebuild-index 4.idx; rebuild-index 6.idx; accept-loss
          ledger 5..5 loses; = cut 4.seg to 188; = make 4.idx of 136; = make 6.seg of 248; = make 6.idx of 144; = make
          ledger
        """,
    ),
    "damage further on there": (
        lambda d: d.spoil(5),
        lambda d: d.spoil(7),
        """
        replica, loss replica: restore-record 4.seg 5..5 [188+60]; = write 4.seg [188+60]
        """,
    ),
    "less of an end that is gone": (
        lambda d: d.drop(8),
        lambda d: d.cut(8, at(9)),
        """
        replica: ? acknowledged-missing 8 x2 in 4
        loss replica: restore-segment 8.seg 8..8 [128+60]; lower-local-low-water-mark control [132+36] loses;
          rebuild-index 8.idx; accept-loss ledger 9..9 loses; = write control [132+36]; = make 8.seg of 188; = make
          8.idx of 136; = make ledger
        """,
    ),
    "less than an index without data lists, and more than was promised": (
        lambda d: d.drop(8, index=False),
        lambda d: d.cut(8, at(10)),
        """
        replica: ? acknowledged-missing 8 x2 in 4; ? index-orphan 8 x4 in 8
        loss replica: restore-segment 8.seg 8..9 [128+120]; rebuild-index 8.idx; accept-loss ledger 10..11
          loses; = make 8.seg of 248; = make 8.idx of 144; = make ledger
        """,
    ),
    "nothing of an end that is gone": (
        lambda d: d.drop(8),
        lambda d: d.drop(8),
        """
        replica: ? acknowledged-missing 8 x2 in 4
        loss replica: lower-local-low-water-mark control [132+36] loses; accept-loss ledger 8..9 loses; = write
          control [132+36]; = make ledger
        """,
    ),
    "less of all that is gone": (
        lambda d: [d.drop(first) for first in (0, 4, 8)],
        lambda d: d.cut(4, at(6)),
        """
        replica: ? acknowledged-missing 0 x10 in None
        loss replica: restore-segment 0.seg 0..3 [128+240]; restore-segment 4.seg 4..5 [128+120];
          lower-local-low-water-mark control [132+36] loses; rebuild-index 0.idx; rebuild-index 4.idx; accept-loss
          ledger 6..9 loses; = write control [132+36]; = make 0.seg of 368; = make 0.idx of 160; = make 4.seg of 248;
          = make 4.idx of 144; = make ledger
        """,
    ),
    "a gap in what is gone": (
        lambda d: [d.drop(first) for first in (4, 8)],
        lambda d: d.spoil(6),
        """
        replica: ? acknowledged-missing 4 x6 in 0
        loss replica: restore-segment 4.seg 4..5 [128+120]; lower-local-low-water-mark control [132+36] loses;
          rebuild-index 4.idx; accept-loss ledger 6..9 loses; = write control [132+36]; = make 4.seg of 248; = make
          4.idx of 144; = make ledger
        """,
    ),
    "less of a torn end at the mark": (
        lambda d: d.spoil(8, 9, 10, 11),
        lambda d: d.cut(8, at(9)),
        """
        replica: ? torn-tail 8 x4 in 8 [128+240]
        loss replica: restore-record 8.seg 8..8 [128+60]; lower-local-low-water-mark control [132+36] loses;
          rebuild-index 8.idx; accept-loss ledger 9..9 loses; = write control [132+36]; = write 8.seg [128+60]; = cut
          8.seg to 188; = make 8.idx of 136; = make ledger
        """,
    ),
    "a rival, and neither of them there": (
        lambda d: d.put(4, [4, 5, 5, 6, 7], of=[4, 5, 6, 6, 7]),
        lambda d: d.put(4, range(4, 8), other=[5]),
        """
        replica: rebuild-index 4.idx; = make 4.idx of 160; ? record-order 6 x0 in 4 [248+60]
        loss replica: remove-bytes 4.seg [248+60] loses; rebuild-index 4.idx; accept-loss ledger 5..5 loses; = make
          4.seg of 368; = make 4.idx of 160; = make ledger
        """,
    ),
    "a rival, and the other one there": (
        lambda d: d.put(4, [4, 5, 5, 6, 7], of=[4, 6, 5, 6, 7]),
        lambda d: None,
        """
        replica, loss replica: restore-record 4.seg 5..5 [188+120] loses; rebuild-index 4.idx; = make 4.seg of 368; =
          make 4.idx of 160
        """,
    ),
    "a rival, and the replica ends in front": (
        lambda d: d.put(4, [4, 5, 5, 6, 7], of=[4, 5, 6, 6, 7]),
        lambda d: (d.cut(4, at(5)), d.drop(8)),
        """
        replica: rebuild-index 4.idx; = make 4.idx of 160; ? record-order 6 x0 in 4 [248+60]
        loss replica: remove-bytes 4.seg [248+60] loses; rebuild-index 4.idx; accept-loss ledger 5..5 loses; = make
          4.seg of 368; = make 4.idx of 160; = make ledger
        """,
    ),
    "a rival at the end, and the other one there": (
        lambda d: d.put(8, [8, 9, 10, 11, 11], of=[8, 9, 10, 10, 11]),
        lambda d: None,
        """
        replica, loss replica: cut-torn-tail 8.seg 12..12 [368+60] loses; restore-record 8.seg 11..11 [308+60] loses;
          rebuild-index 8.idx; = write 8.seg [308+60]; = cut 8.seg to 368; = make 8.idx of 160
        """,
    ),
    "disputed, and damaged there": (
        lambda d: d.accepted((5, 5), disputed=True),
        lambda d: d.spoil(5),
        """
        replica, loss replica: ? loss-accepted 5 x1 in None
        """,
    ),
    "disputed, and here damaged": (
        lambda d: (d.spoil(5), d.accepted((5, 6), disputed=True)),
        lambda d: None,
        """
        replica, loss replica: restore-record 4.seg 5..6 [188+120] loses; settle-accepted-loss ledger 5..6; = write
          4.seg [188+120]; = remove ledger
        """,
    ),
    "wrong ids up to the end, and others there": (
        lambda d: d.put(8, [8, 20, 21, 22]),
        forged(10),
        """
        replica, loss replica: restore-record 8.seg 9..11 [188+180] loses; = write 8.seg [188+180]
        """,
    ),
    "missing ids up to the end, and others there": (
        lambda d: d.put(8, [8, 10, 11], of=[8, 10, 11]),
        forged(10),
        """
        replica, loss replica: restore-record 8.seg 9..10 [188+120] loses; = write 8.seg [188+120]
        """,
    ),
    "ids in front of others, and others there": (
        lambda d: d.put(4, [4, 3, 5, 6], of=[4, 5, 6, 7]),
        forged(6),
        """
        replica, loss replica: restore-record 4.seg 5..7 [188+180] loses; = write 4.seg [188+180]
        """,
    ),
    "one too low in a row": (
        lambda d: d.put(4, [4, 4, 5, 7], of=[4, 5, 6, 7]),
        lambda d: None,
        """
        replica, loss replica: restore-record 4.seg 5..6 [188+120]; = write 4.seg [188+120]
        """,
    ),
    "one too low in a row, and others there": (
        lambda d: d.put(4, [4, 4, 5, 7], of=[4, 5, 6, 7]),
        forged(5),
        """
        replica, loss replica: restore-record 4.seg 5..6 [188+120] loses; = write 4.seg [188+120]
        """,
    ),
    "what both segments hold, and neither is there": (
        lambda d: d.put(4, range(4, 10), other=[8, 9]),
        forged(8),
        """
        replica: ? segment-overlap 8 in 8
        loss replica: cut-segment 4.seg 8..9 [368+120] loses; rebuild-index 4.idx; accept-loss ledger 8..9 loses; =
          cut 4.seg to 368; = make 4.idx of 160; = make ledger
        """,
    ),
    "what both segments hold, of which the first is there": (
        lambda d: (d.put(4, range(4, 10)), d.put(8, range(8, 12), other=[8])),
        lambda d: None,
        """
        replica: ? segment-overlap 8 in 8
        loss replica: cut-segment 4.seg 8..9 [368+120] loses; rebuild-index 4.idx; accept-loss ledger 8..9 loses; =
          cut 4.seg to 368; = make 4.idx of 160; = make ledger
        """,
    ),
    "less of an end that was accepted": (
        lambda d: (d.drop(8), d.mark(7), d.accepted((8, 11, 3))),
        lambda d: d.cut(8, at(10)),
        """
        replica: ? loss-accepted 8 x4 in None
        loss replica: restore-segment 8.seg 8..9 [128+120]; rebuild-index 8.idx; = make 8.seg of 248; = make 8.idx of
          144; ? loss-accepted 10 x2 in None
        """,
    ),
    "all of an end that was accepted, and no more": (
        lambda d: (d.drop(8), d.mark(7), d.accepted((8, 9, 3))),
        lambda d: None,
        """
        replica, loss replica: restore-segment 8.seg 8..9 [128+120]; rebuild-index 8.idx; settle-accepted-loss ledger
          8..9; = make 8.seg of 248; = make 8.idx of 144; = remove ledger
        """,
    ),
    "a part of what was accepted": (
        lambda d: (d.spoil(5), d.drop(8), d.mark(7), d.accepted((5, 5, 3), (8, 11, 3))),
        lambda d: d.drop(8),
        """
        replica, loss replica: restore-record 4.seg 5..5 [188+60]; settle-accepted-loss ledger 5..5; = write 4.seg
          [188+60]; = make ledger; ? loss-accepted 8 x4 in None
        """,
    ),
    "a gap of two segments, the second of which is not there": (
        lambda d: (d.drop(0), d.drop(4)),
        lambda d: d.drop(4),
        """
        replica, loss replica: ? segment-gap 0 x8 in 8
        """,
    ),
    "a gap in front of a torn end": (
        lambda d: (d.drop(4), d.spoil(10, 11)),
        lambda d: None,
        """
        replica, loss replica: restore-segment 4.seg 4..7 [128+240]; cut-torn-tail 8.seg 10..10 [248+120];
          rebuild-index 4.idx; rebuild-index 8.idx; = make 4.seg of 368; = make 4.idx of 160; = cut 8.seg to 248; =
          make 8.idx of 144
        """,
    ),
    "two damaged ones, of which one is not there": (
        lambda d: d.spoil(5, 9),
        lambda d: d.spoil(5),
        """
        replica: restore-record 8.seg 9..9 [188+60]; = write 8.seg [188+60]; ? record-checksum 5 x1 in 4 [188+60]
        loss replica: split-segment 4.seg 5..5 [188+60] loses; restore-record 8.seg 9..9 [188+60]; rebuild-index
          4.idx; rebuild-index 6.idx; accept-loss ledger 5..5 loses; = cut 4.seg to 188; = make 4.idx of 136; = make
          6.seg of 248; = make 6.idx of 144; = write 8.seg [188+60]; = make ledger
        """,
    ),
    "all of a segment, and another one behind": (
        lambda d: d.spoil(4, 5, 6, 7),
        forged(8),
        """
        replica: ? torn-tail 4 x4 in 4 [128+240]
        loss replica: cut-torn-tail 4.seg 4..4 [128+240] loses; rebuild-index 4.idx; accept-loss ledger 4..7 loses; =
          cut 4.seg to 128; = make 4.idx of 128; = make ledger; ? segment-gap 4 x4 in 8
        """,
    ),
    "all of a segment, and another one in front": (
        lambda d: d.spoil(4, 5, 6, 7),
        forged(3),
        """
        replica: ? torn-tail 4 x4 in 4 [128+240]
        loss replica: cut-torn-tail 4.seg 4..4 [128+240] loses; rebuild-index 4.idx; accept-loss ledger 4..7 loses; =
          cut 4.seg to 128; = make 4.idx of 128; = make ledger; ? segment-gap 4 x4 in 8
        """,
    ),
    "the first ones of two segments": (
        lambda d: d.spoil(4, 8),
        lambda d: None,
        """
        replica, loss replica: restore-record 4.seg 4..4 [128+60]; restore-record 8.seg 8..8 [128+60]; = write 4.seg
          [128+60]; = write 8.seg [128+60]
        """,
    ),
    "the whole last segment, and another one in front": (
        lambda d: d.spoil(8, 9, 10, 11),
        forged(7),
        """
        replica: ? torn-tail 8 x4 in 8 [128+240]
        loss replica: cut-torn-tail 8.seg 8..8 [128+240] loses; lower-local-low-water-mark control [132+36] loses;
          rebuild-index 8.idx; accept-loss ledger 8..9 loses; = write control [132+36]; = cut 8.seg to 128; = make
          8.idx of 128; = make ledger
        """,
    ),
    "an empty last segment, and another one in front": (
        lambda d: (d.cut(8, 128), d.list(8, 0)),
        forged(7),
        """
        replica: ? acknowledged-missing 8 x2 in 8
        loss replica: lower-local-low-water-mark control [132+36] loses; accept-loss ledger 8..9 loses; = write
          control [132+36]; = make ledger
        """,
    ),
    "the last one, and another one in front": (
        lambda d: d.spoil(11),
        forged(10),
        """
        replica, loss replica: cut-torn-tail 8.seg 11..11 [308+60]; rebuild-index 8.idx; = cut 8.seg to 308; = make
          8.idx of 152
        """,
    ),
    "the last two with an index": (
        lambda d: (d.mark(11), d.spoil(10, 11)),
        lambda d: None,
        """
        replica, loss replica: restore-record 8.seg 10..11 [248+120]; = write 8.seg [248+120]
        """,
    ),
    "a torn last one": (
        lambda d: (d.mark(11), d.cut(8, at(11) + 30)),
        lambda d: None,
        """
        replica, loss replica: restore-record 8.seg 11..11 [308+60]; = write 8.seg [308+60]
        """,
    ),
    "a torn last one behind wrong ids": (
        lambda d: (d.put(8, [8, 20, 21, 22]), d.cut(8, at(11) + 59)),
        lambda d: None,
        """
        replica, loss replica: restore-record 8.seg 9..10 [188+120]; rebuild-index 8.idx; = write 8.seg [188+120]; =
          cut 8.seg to 308; = make 8.idx of 152
        """,
    ),
    "a torn last one behind wrong ids, and another one there": (
        lambda d: (d.put(8, [8, 20, 21, 22]), d.cut(8, at(11) + 59)),
        forged(11),
        """
        replica, loss replica: restore-record 8.seg 9..10 [188+120]; rebuild-index 8.idx; = write 8.seg [188+120]; =
          cut 8.seg to 308; = make 8.idx of 152
        """,
    ),
    "a repeat of a record of another segment": (
        lambda d: d.put(4, [4, 5, 1, 6, 7], of=[4, 5, 1, 6, 7]),
        lambda d: None,
        """
        replica, loss replica: remove-bytes 4.seg [248+60] loses; rebuild-index 4.idx; = make 4.seg of 368; = make
          4.idx of 160
        """,
    ),
    "a rival of a record of another segment": (
        lambda d: d.put(4, [4, 5, 1, 6, 7], of=[4, 5, 2, 6, 7]),
        lambda d: None,
        """
        replica, loss replica: remove-bytes 4.seg [248+60] loses; rebuild-index 4.idx; = make 4.seg of 368; = make
          4.idx of 160
        """,
    ),
    "a rival of a record of another segment, which is wrong": (
        lambda d: (d.put(4, [4, 5, 1, 6, 7], of=[4, 5, 1, 6, 7]), d.put(0, range(4), other=[1])),
        lambda d: None,
        """
        replica, loss replica: restore-record 0.seg 1..1 [188+60] loses; remove-bytes 4.seg [248+60] loses;
          rebuild-index 4.idx; = write 0.seg [188+60]; = make 4.seg of 368; = make 4.idx of 160
        """,
    ),
    "two rivals in a row": (
        lambda d: d.put(4, [4, 5, 5, 4, 6, 7], of=[4, 5, 6, 6, 6, 7]),
        lambda d: None,
        """
        replica, loss replica: remove-bytes 4.seg [248+120] loses; rebuild-index 4.idx; = make 4.seg of 368; = make
          4.idx of 160
        """,
    ),
    "two rivals in a row, of which one is not there": (
        lambda d: d.put(4, [4, 5, 5, 4, 6, 7], of=[4, 5, 6, 6, 6, 7]),
        lambda d: d.spoil(4),
        """
        replica: rebuild-index 4.idx; = make 4.idx of 160; ? record-order 6 x0 in 4 [248+120]
        loss replica: remove-bytes 4.seg [248+120] loses; rebuild-index 4.idx; accept-loss ledger 4..4 loses;
          accept-loss ledger 5..5 loses; = make 4.seg of 368; = make 4.idx of 160; = make ledger
        """,
    ),
    "a rival under an id that nothing bears": (
        lambda d: d.put(4, [4, 5, 30, 6, 7], of=[4, 5, 6, 6, 7]),
        lambda d: None,
        """
        replica: rebuild-index 4.idx; = make 4.idx of 160; ? record-order 6 x0 in 4 [248+60]
        loss replica: remove-bytes 4.seg [248+60] loses; rebuild-index 4.idx; = make 4.seg of 368; = make 4.idx of 160
        """,
    ),
    "a wrong id in the middle, and another record under it": (
        lambda d: d.put(4, [4, 55, 6, 7], other=[55]),
        lambda d: None,
        """
        replica, loss replica: restore-record 4.seg 5..5 [188+60] loses; = write 4.seg [188+60]
        """,
    ),
    "a wrong id at the end, and another record under it": (
        lambda d: d.put(8, [8, 9, 10, 55], other=[55]),
        lambda d: None,
        """
        replica, loss replica: restore-record 8.seg 11..11 [308+60] loses; = write 8.seg [308+60]
        """,
    ),
    "a wrong id at the mark, and another record under it": (
        lambda d: (d.mark(11), d.put(8, [8, 9, 10, 55], other=[55])),
        lambda d: None,
        """
        replica, loss replica: restore-record 8.seg 11..11 [308+60] loses; = write 8.seg [308+60]
        """,
    ),
    "the last but one is missing, and another one behind it there": (
        lambda d: (d.mark(11), d.put(8, [8, 9, 11], of=[8, 9, 11])),
        forged(11),
        """
        replica, loss replica: restore-record 8.seg 10..11 [248+120] loses; rebuild-index 8.idx; = write 8.seg
          [248+120]; = make 8.idx of 160
        """,
    ),
    "two are missing in front of a segment's last, and another one there": (
        lambda d: d.put(4, [4, 7], of=[4, 7]),
        forged(7),
        """
        replica, loss replica: restore-record 4.seg 5..7 [188+180] loses; rebuild-index 4.idx; = write 4.seg
          [188+180]; = make 4.idx of 160
        """,
    ),
    "one is missing in the middle, and another one behind it there": (
        lambda d: d.put(4, [4, 6, 7], of=[4, 6, 7]),
        forged(6),
        """
        replica, loss replica: restore-record 4.seg 5..7 [188+180] loses; rebuild-index 4.idx; = write 4.seg
          [188+180]; = make 4.idx of 160
        """,
    ),
    "wrong ids up to the end, and others here": (
        lambda d: d.put(8, [8, 20, 21, 22], other=[22]),
        lambda d: None,
        """
        replica, loss replica: restore-record 8.seg 9..11 [188+180] loses; = write 8.seg [188+180]
        """,
    ),
    "wrong ids up to the mark, one of them damaged": (
        lambda d: (d.mark(11), d.put(8, [8, 30, 55, 31]), d.spoil(10)),
        lambda d: None,
        """
        replica, loss replica: restore-record 8.seg 9..11 [188+180]; = write 8.seg [188+180]
        """,
    ),
    "wrong ids up to the mark, one damaged and another record behind it": (
        lambda d: (d.mark(11), d.put(8, [8, 30, 55, 31], other=[31]), d.spoil(10)),
        lambda d: None,
        """
        replica, loss replica: restore-record 8.seg 9..11 [188+180] loses; = write 8.seg [188+180]
        """,
    ),
    "repeats up to the mark": (
        lambda d: (d.mark(11), d.put(8, [8, 9, 5, 6], of=[8, 9, 5, 6])),
        lambda d: None,
        """
        replica, loss replica: restore-record 8.seg 10..11 [248+120]; = write 8.seg [248+120]
        """,
    ),
    "repeats up to the mark, of which one is another record": (
        lambda d: (d.mark(11), d.put(8, [8, 9, 5, 6], of=[8, 9, 5, 6], other=[6])),
        lambda d: None,
        """
        replica, loss replica: restore-record 8.seg 10..11 [248+120] loses; = write 8.seg [248+120]
        """,
    ),
}


@pytest.mark.turns(10)
@pytest.mark.parametrize("name", CASES)
def test_what_is_planned_from_a_replica(tmp_path: Path, name: str) -> None:
    """Without leave to lose, and with it."""
    damage, replica, expected = CASES[name]
    wanted = ways(expected)
    assert {way: planned(tmp_path / way, damage, way, replica=replica) for way in wanted} == wanted
