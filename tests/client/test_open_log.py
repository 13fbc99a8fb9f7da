"""How a program says in which way log servers are reached."""

from __future__ import annotations

import asyncio
import logging
import ssl
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

import pytest

from waltzctl.engine.client import open_log
from waltzctl.engine.client.connection_factory import ConnectionFactory
from waltzctl.engine.client.reader_ids import ReaderIdsOfProcess
from waltzctl.engine.errors import InvalidRequestError, RefusedError
from waltzctl.engine.metadata.cluster_creation import create_cluster
from waltzctl.engine.metadata.embedded_store import EmbeddedStore
from waltzctl.engine.metadata.server_directory import ServerDirectory
from waltzctl.engine.net.addresses import Address
from waltzctl.engine.net.tls_options import TlsOptions

HERE, THERE = Address("127.0.0.1", 1), Address("192.0.2.1", 1)


class Client:
    """Takes how servers are reached, and does nothing."""

    given: Callable[[Address], Awaitable[object]]

    def __init__(self, _servers: object, connect: Callable[[Address], Awaitable[object]], **_: object) -> None:
        Client.given = connect

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


def reached(path: Path, monkeypatch: pytest.MonkeyPatch, **how: Any) -> ConnectionFactory:
    async def servers(*_: object, **__: object) -> None:
        pass

    async def whole() -> None:
        await (await EmbeddedStore.open(path / "metadata", create=True)).close()
        async with open_log.open_log_client(str(path / "metadata"), log=logging.getLogger("x"), **how):
            pass

    monkeypatch.setattr(open_log, "LogClient", Client)
    monkeypatch.setattr(ServerDirectory, "open", servers)
    asyncio.run(whole())
    found = Client.given.__self__  # type: ignore[attr-defined]
    assert isinstance(found, ConnectionFactory)
    return found


def test_with_tls_unless_it_says_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(reached(tmp_path, monkeypatch).context(HERE), ssl.SSLContext)
    plain = reached(tmp_path, monkeypatch, plaintext=True)
    assert plain.context(HERE) is None
    with pytest.raises(RefusedError):
        plain.context(THERE)
    assert reached(tmp_path, monkeypatch, plaintext=True, insecure=True).context(THERE) is None


def test_the_stores_are_those_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tls = TlsOptions(trust_store=tmp_path / "trust.pem", trust_store_type="PEM")
    assert reached(tmp_path, monkeypatch, tls=tls)._tls == tls
    mine = ConnectionFactory()
    assert reached(tmp_path, monkeypatch, reach=mine) is mine


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"reach": ConnectionFactory(), "plaintext": True}, "said twice"),
        ({"reach": ConnectionFactory(), "tls": TlsOptions()}, "said twice"),
        ({"plaintext": True, "tls": TlsOptions()}, "no certificates in plain text"),
        ({"tls": TlsOptions(key=Path("key"))}, "without its certificate"),
    ],
)
def test_contradictions_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        reached(tmp_path, monkeypatch, **how)


def test_clusters_of_one_key_do_not_share_their_client_ids(tmp_path: Path) -> None:
    """A cluster that was made again elsewhere, say of restored directories, keeps its key and issues ids of its own."""
    key, ids = uuid.UUID(int=1), ReaderIdsOfProcess()

    async def of(name: str) -> object:
        where = tmp_path / name
        if not where.exists():
            store = await EmbeddedStore.open(where, create=True)
            await create_cluster(store, name=name, num_partitions=1, cluster_key=key)
            await store.close()
        async with open_log.open_log_client(str(where), plaintext=True, reader_ids=ids) as client:
            return client._reader_ids

    async def whole() -> None:
        first = await of("first")
        assert await of("first") is first
        assert await of("again") is not first

    asyncio.run(whole())
