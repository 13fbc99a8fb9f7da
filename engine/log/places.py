"""Where a storage is read: files of this machine, objects behind a URL (``s3://bucket/node-1``) that are read in ranges through
fsspec, or a backup in a vault (``vault:VAULT::ID``).

A place is named by a pure path: one of this machine, a `UrlPath` or a `VaultPath`. What can be asked of it, `Access` says;
that has one implementation for each, and the read-only corridor (view, verify, dump, compare, the Spark data source) asks
nothing else. Nothing is ever written behind a URL, and nothing locks it: an object store knows no owner. Who writes asks for
`local`.

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
import re
import threading
import zlib
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path, PurePath, PurePosixPath
from types import TracebackType
from typing import Any, Self

from waltzctl.engine.durable import directory_lock, disk, regular
from waltzctl.engine.durable.regular import FileNumbers, special_kind
from waltzctl.engine.errors import DiskReadError, InvalidRequestError, UnavailableError
from waltzctl.engine.log.access import Access, ObjectAccess, OpenSource, PlaceKind
from waltzctl.engine.scan.byte_source import FileSource
from waltzctl.engine.vault.vault_path import VaultPath, is_vault_path

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
SMALL = 64 << 10
LARGE = 8 << 20
"""Bytes of one request: for a look at some place, and at most when one reads on and on."""

Options = tuple[tuple[str, Any], ...]
_options: dict[str, Options] = {}
"""What file systems were told to be opened with, by scheme and authority."""
_file_systems: dict[tuple[str, int], Any] = {}
_opening = threading.Lock()


class UrlPath(PurePosixPath):
    """The name of an object, or of what looks like a directory of them.  It can be pickled, with what opens its file system.

    Like every pure path it is a name and nothing more: what stands there, the functions of this module tell.
    """

    @property
    def url(self) -> str:
        """As fsspec takes it."""
        return str(self)

    @property
    def root_url(self) -> str:
        """Scheme and authority."""
        scheme, rest = _split(str(self))
        return f"{scheme}://{rest.partition('/')[0]}"

    @property
    def parent(self) -> Self:
        """Above scheme and authority is nothing, as above ``/``."""
        return self if len(self.parts) == 2 else super().parent

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


def _restored(url: str, options: Options) -> PurePath:
    return place(url, dict(options))


def _split(text: str) -> tuple[str, str]:
    found = _URL.fullmatch(text)
    assert found is not None
    return found[1], found[2]


def is_url(text: str) -> bool:
    """Whether a text is a URL and not a path."""
    return _URL.match(text) is not None


def place(text: str, options: Mapping[str, Any] | None = None) -> PurePath:
    """A path, or the `UrlPath` of a URL; ``file://`` URLs, and ``file:/x`` as Spark prints them, are paths of this machine.

    `options`: what fsspec's file system of this scheme and authority is opened with from now on (endpoint, credentials);
    None: as before.
    ``hdfs:///x`` is of the cluster that Hadoop's configuration names, which pyarrow calls ``default``.
    Raises InvalidRequestError for a URL that names no host or bucket, and for one that carries a password, which would end up
    in every message.
    """
    if is_vault_path(text):
        return VaultPath(text)
    if text.startswith("file:/") and not is_url(text):
        return Path(text.removeprefix("file:"))
    if not is_url(text):
        return Path(text)
    scheme, rest = _split(text)
    if scheme.lower() in ("file", "local"):
        return Path(rest)
    if scheme.lower() == "hdfs" and rest.startswith("/"):
        rest = f"default{rest}"
    elif scheme.lower() == "memory":  # of this process: its names begin with or without a slash
        rest = rest.lstrip("/")
    authority = rest.partition("/")[0]
    if not authority:
        raise InvalidRequestError(
            f"{text}: the URL names no host or bucket", advice=f"write {scheme}://HOST_OR_BUCKET/PATH"
        )
    if ":" in authority.rpartition("@")[0]:
        raise InvalidRequestError(
            f"{scheme}://...@{authority.rpartition('@')[2]}: the URL carries a password, which every message would show",
            advice="give it to the file system in its own way: environment, configuration file or storage options",
        )
    path = UrlPath(f"{scheme}://{rest}")
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
                from fsspec.core import url_to_fs  # which takes host, user and port from the URL

                found, _ = url_to_fs(path.root_url, use_listings_cache=False, **dict(_options.get(path.root_url, ())))
            except (ImportError, ValueError) as error:
                raise UnavailableError(
                    f"{path}: nothing that is installed reads {scheme} URLs: {error}",
                    advice="install fsspec and its file system for them, for instance s3fs or gcsfs",
                ) from error
            except (OSError, TypeError) as error:  # a native library, a server asked at once; an option that is missing
                raise UnavailableError(
                    f"{path}: {scheme} URLs cannot be read here: {str(error).partition(chr(10))[0]}",
                    advice="hdfs needs a Hadoop client with libhdfs, JAVA_HOME and CLASSPATH, as pyarrow says"
                    if scheme == "hdfs"
                    else "does the file system answer, and are its options right?",
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


class LocalAccess:
    """Files of this machine; see `Access`."""

    def kind(self, path: PurePath) -> PlaceKind | None:
        """Links followed."""
        here = Path(path)
        if here.is_dir():
            return PlaceKind.DIRECTORY
        if here.is_file():
            return PlaceKind.FILE
        return PlaceKind.SPECIAL if here.exists() else None

    def named(self, path: PurePath) -> bool:
        """A link that leads nowhere as well."""
        return os.path.lexists(path)

    def numbers(self, path: PurePath) -> FileNumbers | None:
        """As the system tells them."""
        return regular.file_numbers(path)

    def names(self, path: PurePath) -> list[str]:
        """Raises OSError."""
        return sorted(os.listdir(path))

    def listing(self, path: PurePath) -> dict[str, FileNumbers | None]:
        """Raises OSError."""
        above = os.fspath(path)
        return {name: regular.file_numbers(os.path.join(above, name)) for name in self.names(path)}

    def kinds(self, path: PurePath) -> dict[str, PlaceKind | None]:
        """Raises OSError."""
        return {name: self.kind(path / name) for name in self.names(path)}

    def modified_ns(self, path: PurePath) -> int | None:
        """The directory's own time."""
        try:
            return os.stat(path).st_mtime_ns
        except OSError:
            return None

    def identity(self, path: PurePath) -> str:
        """The path with its links resolved."""
        return os.path.realpath(path)

    def absolute(self, path: PurePath) -> PurePath:
        """Links stay."""
        return Path(os.path.abspath(path))

    def link(self, path: PurePath) -> bool:
        """A symbolic one."""
        return os.path.islink(path)

    def special(self, path: PurePath) -> str | None:
        """In words."""
        return special_kind(path)

    def lock_holder(self, storage: PurePath, control_file: PurePath) -> int | None:
        """The process that holds the storage directory."""
        return directory_lock.lock_holder(storage, control_file)

    def open(self, path: PurePath, size: int | None = None) -> OpenSource:
        """A file, which tells its size itself."""
        return FileSource(path)

    def read_range(self, path: PurePath, offset: int, length: int) -> bytes:
        """In one call."""
        return disk.read_range(path, offset, length)


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


_LOCAL = LocalAccess()
_REMOTE = UrlAccess()


def access(path: PurePath) -> Access:
    """How a place is read."""
    if isinstance(path, VaultPath):
        from waltzctl.engine.vault.vault_access import VAULTS  # few commands read one, and it needs the page store

        return VAULTS
    return _REMOTE if isinstance(path, UrlPath) else _LOCAL


def _url(path: PurePath) -> UrlPath:
    assert isinstance(path, UrlPath)
    return path


def on_this_machine(path: PurePath) -> bool:
    """Whether it is a path that others than this program can read: no URL, and no backup."""
    return not isinstance(path, UrlPath | VaultPath)


def local(path: PurePath) -> Path:
    """The path of something on this machine, for whoever writes.  Raises InvalidRequestError for a URL or a backup."""
    if isinstance(path, UrlPath):
        raise InvalidRequestError(
            f"{path}: what lies behind a URL is read and never written",
            advice="copy the storage directory to this machine first",
        )
    if isinstance(path, VaultPath):
        raise InvalidRequestError(
            f"{path}: a backup is read and never written", advice="restore it first: waltzctl backup restore"
        )
    return Path(path)


def is_directory(path: PurePath) -> bool:
    """Whether it is a directory, or anything lies under it.  Raises DiskReadError for a URL."""
    return access(path).kind(path) is PlaceKind.DIRECTORY


def exists(path: PurePath) -> bool:
    """Whether anything is there, links followed.  Raises DiskReadError for a URL."""
    return access(path).kind(path) is not None


def still_named(path: PurePath) -> bool:
    """See `Access.named`."""
    return access(path).named(path)


def special(path: PurePath) -> str | None:
    """See `Access.special`."""
    return access(path).special(path)


def identity(path: PurePath) -> str:
    """See `Access.identity`."""
    return access(path).identity(path)


def absolute(path: PurePath) -> PurePath:
    """See `Access.absolute`."""
    return access(path).absolute(path)


def directory_modified_ns(path: PurePath) -> int | None:
    """See `Access.modified_ns`."""
    return access(path).modified_ns(path)


def lock_holder(storage: PurePath, control_file: PurePath) -> int | None:
    """See `Access.lock_holder`."""
    return access(storage).lock_holder(storage, control_file)


def file_numbers(path: PurePath) -> FileNumbers | None:
    """See `Access.numbers`."""
    return access(path).numbers(path)


def listing(path: PurePath) -> dict[str, FileNumbers | None]:
    """See `Access.listing`."""
    return access(path).listing(path)


def names(path: PurePath) -> list[str]:
    """See `Access.names`."""
    return access(path).names(path)


def kinds(path: PurePath) -> dict[str, PlaceKind | None]:
    """See `Access.kinds`."""
    return access(path).kinds(path)


def open_source(path: PurePath, size: int | None = None) -> OpenSource:
    """See `Access.open`."""
    return access(path).open(path, size)


def read_range(path: PurePath, offset: int, length: int) -> bytes:
    """See `Access.read_range`."""
    return access(path).read_range(path, offset, length)


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
