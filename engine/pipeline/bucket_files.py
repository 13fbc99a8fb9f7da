"""The files of ``state``: one for each bucket of keys, and a manifest.

::

    state/part-00003.parquet                bucket 3
         /_buckets                          the manifest, which readers ignore

The manifest has three lines: the number of buckets, the key's columns (JSON), and the buckets that have a file (JSON).

The bucket of a key depends on the number of buckets and on the key's columns.  With another number or other columns, a key's old
row would stay in one file and its new row would be written to another.  So files whose manifest has another number or key are
not continued.  Files of which one is lost are not continued either: the lost bucket would get only the keys that change later.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from waltzctl.engine.durable import disk

_MANIFEST = "_buckets"
_FILE = re.compile(r"part-(\d{5,})\.parquet")


def bucket_file(directory: Path, bucket: int) -> Path:
    """The path of a bucket's file."""
    return directory / f"part-{bucket:05}.parquet"


def buckets_there(directory: Path, buckets: int) -> int:
    """The number of buckets by the manifest.  Without a manifest (no files, or files of an older version): `buckets`, or what the
    highest file number proves, if that is more.
    """
    said, _, _ = _manifest(directory)
    if said is not None:
        return said
    return max([buckets, *(number + 1 for number in _files(directory))])


def key_there(directory: Path, key: Sequence[str]) -> tuple[str, ...]:
    """The key's columns by the manifest; `key` without one."""
    _, said, _ = _manifest(directory)
    return tuple(key) if said is None else said


def lost_buckets(directory: Path) -> list[int]:
    """Buckets that have a file by the manifest, and none in the directory, in order."""
    _, _, had = _manifest(directory)
    return sorted(had - _files(directory))


def keep_number(directory: Path, buckets: int, key: Sequence[str]) -> None:
    """Write the manifest, durably, where it changes; to be called before the first file is there.

    The number and the key of an existing manifest are kept.  The buckets with a file are those it has, and those that have a
    file now.  Raises DiskWriteError.
    """
    number, said, had = kept = _manifest(directory)
    made = buckets if number is None else number, tuple(key) if said is None else said, had | _files(directory)
    if made != kept:
        lines = f"{made[0]}\n{json.dumps(list(made[1]))}\n{json.dumps(sorted(made[2]))}\n"
        disk.write_whole(directory / _MANIFEST, lines.encode())


def keep_files(directory: Path) -> None:
    """Add buckets that have a file now to an existing manifest.  Raises DiskWriteError."""
    number, key, _ = _manifest(directory)
    if number is not None and key is not None:
        keep_number(directory, number, key)


def _files(directory: Path) -> frozenset[int]:
    return frozenset(int(found[1]) for one in directory.glob("part-*") if (found := _FILE.fullmatch(one.name)))


def _manifest(directory: Path) -> tuple[int | None, tuple[str, ...] | None, frozenset[int]]:
    """The manifest's number, key and buckets with a file; None, and no buckets, for what it lacks or what is invalid."""
    try:
        number, key, files, *_ = ((directory / _MANIFEST).read_bytes() + b"\n\n\n").split(b"\n")
    except (FileNotFoundError, NotADirectoryError):
        return None, None, frozenset()
    names, had = _list(key, str), _list(files, int)
    return int(number) if number.isdigit() else None, None if names is None else tuple(names), frozenset(had or ())


def _list(text: bytes, kind: type) -> list[Any] | None:
    with contextlib.suppress(ValueError):
        said = json.loads(text)
        if isinstance(said, list) and all(isinstance(one, kind) for one in said):
            return said
    return None
