"""Options for monitoring a process: limits of its HTTP port, Graphite, and its log."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from waltzctl.engine.net.setting_kinds import COUNT, FILLED_HOST, PORT, SECONDS, SIZE, SWITCH, TEXT, one_of
from waltzctl.engine.net.settings import Option, check_bounds, setting


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits on what peers of the HTTP port may use."""

    max_connections: int = setting("connections of the HTTP port; the newest is refused", COUNT, default=64)
    max_request_bytes: int = setting("everything that a peer of the HTTP port sends", SIZE, default=16 << 10)
    connection_seconds: float = setting(
        "whole life of a connection of the HTTP port, so that slow senders and slow readers end", SECONDS, default=30.0
    )
    answer_seconds: float = setting("time that reading the metrics may take", SECONDS, default=10.0)

    def check(self) -> None:
        """Raise InvalidRequestError for a value that cannot be meant."""
        check_bounds(self)


@dataclass(frozen=True, slots=True)
class GraphiteOptions:
    """The Graphite server that metrics are sent to."""

    host: str = setting("host of Graphite, to which metrics are sent", FILLED_HOST, key="hostname")
    port: int = setting("port of Graphite", PORT.within(least=1, most=65535), default=2003)
    prefix: str = setting("what the name of every metric in Graphite begins with", TEXT, default="waltz")
    interval: float = setting(
        "time between two reports to Graphite; a bare number is seconds, whatever the key says, as the release reads it",
        SECONDS,
        default=60.0,
        key="reportIntervalMs",
    )
    udp: bool = setting("reports to Graphite by datagrams", SWITCH, default=False, key="useUdp")

    def check(self) -> None:
        """Raise InvalidRequestError for a value that cannot be meant."""
        check_bounds(self)


class LogFormat(enum.StrEnum):
    """The format of log lines."""

    HUMAN = "human"
    JSON = "json"


class LogLevel(enum.StrEnum):
    """The lowest severity of lines that are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class LogOptions:
    """How a process logs."""

    format: LogFormat = setting(
        "form of the log on stderr", one_of(LogFormat), default=LogFormat.HUMAN, option=Option()
    )
    level: LogLevel = setting(
        "log from this severity on: debug, info, warning or error",
        one_of(LogLevel),
        default=LogLevel.INFO,
        option=Option("LEVEL"),
        reloadable=True,
    )
