"""The schema compiler: from a fixed-size `construct` schema to a ``struct.Struct`` and a NumPy dtype.

A `construct` schema is the one place where a layout stands.  It is exact but slow (tens of microseconds a structure), so
hot paths use what `compile_schema` derives from it: a ``struct.Struct`` over the flattened fields, a NumPy structured
dtype of the same bytes, and the byte offset of every field for compiled kernels.  A derived form is never edited by
hand; ``tests/formats/test_schema.py`` proves all of them equal on random values.

Field names of nested structures are joined by dots (``request_id.client``), array members carry their place
(``structs.1.session_id``).  Adapters (for instance a UUID over 16 bytes) are seen through: derived forms deliver the raw
value that lies beneath.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import construct

if TYPE_CHECKING:
    import numpy as np


class SchemaError(TypeError):
    """A schema cannot be compiled: it is not of fixed size, mixes byte orders or uses a construct without a flat form."""


@dataclass(frozen=True, slots=True)
class Field:
    """One leaf of a schema: dotted name, byte offset from the start of the structure, `struct` code, size in bytes.

    `order`: ``>`` for big-endian, ``<`` for little-endian, empty where there is none (one byte, or raw bytes).
    """

    name: str
    offset: int
    code: str
    size: int
    order: str = ""


def _leaves(con: Any, name: str, offset: int) -> list[Field]:
    """Flatten `con`, which starts at `offset`, into its leaves."""
    if isinstance(con, construct.Struct):
        fields: list[Field] = []
        for sub in con.subcons:
            if not sub.name:
                raise SchemaError(f"{name or 'schema'}: a member at offset {offset} has no name")
            fields += _leaves(sub, f"{name}.{sub.name}" if name else sub.name, offset)
            offset += sub.sizeof()
        return fields
    if isinstance(con, construct.Array):
        if callable(con.count):
            raise SchemaError(f"{name}: the array's length depends on other fields")
        fields = []
        for place in range(con.count):
            fields += _leaves(con.subcon, f"{name}.{place}", offset)
            offset += con.subcon.sizeof()
        return fields
    if isinstance(con, construct.FormatField):
        order, code = con.fmtstr[0], con.fmtstr[1:]
        size = con.sizeof()
        if order not in "<>" and size > 1:
            raise SchemaError(f"{name}: byte order {order!r} is that of whichever machine reads it")
        return [Field(name, offset, code, size, order if size > 1 else "")]
    if isinstance(con, construct.Bytes):
        if callable(con.length):
            raise SchemaError(f"{name}: the length depends on other fields")
        return [Field(name, offset, f"{con.length}s", con.length)]
    if isinstance(con, construct.Subconstruct):  # names, adapters and validators: the bytes are those of what they wrap
        return _leaves(con.subcon, name, offset)
    raise SchemaError(f"{name}: {type(con).__name__} has no fixed-size flat form")


def _order_of(fields: tuple[Field, ...]) -> str:
    """The byte order of all leaves; big-endian where none has one."""
    orders = {field.order: field.name for field in fields if field.order}
    if len(orders) > 1:
        raise SchemaError(f"{orders['>']} is big-endian and {orders['<']} little-endian; a layout has one byte order")
    return next(iter(orders), ">")


class CompiledSchema:
    """The derived forms of one fixed-size schema.

    Attributes:
        schema: the `construct` schema, the source of everything here.
        size: bytes.
        fields: the leaves in file order.
        order: ``>`` or ``<``, the same for all leaves: what Waltz writes is big-endian, a page store little-endian.
        struct: in that byte order, without padding; packs and unpacks the leaves in the order of `fields`.
    """

    def __init__(self, schema: Any) -> None:
        self.schema = schema
        self.fields: tuple[Field, ...] = tuple(_leaves(schema, "", 0))
        self.order = _order_of(self.fields)
        self.struct = struct.Struct(self.order + "".join(field.code for field in self.fields))
        self.size: int = schema.sizeof()
        if self.struct.size != self.size:
            raise SchemaError(f"derived size {self.struct.size} differs from the schema's {self.size}")
        self._offsets = {field.name: field.offset for field in self.fields}

    def offset_of(self, name: str) -> int:
        """Byte offset of a leaf, or of the first byte of a nested structure or array.  Raises KeyError."""
        if name in self._offsets:
            return self._offsets[name]
        inside = [field.offset for field in self.fields if field.name.startswith(name + ".")]
        if not inside:
            raise KeyError(name)
        self._offsets[name] = min(inside)
        return self._offsets[name]

    def size_of(self, name: str) -> int:
        """Size in bytes of a leaf, or of a nested structure or array.  Raises KeyError."""
        inside = [f for f in self.fields if f.name == name or f.name.startswith(name + ".")]
        if not inside:
            raise KeyError(name)
        return sum(field.size for field in inside)

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """NumPy structured dtype of the same bytes; nested structures and arrays are flattened to dotted names."""
        import numpy as np

        codes = {"b": "i1", "B": "u1", "h": "i2", "H": "u2", "i": "i4", "I": "u4", "l": "i4", "L": "u4"}
        codes |= {"q": "i8", "Q": "u8", "f": "f4", "d": "f8"}
        formats = [f"V{one.size}" if one.code.endswith("s") else one.order + codes[one.code] for one in self.fields]
        return np.dtype(
            {
                "names": [field.name for field in self.fields],
                "formats": formats,
                "offsets": [field.offset for field in self.fields],
                "itemsize": self.size,
            }
        )


def compile_schema(schema: Any) -> CompiledSchema:
    """Derive struct, dtype and offsets from a fixed-size schema.  Raises SchemaError where there is no flat form."""
    return CompiledSchema(schema)
