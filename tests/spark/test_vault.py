"""A backup in a vault is a path for the data source, as a directory is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.backup.vaults import backup, vault
from tests.builders import build_directory

pytestmark = pytest.mark.xdist_group("spark")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.turns(10)
def test_records_of_a_backup_are_those_of_the_directory(spark: SparkSession, tmp_path: Path) -> None:
    source = build_directory(tmp_path / "source", {0: 120, 1: 30}, size=50)
    place = vault(tmp_path)
    backup(place, source)

    def rows(path: str, **options: str) -> list[tuple[object, ...]]:
        frame = spark.read.format("waltz").options(**options).load(path)
        wanted = frame.select("partition", "transaction_id", "header", "record_checksum", "finding")
        return sorted(tuple(row) for row in wanted.collect())

    assert rows(f"vault:{place}::latest") == rows(str(source))
    assert len(rows(f"vault:{place}::latest")) == 150
    frame = spark.read.format("waltz").load(f"vault:{place}::latest")
    assert [row.transaction_id for row in frame.filter("partition = 1 and transaction_id = 29").collect()] == [29]
