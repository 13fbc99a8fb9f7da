"""Fast encoders and decoders of messages, derived from their schemas.

A schema is cut into pieces, each of which is read and written with a ``struct.Struct`` of its own:

===============  ====================================================================================================
piece            consists of
===============  ====================================================================================================
fixed fields     consecutive members of fixed size
byte array       a count and as many bytes; also a text
list             a count and as many numbers
===============  ====================================================================================================

A message with any other member (a structure whose members depend on others, a list of structures) has no derived form.  Counts
are checked against the body and the limits in the same order as by the schema, so that both refuse the same bodies for the same
reason.

For each message two functions are generated, one that reads and one that writes; their source text is put together from the
pieces, as that of a dataclass's constructor is from its fields.  A generated reader takes two thirds of the time of calls from
piece to piece, a generated writer half.  They are generated at their first use: a command uses few messages, and 0.1 ms for each
message of each version would delay its start by 20 ms.
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
    """A piece extends beyond the end of the body."""


class TrailingBytesError(Exception):
    """A message ends before its body does; the argument is the position where it ends."""


class FieldGroup(Protocol):
    """A piece: some members of a message."""

    def writing(self, own: str, scope: dict[str, Any]) -> tuple[list[str], list[str]]:
        """Source lines, and expressions of the piece's bytes, in order, to be evaluated after the lines.

        Both may use the variable `message`; for `own` and `scope` see `reading`.  The generated code raises struct.error or
        ValueError for a value that does not fit.
        """
        ...

    def reading(self, own: str, scope: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
        """Source lines that read the piece, and for each member the name of the variable that holds it afterwards.

        The lines may use the variables `body`, `size` (of the body), `limits` and `position`, and advance `position` to the end
        of the piece.  Other objects that they need are put into `scope`.  All new names begin with `own`.
        """
        ...


def _flatten(con: Any) -> Callable[[Any, list[Any]], None]:
    """A function that appends the leaves of a value to a list, in the order of the derived ``struct.Struct``."""
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
    """The inverse of `_flatten`: a function that makes a value from an iterator over its leaves."""
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
    """The attributes of a message that are the leaves of `con`; None when a leaf is not an attribute as it is."""
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
    """A function that makes a member's value from its leaves as arguments; None when the only leaf is the value."""
    inner = con.subcon
    if isinstance(inner, construct.FormatField):
        return None
    if isinstance(inner, ValueOf) and inner.in_order and len(inner.names) == leaves:
        kind: Callable[..., Any] = inner.kind
        return kind
    assemble = _assemble(inner)
    return lambda *part: assemble(iter(part))


class FixedFields:
    """A piece: consecutive members of fixed size.  `size`: bytes."""

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
        """An expression of a member's leaves, and the function that the placeholder `{make}` in it stands for, or None.

        The member `type` is the message class's `TYPE`.
        """
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
    """Source lines that read a count and advance `position` to its end."""
    return [
        f"if position + {_COUNT.size} > size: raise BeyondBodyError",
        f"{own}_count, = read_count(body, position)",
        f"position += {_COUNT.size}",
    ]


class _Bytes:
    """A piece: a byte array, or the value that an adapter makes of one."""

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
    """A piece: a list of numbers."""

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
    """The generated encoder and decoder of a message's schema."""

    def __init__(self, schema: Any) -> None:
        """Raises SchemaError for a schema that cannot be cut into pieces."""
        self._pieces: list[FieldGroup] = []
        fixed: list[Any] = []

        def end_run() -> None:
            if fixed:
                self._pieces.append(FixedFields([*fixed]))
                fixed.clear()

        for member in schema.subcons:
            piece = _piece(member)
            if piece is None:
                fixed.append(member)
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
        """The members from `position` on, by name, and the position after them.  Raises BeyondBodyError, MessageError."""
        values: tuple[dict[str, Any], int] = self._unpack(body, position, limits)
        return values

    @cached_property
    def _unpack(self) -> Callable[..., Any]:
        return self._compiled("body, position, limits", [], None)

    def reader(self, kind: type[Any]) -> Callable[[Buffer, Limits], Any]:
        """A function that reads a whole body as a message of class `kind`, whose fields are all members except `type`.

        The function raises TrailingBytesError, and as `unpack`.
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
    """The function with this name, these parameters and these source lines; `scope` is its global namespace."""
    source = "\n    ".join([f"def {name}({arguments}):", *lines])
    exec(source, scope)  # the source consists only of names and sizes from our own schemas
    made: Callable[..., Any] = scope[name]
    return made


def _piece(member: Any) -> FieldGroup | None:
    """The piece of a byte array or list; None for a member of fixed size.  Raises SchemaError for any other member."""
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
