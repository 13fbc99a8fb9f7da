"""The project's own decoder: one function, ``decode(header, data) -> dict``, applied to every transaction.

``decoder.py`` defines three names:

==========  ====================================================================================================
`SCHEMA`    the decoded columns, as a schema in Spark's notation
`KEY`       the columns that identify a row of ``state``: a transaction replaces the row with the same key
`decode`    a function of the header (int) and the data (bytes) that returns a dict of the columns, or None: then
            the transaction has no decoded columns, and changes no row of ``state``
==========  ====================================================================================================

Where `decode` raises an exception, or returns a value that does not fit `SCHEMA`, the transaction is *refused*: ``decoded`` is
null, ``refused`` has the reason, and quarantine has a row.  Spark itself would end the run, or store null without a message.

The function is sent to Spark's workers as bytes, not by the name of its module: they need not have the project.
"""

from __future__ import annotations

import copy
import importlib.util
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, time
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waltzctl.engine.errors import InvalidRequestError

if TYPE_CHECKING:
    from types import ModuleType

    import pyarrow as pa

Decode = Callable[[int, bytes], "Mapping[str, Any] | None"]
_REASON_LENGTH = 500
"""Characters of a reason that are kept, at most."""
RESERVED = ("partition", "transaction_id", "_bucket")
"""Names of columns that ``state`` has beside the decoder's; the last one (`state_files.BUCKET`) is not written."""
_FLOAT_OVERFLOW = (2 - 2**-24) * 2.0**127
"""The least absolute value that becomes infinite when it is rounded to a four-byte float."""
_NESTED = ("array", "map", "struct")
_Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Decoder:
    """The definitions of a ``decoder.py``.  `schema`: in Spark's notation; `key`: names of columns in it."""

    schema: str
    key: tuple[str, ...]
    decode: Decode


def load_decoder(path: Path) -> Decoder:
    """Read a project's decoder.  Raises InvalidRequestError with the file and what is wrong in it."""
    module = _module(path)
    schema, key, decode = (getattr(module, name, None) for name in ("SCHEMA", "KEY", "decode"))
    if not isinstance(schema, str) or not schema.strip():
        raise InvalidRequestError(
            f"{path}: SCHEMA must be a text", advice='for instance SCHEMA = "key STRING, value STRING"'
        )
    if isinstance(key, str):
        key = (key,)
    if not isinstance(key, (tuple, list)) or not key or not all(isinstance(one, str) for one in key):
        raise InvalidRequestError(f"{path}: KEY must name a column, or several", advice='for instance KEY = ("key",)')
    if not callable(decode):
        raise InvalidRequestError(f"{path}: there is no function decode(header, data)")
    return Decoder(schema, tuple(key), decode)


def _module(path: Path) -> ModuleType:
    from pyspark import cloudpickle

    if not path.is_file():
        raise InvalidRequestError(
            f"{path}: there is no decoder", advice="waltzctl pipeline init writes one that takes JSON"
        )
    spec = importlib.util.spec_from_file_location("waltz_pipeline_decoder", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)

    sys.modules[spec.name] = module  # where cloudpickle looks up a module that it pickles by value
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InvalidRequestError(f"{path}: {type(error).__name__}: {error}", advice="mend the decoder") from error
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return module


def check_columns(decoder: Decoder, kinds: Mapping[str, str], path: Path) -> None:
    """Raise InvalidRequestError where `KEY` names no column of the schema, or one that cannot be a key, or a name is reserved.

    `kinds`: Spark's name of each column's type.
    """
    for one in decoder.key:
        if one not in kinds:
            raise InvalidRequestError(f"{path}: KEY names {one!r}, and SCHEMA has {', '.join(kinds)}")
        if kinds[one] in _NESTED:
            raise InvalidRequestError(
                f"{path}: KEY names {one!r}, which is {kinds[one].upper()}: values of that type are not put in an order",
                advice="make a column of what is equal for a key, for instance STRING with json.dumps(value, sort_keys=True)",
            )
    for one in kinds:
        if one.lower() in RESERVED:
            raise InvalidRequestError(
                f"{path}: SCHEMA names {one!r}, which is a column of state by itself", advice="give it another name"
            )


def decoded(headers: pa.Array, datas: pa.Array, decode: Decode, kind: pa.DataType) -> pa.Array:
    """Structs of ``decoded`` (of type `kind`) and ``refused`` (the reason), of which at least one is null."""
    import pyarrow as pa

    values: list[Any] = []
    refused: list[str | None] = []
    convert = _converter(kind)
    for header, data in zip(headers.to_pylist(), datas.to_pylist(), strict=True):
        value = why = None
        try:
            made = decode(header, data)
            if made is not None:
                value = convert(dict(made))
                pa.scalar(value, kind)
        except KeyboardInterrupt:
            raise
        except (
            BaseException
        ) as error:  # the decoder may call sys.exit, or panic (PyO3's PanicException is no Exception)
            value, why = None, _reason(error)
        values.append(value)
        refused.append(why)
    return pa.StructArray.from_arrays([pa.array(values, kind), pa.array(refused, pa.string())], ["decoded", "refused"])


def _reason(error: BaseException) -> str:
    """The type and message of an error of the decoder, as valid UTF-8."""
    try:
        said = f"{type(error).__name__}: {error}"
    except Exception:
        said = type(error).__name__
    return said[:_REASON_LENGTH].encode("utf-8", "replace").decode()


def _converter(kind: pa.DataType, place: str = "") -> _Convert:
    """A function that copies and checks a value before Arrow converts it to `kind`.

    It copies mutable values, since the decoder's next call may change them.  It raises ValueError for what Arrow would accept and
    change: a struct with unknown fields, a number that the type cannot hold.  `place`: the field, for messages.
    """
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return _struct_converter(kind, place)
    if pa.types.is_list(kind):
        return _list_converter(_converter(kind.value_type, place))
    if pa.types.is_map(kind):
        return _map_converter(_converter(kind.key_type, place), _converter(kind.item_type, place))
    if pa.types.is_date(kind):
        return _date_converter(place)
    if pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        return _integer_converter(place)
    if pa.types.is_float32(kind):
        return _float_converter(place)
    return _bytes if pa.types.is_binary(kind) or pa.types.is_string(kind) else _unchanged


def _integer_converter(place: str) -> _Convert:
    """Refuses numbers with a fraction, which Arrow would truncate."""

    def converted(value: Any) -> Any:
        if type(value) is not int and isinstance(value, (Real, Decimal)) and value % 1 != 0:
            raise ValueError(f"it returned {value!r}{place}, which is no whole number")
        return value

    return converted


def _date_converter(place: str) -> _Convert:
    """Refuses times other than midnight, which Arrow would truncate, and pandas' NaT, of which Arrow would make a day."""
    whole = _integer_converter(place)

    def converted(value: Any) -> Any:
        if isinstance(value, datetime) and value.time() != time():
            raise ValueError(f"it returned {value!r}{place}, which is no whole day")
        return whole(value)

    return converted


def _float_converter(place: str) -> _Convert:
    """Refuses finite numbers beyond a FLOAT's range, which Arrow would make infinite."""

    def converted(value: Any) -> Any:
        if isinstance(value, float) and _FLOAT_OVERFLOW <= abs(value) < math.inf:
            raise ValueError(f"it returned {value!r}{place}, which is too great for a FLOAT")
        return value

    return converted


def _unchanged(value: Any) -> Any:
    return value


def _bytes(value: Any) -> Any:
    return bytes(value) if isinstance(value, (bytearray, memoryview)) else value


def _struct_converter(kind: pa.DataType, place: str) -> _Convert:
    names = [one.name for one in kind]
    known = frozenset(names)
    made = [(one.name, _converter(one.type, f" in {one.name}{place}")) for one in kind]
    inside = [(name, convert) for name, convert in made if convert is not _unchanged]

    def converted(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, tuple):  # a named tuple may have its fields in another order
            own = getattr(value, "_fields", None) or getattr(value, "__fields__", None) or names
            fields = dict(zip(own, value, strict=True))
        else:
            fields = dict(value)
        if unknown := fields.keys() - known:
            raise ValueError(f"it returned {', '.join(sorted(map(repr, unknown)))}{place}, which SCHEMA does not name")
        for name, convert in inside:
            if name in fields:
                fields[name] = convert(fields[name])
        return fields

    return converted


def _list_converter(convert: _Convert) -> _Convert:
    def converted(value: Any) -> Any:
        if value is None or isinstance(value, (str, bytes, dict)):
            return value  # Arrow says whether it is a list
        if convert is not _unchanged:
            return [convert(one) for one in value]
        return copy.copy(value) if hasattr(value, "copy") or isinstance(value, tuple) else [*value]

    return converted


def _map_converter(convert_key: _Convert, convert: _Convert) -> _Convert:
    """Takes a dict, or pairs; a pair may be a dict of ``key`` and ``value``."""

    def converted(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, dict):
            return [(convert_key(key), convert(one)) for key, one in value.items()]
        pairs = [(one["key"], one.get("value")) if isinstance(one, dict) else one for one in value]
        return [(convert_key(key), convert(one)) for key, one in pairs]

    return converted
