"""``format("waltz_pipeline")``: the sources and the sink of a pipeline's tables that ``format("waltz")`` does not have.

======================  ============================================================================================
`readStream`, `what`
records                 every record of several storages, as one source (`replica_stream`)
transactions            what the replicas agree on (`agreement_stream`)
differences             the copies that differ from that, and ids of which no copy is intact
`read`, `what`
replicas                the partitions assigned to each storage, the last transaction and the committed mark of each
`writeStream`           the last value for each key, in a directory of Parquet files (`state_files`)
======================  ============================================================================================

Spark finds it by the top-level module ``pyspark_waltz_pipeline``, as it finds ``format("waltz")``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.spark.plain_errors import plain_errors, stream_or_refusal

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter, DataSourceStreamReader
    from pyspark.sql.types import StructType

FORMAT = "waltz_pipeline"
RECORDS, TRANSACTIONS, DIFFERENCES, REPLICAS = "records", "transactions", "differences", "replicas"
_OWN = ("what", "paths", "path", "metadata")


@plain_errors
class PipelineDataSource(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format()``."""
        return FORMAT

    def schema(self) -> StructType:
        """The columns of the source that the option `what` names."""
        from waltzctl.engine.spark.view_schemas import pick, spark_schema

        what = self._what()
        if what == RECORDS:
            return spark_schema(pick("records", None, data=True))
        return _spark(what)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of `replicas`.  Raises InvalidRequestError."""
        if self._what() != REPLICAS:
            raise InvalidRequestError(f"{FORMAT}: {self._what()} is a stream")
        return ReplicasReader(self._sources(), self._given(), self.options.get("metadata"))

    @stream_or_refusal
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """The stream of `records`, `transactions` or `differences`.  Raises InvalidRequestError."""
        what = self._what()
        if what == RECORDS:
            from waltzctl.engine.pipeline.replica_stream import replica_set_stream

            return replica_set_stream(self._sources(), self._given(), schema)
        from waltzctl.engine.pipeline.agreement_stream import agreement_stream

        return agreement_stream(
            self._sources(),
            self._given(),
            _spark("copy"),
            differences=what == DIFFERENCES,
            metadata=self.options.get("metadata"),
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """The writer of the last value for each key.  Raises InvalidRequestError."""
        from waltzctl.engine.pipeline.state_files import state_writer

        return state_writer(self.options, schema)

    def _what(self) -> str:
        what = self.options.get("what", "")
        if what not in (RECORDS, TRANSACTIONS, DIFFERENCES, REPLICAS):
            raise InvalidRequestError(
                f"{FORMAT}: option what is {RECORDS}, {TRANSACTIONS}, {DIFFERENCES} or {REPLICAS}"
            )
        return what

    def _sources(self) -> tuple[str, ...]:
        return tuple(json.loads(self.options.get("paths", "[]")))

    def _given(self) -> dict[str, str]:
        return {name.lower(): value for name, value in self.options.items() if name.lower() not in _OWN}


def _spark(what: str) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    from waltzctl.engine.pipeline import schemas

    kinds = {
        TRANSACTIONS: schemas.AGREED,
        DIFFERENCES: schemas.DIFFERENCES,
        REPLICAS: schemas.REPLICAS,
        "copy": schemas.COPY,
    }
    return from_arrow_schema(kinds[what])


class _ReplicaTask(InputPartition):
    """A replica to read.  `committed`: the committed marks by `committed_marks`, which may be above the replica's own."""

    def __init__(self, source: str, committed: Mapping[int, int]) -> None:
        super().__init__(source)
        self.source, self.committed = source, dict(committed)


@plain_errors
class ReplicasReader(DataSourceReader):
    """One row for each partition that is assigned to a storage."""

    def __init__(self, sources: tuple[str, ...], options: Mapping[str, str], metadata: str | None) -> None:
        self._sources = sources
        self._options = dict(options)
        self._metadata = metadata

    def partitions(self) -> list[InputPartition]:
        """One task for each storage.  Raises what looking at the metadata and the storages raises."""
        committed = self._committed()
        return [_ReplicaTask(source, committed) for source in self._sources]

    def _committed(self) -> dict[int, int]:
        from waltzctl.engine.pipeline.committed_marks import committed_marks
        from waltzctl.engine.pipeline.replica_stream import replica_readers

        if self._metadata is None:
            return {}
        readers = replica_readers(self._sources, self._options, _spark("copy"))
        wanted = next(iter(readers.values())).options.partitions
        try:
            return committed_marks(self._metadata, {place: one.history for place, one in readers.items()}, wanted, {})
        finally:
            for one in readers.values():
                one.stop()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one storage, as it is now.  Raises NotWaltzError, PeerError, DiskReadError."""
        import pyarrow as pa

        from waltzctl.engine.pipeline import schemas
        from waltzctl.engine.pipeline.replica_stream import replica_readers
        from waltzctl.engine.spark.stream_reader import INTACT, LOW_WATER_MARK

        if not isinstance(partition, _ReplicaTask):
            return
        for place, reader in replica_readers([partition.source], self._options, _spark("copy")).items():
            reader.history.refresh()
            wanted = reader.options.partitions
            last = reader.history.latest(wanted, {}, INTACT)
            marks = reader.history.latest(wanted, {}, LOW_WATER_MARK)
            rows = [
                {
                    "node": place,
                    "partition": number,
                    "last_transaction_id": one.transaction_id,
                    "mark": max(marks[number].transaction_id, partition.committed.get(number, -1)),
                }
                for number, one in sorted(last.items())
            ]
            reader.stop()
            yield from pa.Table.from_pylist(rows, schema=schemas.REPLICAS).to_batches()
