"""Which transactions are missing is one answer of verify, dump, the records view and a stream, however a directory is damaged."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.inspect.helpers import age
from tests.spark.reading import read
from tests.spark.streaming import Query
from tests.trust.damage import draw
from tests.trust.running import SHARED_MEMORY
from tests.trust.scene import plant
from waltzctl.engine.findings import Code, Finding
from waltzctl.engine.inspect.dump import dump_records
from waltzctl.engine.inspect.verify import verify

Place = tuple[int | None, int]
"""A partition and a transaction id."""
MANY = 2_000
SEEDS = [
    *range(60),
    *(142, 145, 219, 236, 267, 296, 355, 457, 1157),  # each broke a rule below once
    *(pytest.param(seed, marks=pytest.mark.long) for seed in range(60, MANY)),
]
NAMES = {
    Code.SEGMENT_OVERLAP,
    Code.SEGMENT_HEADER_SHORT,
    Code.INDEX_ORPHAN,
    Code.INDEX_MISSING,
    Code.SPECIAL_FILE,
}
"""Where files do not have the names of what is in them, whoever goes by names tells more than is missing.

A stream does so where a segment has another name as well; who reads a whole partition, where two have changed theirs.
"""


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="waltzctl-views-", dir=SHARED_MEMORY, ignore_cleanup_errors=True) as one:
        yield Path(one)


def missing(told: Iterable[tuple[int | None, int | None, int | None]]) -> set[Place]:
    return {
        (partition, number)
        for partition, first, many in told
        if first is not None
        for number in range(first, first + (many or 0))
    }


def of_findings(items: Iterable[object]) -> set[Place]:
    return missing((one.partition, one.transaction_id, one.missing) for one in items if isinstance(one, Finding))


@pytest.mark.turns(8)
@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_missing_is_one_answer(seed: int, place: Path) -> None:
    root = age(plant(draw(seed).scene.files, place / "d"))
    findings = [one for one in verify([root]) if isinstance(one, Finding)]
    known = of_findings(findings)
    misnamed = {one.partition for one in findings if one.code in NAMES}
    renamed = Counter(one.partition for one in findings if one.code is Code.SEGMENT_NAME)
    exchanged = {partition for partition, count in renamed.items() if count > 1}

    dumped = of_findings(dump_records(root))
    assert dumped >= known
    assert {one for one in dumped - known if one[0] not in misnamed | exchanged} == set()
    viewed = [row for row in read(root) if row["finding"]]
    assert missing((row["partition"], row["transaction_id"], row["missing"]) for row in viewed) == dumped

    misnamed |= set(renamed)
    if any(one.code is Code.SPECIAL_FILE and one.partition is None for one in findings):
        return  # a stream does not begin without a control file that can be read: it ends with an error that names it
    rows = Query(root).run()
    streamed = [row for row in rows if row["finding"]]
    told = missing((row["partition"], row["transaction_id"], row["missing"]) for row in streamed)
    # what was given up is issued again, so that a stream that told it would go on behind records which are still to come
    given_up = of_findings(one for one in findings if one.code is Code.LOSS_ACCEPTED)
    # nor does it tell of a torn tail behind the last record: that may be a record which is just being written
    last = {one.partition: max(f.segment or 0 for f in findings if f.partition == one.partition) for one in findings}
    tails = of_findings(
        one for one in findings if one.code is Code.TORN_TAIL and (one.segment or 0) == last[one.partition]
    )
    # and a record that is damaged in one of two segments is none that is missing
    delivered = {(row["partition"], row["transaction_id"]) for row in rows if row["data_length"] is not None}
    # nor of what may be in a last data file that is none: that would be left out where it is a file again
    ends = {(one.partition, one.segment) for one in findings if one.code is Code.SPECIAL_FILE}
    hidden = {
        one
        for one in known
        if (one[0], last[one[0]]) in ends and not any(it[0] == one[0] and it > one for it in delivered)
    }
    assert {one for one in known & delivered if one[0] not in misnamed} <= given_up
    assert told >= known - given_up - tails - hidden - delivered
    assert {one for one in told - known if one[0] not in misnamed} == set()
