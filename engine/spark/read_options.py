"""The options of a read, as Spark passes them: texts, with names in lower case."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from waltzctl.engine.amounts import parse_ranges, parse_size
from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.log import places
from waltzctl.engine.net.addresses import names_node
from waltzctl.engine.spark.data_loss import OPTION, fails_on_loss
from waltzctl.engine.spark.view_schemas import VIEWS

SPLIT_SIZE = 128 << 20
"""Bytes of data files that one task reads, approximately."""
MIN_SPLIT_SIZE = 100
"""Bytes: about the size of the smallest records, of which a task reads at least one."""
STORAGE_PREFIX = "storage."
KNOWN = {
    "path": "what load() was given",
    "paths": "what load([...]) was given",
    "view": "records, control, segments, index or findings",
    "data": "true: the records' data as well",
    "columns": "names, separated by commas, instead of a schema",
    "partitions": "only these, for instance 0-3,7",
    "minTransactionId": "only records from this id on",
    "maxTransactionId": "only records up to this id",
    "splitSize": "bytes for one task, for instance 128MiB",
    "pushdown": "true: filters of a query leave files out, and each use needs a load() of its own; auto: as Spark's setting",
    OPTION: "true: a read of records that are lost fails, and names them; false: each loss is a row",
    f"{STORAGE_PREFIX}NAME": "option NAME of the fsspec file system that reads the URL",
}
"""Every option of a batch read, as documented."""
METADATA = "metadata"
"""The option of a cluster: the location of its metadata, as ``--metadata`` takes it."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a batch read.  `first`, `last`: transaction ids, both inclusive; None: no bound.

    `columns` None: all columns of the view, except those only on request.  `pushdown` None: as Spark's setting.

    Without being asked for, no filter is pushed.  Spark (4.1 to 4.3) keeps one plan for each loaded table, that of the filters
    pushed last, and reads by it wherever the same table is used without a filter, or beside itself with another one: rows would
    be missing without a word.
    """

    paths: tuple[PurePath, ...]
    view: str = "records"
    columns: tuple[str, ...] | None = None
    data: bool = False
    partitions: frozenset[int] | None = None
    first: int | None = None
    last: int | None = None
    split_size: int = SPLIT_SIZE
    pushdown: bool | None = False
    fail_on_loss: bool = False


def view_options(options: Mapping[str, str]) -> tuple[str, tuple[str, ...] | None, bool]:
    """The options on which the schema depends: view, columns and data.  Raises InvalidRequestError."""
    view = options.get("view", "records").strip().lower()
    if view not in VIEWS:
        raise InvalidRequestError(f"option view: there is no view {view!r}", advice=f"it is one of {', '.join(VIEWS)}")
    text = options.get("columns")
    columns = None if text is None else tuple(name.strip() for name in text.split(",") if name.strip())
    return view, columns, _truth(options, "data")


def parse(options: Mapping[str, str]) -> ReadOptions:
    """All options of a batch read.  Raises InvalidRequestError for an unknown option or an invalid value."""
    refuse_unknown(options, KNOWN)
    return replace(values(options), paths=paths(options))


def values(options: Mapping[str, str]) -> ReadOptions:
    """The options without the paths; unknown options are ignored.  Raises InvalidRequestError for an invalid value."""
    view, columns, data = view_options(options)
    fail_on_loss = fails_on_loss(options)
    if fail_on_loss and view != "records":
        raise InvalidRequestError(
            f"option {OPTION}: view {view} shows what is wrong; only reading records can fail by it"
        )
    as_spark = options.get("pushdown", "").strip().lower() == "auto"
    pushdown = None if as_spark else _truth(options, "pushdown")
    return ReadOptions(
        paths=(),
        view=view,
        columns=columns,
        data=data,
        partitions=partitions_of(options),
        first=number_of(options, "minTransactionId"),
        last=number_of(options, "maxTransactionId"),
        split_size=_size(options, "splitSize"),
        pushdown=pushdown,
        fail_on_loss=fail_on_loss,
    )


def paths(options: Mapping[str, str]) -> tuple[PurePath, ...]:
    """The paths given to ``load()``.  Raises InvalidRequestError when there is none, or what stands for several is no list."""
    texts = _list_of_paths(options["paths"]) if options.get("paths") else []
    if options.get("path"):
        texts.append(options["path"])
    if not texts:
        raise InvalidRequestError(
            "format waltz reads nothing without a path",
            advice='name storage directories: load("/data/node-1"); in SQL, where CREATE TABLE ... USING hands no options to a'
            " source in Python: CREATE TEMPORARY VIEW name USING waltz OPTIONS (path '/data/node-1')",
        )
    for text in texts:
        if names_node(text):
            raise InvalidRequestError(
                f"{text} is a node; a batch is read from its files",
                advice="spark.readStream reads from nodes; waltzctl node copies a partition into a directory",
            )
    opening = storage_options(options)
    return tuple(places.place(text, opening) for text in texts)


def _list_of_paths(text: str) -> list[str]:
    """The option that Spark makes of ``load([...])``; it may also be written by hand, as in SQL."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise InvalidRequestError(
            f"option paths is a list in JSON, not {text!r}",
            advice="""write paths '["/data/node-1", "/data/node-2"]', or path for a single one""",
        )
    return found


def storage_options(options: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of the fsspec file system.  A value that is a JSON object, list or boolean is parsed as such."""
    return {name[len(STORAGE_PREFIX) :]: _value(options[name]) for name in options if _is_storage(name)}


def refuse_unknown(options: Mapping[str, str], known: Collection[str]) -> None:
    """Raise InvalidRequestError for an option that is neither `known` nor one of the file system."""
    names = {name.lower() for name in known}
    unknown = sorted(name for name in map(str.lower, options) if name not in names and not _is_storage(name))
    if unknown:
        raise InvalidRequestError(
            f"format waltz has no option {', '.join(unknown)}", advice=f"its options are {', '.join(known)}"
        )


def _is_storage(name: str) -> bool:
    return name.lower().startswith(STORAGE_PREFIX) and len(name) > len(STORAGE_PREFIX)


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text[:1] in ("{", "["):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text


def _truth(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name, "false")
    if text.strip().lower() not in ("true", "false"):
        raise InvalidRequestError(f"option {name} is true or false, not {text!r}")
    return text.strip().lower() == "true"


def partitions_of(options: Mapping[str, str]) -> frozenset[int] | None:
    """The option ``partitions``; None for all.  Raises InvalidRequestError."""
    text = options.get("partitions")
    if text is None:
        return None
    try:
        return frozenset(parse_ranges(text))
    except ValueError as error:
        raise InvalidRequestError(f"option partitions: {error}") from error


def number_of(options: Mapping[str, str], name: str) -> int | None:
    """The integer value of an option; None where it was not given.  Raises InvalidRequestError."""
    text = options.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError as error:
        raise InvalidRequestError(f"option {name} is a transaction id, not {text!r}") from error


def _size(options: Mapping[str, str], name: str) -> int:
    text = options.get(name)
    if text is None:
        return SPLIT_SIZE
    try:
        size = parse_size(text)
    except ValueError as error:
        raise InvalidRequestError(f"option {name}: {error}") from error
    if size < MIN_SPLIT_SIZE:
        raise InvalidRequestError(
            f"option {name}: {size} bytes are too few for a task; the least is {MIN_SPLIT_SIZE}",
            advice="write a unit, for instance 128MiB, which is also the default",
        )
    return size
