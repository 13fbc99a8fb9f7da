"""A cluster's key and number of partitions from ZooKeeper: what is there, what is not, and nobody there at all."""

from __future__ import annotations

import json
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.golden import GOLDEN, needs_golden
from tests.interop.processes import Stage
from tests.interop.released import Java, ZooKeeper, needs_released
from tests.reserved_ports import reserved_ports
from waltzctl.engine.errors import (
    DamageError,
    InvalidRequestError,
    MismatchError,
    NotWaltzError,
    PeerUnreachableError,
    RefusedError,
)
from waltzctl.engine.metadata.zookeeper_options import ZooKeeperOptions
from waltzctl.engine.node.cluster_metadata import ClusterMetadata, prepare_directory, read_cluster_metadata
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.formats.control import Layout, decode_control
from waltzctl.formats.znodes import StoreParameters

KEY = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")
METADATA = ClusterMetadata(KEY, 4, "a test")
SHORT = 0.5


# --- without a ZooKeeper -------------------------------------------------------------------------------------------------


@contextmanager
def listening(*, answers: bytes | None) -> Iterator[int]:
    """A port that accepts connections and says the same to everybody, or nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                held.append(connection)
                if answers is not None:
                    connection.sendall(answers)
                    connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in held:
                connection.close()


@pytest.mark.turns(10)
def test_nobody_there_is_an_error_that_names_the_place_and_the_reason() -> None:
    (port,) = reserved_ports(1)
    with pytest.raises(PeerUnreachableError, match=r"no connection within 0\.5 s") as caught:
        read_cluster_metadata(ZooKeeperOptions(f"127.0.0.1:{port}", "/w", connect_timeout=SHORT))
    assert f"127.0.0.1:{port}" in str(caught.value)
    assert "refused" in str(caught.value)
    assert caught.value.status == "io-error"


@pytest.mark.turns(10)
@pytest.mark.parametrize("answers", [None, b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(4), b"\xff\xff\xff\xff"])
def test_somebody_else_there_is_no_reason_to_hang(answers: bytes | None) -> None:
    with listening(answers=answers) as port, pytest.raises(PeerUnreachableError, match="no connection within"):
        read_cluster_metadata(ZooKeeperOptions(f"127.0.0.1:{port}", "/w", connect_timeout=SHORT))


@pytest.mark.turns(10)
def test_a_host_that_has_no_address_is_told() -> None:
    with pytest.raises(PeerUnreachableError, match=r"no\.such\.host\.invalid"):
        read_cluster_metadata(ZooKeeperOptions("no.such.host.invalid:2181", "/w", connect_timeout=SHORT))


@pytest.mark.parametrize("hosts", ["", " ", "a:b", "a:1:2:3,,"])
def test_a_connect_string_that_is_none_is_told(hosts: str) -> None:
    with pytest.raises((InvalidRequestError, PeerUnreachableError), match=r"connectString|no connection"):
        read_cluster_metadata(ZooKeeperOptions(hosts, "/w", connect_timeout=SHORT))


# --- the directory -------------------------------------------------------------------------------------------------------


def test_an_empty_directory_gets_its_control_file_as_a_released_node_makes_it(tmp_path: Path) -> None:
    assert prepare_directory(tmp_path, METADATA)
    control = decode_control((tmp_path / "waltz-storage.ctl").read_bytes())
    assert (control.layout, control.header.cluster_key, control.header.num_partitions) == (Layout.RELEASED, KEY, 4)
    assert [path.name for path in tmp_path.iterdir()] == ["waltz-storage.ctl"]
    assert not prepare_directory(tmp_path, METADATA)
    with StorageDirectory.open(tmp_path, expected_key=KEY, expected_partitions=4) as opened:
        assert dict(opened.partitions) == {}


def test_a_directory_of_another_cluster_is_left_alone_and_does_not_open(tmp_path: Path) -> None:
    prepare_directory(tmp_path, METADATA)
    before = (tmp_path / "waltz-storage.ctl").read_bytes()
    other = ClusterMetadata(uuid.uuid4(), 4, "a test")
    assert not prepare_directory(tmp_path, other)
    assert (tmp_path / "waltz-storage.ctl").read_bytes() == before
    with pytest.raises(MismatchError):
        StorageDirectory.open(tmp_path, expected_key=other.cluster_key, expected_partitions=4)


def test_a_directory_that_is_not_empty_is_no_new_node(tmp_path: Path) -> None:
    (tmp_path / "somebody's").write_text("x")
    assert not prepare_directory(tmp_path, METADATA)
    assert [path.name for path in tmp_path.iterdir()] == ["somebody's"]
    with pytest.raises(NotWaltzError):
        StorageDirectory.open(tmp_path)


def test_a_directory_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path / "none" / "deeper"):
        with pytest.raises(NotWaltzError, match="no such directory"):
            prepare_directory(path, METADATA)
    (tmp_path / "file").write_text("")
    with pytest.raises((NotWaltzError, RefusedError)):
        prepare_directory(tmp_path / "file", METADATA)
    assert not (tmp_path / "none").exists()


@needs_golden
def test_the_store_node_of_a_real_cluster() -> None:
    assert GOLDEN is not None
    lines = (GOLDEN / "zookeeper" / "cluster-a-live.jsonl").read_text().splitlines()
    (node,) = (found for found in map(json.loads, lines) if found["path"].endswith("/store"))
    store = StoreParameters.decode(bytes.fromhex(node["dataHex"]))
    control = decode_control((GOLDEN / "cluster-a" / "storage-1" / "waltz-storage.ctl").read_bytes())
    assert (store.cluster_key, store.num_partitions) == (control.header.cluster_key, control.header.num_partitions)


# --- with a real one -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    with Stage(tmp_path_factory.mktemp("zookeeper")) as stage:
        yield ZooKeeper(stage, Java.prepare(tmp_path_factory.mktemp("java")))


@contextmanager
def client_of(zookeeper: ZooKeeper) -> Iterator[Any]:
    from kazoo.client import KazooClient

    client = KazooClient(zookeeper.connect_string)
    client.start(60)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def put(zookeeper: ZooKeeper, root: str, data: bytes | None) -> ZooKeeperOptions:
    """A cluster's root whose store node holds this."""
    with client_of(zookeeper) as client:
        client.create(f"{root}/store", data if data is not None else b"", makepath=True)
    return ZooKeeperOptions(zookeeper.connect_string, root)


@needs_released
def test_key_and_partitions_are_read_from_a_real_zookeeper(zookeeper: ZooKeeper) -> None:
    options = put(zookeeper, "/some/where", StoreParameters(KEY, 4).encode())
    found = read_cluster_metadata(options)
    assert (found.cluster_key, found.num_partitions) == (KEY, 4)
    assert "/some/where/store" in found.source


@needs_released
def test_a_path_at_the_end_of_the_connect_string_comes_first(zookeeper: ZooKeeper) -> None:
    put(zookeeper, "/inside/cluster", StoreParameters(KEY, 4).encode())
    options = ZooKeeperOptions(f"{zookeeper.connect_string}/inside", "/cluster")
    assert read_cluster_metadata(options).cluster_key == KEY


@needs_released
@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (b"", NotWaltzError, "holds no cluster key"),
        (b"\2" + bytes(20), MismatchError, "version 2"),
        (b"\1short", DamageError, "not readable"),
        (StoreParameters(KEY, 0).encode(), MismatchError, "0 partitions"),
        (StoreParameters(KEY, -1).encode(), MismatchError, "-1 partitions"),
        (StoreParameters(KEY, 2**31 - 1).encode(), MismatchError, "2147483647 partitions"),
    ],
)
def test_what_no_node_can_be_started_with_is_told(
    zookeeper: ZooKeeper, data: bytes, error: type[Exception], message: str
) -> None:
    options = put(zookeeper, f"/bad-{uuid.uuid4()}", data)
    with pytest.raises(error, match=message) as caught:
        read_cluster_metadata(options)
    assert options.cluster_root in str(caught.value)


@needs_released
def test_a_cluster_that_is_not_there_is_told(zookeeper: ZooKeeper) -> None:
    with pytest.raises(NotWaltzError, match="there is no node /nowhere/store"):
        read_cluster_metadata(ZooKeeperOptions(zookeeper.connect_string, "/nowhere"))


@needs_released
def test_a_node_that_may_not_be_read_is_told(zookeeper: ZooKeeper) -> None:
    from kazoo.security import make_digest_acl

    with client_of(zookeeper) as client:
        acl = make_digest_acl("somebody", "else", all=True)
        client.create("/closed")
        client.create("/closed/store", b"x", acl=[acl])
    with pytest.raises(PeerUnreachableError, match="may not be read"):
        read_cluster_metadata(ZooKeeperOptions(zookeeper.connect_string, "/closed"))


@needs_released
def test_no_session_is_left_behind(zookeeper: ZooKeeper) -> None:
    options = put(zookeeper, "/quiet", StoreParameters(KEY, 4).encode())
    with client_of(zookeeper) as client:

        def connections() -> int:
            return len([line for line in client.command(b"cons").splitlines() if "sid=" in line])

        before = connections()
        for _ in range(3):
            read_cluster_metadata(options)
        assert connections() == before
