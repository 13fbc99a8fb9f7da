"""Offsets of a stream: how far each partition has been read, and by what the place is known again.

An offset names the last transaction of each partition that was handed on.  Beside its id it carries the record's request id and
its record checksum, which covers the id, the request id, the header and the data: when the partition is truncated and written
anew, or the record changes, the stream says so instead of leaving transactions out or giving them twice.  Where the record
stood is a hint only.

As JSON, in Spark's checkpoint::

    {"version": 1, "cluster_key": "...", "partitions": {"0": {"transaction_id": 41, "request_id": "1.2.0.41",
      "record_checksum": "89abcdef", "segment": 0, "offset": 5412, "size": 172}}}

A missing value is null.  Everything here is a function of values.
"""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from waltzctl.engine.errors import InvalidRequestError, StalePlanError
from waltzctl.formats.request_id import RequestId

VERSION = 1
EARLIEST = "earliest"
LATEST = "latest"
_CHECKPOINT = "the offset in the checkpoint"
_MAX_INTEGER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Anchor:
    """A position in a partition: everything up to `transaction_id` was returned.

    An anchor *names a record* if it has request id and checksum: these identify the record of the id.  Others are the beginning,
    a start that the caller asked for, or the end of transactions that were reported as lost after the last record (`lost`).
    """

    transaction_id: int
    """-1: nothing was returned."""
    request_id: RequestId | None = None
    record_checksum: int | None = None
    """Unsigned."""
    segment: int | None = None
    """The segment of the record, by the transaction id in its file's name; like `offset` and `size` None for a node."""
    offset: int | None = None
    """Bytes, of the data file."""
    size: int | None = None
    """Bytes of the record; 0 in an anchor that is `lost`."""

    @property
    def identified(self) -> bool:
        """Whether the anchor names a record."""
        return self.request_id is not None and self.record_checksum is not None

    @property
    def lost(self) -> bool:
        """Whether the anchor is the end of transactions that were reported as lost, and not a start that the caller asked for."""
        return self.size == 0 and not self.identified

    @property
    def end(self) -> int | None:
        """The offset after the record, in bytes of its file."""
        return None if self.offset is None or self.size is None else self.offset + self.size

    def is_record(self, other: Anchor) -> bool:
        """Whether both name the same record, even in different files."""
        mine = (self.transaction_id, self.request_id, self.record_checksum)
        return mine == (other.transaction_id, other.request_id, other.record_checksum)


BEGINNING = Anchor(-1)


def behind_loss(transaction_id: int) -> Anchor:
    """The anchor at the end of transactions up to this id that are lost after the last record."""
    return Anchor(transaction_id, size=0)


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """How far a stream has read, by partition.  `cluster_key`: None where it is unknown."""

    partitions: Mapping[int, Anchor] = field(default_factory=dict)
    cluster_key: uuid.UUID | None = None

    def at(self, partition: int) -> Anchor:
        """The anchor of a partition; `BEGINNING` for a new one."""
        return self.partitions.get(partition, BEGINNING)

    def to_json(self) -> dict[str, Any]:
        """The offset, in an order that depends on its value alone: Spark compares offsets by their text."""
        return {
            "version": VERSION,
            "cluster_key": None if self.cluster_key is None else str(self.cluster_key),
            "partitions": {str(number): _anchor_json(self.partitions[number]) for number in sorted(self.partitions)},
        }

    @classmethod
    def from_json(cls, value: object) -> StreamOffset:
        """Parse an offset.  Raises InvalidRequestError for another version, or for an offset of another source."""
        if not isinstance(value, dict) or "version" not in value:
            raise InvalidRequestError(
                f"{_CHECKPOINT} is none of this source: {json.dumps(value)[:200]}",
                advice="a checkpoint belongs to one query; name another directory for this one",
            )
        if value["version"] != VERSION:
            raise InvalidRequestError(
                f"{_CHECKPOINT} is of version {value['version']!r}, and only {VERSION} is known",
                advice="continue the query with the waltzctl that began it, or a newer one",
            )
        try:
            key = value["cluster_key"]
            partitions = {_partition(text): _anchor(one) for text, one in value["partitions"].items()}
            return cls(partitions, None if key is None else uuid.UUID(key))
        except (KeyError, TypeError, ValueError, AttributeError, struct.error) as error:
            raise InvalidRequestError(
                f"{_CHECKPOINT} cannot be read: {error!r} in {json.dumps(value)[:200]}",
                advice="was the checkpoint edited? begin with a new one and startingTransactions",
            ) from error


def _anchor_json(anchor: Anchor) -> dict[str, Any]:
    return {
        "transaction_id": anchor.transaction_id,
        "request_id": None if anchor.request_id is None else str(anchor.request_id),
        "record_checksum": None if anchor.record_checksum is None else f"{anchor.record_checksum:08x}",
        "segment": anchor.segment,
        "offset": anchor.offset,
        "size": anchor.size,
    }


def _anchor(value: Any) -> Anchor:
    request_id, checksum = value["request_id"], value["record_checksum"]
    transaction_id = _integer(value["transaction_id"], -1)
    places = [None if value[name] is None else _integer(value[name], 0) for name in ("segment", "offset", "size")]
    parsed = None
    if request_id is not None:
        parts = [int(part) for part in request_id.split(".")]
        parsed = RequestId(*parts)
        parsed.encode()
    return Anchor(transaction_id, parsed, None if checksum is None else int(checksum, 16), *places)


def _integer(value: object, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MAX_INTEGER:
        raise ValueError(f"{value!r} is no number from {least} on")
    return value


def _partition(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError(f"{text!r} is no partition")
    return int(text)


@dataclass(frozen=True, slots=True)
class Starting:
    """Where a new query begins: `EARLIEST`, `LATEST`, or for some partitions the first transaction to read.

    Partitions that `partitions` does not name, and those that appear later, are read from their beginning.
    """

    usual: str = EARLIEST
    partitions: Mapping[int, int | str] = field(default_factory=dict)

    def of(self, partition: int) -> int | str:
        """`EARLIEST`, `LATEST`, or the first transaction to read."""
        return self.partitions.get(partition, self.usual)


def parse_starting(text: str | None) -> Starting:
    """The option ``startingTransactions``: ``earliest``, ``latest``, or JSON such as ``{"0": 1200, "1": "latest"}``.

    Raises InvalidRequestError.
    """
    said = EARLIEST if text is None else text.strip()
    if said.lower() in (EARLIEST, LATEST):
        return Starting(said.lower())
    advice = 'write earliest, latest, or the first transaction of each partition: {"0": 1200, "1": "latest"}'
    try:
        value = json.loads(said)
        if not isinstance(value, dict):
            raise TypeError("no object")
        partitions = {
            _partition(number): one if one in (EARLIEST, LATEST) else _integer(one, 0) for number, one in value.items()
        }
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(f"startingTransactions {said!r}: {error}", advice=advice) from None
    return Starting(EARLIEST, partitions)


def share(available: Mapping[int, int], limit: int) -> dict[int, int]:
    """How many transactions of each partition a batch of at most `limit` takes; `available`: how many there are.

    All partitions get equal shares; what a partition does not need is divided among the others.  With a limit lower than the
    number of partitions those with the most transactions get one each.  The sum is `limit`, or everything.
    """
    left = max(limit, 0)
    shares: dict[int, int] = {}
    shortest_first = sorted(available, key=lambda number: (available[number], number))
    for place, number in enumerate(shortest_first):
        shares[number] = min(available[number], left // (len(shortest_first) - place))
        left -= shares[number]
    return shares


def check_same_cluster(known: StreamOffset, now: uuid.UUID | None, place: str) -> None:
    """Raise StalePlanError where the storage is of another cluster than the checkpoint."""
    if known.cluster_key is not None and now is not None and known.cluster_key != now:
        raise StalePlanError(
            f"{place}: the checkpoint was begun on cluster {known.cluster_key}, and this storage is of cluster {now}",
            advice="name the right storage, or begin with a new checkpoint",
        )


def history_changed(
    place: str, partition: int, anchor: Anchor, found: Anchor | None, last: int | None
) -> StalePlanError:
    """The error for a partition in which the record of an anchor is gone, or replaced by another one.

    `found`: the record that has the id now; `last`: the partition's last transaction, where it is known.
    """
    tid = anchor.transaction_id
    if found is not None:
        what = (
            f"transaction {tid} is not the one that was read: request {found.request_id} with checksum"
            f" {_hex(found.record_checksum)} stands there now, it was request {anchor.request_id} with checksum"
            f" {_hex(anchor.record_checksum)}"
        )
    elif last is not None and last < tid:
        what = f"transaction {tid} was read, and the partition ends at {last} now: it was truncated"
    else:
        what = f"transaction {tid} was read, and there is no intact record of this id any more"
    return StalePlanError(
        f"{place}, partition {partition}: {what}",
        advice=(
            "what was handed on may differ from the partition's history; compare, then begin with a new checkpoint and"
            f' startingTransactions {{"{partition}": N}} at the first transaction to read again'
        ),
    )


def issued_again(place: str, partition: int, anchor: Anchor, last: int) -> StalePlanError:
    """The error for a partition in which a recovery gave up transactions that were reported as lost: others get their ids."""
    return StalePlanError(
        f"{place}, partition {partition}: transactions up to {anchor.transaction_id} were told as lost, and the partition ends"
        f" at {last} now: they were given up, and their ids are issued again",
        advice=(
            "what gets their ids would be left out: begin with a new checkpoint and"
            f' startingTransactions {{"{partition}": N}} at the first transaction that was lost'
        ),
    )


def _hex(checksum: int | None) -> str:
    return "unknown" if checksum is None else f"{checksum:08x}"


def only_wanted(offset: StreamOffset, wanted: Collection[int] | None) -> dict[int, Anchor]:
    """The partitions of an offset that the query is restricted to; None: all."""
    return {number: one for number, one in offset.partitions.items() if wanted is None or number in wanted}
