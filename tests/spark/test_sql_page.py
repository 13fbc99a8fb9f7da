"""docs/spark-sql.md: every statement of the page, in its order, over two replicas of which one is damaged."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from tests.builders import build_directory
from tests.inspect.helpers import age, flip, seg

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark-sql.md"
BAD = 5


def statements() -> list[str]:
    blocks = re.findall(r"^```sql\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    return [one.strip() for block in blocks for one in re.split(r";\s*\n", block) if one.strip()]


@pytest.mark.turns(8)
def test_what_the_page_on_sql_says_can_be_asked(spark: SparkSession, tmp_path: Path) -> None:
    counts = {0: 25, 1: 20, 3: 3}
    for name in ("node-1", "node-2"):
        build_directory(tmp_path / name, counts, per_segment=10, size=30)
    flip(seg(tmp_path / "node-1", 0, 0), 128 + 70 * BAD + 40)
    age(tmp_path / "node-1")

    def answer(statement: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in spark.sql(statement.replace("/data/", f"{tmp_path}/")).collect()]

    try:
        answers = [answer(one) for one in statements()]
    finally:
        for view in ("records", "segments", "findings", "replica"):
            spark.catalog.dropTempView(view)
    *made, counted, bad, found, said, wrong, clients, gaps, segments, differing = answers
    assert made == [[]] * 4
    assert [row[:4] for row in counted] == [(0, 24, 0, 24), (1, 20, 0, 19), (3, 3, 0, 2)]
    assert bad == [(0, BAD, "record-checksum", 1)]
    assert found == [("record-checksum", "damage", 1)]
    assert len(said) == 10
    assert wrong == [(0,)]
    assert sum(row[-1] for row in clients) == 47
    assert gaps == [(0, BAD, BAD)]
    assert sum(row[-1] for row in segments) == 48
    assert len(segments) == 6
    ((partition, number, here, there),) = differing
    assert (partition, number, here) == (0, BAD, None)
    assert there
