"""What the tests with the released programs share: one ZooKeeper for all of a process, one stage for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.clusters import Cluster
from tests.interop.processes import Stage
from tests.interop.released import Java, ZooKeeper


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> Java:
    return Java.prepare(tmp_path_factory.mktemp("java"))


@pytest.fixture(scope="session")
def zookeeper(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    with Stage(tmp_path_factory.mktemp("zookeeper")) as stage:
        yield ZooKeeper(stage, java)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path) as stage:
        yield stage


MakeCluster = Callable[..., Cluster]


@pytest.fixture
def make_cluster(stage: Stage, java: Java, zookeeper: ZooKeeper) -> MakeCluster:
    def make(
        *, nodes: int, partitions: int = 4, assigned: bool = True, settings: dict[str, object] | None = None
    ) -> Cluster:
        return Cluster(
            stage, java, zookeeper, nodes=nodes, partitions=partitions, assigned=assigned, settings=settings or {}
        )

    return make
