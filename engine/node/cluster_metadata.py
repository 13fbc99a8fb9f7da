"""The cluster's key and number of partitions, read from ZooKeeper once, at a node's start.

============== ==================================================================================================
ZooKeeper      source
============== ==================================================================================================
configured     the znode ``ROOT/store``, as in release 0.13.2; the storage directory must agree, and an empty
               directory gets its control file from it
not configured the control file
============== ==================================================================================================

A running node does not need ZooKeeper, and keeps no connection to it.  Release 0.13.2 waits for ZooKeeper without limit; here
every wait ends after `ZooKeeperOptions.connect_timeout`.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from waltzctl.engine.durable.file_status import names_in
from waltzctl.engine.errors import (
    DamageError,
    DeadlineError,
    MismatchError,
    NotWaltzError,
    PeerUnreachableError,
    ProtocolError,
)
from waltzctl.engine.metadata.zookeeper_connection import UNREADABLE, connected
from waltzctl.engine.metadata.zookeeper_options import ZooKeeperOptions
from waltzctl.formats.control import CONTROL_FILE_NAME, MAX_PARTITIONS, Layout
from waltzctl.formats.znodes import STORE_PATH, StoreParameters, ZnodeError, ZnodeVersionError


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """A cluster's key and number of partitions; `source`: where they were read, as text for messages."""

    cluster_key: uuid.UUID
    num_partitions: int
    source: str


def read_cluster_metadata(options: ZooKeeperOptions) -> ClusterMetadata:
    """Read the cluster's metadata from ZooKeeper.  Blocks, at most about twice the connect timeout.

    Raises PeerUnreachableError, DeadlineError (no ensemble answers in time), NotWaltzError (no cluster at this root),
    MismatchError (unknown version), DamageError (invalid data in the znode), InvalidRequestError.
    """
    options.check()
    path = f"{options.cluster_root.rstrip('/')}/{STORE_PATH}"
    with connected(options) as (client, _):
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
    """The data of znodes below the cluster's root, for instance ``store/assignment``, read over one connection.

    Blocks and raises as `read_cluster_metadata`; NotWaltzError as well for a znode without data.
    """
    options.check()
    found = []
    with connected(options) as (client, _):
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
    """Create the control file in an empty directory, in the released layout and without assigned partitions, as the release does.

    Returns whether it did.  A directory that is not empty is not changed; opening it checks what it holds.  Raises NotWaltzError
    when the directory does not exist (a disk that is not mounted must not become a new node), DiskError.
    """
    from waltzctl.engine.storage.creation import create_cluster

    if not directory.is_dir():
        raise NotWaltzError(
            f"{directory}: no such directory", advice="make it, or mount its disk; a node does not create it"
        )
    if (directory / CONTROL_FILE_NAME).exists() or names_in(directory):
        return False
    create_cluster(
        [directory],
        num_partitions=metadata.num_partitions,
        cluster_key=metadata.cluster_key,
        layout=Layout.RELEASED,
        assign=(),
    )
    return True


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
    except UNREADABLE as error:
        raise ProtocolError(where, f"an answer about node {path} that cannot be read: {error!r}") from error
    return bytes(data or b"")  # kazoo has None for a node that somebody made with null in place of data
