"""What the options of every process with ports have: where it listens, how it stops, who may do without TLS, what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from waltzctl.engine.errors import InvalidOptionsError
from waltzctl.engine.net.loopback import refuse_beyond_loopback
from waltzctl.engine.net.setting_kinds import HOST, PORT_OR_OFF, SECONDS, SWITCH
from waltzctl.engine.net.settings import Option, check_bounds, check_groups, setting

NEXT_PORT = -1
"""Stands for a number that follows from the first port, where an own one was not given."""
_OPENSSL = "certificates are handled by OpenSSL, which has no such choice"


class ListeningOptions(Protocol):
    """What `check_service` looks at."""

    @property
    def host(self) -> str:
        """The address to listen at."""

    @property
    def plaintext(self) -> bool:
        """Without TLS."""

    @property
    def insecure(self) -> bool:
        """Also where other machines come."""


def host_setting() -> Any:
    """Where all ports are bound."""
    return setting("address to listen at", HOST, default="127.0.0.1", key="waltzctl.host", option=Option("ADDRESS"))


def http_port_setting(key: str, first: str) -> Any:
    """The port for health and metrics, two behind the `first` unless given; a release's file without it means none."""
    return setting(
        "HTTP port",
        PORT_OR_OFF,
        default=NEXT_PORT,
        unless=f"{first} port + 2",
        left_out=None,
        key=key,
        option=Option(),
    )


def plaintext_setting(ports: str) -> Any:
    """Whether `ports` speak without TLS."""
    return setting(
        f"no TLS on the {ports}",
        SWITCH,
        default=False,
        key="waltzctl.plaintext",
        option=Option(),
        moots=("certificate", "key-store", "trust-store"),
    )


def insecure_setting() -> Any:
    """Whether they may where other machines come."""
    return setting(
        "allow plaintext beyond this machine",
        SWITCH,
        default=False,
        key="waltzctl.insecure",
        option=Option(),
        needs="plaintext",
    )


def drain_setting(meaning: str, default: float) -> Any:
    """How long a stop takes at most."""
    return setting(
        meaning,
        SECONDS.within(least=0),
        default=default,
        key="waltzctl.drain",
        name="drain",
        option=Option(),
        reloadable=True,
    )


def without_choice(prefix: str) -> dict[str, str]:
    """Keys of the release below `prefix` that mean nothing here, and why."""
    return {f"{prefix}ssl.{one}.algorithm": _OPENSSL for one in ("keyManager", "trustManager")}


def port_behind(first: int, count: int) -> int:
    """The number that follows from the first port; where that is to be a free one, a free one as well."""
    return first + count if first else 0


def check_service(options: ListeningOptions, ports: Sequence[tuple[str, str, int | None]]) -> None:
    """Refuse what cannot be meant or must be asked for twice.  `ports`: what each is called, its field, its number.

    Raises InvalidRequestError (values out of bounds, ports that are equal, groups that contradict themselves) and RefusedError
    (plaintext beyond loopback without `insecure`).
    """
    check_bounds(options)
    seen: dict[int, tuple[str, str]] = {}
    for name, field, port in ports:
        if port in seen:
            other, other_field = seen[port]
            message = f"the {other} and the {name} port are both {port}"
            raise InvalidOptionsError(message, options, other_field, field, advice="the ports must differ")
        if port:
            seen[port] = name, field
    check_groups(options)
    if options.plaintext and not options.insecure:
        refuse_beyond_loopback(options.host)
