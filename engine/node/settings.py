"""Every setting of a node: its key in the configuration file, its names elsewhere, and what its values are.

The keys are those of release 0.13.2 where it has the setting; what it has not stands under ``waltzctl.``.  Each setting has
one name more, from which the option of the command line and the environment variable follow: ``admin-port`` is
``--admin-port`` and ``WALTZCTL_SERVE_ADMIN_PORT``.  A secret can also be read from a file, whose path is in the variable with
``_FILE`` at its end, or in the option with ``-file``.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

from waltzctl.engine.amounts import parse_duration, parse_size
from waltzctl.engine.net.logs import LogFormat, LogLevel
from waltzctl.engine.net.peer_limits import PortLimits
from waltzctl.engine.net.tls import DEFAULT_STORE_TYPE
from waltzctl.engine.node.health_options import HealthOptions
from waltzctl.engine.node.node_options import DEFAULT_DRAIN_SECONDS, DEFAULT_HOST, DEFAULT_PORT
from waltzctl.engine.node.service_options import ServiceOptions
from waltzctl.engine.storage.storage_options import StorageOptions

Value = str | int | float | bool | Path | None
ENVIRONMENT_PREFIX = "WALTZCTL_SERVE_"
OFF = "off"

_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value: `expected` names it for people, `of_text` reads it, `taken` are the YAML types taken as they are."""

    expected: str
    of_text: Callable[[str], Value]
    taken: tuple[type, ...] = ()

    def read(self, given: object) -> Value:
        """A value as a file or the environment gives it.  Raises ValueError, without the value for it may be secret."""
        if isinstance(given, str):
            return self.of_text(given)
        if type(given) in self.taken:
            return self.of_text(str(given).lower() if isinstance(given, bool) else str(given))
        hint = "; put it in quotation marks" if self.taken == () else ""
        raise ValueError(f"must be {self.expected}, not {_yaml_name(given)}{hint}")


def _yaml_name(given: object) -> str:
    names = {bool: "a truth value", int: "a number", float: "a fraction", list: "a list", dict: "a group of keys"}
    return names.get(type(given), f"a {type(given).__name__}")


def _text(text: str) -> str:
    return text


def _path(text: str) -> Path:
    if not text or "\0" in text:
        raise ValueError("must be a path, not empty" if not text else "must be a path, which holds no zero byte")
    return Path(text)


def _integer(text: str) -> int:
    if not re.fullmatch(r"[+-]?\d{1,18}", text.strip(), re.ASCII):
        raise ValueError("must be a whole number")
    return int(text)


def _port(text: str) -> int:
    number = _integer(text)
    if not 0 <= number < 65536:
        raise ValueError(f"must be a port, 0 to 65535, not {number}")
    return number


def _port_or_off(text: str) -> int | None:
    return None if text.strip().lower() in (OFF, "false") else _port(text)


def _boolean(text: str) -> bool:
    word = text.strip().lower()
    if word not in _TRUE + _FALSE:
        raise ValueError("must be true or false")
    return word in _TRUE


def _seconds(text: str) -> float:
    return 0.0 if re.fullmatch(r"0+(s|ms)?", text.strip()) else parse_duration(text)


def _free_space(text: str) -> int:
    return 0 if re.fullmatch(r"0+", text.strip()) else parse_size(text)


def _choice(kind: type[enum.StrEnum]) -> Callable[[str], str]:
    def read(text: str) -> str:
        word = text.strip().lower()
        if word not in kind._value2member_map_:
            raise ValueError(f"must be one of {', '.join(kind)}")
        return word

    return read


TEXT = Kind("a text", _text)
PATH = Kind("a path", _path)
INTEGER = Kind("a whole number", _integer, (int,))
PORT = Kind("a port", _port, (int,))
PORT_OR_OFF = Kind("a port or off", _port_or_off, (int, bool))  # YAML reads a bare off as false
SIZE = Kind("a number of bytes, such as 16MiB", parse_size, (int,))
FREE_SPACE = Kind("a number of bytes, such as 64MiB, or 0", _free_space, (int,))
SECONDS = Kind("a duration, such as 30s", _seconds, (int, float))
BOOLEAN = Kind("true or false", _boolean, (bool,))
LOG_FORMAT = Kind("human or json", _choice(LogFormat))
LOG_LEVEL = Kind("a severity", _choice(LogLevel))


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    `name` gives the option and the variable, `key` is the one of the file.  `default` is what holds when nobody says
    anything.  `required`: a configuration file without it, and nothing else that says it, is an error, as in the release.
    `secret`: its value is never shown.  `reloadable`: a running node takes a new value.
    """

    key: str
    name: str
    kind: Kind
    default: Value
    meaning: str
    required: bool = False
    secret: bool = False
    reloadable: bool = False

    @property
    def variable(self) -> str:
        """The environment variable."""
        return ENVIRONMENT_PREFIX + self.name.upper().replace("-", "_")

    @property
    def option(self) -> str:
        """The option of the command line, for those that have one."""
        return f"--{self.name}"


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _bounds(group: str, holder: object, meaning: str, *, reloadable: bool) -> tuple[Setting, ...]:
    """One setting for every field of a dataclass of bounds."""
    return tuple(
        Setting(
            f"waltzctl.{group}.{_camel(each.name)}",
            f"{group}-{each.name.replace('_', '-')}",
            SECONDS if each.name.endswith("_seconds") else SIZE,
            getattr(holder, each.name),
            f"{meaning}: {each.name.replace('_', ' ')}",
            reloadable=reloadable,
        )
        for each in fields(holder)  # type: ignore[arg-type]  # dataclasses, both of them
    )


LIMITS = _bounds("limits", PortLimits(), "bound of the ports", reloadable=True)
SERVICE = _bounds("service", ServiceOptions(), "bound of serving partitions", reloadable=False)

SETTINGS: tuple[Setting, ...] = (
    Setting("storage.directory", "directory", PATH, None, "the storage directory", required=True),
    Setting("waltzctl.host", "host", TEXT, DEFAULT_HOST, "the address to bind"),
    Setting("storage.port", "port", PORT, DEFAULT_PORT, "the data port", required=True),
    Setting("storage.admin.port", "admin-port", PORT, None, "the admin port", required=True),
    Setting("storage.jetty.port", "http-port", PORT_OR_OFF, None, "the HTTP port"),
    Setting(
        "storage.segment.size.threshold",
        "segment-size",
        SIZE,
        StorageOptions().segment_size_threshold,
        "bytes after which a segment is closed",
    ),
    Setting(
        "storage.segment.cache.capacity",
        "segment-cache",
        INTEGER,
        StorageOptions().cached_segments,
        "closed segments of a partition that stay open for reading",
    ),
    Setting(
        "waltzctl.maxDataLength",
        "max-data-length",
        SIZE,
        StorageOptions().max_data_length,
        "bytes of data of one record",
    ),
    Setting("waltzctl.plaintext", "plaintext", BOOLEAN, False, "no TLS on the data and admin port"),
    Setting("waltzctl.insecure", "insecure", BOOLEAN, False, "plaintext beyond this machine is wanted"),
    Setting("waltzctl.certificate", "certificate", PATH, None, "PEM file of the certificate", reloadable=True),
    Setting("waltzctl.key", "key", PATH, None, "PEM file of its private key", reloadable=True),
    Setting("waltzctl.keyPassword", "key-password", TEXT, None, "password of that key", secret=True, reloadable=True),
    Setting("storage.ssl.keyStore.location", "key-store", PATH, None, "the key store", reloadable=True),
    Setting(
        "storage.ssl.keyStore.password",
        "key-store-password",
        TEXT,
        None,
        "password of the key store and its key",
        secret=True,
        reloadable=True,
    ),
    Setting(
        "storage.ssl.keyStore.type", "key-store-type", TEXT, DEFAULT_STORE_TYPE, "JKS, PKCS12 or PEM", reloadable=True
    ),
    Setting("storage.ssl.trustStore.location", "trust-store", PATH, None, "the trust store", reloadable=True),
    Setting(
        "storage.ssl.trustStore.password",
        "trust-store-password",
        TEXT,
        None,
        "password of the trust store",
        secret=True,
        reloadable=True,
    ),
    Setting(
        "storage.ssl.trustStore.type",
        "trust-store-type",
        TEXT,
        DEFAULT_STORE_TYPE,
        "JKS, PKCS12 or PEM",
        reloadable=True,
    ),
    Setting("zookeeper.connectString", "zookeeper", TEXT, None, "hosts of the ZooKeeper ensemble"),
    Setting("zookeeper.sessionTimeout", "zookeeper-session-timeout", INTEGER, 30_000, "in milliseconds"),
    Setting(
        "waltzctl.zookeeper.connectTimeout",
        "zookeeper-connect-timeout",
        SECONDS,
        10.0,
        "how long to wait for ZooKeeper",
    ),
    Setting("cluster.root", "cluster-root", TEXT, None, "the cluster's path in ZooKeeper"),
    Setting("storage.graphite.hostname", "graphite-host", TEXT, None, "where metrics are sent"),
    Setting("storage.graphite.port", "graphite-port", PORT, 2003, "its port"),
    Setting("storage.graphite.prefix", "graphite-prefix", TEXT, "waltz", "what every name begins with"),
    Setting(
        "storage.graphite.reportIntervalMs",
        "graphite-interval",
        SECONDS,
        60.0,
        "in seconds, whatever the key says: the release reads it so",
    ),
    Setting("storage.graphite.useUdp", "graphite-udp", BOOLEAN, False, "by datagrams"),
    Setting(
        "waltzctl.drain",
        "drain",
        SECONDS,
        DEFAULT_DRAIN_SECONDS,
        "how long a stop waits for what is under way",
        reloadable=True,
    ),
    Setting(
        "waltzctl.minFree",
        "min-free",
        FREE_SPACE,
        HealthOptions().min_free_bytes,
        "bytes that the disk should have free: below, /health is bad; a partition that found the disk full waits for them",
        reloadable=True,
    ),
    Setting("waltzctl.log.format", "log-format", LOG_FORMAT, LogFormat.HUMAN.value, "form of the log"),
    Setting(
        "waltzctl.log.level", "log-level", LOG_LEVEL, LogLevel.INFO.value, "from which severity on", reloadable=True
    ),
    *LIMITS,
    *SERVICE,
)

BY_KEY = {setting.key: setting for setting in SETTINGS}
BY_NAME = {setting.name: setting for setting in SETTINGS}

IGNORED_KEYS = {
    "storage.ssl.keyManager.algorithm": "certificates are handled by OpenSSL, which has no such choice",
    "storage.ssl.trustManager.algorithm": "certificates are handled by OpenSSL, which has no such choice",
}
"""Keys of the release that mean nothing here, and why; they are no mistake."""
