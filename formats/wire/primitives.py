"""The elements that messages are made of, as `construct` schemas, and the limits for all of them.

Byte arrays, strings and lists begin with a signed 32-bit count.  A count is compared with the bytes that are left in the
body, and with the reader's `Limits`, before anything is read; the release allocates by the count alone (weakness S4).

Source: release 0.13.2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from construct import Adapter, Construct, If, Int8ub, Int32sb, Struct, this

COUNT = Int32sb
"""The count before every byte array, string and list."""


class MessageError(ValueError):
    """A body that is not a message: a field beyond its end, bytes left over, an unknown type, an impossible count."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a reader accepts in one message.

    Attributes:
        max_records: records or record headers.
        max_data: bytes of one record's data.
        max_string: bytes of one string in UTF-8 (the metrics of a node are one string).
        max_partitions: partitions of a list; a cluster has a million at most.
        max_list: versions of a Hello, elements of a stack trace, locks of a kind, storage nodes.
    """

    max_records: int = 1 << 18
    max_data: int = 64 << 20
    max_string: int = 64 << 20
    max_list: int = 1 << 16
    max_partitions: int = 1 << 20


DEFAULT_LIMITS = Limits()


def check_count(what: str, count: int, limit: int, smallest: int, left: int) -> None:
    """Raise MessageError unless `count` elements of at least `smallest` bytes can be in the `left` bytes of the body."""
    if count < 0:
        raise MessageError(f"{what}: the count {count} is negative")
    if count * smallest > left:
        raise MessageError(f"{what}: the count {count} cannot be, {left} bytes are left")
    if count > limit:
        raise MessageError(f"{what}: the count {count} is above the {limit} that are accepted here")


def _left(stream: Any) -> int:
    return len(stream.getbuffer()) - int(stream.tell())


def _limits(context: Any) -> Limits:
    limits = context._params.get("limits", DEFAULT_LIMITS)
    assert isinstance(limits, Limits)
    return limits


class _Boolean(Adapter):  # type: ignore[misc]  # construct carries no types
    """One byte: written as 0 or 1, true only if it is 1."""

    def _decode(self, obj: int, context: Any, path: Any) -> bool:
        return obj == 1

    def _encode(self, obj: bool, context: Any, path: Any) -> int:
        return 1 if obj else 0


Boolean = _Boolean(Int8ub)


class ByteArrayOf(Construct):  # type: ignore[misc]
    """A count and that many bytes.  Where `nullable`, any negative count is None, which is written as -1."""

    def __init__(self, what: str, limit: Callable[[Limits], int], *, nullable: bool = False) -> None:
        super().__init__()
        self.what, self.limit, self.nullable = what, limit, nullable

    def _parse(self, stream: Any, context: Any, path: Any) -> bytes | None:
        count = COUNT._parsereport(stream, context, path)
        if count < 0 and self.nullable:
            return None
        check_count(self.what, count, self.limit(_limits(context)), 1, _left(stream))
        return bytes(stream.read(count))

    def _build(self, obj: bytes | None, stream: Any, context: Any, path: Any) -> bytes | None:
        if obj is None:
            if not self.nullable:
                raise ValueError(f"{self.what} is missing")
            COUNT._build(-1, stream, context, path)
            return None
        COUNT._build(len(obj), stream, context, path)
        stream.write(obj)
        return obj


class _Text(Adapter):  # type: ignore[misc]
    """A text in UTF-8.  In both directions invalid characters are replaced, as Java, the language of the release, does."""

    def _decode(self, obj: bytes | None, context: Any, path: Any) -> str | None:
        return None if obj is None else obj.decode("utf-8", "replace")

    def _encode(self, obj: str | None, context: Any, path: Any) -> bytes | None:
        return None if obj is None else obj.encode("utf-8", "replace")


ByteArray = ByteArrayOf("byte array", lambda limits: limits.max_data)
"""i32 length and the bytes; null, which the release can write, is an error (no message of a storage node may carry it)."""
Text = _Text(ByteArrayOf("string", lambda limits: limits.max_string))
"""i32 length and UTF-8."""
NullableText = _Text(ByteArrayOf("string", lambda limits: limits.max_string, nullable=True))
"""As `Text`; a negative length means null."""


def most_partitions(limits: Limits) -> int:
    """The limit of a list of partitions (`ListOf`)."""
    return limits.max_partitions


class ListOf(Construct):  # type: ignore[misc]
    """A count and that many elements, as a tuple.  `smallest`: the bytes of the shortest possible element."""

    def __init__(self, what: str, subcon: Any, smallest: int, limit: Callable[[Limits], int] | None = None) -> None:
        super().__init__()
        self.what, self.subcon, self.smallest = what, subcon, smallest
        self.limit = limit or (lambda limits: limits.max_list)

    def _parse(self, stream: Any, context: Any, path: Any) -> tuple[Any, ...]:
        count = COUNT._parsereport(stream, context, path)
        check_count(self.what, count, self.limit(_limits(context)), self.smallest, _left(stream))
        return tuple(self.subcon._parsereport(stream, context, path) for _ in range(count))

    def _build(self, obj: tuple[Any, ...], stream: Any, context: Any, path: Any) -> tuple[Any, ...]:
        COUNT._build(len(obj), stream, context, path)
        for element in obj:
            self.subcon._build(element, stream, context, path)
        return obj


class ValueOf(Adapter):  # type: ignore[misc]
    """A structure whose members are the fields of a dataclass, as that dataclass."""

    def __init__(self, kind: type, schema: Any) -> None:
        super().__init__(schema)
        names = tuple(member.name for member in schema.subcons)
        if sorted(names) != sorted(field.name for field in fields(kind)):
            raise TypeError(f"{kind.__name__} has not the fields of its schema: {names}")
        self.kind, self.names = kind, names
        self.in_order = names == tuple(field.name for field in fields(kind))

    def _decode(self, obj: Any, context: Any, path: Any) -> Any:
        return self.kind(**{name: obj[name] for name in self.names})

    def _encode(self, obj: Any, context: Any, path: Any) -> dict[str, Any]:
        return {name: getattr(obj, name) for name in self.names}


class _Pair(Adapter):  # type: ignore[misc]
    def _decode(self, obj: Any, context: Any, path: Any) -> Any:
        return tuple(obj[member.name] for member in self.subcon.subcons)

    def _encode(self, obj: Any, context: Any, path: Any) -> dict[str, Any]:
        return {member.name: value for member, value in zip(self.subcon.subcons, obj, strict=True)}


def pair_of(schema: Any) -> Any:
    """A structure as a plain tuple of its members' values."""
    return _Pair(schema)


class Presence(Adapter):  # type: ignore[misc]
    """A value or None, from a structure of a boolean and, only if that is true, the value."""

    def _decode(self, obj: Any, context: Any, path: Any) -> Any:
        return obj["value"]

    def _encode(self, obj: Any, context: Any, path: Any) -> dict[str, Any]:
        return {"present": obj is not None, "value": obj}


def optional(subcon: Any) -> Any:
    """A boolean, and the value if it is true; None otherwise."""
    return Presence(Struct("present" / Boolean, "value" / If(this.present, subcon)))
