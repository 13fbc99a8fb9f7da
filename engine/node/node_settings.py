"""Every setting of a storage node: one declaration each, from which file, environment, options and the node's own values follow.

The keys are those of release 0.13.2 where it has the setting; what it has not stands under ``waltzctl.``.  The defaults are the
release's as well; ports have none there, and the ones here are those of its samples.

Nothing here opens a file or a socket, and nothing heavy is imported: ``waltzctl serve --help`` is made from this.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.metadata.zookeeper_options import ZooKeeperOptions
from waltzctl.engine.net.loopback import is_loopback
from waltzctl.engine.net.monitoring_options import GraphiteOptions, HttpLimits, LogOptions
from waltzctl.engine.net.peer_limits import PortLimits
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
    PATH,
    PORT,
    SECONDS,
    SIZE,
    SWITCH,
)
from waltzctl.engine.net.settings import Option, Settings, check_bounds, group, setting
from waltzctl.engine.net.tls_options import TlsOptions
from waltzctl.engine.storage.storage_options import StorageOptions


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """How partitions are served: bounds of their queues, of one group commit, of one answer."""

    queue_requests: int = setting("requests that may wait for one partition", COUNT, default=16_384)
    queue_bytes: int = setting(
        "bytes that may wait for one partition; an empty queue takes one item of any size", SIZE, default=16 << 20
    )
    stall_seconds: float = setting(
        "time without progress after which further requests of a partition are answered as busy", SECONDS, default=30.0
    )
    commit_bytes: int = setting("frame bodies that share one write and flush", SIZE, default=8 << 20)
    max_list_bytes: int = setting("one list; at least one record is always sent", SIZE, default=16 << 20)
    workers: int | None = setting(
        "threads for all partitions, at most one of them in a partition at a time",
        COUNT,
        default=None,
        unless="one a partition and two more, 32 at most",
    )
    flush_file_system: bool = setting(
        "where several partitions were written, one flush of their file system instead of one for each (ext4 and xfs, Linux"
        " from 5.17 on)",
        SWITCH,
        default=True,
    )

    def check(self) -> None:
        """Raise InvalidRequestError for a value that cannot be meant."""
        check_bounds(self)


@dataclass(frozen=True, slots=True)
class HealthOptions:
    """When a node is unwell."""

    min_free_bytes: int = setting(
        "free space below which /health is bad and a partition that met a full disk stays closed to writes",
        SIZE.within(least=0),
        default=64 << 20,
        key="waltzctl.minFree",
        name="min-free",
        option=Option(),
    )
    deadline: float = setting(
        "time that a look at the disk may take before /health is bad",
        SECONDS,
        default=5.0,
        key="waltzctl.health.deadline",
        name="health-deadline",
    )
    max_stall: float = setting(
        "time that a partition's queue may stand still before /health is bad",
        SECONDS,
        default=30.0,
        key="waltzctl.health.maxStall",
        name="health-max-stall",
    )
    max_age: float = setting(
        "time for which a look at the disk is believed, so that health checks cannot load it",
        SECONDS.within(above=None, least=0),
        default=1.0,
        key="waltzctl.health.maxAge",
        name="health-max-age",
    )

    def check(self) -> None:
        """Raise InvalidRequestError for a value that cannot be meant."""
        check_bounds(self)


@dataclass(frozen=True, slots=True)
class Ports:
    """The three ports to bind; 0 takes a free one, None for HTTP is off."""

    data: int
    admin: int
    http: int | None


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Everything that decides how a node runs.

    `admin_port` None: the data port and one more; `http_port` None: off, `NEXT_PORT`: the data port and two more; with a data
    port of 0 they are free ones as well.  After construction both are numbers (or None for HTTP off); `ports` has them typed.
    """

    directory: Path | None = setting(
        "storage directory",
        PATH,
        default=None,
        key="storage.directory",
        option=Option("PATH", argument=True),
        required=True,
    )
    host: str = host_setting()
    port: int = setting(
        "data port, 0 takes a free one", PORT, default=55280, key="storage.port", option=Option(), required=True
    )
    admin_port: int | None = setting(
        "admin port",
        PORT,
        default=None,
        unless="data port + 1",
        key="storage.admin.port",
        option=Option(),
        required=True,
    )
    http_port: int | None = http_port_setting("storage.jetty.port", "data")
    plaintext: bool = plaintext_setting("data and admin port")
    insecure: bool = insecure_setting()
    tls: TlsOptions = group(TlsOptions, key="storage.", reloadable=True)
    storage: StorageOptions = group(StorageOptions)
    journal: Path | None = setting(
        "file of a commit journal, best on a device of its own: small appends are durable there with one flush for all"
        " partitions, and their segments are flushed behind it",
        PATH,
        default=None,
        unless="none",
        key="waltzctl.journal",
        option=Option(),
    )
    zookeeper: ZooKeeperOptions | None = group(
        ZooKeeperOptions, wanted_by=("connect_string", "cluster_root", "session_timeout")
    )
    graphite: GraphiteOptions | None = group(
        GraphiteOptions, key="storage.graphite.", name="graphite-", wanted_by=("host",)
    )
    health: HealthOptions = group(HealthOptions, reloadable=True)
    http: HttpLimits = group(HttpLimits, key="waltzctl.http.", name="http-")
    drain_seconds: float = drain_setting("how long a stop waits for what was asked", 30.0)
    limits: PortLimits = group(PortLimits, key="waltzctl.limits.", name="limits-", reloadable=True)
    service: ServiceOptions = group(ServiceOptions, key="waltzctl.service.", name="service-")

    def __post_init__(self) -> None:
        if self.admin_port is None or self.admin_port == NEXT_PORT:
            object.__setattr__(self, "admin_port", port_behind(self.port, 1))
        if self.http_port == NEXT_PORT:
            object.__setattr__(self, "http_port", port_behind(self.port, 2))

    @property
    def ports(self) -> Ports:
        """The ports as numbers."""
        assert self.admin_port is not None  # see __post_init__
        return Ports(self.port, self.admin_port, self.http_port)

    @property
    def storage_directory(self) -> Path:
        """The storage directory.  Raises InvalidRequestError when none was named."""
        if self.directory is None:
            raise InvalidRequestError(
                "no storage directory is named", advice="give PATH, or storage.directory in the configuration"
            )
        return self.directory

    @property
    def beyond_loopback(self) -> bool:
        """Whether other machines may reach the ports."""
        return not is_loopback(self.host)

    def check(self) -> None:
        """Refuse what cannot be meant or must be asked for twice.

        Raises InvalidRequestError for a missing directory, and what `check_service` raises.
        """
        _ = self.storage_directory
        data, admin, http = ("data", "port"), ("admin", "admin_port"), ("HTTP", "http_port")
        check_service(self, ((*data, self.ports.data), (*admin, self.ports.admin), (*http, self.ports.http)))


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What ``waltzctl serve`` is told: about the node, and about the log of its process."""

    node: NodeOptions = group(NodeOptions)
    log: LogOptions = group(LogOptions, key="waltzctl.log.", name="log-")

    def check(self) -> None:
        """Raises as `NodeOptions.check`."""
        self.node.check()


SERVE = Settings("serve", ServeOptions, ignored=without_choice("storage."))
