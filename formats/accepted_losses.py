"""Ledger ``.waltzctl/accepted-losses``: a permanent list of the transactions that an operator has agreed to lose.

This file is ours; neither the design documents nor release 0.13.2 have one.  It is ASCII text with one JSON object per line, and
is always replaced as a whole, by rename.  The first line has the number of losses; each further line is one loss::

    {"schema":"waltzctl.accepted-losses/1","type":"accepted-losses","count":1,"crc32":"1c291ca3"}
    {"schema":"waltzctl.accepted-losses/1","type":"accepted-loss","partition":0,"from_transaction_id":448,
     "to_transaction_id":525,"local_low_water_mark":447,"time":"2026-11-22T08:51:18.000Z","reason":"...","crc32":"..."}

(the second object is on one line in the file).  ``"disputed":true`` marks a loss of another kind: two different records had the
same id, one of them was kept, and nothing showed which one was right.

``crc32`` is the CRC-32, as eight lower-case hex digits, of the line's object without ``crc32``, as canonical JSON: sorted keys,
no spaces, ASCII.  A line with a wrong checksum is ignored; the other lines stay valid.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from waltzctl.formats.checksums import crc32
from waltzctl.formats.ids import LAST_TRANSACTION_ID

LEDGER_FILE_NAME = "accepted-losses"
_SCHEMA_NAME = "waltzctl.accepted-losses/"
LEDGER_SCHEMA = f"{_SCHEMA_NAME}1"
_HEAD, _LOSS = "accepted-losses", "accepted-loss"


@dataclass(frozen=True, slots=True)
class AcceptedLoss:
    """Transactions `first` to `last` of a partition, which were given up.

    `local_low_water_mark`: the partition's mark after that; if it has risen to `last` since, a later session has all of them
    again.  `time`: RFC 3339 in UTC.  `reason`: why they were lost, for people.  `disputed`: records with these ids are present,
    but other records with the same ids were removed, and nothing showed which ones were right.
    """

    partition: int
    first: int
    last: int
    local_low_water_mark: int
    time: str
    reason: str
    disputed: bool = False


class _OtherVersionError(ValueError):
    """A line with a right checksum, of a ledger of another version: its schema."""


@dataclass(frozen=True)  # no slots, because of cached_property
class Ledger:
    """A decoded ledger: the readable losses in the order of the file, and what is wrong with the file (None: nothing).

    `other_version`: it is intact, and of a version that only another program reads; so it is not to be set aside.
    """

    losses: tuple[AcceptedLoss, ...] = ()
    fault: str | None = None
    other_version: bool = False

    def of_partition(self, partition: int | None) -> tuple[AcceptedLoss, ...]:
        """The losses of one partition."""
        return () if partition is None else self._by_partition.get(partition, ())

    @cached_property
    def _by_partition(self) -> Mapping[int, tuple[AcceptedLoss, ...]]:
        found: dict[int, list[AcceptedLoss]] = {}
        for loss in self.losses:
            found.setdefault(loss.partition, []).append(loss)
        return {partition: tuple(losses) for partition, losses in found.items()}


def encode_ledger(losses: Iterable[AcceptedLoss]) -> bytes:
    """The whole file."""
    bodies = [_body(loss) for loss in losses]
    head: dict[str, Any] = {"schema": LEDGER_SCHEMA, "type": _HEAD, "count": len(bodies)}
    return b"".join(_line(body) for body in (head, *bodies))


def decode_ledger(data: bytes) -> Ledger:
    """From the bytes of the file, which may be damaged in any way; never raises."""
    lines = data.split(b"\n")
    whole = lines.pop() == b""
    found: list[AcceptedLoss] = []
    count: int | None = None
    wrong: list[int] = []
    other: str | None = None
    for number, line in enumerate(lines, 1):
        try:
            body = _checked(line)
            if body["type"] == _LOSS:
                found.append(_loss(body))
            elif body["type"] == _HEAD and number == 1:
                count = _number(body["count"], 0)
            else:
                raise ValueError(body["type"])
        except _OtherVersionError as error:
            wrong.append(number)
            other = str(error)
        except (ValueError, KeyError, TypeError, RecursionError):
            wrong.append(number)
    fault = None
    if other is not None:
        fault = f"it is of another version ({other}), which the waltzctl that wrote it reads, or a later one"
    elif wrong:
        fault = f"line {wrong[0]} is damaged" + (f", and {len(wrong) - 1} more" if len(wrong) > 1 else "")
    elif not whole or count is None:
        fault = "it is cut off"
    elif count != len(found):
        fault = f"it should name {count} losses, and names {len(found)}"
    return Ledger(tuple(found), fault, other is not None)


def _body(loss: AcceptedLoss) -> dict[str, Any]:
    body: dict[str, Any] = {
        "schema": LEDGER_SCHEMA,
        "type": _LOSS,
        "partition": loss.partition,
        "from_transaction_id": loss.first,
        "to_transaction_id": loss.last,
        "local_low_water_mark": loss.local_low_water_mark,
        "time": loss.time,
        "reason": loss.reason,
    }
    return {**body, "disputed": True} if loss.disputed else body


def _digest(body: dict[str, Any]) -> str:
    return f"{crc32(json.dumps(body, sort_keys=True, separators=(',', ':')).encode()):08x}"


def _line(body: dict[str, Any]) -> bytes:
    return json.dumps({**body, "crc32": _digest(body)}, separators=(",", ":")).encode() + b"\n"


def _checked(line: bytes) -> dict[str, Any]:
    """A line's object without its checksum.

    Raises ValueError, KeyError, TypeError for a line that is not valid, _OtherVersionError for one of another version.
    """
    body = json.loads(line)
    if not isinstance(body, dict):
        raise TypeError("no object")
    stored = body.pop("crc32")
    schema = body["schema"]
    if stored != _digest(body):
        raise ValueError("the checksum is wrong")
    if schema != LEDGER_SCHEMA:
        raise _OtherVersionError(schema) if str(schema).startswith(_SCHEMA_NAME) else ValueError(schema)
    return body


def _loss(body: dict[str, Any]) -> AcceptedLoss:
    first = _number(body["from_transaction_id"], 0)
    time, reason, disputed = body["time"], body["reason"], body.get("disputed", False)
    if not isinstance(time, str) or not isinstance(reason, str):
        raise TypeError("a text is missing")
    if type(disputed) is not bool:
        raise TypeError("no truth value")
    return AcceptedLoss(
        _number(body["partition"], 0),
        first,
        _number(body["to_transaction_id"], first),
        _number(body["local_low_water_mark"], -1),
        time,
        reason,
        disputed,
    )


def _number(value: Any, least: int) -> int:
    if type(value) is not int or not least <= value < LAST_TRANSACTION_ID:
        raise ValueError(value)
    return value
