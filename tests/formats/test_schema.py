"""The schema compiler: what it derives from a layout is the layout, whatever the values."""

from __future__ import annotations

import struct
from typing import Any

import construct
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.settings import few, properties
from waltzctl.formats import control, request_id, segment
from waltzctl.formats.adapters import Uuid
from waltzctl.formats.pages import blocks, write_batch
from waltzctl.formats.schema import CompiledSchema, Field, SchemaError, compile_schema


def compiled_schemas() -> dict[str, CompiledSchema]:
    found = {}
    for module in (control, request_id, segment, blocks, write_batch):
        for name, value in vars(module).items():
            if isinstance(value, CompiledSchema):
                found[f"{module.__name__}.{name}"] = value
    return found


SCHEMAS = compiled_schemas()
SIZES = {
    "waltzctl.formats.control.CONTROL_HEADER": 128,
    "waltzctl.formats.control.DOCUMENTED_STRUCT": 28,
    "waltzctl.formats.control.RELEASED_STRUCT": 36,
    "waltzctl.formats.control.DOCUMENTED_INFO": 60,
    "waltzctl.formats.control.RELEASED_INFO": 76,
    "waltzctl.formats.request_id.REQUEST_ID": 16,
    "waltzctl.formats.segment.SEGMENT_HEADER": 128,
    "waltzctl.formats.segment.RECORD_HEADER": 36,
    "waltzctl.formats.segment.INDEX_ENTRY": 8,
    "waltzctl.formats.segment.CHECKSUM": 4,
    "waltzctl.formats.pages.blocks.FRAGMENT_HEADER": 15,
    "waltzctl.formats.pages.blocks.PLAIN_HEADER": 11,
    "waltzctl.formats.pages.write_batch.BATCH_HEADER": 4,
    "waltzctl.formats.pages.write_batch.PUT_EDIT": 86,
    "waltzctl.formats.pages.write_batch.REF_EDIT": 49,
    "waltzctl.formats.pages.write_batch.EXTERNAL_EDIT": 41,
    "waltzctl.formats.pages.write_batch.DELETE_EDIT": 33,
    "waltzctl.formats.pages.write_batch.FIELD": 16,
}


def leaf_values(parsed: Any) -> list[Any]:
    """The leaves of what construct parsed, in file order, as the struct form delivers them."""
    if isinstance(parsed, construct.Container):
        return [leaf for name, value in parsed.items() if name != "_io" for leaf in leaf_values(value)]
    if isinstance(parsed, construct.ListContainer):
        return [leaf for value in parsed for leaf in leaf_values(value)]
    return [getattr(parsed, "bytes", parsed)]


def test_every_layout_has_the_size_that_the_format_fixes() -> None:
    assert {name: schema.size for name, schema in SCHEMAS.items()} == SIZES


@pytest.mark.parametrize("name", SIZES)
@few
@given(data=st.data())
def test_schema_struct_and_dtype_agree_on_random_bytes(name: str, data: st.DataObject) -> None:
    """Construct schema, struct and NumPy dtype read the same leaves from any bytes and write the same bytes back."""
    schema = SCHEMAS[name]
    raw = data.draw(st.binary(min_size=schema.size, max_size=schema.size))
    parsed = schema.schema.parse(raw)
    unpacked = schema.struct.unpack(raw)
    row = np.frombuffer(raw, dtype=schema.dtype)[0]
    assert leaf_values(parsed) == list(unpacked)
    for field, value in zip(schema.fields, unpacked, strict=True):
        own = row[field.name]
        assert (own.tobytes() if field.code.endswith("s") else own.item()) == value, field
        assert raw[field.offset : field.offset + field.size] == struct.pack(schema.order + field.code, value)
    assert schema.schema.build(parsed) == raw
    assert schema.struct.pack(*unpacked) == raw
    assert np.array([row], dtype=schema.dtype).tobytes() == raw


@pytest.mark.parametrize("name", SIZES)
def test_fields_cover_every_byte_once_and_in_order(name: str) -> None:
    schema, position = SCHEMAS[name], 0
    for field in schema.fields:
        assert field.offset == position
        position += field.size
    assert position == schema.size == schema.dtype.itemsize


def test_offsets_of_nested_members() -> None:
    info = control.RELEASED_INFO
    assert info.offset_of("structs") == 4
    assert info.offset_of("structs.1") == 40
    assert info.offset_of("structs.1.checksum") == 72
    assert (info.size_of("structs"), info.size_of("structs.0"), info.size_of("partition")) == (72, 36, 4)
    assert segment.RECORD_HEADER.offset_of("request_id") == 8
    assert segment.RECORD_HEADER.size_of("request_id") == 16
    for asked in (info.offset_of, info.size_of):
        with pytest.raises(KeyError):
            asked("struct")  # a prefix of a name is no name


def test_a_single_byte_has_no_byte_order() -> None:
    schema = compile_schema(
        construct.Struct(
            "a" / construct.Int8ub, "b" / construct.Int16ul, "c" / construct.Bytes(3), "d" / construct.Int8un
        )
    )
    assert schema.fields == (
        Field("a", 0, "B", 1, ""),
        Field("b", 1, "H", 2, "<"),
        Field("c", 3, "3s", 3, ""),
        Field("d", 6, "B", 1, ""),
    )
    assert (schema.order, schema.size, compile_schema(construct.Struct("a" / construct.Int8sb)).order) == ("<", 7, ">")


_NAMES = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=5, unique=True)


@st.composite
def schemas(draw: st.DrawFn, depth: int = 2, order: str = "b") -> Any:
    """Random fixed-size schemas out of everything that the compiler accepts."""
    members = []
    for name in draw(_NAMES):
        kinds = ["integer", "bytes", "uuid"] + (["struct", "array"] if depth else [])
        kind = draw(st.sampled_from(kinds))
        if kind == "integer":
            names = ("Int8u", "Int8s", "Int16u", "Int16s", "Int32u", "Int32s", "Int64s", "Int64u")
            member = getattr(construct, draw(st.sampled_from(names)) + order)
        elif kind == "bytes":
            member = construct.Bytes(draw(st.integers(1, 20)))
        elif kind == "uuid":
            member = Uuid
        elif kind == "struct":
            member = draw(schemas(depth=depth - 1, order=order))
        else:
            member = construct.Array(draw(st.integers(1, 3)), draw(schemas(depth=depth - 1, order=order)))
        members.append(name / member)
    return construct.Struct(*members)


@pytest.mark.turns(10)
@properties
@given(data=st.data())
def test_any_fixed_size_schema_compiles_to_equal_forms(data: st.DataObject) -> None:
    schema = compile_schema(data.draw(schemas(order=data.draw(st.sampled_from("bl")))))
    raw = data.draw(st.binary(min_size=schema.size, max_size=schema.size))
    unpacked = schema.struct.unpack(raw)
    assert leaf_values(schema.schema.parse(raw)) == list(unpacked)
    row = np.frombuffer(raw, dtype=schema.dtype)[0]
    for field, value in zip(schema.fields, unpacked, strict=True):
        own = row[field.name]
        assert (own.tobytes() if field.code.endswith("s") else own.item()) == value


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (construct.Struct("a" / construct.Int32sn), "byte order"),
        (construct.Struct("a" / construct.Int32sl, "b" / construct.Int32sb), "b is big-endian and a little-endian"),
        (construct.Struct(construct.Int32sb), "no name"),
        (construct.Struct("a" / construct.Int8ub, "b" / construct.Bytes(construct.this.a)), "depends on other fields"),
        (
            construct.Struct("a" / construct.Int8ub, "b" / construct.Array(construct.this.a, construct.Int8ub)),
            "depends",
        ),
        (construct.Struct("a" / construct.GreedyBytes), "no fixed-size flat form"),
        (construct.Struct("a" / construct.VarInt), "no fixed-size flat form"),
    ],
)
def test_what_has_no_flat_form_is_refused(schema: Any, why: str) -> None:
    with pytest.raises(SchemaError, match=why):
        compile_schema(schema)


def test_a_refusal_names_the_member() -> None:
    a, b = "a" / construct.Int16ub, "b" / construct.Int32sb
    for schema, why in (
        (construct.Struct(a, b, construct.Int8ub), "schema: a member at offset 6 has no name"),
        (construct.Struct(a, "in" / construct.Struct(b, construct.Int8ub)), "in: a member at offset 6 has no name"),
        (construct.Struct("in" / construct.Struct("c" / construct.VarInt)), "in.c: VarInt has no fixed-size flat form"),
        (
            construct.Struct("in" / construct.Array(2, construct.Struct("c" / construct.Int32sn))),
            "in.0.c: byte order '=' is that of whichever machine reads it",
        ),
    ):
        with pytest.raises(SchemaError, match=f"^{why}$"):
            compile_schema(schema)
