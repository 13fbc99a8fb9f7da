"""The configuration file: YAML, keys nested or dotted, as release 0.13.2 reads it.

``storage: {port: 1}`` and ``storage.port: 1`` are equivalent.  If a key is given twice, the last value applies, as in the
release; other than there, this and unknown keys are reported (`engine.net.configuration`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.net.small_file import read_small_file

MAX_SIZE = 1 << 20
"""Bytes of a file."""
MAX_DEPTH = 16
"""Levels of nested keys."""
MAX_KEYS = 100_000
"""Keys of a file, those below an alias counted each time: a few lines of aliases to aliases could make billions."""
UNFIT = (ValueError, OverflowError, TypeError, LookupError, AttributeError)
"""What PyYAML raises for a value that does not fit its tag, or that nothing can hold, besides errors of its own."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A key (dotted), its value as YAML has it (a list or an empty map, too), and its line (from 1)."""

    key: str
    value: object
    line: int


def read_entries(path: Path) -> tuple[FileEntry, ...]:
    """All entries with a value, in file order.

    Raises InvalidRequestError (no such file, no YAML, not a map) and DiskReadError.
    """
    import yaml

    text = _read(path)
    try:
        loader = yaml.SafeLoader(text)
        try:
            top = loader.get_single_node()
            if top is None:
                return ()
            if not isinstance(top, yaml.MappingNode):
                raise InvalidRequestError(f"{path}: the top of the file must be keys with values")
            return tuple(
                entry for entry in _flatten(loader, top, "", path, itertools.count(1)) if entry.value is not None
            )
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        what = getattr(error, "problem", None) or getattr(error, "reason", None) or "no YAML"
        raise InvalidRequestError(f"{place}: {what}") from None
    except RecursionError:
        raise InvalidRequestError(f"{path}: values are nested too deep") from None
    except (ValueError, OverflowError) as error:  # such as a quoted escape that is no character
        raise InvalidRequestError(f"{path}: {error}") from None


def _read(path: Path) -> str:
    data = read_small_file(path, MAX_SIZE, contents="the configuration", kind="configuration file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"{path}: not UTF-8 at byte {error.start}") from None


def _flatten(
    loader: Any, node: Any, prefix: str, path: Path, keys: Iterator[int], depth: int = 0
) -> Iterator[FileEntry]:
    """The entries below a map.  `keys`: counts the keys of the file."""
    import yaml

    if depth > MAX_DEPTH:
        raise InvalidRequestError(f"{path}:{node.start_mark.line + 1}: keys are nested more than {MAX_DEPTH} deep")
    loader.flatten_mapping(node)
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if next(keys) > MAX_KEYS:
            raise InvalidRequestError(f"{path}:{line}: more than {MAX_KEYS} keys, with those of aliases")
        if not isinstance(key_node, yaml.ScalarNode):
            raise InvalidRequestError(f"{path}:{line}: a key must be a name")
        key = f"{prefix}{key_node.value}"
        if isinstance(value_node, yaml.MappingNode):
            yield from _flatten(loader, value_node, f"{key}.", path, keys, depth + 1)
        else:
            yield FileEntry(key, _value(loader, value_node, f"{path}:{line}: {key}"), line)


def _value(loader: Any, node: Any, place: str) -> object:
    """The value of a YAML node; `place` begins the message of InvalidRequestError for a value that does not fit its type."""
    try:
        return loader.construct_object(node, deep=True)
    except (ValueError, OverflowError) as error:
        raise InvalidRequestError(f"{place}: {error}") from None
    except UNFIT:  # a value that does not fit its explicit tag
        raise InvalidRequestError(f"{place}: this is no {node.tag.rpartition(':')[2]}") from None
