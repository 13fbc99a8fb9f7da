"""The location of a cluster's metadata, as in ``--metadata``.

Either ``zk://HOST:PORT,HOST:PORT/ROOT``, or the path of an embedded store's file.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.metadata.embedded_store import EmbeddedStore
from waltzctl.engine.metadata.metadata_store import MetadataStore
from waltzctl.engine.metadata.zookeeper_options import ZooKeeperOptions, ZooKeeperPlace, ZooKeeperTimeouts
from waltzctl.engine.metadata.zookeeper_store import ZooKeeperStore

SCHEME = "zk://"


@dataclass(frozen=True, slots=True)
class MetadataLocation:
    """Either ZooKeeper, or the path of an embedded store; the other one is None.  Made by `parse`."""

    zookeeper: ZooKeeperOptions | None
    path: Path | None

    @classmethod
    def parse(cls, text: str, timeouts: ZooKeeperTimeouts | None = None) -> MetadataLocation:
        """Parse a location; the timeouts are for ZooKeeper.  Raises InvalidRequestError."""
        if not text.startswith(SCHEME):
            if not text or "://" in text:
                raise InvalidRequestError(
                    f"metadata {text!r} is not understood", advice="write zk://HOST:2181,HOST:2181/ROOT, or a path"
                )
            return cls(None, Path(text))
        hosts, slash, root = text.removeprefix(SCHEME).partition("/")
        if not hosts or not root:
            raise InvalidRequestError(
                f"metadata {text!r} names no {'root' if hosts else 'host'}",
                advice="write zk://HOST:2181,HOST:2181/ROOT",
            )
        options = ZooKeeperOptions.of(ZooKeeperPlace(hosts, slash + root), timeouts or ZooKeeperTimeouts())
        options.check()
        return cls(options, None)

    def __str__(self) -> str:
        if self.zookeeper is not None:
            return f"{SCHEME}{self.zookeeper.connect_string}{self.zookeeper.cluster_root}"
        return str(self.path)

    @property
    def absolute(self) -> MetadataLocation:
        """The same location with an absolute path, for a process in another working directory."""
        return self if self.path is None else MetadataLocation(None, self.path.absolute())

    @contextlib.asynccontextmanager
    async def open(self, *, create: bool = False) -> AsyncIterator[MetadataStore]:
        """Connect; `create`: make the file of an embedded store if there is none.

        Raises PeerUnreachableError, NotWaltzError; RefusedError for a file that a process of another machine uses.
        """
        store: MetadataStore
        if self.zookeeper is not None:
            store = await ZooKeeperStore.open(self.zookeeper)
        else:
            assert self.path is not None
            store = await EmbeddedStore.open(self.path, create=create)
        try:
            yield store
        finally:
            await store.close()
