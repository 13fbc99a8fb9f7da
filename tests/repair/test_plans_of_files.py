"""What recovery plans for files that overlap, have other names or headers, or are left over, and for marks and the ledger."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.repair.twelve import SIZE, Damage, Twelve, planned, ways


def copied(d: Twelve, first: int, name: str, *, index: bool = True, gone: bool = False) -> None:
    """Copy a segment to another name, or move it there."""
    shutil.copy(d.seg(first), d.directory / f"{name}.seg")
    if index:
        shutil.copy(d.idx(first), d.directory / f"{name}.idx")
    if gone:
        d.drop(first)


def head(d: Twelve, first: int, size: int = 128) -> bytes:
    """The first bytes of a header."""
    return d.seg(first).read_bytes()[:size]


CASES: dict[str, tuple[Damage, str]] = {
    "the same records twice, and further ones behind": (
        lambda d: d.put(4, range(4, 10)),
        """
        unasked, loss, replica: cut-segment 4.seg 8..9 [368+120]; rebuild-index 4.idx; = cut 4.seg to 368; = make
          4.idx of 160
        """,
    ),
    "the same records twice": (
        lambda d: d.put(4, range(4, 12)),
        """
        unasked, loss, replica: remove-segment 8.seg 8..11 [0+368]; remove-index 8.idx 8..11 [0+160]; = remove 8.seg;
          = remove 8.idx
        """,
    ),
    "the same records twice, one torn": (
        lambda d: (d.put(0, range(6)), d.cut(0, 128 + 6 * SIZE - 3)),
        """
        unasked, loss, replica: cut-segment 0.seg 4..4 [368+117]; rebuild-index 0.idx; = cut 0.seg to 368; = make
          0.idx of 160
        """,
    ),
    "the same records twice, the later torn": (
        lambda d: (d.put(4, range(4, 12)), d.cut(8, 128 + 2 * SIZE - 3)),
        """
        unasked: rebuild-index 8.idx; = make 8.idx of 144; ? segment-overlap 8 in 8
        loss, replica: remove-segment 8.seg 8..8 [0+245]; remove-index 8.idx 8..8 [0+160]; = remove 8.seg; = remove 8.idx
        """,
    ),
    "the same records twice, the later torn where the earlier ends": (
        lambda d: (d.put(4, range(4, 10)), d.cut(8, 128 + 3 * SIZE - 3)),
        """
        unasked, loss, replica: cut-segment 4.seg 8..9 [368+120]; cut-torn-tail 8.seg 10..10 [248+57];
          rebuild-index 4.idx; rebuild-index 8.idx; = cut 4.seg to 368; = make 4.idx of 160; = cut 8.seg to 248;
          = make 8.idx of 144
        """,
    ),
    "the same records twice, the later torn one in front of where the earlier ends": (
        lambda d: (d.put(4, range(4, 10)), d.put(8, range(8, 10)), d.cut(8, 128 + 2 * SIZE - 3)),
        """
        unasked: ? segment-overlap 8 in 8
        loss, replica: remove-segment 8.seg 8..8 [0+245]; remove-index 8.idx 8..8 [0+144]; = remove 8.seg; = remove 8.idx
        """,
    ),
    "other records twice, the earlier torn": (
        lambda d: (d.put(4, range(4, 10)), d.cut(4, 128 + 6 * SIZE - 3), d.put(8, [8], other=[8]), d.mark(7)),
        """
        unasked, replica: ? segment-overlap 8 in 8
        loss: cut-segment 4.seg 8..8 [368+117] loses; rebuild-index 4.idx; accept-loss ledger 8..8 loses; = cut 4.seg
          to 368; = make 4.idx of 160; = make ledger
        """,
    ),
    "the same records twice, one damaged": (
        lambda d: (d.put(4, range(4, 10)), d.flip(d.seg(4), 128 + SIZE + 9)),
        """
        unasked: ? segment-overlap 8 in 8; ? record-checksum 5 x1 in 4 [188+60]
        loss: split-segment 4.seg 5..5 [188+60] loses; rebuild-index 4.idx; rebuild-index 6.idx; accept-loss ledger
          5..5 loses; = cut 4.seg to 188; = make 4.idx of 136; = make 6.seg of 368; = make 6.idx of 160; = make
          ledger; ? segment-overlap 8 in 8
        replica: restore-record 4.seg 5..5 [188+60]; = write 4.seg [188+60]; ? segment-overlap 8 in 8
        """,
    ),
    "an empty segment inside another": (
        lambda d: (d.put(4, range(4, 12)), d.cut(8, 128), d.list(8, 0)),
        """
        unasked, loss, replica: remove-segment 8.seg 8..8 [0+128]; remove-index 8.idx 8..8 [0+128]; = remove 8.seg; =
          remove 8.idx
        """,
    ),
    "other records twice": (
        lambda d: d.put(4, range(4, 10), other=[8, 9]),
        """
        unasked: ? segment-overlap 8 in 8
        loss: cut-segment 4.seg 8..9 [368+120] loses; rebuild-index 4.idx; accept-loss ledger 8..9 loses; = cut 4.seg
          to 368; = make 4.idx of 160; = make ledger
        replica: cut-segment 4.seg 8..9 [368+120]; rebuild-index 4.idx; = cut 4.seg to 368; = make 4.idx of 160
        """,
    ),
    "one other record twice at the end": (
        lambda d: (d.cut(8, 128 + SIZE), d.put(4, range(4, 9), other=[8]), d.list(8, 1)),
        """
        unasked: ? segment-overlap 8 in 8; ? acknowledged-missing 9 x1 in 8
        loss: cut-segment 4.seg 8..8 [368+60] loses; lower-local-low-water-mark control [132+36] loses; rebuild-index
          4.idx; accept-loss ledger 9..9 loses; accept-loss ledger 8..8 loses; = write control [132+36]; = cut 4.seg
          to 368; = make 4.idx of 160; = make ledger
        replica: cut-segment 4.seg 8..8 [368+60]; restore-record 8.seg 9..9 [188+60]; rebuild-index 4.idx;
          rebuild-index 8.idx; = cut 4.seg to 368; = make 4.idx of 160; = write 8.seg [188+60]; = make 8.idx of 144
        """,
    ),
    "other records twice up to the end": (
        lambda d: d.put(4, range(4, 12), other=[8, 9, 10, 11]),
        """
        unasked: ? segment-overlap 8 in 8
        loss: cut-segment 4.seg 8..11 [368+240] loses; rebuild-index 4.idx; accept-loss ledger 8..11 loses; = cut
          4.seg to 368; = make 4.idx of 160; = make ledger
        replica: cut-segment 4.seg 8..11 [368+240]; rebuild-index 4.idx; = cut 4.seg to 368; = make 4.idx of 160
        """,
    ),
    "other records twice and further in front": (
        lambda d: (d.put(4, range(4, 12), other=[8]), d.cut(8, 128 + 2 * SIZE)),
        """
        unasked, replica: rebuild-index 8.idx; = make 8.idx of 144; ? segment-overlap 8 in 8
        loss: remove-segment 8.seg 8..9 [0+248] loses; remove-index 8.idx 8..9 [0+160]; accept-loss ledger 8..9 loses;
          = remove 8.seg; = remove 8.idx; = make ledger
        """,
    ),
    "other records twice, of which a segment behind tells": (
        lambda d: d.put(0, range(6), other=[4, 5]),
        """
        unasked, loss, replica: cut-segment 0.seg 4..5 [368+120]; rebuild-index 0.idx; = cut 0.seg to 368; = make
          0.idx of 160
        """,
    ),
    "another record twice, of which a segment behind tells": (
        lambda d: d.put(0, range(5), other=[4]),
        """
        unasked, loss, replica: cut-segment 0.seg 4..4 [368+60]; rebuild-index 0.idx; = cut 0.seg to 368; = make 0.idx
          of 160
        """,
    ),
    "other records twice and further, of which segments behind tell": (
        lambda d: d.put(0, range(10), other=range(4, 10)),
        """
        unasked, loss, replica: cut-segment 0.seg 4..9 [368+360]; rebuild-index 0.idx; = cut 0.seg to 368; = make
          0.idx of 160
        """,
    ),
    "other records twice in whole segments": (
        lambda d: d.put(0, range(8), other=[4, 5, 6, 7]),
        """
        unasked: ? segment-overlap 4 in 4
        loss: cut-segment 0.seg 4..7 [368+240] loses; rebuild-index 0.idx; accept-loss ledger 4..7 loses; = cut 0.seg
          to 368; = make 0.idx of 160; = make ledger
        replica: cut-segment 0.seg 4..7 [368+240]; rebuild-index 0.idx; = cut 0.seg to 368; = make 0.idx of 160
        """,
    ),
    "a copy": (
        lambda d: copied(d, 4, "copy"),
        """
        unasked, loss, replica: remove-stray-copy copy.seg [0+368]; remove-orphan-index copy.idx [0+160]; = remove
          copy.seg; = remove copy.idx
        """,
    ),
    "a copy without an index": (
        lambda d: copied(d, 4, "copy", index=False),
        """
        unasked, loss, replica: remove-stray-copy copy.seg [0+368]; = remove copy.seg
        """,
    ),
    "a copy of the beginning": (
        lambda d: (copied(d, 4, "copy"), os.truncate(d.directory / "copy.seg", 128 + SIZE)),
        """
        unasked, loss, replica: remove-stray-copy copy.seg [0+188]; remove-orphan-index copy.idx [0+160]; = remove
          copy.seg; = remove copy.idx
        """,
    ),
    "another name": (
        lambda d: copied(d, 4, "copy", gone=True),
        """
        unasked, loss, replica: rename-segment copy.seg 4..7 [0+368]; remove-orphan-index copy.idx [0+160];
          rebuild-index 4.idx; = remove copy.seg; = remove copy.idx; = make 4.seg of 368; = make 4.idx of 160
        """,
    ),
    "another name of the last": (
        lambda d: copied(d, 8, "copy", gone=True),
        """
        unasked, loss, replica: rename-segment copy.seg 8..11 [0+368]; remove-orphan-index copy.idx [0+160];
          rebuild-index 8.idx; = remove copy.seg; = remove copy.idx; = make 8.seg of 368; = make 8.idx of 160
        """,
    ),
    "another name of the first": (
        lambda d: copied(d, 0, "copy", gone=True),
        """
        unasked, loss, replica: rename-segment copy.seg 0..3 [0+368]; remove-orphan-index copy.idx [0+160];
          rebuild-index 0.idx; = remove copy.seg; = remove copy.idx; = make 0.seg of 368; = make 0.idx of 160
        """,
    ),
    "another name without an index": (
        lambda d: copied(d, 4, "copy", index=False, gone=True),
        """
        unasked, loss, replica: rename-segment copy.seg 4..7 [0+368]; rebuild-index 4.idx; = remove copy.seg; = make
          4.seg of 368; = make 4.idx of 160
        """,
    ),
    "another name, and other records in its place": (
        lambda d: (copied(d, 4, "copy"), d.put(4, range(4, 8), other=[6])),
        """
        unasked, loss, replica: ? segment-stray in 4
        """,
    ),
    "another name of a damaged one": (
        lambda d: (d.spoil(5), copied(d, 4, "copy", gone=True)),
        """
        unasked, loss: ? segment-stray 4 in 4; ? segment-gap 4 x4 in 8
        replica: restore-segment 4.seg 4..7 [128+240]; rebuild-index 4.idx; = make 4.seg of 368; = make 4.idx of 160;
          ? segment-stray 4 in 4
        """,
    ),
    "another name of an empty one": (
        lambda d: (d.cut(4, 128), copied(d, 4, "copy", gone=True)),
        """
        unasked, loss: ? segment-stray in 4; ? segment-gap 4 x4 in 8
        replica: restore-segment 4.seg 4..7 [128+240]; rebuild-index 4.idx; = make 4.seg of 368; = make 4.idx of 160;
          ? segment-stray in 4
        """,
    ),
    "another name of one with a torn end": (
        lambda d: (d.cut(4, 250), copied(d, 4, "copy", gone=True)),
        """
        unasked, loss: ? segment-stray 4 in 4; ? segment-gap 4 x4 in 8
        replica: restore-segment 4.seg 4..7 [128+240]; rebuild-index 4.idx; = make 4.seg of 368; = make 4.idx of 160;
          ? segment-stray 4 in 4
        """,
    ),
    "another name of one that ends early": (
        lambda d: (d.put(4, range(4, 7)), copied(d, 4, "copy", gone=True)),
        """
        unasked, loss: ? segment-stray 4 in 4; ? segment-gap 4 x4 in 8
        replica: rename-segment copy.seg 4..6 [0+308]; remove-orphan-index copy.idx [0+152]; restore-record 4.seg 7..7
          [308+60]; rebuild-index 4.idx; = remove copy.seg; = remove copy.idx; = make 4.seg of 368; = make 4.idx of 160
        """,
    ),
    "another name behind a gap": (
        lambda d: (copied(d, 8, "copy", gone=True), d.drop(4)),
        """
        unasked: ? segment-stray 8 in 8; ? acknowledged-missing 4 x6 in 0
        loss: lower-local-low-water-mark control [132+36] loses; accept-loss ledger 4..9 loses; = write control
          [132+36]; = make ledger; ? segment-stray 8 in 8
        replica: rename-segment copy.seg 8..11 [0+368]; remove-orphan-index copy.idx [0+160]; restore-segment 4.seg 4..7
          [128+240]; rebuild-index 4.idx; rebuild-index 8.idx; = remove copy.seg; = remove copy.idx; = make 4.seg of
          368; = make 4.idx of 160; = make 8.seg of 368; = make 8.idx of 160
        """,
    ),
    "another name behind one with a torn end": (
        lambda d: (copied(d, 8, "copy", gone=True), d.cut(4, 250)),
        """
        unasked: rebuild-index 4.idx; = make 4.idx of 152; ? segment-stray 8 in 8; ? torn-tail 6 x1 in 4 [248+2]; ?
          acknowledged-missing 7 x3 in 4
        loss: cut-torn-tail 4.seg 6..6 [248+2] loses; lower-local-low-water-mark control [132+36] loses; rebuild-index
          4.idx; accept-loss ledger 6..9 loses; = write control [132+36]; = cut 4.seg to 248; = make 4.idx of 144; =
          make ledger; ? segment-stray 8 in 8
        replica: rename-segment copy.seg 8..11 [0+368]; remove-orphan-index copy.idx [0+160]; restore-record 4.seg 6..7
          [248+120]; rebuild-index 8.idx; = remove copy.seg; = remove copy.idx; = write 4.seg [248+120]; = make 8.seg
          of 368; = make 8.idx of 160
        """,
    ),
    "another name behind nothing": (
        lambda d: (copied(d, 4, "copy", gone=True), d.drop(0)),
        """
        unasked, loss: ? segment-stray 4 in 4; ? segment-gap 0 x8 in 8
        replica: rename-segment copy.seg 4..7 [0+368]; remove-orphan-index copy.idx [0+160]; restore-segment 0.seg 0..3
          [128+240]; rebuild-index 0.idx; rebuild-index 4.idx; = remove copy.seg; = remove copy.idx; = make 0.seg of
          368; = make 0.idx of 160; = make 4.seg of 368; = make 4.idx of 160
        """,
    ),
    "two other names": (
        lambda d: (copied(d, 8, "a", gone=True), copied(d, 4, "b", gone=True)),
        """
        unasked, loss, replica: rename-segment b.seg 4..7 [0+368]; remove-orphan-index b.idx [0+160]; rename-segment
          a.seg 8..11 [0+368]; remove-orphan-index a.idx [0+160]; rebuild-index 4.idx; rebuild-index 8.idx; = remove
          b.seg; = remove b.idx; = remove a.seg; = remove a.idx; = make 4.seg of 368; = make 4.idx of 160; = make
          8.seg of 368; = make 8.idx of 160
        """,
    ),
    "two other names of one": (
        lambda d: (copied(d, 8, "a"), copied(d, 8, "b", gone=True)),
        """
        unasked, loss, replica: rename-segment a.seg 8..11 [0+368]; remove-orphan-index a.idx [0+160]; rebuild-index
          8.idx; = remove a.seg; = remove a.idx; = make 8.seg of 368; = make 8.idx of 160; ? segment-stray in 8
        """,
    ),
    "a cluster key": (
        lambda d: d.flip(d.seg(4), 13),
        """
        unasked, loss, replica: write-segment-header 4.seg [0+128]; = write 4.seg [0+128]
        """,
    ),
    "a cluster key without an index": (
        lambda d: (d.flip(d.seg(4), 13), d.drop(4, data=False)),
        """
        unasked, loss: ? segment-key in 4 [12+16]
        replica: write-segment-header 4.seg [0+128]; rebuild-index 4.idx; = write 4.seg [0+128]; = make 4.idx of 160
        """,
    ),
    "a partition": (
        lambda d: d.flip(d.seg(4), 31),
        """
        unasked, loss, replica: write-segment-header 4.seg [0+128]; = write 4.seg [0+128]
        """,
    ),
    "a version": (
        lambda d: d.flip(d.seg(4), 3),
        """
        unasked, loss, replica: write-segment-header 4.seg [0+128]; = write 4.seg [0+128]
        """,
    ),
    "a first id": (
        lambda d: d.flip(d.seg(4), 39),
        """
        unasked, loss, replica: write-segment-header 4.seg [0+128]; = write 4.seg [0+128]
        """,
    ),
    "a whole header": (
        lambda d: d.seg(4).write_bytes(bytes(128) + d.seg(4).read_bytes()[128:]),
        """
        unasked, loss, replica: write-segment-header 4.seg [0+128]; = write 4.seg [0+128]
        """,
    ),
    "a header and a record": (
        lambda d: (d.flip(d.seg(4), 13), d.spoil(5)),
        """
        unasked: write-segment-header 4.seg [0+128]; = write 4.seg [0+128]; ? record-checksum 5 x1 in 4 [188+60]
        loss: write-segment-header 4.seg [0+128]; split-segment 4.seg 5..5 [188+60] loses; rebuild-index 4.idx;
          rebuild-index 6.idx; accept-loss ledger 5..5 loses; = write 4.seg [0+128]; = cut 4.seg to 188; = make 4.idx
          of 136; = make 6.seg of 248; = make 6.idx of 144; = make ledger
        replica: write-segment-header 4.seg [0+128]; restore-record 4.seg 5..5 [188+60]; = write 4.seg [0+128]; =
          write 4.seg [188+60]
        """,
    ),
    "a pipe": (
        lambda d: (d.drop(4), os.mkfifo(d.seg(4))),
        """
        unasked, loss, replica: ? special-file in 4
        """,
    ),
    "an empty index behind the end": (
        lambda d: d.idx(12).write_bytes(head(d, 8)),
        """
        unasked, loss, replica: remove-orphan-index 12.idx [0+128]; = remove 12.idx
        """,
    ),
    "an empty index inside a segment": (
        lambda d: d.idx(6).write_bytes(head(d, 8)),
        """
        unasked, loss, replica: remove-orphan-index 6.idx [0+128]; = remove 6.idx
        """,
    ),
    "an empty index beyond the end": (
        lambda d: d.idx(14).write_bytes(head(d, 8)),
        """
        unasked, replica: ? durable-missing 12 x2 in 8; ? index-orphan 14 in 14
        loss: remove-orphan-index 14.idx [0+128] loses; accept-loss ledger 12..13 loses; = remove 14.idx; = make
          ledger
        """,
    ),
    "part of a header behind the end": (
        lambda d: (d.seg(12).write_bytes(head(d, 8, 127)), d.idx(12).write_bytes(b"")),
        """
        unasked, loss, replica: remove-empty-segment 12.seg [0+127]; remove-orphan-index 12.idx [0+0]; = remove
          12.seg; = remove 12.idx
        """,
    ),
    "part of a header inside a segment": (
        lambda d: d.seg(6).write_bytes(head(d, 8, 127)),
        """
        unasked, replica: ? segment-header-short in 6 [0+127]
        loss: remove-empty-segment 6.seg [0+127] loses; = remove 6.seg
        """,
    ),
    "part of a header beyond the end": (
        lambda d: d.seg(14).write_bytes(head(d, 8, 127)),
        """
        unasked, replica: ? durable-missing 12 x2 in 8; ? segment-header-short in 14 [0+127]
        loss: remove-empty-segment 14.seg [0+127] loses; accept-loss ledger 12..13 loses; = remove 14.seg; = make
          ledger
        """,
    ),
    "an index without data in front of another cluster's segment": (
        lambda d: (d.drop(4, index=False), d.strange(8)),
        """
        unasked: ? segment-key in 8 [12+16]; ? index-orphan 4 x4 in 4
        loss: remove-orphan-index 4.idx [0+160] loses; accept-loss ledger 4..7 loses; = remove 4.idx; = make
          ledger; ? segment-key in 8 [12+16]
        """,
    ),
    "an index of records that are in the segment before": (
        lambda d: (d.put(0, range(8)), d.drop(4, data=False), shutil.copy(d.idx(8), d.idx(4)), d.seg(4).unlink()),
        """
        unasked, loss, replica: remove-orphan-index 4.idx [0+160]; = remove 4.idx
        """,
    ),
    "an index beyond the records of the segment before": (
        lambda d: (d.put(0, range(7)), d.seg(4).unlink()),
        """
        unasked, loss: remove-orphan-index 4.idx [0+160]; = remove 4.idx; ? segment-gap 7 x1 in 8
        replica: restore-record 0.seg 7..7 [548+60]; rebuild-index 0.idx; remove-orphan-index 4.idx [0+160]; = write
          0.seg [548+60]; = make 0.idx of 192; = remove 4.idx
        """,
    ),
    "an index that lists too many": (
        lambda d: d.idx(8).write_bytes(d.idx(8).read_bytes() + bytes(24)),
        """
        unasked, loss, replica: rebuild-index 8.idx; = make 8.idx of 160
        """,
    ),
    "an index that lists too few": (
        lambda d: d.list(8, 2),
        """
        unasked, loss, replica: rebuild-index 8.idx; = make 8.idx of 160
        """,
    ),
    "an index with a wrong entry": (
        lambda d: d.flip(d.idx(4), 143),
        """
        unasked, loss, replica: rebuild-index 4.idx; = make 4.idx of 160
        """,
    ),
    "an index that is gone": (
        lambda d: d.drop(4, data=False),
        """
        unasked, loss, replica: rebuild-index 4.idx; = make 4.idx of 160
        """,
    ),
    "marks": (
        lambda d: d.forget_marks(),
        """
        unasked, replica: ? control-pair-checksum in None [132+72]
        loss: reset-control-pair control [128+76] loses; = write control [128+76]
        """,
    ),
    "marks, and a torn end": (
        lambda d: (d.forget_marks(), d.cut(8, 128 + 4 * SIZE - 5)),
        """
        unasked, replica: ? control-pair-checksum in None [132+72]; ? torn-tail 11 in 8 [308+55]
        loss: reset-control-pair control [128+76] loses; cut-torn-tail 8.seg 11..11 [308+55]; rebuild-index 8.idx; =
          write control [128+76]; = cut 8.seg to 308; = make 8.idx of 152
        """,
    ),
    "marks, and a torn end in front of a segment": (
        lambda d: (d.forget_marks(), d.cut(4, 128 + 4 * SIZE - 5)),
        """
        unasked: ? control-pair-checksum in None [132+72]; ? torn-tail 7 x1 in 4 [308+55]
        loss: reset-control-pair control [128+76] loses; cut-torn-tail 4.seg 7..7 [308+55] loses; rebuild-index 4.idx;
          accept-loss ledger 7..7 loses; = write control [128+76]; = cut 4.seg to 308; = make 4.idx of 152; = make
          ledger; ? segment-gap 7 x1 in 8
        replica: restore-record 4.seg 7..7 [308+60]; = write 4.seg [308+60]; ? control-pair-checksum in None [132+72]
        """,
    ),
    "accepted: a segment that is gone": (
        lambda d: (d.drop(4), d.accepted((4, 7))),
        """
        unasked, loss: ? segment-gap 4 x4 in 8
        replica: restore-segment 4.seg 4..7 [128+240]; rebuild-index 4.idx; settle-accepted-loss ledger 4..7; = make
          4.seg of 368; = make 4.idx of 160; = remove ledger
        """,
    ),
    "accepted: a part of what is gone": (
        lambda d: (d.drop(4), d.accepted((4, 5))),
        """
        unasked, loss: ? segment-gap 4 x4 in 8
        replica: restore-segment 4.seg 4..7 [128+240]; rebuild-index 4.idx; settle-accepted-loss ledger 4..5; = make
          4.seg of 368; = make 4.idx of 160; = remove ledger
        """,
    ),
    "accepted: a part and what is there": (
        lambda d: (d.drop(4), d.accepted((2, 5))),
        """
        unasked, loss: ? segment-gap 4 x4 in 8
        replica: restore-segment 4.seg 4..7 [128+240]; rebuild-index 4.idx; settle-accepted-loss ledger 2..5; = make
          4.seg of 368; = make 4.idx of 160; = remove ledger
        """,
    ),
    "accepted: what is there again": (
        lambda d: d.accepted((4, 7)),
        """
        unasked, loss, replica:
        """,
    ),
    "accepted: what is not here, above a mark that rose": (
        lambda d: (d.drop(4), d.mark(10), d.accepted((4, 7))),
        """
        unasked, loss: ? segment-gap 4 x4 in 8
        replica: restore-segment 4.seg 4..7 [128+240]; rebuild-index 4.idx; settle-accepted-loss ledger 4..7; = make
          4.seg of 368; = make 4.idx of 160; = remove ledger
        """,
    ),
    "accepted: beside what is lost now": (
        lambda d: (d.spoil(5), d.accepted((6, 6))),
        """
        unasked: ? record-checksum 5 x1 in 4 [188+60]
        loss: split-segment 4.seg 5..5 [188+60] loses; rebuild-index 4.idx; rebuild-index 6.idx; accept-loss ledger
          5..5 loses; = cut 4.seg to 188; = make 4.idx of 136; = make 6.seg of 248; = make 6.idx of 144; = make ledger
        replica: restore-record 4.seg 5..5 [188+60]; settle-accepted-loss ledger 6..6; = write 4.seg [188+60]; =
          remove ledger
        """,
    ),
    "accepted: what is lost now": (
        lambda d: (d.spoil(5, 6), d.accepted((5, 5))),
        """
        unasked: ? record-checksum 5 x2 in 4 [188+120]
        loss: split-segment 4.seg 5..6 [188+120] loses; rebuild-index 4.idx; rebuild-index 7.idx; accept-loss ledger
          6..6 loses; = cut 4.seg to 188; = make 4.idx of 136; = make 7.seg of 188; = make 7.idx of 136; = make ledger
        replica: restore-record 4.seg 5..6 [188+120]; settle-accepted-loss ledger 5..5; = write 4.seg [188+120]; =
          remove ledger
        """,
    ),
    "accepted: the end": (
        lambda d: (d.drop(8), d.mark(7), d.accepted((8, 11))),
        """
        unasked, loss: ? loss-accepted 8 x4 in None
        replica: restore-segment 8.seg 8..11 [128+240]; rebuild-index 8.idx; settle-accepted-loss ledger 8..11; = make
          8.seg of 368; = make 8.idx of 160; = remove ledger
        """,
    ),
    "accepted: what never was": (
        lambda d: d.accepted((12, 14)),
        """
        unasked, loss, replica: ? loss-accepted 12 x3 in None
        """,
    ),
    "accepted: two apart": (
        lambda d: (d.drop(4), d.drop(8), d.mark(3), d.accepted((4, 5, 3), (8, 9, 3))),
        """
        unasked, loss: ? loss-accepted 4 x2 in None; ? loss-accepted 8 x2 in None
        replica: restore-segment 4.seg 4..7 [128+240]; restore-segment 8.seg 8..9 [128+120]; rebuild-index 4.idx;
          rebuild-index 8.idx; settle-accepted-loss ledger 4..5; settle-accepted-loss ledger 8..9; = make 4.seg of
          368; = make 4.idx of 160; = make 8.seg of 248; = make 8.idx of 144; = remove ledger
        """,
    ),
    "disputed": (
        lambda d: d.accepted((5, 5), disputed=True),
        """
        unasked, loss: ? loss-accepted 5 x1 in None
        replica: settle-accepted-loss ledger 5..5; = remove ledger
        """,
    ),
    "disputed, and another record here": (
        lambda d: (d.put(4, range(4, 8), other=[5]), d.accepted((5, 5), disputed=True)),
        """
        unasked, loss: ? loss-accepted 5 x1 in None
        replica: restore-record 4.seg 5..5 [188+60] loses; settle-accepted-loss ledger 5..5; = write 4.seg [188+60]; =
          remove ledger
        """,
    ),
    "disputed over the end of a segment": (
        lambda d: (d.put(4, range(4, 8), other=[7]), d.accepted((7, 8), disputed=True)),
        """
        unasked, loss: ? loss-accepted 7 x2 in None
        replica: restore-record 4.seg 7..7 [308+60] loses; settle-accepted-loss ledger 7..8; = write 4.seg [308+60]; =
          remove ledger
        """,
    ),
}


@pytest.mark.turns(8)
@pytest.mark.parametrize("name", CASES)
def test_what_is_planned(tmp_path: Path, name: str) -> None:
    """Unasked, with leave to lose, and with a sound replica."""
    damage, expected = CASES[name]
    wanted = ways(expected)
    assert {way: planned(tmp_path / way, damage, way) for way in wanted} == wanted
