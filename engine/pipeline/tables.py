"""The tables of a pipeline as Spark's data frames; the project's transformations give them names and formats.

``project(__file__)`` in a file of ``transformations/`` opens the project that contains the file.  Each table is a method of the
same name, with the session as its argument.  Nothing is read before Spark runs the table.

Two rules of Spark's limit how a table can be written:

1. A function that defines a table, and the module with it, must not make requests of the Spark server (4.3:
   ``ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION``).  `mapInArrow` makes one, for the columns of its input, and so does every
   schema given as text.  So Python code is used as Arrow functions of columns, with types given as values.  Such a function
   returns a row for each input row; one that counts returns an array in the first row of a batch, and empty arrays after it.
2. The server resolves `withColumn` and joins at once.  While a table of the pipeline does not exist they fail; once it exists
   they are bound to its present state, and Spark neither sees the dependency between the two tables nor waits.  So there are
   only `select`, `where`, `groupBy` and `union`.
"""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # at module level: Spark reads a function's annotations to tell that it takes Arrow arrays

from waltzctl.engine.net.addresses import names_node
from waltzctl.engine.pipeline import pipeline_data_source
from waltzctl.engine.pipeline.column_types import arrow_columns, parse_columns
from waltzctl.engine.pipeline.decoding import check_columns, decoded
from waltzctl.engine.pipeline.pipeline_data_source import FORMAT
from waltzctl.engine.pipeline.project import DECODER, Project, open_project
from waltzctl.engine.pipeline.quarantine_rows import OF_FINDINGS, OF_REFUSED, finding_rows, refused_rows
from waltzctl.engine.pipeline.schemas import AGREED, DIFFERENCES, TALLY
from waltzctl.engine.pipeline.state_files import BUCKET
from waltzctl.engine.pipeline.tallies import COUNTED, tally

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

_PLACE = ("node", "partition")


def project(transformation: str) -> Tables:
    """The tables of the project with this file in ``transformations/``.  Raises NotWaltzError, InvalidRequestError."""
    return Tables(open_project(Path(transformation).absolute().parent.parent))


def decoded_type(opened: Project) -> StructType:
    """The type of the decoded columns.  Raises InvalidRequestError for an invalid SCHEMA or KEY."""
    from waltzctl.engine.errors import InvalidRequestError

    decoder, path = opened.decoder, opened.directory / DECODER
    try:
        made = parse_columns(decoder.schema)
    except ValueError as error:
        raise InvalidRequestError(
            f"{path}: SCHEMA: {error}", advice='for instance "key STRING, value STRING"'
        ) from error
    check_columns(decoder, {one.name: one.dataType.typeName() for one in made}, path)
    return made


class Tables:
    """See the module."""

    def __init__(self, opened: Project) -> None:
        self._project = opened

    @property
    def format(self) -> str | None:
        """The format of the tables in the catalog, for ``@dp.table``.

        None: the one of ``spark.sql.sources.default``.  Spark sets a declared format again at every run, which Delta refuses for
        an existing table (Spark 4.2, Delta 4.4: ``DELTA_CANNOT_CHANGE_PROVIDER``).
        """
        return self._project.format if self._project.format == "parquet" else None

    def _stream(self, spark: SparkSession, what: str) -> DataFrame:
        return spark.readStream.format(FORMAT).options(**self._options(what)).load()

    def _options(self, what: str) -> dict[str, str]:
        found = {**self._project.options, "what": what, "paths": json.dumps(self._project.sources)}
        return found if self._project.metadata is None else {**found, "metadata": self._project.metadata}

    @cached_property
    def _decoded_type(self) -> StructType:
        return decoded_type(self._project)

    def records(self, spark: SparkSession) -> DataFrame:
        """Every record of every replica once, with its data, and a row for each place that is damaged or missing."""
        return self._stream(spark, pipeline_data_source.RECORDS)

    def transactions(self, spark: SparkSession) -> DataFrame:
        """The transactions that the replicas agree on, up to the committed mark, with the decoder's columns."""
        from pyspark.sql.functions import col
        from pyspark.sql.types import StringType, StructField, StructType

        agreed = self._stream(spark, pipeline_data_source.TRANSACTIONS)
        kind = self._decoded_type
        made = StructType([StructField("decoded", kind), StructField("refused", StringType())])
        decode, arrow = self._project.decoder.decode, pa.struct(list(arrow_columns(kind)))

        def of_batch(header: pa.Array, data: pa.Array) -> pa.Array:
            return decoded(header, data, decode, arrow)

        both = _by_batch(of_batch, made)(col("header"), col("data"))
        return agreed.select("*", both.alias("made")).selectExpr(
            *AGREED.names[:-1], "made.decoded AS decoded", "replicas", "made.refused AS refused"
        )

    def quarantine(self, spark: SparkSession) -> DataFrame:
        """Every row with a finding, differing copy and transaction that the decoder refused, each with its remedy."""
        from pyspark.sql.functions import struct

        sources, columns = self._project.sources, _columns(DIFFERENCES)

        def of_findings(rows: pa.Array) -> pa.Array:
            return finding_rows(rows, sources)

        def of_refused(rows: pa.Array) -> pa.Array:
            return refused_rows(rows)

        bad = spark.readStream.table("records").where("finding IS NOT NULL")
        refused = spark.readStream.table("transactions").where("refused IS NOT NULL")
        return (
            bad.select(_by_batch(of_findings, columns)(struct(*OF_FINDINGS)).alias("row"))
            .selectExpr("row.*")
            .union(self._stream(spark, pipeline_data_source.DIFFERENCES))
            .union(refused.select(_by_batch(of_refused, columns)(struct(*OF_REFUSED)).alias("row")).selectExpr("row.*"))
        )

    def changes(self, spark: SparkSession) -> DataFrame:
        """The decoded transactions: the decoder's key, `partition`, `transaction_id`, the decoder's other columns."""
        kind, key = self._decoded_type, self._project.decoder.key
        rest = [name for name in kind.names if name not in key]
        made = spark.readStream.table("transactions").where("decoded IS NOT NULL")
        return made.selectExpr(
            *(f"decoded.`{one}`" for one in key), "partition", "transaction_id", *(f"decoded.`{one}`" for one in rest)
        )

    def tallies(self, spark: SparkSession) -> DataFrame:
        """Counts of the records of each batch, which `completeness` and `activity` add up."""
        from pyspark.sql.functions import explode, struct
        from pyspark.sql.types import ArrayType

        def of_batch(rows: pa.Array) -> pa.Array:
            return tally(rows)

        counted = _by_batch(of_batch, ArrayType(_columns(TALLY)))(struct(*COUNTED))
        return spark.readStream.table("records").select(explode(counted).alias("row")).selectExpr("row.*")

    def define_state(self, spark: SparkSession) -> None:
        """Declare `state`: by `create_auto_cdc_flow` (Spark 4.3 and later, Delta or Iceberg), else as a sink with our own files.

        See `engine.pipeline.state_files`.
        """
        from pyspark import pipelines

        key = self._project.decoder.key
        if not self._project.state_in_files:
            pipelines.temporary_view(name="changes")(lambda: self.changes(spark))
            pipelines.create_streaming_table("state")
            pipelines.create_auto_cdc_flow(
                target="state",
                source="changes",
                keys=[*key, "partition"],
                sequence_by="transaction_id",
                stored_as_scd_type=1,
            )
            return
        path, buckets = str(self._project.directory / "state"), str(self._project.buckets)
        options = {"path": path, "key": ",".join(key), "buckets": buckets}
        pipelines.create_sink("state", FORMAT, options)
        pipelines.append_flow(target="state", name="state")(lambda: self._bucketed(spark))

    def _bucketed(self, spark: SparkSession) -> DataFrame:
        from pyspark.sql import functions

        buckets = self._project.buckets
        by = [functions.col(f"`{one}`") for one in (*self._project.decoder.key, "partition")]
        bucket = functions.pmod(functions.xxhash64(*by), functions.lit(buckets)).cast("int")
        return self.changes(spark).select("*", bucket.alias(BUCKET)).repartition(buckets, BUCKET)

    def completeness(self, spark: SparkSession) -> DataFrame:
        """For each replica and partition the number of expected transactions, and of those present, missing, damaged and behind.

        Instead of a join (rule 2 above) the rows of tallies and replicas are united, with zeros or nulls in the columns of the
        other, and aggregated.
        """
        from pyspark.sql import Window, functions

        counted = spark.read.table("tallies").where("kind = 'partition'")
        read = counted.selectExpr(
            *_PLACE, "records", "missing", "damaged", "next_transaction_id AS next", "NULL AS mark", "NULL AS last"
        )
        there = self._replicas(spark).selectExpr(*_PLACE, "0L", "0L", "0L", "0L", "mark", "last_transaction_id")
        sums = (
            read.union(there)
            .groupBy("node", "partition")
            .agg(
                *(functions.sum(name).alias(name) for name in ("records", "missing", "damaged")),
                functions.max("next").alias("next"),
                functions.max("mark").alias("mark"),
                functions.max("last").alias("last_transaction_id"),
            )
            # without a mark: a replica that is not named any more, or a partition that is not assigned to it any more
            .where("mark IS NOT NULL")
        )
        everywhere = Window.partitionBy("partition")
        expected = functions.max("next").over(everywhere)
        return sums.select(
            *_PLACE, expected.alias("expected"), functions.col("records").alias("present"), "missing", "damaged",
            (expected - functions.col("next")).alias("behind"), functions.max("mark").over(everywhere).alias("mark"),
            "last_transaction_id",
        )  # fmt: skip

    def _replicas(self, spark: SparkSession) -> DataFrame:
        return spark.read.format(FORMAT).options(**self._options(pipeline_data_source.REPLICAS)).load()

    def activity(self, spark: SparkSession) -> DataFrame:
        """The amounts of each segment, client and header, and their rates, by the times at which segments were created."""
        from pyspark.sql import Window, functions

        keys = [*_PLACE, "dimension", "value"]
        amounts = ("records", "bytes", "data_bytes")
        ends = ("first_transaction_id", "next_transaction_id")
        counted = spark.read.table("tallies").where("kind <> 'partition'")
        rows = counted.selectExpr(*_PLACE, "kind AS dimension", "value", *amounts, *ends, "CAST(NULL AS DOUBLE) AS at")
        created = self._created(spark)
        if created is not None:
            nothing = ["0L"] * len(amounts) + ["NULL"] * len(ends)
            rows = rows.union(created.selectExpr(*_PLACE, "'segment'", "segment", *nothing, "at"))
        sums = rows.groupBy(*keys).agg(
            *(functions.sum(name).alias(name) for name in amounts),
            functions.min(ends[0]).alias("first_transaction_id"),
            (functions.max(ends[1]) - 1).alias("last_transaction_id"),
            functions.max("at").alias("at"),
        )
        at, whole = functions.col("at"), Window.partitionBy(*_PLACE)
        following = functions.lead("at").over(Window.partitionBy(*_PLACE, "dimension").orderBy("value"))
        timed = sums.select("*", (following - at).alias("lasted"))
        lasted = functions.col("lasted")
        set_back = functions.coalesce(functions.min("lasted").over(whole), functions.lit(0.0)) < 0
        span = functions.max("at").over(whole) - functions.min("at").over(whole)
        lasted = functions.when(functions.col("dimension") == "segment", lasted).when(~set_back, span)
        seconds = functions.when(lasted > 0, lasted).alias("seconds")  # a clock that was set back tells nothing
        return timed.select("*", seconds).where("records > 0").selectExpr(
            *keys, *amounts, "first_transaction_id", "last_transaction_id", "seconds",
            "records / seconds AS records_per_second", "bytes / seconds AS bytes_per_second",
        )  # fmt: skip

    def _created(self, spark: SparkSession) -> DataFrame | None:
        """The creation time of each segment, in seconds since 1970; None without a source of files, since a node has no times."""
        files = [one for one in self._project.sources if not names_node(one)]
        if not files:
            return None
        options = {
            name: value
            for name, value in self._project.options.items()
            if name.lower().startswith(("storage.", "partitions"))
        }
        reader = spark.read.format("waltz").options(**options).option("view", "segments")
        rows = reader.option("columns", "node,partition,segment,created").option("paths", json.dumps(files)).load()
        return rows.selectExpr("node", "partition", "segment", "unix_micros(to_timestamp(created)) / 1e6 AS at")


def _by_batch(work: Callable[..., pa.Array], kind: DataType) -> Callable[..., Column]:
    """A function of Arrow arrays, a batch at a time, as a function of Spark's columns."""
    from pyspark.sql.pandas.functions import arrow_udf

    made: Any = arrow_udf  # its annotations do not allow structs
    found: Callable[..., Column] = made(work, kind)
    return found


def _columns(schema: pa.Schema) -> StructType:
    """The schema as a Spark type: as text it would need the server (rule 1 above)."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)
