"""What recovery plans for lost records, as a whole: every step, every edit and all that is left, with ids and bytes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.repair.twelve import Damage, at, planned, ways

CASES: dict[str, tuple[Damage, str]] = {
    "a record in the middle": (
        lambda d: d.spoil(5),
        """
        unasked: ? record-checksum 5 x1 in 4 [188+60]
        loss: split-segment 4.seg 5..5 [188+60] loses; rebuild-index 4.idx; rebuild-index 6.idx; accept-loss ledger
          5..5 loses; = cut 4.seg to 188; = make 4.idx of 136; = make 6.seg of 248; = make 6.idx of 144; = make ledger
        replica: restore-record 4.seg 5..5 [188+60]; = write 4.seg [188+60]
        """,
    ),
    "two in a row": (
        lambda d: d.spoil(5, 6),
        """
        unasked: ? record-checksum 5 x2 in 4 [188+120]
        loss: split-segment 4.seg 5..6 [188+120] loses; rebuild-index 4.idx; rebuild-index 7.idx; accept-loss ledger
          5..6 loses; = cut 4.seg to 188; = make 4.idx of 136; = make 7.seg of 188; = make 7.idx of 136; = make ledger
        replica: restore-record 4.seg 5..6 [188+120]; = write 4.seg [188+120]
        """,
    ),
    "two apart": (
        lambda d: d.spoil(1, 6),
        """
        unasked: ? record-checksum 1 x1 in 0 [188+60]; ? record-checksum 6 x1 in 4 [248+60]
        loss: split-segment 0.seg 1..1 [188+60] loses; split-segment 4.seg 6..6 [248+60] loses; rebuild-index 0.idx;
          rebuild-index 2.idx; rebuild-index 4.idx; rebuild-index 7.idx; accept-loss ledger 1..1 loses; accept-loss
          ledger 6..6 loses; = cut 0.seg to 188; = make 0.idx of 136; = make 2.seg of 248; = make 2.idx of 144; = cut
          4.seg to 248; = make 4.idx of 144; = make 7.seg of 188; = make 7.idx of 136; = make ledger
        replica: restore-record 0.seg 1..1 [188+60]; restore-record 4.seg 6..6 [248+60]; = write 0.seg [188+60]; =
          write 4.seg [248+60]
        """,
    ),
    "two apart in one segment": (
        lambda d: d.spoil(4, 6),
        """
        unasked: ? record-checksum 6 x1 in 4 [248+60]; ? record-checksum 4 x1 in 4 [128+60]
        loss: split-segment 4.seg 6..6 [248+60] loses; split-segment 4.seg 4..4 [128+60] loses; rebuild-index 4.idx;
          rebuild-index 5.idx; rebuild-index 7.idx; accept-loss ledger 4..4 loses; accept-loss ledger 6..6 loses; =
          cut 4.seg to 128; = make 4.idx of 128; = make 5.seg of 188; = make 5.idx of 136; = make 7.seg of 188; = make
          7.idx of 136; = make ledger
        replica: restore-record 4.seg 6..6 [248+60]; restore-record 4.seg 4..4 [128+60]; = write 4.seg [128+60]; =
          write 4.seg [248+60]
        """,
    ),
    "the first of a segment": (
        lambda d: d.spoil(4),
        """
        unasked: ? record-checksum 4 x1 in 4 [128+60]
        loss: split-segment 4.seg 4..4 [128+60] loses; rebuild-index 4.idx; rebuild-index 5.idx; accept-loss ledger
          4..4 loses; = cut 4.seg to 128; = make 4.idx of 128; = make 5.seg of 308; = make 5.idx of 152; = make ledger
        replica: restore-record 4.seg 4..4 [128+60]; = write 4.seg [128+60]
        """,
    ),
    "the last of a segment": (
        lambda d: d.spoil(3),
        """
        unasked: ? torn-tail 3 x1 in 0 [308+60]
        loss: cut-torn-tail 0.seg 3..3 [308+60] loses; rebuild-index 0.idx; accept-loss ledger 3..3 loses; = cut 0.seg
          to 308; = make 0.idx of 152; = make ledger; ? segment-gap 3 x1 in 4
        replica: restore-record 0.seg 3..3 [308+60]; = write 0.seg [308+60]
        """,
    ),
    "all of a segment": (
        lambda d: d.spoil(4, 5, 6, 7),
        """
        unasked: ? torn-tail 4 x4 in 4 [128+240]
        loss: cut-torn-tail 4.seg 4..4 [128+240] loses; rebuild-index 4.idx; accept-loss ledger 4..7 loses; = cut
          4.seg to 128; = make 4.idx of 128; = make ledger; ? segment-gap 4 x4 in 8
        replica: restore-record 4.seg 4..7 [128+240]; = write 4.seg [128+240]
        """,
    ),
    "all of the first segment": (
        lambda d: d.spoil(0, 1, 2, 3),
        """
        unasked: ? torn-tail 0 x4 in 0 [128+240]
        loss: cut-torn-tail 0.seg 0..0 [128+240] loses; rebuild-index 0.idx; accept-loss ledger 0..3 loses; = cut
          0.seg to 128; = make 0.idx of 128; = make ledger; ? segment-gap 0 x4 in 4
        replica: restore-record 0.seg 0..3 [128+240]; = write 0.seg [128+240]
        """,
    ),
    "the last of one and the first of the next": (
        lambda d: d.spoil(3, 4),
        """
        unasked: ? torn-tail 3 x1 in 0 [308+60]; ? record-checksum 4 x1 in 4 [128+60]
        loss: cut-torn-tail 0.seg 3..3 [308+60] loses; split-segment 4.seg 4..4 [128+60] loses; rebuild-index 0.idx;
          rebuild-index 4.idx; rebuild-index 5.idx; accept-loss ledger 3..3 loses; accept-loss ledger 4..4 loses; =
          cut 0.seg to 308; = make 0.idx of 152; = cut 4.seg to 128; = make 4.idx of 128; = make 5.seg of 308; = make
          5.idx of 152; = make ledger; ? segment-gap 3 x1 in 4
        replica: restore-record 0.seg 3..3 [308+60]; restore-record 4.seg 4..4 [128+60]; = write 0.seg [308+60]; =
          write 4.seg [128+60]
        """,
    ),
    "the last one": (
        lambda d: d.spoil(11),
        """
        unasked, loss: cut-torn-tail 8.seg 11..11 [308+60]; rebuild-index 8.idx; = cut 8.seg to 308; = make 8.idx of
          152
        replica: restore-record 8.seg 11..11 [308+60]; = write 8.seg [308+60]
        """,
    ),
    "the last two": (
        lambda d: d.spoil(10, 11),
        """
        unasked, loss, replica: cut-torn-tail 8.seg 10..10 [248+120]; rebuild-index 8.idx; = cut 8.seg to 248; = make
          8.idx of 144
        """,
    ),
    "those from the mark on": (
        lambda d: d.spoil(9, 10, 11),
        """
        unasked: ? torn-tail 9 x3 in 8 [188+180]
        loss: cut-torn-tail 8.seg 9..9 [188+180] loses; lower-local-low-water-mark control [132+36] loses;
          rebuild-index 8.idx; accept-loss ledger 9..9 loses; = write control [132+36]; = cut 8.seg to 188; = make
          8.idx of 136; = make ledger
        replica: restore-record 8.seg 9..9 [188+60]; rebuild-index 8.idx; = write 8.seg [188+60]; = cut 8.seg to 248;
          = make 8.idx of 144
        """,
    ),
    "the one at the mark": (
        lambda d: d.spoil(9),
        """
        unasked: ? record-checksum 9 x1 in 8 [188+60]
        loss: split-segment 8.seg 9..9 [188+60] loses; rebuild-index 8.idx; rebuild-index 10.idx; accept-loss ledger
          9..9 loses; = cut 8.seg to 188; = make 8.idx of 136; = make 10.seg of 248; = make 10.idx of 144; = make
          ledger
        replica: restore-record 8.seg 9..9 [188+60]; = write 8.seg [188+60]
        """,
    ),
    "all of the last segment": (
        lambda d: d.spoil(8, 9, 10, 11),
        """
        unasked: ? torn-tail 8 x4 in 8 [128+240]
        loss: cut-torn-tail 8.seg 8..8 [128+240] loses; lower-local-low-water-mark control [132+36] loses;
          rebuild-index 8.idx; accept-loss ledger 8..9 loses; = write control [132+36]; = cut 8.seg to 128; = make
          8.idx of 128; = make ledger
        replica: restore-record 8.seg 8..9 [128+120]; rebuild-index 8.idx; = write 8.seg [128+120]; = cut 8.seg to
          248; = make 8.idx of 144
        """,
    ),
    "a torn end": (
        lambda d: d.cut(8, at(11) + 55),
        """
        unasked, loss, replica: cut-torn-tail 8.seg 11..11 [308+55]; rebuild-index 8.idx; = cut 8.seg to 308; = make
          8.idx of 152
        """,
    ),
    "a torn end of one byte": (
        lambda d: d.cut(8, at(11) + 1),
        """
        unasked, loss, replica: cut-torn-tail 8.seg 11..11 [308+1]; rebuild-index 8.idx; = cut 8.seg to 308; = make
          8.idx of 152
        """,
    ),
    "a torn end at the mark": (
        lambda d: d.cut(8, at(9) + 55),
        """
        unasked: rebuild-index 8.idx; = make 8.idx of 144; ? torn-tail 9 x1 in 8 [188+55]
        loss: cut-torn-tail 8.seg 9..9 [188+55] loses; lower-local-low-water-mark control [132+36] loses;
          rebuild-index 8.idx; accept-loss ledger 9..9 loses; = write control [132+36]; = cut 8.seg to 188; = make
          8.idx of 136; = make ledger
        replica: restore-record 8.seg 9..9 [188+60]; rebuild-index 8.idx; = write 8.seg [188+60]; = make 8.idx of 144
        """,
    ),
    "a torn end that the index does not list": (
        lambda d: (d.cut(8, at(11) + 55), d.list(8, 3)),
        """
        unasked, loss, replica: cut-torn-tail 8.seg 11..11 [308+55]; = cut 8.seg to 308
        """,
    ),
    "a torn end in front of a segment": (
        lambda d: d.cut(4, at(7) + 55),
        """
        unasked: ? torn-tail 7 x1 in 4 [308+55]
        loss: cut-torn-tail 4.seg 7..7 [308+55] loses; rebuild-index 4.idx; accept-loss ledger 7..7 loses; = cut 4.seg
          to 308; = make 4.idx of 152; = make ledger; ? segment-gap 7 x1 in 8
        replica: restore-record 4.seg 7..7 [308+60]; = write 4.seg [308+60]
        """,
    ),
    "an end without a trace above the mark": (
        lambda d: d.cut(8, at(10)),
        """
        unasked, loss, replica: rebuild-index 8.idx; = make 8.idx of 144
        """,
    ),
    "an end without a trace below the mark": (
        lambda d: d.cut(8, at(9)),
        """
        unasked: rebuild-index 8.idx; = make 8.idx of 136; ? acknowledged-missing 9 x1 in 8
        loss: lower-local-low-water-mark control [132+36] loses; rebuild-index 8.idx; accept-loss ledger 9..9 loses; =
          write control [132+36]; = make 8.idx of 136; = make ledger
        replica: restore-record 8.seg 9..9 [188+60]; rebuild-index 8.idx; = write 8.seg [188+60]; = make 8.idx of 144
        """,
    ),
    "records behind one that is missing in front of a segment": (
        lambda d: d.cut(4, at(6)),
        """
        unasked, loss: ? segment-gap 6 x2 in 8
        replica: restore-record 4.seg 6..7 [248+120]; = write 4.seg [248+120]
        """,
    ),
    "an inner segment": (
        lambda d: d.drop(4),
        """
        unasked, loss: ? segment-gap 4 x4 in 8
        replica: restore-segment 4.seg 4..7 [128+240]; rebuild-index 4.idx; = make 4.seg of 368; = make 4.idx of 160
        """,
    ),
    "an inner data file": (
        lambda d: d.drop(4, index=False),
        """
        unasked: ? segment-gap 4 x4 in 8; ? index-orphan 4 x4 in 4
        loss: remove-orphan-index 4.idx [0+160] loses; accept-loss ledger 4..7 loses; = remove 4.idx; = make ledger;
          ? segment-gap 4 x4 in 8
        replica: restore-segment 4.seg 4..7 [128+240]; = make 4.seg of 368
        """,
    ),
    "the last segment": (
        lambda d: d.drop(8),
        """
        unasked: ? acknowledged-missing 8 x2 in 4
        loss: lower-local-low-water-mark control [132+36] loses; accept-loss ledger 8..9 loses; = write control
          [132+36]; = make ledger
        replica: restore-segment 8.seg 8..9 [128+120]; rebuild-index 8.idx; = make 8.seg of 248; = make 8.idx of 144
        """,
    ),
    "the last data file": (
        lambda d: d.drop(8, index=False),
        """
        unasked: ? acknowledged-missing 8 x2 in 4; ? index-orphan 8 x4 in 8
        loss: lower-local-low-water-mark control [132+36] loses; remove-orphan-index 8.idx [0+160] loses; accept-loss
          ledger 8..11 loses; = write control [132+36]; = remove 8.idx; = make ledger
        replica: restore-segment 8.seg 8..11 [128+240]; = make 8.seg of 368
        """,
    ),
    "the first segment": (
        lambda d: d.drop(0),
        """
        unasked, loss: ? segment-gap 0 x4 in 4
        replica: restore-segment 0.seg 0..3 [128+240]; rebuild-index 0.idx; = make 0.seg of 368; = make 0.idx of 160
        """,
    ),
    "an inner header": (
        lambda d: d.cut(4, 127),
        """
        unasked: ? segment-gap 4 x4 in 8; ? segment-header-short in 4 [0+127]
        loss: remove-empty-segment 4.seg [0+127] loses; remove-orphan-index 4.idx [0+160] loses; accept-loss ledger
          4..7 loses; = remove 4.seg; = remove 4.idx; = make ledger; ? segment-gap 4 x4 in 8
        replica: restore-segment 4.seg 4..7 [128+240]; = write 4.seg [0+368]
        """,
    ),
    "the last header": (
        lambda d: d.cut(8, 127),
        """
        unasked: ? acknowledged-missing 8 x2 in 4; ? segment-header-short 10 x2 in 8 [0+127]
        loss: lower-local-low-water-mark control [132+36] loses; remove-empty-segment 8.seg [0+127] loses;
          remove-orphan-index 8.idx [0+160] loses; accept-loss ledger 8..11 loses; = write control [132+36]; = remove
          8.seg; = remove 8.idx; = make ledger
        replica: restore-segment 8.seg 8..11 [128+240]; = write 8.seg [0+368]
        """,
    ),
    "the last header and that of its index": (
        lambda d: (d.cut(8, 127), d.list(8, -1)),
        """
        unasked: remove-empty-segment 8.seg [0+127]; remove-orphan-index 8.idx [0+120]; = remove 8.seg; = remove
          8.idx; ? acknowledged-missing 8 x2 in 4
        loss: lower-local-low-water-mark control [132+36] loses; remove-empty-segment 8.seg [0+127];
          remove-orphan-index 8.idx [0+120]; accept-loss ledger 8..9 loses; = write control [132+36]; = remove 8.seg;
          = remove 8.idx; = make ledger
        replica: restore-segment 8.seg 8..9 [128+120]; rebuild-index 8.idx; = write 8.seg [0+248]; = make 8.idx of 144
        """,
    ),
    "the records of the last segment": (
        lambda d: d.cut(8, 128),
        """
        unasked: rebuild-index 8.idx; = make 8.idx of 128; ? acknowledged-missing 8 x2 in 8
        loss: lower-local-low-water-mark control [132+36] loses; rebuild-index 8.idx; accept-loss ledger 8..9 loses; =
          write control [132+36]; = make 8.idx of 128; = make ledger
        replica: restore-record 8.seg 8..9 [128+120]; rebuild-index 8.idx; = write 8.seg [128+120]; = make 8.idx of
          144
        """,
    ),
    "every file": (
        lambda d: [d.drop(first) for first in (0, 4, 8)],
        """
        unasked: ? acknowledged-missing 0 x10 in None
        loss: lower-local-low-water-mark control [132+36] loses; create-segment 0.seg [0+128] loses; rebuild-index
          0.idx; accept-loss ledger 0..9 loses; = write control [132+36]; = make 0.seg of 128; = make 0.idx of 128; =
          make ledger
        replica: restore-segment 0.seg 0..3 [128+240]; restore-segment 4.seg 4..7 [128+240]; restore-segment 8.seg
          8..9 [128+120]; rebuild-index 0.idx; rebuild-index 4.idx; rebuild-index 8.idx; = make 0.seg of 368; = make
          0.idx of 160; = make 4.seg of 368; = make 4.idx of 160; = make 8.seg of 248; = make 8.idx of 144
        """,
    ),
    "the directory": (
        lambda d: shutil.rmtree(d.directory),
        """
        unasked: ? partition-directory-missing 0 x10 in None
        loss: lower-local-low-water-mark control [132+36] loses; create-segment 0.seg [0+128] loses; rebuild-index
          0.idx; accept-loss ledger 0..9 loses; = write control [132+36]; = make 0.seg of 128; = make 0.idx of 128; =
          make ledger
        replica: restore-segment 0.seg 0..3 [128+240]; restore-segment 4.seg 4..7 [128+240]; restore-segment 8.seg
          8..9 [128+120]; rebuild-index 0.idx; rebuild-index 4.idx; rebuild-index 8.idx; = make 0.seg of 368; = make
          0.idx of 160; = make 4.seg of 368; = make 4.idx of 160; = make 8.seg of 248; = make 8.idx of 144
        """,
    ),
    "the directory, above no mark": (
        lambda d: (d.mark(-1), shutil.rmtree(d.directory)),
        """
        unasked, replica: ? partition-directory-missing in None
        loss: create-segment 0.seg [0+128] loses; rebuild-index 0.idx; = make 0.seg of 128; = make 0.idx of 128
        """,
    ),
    "every file, above no mark": (
        lambda d: (d.mark(-1), [d.drop(first) for first in (0, 4, 8)]),
        """
        unasked, replica: ? partition-empty in None
        loss: create-segment 0.seg [0+128] loses; rebuild-index 0.idx; = make 0.seg of 128; = make 0.idx of 128
        """,
    ),
    "a wrong id": (
        lambda d: d.put(4, [4, 55, 6, 7]),
        """
        unasked: ? record-order 5 x1 in 4 [188+60]
        loss: split-segment 4.seg 5..5 [188+60] loses; rebuild-index 4.idx; rebuild-index 6.idx; accept-loss ledger
          5..5 loses; = cut 4.seg to 188; = make 4.idx of 136; = make 6.seg of 248; = make 6.idx of 144; = make ledger
        replica: restore-record 4.seg 5..5 [188+60]; = write 4.seg [188+60]
        """,
    ),
    "a wrong id at the beginning": (
        lambda d: d.put(4, [55, 5, 6, 7]),
        """
        unasked: ? record-order 4 x1 in 4 [128+60]
        loss: split-segment 4.seg 4..4 [128+60] loses; rebuild-index 4.idx; rebuild-index 5.idx; accept-loss ledger
          4..4 loses; = cut 4.seg to 128; = make 4.idx of 128; = make 5.seg of 308; = make 5.idx of 152; = make ledger
        replica: restore-record 4.seg 4..4 [128+60]; = write 4.seg [128+60]
        """,
    ),
    "a wrong id at the end": (
        lambda d: d.put(8, [8, 9, 10, 55]),
        """
        unasked: ? record-order 11 in 8 [308+60]
        loss: split-segment 8.seg 11..54 [308+0] loses; rebuild-index 8.idx; rebuild-index 55.idx; accept-loss ledger
          11..54 loses; = cut 8.seg to 308; = make 8.idx of 152; = make 55.seg of 188; = make 55.idx of 136; = make
          ledger
        replica: restore-record 8.seg 11..11 [308+60]; = write 8.seg [308+60]
        """,
    ),
    "a repeat in the middle": (
        lambda d: d.put(4, [4, 5, 5, 6, 7], of=[4, 5, 5, 6, 7]),
        """
        unasked: rebuild-index 4.idx; = make 4.idx of 160; ? record-order 6 x0 in 4 [248+60]
        loss, replica: remove-bytes 4.seg [248+60] loses; rebuild-index 4.idx; = make 4.seg of 368; = make 4.idx of
          160
        """,
    ),
    "a repeat, and one missing": (
        lambda d: d.put(4, [4, 5, 5, 6], of=[4, 5, 5, 6]),
        """
        unasked: ? record-order 6 in 4 [248+120]; ? segment-gap 6 x2 in 8
        loss: cut-torn-tail 4.seg 6..6 [248+120] loses; rebuild-index 4.idx; accept-loss ledger 6..7 loses; = cut
          4.seg to 248; = make 4.idx of 144; = make ledger; ? segment-gap 6 x2 in 8
        replica: restore-record 4.seg 6..7 [248+120]; = write 4.seg [248+120]
        """,
    ),
    "a rival in the middle": (
        lambda d: d.put(4, [4, 5, 5, 6, 7], of=[4, 5, 6, 6, 7]),
        """
        unasked: rebuild-index 4.idx; = make 4.idx of 160; ? record-order 6 x0 in 4 [248+60]
        loss: remove-bytes 4.seg [248+60] loses; rebuild-index 4.idx; accept-loss ledger 5..5 loses; = make 4.seg of
          368; = make 4.idx of 160; = make ledger
        replica: remove-bytes 4.seg [248+60] loses; rebuild-index 4.idx; = make 4.seg of 368; = make 4.idx of 160
        """,
    ),
    "a repeat at the end": (
        lambda d: d.put(8, [8, 9, 10, 11, 11], of=[8, 9, 10, 11, 11]),
        """
        unasked: ? record-order 12 in 8 [368+60]
        loss: cut-torn-tail 8.seg 12..12 [368+60] loses; rebuild-index 8.idx; accept-loss ledger 12..12 loses; = cut
          8.seg to 368; = make 8.idx of 160; = make ledger
        replica: cut-torn-tail 8.seg 12..12 [368+60] loses; rebuild-index 8.idx; = cut 8.seg to 368; = make 8.idx of
          160
        """,
    ),
    "a repeat in front of a segment": (
        lambda d: d.put(4, [4, 5, 6, 7, 7], of=[4, 5, 6, 7, 7]),
        """
        unasked, loss: cut-torn-tail 4.seg 8..8 [368+60]; rebuild-index 4.idx; = cut 4.seg to 368; = make 4.idx of 160
        replica: cut-torn-tail 4.seg 8..8 [368+60] loses; rebuild-index 4.idx; = cut 4.seg to 368; = make 4.idx of 160
        """,
    ),
    "a rival in front of a segment": (
        lambda d: d.put(4, [4, 5, 6, 7, 7], of=[4, 5, 6, 7, 6]),
        """
        unasked: ? record-order 8 in 4 [368+60]
        loss: cut-torn-tail 4.seg 8..8 [368+60] loses; rebuild-index 4.idx; accept-loss ledger 7..7 loses; = cut 4.seg
          to 368; = make 4.idx of 160; = make ledger
        replica: cut-torn-tail 4.seg 8..8 [368+60] loses; rebuild-index 4.idx; = cut 4.seg to 368; = make 4.idx of 160
        """,
    ),
    "ids that go back": (
        lambda d: d.put(8, [8, 7, 8, 9]),
        """
        unasked, loss: ? record-order 9 in 8 [188+180]; ? acknowledged-missing 9 x1 in 8
        replica: restore-record 8.seg 9..11 [188+180]; = write 8.seg [188+180]
        """,
    ),
    "ids that jump at the end": (
        lambda d: d.put(8, [8, 20, 21, 22]),
        """
        unasked: rebuild-index 8.idx; = make 8.idx of 248; ? record-order 9 x11 in 8 [188+0]
        loss: split-segment 8.seg 9..19 [188+0] loses; rebuild-index 8.idx; rebuild-index 20.idx; accept-loss ledger
          9..19 loses; = cut 8.seg to 188; = make 8.idx of 136; = make 20.seg of 308; = make 20.idx of 152; = make
          ledger
        replica: restore-record 8.seg 9..11 [188+180]; = write 8.seg [188+180]
        """,
    ),
    "ids that jump by one at the end": (
        lambda d: d.put(8, [8, 10, 11, 12]),
        """
        unasked: rebuild-index 8.idx; = make 8.idx of 168; ? record-order 9 x1 in 8 [188+0]
        loss: split-segment 8.seg 9..9 [188+0] loses; rebuild-index 8.idx; rebuild-index 10.idx; accept-loss ledger
          9..9 loses; = cut 8.seg to 188; = make 8.idx of 136; = make 10.seg of 308; = make 10.idx of 152; = make
          ledger
        replica: restore-record 8.seg 9..11 [188+180]; = write 8.seg [188+180]
        """,
    ),
    "ids that are missing at the end": (
        lambda d: d.put(8, [8, 10, 11], of=[8, 10, 11]),
        """
        unasked: rebuild-index 8.idx; = make 8.idx of 160; ? record-order 9 x1 in 8 [188+0]
        loss: split-segment 8.seg 9..9 [188+0] loses; rebuild-index 8.idx; rebuild-index 10.idx; accept-loss ledger
          9..9 loses; = cut 8.seg to 188; = make 8.idx of 136; = make 10.seg of 248; = make 10.idx of 144; = make
          ledger
        replica: restore-record 8.seg 9..9 [188+0]; rebuild-index 8.idx; = make 8.seg of 368; = make 8.idx of 160
        """,
    ),
    "ids that are missing in the middle": (
        lambda d: d.put(4, [4, 7], of=[4, 7]),
        """
        unasked: ? record-order 5 in 4 [188+60]; ? segment-gap 5 x3 in 8
        loss: split-segment 4.seg 5..6 [188+0] loses; rebuild-index 4.idx; rebuild-index 7.idx; accept-loss ledger
          5..6 loses; = cut 4.seg to 188; = make 4.idx of 136; = make 7.seg of 188; = make 7.idx of 136; = make ledger
        replica: restore-record 4.seg 5..6 [188+0]; rebuild-index 4.idx; = make 4.seg of 368; = make 4.idx of 160
        """,
    ),
    "the first ids of a segment": (
        lambda d: d.put(4, [6, 7], of=[6, 7]),
        """
        unasked: rebuild-index 4.idx; = make 4.idx of 160; ? record-order 4 x2 in 4 [128+0]
        loss: split-segment 4.seg 4..5 [128+0] loses; rebuild-index 4.idx; rebuild-index 6.idx; accept-loss ledger
          4..5 loses; = cut 4.seg to 128; = make 4.idx of 128; = make 6.seg of 248; = make 6.idx of 144; = make ledger
        replica: restore-record 4.seg 4..5 [128+0]; rebuild-index 4.idx; = make 4.seg of 368; = make 4.idx of 160
        """,
    ),
    "the last id of a segment": (
        lambda d: d.put(4, [4, 5, 6]),
        """
        unasked, loss: ? segment-gap 7 x1 in 8
        replica: restore-record 4.seg 7..7 [308+60]; rebuild-index 4.idx; = write 4.seg [308+60]; = make 4.idx of 160
        """,
    ),
    "a segment that begins late": (
        lambda d: (d.drop(4), d.put(5, [5, 6, 7])),
        """
        unasked, loss: ? segment-gap 4 x1 in 5
        replica: restore-segment 4.seg 4..4 [128+60]; rebuild-index 4.idx; = make 4.seg of 188; = make 4.idx of 136
        """,
    ),
}


@pytest.mark.turns(10)
@pytest.mark.parametrize("name", CASES)
def test_what_is_planned_for_a_loss(tmp_path: Path, name: str) -> None:
    """Unasked, with leave to lose, and with a sound replica."""
    damage, expected = CASES[name]
    wanted = ways(expected)
    assert {way: planned(tmp_path / way, damage, way) for way in wanted} == wanted
