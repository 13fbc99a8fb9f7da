"""Objects behind URLs, read in ranges through fsspec.

Nothing is ever written there, and nothing locks it: an object store knows no owner.

Reading ahead in an object is our own (`UrlSource`): a log is read at single places as well as on and on, and each of fsspec's
caches fits one of the two.  Measured with S3 on the loopback (docs/scale.md): ``readahead`` with blocks of 64 KiB asks 2.6 times
as often for a verify, with 1 MiB it reads 4.7 times as much for a few records and a fifth more for a verify; ``adaptive`` reads
half as much for a few records, and asks 2.9 times as often for a verify; ``blockcache``, ``bytes`` and ``background`` are behind
in both.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import zlib
from collections.abc import Mapping
from datetime import datetime
from pathlib import PurePath
from types import TracebackType
from typing import Any

from waltzctl.engine.durable.regular import FileNumbers
from waltzctl.engine.errors import DiskReadError, UnavailableError
from waltzctl.engine.log.access import ObjectAccess, OpenSource, PlaceKind
from waltzctl.engine.log.url_path import Options, UrlPath

SMALL = 64 << 10
LARGE = 8 << 20
"""Bytes of one request: for a look at some place, and at most when one reads on and on."""

_file_systems: dict[tuple[str, int], tuple[Options, Any]] = {}
"""Those that are open, by scheme and authority, and by process, and what each was opened with."""
_opening = threading.Lock()


def file_system(path: UrlPath) -> Any:
    """The fsspec file system of a path, without any cache of listings.  Raises UnavailableError, DiskReadError."""
    key = path.root_url, os.getpid()  # the threads and connections of a file system do not survive a fork
    with _opening:
        found, options = _file_systems.get(key), path.options
        if found is None or found[0] != options:
            found = _file_systems[key] = options, _opened(path, options)
        return found[1]


def _opened(path: UrlPath, options: Options) -> Any:
    try:
        from fsspec.core import url_to_fs  # which takes host, user and port from the URL

        return url_to_fs(path.root_url, use_listings_cache=False, **dict(options))[0]
    except (ImportError, ValueError) as error:
        raise UnavailableError(
            f"{path}: nothing that is installed reads {path.scheme} URLs: {error}",
            advice="install fsspec and its file system for them, for instance s3fs or gcsfs",
        ) from error
    except (OSError, TypeError) as error:  # a native library, a server asked at once; an option that is missing
        raise UnavailableError(
            f"{path}: {path.scheme} URLs cannot be read here: {str(error).partition(chr(10))[0]}",
            advice="hdfs needs a Hadoop client with libhdfs, JAVA_HOME and CLASSPATH, as pyarrow says"
            if path.scheme == "hdfs"
            else "does the file system answer, and are its options right?",
        ) from error


def _failed(path: UrlPath, offset: int | None, error: Exception, doing: str) -> DiskReadError:
    cause = error if isinstance(error, OSError) else OSError(errno.EIO, f"{type(error).__name__}: {error}")
    return DiskReadError(path, offset, cause, doing=doing)


def _info(path: UrlPath) -> Mapping[str, Any] | None:
    fs = file_system(path)
    try:
        found: Mapping[str, Any] = fs.info(path.url)
    except FileNotFoundError:
        return None
    except Exception as error:  # every file system has errors of its own
        raise _failed(path, None, error, "examine") from error
    return found


def _kind(info: Mapping[str, Any]) -> PlaceKind:
    return {"file": PlaceKind.FILE, "directory": PlaceKind.DIRECTORY}.get(info["type"], PlaceKind.SPECIAL)


def _numbers(info: Mapping[str, Any]) -> FileNumbers | None:
    """Of an object: as of a file, the inode a number made from its tag."""
    if info["type"] != "file":
        return None
    changed: Any = next(
        (info[key] for key in ("LastModified", "mtime", "last_modified", "created") if info.get(key)), 0
    )
    if isinstance(changed, datetime):
        changed = changed.timestamp()
    tag = next((info[key] for key in ("ETag", "etag", "md5Hash", "ino") if info.get(key)), "")
    modified = int(changed * 1e9) if isinstance(changed, (int, float)) else 0
    return FileNumbers(int(info["size"] or 0), modified, zlib.crc32(str(tag).encode()))


def _entries(path: UrlPath) -> dict[str, Mapping[str, Any]]:
    fs = file_system(path)
    try:
        found = fs.ls(path.url, detail=True)
    except FileNotFoundError:
        raise
    except Exception as error:  # every file system has errors of its own
        raise _failed(path, None, error, "list") from error
    own = fs._strip_protocol(path.url).strip("/")
    entries = {one["name"].strip("/"): one for one in found}
    itself = entries.pop(own, None)  # an object of this very name, or the empty one that stands for the directory
    if itself is not None and not entries and itself["size"]:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    return {name.rpartition("/")[2]: info for name, info in entries.items()}


def _url(path: PurePath) -> UrlPath:
    assert isinstance(path, UrlPath)
    return path


class UrlAccess(ObjectAccess):
    """Objects behind URLs; see `Access`.  There are no links and no special files among them, and nobody holds a lock."""

    def kind(self, path: PurePath) -> PlaceKind | None:
        """A directory is where anything lies under the name."""
        found = _info(_url(path))
        return None if found is None else _kind(found)

    def named(self, path: PurePath) -> bool:
        """Whether there is anything."""
        return self.kind(path) is not None

    def numbers(self, path: PurePath) -> FileNumbers | None:
        """The inode is a number made from the object's tag."""
        with contextlib.suppress(DiskReadError):
            info = _info(_url(path))
            return None if info is None else _numbers(info)
        return None

    def names(self, path: PurePath) -> list[str]:
        """Raises FileNotFoundError, NotADirectoryError, DiskReadError."""
        return sorted(_entries(_url(path)))

    def listing(self, path: PurePath) -> dict[str, FileNumbers | None]:
        """Of one request.  Raises as `names`."""
        return {name: _numbers(info) for name, info in sorted(_entries(_url(path)).items())}

    def kinds(self, path: PurePath) -> dict[str, PlaceKind | None]:
        """Of one request.  Raises as `names`."""
        return {name: _kind(info) for name, info in sorted(_entries(_url(path)).items())}

    def modified_ns(self, path: PurePath) -> int | None:
        """No object store tells."""
        return None

    def identity(self, path: PurePath) -> str:
        """The URL."""
        return str(path)

    def absolute(self, path: PurePath) -> PurePath:
        """A URL always is."""
        return path

    def open(self, path: PurePath, size: int | None = None) -> OpenSource:
        """An object."""
        return UrlSource(_url(path), size)

    def read_range(self, path: PurePath, offset: int, length: int) -> bytes:
        """In one request; a look at the object is another one, and only needed where that fails."""
        url = _url(path)
        if length > 0:  # a range of nothing is answered with everything
            with contextlib.suppress(Exception):  # every file system has errors of its own, also for one behind the end
                found: bytes = file_system(url).cat_file(url.url, start=offset, end=offset + length)
                return found
        return super().read_range(path, offset, length)


URLS = UrlAccess()


class UrlSource:
    """An object, read in ranges: small ones for single places, growing ones for whoever reads on from where it ended."""

    def __init__(self, path: UrlPath, size: int | None = None) -> None:
        """`size`: None to ask for it.  Raises FileNotFoundError, DiskReadError."""
        self.name = str(path)
        self._path = path
        self._fs = file_system(path)
        self._lock = threading.Lock()
        self._held = b""
        self._held_at = -1  # not where a first look at the beginning would be reading on
        self._ahead = SMALL
        self._next = -1
        self._size = self._look() if size is None else size

    def _look(self) -> int:
        info = _info(self._path)
        numbers = None if info is None else _numbers(info)
        if numbers is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.name)
        return numbers[0]

    def size(self) -> int:
        """Bytes in the object when it was opened: an object never grows, it is replaced."""
        return self._size

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """See `ByteSource.read_into`."""
        done, wanted = 0, min(len(buffer), max(0, self._size - offset))
        with self._lock:
            while done < wanted:
                at = offset + done
                if not self._held_at <= at < self._held_at + len(self._held):
                    self._fetch(at, wanted - done)
                    if not self._held:
                        break
                part = self._held[at - self._held_at :][: wanted - done]
                buffer[done : done + len(part)] = part
                done += len(part)
            self._next = offset + done
        return done

    def _fetch(self, at: int, wanted: int) -> None:
        self._ahead = min(self._ahead * 4, LARGE) if at in (self._next, self._held_at + len(self._held)) else SMALL
        end = min(self._size, at + max(wanted, self._ahead))
        try:
            self._held, self._held_at = self._fs.cat_file(self._path.url, start=at, end=end), at
        except Exception as error:  # every file system has errors of its own
            raise _failed(self._path, at, error, "read") from error

    def close(self) -> None:
        """Let go of what is held; a second call does nothing."""
        self._held = b""

    def __enter__(self) -> UrlSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
