"""What a stream says of transactions that are proven to have been behind the last record, by what proves them."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from waltzctl.engine.findings import Where, loss_finding
from waltzctl.engine.log.evidence import Evidence
from waltzctl.engine.log.view import FileState, PartitionView, SegmentView
from waltzctl.engine.losses import BelowMark, BelowProof, DataGone, DirectoryGone, Loss
from waltzctl.engine.spark import stream_losses
from waltzctl.engine.spark.stream_losses import Promised

DIRECTORY = Path("/s/0")
WHERE = Where(Path("/s"), 0, DIRECTORY)


def _segment(first: int, data: int | None, index: int | None) -> SegmentView:
    files = [None if size is None else FileState(DIRECTORY / "f", size, 0, 0) for size in (data, index)]
    return SegmentView(0, first, files[0], files[1])


SEGMENTS = (_segment(0, 500, 200), _segment(40, 500, 200), _segment(50, None, 128 + 8 * 30))
"""The data of the last one is gone."""


@pytest.mark.parametrize(
    ("there", "mark", "proven", "lost", "expected"),
    [
        (False, 59, Evidence(mark=60), (0, 60), DirectoryGone(59, 7)),
        (False, 59, Evidence(mark=60), (5, 60), BelowMark(5, 59, 40)),
        (True, 59, Evidence(mark=60), (0, 60), BelowMark(0, 59, 40)),
        (True, None, Evidence(), (45, 60), BelowMark(45, 59, 40)),
        (True, 79, Evidence(mark=80), (45, 60), BelowMark(45, 79, 40)),
        # the index without data, up to its end and not beyond
        (True, None, Evidence(without_data=80, index_without_data=50), (45, 80), DataGone(50, 30, 368, ((45, 80),))),
        (True, 78, Evidence(without_data=80, index_without_data=50), (45, 80), DataGone(50, 30, 368, ((45, 80),))),
        (True, 79, Evidence(without_data=80, index_without_data=50), (45, 80), BelowMark(45, 79, 40)),
        (True, None, Evidence(without_data=80, index_without_data=50), (45, 79), DataGone(50, 30, 368, ((45, 79),))),
        (True, None, Evidence(without_data=80, index_without_data=50), (45, 81), BelowMark(45, 80, 40)),
        (True, None, Evidence(without_data=80, index_without_data=44), (45, 80), BelowProof(45, 80, 40, False)),
        # the names of files
        (True, None, Evidence(names=80), (45, 80), BelowProof(45, 80, 40, False)),
        (True, 10, Evidence(names=80), (45, 79), BelowProof(45, 79, 40, False)),
        (True, None, Evidence(names=80), (45, 81), BelowMark(45, 80, 40)),
        # an index with data, of the last segment or of another one
        (True, None, Evidence(names=50, with_data=80, index_with_data=40), (45, 80), BelowProof(45, 80, 40, True)),
        (True, None, Evidence(names=50, with_data=80, index_with_data=0), (45, 80), BelowProof(45, 80, 40, False)),
        (True, None, Evidence(names=79, with_data=80, index_with_data=40), (45, 80), BelowProof(45, 80, 40, True)),
        (True, None, Evidence(names=80, with_data=80, index_with_data=40), (45, 80), BelowProof(45, 80, 40, False)),
        (True, None, Evidence(names=80, with_data=79, index_with_data=40), (45, 80), BelowProof(45, 80, 40, False)),
    ],
)
def test_a_loss_is_told_by_what_proves_it(
    monkeypatch: pytest.MonkeyPatch,
    there: bool,
    mark: int | None,
    proven: Evidence,
    lost: tuple[int, int],
    expected: Loss,
) -> None:
    monkeypatch.setattr(stream_losses, "evidence", lambda view, local: proven if local == mark else None)
    promised = Promised(PartitionView(0, DIRECTORY, SEGMENTS), there, mark, 7)
    beyond = [(lost[1], max(lost[1], high)) for _, high in expected.ids]
    part = promised.lost(*lost, WHERE)
    assert part.finding == loss_finding(expected, WHERE, elsewhere=beyond)
    assert part.bytes == 0


def test_without_any_segment_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_losses, "evidence", lambda view, mark: Evidence(mark=10))
    promised = Promised(PartitionView(0, DIRECTORY, ()), True, 9, None)
    assert promised.lost(0, 10, WHERE).finding == loss_finding(BelowMark(0, 9, None), WHERE)
