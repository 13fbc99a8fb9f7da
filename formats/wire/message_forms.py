"""Forms of messages that are derived from their schemas, and read and write bytes without them.

A schema is cut into pieces, each of which is read and written with a ``struct.Struct`` of its own:

===============  ====================================================================================================
piece            of
===============  ====================================================================================================
fixed fields     neighbouring members of fixed size, at once
byte array       a count, and as many bytes; text as well
list             a count, and as many numbers
===============  ====================================================================================================

What is none of these (a structure whose members depend on others, a list of structures) has no derived form.  Counts are held
against the body and the limits as by the schema, in the same order, so that both refuse the same bodies for the same reason.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, Protocol

import construct

from waltzctl.formats.schema import SchemaError, compile_schema
from waltzctl.formats.wire.primitives import COUNT, ByteArrayOf, Limits, ListOf, ValueOf, check_count

_COUNT = compile_schema(construct.Struct("count" / COUNT)).struct


class BeyondBodyError(Exception):
    """A piece goes beyond the body."""


class FieldGroup(Protocol):
    """Some members of a message."""

    def pack(self, message: Any) -> bytes:
        """Their bytes.  Raises struct.error where a value does not fit."""
        ...

    def unpack(self, body: memoryview, position: int, limits: Limits, values: dict[str, Any]) -> int:
        """Read them into `values`; the position behind them.  Raises BeyondBodyError, MessageError."""
        ...


def _flatten(con: Any) -> Callable[[Any, list[Any]], None]:
    """A function that appends the leaves of a value, as a derived ``struct.Struct`` wants them."""
    if isinstance(con, construct.Renamed):
        return _flatten(con.subcon)
    if isinstance(con, construct.Struct):
        members = [(member.name, _flatten(member)) for member in con.subcons]

        def structure(value: Any, leaves: list[Any]) -> None:
            for name, member in members:
                member(value[name], leaves)

        return structure
    if isinstance(con, construct.Adapter):
        inner, adapt = _flatten(con.subcon), con._encode

        def adapted(value: Any, leaves: list[Any]) -> None:
            inner(adapt(value, None, ""), leaves)

        return adapted
    return lambda value, leaves: leaves.append(value)


def _assemble(con: Any) -> Callable[[Iterator[Any]], Any]:
    """The reverse: a function that takes a value's leaves from an iterator."""
    if isinstance(con, construct.Renamed):
        return _assemble(con.subcon)
    if isinstance(con, construct.Struct):
        members = [(member.name, _assemble(member)) for member in con.subcons]
        return lambda leaves: {name: member(leaves) for name, member in members}
    if isinstance(con, construct.Adapter):
        inner, adapt = _assemble(con.subcon), con._decode
        return lambda leaves: adapt(inner(leaves), None, "")
    return next


def _paths(con: Any, path: str) -> list[str] | None:
    """The attributes of a message that are the leaves of its schema; None where a leaf is not as it is in the message."""
    if isinstance(con, construct.Renamed):
        return _paths(con.subcon, f"{path}.{con.name}" if path else con.name)
    if isinstance(con, ValueOf):
        found: list[str] = []
        for member in con.subcon.subcons:
            below = _paths(member, path)
            if below is None:
                return None
            found += below
        return found
    return [path] if isinstance(con, construct.FormatField) else None


def _maker(con: Any, leaves: int) -> Callable[[tuple[Any, ...]], Any] | None:
    """What makes a member's value of its leaves; None where the one leaf is the value."""
    inner = con.subcon
    if isinstance(inner, construct.FormatField):
        return None
    if isinstance(inner, ValueOf) and inner.in_order and len(inner.names) == leaves:
        kind = inner.kind
        return lambda part: kind(*part)
    assemble = _assemble(inner)
    return lambda part: assemble(iter(part))


class FixedFields:
    """Neighbouring members of fixed size.  `size`: bytes."""

    def __init__(self, members: list[Any]) -> None:
        compiled = compile_schema(construct.Struct(*members))
        self.struct, self.size = compiled.struct, compiled.size
        self._members: list[tuple[str, int, int, Callable[[tuple[Any, ...]], Any] | None]] = []
        at = 0
        for member in members:
            count = len(compile_schema(construct.Struct(member)).fields)
            self._members.append((member.name, at, at + count, _maker(member, count)))
            at += count
        self._leaves = self._getter(members)

    @staticmethod
    def _getter(members: list[Any]) -> Callable[[Any], Any]:
        """The leaves of a message's members.  The member `type` is the class's `TYPE`."""
        paths = [_paths(member, "") for member in members]
        flat = ["TYPE" if path == "type" else path for one in paths if one is not None for path in one]
        if None not in paths:
            get = attrgetter(*flat)
            return get if len(flat) > 1 else lambda message: (get(message),)
        named = [("TYPE" if member.name == "type" else member.name, _flatten(member)) for member in members]

        def one_by_one(message: Any) -> list[Any]:
            leaves: list[Any] = []
            for name, flatten in named:
                flatten(getattr(message, name), leaves)
            return leaves

        return one_by_one

    def pack(self, message: Any) -> bytes:
        """See `FieldGroup`."""
        return self.struct.pack(*self._leaves(message))

    def unpack(self, body: memoryview, position: int, limits: Limits, values: dict[str, Any]) -> int:
        """See `FieldGroup`."""
        end = position + self.size
        if end > len(body):
            raise BeyondBodyError
        leaves = self.struct.unpack_from(body, position)
        for name, start, stop, make in self._members:
            values[name] = leaves[start] if make is None else make(leaves[start:stop])
        return end


def _count(body: memoryview, position: int) -> int:
    if position + _COUNT.size > len(body):
        raise BeyondBodyError
    count: int = _COUNT.unpack_from(body, position)[0]
    return count


class _Bytes:
    """A byte array, or what an adapter makes of one."""

    def __init__(self, name: str, array: ByteArrayOf, adapter: Any) -> None:
        self._name, self._array, self._adapter = name, array, adapter

    def pack(self, message: Any) -> bytes:
        value = getattr(message, self._name)
        if self._adapter is not None:
            value = self._adapter._encode(value, None, "")
        if value is None:
            if not self._array.nullable:
                raise ValueError(f"{self._array.what} is missing")
            return _COUNT.pack(-1)
        packed: bytes = _COUNT.pack(len(value)) + value
        return packed

    def unpack(self, body: memoryview, position: int, limits: Limits, values: dict[str, Any]) -> int:
        count, start = _count(body, position), position + _COUNT.size
        found: Any = None
        if count >= 0 or not self._array.nullable:
            check_count(self._array.what, count, self._array.limit(limits), 1, len(body) - start)
            found = bytes(body[start : start + count])
        values[self._name] = found if self._adapter is None else self._adapter._decode(found, None, "")
        return start + max(0, count)


class _Numbers:
    """A list of numbers."""

    def __init__(self, name: str, listed: ListOf) -> None:
        one = compile_schema(construct.Struct("number" / listed.subcon)).struct
        self._name, self._list, self._size = name, listed, one.size
        self._order, self._code = one.format[0], one.format[1:]

    def pack(self, message: Any) -> bytes:
        numbers = getattr(message, self._name)
        return _COUNT.pack(len(numbers)) + struct.pack(f"{self._order}{len(numbers)}{self._code}", *numbers)

    def unpack(self, body: memoryview, position: int, limits: Limits, values: dict[str, Any]) -> int:
        count, start = _count(body, position), position + _COUNT.size
        if not count:
            values[self._name] = ()
            return start
        check_count(self._list.what, count, self._list.limit(limits), self._list.smallest, len(body) - start)
        values[self._name] = struct.unpack_from(f"{self._order}{count}{self._code}", body, start)
        return start + count * self._size


class DerivedForm:
    """A message in pieces."""

    def __init__(self, schema: Any) -> None:
        """Raises SchemaError where it cannot be cut into pieces."""
        self._pieces: list[FieldGroup] = []
        waiting: list[Any] = []

        def end_run() -> None:
            if waiting:
                self._pieces.append(FixedFields([*waiting]))
                waiting.clear()

        for member in schema.subcons:
            piece = _piece(member)
            if piece is None:
                waiting.append(member)
            else:
                end_run()
                self._pieces.append(piece)
        end_run()

    def pack(self, message: Any) -> bytes:
        """The body.  Raises struct.error, ValueError for a value that does not fit."""
        return b"".join([piece.pack(message) for piece in self._pieces])

    def unpack(self, body: memoryview, position: int, limits: Limits) -> tuple[dict[str, Any], int]:
        """The members that begin at `position`, by name, and the position behind them.  Raises BeyondBodyError, MessageError."""
        values: dict[str, Any] = {}
        for piece in self._pieces:
            position = piece.unpack(body, position, limits, values)
        return values, position


def _piece(member: Any) -> FieldGroup | None:
    """The piece that a member is by itself; None for one of fixed size.  Raises SchemaError for what is neither."""
    con, adapter = member.subcon, None
    if isinstance(con, construct.Adapter) and isinstance(con.subcon, ByteArrayOf):
        con, adapter = con.subcon, con
    if isinstance(con, ByteArrayOf):
        return _Bytes(member.name, con, adapter)
    if isinstance(con, ListOf):
        if not isinstance(con.subcon, construct.FormatField):
            raise SchemaError(f"{member.name}: a list of something else than numbers")
        return _Numbers(member.name, con)
    compile_schema(construct.Struct(member))
    return None
