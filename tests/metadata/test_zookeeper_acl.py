"""Z7: a cluster whose znodes belong to one user, in a real ZooKeeper; and one that is open, which is the default."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.zookeeper import ZooKeeperServer, new_root
from waltzctl.engine.errors import InvalidRequestError, NotWaltzError, PeerError
from waltzctl.engine.metadata.cluster_changes import add_node, assign
from waltzctl.engine.metadata.cluster_creation import create_cluster
from waltzctl.engine.metadata.membership import Membership, new_client_id
from waltzctl.engine.metadata.metadata_location import MetadataLocation
from waltzctl.engine.metadata.metadata_store import MetadataStore
from waltzctl.engine.metadata.partition_sessions import PartitionSessions, store_parameters
from waltzctl.engine.metadata.zookeeper_connection import AUTH_FILE_VARIABLE, AUTH_VARIABLE, zookeeper_auth
from waltzctl.engine.metadata.zookeeper_options import ZooKeeperOptions
from waltzctl.engine.metadata.zookeeper_store import NotPermittedError
from waltzctl.engine.net.small_file import read_first_line
from waltzctl.engine.node.cluster_metadata import read_cluster_metadata

KEY = uuid.uuid4()


def over(where: str, work: Callable[[MetadataStore], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with MetadataLocation.parse(where).open() as store:
            await work(store)

    asyncio.run(whole())


async def a_cluster(store: MetadataStore) -> None:
    """Everything that programs make: by an operator, a server, a client, a session."""
    import logging

    await create_cluster(store, name="c", num_partitions=2, cluster_key=KEY)
    await add_node(store, "h:1", admin_port=2, group=0)
    await assign(store, "h:1", [0, 1])
    await Membership(store, log=logging.getLogger("test")).register("h", 3)
    await new_client_id(store)
    await PartitionSessions(store).begin_session(0, 1)


def acls(server: ZooKeeperServer, root: str, auth: str | None) -> set[tuple[str, str]]:
    """Scheme and user of every ACL at and below a root."""
    from kazoo.client import KazooClient

    client = KazooClient(server.connect_string, auth_data=[("digest", auth)] if auth else None)
    client.start()
    try:
        found, waiting = set(), [root]
        while waiting:
            path = waiting.pop()
            found |= {(one.id.scheme, one.id.id.split(":")[0]) for one in client.get_acls(path)[0]}
            waiting += [f"{path}/{name}" for name in client.get_children(path)]
        return found
    finally:
        client.stop()
        client.close()


def test_what_is_made_by_somebody_who_said_who_belongs_to_them_alone(
    zookeeper: ZooKeeperServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = new_root() + "/below/it"
    where = f"zk://{zookeeper.connect_string}{root}"
    file = tmp_path / "auth"
    file.write_text("waltz:se:cret\n")
    monkeypatch.setenv(AUTH_FILE_VARIABLE, str(file))
    over(where, a_cluster)
    assert acls(zookeeper, root, "waltz:se:cret") == {("digest", "waltz")}
    node = ZooKeeperOptions(zookeeper.connect_string, root)
    assert read_cluster_metadata(node).cluster_key == KEY  # as a storage node reads it

    async def refused(store: MetadataStore) -> None:
        with pytest.raises(NotPermittedError, match=f"not permitted.*{AUTH_VARIABLE}"):
            await store_parameters(store)
        with pytest.raises(NotPermittedError):
            await store.create("ids/other")

    for other in (None, "waltz:wrong"):
        monkeypatch.delenv(AUTH_FILE_VARIABLE, raising=False)
        if other is not None:
            monkeypatch.setenv(AUTH_VARIABLE, other)
        over(where, refused)
        with pytest.raises((NotWaltzError, PeerError)):
            read_cluster_metadata(node)
    above = acls_of(zookeeper, root.rpartition("/")[0])
    assert above == {("world", "anyone")}, "what lies above the root is not ours to close"


def acls_of(server: ZooKeeperServer, path: str) -> set[tuple[str, str]]:
    from kazoo.client import KazooClient

    client = KazooClient(server.connect_string)
    client.start()
    try:
        return {(one.id.scheme, one.id.id) for one in client.get_acls(path)[0]}
    finally:
        client.stop()
        client.close()


def test_without_a_user_everything_is_open_as_released_programs_need_it(zookeeper: ZooKeeperServer) -> None:
    root = new_root()
    over(f"zk://{zookeeper.connect_string}{root}", a_cluster)
    assert acls(zookeeper, root, None) == {("world", "anyone")}


def test_credentials_come_from_the_environment_or_a_file_and_are_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "auth"
    file.write_text("user:from file\nnot this\n")
    assert zookeeper_auth({}) is None
    assert zookeeper_auth({AUTH_VARIABLE: "user:word"}) == "user:word"
    assert zookeeper_auth({AUTH_FILE_VARIABLE: str(file)}) == "user:from file"
    for given, message in (
        ({AUTH_VARIABLE: "secretword"}, "is not USER:PASSWORD"),
        ({AUTH_VARIABLE: ":secretword"}, "is not USER:PASSWORD"),
        ({AUTH_VARIABLE: "a:secretword", AUTH_FILE_VARIABLE: "x"}, "both set"),
        ({AUTH_FILE_VARIABLE: str(tmp_path / "none")}, "none: cannot read the password: No such file"),
    ):
        with pytest.raises(InvalidRequestError, match=message) as caught:
            zookeeper_auth(given)
        assert "secretword" not in str(caught.value)
    for text, message in (("", "no password in its first line"), ("\nuser:word\n", "is not USER:PASSWORD")):
        file.write_text(text)
        with pytest.raises(InvalidRequestError, match=message):
            zookeeper_auth({AUTH_FILE_VARIABLE: str(file)})


@pytest.mark.parametrize("line", ["user:word ", "user:a\u2028b", "user:a\x0bb", "user:" + "x" * 4000])
def test_a_file_of_credentials_has_the_line_that_any_password_file_has(tmp_path: Path, line: str) -> None:
    (tmp_path / "auth").write_bytes(f"{line}\nnot this\n".encode())
    assert (
        zookeeper_auth({AUTH_FILE_VARIABLE: str(tmp_path / "auth")}) == line == read_first_line(tmp_path / "auth", "")
    )


def test_of_a_file_that_never_ends_no_more_is_read_than_a_password_has() -> None:
    with pytest.raises(InvalidRequestError, match="no password in its first line"):
        zookeeper_auth({AUTH_FILE_VARIABLE: "/dev/zero"})
