"""Where a storage is read: files of this machine, or objects behind a URL (``s3://bucket/node-1``), read in ranges through
fsspec.

`UrlPath` is a path in every way that the read-only view uses one, so that the same corridor (view, verify, dump, the Spark
data source) reads both.  Nothing is ever written through it, and nothing locks it: an object store knows no owner.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
import zlib
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path, PosixPath
from types import TracebackType
from typing import Any, Protocol, Self

from waltzctl.engine.durable import disk, regular
from waltzctl.engine.durable.regular import FileNumbers, special_kind
from waltzctl.engine.errors import DiskReadError, InvalidRequestError, UnavailableError
from waltzctl.engine.scan.source import ByteSource, FileSource

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
SMALL = 64 << 10
LARGE = 8 << 20
"""Bytes of one request: for a look at some place, and at most when one reads on and on."""

Options = tuple[tuple[str, Any], ...]
_options: dict[str, Options] = {}
"""What file systems were told to be opened with, by scheme and authority."""
_file_systems: dict[tuple[str, int], Any] = {}
_opening = threading.Lock()


class UrlPath(PosixPath):
    """An object, or what looks like a directory of them, by its URL.  It can be pickled, with what opens its file system."""

    @property
    def url(self) -> str:
        """As fsspec takes it."""
        return str(self)

    @property
    def root_url(self) -> str:
        """Scheme and authority."""
        scheme, rest = _split(str(self))
        return f"{scheme}://{rest.partition('/')[0]}"

    def __str__(self) -> str:
        return super().__str__().replace(":/", "://", 1)

    def __repr__(self) -> str:
        return f"UrlPath({str(self)!r})"

    def __fspath__(self) -> str:
        return str(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (str(self), _options.get(self.root_url, ()))

    def is_absolute(self) -> bool:
        """A URL always is."""
        return True

    def resolve(self, strict: bool = False) -> Self:
        """Itself: there are no links."""
        return self

    def is_dir(self, **_: Any) -> bool:
        """Whether anything lies under it.  Raises DiskReadError."""
        return self._kind() == "directory"

    def is_file(self, **_: Any) -> bool:
        """Whether it is an object.  Raises DiskReadError."""
        return self._kind() == "file"

    def exists(self, **_: Any) -> bool:
        """Whether there is anything.  Raises DiskReadError."""
        return self._kind() is not None

    def _kind(self) -> str | None:
        found = _info(self)
        return None if found is None else str(found["type"])


def _restored(url: str, options: Options) -> Path:
    return place(url, dict(options))


def _split(text: str) -> tuple[str, str]:
    found = _URL.fullmatch(text)
    assert found is not None
    return found[1], found[2]


def is_url(text: str) -> bool:
    """Whether a text is a URL and not a path."""
    return _URL.match(text) is not None


def place(text: str, options: Mapping[str, Any] | None = None) -> Path:
    """A path, or the `UrlPath` of a URL; ``file://`` URLs are paths of this machine.

    `options`: what fsspec's file system of this scheme and authority is opened with from now on (endpoint, credentials);
    None: as before.
    Raises InvalidRequestError for a URL that carries a password, which would end up in every message.
    """
    if not is_url(text):
        return Path(text)
    scheme, rest = _split(text)
    if scheme.lower() in ("file", "local"):
        return Path(rest)
    authority = rest.partition("/")[0]
    if ":" in authority.rpartition("@")[0]:
        raise InvalidRequestError(
            f"{scheme}://...@{authority.rpartition('@')[2]}: the URL carries a password, which every message would show",
            advice="give it to the file system in its own way: environment, configuration file or storage options",
        )
    path = UrlPath(text.rstrip("/"))
    if options is not None:
        wanted = tuple(sorted(options.items()))
        with _opening:
            if wanted != _options.get(path.root_url, ()):
                _options[path.root_url] = wanted
                _file_systems.pop((path.root_url, os.getpid()), None)  # it was opened in another way
    return path


def file_system(path: UrlPath) -> Any:
    """The fsspec file system of a path, without any cache of listings.  Raises UnavailableError, DiskReadError."""
    key = path.root_url, os.getpid()  # the threads and connections of a file system do not survive a fork
    with _opening:
        found = _file_systems.get(key)
        if found is None:
            scheme = _split(str(path))[0]
            try:
                import fsspec

                found = fsspec.filesystem(scheme, use_listings_cache=False, **dict(_options.get(path.root_url, ())))
            except (ImportError, ValueError) as error:
                raise UnavailableError(
                    f"{path}: nothing that is installed reads {scheme} URLs: {error}",
                    advice="install fsspec and its file system for them, for instance s3fs or gcsfs",
                ) from error
            _file_systems[key] = found
        return found


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


def file_numbers(path: Path) -> FileNumbers | None:
    """Of a regular file; None when there is none, or no access."""
    if isinstance(path, UrlPath):
        with contextlib.suppress(DiskReadError):
            info = _info(path)
            return None if info is None else _numbers(info)
        return None
    return regular.file_numbers(path)


def listing(path: Path) -> dict[str, FileNumbers | None]:
    """The names in a directory, in order, each with the numbers of the file; None for what is no regular file.

    Raises FileNotFoundError, NotADirectoryError, and DiskReadError or OSError for the rest.
    """
    if not isinstance(path, UrlPath):
        return {name: file_numbers(path / name) for name in sorted(os.listdir(path))}
    return {name: _numbers(info) for name, info in sorted(_entries(path).items())}


def names(path: Path) -> list[str]:
    """As `listing`, without a look at the files."""
    return sorted(_entries(path) if isinstance(path, UrlPath) else os.listdir(path))


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


def directory_modified_ns(path: Path) -> int | None:
    """When names in a directory changed last; None where that is not known."""
    if isinstance(path, UrlPath):
        return None
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None


def identity(path: Path) -> str:
    """What two ways to the same place have in common."""
    return str(path) if isinstance(path, UrlPath) else os.path.realpath(path)


def absolute(path: Path) -> Path:
    """Independent of the current directory."""
    return path if isinstance(path, UrlPath) else Path(os.path.abspath(path))


def still_named(path: Path) -> bool:
    """Whether the name is there, whatever it leads to.  Raises DiskReadError for a URL."""
    return path.exists() if isinstance(path, UrlPath) else os.path.lexists(path)


def special(path: Path) -> str | None:
    """What stands under a name that is neither free nor a regular file, in words; None for these two, and for a URL."""
    return None if isinstance(path, UrlPath) else special_kind(path)


def lock_holder(storage: Path, control_file: Path) -> int | None:
    """See `disk.lock_holder`; nobody holds what lies behind a URL."""
    return None if isinstance(storage, UrlPath) else disk.lock_holder(storage, control_file)


class OpenSource(ByteSource, Protocol):
    """A source that is a context manager."""

    def __enter__(self) -> Self:
        """Itself."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""


def open_source(path: Path) -> OpenSource:
    """The bytes of a file or object.  Raises FileNotFoundError, DiskReadError."""
    return UrlSource(path) if isinstance(path, UrlPath) else FileSource(path)


def read_range(path: Path, offset: int, length: int) -> bytes:
    """Up to `length` bytes from `offset`; fewer only at the end.  Raises DiskReadError, FileNotFoundError."""
    if not isinstance(path, UrlPath):
        return disk.read_range(path, offset, length)
    with UrlSource(path) as source:
        data = bytearray(max(0, min(length, source.size() - offset)))
        return bytes(data[: source.read_into(offset, memoryview(data))]) if data else b""


class UrlSource:
    """An object, read in ranges: small ones for single places, growing ones for whoever reads on from where it ended."""

    def __init__(self, path: UrlPath) -> None:
        """Raises FileNotFoundError, DiskReadError."""
        self.name = str(path)
        self._path = path
        self._fs = file_system(path)
        self._lock = threading.Lock()
        self._held = b""
        self._held_at = 0
        self._ahead = SMALL
        self._next = -1
        self._size = self._look()

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
