"""Every setting of a log server, declared once: configuration keys, environment variables and options follow from it.

The keys are those of release 0.13.2; settings that the release does not have begin with ``waltzctl.``.

Nothing here opens a file or a socket, and nothing heavy is imported, because ``waltzctl log-server --help`` imports it.
"""

from __future__ import annotations

from dataclasses import dataclass

from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.metadata.zookeeper_options import ZooKeeperPlace, ZooKeeperTimeouts
from waltzctl.engine.net.loopback import is_loopback
from waltzctl.engine.net.monitoring_options import GraphiteOptions, HttpLimits, LogOptions
from waltzctl.engine.net.peer_limits import PortLimits
from waltzctl.engine.net.retries import pause_after
from waltzctl.engine.net.service_settings import (
    NEXT_PORT,
    check_service,
    drain_setting,
    host_setting,
    http_port_setting,
    insecure_setting,
    plaintext_setting,
    port_behind,
    without_choice,
)
from waltzctl.engine.net.setting_kinds import (
    COUNT,
    FILLED_HOST,
    FILLED_TEXT,
    MILLISECONDS,
    PARTITIONS,
    PORT,
    SECONDS,
    SIZE,
    SWITCH,
)
from waltzctl.engine.net.settings import Option, Settings, check_bounds, group, setting
from waltzctl.engine.net.tls_options import TlsOptions

METADATA_VARIABLE = "WALTZCTL_METADATA"
"""The environment variable in which every command looks for the metadata's location."""
_LEAST_PAUSE = 0.001
"""Seconds: a pause of none would leave the server's other partitions no turn beside a node that refuses connections."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """Replication in a store session.  Times are seconds."""

    in_flight: int = setting("batches under way to one replica", COUNT, default=4, key="waltzctl.storage.inFlight")
    copied: int = setting(
        "records that a replica which is behind copies at a time", COUNT, default=256, key="waltzctl.storage.copied"
    )
    kept: int = setting(
        "batches kept for replicas that are behind; who needs older ones reads them from another replica",
        COUNT,
        default=256,
        key="waltzctl.storage.kept",
    )
    kept_bytes: int = setting(
        "bytes of all batches kept for replicas of a partition",
        SIZE,
        default=32 << 20,
        key="waltzctl.storage.keptBytes",
    )
    first_retry: float = setting(
        "pause before a storage node is tried again, in milliseconds; it doubles each time; 0 as 1",
        MILLISECONDS.within(least=0),
        default=0.1,
        key="storage.initialRetryInterval",
        name="first-retry",
    )
    longest_retry: float = setting(
        "longest of these pauses, in milliseconds; 0 as 1",
        MILLISECONDS.within(least=0),
        default=20.0,
        key="storage.maxRetryInterval",
        name="longest-retry",
    )
    deadline: float = setting(
        "time for an answer of a storage node, or for the next piece of a long one, after which it is left behind; the"
        " release waits for ever",
        SECONDS,
        default=10.0,
        key="waltzctl.storage.deadline",
        name="storage-deadline",
    )

    def check(self) -> None:
        """Raise InvalidRequestError for a value that cannot be meant."""
        check_bounds(self)

    def pause_after(self, pause: float) -> float:
        """See `engine.net.retries`.  The release takes 0 for no pause at all, and tries as fast as it can."""
        return pause_after(
            pause, first=max(self.first_retry, _LEAST_PAUSE), longest=max(self.longest_retry, _LEAST_PAUSE)
        )


@dataclass(frozen=True, slots=True)
class PartitionOptions:
    """Appends and feeds of a partition."""

    lock_slots: int = setting(
        "slots of a partition's table of optimistic locks",
        COUNT,
        default=30_000,
        key="server.optimisticLockTableSize",
    )
    batch: int = setting(
        "appends that go to storage together, at most", COUNT, default=256, key="storage.maxBatchSize", name="max-batch"
    )
    in_flight: int = setting(
        "such batches under way for one partition", COUNT, default=16, key="waltzctl.batches", name="batches"
    )
    checkpoint: int = setting(
        "transactions after which a partition begins a new session, so that its replicas' low-water marks rise",
        COUNT,
        default=250_000,
        key="storage.checkpointInterval",
        name="checkpoint-interval",
    )
    feed: int = setting(
        "transactions that a feed is granted at least", COUNT, default=100, key="server.minFetchSize", name="min-fetch"
    )

    def check(self) -> None:
        """Raise InvalidRequestError for a value that cannot be meant."""
        check_bounds(self)


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """Memory for the latest transactions of all partitions of a server."""

    headers: int = setting(
        "memory for the headers of the latest transactions", SIZE, default=64 << 20, key="server.feedCacheSize"
    )
    data: int = setting(
        "memory for the data of the latest transactions", SIZE, default=128 << 20, key="server.transactionDataCacheSize"
    )

    def check(self) -> None:
        """Raise InvalidRequestError for a value that cannot be meant."""
        check_bounds(self)


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The options of a log server.

    `http_port` None: off, `NEXT_PORT`: the client port and two more, or a free one with a client port of 0.  After construction
    it is a number or None.
    """

    metadata: str | None = setting(
        "where the cluster's metadata is: zk://HOST:PORT,.../ROOT, or the file of an embedded store",
        FILLED_TEXT,
        default=None,
        unless=f"{METADATA_VARIABLE}, or ZooKeeper's keys of the file",
        key="waltzctl.metadata",
        option=Option("WHERE"),
    )
    host: str = host_setting()
    port: int = setting(
        "client port, 0 takes a free one", PORT, default=55180, key="server.port", option=Option(), required=True
    )
    http_port: int | None = http_port_setting("server.jetty.port", "client")
    advertised_host: str | None = setting(
        "host under which clients find this server",
        FILLED_HOST,
        default=None,
        unless="the address that is bound, or this machine's name where that is all of them",
        key="waltzctl.advertisedHost",
        option=Option("HOST"),
    )
    preferred: tuple[int, ...] | None = setting(
        "partitions that this server is to have, of those that no server before it prefers",
        PARTITIONS,
        default=None,
        unless="none in particular",
        key="waltzctl.preferredPartitions",
        name="prefer",
        option=Option("LIST"),
    )
    plaintext: bool = plaintext_setting("client port")
    insecure: bool = insecure_setting()
    storage_plaintext: bool = setting(
        "no TLS to the storage nodes", SWITCH, default=False, key="waltzctl.storage.plaintext", option=Option()
    )
    tls: TlsOptions = group(TlsOptions, key="server.", reloadable=True)
    zookeeper: ZooKeeperPlace | None = group(ZooKeeperPlace, wanted_by=("connect_string", "cluster_root"))
    zookeeper_timeouts: ZooKeeperTimeouts = group(ZooKeeperTimeouts)
    session: SessionOptions = group(SessionOptions)
    partition: PartitionOptions = group(PartitionOptions)
    cache: CacheOptions = group(CacheOptions, name="cache-")
    graphite: GraphiteOptions | None = group(
        GraphiteOptions, key="server.graphite.", name="graphite-", wanted_by=("host",)
    )
    http: HttpLimits = group(HttpLimits, key="waltzctl.http.", name="http-")
    drain_seconds: float = drain_setting("how long a stop lets clients take their answers", 10.0)
    limits: PortLimits = group(PortLimits, key="waltzctl.limits.", name="limits-", reloadable=True)

    def __post_init__(self) -> None:
        if self.http_port == NEXT_PORT:
            object.__setattr__(self, "http_port", port_behind(self.port, 2))

    @property
    def beyond_loopback(self) -> bool:
        """Whether the client port may be reachable from other machines."""
        return not is_loopback(self.host)

    def check(self) -> None:
        """Check the values, and that insecure ones were confirmed.

        Raises InvalidRequestError if no location of the metadata is given, and what `check_service` raises.
        """
        if self.metadata is None and self.zookeeper is None:
            raise InvalidRequestError(
                "nothing says where the cluster's metadata is",
                advice=f"give --metadata, {METADATA_VARIABLE}, or zookeeper.connectString and cluster.root in the configuration",
            )
        check_service(self, (("client", "port", self.port), ("HTTP", "http_port", self.http_port)))


@dataclass(frozen=True, slots=True)
class LogServerOptions:
    """The options of ``waltzctl log-server``: those of the server, and those of its process's log."""

    server: ServerOptions = group(ServerOptions)
    log: LogOptions = group(LogOptions, key="waltzctl.log.", name="log-")

    def check(self) -> None:
        """Raises as `ServerOptions.check`."""
        self.server.check()


LOG_SERVER = Settings(
    "log-server",
    LogServerOptions,
    ignored={
        **without_choice("server."),
        "server.region": "the release does not use it either",
        "server.realtimeThreshold": "there is one kind of feed, which reads what is cached from memory",
        "server.transactionDataCacheAllocation": "there is one kind of memory",
    },
)
