"""A log server of ours in a process of its own: ``python -m tests.interop.our_server CONNECT_STRING ROOT PORT READY``."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from waltzctl.engine.client.storage_client import StorageClient
from waltzctl.engine.metadata.membership import Membership
from waltzctl.engine.metadata.partition_sessions import PartitionSessions, store_parameters
from waltzctl.engine.metadata.zookeeper_options import ZooKeeperOptions
from waltzctl.engine.metadata.zookeeper_store import ZooKeeperStore
from waltzctl.engine.net.tls import client_context, server_context
from waltzctl.engine.net.tls_options import TlsOptions
from waltzctl.engine.server.log_server import LogServer

LOG = logging.getLogger("waltzctl")


async def main(connect_string: str, root: str, port: int, ready: Path) -> None:
    options = ZooKeeperOptions(connect_string, root, session_timeout=10.0)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    trusting = client_context(TlsOptions(), trust_all=True)
    metadata = await ZooKeeperStore.open(options)
    store = await store_parameters(metadata)
    membership = Membership(metadata, log=LOG)

    async def connect(name: str) -> StorageClient:
        host, _, number = name.rpartition(":")
        return await StorageClient.connect(
            host,
            int(number),
            ssl_context=trusting,
            cluster_key=store.cluster_key,
            num_partitions=store.num_partitions,
            timeout=10.0,
        )

    server = LogServer(PartitionSessions(metadata), connect, log=LOG)
    tasks: set[asyncio.Task[None]] = set()

    def assigned(generations: Mapping[int, int]) -> None:
        LOG.info("assigned: %s", dict(generations))
        tasks.add(asyncio.ensure_future(server.assign(generations)))

    _, number = await server.start("localhost", port, server_context(TlsOptions()))
    await membership.register("localhost", number)
    following = asyncio.ensure_future(membership.follow(assigned))
    ready.write_text(str(number))
    await stop.wait()
    following.cancel()
    await membership.unregister()
    await server.stop(5.0)
    await metadata.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])))
