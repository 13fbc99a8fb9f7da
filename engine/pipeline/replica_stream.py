"""One stream of the records of several storages, so that one streaming query fills one table.

Why one source, and not one for each replica:

- For a table of files Spark keeps one log of batches (``_spark_metadata``), by batch number.  Several flows into one table each
  count their batches from 0; Spark takes the second flow's batches for the first one's, and drops them.  So a Parquet table can
  have only one flow.
- A checkpoint records how many sources a query has.  With a source for each replica, a query could not continue when a replica
  is added.

The offset has a position for each replica, by its name.  A new replica is read from its beginning; the position of a replica
that is no longer named is kept.

As JSON: ``{"version": 1, "replicas": {"/data/node-1": OFFSET, ...}}``, each offset that of `engine.spark.offsets`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from waltzctl.engine.errors import InvalidRequestError, MismatchError, StalePlanError
from waltzctl.engine.log import places
from waltzctl.engine.net.addresses import names_node
from waltzctl.engine.spark.offsets import StreamOffset
from waltzctl.engine.spark.plain_errors import plain_errors
from waltzctl.engine.spark.stream_directory import directory_stream
from waltzctl.engine.spark.stream_reader import (
    ADMISSION,
    LIMIT,
    SupportsTriggerAvailableNow,
    TaskParts,
    WaltzStreamReader,
    limit_of,
)

if ADMISSION:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

VERSION = 1


def replica_readers(
    sources: Sequence[str], options: Mapping[str, str], schema: StructType
) -> dict[str, WaltzStreamReader]:
    """A stream for each source (path, URL or ``waltz://host:port``), by its name.

    `options`: Spark's, without the sources; keys in lower case.  The option of a limit is left out: it is for all replicas
    together.

    Raises InvalidRequestError; also for a replica that is named twice, in whatever way (through a link, as `latest` of a vault),
    since it would have two votes.
    """
    found: dict[str, WaltzStreamReader] = {}
    same: dict[str, str] = {}
    for source in sources:
        node = names_node(source)
        given = {
            name: value
            for name, value in options.items()
            if name != LIMIT and (node or not _is_connection_option(name))
        }
        reader = (_node_stream() if node else directory_stream)({**given, "path": source}, schema)
        place = reader.history.place
        one = place.lower() if node else places.identity(places.place(place))
        if one in same:
            also = "" if same[one] == source else f", as {same[one]} as well"
            raise InvalidRequestError(f"{source}: it is named twice{also}", advice="name each replica once")
        same[one] = source
        found[place] = reader
    if not found:
        raise InvalidRequestError("no source is named", advice="name the replicas in waltz.sources, one a line")
    return found


def _node_stream() -> Callable[[Mapping[str, str], StructType], WaltzStreamReader]:
    # imported here: loading the client takes longer than a batch of a query that reads directories only
    from waltzctl.engine.spark.stream_node import node_stream

    return node_stream


def _is_connection_option(name: str) -> bool:
    from waltzctl.engine.spark.stream_node import KNOWN

    return name in {one.lower() for one in KNOWN}


def of_checkpoint(offset: Mapping[str, Any] | None, key: str) -> dict[str, Any]:
    """The value of `key` in an offset; empty without an offset.  Raises InvalidRequestError for an offset of another version."""
    if offset is None:
        return {}
    if offset.get("version") != VERSION or not isinstance(offset.get(key), dict):
        raise InvalidRequestError(
            f"the offset in the checkpoint is none of this table: {str(offset)[:200]}",
            advice="was the project moved or edited? waltzctl pipeline run DIR --full-refresh TABLE begins anew",
        )
    found: dict[str, Any] = offset[key]
    return found


def check_one_cluster(keys: Mapping[str, object]) -> None:
    """Raise MismatchError where two replicas are of different clusters.  `keys`: the cluster's key by replica; None: unknown."""
    known = {place: key for place, key in keys.items() if key is not None}
    first = next(iter(known), None)
    for place, key in known.items():
        if first is not None and key != known[first]:
            raise MismatchError(
                f"{place} is of cluster {key}, and {first} of cluster {known[first]}",
                advice="a pipeline reads the replicas of one cluster: name the right ones in waltz.sources",
            )


def forgotten(what: str) -> StalePlanError:
    """The error for a batch that ends before it begins.

    Before PySpark 4.2 `latestOffset` is not told where a batch begins, and may return such an end.
    """
    return StalePlanError(
        f"{what}; its checkpoint would forget how far it was, and what was read would come twice",
        advice="begin the table anew; PySpark 4.2 and later say where a batch begins, and with them it does not come about",
    )


def check_kept(before: Iterable[str], after: Collection[str]) -> None:
    """Raise StalePlanError where a replica that was read is missing in the offset at which a batch ends."""
    for place in before:
        if place not in after:
            raise forgotten(f"{place} was read, and is left out now")


def check_there(before: Mapping[str, object], after: Mapping[str, object], there: Collection[str]) -> None:
    """Raise StalePlanError where a planned batch reads a replica that is no longer a source.

    `before`, `after`: where the batch begins and ends, by replica; `there`: the replicas that are sources.  Without this check
    the batch would mark records as read that it did not read.
    """
    for place, end in after.items():
        if place not in there and end != before.get(place):
            raise StalePlanError(
                f"{place}: a batch that was interrupted is to read it, and it is not among the sources any more",
                advice="name it once more until a run has ended well, or begin the table anew",
            )


class ReplicaTask(InputPartition):
    """The parts of one replica that a task reads."""

    def __init__(self, place: str, parts: TaskParts) -> None:
        super().__init__(None)
        self.place, self.parts = place, parts


@plain_errors
class ReplicaSetReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module."""

    def __init__(self, readers: Mapping[str, WaltzStreamReader], limit: int | None) -> None:
        self._readers = dict(readers)
        self._limit = limit

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """An offset without any replica: nothing was read."""
        return {"version": VERSION, "replicas": {}}

    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:  # noqa: N802
        """Where the next batch ends in each replica; each has an equal share of the limit."""
        begun = of_checkpoint(start, "replicas")
        rows = limit.max_rows if ADMISSION and isinstance(limit, ReadMaxRows) else self._limit
        if start is None or (ADMISSION and isinstance(limit, ReadAllAvailable)):
            rows = None
        share: ReadLimit | None = None
        if ADMISSION:
            share = ReadAllAvailable() if rows is None else ReadMaxRows(max(1, rows // len(self._readers)))
        ends = {
            place: reader.latestOffset(begun.get(place, StreamOffset().to_json()), share)
            for place, reader in self._readers.items()
        }
        replicas = {**begun, **ends}
        check_one_cluster({place: one["cluster_key"] for place, one in replicas.items()})
        return {"version": VERSION, "replicas": {place: replicas[place] for place in sorted(replicas)}}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The option ``maxRecordsPerTrigger``."""
        return ReadAllAvailable() if self._limit is None else ReadMaxRows(self._limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The query reads what is there now, and ends."""
        for reader in self._readers.values():
            reader.prepareForTriggerAvailableNow()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a batch, each of one replica.  Raises StalePlanError where a replica would be left out."""
        begun, ended = of_checkpoint(start, "replicas"), of_checkpoint(end, "replicas")
        check_kept((place for place, one in begun.items() if one["partitions"]), ended)
        check_there(begun, ended, self._readers)
        tasks: list[InputPartition] = []
        for place, reader in self._readers.items():
            if place in ended:
                parts = reader.partitions(begun.get(place, StreamOffset().to_json()), ended[place])
                tasks += [ReplicaTask(place, one) for one in parts if isinstance(one, TaskParts) and one.parts]
        return tasks or [ReplicaTask("", TaskParts(()))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one task."""
        assert isinstance(partition, ReplicaTask)
        if partition.place:
            yield from self._readers[partition.place].read(partition.parts)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the reader keeps no state of a batch."""

    def stop(self) -> None:
        """The query ends."""
        for reader in self._readers.values():
            reader.stop()


def replica_set_stream(sources: Sequence[str], options: Mapping[str, str], schema: StructType) -> ReplicaSetReader:
    """The stream of all records of `sources`.  Raises InvalidRequestError."""
    return ReplicaSetReader(replica_readers(sources, options, schema), limit_of(options))
