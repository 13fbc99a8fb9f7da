"""The world of `tests.simulation.world`, over storage nodes as in production."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.crash.harness import scratch_directory
from tests.simulation.real_nodes import RealNodes
from tests.simulation.world import World


class StorageWorld(World):
    """One history: servers that replace one another, or do not know of each other yet, over disks that lose power."""

    @contextmanager
    def nodes(self) -> Iterator[Any]:
        stall = self.chance.choice((0.0, 0.0, 0.002))
        with (
            scratch_directory() as root,
            RealNodes(self.chance, root, partitions=1, loss=self.loss, stall=stall) as nodes,
        ):
            yield nodes
