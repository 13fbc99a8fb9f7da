"""One cluster for all tests of its commands; each leaves it as it found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.processes import ClusterOfProcesses
from tests.interop.processes import Stage


@pytest.fixture(scope="package")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterOfProcesses]:
    """Three nodes, each with a replica of everything, and two servers."""
    with Stage(tmp_path_factory.mktemp("cluster")) as stage:
        cluster = ClusterOfProcesses(stage)
        cluster.add_nodes(1, 2, 3)
        cluster.start_servers(1, 2)
        cluster.settle()
        yield cluster
