"""Settings of a connection to ZooKeeper."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from waltzctl.engine.net.setting_kinds import MILLISECONDS, SECONDS, SettingKind
from waltzctl.engine.net.settings import check_bounds, setting

_NO_CHARACTERS = re.compile("[\0-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")
"""Characters that ZooKeeper refuses in paths: control, surrogate, private-use, special and non-BMP ones."""


def _judge_cluster_root(text: str) -> None:
    if not text.startswith("/") or (text != "/" and text.endswith("/")):
        raise ValueError(f"must be a path such as /waltz_cluster, not {text!r}")
    if "//" in text:
        raise ValueError(f"must be a path without an empty part, not {text!r}")
    if not {".", ".."}.isdisjoint(text.split("/")):
        raise ValueError(f"must be a path without . and .., not {text!r}")
    if _NO_CHARACTERS.search(text):
        raise ValueError(f"must be of characters that ZooKeeper takes, not {text!r}")


def _judge_hosts(text: str) -> None:
    if not text.strip():
        raise ValueError("must not be empty; write for instance zk1:2181,zk2:2181")


ZNODE = SettingKind("a path in ZooKeeper", "PATH", str, example="/waltz_cluster", rule=_judge_cluster_root)
HOSTS = SettingKind("host:port of each server", "HOSTS", str, example="zk1:2181,zk2:2181", rule=_judge_hosts)


def _connect_string_setting() -> Any:
    return setting("hosts of the ZooKeeper ensemble", HOSTS, key="zookeeper.connectString", name="zookeeper")


def _cluster_root_setting() -> Any:
    return setting("the cluster's path in ZooKeeper", ZNODE, key="cluster.root")


def _session_timeout_setting() -> Any:
    return setting(
        "session timeout of ZooKeeper, in milliseconds",
        MILLISECONDS.within(above=0, most=(2**31 - 1) / 1000),  # a message to ZooKeeper has 32 bits for it
        default=30.0,
        key="zookeeper.sessionTimeout",
        name="zookeeper-session-timeout",
    )


def _connect_timeout_setting() -> Any:
    return setting(
        "how long to wait for ZooKeeper's connection and for each answer; the release waits for ever",
        SECONDS,
        default=10.0,
        key="waltzctl.zookeeper.connectTimeout",
        name="zookeeper-connect-timeout",
    )


@dataclass(frozen=True, slots=True)
class ZooKeeperOptions:
    """Ensemble and root of the cluster's metadata.  Times are seconds.

    `connect_string` may end with a path (chroot), which ZooKeeper puts before every other path.
    """

    connect_string: str = _connect_string_setting()
    cluster_root: str = _cluster_root_setting()
    session_timeout: float = _session_timeout_setting()
    connect_timeout: float = _connect_timeout_setting()

    @classmethod
    def of(cls, place: ZooKeeperPlace, timeouts: ZooKeeperTimeouts) -> ZooKeeperOptions:
        """Options with the fields of both."""
        return cls(place.connect_string, place.cluster_root, timeouts.session_timeout, timeouts.connect_timeout)

    def check(self) -> None:
        """Raise InvalidRequestError for a value that cannot be meant."""
        check_bounds(self)


@dataclass(frozen=True, slots=True)
class ZooKeeperPlace:
    """Ensemble and root alone, where the timeouts also apply to a location given otherwise."""

    connect_string: str = _connect_string_setting()
    cluster_root: str = _cluster_root_setting()

    def check(self) -> None:
        """Raise InvalidRequestError for a value that cannot be meant."""
        check_bounds(self)


@dataclass(frozen=True, slots=True)
class ZooKeeperTimeouts:
    """The times of `ZooKeeperOptions`, seconds."""

    session_timeout: float = _session_timeout_setting()
    connect_timeout: float = _connect_timeout_setting()

    def check(self) -> None:
        """Raise InvalidRequestError for a value that cannot be meant."""
        check_bounds(self)
