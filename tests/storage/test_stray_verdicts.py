"""Data files under names that no node gives: why a released node refuses one, and which transactions it hides."""

from __future__ import annotations

import os
import random
import uuid
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.builders import KEY, make_records, segment_header, write_segment
from tests.storage.support import damage
from waltzctl.engine.log.view import StraySegment, view_partition
from waltzctl.engine.storage.strays import StrayVerdict, hidden, ids_of, joined, judge_stray
from waltzctl.formats.segment import HEADER_SIZE, SegmentHeader

OTHER = uuid.UUID(int=KEY.int ^ 1)
GOOD = segment_header(0, 70)
SHORT = GOOD.encode()[:127]


def stray(path: Path, data: SegmentHeader | bytes, index: SegmentHeader | bytes | None) -> StraySegment:
    for suffix, header in ((".seg", data), (".idx", index)):
        if header is not None:
            (path / f"copy{suffix}").write_bytes(header if isinstance(header, bytes) else header.encode())
    (found,) = view_partition(path, 0).strays
    return found


@pytest.mark.parametrize(
    ("data", "index", "refusal", "first"),
    [
        (GOOD, GOOD, None, 70),
        (GOOD, None, "there is no index copy.idx", 70),
        (SHORT, GOOD, "it ends inside its header", None),
        (SHORT, None, "it ends inside its header", None),
        (GOOD, SHORT, "its index copy.idx ends inside its header", 70),
        (replace(GOOD, cluster_key=OTHER), GOOD, f"it belongs to the cluster {OTHER}", None),
        (replace(GOOD, partition=1), GOOD, "it belongs to partition 1", None),
        (replace(GOOD, partition=1, cluster_key=OTHER), GOOD, f"it belongs to the cluster {OTHER}", None),
        (replace(GOOD, partition=1), None, "it belongs to partition 1", None),
        (GOOD, replace(GOOD, cluster_key=OTHER), f"its index copy.idx belongs to the cluster {OTHER}", None),
        (GOOD, replace(GOOD, partition=1), "its index copy.idx belongs to partition 1", None),
        (GOOD, replace(GOOD, first_transaction_id=71), None, None),
        (replace(GOOD, version=1), replace(GOOD, version=1), None, None),
        (replace(GOOD, version=-1), GOOD, None, None),
        (GOOD, replace(GOOD, version=1), None, 70),
        (replace(GOOD, first_transaction_id=-1), replace(GOOD, first_transaction_id=-1), None, None),
        (replace(GOOD, first_transaction_id=0), replace(GOOD, first_transaction_id=0), None, 0),
        (replace(GOOD, created=1), GOOD, None, 70),
    ],
)
def test_the_verdict(
    tmp_path: Path,
    data: SegmentHeader | bytes,
    index: SegmentHeader | bytes | None,
    refusal: str | None,
    first: int | None,
) -> None:
    found = stray(tmp_path, data, index)
    verdict = judge_stray(found, KEY, 0)
    assert (verdict.refusal, verdict.first, verdict.own) == (refusal, first, first is not None)
    assert verdict.header == (None if data == SHORT else data)
    assert verdict.stray == found


def test_what_is_not_known_is_not_compared(tmp_path: Path) -> None:
    other = replace(GOOD, partition=1, cluster_key=OTHER)
    found = stray(tmp_path, other, other)
    for key, partition, refusal in (
        (None, None, None),
        (None, 1, None),
        (OTHER, None, None),
        (OTHER, 1, None),
        (None, 0, "it belongs to partition 1"),
        (KEY, None, f"it belongs to the cluster {OTHER}"),
    ):
        verdict = judge_stray(found, key, partition)
        assert (verdict.refusal, verdict.own) == (refusal, refusal is None)
    assert StrayVerdict(found, other, None, own=False).first is None
    assert StrayVerdict(found, None, None, own=True).first is None


class TestIds:
    """The transactions that a stray holds, by reading it."""

    def own(self, path: Path, first: int = 20, count: int = 10) -> StraySegment:
        written = write_segment(path, make_records(first + count)[first:], first=first)
        written.rename(path / "copy.seg")
        written.with_suffix(".idx").rename(path / "copy.idx")
        (found,) = view_partition(path, 0).strays
        return found

    def test_of_an_intact_one(self, tmp_path: Path) -> None:
        found = self.own(tmp_path)
        assert ids_of(judge_stray(found, KEY, 0)) == ((20, 29),)
        assert ids_of(judge_stray(found, OTHER, 0)) == ()
        (tmp_path / "copy.seg").unlink()
        verdict = StrayVerdict(found, segment_header(0, 20), None, own=True)
        assert ids_of(verdict) == ()

    @pytest.mark.parametrize("count", [0, 1])
    def test_of_a_short_one(self, tmp_path: Path, count: int) -> None:
        assert ids_of(judge_stray(self.own(tmp_path, count=count), KEY, 0)) == (((20, 20),) if count else ())

    def test_of_a_damaged_one(self, tmp_path: Path) -> None:
        """What is intact on either side of the damage."""
        records = make_records(30)[20:]
        found = self.own(tmp_path)
        damage(found.data.path, HEADER_SIZE + sum(one.size for one in records[:4]) + 9)  # type: ignore[arg-type]
        assert ids_of(judge_stray(found, KEY, 0)) == ((20, 23), (25, 29))
        os.truncate(found.data.path, found.data.size - 1)
        assert ids_of(judge_stray(found, KEY, 0)) == ((20, 23), (25, 28))


def test_ranges_against_sets_of_numbers() -> None:
    """Every pair of lists of up to three ranges among a few numbers, drawn at random."""
    dice = random.Random(7)
    for _ in range(3000):
        one, other = (
            [(low, low + dice.randrange(4)) for low in (dice.randrange(12) for _ in range(dice.randrange(4)))]
            for _ in range(2)
        )
        numbers, held = ({n for low, high in ranges for n in range(low, high + 1)} for ranges in (one, other))
        found = joined(one)
        assert {n for low, high in found for n in range(low, high + 1)} == numbers
        assert all(behind[0] > before[1] + 1 for before, behind in pairwise(found))
        rest = hidden(one, other)
        assert {n for low, high in rest for n in range(low, high + 1)} == numbers - held
        assert list(rest) == sorted(rest)
