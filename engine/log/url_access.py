"""Objects behind URLs, read in ranges through fsspec.

Objects are only read, and not locked: an object store has no locks.

Read-ahead is implemented here (`UrlSource`) and not by fsspec's caches, because a log is read both at random and sequentially,
and each of those caches suits one of the two.  Measured against S3 on the loopback (docs/scale.md), compared with `UrlSource`:

=========================================  ===========================  ===============================
cache                                      requests of a verify         bytes read
=========================================  ===========================  ===============================
``readahead``, blocks of 64 KiB            2.6 times
``readahead``, blocks of 1 MiB                                          4.7 times for a few records,
                                                                        1.2 times for a verify
``adaptive``                               2.9 times                    half for a few records
``blockcache``, ``bytes``, ``background``  more                         more
=========================================  ===========================  ===============================
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

from waltzctl.engine.durable.file_status import FileNumbers
from waltzctl.engine.errors import DiskReadError, UnavailableError
from waltzctl.engine.log.access import ObjectAccess, OpenSource, PlaceKind
from waltzctl.engine.log.url_path import Options, UrlPath

SMALL = 64 << 10
LARGE = 8 << 20
"""Bytes of one request: for a random read, and at most for a sequential one."""

_file_systems: dict[tuple[str, int], tuple[Options, Any]] = {}
"""Open file systems and their options, by scheme and authority and by process id."""
_opening = threading.Lock()
_SAME_STORE = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs"}
"""Schemes that name the objects of another one, as fsspec and Hadoop use them."""


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
    except (OSError, TypeError) as error:  # a native library is missing, or a server is down; an option is missing
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


def _range(fs: Any, path: UrlPath, start: int, end: int) -> bytes:
    """The bytes of a range, fewer where the object ends before it.

    Raises OSError for more bytes than that: a web server without ranges answers with the whole object, of which fsspec passes
    the first bytes off as those of the range.
    """
    found: bytes = fs.cat_file(path.url, start=start, end=end)
    if len(found) > end - start:
        raise OSError(errno.EIO, f"the server answered with {len(found)} bytes, where {end - start} were asked for")
    return found


def _kind(info: Mapping[str, Any]) -> PlaceKind:
    return {"file": PlaceKind.FILE, "directory": PlaceKind.DIRECTORY}.get(info["type"], PlaceKind.SPECIAL)


def _numbers(info: Mapping[str, Any]) -> FileNumbers | None:
    """Size, modification time and, in place of an inode, a checksum of the object's tag (ETag)."""
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
    itself = entries.pop(own, None)  # an object of this very name: empty, it is the directory's marker
    if itself is not None and not entries and itself["size"]:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    return {name.rpartition("/")[2]: info for name, info in entries.items()}


def _url(path: PurePath) -> UrlPath:
    assert isinstance(path, UrlPath)
    return path


class UrlAccess(ObjectAccess):
    """Objects behind URLs; see `Access`."""

    def kind(self, path: PurePath) -> PlaceKind | None:
        """A name is a directory if any object's name begins with it."""
        found = _info(_url(path))
        return None if found is None else _kind(found)

    def named(self, path: PurePath) -> bool:
        """Whether there is an object or a directory."""
        return self.kind(path) is not None

    def numbers(self, path: PurePath) -> FileNumbers | None:
        """The inode is a checksum of the object's tag (ETag)."""
        with contextlib.suppress(DiskReadError):
            info = _info(_url(path))
            return None if info is None else _numbers(info)
        return None

    def names(self, path: PurePath) -> list[str]:
        """Raises FileNotFoundError, NotADirectoryError, DiskReadError."""
        return sorted(_entries(_url(path)))

    def listing(self, path: PurePath) -> dict[str, FileNumbers | None]:
        """By one request.  Raises as `names`."""
        return {name: _numbers(info) for name, info in sorted(_entries(_url(path)).items())}

    def kinds(self, path: PurePath) -> dict[str, PlaceKind | None]:
        """By one request.  Raises as `names`."""
        return {name: _kind(info) for name, info in sorted(_entries(_url(path)).items())}

    def modified_ns(self, path: PurePath) -> int | None:
        """Always None: an object store has no such time."""
        return None

    def identity(self, path: PurePath) -> str:
        """The URL, with the one name of a scheme that has several."""
        scheme, separator, rest = str(path).partition("://")
        return f"{_SAME_STORE.get(scheme.lower(), scheme.lower())}{separator}{rest}"

    def absolute(self, path: PurePath) -> PurePath:
        """The URL as it is."""
        return path

    def open(self, path: PurePath, size: int | None = None) -> OpenSource:
        """See `Access.open`."""
        return UrlSource(_url(path), size)

    def read_range(self, path: PurePath, offset: int, length: int) -> bytes:
        """By one request; only if that fails, the object's size is asked for first."""
        url = _url(path)
        if length > 0:  # a request for an empty range is answered with the whole object
            with contextlib.suppress(Exception):  # file systems have different errors, also for a range beyond the end
                return _range(file_system(url), url, offset, offset + length)
        return super().read_range(path, offset, length)


URLS = UrlAccess()


class UrlSource:
    """An object, read in ranges: small ones for random reads, growing ones for sequential reads."""

    def __init__(self, path: UrlPath, size: int | None = None) -> None:
        """`size`: None to ask for it.  Raises FileNotFoundError, DiskReadError."""
        self.name = str(path)
        self._path = path
        self._fs = file_system(path)
        self._lock = threading.Lock()
        self._held = b""
        self._held_at = -1  # so that a first read at offset 0 does not count as sequential
        self._ahead = SMALL
        self._next = -1
        self._size = self._look() if size is None else size

    def _look(self) -> int:
        info = _info(self._path)
        numbers = None if info is None else _numbers(info)
        if numbers is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.name)
        if info is not None and info["size"] is None:  # a web server need not; it would pass for an empty object
            raise _failed(self._path, None, OSError(errno.EIO, "the server does not tell its size"), "examine")
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
            self._held, self._held_at = _range(self._fs, self._path, at, end), at
        except Exception as error:  # every file system has errors of its own
            raise _failed(self._path, at, error, "read") from error

    def close(self) -> None:
        """Free the buffer; a second call does nothing."""
        self._held = b""

    def __enter__(self) -> UrlSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
