"""What recovery plans where several things are wrong at once, or a comparison of all replicas says more: each plan as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.repair.twelve import Damage, Twelve, at, planned, ways
from waltzctl.engine.repair.arguments import Agreed
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.formats.control import Layout


def sound(d: Twelve) -> None:
    """Nothing is wrong with it."""


CASES: dict[str, tuple[Damage, Damage, Agreed | None, str]] = {
    "accepted beyond the end, a part of it here": (
        lambda d: d.accepted((10, 13, 11)),
        sound,
        None,
        """
        loss replica, unasked: ? loss-accepted 12 x2 in None
        """,
    ),
    "a wrong id behind another record, and one far too large at the end": (
        lambda d: d.put(8, [8, 10, 10, 111], of=[8, 9, 10, 11], other=[8]),
        sound,
        None,
        """
        replica: restore-record 8.seg 11..11 [308+60]; = write 8.seg [308+60]; ? record-order 9 x1 in 8 [188+60]
        unasked: ? record-order 11 in 8 [308+60]; ? record-order 9 x1 in 8 [188+60]
        loss: split-segment 8.seg 11..110 [308+0] loses; split-segment 8.seg 9..9 [188+60] loses; rebuild-index
          8.idx; rebuild-index 10.idx; rebuild-index 111.idx; accept-loss ledger 9..9 loses; accept-loss ledger
          11..110 loses; = cut 8.seg to 188; = make 8.idx of 136; = make 10.seg of 188; = make 10.idx of 136; = make
          111.seg of 188; = make 111.idx of 136; = make ledger
        """,
    ),
    "an id too many at the end": (
        lambda d: d.put(8, [8, 9, 10, 11, 13], of=[8, 9, 10, 11, 11]),
        sound,
        None,
        """
        unasked, replica: ? record-order 12 in 8 [368+60]
        loss, loss replica: split-segment 8.seg 12..12 [368+0] loses; rebuild-index 8.idx; rebuild-index 13.idx;
          accept-loss ledger 12..12 loses; = cut 8.seg to 368; = make 8.idx of 160; = make 13.seg of 188; = make
          13.idx of 136; = make ledger
        """,
    ),
    "an id left out, up to the one of the next segment": (
        lambda d: d.put(0, [0, 1, 3, 4], other=[3], of=[0, 1, 3, 4], index=False),
        sound,
        None,
        """
        unasked: ? record-order 2 in 0 [248+120]; ? segment-gap 2 x2 in 4
        loss: split-segment 0.seg 2..2 [248+0] loses; rebuild-index 0.idx; rebuild-index 3.idx; accept-loss ledger
          2..2 loses; = cut 0.seg to 248; = make 0.idx of 144; = make 3.seg of 248; = make 3.idx of 144; = make
          ledger; ? segment-overlap 4 in 4
        replica: restore-record 0.seg 2..3 [248+120] loses; rebuild-index 0.idx; = write 0.seg [248+120]; = make
          0.idx of 160
        """,
    ),
    "a jump at the end, where the next segment goes": (
        lambda d: d.put(0, [0, 1, 2, 5]),
        sound,
        Agreed(0, 2, 3, ((1, 1),)),
        """
        loss replica: cut-segment 4.seg 4..7 [128+240] loses; restore-record 0.seg 3..3 [308+60]; restore-record
          4.seg 4..7 [128+240]; restore-segment 8.seg 8..9 [128+120]; restore-record 0.seg 1..1 [188+60] loses;
          rebuild-index 8.idx; = write 0.seg [188+60]; = write 0.seg [308+60]; = write 4.seg [128+240]; = write
          8.seg [0+248]; = cut 8.seg to 248; = make 8.idx of 144
        """,
    ),
    "other records under ids out of order, of which the last repeats one": (
        lambda d: d.put(8, [8, 10, 9, 9], other=[9, 10]),
        sound,
        None,
        """
        unasked, replica: ? record-order 10 in 8 [308+60]; ? record-order 9 x0 in 8 [188+60]
        loss: cut-torn-tail 8.seg 10..10 [308+60] loses; remove-bytes 8.seg [188+60] loses; rebuild-index 8.idx;
          accept-loss ledger 10..11 loses; accept-loss ledger 9..9 loses; = make 8.seg of 248; = make 8.idx of 144;
          = make ledger
        """,
    ),
    "two that do not belong there, and one that is missing": (
        lambda d: (d.put(8, [8, 10, 5, 9, 11], of=[8, 9, 11, 10, 11], other=[8, 11], index=False), d.spoil(6, 7)),
        sound,
        None,
        """
        replica: rebuild-index 8.idx; = make 8.idx of 160; ? torn-tail 6 x2 in 4 [248+120]; ? record-order 10 x1 in
          8 [368+0]; ? record-order 9 x0 in 8 [188+120]
        """,
    ),
    "a place with another id in front of an overlap": (
        lambda d: (
            d.put(9, [9, 10, 11, 11], of=[9, 10, 11, 11]),
            d.cut(4, 200),
            d.put(4, [4, 6, 1, 5, 7], of=[4, 5, 6, 6, 7], other=[1], index=False),
        ),
        sound,
        None,
        """
        loss replica: cut-segment 8.seg 9..11 [188+180]; cut-torn-tail 9.seg 12..12 [308+60] loses; split-segment
          4.seg 6..6 [368+0] loses; remove-bytes 4.seg [188+120] loses; rebuild-index 4.idx; rebuild-index 7.idx;
          rebuild-index 8.idx; rebuild-index 9.idx; accept-loss ledger 6..6 loses; accept-loss ledger 1..1 loses; =
          make 4.seg of 248; = make 4.idx of 144; = make 7.seg of 188; = make 7.idx of 136; = cut 8.seg to 188; =
          make 8.idx of 136; = cut 9.seg to 308; = make 9.idx of 152; = make ledger
        replica: cut-segment 8.seg 9..11 [188+180]; cut-torn-tail 9.seg 12..12 [308+60] loses; rebuild-index 4.idx;
          rebuild-index 8.idx; rebuild-index 9.idx; = make 4.idx of 160; = cut 8.seg to 188; = make 8.idx of 136; =
          cut 9.seg to 308; = make 9.idx of 152; ? record-order 6 x1 in 4 [368+0]; ? record-order 5 x0 in 4
          [188+120]
        """,
    ),
    "a segment in the place of a split": (
        lambda d: (d.put(3, []), d.spoil(2)),
        sound,
        None,
        """
        unasked, loss: remove-segment 3.seg 3..3 [0+128]; remove-index 3.idx 3..3 [0+128]; = remove 3.seg; = remove 3.idx; ?
          record-checksum 2 x1 in 0 [248+60]
        replica: remove-segment 3.seg 3..3 [0+128]; remove-index 3.idx 3..3 [0+128]; restore-record 0.seg 2..2 [248+60]; =
          remove 3.seg; = remove 3.idx; = write 0.seg [248+60]
        """,
    ),
    "another segment in the place of a split": (
        lambda d: (d.put(6, [6, 7], other=[6]), d.spoil(5)),
        sound,
        None,
        """
        unasked, loss: ? segment-overlap 6 in 6; ? record-checksum 5 x1 in 4 [188+60]
        replica: restore-record 4.seg 5..5 [188+60]; = write 4.seg [188+60]; ? segment-overlap 6 in 6
        """,
    ),
    "a cut behind a transaction, and all up to one in front of it": (
        lambda d: d.list(0, 4),
        sound,
        Agreed(0, 8, 9, (), True),
        """
        replica, unasked: cut-segment 8.seg 10..11 [248+120] loses; rebuild-index 8.idx; = cut 8.seg to 248; = make
          8.idx of 144
        """,
    ),
    "an end with wrong ids behind what is kept": (
        lambda d: d.put(8, [8, 10, 9]),
        sound,
        Agreed(0, 5, None, ()),
        """
        replica: restore-record 8.seg 9..9 [188+60] loses; rebuild-index 8.idx; = write 8.seg [188+60]; = cut 8.seg
          to 248; = make 8.idx of 144
        unasked: rebuild-index 8.idx; = make 8.idx of 144; ? record-order 9 x0 in 8 [188+60]
        loss: remove-bytes 8.seg [188+60] loses; rebuild-index 8.idx; = make 8.seg of 248; = make 8.idx of 144
        """,
    ),
    "all is kept, and comes back in one": (
        lambda d: d.mark(9),
        sound,
        Agreed(0, 12, 1, (), True),
        """
        loss replica: cut-segment 0.seg 2..3 [248+120] loses; restore-record 0.seg 2..3 [248+120]; restore-segment
          4.seg 4..7 [128+240]; restore-segment 8.seg 8..11 [128+240]; = write 0.seg [248+120]; = write 4.seg
          [0+368]; = write 8.seg [0+368]
        """,
    ),
    "all is to come back, and the replica has a part": (
        lambda d: d.mark(3),
        lambda d: d.cut(8, 248),
        Agreed(0, 11, 3, (), True),
        """
        unasked, replica: cut-segment 4.seg 4..7 [128+240] loses; rebuild-index 4.idx; remove-segment 8.seg 8..11
          [0+368] loses; remove-index 8.idx 8..11 [0+160]; = cut 4.seg to 128; = make 4.idx of 128; = remove 8.seg; =
          remove 8.idx; ? durable-missing 4 x4 in 4
        loss: cut-segment 4.seg 4..7 [128+240] loses; rebuild-index 4.idx; remove-segment 8.seg 8..11 [0+368] loses;
          remove-index 8.idx 8..11 [0+160]; accept-loss ledger 4..7 loses; = cut 4.seg to 128; = make 4.idx of 128; =
          remove 8.seg; = remove 8.idx; = make ledger
        loss replica: cut-segment 4.seg 4..7 [128+240] loses; restore-record 4.seg 4..7 [128+240]; restore-segment
          8.seg 8..9 [128+120]; rebuild-index 8.idx; = write 4.seg [128+240]; = write 8.seg [0+248]; = cut 8.seg to
          248; = make 8.idx of 144
        """,
    ),
    "all is to come back, and nothing else tells of the end": (
        lambda d: d.put(8, [8, 9]),
        lambda d: d.drop(8),
        Agreed(0, 11, None, (), True),
        """
        unasked, loss, replica:
        """,
    ),
    "the end is kept as it is here": (
        lambda d: d.put(8, [8, 9]),
        sound,
        Agreed(0, 9, None, (), True),
        """
        unasked, loss:
        """,
    ),
    "ids that are two too low from the first on": (
        lambda d: d.put(8, [6, 7, 8], of=[8, 9, 10], other=[6]),
        sound,
        None,
        """
        unasked, loss: ? record-order 8 in 8 [128+180]; ? acknowledged-missing 8 x2 in 8
        replica: restore-record 8.seg 8..10 [128+180] loses; = write 8.seg [128+180]
        """,
    ),
    "two written twice at the end": (
        lambda d: d.put(8, [8, 9, 8, 9, 10, 11], of=[8, 9, 10, 11, 11, 11]),
        sound,
        None,
        """
        unasked, loss, replica: ? record-order 10 in 8 [248+240]
        """,
    ),
    "one twice at the end, without an index": (
        lambda d: d.put(8, [8, 9, 8], of=[8, 9, 10], other=[8], index=False),
        sound,
        None,
        """
        unasked: ? record-order 10 in 8 [248+60]
        loss: cut-torn-tail 8.seg 10..10 [248+60] loses; rebuild-index 8.idx; accept-loss ledger 10..10 loses;
          accept-loss ledger 8..8 loses; = cut 8.seg to 248; = make 8.idx of 144; = make ledger
        replica: restore-record 8.seg 10..10 [248+60] loses; rebuild-index 8.idx; = write 8.seg [248+60]; = make
          8.idx of 152
        """,
    ),
    "ids that go on from a lower one behind a damaged record": (
        lambda d: (d.put(8, [8, 9, 10, 10, 11], of=[8, 9, 10, 11, 11]), d.spoil(8)),
        sound,
        None,
        """
        unasked: ? record-order 11 in 8 [308+120]; ? record-checksum 8 x1 in 8 [128+60]
        replica: remove-bytes 8.seg [308+60] loses; restore-record 8.seg 8..8 [128+60]; rebuild-index 8.idx; =
          make 8.seg of 368; = make 8.idx of 160
        """,
    ),
    "nothing in front of ids that are one too large": (
        lambda d: (d.drop(0), d.put(0, [1, 2, 3], of=[0, 1, 2], index=False)),
        sound,
        None,
        """
        unasked: rebuild-index 0.idx; = make 0.idx of 160; ? record-order 0 x1 in 0 [128+0]
        replica: restore-record 0.seg 0..3 [128+240]; rebuild-index 0.idx; = write 0.seg [128+240]; = make 0.idx of 160
        """,
    ),
    "one twice up to the next segment's first": (
        lambda d: d.put(0, [0, 1, 2, 3, 4, 4], of=[0, 1, 2, 3, 4, 4], index=False),
        sound,
        None,
        """
        unasked, loss: cut-torn-tail 0.seg 5..5 [428+60]; rebuild-index 0.idx; = cut 0.seg to 428; = make 0.idx of 168;
          ? segment-overlap 4 in 4
        replica: cut-torn-tail 0.seg 5..5 [428+60] loses; rebuild-index 0.idx; = cut 0.seg to 428; = make 0.idx of 168;
          ? segment-overlap 4 in 4
        """,
    ),
    "two overlaps, and a torn end": (
        lambda d: (d.seg(8).write_bytes(d.seg(8).read_bytes() + bytes(30)), d.put(7, [7, 8])),
        sound,
        None,
        """
        unasked, loss: cut-segment 4.seg 7..7 [308+60]; cut-segment 7.seg 8..8 [188+60]; cut-torn-tail 8.seg 12..12
          [368+30]; rebuild-index 4.idx; rebuild-index 7.idx; = cut 4.seg to 308; = make 4.idx of 152; = cut 7.seg
          to 188; = make 7.idx of 136; = cut 8.seg to 368
        """,
    ),
    "a torn end that others overlap": (
        lambda d: (d.spoil(7), d.put(6, [6])),
        sound,
        None,
        """
        unasked, loss: cut-segment 4.seg 6..6 [248+120]; rebuild-index 4.idx; = cut 4.seg to 248; = make 4.idx of
          144; ? segment-gap 7 x1 in 8
        replica: cut-segment 4.seg 6..6 [248+120]; restore-record 6.seg 7..7 [188+60]; rebuild-index 4.idx;
          rebuild-index 6.idx; = cut 4.seg to 248; = make 4.idx of 144; = write 6.seg [188+60]; = make 6.idx of 144
        """,
    ),
    "a torn end that others overlap and go on from": (
        lambda d: (d.spoil(6, 7), d.put(5, [5, 6, 7, 8], other=[5, 6, 7, 8])),
        sound,
        None,
        """
        unasked, replica: cut-segment 5.seg 8..8 [308+60]; rebuild-index 5.idx; = cut 5.seg to 308; = make 5.idx of
          152; ? segment-overlap 5 in 5
        loss: cut-segment 4.seg 5..5 [188+180] loses; cut-segment 5.seg 8..8 [308+60]; rebuild-index 4.idx;
          rebuild-index 5.idx; accept-loss ledger 5..5 loses; = cut 4.seg to 188; = make 4.idx of 136; = cut 5.seg
          to 308; = make 5.idx of 152; = make ledger
        """,
    ),
    "disputed, and a wrong id in its place": (
        lambda d: (d.accepted((10, 10, 10), disputed=True), d.put(8, [8, 10, 9, 11])),
        sound,
        None,
        """
        unasked: ? record-order 9 x2 in 8 [188+120]; ? loss-accepted 10 x1 in None
        loss: split-segment 8.seg 9..10 [188+120] loses; rebuild-index 8.idx; rebuild-index 11.idx; accept-loss
          ledger 9..9 loses; = cut 8.seg to 188; = make 8.idx of 136; = make 11.seg of 188; = make 11.idx of 136; =
          make ledger; ? loss-accepted 10 x1 in None
        replica: restore-record 8.seg 9..10 [188+120]; settle-accepted-loss ledger 10..10; = write 8.seg [188+120];
          = remove ledger
        """,
    ),
    "larger ids that fall at the end": (
        lambda d: d.put(8, [8, 12, 11], of=[8, 9, 11]),
        sound,
        None,
        """
        unasked: ? record-order 9 in 8 [188+120]; ? acknowledged-missing 9 x1 in 8
        loss: cut-torn-tail 8.seg 13..13 [248+60] loses; split-segment 8.seg 9..11 [188+0] loses; rebuild-index
          8.idx; rebuild-index 12.idx; accept-loss ledger 9..11 loses; accept-loss ledger 13..13 loses; = cut 8.seg
          to 188; = make 8.idx of 136; = make 12.seg of 188; = make 12.idx of 136; = make ledger
        replica: restore-record 8.seg 9..10 [188+120] loses; = write 8.seg [188+120]
        """,
    ),
    "a repeat at the end of what is outvoted": (
        lambda d: (d.put(6, [6, 7, 8]), d.put(0, [0, 1, 2, 0], of=[0, 1, 2, 3])),
        sound,
        Agreed(0, 4, None, ((1, 3),)),
        """
        loss: cut-torn-tail 0.seg 3..3 [308+60] loses; cut-segment 4.seg 6..7 [248+120]; cut-segment 6.seg 8..8
          [248+60]; rebuild-index 0.idx; rebuild-index 4.idx; rebuild-index 6.idx; accept-loss ledger 3..3 loses;
          accept-loss ledger 0..0 loses; = cut 0.seg to 308; = make 0.idx of 152; = cut 4.seg to 248; = make 4.idx
          of 144; = cut 6.seg to 248; = make 6.idx of 144; = make ledger; ? segment-gap 3 x1 in 4; ? replica-differs
          1 in 0 [188+180]
        replica: restore-record 0.seg 3..3 [308+60]; cut-segment 4.seg 6..7 [248+120]; cut-segment 6.seg 8..8
          [248+60]; rebuild-index 4.idx; rebuild-index 6.idx; = write 0.seg [308+60]; = cut 4.seg to 248; = make
          4.idx of 144; = cut 6.seg to 248; = make 6.idx of 144; ? replica-differs 1 in None
        """,
    ),
    "one that does not belong there, and one that is outvoted behind a repeat": (
        lambda d: (d.put(8, [8, 0, 9, 9, 10], of=[8, 6, 9, 10, 11], other=[0], index=False), d.cut(4, 188), d.mark(8)),
        sound,
        Agreed(0, 11, None, ((10, 10),)),
        """
        loss: split-segment 8.seg 10..10 [308+120] loses; remove-bytes 8.seg [188+60] loses; rebuild-index 8.idx;
          rebuild-index 11.idx; accept-loss ledger 10..10 loses; accept-loss ledger 0..0 loses; = make 8.seg of 248;
          = make 8.idx of 144; = make 11.seg of 128; = make 11.idx of 128; = make ledger; ? segment-gap 5 x3 in 8
        replica: restore-record 4.seg 5..7 [188+180]; restore-record 8.seg 10..10 [308+120] loses; remove-bytes
          8.seg [188+60] loses; rebuild-index 8.idx; = write 4.seg [188+180]; = make 8.seg of 308; = make 8.idx of
          152
        """,
    ),
    "the index has the record behind a loss inside it": (
        lambda d: (d.spoil(4, 5), d.point(4, 6, at(5) + 1)),
        sound,
        None,
        """
        unasked, loss: ? record-checksum 4 x2 in 4 [128+120]
        replica: restore-record 4.seg 4..5 [128+120]; rebuild-index 4.idx; = write 4.seg [128+120]; = make 4.idx of
          160
        """,
    ),
    "the index has a record inside a loss, and the replica another one": (
        lambda d: (d.spoil(4, 5), d.point(4, 6, at(5) + 1), d.spoil(7)),
        lambda d: d.put(4, range(4, 8), other=[6]),
        None,
        """
        replica, loss replica: restore-record 4.seg 4..7 [128+240]; rebuild-index 4.idx; = write 4.seg [128+240]; =
          make 4.idx of 160
        """,
    ),
    "the index has a record inside a loss, and the replica the same one": (
        lambda d: (d.spoil(4, 5), d.point(4, 6, at(5) + 1), d.spoil(7)),
        sound,
        None,
        """
        replica, loss replica: restore-record 4.seg 7..7 [308+60]; restore-record 4.seg 4..5 [128+120]; rebuild-index
          4.idx; = write 4.seg [128+120]; = write 4.seg [308+60]; = make 4.idx of 160
        """,
    ),
    "the index has two records inside losses, and the replica other ones": (
        lambda d: (d.spoil(4), d.point(4, 5, at(4) + 1), d.spoil(6), d.point(4, 7, at(6) + 1)),
        lambda d: d.put(4, range(4, 8), other=[5, 7]),
        None,
        """
        unasked, loss: ? record-checksum 6 x1 in 4 [248+60]; ? record-checksum 4 x1 in 4 [128+60]
        replica, loss replica: ? record-checksum 4 x3 in 4 [128+180]
        """,
    ),
    "the index has a record inside the second loss of two": (
        lambda d: (d.spoil(4, 6), d.point(4, 7, at(6) + 1)),
        sound,
        None,
        """
        unasked: ? record-checksum 6 x1 in 4 [248+60]; ? record-checksum 4 x1 in 4 [128+60]
        """,
    ),
    "the index has a record inside a loss, and the replica none": (
        lambda d: (d.spoil(4, 5), d.point(4, 6, at(5) + 1), d.spoil(7)),
        lambda d: d.drop(4),
        None,
        """
        unasked, replica: ? torn-tail 7 x1 in 4 [308+60]; ? record-checksum 4 x2 in 4 [128+120]
        loss, loss replica: cut-torn-tail 4.seg 7..7 [308+60] loses; accept-loss ledger 7..7 loses; = cut 4.seg to
          308; = make ledger; ? segment-gap 7 x1 in 8; ? record-checksum 4 x2 in 4 [128+120]
        """,
    ),
    "data that is not what its checksum says": (
        lambda d: d.garble(5),
        sound,
        None,
        """
        unasked, loss: ? data-checksum 5 in 4 [188+60]
        replica: restore-record 4.seg 5..5 [188+60]; = write 4.seg [188+60]
        """,
    ),
    "data that is not what its checksum says, at the end": (
        lambda d: d.garble(11),
        sound,
        None,
        """
        unasked, loss: ? data-checksum 11 in 8 [308+60]
        replica: restore-record 8.seg 11..11 [308+60]; = write 8.seg [308+60]
        """,
    ),
    "outvoted, and nobody gives others": (
        lambda d: d.mark(4),
        lambda d: d.drop(4),
        Agreed(0, 11, None, ((5, 6),)),
        """
        unasked, loss, replica: ? replica-differs 5 in 4 [188+120]
        """,
    ),
    "two disputed in one segment": (
        lambda d: d.put(8, [8, 8, 9, 9, 10, 11], of=[8, 0, 9, 1, 10, 11]),
        sound,
        None,
        """
        unasked: rebuild-index 8.idx; = make 8.idx of 160; ? record-order 10 x0 in 8 [308+60]; ? record-order 9 x0
          in 8 [188+60]
        loss: remove-bytes 8.seg [308+60] loses; remove-bytes 8.seg [188+60] loses; rebuild-index 8.idx; accept-loss
          ledger 8..8 loses; accept-loss ledger 9..9 loses; = make 8.seg of 368; = make 8.idx of 160; = make ledger
        replica: remove-bytes 8.seg [308+60] loses; remove-bytes 8.seg [188+60] loses; rebuild-index 8.idx; = make
          8.seg of 368; = make 8.idx of 160
        """,
    ),
    "no segment is left, and something is outvoted": (
        lambda d: (d.drop(4), d.drop(8), d.cut(0, 100)),
        sound,
        Agreed(0, 10, 3, ((9, 9),)),
        """
        loss: lower-local-low-water-mark control [132+36] loses; create-segment 0.seg [0+128] loses; rebuild-index
          0.idx; accept-loss ledger 0..9 loses; = write control [132+36]; = write 0.seg [0+128]; = make 0.idx of
          128; = make ledger
        loss replica: restore-segment 0.seg 0..3 [128+240]; restore-segment 4.seg 4..7 [128+240]; restore-segment
          8.seg 8..9 [128+120]; rebuild-index 4.idx; rebuild-index 8.idx; = write 0.seg [0+368]; = make 4.seg of
          368; = make 4.idx of 160; = make 8.seg of 248; = make 8.idx of 144
        """,
    ),
    "a cut in a segment that is not the partition's": (
        lambda d: d.strange(8),
        sound,
        Agreed(0, 9, 9),
        """
        unasked, loss: ? segment-key in 8 [12+16]; ? replica-differs 10 in 8
        """,
    ),
    "another run in the middle that reaches less far, and the end is missing": (
        lambda d: (d.put(4, range(4, 10), other=[8]), d.put(8, [8], of=[0]), d.mark(11)),
        sound,
        None,
        """
        loss replica: remove-segment 8.seg 8..8 [0+188] loses; remove-index 8.idx 8..8 [0+136]; restore-record 4.seg
          10..11 [488+120]; rebuild-index 4.idx; accept-loss ledger 8..8 loses; = remove 8.seg; = remove 8.idx; =
          write 4.seg [488+120]; = make 4.idx of 192; = make ledger
        """,
    ),
    "no struct and nothing left": (
        lambda d: (d.forget_marks(), d.drop(0), d.drop(4), d.drop(8)),
        sound,
        None,
        """
        unasked, replica: ? control-pair-checksum in None [132+72]
        loss: reset-control-pair control [128+76] loses; = write control [128+76]
        """,
    ),
    "no struct and nothing left, with flags": (
        lambda d: (d.forget_marks(), d.drop(0), d.drop(4), d.drop(8)),
        sound,
        None,
        """
        unasked: ? control-pair-checksum in None [132+56]
        loss: reset-control-pair control [128+60] loses; = write control [128+60]
        """,
    ),
    "the mark is 0 and nothing left": (
        lambda d: (d.mark(0), d.drop(0), d.drop(4), d.drop(8)),
        sound,
        None,
        """
        unasked: ? acknowledged-missing 0 x1 in None
        loss: lower-local-low-water-mark control [132+36] loses; create-segment 0.seg [0+128] loses; rebuild-index
          0.idx; accept-loss ledger 0..0 loses; = write control [132+36]; = make 0.seg of 128; = make 0.idx of 128;
          = make ledger
        """,
    ),
    "the first transaction alone is left": (
        lambda d: (d.mark(0), d.put(0, [0]), d.drop(4), d.drop(8)),
        sound,
        None,
        """
        unasked, loss:
        """,
    ),
    "an index of one, and nothing else": (
        lambda d: (d.mark(-1), d.drop(0), d.drop(4), d.drop(8, index=False), d.list(8, 1)),
        sound,
        None,
        """
        unasked: ? durable-missing 0 x8 in None; ? index-orphan 8 x1 in 8
        loss: create-segment 0.seg [0+128] loses; rebuild-index 0.idx; remove-orphan-index 8.idx [0+136] loses;
          accept-loss ledger 0..8 loses; = make 0.seg of 128; = make 0.idx of 128; = remove 8.idx; = make ledger
        """,
    ),
    "a torn end above the mark, of 12 that are kept, and all is to come back": (
        lambda d: (d.cut(8, 300), d.list(8, 2)),
        lambda d: d.cut(8, 248),
        Agreed(0, 11, None, (), True),
        """
        unasked, replica: ? torn-tail 10 in 8 [248+52]
        loss: cut-torn-tail 8.seg 10..10 [248+52] loses; = cut 8.seg to 248
        """,
    ),
    "a torn end above the mark, of 12 that are kept": (
        lambda d: (d.cut(8, 300), d.list(8, 2)),
        lambda d: d.cut(8, 248),
        Agreed(0, 11, None, (), False),
        """
        unasked, loss, replica: cut-torn-tail 8.seg 10..10 [248+52]; = cut 8.seg to 248
        """,
    ),
    "a torn end above the mark, of 10 that are kept, and all is to come back": (
        lambda d: (d.cut(8, 300), d.list(8, 2)),
        lambda d: d.cut(8, 248),
        Agreed(0, 9, None, (), True),
        """
        unasked, loss, replica: cut-torn-tail 8.seg 10..10 [248+52]; = cut 8.seg to 248
        """,
    ),
    "a torn end above the mark, of 11 that are kept, and all is to come back": (
        lambda d: (d.cut(8, 300), d.list(8, 2)),
        lambda d: d.cut(8, 248),
        Agreed(0, 10, None, (), True),
        """
        unasked, replica: ? torn-tail 10 in 8 [248+52]
        loss: cut-torn-tail 8.seg 10..10 [248+52] loses; = cut 8.seg to 248
        """,
    ),
    "disputed beyond what is here": (
        lambda d: (d.accepted((9, 12, 6), disputed=True), d.drop(8)),
        sound,
        None,
        """
        unasked: ? acknowledged-missing 8 x2 in 4; ? loss-accepted 9 x4 in None
        loss: lower-local-low-water-mark control [132+36] loses; accept-loss ledger 8..8 loses; = write control
          [132+36]; = make ledger; ? loss-accepted 9 x4 in None
        replica: restore-segment 8.seg 8..9 [128+120]; rebuild-index 8.idx; = make 8.seg of 248; = make 8.idx of
          144; ? loss-accepted 10 x3 in None
        """,
    ),
    "a lost mark and a lost end": (
        lambda d: (d.forget_marks(), d.drop(8, index=False)),
        sound,
        None,
        """
        unasked: ? control-pair-checksum in None [132+72]; ? index-orphan 8 x4 in 8
        loss: reset-control-pair control [128+76] loses; remove-orphan-index 8.idx [0+160] loses; accept-loss ledger
          8..11 loses; = write control [128+76]; = remove 8.idx; = make ledger
        replica: restore-segment 8.seg 8..11 [128+240]; = make 8.seg of 368; ? control-pair-checksum in None
          [132+72]
        """,
    ),
}
WITH_FLAGS = "no struct and nothing left, with flags"
"""The case of a control file in which a partition has flags."""


@pytest.mark.turns(10)
@pytest.mark.parametrize("name", CASES)
def test_what_is_planned(tmp_path: Path, name: str) -> None:
    """Unasked, with leave to lose, and with a replica."""
    damage, replica, agreed, expected = CASES[name]
    layout = Layout.DOCUMENTED if name == WITH_FLAGS else Layout.RELEASED
    wanted = ways(expected)
    told = [agreed] if agreed else []
    assert wanted == {
        way: planned(tmp_path / way, damage, way, replica=replica, agreed=told, layout=layout) for way in wanted
    }


def test_one_replica_of_two_tells_that_a_record_is_data(tmp_path: Path) -> None:
    """The other one has nothing there."""
    here, there, without = (Twelve(tmp_path / name) for name in ("d", "r", "s"))
    here.spoil(4, 5, 7)
    here.point(4, 6, at(5) + 1)
    there.put(4, range(4, 8), other=[6])
    without.drop(4)
    steps = plan_recover(here.root, replicas=[there.root, without.root]).plan.steps
    assert [(one.action, one.from_transaction_id, one.to_transaction_id) for one in steps] == [
        ("restore-record", 4, 7),
        ("rebuild-index", None, None),
    ]


def test_a_torn_end_that_stays_is_damage_above_the_mark_as_well(tmp_path: Path) -> None:
    """One that goes would be repairable, and so `verify` calls it."""
    d = Twelve(tmp_path / "d")
    d.cut(8, 300)
    d.list(8, 2)
    (left,) = plan_recover(d.root, agreed=[Agreed(0, 11, None, (), True)]).plan.undecided
    assert (left.code.value, left.transaction_id, left.severity.value) == ("torn-tail", 10, "damage")
