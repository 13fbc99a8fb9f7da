"""What a cluster is, read once at a node's start: its key and its number of partitions.

With ZooKeeper configured they come from the node ``ROOT/store``, as in release 0.13.2, and the storage directory has to agree;
an empty directory gets its control file then.  Without ZooKeeper the control file decides alone.  A running node does not need
ZooKeeper, and keeps no connection to it.

Release 0.13.2 waits for ever for ZooKeeper to answer.  Here every wait ends after `ZooKeeperOptions.connect_timeout`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from waltzctl.engine.errors import (
    DamageError,
    DeadlineError,
    InvalidRequestError,
    MismatchError,
    NotWaltzError,
    PeerUnreachableError,
)
from waltzctl.engine.node.node_settings import ZooKeeperOptions
from waltzctl.formats.control import CONTROL_FILE_NAME, MAX_PARTITIONS, Layout
from waltzctl.formats.znodes import STORE_PATH, StoreParameters, ZnodeError, ZnodeVersionError

_PATIENCE = 1.0
"""Seconds that closing a connection which never was one may take before the program goes on without it."""


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """A cluster's key and number of partitions; `source` says where that was read, for people."""

    cluster_key: uuid.UUID
    num_partitions: int
    source: str


def read_cluster_metadata(options: ZooKeeperOptions) -> ClusterMetadata:
    """Read them from ZooKeeper.  Blocks, at most about twice the connect timeout.

    Raises PeerUnreachableError, DeadlineError (no ensemble answers in time), NotWaltzError (no cluster at this root),
    MismatchError (a version that is not known), DamageError (its data is not what should be there), InvalidRequestError.
    """
    options.check()
    path = f"{options.cluster_root.rstrip('/')}/{STORE_PATH}"
    with _connected(options) as client:
        data = _get(client, path, options)
    where = f"ZooKeeper at {options.connect_string}, node {path}"
    if not data:
        raise NotWaltzError(f"{where}: holds no cluster key", advice=_CREATE)
    try:
        store = StoreParameters.decode(data)
    except ZnodeVersionError as error:
        raise MismatchError(f"{where}: {error}") from None
    except ZnodeError as error:
        raise DamageError(f"{where}: {error}", advice="check cluster.root; another program may use this path") from None
    if not 0 < store.num_partitions <= MAX_PARTITIONS:
        raise MismatchError(f"{where}: {store.num_partitions} partitions; a node can serve 1 to {MAX_PARTITIONS}")
    return ClusterMetadata(store.cluster_key, store.num_partitions, where)


def read_znodes(options: ZooKeeperOptions, paths: Sequence[str]) -> tuple[bytes, ...]:
    """The data of nodes below the cluster's root, for instance ``store/assignment``, read in one connection.

    Blocks and raises as `read_cluster_metadata`; NotWaltzError as well for a node without data.
    """
    options.check()
    found = []
    with _connected(options) as client:
        for path in paths:
            whole = f"{options.cluster_root.rstrip('/')}/{path}"
            data = _get(client, whole, options)
            if not data:
                raise NotWaltzError(
                    f"ZooKeeper at {options.connect_string}, node {whole}: holds nothing", advice=_CREATE
                )
            found.append(data)
    return tuple(found)


_CREATE = "check cluster.root, and create the cluster in ZooKeeper first"


def prepare_directory(directory: Path, metadata: ClusterMetadata) -> bool:
    """Give an empty directory its control file, in the released layout and with no partition assigned, as the release does.

    Returns whether it did; a directory that holds anything is left alone, and opening it will say what it is.  Raises
    NotWaltzError when there is no directory (a disk that is not mounted must not become a new node), DiskError.
    """
    from waltzctl.engine.storage.creation import create_cluster

    if not directory.is_dir():
        raise NotWaltzError(
            f"{directory}: no such directory", advice="make it, or mount its disk; a node does not create it"
        )
    if (directory / CONTROL_FILE_NAME).exists() or os.listdir(directory):
        return False
    create_cluster(
        [directory],
        num_partitions=metadata.num_partitions,
        cluster_key=metadata.cluster_key,
        layout=Layout.RELEASED,
        assign=(),
    )
    return True


class _LastWords(logging.Handler):
    """Keeps the last thing the ZooKeeper library complained of; it says why a connection did not come about."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()


@contextlib.contextmanager
def _connected(options: ZooKeeperOptions) -> Iterator[Any]:
    """A connected client.  Raises PeerUnreachableError, InvalidRequestError for a connect string that is none."""
    from kazoo.client import KazooClient

    library = logging.Logger("zookeeper", logging.WARNING)  # its lines would be ours otherwise, several a second
    last_words = _LastWords()
    library.addHandler(last_words)
    try:
        # the library waits this long within one attempt, whatever it was told about all of them
        patience = min(options.session_timeout, options.connect_timeout)
        client = KazooClient(hosts=options.connect_string, timeout=patience, logger=library)
    except ValueError as error:
        raise InvalidRequestError(
            f"zookeeper.connectString {options.connect_string!r} is not understood: {error}",
            advice="write for instance zk1:2181,zk2:2181",
        ) from None
    try:
        client.start_async().wait(options.connect_timeout)
        if not client.connected:
            why = f": {last_words.text}" if last_words.text else ""
            raise PeerUnreachableError(
                f"ZooKeeper at {options.connect_string}",
                f"no connection within {options.connect_timeout:g} s{why}",
                advice="check the connect string and that the ensemble runs",
            )
        yield client
    finally:
        _close(client)


def _close(client: Any) -> None:
    """End a connection without waiting for one that is still being attempted: the library would, for up to ten seconds."""

    def close() -> None:
        from kazoo.exceptions import KazooException

        with contextlib.suppress(KazooException, OSError):
            client.stop()
            client.close()

    closing = threading.Thread(target=close, name="zookeeper-close", daemon=True)
    closing.start()
    closing.join(_PATIENCE)


def _get(client: Any, path: str, options: ZooKeeperOptions) -> bytes:
    from kazoo.exceptions import KazooException, NoAuthError, NoNodeError

    where = f"ZooKeeper at {options.connect_string}"
    try:
        data, _ = client.get_async(path).get(True, options.connect_timeout)
    except NoNodeError:
        raise NotWaltzError(f"{where}: there is no node {path}", advice=_CREATE) from None
    except NoAuthError:
        raise PeerUnreachableError(where, f"node {path} may not be read by this program") from None
    except client.handler.timeout_exception:
        raise DeadlineError(where, f"no answer within {options.connect_timeout:g} s for node {path}") from None
    except KazooException as error:
        raise PeerUnreachableError(where, f"node {path} cannot be read: {type(error).__name__} {error}") from None
    return bytes(data)
