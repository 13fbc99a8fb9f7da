"""The encoder and decoder of a protocol, made from the schemas of its messages.

A message class is a frozen dataclass with its type number (`TYPE`) and the schema of its fields (`FIELDS`), which follow the
protocol's prefix.  A message is encoded and decoded by the first of these that exists:

1. the form derived from its schema (`formats.wire.message_forms`), unless it has a hand-written one;
2. its hand-written form (`FastForm`);
3. the schema itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import construct

from waltzctl.formats.checksums import Buffer
from waltzctl.formats.schema import CompiledSchema, SchemaError
from waltzctl.formats.wire.frame import frame_header
from waltzctl.formats.wire.message_forms import BeyondBodyError, DerivedForm, TrailingBytesError
from waltzctl.formats.wire.primitives import DEFAULT_LIMITS, Limits, MessageError


class Message(Protocol):
    """The attributes of every message class."""

    TYPE: ClassVar[int]
    FIELDS: ClassVar[Any]


@dataclass(frozen=True, slots=True)
class FastForm:
    """A hand-written encoder and decoder of a message's fields after the prefix.

    Attributes:
        pack: returns the fields as bytes.
        unpack: takes the body and the position after the prefix; returns the fields by name, and the position after them.
    """

    pack: Callable[[Any], bytes]
    unpack: Callable[[memoryview, int, Limits], tuple[dict[str, Any], int]]


class MessageCodec:
    """Encoder and decoder of one version of a protocol."""

    def __init__(
        self,
        *,
        magic: int,
        version: int,
        prefix: CompiledSchema,
        messages: Iterable[type[Message]],
        fast: Mapping[type[Message], FastForm] | None = None,
        fields: Mapping[type[Message], Any] | None = None,
    ) -> None:
        """`prefix` begins with a one-byte `type`; its other members are fields of every message.

        `fields`: schemas for messages whose `FIELDS` are those of another version.  A message that has a field which this version
        lacks can only be encoded when the field has its default value.
        """
        self.magic, self.version = int(magic), version
        self.by_type: dict[int, type[Message]] = {message.TYPE: message for message in messages}
        self.schemas: dict[type[Message], Any] = {
            message: construct.Struct(*prefix.schema.subcons, *(fields or {}).get(message, message.FIELDS).subcons)
            for message in self.by_type.values()
        }
        self._missing_fields = {
            message: missing
            for message in self.by_type.values()
            if (missing := _missing_fields(message, self.schemas[message]))
        }
        self._prefix = DerivedForm(prefix.schema)
        self._fast = dict(fast or {})
        self._derived: dict[type[Message], DerivedForm] = {}
        for message, schema in self.schemas.items():
            if message not in self._fast:
                with contextlib.suppress(SchemaError):
                    self._derived[message] = DerivedForm(schema)
        self._readers: dict[int, Callable[[Buffer, Limits], Any]] = {}  # by type; made at the first use

    def has_fast_form(self, kind: type[Message]) -> bool:
        """Whether messages of this class are encoded and decoded without the schema."""
        return kind in self._derived or kind in self._fast

    def encode(self, message: Any) -> bytes:
        """The whole frame.  Raises ValueError for a field that does not fit, or a message that this version cannot express."""
        kind = type(message)
        try:
            if kind in self._missing_fields:  # only `encode_by_schema` checks the fields that this version lacks
                return self.encode_by_schema(message)
            if kind in self._derived:
                body = self._derived[kind].pack(message)
            elif kind in self._fast:
                body = self._prefix.pack(message) + self._fast[kind].pack(message)
            else:
                return self.encode_by_schema(message)
        except struct.error as error:
            raise ValueError(f"{kind.__name__}: {error}") from error
        return frame_header(self.magic, self.version, len(body)) + body

    def encode_by_schema(self, message: Any) -> bytes:
        """As `encode`, by the schema alone."""
        schema = self._schema_of(type(message))
        self._check_missing_fields(message)
        values = {
            member.name: message.TYPE if member.name == "type" else getattr(message, member.name)
            for member in schema.subcons
        }
        try:
            body: bytes = schema.build(values)
        except (construct.ConstructError, struct.error) as error:
            raise ValueError(f"{type(message).__name__}: {error}") from error
        return frame_header(self.magic, self.version, len(body)) + body

    def decode(self, body: Buffer, limits: Limits = DEFAULT_LIMITS) -> Any:
        """The message in the body of a frame.  Raises MessageError.  Fastest for a body of type `bytes`."""
        reader = self._readers.get(body[0]) if len(body) else None
        if reader is None:
            kind = self._kind_of(memoryview(body))
            if not self.has_fast_form(kind):
                return self.decode_by_schema(body, limits)
            reader = self._readers[kind.TYPE] = self._reader(kind)
        try:
            return reader(body, limits)
        except BeyondBodyError:
            raise MessageError(
                f"{self.by_type[body[0]].__name__}: a field goes beyond the body of {len(body)} bytes"
            ) from None
        except TrailingBytesError as error:
            raise _ends_wrong(self.by_type[body[0]], error.args[0], len(body)) from None
        except MessageError as error:
            raise MessageError(f"{self.by_type[body[0]].__name__}: {error}") from None

    def _reader(self, kind: type[Message]) -> Callable[[Buffer, Limits], Any]:
        if kind in self._derived:
            return self._derived[kind].reader(kind)
        prefix, rest = self._prefix, self._fast[kind]

        def read(body: Buffer, limits: Limits) -> Any:
            view = memoryview(body)
            values, position = prefix.unpack(view, 0, limits)
            more, position = rest.unpack(view, position, limits)
            if position != len(view):
                raise TrailingBytesError(position)
            values |= more
            del values["type"]
            return kind(**values)

        return read

    def decode_by_schema(self, body: Buffer, limits: Limits = DEFAULT_LIMITS) -> Any:
        """As `decode`, by the schema alone."""
        kind = self._kind_of(memoryview(body))
        stream = io.BytesIO(body)
        try:
            found = self.schemas[kind].parse_stream(stream, limits=limits)
        except construct.ConstructError as error:
            raise MessageError(f"{kind.__name__}: a field goes beyond the body of {len(body)} bytes") from error
        except MessageError as error:
            raise MessageError(f"{kind.__name__}: {error}") from None
        if stream.tell() != len(body):
            raise _ends_wrong(kind, stream.tell(), len(body))
        names = [member.name for member in self.schemas[kind].subcons if member.name != "type"]
        return kind(**{name: found[name] for name in names})

    def _check_missing_fields(self, message: Any) -> None:
        for name, default in self._missing_fields.get(type(message), {}).items():
            if getattr(message, name) != default:
                raise ValueError(
                    f"{type(message).__name__}: version {self.version} of this protocol has no {name.replace('_', ' ')}"
                )

    def _schema_of(self, kind: type[Message]) -> Any:
        if kind not in self.schemas:
            raise ValueError(f"{kind.__name__} does not exist in version {self.version} of this protocol")
        return self.schemas[kind]

    def _kind_of(self, body: memoryview) -> type[Message]:
        if not body:
            raise MessageError("an empty body is no message")
        kind = self.by_type.get(body[0])
        if kind is None:
            raise MessageError(f"message type {body[0]} is unknown in version {self.version} of this protocol")
        return kind


def _missing_fields(kind: type[Any], schema: Any) -> dict[str, Any]:
    """The fields of a message that a schema lacks, with their defaults."""
    present = {member.name for member in schema.subcons}
    return {field.name: field.default for field in dataclasses.fields(kind) if field.name not in present}


def _ends_wrong(kind: type[Message], expected: int, found: int) -> MessageError:
    return MessageError(f"{kind.__name__}: {found - expected} bytes of the body are left over")
