"""Batch reads: the tasks for options and a schema, and the rows of each task."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from waltzctl.engine.durable.file_status import moved_while
from waltzctl.engine.errors import DiskReadError, InvalidRequestError, NotWaltzError
from waltzctl.engine.log import places
from waltzctl.engine.spark.directory_views import VIEW_PLANS, IndexTask, SegmentTask, read_view
from waltzctl.engine.spark.plain_errors import plain_errors
from waltzctl.engine.spark.read_options import ReadOptions, parse
from waltzctl.engine.spark.record_plan import record_parts
from waltzctl.engine.spark.selection import Selection, pushed
from waltzctl.engine.spark.splits import FLAT, SegmentPart, pack, survey
from waltzctl.engine.spark.view_schemas import arrow_schema, columns_of, pick
from waltzctl.engine.spark.wanted_types import arrow_schema_of, handed_on
from waltzctl.formats.control import CONTROL_FILE_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import PurePath

    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

_PUSHING_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"
"""The module that Spark runs to plan a read with filters; it does so only when filter pushdown is enabled."""


MAX_TASKS = 100_000
"""Tasks of a read, at most: Spark's driver holds all of them in memory, and its scheduler takes milliseconds for each."""


class Packet(InputPartition):
    """The items that one task reads."""

    def __init__(self, items: Sequence[Any]) -> None:
        super().__init__(len(items))
        self.items = tuple(items)


@plain_errors
class WaltzReader(DataSourceReader):
    """A batch read.  It is pickled to every task, and so has the options, but no listing of files."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Raises InvalidRequestError for a schema that the view does not have."""
        self._options = options
        self._wanted = [column.name for column in columns_of(options.view, schema)]
        self._schema = schema
        self._selection = Selection(options.partitions).with_ids(options.first, options.last)

    def partitions(self) -> Sequence[InputPartition]:
        """The packets, planned from names and sizes (`engine.spark.splits`).

        Raises NotWaltzError, InvalidRequestError, DiskReadError for the paths; never for damage in the files.
        """
        if self._selection.empty:
            return []
        options = self._options
        surveyed = survey(options.paths, self._selection)
        items: Iterable[Any]
        if options.view == "records":
            items = (part for one in surveyed for part in record_parts(one, self._selection, options.split_size))
        else:
            items = VIEW_PLANS[options.view](surveyed, self._selection, options.split_size)
        packets: list[InputPartition] = []
        for packet in pack(items, options.split_size + FLAT, attrgetter("cost")):
            if len(packets) == MAX_TASKS:
                raise InvalidRequestError(
                    f"option splitSize: with {options.split_size} bytes for a task, this read has more than {MAX_TASKS} tasks,"
                    " and Spark's driver holds all of them in memory",
                    advice="raise splitSize (the default is 128MiB), or read less with partitions or minTransactionId",
                )
            packets.append(Packet(packet))
        return packets

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Arrow batches with exactly the schema that was announced to Spark.  Damage is returned as rows."""
        if not isinstance(partition, Packet):  # Spark creates a partition of its own where we return none
            return
        seen = check_seen(partition.items)
        made = arrow_schema(pick(self._options.view, self._wanted))
        wanted = arrow_schema_of(self._schema)
        if self._options.view == "records":
            from waltzctl.engine.spark.record_rows import read_packet

            rows = read_packet(partition.items, self._wanted, made, fail_on_loss=self._options.fail_on_loss)
        else:
            rows = read_view(partition.items, pick(self._options.view, self._wanted), made)
        yield from (handed_on(batch, wanted) for batch in rows)
        for directory, place in seen.items():
            if places.is_moved(directory, place):
                raise NotWaltzError(
                    f"{directory}: the directory {moved_while('read')}",
                    advice="read it again when it is back",
                )


class PushingReader(WaltzReader):
    """A batch read that uses the query's filters.  Spark refuses such a reader unless filter pushdown is enabled."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Narrow the read by filters on node, partition and transaction_id; Spark applies all filters again."""
        self._selection = pushed(self._selection, filters)
        return filters


def check_seen(items: Iterable[Any]) -> dict[PurePath, places.Standing | None]:
    """Raise NotWaltzError where a worker does not see a planned storage directory: its rows would be missing silently.

    Returns the place of each storage directory.  Files and partition directories may have been removed since the plan, but by
    nobody where no control file is; a storage directory is not, and an empty one is a mount point without its disk.
    """
    seen: dict[PurePath, places.Standing | None] = {}
    for directory in {item.directory for item in items if item.directory is not None}:
        storage = directory.parent
        if not places.on_this_machine(directory):
            continue
        if not places.still_named(storage / CONTROL_FILE_NAME) and not places.exists(directory):
            raise _unseen(storage)
        seen[storage] = places.standing(storage)
    # no repair and no node removes a partition's last segment and leaves the directory
    files: dict[PurePath, list[PurePath]] = {}
    for item in items:
        if isinstance(item, SegmentPart | SegmentTask | IndexTask) and places.on_this_machine(item.job.directory):
            files.setdefault(item.job.directory, []).append(item.job.data_path)
    for directory, paths in files.items():
        if not any(places.still_named(path) for path in paths) and _empty(directory):
            raise _unseen(directory)
    return seen


def _empty(directory: PurePath) -> bool:
    try:
        return not places.names(directory)
    except (OSError, DiskReadError):  # gone, or not to be listed: whoever reads its files tells why
        return False


def _unseen(directory: PurePath) -> NotWaltzError:
    return NotWaltzError(
        f"{directory}: there is no such directory on the machine of this worker ({platform.node()}), or nothing in it",
        advice="put the files where every worker sees them under this path: a shared file system, or a URL",
    )


def reader(options: Mapping[str, str], schema: StructType) -> WaltzReader:
    """The reader of a batch.  Raises InvalidRequestError."""
    read = parse(options)
    pushing = _PUSHING_WORKER in sys.modules if read.pushdown is None else read.pushdown
    kind: Callable[[ReadOptions, StructType], WaltzReader] = PushingReader if pushing else WaltzReader
    return kind(read, schema)
