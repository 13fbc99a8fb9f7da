"""The input of append and log append: one record a line, as bare data or as JSON.

Bare: the line without its line end is the data, with any bytes.  JSON: an object with the keys

============================  ================================================================================
`data`                        a string: UTF-8 text; any other value: compact JSON of it, with all digits of numbers
`data_b64`                    instead of `data`: base64
`header`, `request_id`        optional
`write_locks`, `read_locks`,  optional, for a cluster: a list of pairs of name and number
`append_locks`
============================  ================================================================================

Other keys of ``dump --format ndjson`` are accepted, so that its output can be appended elsewhere; a given checksum must agree.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Self

from waltzctl import lossless_json
from waltzctl.engine.errors import InvalidRequestError

MAX_LINE = 512 << 20
"""Bytes of a line, at most; the largest record in base64 is shorter."""

_IGNORED = {"schema", "partition", "segment", "transaction_id", "offset", "size", "data_length", "record_checksum"}
_KNOWN = _IGNORED | {"type", "data", "data_b64", "data_hex", "data_checksum", "header", "request_id"}
_LOCK_KEYS = ("write_locks", "read_locks", "append_locks")
_REQUEST_KEYS = ("client", "generation", "partition", "sequence")


@dataclass(frozen=True, slots=True)
class Entry:
    """One record to append.  `request_id`: client, generation, partition, sequence, or None where none was given."""

    line: int
    data: bytes
    header: int = 0
    request_id: tuple[int, int, int, int] | None = None
    write_locks: tuple[tuple[str, int], ...] = ()
    read_locks: tuple[tuple[str, int], ...] = ()
    append_locks: tuple[tuple[str, int], ...] = ()


class BadLineError(InvalidRequestError):
    """A line of the input that cannot be a record; `line` counts from 1."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(f"input line {line}: {why}")
        self.line = line


def numbered_lines(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Lines without their line ends, numbered from 1.  Raises BadLineError for a line beyond `MAX_LINE`."""
    number = 0
    while line := stream.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE:
            raise BadLineError(number, f"longer than {MAX_LINE} bytes")
        if not line.endswith(b"\n"):
            yield number, line
            return  # asked again, a terminal would wait for more behind its end
        yield number, line[:-1]


def bare_entries(stream: BinaryIO) -> Iterator[Entry]:
    """Every line is the data of one record; an empty line is an empty record."""
    for number, line in numbered_lines(stream):
        yield Entry(number, line)


def json_entries(stream: BinaryIO, *, locks: bool = False) -> Iterator[Entry]:
    """Every line is a JSON object; blank lines are ignored.  `locks`: keys of locks are allowed.  Raises BadLineError."""
    for number, line in numbered_lines(stream):
        if line.strip():
            try:
                yield _entry(number, _parse(line), locks=locks)
            except (ValueError, RecursionError) as error:
                raise BadLineError(number, str(error) or type(error).__name__) from None


def _parse(line: bytes) -> dict[str, Any]:
    try:
        value = lossless_json.read(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: byte {error.start} of the line") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise ValueError("not JSON that can be read: nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def _entry(number: int, value: dict[str, Any], *, locks: bool) -> Entry:
    kind = value.get("type", "record")
    if kind not in ("record", "log-record"):
        raise ValueError(f"the object is a {kind!r}, not a record")
    unknown = sorted(value.keys() - (_KNOWN | set(_LOCK_KEYS) if locks else _KNOWN))
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r}")
    data = _data(value)
    _check_data_checksum(value.get("data_checksum"), data)
    return Entry(
        number,
        data,
        _signed32(value.get("header", 0), "header"),
        _request_id(value.get("request_id")),
        *(_locks(value.get(key, []), key) for key in _LOCK_KEYS),
    )


def _locks(value: Any, key: str) -> tuple[tuple[str, int], ...]:
    fits = isinstance(value, list) and all(
        isinstance(one, list)
        and len(one) == 2
        and isinstance(one[0], str)
        and isinstance(one[1], int)
        and not isinstance(one[1], bool)
        and -(2**63) <= one[1] < 2**63
        for one in value
    )
    if not fits:
        raise ValueError(f"{key} is not a list of [name, number]")
    return tuple((name, number) for name, number in value)


def _data(value: dict[str, Any]) -> bytes:
    given = [key for key in ("data", "data_b64", "data_hex") if key in value]
    if given == ["data", "data_b64"] and value["data"] is None:
        given = ["data_b64"]  # dump writes both keys for data that is no text
    if len(given) != 1:
        raise ValueError("one of data, data_b64 and data_hex is needed" if not given else f"both {' and '.join(given)}")
    content = value[given[0]]
    if given[0] == "data":
        try:
            return (content if isinstance(content, str) else lossless_json.encode(content)).encode()
        except UnicodeEncodeError:
            raise ValueError("data holds a lone surrogate, which has no UTF-8 form; use data_b64") from None
    if not isinstance(content, str):
        raise ValueError(f"{given[0]} is not a string")
    try:
        return base64.b64decode(content, validate=True) if given[0] == "data_b64" else binascii.unhexlify(content)
    except ValueError as error:
        raise ValueError(f"{given[0]}: {error}") from None


def _check_data_checksum(given: Any, data: bytes) -> None:
    if given is None:
        return
    from waltzctl.formats.checksums import crc32

    if not isinstance(given, str) or given.lower() != f"{crc32(data):08x}":
        raise ValueError(f"data_checksum is {given!r}, but that of the data is {crc32(data):08x}")


def _signed32(value: Any, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**31) <= value < 2**31:
        raise ValueError(f"{name} is not a signed 32-bit integer")
    return value


def _request_id(value: Any) -> tuple[int, int, int, int] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or set(value) != set(_REQUEST_KEYS):
        raise ValueError(f"request_id is not an object of {', '.join(_REQUEST_KEYS)}")
    client, generation, partition, sequence = (_signed32(value[key], f"request_id.{key}") for key in _REQUEST_KEYS)
    return client, generation, partition, sequence


class EntryStream:
    """Entries as an asynchronous iterator; a thread reads the input.

    The thread reads ahead at most `_AHEAD` entries with `_AHEAD_BYTES` of data, or a single larger entry.  It is a daemon
    thread: an input that never ends does not keep the process from exiting.
    """

    _AHEAD = 4096
    _AHEAD_BYTES = 16 << 20

    def __init__(self, entries: Iterator[Entry]) -> None:
        self._entries = entries
        self._read: deque[Entry | BaseException | None] = deque()
        self._room = threading.Condition()
        self._bytes = 0  # data of entries that were read and not yet taken; guarded by `_room`
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def __aenter__(self) -> Self:
        threading.Thread(target=self._take, name="input", daemon=True).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def _take(self) -> None:
        try:
            for entry in self._entries:
                size = len(entry.data)
                with self._room:
                    while not self._has_room(size):
                        self._room.wait()
                    self._bytes += size
                self._give(entry)
            self._give(None)
        except BaseException as error:  # raised in the iterator
            self._give(error)

    def _has_room(self, size: int) -> bool:
        return not self._read or (len(self._read) < self._AHEAD and self._bytes + size <= self._AHEAD_BYTES)

    def _give(self, item: Entry | BaseException | None) -> None:
        first = not self._read
        self._read.append(item)
        if first:
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self._news.set)

    async def __aiter__(self) -> AsyncIterator[Entry]:
        while True:
            while self._read:
                item = self._read.popleft()
                if item is None:
                    return
                if isinstance(item, BaseException):
                    raise item
                with self._room:
                    self._bytes -= len(item.data)
                    self._room.notify()
                yield item
            self._news.clear()
            if not self._read:
                await self._news.wait()
