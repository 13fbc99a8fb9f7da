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

Reading is one function for each form, and writing another one, whose source is made of the pieces, as that of a dataclass's
constructor is made of its fields: a server reads a message in two thirds of the time that calls from piece to piece take, and a
client writes one in half.  They are made when they are first wanted: a command meets few of the messages, and 0.1 ms for each of
all versions would delay its start by 20 ms.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Protocol

import construct

from waltzctl.formats.checksums import Buffer
from waltzctl.formats.schema import SchemaError, compile_schema
from waltzctl.formats.wire.primitives import COUNT, ByteArrayOf, Limits, ListOf, ValueOf, check_count

_COUNT = compile_schema(construct.Struct("count" / COUNT)).struct


class BeyondBodyError(Exception):
    """A piece goes beyond the body."""


class TrailingBytesError(Exception):
    """A message ends before its body; the argument is where."""


class FieldGroup(Protocol):
    """Some members of a message."""

    def writing(self, own: str, scope: dict[str, Any]) -> tuple[list[str], list[str]]:
        """Lines, and expressions that are their bytes, one behind the other, once the lines were run.

        Both know the `message`; scope and names as for `reading`.  They raise struct.error, or ValueError, for what does not fit.
        """
        ...

    def reading(self, own: str, scope: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
        """Lines that read them, and the variable that each member is in then.

        The lines know `body`, its `size`, `limits`, and `position`, which they move behind the piece.  What else they need is put
        into `scope`; all their names begin with `own`.
        """
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


def _maker(con: Any, leaves: int) -> Callable[..., Any] | None:
    """What makes a member's value of its leaves, given one by one; None where the one leaf is the value."""
    inner = con.subcon
    if isinstance(inner, construct.FormatField):
        return None
    if isinstance(inner, ValueOf) and inner.in_order and len(inner.names) == leaves:
        kind: Callable[..., Any] = inner.kind
        return kind
    assemble = _assemble(inner)
    return lambda *part: assemble(iter(part))


class FixedFields:
    """Neighbouring members of fixed size.  `size`: bytes."""

    def __init__(self, members: list[Any]) -> None:
        compiled = compile_schema(construct.Struct(*members))
        self.struct, self.size = compiled.struct, compiled.size
        self._members: list[tuple[str, int, int, Callable[..., Any] | None]] = []
        at = 0
        for member in members:
            count = len(compile_schema(construct.Struct(member)).fields)
            self._members.append((member.name, at, at + count, _maker(member, count)))
            at += count
        self._writing = [self._leaves(member) for member in members]

    @staticmethod
    def _leaves(member: Any) -> tuple[str, Callable[[Any], list[Any]] | None]:
        """An expression of a member's leaves and, where it calls `{make}`, what that is; `type` is the class's `TYPE`."""
        paths = _paths(member, "")
        if paths is not None:
            return ", ".join(f"message.{'TYPE' if path == 'type' else path}" for path in paths), None
        flatten = _flatten(member)

        def leaves(value: Any) -> list[Any]:
            found: list[Any] = []
            flatten(value, found)
            return found

        return f"*{{make}}(message.{member.name})", leaves

    def writing(self, own: str, scope: dict[str, Any]) -> tuple[list[str], list[str]]:
        """See `FieldGroup`."""
        scope[f"{own}_write"] = self.struct.pack
        leaves = []
        for number, (expression, make) in enumerate(self._writing):
            if make is not None:
                scope[f"{own}_leaves_{number}"] = make
            leaves.append(expression.replace("{make}", f"{own}_leaves_{number}"))
        return [], [f"{own}_write({', '.join(leaves)})"]

    def reading(self, own: str, scope: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
        """See `FieldGroup`."""
        scope[f"{own}_read"] = self.struct.unpack_from
        leaves = [f"{own}_{number}" for number in range(self._members[-1][2])]
        lines = [
            f"if position + {self.size} > size: raise BeyondBodyError",
            f"{', '.join(leaves)}, = {own}_read(body, position)",
            f"position += {self.size}",
        ]
        found: dict[str, str] = {}
        for name, start, stop, make in self._members:
            found[name] = leaves[start]
            if make is not None:
                scope[f"{own}_make_{start}"] = make
                lines.append(f"{leaves[start]} = {own}_make_{start}({', '.join(leaves[start:stop])})")
        return lines, found


def _counted(own: str) -> list[str]:
    """Lines that read a count; `position` is behind it then."""
    return [
        f"if position + {_COUNT.size} > size: raise BeyondBodyError",
        f"{own}_count, = read_count(body, position)",
        f"position += {_COUNT.size}",
    ]


class _Bytes:
    """A byte array, or what an adapter makes of one."""

    def __init__(self, name: str, array: ByteArrayOf, adapter: Any) -> None:
        self._name, self._array, self._adapter = name, array, adapter

    def writing(self, own: str, scope: dict[str, Any]) -> tuple[list[str], list[str]]:
        array, value = self._array, f"{own}_value"
        lines = [f"{value} = message.{self._name}"]
        if self._adapter is not None:
            scope[f"{own}_adapt"] = self._adapter._encode
            lines.append(f"{value} = {own}_adapt({value}, None, '')")
        if not array.nullable:
            lines.append(f"if {value} is None: raise ValueError({f'{array.what} is missing'!r})")
            return lines, [f"write_count(len({value}))", value]
        lines += [f"{own}_count = -1 if {value} is None else len({value})", f"{value} = {value} or b''"]
        return lines, [f"write_count({own}_count)", value]

    def reading(self, own: str, scope: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
        array, value = self._array, f"{own}_value"
        scope[f"{own}_limit"] = array.limit
        held = [
            f"check_count({array.what!r}, {own}_count, {own}_limit(limits), 1, size - position)",
            f"{value} = bytes(body[position : position + {own}_count])",
            f"position += {own}_count",
        ]
        lines = _counted(own)
        if array.nullable:
            lines += [f"{value} = None", f"if {own}_count >= 0:", *(f"    {line}" for line in held)]
        else:
            lines += held
        if self._adapter is not None:
            scope[f"{own}_adapt"] = self._adapter._decode
            lines.append(f"{value} = {own}_adapt({value}, None, '')")
        return lines, {self._name: value}


class _Numbers:
    """A list of numbers."""

    def __init__(self, name: str, listed: ListOf) -> None:
        one = compile_schema(construct.Struct("number" / listed.subcon)).struct
        self._name, self._list, self._size = name, listed, one.size
        self._order, self._code = one.format[0], one.format[1:]

    def writing(self, own: str, scope: dict[str, Any]) -> tuple[list[str], list[str]]:
        value, count = f"{own}_value", f"{own}_count"
        lines = [f"{value} = message.{self._name}", f"{count} = len({value})"]
        numbers = f"write_numbers(f'{self._order}{{{count}}}{self._code}', *{value})"
        return lines, [f"write_count({count})", f"({numbers} if {count} else b'')"]

    def reading(self, own: str, scope: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
        listed, value = self._list, f"{own}_value"
        scope[f"{own}_limit"] = listed.limit
        lines = [
            *_counted(own),
            f"{value} = ()",
            f"if {own}_count:",
            f"    check_count({listed.what!r}, {own}_count, {own}_limit(limits), {listed.smallest}, size - position)",
            f"    {value} = read_numbers(f'{self._order}{{{own}_count}}{self._code}', body, position)",
            f"    position += {own}_count * {self._size}",
        ]
        return lines, {self._name: value}


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
        packed: bytes = self._pack(message)
        return packed

    @cached_property
    def _pack(self) -> Callable[[Any], Any]:
        scope: dict[str, Any] = {"write_count": _COUNT.pack, "write_numbers": struct.pack, "join": b"".join}
        lines, parts = list[str](), list[str]()
        for number, piece in enumerate(self._pieces):
            more, expressions = piece.writing(f"p{number}", scope)
            lines += more
            parts += expressions
        return _function("write", "message", [*lines, f"return join(({', '.join(parts)},))"], scope)

    def unpack(self, body: memoryview, position: int, limits: Limits) -> tuple[dict[str, Any], int]:
        """The members that begin at `position`, by name, and the position behind them.  Raises BeyondBodyError, MessageError."""
        values: tuple[dict[str, Any], int] = self._unpack(body, position, limits)
        return values

    @cached_property
    def _unpack(self) -> Callable[..., Any]:
        return self._compiled("body, position, limits", [], None)

    def reader(self, kind: type[Any]) -> Callable[[Buffer, Limits], Any]:
        """A function that reads a whole body as a message of a class, whose fields are the members but `type`.

        It raises TrailingBytesError, and as `unpack`.
        """
        return self._compiled("body, limits", ["position = 0"], kind)

    def _compiled(self, arguments: str, begin: list[str], kind: type[Any] | None) -> Callable[..., Any]:
        scope: dict[str, Any] = {
            "BeyondBodyError": BeyondBodyError, "TrailingBytesError": TrailingBytesError, "check_count": check_count,
            "read_count": _COUNT.unpack_from, "read_numbers": struct.unpack_from, "kind": kind,
        }  # fmt: skip
        lines, found = ["size = len(body)", *begin], dict[str, str]()
        for number, piece in enumerate(self._pieces):
            more, members = piece.reading(f"p{number}", scope)
            lines += more
            found |= members
        if kind is None:
            lines.append(f"return {{{', '.join(f'{name!r}: {value}' for name, value in found.items())}}}, position")
        else:
            lines += [
                "if position != size: raise TrailingBytesError(position)",
                f"return kind({', '.join(f'{name}={value}' for name, value in found.items() if name != 'type')})",
            ]
        return _function("read", arguments, lines, scope)


def _function(name: str, arguments: str, lines: list[str], scope: dict[str, Any]) -> Callable[..., Any]:
    """A function of these lines."""
    source = "\n    ".join([f"def {name}({arguments}):", *lines])
    exec(source, scope)  # of our own schemas' names and sizes alone
    made: Callable[..., Any] = scope[name]
    return made


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
