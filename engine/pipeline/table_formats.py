"""Table formats other than Parquet: the packages and settings that Spark needs for them.

A format's package is built for one minor version of Spark, which its name contains; with another version it fails at run time
(``NoSuchMethodError``).  So a new project names the package for the installed PySpark, and each run compares the two.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from waltzctl.engine.errors import InvalidRequestError

PACKAGES = "spark.jars.packages"
_FOR = re.compile(r":(?:delta-spark_|iceberg-spark-runtime-)(\d+\.\d+)_")
_DEFAULT = "spark.sql.sources.default"
"""The setting that gives tables their format: see `engine.pipeline.tables.Tables.format`."""
_FIRST_WITH_FLOW = (4, 3)
"""The first Spark with `create_auto_cdc_flow`."""


@dataclass(frozen=True, slots=True)
class FormatPackages:
    """What Spark needs for a format.

    `packages`: coordinates in Maven Central by Spark's minor version, the newest last.  `settings`: of Spark; in them
    ``{directory}`` stands for the URI of the project's directory.
    """

    packages: Mapping[str, str]
    settings: Mapping[str, str]

    def package_for(self, spark: str | None) -> str:
        """The coordinates for a version of Spark; for an unknown version, or None, those for the newest."""
        return self.packages.get(spark or "", [*self.packages.values()][-1])


TABLE_FORMATS: Mapping[str, FormatPackages] = {
    "delta": FormatPackages(
        {"4.1": "io.delta:delta-spark_4.1_2.13:4.4.0", "4.2": "io.delta:delta-spark_4.2_2.13:4.4.0"},
        {
            # Spark itself has newer versions of these.
            "spark.jars.excludes": "org.apache.hadoop:*,org.apache.parquet:*,org.apache.logging.log4j:*,org.slf4j:*,"
            "com.fasterxml.jackson.core:*,org.roaringbitmap:*,org.xerial.snappy:*,com.github.luben:*,io.airlift:*,"
            "commons-pool:*,commons-logging:*",
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            _DEFAULT: "delta",
        },
    ),
    "iceberg": FormatPackages(
        {"4.1": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"},
        {
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            "spark.sql.catalog.spark_catalog": "org.apache.iceberg.spark.SparkSessionCatalog",
            # Iceberg cannot use the Derby of Spark's catalog (``NoClassDefFoundError: BoneCPConfig``).
            "spark.sql.catalog.spark_catalog.type": "hadoop",
            "spark.sql.catalog.spark_catalog.warehouse": "{directory}",
            _DEFAULT: "iceberg",
        },
    ),
}
"""By name; Parquet needs nothing."""


def installed_spark() -> str | None:
    """The minor version of the PySpark that is installed ("4.2"); None where there is none."""
    try:
        return ".".join(version("pyspark").split(".")[:2])
    except PackageNotFoundError:
        return None


def merges_changes(table_format: str) -> bool:
    """Whether Spark itself maintains `state`: the format supports MERGE, and the installed Spark has `create_auto_cdc_flow`."""
    spark = installed_spark()
    return table_format in TABLE_FORMATS and spark is not None and tuple(map(int, spark.split("."))) >= _FIRST_WITH_FLOW


def defaults_for(table_format: str, spark: str | None, directory: str) -> str:
    """The lines of ``spark-defaults.conf`` for a format.  `spark`: a minor version, or None; `directory`: a URI."""
    known = TABLE_FORMATS.get(table_format)
    if known is None:
        return ""
    lines = [
        f"{PACKAGES} {known.package_for(spark)}",
        *(f"{name} {value.format(directory=directory)}" for name, value in known.settings.items()),
    ]
    return (
        f"# {table_format.capitalize()}, made for the Spark whose version is in its name.\n" + "\n".join(lines) + "\n"
    )


def check_packages(table_format: str, packages: str, spark: str | None) -> None:
    """Raise InvalidRequestError where a run's packages are for another version than the PySpark that runs it."""
    wanted = _FOR.search(packages)
    if wanted is None or spark is None or wanted[1] == spark:
        return
    known = TABLE_FORMATS.get(table_format)
    package = None if known is None else known.packages.get(spark)
    raise InvalidRequestError(
        f"{packages} is made for Spark {wanted[1]}, and PySpark here is {spark}",
        advice=f"pip install 'waltzctl[{table_format}]' brings a PySpark for which {table_format} exists"
        if package is None
        else f"name {package} in conf/spark-defaults.conf",
    )


def check_default(table_format: str, settings: Mapping[str, str]) -> None:
    """Raise InvalidRequestError where Spark's settings are those of another format: ``waltz.format`` alone was changed."""
    made = settings.get(_DEFAULT, "parquet")
    if table_format in TABLE_FORMATS and made.lower() != table_format:
        raise InvalidRequestError(
            f"waltz.format is {table_format}, and by conf/spark-defaults.conf Spark makes tables of {made}",
            advice=f"write there what waltzctl pipeline init --format {table_format} writes into a new project; tables that are"
            " there keep their format until the project's storage is removed",
        )
