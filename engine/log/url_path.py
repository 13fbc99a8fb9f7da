"""The path of an object behind a URL (``s3://bucket/node-1/control``), and the options of its file system."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Self

from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.findings import MendedInCopy

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
Options = tuple[tuple[str, Any], ...]
_options: dict[str, Options] = {}
"""The options of file systems, by scheme and authority."""


def is_url(text: str) -> bool:
    """Whether a text is a URL and not a path."""
    return _URL.match(text) is not None


class UrlPath(MendedInCopy, PurePosixPath):
    """The path of an object, or of a directory of objects.  It is pickled together with the options of its file system.

    Like every pure path it does no I/O; `engine.log.places` reads what it names.
    """

    @classmethod
    def of(cls, url: str, options: Mapping[str, Any] | None = None) -> UrlPath:
        """The path of a URL.

        `options`: the options (endpoint, credentials) with which fsspec opens the file system of this scheme and authority from
        now on; None leaves them unchanged.  ``hdfs:///x`` means the cluster in Hadoop's configuration, which pyarrow calls
        ``default``.  Raises InvalidRequestError for a URL without a host or bucket, and for one with a password, which every
        message would show.
        """
        scheme, _, rest = url.partition("://")
        if scheme.lower() == "hdfs" and rest.startswith("/"):
            rest = f"default{rest}"
        elif scheme.lower() == "memory":  # fsspec's in-memory files: a leading slash makes no difference
            rest = rest.lstrip("/")
        authority = rest.partition("/")[0]
        if not authority:
            raise InvalidRequestError(
                f"{url}: the URL names no host or bucket", advice=f"write {scheme}://HOST_OR_BUCKET/PATH"
            )
        if ":" in authority.rpartition("@")[0]:
            raise InvalidRequestError(
                f"{scheme}://...@{authority.rpartition('@')[2]}: the URL carries a password, which every message would show",
                advice="give it to the file system in its own way: environment, configuration file or storage options",
            )
        path = cls(f"{scheme}://{rest}")
        if options is not None:
            _options[path.root_url] = tuple(sorted(options.items()))
        return path

    @property
    def scheme(self) -> str:
        """As it was written."""
        return str(self).partition("://")[0]

    @property
    def options(self) -> Options:
        """The options of its file system."""
        return _options.get(self.root_url, ())

    @property
    def url(self) -> str:
        """The URL for fsspec."""
        return str(self)

    @property
    def root_url(self) -> str:
        """Scheme and authority."""
        scheme, _, rest = str(self).partition("://")
        return f"{scheme}://{rest.partition('/')[0]}"

    @property
    def parent(self) -> Self:
        """The parent of scheme and authority is the same path, as for ``/``."""
        return self if len(self.parts) == 2 else super().parent

    def __str__(self) -> str:
        return super().__str__().replace(":/", "://", 1)

    def __repr__(self) -> str:
        return f"UrlPath({str(self)!r})"

    def __fspath__(self) -> str:
        return str(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (str(self), self.options)

    def is_absolute(self) -> bool:
        """A URL always is."""
        return True


def _restored(url: str, options: Options) -> UrlPath:
    return UrlPath.of(url, dict(options))
