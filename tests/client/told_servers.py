"""Who has which partition, told to clients by a test instead of the metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from waltzctl.engine.metadata.server_directory import OnChange, PartitionServer


@dataclass
class Directory:
    """Who has the partition, as the test says."""

    num_partitions: int = 2
    servers: Mapping[int, PartitionServer] = field(default_factory=dict)
    told: list[OnChange] = field(default_factory=list)
    given: int = 100

    async def client_id(self) -> int:
        self.given += 1
        return self.given

    async def follow(self, told: OnChange) -> None:
        self.told.append(told)
        told(self.servers)
        await asyncio.Event().wait()

    def tell(self, servers: Mapping[int, PartitionServer]) -> None:
        self.servers = servers
        for told in self.told:
            told(servers)
