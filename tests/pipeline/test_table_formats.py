"""Formats of tables beside Parquet: for which Spark there is one, what is said where there is none, and their tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.pipeline import table_formats
from waltzctl.engine.pipeline.project import defaults_of, open_project
from waltzctl.engine.pipeline.project_creation import create_project
from waltzctl.engine.pipeline.table_formats import (
    PACKAGES,
    TABLE_FORMATS,
    check_default,
    check_packages,
    defaults_for,
    installed_spark,
    merges_changes,
)

EACH = [(name, spark) for name, one in TABLE_FORMATS.items() for spark in one.packages]


@pytest.mark.parametrize(("table_format", "spark"), EACH)
def test_a_project_names_the_package_of_the_spark_that_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table_format: str, spark: str
) -> None:
    monkeypatch.setattr(table_formats, "version", lambda _name: f"{spark}.7")
    create_project(tmp_path / "p", ["/n"], table_format)
    packages = defaults_of(tmp_path / "p")[PACKAGES]
    assert f"{spark}_2.13:" in packages
    check_packages(table_format, packages, spark)
    check_packages(table_format, packages, None)
    check_packages(table_format, "", spark)


def test_a_package_for_another_spark_is_named_before_java_starts() -> None:
    delta = TABLE_FORMATS["delta"].packages
    with pytest.raises(InvalidRequestError, match=r"made for Spark 4\.2, and PySpark here is 4\.1; name .*_4\.1_"):
        check_packages("delta", f"a:b:1,{delta['4.2']}", "4.1")
    with pytest.raises(InvalidRequestError, match=r"waltzctl\[iceberg\]"):
        check_packages("iceberg", TABLE_FORMATS["iceberg"].packages["4.1"], "4.3")


@pytest.mark.parametrize("table_format", TABLE_FORMATS)
def test_a_format_that_is_in_one_of_two_files_only_is_told_before_java_starts(
    tmp_path: Path, table_format: str
) -> None:
    """waltz.format was changed, and the tables went on to be of Parquet."""
    create_project(tmp_path / "p", ["/n"])
    create_project(tmp_path / "q", ["/n"], table_format)
    check_default(table_format, defaults_of(tmp_path / "q"))
    check_default("parquet", defaults_of(tmp_path / "p"))
    with pytest.raises(InvalidRequestError, match=f"waltz.format is {table_format}, and by .* tables of parquet"):
        check_default(table_format, defaults_of(tmp_path / "p"))


def test_parquet_needs_nothing() -> None:
    assert defaults_for("parquet", "4.3", "file:///p") == ""
    assert not merges_changes("parquet")


@pytest.mark.parametrize(("spark", "merges"), [("4.1.4", False), ("4.2.0", False), ("4.3.0", True), ("5.0.1", True)])
def test_spark_keeps_the_state_from_the_version_on_that_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: str, merges: bool
) -> None:
    monkeypatch.setattr(table_formats, "version", lambda _name: spark)
    create_project(tmp_path / "p", ["/n"], "delta")
    assert open_project(tmp_path / "p").state_in_files is not merges


def test_without_pyspark_a_project_is_made_for_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_name: str) -> str:
        raise table_formats.PackageNotFoundError

    monkeypatch.setattr(table_formats, "version", missing)
    create_project(tmp_path / "p", ["/n"], "delta")
    assert defaults_of(tmp_path / "p")[PACKAGES] == TABLE_FORMATS["delta"].packages["4.2"]
    assert open_project(tmp_path / "p").state_in_files


@pytest.mark.long
@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize("table_format", [*TABLE_FORMATS])
def test_the_tables_of_a_format_are_what_was_written(tmp_path: Path, table_format: str) -> None:
    """Run twice, with more transactions the second time; the packages come from Maven Central."""
    there, here = TABLE_FORMATS[table_format].packages, installed_spark()
    if here not in there:
        pytest.skip(f"{table_format} exists for Spark {' and '.join(there)}, and PySpark here is {here}")
    from tests.pipeline.test_runs import Cluster, Runner, check

    cluster = Cluster(tmp_path)
    cluster.write([(120, 60), (120, 60), (120, 30)], 55)
    create_project(tmp_path / "lake", [str(one) for one in cluster.nodes], table_format)
    runner = Runner(tmp_path / "lake")
    try:
        found = runner.run(complete=True)
        assert "error" not in found, found
        check(found["tables"], cluster, replicas_at=-1)
        cluster.write([(180, 160), (180, 160), (180, 56)], 140)
        found = runner.run()
        assert "error" not in found, found
        check(found["tables"], cluster, replicas_at=55)
    finally:
        runner.kill()
