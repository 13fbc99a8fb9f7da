"""What a node is started with: one value, made by the configuration and read by everything else.

Nothing here opens a file or a socket.  The defaults are those of release 0.13.2 where it has the setting at all; ports have
none there, and the ones here are those of its samples.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass, field
from pathlib import Path

from waltzctl.engine.errors import InvalidRequestError, RefusedError
from waltzctl.engine.net.monitoring_options import GraphiteOptions, HttpLimits
from waltzctl.engine.net.peer_limits import PortLimits
from waltzctl.engine.net.tls import TlsOptions
from waltzctl.engine.node.health_options import HealthOptions
from waltzctl.engine.node.service_options import ServiceOptions
from waltzctl.engine.storage.storage_options import StorageOptions

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 55280
NEXT_PORT = -1
"""Stands for "the data port and so many more" where an own number was not given."""

DEFAULT_DRAIN_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class ZooKeeperOptions:
    """Where the cluster's metadata is.

    `connect_string`: ``host:port,host:port``, possibly followed by a path that is put before every other.  `cluster_root`:
    path of the cluster's node.  `session_timeout`: seconds (the release's key is in milliseconds).  `connect_timeout`:
    seconds to wait for the first connection and for each answer (release 0.13.2 waits for ever).
    """

    connect_string: str
    cluster_root: str
    session_timeout: float = 30.0
    connect_timeout: float = 10.0

    def check(self) -> None:
        """Raise InvalidRequestError for a value that cannot be meant."""
        if not self.connect_string.strip():
            raise InvalidRequestError("zookeeper.connectString is empty; write for instance zk1:2181,zk2:2181")
        if not self.cluster_root.startswith("/") or (self.cluster_root != "/" and self.cluster_root.endswith("/")):
            raise InvalidRequestError(f"cluster.root must be a path such as /waltz_cluster, not {self.cluster_root!r}")
        if "//" in self.cluster_root:
            raise InvalidRequestError(f"cluster.root {self.cluster_root!r} has an empty part")
        if self.session_timeout <= 0 or self.connect_timeout <= 0:
            raise InvalidRequestError("the timeouts of ZooKeeper must be more than nothing")


@dataclass(frozen=True, slots=True)
class Ports:
    """The three ports to bind; 0 takes a free one, None for HTTP is off."""

    data: int
    admin: int
    http: int | None


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Everything that decides how a node runs.

    `directory`: the storage directory.  `host`: the address to bind, 127.0.0.1 unless given.  `admin_port` None: the data
    port and one more; `http_port` None: off, `NEXT_PORT`: the data port and two more; with a data port of 0 they are free
    ones as well.  After construction both are numbers (or None for HTTP off); `ports` has them typed.  `plaintext`: no TLS on the
    data and admin port.  `insecure`: plaintext is wanted beyond loopback as well.  `drain_seconds`: how long a clean stop waits
    for what is under way.
    """

    directory: Path | None = None
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    admin_port: int | None = None
    http_port: int | None = NEXT_PORT
    plaintext: bool = False
    insecure: bool = False
    tls: TlsOptions = field(default_factory=TlsOptions)
    storage: StorageOptions = field(default_factory=StorageOptions)
    limits: PortLimits = field(default_factory=PortLimits)
    service: ServiceOptions = field(default_factory=ServiceOptions)
    zookeeper: ZooKeeperOptions | None = None
    graphite: GraphiteOptions | None = None
    health: HealthOptions = HealthOptions()  # noqa: RUF009  # frozen
    http: HttpLimits = HttpLimits()  # noqa: RUF009  # frozen
    drain_seconds: float = DEFAULT_DRAIN_SECONDS

    def __post_init__(self) -> None:
        if self.admin_port is None or self.admin_port == NEXT_PORT:
            object.__setattr__(self, "admin_port", self.port + 1 if self.port else 0)
        if self.http_port == NEXT_PORT:
            object.__setattr__(self, "http_port", self.port + 2 if self.port else 0)

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

        Raises InvalidRequestError (a missing directory, ports that are equal or no ports, TLS options that contradict each
        other) and RefusedError (plaintext beyond loopback without `insecure`).
        """
        _ = self.storage_directory
        named = [("data", self.ports.data), ("admin", self.ports.admin), ("HTTP", self.ports.http)]
        seen: dict[int, str] = {}
        for name, port in named:
            if port is None:
                continue
            if not 0 <= port < 65536:
                raise InvalidRequestError(f"the {name} port must be 0 to 65535, not {port}")
            if port and port in seen:
                raise InvalidRequestError(
                    f"the {seen[port]} and the {name} port are both {port}", advice="the ports must differ"
                )
            seen[port] = name
        if self.drain_seconds < 0:
            raise InvalidRequestError("the time to drain must not be negative")
        self.storage.check()
        self.limits.check()
        self.service.check()
        self.tls.check()
        self.health.check()
        self.http.check()
        if self.zookeeper is not None:
            self.zookeeper.check()
        if self.graphite is not None:
            self.graphite.check()
        if self.plaintext and not self.insecure and self.beyond_loopback:
            raise RefusedError(
                f"{self.host}: without TLS everybody on the way can read and change what is sent",
                advice="leave --plaintext out, bind to 127.0.0.1, or say --insecure if the network is trusted",
            )


def is_loopback(host: str) -> bool:
    """Whether a host, by address or by name, is reached from this machine only.

    A name counts when every address it has is a loopback one; one that has none does not count.  Empty: all interfaces.
    """
    if not host:
        return False
    try:
        return _is_loopback_address(host)
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    addresses = {str(entry[4][0]) for entry in found}
    return bool(addresses) and all(map(_is_loopback_address, addresses))


def _is_loopback_address(text: str) -> bool:
    """Raises ValueError for what is no address."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback
