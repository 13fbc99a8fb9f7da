"""What a truncation plans, as a whole, and what it refuses, with a step to each side of ends, marks, segments and damage."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.builders import segment_header
from tests.repair.twelve import RECORDS, SIZE, Damage, Twelve, at, told, ways
from waltzctl.engine.errors import RefusedError, WaltzError
from waltzctl.engine.repair.truncate import plan_truncate
from waltzctl.formats.control import Layout
from waltzctl.formats.segment import Record


def plan(place: Path, damage: Damage, way: str) -> list[str]:
    """What is planned or refused; `way`: the last transaction to keep, with ``!`` losses are allowed."""
    damaged = Twelve(place, layout=Layout.DOCUMENTED if "doc" in way else Layout.RELEASED)
    damage(damaged)
    after = int(way.removesuffix("!").removeprefix("doc "))
    try:
        repair = plan_truncate(damaged.root, partition=0, after=after, allow_data_loss=way.endswith("!"))
        assert (repair.partitions, repair.storage, repair.sources) == ((0,), damaged.root, ())
        return told(repair)
    except WaltzError as error:
        return [
            f"{type(error).__name__} {str(error).split(':', 1)[1].strip()}".replace(str(place), "").replace(";", ",")
        ]


def grown(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def embedded(d: Twelve) -> None:
    """Let the data of transaction 2 look like transaction 6, and its own header be damaged."""
    inner = Record.make(6, RECORDS[6].request_id, 0, b"inside").encode()
    outer = Record.make(2, RECORDS[2].request_id, 0, inner + b"more")
    d.write(0, [*RECORDS[:2], outer, RECORDS[3]])
    d.flip(d.seg(0), at(2) + 3, at(2) + 30)
    d.idx(0).unlink()


CASES: dict[str, tuple[Damage, str]] = {
    "nothing": (
        lambda d: None,
        """
        -1!: remove-segment 8.seg 8..11 [0+368] loses; remove-index 8.idx 8..11 [0+160]; remove-segment 4.seg 4..7
          [0+368] loses; remove-index 4.idx 4..7 [0+160]; cut-segment 0.seg 0..3 [128+240] loses; cut-index 0.idx
          [128+32]; lower-local-low-water-mark control [132+36] loses; = remove 8.seg; = remove 8.idx; = remove 4.seg;
          = remove 4.idx; = cut 0.seg to 128; = cut 0.idx to 128; = write control [132+36]
        0!: remove-segment 8.seg 8..11 [0+368] loses; remove-index 8.idx 8..11 [0+160]; remove-segment 4.seg 4..7
          [0+368] loses; remove-index 4.idx 4..7 [0+160]; cut-segment 0.seg 1..3 [188+180] loses; cut-index 0.idx
          [136+24]; lower-local-low-water-mark control [132+36] loses; = remove 8.seg; = remove 8.idx; = remove 4.seg;
          = remove 4.idx; = cut 0.seg to 188; = cut 0.idx to 136; = write control [132+36]
        3!: remove-segment 8.seg 8..11 [0+368] loses; remove-index 8.idx 8..11 [0+160]; cut-segment 4.seg 4..7
          [128+240] loses; cut-index 4.idx [128+32]; lower-local-low-water-mark control [132+36] loses; = remove
          8.seg; = remove 8.idx; = cut 4.seg to 128; = cut 4.idx to 128; = write control [132+36]
        4!: remove-segment 8.seg 8..11 [0+368] loses; remove-index 8.idx 8..11 [0+160]; cut-segment 4.seg 5..7
          [188+180] loses; cut-index 4.idx [136+24]; lower-local-low-water-mark control [132+36] loses; = remove
          8.seg; = remove 8.idx; = cut 4.seg to 188; = cut 4.idx to 136; = write control [132+36]
        5!: remove-segment 8.seg 8..11 [0+368] loses; remove-index 8.idx 8..11 [0+160]; cut-segment 4.seg 6..7
          [248+120] loses; cut-index 4.idx [144+16]; lower-local-low-water-mark control [132+36] loses; = remove
          8.seg; = remove 8.idx; = cut 4.seg to 248; = cut 4.idx to 144; = write control [132+36]
        6!: remove-segment 8.seg 8..11 [0+368] loses; remove-index 8.idx 8..11 [0+160]; cut-segment 4.seg 7..7 [308+60]
          loses; cut-index 4.idx [152+8]; lower-local-low-water-mark control [132+36] loses; = remove 8.seg; = remove
          8.idx; = cut 4.seg to 308; = cut 4.idx to 152; = write control [132+36]
        7!: cut-segment 8.seg 8..11 [128+240] loses; cut-index 8.idx [128+32]; lower-local-low-water-mark control
          [132+36] loses; = cut 8.seg to 128; = cut 8.idx to 128; = write control [132+36]
        8: BelowLowWaterMarkError partition 0: transactions 9 to 9 are at or below the local low-water mark 9: they
          are acknowledged, add --allow-data-loss to remove them all the same
        8!: cut-segment 8.seg 9..11 [188+180] loses; cut-index 8.idx [136+24]; lower-local-low-water-mark control
          [132+36] loses; = cut 8.seg to 188; = cut 8.idx to 136; = write control [132+36]
        doc 8!: cut-segment 8.seg 9..11 [188+180] loses; cut-index 8.idx [136+24]; lower-local-low-water-mark control
          [132+56] loses; = cut 8.seg to 188; = cut 8.idx to 136; = write control [132+56]
        9: cut-segment 8.seg 10..11 [248+120] loses; cut-index 8.idx [144+16]; = cut 8.seg to 248; = cut 8.idx to 144
        10: cut-segment 8.seg 11..11 [308+60] loses; cut-index 8.idx [152+8]; = cut 8.seg to 308; = cut 8.idx to 152
        11:
        12: RefusedError partition 0 ends at transaction 11, before 12
        """,
    ),
    "two damaged records": (
        lambda d: d.spoil(5, 6),
        """
        5!: RefusedError transaction 5 is in a damaged place, so that nothing tells where the one behind it begins,
          truncate after another one, or recover first
        """,
    ),
    "a torn end": (
        lambda d: d.cut(8, 128 + 4 * SIZE - 5),
        """
        7!: cut-segment 8.seg 8..10 [128+235] loses; cut-index 8.idx [128+32]; lower-local-low-water-mark control
          [132+36] loses; = cut 8.seg to 128; = cut 8.idx to 128; = write control [132+36]
        9: cut-segment 8.seg 10..10 [248+115] loses; cut-index 8.idx [144+16]; = cut 8.seg to 248; = cut 8.idx to 144
        10: cut-segment 8.seg [308+55] loses; cut-index 8.idx [152+8]; = cut 8.seg to 308; = cut 8.idx to 152
        11: RefusedError partition 0 ends at transaction 10, before 11
        """,
    ),
    "bytes at the end": (
        lambda d: d.seg(8).write_bytes(d.seg(8).read_bytes() + bytes(20)),
        """
        10: cut-segment 8.seg 11..11 [308+80] loses; cut-index 8.idx [152+8]; = cut 8.seg to 308; = cut 8.idx to 152
        11: cut-segment 8.seg [368+20] loses; = cut 8.seg to 368
        12: RefusedError partition 0 ends at transaction 11, before 12
        """,
    ),
    "transactions of the partition once more at the end": (
        lambda d: d.put(8, [8, 9, 10, 11, 3, 4], of=[8, 9, 10, 11, 3, 4]),
        """
        10: cut-segment 8.seg 11..11 [308+180] loses; cut-index 8.idx [152+24]; = cut 8.seg to 308; = cut 8.idx to 152
        11: cut-segment 8.seg [368+120] loses; cut-index 8.idx [160+16]; = cut 8.seg to 368; = cut 8.idx to 160
        12: RefusedError partition 0 ends at transaction 11, before 12
        """,
    ),
    "an entry too many at the end": (
        lambda d: d.list(8, 5),
        """
        10: cut-segment 8.seg 11..11 [308+60] loses; cut-index 8.idx [152+16]; = cut 8.seg to 308; = cut 8.idx to 152
        11: cut-index 8.idx [160+8] loses; = cut 8.idx to 160
        """,
    ),
    "half an entry at the end": (
        lambda d: os.truncate(d.idx(8), 128 + 8 * 4 + 1),
        """
        11: cut-index 8.idx [160+1] loses; = cut 8.idx to 160
        """,
    ),
    "an entry too few at the end": (
        lambda d: d.list(8, 3),
        """
        11:
        """,
    ),
    "the last segment without a record": (
        lambda d: d.spoil(8, 9, 10, 11),
        """
        6!: remove-segment 8.seg 8..8 [0+368] loses; remove-index 8.idx 8..8 [0+160]; cut-segment 4.seg 7..7 [308+60]
          loses; cut-index 4.idx [152+8]; lower-local-low-water-mark control [132+36] loses; = remove 8.seg; = remove
          8.idx; = cut 4.seg to 308; = cut 4.idx to 152; = write control [132+36]
        7: BelowLowWaterMarkError partition 0: transactions 8 to 9 are at or below the local low-water mark 9: they are
          acknowledged, add --allow-data-loss to remove them all the same
        7!: cut-segment 8.seg [128+240] loses; cut-index 8.idx [128+32]; lower-local-low-water-mark control [132+36]
          loses; = cut 8.seg to 128; = cut 8.idx to 128; = write control [132+36]
        """,
    ),
    "garbage in a segment further on": (
        lambda d: (
            d.idx(8).unlink(),
            d.seg(8).rename(d.seg(20)),
            d.seg(20).write_bytes(segment_header(0, 20).encode() + bytes(100)),
        ),
        """
        7!: remove-segment 20.seg 20..20 [0+228] loses; lower-local-low-water-mark control [132+36] loses; = remove
          20.seg; = write control [132+36]
        """,
    ),
    "an empty segment at the end": (
        lambda d: (d.cut(8, 128), d.list(8, 0)),
        """
        -1!: remove-segment 8.seg 8..8 [0+128]; remove-index 8.idx 8..8 [0+128]; remove-segment 4.seg 4..7 [0+368]
          loses; remove-index 4.idx 4..7 [0+160]; cut-segment 0.seg 0..3 [128+240] loses; cut-index 0.idx [128+32];
          lower-local-low-water-mark control [132+36] loses; = remove 8.seg; = remove 8.idx; = remove 4.seg; = remove
          4.idx; = cut 0.seg to 128; = cut 0.idx to 128; = write control [132+36]
        6!: remove-segment 8.seg 8..8 [0+128]; remove-index 8.idx 8..8 [0+128]; cut-segment 4.seg 7..7 [308+60] loses;
          cut-index 4.idx [152+8]; lower-local-low-water-mark control [132+36] loses; = remove 8.seg; = remove 8.idx;
          = cut 4.seg to 308; = cut 4.idx to 152; = write control [132+36]
        7!:
        9: RefusedError partition 0 ends at transaction 7, before 9
        """,
    ),
    "part of a header at the end": (
        lambda d: d.cut(8, 127),
        """
        6!: remove-segment 8.seg 8..8 [0+127]; remove-index 8.idx 8..8 [0+160] loses; cut-segment 4.seg 7..7 [308+60]
          loses; cut-index 4.idx [152+8]; lower-local-low-water-mark control [132+36] loses; = remove 8.seg; = remove
          8.idx; = cut 4.seg to 308; = cut 4.idx to 152; = write control [132+36]
        7!: RefusedError shorter than its header, recover it first
        """,
    ),
    "nothing of a header at the end": (
        lambda d: (d.cut(8, 0), d.list(8, 0)),
        """
        7!: remove-segment 8.seg 8..8 [0+0]; remove-index 8.idx 8..8 [0+128]; lower-local-low-water-mark control
          [132+36] loses; = remove 8.seg; = remove 8.idx; = write control [132+36]
        """,
    ),
    "a header less a byte at the end": (
        lambda d: (d.cut(8, 127), d.list(8, 0)),
        """
        7!: remove-segment 8.seg 8..8 [0+127]; remove-index 8.idx 8..8 [0+128]; lower-local-low-water-mark control
          [132+36] loses; = remove 8.seg; = remove 8.idx; = write control [132+36]
        """,
    ),
    "nothing of a header, and an entry, at the end": (
        lambda d: (d.cut(8, 0), d.list(8, 1)),
        """
        7!: RefusedError shorter than its header, recover it first
        """,
    ),
    "an index alone at the end": (
        lambda d: d.drop(8, index=False),
        """
        6!: remove-index 8.idx 8..8 [0+160] loses; cut-segment 4.seg 7..7 [308+60] loses; cut-index 4.idx [152+8];
          lower-local-low-water-mark control [132+36] loses; = remove 8.idx; = cut 4.seg to 308; = cut 4.idx to 152; =
          write control [132+36]
        7: BelowLowWaterMarkError partition 0: transactions 8 to 9 are at or below the local low-water mark 9: they are
          acknowledged, add --allow-data-loss to remove them all the same
        7!: remove-index 8.idx 8..8 [0+160] loses; lower-local-low-water-mark control [132+36] loses; = remove 8.idx; =
          write control [132+36]
        """,
    ),
    "no index": (
        lambda d: [d.drop(first, data=False) for first in (0, 4, 8)],
        """
        3!: remove-segment 8.seg 8..11 [0+368] loses; cut-segment 4.seg 4..7 [128+240] loses;
          lower-local-low-water-mark control [132+36] loses; = remove 8.seg; = cut 4.seg to 128; = write control
          [132+36]
        6!: remove-segment 8.seg 8..11 [0+368] loses; cut-segment 4.seg 7..7 [308+60] loses;
          lower-local-low-water-mark control [132+36] loses; = remove 8.seg; = cut 4.seg to 308; = write control
          [132+36]
        9: cut-segment 8.seg 10..11 [248+120] loses; = cut 8.seg to 248
        """,
    ),
    "a gap": (
        lambda d: d.drop(4),
        """
        3!: remove-segment 8.seg 8..11 [0+368] loses; remove-index 8.idx 8..11 [0+160]; lower-local-low-water-mark
          control [132+36] loses; = remove 8.seg; = remove 8.idx; = write control [132+36]
        4!: RefusedError transaction 4 is in a damaged place, so that nothing tells where the one behind it begins,
          truncate after another one, or recover first
        """,
    ),
    "no beginning": (
        lambda d: d.drop(0),
        """
        -1!: remove-segment 8.seg 8..11 [0+368] loses; remove-index 8.idx 8..11 [0+160]; remove-segment 4.seg 4..7
          [0+368] loses; remove-index 4.idx 4..7 [0+160]; create-segment 0.seg [0+128]; create-index 0.idx [0+128];
          lower-local-low-water-mark control [132+36] loses; = remove 8.seg; = remove 8.idx; = remove 4.seg; = remove
          4.idx; = make 0.seg of 128; = make 0.idx of 128; = write control [132+36]
        """,
    ),
    "an index alone at the beginning": (
        lambda d: d.drop(0, index=False),
        """
        -1!: remove-segment 8.seg 8..11 [0+368] loses; remove-index 8.idx 8..11 [0+160]; remove-segment 4.seg 4..7
          [0+368] loses; remove-index 4.idx 4..7 [0+160]; create-segment 0.seg [0+128]; rebuild-index 0.idx [0+128];
          lower-local-low-water-mark control [132+36] loses; = remove 8.seg; = remove 8.idx; = remove 4.seg; = remove
          4.idx; = make 0.seg of 128; = make 0.idx of 128; = write control [132+36]
        """,
    ),
    "nothing but headers": (
        lambda d: [d.cut(first, 128) for first in (0, 4, 8)],
        """
        -1!: remove-segment 8.seg 8..8 [0+128]; remove-index 8.idx 8..8 [0+160] loses; remove-segment 4.seg 4..4
          [0+128]; remove-index 4.idx 4..4 [0+160] loses; cut-index 0.idx [128+32] loses; lower-local-low-water-mark
          control [132+36] loses; = remove 8.seg; = remove 8.idx; = remove 4.seg; = remove 4.idx; = cut 0.idx to 128; =
          write control [132+36]
        3!: RefusedError partition 0 ends at transaction -1, before 3
        """,
    ),
    "nothing at all": (
        lambda d: [d.drop(first) for first in (0, 4, 8)],
        """
        -1!:
        3!: RefusedError partition 0 ends at transaction -1, before 3
        """,
    ),
    "a foreign segment": (
        lambda d: (d.flip(d.seg(4), 13), d.drop(4, data=False)),
        """
        -1!, 3!, 6!: RefusedError not the partition's own (segment-key), so that it is neither cut nor removed,
          recover restores its header if that is only damaged, otherwise move the file away by hand
        """,
    ),
    "a foreign segment at the beginning": (
        lambda d: d.strange(0),
        """
        -1!, 2!: RefusedError not the partition's own (segment-key), so that it is neither cut nor removed, recover
          restores its header if that is only damaged, otherwise move the file away by hand
        3!: remove-segment 8.seg 8..11 [0+368] loses; remove-index 8.idx 8..11 [0+160]; cut-segment 4.seg 4..7
          [128+240] loses; cut-index 4.idx [128+32]; lower-local-low-water-mark control [132+36] loses; = remove
          8.seg; = remove 8.idx; = cut 4.seg to 128; = cut 4.idx to 128; = write control [132+36]
        9: cut-segment 8.seg 10..11 [248+120] loses; cut-index 8.idx [144+16]; = cut 8.seg to 248; = cut 8.idx to 144
        """,
    ),
    "a foreign segment at the end": (
        lambda d: (d.flip(d.seg(8), 13), d.drop(8, data=False)),
        """
        7!, 9, 11: RefusedError not the partition's own (segment-key), so that it is neither cut nor removed, recover
          restores its header if that is only damaged, otherwise move the file away by hand
        """,
    ),
    "a foreign segment in front of an index alone": (
        lambda d: (d.flip(d.seg(0), 13), d.drop(0, data=False), d.drop(4, index=False)),
        """
        5!: RefusedError not the partition's own (segment-key), so that it is neither cut nor removed, recover
          restores its header if that is only damaged, otherwise move the file away by hand
        """,
    ),
    "unknown marks": (
        lambda d: d.forget_marks(),
        """
        3!: remove-segment 8.seg 8..11 [0+368] loses; remove-index 8.idx 8..11 [0+160]; cut-segment 4.seg 4..7
          [128+240] loses; cut-index 4.idx [128+32]; = remove 8.seg; = remove 8.idx; = cut 4.seg to 128; = cut 4.idx
          to 128
        9: BelowLowWaterMarkError partition 0: neither struct of its pair is in force, so that the low-water mark is
          unknown, repair the control file first, or add --allow-data-loss
        """,
    ),
    "a beginning at 1": (
        lambda d: (d.put(1, [1, 2, 3]), d.drop(0)),
        """
        -1!: remove-segment 8.seg 8..11 [0+368] loses; remove-index 8.idx 8..11 [0+160]; remove-segment 4.seg 4..7
          [0+368] loses; remove-index 4.idx 4..7 [0+160]; remove-segment 1.seg 1..3 [0+308] loses; remove-index 1.idx
          1..3 [0+152]; create-segment 0.seg [0+128]; create-index 0.idx [0+128]; lower-local-low-water-mark control
          [132+36] loses; = remove 8.seg; = remove 8.idx; = remove 4.seg; = remove 4.idx; = remove 1.seg; = remove
          1.idx; = make 0.seg of 128; = make 0.idx of 128; = write control [132+36]
        0!: remove-segment 8.seg 8..11 [0+368] loses; remove-index 8.idx 8..11 [0+160]; remove-segment 4.seg 4..7
          [0+368] loses; remove-index 4.idx 4..7 [0+160]; cut-segment 1.seg 1..3 [128+180] loses; cut-index 1.idx
          [128+24]; lower-local-low-water-mark control [132+36] loses; = remove 8.seg; = remove 8.idx; = remove 4.seg;
          = remove 4.idx; = cut 1.seg to 128; = cut 1.idx to 128; = write control [132+36]
        1!: remove-segment 8.seg 8..11 [0+368] loses; remove-index 8.idx 8..11 [0+160]; remove-segment 4.seg 4..7
          [0+368] loses; remove-index 4.idx 4..7 [0+160]; cut-segment 1.seg 2..3 [188+120] loses; cut-index 1.idx
          [136+16]; lower-local-low-water-mark control [132+36] loses; = remove 8.seg; = remove 8.idx; = remove 4.seg;
          = remove 4.idx; = cut 1.seg to 188; = cut 1.idx to 136; = write control [132+36]
        """,
    ),
    "no beginning, and what it kept": (
        lambda d: d.drop(0),
        """
        0!: RefusedError begins with transaction 4, so 0 is not here
        2!: RefusedError begins with transaction 4, so 2 is not here
        3!: remove-segment 8.seg 8..11 [0+368] loses; remove-index 8.idx 8..11 [0+160]; cut-segment 4.seg 4..7
          [128+240] loses; cut-index 4.idx [128+32]; lower-local-low-water-mark control [132+36] loses; = remove
          8.seg; = remove 8.idx; = cut 4.seg to 128; = cut 4.idx to 128; = write control [132+36]
        """,
    ),
    "damaged records": (
        lambda d: d.spoil(5, 9),
        """
        4!: remove-segment 8.seg 8..11 [0+368] loses; remove-index 8.idx 8..11 [0+160]; cut-segment 4.seg 5..7
          [188+180] loses; cut-index 4.idx [136+24]; lower-local-low-water-mark control [132+36] loses; = remove
          8.seg; = remove 8.idx; = cut 4.seg to 188; = cut 4.idx to 136; = write control [132+36]
        5!: remove-segment 8.seg 8..11 [0+368] loses; remove-index 8.idx 8..11 [0+160]; cut-segment 4.seg 6..7
          [248+120] loses; cut-index 4.idx [144+16]; lower-local-low-water-mark control [132+36] loses; = remove
          8.seg; = remove 8.idx; = cut 4.seg to 248; = cut 4.idx to 144; = write control [132+36]
        6!: remove-segment 8.seg 8..11 [0+368] loses; remove-index 8.idx 8..11 [0+160]; cut-segment 4.seg 7..7 [308+60]
          loses; cut-index 4.idx [152+8]; lower-local-low-water-mark control [132+36] loses; = remove 8.seg; = remove
          8.idx; = cut 4.seg to 308; = cut 4.idx to 152; = write control [132+36]
        8!: cut-segment 8.seg 9..11 [188+180] loses; cut-index 8.idx [136+24]; lower-local-low-water-mark control
          [132+36] loses; = cut 8.seg to 188; = cut 8.idx to 136; = write control [132+36]
        9: cut-segment 8.seg 10..11 [248+120] loses; cut-index 8.idx [144+16]; = cut 8.seg to 248; = cut 8.idx to 144
        10: cut-segment 8.seg 11..11 [308+60] loses; cut-index 8.idx [152+8]; = cut 8.seg to 308; = cut 8.idx to 152
        11:
        """,
    ),
    "part of an inner header": (
        lambda d: d.cut(4, 127),
        """
        3!: RefusedError shorter than its header, recover it first
        5!: RefusedError shorter than its header, recover it first
        7!: cut-segment 8.seg 8..11 [128+240] loses; cut-index 8.idx [128+32]; lower-local-low-water-mark control
          [132+36] loses; = cut 8.seg to 128; = cut 8.idx to 128; = write control [132+36]
        """,
    ),
    "a byte in front of a gap": (
        lambda d: (d.drop(4), grown(d.seg(0)), grown(d.idx(0))),
        """
        3!: remove-segment 8.seg 8..11 [0+368] loses; remove-index 8.idx 8..11 [0+160]; cut-segment 0.seg 4..7 [368+1]
          loses; cut-index 0.idx [160+1]; lower-local-low-water-mark control [132+36] loses; = remove 8.seg; = remove
          8.idx; = cut 0.seg to 368; = cut 0.idx to 160; = write control [132+36]
        """,
    ),
    "an empty segment in front of another": (
        lambda d: (d.cut(4, 128), d.list(4, 0)),
        """
        3!: remove-segment 8.seg 8..11 [0+368] loses; remove-index 8.idx 8..11 [0+160]; lower-local-low-water-mark
          control [132+36] loses; = remove 8.seg; = remove 8.idx; = write control [132+36]
        5!: DamageError transaction 5 is missing
        """,
    ),
    "a record in the data of a damaged one": (
        embedded,
        """
        0!: remove-segment 8.seg 8..11 [0+368] loses; remove-index 8.idx 8..11 [0+160]; remove-segment 4.seg 4..7
          [0+368] loses; remove-index 4.idx 4..7 [0+160]; cut-segment 0.seg 1..3 [188+210] loses;
          lower-local-low-water-mark control [132+36] loses; = remove 8.seg; = remove 8.idx; = remove 4.seg; = remove
          4.idx; = cut 0.seg to 188; = write control [132+36]
        1!: remove-segment 8.seg 8..11 [0+368] loses; remove-index 8.idx 8..11 [0+160]; remove-segment 4.seg 4..7
          [0+368] loses; remove-index 4.idx 4..7 [0+160]; cut-segment 0.seg 2..3 [248+150] loses;
          lower-local-low-water-mark control [132+36] loses; = remove 8.seg; = remove 8.idx; = remove 4.seg; = remove
          4.idx; = cut 0.seg to 248; = write control [132+36]
        2!: remove-segment 8.seg 8..11 [0+368] loses; remove-index 8.idx 8..11 [0+160]; remove-segment 4.seg 4..7
          [0+368] loses; remove-index 4.idx 4..7 [0+160]; cut-segment 0.seg 3..3 [338+60] loses;
          lower-local-low-water-mark control [132+36] loses; = remove 8.seg; = remove 8.idx; = remove 4.seg; = remove
          4.idx; = cut 0.seg to 338; = write control [132+36]
        3!: remove-segment 8.seg 8..11 [0+368] loses; remove-index 8.idx 8..11 [0+160]; cut-segment 4.seg 4..7
          [128+240] loses; cut-index 4.idx [128+32]; lower-local-low-water-mark control [132+36] loses; = remove
          8.seg; = remove 8.idx; = cut 4.seg to 128; = cut 4.idx to 128; = write control [132+36]
        """,
    ),
    "a pipe": (
        lambda d: (d.drop(4), os.mkfifo(d.seg(4))),
        """
        3!, 11: RefusedError not a regular file, move it away by hand, run verify
        """,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_a_truncation_plans(tmp_path: Path, name: str) -> None:
    damage, expected = CASES[name]
    wanted = ways(expected)
    assert {way: plan(tmp_path / way, damage, way) for way in wanted} == wanted


@pytest.mark.parametrize(("after", "cut"), [(2, None), (3, 4), (4, 4), (7, 8)])
def test_a_foreign_segment_right_in_front_of_what_is_cut_stays(tmp_path: Path, after: int, cut: int | None) -> None:
    d = Twelve(tmp_path / "d", firsts=(0, 3, 4, 8))
    d.strange(3)
    if cut is None:
        with pytest.raises(RefusedError, match="neither cut nor removed"):
            plan_truncate(d.root, partition=0, after=after, allow_data_loss=True)
        return
    repair = plan_truncate(d.root, partition=0, after=after, allow_data_loss=True)
    assert {one.path for one in repair.plan.steps if one.action == "cut-segment"} == {d.seg(cut)}
    assert not {d.seg(3), d.idx(3)} & {one.path for one in repair.edits}


@pytest.mark.parametrize(("after", "error"), [(2, "neither cut nor removed"), (3, None), (4, "ends at transaction 3")])
def test_a_foreign_segment_does_not_tell_the_last_transaction(tmp_path: Path, after: int, error: str | None) -> None:
    """It has transactions 0 and 1; the partition's own one behind it begins with 4 and is empty."""
    d = Twelve(tmp_path / "d")
    d.put(0, [0, 1])
    d.strange(0)
    d.cut(4, 128)
    d.drop(8)
    if error is None:
        steps = plan_truncate(d.root, partition=0, after=after, allow_data_loss=True).plan.steps
        assert [one.path for one in steps] == [d.idx(4), d.control], "the records that the index names are not there"
        return
    with pytest.raises(RefusedError, match=error):
        plan_truncate(d.root, partition=0, after=after, allow_data_loss=True)
