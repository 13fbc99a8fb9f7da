"""The Waltz data source of PySpark: ``spark.read``, ``readStream`` and ``write`` with ``format("waltz")``.

Spark makes one for each query, asks it for a schema, and for a reader or writer; these are pickled and sent to the workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
)

from waltzctl.engine.spark.plain_errors import plain_errors, stream_or_refusal

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@plain_errors
class WaltzDataSource(DataSource):
    """Reads and writes Waltz storages.  The options of a batch read: `engine.spark.read_options`."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format()``."""
        return "waltz"

    def schema(self) -> StructType:
        """The schema of a read whose caller gives none: all columns of the view except the records' data.

        Raises InvalidRequestError, and what `load_checks.check_load` raises.
        """
        from waltzctl.engine.spark.load_checks import check_load
        from waltzctl.engine.spark.read_options import view_options
        from waltzctl.engine.spark.view_schemas import pick, spark_schema

        check_load(self.options)
        view, names, data = view_options(self.options)
        return spark_schema(pick(view, names, data=data))

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch: of directories, or with the option ``metadata`` of a cluster.  Raises InvalidRequestError."""
        if "metadata" in self.options:
            from waltzctl.engine.spark.cluster_history import ClusterReader

            return ClusterReader(self.options, schema)
        from waltzctl.engine.spark.batch_read import reader

        return reader(self.options, schema)

    @stream_or_refusal
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """The reader of a stream: of a node (``waltz://host:port``), a directory or a cluster (``metadata``).

        Raises InvalidRequestError.
        """
        if "metadata" in self.options:
            from waltzctl.engine.spark.cluster_history import cluster_stream

            return cluster_stream(self.options, schema)
        path = self.options.get("path", "") or self.options.get("paths", "")
        if "waltz://" in path.lower():
            from waltzctl.engine.spark.stream_node import node_stream

            return node_stream(self.options, schema)
        from waltzctl.engine.spark.stream_directory import directory_stream

        return directory_stream(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer of a batch.  Raises InvalidRequestError."""
        from waltzctl.engine.spark.writer import storage_writer

        return storage_writer(self.options, schema, overwrite)
