"""Rows of a stream: the columns of the records view, from scans, findings and records of a node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from waltzctl.engine.findings import Code, Finding
from waltzctl.engine.scan.columns import RecordBatch
from waltzctl.engine.spark.record_arrays import Constants, arrow_batch, finding_batch
from waltzctl.engine.spark.view_schemas import arrow_schema, columns_of
from waltzctl.engine.spark.wanted_types import arrow_schema_of, handed_on
from waltzctl.formats.wire.records import WireRecord

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class RowMaker:
    """Makes rows with those columns of the records view that a schema names; can be pickled."""

    schema: StructType

    def __post_init__(self) -> None:
        """Raises InvalidRequestError for columns that records do not have."""
        self._names  # noqa: B018

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(one.name for one in columns_of("records", self.schema))

    @cached_property
    def _arrow(self) -> pa.Schema:
        return arrow_schema(columns_of("records", self.schema))

    @cached_property
    def _wanted(self) -> pa.Schema:
        return arrow_schema_of(self.schema)

    @property
    def data(self) -> bool:
        """Whether the schema has the records' data."""
        return "data" in self._names

    def records(self, batch: RecordBatch, constants: Constants) -> pa.RecordBatch:
        """Rows of intact records."""
        return handed_on(arrow_batch(batch, self._names, constants, self._arrow), self._wanted)

    def finding(self, finding: Finding, node: str) -> pa.RecordBatch:
        """A row for a finding: its place, its code and the number of lost transactions."""
        return handed_on(finding_batch([finding], self._names, node, self._arrow), self._wanted)

    def sent(self, records: Sequence[WireRecord], node: str, partition: int) -> pa.RecordBatch:
        """Rows of records from a node, which has no columns about the file: segment, offset, size and checksum on disk."""
        from waltzctl.engine.client.inspect import NodeRecord

        rows = [NodeRecord(partition, one) for one in records]
        given: dict[str, list[Any]] = {
            "node": [node] * len(rows),
            "finding": [None if one.data_ok else Code.DATA_CHECKSUM.value for one in records],
            "missing": [None] * len(rows),
        }
        arrays = [
            pa.array(given[column.name] if column.given else list(map(column.of, rows)), field.type)
            for column, field in zip(columns_of("records", self.schema), self._arrow, strict=True)
        ]
        return handed_on(pa.RecordBatch.from_arrays(arrays, schema=self._arrow), self._wanted)


@dataclass(frozen=True, slots=True)
class ScannedRows:
    """Records as a scan yields them, with data where the schema has it; `made` converts them to rows."""

    records: RecordBatch
    constants: Constants
    maker: RowMaker

    def made(self) -> pa.RecordBatch:
        """The rows."""
        return self.maker.records(self.records, self.constants)
