"""Which files ``state`` has: one for each bucket of keys, and one that says how many buckets there are.

::

    state/part-00003.parquet                bucket 3
         /_buckets                          of how many, of which columns the key is, and which of them have a file (JSON), a line
                                            each; readers pass over it

In which bucket a key is hangs on how many there are, and on the columns that it is of: with others its old row would stay in one
file and its new one come into another.  So both stand beside the files, and those of others are not gone on with.  Neither are
files of which one is gone: only the keys that come again would be in it.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from waltzctl.engine.durable import disk

_NUMBER = "_buckets"
_FILE = re.compile(r"part-(\d{5,})\.parquet")


def bucket_file(directory: Path, bucket: int) -> Path:
    """Where a bucket lies."""
    return directory / f"part-{bucket:05}.parquet"


def buckets_there(directory: Path, buckets: int) -> int:
    """Of how many buckets the files are; `buckets` where there are none, or where nothing says that it is another number.

    Where the number does not stand beside them (older files) they say only that there are no fewer than the last one's.
    """
    said, _, _ = _kept(directory)
    if said is not None:
        return said
    return max([buckets, *(number + 1 for number in _files(directory))])


def key_there(directory: Path, key: Sequence[str]) -> tuple[str, ...]:
    """Of which columns the key of the files is; `key` where there are none, or where nothing says that it is of others."""
    _, said, _ = _kept(directory)
    return tuple(key) if said is None else said


def lost_buckets(directory: Path) -> list[int]:
    """Those that had a file, and have none any more, in order."""
    _, _, had = _kept(directory)
    return sorted(had - _files(directory))


def keep_number(directory: Path, buckets: int, key: Sequence[str]) -> None:
    """Say how many there are, and of which key, where nothing says so yet; before the first file is there.

    And which of them have a file by now, beside those that had one.  Raises DiskWriteError.
    """
    number, said, had = kept = _kept(directory)
    made = buckets if number is None else number, tuple(key) if said is None else said, had | _files(directory)
    if made != kept:
        lines = f"{made[0]}\n{json.dumps(list(made[1]))}\n{json.dumps(sorted(made[2]))}\n"
        disk.write_whole(directory / _NUMBER, lines.encode())


def keep_files(directory: Path) -> None:
    """Say which buckets have a file by now, where it is said how many there are.  Raises DiskWriteError."""
    number, key, _ = _kept(directory)
    if number is not None and key is not None:
        keep_number(directory, number, key)


def _files(directory: Path) -> frozenset[int]:
    return frozenset(int(found[1]) for one in directory.glob("part-*") if (found := _FILE.fullmatch(one.name)))


def _kept(directory: Path) -> tuple[int | None, tuple[str, ...] | None, frozenset[int]]:
    """What stands beside the files; None, and no files, for what does not."""
    try:
        number, key, files, *_ = ((directory / _NUMBER).read_bytes() + b"\n\n\n").split(b"\n")
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
