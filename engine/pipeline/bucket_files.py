"""Which files ``state`` has: one for each bucket of keys, and one that says how many buckets there are.

::

    state/part-00003.parquet                bucket 3
         /_buckets                          of how many, in ASCII; readers pass over it

In which bucket a key is hangs on how many there are: with another number its old row would stay in one file and its new one
come into another.  So the number stands beside the files, and those of another one are not gone on with.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

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
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        said = (directory / _NUMBER).read_bytes()
        if said.isdigit():
            return int(said)
    numbers = [int(found[1]) for one in directory.glob("part-*") if (found := _FILE.fullmatch(one.name))]
    return max([buckets, *(number + 1 for number in numbers)])


def keep_number(directory: Path, buckets: int) -> None:
    """Say how many there are, where nothing says so yet; before the first file is there.  Raises DiskWriteError."""
    if not (directory / _NUMBER).exists():
        disk.write_whole(directory / _NUMBER, b"%d" % buckets)
