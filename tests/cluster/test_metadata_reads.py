"""Which partitions' metadata a command reads: a cluster may have ten thousand, each a request to ZooKeeper."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.cli.running import invoke
from tests.cluster.told_cluster import ToldCluster, ToldNode
from waltzctl.engine.cluster import quorum_recovery
from waltzctl.engine.cluster.quorum_recovery import plan_recovery, recover
from waltzctl.engine.cluster.replica_removal import unassign
from waltzctl.engine.metadata import cluster_state
from waltzctl.engine.metadata.cluster_steps import PLAN_ONLY
from waltzctl.engine.metadata.embedded_store import EmbeddedStore
from waltzctl.engine.metadata.metadata_store import MetadataStore
from waltzctl.engine.pipeline.project_creation import replicas_of

Work = Callable[[MetadataStore, ToldCluster], Awaitable[object]]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The partitions whose metadata became part of a cluster's state."""
    seen: list[int] = []
    real = cluster_state._partition

    def noting(number: int, *rest: object) -> object:
        seen.append(number)
        return real(number, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(cluster_state, "_partition", noting)
    return seen


async def _remove(store: MetadataStore, cluster: ToldCluster) -> None:
    await unassign(store, cluster.reach, "n0:1", (1,), mode=PLAN_ONLY)


async def _plan(store: MetadataStore, cluster: ToldCluster) -> None:
    await plan_recovery(store, cluster.reach)


async def _recover(store: MetadataStore, cluster: ToldCluster) -> None:
    agreed = await plan_recovery(store, cluster.reach, (1,))
    await recover(store, agreed, cluster.reach, timeout=1.0, log=logging.Logger("t"), on_recovered=lambda _: None)


@pytest.mark.parametrize(("work", "wanted"), [(_remove, {1}), (_plan, set()), (_recover, {1})])
def test_of_a_partition_alone_no_other_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: list[int], work: Work, wanted: set[int]
) -> None:
    cluster = ToldCluster(*(ToldNode({0: [9], 1: [9]}) for _ in range(3)), server=None)

    async def nothing(*_: object) -> None:
        """No node is there to begin a session with."""

    async def test() -> None:
        store = await EmbeddedStore.open(tmp_path / "m", create=True)
        await cluster.write_metadata(store)
        read.clear()
        await work(store, cluster)
        await store.close()

    monkeypatch.setattr(quorum_recovery, "_recover", nothing)
    asyncio.run(test())
    assert {*read} == wanted


def test_what_nodes_have_to_have_says_the_assignment(tmp_path: Path, read: list[int]) -> None:
    metadata = tmp_path / "m"
    assert invoke("cluster", "create", "--metadata", metadata, "--partitions", 3).status == 0
    read.clear()
    for only in ((), ("--only-add",)):
        assert invoke("cluster", "sync", "--metadata", metadata, "--dry-run", *only).status == 0
    assert replicas_of(str(metadata)) == ()
    assert read == []
