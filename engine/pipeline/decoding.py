"""The project's own decoder: one function, ``decode(header, data) -> dict``, applied to every transaction.

``decoder.py`` has three names: `SCHEMA`, the columns that it makes, as Spark writes a schema; `KEY`, those of them by which
``state`` knows what is changed; and `decode`, which gets the header (int) and the data (bytes) and returns a dict by those
names. It may return None: the transaction says nothing, and is no row of ``state``.  Whatever it raises, and a value that is
none of its schema, makes the transaction one that was refused: ``decoded`` is null, ``refused`` says why, and quarantine has
a row.  Spark itself would end the run, or make null of it without a word.

The function travels to Spark's workers as bytes, not by the name of its module: they need not have the project.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waltzctl.engine.errors import InvalidRequestError

if TYPE_CHECKING:
    from types import ModuleType

    import pyarrow as pa

Decode = Callable[[int, bytes], "Mapping[str, Any] | None"]
_MOST = 500
"""Signs of a reason that are kept."""
RESERVED = ("partition", "transaction_id")
"""Names that columns of ``state`` have beside the decoder's."""


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


def check_columns(decoder: Decoder, names: Iterable[str], path: Path) -> None:
    """Raise InvalidRequestError where `KEY` names what is not among the schema's `names`, or a name is taken."""
    found = list(names)
    for one in decoder.key:
        if one not in found:
            raise InvalidRequestError(f"{path}: KEY names {one!r}, and SCHEMA has {', '.join(found)}")
    for one in found:
        if one.lower() in RESERVED:
            raise InvalidRequestError(
                f"{path}: SCHEMA names {one!r}, which is a column of state by itself", advice="give it another name"
            )


def decoded(headers: pa.Array, datas: pa.Array, decode: Decode, kind: pa.DataType) -> pa.Array:
    """Structs of ``decoded`` (of type `kind`) and ``refused`` (why), of which one is null, or both."""
    import pyarrow as pa

    values: list[Any] = []
    refused: list[str | None] = []
    names = {one.name for one in kind}
    for header, data in zip(headers.to_pylist(), datas.to_pylist(), strict=True):
        value: dict[str, Any] | None = None
        why = None
        try:
            made = decode(header, data)
            value = None if made is None else dict(made)
            unknown = sorted(map(repr, () if value is None else value.keys() - names))
            if unknown:
                raise ValueError(f"it returned {', '.join(unknown)}, which SCHEMA does not name")
            pa.scalar(value, kind)
        except Exception as error:
            value, why = None, f"{type(error).__name__}: {error}"[:_MOST]
        values.append(value)
        refused.append(why)
    return pa.StructArray.from_arrays([pa.array(values, kind), pa.array(refused, pa.string())], ["decoded", "refused"])
