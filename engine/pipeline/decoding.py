"""The project's own decoder: one function, ``decode(header, data) -> dict``, applied to every transaction.

``decoder.py`` has three names: `SCHEMA`, the columns that it makes, as Spark writes a schema; `KEY`, those of them by which
``state`` knows what is changed; and `decode`, which gets the header (int) and the data (bytes) and returns a dict by those
names. It may return None: the transaction says nothing, and is no row of ``state``.  Whatever it raises, and a value that is
none of its schema, makes the transaction one that was refused: ``decoded`` is null, ``refused`` says why, and quarantine has
a row.  Spark itself would end the run, or make null of it without a word.

The function travels to Spark's workers as bytes, not by the name of its module: they need not have the project.
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
_MOST = 500
"""Signs of a reason that are kept."""
RESERVED = ("partition", "transaction_id", "_bucket")
"""Names that columns of ``state`` have beside the decoder's, that of a bucket (`state_files.BUCKET`) on the way to it."""
_NO_FLOAT = (2 - 2**-24) * 2.0**127
"""From this on a number of four bytes is infinite."""
_NESTED = ("array", "map", "struct")
_Take = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Decoder:
    """What a ``decoder.py`` says.  `schema`: as Spark writes one; `key`: names of columns in it."""

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

    sys.modules[spec.name] = module  # by which cloudpickle finds what is to travel as bytes
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InvalidRequestError(f"{path}: {type(error).__name__}: {error}", advice="mend the decoder") from error
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return module


def check_columns(decoder: Decoder, kinds: Mapping[str, str], path: Path) -> None:
    """Raise InvalidRequestError where `KEY` names what is not among the schema's columns or no key, or a name is taken.

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
    """Structs of ``decoded`` (of type `kind`) and ``refused`` (why), of which one is null, or both."""
    import pyarrow as pa

    values: list[Any] = []
    refused: list[str | None] = []
    take = _taking(kind)
    for header, data in zip(headers.to_pylist(), datas.to_pylist(), strict=True):
        value = why = None
        try:
            made = decode(header, data)
            if made is not None:
                value = take(dict(made))
                pa.scalar(value, kind)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # what it calls may exit, or panic (PyO3's PanicException is no Exception)
            value, why = None, _reason(error)
        values.append(value)
        refused.append(why)
    return pa.StructArray.from_arrays([pa.array(values, kind), pa.array(refused, pa.string())], ["decoded", "refused"])


def _reason(error: BaseException) -> str:
    """What an error of somebody's code says, as text that can be written."""
    try:
        said = f"{type(error).__name__}: {error}"
    except Exception:
        said = type(error).__name__
    return said[:_MOST].encode("utf-8", "replace").decode()


def _taking(kind: pa.DataType, place: str = "") -> _Take:
    """What copies a value before Arrow is asked whether it takes it: the decoder's next call may change it, where that can be.

    It raises ValueError where the value has a name that the type does not have, or is a number that it cannot be: Arrow passes
    that over.  `place`: of messages.
    """
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return _taking_struct(kind, place)
    if pa.types.is_list(kind):
        return _taking_list(_taking(kind.value_type, place))
    if pa.types.is_map(kind):
        return _taking_map(_taking(kind.key_type, place), _taking(kind.item_type, place))
    if pa.types.is_date(kind):
        return _day(place)
    if pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        return _whole(place)
    if pa.types.is_float32(kind):
        return _single(place)
    return _bytes if pa.types.is_binary(kind) or pa.types.is_string(kind) else _as_it_is


def _whole(place: str) -> _Take:
    """Of numbers only those that are whole: Arrow cuts the others off."""

    def taken(value: Any) -> Any:
        if type(value) is not int and isinstance(value, (Real, Decimal)) and value % 1 != 0:
            raise ValueError(f"it returned {value!r}{place}, which is no whole number")
        return value

    return taken


def _day(place: str) -> _Take:
    """Of times only those at which a day begins: Arrow cuts the rest off, and makes a day of pandas' NaT."""
    whole = _whole(place)

    def taken(value: Any) -> Any:
        if isinstance(value, datetime) and value.time() != time():
            raise ValueError(f"it returned {value!r}{place}, which is no whole day")
        return whole(value)

    return taken


def _single(place: str) -> _Take:
    """Of numbers only those that a FLOAT can be: Arrow makes others infinite."""

    def taken(value: Any) -> Any:
        if isinstance(value, float) and _NO_FLOAT <= abs(value) < math.inf:
            raise ValueError(f"it returned {value!r}{place}, which is too great for a FLOAT")
        return value

    return taken


def _as_it_is(value: Any) -> Any:
    return value


def _bytes(value: Any) -> Any:
    return bytes(value) if isinstance(value, (bytearray, memoryview)) else value


def _taking_struct(kind: pa.DataType, place: str) -> _Take:
    names = [one.name for one in kind]
    known = frozenset(names)
    made = [(one.name, _taking(one.type, f" in {one.name}{place}")) for one in kind]
    inside = [(name, take) for name, take in made if take is not _as_it_is]

    def taken(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, tuple):  # a named one has names of its own, perhaps in another order
            own = getattr(value, "_fields", None) or getattr(value, "__fields__", None) or names
            fields = dict(zip(own, value, strict=True))
        else:
            fields = dict(value)
        if unknown := fields.keys() - known:
            raise ValueError(f"it returned {', '.join(sorted(map(repr, unknown)))}{place}, which SCHEMA does not name")
        for name, take in inside:
            if name in fields:
                fields[name] = take(fields[name])
        return fields

    return taken


def _taking_list(take: _Take) -> _Take:
    def taken(value: Any) -> Any:
        if value is None or isinstance(value, (str, bytes, dict)):
            return value  # Arrow says whether it is a list
        if take is not _as_it_is:
            return [take(one) for one in value]
        return copy.copy(value) if hasattr(value, "copy") or isinstance(value, tuple) else [*value]

    return taken


def _taking_map(take_key: _Take, take: _Take) -> _Take:
    """Of a dict, or of pairs, which may be dicts themselves."""

    def taken(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, dict):
            return [(take_key(key), take(one)) for key, one in value.items()]
        pairs = [(one["key"], one.get("value")) if isinstance(one, dict) else one for one in value]
        return [(take_key(key), take(one)) for key, one in pairs]

    return taken
